//! php-fpm as an origin of FastCGI: a folder of scripts, and a few processes that run them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, geteuid};

use crate::program::{finish, signal};
use crate::scratch::Scratch;
use crate::wait::holds;

/// Folder in which Debian has it, by a name with a version.
const FOLDER: &str = "/usr/sbin";

pub struct Php {
    scratch: Scratch,
    address: SocketAddr,
    child: Option<Child>,
}

impl Php {
    /// Serves the scripts that are written to it, by so many processes.
    #[track_caller]
    pub fn start(processes: usize) -> Php {
        Php::with(processes, "")
    }

    /// The same with lines of the story's own about its pool.
    #[track_caller]
    pub fn with(processes: usize, pool: &str) -> Php {
        let scratch = Scratch::new();
        // Free now; nothing else takes ports of this range on purpose in the meantime.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        std::fs::create_dir_all(scratch.join("root")).expect("a folder");
        let user = if geteuid().is_root() { "user = root\ngroup = root\n" } else { "" };
        let config = format!(
            "[global]\nerror_log = {}\ndaemonize = no\n[www]\n{user}listen = {address}\npm = static\n\
             pm.max_children = {processes}\nping.path = /ping\nping.response = pong\n\
             php_admin_value[upload_max_filesize] = 64M\nphp_admin_value[post_max_size] = 65M\n\
             php_admin_value[memory_limit] = 256M\nphp_admin_value[upload_tmp_dir] = {}\n\
             php_flag[display_errors] = off\nphp_admin_flag[log_errors] = on\n{pool}\n",
            scratch.join("error.log").display(),
            scratch.path().display(),
        );
        scratch.write("fpm.conf", config);
        let mut php = Php { scratch, address, child: None };
        php.restart();
        php
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn root(&self) -> PathBuf {
        self.scratch.join("root")
    }

    /// Puts a file below the root.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.root().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content).expect("a file");
    }

    /// Starts it anew where it is not running, and waits until it accepts.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(self.child.is_none(), "php-fpm runs already");
        let mut command = Command::new(program());
        command.arg("--nodaemonize").arg("--allow-to-run-as-root").arg("--no-php-ini");
        command.arg("--fpm-config").arg(self.scratch.join("fpm.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("php-fpm starts"));
        holds("php-fpm accepts", || TcpStream::connect(self.address).is_ok());
    }

    /// Ends it at once, with all that its scripts were about to do.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), Signal::TERM);
            finish(&mut child, Duration::from_secs(10), "php-fpm ends");
        }
    }
}

fn program() -> PathBuf {
    let names = std::fs::read_dir(FOLDER).expect("a folder").filter_map(|entry| Some(entry.ok()?.path()));
    let is_php = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm"));
    names.filter(is_php).max().unwrap_or_else(|| Path::new("php-fpm").into())
}

impl Drop for Php {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.scratch.join("error.log")).unwrap_or_default();
            eprintln!("--- php-fpm's words ---\n{log}");
        }
        self.kill();
    }
}

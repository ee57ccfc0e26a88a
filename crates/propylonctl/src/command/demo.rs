//! `propylon demo`: certificates, two origins and an engine in front of them, all on this machine; a little load, what
//! it cost, and how to go on from there. Whatever way it ends, it leaves nothing behind.

mod environment;
mod failure;
mod figures;
mod watch;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use environment::{Environment, Program};
use failure::Failure;
use figures::{Figures, Row};
use watch::{Metrics, Progress, say};

/// Ports that are tried first, so that the addresses are the same each time.
const WEB_PORT: u16 = 8443;
const ADMIN_PORT: u16 = 9900;
const NAME: &str = "shop.test";
const ORIGINS: [&str; 2] = ["blue", "green"];
const WARMUP: Duration = Duration::from_millis(300);
const IDLE_CONNECTIONS: &str = "2000";
/// Time that opening and holding those takes, about.
const IDLE_TIME: Duration = Duration::from_secs(3);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Interrupted before there was a result: what a shell says of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

#[derive(clap::Args)]
pub struct Arguments {
    /// Stay up after the table until Ctrl-C (the default on a terminal)
    #[arg(long, conflicts_with = "once")]
    keep: bool,
    /// End after the table (the default elsewhere)
    #[arg(long)]
    once: bool,
    /// Length of each of the three measurements
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Print the figures as JSON on standard output, and end
    #[arg(long, conflicts_with = "keep")]
    json: bool,
}

/// An engine that serves, and where.
struct Setup {
    web: SocketAddr,
    admin: SocketAddr,
    origins: Vec<SocketAddr>,
    engine_pid: u32,
    /// Processes that must not end before the demo does.
    lasting: Vec<usize>,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(until_interrupted(arguments)),
        Err(error) => Err(Failure::new(format!("the event loop cannot be started: {error}"))),
    };
    outcome.unwrap_or_else(|failure| {
        say(&format!("propylon: {failure}\n"));
        ExitCode::FAILURE
    })
}

/// The demo, dropped half-way when a signal comes: what it has put up by then goes with it.
async fn until_interrupted(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let install = |kind| signal(kind).map_err(|error| Failure::new(format!("signals cannot be had: {error}")));
    let mut interrupt = install(SignalKind::interrupt())?;
    let mut terminate = install(SignalKind::terminate())?;
    let mut hangup = install(SignalKind::hangup())?;
    let mut is_reported = false;
    tokio::select! {
        result = demo(arguments, &mut is_reported) => return result,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(if is_reported { ExitCode::SUCCESS } else { ExitCode::from(INTERRUPTED) })
}

async fn demo(arguments: &Arguments, is_reported: &mut bool) -> Result<ExitCode, Failure> {
    let mut environment = Environment::new()?;
    say(&format!("Propylon {}: a demo on this machine, {} cores\n", env!("CARGO_PKG_VERSION"), cores()));
    let setup = set_up(&mut environment).await?;
    say(&format!(
        "  https://{} in front of {}; dashboard at http://{}/\n",
        setup.web,
        setup.origins.iter().map(SocketAddr::to_string).collect::<Vec<String>>().join(" and "),
        setup.admin
    ));
    let figures = measure(&mut environment, &setup, Duration::from_secs(arguments.seconds.into())).await?;
    let keeps = arguments.keep || (!arguments.once && !arguments.json && io::stdout().is_terminal());
    print_report(arguments, &environment, &setup, &figures, keeps);
    *is_reported = true;
    if keeps {
        // Until a signal drops all of this.
        loop {
            sleep(PROGRESS_INTERVAL).await;
            environment.check(&setup.lasting)?;
        }
    }
    Ok(if figures.errors() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Certificates, origins, engine.
async fn set_up(environment: &mut Environment) -> Result<Setup, Failure> {
    say("  a CA, and an EC P-256 and an RSA-2048 certificate for shop.test\n");
    let folder = environment.folder.clone();
    let maker = environment.start(
        "certificates",
        Program::Bench,
        &words(["certificates", "--name", NAME, "--out"], &folder),
    )?;
    let maker = environment.process(maker);
    if !maker.end().await.success() {
        return Err(maker.failure("failed"));
    }
    let (mut origins, mut lasting) = (Vec::new(), Vec::new());
    for name in ORIGINS {
        let origin = environment.start("an origin", Program::Bench, &words(["origin", "--name"], name))?;
        lasting.push(origin);
        let address = environment.process(origin).says("listening ").await?;
        origins.push(address.parse().map_err(|_| Failure::new(format!("an origin listens on \"{address}\"")))?);
    }
    let file = environment.file("demo.toml");
    let text = configuration(free_or_any(WEB_PORT), free_or_any(ADMIN_PORT), &origins);
    std::fs::write(&file, text).map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
    let index = environment.start("the engine", Program::Propylon, &words(["run", "-c"], &file))?;
    lasting.push(index);
    let engine = environment.process(index);
    let web = engine.says(": info: listener \"web\" at https://").await?;
    let admin = engine.says(": info: admin at http://").await?;
    let version = concat!(": info: propylon ", env!("CARGO_PKG_VERSION"), " runs");
    engine.says(version).await?;
    let engine_pid = engine.pid();
    let address = |text: String| text.parse().map_err(|_| Failure::new(format!("the engine listens on \"{text}\"")));
    Ok(Setup { web: address(web)?, admin: address(admin)?, origins, engine_pid, lasting })
}

/// Limit of connections that each of the demo's servers has.
const SERVER_CONNECTIONS_MAX: u32 = 64;

/// One worker, so that the rates are those of one core.
fn configuration(web: u16, admin: u16, origins: &[SocketAddr]) -> String {
    let servers: Vec<String> = origins
        .iter()
        .map(|origin| format!("{{ address = \"{origin}\", max_connections = {SERVER_CONNECTIONS_MAX} }}"))
        .collect();
    format!(
        r#"# Written by `propylon demo`, and gone when it ends.

[process]
workers = 1                 # so that the demo's rates are those of one core; "auto" takes them all
drain_timeout = "1s"
handshakes = {{ queue_wait = "1m" }} # the demo's own clients wait for their turn, however busy this machine is

[admin]
bind = "127.0.0.1:{admin}"

[listener.web]
bind = "127.0.0.1:{web}"
tls = "shop"

[tls.shop]
certificates = ["{NAME}.ec.pem", "{NAME}.rsa.pem"]

[backend.shop]
servers = [{}]

[[route]]
backend = "shop"
"#,
        servers.join(", ")
    )
}

/// The port if nobody listens there, or 0: the kernel's choice.
fn free_or_any(port: u16) -> u16 {
    TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port)).map_or(0, |_| port)
}

async fn measure(environment: &mut Environment, setup: &Setup, duration: Duration) -> Result<Figures, Failure> {
    let time = [format!("--duration={}s", duration.as_secs()), format!("--warmup={}ms", WARMUP.as_millis())];
    let time = [time[0].as_str(), time[1].as_str()];
    let expected = duration + WARMUP;
    let mut rows = Vec::new();
    for (what, load) in [
        ("new TLS connection + request, EC P-256", ["handshakes", "--key=ec"]),
        ("new TLS connection + request, RSA-2048", ["handshakes", "--key=rsa"]),
        ("request on an open TLS connection", ["requests", "--connections=32"]),
    ] {
        let progress = Progress::new(what, "/s", expected);
        let show =
            |progress: &mut Progress, metrics: &Metrics| progress.count(metrics.sum("propylon_responses_total", ""));
        let report = load_with(environment, setup, &[&load[..], &time].concat(), progress, show).await?;
        rows.push(Row { what, report });
    }
    let progress = Progress::new("idle TLS connections", " open", IDLE_TIME);
    let show = |progress: &mut Progress, metrics: &Metrics| progress.level(metrics.sum("propylon_connections", ""));
    let idle = load_with(environment, setup, &["connections", "--count", IDLE_CONNECTIONS], progress, show).await?;
    let metrics = Metrics::read(setup.admin).await;
    let metrics = metrics.map_err(|error| Failure::new(format!("http://{}/metrics: {error}", setup.admin)))?;
    let origins = ORIGINS.iter().zip(&setup.origins).map(|(name, address)| {
        (*name, metrics.sum("propylon_server_requests_total", &format!("server=\"{address}\"")) as u64)
    });
    Ok(Figures {
        rows,
        idle,
        origins: origins.collect(),
        connections_in: metrics.sum("propylon_connections_total", "") as u64,
        connections_out: metrics.sum("propylon_server_connections_total", "") as u64,
    })
}

/// Runs a load of `propylon-bench` to its end, and returns its report.
async fn load_with(
    environment: &mut Environment,
    setup: &Setup,
    load: &[&str],
    mut progress: Progress,
    show: impl Fn(&mut Progress, &Metrics),
) -> Result<Value, Failure> {
    let json = environment.file("report.json");
    let _ = std::fs::remove_file(&json);
    let mut arguments: Vec<OsString> = load.iter().map(OsString::from).collect();
    let target =
        [format!("--target={}", setup.web), format!("--name={NAME}"), format!("--server-pid={}", setup.engine_pid)];
    arguments.extend(target.map(OsString::from));
    arguments.extend(words(["--json"], &json));
    let index = environment.start("the load", Program::Bench, &arguments)?;
    while environment.process(index).ended().is_none() {
        environment.check(&setup.lasting)?;
        if let Ok(metrics) = Metrics::read(setup.admin).await {
            show(&mut progress, &metrics);
        }
        sleep(PROGRESS_INTERVAL).await;
    }
    // A load in which something failed has a report too, which says what.
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    serde_json::from_str(&text).map_err(|_| environment.process(index).failure("gave no report"))
}

fn print_report(arguments: &Arguments, environment: &Environment, setup: &Setup, figures: &Figures, keeps: bool) {
    let mut text = String::new();
    if arguments.json {
        text = format!("{:#}\n", figures.json());
    } else {
        text.push_str(&format!("\n{}\n", figures.table()));
        text.push_str("One worker, so rates are those of one core; CPU is the engine's, user and system. TLS 1.3.\n");
        figures.remarks().iter().for_each(|remark| text.push_str(&format!("{remark}\n")));
        text.push_str(&if keeps { next_steps_meanwhile(environment, setup) } else { next_steps() });
    }
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

fn next_steps_meanwhile(environment: &Environment, setup: &Setup) -> String {
    let (folder, bench) = (environment.folder.display(), environment.path_of(Program::Bench).display());
    let (web, port, admin) = (setup.web, setup.web.port(), setup.admin);
    let curl =
        format!("curl -i --cacert {folder}/ca.pem --resolve {NAME}:{port}:127.0.0.1 https://{NAME}:{port}/bytes/64");
    format!(
        "\nIt stays up. In another terminal:\n  \
         {curl}\n  \
         {bench} requests --target {web} --name {NAME} --duration 60\n\
         The RSA certificate: add --tls-max 1.2 --ciphers ECDHE-RSA-AES128-GCM-SHA256 to the curl.\n\
         Dashboard       http://{admin}/\n\
         This setup      {folder}/demo.toml\n\
         A real one      {}\n\n\
         Ctrl-C ends it and removes {folder}.\n",
        example()
    )
}

fn next_steps() -> String {
    format!("\nTo look around: propylon demo --keep. A configuration to begin with: {}\n", example())
}

/// The example's path, if this program still lies where it was built.
fn example() -> String {
    const EXAMPLE: &str = "examples/propylon.toml";
    let program = std::env::current_exe().unwrap_or_default();
    let found = program.ancestors().map(|folder| folder.join(EXAMPLE)).find(|path| path.is_file());
    found.unwrap_or_else(|| PathBuf::from(EXAMPLE)).display().to_string()
}

fn cores() -> usize {
    propylon_sys::allowed_cores().len()
}

fn words<const N: usize>(words: [&str; N], last: impl AsRef<Path>) -> Vec<OsString> {
    let last = last.as_ref().as_os_str().to_owned();
    words.iter().map(OsString::from).chain([last]).collect()
}

//! `propylon-gateway`: the controller as a program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser, value_parser};
use propylon_commands::Build;
use propylon_commands::pages::Folders;
use propylon_gateway::access;
use propylon_gateway::controller::Controller;
use propylon_gateway::engines::Engines;
use propylon_gateway::lease::Election;
use propylon_gateway::resources::Key;
use propylon_gateway::settings::{Address, Ready, Settings};
use propylon_gateway::watch::Scope;
use propylon_gateway::world::Kind;
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Serves the Kubernetes Gateway API by engines of Propylon.
#[derive(Parser)]
#[command(name = "propylon-gateway", version = propylon_commands::version(), after_help = EXAMPLE)]
struct Options {
    /// An engine's admin address: http://HOST:PORT or unix:PATH. Again for each further engine
    #[arg(long = "engine", value_name = "URL", required = true)]
    engines: Vec<String>,
    /// File with the token of the engines' admin addresses
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Configuration that the engines were started with, in TOML: it is kept, and added to
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// Folder for certificates and keys, which the engines read by the same path
    #[arg(long, value_name = "FOLDER")]
    files: PathBuf,
    /// Address of the engines that a Gateway gets: an IP address, or BIND=ADVERTISED. Again for each further one
    #[arg(long = "address", value_name = "ADDRESS", required = true)]
    addresses: Vec<Address>,
    /// Name by which classes say that they are ours
    #[arg(long, value_name = "NAME", default_value = "propylon.dev/gateway-controller")]
    controller_name: String,
    /// API server without TLS, such as `kubectl proxy`. Neither this nor a kubeconfig: the one of this Pod's cluster
    #[arg(long, value_name = "URL", conflicts_with = "kubeconfig")]
    server: Option<String>,
    /// The kubeconfig, as JSON: `kubectl config view --raw --flatten -o json`
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace whose Secrets and ConfigMaps are read. Again for each further one; without it, those of all
    #[arg(long = "secrets-of", value_name = "NAMESPACE")]
    secrets_of: Vec<String>,
    /// Lease that decides who of several writes statuses, as NAMESPACE/NAME
    #[arg(long, value_name = "LEASE")]
    lease: Option<String>,
    /// Port of 127.0.0.1 where nobody may listen: engines lead connections there that are to be closed
    #[arg(long, value_name = "PORT", default_value_t = 9898)]
    closed_port: u16,
    /// File with the secret of sessionPersistence's cookies, 32 bytes or more, which all engines read by this path
    #[arg(long, value_name = "FILE")]
    sticky_key: Option<PathBuf>,
    /// Listener of the base, and a path, that say from then on that the engine has a configuration of ours and takes
    /// requests, as its `monitor_path`: NAME/PATH
    #[arg(long, value_name = "NAME/PATH")]
    ready: Option<Ready>,
}

const EXAMPLE: &str = "Example:\n  propylon-gateway --engine unix:/run/propylon/admin.sock --token-file \
    /etc/propylon/token --base /etc/propylon/propylon.toml --files /var/lib/propylon-gateway --address 203.0.113.10 \
    --kubeconfig cluster.json\n\nExit codes: 0 ended as asked; 1 it failed; 2 wrong usage.";

/// Option for where pages and completions go, for those who pack the program.
const PAGES: &str = "pages";

fn main() -> ExitCode {
    let matches = line().get_matches();
    if let Some(folder) = matches.get_one::<PathBuf>(PAGES) {
        return ended(pages(folder));
    }
    let options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    ended(runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(run(options))))
}

fn line() -> Command {
    let build = Build { commit: option_env!("PROPYLON_COMMIT"), features: None };
    let pages = Arg::new(PAGES).long("pages").hide(true).exclusive(true).value_parser(value_parser!(PathBuf));
    Options::command().arg(pages).long_version(propylon_commands::long_version(&build))
}

fn pages(folder: &Path) -> Result<(), String> {
    let written = Folders::below(folder).and_then(|folders| folders.write(&line()));
    written.map_err(|error| format!("{}: {error}", folder.display()))
}

fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), String> {
    let api = Arc::new(match (&options.server, &options.kubeconfig) {
        (Some(url), _) => access::by_address(url)?,
        (None, Some(path)) => access::by_kubeconfig(path)?,
        (None, None) => access::in_cluster()?,
    });
    let engines = options.engines.iter().map(|url| access::engine(url, options.token_file.as_ref()));
    let engines = Engines::new(engines.collect::<Result<_, _>>()?, options.files.clone());
    let base = base(&options.base)?;
    if let Some(ready) = options.ready.as_ref().filter(|ready| !has_listener(&base, &ready.listener)) {
        return Err(format!("--ready: {} has no listener.{}", options.base.display(), ready.listener));
    }
    let settings = Settings {
        controller: options.controller_name.clone(),
        base,
        addresses: options.addresses.clone(),
        files: options.files.clone(),
        closed_port: options.closed_port,
        sticky_key: options.sticky_key.clone(),
        ready: options.ready.clone(),
    };
    let (sender, leads) = watch::channel(options.lease.is_none());
    // Without a lease nobody else is there.
    if let Some(lease) = &options.lease {
        let (namespace, name) = lease.split_once('/').ok_or("--lease is no NAMESPACE/NAME")?;
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "controller".to_owned());
        let identity = format!("{host}_{:016x}", fastrand::u64(..));
        tokio::spawn(Election::new(api.clone(), Key::new(namespace, name), identity).run(sender));
    }
    let controller = Controller::new(api, settings, engines);
    let mut end = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    tokio::select! {
        () = controller.run(scopes(&options.secrets_of), leads) => Err("nothing is followed any more".to_owned()),
        _ = end.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

fn base(path: &PathBuf) -> Result<Map<String, Value>, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    let table: toml::Table = text.parse().map_err(|error| format!("{shown}: {error}"))?;
    match serde_json::to_value(table) {
        Ok(Value::Object(table)) if table.contains_key("include") => {
            Err(format!("{shown} includes other files, which is not handed over to engines: write one file"))
        }
        Ok(table) if has_variable(&table) => Err(format!(
            "{shown} has a value from outside of it (`${{env:…}}`), which is not handed over: write it out"
        )),
        Ok(Value::Object(table)) => Ok(table),
        _ => Err(format!("{shown} has a value that JSON does not know")),
    }
}

fn has_listener(base: &Map<String, Value>, name: &str) -> bool {
    base.get("listener").is_some_and(|listeners| listeners[name].is_object())
}

fn has_variable(value: &Value) -> bool {
    match value {
        Value::String(text) => text.replace("$${env:", "").contains("${env:"),
        Value::Array(all) => all.iter().any(has_variable),
        Value::Object(table) => table.values().any(has_variable),
        _ => false,
    }
}

/// Kinds and where they are read. Secrets, and ConfigMaps, may be read in some namespaces alone.
fn scopes(secrets_of: &[String]) -> Vec<Scope> {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        match matches!(kind, Kind::Secret | Kind::ConfigMap) && !secrets_of.is_empty() {
            true => all.extend(secrets_of.iter().map(|name| Scope { kind, namespace: Some(name.clone()) })),
            false => all.push(Scope { kind, namespace: None }),
        }
    }
    all
}

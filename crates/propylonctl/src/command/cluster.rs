//! `propylon cluster`: engines that share a configuration, certificates and keys, looked at and changed from the
//! command line.

mod apply;
mod keepalived;
mod simulate;
mod status;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use propylon_cluster::{TEXT_BYTES_MAX, WEIGHT_PERCENT_MAX};
use propylon_control::admin::{PEM_BYTES_MAX, SHARED_TOO_LONG};
use propylon_control::withheld;
use serde_json::Value;

use super::admin_client::Where;
use super::control::{Engine, encoded, ended, list, refused, text};

/// Paths of the admin address that are about the cluster.
const ROOT: &str = "/v1/cluster";
const JSON: &str = "application/json";
const PEM: &str = "application/x-pem-file";

const EXAMPLES: &str = "Examples:\n  propylon cluster status -c propylon.toml\n  propylon cluster apply shared.toml \
    --why \"new shop\" -c propylon.toml\n  propylon cluster drain edge-2 -c propylon.toml\n  propylon cluster weight edge-2 25 -c \
    propylon.toml\n\nThey ask the admin \
    address of one engine, which does it for all; changes need its token.\n\nExit codes: 0 done; 1 it was refused, or \
    nobody answers; 2 wrong usage.";

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show the engines, the configuration that they serve, and what is wrong
    #[command(after_help = EXAMPLES)]
    Status(Read),
    /// Give all engines a configuration: all check it, one serves it first, the others follow; and tell how it goes
    #[command(after_help = EXAMPLES)]
    Apply(Apply),
    /// End a configuration that is on its way: engines that serve it go back
    #[command(after_help = EXAMPLES)]
    Abort(Change),
    /// Say what a configuration would change, and change nothing
    #[command(after_help = EXAMPLES)]
    Diff(Diff),
    /// List the configurations that were served
    #[command(after_help = EXAMPLES)]
    History(Read),
    /// Go back to an earlier configuration, by the same steps
    #[command(after_help = EXAMPLES)]
    Rollback(Rollback),
    /// Give an engine no new flows; those that it has end where they are
    #[command(after_help = EXAMPLES)]
    Drain(OfEngine),
    /// Give a drained engine flows again
    #[command(after_help = EXAMPLES)]
    Undrain(OfEngine),
    /// Give an engine more or less than its usual share of new flows; those that it has stay
    #[command(after_help = EXAMPLES)]
    Weight(Weight),
    /// Have the engine that is asked leave the cluster, as it does before it stops
    #[command(after_help = EXAMPLES)]
    Leave(Change),
    /// Put, remove and list certificates that all engines serve
    #[command(subcommand)]
    Certificate(Certificate),
    /// Print what keepalived takes to move the shared addresses to an engine that serves
    #[command(after_help = keepalived::EXAMPLES)]
    Keepalived(keepalived::Arguments),
    /// Say what changes of a cluster cost at sizes up to thousands of engines, and whether flows survive disorder
    #[command(
        after_help = "Examples:\n  propylon cluster simulate\n  propylon cluster simulate --engines 64 --seed 7 \
        --json\n\nIt asks nobody and needs no engine.\n\nExit codes: 0 no flow was broken; 1 one was; 2 wrong usage."
    )]
    Simulate(simulate::Arguments),
}

#[derive(clap::Subcommand)]
enum Certificate {
    /// Give all engines a certificate: a PEM file with its chain and key
    #[command(after_help = EXAMPLES)]
    Put(PutCertificate),
    /// Take a certificate from all engines
    #[command(after_help = EXAMPLES)]
    Remove(RemoveCertificate),
    /// List the certificates that engines share
    #[command(after_help = EXAMPLES)]
    List(Read),
}

#[derive(clap::Args)]
struct Read {
    #[command(flatten)]
    engine: Where,
    /// Print it as JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Change {
    #[command(flatten)]
    engine: Where,
    /// The file with the token of `admin.token_file`; with -c the one that the configuration names
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Change {
    fn engine(&self) -> Result<Engine, String> {
        Engine::at(&self.engine, self.token_file.as_deref())
    }
}

#[derive(clap::Args)]
struct Apply {
    /// The configuration: TOML, or JSON if its name ends in .json
    file: PathBuf,
    #[command(flatten)]
    how: Rolled,
    /// The reason, for the history
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
}

#[derive(clap::Args)]
struct Rollback {
    /// The number of the configuration, as `propylon cluster history` has it; the one before that in effect if absent
    serial: Option<u64>,
    #[command(flatten)]
    how: Rolled,
}

/// A change that comes to the engines by steps.
#[derive(clap::Args)]
struct Rolled {
    #[command(flatten)]
    change: Change,
    /// Do not wait for the outcome
    #[arg(long)]
    no_wait: bool,
}

#[derive(clap::Args)]
struct Diff {
    /// The configuration: TOML, or JSON if its name ends in .json
    file: PathBuf,
    #[command(flatten)]
    change: Change,
    /// Print it as JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct OfEngine {
    /// The engine's name, as `propylon cluster status` has it
    name: String,
    #[command(flatten)]
    change: Change,
}

#[derive(clap::Args)]
struct Weight {
    #[command(flatten)]
    of: OfEngine,
    /// Percent of its usual share: 100 is all of it; with 0 it gets none while another engine can have them
    #[arg(value_parser = clap::value_parser!(u16).range(..=i64::from(WEIGHT_PERCENT_MAX)))]
    percent: u16,
}

#[derive(clap::Args)]
struct PutCertificate {
    /// The name among the cluster's certificates, of your choice
    name: String,
    /// PEM file with the chain and the key
    file: PathBuf,
    #[command(flatten)]
    change: Change,
}

#[derive(clap::Args)]
struct RemoveCertificate {
    /// The name among the cluster's certificates
    name: String,
    #[command(flatten)]
    change: Change,
}

impl Arguments {
    /// Whether the command reads private keys.
    pub fn reads_keys(&self) -> bool {
        matches!(self.command, Command::Certificate(Certificate::Put(_)))
    }
}

pub fn main(arguments: &Arguments) -> ExitCode {
    ended(match &arguments.command {
        Command::Status(read) => look(read, "", status::status),
        Command::Apply(apply) => applied(apply),
        Command::Abort(change) => aborted(change),
        Command::Diff(diff) => differences(diff),
        Command::History(read) => look(read, "/history", status::history),
        Command::Rollback(rollback) => rolled_back(rollback),
        Command::Drain(of) => {
            drained(of, "drain", "gets no new flows; `propylon cluster status` tells what it has left")
        }
        Command::Undrain(of) => drained(of, "undrain", "gets flows again"),
        Command::Weight(weight) => weighed(weight),
        Command::Leave(change) => left(change),
        Command::Certificate(Certificate::Put(put)) => put_certificate(put),
        Command::Certificate(Certificate::Remove(remove)) => remove_certificate(remove),
        Command::Certificate(Certificate::List(read)) => look(read, "/certificates", status::certificates),
        Command::Keepalived(arguments) => keepalived::text(arguments),
        Command::Simulate(arguments) => return simulate::main(arguments),
    })
}

fn look(arguments: &Read, path: &str, shown: fn(&Value) -> String) -> Result<String, String> {
    let engine = Engine::at(&arguments.engine, None)?;
    let answer = read(&engine, path)?;
    Ok(if arguments.json { format!("{answer:#}\n") } else { shown(&answer) })
}

/// Something that the engine tells of its cluster.
fn read(engine: &Engine, path: &str) -> Result<Value, String> {
    match engine.read(&format!("{ROOT}{path}"))? {
        (200, answer) => Ok(answer),
        (404, _) => Err("this engine is in no cluster; [cluster] in its configuration says of which it is".into()),
        (status, answer) => Err(refused(status, &answer)),
    }
}

fn applied(arguments: &Apply) -> Result<String, String> {
    let (kind, body) = configuration(&arguments.file)?;
    let why = arguments.why.clone().map(|why| ("why", why));
    rolled(&with_query("/apply", why.as_slice()), (kind, &body), &arguments.how)
}

fn rolled_back(arguments: &Rollback) -> Result<String, String> {
    let serial = arguments.serial.map(|serial| ("serial", serial.to_string()));
    rolled(&with_query("/rollback", serial.as_slice()), (JSON, ""), &arguments.how)
}

/// Asks for a change that comes by steps, and tells them until it is over.
fn rolled(path: &str, body: (&str, &str), how: &Rolled) -> Result<String, String> {
    let engine = how.change.engine()?;
    let (_, answer) = engine.send("POST", path, body)?;
    let id = text(&answer["id"]);
    if id.is_empty() {
        return Ok("all engines serve this already\n".into());
    }
    if how.no_wait {
        return Ok(format!("candidate {id}; `propylon cluster status` tells how it goes\n"));
    }
    apply::follow(|| read(&engine, ""), id)
}

fn differences(arguments: &Diff) -> Result<String, String> {
    let (kind, body) = configuration(&arguments.file)?;
    let engine = arguments.change.engine()?;
    let (_, answer) = engine.send("POST", &with_query("/diff", &[]), (kind, &body))?;
    if arguments.json {
        return Ok(format!("{answer:#}\n"));
    }
    let changes: String = list(&answer["changes"]).map(|change| withheld::change(change) + "\n").collect();
    Ok(if changes.is_empty() { "nothing is different\n".into() } else { changes })
}

fn drained(arguments: &OfEngine, path: &str, outcome: &str) -> Result<String, String> {
    let path = with_query(&format!("/{path}"), &[("engine", arguments.name.clone())]);
    arguments.change.engine()?.send("POST", &path, (JSON, ""))?;
    Ok(format!("{} {outcome}\n", arguments.name))
}

fn weighed(arguments: &Weight) -> Result<String, String> {
    let (name, percent) = (&arguments.of.name, arguments.percent);
    let path = with_query("/weight", &[("engine", name.clone()), ("percent", percent.to_string())]);
    arguments.of.change.engine()?.send("POST", &path, (JSON, ""))?;
    Ok(match percent {
        100 => format!("{name} gets its usual share of new flows\n"),
        0 => format!("{name} gets no new flows while another engine can have them\n"),
        _ => format!("{name} gets {percent} % of its usual share of new flows\n"),
    })
}

fn aborted(arguments: &Change) -> Result<String, String> {
    let (_, answer) = arguments.engine()?.send("POST", &with_query("/abort", &[]), (JSON, ""))?;
    Ok(format!("configuration {} goes no further: engines that serve it go back\n", answer["serial"]))
}

fn left(arguments: &Change) -> Result<String, String> {
    arguments.engine()?.send("POST", &with_query("/leave", &[]), (JSON, ""))?;
    Ok("it leaves: no new flows come to it, and its addresses are withdrawn\n".into())
}

fn put_certificate(arguments: &PutCertificate) -> Result<String, String> {
    let pem = contents(&arguments.file, PEM_BYTES_MAX, "one chain and its key are to be in it")?;
    let path = format!("{ROOT}/certificates/{}", encoded(&arguments.name));
    arguments.change.engine()?.send("PUT", &path, (PEM, &pem))?;
    Ok(format!("{} is sealed in etcd, and all engines serve it as soon as they have it\n", arguments.name))
}

fn remove_certificate(arguments: &RemoveCertificate) -> Result<String, String> {
    let path = format!("{ROOT}/certificates/{}", encoded(&arguments.name));
    arguments.change.engine()?.send("DELETE", &path, (JSON, ""))?;
    Ok(format!("{} is no longer served by any engine\n", arguments.name))
}

/// A configuration as it is sent: its type, and its text.
fn configuration(file: &Path) -> Result<(&'static str, String), String> {
    let is_json = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    Ok((if is_json { JSON } else { "application/toml" }, contents(file, TEXT_BYTES_MAX, SHARED_TOO_LONG)?))
}

/// The file's text, which is not longer than so much; else with what to do about that.
fn contents(file: &Path, bytes_max: usize, when_longer: &str) -> Result<String, String> {
    use std::io::Read;

    let mut text = String::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    let read = std::fs::File::open(file).and_then(|file| file.take(limit).read_to_string(&mut text));
    match read {
        Err(error) => Err(format!("{}: {error}", file.display())),
        Ok(0) => Err(format!("{} is empty", file.display())),
        Ok(bytes) if bytes > bytes_max => {
            Err(format!("{} has more than {bytes_max} bytes; {when_longer}", file.display()))
        }
        Ok(_) => Ok(text),
    }
}

/// A path about the cluster, with its query.
fn with_query(path: &str, query: &[(&str, String)]) -> String {
    let pairs: Vec<String> = query.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect();
    let mark = if pairs.is_empty() { "" } else { "?" };
    format!("{ROOT}{path}{mark}{}", pairs.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_refused_beyond_its_limits() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            weight: Weight,
        }

        let percent = |percent: &str| {
            let line = <Line as clap::Parser>::try_parse_from(["weight", "e1", percent, "--admin", "127.0.0.1:1"]);
            line.map(|line| line.weight.percent).map_err(|error| error.to_string())
        };
        assert_eq!(["0", "25", "1000"].map(percent), [Ok(0), Ok(25), Ok(1000)]);
        assert!(percent("1001").unwrap_err().contains("0..=1000"));
        assert!(percent("-1").is_err() && percent("x").is_err());
    }

    #[test]
    fn a_configuration_that_is_too_long_for_etcd_is_refused_before_anybody_is_asked() {
        let name = format!("propylon-cluster-{}-{:016x}.toml", std::process::id(), fastrand::u64(..));
        let file = std::env::temp_dir().join(name);
        let read = |bytes: usize| {
            std::fs::write(&file, "#".repeat(bytes)).unwrap();
            configuration(&file).map(|(_, text)| text.len())
        };
        let (fits, longer) = (read(TEXT_BYTES_MAX), read(TEXT_BYTES_MAX + 1));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(fits, Ok(TEXT_BYTES_MAX));
        assert!(longer.is_err_and(|what| what.contains("716800 bytes") && what.contains("certificate put")));
    }

    #[test]
    fn what_is_said_in_a_query_stays_in_it() {
        assert_eq!(with_query("/leave", &[]), "/v1/cluster/leave");
        let query = [("engine", "e 1&why=x".to_owned()), ("why", "a+b=c?\r\n".to_owned())];
        assert_eq!(with_query("/drain", &query), "/v1/cluster/drain?engine=e%201%26why%3Dx&why=a%2Bb%3Dc%3F%0D%0A");
    }
}

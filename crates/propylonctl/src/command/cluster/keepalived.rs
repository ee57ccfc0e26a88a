//! `propylon cluster keepalived`: keepalived's configuration, by which the shared addresses are where an engine serves.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use propylon_announce::keepalived::{self, Failback, Keepalived, RANKS_MAX};
use propylon_config::{AdminBind, Config};
use serde_json::Value;

use super::super::admin_client::{self, AdminRequest, ask};
use super::super::control::list;
use super::ROOT;

pub const EXAMPLES: &str = "Examples:\n  propylon cluster keepalived -c /etc/propylon/propylon.toml --interface eth0 > \
    /etc/keepalived/keepalived.conf\n  propylon cluster keepalived -c propylon.toml --interface eth0 --own 10.0.0.1 \
    --peer 10.0.0.2 --failback returns --rank 1\n\nAddresses of engines that are not given are asked from the running \
    one. Where routers speak BGP, [announce] with BIRD has all engines serve at once, and keepalived is not \
    needed.\n\nExit codes: 0 done; 1 the configuration has errors, or no vips, or addresses of engines are missing; 2 \
    wrong usage.";

/// How long the running engine may take to name the others.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the first in rank has to be well before it takes the addresses back.
const RETURN_DELAY: Duration = Duration::from_secs(60);
/// The command by which keepalived asks, and where it is usually.
const PROGRAM: &str = "propylon";
const PROGRAM_PATH: &str = "/usr/bin/propylon";

#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration, for the addresses of `cluster.vips`
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: PathBuf,
    /// The interface that is to have the addresses
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// Own address of this engine, of each family that the vips have; by default `cluster.address`
    #[arg(long, value_name = "ADDRESS", num_args = 1..)]
    own: Vec<IpAddr>,
    /// The other engines' addresses, of each family that the vips have; by default those in the cluster now
    #[arg(long, value_name = "ADDRESS", num_args = 1..)]
    peer: Vec<IpAddr>,
    /// The fate of the addresses when an engine that lost them is well again
    #[arg(long, value_enum, default_value = "stays")]
    failback: Return,
    /// Place of this engine among all, the first to have the addresses has 0; another on each engine, for
    /// `--failback returns`
    #[arg(long, value_name = "NUMBER", default_value_t = 0, required_if_eq("failback", "returns"),
        value_parser = clap::value_parser!(u8).range(..i64::from(RANKS_MAX)))]
    rank: u8,
    /// The number of the virtual router, the same on all engines and no other's in this network
    #[arg(long, value_name = "NUMBER", default_value_t = 51, value_parser = clap::value_parser!(u8).range(1..))]
    router: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Return {
    /// The engine that has them keeps them
    Stays,
    /// The first in rank takes them back, once it has been well for a minute
    Returns,
}

/// Addresses of engines, as far as they are known.
#[derive(Debug, Default, PartialEq, Eq)]
struct Engines {
    own: Vec<IpAddr>,
    peers: Vec<IpAddr>,
}

pub fn text(arguments: &Arguments) -> Result<String, String> {
    let config = admin_client::read(&arguments.config)?;
    let name = arguments.config.display();
    let cluster =
        config.cluster.as_ref().ok_or_else(|| format!("{name} has no [cluster]; its `vips` are what is moved"))?;
    if cluster.vips.is_empty() {
        return Err(format!("{name}: [cluster] has no `vips`; add the addresses that engines share"));
    }
    let Some(admin) = &config.admin else {
        return Err(format!("{name} has no [admin], and `propylon health` asks there; add bind = \"127.0.0.1:9900\""));
    };
    let own = arguments.own.iter().copied().chain(cluster.address.filter(|_| arguments.own.is_empty())).collect();
    let mut engines = Engines { own, peers: arguments.peer.clone() };
    if !engines.are_enough_for(&cluster.vips) {
        engines.learn(&of_cluster(&admin.bind)?);
    }
    let path = std::path::absolute(&arguments.config).unwrap_or_else(|_| arguments.config.clone());
    let health = health(&program(&std::env::var_os("PATH").unwrap_or_default()), &path)?;
    let head = format!("# The addresses that the engines of cluster {} share.\n", cluster.name);
    Ok(head + &configuration(&config, &cluster.vips, engines, arguments, health)?)
}

fn configuration(
    config: &Config,
    vips: &[IpAddr],
    engines: Engines,
    arguments: &Arguments,
    health: String,
) -> Result<String, String> {
    let wanted = Keepalived {
        virtual_addresses: vips.to_vec(),
        interface: arguments.interface.clone(),
        own: engines.own,
        peers: engines.peers,
        rank: arguments.rank,
        router_id: arguments.router,
        health,
        // The account that serves may read the configuration, and the files that it names.
        user: config.process.user.clone().unwrap_or_else(|| "root".to_owned()),
        failback: match arguments.failback {
            Return::Stays => Failback::Stays,
            Return::Returns => Failback::Returns(RETURN_DELAY),
        },
    };
    keepalived::configuration(&wanted).map_err(|what| format!("{what} (--own and --peer give addresses of engines)"))
}

impl Engines {
    fn are_enough_for(&self, vips: &[IpAddr]) -> bool {
        vips.iter().all(|vip| [&self.own, &self.peers].iter().all(|all| has_family(all, *vip)))
    }

    /// Takes what the cluster knows; what was given by hand stands, family by family.
    fn learn(&mut self, cluster: &Value) {
        let given = (self.own.clone(), self.peers.clone());
        for engine in list(&cluster["engines"]) {
            let Some(address) = engine["address"].as_str().and_then(|address| address.parse::<IpAddr>().ok()) else {
                continue;
            };
            let is_own = engine["name"] == cluster["engine"];
            let (given, known) = if is_own { (&given.0, &mut self.own) } else { (&given.1, &mut self.peers) };
            if !has_family(given, address) {
                known.push(address);
            }
        }
    }
}

fn has_family(addresses: &[IpAddr], like: IpAddr) -> bool {
    addresses.iter().any(|address| address.is_ipv6() == like.is_ipv6())
}

/// The cluster as the running engine sees it.
fn of_cluster(admin: &AdminBind) -> Result<Value, String> {
    let asked = AdminRequest { method: "GET", path: ROOT, fields: "", body: "", timeout: TIMEOUT };
    let failed = |why: String| format!("{why}; or give the engines' addresses with --own and --peer");
    match ask(admin, &asked).map_err(failed)? {
        (200, body) => Ok(serde_json::from_str(&body).unwrap_or_default()),
        (404, _) => Err(failed("the running engine is in no cluster".to_owned())),
        (status, _) => Err(failed(format!("the engine answers {status} about its cluster"))),
    }
}

/// The program that says whether an engine can serve: as it is found by name, which outlives a change of its version.
fn program(path: &std::ffi::OsStr) -> PathBuf {
    let is_program = |file: &PathBuf| {
        file.is_absolute()
            && fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let found = std::env::split_paths(path).map(|folder| folder.join(PROGRAM)).find(is_program);
    found.unwrap_or_else(|| PROGRAM_PATH.into())
}

/// The check; keepalived takes what is between spaces as words, and knows no quotes within quotes.
fn health(program: &Path, config: &Path) -> Result<String, String> {
    let word = |path: &Path| {
        let text = path.to_str().filter(|text| !text.contains(|c: char| c.is_whitespace() || "\"'\\$`".contains(c)));
        let failed = || format!("{} has characters that a command of keepalived cannot have", path.display());
        text.map(str::to_owned).ok_or_else(failed)
    };
    Ok(format!("{} health -c {}", word(program)?, word(config)?))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn arguments(more: &[&str]) -> Result<Arguments, clap::Error> {
        let line = ["keepalived", "-c", "a.toml", "--interface", "eth0"].iter().chain(more);
        Line::try_parse_from(line).map(|line| line.arguments)
    }

    fn config(section: &str) -> Config {
        let route = "[[route]]\nrespond = { status = 200 }\n[listener.web]\nbind = \"127.0.0.1:0\"\n";
        let text = format!("{section}{route}");
        let source = propylon_config::Source { name: "a.toml".into(), base: "".into(), text };
        propylon_config::parse(&source).expect("a good file").0
    }

    fn addresses(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn cluster() -> Value {
        let engine = |name: &str, address: &str| json!({ "name": name, "address": address });
        json!({ "engine": "e2", "engines": [
            engine("e1", "10.0.0.1"), engine("e2", "10.0.0.2"), engine("e3", "10.0.0.3"),
            { "name": "e4", "address": null },
        ]})
    }

    #[test]
    fn engines_are_those_of_the_cluster_but_for_what_is_given_by_hand() {
        let mut engines = Engines::default();
        engines.learn(&cluster());
        assert_eq!((engines.own, engines.peers), (addresses(&["10.0.0.2"]), addresses(&["10.0.0.1", "10.0.0.3"])));
        let mut engines = Engines { own: addresses(&["192.0.2.2"]), peers: addresses(&["fd00::1"]) };
        engines.learn(&cluster());
        assert_eq!(engines.own, addresses(&["192.0.2.2"]));
        assert_eq!(engines.peers, addresses(&["fd00::1", "10.0.0.1", "10.0.0.3"]));
    }

    #[test]
    fn the_engine_is_asked_only_where_a_family_has_no_address() {
        let (vip, both) = (addresses(&["203.0.113.9"]), addresses(&["203.0.113.9", "2001:db8::9"]));
        let engines = Engines { own: addresses(&["10.0.0.1"]), peers: addresses(&["10.0.0.2"]) };
        assert!(engines.are_enough_for(&vip) && !engines.are_enough_for(&both));
        assert!(!Engines { peers: Vec::new(), ..engines }.are_enough_for(&vip));
    }

    #[test]
    fn the_holder_keeps_the_addresses_unless_ranks_are_given() {
        let config = config("[process]\nuser = \"proxy\"\n");
        let of = |more: &[&str]| {
            let engines = Engines { own: addresses(&["10.0.0.2"]), peers: addresses(&["10.0.0.1"]) };
            let health = "/usr/bin/propylon health -c /a.toml".to_owned();
            configuration(&config, &addresses(&["203.0.113.9"]), engines, &arguments(more).unwrap(), health).unwrap()
        };
        let stays = of(&[]);
        assert!(stays.contains("priority 200\n") && stays.contains("virtual_router_id 51\n"), "{stays}");
        assert!(stays.contains("script \"/usr/bin/propylon health -c /a.toml\"\n"), "{stays}");
        assert!(stays.contains("script_user proxy\n") && !stays.contains("nopreempt"), "{stays}");
        let returns = of(&["--failback", "returns", "--rank", "3", "--router", "7"]);
        assert!(returns.contains("priority 197\n") && returns.contains("rise 60\n"), "{returns}");
        assert!(returns.contains("virtual_router_id 7\n"), "{returns}");
        assert!(arguments(&["--failback", "returns"]).is_err(), "ranks differ from engine to engine");
        assert!(arguments(&["--rank", "100"]).is_err() && arguments(&["--router", "0"]).is_err());
    }

    #[test]
    fn what_is_missing_is_told_with_the_option_that_gives_it() {
        let config = config("");
        let engines = Engines { own: addresses(&["10.0.0.2"]), peers: Vec::new() };
        let vips = addresses(&["203.0.113.9"]);
        let told = configuration(&config, &vips, engines, &arguments(&[]).unwrap(), "/bin/true".to_owned());
        assert!(told.unwrap_err().contains("--peer"));
    }

    #[test]
    fn paths_are_words_of_keepalived_or_refused() {
        let good = health(Path::new("/usr/bin/propylon"), Path::new("/etc/a.toml"));
        assert_eq!(good.as_deref(), Ok("/usr/bin/propylon health -c /etc/a.toml"));
        for path in ["/a b.toml", "/a\".toml", "/$(id).toml", "/a\n.toml"] {
            assert!(health(Path::new("/usr/bin/propylon"), Path::new(path)).is_err(), "{path}");
        }
        assert_eq!(program("relative:/nonexistent".as_ref()), Path::new(PROGRAM_PATH));
    }
}

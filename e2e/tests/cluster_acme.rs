//! Certificates that a cluster orders: its leader alone asks the authority, any engine answers it, all of them serve
//! what has come, and a leader that dies leaves account and certificates to its successor. The authority is Pebble.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use propylon_e2e::Certificates;
use propylon_e2e::pebble::{Options as Asking, Pebble, Place};
use propylon_e2e::program::run;
use propylon_e2e::rig::cluster::{
    Member, all_serve_as_seen_by, applied, await_cluster, await_engines, leader, number_of, put_certificate, rig, start,
};
use propylon_e2e::rig::network::{SERVERS_NETWORK, VIP, router_address};
use propylon_e2e::rig::{Options, Rig};
use propylon_e2e::wait::{WAIT_MAX, eventually};

/// An order takes seconds: the authority is waited for, and so are other engines.
const ORDER: Duration = Duration::from_secs(60);
/// Everybody serves a change as soon as it is checked, so that nobody is asked who does not know the account yet; and a
/// busy machine makes nobody lose the lead.
const AT_ONCE: &str = "canary = { time = \"0s\", step = 100 }\nlease = \"10s\"\n";
/// Options of Pebble take ports of addresses.
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(VIP), 0);
/// One account for each kind of challenge.
const ACCOUNTS: [(&str, &str); 2] = [("shaken", "tls-alpn-01"), ("fetched", "http-01")];

#[test]
fn the_leader_orders_another_engine_answers_all_serve_and_a_successor_orders_nothing_anew() {
    let Some(mut rig) = rig(Options { engines: 3, bird: false, ..Options::default() }) else { return };
    let pebble = pebble(&rig);
    start(&mut rig, AT_ONCE);
    put_certificate(&mut rig);
    let first = leader(&mut rig, 0);
    let (second, third) = ((first + 1) % 3, (first + 2) % 3);
    rig.route_to(second);
    let config = config(&rig, &pebble, &[("shaken", "one.test"), ("fetched", "two.test")]);
    applied(&mut rig, second, &config);
    await_certificates(&mut rig, &[first, second, third], 2);

    // The leader has ordered, and the one to whom the router leads has answered. An authority that was too quick for it
    // is asked again.
    assert_eq!(orders(&mut rig, first, "success"), 2.0);
    assert_eq!([second, third].map(|engine| all_orders(&mut rig, engine)), [0.0, 0.0]);
    for (_, kind) in ACCOUNTS {
        let answered = [first, second, third].map(|engine| answered(&mut rig, engine, kind) > 0.0);
        assert_eq!(answered, [false, true, false], "{kind}");
    }
    let asked = requests(&pebble);
    assert_eq!(asked.accounts, 2, "{}", pebble.log());
    let root = pebble.root();
    let before = ["one.test", "two.test"].map(|name| same_at(&rig, &[0, 1, 2], name, &root));

    // A successor has account and certificates, and no reason to order.
    let accounts = account_files(&mut rig, first);
    rig.engine(first).kill();
    await_cluster(&mut rig, second, "another one leads", |status| {
        number_of(&status["leader"]).is_some_and(|now| now != first)
    });
    let next = leader(&mut rig, second);
    let last = if next == second { third } else { second };
    await_states(&mut rig, next, "good", 2);
    assert_eq!(account_files(&mut rig, next), accounts);
    assert_eq!(requests(&pebble), asked, "{}", pebble.log());

    // What is wanted besides is ordered by the successor in the account that was there.
    rig.route_to(last);
    let more =
        self::config(&rig, &pebble, &[("shaken", "one.test"), ("fetched", "two.test"), ("shaken", "three.test")]);
    applied(&mut rig, last, &more);
    await_certificates(&mut rig, &[next, last], 3);
    assert_eq!((orders(&mut rig, next, "success"), all_orders(&mut rig, last)), (1.0, 0.0));
    let asked = requests(&pebble);
    assert_eq!(asked.accounts, 2, "{}", pebble.log());

    // The one that was killed comes back, has what came meanwhile, and orders nothing.
    Member::of(&mut rig, first).start(&mut rig, AT_ONCE);
    await_engines(&mut rig, next, 3);
    all_serve_as_seen_by(&mut rig, next, 2);
    await_certificates(&mut rig, &[first], 3);
    let after = ["one.test", "two.test"].map(|name| same_at(&rig, &[0, 1, 2], name, &root));
    assert_eq!(after, before);
    same_at(&rig, &[0, 1, 2], "three.test", &root);
    assert_eq!(all_orders(&mut rig, first), 0.0);
    assert_eq!(requests(&pebble), asked, "{}", pebble.log());
}

/// Beside the router, so that it reaches the VIP as clients do.
fn pebble(rig: &Rig) -> Pebble {
    let router = rig.router();
    let place = Place {
        command: Box::new(move |program| router.command(program)),
        address: router_address(SERVERS_NETWORK),
        named: VIP,
    };
    Pebble::start_at(place, Asking { http: 80, tls: 443, rejects: 0, ..Asking::new(ANY, ANY) })
}

/// The cluster's configuration, with accounts and the names that each of them has ordered.
fn config(rig: &Rig, pebble: &Pebble, names: &[(&str, &str)]) -> String {
    let (ca, directory) = (Certificates::shared().ca(), pebble.directory());
    let account = |(name, challenge): &(&str, &str)| {
        format!(
            "[acme.{name}]\ndirectory = \"{directory}\"\nterms_agreed = true\nca = {ca:?}\nstate = \"acme\"\n\
             challenge = \"{challenge}\"\nretry = \"1s\"\n"
        )
    };
    let accounts: String = ACCOUNTS.iter().map(account).collect();
    let ordered = |(account, name): &(&str, &str)| format!(", {{ acme = \"{account}\", names = [\"{name}\"] }}");
    let ordered: String = names.iter().map(ordered).collect();
    format!(
        "{}[listener.plain]\nbind = \"{VIP}:80\"\n{accounts}[tls.public]\ncertificates = [\"certificates/\"{ordered}]\n",
        rig.config()
    )
}

/// How often the authority was asked for something new.
#[derive(Debug, PartialEq, Eq)]
struct Requests {
    accounts: usize,
    orders: usize,
}

fn requests(pebble: &Pebble) -> Requests {
    let log = pebble.log();
    let count = |what: &str| {
        let lines = log.lines().filter(|line| line.contains("There are now ") && line.contains(what));
        lines.count()
    };
    Requests { accounts: count("accounts in memory"), orders: count("orders in the db") }
}

/// Waits until engines serve so many ordered certificates.
#[track_caller]
fn await_certificates(rig: &mut Rig, engines: &[usize], count: usize) {
    for engine in engines {
        let node = rig.engine(*engine);
        eventually(ORDER, &format!("{} serves {count} ordered certificates", node.name()), || {
            let snapshot = node.ask("GET", "/snapshot", "").1;
            let served = snapshot["certificates"].as_array()?.iter().filter(|each| {
                let file = each["file"].as_str().unwrap_or_default();
                file.contains("/acme/")
            });
            (served.count() == count).then_some(())
        });
    }
}

/// Waits until an engine's account says this of so many certificates.
#[track_caller]
fn await_states(rig: &mut Rig, engine: usize, state: &str, count: usize) {
    let node = rig.engine(engine);
    eventually(ORDER, &format!("{}: {count} certificates are {state}", node.name()), || {
        let snapshot = node.ask("GET", "/snapshot", "").1;
        let accounts = snapshot["acme"].as_array()?.iter();
        let certificates = accounts.flat_map(|account| account["certificates"].as_array().into_iter().flatten());
        (certificates.filter(|each| each["state"] == state).count() == count).then_some(())
    });
}

/// Orders of an engine since its start that have ended so.
fn orders(rig: &mut Rig, engine: usize, result: &str) -> f64 {
    rig.engine(engine).metric("propylon_acme_orders_total", &[("result", result)]).unwrap_or_default()
}

/// The same, however they have ended.
fn all_orders(rig: &mut Rig, engine: usize) -> f64 {
    rig.engine(engine).metric("propylon_acme_orders_total", &[]).unwrap_or_default()
}

/// Challenges of a kind that it has answered.
fn answered(rig: &mut Rig, engine: usize, kind: &str) -> f64 {
    rig.engine(engine).metric("propylon_acme_challenges_answered_total", &[("type", kind)]).unwrap_or_default()
}

/// Files of accounts that an engine has, with what is in them.
fn account_files(rig: &mut Rig, engine: usize) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Member::of(rig, engine).runtime.join("acme");
    let mut found = Vec::new();
    for (account, _) in ACCOUNTS {
        let files = fs::read_dir(folder.join(account)).expect("an account's folder").flatten().map(|file| file.path());
        let is_account =
            |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("account-"));
        found.extend(files.filter(is_account).map(|file| {
            let name = file.strip_prefix(&folder).expect("a file below").to_owned();
            (name, fs::read(&file).expect("a file"))
        }));
    }
    assert_eq!(found.len(), ACCOUNTS.len());
    found
}

/// The certificate that every one of these engines shows clients of a name, who verify it.
#[track_caller]
fn same_at(rig: &Rig, engines: &[usize], name: &str, root: &Path) -> String {
    let shown: Vec<String> = engines.iter().map(|engine| shown_at(rig, *engine, name, root)).collect();
    assert!(shown.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {shown:#?}");
    shown.into_iter().next().expect("an engine")
}

#[track_caller]
fn shown_at(rig: &Rig, engine: usize, name: &str, root: &Path) -> String {
    rig.route_to(engine);
    let mut command = rig.client_command("openssl");
    command.args(["s_client", "-connect", &format!("{VIP}:443"), "-servername", name, "-verify_hostname", name]);
    command.arg("-verify_return_error").arg("-CAfile").arg(root);
    let said = run(command, b"", WAIT_MAX).ok().text();
    let (from, to) = ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----");
    let pem = said.split_once(from).and_then(|(_, rest)| rest.split_once(to));
    pem.unwrap_or_else(|| panic!("no certificate in {said}")).0.to_owned()
}

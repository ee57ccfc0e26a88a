//! `[cluster]` and `[announce]`: what reaches the model, and what is said of those that are wrong.

use std::path::{Path, PathBuf};
use std::time::Duration;

use propylon_config::*;

fn source(name: &str, text: &str) -> Source {
    Source { name: name.into(), base: PathBuf::from("/etc/propylon"), text: text.into() }
}

/// A configuration, and its problems as they are printed.
fn read(text: &str) -> (Option<Config>, Vec<String>) {
    let (config, problems) = match parse(&source("f", text)) {
        Ok((config, warnings)) => (Some(config), warnings),
        Err(problems) => (None, problems),
    };
    (config, problems.iter().map(Problem::to_string).collect())
}

/// A text that nothing is wrong with.
fn good(text: &str) -> Config {
    let (config, problems) = read(text);
    assert_eq!(problems, [""; 0], "{text}");
    config.expect("nothing is wrong with it")
}

/// Lines that a snippet is put before.
const REST: &str = "\n[listener.web]\nbind='0.0.0.0:80'\n[[route]]\nrespond={body='x'}\n";

/// Each snippet has one problem.
fn expect(table: &[(&str, u32, u32, &str)]) {
    for (snippet, line, column, part) in table {
        let (_, found) = read(&format!("{snippet}{REST}"));
        let place = format!("f:{line}:{column}: ");
        let fits = found.len() == 1 && found[0].starts_with(&place) && found[0].contains(part);
        assert!(fits, "{snippet}\nexpected {place}…{part}…\nfound {found:#?}");
    }
}

fn expect_nothing(snippets: &[&str]) {
    for snippet in snippets {
        good(&format!("{snippet}{REST}"));
    }
}

#[test]
fn every_key_of_a_cluster_reaches_the_model() {
    let cluster = good(include_str!("full.toml")).cluster.expect("there is one");
    assert_eq!((cluster.name.as_str(), cluster.engine.as_deref()), ("edge-1", Some("engine_2.internal")));
    let [ip, name] = cluster.endpoints.as_slice() else { panic!("two endpoints") };
    assert_eq!(ip.address, ServerAddress::Ip("10.0.0.5:2379".parse().expect("an address")));
    assert_eq!(name.address, ServerAddress::Name { host: "etcd.internal".into(), port: 2380 });
    assert_eq!((name.authority.as_str(), name.path.as_str(), name.is_https), ("Etcd.internal:2380", "/", true));
    let path = |trust: &Trust| trust.path.display().to_string();
    assert_eq!(cluster.ca.as_ref().map(path).as_deref(), Some("/etc/propylon/etcd-ca.pem"));
    assert_eq!(cluster.identity.as_ref().map(path).as_deref(), Some("/etc/etcd/engine.pem"));
    let user = cluster.user.as_ref().expect("a user");
    assert_eq!((user.name.as_str(), path(&user.password_file)), ("propylon", "/etc/propylon/etcd.password".into()));
    assert_eq!(
        cluster.sealing_keys.iter().map(path).collect::<Vec<_>>(),
        ["/etc/propylon/sealing.key", "/etc/propylon/old.key"]
    );
    assert_eq!(
        (cluster.state.path.as_path(), cluster.runtime.path.as_path()),
        (Path::new("/etc/propylon/cluster"), Path::new("/run/edge"))
    );
    assert_eq!(cluster.address, Some("2001:db8::2".parse().expect("an address")));
    let seconds = Duration::from_secs;
    assert_eq!(
        (cluster.lease, cluster.drain_limit, cluster.ticket_keys.rotate),
        (seconds(3), seconds(0), seconds(3600))
    );
    assert_eq!(cluster.canary, Canary { time: seconds(0), step_percent: 50, judge: false });
    assert_eq!(cluster.vips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.7", "2001:db8::7"]);
    assert_eq!(cluster.flows, Some(FlowsSettings { port: 7000, buckets: 4096 }));
    let capacity = CapacitySettings {
        min: 2,
        max: 12,
        cpu_percent: 70,
        connections: Some(50_000),
        handshake_wait: Duration::from_millis(20),
        spare: 2,
        recipient: Some(CapacityRecipient::Hook(vec!["/usr/bin/engines".into(), "edge".into()])),
        every: seconds(30),
    };
    assert_eq!(cluster.capacity, Some(capacity));
    assert!(cluster.webhook().is_none());
}

#[test]
fn every_key_of_an_announcement_reaches_the_model() {
    let announce = good(include_str!("full.toml")).announce.expect("there is one");
    assert_eq!(announce.bird, Path::new("/etc/propylon/bird.ctl"));
    assert_eq!((announce.protocols, announce.min_servers_percent), (vec!["vip4".into(), "_vip6".into()], 30));
    assert_eq!((announce.hold, announce.hold_up), (Duration::ZERO, Duration::from_secs(9)));
}

/// An engine of a cluster, with no more than it takes.
const CLUSTER: &str = "[cluster]\nname='a'\nendpoints=['https://etcd:2379']\nsealing_keys=['k']\n";

#[test]
fn what_is_left_out_of_a_cluster_has_its_default() {
    let text = format!("{CLUSTER}capacity={{}}\nvips=['192.0.2.7']\nflows={{}}\n[announce]\nprotocols=['vip']\n{REST}");
    let config = good(&text);
    let (cluster, announce) = (config.cluster.expect("a cluster"), config.announce.expect("an announcement"));
    assert!(cluster.engine.is_none() && cluster.ca.is_none() && cluster.identity.is_none() && cluster.user.is_none());
    assert_eq!(cluster.state.path.as_path(), Path::new("/var/lib/propylon/cluster"));
    assert_eq!((cluster.runtime.path.as_path(), cluster.address), (Path::new("/run/propylon/cluster"), None));
    let seconds = Duration::from_secs;
    assert_eq!((cluster.lease, cluster.drain_limit), (seconds(5), seconds(600)));
    assert_eq!(cluster.canary, Canary { time: seconds(30), step_percent: 25, judge: true });
    assert_eq!(cluster.ticket_keys.rotate, seconds(6 * 3600));
    assert_eq!(cluster.flows, Some(FlowsSettings { port: 6655, buckets: 1024 }));
    let capacity = cluster.capacity.expect("it is computed");
    assert_eq!((capacity.min, capacity.max, capacity.cpu_percent, capacity.spare), (1, 32, 60, 1));
    assert_eq!((capacity.handshake_wait, capacity.every), (Duration::from_millis(100), seconds(60)));
    assert!(capacity.connections.is_none() && capacity.recipient.is_none());
    assert_eq!(announce.bird, Path::new("/run/bird/bird.ctl"));
    assert_eq!((announce.min_servers_percent, announce.hold, announce.hold_up), (1, seconds(3), seconds(5)));

    let config = good(&format!("{CLUSTER}{REST}"));
    let cluster = config.cluster.expect("a cluster");
    assert!(cluster.flows.is_none() && cluster.capacity.is_none() && cluster.vips.is_empty());
    let config = good(REST);
    assert!(config.cluster.is_none() && config.announce.is_none());
}

#[test]
fn files_folders_and_ports_of_a_cluster_are_named() {
    let text = format!(
        "{CLUSTER}ca='ca'\nidentity='i'\nuser='u'\npassword_file='p'\ncapacity={{webhook='https://scaler'}}\n\
         [announce]\nprotocols=['vip']\n{REST}"
    );
    let config = good(&text);
    let named: Vec<_> =
        config.named_files().iter().map(|file| (file.path.display().to_string(), file.access)).collect();
    for name in ["ca", "i", "p", "k"] {
        assert!(named.contains(&(format!("/etc/propylon/{name}"), FileAccess::Read)), "{name}: {named:?}");
    }
    for folder in ["/var/lib/propylon/cluster", "/run/propylon/cluster"] {
        assert!(named.contains(&(folder.into(), FileAccess::WriteFolder)), "{folder}: {named:?}");
    }
    // Sockets of others are connected to, and not removed.
    assert!(!named.iter().any(|(path, _)| path.contains("bird")), "{named:?}");
    let ports: Vec<u16> = config.named_ports().into_iter().map(|(port, _)| port).collect();
    assert_eq!(ports, [2379, 443, 53]);
    assert!(config.key_files().is_empty(), "they are the engine's to read");
}

#[test]
#[rustfmt::skip] // one line per case
fn what_engines_share_is_checked() {
    const MIN: &str = "[cluster]\nname='a'\nendpoints=['https://e:2379']\nsealing_keys=['k']\n";
    let with = |line: &str| format!("{MIN}{line}");
    let at = |endpoint: &str| format!("[cluster]\nname='a'\nsealing_keys=['k']\nendpoints=[{endpoint}]\n");
    let many = |count: usize| (0..count).map(|index| format!("'https://e{index}:1'")).collect::<Vec<_>>().join(",");
    expect(&[
        ("[cluster]\nendpoints=['https://e:1']\nsealing_keys=['k']", 1, 2, "[cluster] has no `name`; name the cluster"),
        ("[cluster]\nname='a'\nsealing_keys=['k']", 1, 2, "[cluster] has no `endpoints`; write the addresses of etcd"),
        ("[cluster]\nname='a'\nendpoints=['https://e:1']", 1, 2, "[cluster] has no `sealing_keys`; name the file with the key"),
        ("[cluster]\nname='a b'\nendpoints=['https://e:1']\nsealing_keys=['k']", 2, 6, "`name` cannot be \"a b\"; use 1 to 64 letters"),
        ("[[cluster]]\nname='a'", 1, 3, "there can be only one [cluster]"),
        (&with("engine=''"), 5, 8, "`engine` cannot be \"\""),
        (&with(&format!("engine='{}'", "e".repeat(65))), 5, 8, "`engine` cannot be"),
        (&with("sealing_key='k'"), 5, 1, "did you mean `sealing_keys`?"),
        (&at(""), 4, 11, "`endpoints` is empty"),
        (&at(&many(17)), 4, 11, "`endpoints` has too many entries; use at most 16"),
        (&at("'e:2379'"), 4, 12, "`endpoints`: \"e:2379\" is not a URL of http or https"),
        (&at("'https://e'"), 4, 12, "\"https://e\" has no port; add it"),
        (&at("'https://e:1/v3'"), 4, 12, "\"https://e:1/v3\" has a path; remove it"),
        (&at("'https://e:1','https://E:1'"), 4, 26, "is named twice"),
        (&at("'https://u:pw@e:1'"), 4, 12, "`endpoints` has more in it than host, port and path; remove it; etcd's account belongs"),
        (&at("'http://10.0.0.5:2379'"), 4, 12, "warning: `endpoints`: \"http://10.0.0.5:2379\" is plaintext"),
        (&(at("'http://127.0.0.1:1'") + "ca='ca'"), 5, 1, "`ca` has no effect with http"),
        (&(at("'http://[::1]:1'") + "identity='i'"), 5, 1, "`identity` has no effect with http"),
        (&with("user='u'"), 1, 2, "[cluster] has no `password_file`; add the file"),
        (&with("password_file='u'"), 1, 2, "[cluster] has no `user`; add the name"),
        (&with("user=''\npassword_file='p'"), 5, 6, "`user` cannot be \"\""),
        ("[cluster]\nname='a'\nendpoints=['https://e:1']\nsealing_keys=[]", 4, 14, "`sealing_keys` is empty"),
        ("[cluster]\nname='a'\nendpoints=['https://e:1']\nsealing_keys=['k', './k']", 4, 20, "k is named twice"),
        ("[cluster]\nname='a'\nendpoints=['https://e:1']\nsealing_keys='k'", 4, 14, "`sealing_keys`: expected an array, found a string; write ['k']"),
        (&with("runtime='/var/lib/propylon/cluster'"), 5, 9, "`state` and `runtime` are one folder"),
        (&with("runtime='/var/lib/propylon/cluster/run'"), 5, 9, "`state` and `runtime` are one folder, or one lies"),
        (&with("state='/run/propylon/cluster/state'"), 5, 7, "`state` and `runtime` are one folder"),
        (&with("address='10.0.0.2:80'"), 5, 9, "`address`: \"10.0.0.2:80\" is not an address; write one without a port"),
        (&with("address='0.0.0.0'"), 5, 9, "is no address of a machine"),
        (&with("address='192.0.2.7'\nvips=['192.0.2.7']"), 5, 9, "`address` is one of `vips`"),
        (&with("vips=['192.0.2.7/32']"), 5, 7, "`vips`: \"192.0.2.7/32\" is not an address"),
        (&with("vips=['::ffff:192.0.2.7']"), 5, 7, "write it as IPv4, as in \"192.0.2.7\""),
        (&with("vips=['ff02::1']"), 5, 7, "is no address of a machine"),
        (&with("vips=['192.0.2.7', '192.0.2.7']"), 5, 20, "192.0.2.7 is named twice"),
        (&with("lease='500ms'"), 5, 7, "`lease` is too small; use \"1s\" or more"),
        (&with("canary={time='2h'}"), 5, 14, "`time` is too large; use \"1h\" or less"),
        (&with("canary={step=0}"), 5, 14, "`step` is too small"),
        (&with("canary={engines=1}"), 5, 9, "unknown key `engines` in `canary`"),
        (&with("canary=false"), 5, 8, "`canary`: expected a table"),
        (&with("ticket_keys={rotate='73h'}"), 5, 21, "`rotate` is too large; use \"72h\" or less"),
        (&with("drain_limit='25h'"), 5, 13, "`drain_limit` is too large"),
        (&with("flows={}"), 5, 1, "`flows` has no use without `vips`"),
        (&with("vips=['192.0.2.7']\nflows={buckets=1000}"), 6, 16, "`buckets`: 1000 is no power of two; write 512 or 1024"),
        (&with("vips=['192.0.2.7']\nflows={buckets=128}"), 6, 16, "`buckets` is too small; use 256 or more"),
        (&with("vips=['192.0.2.7']\nflows={port=0}"), 6, 13, "`port` is too small"),
        (&with("capacity={min=33}"), 5, 15, "`min` is above `max`, which is 32; use 32 or less"),
        (&with("capacity={min=5,max=4}"), 5, 15, "`min` is above `max`, which is 4"),
        (&with("capacity={spare=4,max=4}"), 5, 17, "`spare` is 4, and `max` is 4: no engine is left"),
        (&with("capacity={cpu=101}"), 5, 15, "`cpu` is too large"),
        (&with("capacity={hook=['/p'],webhook='https://a'}"), 5, 23, "`hook` and `webhook` exclude each other"),
        (&with("capacity={hook=[]}"), 5, 16, "`hook` has 0 items, and 1 to 16 are possible"),
        (&with("capacity={hook=['p']}"), 5, 17, "`hook`: \"p\" is not the whole path of a program"),
        (&with("capacity={webhook='a'}"), 5, 19, "`webhook`: \"a\" is not a URL of http or https"),
        (&with("capacity={webhook='http://scaler/x'}"), 5, 19, "warning: `webhook`: \"http://scaler/x\" is plaintext"),
        (&with("[keys]\nisolate=true"), 1, 2, "keys.isolate does not cover certificates and keys that the engines of a cluster share; remove [cluster]"),
    ]);
    expect_nothing(&[
        MIN,
        &at(&many(16)),
        &at("'http://127.0.0.1:2379','http://[::1]:2379','http://localhost:2379'"),
        &with("[process]\nimmutable=true"),
        &with("capacity={webhook='http://127.0.0.1:9/x'}"),
    ]);
}

#[test]
#[rustfmt::skip] // one line per case
fn where_addresses_are_announced_is_checked() {
    let path = format!("[announce]\nprotocols=['v']\nbird='/{}'", "b".repeat(107));
    expect(&[
        ("[announce]", 1, 2, "[announce] has no `protocols`; name the protocols of BIRD"),
        ("[announce]\nprotocols=[]", 2, 11, "`protocols` is empty"),
        ("[announce]\nprotocols='vip'", 2, 11, "expected an array, found a string; write ['vip']"),
        ("[announce]\nprotocols=['a','b','c','d','e','f','g','h','i']", 2, 11, "use at most 8"),
        ("[announce]\nprotocols=['vip; disable all']", 2, 12, "\"vip; disable all\" cannot be the name of a protocol of BIRD"),
        ("[announce]\nprotocols=['vip;all']", 2, 12, "cannot be the name of a protocol of BIRD"),
        ("[announce]\nprotocols=['4vip']", 2, 12, "with no digit in front"),
        ("[announce]\nprotocols=['vip', 'vip']", 2, 19, "\"vip\" is named twice"),
        ("[announce]\nprotocols=['vip']\nmin_servers=101", 3, 13, "`min_servers` is too large"),
        ("[announce]\nprotocols=['vip']\nhold='2h'", 3, 6, "`hold` is too large"),
        ("[announce]\nprotocols=['vip']\nhold_up=5", 3, 9, "`hold_up` has no unit"),
        (&path, 3, 6, "the path of a Unix socket has at most 107 bytes"),
    ]);
    expect_nothing(&["[announce]\nprotocols=['vip']\nmin_servers=0\nhold='0s'"]);
}

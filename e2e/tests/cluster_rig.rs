//! The rig itself, and the network it stands for: what BGP, BFD and plain ECMP give to engines that share an address,
//! and what they do not.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use propylon_e2e::lineage::is_alive;
use propylon_e2e::program::run;
use propylon_e2e::rig::{Cut, Flows, Manner, Options, Rig, Skip, VIP, VIP6};
use propylon_e2e::wait::{WAIT_MAX, eventually, holds};

/// A session of BGP comes up within this on a busy machine: engines try again each second or two.
const SESSION: Duration = Duration::from_secs(60);

/// A rig, or the reason why there is none on standard error.
fn rig(options: Options) -> Option<Rig> {
    match Rig::new(options) {
        Ok(rig) => Some(rig),
        Err(Skip(reason)) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

/// Starts every engine with the rig's configuration.
fn start_engines(rig: &mut Rig) {
    let config = rig.config();
    rig.engines().iter_mut().for_each(|engine| engine.start("", &config));
}

/// Waits until the router has paths to exactly these engines.
#[track_caller]
fn await_paths(rig: &Rig, vip: IpAddr, engines: &[usize]) {
    eventually(SESSION, &format!("paths to engines {engines:?}"), || {
        let paths: Vec<usize> = rig.router_routes(vip).iter().map(|hop| hop.engine).collect();
        (paths == engines).then_some(())
    });
}

/// Has these engines announce the VIP, and waits for the router.
#[track_caller]
fn announce(rig: &Rig, engines: &[usize]) {
    engines.iter().for_each(|engine| rig.announce(*engine, true));
    await_paths(rig, VIP.into(), engines);
}

/// Waits until so many more connections that are opened anew have got an answer, and returns how many have failed
/// meanwhile.
#[track_caller]
fn new_ones_are_answered(flows: &Flows, more: u64) -> u64 {
    let before = flows.sample();
    let after = flows.sample_with("new connections are answered", |sample| sample.new_ok >= before.new_ok + more);
    after.new_failed - before.new_failed
}

#[test]
fn engines_behind_bgp_share_an_address_and_one_that_loses_its_power_is_left_out_by_bfd() {
    let Some(mut rig) = rig(Options::default()) else { return };
    start_engines(&mut rig);
    announce(&rig, &[0, 1, 2, 3]);
    let manner = Manner {
        held: 200,
        interval: Duration::from_millis(100),
        new_per_second: 50,
        timeout: Duration::from_secs(10),
        ..Manner::default()
    };
    let flows = rig.flows(&manner);
    let before = flows.await_held(200);
    assert_eq!(before.engines.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3], "requests reach all: {before:?}");
    assert_eq!(before.broken, 0);

    // BGP alone would take 90 seconds, more than is waited here.
    rig.link_down(2);
    eventually(WAIT_MAX, "BFD takes the path away", || {
        rig.router_routes(VIP.into()).iter().all(|hop| hop.engine != 2).then_some(())
    });
    await_paths(&rig, VIP.into(), &[0, 1, 3]);
    let of_the_lost = before.engines[&2] as usize;
    holds("all flows of the lost engine are broken", || {
        flows.broken().iter().filter(|broken| broken.engine == Some(2)).count() == of_the_lost
    });
    assert_eq!(new_ones_are_answered(&flows, 50), 0, "{:?}", flows.failed());
    let broken = flows.broken();
    let others = broken.iter().filter(|broken| broken.engine != Some(2)).count();
    eprintln!(
        "{of_the_lost} flows were the lost engine's; ECMP took {others} of the other {} with them",
        200 - of_the_lost
    );

    rig.link_up(2);
    await_paths(&rig, VIP.into(), &[0, 1, 2, 3]);
    let summary = flows.stop();
    assert!(summary.new_ok > 50 && summary.resumed + summary.full >= summary.new_ok, "{summary:?}");
}

#[test]
fn of_two_engines_the_loss_of_one_breaks_its_own_flows_and_no_other() {
    let Some(mut rig) = rig(Options { engines: 2, ..Options::default() }) else { return };
    start_engines(&mut rig);
    announce(&rig, &[0, 1]);
    let manner = Manner { held: 100, interval: Duration::from_millis(100), ..Manner::default() };
    let mut flows = rig.flows(&manner);
    let before = flows.await_held(100);
    assert_eq!(before.engines.len(), 2, "{before:?}");
    let lost = flows.mark("the link is lost");
    rig.link_down(0);
    await_paths(&rig, VIP.into(), &[1]);
    // ECMP over one path has nobody else to send a flow to.
    let own = before.engines[&0];
    flows.sample_with("flows of the lost engine are broken", |sample| sample.broken == own);
    flows.await_round(&manner);
    let broken = flows.broken();
    assert!(broken.iter().all(|broken| broken.engine == Some(0) && broken.at >= lost), "{broken:?}");
    let after = flows.stop();
    assert_eq!((after.held, after.broken), (100 - own, own));
}

#[test]
fn plain_ecmp_breaks_flows_of_engines_that_live_when_another_joins() {
    let Some(mut rig) = rig(Options::default()) else { return };
    start_engines(&mut rig);
    announce(&rig, &[0, 1, 2]);
    let manner = Manner { held: 300, interval: Duration::from_millis(200), ..Manner::default() };
    let flows = rig.flows(&manner);
    assert_eq!(flows.await_held(300).engines.len(), 3);
    announce(&rig, &[0, 1, 2, 3]);
    // The router spreads flows anew, and an engine resets what it does not know. More than a tenth is enough to say so.
    flows.sample_with("flows break", |sample| sample.broken > 30);
    let after = flows.await_round(&manner);
    eprintln!("{} of 300 held flows broke when a fourth engine joined", after.broken);
    assert!(flows.broken().iter().all(|broken| broken.how == "ECONNRESET"), "{:?}", flows.broken());
    // So does an engine that leaves as it should, by an order to BIRD.
    let before = flows.sample().broken;
    rig.announce(0, false);
    await_paths(&rig, VIP.into(), &[1, 2, 3]);
    flows.sample_with("flows break again", |sample| sample.broken > before);
}

#[test]
fn an_engine_of_the_rig_is_upgraded_without_a_broken_flow_and_killed_with_all_that_it_had() {
    let Some(mut rig) = rig(Options { engines: 1, ..Options::default() }) else { return };
    start_engines(&mut rig);
    announce(&rig, &[0]);
    let interval = Duration::from_millis(100);
    let flows = rig.flows(&Manner { held: 40, interval, new_per_second: 20, replaces: true, ..Manner::default() });
    flows.await_held(40);
    let first = rig.engine(0).pid();
    rig.engine(0).upgrade();
    assert_ne!(rig.engine(0).pid(), first);
    // The one before asks its clients to go, and they come again.
    let after = flows.sample_with("flows have moved", |sample| sample.ended >= 40 && sample.held == 40);
    assert_eq!((after.broken, after.new_failed), (0, 0), "{:?} {:?}", flows.broken(), flows.failed());
    let (status, snapshot) = rig.engine(0).ask("GET", "/snapshot", "");
    assert_eq!((status, &snapshot["upgrade"]["upgrades"]), (200, &1.into()));
    assert!(rig.engine(0).metric("propylon_upgrades_total", &[]) == Some(1.0));

    rig.engine(0).kill();
    flows.sample_with("flows are broken", |sample| sample.broken == 40 && sample.held == 0);
    let config = rig.config();
    rig.engine(0).start("", &config);
    flows.await_held(40);
    rig.engine(0).power_off();
    await_paths(&rig, VIP.into(), &[]);
    rig.engine(0).power_on();
    rig.engine(0).start("", &config);
    // As after any start of BIRD, the VIP is not announced until the engine says so.
    announce(&rig, &[0]);
    flows.await_held(40);
    rig.engine(0).terminate();
    assert!(!rig.engine(0).is_running());
}

#[test]
fn everything_has_ipv6_as_well() {
    let Some(mut rig) = rig(Options { engines: 2, ipv6: true, ..Options::default() }) else { return };
    start_engines(&mut rig);
    announce(&rig, &[0, 1]);
    await_paths(&rig, VIP6.into(), &[0, 1]);
    let flows = rig.flows(&Manner { held: 40, ipv6: true, ..Manner::default() });
    assert_eq!(flows.await_held(40).engines.len(), 2);
    rig.link_down(1);
    await_paths(&rig, VIP6.into(), &[0]);
    await_paths(&rig, VIP.into(), &[0]);
}

#[test]
fn an_engine_is_cut_off_from_etcd_or_servers_alone_and_reaches_them_again() {
    let options = Options { engines: 2, etcd_members: 3, bird: false, ..Options::default() };
    let Some(mut rig) = rig(options) else { return };
    let server = rig.servers()[0];
    let members: Vec<String> = rig.etcd().endpoints();
    let addresses: Vec<&str> = members.iter().filter_map(|url| url.strip_prefix("https://")).collect();
    let server = server.to_string();
    let reach = |rig: &mut Rig, number: usize| {
        let mut all: Vec<&str> = addresses.clone();
        all.push(&server);
        reaches(rig, number, &all)
    };
    assert_eq!(reach(&mut rig, 0), [true, true, true, true]);
    rig.isolate(0, Cut::Member(1));
    assert_eq!(reach(&mut rig, 0), [true, false, true, true]);
    rig.isolate(0, Cut::Etcd);
    assert_eq!(reach(&mut rig, 0), [false, false, false, true]);
    assert_eq!(reach(&mut rig, 1), [true, true, true, true]);
    rig.rejoin(0);
    rig.isolate(0, Cut::Servers);
    assert_eq!(reach(&mut rig, 0), [true, true, true, false]);
    rig.isolate(0, Cut::All);
    assert_eq!(reach(&mut rig, 0), [false, false, false, false]);
    rig.rejoin(0);
    assert_eq!(reach(&mut rig, 0), [true, true, true, true]);
}

/// Which of these addresses an engine gets a connection to.
fn reaches(rig: &mut Rig, engine: usize, addresses: &[&str]) -> Vec<bool> {
    let script = "import socket, sys\n\
                  from concurrent.futures import ThreadPoolExecutor\n\
                  def reaches(address):\n\
                  \x20   host, port = address.split(':')\n\
                  \x20   try:\n\
                  \x20       socket.create_connection((host, int(port)), 2).close()\n\
                  \x20       return 1\n\
                  \x20   except OSError:\n\
                  \x20       return 0\n\
                  print(*ThreadPoolExecutor().map(reaches, sys.argv[1:]), sep='\\n')\n";
    let mut command = rig.engine(engine).command("python3");
    command.args(["-c", script]).args(addresses);
    let said = run(command, b"", WAIT_MAX).ok();
    said.text().lines().map(|line| line == "1").collect()
}

#[test]
fn etcd_keeps_its_data_when_its_leader_is_killed_or_stands_still_and_loses_them_on_request() {
    let Some(mut rig) = rig(Options { engines: 1, etcd_members: 3, bird: false, ..Options::default() }) else { return };
    let etcd = rig.etcd();
    etcd.put("propylon/test/a", "one");
    let leader = etcd.leader();
    etcd.kill(leader);
    let next = etcd.leader();
    assert_ne!(next, leader);
    holds("writes are back", || etcd.ctl(&["put", "--", "propylon/test/b", "two"]).status.success());
    etcd.restart(leader);
    holds("the member is back", || etcd.ctl(&["endpoint", "health"]).status.success());
    etcd.stop(next);
    holds("another one leads", || etcd.ctl(&["put", "--", "propylon/test/a", "three"]).status.success());
    etcd.cont(next);
    assert_eq!(etcd.value("propylon/test/a").as_deref(), Some("three"));
    assert_eq!(etcd.keys("propylon/test/"), ["propylon/test/a", "propylon/test/b"]);
    etcd.lose_data();
    assert_eq!(etcd.value("propylon/test/a"), None);
}

/// Set for the process that the story below kills.
const VICTIM: &str = "PROPYLON_E2E_VICTIM";

#[test]
fn a_test_that_is_killed_leaves_no_namespace_no_process_and_no_folder() {
    let options = Options { engines: 1, ..Options::default() };
    if std::env::var_os(VICTIM).is_some() {
        let Some(mut rig) = rig(options) else { return };
        start_engines(&mut rig);
        println!("\nvictim {} {}", rig.engine(0).pid(), rig.folder().display());
        loop {
            std::thread::park();
        }
    }
    let Some(_) = rig(options) else { return };
    let mut command = Command::new(std::env::current_exe().expect("a test knows its own path"));
    command.args(["--exact", "a_test_that_is_killed_leaves_no_namespace_no_process_and_no_folder", "--nocapture"]);
    let mut victim = command.env(VICTIM, "1").stdout(Stdio::piped()).spawn().expect("a test");
    let lines = BufReader::new(victim.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let line = lines.into_iter().find(|line| line.starts_with("victim ")).expect("the victim has its rig");
    let victims_namespaces = format!("pe2e-{}-", victim.id());
    let namespaces = || {
        let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&victims_namespaces)).count()
    };
    let had = namespaces();
    victim.kill().expect("a child");
    victim.wait().expect("a child");
    let words: Vec<&str> = line.split(' ').collect();
    let engine: u32 = words[1].parse().expect("a number");
    assert!(had >= 4, "{had} namespaces");
    holds("its engine ends", || !is_alive(engine));
    holds("its namespaces are removed", || namespaces() == 0);
    holds("its folder is removed", || !std::path::Path::new(words[2]).exists());
}

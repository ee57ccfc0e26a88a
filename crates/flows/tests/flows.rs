//! Held connections while engines come, leave and die, with real routers' spreading in network namespaces.

mod lab;

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use lab::{Lab, SERVICE_PORT, VIP4, VIP6, beat, is_possible};
use propylon_flows::loader::{attached, attached_by_others};
use propylon_policy::flows::EngineId;

/// A third of them moves with the router's hash when an engine joins.
const FLOWS: usize = 300;
const NONE: [usize; 0] = [];

#[test]
fn without_the_program_connections_break_when_an_engine_joins() {
    if !is_possible() {
        return;
    }
    let lab = Lab::new(4, 3);
    let mut flows = lab.hold(VIP4, FLOWS);
    assert_eq!(beat(&mut flows), NONE);
    lab.route(&[1, 2, 3, 4]);
    let broken = beat(&mut flows).len();
    assert!(broken > FLOWS / 5, "only {broken} broke: the other stories would show nothing");
}

#[test]
fn a_flow_stays_with_its_engine_when_another_joins_and_leaves_again() {
    if !is_possible() {
        return;
    }
    for vip in [VIP4, VIP6] {
        let mut lab = Lab::new(4, 3);
        lab.start_all();
        let mut flows = lab.hold(vip, FLOWS);
        let (opened, failed) = lab.opening_during(vip, |lab| {
            // An engine takes packets once everybody's table lists it.
            lab.members = vec![1, 2, 3, 4];
            lab.give();
            lab.route(&[1, 2, 3, 4]);
            assert_eq!(beat(&mut flows), NONE, "{vip}: {}", lab.counts());
            lab.hand_over(4, |number, _| number % 4 == 3);
            assert_eq!(beat(&mut flows), NONE);
        });
        assert_eq!(failed, 0, "of {opened} that were opened meanwhile");
        let mut later = lab.hold(vip, FLOWS);
        assert!(later.iter().any(|flow| flow.engine == 4), "the fourth engine gets its share");
        // The fourth one leaves: first out of the table, then out of the router, and keeps what it has until that
        // ends. A bucket has room for two names, and there are flows of the one before: it gets the bucket back.
        let (opened, failed) = lab.opening_during(vip, |lab| {
            lab.hand_back(EngineId(4));
            lab.route(&[1, 2, 3]);
            assert_eq!(beat(&mut later), NONE, "{vip}: {}", lab.counts());
            assert_eq!(beat(&mut flows), NONE);
        });
        assert_eq!(failed, 0, "of {opened} that were opened meanwhile");
        assert!(lab.hold(vip, 100).iter().all(|flow| flow.engine != 4), "nothing new goes to an engine that leaves");
    }
}

#[test]
fn the_former_owner_says_how_many_flows_it_still_has() {
    if !is_possible() {
        return;
    }
    let mut lab = Lab::new(2, 2);
    lab.start_all();
    let flows: Vec<_> = [VIP4, VIP6].into_iter().flat_map(|vip| lab.hold(vip, 60)).collect();
    let held = flows.iter().filter(|flow| flow.engine == 1).count() as u64;
    assert!(held > 0);
    lab.hand_over(2, |_, bucket| bucket.owner == EngineId(1));
    let sum = |former: &[(u32, u64)]| former.iter().map(|(_, count)| count).sum::<u64>();
    let status = lab.status(1, "all flows to be counted", |status| sum(&status.former) == held);
    assert_eq!(status.former.len(), lab::BUCKETS / 2);
    assert!(status.former.iter().all(|(bucket, _)| bucket % 2 == 0));
    lab.status(2, "nothing to be counted by the owner", |status| status.former.is_empty());
    drop(flows);
    lab.status(1, "the flows' end to be seen", |status| {
        status.former.len() == lab::BUCKETS / 2 && sum(&status.former) == 0
    });
}

#[test]
fn the_death_of_an_engine_breaks_its_own_flows_only() {
    if !is_possible() {
        return;
    }
    let mut lab = Lab::new(4, 4);
    lab.start_all();
    let mut flows = lab.hold(VIP4, FLOWS);
    lab.stop(4);
    lab.command("r", "ip link set e4 down");
    lab.route(&[1, 2, 3]);
    // As a planner does for a dead engine: its buckets go to the others at once.
    for (number, bucket) in lab.buckets.iter_mut().enumerate().filter(|(_, bucket)| bucket.owner == EngineId(4)) {
        *bucket = propylon_policy::flows::Bucket::of(EngineId(1 + (number / 4 % 3) as u16));
    }
    lab.members = vec![1, 2, 3];
    lab.give();
    let broken = beat(&mut flows);
    assert!(!broken.is_empty());
    let dead: Vec<usize> = (0..FLOWS).filter(|number| flows[*number].engine == 4).collect();
    assert_eq!(broken, dead);
    assert_eq!(beat(&mut lab.hold(VIP4, 50)), NONE);
}

#[test]
fn a_new_connection_for_an_engine_that_just_died_waits_for_the_next_owner_of_its_bucket() {
    if !is_possible() {
        return;
    }
    for vip in [VIP4, VIP6] {
        let mut lab = Lab::new(2, 2);
        lab.start_all();
        assert!([1, 2].iter().all(|engine| lab.hold(vip, 60).iter().any(|flow| flow.engine == *engine)));
        lab.close_listeners(2);
        let (opened, failed) = lab.opening_during(vip, |lab| {
            lab.wait_for_count(2, "dropped_no_listener");
            lab.buckets = lab.spread(&[1]);
            lab.give();
        });
        assert_eq!(failed, 0, "of {opened} that were opened meanwhile: {}", lab.counts());
        assert!(lab.hold(vip, 20).iter().all(|flow| flow.engine == 1));
        let refused = lab.connect(vip, SERVICE_PORT + 1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}

#[test]
fn the_program_works_on_while_the_process_is_away_and_when_another_takes_its_place() {
    if !is_possible() {
        return;
    }
    for more in [&[][..], &["--clsact"]] {
        let mut lab = Lab::new(4, 3);
        for engine in 1..=4 {
            lab.start_with(engine, more);
        }
        lab.members = vec![1, 2, 3, 4];
        lab.give();
        let mut flows = lab.hold(VIP4, FLOWS);
        lab.route(&[1, 2, 3, 4]);
        assert_eq!(beat(&mut flows), NONE);
        for engine in 1..=4 {
            lab.stop(engine);
        }
        assert_eq!(beat(&mut flows), NONE);
        let before = lab.count(4, "forwarded_owner");
        assert!(before > 0);
        let (opened, failed) = lab.opening_during(VIP4, |lab| {
            for engine in 1..=4 {
                lab.start_with(engine, more);
            }
            lab.give();
            assert_eq!(beat(&mut flows), NONE);
        });
        assert_eq!(failed, 0, "of {opened} that were opened meanwhile");
        assert!(lab.count(4, "forwarded_owner") > before, "counts go on");
        let attached = |lab: &Lab| match more {
            [] => lab.within("e4", || attached("eth0").unwrap()),
            _ => lab.command("e4", "tc filter show dev eth0 ingress").matches("handle 0x").count(),
        };
        assert_eq!(attached(&lab), 1);
        lab.stop(4);
        let removed = lab.tool(4, "detach");
        assert!(removed.contains("removed"), "{removed}");
        assert_eq!(attached(&lab), 0);
        assert!(!lab.pins(4).exists());
        assert!(lab.tool(4, "detach").contains("nothing was there"));
    }
}

#[test]
fn a_table_that_cannot_be_is_refused_and_the_one_before_stays() {
    if !is_possible() {
        return;
    }
    let mut lab = Lab::new(2, 2);
    lab.start_all();
    lab.give();
    let good = lab.table(1);
    let refused = |lab: &Lab, what: &str| {
        let status = lab.status(1, what, |status| status.problems.iter().any(|problem| problem.contains(what)));
        assert_eq!(status.generation, 2);
    };
    lab.write_text(1, "{\"version\":1");
    refused(&lab, "is refused: EOF");
    lab.write(1, &propylon_flows::table::Table { generation: 1, ..good.clone() });
    refused(&lab, "generation 1 does not follow generation 2");
    lab.write(1, &propylon_flows::table::Table { buckets: lab.spread(&[1]), ..good.clone() });
    refused(&lab, "other buckets");
    // A cluster that was made anew starts over, also behind a restart of the process.
    lab.stop(1);
    lab.start(1);
    lab.write(1, &propylon_flows::table::Table { generation: 1, ..good.clone() });
    refused(&lab, "generation 1 does not follow generation 2");
    lab.write(1, &propylon_flows::table::Table { generation: 1, seed: [7; 16], ..good });
    lab.status(1, "the new cluster's table", |status| status.generation == 1 && status.problems.is_empty());
}

#[test]
fn a_second_process_with_other_pins_is_refused_at_an_interface_that_has_the_program() {
    if !is_possible() {
        return;
    }
    let mut lab = Lab::new(1, 1);
    lab.start_all();
    let pins = lab.pins(1);
    let others = pins.with_file_name("others");
    let (table, status) = (lab.path(1, "table"), lab.path(1, "others.status"));
    let run = |pins: &Path| {
        let mut second = Command::new(env!("CARGO_BIN_EXE_propylon-flows"));
        second.args(["run", "--interface", "eth0", "--table", &table, "--status", &status, "--pin"]).arg(pins);
        let done = lab.within("e1", move || second.output().unwrap());
        assert_eq!(done.status.code(), Some(1));
        String::from_utf8(done.stderr).unwrap()
    };
    let said = run(&others);
    assert!(said.contains("eth0 has the program of 1 other propylon-flows") && said.contains("detach --pin"), "{said}");
    assert!(run(&pins).contains("another propylon-flows runs with"));
    assert_eq!(lab.within("e1", || (attached("eth0").unwrap(), attached_by_others(&pins, "eth0").unwrap())), (1, 0));
    assert_eq!(lab.within("e1", || attached_by_others(&others, "eth0").unwrap()), 1);
    assert!(taken(&lab, &others).contains("fault   eth0 has the program"));
    assert!(!taken(&lab, &pins).contains("eth0 has the program"));
}

/// The check's words about an engine's interface with these pins.
fn taken(lab: &Lab, pins: &Path) -> String {
    let mut check = Command::new(env!("CARGO_BIN_EXE_propylon-flows"));
    check.args(["check", "--interface", "eth0", "--pin"]).arg(pins);
    String::from_utf8(lab.within("e1", move || check.output().unwrap()).stdout).unwrap()
}

#[test]
fn the_program_returns_when_its_interface_is_made_anew() {
    if !is_possible() {
        return;
    }
    let mut lab = Lab::new(2, 2);
    lab.start_all();
    lab.command("r", "ip link del e2");
    lab.status(2, "the loss to be seen", |status| status.problems.iter().any(|problem| problem.contains("eth0")));
    lab.rewire(2);
    lab.status(2, "the program to be back", |status| status.problems.is_empty());
    assert_eq!(lab.within("e2", || attached("eth0").unwrap()), 1);
    assert_eq!(beat(&mut lab.hold(VIP4, 50)), NONE);
}

#[test]
fn the_process_keeps_no_rights_but_those_that_it_needs_and_is_alone_with_its_pins() {
    if !is_possible() {
        return;
    }
    let mut lab = Lab::new(1, 1);
    lab.start_all();
    let status = std::fs::read_to_string(format!("/proc/{}/status", lab.process(1))).unwrap();
    let sets: Vec<&str> =
        status.lines().filter(|line| line.starts_with("CapPrm") || line.starts_with("CapEff")).collect();
    // CAP_NET_ADMIN is bit 12, CAP_BPF bit 39.
    assert!(sets.iter().all(|set| set.ends_with("\t0000008000001000")), "{sets:?}");
    assert!(status.contains("NoNewPrivs:\t1"));
    let table = lab.path(1, "table");
    let second = format!(
        "{} run --interface eth0 --table {table} --status {table}.second --pin {} 2>&1 || true",
        env!("CARGO_BIN_EXE_propylon-flows"),
        lab.pins(1).display()
    );
    let said = lab.command("e1", &format!("sh -c '{second}'"));
    assert!(said.contains("another propylon-flows runs"), "{said}");
}

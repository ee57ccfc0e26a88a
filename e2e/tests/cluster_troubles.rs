//! Troubles of a cluster: clocks, leases, names, keys, values and etcd itself go wrong, and clients notice nothing.
//! Each is told of, and is over when it is mended.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use propylon_e2e::Scratch;
use propylon_e2e::rig::cluster::{
    Member, ROLLOUT, all_serve, all_serve_as_seen_by, applied, apply, await_cluster, await_engines, await_no_problem,
    await_problem, changed, cluster, leader, number_of, outcome, put_certificate, put_named, rig, secret, start, text,
    try_apply, unharmed,
};
use propylon_e2e::rig::{Cut, Flows, Options, Rig};
use propylon_e2e::wait::{WAIT_MAX, eventually, holds};
use rustix::process::Signal;
use serde_json::Value;

/// A key of the rig's cluster.
fn key(name: &str) -> String {
    format!("propylon/edge/{name}")
}

/// A cluster that serves its first configuration, with a certificate.
fn served(engines: usize, more: &str) -> Option<Rig> {
    served_by(Options { engines, bird: false, ..Options::default() }, more)
}

fn served_by(options: Options, more: &str) -> Option<Rig> {
    let mut rig = rig(options)?;
    start(&mut rig, more);
    put_certificate(&mut rig);
    let first = text(&rig);
    applied(&mut rig, 0, &first);
    all_serve(&mut rig, 1);
    Some(rig)
}

/// The next change, which every engine serves in the end.
#[track_caller]
fn change(rig: &mut Rig, engine: usize, serial: u64) {
    let next = changed(rig, serial as usize);
    applied(rig, engine, &next);
    all_serve_as_seen_by(rig, engine, serial);
}

/// Lets clients go on for a while.
#[track_caller]
fn go_on(flows: &Flows, time: Duration) {
    let until = flows.sample().at + time;
    eventually(time + WAIT_MAX, "clients go on", || (flows.sample().at >= until).then_some(()));
}

#[test]
fn clocks_that_differ_are_told_of_and_a_change_goes_on() {
    let Some(mut rig) = served(2, "") else { return };
    let flows = rig.clients_of(0);
    rig.etcd().put("propylon/edge@load/elsewhere", r#"{"at":1000000000}"#);
    for engine in 0..2 {
        await_problem(&mut rig, engine, &["the clocks of elsewhere and", "differ by"]);
    }
    change(&mut rig, 1, 2);
    unharmed(flows);
}

#[test]
fn an_engine_that_stood_still_for_longer_than_its_lease_registers_anew_and_serves_on() {
    let Some(mut rig) = served(3, "") else { return };
    let stopped = leader(&mut rig, 0);
    let other = (stopped + 1) % 3;
    let flows = rig.clients_of(other);
    let name = rig.engine(stopped).name();
    rig.engine(stopped).signal(Signal::STOP);
    await_cluster(&mut rig, other, "another one leads", |status| {
        status["leader"].is_string() && status["leader"] != name.as_str()
    });
    await_engines(&mut rig, other, 2);
    change(&mut rig, other, 2);
    rig.engine(stopped).signal(Signal::CONT);
    rig.engine(stopped).says(": registering anew");
    await_engines(&mut rig, other, 3);
    all_serve_as_seen_by(&mut rig, other, 2);
    await_cluster(&mut rig, stopped, "it does not lead any more", |status| status["leader"] != name.as_str());
    unharmed(flows);
    unharmed(rig.clients_of(stopped));
    // The end of its former lease is no reason to do so again.
    let said = rig.engine(stopped).said();
    assert_eq!(said.iter().filter(|line| line.contains(": registering anew")).count(), 1, "{said:?}");
}

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a file");
        }
    }
}

#[test]
fn an_engine_that_comes_back_after_a_week_serves_what_is_new_before_it_counts() {
    let Some(mut rig) = served(3, "canary = { time = \"0s\", step = 100 }\n") else { return };
    put_named(&mut rig, 0, "old");
    await_cluster(&mut rig, 2, "another certificate is there", |status| status["certificates"] == 2);
    let late = Member::of(&mut rig, 2);
    let kept = Scratch::new();
    copy(&late.state, kept.path());
    let flows = rig.clients_of(0);
    rig.engine(2).terminate();
    await_engines(&mut rig, 0, 2);
    // What was deleted is in its runtime folder, and what came is not.
    let file = |name: &str| late.runtime.join("certificates").join(format!("{name}.pem"));
    assert!(file("old").exists() && !file("new").exists());
    let (status, body) = rig.engine(0).ask("DELETE", "/cluster/certificates/old", "");
    assert_eq!(status, 200, "{body}");
    put_named(&mut rig, 1, "new");
    for serial in 2..=5 {
        change(&mut rig, 1, serial);
    }
    // Another one was in the folder that no state tells of.
    fs::copy(file("old"), file("older")).expect("a file");
    rig.etcd().compact();
    fs::remove_dir_all(&late.state).expect("a folder");
    copy(kept.path(), &late.state);
    late.start(&mut rig, "");
    rig.engine(2).says("configuration 1 of the last good state");
    all_serve(&mut rig, 5);
    await_engines(&mut rig, 0, 3);
    await_cluster(&mut rig, 0, "it is ready", |status| {
        status["engines"].as_array().is_some_and(|all| all.iter().all(|engine| engine["ready"] == true))
    });
    holds("deleted certificates are gone", || !file("old").exists() && !file("older").exists() && file("new").exists());
    let records = rig.etcd().values(&key("engines/engine2"));
    for record in &records {
        let record: Value = serde_json::from_str(record).expect("JSON");
        assert!(record["is_ready"] == false || record["serial"] == 5, "{records:#?}");
    }
    unharmed(flows);
    unharmed(rig.clients_of(2));
}

#[test]
fn an_engine_whose_name_is_another_ones_is_told_so_and_serves_without_disturbing_it() {
    let Some(mut rig) = rig(Options { engines: 3, bird: false, ..Options::default() }) else { return };
    let second = Member { name: "engine0".to_owned(), ..Member::of(&mut rig, 1) };
    Member::of(&mut rig, 0).start(&mut rig, "");
    Member::of(&mut rig, 2).start(&mut rig, "");
    await_engines(&mut rig, 0, 2);
    let before = rig.etcd().entry(&key("engines/engine0"), 0).expect("a record");
    second.start(&mut rig, "");
    rig.engine(1).says("cluster edge has an engine named engine0 already, at 10.77.0.2");
    await_problem(&mut rig, 1, &["has an engine named engine0 already", "set cluster.engine to another name"]);
    put_named(&mut rig, 1, "vip");
    let first = text(&rig);
    applied(&mut rig, 0, &first);
    await_cluster(&mut rig, 1, "it serves what all serve", |status| status["serial"] == 1);
    let flows = rig.clients_of(1);
    change(&mut rig, 2, 2);
    await_cluster(&mut rig, 1, "it serves what all serve", |status| status["serial"] == 2);
    unharmed(flows);
    // The first one has its name all the time, and nobody writes under it.
    let after = rig.etcd().entry(&key("engines/engine0"), 0).expect("a record");
    assert_eq!(before.create_revision, after.create_revision);
    assert_eq!(cluster(&mut rig, 2)["engines"].as_array().map(Vec::len), Some(2));
    assert!(!rig.engine(0).said().iter().any(|line| line.contains("another process is")));
}

#[test]
fn a_full_etcd_takes_no_change_and_costs_nobody_a_request() {
    const FILLING: usize = 1 << 20;
    let options = Options { engines: 2, bird: false, etcd_quota_bytes: Some(6 << 20), ..Options::default() };
    let Some(mut rig) = served_by(options, "") else { return };
    let flows = rig.clients_of(0);
    let mut fillings = 0;
    eventually(ROLLOUT, "etcd is full", || {
        fillings += 1;
        let said = rig.etcd().try_put(&format!("filling/{fillings}"), &vec![b'x'; FILLING]);
        said.stderr.contains("database space exceeded").then_some(())
    });
    let next = changed(&rig, 2);
    let (status, answer) = try_apply(&mut rig, 0, &next);
    assert_eq!(status, 503, "{answer}");
    let why = answer.to_string();
    assert!(why.contains("its quota is used up") && why.contains("etcdctl alarm disarm"), "{why}");
    for engine in 0..2 {
        await_problem(&mut rig, engine, &["etcd takes no more data: its quota is used up"]);
    }
    // Leases are kept, so nobody is missed.
    go_on(&flows, Duration::from_secs(4));
    assert_eq!(cluster(&mut rig, 0)["engines"].as_array().map(Vec::len), Some(2));
    let etcd = rig.etcd();
    etcd.ctl(&["del", "--prefix", "filling/"]).ok();
    etcd.compact();
    etcd.ctl(&["defrag"]).ok();
    etcd.ctl(&["alarm", "disarm"]).ok();
    await_no_problem(&mut rig, 0);
    change(&mut rig, 0, 2);
    unharmed(flows);
}

#[test]
fn an_engine_that_is_cut_off_from_etcd_serves_on_says_so_and_gets_the_latest_when_it_is_back() {
    let Some(mut rig) = served(3, "") else { return };
    let flows = rig.clients_of(2);
    rig.isolate(2, Cut::Etcd);
    await_cluster(&mut rig, 2, "etcd is away", |status| status["connected"] == false);
    await_problem(&mut rig, 2, &["etcd at https://10.79"]);
    rig.engine(2).says("etcd is away");
    await_engines(&mut rig, 0, 2);
    // Changes go on without it, and what it has seen last is forgotten.
    change(&mut rig, 0, 2);
    change(&mut rig, 1, 3);
    put_named(&mut rig, 0, "second");
    rig.etcd().compact();
    let (status, answer) = try_apply(&mut rig, 2, "");
    assert_eq!(status, 503, "{answer}");
    assert_eq!(cluster(&mut rig, 2)["serial"], 1);
    rig.rejoin(2);
    await_engines(&mut rig, 0, 3);
    all_serve(&mut rig, 3);
    let back = await_cluster(&mut rig, 2, "etcd answers", |status| status["connected"] == true);
    assert_eq!((&back["serial"], &back["certificates"]), (&Value::from(3), &Value::from(2)), "{back:#}");
    await_no_problem(&mut rig, 2);
    unharmed(flows);
}

/// Waits until each of these engines tells of a problem.
#[track_caller]
fn all_tell(rig: &mut Rig, engines: &[usize], parts: &[&str]) {
    engines.iter().for_each(|engine| await_problem(rig, *engine, parts));
}

#[test]
fn a_configuration_that_cannot_be_read_is_told_of_by_its_key_and_the_one_before_stays_in_use() {
    let Some(mut rig) = served(3, "canary = { time = \"0s\", step = 100 }\n") else { return };
    let flows = rig.clients_of(0);
    let (current, candidate) = (key("config/current"), key("config/candidate"));
    let good = rig.etcd().value(&current).expect("a configuration");
    rig.etcd().put(&current, &good[..good.len() / 2]);
    all_tell(&mut rig, &[0, 1, 2], &["the value of propylon/edge/config/current in etcd cannot be read"]);
    let next = changed(&rig, 2);
    let (status, answer) = try_apply(&mut rig, 1, &next);
    assert!(status == 409 && answer.to_string().contains(&current), "{status} {answer}");
    // Who begins now has it from disk.
    rig.engine(2).kill();
    Member::of(&mut rig, 2).start(&mut rig, "");
    all_tell(&mut rig, &[2], &["the value of propylon/edge/config/current in etcd cannot be read"]);
    assert_eq!(cluster(&mut rig, 2)["serial"], 1);
    rig.etcd().put(&current, &good);
    (0..3).for_each(|engine| await_no_problem(&mut rig, engine));
    change(&mut rig, 1, 2);

    rig.etcd().put(&candidate, "{\"id\":");
    all_tell(&mut rig, &[0, 1, 2], &["the value of propylon/edge/config/candidate in etcd cannot be read"]);
    let next = changed(&rig, 3);
    let (status, answer) = try_apply(&mut rig, 1, &next);
    assert!(status == 409 && answer.to_string().contains(&candidate), "{status} {answer}");
    assert!(answer.to_string().contains("propylon cluster abort"), "{answer}");
    let (status, answer) = rig.engine(1).ask("POST", "/cluster/abort", "");
    assert_eq!(status, 200, "{answer}");
    (0..3).for_each(|engine| await_no_problem(&mut rig, engine));
    change(&mut rig, 1, 3);
    unharmed(flows);
}

#[test]
fn a_certificate_that_cannot_be_opened_is_told_of_by_its_key_and_the_one_before_stays_in_use() {
    let Some(mut rig) = served(2, "") else { return };
    let flows = rig.clients_of(0);
    let vip = key("secrets/certificates/vip");
    let files = [0, 1].map(|engine| Member::of(&mut rig, engine).runtime.join("certificates/vip.pem"));
    let before = files.each_ref().map(|file| fs::read(file).expect("a certificate"));
    let sealed = rig.etcd().bytes(&vip);
    let mut of_another_key = sealed.clone();
    // After the five bytes of the format's name.
    of_another_key[5] ^= 1;
    for (damaged, why) in [
        (&sealed[..sealed.len() / 2], "it was changed since it was sealed"),
        (b"-----BEGIN CERTIFICATE-----", "it is not sealed"),
        (&of_another_key, "which this engine does not have"),
    ] {
        rig.etcd().try_put(&vip, damaged).ok();
        all_tell(&mut rig, &[0, 1], &[&vip, why]);
        assert_eq!(files.each_ref().map(|file| fs::read(file).expect("a certificate")), before);
    }
    change(&mut rig, 1, 2);
    put_named(&mut rig, 1, "vip");
    (0..2).for_each(|engine| await_no_problem(&mut rig, engine));
    holds("both have the new one", || {
        files.iter().zip(&before).all(|(file, before)| fs::read(file).is_ok_and(|now| now != *before))
    });
    unharmed(flows);
}

#[test]
fn records_of_leaders_and_engines_that_cannot_be_read_mend_by_themselves_or_are_told_of() {
    let Some(mut rig) = served(3, "canary = { time = \"0s\", step = 100 }\n") else { return };
    // A leader's key without a lease would outlive every leader.
    for (serial, damaged) in [(2, "nonsense"), (3, "{}")] {
        let killed = leader(&mut rig, 0);
        let (other, third) = ((killed + 1) % 3, (killed + 2) % 3);
        let flows = rig.clients_of(other);
        rig.etcd().put(&key("leader"), damaged);
        holds("somebody says so", || {
            let lines: Vec<String> = rig.engines().iter().flat_map(|engine| engine.said()).collect();
            lines.iter().any(|line| line.contains("propylon/edge/leader"))
        });
        rig.engine(killed).kill();
        let name = rig.engine(killed).name();
        await_cluster(&mut rig, other, "another one leads", |status| {
            status["leader"].is_string() && status["leader"] != name.as_str() && status["leader"] != ""
        });
        change(&mut rig, third, serial);
        unharmed(flows);
        Member::of(&mut rig, killed).start(&mut rig, "canary = { time = \"0s\", step = 100 }\n");
        await_engines(&mut rig, other, 3);
    }
    let flows = rig.clients_of(1);
    for damaged in ["nonsense", "{}"] {
        rig.etcd().put(&key("engines/engine1"), damaged);
        eventually(WAIT_MAX, "its record is whole again", || {
            let record = rig.etcd().value(&key("engines/engine1"))?;
            record.contains("\"address\":\"10.77.1.2\"").then_some(())
        });
    }
    for strange in ["engines/nobody", "flows"] {
        rig.etcd().put(&key(strange), "nonsense");
        all_tell(&mut rig, &[0, 1, 2], &[&format!("the value of propylon/edge/{strange} in etcd cannot be read")]);
        let serial = cluster(&mut rig, 0)["serial"].as_u64().expect("a number") + 1;
        change(&mut rig, 1, serial);
        rig.etcd().ctl(&["del", &key(strange)]).ok();
    }
    (0..3).for_each(|engine| await_no_problem(&mut rig, engine));
    await_engines(&mut rig, 0, 3);
    unharmed(flows);
}

/// Waits until a change has come so far.
#[track_caller]
fn await_phase(rig: &mut Rig, engine: usize, phase: &str) {
    await_cluster(rig, engine, phase, |status| status["candidate"]["phase"] == phase);
}

#[test]
fn a_leader_that_dies_in_any_phase_of_a_change_has_a_successor_who_brings_it_to_an_end() {
    let Some(mut rig) = served(4, "") else { return };
    for (serial, phase) in (2..).zip(["checking", "canary", "rolling"]) {
        let killed = leader(&mut rig, 0);
        let others: Vec<usize> = (0..4).filter(|engine| *engine != killed).collect();
        let (asked, serving, stopped) = (others[0], others[1], others[2]);
        let flows = rig.clients_of(serving);
        // One that stands still keeps the change where it is.
        if phase == "checking" {
            rig.engine(stopped).signal(Signal::STOP);
        }
        let next = changed(&rig, serial);
        let id = apply(&mut rig, asked, &next);
        if phase == "rolling" {
            await_phase(&mut rig, asked, "canary");
            rig.engine(stopped).signal(Signal::STOP);
        }
        await_phase(&mut rig, asked, phase);
        rig.engine(killed).kill();
        rig.engine(stopped).signal(Signal::CONT);
        await_cluster(&mut rig, asked, "another one leads", |status| {
            number_of(&status["leader"]).is_some_and(|leader| leader != killed)
        });
        let ended = outcome(&mut rig, asked, &id);
        assert_eq!(ended["result"], "applied", "{phase}: {ended}");
        Member::of(&mut rig, killed).start(&mut rig, "");
        await_engines(&mut rig, asked, 4);
        all_serve_as_seen_by(&mut rig, asked, serial as u64);
        unharmed(flows);
    }
}

/// The next change, asked for as often as etcd is away. One that was said to have failed may have been made.
#[track_caller]
fn change_when_etcd_answers(rig: &mut Rig, engine: usize, serial: u64) {
    let next = changed(rig, serial as usize);
    eventually(ROLLOUT, "a change is taken", || {
        let (status, answer) = try_apply(rig, engine, &next);
        assert!(matches!(status, 202 | 409 | 503), "{answer}");
        (status != 503).then_some(())
    });
    all_serve_as_seen_by(rig, engine, serial);
}

/// The member that leads etcd is killed, then another one, so that nobody can change anything; then both come back.
/// Makes two changes. Clients are served all the time.
fn lose_members(rig: &mut Rig, flows: &Flows, serial: u64) {
    let first = rig.etcd().leader();
    rig.etcd().kill(first);
    change_when_etcd_answers(rig, 0, serial);
    let second = (first + 1) % 3;
    rig.etcd().kill(second);
    for engine in 0..2 {
        await_cluster(rig, engine, "etcd is away", |status| status["connected"] == false);
        await_problem(rig, engine, &["etcd at https://10.79"]);
    }
    go_on(flows, Duration::from_secs(3));
    rig.etcd().restart(first);
    rig.etcd().restart(second);
    for engine in 0..2 {
        await_cluster(rig, engine, "etcd is back", |status| status["connected"] == true);
        await_engines(rig, engine, 2);
    }
    change_when_etcd_answers(rig, 1, serial + 1);
}

#[test]
fn members_of_etcd_that_die_cost_nobody_a_request() {
    let Some(mut rig) = served(2, "") else { return };
    let flows = rig.clients_of(0);
    lose_members(&mut rig, &flows, 2);
    unharmed(flows);
}

#[test]
#[ignore = "long: ten minutes"]
fn members_of_etcd_that_die_for_ten_minutes_cost_nobody_a_request() {
    let Some(mut rig) = served(2, "") else { return };
    let flows = rig.clients_of(0);
    let began = Instant::now();
    let mut serial = 2;
    while began.elapsed() < Duration::from_secs(600) {
        lose_members(&mut rig, &flows, serial);
        serial += 2;
    }
    unharmed(flows);
}

#[test]
fn an_emptied_etcd_takes_nothing_from_engines_and_one_change_makes_it_whole() {
    let Some(mut rig) = rig(Options { engines: 3, bird: false, ..Options::default() }) else { return };
    (0..2).for_each(|engine| Member::of(&mut rig, engine).start(&mut rig, ""));
    await_engines(&mut rig, 0, 2);
    put_named(&mut rig, 0, "vip");
    put_named(&mut rig, 0, "second");
    let first = text(&rig);
    applied(&mut rig, 0, &first);
    all_serve(&mut rig, 1);
    let flows = rig.clients_of(0);
    let secrets = |rig: &mut Rig| rig.etcd().keys(&key("secrets/"));
    let before = secrets(&mut rig);
    rig.etcd().lose_data();
    let words = ["etcd has no configuration of this cluster", "configuration 1", "`propylon cluster apply`"];
    all_tell(&mut rig, &[0, 1], &words);
    for engine in 0..2 {
        await_cluster(&mut rig, engine, "certificates stay", |status| status["certificates"] == 2);
    }
    await_engines(&mut rig, 0, 2);
    change(&mut rig, 0, 2);
    (0..2).for_each(|engine| await_no_problem(&mut rig, engine));
    eventually(WAIT_MAX, "keys and certificates are in etcd again", || (secrets(&mut rig) == before).then_some(()));
    // Neither is lost when etcd is read anew, and an engine that has nothing gets all.
    (0..3).for_each(|member| rig.etcd().kill(member));
    await_cluster(&mut rig, 0, "etcd is away", |status| status["connected"] == false);
    (0..3).for_each(|member| rig.etcd().restart(member));
    Member::of(&mut rig, 2).start(&mut rig, "");
    for engine in 0..3 {
        await_engines(&mut rig, engine, 3);
        await_cluster(&mut rig, engine, "certificates are there", |status| status["certificates"] == 2);
    }
    all_serve(&mut rig, 2);
    unharmed(flows);
    unharmed(rig.clients_of(2));
}

#[test]
fn keys_that_somebody_deletes_are_put_back_as_they_were_and_the_last_certificate_stays() {
    let Some(mut rig) = served(2, "") else { return };
    let file = |rig: &mut Rig, name: &str| fs::read_to_string(Member::of(rig, 1).runtime.join(name)).expect("a file");
    let before = ["ticket-keys", "sticky-key"].map(|name| file(&mut rig, name));
    let flows = rig.clients_of(1);
    for name in ["ticket-keys", "sticky-key"] {
        rig.etcd().ctl(&["del", &key(&format!("secrets/{name}"))]).ok();
        let etcd = rig.etcd();
        eventually(WAIT_MAX, "it is put back", || etcd.value(&key(&format!("secrets/{name}"))));
    }
    await_no_problem(&mut rig, 1);
    assert_eq!(["ticket-keys", "sticky-key"].map(|name| file(&mut rig, name)), before);

    // Without it no engine could be started anew: the cluster does not do that, and says so where somebody else does.
    let answer = rig.engine(0).try_ask("DELETE", "/cluster/certificates/vip", "text/plain", "");
    let (status, said) = answer.expect("an engine that answers");
    assert!(status == 409 && said.contains("vip is the cluster's last certificate"), "{status}: {said}");
    rig.etcd().ctl(&["del", &key("secrets/certificates/vip")]).ok();
    await_problem(&mut rig, 1, &["the cluster has no certificate", "propylon cluster certificate put"]);
    unharmed(flows);
    rig.engine(0).terminate();
    Member::of(&mut rig, 0).start(&mut rig, "");
    rig.engine(0).says("the last good state cannot be served");
    put_named(&mut rig, 1, "again");
    all_serve_as_seen_by(&mut rig, 0, 1);
    await_no_problem(&mut rig, 0);
    unharmed(rig.clients_of(0));
}

#[test]
fn a_second_sealing_key_takes_the_firsts_place_engine_by_engine() {
    /// As `openssl rand -hex 32` prints it.
    const NEW: &str = "b7d1f0359c8e42a6071fe4d3825bc96a1e0f7d48c3b2965a80e7d41c9f3ab652\n";
    let Some(mut rig) = served(3, "") else { return };
    let new = secret(rig.folder().join("cluster-new.key"), NEW);
    let restart = |rig: &mut Rig, engine: usize| {
        rig.engine(engine).terminate();
        let member = Member::of(rig, engine);
        let sealing_keys = [vec![new.clone()], member.sealing_keys.clone()].concat();
        Member { sealing_keys, ..member }.start(rig, "");
    };
    let id = |rig: &mut Rig, name: &str| rig.etcd().bytes(&key(name))[5..13].to_vec();
    let old = id(&mut rig, "secrets/certificates/vip");
    let flows = rig.clients_of(2);
    restart(&mut rig, 0);
    await_engines(&mut rig, 0, 3);
    // Those who have not the new key say so, and have what they had.
    put_named(&mut rig, 0, "second");
    all_tell(&mut rig, &[1, 2], &["propylon/edge/secrets/certificates/second", "add that key's file"]);
    assert_ne!(id(&mut rig, "secrets/certificates/second"), old);
    restart(&mut rig, 1);
    await_cluster(&mut rig, 1, "both certificates are there", |status| status["certificates"] == 2);
    change(&mut rig, 1, 2);
    unharmed(flows);
    let flows = rig.clients_of(1);
    restart(&mut rig, 2);
    await_cluster(&mut rig, 2, "both certificates are there", |status| status["certificates"] == 2);
    for engine in 0..3 {
        await_engines(&mut rig, engine, 3);
        await_no_problem(&mut rig, engine);
    }
    put_named(&mut rig, 2, "vip");
    assert_eq!(id(&mut rig, "secrets/certificates/vip"), id(&mut rig, "secrets/certificates/second"));
    change(&mut rig, 2, 3);
    unharmed(flows);
}

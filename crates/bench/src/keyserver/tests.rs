//! The load against a key server that behaves, and against one that does not.

use super::test_server::{Behaviour, TestServer};
use super::{Report, measure};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use clap::Parser;

/// Runs the command as a user would, without warm-up, for 200 operations unless `flags` say otherwise.
fn ask(test_server: &TestServer, certificate: &str, flags: &[&str]) -> Outcome<Report> {
    let file = |name: &str| test_server.file(name).display().to_string();
    let mut line: Vec<String> = ["propylon-bench", "keyserver", "--target"].map(str::to_owned).to_vec();
    line.push(test_server.address.to_string());
    let certificate = file(certificate);
    let (identity, ca) = (file("identity"), file("ca"));
    line.extend(["--certificate", &certificate, "--ca", &ca].map(str::to_owned));
    if !flags.contains(&"--identity") {
        line.extend(["--identity", &identity].map(str::to_owned));
    }
    if !flags.contains(&"--warmup") {
        line.extend(["--warmup", "0"].map(str::to_owned));
    }
    if !flags.contains(&"--duration") && !flags.contains(&"--count") {
        line.extend(["--count", "200"].map(str::to_owned));
    }
    line.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let crate::Command::Keyserver(arguments) = crate::Arguments::try_parse_from(line).unwrap().command else {
        unreachable!()
    };
    measure(&arguments, &Interrupt::default())
}

fn errors(report: &Report) -> Vec<(&str, u64)> {
    report.summary.errors.iter().map(|(name, count)| (&**name, *count)).collect()
}

#[test]
fn every_operation_is_answered_and_verified() {
    let test_server = TestServer::start(Behaviour::Honest);
    let operations = [
        ("ecdsa-sha256", "ec", 200),
        ("rsa-pkcs1-sha256", "rsa", 200),
        ("rsa-pss-sha256", "rsa", 200),
        ("rsa-pss-sha512", "rsa", 200),
        ("ed25519", "ed25519", 200),
        ("rsa-decrypt", "rsa", 0),
        ("ping", "ec", 0),
    ];
    for (operation, certificate, verified) in operations {
        let report = ask(&test_server, certificate, &["--op", operation, "--connections", "2"]).unwrap();
        assert_eq!((report.summary.done, errors(&report)), (200, vec![]), "{operation}");
        assert_eq!((report.verified, report.summary.connections), (verified, 2), "{operation}");
        assert!(report.verdict().is_ok() && report.summary.latency.p50 > 0, "{operation}");
    }
}

#[test]
fn replies_find_their_operations_in_any_order() {
    let test_server = TestServer::start(Behaviour::Reversed);
    for tls in ["1.2", "1.3"] {
        let report = ask(&test_server, "ec", &["--tls", tls, "--outstanding", "37", "--count", "500"]).unwrap();
        assert_eq!((report.summary.done, report.verified, errors(&report)), (500, 500, vec![]));
        assert!(report.link.as_ref().unwrap().contains(&format!("TLSv{}", tls.replace('.', "_"))), "{:?}", report.link);
    }
}

#[test]
fn a_wrong_signature_is_an_error_and_not_an_answer() {
    let test_server = TestServer::start(Behaviour::Wrong(10));
    for (operation, certificate) in [("ecdsa-sha256", "ec"), ("rsa-pss-sha256", "rsa"), ("ed25519", "ed25519")] {
        let report = ask(&test_server, certificate, &["--op", operation]).unwrap();
        assert_eq!((report.summary.done, errors(&report)), (180, vec![("wrong-signature", 20)]), "{operation}");
        assert!(report.verdict().is_err());
    }
    let report = ask(&test_server, "rsa", &["--op", "rsa-decrypt"]).unwrap();
    assert_eq!((report.summary.done, errors(&report)), (180, vec![("wrong-answer", 20)]));
}

#[test]
fn a_key_that_is_not_the_certificates_is_noticed() {
    let (test_server, other) = (TestServer::start(Behaviour::Honest), TestServer::start(Behaviour::Honest));
    std::fs::copy(other.file("ec"), test_server.file("other")).unwrap();
    let report = ask(&test_server, "other", &[]).unwrap();
    assert_eq!((report.summary.done, errors(&report)), (0, vec![("wrong-signature", 200)]));
    let unverified = ask(&test_server, "other", &["--verify-share", "0"]).unwrap();
    assert_eq!((unverified.summary.done, unverified.verified), (200, 0));
    let sampled = ask(&test_server, "other", &["--verify-share", "0.5"]).unwrap();
    assert!((20..180).contains(&sampled.verified), "{}", sampled.verified);
    assert!(ask(&test_server, "other", &["--warmup", "100ms"]).err().unwrap().to_string().contains("wrong-signature"));
}

#[test]
fn error_replies_are_counted_by_the_name_of_their_code() {
    for (code, name) in [(0x02, "key-not-found"), (0x0B, "remote-configuration"), (0x77, "unknown-error-code")] {
        let report = ask(&TestServer::start(Behaviour::Refusing(4, code)), "ec", &[]).unwrap();
        assert_eq!((report.summary.done, errors(&report)), (150, vec![(name, 50)]));
    }
}

#[test]
fn what_is_not_a_reply_costs_all_that_waits_for_one() {
    for (behaviour, first) in [
        (Behaviour::Garbage, "malformed-reply: a version other than 1.0"),
        (Behaviour::Oversized, "malformed-reply: a reply larger than any answer"),
        (Behaviour::Leaking, "malformed-reply: padding that is not zeros"),
    ] {
        let report = ask(&TestServer::start(behaviour), "ec", &["--outstanding", "8", "--count", "40"]).unwrap();
        assert_eq!((report.summary.done, report.summary.first_error.as_deref()), (0, Some(first)));
        assert!(report.summary.errors["malformed-reply"] >= 40 && report.summary.errors.len() == 1);
    }
}

#[test]
fn silence_is_a_timeout_for_each_operation() {
    let flags = ["--outstanding", "5", "--count", "10", "--timeout", "200ms"];
    let report = ask(&TestServer::start(Behaviour::Silent), "ec", &flags).unwrap();
    assert_eq!(report.summary.done, 0);
    assert!(report.summary.errors["timeout"] >= 10 && report.summary.errors.len() == 1, "{:?}", report.summary);

    let flags = ["--outstanding", "5", "--timeout", "500ms", "--count", "100"];
    let report = ask(&TestServer::start(Behaviour::Forgetful(20)), "ec", &flags).unwrap();
    assert!(report.summary.errors["timeout"] >= 4 && report.summary.done >= 80, "{:?}", report.summary);
    assert!(report.summary.done + report.summary.errors["timeout"] >= 100);
}

#[test]
fn a_reply_to_an_unknown_id_answers_nothing() {
    let flags = ["--outstanding", "4", "--timeout", "300ms", "--duration", "200ms"];
    let report = ask(&TestServer::start(Behaviour::Stray), "ec", &flags).unwrap();
    assert_eq!((report.summary.done, errors(&report)), (0, vec![("stray-reply", 4), ("timeout", 4)]));
}

#[test]
fn a_connection_that_ends_is_opened_again() {
    let report =
        ask(&TestServer::start(Behaviour::Leaving(50)), "ec", &["--outstanding", "1", "--count", "120"]).unwrap();
    assert_eq!(report.summary.done + report.summary.errors_total(), 120);
    assert_eq!((report.summary.errors_total(), report.summary.connections), (2, 3), "{:?}", report.summary);
}

#[test]
fn a_client_of_another_ca_gets_no_answer() {
    let test_server = TestServer::start(Behaviour::Honest);
    let stranger = test_server.file("stranger").display().to_string();
    let report = ask(&test_server, "ec", &["--identity", &stranger, "--count", "4", "--outstanding", "2"]).unwrap();
    assert_eq!(report.summary.done, 0);
    assert!(report.verdict().is_err());
    // And the other way round: a key server of another CA is not spoken to.
    std::fs::copy(TestServer::start(Behaviour::Honest).file("ca"), test_server.file("ca")).unwrap();
    let report = ask(&test_server, "ec", &["--count", "4", "--outstanding", "2"]).unwrap();
    assert_eq!((report.summary.done, report.summary.errors.keys().next().map(|name| &**name)), (0, Some("tls")));
}

#[test]
fn in_an_open_loop_operations_arrive_at_their_rate() {
    let test_server = TestServer::start(Behaviour::Honest);
    let report = ask(&test_server, "ec", &["--rate", "200", "--duration", "600ms"]).unwrap();
    let arrived = report.summary.done + report.summary.unanswered;
    assert!((100..=121).contains(&arrived) && errors(&report).is_empty(), "{:?}", report.summary);
    let stalled =
        ask(&TestServer::start(Behaviour::Silent), "ec", &["--rate", "200", "--duration", "600ms", "--timeout", "1s"]);
    let summary = stalled.unwrap().summary;
    assert!(summary.done == 0 && summary.unanswered >= 100 && summary.latency.max > 300_000_000, "{summary:?}");
}

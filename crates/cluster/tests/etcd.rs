//! The client against etcd itself: one member, and three of which some die, stand still or are cut off.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Authority, Etcd, Options, Scratch, ServerTls, WAIT_MAX, etcd_is_there, eventually, story};
use propylon_cluster::etcd::{
    Batch, Client, Compare, Error, Event, KeyValue, Operation, OperationResult, Settings, Txn, User, Watch,
};
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};

/// The next batch with events. Errors of a watch that goes on are passed over.
async fn events(watch: &mut Watch) -> Batch {
    loop {
        match tokio::time::timeout(WAIT_MAX, watch.next()).await.expect("news in time") {
            Ok(batch) if batch.events.is_empty() => {}
            Ok(batch) => return batch,
            Err(error @ (Error::Compacted { .. } | Error::Rewound { .. })) => panic!("the watch is over: {error}"),
            Err(_) => {}
        }
    }
}

fn put_of(event: &Event) -> &KeyValue {
    match event {
        Event::Put(entry) => entry,
        Event::Delete { .. } => panic!("a delete: {event:?}"),
    }
}

/// Puts until it is known that the value is there.
async fn put_surely(client: &Client, key: &str, value: &str) {
    eventually("a put", || async {
        match client.put(key, value.as_bytes(), None).await {
            Ok(_) => Some(()),
            Err(_) => {
                let found = client.get(key).await.ok().flatten();
                found.filter(|found| found.value == value.as_bytes()).map(|_| ())
            }
        }
    })
    .await;
}

async fn put_many(client: &Client, prefix: &str, count: usize) {
    for start in (0..count).step_by(100) {
        let txn = (start..(start + 100).min(count)).fold(Txn::new(), |txn, number| {
            let (key, value) = (format!("{prefix}{number:05}").into_bytes(), number.to_string().into_bytes());
            txn.then(&Operation::Put { key, value, lease: None })
        });
        assert!(client.txn(&txn).await.unwrap().succeeded);
    }
}

#[test]
fn keys_are_put_read_compared_and_deleted() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options::default());
    story(async {
        let client = etcd.client();
        assert_eq!(client.get("a/1").await.unwrap(), None);
        let revision = client.put("a/1", b"\0\xff\"", None).await.unwrap();
        let found = client.get("a/1").await.unwrap().unwrap();
        assert_eq!((found.value.as_slice(), found.mod_revision, found.version), (&b"\0\xff\""[..], revision, 1));
        assert_eq!((found.create_revision, found.lease), (revision, None));
        let txn = |compare: &Compare| {
            Txn::new()
                .when("a/1", compare)
                .then(&Operation::Get { key: b"a/1".to_vec() })
                .otherwise(&Operation::Delete { key: b"nothing".to_vec() })
        };
        for (compare, holds) in [
            (Compare::ModRevision(revision), true),
            (Compare::ModRevision(revision + 1), false),
            (Compare::CreateRevision(revision), true),
            (Compare::Version(1), true),
            (Compare::Value(b"\0\xff\"".to_vec()), true),
            (Compare::Value(b"other".to_vec()), false),
            (Compare::Lease(None), true),
        ] {
            let outcome = client.txn(&txn(&compare)).await.unwrap();
            assert_eq!(outcome.succeeded, holds);
            let result = if holds { OperationResult::Got(Some(found.clone())) } else { OperationResult::Deleted(0) };
            assert_eq!(outcome.results, [result]);
        }
        let not = Txn::new().when_not("a/1", &Compare::Version(1));
        assert!(!client.txn(&not).await.unwrap().succeeded);
        client.put("a/2", b"", None).await.unwrap();
        client.put("b", b"", None).await.unwrap();
        assert!(client.delete("a/1").await.unwrap() && !client.delete("a/1").await.unwrap());
        assert_eq!(client.delete_prefix("a/").await.unwrap(), 1);
        assert!(client.get("b").await.unwrap().is_some());
        let twice = Operation::Put { key: b"c".to_vec(), value: vec![], lease: None };
        let refused = client.txn(&Txn::new().then(&twice).then(&twice)).await.unwrap_err();
        assert!(matches!(&refused, Error::Refused { message, .. } if message.contains("duplicate key")), "{refused}");
        let status = client.statuses().await.remove(0).1.unwrap();
        assert!(status.has_leader && status.is_leader && status.db_bytes > 0, "{status:?}");
    });
}

#[test]
fn pages_of_a_range_are_of_one_revision_however_much_is_written_meanwhile() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options::default());
    story(async {
        let client = etcd.client();
        put_many(&client, "p/", 5000).await;
        let writer = client.clone();
        let writing = tokio::spawn(async move {
            for round in 0.. {
                writer.put(format!("p/{:05}", 4999 - round % 5000), b"new", None).await.unwrap();
                writer.put(format!("p/x{round}"), b"new", None).await.unwrap();
            }
        });
        for page in [1000, 333] {
            let range = client.range("p/", page).await.unwrap();
            let numbers = range.entries.iter().filter(|entry| !entry.key.starts_with(b"p/x"));
            assert_eq!(numbers.count(), 5000);
            assert!(range.entries.iter().all(|entry| entry.mod_revision <= range.revision));
            assert!(range.entries.is_sorted_by(|one, other| one.key < other.key));
        }
        writing.abort();
        let keys = client.keys("p/").await.unwrap();
        assert!(keys.entries.len() >= 5000 && keys.entries.iter().all(|entry| entry.value.is_empty()));
        assert!(client.range("none/", 10).await.unwrap().entries.is_empty());
    });
}

#[test]
fn pages_of_large_values_are_halved_until_they_fit() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options::default());
    story(async {
        let client = etcd.client();
        let mut watch = client.watch("large/", 1);
        let value = vec![7; 1_400_000];
        for number in 0..12 {
            client.put(format!("large/{number:02}"), &value, None).await.unwrap();
        }
        let range = client.range("large/", 100).await.unwrap();
        assert_eq!(range.entries.iter().filter(|entry| entry.value == value).count(), 12);
        // A new watch gets them in fragments, for it is behind.
        let mut behind = client.watch("large/", 1);
        for watch in [&mut watch, &mut behind] {
            let mut seen = 0;
            while seen < 12 {
                let batch = events(watch).await;
                assert!(batch.events.iter().all(|event| put_of(event).value == value));
                seen += batch.events.len();
            }
        }
    });
}

#[test]
fn a_watch_loses_no_event_and_brings_none_twice_while_its_members_die_in_turn() {
    if !etcd_is_there() {
        return;
    }
    let mut etcd = Etcd::start(3, Options::default());
    story(async {
        let writer = etcd.client();
        let mut watch = etcd.client().watch("w/", 1);
        let writing = tokio::spawn(async move {
            for number in 0..600 {
                put_surely(&writer, "w/counter", &number.to_string()).await;
            }
        });
        let mut versions = Vec::new();
        let mut killed = 0;
        while versions.len() < 600 {
            // The version of a key grows by one with each put, whoever did it.
            versions.extend(events(&mut watch).await.events.iter().map(|event| put_of(event).version));
            if killed < 3 && versions.len() > 150 * (killed + 1) {
                etcd.kill(killed);
                versions.extend(events(&mut watch).await.events.iter().map(|event| put_of(event).version));
                etcd.restart(killed);
                killed += 1;
            }
        }
        writing.await.unwrap();
        assert_eq!(versions, (1..=versions.len() as u64).collect::<Vec<_>>());
        assert_eq!(killed, 3);
    });
}

#[test]
fn a_watch_from_before_a_compaction_is_told_so_and_is_over() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options::default());
    story(async {
        let client = etcd.client();
        let mut last = 0;
        for number in 0..10 {
            last = client.put("c/key", number.to_string().as_bytes(), None).await.unwrap();
        }
        client.compact(last).await.unwrap();
        client.compact(last).await.unwrap();
        let mut watch = client.watch("c/", 2);
        for _ in 0..2 {
            let error = loop {
                match watch.next().await {
                    Ok(batch) => assert!(batch.events.is_empty()),
                    Err(error) => break error,
                }
            };
            assert_eq!(error, Error::Compacted { revision: last });
        }
        let mut watch = client.watch("c/", last);
        assert_eq!(put_of(&events(&mut watch).await.events[0]).value, b"9");
    });
}

#[test]
fn keys_go_with_their_lease_when_it_is_not_kept_alive() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options::default());
    story(async {
        let client = etcd.client();
        let (lease, ttl) = client.grant(Duration::from_secs(1)).await.unwrap();
        let revision = client.put("l/engine", b"here", Some(lease)).await.unwrap();
        assert_eq!(client.get("l/engine").await.unwrap().unwrap().lease, Some(lease));
        assert!(client.keep_alive(lease).await.unwrap() <= ttl);
        assert!(client.time_to_live(lease).await.unwrap() <= ttl);
        let mut watch = client.watch("l/", revision + 1);
        let gone = events(&mut watch).await;
        assert!(matches!(&gone.events[..], [Event::Delete { key, .. }] if key == b"l/engine"), "{gone:?}");
        assert_eq!(client.keep_alive(lease).await, Err(Error::LeaseGone));
        assert_eq!(client.time_to_live(lease).await, Err(Error::LeaseGone));
        assert_eq!(client.put("l/engine", b"", Some(lease)).await, Err(Error::LeaseGone));
        client.revoke(lease).await.unwrap();
        let (lease, _) = client.grant(Duration::from_secs(60)).await.unwrap();
        client.put("l/engine", b"", Some(lease)).await.unwrap();
        client.revoke(lease).await.unwrap();
        assert_eq!(client.get("l/engine").await.unwrap(), None);
    });
}

#[test]
fn exactly_one_of_eight_wins_a_campaign_and_the_others_learn_who() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(3, Options::default());
    story(async {
        let campaigns: Vec<_> = (0..8)
            .map(|number| {
                let client = etcd.client();
                tokio::spawn(async move {
                    let (lease, _) = client.grant(Duration::from_secs(30)).await.unwrap();
                    let name = format!("engine-{number}").into_bytes();
                    let claim = Operation::Put { key: b"leader".to_vec(), value: name.clone(), lease: Some(lease) };
                    let see = Operation::Get { key: b"leader".to_vec() };
                    let txn = Txn::new().when_absent("leader").then(&claim).otherwise(&see);
                    (name, client.txn(&txn).await.unwrap())
                })
            })
            .collect();
        let (mut winners, mut seen) = (Vec::new(), Vec::new());
        for campaign in campaigns {
            let (name, outcome) = campaign.await.unwrap();
            match &outcome.results[..] {
                [OperationResult::Put] if outcome.succeeded => winners.push(name),
                [OperationResult::Got(Some(leader))] => seen.push(leader.value.clone()),
                results => panic!("{results:?}"),
            }
        }
        assert_eq!((winners.len(), seen.len()), (1, 7));
        assert!(seen.iter().all(|leader| *leader == winners[0]));
    });
}

#[test]
fn what_was_acknowledged_is_there_after_the_leader_died() {
    if !etcd_is_there() {
        return;
    }
    let mut etcd = Etcd::start(3, Options::default());
    story(async {
        let client = etcd.client();
        let statuses = client.statuses().await;
        let is_leader = |(_, status): &(String, Result<_, _>)| {
            matches!(status, Ok(propylon_cluster::etcd::Status { is_leader: true, .. }))
        };
        let leader = statuses.iter().position(is_leader).expect("there is a leader");
        let (mut acknowledged, mut unknown) = (Vec::new(), 0);
        let mut number = 0;
        let mut since_kill = 0;
        while since_kill < 50 {
            if acknowledged.len() == 50 {
                etcd.kill(leader);
            }
            match client.put(format!("k/{number}"), b"", None).await {
                Ok(_) => {
                    acknowledged.push(number);
                    since_kill += usize::from(acknowledged.len() > 50);
                }
                Err(Error::OutcomeUnknown { .. }) => unknown += 1,
                Err(Error::Unreachable { .. } | Error::Timeout { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            number += 1;
        }
        let keys = client.keys("k/").await.unwrap();
        for number in &acknowledged {
            let key = format!("k/{number}").into_bytes();
            assert!(keys.entries.iter().any(|entry| entry.key == key), "k/{number} was acknowledged");
        }
        assert!(keys.entries.len() <= acknowledged.len() + unknown);
    });
}

#[test]
fn a_quota_that_is_used_up_is_told_and_reading_goes_on() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options { arguments: vec!["--quota-backend-bytes", "2097152"], tls: None });
    story(async {
        let client = etcd.client();
        let value = vec![7; 200_000];
        let error = eventually("the quota is used up", || client.put_error("full", &value)).await;
        assert_eq!(error, Error::NoSpace);
        assert!(error.to_string().contains("defrag"), "{error}");
        assert!(client.get("full").await.unwrap().is_some());
    });
}

trait PutError {
    async fn put_error(&self, key: &str, value: &[u8]) -> Option<Error>;
}

impl PutError for Client {
    async fn put_error(&self, key: &str, value: &[u8]) -> Option<Error> {
        self.put(key, value, None).await.err()
    }
}

#[test]
fn a_member_that_stands_still_is_left_for_another_one() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(3, Options::default());
    story(async {
        let client = etcd.client();
        let mut watch = client.watch("s/", 1);
        for frozen in 0..3 {
            etcd.freeze(frozen);
            let value = format!("without {frozen}");
            put_surely(&client, "s/key", &value).await;
            assert_eq!(client.get("s/key").await.unwrap().unwrap().value, value.as_bytes());
            loop {
                let batch = events(&mut watch).await;
                if batch.events.iter().any(|event| put_of(event).value == value.as_bytes()) {
                    break;
                }
            }
            etcd.thaw(frozen);
            eventually("all members are with a leader", || async {
                let statuses = client.statuses().await;
                statuses.iter().all(|(_, status)| matches!(status, Ok(status) if status.has_leader)).then_some(())
            })
            .await;
        }
    });
}

#[test]
fn a_member_without_the_majority_is_noticed_by_requests_and_watches_alike() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(3, Options::default());
    story(async {
        let alone = etcd.client_of(0);
        let revision = alone.put("q/key", b"1", None).await.unwrap();
        let mut watch = alone.watch("q/", revision);
        assert_eq!(events(&mut watch).await.revision, revision);
        etcd.freeze(1);
        etcd.freeze(2);
        let error = loop {
            if let Err(error) = tokio::time::timeout(WAIT_MAX, watch.next()).await.expect("it is noticed") {
                break error;
            }
        };
        assert!(matches!(error, Error::Unreachable { .. } | Error::Timeout { .. }), "{error}");
        let error = alone.get("q/key").await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. } | Error::Timeout { .. }), "{error}");
        let refused = eventually("a member without a leader refuses at once", || async {
            alone.put_error("q/key", b"2").await.filter(|error| matches!(error, Error::Unreachable { .. }))
        })
        .await;
        assert!(refused.to_string().contains("no leader"), "{refused}");
        etcd.thaw(1);
        etcd.thaw(2);
        put_surely(&alone, "q/key", "3").await;
        while put_of(events(&mut watch).await.events.last().unwrap()).value != b"3" {}
    });
}

#[test]
fn a_store_that_went_back_in_time_is_told() {
    if !etcd_is_there() {
        return;
    }
    let mut etcd = Etcd::start(1, Options::default());
    story(async {
        let client = etcd.client();
        put_many(&client, "r/", 300).await;
        let snapshot = etcd.scratch.path("m0");
        let revision = client.put("r/last", b"", None).await.unwrap();
        let mut watch = client.watch("r/", revision);
        assert_eq!(events(&mut watch).await.revision, revision);
        etcd.kill(0);
        std::fs::remove_dir_all(&snapshot).unwrap();
        etcd.restart(0);
        let error = loop {
            match tokio::time::timeout(WAIT_MAX, watch.next()).await.expect("it is noticed") {
                Err(error @ Error::Rewound { .. }) => break error,
                Err(_) => {}
                Ok(batch) => assert!(batch.events.is_empty()),
            }
        };
        assert_eq!(watch.next().await, Err(error));
    });
}

fn secure(settings: Settings, ca: &Authority, identity: Option<&std::path::Path>) -> Client {
    let identity = identity.map(Into::into);
    Client::new(Settings { ca: Some(ca.ca.clone()), identity, request_timeout: Duration::from_secs(2), ..settings })
        .unwrap()
}

#[test]
fn mutual_tls_lets_in_who_has_a_certificate_of_the_authority() {
    if !etcd_is_there() {
        return;
    }
    let scratch = Scratch::new();
    let (ours, theirs) = (Authority::new(&scratch, "ours"), Authority::new(&scratch, "theirs"));
    let (certificate, key, _) = ours.sign(&scratch, "server", &[ServerAuth, ClientAuth]);
    let tls = ServerTls { ca: ours.ca.clone(), certificate, key };
    let etcd = Etcd::start(1, Options { arguments: vec![], tls: Some(tls) });
    let (_, _, identity) = ours.sign(&scratch, "engine", &[ClientAuth]);
    let (_, _, stranger) = theirs.sign(&scratch, "stranger", &[ClientAuth]);
    let settings = || Settings::new(etcd.endpoints());
    story(async {
        let client = secure(settings(), &ours, Some(&identity));
        eventually("a put over TLS", || async { client.put("t/key", b"1", None).await.ok() }).await;
        let mut watch = client.watch("t/", 1);
        assert_eq!(events(&mut watch).await.events.len(), 1);
        for (ca, identity, part) in [
            (&ours, None, "etcd trusts"),
            (&ours, Some(stranger.as_path()), "etcd trusts"),
            (&theirs, Some(identity.as_path()), "`ca` has the authority"),
        ] {
            let error = secure(settings(), ca, identity).get("t/key").await.unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }) && error.to_string().contains(part), "{error}");
        }
        let plain = Client::new(Settings::new([etcd.endpoint(0).replace("https", "http")])).unwrap();
        let error = plain.get("t/key").await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }) && error.to_string().contains("https://"), "{error}");
    });
}

#[test]
fn a_renewed_certificate_is_used_for_the_next_connection() {
    if !etcd_is_there() {
        return;
    }
    let scratch = Scratch::new();
    let ours = Authority::new(&scratch, "ours");
    let theirs = Authority::new(&scratch, "theirs");
    let (certificate, key, _) = ours.sign(&scratch, "server", &[ServerAuth, ClientAuth]);
    let etcd =
        Etcd::start(1, Options { arguments: vec![], tls: Some(ServerTls { ca: ours.ca.clone(), certificate, key }) });
    let (_, _, identity) = theirs.sign(&scratch, "engine", &[ClientAuth]);
    story(async {
        let client = secure(Settings::new(etcd.endpoints()), &ours, Some(&identity));
        client.get("key").await.unwrap_err();
        ours.sign(&scratch, "engine", &[ClientAuth]);
        eventually("the new certificate is used", || async { client.get("key").await.ok() }).await;
    });
}

#[test]
fn a_server_certificate_that_its_own_gateway_cannot_use_is_explained() {
    if !etcd_is_there() {
        return;
    }
    let scratch = Scratch::new();
    let ours = Authority::new(&scratch, "ours");
    let (certificate, key, _) = ours.sign(&scratch, "server", &[ServerAuth]);
    let etcd =
        Etcd::start(1, Options { arguments: vec![], tls: Some(ServerTls { ca: ours.ca.clone(), certificate, key }) });
    let (_, _, identity) = ours.sign(&scratch, "engine", &[ClientAuth]);
    story(async {
        let client = secure(Settings::new(etcd.endpoints()), &ours, Some(&identity));
        let error = eventually("the hint", || async {
            client.get("key").await.err().filter(|error| error.to_string().contains("clientAuth"))
        })
        .await;
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    });
}

#[test]
fn a_user_is_let_in_again_when_its_token_is_forgotten_and_with_a_password_that_was_changed() {
    if !etcd_is_there() {
        return;
    }
    let mut etcd = Etcd::start(1, Options { arguments: vec!["--auth-token-ttl", "300"], tls: None });
    let root = ["--user", "root:root-password"];
    etcd.control(&["user", "add", "root:root-password"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["user", "add", "engine:first password"]);
    etcd.control(&["role", "add", "engines"]);
    etcd.control(&["role", "grant-permission", "engines", "--prefix=true", "readwrite", "propylon/"]);
    etcd.control(&["user", "grant-role", "engine", "engines"]);
    etcd.control(&["auth", "enable"]);
    let password_file = etcd.scratch.write("password", "first password\n");
    let user = Some(User { name: "engine".into(), password_file });
    let settings = Settings { request_timeout: Duration::from_secs(2), ..Settings::new(etcd.endpoints()) };
    story(async {
        let client = Client::new(Settings { user: user.clone(), ..settings.clone() }).unwrap();
        let revision = client.put("propylon/key", b"1", None).await.unwrap();
        let mut watch = client.watch("propylon/", revision);
        assert_eq!(events(&mut watch).await.revision, revision);
        let refused = client.get("other/key").await.unwrap_err();
        assert!(matches!(refused, Error::Unauthorized { .. }), "{refused}");
        let mut elsewhere = client.watch("other/", 1);
        let refused = loop {
            if let Err(error) = elsewhere.next().await {
                break error;
            }
        };
        assert!(matches!(refused, Error::Unauthorized { .. }), "{refused}");
        let nobody = Client::new(settings.clone()).unwrap().get("propylon/key").await.unwrap_err();
        assert!(nobody.to_string().contains("no `user`"), "{nobody}");
        // Tokens are in a member's memory.
        etcd.restart(0);
        eventually("a new token", || async { client.get("propylon/key").await.ok().flatten() }).await;
        client.put("propylon/key", b"2", None).await.unwrap();
        assert_eq!(put_of(&events(&mut watch).await.events[0]).value, b"2");
        etcd.control(&[&root[..], &["user", "add", "another:password"]].concat());
        client.put("propylon/key", b"3", None).await.unwrap();
        etcd.control(&[&root[..], &["user", "delete", "engine"]].concat());
        etcd.control(&[&root[..], &["user", "add", "engine:second password"]].concat());
        etcd.control(&[&root[..], &["user", "grant-role", "engine", "engines"]].concat());
        etcd.restart(0);
        let refused = client.get("propylon/key").await.unwrap_err();
        assert!(matches!(refused, Error::Unauthorized { .. }), "{refused}");
        assert!(!refused.to_string().contains("first password"), "{refused}");
        etcd.scratch.write("password", "second password");
        client.put("propylon/key", b"4", None).await.unwrap();
    });
}

#[test]
fn a_user_is_no_hindrance_where_etcd_knows_no_users() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options::default());
    let password_file = etcd.scratch.write("password", "password");
    let user = Some(User { name: "engine".into(), password_file });
    story(async {
        let client = Client::new(Settings { user, ..Settings::new(etcd.endpoints()) }).unwrap();
        client.put("key", b"1", None).await.unwrap();
        assert_eq!(client.get("key").await.unwrap().unwrap().value, b"1");
    });
}

#[test]
fn an_etcd_without_its_gateway_is_told() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options { arguments: vec!["--enable-grpc-gateway=false"], tls: None });
    story(async {
        let client = etcd.client();
        let error = client.get("key").await.unwrap_err();
        assert!(matches!(error, Error::NotSupported { .. }) && error.to_string().contains("gateway"), "{error}");
        let error = client.put("key", b"", None).await.unwrap_err();
        assert!(matches!(error, Error::NotSupported { .. }), "{error}");
        let error = client.watch("key", 1).next().await.unwrap_err();
        assert!(matches!(error, Error::NotSupported { .. }), "{error}");
    });
}

#[test]
fn events_of_all_kinds_come_in_their_order() {
    if !etcd_is_there() {
        return;
    }
    let etcd = Etcd::start(1, Options::default());
    story(async {
        let client = etcd.client();
        let mut watch = client.watch("o/", 0);
        let begun = watch.next().await.unwrap();
        assert!(begun.events.is_empty() && begun.revision > 0, "{begun:?}");
        put_many(&client, "o/", 100).await;
        client.delete_prefix("o/").await.unwrap();
        client.put("elsewhere", b"", None).await.unwrap();
        let mut state = BTreeMap::new();
        let put = events(&mut watch).await;
        assert_eq!((put.events.len(), put.revision), (100, begun.revision + 1), "a transaction is one batch");
        for event in put.events.iter().chain(&events(&mut watch).await.events) {
            match event {
                Event::Put(entry) => drop(state.insert(entry.key.clone(), entry.value.clone())),
                Event::Delete { key, .. } => assert!(state.remove(key).is_some()),
            }
        }
        assert!(state.is_empty());
    });
}

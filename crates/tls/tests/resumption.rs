//! Tickets: who may come back with one, and until when.

mod common;

use std::io::Write;
use std::sync::Arc;

use common::*;
use propylon_config::Resumption;
use propylon_tls::{Group, SessionIdUse, TicketRefusal, Tickets};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls12Resumption, Tls13ClientSessionValue,
};
use rustls::crypto::aws_lc_rs::kx_group::X25519;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, NamedGroup};

/// Shakes hands, lets the client take its tickets, and says whether the session was resumed.
fn visit(acceptor: &propylon_tls::Acceptor, config: &Arc<ClientConfig>) -> bool {
    let mut dialogue = Dialogue::established(acceptor, config);
    assert_eq!(dialogue.upload(b"ping", 100), b"ping");
    assert_eq!(dialogue.download(b"pong"), b"pong");
    let facts = dialogue.session.facts();
    assert_eq!(facts.certificate.is_none(), facts.resumed);
    assert_eq!(dialogue.asked_for(), Some(NAME));
    facts.resumed
}

#[test]
fn a_client_comes_back_on_another_core() {
    for client in [Client::tls12, Client::tls13] {
        let profile = profile();
        let tickets = Arc::new(Tickets::new());
        let config = client().config();
        assert!(!visit(&profile.acceptor(&tickets), &config));
        assert!(visit(&profile.acceptor(&tickets), &config));
        assert!(visit(&profile.acceptor(&tickets), &config));
    }
}

/// One profile's listeners share its tickets and sessions, whichever certificate each would rather show.
#[test]
fn a_client_comes_back_at_a_listener_with_another_order_of_key_types() {
    use propylon_config::KeyType::{Ecdsa, Rsa};
    let directory = Directory::new();
    let files = [directory.write("ec.pem", ec(&[NAME])), directory.write("rsa.pem", rsa(&[NAME]))];
    let mut config = tls_profile(&[&files[0], &files[1]]);
    config.resumption.session_ids = 100;
    let profile = load(&config);
    let tickets = Arc::new(Tickets::new());
    let own = profile.acceptor(&tickets);
    let other = profile.acceptor_parts(Some(&[Rsa, Ecdsa]), &[], &tickets).assemble();
    for client in [Client::tls12, Client::tls13] {
        for (first, second) in [(&own, &other), (&other, &own)] {
            let config = client().config();
            assert!(!visit(first, &config));
            for acceptor in [second, first, second, second] {
                assert!(visit(acceptor, &config));
            }
        }
    }
    // Resumption by session ID.
    for (first, second) in [(&own, &other), (&other, &own)] {
        let mut config = Arc::into_inner(Client::tls12().config()).unwrap();
        let store = Arc::new(ClientSessionMemoryCache::new(10));
        config.resumption = rustls::client::Resumption::store(store).tls12_resumption(Tls12Resumption::SessionIdOnly);
        let config = Arc::new(config);
        assert!(!visit(first, &config));
        for acceptor in [second, first, second] {
            assert!(visit(acceptor, &config));
        }
    }
    // Resumption by session ID where no tickets are issued, of a client that would take one.
    config.resumption.tickets = 0;
    let without = load(&config);
    let first = without.acceptor(&tickets);
    let second = without.acceptor_parts(Some(&[Rsa, Ecdsa]), &[], &tickets).assemble();
    for (first, second) in [(&first, &second), (&second, &first)] {
        let config = Client::tls12().config();
        assert!(!visit(first, &config));
        for acceptor in [second, first, second] {
            assert!(visit(acceptor, &config));
        }
    }
    // In TLS 1.3 suites are for every type of key: a ticket of TLS 1.2 beside it says nothing of what is shown.
    let older = Client::tls12().config();
    visit(&other, &older);
    let mut both = Arc::into_inner(Client::new().config()).unwrap();
    both.resumption = older.resumption.clone();
    let dialogue = Dialogue::established(&own, &Arc::new(both));
    assert_eq!(dialogue.session.facts().version, propylon_tls::Version::Tls13);
    assert_eq!(dialogue.session.facts().certificate, Some(Ecdsa));
    // A stranger gets what each listener would rather show.
    for (acceptor, expected) in [(&own, Ecdsa), (&other, Rsa)] {
        let dialogue = Dialogue::established(acceptor, &Client::tls12().config());
        assert_eq!(dialogue.session.facts().certificate, Some(expected));
    }
}

#[test]
fn a_ticket_is_good_for_two_rotations_and_not_for_three() {
    for client in [Client::tls12, Client::tls13] {
        for rotations in 0..=3 {
            let tickets = Arc::new(Tickets::new());
            let acceptor = profile().acceptor(&tickets);
            let config = client().config();
            assert!(!visit(&acceptor, &config));
            for _ in 0..rotations {
                tickets.rotate();
            }
            assert_eq!(visit(&acceptor, &config), rotations < 3, "after {rotations}");
        }
    }
}

#[test]
fn a_ticket_of_another_profile_or_process_means_a_full_handshake() {
    for client in [Client::tls12, Client::tls13] {
        let directory = Directory::new();
        let path = directory.write("ec.pem", ec(&[NAME]));
        let public = tls_profile(&[&path]);
        let mut internal = tls_profile(&[&path]);
        internal.name = "internal".into();
        let tickets = Arc::new(Tickets::new());
        let config = client().config();
        assert!(!visit(&load(&public).acceptor(&tickets), &config));
        assert!(!visit(&load(&internal).acceptor(&tickets), &config));
        assert!(!visit(&load(&internal).acceptor(&Arc::new(Tickets::new())), &config));
    }
}

#[test]
fn a_resumed_session_names_its_group_only_where_keys_were_exchanged() {
    for (client, group) in [(Client::tls12(), None), (Client::tls13(), Some(Group::X25519MlKem768))] {
        let acceptor = acceptor();
        let config = client.config();
        visit(&acceptor, &config);
        let dialogue = Dialogue::established(&acceptor, &config);
        assert!(dialogue.session.facts().resumed);
        assert_eq!(dialogue.session.facts().group, group);
    }
}

fn acceptor_with(resumption: propylon_config::Resumption) -> propylon_tls::Acceptor {
    let directory = Directory::new();
    let mut profile = tls_profile(&[&directory.write("ec.pem", ec(&[NAME]))]);
    profile.resumption = resumption;
    load(&profile).acceptor(&Arc::new(Tickets::new()))
}

#[test]
fn a_full_handshake_ends_with_as_many_tickets_as_configured_and_a_resumed_one_with_one() {
    for tickets in [0, 1, 2, 4] {
        let acceptor = acceptor_with(Resumption { tickets, ..Resumption::default() });
        let config = Client::tls13().config();
        for resumed in [false, tickets > 0] {
            let mut dialogue = Dialogue::established(&acceptor, &config);
            let expected = if resumed { 1 } else { tickets };
            assert_eq!(dialogue.session.facts().resumed, resumed);
            assert_eq!(dialogue.session.facts().resumption.issued, expected);
            assert_eq!(dialogue.client.tls13_tickets_received(), u32::from(expected));
            assert_eq!(dialogue.download(b"at once"), b"at once");
        }
    }
}

#[test]
fn a_client_can_go_on_coming_back_with_the_ticket_it_got_last() {
    for client in [Client::tls12, Client::tls13] {
        let acceptor = acceptor();
        let config = client().config();
        let visits: Vec<bool> = (0..6).map(|_| visit(&acceptor, &config)).collect();
        assert_eq!(visits, [false, true, true, true, true, true]);
    }
}

/// Gives what it got from one server to every other.
#[derive(Debug)]
struct Forgetful(ClientSessionMemoryCache);

fn anybody() -> ServerName<'static> {
    ServerName::try_from("anybody").unwrap()
}

impl ClientSessionStore for Forgetful {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(anybody(), group);
    }
    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.kx_hint(&anybody())
    }
    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.0.set_tls12_session(anybody(), value);
    }
    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(&anybody())
    }
    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.0.remove_tls12_session(&anybody());
    }
    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(anybody(), value);
    }
    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(&anybody())
    }
}

fn forgetful(client: Client, tls12: Tls12Resumption) -> Arc<ClientConfig> {
    let mut config = (*client.config()).clone();
    let store = Arc::new(Forgetful(ClientSessionMemoryCache::new(32)));
    config.resumption = rustls::client::Resumption::store(store).tls12_resumption(tls12);
    config.enable_early_data = true;
    Arc::new(config)
}

#[test]
fn a_session_for_one_name_is_not_resumed_for_another() {
    let clients: [(fn() -> Client, Tls12Resumption); 3] = [
        (Client::tls12, Tls12Resumption::SessionIdOrTickets),
        (Client::tls12, Tls12Resumption::SessionIdOnly),
        (Client::tls13, Tls12Resumption::Disabled),
    ];
    for (client, tls12) in clients {
        let acceptor = acceptor();
        let config = forgetful(client(), tls12);
        let resumed = |name| {
            let mut dialogue = Dialogue::new(&acceptor, &config, name);
            dialogue.shake().unwrap();
            dialogue.download(b"x");
            dialogue.session.facts().resumed
        };
        assert!(!resumed(NAME));
        assert!(!resumed("other.example"));
        assert!(resumed("other.example"));
        assert!(!resumed(NAME));
    }
}

fn id_only() -> Arc<ClientConfig> {
    let mut config = (*Client::tls12().config()).clone();
    config.resumption =
        rustls::client::Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
    Arc::new(config)
}

#[test]
fn a_client_without_tickets_comes_back_by_its_session_id_on_another_core() {
    let profile = profile();
    let tickets = Arc::new(Tickets::new());
    let config = id_only();
    let outcome = |expected| {
        let dialogue = Dialogue::established(&profile.acceptor(&tickets), &config);
        let facts = dialogue.session.facts();
        assert_eq!(facts.resumption.session_id, Some(expected));
        assert_eq!(facts.resumption.issued, 0);
        facts.resumed
    };
    assert!(!outcome(SessionIdUse::Kept));
    assert!(outcome(SessionIdUse::Found));
    assert!(outcome(SessionIdUse::Found));
}

#[test]
fn a_client_without_tickets_comes_back_to_a_profile_whose_certificate_was_replaced() {
    let directory = Directory::new();
    let path = directory.write("ec.pem", ec(&[NAME]));
    let first = load(&tls_profile(&[&path]));
    directory.write("ec.pem", ec(&[NAME]));
    let read_again = || load(&tls_profile(&[&path]));
    let tickets = Arc::new(Tickets::new());
    let config = id_only();
    let resumed = |profile: &propylon_tls::Profile| {
        Dialogue::established(&profile.acceptor(&tickets), &config).session.facts().resumed
    };
    assert!(!resumed(&first));
    assert!(resumed(&read_again().succeeding(&first)));
    assert!(!resumed(&read_again()), "nothing but the sessions of the first make the difference");
}

#[test]
fn a_client_with_tickets_takes_no_place_among_the_sessions() {
    let acceptor = acceptor();
    let config = Client::tls12().config();
    let dialogue = Dialogue::established(&acceptor, &config);
    assert_eq!(dialogue.session.facts().resumption, propylon_tls::Resumption { issued: 1, ..Default::default() });
    // The ID that the server hello named is worth nothing: what was kept for it is gone.
    let mut ids = (*config).clone();
    ids.resumption = config.resumption.clone().tls12_resumption(Tls12Resumption::SessionIdOnly);
    let dialogue = Dialogue::established(&acceptor, &Arc::new(ids));
    assert!(!dialogue.session.facts().resumed);
}

#[test]
fn no_session_is_kept_where_none_shall_be() {
    let acceptor = acceptor_with(Resumption { session_ids: 0, ..Resumption::default() });
    let config = id_only();
    for _ in 0..3 {
        let facts = Dialogue::established(&acceptor, &config).session.facts();
        assert!(!facts.resumed);
        assert_eq!(facts.resumption.session_id, None);
    }
}

#[test]
fn without_tickets_tls_1_2_falls_back_to_session_ids() {
    let acceptor = acceptor_with(Resumption { tickets: 0, ..Resumption::default() });
    let config = Client::tls12().config();
    let given = Dialogue::established(&acceptor, &config).session.facts().resumption;
    assert_eq!((given.issued, given.session_id), (0, Some(SessionIdUse::Kept)));
    assert!(visit(&acceptor, &config));
    let config = Client::tls13().config();
    assert_eq!([visit(&acceptor, &config), visit(&acceptor, &config)], [false, false]);
}

#[test]
fn why_a_ticket_is_of_no_use_is_known() {
    for client in [Client::tls12, Client::tls13] {
        let config = client().config();
        let refused = |acceptor: &propylon_tls::Acceptor| {
            let mut dialogue = Dialogue::established(acceptor, &config);
            dialogue.download(b"x");
            dialogue.session.facts().resumption.refused
        };
        let directory = Directory::new();
        let public = tls_profile(&[&directory.write("ec.pem", ec(&[NAME]))]);
        let internal = propylon_config::TlsProfile { name: "internal".into(), ..public.clone() };
        let tickets = Arc::new(Tickets::new());
        assert_eq!(refused(&load(&public).acceptor(&tickets)), None);
        assert_eq!(refused(&load(&public).acceptor(&tickets)), None);
        assert_eq!(refused(&load(&internal).acceptor(&tickets)), Some(TicketRefusal::Damaged));
        let others = Arc::new(Tickets::new());
        assert_eq!(refused(&load(&internal).acceptor(&others)), Some(TicketRefusal::UnknownKey));
    }
}

/// A server that takes early data, as ours may have been before, or behind another address of the same name.
fn eager_server() -> Arc<rustls::ServerConfig> {
    let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let certificate = rcgen::CertificateParams::new(vec![NAME.into()]).unwrap().self_signed(&key).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.max_early_data_size = 1 << 20;
    Arc::new(config)
}

/// A handshake with a server that is not ours.
fn visit_stranger(server: &Arc<rustls::ServerConfig>, config: &Arc<ClientConfig>) {
    let mut server = rustls::ServerConnection::new(server.clone()).unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = rustls::ClientConnection::new(config.clone(), name).unwrap();
    for _ in 0..4 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        server.read_tls(&mut &wire[..]).unwrap();
        server.process_new_packets().unwrap();
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        if !wire.is_empty() {
            client.read_tls(&mut &wire[..]).unwrap();
            client.process_new_packets().unwrap();
        }
    }
}

/// Result for a client that sends so much early data, in records of so many bytes, with a ticket that is not ours.
fn early_data(len: usize, record: usize) -> Result<(), propylon_tls::Failure> {
    let mut client = Client::tls13();
    client.provider.kx_groups = vec![X25519];
    let mut config = (*forgetful(client, Tls12Resumption::Disabled)).clone();
    config.max_fragment_size = Some(record);
    let config = Arc::new(config);
    visit_stranger(&eager_server(), &config);
    let mut dialogue = Dialogue::new(&acceptor(), &config, NAME);
    let early = vec![7; len];
    dialogue.client.set_buffer_limit(None);
    let mut writer = dialogue.client.early_data().expect("the ticket allows it");
    assert_eq!(writer.write(&early).unwrap(), len);
    dialogue.shake()?;
    assert!(!dialogue.client.is_early_data_accepted());
    assert!(!dialogue.session.facts().resumed);
    assert_eq!(dialogue.upload(b"again", 100), b"again");
    assert_eq!(dialogue.download(b"answer"), b"answer");
    Ok(())
}

#[test]
fn early_data_is_skipped_and_the_handshake_goes_on() {
    for (len, record) in [(1, 16_000), (1000, 16_000), (16_000, 16_384), (64_000, 16_384), (14_336, 1400)] {
        early_data(len, record).unwrap_or_else(|failure| panic!("{len}: {failure}"));
    }
}

#[test]
fn there_is_an_end_to_the_early_data_that_is_skipped() {
    let failure = early_data(200_000, 16_384).unwrap_err();
    assert_eq!(failure.reason.label(), "decrypt-error", "{failure}");
}

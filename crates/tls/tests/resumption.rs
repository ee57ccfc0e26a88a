//! Tickets: who may come back with one, and until when.

mod common;

use std::sync::Arc;

use common::*;
use propylon_tls::{Group, Tickets};
use rustls::ClientConfig;

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

#[test]
fn two_tickets_come_with_the_end_of_the_handshake() {
    let mut dialogue = Dialogue::established(&acceptor(), &Client::tls13().config());
    assert_eq!(dialogue.client.tls13_tickets_received(), 2);
    assert_eq!(dialogue.download(b"at once"), b"at once");
}

//! Handshakes whose work somebody else does: out of order, with errors, or never.

mod common;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::*;
use propylon_crypto::{Job, JobError, JobKind, Outcome, X25519Pair};
use propylon_tls::{
    Acceptor, Deferral, Failure, Group, KeyPairs, Parking, ParkingLimits, Profile, Session, Step, Tickets,
};
use rustls::compress::{CertDecompressor, DecompressionFailed};
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::kx_group;
use rustls::{CertificateCompressionAlgorithm, ClientConfig};

const INTERNAL_ERROR: u8 = 80;
const ILLEGAL_PARAMETER: u8 = 47;

struct Core {
    acceptor: Acceptor,
    parking: Rc<Parking>,
}

impl Core {
    fn new(profile: &Profile, deferral: Deferral, limits: ParkingLimits) -> Core {
        let parking = Parking::new(limits);
        let acceptor = profile.acceptor(&Arc::new(Tickets::new())).deferring(deferral, &parking);
        Core { acceptor, parking }
    }

    fn deferring_all() -> Core {
        Core::new(&profile(), Deferral::ALL, ParkingLimits::default())
    }

    /// Every stack that was opened is back, and nobody is counted as parked.
    fn assert_empty(&self) {
        let counts = self.parking.counts();
        assert_eq!((counts.local, counts.remote), (0, 0));
        assert_eq!(counts.stacks, counts.stacks_idle);
    }
}

/// A handshake in single steps, between any two of which others may have theirs.
struct Visit {
    dialogue: Dialogue,
    job: Option<Job>,
    kinds: Vec<JobKind>,
    /// On their way to the server.
    sent: Vec<u8>,
    /// Bytes that arrive at once.
    chunk: usize,
    end: Option<Result<(), Failure>>,
    /// Error of the client, when the handshake failed on its side.
    refusal: Option<rustls::Error>,
}

impl Visit {
    fn new(core: &Core, config: &Arc<ClientConfig>, chunk: usize) -> Visit {
        Visit {
            dialogue: Dialogue::new(&core.acceptor, config, NAME),
            job: None,
            kinds: Vec::new(),
            sent: Vec::new(),
            chunk,
            end: None,
            refusal: None,
        }
    }

    /// To the end, with every job done well.
    fn finished(core: &Core, config: &Arc<ClientConfig>, chunk: usize) -> Visit {
        let mut visit = Visit::new(core, config, chunk);
        while visit.end.is_none() {
            visit.step(Job::run);
        }
        assert_eq!(visit.end, Some(Ok(())));
        visit
    }

    /// One step: a job is answered, or some bytes arrive.
    fn step(&mut self, answer: impl FnOnce(Job) -> Outcome) {
        let mut out = Vec::new();
        let (session, received) = (&mut self.dialogue.session, &mut self.dialogue.received);
        let progress = match self.job.take() {
            Some(job) => session.resume(answer(job), received, &mut out),
            None => {
                while self.dialogue.client.wants_write() {
                    self.dialogue.client.write_tls(&mut self.sent).unwrap();
                }
                let now = self.chunk.min(self.sent.len());
                assert!(now > 0, "nobody has anything to say");
                received.extend(self.sent.drain(..now));
                session.handshake(received, &mut out)
            }
        };
        match progress {
            Ok((consumed, step)) => {
                received.drain(..consumed);
                self.job = session.take_job();
                self.kinds.extend(self.job.as_ref().map(Job::kind));
                assert_eq!(self.job.is_some(), step == Step::Work);
                if step == Step::Done {
                    self.end = Some(Ok(()));
                }
            }
            Err(failure) => self.end = Some(Err(failure)),
        }
        self.refusal = self.dialogue.deliver(&out).err().or(self.refusal.take());
    }

    fn until_parked(core: &Core, config: &Arc<ClientConfig>) -> Visit {
        let mut visit = Visit::new(core, config, usize::MAX);
        while visit.job.is_none() {
            visit.step(Job::run);
        }
        visit
    }

    fn converse(&mut self) {
        assert_eq!(self.dialogue.upload(b"GET / HTTP/1.1\r\n\r\n", 100), b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(self.dialogue.download(b"HTTP/1.1 200 OK\r\n\r\n"), b"HTTP/1.1 200 OK\r\n\r\n");
        let hello_info = self.dialogue.session.hello_info().expect("the client has named a server");
        assert_eq!(hello_info.server_name.as_deref(), Some(NAME));
    }
}

fn client(tls13: bool, rsa: bool, group: &'static dyn SupportedKxGroup) -> Client {
    let mut client = if tls13 { Client::tls13() } else { Client::tls12() };
    client.schemes = if rsa { RSA_SCHEMES.to_vec() } else { EC_SCHEMES.to_vec() };
    client.provider.kx_groups = vec![group];
    client
}

const GROUPS: [(&dyn SupportedKxGroup, Group); 4] = [
    (kx_group::X25519MLKEM768, Group::X25519MlKem768),
    (kx_group::X25519, Group::X25519),
    (kx_group::SECP256R1, Group::P256),
    (kx_group::SECP384R1, Group::P384),
];

/// Every kind of client that there is work for: version, key type, group.
fn all_clients() -> Vec<(Client, bool, JobKind, Group)> {
    let mut clients = Vec::new();
    for tls13 in [false, true] {
        for (rsa, signature) in [(false, JobKind::Ecdsa), (true, JobKind::Rsa)] {
            for (group, name) in GROUPS {
                if tls13 || name != Group::X25519MlKem768 {
                    clients.push((client(tls13, rsa, group), tls13, signature, name));
                }
            }
        }
    }
    clients
}

#[test]
fn every_version_group_and_key_type_is_parked_for_its_work_and_goes_on() {
    let core = Core::deferring_all();
    for (client, tls13, signature, group) in all_clients() {
        let mut visit = Visit::finished(&core, &client.config(), usize::MAX);
        let agreement = matches!(group, Group::X25519 | Group::X25519MlKem768).then_some(JobKind::X25519);
        // TLS 1.2 signs its share before it has the client's.
        let expected: Vec<JobKind> = match tls13 {
            true => agreement.into_iter().chain([signature]).collect(),
            false => [signature].into_iter().chain(agreement).collect(),
        };
        assert_eq!(visit.kinds, expected, "{group:?}");
        assert_eq!(visit.dialogue.session.facts().group, Some(group));
        visit.converse();
        core.assert_empty();
    }
    let counts = core.parking.counts();
    assert_eq!(counts.stacks, 1);
    println!("high water: {} bytes of stack", counts.stack_high_water_bytes);
    assert!(counts.stack_high_water_bytes > 0);
}

#[test]
fn a_kind_that_is_not_deferred_is_done_on_the_spot() {
    for (deferral, expected) in [
        (Deferral::default(), &[][..]),
        (Deferral { ecdsa: true, ..Deferral::default() }, &[JobKind::Ecdsa]),
        (Deferral { x25519: true, ..Deferral::default() }, &[JobKind::X25519]),
    ] {
        let core = Core::new(&profile(), deferral, ParkingLimits::default());
        for group in [kx_group::X25519, kx_group::X25519MLKEM768] {
            let mut visit = Visit::finished(&core, &client(true, false, group).config(), usize::MAX);
            assert_eq!(visit.kinds, expected);
            visit.converse();
        }
        let rsa = Visit::finished(&core, &client(true, true, kx_group::SECP384R1).config(), usize::MAX);
        assert_eq!(rsa.kinds, []);
        core.assert_empty();
    }
}

#[test]
fn an_ed25519_key_signs_elsewhere() {
    let directory = Directory::new();
    let path = directory.write("ed.pem", pem(&[NAME], &key(&rcgen::PKCS_ED25519)));
    let core = Core::new(&load(&tls_profile(&[&path])), Deferral::ALL, ParkingLimits::default());
    for mut client in [Client::tls12(), Client::tls13()] {
        client.provider.kx_groups = vec![kx_group::SECP256R1];
        let mut visit = Visit::finished(&core, &client.config(), usize::MAX);
        assert_eq!(visit.kinds, [JobKind::Ed25519]);
        visit.converse();
    }
}

#[test]
fn hellos_in_single_bytes_and_in_odd_pieces_are_parked_and_go_on() {
    let core = Core::deferring_all();
    for chunk in [1, 2, 7, 333] {
        for (client, ..) in all_clients() {
            Visit::finished(&core, &client.config(), chunk).converse();
        }
    }
    core.assert_empty();
}

#[test]
fn a_hello_in_many_records_is_put_together_across_parkings() {
    let core = Core::deferring_all();
    for (client, ..) in all_clients() {
        for fragment in [32, 100] {
            let mut config = (*client_config(&client)).clone();
            config.max_fragment_size = Some(fragment);
            let config = Arc::new(config);
            for chunk in [1, 41, usize::MAX] {
                Visit::finished(&core, &config, chunk).converse();
            }
        }
    }
    core.assert_empty();
}

fn client_config(client: &Client) -> Arc<ClientConfig> {
    Client {
        provider: client.provider.clone(),
        versions: client.versions.clone(),
        schemes: client.schemes.clone(),
        alpn: vec![],
    }
    .config()
}

/// Never comes back with a ticket.
fn forgetful(client: Client) -> Arc<ClientConfig> {
    let mut config = (*client.config()).clone();
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// A group that only the client knows.
#[derive(Debug)]
struct Unknown;

impl SupportedKxGroup for Unknown {
    fn start(&self) -> Result<Box<dyn rustls::crypto::ActiveKeyExchange>, rustls::Error> {
        kx_group::SECP256R1.start()
    }

    fn name(&self) -> rustls::NamedGroup {
        rustls::NamedGroup::Unknown(0x6a6a)
    }
}

#[test]
fn a_client_that_is_asked_again_is_parked_for_its_second_hello_only() {
    let core = Core::deferring_all();
    let mut client = Client::tls13();
    client.provider.kx_groups = vec![&Unknown, kx_group::X25519];
    client.schemes = EC_SCHEMES.to_vec();
    let config = forgetful(client);
    for chunk in [1, usize::MAX] {
        let mut visit = Visit::new(&core, &config, chunk);
        while visit.job.is_none() {
            visit.step(Job::run);
        }
        // A second hello has been written, so the first was answered.
        assert!(visit.dialogue.client.is_handshaking());
        while visit.end.is_none() {
            visit.step(Job::run);
        }
        assert_eq!(visit.kinds, [JobKind::X25519, JobKind::Ecdsa]);
        visit.converse();
    }
    let mut visit = Visit::until_parked(&core, &config);
    visit.step(|_| Err(JobError::Refused));
    assert_eq!(visit.refusal, Some(rustls::Error::AlertReceived(INTERNAL_ERROR.into())));
}

#[test]
fn a_certificate_is_sent_compressed_by_a_handshake_that_was_parked_in_between() {
    #[derive(Debug)]
    struct Counting(AtomicU32);
    static USED: Counting = Counting(AtomicU32::new(0));
    impl CertDecompressor for Counting {
        fn decompress(&self, input: &[u8], output: &mut [u8]) -> Result<(), DecompressionFailed> {
            self.0.fetch_add(1, Ordering::Relaxed);
            BROTLI.decompress(input, output)
        }

        fn algorithm(&self) -> CertificateCompressionAlgorithm {
            BROTLI.algorithm()
        }
    }
    let directory = Directory::new();
    let profile = tls_profile(&[&directory.write("long.pem", long_chain())]);
    let core = Core::new(&load(&profile), Deferral::ALL, ParkingLimits::default());
    let mut config = (*client(true, false, kx_group::X25519).config()).clone();
    config.cert_decompressors = vec![&USED];
    let config = Arc::new(config);
    // Another handshake, with a certificate of its own, has its turns in between.
    let mut visit = Visit::until_parked(&core, &config);
    let other = Core::deferring_all();
    Visit::finished(&other, &client(true, false, kx_group::X25519).config(), usize::MAX).converse();
    while visit.end.is_none() {
        visit.step(Job::run);
    }
    assert_eq!((visit.end.clone(), visit.kinds.as_slice()), (Some(Ok(())), &[JobKind::X25519, JobKind::Ecdsa][..]));
    assert_eq!(USED.0.load(Ordering::Relaxed), 1);
    assert_eq!(visit.dialogue.client.peer_certificates().unwrap().len(), 3);
    visit.converse();
    core.assert_empty();
}

#[test]
fn a_client_that_comes_back_needs_an_agreement_in_tls_1_3_and_nothing_in_1_2() {
    let core = Core::deferring_all();
    for (tls13, expected) in [(true, &[JobKind::X25519][..]), (false, &[])] {
        let config = client(tls13, false, kx_group::X25519).config();
        Visit::finished(&core, &config, usize::MAX).converse();
        for chunk in [usize::MAX, 5] {
            let mut visit = Visit::finished(&core, &config, chunk);
            assert!(visit.dialogue.session.facts().resumed);
            assert_eq!(visit.kinds, expected);
            visit.converse();
        }
    }
    core.assert_empty();
}

#[test]
fn work_that_fails_is_our_fault_and_a_bad_share_the_clients() {
    let core = Core::deferring_all();
    let reasons = [
        (JobError::Refused, "internal"),
        (JobError::TimedOut, "signer-timeout"),
        (JobError::Unavailable, "signer-unavailable"),
        (JobError::NotSigned, "signer-refused"),
        (JobError::Cancelled, "over"),
        (JobError::BadShare, "protocol-violation"),
    ];
    for tls13 in [false, true] {
        for at in [0, 1] {
            for (error, reason) in reasons {
                let mut visit = Visit::new(&core, &client(tls13, false, kx_group::X25519).config(), usize::MAX);
                while visit.end.is_none() {
                    let fails = visit.kinds.len() == at + 1;
                    visit.step(|job| if fails { Err(error) } else { job.run() });
                }
                // Only an agreement can say so.
                let agreement = visit.kinds[at] == JobKind::X25519;
                if error == JobError::BadShare && !agreement {
                    continue;
                }
                let alert = if error == JobError::BadShare { ILLEGAL_PARAMETER } else { INTERNAL_ERROR };
                assert_eq!(visit.end.unwrap().unwrap_err().reason.label(), reason);
                assert_eq!(visit.refusal, Some(rustls::Error::AlertReceived(alert.into())), "{error:?} at {at}");
                let mut out = Vec::new();
                let later = visit.dialogue.session.resume(Err(error), &mut [], &mut out);
                assert_eq!(later.unwrap_err().reason.label(), "over");
            }
        }
    }
    core.assert_empty();
    assert_eq!(core.parking.counts().stacks, 1);
}

#[test]
fn an_outcome_that_is_none_gives_no_session() {
    let core = Core::deferring_all();
    let mut visit = Visit::until_parked(&core, &client(true, false, kx_group::X25519).config());
    while visit.refusal.is_none() && visit.end.is_none() {
        // The agreement is not that of the two shares: the client cannot read what comes.
        visit.step(|_| Ok(vec![7; 32].into()));
    }
    assert!(visit.refusal.is_some());
    core.assert_empty();
}

#[test]
fn a_thousand_handshakes_at_once_go_on_in_any_order() {
    let core = Core::deferring_all();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let configs: Vec<_> =
        all_clients().into_iter().flat_map(|(client, ..)| [client_config(&client), forgetful(client)]).collect();
    let mut begun = 0;
    let mut visits: Vec<Visit> = Vec::new();
    let mut most = 0;
    while begun < 1000 || !visits.is_empty() {
        if begun < 1000 && visits.len() < 300 && random.u8(..) < 128 {
            let config = &configs[random.usize(..configs.len())];
            let chunk = if random.u8(..) < 32 { random.usize(1..400) } else { usize::MAX };
            visits.push(Visit::new(&core, config, chunk));
            begun += 1;
            continue;
        }
        let index = random.usize(..visits.len().max(1));
        let Some(visit) = visits.get_mut(index) else { continue };
        visit.step(Job::run);
        most = most.max(core.parking.counts().local);
        if let Some(end) = &visit.end {
            assert_eq!(*end, Ok(()));
            visits.swap_remove(index).converse();
        }
    }
    core.assert_empty();
    let counts = core.parking.counts();
    println!("at most {most} parked, {counts:?}");
    assert!(most > 20);
    assert!(counts.stacks <= ParkingLimits::default().local + 1);
}

#[test]
fn a_thousand_clients_that_go_away_while_they_are_parked_leave_nothing_behind() {
    let core = Core::deferring_all();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let configs: Vec<_> = all_clients().into_iter().map(|(client, ..)| forgetful(client)).collect();
    let mut parked: Vec<Visit> = Vec::new();
    for _ in 0..1000 {
        let mut visit = Visit::until_parked(&core, &configs[random.usize(..configs.len())]);
        if random.bool() {
            visit.step(Job::run);
        }
        parked.push(visit);
        if parked.len() > 100 {
            drop(parked.swap_remove(random.usize(..parked.len())));
        }
    }
    drop(parked);
    core.assert_empty();
    let counts = core.parking.counts();
    assert!(counts.cancelled >= 500, "{counts:?}");
    assert!(counts.stacks <= 102, "{counts:?}");
    // And what is left works.
    Visit::finished(&core, &configs[0], usize::MAX).converse();
}

#[test]
fn sessions_outlive_their_acceptor_and_its_parking() {
    let core = Core::deferring_all();
    let config = client(true, false, kx_group::X25519).config();
    let mut visit = Visit::until_parked(&core, &config);
    let abandoned = Visit::until_parked(&core, &config);
    drop(core);
    while visit.end.is_none() {
        visit.step(Job::run);
    }
    visit.converse();
    drop(abandoned);
}

#[test]
fn at_the_bound_local_work_is_done_on_the_spot() {
    let core = Core::new(&profile(), Deferral::ALL, ParkingLimits { local: 2, remote: 0 });
    let config = client(true, false, kx_group::X25519).config();
    let parked = [Visit::until_parked(&core, &config), Visit::until_parked(&core, &config)];
    let mut third = Visit::finished(&core, &config, usize::MAX);
    assert_eq!(third.kinds, []);
    assert_eq!(core.parking.counts().done_on_the_spot, 2);
    third.converse();
    for mut visit in parked {
        while visit.end.is_none() {
            visit.step(Job::run);
        }
        visit.converse();
    }
    core.assert_empty();
    // Without any room at all, not even for a stack that could be suspended, it is the same.
    let none = Core::new(&profile(), Deferral::ALL, ParkingLimits { local: 0, remote: 0 });
    Visit::finished(&none, &config, usize::MAX).converse();
}

#[test]
fn what_arrives_while_a_handshake_is_parked_waits_and_is_then_looked_at() {
    // RFC 8446 appendix D.4 allows this record here, and the library drops it.
    const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];
    let core = Core::deferring_all();
    let mut visit = Visit::until_parked(&core, &client(true, false, kx_group::X25519).config());
    visit.dialogue.received.extend(CHANGE_CIPHER_SPEC);
    while visit.end.is_none() {
        visit.step(Job::run);
    }
    visit.converse();
    // A record that may not come is found out as soon as the handshake goes on.
    let mut visit = Visit::until_parked(&core, &client(true, false, kx_group::X25519).config());
    visit.dialogue.received.extend([23, 3, 3, 0, 40]);
    visit.dialogue.received.extend([7; 40]);
    while visit.end.is_none() {
        visit.step(Job::run);
    }
    assert_eq!(visit.end.unwrap().unwrap_err().reason.label(), "decrypt-error");
    core.assert_empty();
}

#[test]
fn a_parked_session_answers_nothing_else_and_stays_parked() {
    let core = Core::deferring_all();
    let mut visit = Visit::until_parked(&core, &client(true, false, kx_group::X25519).config());
    let mut out = Vec::new();
    let session: &mut Session = &mut visit.dialogue.session;
    assert!(session.take_job().is_none());
    assert_eq!(session.handshake(&mut [22, 3, 3], &mut out).unwrap_err().reason.label(), "over");
    assert_eq!(session.open(&mut [0; 20], 0..20, &mut out).unwrap_err().reason.label(), "over");
    assert_eq!(session.seal(b"early", &mut [0; 100]), 0);
    session.rest();
    session.close(&mut out);
    assert!(out.is_empty());
    while visit.end.is_none() {
        visit.step(Job::run);
    }
    visit.converse();
}

#[test]
fn a_panic_in_a_callback_ends_its_own_handshake_and_no_other() {
    fn broken() -> X25519Pair {
        panic!("no pair today")
    }
    let core = Core::deferring_all();
    let config = client(true, false, kx_group::X25519).config();
    let mut neighbour = Visit::until_parked(&core, &config);
    KeyPairs::draw_from(broken);
    let mut unlucky = Visit::new(&core, &config, usize::MAX);
    unlucky.step(Job::run);
    KeyPairs::draw_from(X25519Pair::generate);
    let failure = unlucky.end.take().unwrap().unwrap_err();
    assert_eq!((failure.reason.label(), failure.detail.as_str()), ("internal", "no pair today"));
    assert_eq!(unlucky.refusal, Some(rustls::Error::AlertReceived(INTERNAL_ERROR.into())));
    while neighbour.end.is_none() {
        neighbour.step(Job::run);
    }
    neighbour.converse();
    core.assert_empty();
    assert_eq!((core.parking.counts().stacks, core.parking.counts().panics), (2, 1));
    Visit::finished(&core, &config, usize::MAX).converse();
}

#[test]
fn one_alone_does_its_work_at_once_and_those_in_company_are_set_aside() {
    let deferral = Deferral { in_company_only: true, ..Deferral::ALL };
    let core = Core::new(&profile(), deferral, ParkingLimits::default());
    // Each is a client of its own, so that none resumes another's session.
    let config = || client(true, true, kx_group::X25519).config();
    assert_eq!(Visit::finished(&core, &config(), usize::MAX).kinds, []);
    // The second has not said a word, but is there.
    let mut first = Visit::new(&core, &config(), usize::MAX);
    let mut second = Visit::new(&core, &config(), usize::MAX);
    first.step(Job::run);
    assert_eq!(first.kinds, [JobKind::X25519]);
    // The second has the company of the first, which is parked, and the other way round.
    second.step(Job::run);
    assert_eq!(second.kinds, [JobKind::X25519]);
    first.step(Job::run);
    assert_eq!(first.kinds, [JobKind::X25519, JobKind::Rsa]);
    for visit in [&mut first, &mut second] {
        while visit.end.is_none() {
            visit.step(Job::run);
        }
        assert_eq!(visit.end, Some(Ok(())));
        visit.converse();
    }
    // One that is over, or that went away, is nobody's company.
    drop(Visit::new(&core, &config(), usize::MAX));
    assert_eq!(Visit::finished(&core, &config(), usize::MAX).kinds, []);
    core.assert_empty();
}

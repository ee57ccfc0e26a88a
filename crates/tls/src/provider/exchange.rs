//! Key exchange groups, whose X25519 part is a job that may be deferred.

use std::cell::Cell;

use propylon_crypto::{JobError, X25519Pair};
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::crypto::{ActiveKeyExchange, CompletedKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};

use super::jobs::run_job;
use crate::parking::fiber::on_parent_stack;

/// Groups offered to clients, the most preferred first.
pub(crate) fn groups() -> Vec<&'static dyn SupportedKxGroup> {
    vec![&X25519MlKem768, &X25519, &LocalGroup(NamedGroup::secp256r1), &LocalGroup(NamedGroup::secp384r1)]
}

/// Groups offered to servers; a share of the first goes out with the ClientHello. A server that wants another group
/// asks for it once, and the choice is remembered; so the hybrid costs only connections to servers that prefer it.
pub(crate) fn groups_to_servers() -> Vec<&'static dyn SupportedKxGroup> {
    vec![
        &X25519,
        &LocalGroup(NamedGroup::X25519MLKEM768),
        &LocalGroup(NamedGroup::secp256r1),
        &LocalGroup(NamedGroup::secp384r1),
    ]
}

/// Groups for handshakes with key servers: the library's, in its order. Such handshakes are few, and only their
/// signatures are deferred.
pub(crate) fn groups_to_key_servers() -> Vec<&'static dyn SupportedKxGroup> {
    const OURS: [&LocalGroup; 4] = [
        &LocalGroup(NamedGroup::X25519MLKEM768),
        &LocalGroup(NamedGroup::X25519),
        &LocalGroup(NamedGroup::secp256r1),
        &LocalGroup(NamedGroup::secp384r1),
    ];
    let ours = |stock: &'static dyn SupportedKxGroup| OURS.into_iter().find(|ours| ours.0 == stock.name());
    default_provider().kx_groups.into_iter().filter_map(ours).map(|ours| ours as &dyn SupportedKxGroup).collect()
}

/// Source of this core's X25519 key pairs.
pub struct KeyPairs;

thread_local! {
    static SOURCE: Cell<fn() -> X25519Pair> = const { Cell::new(X25519Pair::generate) };
}

impl KeyPairs {
    /// Sets the source for all handshakes of this thread. Each pair that `source` returns is used once.
    pub fn draw_from(source: fn() -> X25519Pair) {
        SOURCE.set(source);
    }

    fn draw() -> X25519Pair {
        let source = SOURCE.get();
        on_parent_stack(source)
    }
}

const SHARE_LEN: usize = 32;
const INVALID_SHARE: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

/// X25519 (RFC 7748 §6.1, RFC 8446 §7.4.2).
#[derive(Debug)]
struct X25519;

struct X25519Exchange(X25519Pair);

impl SupportedKxGroup for X25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(X25519Exchange(KeyPairs::draw())))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        // The share is checked first, so that a malformed one costs no key pair.
        let peer = share(peer)?;
        let pair = KeyPairs::draw();
        let pub_key = pair.share().to_vec();
        Ok(CompletedKeyExchange { group: NamedGroup::X25519, pub_key, secret: agree(pair, peer)? })
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

impl ActiveKeyExchange for X25519Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        agree(self.0, share(peer)?)
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn pub_key(&self) -> &[u8] {
        self.0.share()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

fn share(peer: &[u8]) -> Result<[u8; SHARE_LEN], Error> {
    peer.try_into().map_err(|_| INVALID_SHARE)
}

fn agree(pair: X25519Pair, peer: [u8; SHARE_LEN]) -> Result<SharedSecret, Error> {
    match run_job(pair.agree(peer)) {
        Ok(secret) => Ok(SharedSecret::from(secret.as_slice())),
        Err(JobError::BadShare) => Err(INVALID_SHARE),
        Err(error) => Err(Error::General(error.to_string())),
    }
}

/// ML-KEM-768 and X25519, in shares and secrets in this order (draft-ietf-tls-ecdhe-mlkem §4). TLS 1.3 only.
#[derive(Debug)]
struct X25519MlKem768;

/// Bytes of ML-KEM-768's encapsulation key, which is the client's part of the share (FIPS 203, table 3).
const ENCAPSULATION_KEY_LEN: usize = 1184;
const SECRETS_LEN: usize = 64;

impl SupportedKxGroup for X25519MlKem768 {
    /// Never called on a server, which only answers a client's share.
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Err(Error::General("a hybrid exchange begins with the client's share".into()))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        if peer.len() != ENCAPSULATION_KEY_LEN + SHARE_LEN {
            return Err(INVALID_SHARE);
        }
        let (lattice, curve) = peer.split_at(ENCAPSULATION_KEY_LEN);
        // ML-KEM, which is done here, goes first: it refuses malformed shares before a job is made of X25519.
        let lattice = on_parent_stack(|| kx_group::MLKEM768.start_and_complete(lattice))?;
        let curve = X25519.start_and_complete(curve)?;
        let mut secrets = zeroize::Zeroizing::new([0; SECRETS_LEN]);
        let (first, second) = secrets.split_at_mut(SECRETS_LEN - SHARE_LEN);
        copy(lattice.secret.secret_bytes(), first)?;
        copy(curve.secret.secret_bytes(), second)?;
        Ok(CompletedKeyExchange {
            group: NamedGroup::X25519MLKEM768,
            pub_key: [lattice.pub_key, curve.pub_key].concat(),
            secret: SharedSecret::from(secrets.as_slice()),
        })
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

fn copy(secret: &[u8], into: &mut [u8]) -> Result<(), Error> {
    if secret.len() != into.len() {
        return Err(Error::General("a shared secret of an unexpected length".into()));
    }
    into.copy_from_slice(secret);
    Ok(())
}

/// Groups of the library that are too rare to be batched. They run on the parent's stack: the frames of P-384 alone
/// would fill a third of a fiber's stack, those of ML-KEM more.
#[derive(Debug)]
struct LocalGroup(NamedGroup);

impl LocalGroup {
    fn group(&self) -> &'static dyn SupportedKxGroup {
        match self.0 {
            NamedGroup::X25519MLKEM768 => kx_group::X25519MLKEM768,
            NamedGroup::X25519 => kx_group::X25519,
            NamedGroup::secp384r1 => kx_group::SECP384R1,
            _ => kx_group::SECP256R1,
        }
    }
}

impl SupportedKxGroup for LocalGroup {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let begun = on_parent_stack(|| self.group().start())?;
        Ok(Box::new(LocalExchange(begun)))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        on_parent_stack(|| self.group().start_and_complete(peer))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        self.0
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        self.group().usable_for_version(version)
    }
}

struct LocalExchange(Box<dyn ActiveKeyExchange>);

impl ActiveKeyExchange for LocalExchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        on_parent_stack(move || self.0.complete(peer))
    }

    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        self.0.hybrid_component()
    }

    fn complete_hybrid_component(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        on_parent_stack(move || self.0.complete_hybrid_component(peer))
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn pub_key(&self) -> &[u8] {
        self.0.pub_key()
    }

    fn group(&self) -> NamedGroup {
        self.0.group()
    }
}

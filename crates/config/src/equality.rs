//! Equality of sections of two configurations by what they say, whatever the lines that say it.
//!
//! Equality of the model (`==`) is derived and goes by everything, positions among it: reports of problems and the
//! files that belong to them are told apart by their positions. A reload asks whether a section says the same as
//! before; for that both are compared without their positions, and without what is known only while the process runs.

use crate::model::{
    At, Backend, BackendTls, CertificateSource, Config, Drain, Ordered, Server, Signer, SignerId, SignerServer,
    TicketKeys, TlsPolicy, TlsProfile, Tracing, Trust,
};

impl TlsProfile {
    /// Whether both profiles say the same, each in the configuration that it is of. Whether a certificate was uploaded
    /// makes no difference.
    pub fn says_the_same(&self, own: &Config, other: &TlsProfile, others: &Config) -> bool {
        let signer = |config: &'_ Config, id: Option<SignerId>| Some(config.signer(id?)?.name.clone());
        signer(own, self.signer) == signer(others, other.signer)
            && accounts(own, self) == accounts(others, other)
            && profile(self) == profile(other)
    }
}

impl Backend {
    /// Whether both backends say the same of the same servers in the same order. Who has asked for a drain makes no
    /// difference.
    pub fn says_the_same(&self, other: &Backend) -> bool {
        let server = |server: &Server| Server {
            drain: server.drain.map(|_| Drain::Written),
            at: At::default(),
            ..server.clone()
        };
        let rest = |backend: &Backend| Backend {
            servers: Vec::new(),
            tls: backend.tls.as_ref().map(upstream),
            sticky: backend.sticky.clone().map(|sticky| crate::Sticky { at: At::default(), ..sticky }),
            at: At::default(),
            ..backend.clone()
        };
        let same_servers = self.servers.iter().map(server).eq(other.servers.iter().map(server));
        same_servers && rest(self) == rest(other)
    }
}

impl BackendTls {
    /// Whether a connection that was made by the one would have been made alike by the other: how often files are
    /// looked at makes no difference.
    pub fn connects_the_same(&self, other: &BackendTls) -> bool {
        let of = |tls: &BackendTls| BackendTls { watch: None, ..upstream(tls) };
        of(self) == of(other)
    }
}

impl Signer {
    /// Whether both say the same. A signer is one whole: with anything else about it, it is another.
    pub(crate) fn says_the_same(&self, other: &Signer) -> bool {
        let of = |signer: &Signer| Signer {
            id: SignerId(0),
            servers: signer.servers.iter().map(|server| SignerServer { at: At::default(), ..server.clone() }).collect(),
            identity: trust(&signer.identity),
            ca: trust(&signer.ca),
            at: At::default(),
            ..signer.clone()
        };
        of(self) == of(other)
    }
}

impl Tracing {
    /// Whether both say the same of the collector and of what is traced.
    pub fn says_the_same(&self, other: &Tracing) -> bool {
        let of = |tracing: &Tracing| Tracing {
            tls: tracing.tls.as_ref().map(upstream),
            headers: tracing.headers.as_ref().map(trust),
            at: At::default(),
            ..tracing.clone()
        };
        of(self) == of(other)
    }
}

fn trust(trust: &Trust) -> Trust {
    Trust { at: At::default(), ..trust.clone() }
}

/// Without `allow_world_readable_keys`, which is a key of `[process]` and says nothing of connections.
fn upstream(tls: &BackendTls) -> BackendTls {
    BackendTls {
        ca: tls.ca.iter().map(trust).collect(),
        certificate: tls.certificate.as_ref().map(trust),
        allow_world_readable_keys: false,
        at: At::default(),
        ..tls.clone()
    }
}

/// A profile without positions, and without the places of its signer and accounts in their lists.
fn profile(profile: &TlsProfile) -> TlsProfile {
    let mut bare = TlsProfile { signer: None, at: At::default(), ..profile.clone() };
    for certificate in &mut bare.certificates {
        (certificate.at, certificate.uploaded) = (At::default(), false);
        if let CertificateSource::Ordered(ordered) = &mut certificate.source {
            ordered.acme.0 = 0;
        }
    }
    if let TlsPolicy::Custom(policy) = &mut bare.policy {
        policy.at = At::default();
    }
    if let TicketKeys::File { at, .. } = &mut bare.resumption.ticket_keys {
        *at = At::default();
    }
    if let Some(auth) = &mut bare.client_auth {
        auth.at = At::default();
        auth.ca.iter_mut().chain(&mut auth.crl).for_each(|trust| trust.at = At::default());
    }
    bare
}

/// Names of the accounts that a profile's certificates are ordered with.
fn accounts<'c>(config: &'c Config, profile: &TlsProfile) -> Vec<&'c str> {
    let ordered = profile.certificates.iter().filter_map(|certificate| match &certificate.source {
        CertificateSource::Ordered(Ordered { acme, .. }) => Some(config.acmes[acme.0].name.as_str()),
        _ => None,
    });
    ordered.collect()
}

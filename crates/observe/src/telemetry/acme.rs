//! Challenges of certificate authorities.

use propylon_config::AcmeChallenge;
use propylon_metrics::{Counter, Registry};

/// Challenges that were answered.
pub struct AcmeMetrics {
    pub http: Counter,
    pub tls_alpn: Counter,
}

impl AcmeMetrics {
    pub fn new(r: &mut Registry) -> AcmeMetrics {
        let mut slot = |kind: AcmeChallenge| {
            let help = "Questions of certificate authorities that were answered, by type of challenge.";
            r.counter("propylon_acme_challenges_answered_total", help, &[("type", kind.name())])
        };
        AcmeMetrics { http: slot(AcmeChallenge::Http), tls_alpn: slot(AcmeChallenge::TlsAlpn) }
    }
}

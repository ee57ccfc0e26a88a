//! One signer of the configuration, compiled.

use std::sync::Arc;

use arc_swap::ArcSwap;
use propylon_config::Signer;
use propylon_tls::LinkProfile;

use super::KeyServerAddresses;

/// One `[signer.NAME]`: key servers, and what is needed to talk to them. What can change while it is in use is read by
/// each new connection.
pub struct SignerProfile {
    pub config: Signer,
    pub link: ArcSwap<LinkProfile>,
    pub addresses: Arc<KeyServerAddresses>,
    /// Labels by server, as the user wrote them.
    pub labels: Vec<String>,
}

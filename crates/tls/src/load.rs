//! Certificates and keys from files, with everything that is wrong with them.

use propylon_config::TlsProfile;

use crate::finding::Finding;
use crate::profile::Credential;

pub(crate) fn credentials(profile: &TlsProfile) -> (Vec<Credential>, Vec<Finding>) {
    let _ = profile;
    todo!()
}

//! Key pairs for X25519: what one side of an agreement begins with.

use zeroize::Zeroizing;

use crate::awslc;
use crate::job::Job;

/// An ephemeral secret and its share, to be used once.
pub struct X25519Pair {
    secret: Zeroizing<[u8; 32]>,
    share: [u8; 32],
}

impl X25519Pair {
    #[must_use]
    pub fn generate() -> X25519Pair {
        let mut pair = X25519Pair { secret: Zeroizing::new([0; 32]), share: [0; 32] };
        awslc::x25519_pair(&mut pair.secret, &mut pair.share);
        pair
    }

    pub(crate) fn of(secret: Zeroizing<[u8; 32]>, share: [u8; 32]) -> X25519Pair {
        X25519Pair { secret, share }
    }

    /// The share that is sent to the peer (RFC 7748 §6.1).
    #[must_use]
    pub fn share(&self) -> &[u8; 32] {
        &self.share
    }

    /// The agreement with the peer's share, which uses the pair up.
    #[must_use]
    pub fn agree(self, peer: [u8; 32]) -> Job {
        Job::X25519 { secret: self.secret, peer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobError;

    #[test]
    fn both_sides_agree_and_so_does_another_implementation_of_the_interface() {
        use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
        for _ in 0..20 {
            let (ours, theirs) = (X25519Pair::generate(), X25519Pair::generate());
            let (our_share, their_share) = (*ours.share(), *theirs.share());
            let reference = PrivateKey::from_private_key(&X25519, ours.secret.as_slice()).expect("a key");
            assert_eq!(reference.compute_public_key().expect("a share").as_ref(), our_share);
            let peer = UnparsedPublicKey::new(&X25519, their_share);
            let expected = agree(&reference, peer, (), |shared| Ok(shared.to_vec())).expect("an agreement");
            assert_eq!(*ours.agree(their_share).run().expect("an agreement"), expected);
            assert_eq!(*theirs.agree(our_share).run().expect("an agreement"), expected);
        }
    }

    #[test]
    fn a_share_that_gives_the_secret_away_is_refused() {
        let mut one = [0; 32];
        one[0] = 1;
        for share in [[0; 32], one] {
            assert_eq!(X25519Pair::generate().agree(share).run().err(), Some(JobError::BadShare));
        }
    }
}

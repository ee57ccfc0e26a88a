//! The decision on a request: what is answered, or which job is done.

use propylon_config::keyserver::Operation;
use propylon_crypto::keyless::{ErrorCode, Message, opcode, scheme_of};
use propylon_crypto::{Hash, Job, Scheme};

use crate::access::Access;
use crate::keys::Keys;
use crate::telemetry::RequestKind;

/// The outcome of looking at a request.
pub enum Answer {
    /// The ping's payload goes back.
    Pong,
    Job(Job),
    /// An operation that this client may not ask for: told as one that is not known.
    Denied,
    Error(ErrorCode),
}

impl Answer {
    /// Error for an operation that this client may not ask for: the same as for an unknown operation.
    pub const DENIED: ErrorCode = ErrorCode::BadOpcode;
}

/// Judges the opcode first, then the key, then whether the two go together: a request with several mistakes is told the
/// same one as by the stock server.
pub fn answer(message: &Message<'_>, keys: &Keys, access: &Access) -> (RequestKind, Answer) {
    let scheme = match operation(message.opcode) {
        Ok(Asking::Private(scheme)) => scheme,
        Ok(Asking::Ping) => return (RequestKind::Ping, Answer::Pong),
        Err(code) => return (RequestKind::Other, Answer::Error(code)),
    };
    let answer = match &message.ski {
        None => Answer::Error(ErrorCode::Internal),
        // A key that this client may not use is not found: whether it exists is none of the client's business.
        Some(ski) => match keys.find(ski, access) {
            None => Answer::Error(ErrorCode::KeyNotFound),
            Some((_, operations)) if !operations.contains(configured(scheme)) => Answer::Denied,
            // The operation is none for this type of key, or the input has the wrong length.
            Some((key, _)) => {
                key.job(scheme, message.payload).map_or(Answer::Error(ErrorCode::Cryptography), Answer::Job)
            }
        },
    };
    (RequestKind::of(scheme), answer)
}

/// The operation's name in configurations.
fn configured(scheme: Scheme) -> Operation {
    match scheme {
        Scheme::RsaRaw => Operation::RsaDecrypt,
        Scheme::RsaPkcs1(Hash::Md5Sha1) => Operation::RsaPkcs1Md5Sha1,
        Scheme::RsaPkcs1(Hash::Sha1) => Operation::RsaPkcs1Sha1,
        Scheme::RsaPkcs1(Hash::Sha224) => Operation::RsaPkcs1Sha224,
        Scheme::RsaPkcs1(Hash::Sha256) => Operation::RsaPkcs1Sha256,
        Scheme::RsaPkcs1(Hash::Sha384) => Operation::RsaPkcs1Sha384,
        Scheme::RsaPkcs1(Hash::Sha512) => Operation::RsaPkcs1Sha512,
        Scheme::RsaPss(Hash::Sha384) => Operation::RsaPssSha384,
        Scheme::RsaPss(Hash::Sha512) => Operation::RsaPssSha512,
        // No opcode stands for others.
        Scheme::RsaPss(_) => Operation::RsaPssSha256,
        Scheme::Ecdsa(Hash::Md5Sha1) => Operation::EcdsaMd5Sha1,
        Scheme::Ecdsa(Hash::Sha1) => Operation::EcdsaSha1,
        Scheme::Ecdsa(Hash::Sha224) => Operation::EcdsaSha224,
        Scheme::Ecdsa(Hash::Sha256) => Operation::EcdsaSha256,
        Scheme::Ecdsa(Hash::Sha384) => Operation::EcdsaSha384,
        Scheme::Ecdsa(Hash::Sha512) => Operation::EcdsaSha512,
        Scheme::Ed25519 => Operation::Ed25519,
    }
}

enum Asking {
    Private(Scheme),
    Ping,
}

fn operation(code: Option<u8>) -> Result<Asking, ErrorCode> {
    match code {
        Some(opcode::PING) => Ok(Asking::Ping),
        Some(opcode::SUCCESS | opcode::PONG | opcode::ERROR) => Err(ErrorCode::UnexpectedOpcode),
        // Known, and nobody here to do it: as a stock server without handlers answers.
        Some(opcode::SEAL | opcode::UNSEAL | opcode::RPC) => Err(ErrorCode::Internal),
        Some(code) => scheme_of(code).map(Asking::Private).ok_or(ErrorCode::BadOpcode),
        None => Err(ErrorCode::BadOpcode),
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::keyserver::Operations;
    use propylon_crypto::PrivateKey;

    use super::*;
    use crate::access::Grant;

    fn key() -> PrivateKey {
        PrivateKey::from_der(rcgen::KeyPair::generate().expect("a key").serialized_der()).expect("a key")
    }

    fn code(answer: &Answer) -> u8 {
        match answer {
            Answer::Pong => opcode::PONG,
            Answer::Job(_) => opcode::SUCCESS,
            Answer::Denied => Answer::DENIED as u8,
            Answer::Error(code) => *code as u8,
        }
    }

    #[test]
    fn each_mistake_has_its_error() {
        let key = key();
        let origin = crate::keys::Origin::File(std::path::Path::new("key.pem"));
        let keys = Keys::new([(propylon_crypto::Key::Local(key.clone()), origin)], &[]);
        let (known, unknown) = (Some(key.ski()), Some([1; 20]));
        let nothing = Access::default();
        let everything = Access::new([Grant { keys: None, operations: Operations::DEFAULT }]);
        let raw = Operations::NONE.and(Operation::RsaDecrypt).and(Operation::EcdsaMd5Sha1);
        let raw = Access::new([Grant { keys: None, operations: raw }]);
        for (opcode, ski, access, expected) in [
            (Some(0x15), known, &everything, 0xf0),
            (Some(0x12), known, &everything, 0x05),
            (Some(0x12), known, &raw, 0xf0),
            (Some(0x15), known, &raw, 0x05),
            (Some(0xf1), None, &nothing, 0xf2),
            (Some(0x15), unknown, &everything, 0x02),
            (Some(0x15), known, &nothing, 0x02),
            (Some(0x15), None, &everything, 0x08),
            (Some(0x05), known, &everything, 0x01),
            (Some(0x35), known, &everything, 0x01),
            (Some(0x18), known, &everything, 0x01),
            (Some(0x01), known, &everything, 0x05),
            (Some(0x01), known, &raw, 0x01),
            (Some(0x01), unknown, &everything, 0x02),
            (Some(0x08), known, &everything, 0x05),
            (Some(0x24), known, &everything, 0x05),
            (Some(0x00), known, &everything, 0x05),
            (None, known, &everything, 0x05),
            (Some(0xf0), known, &everything, 0x06),
            (Some(0xf2), known, &everything, 0x06),
            (Some(0xff), known, &everything, 0x06),
            (Some(0x21), known, &everything, 0x08),
            (Some(0x22), known, &everything, 0x08),
            (Some(0x23), known, &everything, 0x08),
        ] {
            let message = Message { opcode, ski, payload: &[7; 32], ..Message::default() };
            let (_, answer) = answer(&message, &keys, access);
            assert_eq!(code(&answer), expected, "{message:?}, {access:?}");
        }
    }
}

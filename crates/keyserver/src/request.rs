//! From a request to what is done about it.

use propylon_crypto::keyless::{ErrorCode, Message, opcode, scheme_of};
use propylon_crypto::{Job, Scheme};

use crate::access::Access;
use crate::keys::Keys;
use crate::telemetry::Asked;

/// What a request comes to.
pub enum Answer {
    /// The ping's payload goes back.
    Pong,
    Job(Job),
    Error(ErrorCode),
}

/// Judges the opcode first, then the key, then whether the two go together: a request with several mistakes is told the
/// same one as by the stock server.
pub fn answer(message: &Message<'_>, keys: &Keys, access: &Access) -> (Asked, Answer) {
    let scheme = match operation(message.opcode) {
        Ok(Operation::Private(scheme)) => scheme,
        Ok(Operation::Ping) => return (Asked::Ping, Answer::Pong),
        Err(code) => return (Asked::Other, Answer::Error(code)),
    };
    let answer = match &message.ski {
        None => Answer::Error(ErrorCode::Internal),
        // A key that this client may not use is not found: whether it exists is none of the client's business.
        Some(ski) => match keys.find(ski, access).map(|key| key.job(scheme, message.payload)) {
            None => Answer::Error(ErrorCode::KeyNotFound),
            // The operation is none for this type of key, or the input has the wrong length.
            Some(Err(_)) => Answer::Error(ErrorCode::Cryptography),
            Some(Ok(job)) => Answer::Job(job),
        },
    };
    (Asked::of(scheme), answer)
}

enum Operation {
    Private(Scheme),
    Ping,
}

fn operation(code: Option<u8>) -> Result<Operation, ErrorCode> {
    match code {
        Some(opcode::PING) => Ok(Operation::Ping),
        Some(opcode::SUCCESS | opcode::PONG | opcode::ERROR) => Err(ErrorCode::UnexpectedOpcode),
        // Known, and nobody here to do it: as a stock server without handlers answers.
        Some(opcode::SEAL | opcode::UNSEAL | opcode::RPC) => Err(ErrorCode::Internal),
        Some(code) => scheme_of(code).map(Operation::Private).ok_or(ErrorCode::BadOpcode),
        None => Err(ErrorCode::BadOpcode),
    }
}

#[cfg(test)]
mod tests {
    use propylon_crypto::PrivateKey;

    use super::*;

    fn key() -> PrivateKey {
        PrivateKey::from_der(rcgen::KeyPair::generate().expect("a key").serialized_der()).expect("a key")
    }

    fn code(answer: &Answer) -> u8 {
        match answer {
            Answer::Pong => opcode::PONG,
            Answer::Job(_) => opcode::SUCCESS,
            Answer::Error(code) => *code as u8,
        }
    }

    #[test]
    fn each_mistake_has_its_error() {
        let key = key();
        let origin = crate::keys::Origin::File(std::path::Path::new("key.pem"));
        let keys = Keys::new([(propylon_crypto::Key::Local(key.clone()), origin)], &[]);
        let (known, unknown) = (Some(key.ski()), Some([1; 20]));
        let nothing = Access::Rules([].into());
        for (opcode, ski, access, expected) in [
            (Some(0x15), known, &Access::Everything, 0xf0),
            (Some(0x12), known, &Access::Everything, 0xf0),
            (Some(0xf1), None, &nothing, 0xf2),
            (Some(0x15), unknown, &Access::Everything, 0x02),
            (Some(0x15), known, &nothing, 0x02),
            (Some(0x15), None, &Access::Everything, 0x08),
            (Some(0x05), known, &Access::Everything, 0x01),
            (Some(0x35), known, &Access::Everything, 0x01),
            (Some(0x18), known, &Access::Everything, 0x01),
            (Some(0x01), known, &Access::Everything, 0x01),
            (Some(0x08), known, &Access::Everything, 0x05),
            (Some(0x24), known, &Access::Everything, 0x05),
            (Some(0x00), known, &Access::Everything, 0x05),
            (None, known, &Access::Everything, 0x05),
            (Some(0xf0), known, &Access::Everything, 0x06),
            (Some(0xf2), known, &Access::Everything, 0x06),
            (Some(0xff), known, &Access::Everything, 0x06),
            (Some(0x21), known, &Access::Everything, 0x08),
            (Some(0x22), known, &Access::Everything, 0x08),
            (Some(0x23), known, &Access::Everything, 0x08),
        ] {
            let message = Message { opcode, ski, payload: &[7; 32], ..Message::default() };
            let (_, answer) = answer(&message, &keys, access);
            assert_eq!(code(&answer), expected, "{message:?}, {access:?}");
        }
    }
}

//! Challenges of certificate authorities by HTTP (RFC 8555 §8.3), as every core answers them: what was published last.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;

/// The path of a challenge, before its token (RFC 8555 §8.3).
const WELL_KNOWN: &[u8] = b"/.well-known/acme-challenge/";

/// Answers for the authority, by token.
static OUTSTANDING: LazyLock<ArcSwap<HashMap<String, Arc<str>>>> = LazyLock::new(ArcSwap::default);

/// Whether any challenge is outstanding: all that nearly every request in plaintext looks at.
static ANY: AtomicBool = AtomicBool::new(false);

/// Answer for an authority that asks for this path; `None` if nothing of the kind is outstanding.
pub fn answer(path: &[u8]) -> Option<Arc<str>> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let token = std::str::from_utf8(path.strip_prefix(WELL_KNOWN)?).ok()?;
    OUTSTANDING.load().get(token).cloned()
}

/// Has these challenges answered, by token, and no others.
pub fn publish(answers: HashMap<String, Arc<str>>) {
    let any = !answers.is_empty();
    OUTSTANDING.store(Arc::new(answers));
    ANY.store(any, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_path_of_an_outstanding_token_is_answered() {
        publish(HashMap::from([("tok-en_1".to_string(), Arc::from("tok-en_1.thumb"))]));
        assert_eq!(answer(b"/.well-known/acme-challenge/tok-en_1").as_deref(), Some("tok-en_1.thumb"));
        let others: [&[u8]; 7] = [
            b"/.well-known/acme-challenge/",
            b"/.well-known/acme-challenge/tok-en_1/",
            b"/.well-known/acme-challenge/tok-en_2",
            b"/.well-known/acme-challenge//tok-en_1",
            b"/.well-known/ACME-challenge/tok-en_1",
            b"/x/.well-known/acme-challenge/tok-en_1",
            b"/.well-known/acme-challenge/\xff",
        ];
        for path in others {
            assert_eq!(answer(path), None, "{}", String::from_utf8_lossy(path));
        }
        publish(HashMap::new());
        assert_eq!(answer(b"/.well-known/acme-challenge/tok-en_1"), None);
    }
}

//! Issuers' keys on their way to a successor: the texts that were fetched, in parts that fit into messages.

use std::path::PathBuf;
use std::sync::Arc;

use propylon_identity::KeptKeys;
use serde_json::{Value, json};

/// Word of a part, and of successors that take them.
pub const KEYS: &str = "keys";
/// Bytes of text in a part. A message has room for them, each of them escaped, beside a long URL and a long path.
const PART_BYTES_MAX: usize = 8 * 1024;
/// Texts that are taken; a text is as long as fetches take at most.
pub const TEXTS_MAX: usize = 1024;
const TEXT_BYTES_MAX: usize = 256 * 1024;

/// The parts of a text, none of a text that cannot be said in JSON.
pub fn parts(kept: &KeptKeys) -> Vec<Value> {
    let KeptKeys { url, keys_ca, text } = kept;
    // The other process may have been started in another folder.
    let keys_ca = keys_ca.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    if keys_ca.as_ref().is_some_and(|path| path.to_str().is_none()) {
        return Vec::new();
    }
    let part = |text: &str, goes_on: bool| json!({ "word": KEYS, "url": url, "keys_ca": keys_ca, "text": text, "goes_on": goes_on });
    let (mut parts, mut rest) = (Vec::new(), &**text);
    while !rest.is_empty() {
        let mut end = rest.len().min(PART_BYTES_MAX);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (first, more) = rest.split_at(end);
        parts.push(part(first, !parts.is_empty()));
        rest = more;
    }
    parts
}

/// Adds a part to the texts that have come: it goes on with the last one, or begins the next. `None`: it is no part, or
/// there are too many.
pub fn take_part(all: &mut Vec<KeptKeys>, part: &Value) -> Option<()> {
    let (url, text) = (part["url"].as_str()?, part["text"].as_str()?);
    let keys_ca = part["keys_ca"].as_str().map(PathBuf::from);
    match all.last_mut() {
        Some(last) if part["goes_on"] == true && last.url == url && last.keys_ca == keys_ca => {
            last.text = Arc::from(&*format!("{}{text}", last.text))
        }
        _ => all.push(KeptKeys { url: url.to_owned(), keys_ca, text: text.into() }),
    }
    let is_small = all.len() <= TEXTS_MAX && all.last()?.text.len() <= TEXT_BYTES_MAX;
    is_small.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_sys::MESSAGE_BYTES_MAX;

    #[test]
    fn texts_arrive_whole_in_parts_that_fit_into_messages() {
        let of = |url: &str, ca: Option<&str>, text: String| KeptKeys {
            url: url.into(),
            keys_ca: ca.map(PathBuf::from),
            text: text.into(),
        };
        let sent = [
            of("https://a/keys", None, "\"\\\n".repeat(TEXT_BYTES_MAX / 3)),
            of("https://a/keys", Some("/ca"), "{\"keys\":[]}".into()),
            // Sets with other algorithms fetch apart, between which their issuer may have changed its keys.
            of("https://b/keys", None, "é€".repeat(9000)),
            of("https://b/keys", None, "é€".repeat(9001)),
        ];
        let mut taken = Vec::new();
        for part in sent.iter().flat_map(parts) {
            assert!(part.to_string().len() < MESSAGE_BYTES_MAX / 2);
            take_part(&mut taken, &part).expect("a part");
        }
        assert_eq!(taken, sent);
    }

    #[test]
    fn a_part_that_is_none_or_too_much_is_refused() {
        for part in [json!({}), json!({ "url": 1, "text": "a" }), json!({ "url": "a" })] {
            assert_eq!(take_part(&mut Vec::new(), &part), None);
        }
        let long = |url: &str| json!({ "url": url, "text": "a".repeat(TEXT_BYTES_MAX), "goes_on": true });
        let mut all = Vec::new();
        assert!(take_part(&mut all, &long("a")).is_some() && take_part(&mut all, &long("a")).is_none());
        let mut all = vec![KeptKeys { url: String::new(), keys_ca: None, text: "".into() }; TEXTS_MAX];
        assert_eq!(take_part(&mut all, &long("a")), None);
    }
}

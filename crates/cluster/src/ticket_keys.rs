//! Session ticket keys of a cluster: the leader makes the next one a whole rotation before it is used, so that every
//! engine has it by then. The text is the one of a file of ticket keys.

use std::time::Duration;

use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

/// Keys before the next one: tickets of two rotations ago are still good.
const KEPT: usize = 3;
/// 16 bytes of name and 32 of secret.
const KEY_BYTES: usize = 48;

/// The text with what is due by now (seconds since 1970); `None` if nothing is. `random` fills a key. A text that
/// cannot be read is replaced.
pub fn rotated(
    text: &str,
    now: u64,
    rotation: Duration,
    mut random: impl FnMut(&mut [u8]),
) -> Option<Zeroizing<String>> {
    let rotation = rotation.as_secs().max(1);
    let mut lines: Vec<(u64, &str)> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        match line.split_once(' ').and_then(|(time, _)| time.parse().ok()) {
            Some(time) => lines.push((time, line)),
            None => lines.clear(),
        }
    }
    let last = lines.last().map(|(time, _)| *time);
    // A leader before whose clock was ahead has made a key that nobody would use for long.
    let is_far = last.is_some_and(|last| last > now.saturating_add(rotation.saturating_mul(2)));
    if let Some(last) = last
        && now < last
        && !is_far
    {
        return None;
    }
    let mut made = Zeroizing::new(String::new());
    if is_far || lines.is_empty() {
        lines.retain(|(time, _)| *time <= now);
        if lines.is_empty() {
            made.push_str(&line(now, &mut random));
        }
    }
    let kept = lines.len().saturating_sub(KEPT);
    for (_, line) in lines.drain(kept..) {
        made.push_str(line);
        made.push('\n');
    }
    made.push_str(&line(now + rotation, &mut random));
    Some(made)
}

fn line(time: u64, random: &mut impl FnMut(&mut [u8])) -> Zeroizing<String> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    random(&mut key[..]);
    let encoded = Zeroizing::new(Base64::encode_string(&key[..]));
    Zeroizing::new(format!("{time} {}\n", *encoded))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROTATION: Duration = Duration::from_secs(100);

    fn times(text: &str) -> Vec<u64> {
        text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
    }

    fn filled(seed: u64) -> impl FnMut(&mut [u8]) {
        let mut random = fastrand::Rng::with_seed(seed);
        move |bytes| random.fill(bytes)
    }

    #[test]
    fn the_next_key_is_there_a_rotation_before_it_is_used_and_three_stay_behind_it() {
        let mut text = rotated("", 1000, ROTATION, filled(1)).unwrap();
        assert_eq!(times(&text), [1000, 1100]);
        assert!(rotated(&text, 1099, ROTATION, filled(2)).is_none());
        for now in [1100, 1200, 1300, 1400] {
            let next = rotated(&text, now, ROTATION, filled(now)).unwrap();
            let before: Vec<&str> = text.lines().collect();
            assert!(next.contains(before[before.len() - 1]), "the key of now was spread before");
            text = next;
        }
        assert_eq!(times(&text), [1200, 1300, 1400, 1500]);
    }

    #[test]
    fn keys_that_are_old_damaged_or_of_a_clock_that_was_wrong_are_succeeded() {
        let text = rotated("", 1000, ROTATION, filled(1)).unwrap();
        let week_later = rotated(&text, 600_000, ROTATION, filled(2)).unwrap();
        assert_eq!(times(&week_later), [1000, 1100, 600_100]);
        assert_eq!(times(&rotated("nonsense", 5, ROTATION, filled(1)).unwrap()), [5, 105]);
        let ahead = rotated("", 1_000_000, ROTATION, filled(1)).unwrap();
        assert_eq!(times(&rotated(&ahead, 1000, ROTATION, filled(2)).unwrap()), [1000, 1100]);
    }
}

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const NOW: u64 = 1_800_000_000;
const PERIOD: u64 = 100;

/// Removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("propylon-keys-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }

    fn write(&self, text: &str) {
        self.write_as(0o600, text);
    }

    fn write_as(&self, mode: u32, text: &str) {
        // As it should be done: whole, and then in place.
        let new = self.0.join("written");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
        fs::rename(&new, self.keys()).unwrap();
    }

    fn text(&self) -> String {
        fs::read_to_string(self.keys()).unwrap()
    }

    fn reader(&self) -> KeyFile {
        KeyFile::new(&self.keys(), None)
    }

    fn owner(&self) -> KeyFile {
        KeyFile::new(&self.keys(), Some(PERIOD))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The base64 of a key of this many bytes.
fn key(number: u8, len: usize) -> String {
    Base64::encode_string(&vec![number; len])
}

fn ticket(ring: &Ring) -> Vec<u8> {
    ring.seal(b"", NOW, b"state").unwrap()
}

#[test]
fn an_owner_makes_the_file_and_a_reader_opens_what_it_seals() {
    let folder = Folder::new();
    let owner = folder.owner().open(NOW).unwrap();
    assert_eq!(fs::metadata(folder.keys()).unwrap().mode() & 0o777, 0o600);
    let reader = folder.reader().open(NOW).unwrap();
    assert!(reader.same_keys(&owner));
    assert!(reader.open(b"", &ticket(&owner)).is_ok());
    assert!(owner.open(b"", &ticket(&reader)).is_ok());
}

#[test]
fn a_file_is_looked_at_again_when_it_has_changed_and_not_before() {
    let folder = Folder::new();
    let mut owner = folder.owner();
    let mut reader = folder.reader();
    let ring = owner.open(NOW).unwrap();
    assert!(reader.open(NOW).unwrap().same_keys(&ring));
    assert!(reader.rotate_if_due(&ring, NOW + 1).unwrap().is_none());
    let rotated = owner.rotate_if_due(&ring, NOW + PERIOD).unwrap().unwrap();
    assert!(reader.rotate_if_due(&ring, NOW + PERIOD).unwrap().unwrap().same_keys(&rotated));
    assert!(reader.rotate_if_due(&rotated, NOW + PERIOD).unwrap().is_none());
}

#[test]
fn an_engine_that_reads_late_opens_what_the_others_seal_with_the_new_key() {
    let folder = Folder::new();
    let mut owner = folder.owner();
    let first = owner.open(NOW).unwrap();
    let late = folder.reader().open(NOW).unwrap();
    let rotated = owner.rotate_if_due(&first, NOW + PERIOD).unwrap().unwrap();
    assert!(late.open(b"", &ticket(&rotated)).is_ok());
    // And goes over to it by itself.
    let late = late.advanced(NOW + PERIOD).unwrap();
    assert_eq!(ticket(&late)[..NAME_LEN], ticket(&rotated)[..NAME_LEN]);
}

#[test]
fn of_two_owners_one_rotates_and_the_other_finds_it_done() {
    let folder = Folder::new();
    let (mut one, mut other) = (folder.owner(), folder.owner());
    let mut rings = [one.open(NOW).unwrap(), other.open(NOW).unwrap()];
    for turn in 1..50 {
        let now = NOW + turn * PERIOD;
        let before = folder.text();
        rings[0] = one.rotate_if_due(&rings[0], now).unwrap().unwrap();
        let after = folder.text();
        assert_ne!(before, after);
        rings[1] = other.rotate_if_due(&rings[1], now).unwrap().unwrap();
        assert_eq!(folder.text(), after);
        assert!(rings[0].same_keys(&rings[1]));
        std::mem::swap(&mut one, &mut other);
        rings.swap(0, 1);
    }
}

#[test]
fn of_many_owners_at_once_exactly_one_rotates() {
    const OWNERS: usize = 6;
    const ROTATIONS: u64 = 40;
    let folder = Folder::new();
    let first = folder.owner().open(NOW).unwrap();
    let together = std::sync::Barrier::new(OWNERS);
    let live = || {
        let (mut owner, mut ring) = (folder.owner(), first.clone());
        let mut sealed = Vec::new();
        for turn in 1..=ROTATIONS {
            let now = NOW + turn * PERIOD;
            together.wait();
            if let Some(next) = owner.rotate_if_due(&ring, now).unwrap() {
                ring = next;
            }
            ring = ring.advanced(now).unwrap_or(ring);
            together.wait();
            // An engine that did not get the lock finds the new keys now.
            if let Some(next) = owner.rotate_if_due(&ring, now).unwrap() {
                ring = next;
            }
            sealed.push(ticket(&ring)[..NAME_LEN].to_vec());
            together.wait();
        }
        let times: Vec<u64> = ring.keys().iter().map(|key| key.from).collect();
        (sealed, times)
    };
    let lives: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..OWNERS).map(|_| scope.spawn(live)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // All have sealed with the same key at every time, and no rotation was made twice.
    assert!(lives.iter().all(|life| *life == lives[0]));
    assert_eq!(lives[0].1, [ROTATIONS - 2, ROTATIONS - 1, ROTATIONS, ROTATIONS + 1].map(|n| NOW + n * PERIOD));
}

#[test]
fn an_owner_leaves_a_locked_file_to_the_other_one() {
    let folder = Folder::new();
    let mut owner = folder.owner();
    let ring = owner.open(NOW).unwrap();
    let other = folder.owner();
    let lock = other.lock().unwrap();
    assert!(lock.is_some() && owner.lock().unwrap().is_none());
    assert!(owner.rotate_if_due(&ring, NOW + PERIOD).unwrap().is_none());
    drop(lock);
    assert!(owner.rotate_if_due(&ring, NOW + PERIOD).unwrap().is_some());
}

#[test]
fn what_a_writer_that_died_left_behind_is_in_nobodys_way() {
    let folder = Folder::new();
    fs::write(folder.0.join("keys.new"), "half a fi").unwrap();
    fs::write(folder.0.join("keys.lock"), "").unwrap();
    folder.owner().open(NOW).unwrap();
    assert!(!folder.0.join("keys.new").exists());
}

#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let folder = Folder::new();
    let elsewhere = folder.0.join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, folder.0.join("keys.lock")).unwrap();
    assert!(folder.owner().open(NOW).unwrap_err().what.contains("lock file"));
    assert!(!elsewhere.exists());
}

#[test]
fn a_broken_file_is_told_once_and_displaces_nothing() {
    let folder = Folder::new();
    let mut owner = folder.owner();
    let ring = owner.open(NOW).unwrap();
    let good = folder.text();
    folder.write("rubbish");
    let error = owner.rotate_if_due(&ring, NOW + 1).unwrap_err();
    assert!(error.what.contains("line 1: the key is not base64"), "{error}");
    assert!(owner.rotate_if_due(&ring, NOW + 2).unwrap().is_none());
    // Nor is it written over, when a rotation is due.
    assert!(owner.rotate_if_due(&ring, NOW + PERIOD).is_err());
    assert!(owner.rotate_if_due(&ring, NOW + PERIOD + 1).unwrap().is_none());
    assert!(owner.rotate_if_due(&ring, NOW + PERIOD + RETRY_SECONDS).is_err());
    assert_eq!(folder.text(), "rubbish");
    folder.write(&good);
    let rotated = owner.rotate_if_due(&ring, NOW + PERIOD + 2 * RETRY_SECONDS).unwrap().unwrap();
    assert!(rotated.open(b"", &ticket(&ring)).is_ok());
}

#[test]
fn an_owner_puts_a_file_back_that_is_gone() {
    let folder = Folder::new();
    let mut owner = folder.owner();
    let ring = owner.open(NOW).unwrap();
    fs::remove_file(folder.keys()).unwrap();
    assert!(owner.rotate_if_due(&ring, NOW + 1).unwrap().is_none());
    assert!(folder.reader().open(NOW).unwrap().same_keys(&ring));
}

#[test]
fn an_owner_puts_a_file_back_with_the_key_that_is_due() {
    let folder = Folder::new();
    let mut owner = folder.owner();
    let ring = owner.open(NOW).unwrap();
    fs::remove_file(folder.keys()).unwrap();
    let next = owner.rotate_if_due(&ring, NOW + PERIOD).unwrap().unwrap();
    assert!(!next.is_due(NOW + PERIOD) && next.open(b"", &ticket(&ring)).is_ok());
    assert!(folder.reader().open(NOW + PERIOD).unwrap().same_keys(&next));
}

#[test]
fn an_owner_that_finds_the_keys_rotated_does_not_rotate_them_again() {
    let folder = Folder::new();
    let mut owner = folder.owner();
    let ring = owner.open(NOW).unwrap();
    let rotated = owner.rotate_if_due(&ring, NOW + PERIOD).unwrap().unwrap();
    let text = folder.text();
    // As one that has looked at the file just before another one wrote it.
    assert!(owner.rotate_if_due(&ring, NOW + PERIOD).unwrap().unwrap().same_keys(&rotated));
    assert_eq!(folder.text(), text);
}

#[test]
fn an_owner_rotates_keys_that_came_too_late() {
    let folder = Folder::new();
    let mut owner = folder.owner();
    let ring = owner.open(NOW).unwrap();
    folder.write(&format!("1 {}\n2 {}\n", key(1, 48), key(2, 48)));
    let next = owner.rotate_if_due(&ring, NOW + 1).unwrap().unwrap();
    assert!(!next.is_due(NOW + 1) && next.keys()[0].name == [2; NAME_LEN]);
}

#[test]
fn a_folder_that_cannot_be_looked_into_is_told_of_once_a_minute() {
    let folder = Folder::new();
    let within = folder.0.join("within");
    fs::create_dir(&within).unwrap();
    let mut owner = KeyFile::new(&within.join("keys"), Some(PERIOD));
    let ring = owner.open(NOW).unwrap();
    fs::remove_dir_all(&within).unwrap();
    fs::write(&within, "").unwrap();
    let told: Vec<u64> = (1..=130).filter(|second| owner.rotate_if_due(&ring, NOW + second).is_err()).collect();
    assert_eq!(told, [1, 1 + RETRY_SECONDS, 1 + 2 * RETRY_SECONDS]);
}

#[test]
fn a_file_may_have_so_many_bytes_and_no_more() {
    let folder = Folder::new();
    let ring = folder.owner().open(NOW).unwrap();
    let text = folder.text() + "#";
    let filled = |bytes: u64| text.clone() + &"#".repeat(bytes as usize - text.len());
    folder.write(&filled(FILE_BYTES_MAX));
    assert!(folder.reader().open(NOW).unwrap().same_keys(&ring));
    folder.write(&filled(FILE_BYTES_MAX + 1));
    assert!(folder.reader().open(NOW).unwrap_err().what.contains("more than 16384 bytes"));
}

#[test]
fn a_reader_goes_on_without_a_file_that_is_gone() {
    let folder = Folder::new();
    let ring = folder.owner().open(NOW).unwrap();
    let mut reader = folder.reader();
    reader.open(NOW).unwrap();
    fs::remove_file(folder.keys()).unwrap();
    assert!(reader.rotate_if_due(&ring, NOW + 1).unwrap().is_none());
    assert!(folder.reader().open(NOW).is_err());
}

#[test]
fn keys_that_everybody_can_read_are_refused() {
    let folder = Folder::new();
    let ring = folder.owner().open(NOW).unwrap();
    let good = folder.text();
    let mut reader = folder.reader();
    reader.open(NOW).unwrap();
    for (mode, part) in [(0o644, "every account"), (0o602, "every account"), (0o620, "its group")] {
        folder.write_as(mode, &good);
        let error = reader.rotate_if_due(&ring, NOW + 1).unwrap_err();
        assert!(error.what.contains(part), "{mode:o}: {error}");
    }
    folder.write_as(0o640, &good);
    assert!(reader.rotate_if_due(&ring, NOW + 1).unwrap().is_none());
}

#[test]
fn three_lines_of_haproxy_are_keys_of_which_the_last_but_one_seals() {
    for len in [48, 80] {
        let folder = Folder::new();
        folder.write(&format!("{}\n{}\n{}", key(1, len), key(2, len), key(3, len)));
        let ring = folder.reader().open(NOW).unwrap();
        assert_eq!(ticket(&ring)[..NAME_LEN], [2; NAME_LEN]);
        let error = folder.owner().open(NOW).err().unwrap();
        assert!(error.fix.contains("leave `rotate` out"), "{error}");
    }
}

#[test]
fn a_file_of_our_own_is_read_as_it_was_written() {
    let ring = Ring::new(NOW, PERIOD).rotated(NOW + PERIOD, PERIOD);
    let read = parse(&written(&ring), NOW + PERIOD).unwrap();
    assert!(read.same_keys(&ring) && read.order() == Order::Time);
    assert!(read.open(b"", &ticket(&ring)).is_ok());
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_line_and_without_its_keys() {
    let (a, b, c) = (key(1, 48), key(2, 48), key(3, 48));
    for (text, part) in [
        (String::new(), "it has no keys"),
        ("# nothing\n\n".into(), "it has no keys"),
        (format!("{a}\n{b}\n"), "fewer than 3"),
        (format!("1 {a}\n{b}\n"), "line 2: it is older"),
        (format!("{a}\n1 {b}\n"), "some of its keys have times"),
        (format!("2 {a}\n1 {b}\n"), "line 2: it is older"),
        (format!("1 {a}\n2 {a}\n"), "line 2: this key is there twice"),
        (format!("1 {}\n", &a[..40]), "48 or 80 bytes"),
        (format!("1 {}\n", &a[..41]), "not base64"),
        (format!("1 {a}{b}\n"), "48 or 80 bytes"),
        (format!("soon {a}\n"), "not a time"),
        (format!("-1 {a}\n"), "not a time"),
        (format!("{} {a}\n{} {b}\n{} {c}\n", 1, 2, NOW + 40 * 24 * 3600), "line 3: its time is more than a month away"),
        ((0..17).map(|n| format!("{n} {}\n", key(n, 48))).collect(), "more than 16 keys"),
        ("\u{0}\u{1}".into(), "not base64"),
    ] {
        let what = parse(text.as_bytes(), NOW).err().unwrap_or_else(|| panic!("{text}"));
        assert!(what.contains(part), "{text}: {what}");
        assert!(!what.contains(&a[..20]), "{what}");
    }
    assert!(parse(&[0xff; 100], NOW).err().unwrap().contains("not text"));
}

#[test]
fn a_file_that_is_cut_at_any_byte_is_refused_or_holds_whole_keys() {
    let ring = Ring::new(NOW, PERIOD).rotated(NOW + PERIOD, PERIOD);
    let text = written(&ring);
    for at in 0..text.len() {
        if let Ok(read) = parse(&text[..at], NOW + PERIOD) {
            let known = |key: &std::sync::Arc<Key>| {
                ring.keys().iter().any(|ours| ours.name == key.name && ours.secret == key.secret)
            };
            assert!(read.keys().iter().all(known), "cut at {at}");
        }
    }
}

#[test]
fn whatever_stands_in_a_file_it_is_read_or_refused() {
    let text = written(&Ring::new(NOW, PERIOD));
    for at in 0..text.len() {
        for byte in [0, b'\n', b' ', b'9', b'=', b'#', 0xff] {
            let mut changed = text.to_vec();
            changed[at] = byte;
            if let Ok(ring) = parse(&changed, NOW) {
                assert!(ring.open(b"", &ticket(&ring)).is_ok(), "{byte} at {at}");
            }
        }
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.keys()).unwrap();
    assert!(folder.reader().open(NOW).err().unwrap().what.contains("not a file"));
    let mut lost = KeyFile::new(&folder.0.join("no/where"), Some(PERIOD));
    assert!(lost.check(NOW).unwrap_err().what.contains("folder does not exist"));
    assert!(lost.open(NOW).is_err());
}

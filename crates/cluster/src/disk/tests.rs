//! Promises of the store on disk.

use super::*;
use crate::seal::SealingKey;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("propylon-cluster-disk-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Scratch(path)
    }

    fn open(&self, keys: &[u8]) -> (Store, Loaded) {
        Store::open(&self.0, "lab", sealer(keys)).unwrap()
    }

    /// Names of the entries' files.
    fn files(&self) -> Vec<String> {
        let folder = fs::read_dir(self.0.join(ENTRIES)).unwrap();
        let mut files: Vec<_> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }

    /// The folder's files with what is in them.
    fn copy(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        for folder in [self.0.clone(), self.0.join(ENTRIES)] {
            for file in fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file()) {
                files.push((file.clone(), fs::read(file).unwrap()));
            }
        }
        files
    }

    fn restore(&self, files: &[(PathBuf, Vec<u8>)]) {
        let _ = fs::remove_dir_all(&self.0);
        fs::create_dir_all(self.0.join(ENTRIES)).unwrap();
        for (path, bytes) in files {
            fs::write(path, bytes).unwrap();
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn sealer(keys: &[u8]) -> Sealer {
    let key = |start: &u8| SealingKey::new(&std::array::from_fn(|place| start.wrapping_add(place as u8 * 7)));
    Sealer::new(keys.iter().map(key).collect()).unwrap()
}

fn put(name: &str, plain: &str, revision: u64) -> Change {
    Change::Put { name: name.into(), plain: Zeroizing::new(plain.into()), revision }
}

fn remove(name: &str) -> Change {
    Change::Remove { name: name.into() }
}

fn read_back(loaded: &Loaded) -> Vec<(&str, &str, u64)> {
    let read = |entry: &'_ Entry| std::str::from_utf8(&entry.plain).unwrap().to_owned().leak() as &str;
    loaded.entries.iter().map(|entry| (entry.name.as_str(), read(entry), entry.revision)).collect()
}

#[test]
fn what_was_kept_is_there_when_the_engine_starts_again() {
    let scratch = Scratch::new("again");
    let (mut store, loaded) = scratch.open(&[1]);
    assert!(loaded.entries.is_empty() && loaded.problems.is_empty() && loaded.saved.is_none());
    store.apply(vec![put("config", "one", 5), put("certificates/a", "pem", 7), put("gone", "x", 3)]).unwrap();
    store.apply(vec![put("config", "two", 9), remove("gone"), remove("never")]).unwrap();
    let (store, loaded) = scratch.open(&[1]);
    assert_eq!(read_back(&loaded), [("certificates/a", "pem", 7), ("config", "two", 9)]);
    assert_eq!((loaded.revision, loaded.problems.len()), (9, 0));
    assert!(loaded.saved.is_some());
    assert_eq!(store.entries().collect::<Vec<_>>(), [("certificates/a", 7), ("config", 9)]);
    assert_eq!(scratch.files().len(), 2, "nothing is left of what was replaced");
}

#[test]
fn only_what_changed_is_written_again() {
    let scratch = Scratch::new("changed");
    let (mut store, _) = scratch.open(&[1]);
    store.apply((0..100).map(|number| put(&format!("certificates/{number}"), "pem", 5)).collect()).unwrap();
    let before = scratch.files();
    store.apply((0..100).map(|number| put(&format!("certificates/{number}"), "pem", 6)).collect()).unwrap();
    assert_eq!(scratch.files(), before, "a revision alone is no new value");
    assert_eq!(store.entries().next(), Some(("certificates/0", 6)));
    store.apply(vec![put("certificates/7", "new", 8)]).unwrap();
    let after = scratch.files();
    assert_eq!(after.iter().filter(|file| before.contains(file)).count(), 99);
    assert_eq!(after.len(), 100);
}

#[test]
fn nothing_on_the_disk_can_be_read_or_is_open_to_others() {
    let scratch = Scratch::new("modes");
    fs::create_dir_all(&scratch.0).unwrap();
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).unwrap();
    let (mut store, _) = scratch.open(&[1]);
    store.apply(vec![put("certificates/../../etc/passwd", "SECRET-PEM", 1)]).unwrap();
    for (path, bytes) in scratch.copy() {
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "{}", path.display());
        let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
        assert!(!has(b"SECRET-PEM") && !has(b"passwd") && !path.to_str().unwrap().contains("passwd"));
    }
    for folder in [scratch.0.clone(), scratch.0.join(ENTRIES)] {
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
    }
    let (_, loaded) = scratch.open(&[1]);
    assert_eq!(read_back(&loaded), [("certificates/../../etc/passwd", "SECRET-PEM", 1)]);
    assert!(!format!("{loaded:?} {:?}", put("a", "SECRET-PEM", 1)).contains("SECRET"));
}

/// Every state that a crash can leave: some of the new files, whole or cut, with the old index; the new index
/// beside the old one, whole or cut; the new index with the old files not yet, or partly, removed.
#[test]
fn a_crash_at_any_point_leaves_the_old_state_or_the_new_one() {
    let scratch = Scratch::new("crash");
    let (mut store, _) = scratch.open(&[1]);
    store.apply(vec![put("a", "old", 1), put("b", "old", 1), put("c", "same", 1)]).unwrap();
    let old = scratch.copy();
    store.apply(vec![put("a", "new", 2), put("b", "new", 2)]).unwrap();
    let new = scratch.copy();
    let index = scratch.0.join(INDEX);
    let added: Vec<_> = new.iter().filter(|(path, _)| !old.iter().any(|(other, _)| other == path)).collect();
    let gone: Vec<_> = old.iter().filter(|(path, _)| !new.iter().any(|(other, _)| other == path)).collect();
    assert_eq!((added.len(), gone.len()), (2, 2));
    let old_state = vec![("a", "old", 1), ("b", "old", 1), ("c", "same", 1)];
    let new_state = vec![("a", "new", 2), ("b", "new", 2), ("c", "same", 1)];
    let mut crashes = Vec::new();
    for count in 0..=added.len() {
        for cut in [0, 1, 30, usize::MAX] {
            let mut files = old.clone();
            files.extend(
                added.iter().take(count).map(|(path, bytes)| (path.clone(), bytes[..cut.min(bytes.len())].to_vec())),
            );
            crashes.push((files, &old_state));
        }
    }
    let new_index = &new.iter().find(|(path, _)| *path == index).unwrap().1;
    for cut in [0, 10, new_index.len()] {
        let mut files = old.clone();
        files.extend(added.iter().map(|file| (*file).clone()));
        files.push((index.with_extension("new"), new_index[..cut].to_vec()));
        crashes.push((files, &old_state));
    }
    for count in 0..=gone.len() {
        let mut files = new.clone();
        files.extend(gone.iter().skip(count).map(|file| (*file).clone()));
        crashes.push((files, &new_state));
    }
    for (number, (files, state)) in crashes.into_iter().enumerate() {
        scratch.restore(&files);
        let (mut store, loaded) = scratch.open(&[1]);
        assert_eq!(&read_back(&loaded), state, "crash {number}");
        assert_eq!(loaded.problems, [] as [&str; 0], "crash {number}");
        assert_eq!(scratch.files().len(), 3, "crash {number}: leftovers are swept");
        store.apply(vec![put("a", "after", 3)]).unwrap();
        assert_eq!(read_back(&scratch.open(&[1]).1)[0], ("a", "after", 3), "crash {number}");
    }
}

#[test]
fn damaged_entries_are_told_by_name_and_the_others_are_used() {
    let scratch = Scratch::new("damaged");
    let (mut store, _) = scratch.open(&[1]);
    store.apply(vec![put("a", "1", 1), put("b", "2", 1), put("c", "3", 1), put("d", "4", 1)]).unwrap();
    let file = |store: &Store, name: &str| store.entry_path(&store.entries[name].file);
    let mut bytes = fs::read(file(&store, "a")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(file(&store, "a"), bytes).unwrap();
    fs::remove_file(file(&store, "b")).unwrap();
    fs::copy(file(&store, "d"), file(&store, "c")).unwrap();
    let (mut store, loaded) = scratch.open(&[1]);
    assert_eq!(read_back(&loaded), [("d", "4", 1)]);
    let problems = loaded.problems.join("\n");
    assert!(problems.contains("a in ") && problems.contains("b in ") && problems.contains("c in "), "{problems}");
    store.apply(vec![put("a", "1", 1)]).unwrap();
    assert_eq!(read_back(&scratch.open(&[1]).1), [("a", "1", 1), ("d", "4", 1)]);
}

#[test]
fn an_index_of_another_key_or_cluster_is_told_and_its_files_stay_until_there_is_news() {
    let scratch = Scratch::new("foreign");
    let (mut store, _) = scratch.open(&[1]);
    store.apply(vec![put("a", "1", 1)]).unwrap();
    let (_, loaded) = scratch.open(&[2]);
    assert!(loaded.entries.is_empty() && loaded.problems[0].contains("does not have"), "{:?}", loaded.problems);
    let (_, loaded) = Store::open(&scratch.0, "other", sealer(&[1])).unwrap();
    assert!(loaded.entries.is_empty() && loaded.problems[0].contains("of the cluster lab"), "{:?}", loaded.problems);
    assert_eq!(read_back(&scratch.open(&[1]).1), [("a", "1", 1)], "the key that was forgotten is all it needed");
    fs::write(scratch.0.join(INDEX), b"nonsense").unwrap();
    let (mut store, loaded) = scratch.open(&[1]);
    assert_eq!(loaded.problems.len(), 1);
    store.apply(vec![put("b", "2", 2)]).unwrap();
    assert_eq!(read_back(&scratch.open(&[1]).1), [("b", "2", 2)]);
}

#[test]
fn after_a_rotation_everything_is_sealed_under_the_new_key() {
    let scratch = Scratch::new("rotation");
    let (mut store, _) = scratch.open(&[1]);
    store.apply(vec![put("a", "1", 1), put("b", "2", 2)]).unwrap();
    let (_, loaded) = scratch.open(&[2, 1]);
    assert_eq!((loaded.entries.len(), loaded.problems.len()), (2, 0));
    let (_, loaded) = scratch.open(&[2]);
    assert_eq!(read_back(&loaded), [("a", "1", 1), ("b", "2", 2)], "{:?}", loaded.problems);
    assert_eq!(scratch.files().len(), 2);
}

#[test]
fn two_processes_that_share_a_folder_for_a_while_lose_nothing() {
    let scratch = Scratch::new("two");
    let (mut one, _) = scratch.open(&[1]);
    one.apply(vec![put("a", "1", 1)]).unwrap();
    let (mut other, _) = scratch.open(&[1]);
    other.apply(vec![put("b", "2", 2)]).unwrap();
    one.apply(vec![put("c", "3", 3)]).unwrap();
    other.apply(vec![put("a", "4", 4)]).unwrap();
    assert_eq!(read_back(&scratch.open(&[1]).1), [("a", "4", 4), ("b", "2", 2), ("c", "3", 3)]);
}

#[test]
fn a_change_that_cannot_be_made_leaves_everything_as_it_was() {
    let scratch = Scratch::new("refused");
    let (mut store, _) = scratch.open(&[1]);
    store.apply(vec![put("a", "1", 1)]).unwrap();
    let too_long = "x".repeat(ENTRY_NAME_BYTES_MAX + 1);
    let error = store.apply(vec![put("a", "2", 2), put(&too_long, "3", 2)]).unwrap_err();
    assert!(error.to_string().contains("may have"), "{error}");
    assert_eq!(scratch.files().len(), 1);
    assert_eq!(read_back(&scratch.open(&[1]).1), [("a", "1", 1)]);
}

#[test]
#[ignore = "long: writes and reads 50,000 files"]
fn fifty_thousand_entries_are_kept_and_one_of_them_changed() {
    let scratch = Scratch::new("many");
    let (mut store, _) = scratch.open(&[1]);
    let plain = "x".repeat(5000);
    let time = std::time::Instant::now();
    store
        .apply((0..50_000).map(|number| put(&format!("certificates/host-{number}.example"), &plain, 5)).collect())
        .unwrap();
    println!("all written: {:?}", time.elapsed());
    let time = std::time::Instant::now();
    store.apply(vec![put("certificates/host-7.example", "new", 6)]).unwrap();
    println!("one changed: {:?}", time.elapsed());
    println!("index: {} bytes", fs::metadata(scratch.0.join(INDEX)).unwrap().len());
    let time = std::time::Instant::now();
    let (_, loaded) = scratch.open(&[1]);
    println!("all read: {:?}", time.elapsed());
    assert_eq!((loaded.entries.len(), loaded.problems.len()), (50_000, 0));
}

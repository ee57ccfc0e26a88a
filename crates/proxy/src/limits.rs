//! Limits of routes: the files of their lists, counts that outlive a reload, and the clock that they go by.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use propylon_config::{Config, Limit, LimitKey, Route, Throttle, Trust};
use propylon_steps::limits::{Counter, LIST_BYTES_MAX, List, Lists, Secret};
use propylon_steps::pace::Pace;
use propylon_tls::{Finding, Severity};
use zeroize::Zeroizing;

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// One for the process: lists and counts go on over reloads.
static SECRET: LazyLock<Secret> = LazyLock::new(|| Secret([propylon_crypto::seed(), propylon_crypto::seed()]));

/// A limit, as all cores share it.
#[derive(Clone)]
pub struct LimitState {
    pub counter: Arc<Counter>,
    pub lists: Arc<Lists>,
}

/// Limits of a configuration and what they have, in the order of [`Config::limits`].
pub type Limits<'a> = (&'a Config, &'a [LimitState]);

/// Nanoseconds on a clock that all cores share.
pub fn now() -> u64 {
    BEGUN.elapsed().as_nanos() as u64
}

/// State of each limit of a configuration, in order. Counts go on where the limit is the same; lists where their files
/// are not to be read again, or have the same in them.
pub fn reload(
    config: &Config,
    earlier: Option<Limits<'_>>,
    reads_again: bool,
    findings: &mut Vec<Finding>,
) -> Vec<LimitState> {
    let known = earlier.into_iter().flat_map(|(config, states)| config.limits().zip(states));
    let known: HashMap<&str, (&Limit, &LimitState)> =
        known.map(|(limit, state)| (limit.label.as_str(), (limit, state))).collect();
    let mut made: HashMap<&str, LimitState> = HashMap::new();
    let mut state = |limit: &Limit| {
        let known = known.get(limit.label.as_str());
        let kept = known.filter(|(before, _)| !reads_again && files(before).eq(files(limit)));
        let lists = kept.map_or_else(
            || {
                let read = read(limit, findings);
                let same = known.map(|(_, state)| &state.lists).filter(|before| ***before == read);
                same.map_or_else(|| Arc::new(read), Arc::clone)
            },
            |(_, state)| Arc::clone(&state.lists),
        );
        let counter = known.filter(|(before, _)| before.counts_the_same(limit));
        let new = || Arc::new(Counter::new(limit, *SECRET));
        LimitState { counter: counter.map_or_else(new, |(_, state)| Arc::clone(&state.counter)), lists }
    };
    // Limits of one name are one.
    config.limits().map(|limit| made.entry(&limit.label).or_insert_with(|| state(limit)).clone()).collect()
}

/// Buckets of each route whose bodies share a pace, by route. They stay as they are where the same is said of the same
/// route.
pub fn reload_paces(config: &Config, earlier: Option<(&Config, &[Option<Arc<Pace>>])>) -> Arc<[Option<Arc<Pace>>]> {
    let known = earlier.into_iter().flat_map(|(config, paces)| config.routes.iter().zip(paces));
    let mut known: Vec<(&Route, &Arc<Pace>)> =
        known.filter_map(|(route, pace)| Some((route, pace.as_ref()?))).collect();
    let paces = config.routes.iter().map(|route| {
        let throttle = route.steps.throttle.as_ref()?;
        let is_same = |(before, _): &(&Route, &Arc<Pace>)| {
            let of = |throttle: &Throttle| (throttle.download, throttle.upload, throttle.by.clone());
            before.label == route.label && before.steps.throttle.as_ref().map(of) == Some(of(throttle))
        };
        // Routes that nothing tells apart have one each.
        match known.iter().position(is_same) {
            Some(place) => Some(Arc::clone(known.remove(place).1)),
            None => Pace::of(throttle, *SECRET).map(Arc::new),
        }
    });
    paces.collect()
}

/// Finds errors in the files of lists.
pub fn check(limits: &[Limit]) -> Vec<Finding> {
    let mut findings = Vec::new();
    limits.iter().for_each(|limit| drop(read(limit, &mut findings)));
    findings
}

/// Files of a limit's lists, and whether they deny.
fn files(limit: &Limit) -> impl Iterator<Item = (&Path, bool)> {
    let exempt = limit.exempt_files.iter().map(|file| (file.path.as_path(), false));
    exempt.chain(limit.deny_files.iter().map(|file| (file.path.as_path(), true)))
}

fn read(limit: &Limit, findings: &mut Vec<Finding>) -> Lists {
    let has_values = limit.key.iter().any(|part| *part != LimitKey::Source);
    let mut all = |files: &[Trust]| {
        let mut list = List::new(*SECRET);
        for file in files {
            let (error, what, fix) = match contents(&file.path) {
                Err(error) => (Some(error.kind()), error.to_string(), "name a file with a network or a value a line"),
                Ok(text) => match list.add(&text, has_values) {
                    Ok(()) => continue,
                    Err((line, what)) => (None, format!("line {line}: {what}"), "mend the line, or begin it with `#`"),
                },
            };
            let what = format!("{}: {what}", file.path.display());
            let (severity, path, fix) = (Severity::Error, file.path.clone(), fix.into());
            findings.push(Finding { severity, at: file.at, path, what, fix, error });
        }
        list
    };
    Lists { exempt: all(&limit.exempt_files), deny: all(&limit.deny_files) }
}

/// The bytes of a file, which may have secrets in it.
fn contents(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file"));
    }
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > LIST_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("it has more than {LIST_BYTES_MAX} bytes")));
    }
    // Room for the whole length at once: a buffer that grows leaves copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(length as usize + 1));
    file.take(length).read_to_end(&mut text)?;
    Ok(text)
}

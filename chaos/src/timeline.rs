//! The timeline of what was done to whom and when, and what may have been so at a moment.
//!
//! Everything here is an interval: a signal is sent somewhere between two looks at the clock, and a configuration
//! comes into force somewhere between its request and its answer. Outside of the intervals the state is certain.

use crate::clock::{Micros, since};
use std::collections::BTreeSet;
use std::fmt::{self, Display};

/// A server's number: `a`, `b`, `c` ...
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u8);

/// Which of a server's processes, counted from 1.
pub type Run = u32;

impl Display for ServerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", char::from(b'a' + self.0))
    }
}

/// `b.3`: the third process of server b.
pub fn parse_server(text: &str) -> Option<(ServerId, Run)> {
    let (name, run) = text.split_once('.')?;
    let [letter @ b'a'..=b'z'] = name.as_bytes() else { return None };
    Some((ServerId(letter - b'a'), run.parse().ok()?))
}

/// The fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Killed, and not yet there again.
    Dead,
    /// The server takes no connections; open ones go on.
    Deaf,
    /// SIGSTOP.
    Stopped,
    /// The server takes its time, but less than the engine has.
    Slow,
    /// The server answers some requests with 500.
    Failing,
    /// The server closes connections at random moments.
    Cutting,
}

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Deaf => "deaf",
            Self::Stopped => "stopped",
            Self::Slow => "slow",
            Self::Failing => "failing",
            Self::Cutting => "cutting",
        }
    }

    /// Connections end before their time. Those that a listener's queue holds when it is closed do as well.
    pub fn cuts(self) -> bool {
        matches!(self, Self::Dead | Self::Cutting | Self::Deaf)
    }

    /// No connection can be made. The queue of one that is stopped fills up.
    pub fn refuses(self) -> bool {
        matches!(self, Self::Dead | Self::Deaf | Self::Stopped)
    }

    /// Nothing comes.
    pub fn hangs(self) -> bool {
        self == Self::Stopped
    }

    /// The engine may take it out, by its probes or by its answers.
    pub fn closes(self) -> bool {
        self != Self::Slow
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Episode {
    pub server: ServerId,
    pub fault: Fault,
    pub from: Micros,
    /// `Micros::MAX` while it lasts.
    pub to: Micros,
}

/// The setup that the engine was told to have, as far as requests can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Servers that get requests.
    pub open: BTreeSet<ServerId>,
    /// Whether the route that comes and goes is there.
    pub extra_route: bool,
    /// The number of the certificate that new clients are shown.
    pub certificate: u32,
}

/// From one configuration to the next.
#[derive(Clone, Debug)]
pub struct Change {
    /// When it was asked for.
    pub from: Micros,
    /// When every core went by it.
    pub to: Micros,
    pub what: String,
    pub setup: Setup,
}

/// A closed interval of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub from: Micros,
    pub to: Micros,
}

impl Window {
    pub fn new(from: Micros, to: Micros) -> Self {
        Self { from, to }
    }

    pub fn since_before(self, echo: Micros) -> Self {
        Self { from: self.from.saturating_sub(echo), ..self }
    }

    fn touches(self, from: Micros, to: Micros) -> bool {
        from <= self.to && to >= self.from
    }
}

#[derive(Debug)]
pub struct Timeline {
    pub start: Micros,
    pub episodes: Vec<Episode>,
    /// The first is how it began.
    pub changes: Vec<Change>,
    /// When this machine did not get round to what was due.
    pub stalls: Vec<Window>,
}

impl Timeline {
    pub fn new(start: Micros, setup: Setup) -> Self {
        let first = Change { from: 0, to: start, what: "the start".to_owned(), setup };
        Self { start, episodes: Vec::new(), changes: vec![first], stalls: Vec::new() }
    }

    /// The number of the episode, for its end.
    pub fn begins(&mut self, server: ServerId, fault: Fault, from: Micros) -> usize {
        self.episodes.push(Episode { server, fault, from, to: Micros::MAX });
        self.episodes.len() - 1
    }

    pub fn ends(&mut self, episode: usize, to: Micros) {
        self.episodes[episode].to = to;
    }

    pub fn has_fault(&self, server: ServerId, window: Window, kind: impl Fn(Fault) -> bool) -> bool {
        self.faults(window).any(|episode| episode.server == server && kind(episode.fault))
    }

    /// Servers that had such a fault then.
    pub fn faulty(&self, window: Window, kind: impl Fn(Fault) -> bool) -> BTreeSet<ServerId> {
        self.faults(window).filter(|episode| kind(episode.fault)).map(|episode| episode.server).collect()
    }

    fn faults(&self, window: Window) -> impl Iterator<Item = &Episode> {
        self.episodes.iter().filter(move |episode| window.touches(episode.from, episode.to))
    }

    /// Configurations that may have been in force at some moment of the window.
    pub fn setups(&self, window: Window) -> impl Iterator<Item = &Setup> {
        let succeeded = self.changes.iter().skip(1).map(|next| next.to).chain([Micros::MAX]);
        self.changes
            .iter()
            .zip(succeeded)
            .filter(move |(change, until)| window.touches(change.from, *until))
            .map(|(change, _)| &change.setup)
    }

    /// Servers that may have been given a request that began in the window.
    pub fn possibly_open(&self, window: Window) -> BTreeSet<ServerId> {
        self.setups(window).flat_map(|setup| setup.open.iter().copied()).collect()
    }

    /// The fewest servers that a request may have had to choose from.
    pub fn fewest_open(&self, window: Window) -> usize {
        self.setups(window).map(|setup| setup.open.len()).min().unwrap_or(0)
    }

    /// Whether at every moment of the window one server at least was configured and had been well for `echo`. Else
    /// there is a moment at which the engine may have thought that there was none.
    pub fn always_some_well(&self, window: Window, echo: Micros) -> bool {
        // The state changes at the edges of intervals only.
        let edges = self.episodes.iter().flat_map(|episode| [episode.from, episode.to.saturating_add(echo + 1)]);
        let edges =
            edges.chain(self.changes.iter().flat_map(|change| [change.from, change.to.saturating_add(echo + 1)]));
        let inside = edges.filter(|edge| (window.from..=window.to).contains(edge)).chain([window.from, window.to]);
        let mut moments: Vec<Micros> = inside.collect();
        moments.sort_unstable();
        moments.dedup();
        moments.into_iter().all(|moment| self.is_some_well(moment, echo))
    }

    fn is_some_well(&self, moment: Micros, echo: Micros) -> bool {
        let past = Window::new(moment, moment).since_before(echo);
        let mut setups = self.setups(past);
        let Some(first) = setups.next() else { return false };
        let certain = setups.fold(first.open.clone(), |certain, setup| &certain & &setup.open);
        certain.into_iter().any(|server| !self.has_fault(server, past, Fault::closes))
    }

    /// Nothing was done to anybody, and the machine did its work.
    pub fn is_calm(&self, window: Window) -> bool {
        self.faults(window).next().is_none()
            && !self.changes[1..].iter().any(|change| window.touches(change.from, change.to))
            && !self.is_stalled(window)
    }

    pub fn is_changing(&self, window: Window) -> bool {
        self.changes[1..].iter().any(|change| window.touches(change.from, change.to))
    }

    pub fn is_stalled(&self, window: Window) -> bool {
        self.stalls.iter().any(|stall| window.touches(stall.from, stall.to))
    }

    /// Everything that was going on around a request, in the order in which it began.
    pub fn around(&self, window: Window) -> Vec<String> {
        let at = |moment| since(self.start, moment);
        let mut lines: Vec<(Micros, String)> = Vec::new();
        for episode in self.faults(window) {
            let Episode { server, fault, from, to } = episode;
            lines.push((*from, format!("{}: {server} is {} until {}", at(*from), fault.name(), at(*to))));
        }
        for change in self.changes[1..].iter().filter(|change| window.touches(change.from, change.to)) {
            lines.push((change.from, format!("{}: {}, in force at {}", at(change.from), change.what, at(change.to))));
        }
        for stall in self.stalls.iter().filter(|stall| window.touches(stall.from, stall.to)) {
            lines.push((stall.from, format!("{}: the machine stalls until {}", at(stall.from), at(stall.to))));
        }
        lines.sort();
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ServerId = ServerId(0);
    const B: ServerId = ServerId(1);

    fn setup(open: &[ServerId]) -> Setup {
        Setup { open: open.iter().copied().collect(), extra_route: false, certificate: 0 }
    }

    fn window(from: Micros, to: Micros) -> Window {
        Window::new(from, to)
    }

    #[test]
    fn a_fault_counts_from_its_beginning_to_its_end_and_no_longer() {
        let mut timeline = Timeline::new(0, setup(&[A, B]));
        let episode = timeline.begins(A, Fault::Dead, 100);
        assert!(timeline.has_fault(A, window(150, 160), Fault::cuts), "it lasts");
        timeline.ends(episode, 200);
        assert!(timeline.has_fault(A, window(0, 100), Fault::cuts));
        assert!(!timeline.has_fault(A, window(0, 99), Fault::cuts));
        assert!(timeline.has_fault(A, window(200, 300), Fault::refuses));
        assert!(!timeline.has_fault(A, window(201, 300), Fault::refuses));
        assert!(!timeline.has_fault(A, window(150, 160), Fault::hangs));
        assert!(!timeline.has_fault(B, window(150, 160), Fault::cuts));
        assert!(timeline.is_calm(window(0, 99)) && !timeline.is_calm(window(0, 100)));
    }

    #[test]
    fn between_request_and_answer_of_a_change_both_configurations_may_be_in_force() {
        let mut timeline = Timeline::new(0, setup(&[A, B]));
        timeline.changes.push(Change { from: 100, to: 200, what: String::new(), setup: setup(&[B]) });
        let open = |from, to| timeline.possibly_open(window(from, to)).into_iter().collect::<Vec<_>>();
        assert_eq!((open(0, 99), open(150, 160), open(201, 300)), (vec![A, B], vec![A, B], vec![B]));
        assert_eq!((timeline.fewest_open(window(0, 99)), timeline.fewest_open(window(0, 100))), (2, 1));
    }

    #[test]
    fn somebody_is_well_only_if_it_was_configured_and_without_a_fault_for_long_enough() {
        let mut timeline = Timeline::new(0, setup(&[A, B]));
        timeline.begins(A, Fault::Dead, 100);
        assert!(timeline.always_some_well(window(50, 1_000), 10), "the other is");
        let episode = timeline.begins(B, Fault::Failing, 500);
        timeline.ends(episode, 600);
        assert!(timeline.always_some_well(window(50, 499), 10));
        assert!(!timeline.always_some_well(window(50, 500), 10));
        assert!(!timeline.always_some_well(window(610, 610), 10), "it has just come back");
        assert!(timeline.always_some_well(window(611, 700), 10));
        let episode = timeline.begins(B, Fault::Slow, 800);
        timeline.ends(episode, 900);
        assert!(timeline.always_some_well(window(700, 1_000), 10), "slow is well enough");
    }

    #[test]
    fn a_server_that_has_just_been_added_is_nobody_to_count_on() {
        let mut timeline = Timeline::new(0, setup(&[A]));
        timeline.changes.push(Change { from: 100, to: 110, what: String::new(), setup: setup(&[A, B]) });
        timeline.begins(A, Fault::Dead, 115);
        assert!(!timeline.always_some_well(window(115, 118), 10));
        assert!(timeline.always_some_well(window(130, 200), 10));
    }

    #[test]
    fn names_tell_servers_and_their_runs() {
        assert_eq!(parse_server("b.12"), Some((B, 12)));
        assert_eq!(parse_server("b"), None);
        assert_eq!(parse_server("bb.1"), None);
        assert_eq!(B.to_string(), "b");
    }
}

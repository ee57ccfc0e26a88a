//! Figures of the demo: what each step cost, which promises were kept, and how they are told.

use std::time::Duration;

use propylon_e2e::rig::flows::{Broken, Failed, Sample};
use serde_json::{Value, json};

/// Share of the connections that offer a ticket and are resumed, whichever engine they come to.
const RESUMED_MIN: f64 = 0.99;
/// Connections that are told of one by one.
const EVENTS_MAX: usize = 200;
/// From the canary's time on until a configuration is everywhere.
const EVERYWHERE_MAX: Duration = Duration::from_secs(1);

/// One step under clients.
#[derive(Clone, Debug)]
pub struct Step {
    pub name: String,
    /// By the generator's clock.
    pub began: Duration,
    /// Until the cluster was as it should be.
    pub took: Duration,
    pub p99: Duration,
    /// Held connections that an engine ended in good order, and that were opened anew.
    pub ended: u64,
    /// Clients' requests in it.
    pub requests: u64,
    /// A few words on what happened.
    pub note: String,
}

/// The engine that was killed.
#[derive(Clone, Debug, Default)]
pub struct Kill {
    pub engine: usize,
    /// Flows that it had.
    pub own: u64,
    pub route_gone: Duration,
    pub rescued: Duration,
}

#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub engines: usize,
    pub held: u64,
    pub new_per_second: u32,
    /// What came before there were clients: names, and how long it took.
    pub before: Vec<(String, Duration)>,
    /// The last one is the kill.
    pub steps: Vec<Step>,
    /// The refusal of the bad configuration, and whether nobody served it.
    pub refusal: String,
    pub is_refused: bool,
    /// From the canary's time on until the good one was everywhere.
    pub everywhere: Duration,
    pub kill: Kill,
    /// Longest time that a client waits for an answer: what did not come began as long before.
    pub timeout: Duration,
    pub broken: Vec<Broken>,
    pub failed: Vec<Failed>,
    pub all: Sample,
}

/// What went wrong for clients in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Harm {
    pub broken: u64,
    /// Of these, flows of others than the engine that was killed.
    pub of_others: u64,
    pub failed: u64,
}

impl Figures {
    /// Harm by step. What timed out is counted where it began.
    pub fn harm(&self) -> Vec<Harm> {
        let mut harm = vec![Harm::default(); self.steps.len()];
        let began =
            |at: Duration, how: &str| at.saturating_sub(if how == "timeout" { self.timeout } else { Duration::ZERO });
        let step = |at: Duration| self.steps.iter().rposition(|step| step.began <= at).unwrap_or(0);
        for broken in &self.broken {
            if let Some(harm) = harm.get_mut(step(began(broken.at, &broken.how))) {
                harm.broken += 1;
                harm.of_others += u64::from(broken.engine != Some(self.kill.engine));
            }
        }
        for failed in &self.failed {
            if let Some(harm) = harm.get_mut(step(began(failed.at, &failed.how))) {
                harm.failed += 1;
            }
        }
        harm
    }

    fn resumed(&self) -> f64 {
        self.all.resumed as f64 / self.all.offered.max(1) as f64
    }

    /// Promises that were not kept, in words.
    pub fn broken_promises(&self) -> Vec<String> {
        let mut promises = Vec::new();
        let harm = self.harm();
        let last = self.steps.len().saturating_sub(1);
        for (step, harm) in self.steps.iter().zip(&harm).take(last) {
            if harm.broken + harm.failed > 0 {
                let Harm { broken, failed, .. } = harm;
                promises.push(format!("{}: {broken} flows broken, {failed} new connections failed", step.name));
            }
        }
        if let Some(Harm { of_others: others @ 1.., .. }) = harm.last() {
            promises.push(format!("{others} flows broke that were not those of the engine that was killed"));
        }
        if !self.is_refused {
            promises.push("the bad configuration was not refused by all".to_owned());
        }
        if self.everywhere > EVERYWHERE_MAX {
            let (took, limit) = (millis(self.everywhere), millis(EVERYWHERE_MAX));
            promises.push(format!("the good configuration was everywhere after {took}, and {limit} are promised"));
        }
        if self.resumed() < RESUMED_MIN {
            let (resumed, offered) = (self.all.resumed, self.all.offered);
            promises.push(format!("{resumed} of {offered} connections that offered a ticket were resumed"));
        }
        if self.all.refused > 0 {
            promises.push(format!("{} answers were not 200", self.all.refused));
        }
        promises
    }

    pub fn table(&self) -> String {
        let head = ["", "took", "flows broken", "new failed", "p99"];
        let mut text = line(&head.map(str::to_owned));
        let none = || "-".to_owned();
        for (name, took) in &self.before {
            text += &line(&[name.clone(), seconds(*took), none(), none(), none()]);
        }
        for (step, harm) in self.steps.iter().zip(self.harm()) {
            let (broken, failed) = (thousands(harm.broken), thousands(harm.failed));
            text += &line(&[step.name.clone(), seconds(step.took), broken, failed, millis(step.p99)]);
        }
        text.push('\n');
        for (name, value) in self.facts() {
            text += &format!("{name:<46}{value}\n");
        }
        let broken = self.broken_promises();
        broken.iter().for_each(|promise| text += &format!("NOT KEPT: {promise}\n"));
        if broken.is_empty() {
            text += "All promises were kept.\n";
        }
        text
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let Kill { own, route_gone, rescued, .. } = &self.kill;
        let harm = self.harm().last().copied().unwrap_or_default();
        let own_broken = harm.broken - harm.of_others;
        let resumed = format!("{:.2} % of {}", self.resumed() * 100.0, thousands(self.all.offered));
        vec![
            (
                "Clients",
                format!("{} held, {} new a second", thousands(self.held), thousands(self.new_per_second.into())),
            ),
            ("Requests", format!("{}, p99 {}", thousands(self.all.requests), millis(self.all.latency_p99))),
            ("Resumed of those that offered a ticket", resumed),
            ("Bad configuration", self.refusal.clone()),
            ("Good one everywhere after the canary's time", millis(self.everywhere)),
            ("Killed engine: its route gone after", millis(*route_gone)),
            ("Killed engine: its buckets with others after", millis(*rescued)),
            ("Killed engine: its flows, of which broke", format!("{}, {}", thousands(*own), thousands(own_broken))),
            ("Killed engine: flows of others that broke", thousands(harm.of_others)),
        ]
    }

    /// The first connections that something happened to, and when by the clients' clock; not those that the death of
    /// their engine ended at once.
    fn events(&self) -> Vec<Value> {
        let at = |at: Duration| at.as_millis() as u64;
        let killed = self.steps.last().map_or(Duration::ZERO, |step| step.began);
        let is_its_own =
            |broken: &Broken| broken.engine == Some(self.kill.engine) && broken.at >= killed && broken.how != "timeout";
        let broken = self.broken.iter().filter(|broken| !is_its_own(broken)).map(|broken| {
            let Broken { engine, how, in_flight, .. } = broken;
            json!({ "broken": how, "at_ms": at(broken.at), "engine": engine, "in_flight": in_flight })
        });
        let failed = self.failed.iter().map(|failed| json!({ "failed": failed.how, "at_ms": at(failed.at) }));
        broken.take(EVENTS_MAX).chain(failed.take(EVENTS_MAX)).collect()
    }

    pub fn json(&self) -> Value {
        let steps = self.steps.iter().zip(self.harm()).map(|(step, harm)| {
            json!({
                "name": step.name,
                "began_ms": step.began.as_millis() as u64,
                "took_ms": step.took.as_millis() as u64,
                "flows_broken": harm.broken,
                "new_failed": harm.failed,
                "p99_us": step.p99.as_micros() as u64,
                "requests": step.requests,
                "ended_in_order": step.ended,
                "note": step.note,
            })
        });
        let before = self.before.iter().map(|(name, took)| json!({"name": name, "took_ms": took.as_millis() as u64}));
        let last = self.harm().last().copied().unwrap_or_default();
        json!({
            "engines": self.engines,
            "held": self.held,
            "new_per_second": self.new_per_second,
            "before": before.collect::<Vec<Value>>(),
            "steps": steps.collect::<Vec<Value>>(),
            "requests": self.all.requests,
            "p99_us": self.all.latency_p99.as_micros() as u64,
            "resumption": { "offered": self.all.offered, "resumed": self.all.resumed },
            "bad_configuration": self.refusal,
            "everywhere_ms": self.everywhere.as_millis() as u64,
            "kill": {
                "route_gone_ms": self.kill.route_gone.as_millis() as u64,
                "rescued_ms": self.kill.rescued.as_millis() as u64,
                "own_flows": self.kill.own,
                "own_broken": last.broken - last.of_others,
                "others_broken": last.of_others,
                "new_failed": last.failed,
            },
            "not_kept": self.broken_promises(),
            "events": self.events(),
        })
    }
}

fn line([name, took, broken, failed, p99]: &[String; 5]) -> String {
    format!("{name:<46}{took:>9}{broken:>14}{failed:>12}{p99:>10}\n")
}

pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

pub fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    if millis < 10.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}

/// `12,345`
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, began: u64) -> Step {
        Step {
            name: name.to_owned(),
            began: Duration::from_secs(began),
            took: Duration::from_secs(1),
            p99: Duration::from_millis(2),
            ended: 0,
            requests: 100,
            note: String::new(),
        }
    }

    fn figures() -> Figures {
        Figures {
            steps: vec![step("first", 0), step("second", 10), step("kill", 20)],
            is_refused: true,
            timeout: Duration::from_secs(5),
            kill: Kill { engine: 2, own: 7, ..Kill::default() },
            all: Sample { offered: 100, resumed: 100, ..Sample::default() },
            ..Figures::default()
        }
    }

    fn broken(at: u64, engine: Option<usize>, how: &str) -> Broken {
        Broken { at: Duration::from_secs(at), engine, how: how.to_owned(), in_flight: true }
    }

    #[test]
    fn harm_is_counted_in_the_step_in_which_it_began() {
        let mut figures = figures();
        let failed = |at, how: &str| Failed { at: Duration::from_secs(at), how: how.to_owned(), is_held: false };
        figures.broken = vec![broken(21, Some(2), "eof"), broken(22, Some(1), "timeout"), broken(26, None, "eof")];
        figures.failed = vec![failed(12, "ECONNREFUSED"), failed(12, "timeout")];
        let expected = [(0, 0, 1), (1, 1, 1), (2, 1, 0)];
        assert_eq!(figures.harm(), expected.map(|(broken, of_others, failed)| Harm { broken, of_others, failed }));
    }

    #[test]
    fn every_promise_that_was_not_kept_is_named() {
        assert_eq!(figures().broken_promises(), Vec::<String>::new());
        let own = Figures { broken: vec![broken(21, Some(2), "eof")], ..figures() };
        assert_eq!(own.broken_promises(), Vec::<String>::new());
        for (wrong, word) in [
            (Figures { broken: vec![broken(11, Some(2), "eof")], ..figures() }, "second: 1 flows broken"),
            (Figures { broken: vec![broken(21, Some(1), "eof")], ..figures() }, "not those of the engine"),
            (Figures { is_refused: false, ..figures() }, "not refused"),
            (Figures { everywhere: Duration::from_millis(1_001), ..figures() }, "everywhere after"),
            (Figures { all: Sample { offered: 100, resumed: 98, ..Sample::default() }, ..figures() }, "98 of 100"),
            (Figures { all: Sample { refused: 1, ..figures().all }, ..figures() }, "not 200"),
        ] {
            let said = wrong.broken_promises();
            assert!(said.len() == 1 && said[0].contains(word), "{said:?} for {word}");
            assert!(wrong.table().contains("NOT KEPT"), "{}", wrong.table());
        }
    }

    #[test]
    fn numbers_have_their_thousands() {
        let numbers = [0, 999, 1_000, 1_234_567];
        assert_eq!(numbers.map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}

//! The cluster in a line, of `/cluster`.

use serde_json::{Value, json};

use super::value::{list, number, text};

/// The cluster that the engine is one of, as it sees it.
#[derive(Debug, Default)]
pub struct Cluster {
    pub name: String,
    /// Whether etcd answers.
    pub is_connected: bool,
    pub leader: Option<String>,
    /// Serial of the configuration that this engine serves; 0 is its own file.
    pub serial: u64,
    pub engines: usize,
    pub engines_ready: usize,
    /// Serial and phase of the change under way.
    pub candidate: Option<(u64, String)>,
    /// Whether this engine's addresses are announced; `None` where it announces nothing.
    pub announced: Option<bool>,
    /// Engines that there should be, if anybody computes it.
    pub wanted: Option<u64>,
    pub problems: usize,
}

impl Cluster {
    /// `None` for what is no answer of a cluster.
    pub fn of(status: &Value) -> Option<Cluster> {
        status["engines"].as_array()?;
        let whole = |value: &Value| number(value) as u64;
        let is_ready = |engine: &&Value| engine["ready"] == true && engine["draining"] != true;
        let candidate = &status["candidate"];
        Some(Cluster {
            name: text(&status["name"]),
            is_connected: status["connected"] == true,
            leader: status["leader"].is_string().then(|| text(&status["leader"])),
            serial: whole(&status["serial"]),
            engines: list(&status["engines"]).count(),
            engines_ready: list(&status["engines"]).filter(is_ready).count(),
            candidate: candidate.is_object().then(|| (whole(&candidate["serial"]), text(&candidate["phase"]))),
            announced: status["announce"]["announced"].as_bool(),
            wanted: status["capacity"]["wanted"].as_u64(),
            problems: list(&status["problems"]).count(),
        })
    }

    /// In words, what matters most first: a narrow terminal cuts the rest.
    pub fn words(&self) -> String {
        let etcd = if self.is_connected { "" } else { "etcd does not answer, " };
        let leader = self.leader.as_deref().unwrap_or("nobody");
        let mut words = format!(
            "cluster {}: {etcd}{} of {} engines ready, led by {leader}, serial {}",
            self.name, self.engines_ready, self.engines, self.serial
        );
        if let Some((serial, phase)) = &self.candidate {
            words += &format!(", {serial} is {phase}");
        }
        match self.announced {
            Some(true) => words += ", announced",
            Some(false) => words += ", not announced",
            None => {}
        }
        if let Some(wanted) = self.wanted {
            words += &format!(", {wanted} wanted");
        }
        if self.problems > 0 {
            words += &format!(", {} problem{}", self.problems, if self.problems == 1 { "" } else { "s" });
        }
        words
    }

    /// Whether somebody should look.
    pub fn is_in_trouble(&self) -> bool {
        let is_short = self.wanted.is_some_and(|wanted| wanted > self.engines as u64);
        !self.is_connected || self.leader.is_none() || self.problems > 0 || self.announced == Some(false) || is_short
    }

    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "connected": self.is_connected,
            "leader": self.leader,
            "serial": self.serial,
            "engines": self.engines,
            "engines_ready": self.engines_ready,
            "candidate": self.candidate.as_ref().map(|(serial, phase)| json!({ "serial": serial, "phase": phase })),
            "announced": self.announced,
            "engines_wanted": self.wanted,
            "problems": self.problems,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_told_in_a_line_with_what_is_under_way() {
        let engine = |is_ready: bool, is_draining: bool| json!({ "ready": is_ready, "draining": is_draining });
        let mut status = json!({
            "name": "edge", "connected": true, "leader": "e1", "serial": 41, "problems": [],
            "engines": [engine(true, false), engine(true, true), engine(false, false)],
            "candidate": null, "announce": null, "capacity": null,
        });
        let of = |status: &Value| Cluster::of(status).expect("a cluster");
        assert_eq!(of(&status).words(), "cluster edge: 1 of 3 engines ready, led by e1, serial 41");
        assert!(!of(&status).is_in_trouble());
        status["candidate"] = json!({ "serial": 42, "phase": "canary" });
        status["announce"] = json!({ "announced": false });
        status["capacity"] = json!({ "wanted": 4 });
        status["problems"] = json!(["clocks differ\u{1b}[2J"]);
        status["connected"] = false.into();
        status["leader"] = Value::Null;
        let told = "cluster edge: etcd does not answer, 1 of 3 engines ready, led by nobody, serial 41, 42 is canary, \
                    not announced, 4 wanted, 1 problem";
        assert_eq!(of(&status).words(), told);
        assert!(of(&status).is_in_trouble());
        assert_eq!(of(&status).to_json()["candidate"], json!({ "serial": 42, "phase": "canary" }));
        assert!(Cluster::of(&json!(null)).is_none(), "an engine that has not heard of its cluster yet");
    }
}

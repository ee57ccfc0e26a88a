//! A new configuration on its way to all engines, told step by step.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::control::{list, text};

/// How often it is looked how far it has come.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long the engine may be away, or know nothing of the candidate, before it is given up: an upgrade, or an election
/// in etcd, are over before.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long it is followed at most: longer than the longest canary.
const FOLLOW_MAX: Duration = Duration::from_secs(4 * 3600);

/// Follows the candidate of this id to its end, and prints each step; the look is at the cluster.
pub fn follow(look: impl Fn() -> Result<Value, String>, id: String) -> Result<String, String> {
    println!("candidate {id}");
    let mut follower = Follower::new(id);
    let began = Instant::now();
    let mut heard = began;
    loop {
        let now = Instant::now();
        let silence = match look() {
            Ok(status) => {
                let (lines, step) = follower.step(&status);
                lines.iter().for_each(|line| println!("{line}"));
                match step {
                    Step::Applied(what) => return Ok(what),
                    Step::Refused(why) => return Err(why),
                    Step::Goes => {
                        heard = now;
                        String::new()
                    }
                    Step::Unknown => "the engine knows nothing of it".to_owned(),
                }
            }
            Err(error) => error,
        };
        if now.duration_since(heard) > SILENCE_MAX {
            return Err(format!("{silence}; `propylon cluster status` tells what has become of it"));
        }
        if now.duration_since(began) > FOLLOW_MAX {
            return Err("it is not over yet; `propylon cluster status` tells how it goes".into());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A candidate, by its last look.
#[derive(Debug, PartialEq)]
enum Step {
    /// Still on the way.
    Goes,
    /// Neither on its way nor over.
    Unknown,
    Applied(String),
    Refused(String),
}

/// A candidate, and how much of its way has been told already.
struct Follower {
    id: String,
    phase: String,
    serving: BTreeSet<String>,
    verdicts: BTreeSet<String>,
}

impl Follower {
    fn new(id: String) -> Follower {
        Follower { id, phase: String::new(), serving: BTreeSet::new(), verdicts: BTreeSet::new() }
    }

    /// The news, and how it stands.
    fn step(&mut self, status: &Value) -> (Vec<String>, Step) {
        let (candidate, outcome) = (&status["candidate"], &status["outcome"]);
        if outcome["id"].as_str() == Some(&self.id) {
            return (Vec::new(), ended(outcome));
        }
        match candidate["id"].as_str() {
            Some(id) if id == self.id => (self.news(status), Step::Goes),
            Some(id) if !self.phase.is_empty() => {
                let id = text(&id.into());
                (Vec::new(), Step::Refused(format!("another candidate, {id}, has taken its place")))
            }
            _ => (Vec::new(), Step::Unknown),
        }
    }

    fn news(&mut self, status: &Value) -> Vec<String> {
        let candidate = &status["candidate"];
        let mut lines = Vec::new();
        for verdict in list(&candidate["verdicts"]) {
            let engine = text(&verdict["engine"]);
            if !self.verdicts.insert(engine.clone()) {
                continue;
            }
            match verdict["ok"].as_bool() {
                Some(true) => lines.push(format!("{engine} could serve it")),
                _ => {
                    lines.push(format!("{engine} refuses it:"));
                    lines.extend(list(&verdict["problems"]).map(|problem| format!("  {}", text(problem))));
                }
            }
        }
        let phase = text(&candidate["phase"]);
        if phase != self.phase {
            lines.push(phase_text(&phase, &names(&candidate["canary"])));
            self.phase = phase;
        }
        let serving: BTreeSet<String> = list(&candidate["serving"]).map(text).collect();
        if !serving.is_subset(&self.serving) {
            let (all, count) = (list(&status["engines"]).count(), serving.len());
            let new: Vec<&str> = serving.difference(&self.serving).map(String::as_str).collect();
            lines.push(format!("{count} of {all} engines serve it: {} now", new.join(", ")));
            self.serving = serving;
        }
        lines
    }
}

/// A phase as a sentence.
pub fn phase_text(phase: &str, canary: &str) -> String {
    match phase {
        "checking" => "checking: every engine says whether it could serve it".into(),
        "canary" => format!("canary: {canary} goes first"),
        "rolling" => "rolling: the others follow".into(),
        other => other.to_owned(),
    }
}

/// Names, with commas between them.
pub fn names(all: &Value) -> String {
    list(all).map(text).collect::<Vec<String>>().join(", ")
}

fn ended(outcome: &Value) -> Step {
    if outcome["result"] == "applied" {
        return Step::Applied(format!("applied: all engines serve configuration {}\n", outcome["serial"]));
    }
    Step::Refused(refusal(outcome))
}

/// How a candidate has failed: why, at which engine, and with which problems.
pub fn refusal(outcome: &Value) -> String {
    let mut told = format!("refused: {}", text(&outcome["why"]));
    if let Some(engine) = outcome["engine"].as_str() {
        told += &format!(" ({})", text(&engine.into()));
    }
    list(&outcome["problems"]).for_each(|problem| told += &format!("\n  {}", text(problem)));
    told
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(candidate: Value, outcome: Value) -> Value {
        let engines = json!([{ "name": "e1" }, { "name": "e2" }, { "name": "e3" }]);
        json!({ "engines": engines, "candidate": candidate, "outcome": outcome })
    }

    fn candidate(phase: &str, serving: &[&str], verdicts: Value) -> Value {
        json!({ "id": "7f", "phase": phase, "canary": ["e2"], "serving": serving, "verdicts": verdicts })
    }

    #[test]
    fn each_step_is_told_once() {
        let mut follower = Follower::new("7f".into());
        let before = json!({ "id": "6e", "serial": 3, "result": "refused", "why": "old" });
        assert_eq!(follower.step(&status(Value::Null, before.clone())), (Vec::new(), Step::Unknown));
        let verdicts = json!([{ "engine": "e1", "ok": true }]);
        let checking = status(candidate("checking", &[], verdicts), before.clone());
        let told = ["e1 could serve it", "checking: every engine says whether it could serve it"];
        assert_eq!(follower.step(&checking), (told.map(String::from).to_vec(), Step::Goes));
        assert_eq!(follower.step(&checking), (Vec::new(), Step::Goes));
        let canary = status(candidate("canary", &["e2"], json!([])), before.clone());
        let told = ["canary: e2 goes first", "1 of 3 engines serve it: e2 now"];
        assert_eq!(follower.step(&canary), (told.map(String::from).to_vec(), Step::Goes));
        let rolling = status(candidate("rolling", &["e1", "e2"], json!([])), before);
        let told = ["rolling: the others follow", "2 of 3 engines serve it: e1 now"];
        assert_eq!(follower.step(&rolling), (told.map(String::from).to_vec(), Step::Goes));
        let applied =
            json!({ "id": "7f", "serial": 4, "result": "applied", "why": "", "engine": null, "problems": [] });
        let (lines, step) = follower.step(&status(Value::Null, applied));
        assert_eq!((lines.len(), step), (0, Step::Applied("applied: all engines serve configuration 4\n".into())));
    }

    #[test]
    fn a_refusal_names_the_engine_and_its_problems() {
        let mut follower = Follower::new("7f".into());
        let outcome = json!({
            "id": "7f", "serial": 4, "result": "refused", "why": "an engine cannot serve it", "engine": "e3",
            "problems": ["pushed.toml:3:5: no backend named \"x\"; add it", "a\u{1b}[2Jb"],
        });
        let told =
            "refused: an engine cannot serve it (e3)\n  pushed.toml:3:5: no backend named \"x\"; add it\n  a[2Jb";
        assert_eq!(follower.step(&status(Value::Null, outcome)), (Vec::new(), Step::Refused(told.into())));
        let verdicts = json!([{ "engine": "e3", "ok": false, "problems": ["f:1:2: w; x"] }]);
        let (lines, _) = follower.step(&status(candidate("checking", &[], verdicts), Value::Null));
        assert_eq!(lines[..2], ["e3 refuses it:".to_owned(), "  f:1:2: w; x".into()]);
    }

    #[test]
    fn a_candidate_whose_place_is_taken_is_not_waited_for() {
        let mut follower = Follower::new("7f".into());
        let other = status(json!({ "id": "80", "phase": "checking" }), Value::Null);
        assert_eq!(follower.step(&other).1, Step::Unknown, "the engine may not have heard of ours yet");
        assert_eq!(follower.step(&status(candidate("checking", &[], json!([])), Value::Null)).1, Step::Goes);
        let taken = "another candidate, 80, has taken its place".to_owned();
        assert_eq!(follower.step(&other).1, Step::Refused(taken));
    }

    #[test]
    fn an_answer_of_another_shape_is_no_step() {
        let mut follower = Follower::new("7f".into());
        for strange in [Value::Null, json!([]), json!({ "candidate": 7, "outcome": "x" }), json!("7f")] {
            assert_eq!(follower.step(&strange), (Vec::new(), Step::Unknown), "{strange}");
        }
    }
}

//! Conditions of statuses, by the names of the API's Go constants, and what is kept of a status that is there already.

use serde_json::{Value, json};

/// Longest message of a condition; the API takes 32,768 characters.
const MESSAGE_CHARS_MAX: usize = 1024;

/// One condition, before it is known since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

/// The reason why something does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub reason: &'static str,
    pub message: String,
}

impl Trouble {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Trouble {
        Trouble { reason, message: message.into() }
    }
}

impl Condition {
    pub fn new(kind: &'static str, holds: bool, reason: &'static str, message: impl Into<String>) -> Condition {
        Condition { kind, holds, reason, message: message.into() }
    }

    /// A condition that holds, with `reason`, unless there is trouble.
    pub fn unless(kind: &'static str, reason: &'static str, trouble: Option<&Trouble>) -> Condition {
        match trouble {
            None => Condition::new(kind, true, reason, ""),
            Some(trouble) => Condition::new(kind, false, trouble.reason, trouble.message.clone()),
        }
    }
}

/// Conditions as a status has them. One that was there with the same state keeps the time of its last transition.
pub fn written(conditions: &[Condition], before: &Value, generation: i64, now: &str) -> Value {
    let before = before.as_array().map_or(&[][..], Vec::as_slice);
    let all = conditions.iter().map(|condition| {
        let status = if condition.holds { "True" } else { "False" };
        let same = before.iter().find(|each| each["type"] == condition.kind && each["status"] == status);
        let since = same.and_then(|each| each["lastTransitionTime"].as_str()).unwrap_or(now);
        let message: String = condition.message.chars().take(MESSAGE_CHARS_MAX).collect();
        json!({
            "type": condition.kind, "status": status, "reason": condition.reason, "message": message,
            "observedGeneration": generation, "lastTransitionTime": since,
        })
    });
    Value::Array(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_its_state_changes() {
        let accepted = |holds| [Condition::new("Accepted", holds, "Accepted", "")];
        let first = written(&accepted(true), &Value::Null, 1, "2026-01-01T00:00:00Z");
        let same = written(&accepted(true), &first, 2, "2026-01-02T00:00:00Z");
        assert_eq!(same[0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(same[0]["observedGeneration"], 2);
        let other = written(&accepted(false), &same, 2, "2026-01-03T00:00:00Z");
        assert_eq!(other[0]["lastTransitionTime"], "2026-01-03T00:00:00Z");
    }
}

//! The past on its way to a successor: numbers by the second and by the minute, and the last lines of the log, in parts
//! that fit into messages.

use std::time::{Duration, SystemTime};

use propylon_observe::history::History;
use serde_json::{Value, json};

use crate::logger::{self, Recent};

/// Word of a part, and of successors that take them.
pub const PAST: &str = "past";
/// Parts that are taken: those of a day, of five minutes and of the log are some thirty.
const PARTS_MAX: usize = 256;
/// Lines of the log in a part.
const PART_LINES: usize = 16;

/// The parts of all of it.
pub fn parts(history: &History, lines: &[Recent]) -> Vec<Value> {
    let line = |line: &Recent| json!({ "time": millis(line.time), "level": line.level, "text": line.text });
    let of_lines = |lines: &[Recent]| json!({ "word": PAST, "lines": lines.iter().map(line).collect::<Vec<Value>>() });
    let numbers = history.parts().into_iter().map(|part| json!({ "word": PAST, "numbers": part }));
    numbers.chain(lines.chunks(PART_LINES).map(of_lines)).collect()
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The predecessor's past, as it comes.
#[derive(Default)]
pub struct Past {
    parts: Vec<Value>,
}

impl Past {
    /// Parts beyond [`PARTS_MAX`] are left out: nothing that is needed to serve is in them.
    pub fn take_part(&mut self, part: Value) {
        if self.parts.len() < PARTS_MAX {
            self.parts.push(part);
        }
    }

    /// Puts it in front of what this process knows by now.
    pub fn put_back(self, history: &mut History) {
        let mut lines = Vec::new();
        for part in &self.parts {
            history.take_part(&part["numbers"]);
            lines.extend(part["lines"].as_array().into_iter().flatten().filter_map(line));
        }
        logger::take_recent(lines);
    }
}

fn line(value: &Value) -> Option<Recent> {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(value["time"].as_u64()?))?;
    Some(Recent {
        time,
        level: logger::level_name(value["level"].as_str()?)?,
        text: value["text"].as_str()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_sys::MESSAGE_BYTES_MAX;

    #[test]
    fn parts_fit_into_messages_and_what_is_none_is_left_out() {
        let text = "\u{1}".repeat(logger::RECENT_LINE_BYTES);
        let lines = vec![Recent { time: SystemTime::now(), level: "info", text }; 100];
        let parts = parts(&propylon_observe::history::keep(), &lines);
        assert_eq!(parts.len(), 7);
        assert!(parts.iter().all(|part| part.to_string().len() < MESSAGE_BYTES_MAX - 1));
        let taken: Vec<Recent> =
            parts.iter().flat_map(|part| part["lines"].as_array().unwrap()).filter_map(line).collect();
        assert_eq!(taken.len(), 100);
        assert_eq!(taken[0].text, lines[0].text);
        for wrong in [json!(null), json!({ "time": -1 }), json!({ "time": 1, "level": "loud", "text": "" })] {
            assert!(line(&wrong).is_none());
        }
    }
}

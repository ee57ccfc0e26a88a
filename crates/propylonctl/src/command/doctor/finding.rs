//! A finding of the doctor: one thing of the machine, its state, and the command that changes it.

/// Files that one finding names.
pub const FILES_NAMED_MAX: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Good,
    /// The setting works, and could be better.
    Advice,
    /// The service could not start, or would fail under load.
    Bad,
    /// This machine does not tell.
    Unknown,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Advice => "advice",
            State::Bad => "bad",
            State::Unknown => "unknown",
        }
    }
}

pub struct Finding {
    pub what: &'static str,
    pub state: State,
    pub current: String,
    pub wanted: String,
    /// Why it matters; empty where the name says so.
    pub why: &'static str,
    /// Command that changes the setting; empty if nothing has to be done or nothing can be.
    pub command: String,
}

impl Finding {
    pub fn new(what: &'static str, state: State, current: impl Into<String>, wanted: impl Into<String>) -> Finding {
        Finding { what, state, current: current.into(), wanted: wanted.into(), why: "", command: String::new() }
    }

    pub fn because(mut self, why: &'static str) -> Finding {
        self.why = why;
        self
    }

    /// How to get what is wanted, where that is not so.
    pub fn fix(mut self, command: impl Into<String>) -> Finding {
        if matches!(self.state, State::Advice | State::Bad) {
            self.command = command.into();
        }
        self
    }

    /// A number that should not be less than so much.
    pub fn at_least(what: &'static str, current: Option<u64>, wanted: u64, otherwise: State) -> Finding {
        let state = match current {
            None => State::Unknown,
            Some(current) if current >= wanted => State::Good,
            Some(_) => otherwise,
        };
        let current = current.map_or_else(|| "unknown".into(), number);
        Finding::new(what, state, current, format!("at least {}", number(wanted)))
    }
}

fn number(value: u64) -> String {
    if value == u64::MAX { "unlimited".into() } else { value.to_string() }
}

//! Which server connections a request may go out on, by the four levels that HAProxy's `http-reuse` has.

/// How freely connections are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A connection belongs to the client connection it was made for.
    Never,
    /// A client's first request goes out on a connection of its own, unless it could be repeated here.
    Safe,
    /// Such a first request may also go out on a connection that has been reused before.
    Aggressive,
    /// Any request may go out on any connection.
    Always,
}

/// Connections that will do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Any idle connection.
    Any,
    /// One that has carried a second request already: its server is known to keep connections.
    Proven,
    /// A new one only.
    New,
}

/// `first`: the first request of its client connection, which the client will not repeat by itself when its connection
/// breaks. (Later ones it may: RFC 9112 §9.3.1 has it expect that.) `repeatable`: we can repeat it ourselves should the connection
/// turn out to be closed.
pub fn fit(level: Level, first: bool, repeatable: bool) -> Fit {
    match level {
        Level::Safe if first && !repeatable => Fit::New,
        Level::Aggressive if first && !repeatable => Fit::Proven,
        // With `Never` the connections are told apart by whose they are.
        Level::Never | Level::Safe | Level::Aggressive | Level::Always => Fit::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_first_request_that_nobody_could_repeat_is_particular() {
        for level in [Level::Never, Level::Safe, Level::Aggressive, Level::Always] {
            assert_eq!(fit(level, false, false), Fit::Any, "the client knows that its connection may break");
            assert_eq!(fit(level, true, true), Fit::Any, "we repeat it");
        }
        assert_eq!(fit(Level::Safe, true, false), Fit::New);
        assert_eq!(fit(Level::Aggressive, true, false), Fit::Proven);
        assert_eq!(fit(Level::Always, true, false), Fit::Any);
    }
}

//! Names of keys in etcd: all of a cluster below one prefix.

/// Keys of one cluster.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
    /// Figures come each second, and only the leader needs those of all: they are apart from what everybody watches. No
    /// cluster's name has such a character.
    loads: String,
}

/// A key, read apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    Engine(&'a str),
    Load(&'a str),
    Drain(&'a str),
    Weight(&'a str),
    /// An engine's process has ended without a successor.
    Death(&'a str),
    Leader,
    Current,
    Candidate,
    Verdict {
        id: &'a str,
        engine: &'a str,
    },
    Outcome,
    /// Without the `secrets/` before it: `ticket-keys`, `certificates/NAME`.
    Secret(&'a str),
    Flows,
    Capacity,
    Other,
}

impl Keys {
    pub fn of(cluster: &str) -> Keys {
        Keys { prefix: format!("propylon/{cluster}/"), loads: format!("propylon/{cluster}@load/") }
    }

    pub fn all(&self) -> &str {
        &self.prefix
    }

    pub fn engine(&self, name: &str) -> String {
        format!("{}engines/{name}", self.prefix)
    }

    pub fn load(&self, name: &str) -> String {
        format!("{}{name}", self.loads)
    }

    /// Figures of all engines.
    pub fn loads(&self) -> &str {
        &self.loads
    }

    pub fn drain(&self, name: &str) -> String {
        format!("{}drains/{name}", self.prefix)
    }

    pub fn weight(&self, name: &str) -> String {
        format!("{}weights/{name}", self.prefix)
    }

    pub fn death(&self, name: &str) -> String {
        format!("{}deaths/{name}", self.prefix)
    }

    pub fn leader(&self) -> String {
        format!("{}leader", self.prefix)
    }

    pub fn current(&self) -> String {
        format!("{}config/current", self.prefix)
    }

    pub fn candidate(&self) -> String {
        format!("{}config/candidate", self.prefix)
    }

    /// Verdicts of all engines on one candidate.
    pub fn verdicts(&self, id: &str) -> String {
        format!("{}config/verdicts/{id}/", self.prefix)
    }

    pub fn verdict(&self, id: &str, engine: &str) -> String {
        format!("{}{engine}", self.verdicts(id))
    }

    pub fn outcome(&self) -> String {
        format!("{}config/outcome", self.prefix)
    }

    /// Configurations that the cluster has had, in their order.
    pub fn histories(&self) -> String {
        format!("{}config/history/", self.prefix)
    }

    /// Numbers have as many digits each, so that the keys' order is theirs.
    pub fn history(&self, serial: u64) -> String {
        format!("{}{serial:012}", self.histories())
    }

    pub fn secrets(&self) -> String {
        format!("{}secrets/", self.prefix)
    }

    pub fn secret(&self, name: &str) -> String {
        format!("{}{name}", self.secrets())
    }

    pub fn flows(&self) -> String {
        format!("{}flows", self.prefix)
    }

    pub fn capacity(&self) -> String {
        format!("{}capacity", self.prefix)
    }

    /// Reads a key apart.
    pub fn parse<'a>(&self, key: &'a str) -> Key<'a> {
        if let Some(name) = key.strip_prefix(&self.loads) {
            return Key::Load(name);
        }
        let Some(rest) = key.strip_prefix(&self.prefix) else { return Key::Other };
        match rest {
            "leader" => return Key::Leader,
            "config/current" => return Key::Current,
            "config/candidate" => return Key::Candidate,
            "config/outcome" => return Key::Outcome,
            "flows" => return Key::Flows,
            "capacity" => return Key::Capacity,
            _ => {}
        }
        match rest.split_once('/') {
            Some(("engines", name)) => Key::Engine(name),
            Some(("drains", name)) => Key::Drain(name),
            Some(("weights", name)) => Key::Weight(name),
            Some(("deaths", name)) => Key::Death(name),
            Some(("secrets", name)) => Key::Secret(name),
            Some(("config", rest)) => match rest.strip_prefix("verdicts/").and_then(|rest| rest.split_once('/')) {
                Some((id, engine)) => Key::Verdict { id, engine },
                None => Key::Other,
            },
            _ => Key::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_made_is_read_as_what_it_is() {
        let keys = Keys::of("edge");
        assert_eq!(keys.parse(&keys.engine("e1")), Key::Engine("e1"));
        assert_eq!(keys.parse(&keys.load("e1")), Key::Load("e1"));
        assert_eq!(keys.parse(&keys.drain("e1")), Key::Drain("e1"));
        assert_eq!(keys.parse(&keys.weight("e1")), Key::Weight("e1"));
        assert_eq!(keys.parse(&keys.death("e1")), Key::Death("e1"));
        assert_eq!(keys.parse(&keys.leader()), Key::Leader);
        assert_eq!(keys.parse(&keys.current()), Key::Current);
        assert_eq!(keys.parse(&keys.candidate()), Key::Candidate);
        assert_eq!(keys.parse(&keys.verdict("7f", "e1")), Key::Verdict { id: "7f", engine: "e1" });
        assert_eq!(keys.parse(&keys.outcome()), Key::Outcome);
        assert_eq!(keys.parse(&keys.secret("certificates/a")), Key::Secret("certificates/a"));
        assert_eq!(keys.parse(&keys.flows()), Key::Flows);
        assert_eq!(keys.parse(&keys.history(3)), Key::Other);
        assert_eq!(keys.parse("propylon/edge2/leader"), Key::Other);
        assert!(keys.history(9) < keys.history(10));
    }
}

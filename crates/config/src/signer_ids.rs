//! Numbers of signers: one that stays as it is has the same in each configuration, and no other ever has it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::model::{Config, Signer, SignerId};

impl Config {
    /// The same configuration, with the numbers of `earlier` for the signers that are in both.
    #[must_use]
    pub fn with_signers_of(mut self, earlier: &Config) -> Config {
        let numbers = renumber(&mut self.signers, &earlier.signers);
        for profile in &mut self.tls {
            profile.signer = profile.signer.map(|id| numbers[id.0]);
        }
        self
    }

    /// The signer with this number; `None` if it is another configuration's.
    pub fn signer(&self, id: SignerId) -> Option<&Signer> {
        self.signers.iter().find(|signer| signer.id == id)
    }
}

/// Gives signers that stay the numbers that they have, and others such as none has ever had. Returns the numbers in
/// order.
fn renumber(signers: &mut [Signer], earlier: &[Signer]) -> Vec<SignerId> {
    /// Numbers of a first configuration lie below.
    static NEXT: AtomicUsize = AtomicUsize::new(1 << 16);
    for signer in &mut *signers {
        let known = earlier.iter().find(|known| known.says_the_same(signer)).map(|known| known.id);
        signer.id = known.unwrap_or_else(|| SignerId(NEXT.fetch_add(1, Ordering::Relaxed)));
    }
    signers.iter().map(|signer| signer.id).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Source, parse};

    use super::*;

    fn parsed(text: &str) -> Config {
        let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        parse(&source).unwrap_or_else(|problems| panic!("{problems:?}\n{text}")).0
    }

    /// A profile `NAME` for each signer that uses it.
    fn with_signers(process: &str, signers: &[(&str, &str)]) -> Config {
        let mut text = format!("[process]\n{process}\n[[route]]\nrespond = {{}}\n");
        for (name, lines) in signers {
            text += &format!("[listener.{name}]\nbind = \"127.0.0.1:0\"\ntls = \"{name}\"\n");
            text += &format!("[tls.{name}]\ncertificates = [\"{name}.pem\"]\nsigner = \"{name}\"\n");
            text += &format!("[signer.{name}]\n{lines}\n");
        }
        parsed(&text)
    }

    /// Numbers of signers by name, after a look at whether profiles have those of their own names.
    fn signers(config: &Config) -> Vec<(&str, SignerId)> {
        for profile in &config.tls {
            let signer = config.signer(profile.signer.expect("each has one")).expect("it is there");
            assert_eq!(signer.name, profile.name);
        }
        config.signers.iter().map(|signer| (signer.name.as_str(), signer.id)).collect()
    }

    const SIGNER: &str = "servers = [\"a:1\"]\nidentity = \"i\"\nca = \"c\"";

    #[test]
    fn a_signer_that_stays_as_it_is_keeps_its_number_and_profiles_have_theirs() {
        let first = with_signers("", &[("one", SIGNER), ("two", SIGNER)]);
        let second = with_signers("", &[("two", SIGNER), ("one", SIGNER)]);
        let second = second.with_signers_of(&first);
        assert_eq!(signers(&second), [("two", SignerId(1)), ("one", SignerId(0))]);
    }

    #[test]
    fn a_signers_number_is_never_given_to_another_nor_back_to_itself() {
        let first = with_signers("", &[("one", SIGNER)]);
        let second = with_signers("", &[("two", SIGNER)]).with_signers_of(&first);
        let (first, second_id) = (SignerId(0), signers(&second)[0].1);
        assert_ne!(second_id, first);
        let third = with_signers("", &[("one", SIGNER)]).with_signers_of(&second);
        assert!(![first, second_id].contains(&signers(&third)[0].1));
    }

    #[test]
    fn a_signer_that_is_different_in_anything_is_another() {
        let changed = |from: &str, to: &str| SIGNER.replace(from, to);
        let with = |line: &str| format!("{SIGNER}\n{line}");
        let first = with_signers("", &[("one", SIGNER)]);
        for later in [
            changed("a:1", "a:2"),
            changed("[\"a:1\"]", "[\"a:1\", \"b:1\"]"),
            changed("\"a:1\"", "{ address = \"a:1\", server_name = \"b\" }"),
            changed("identity = \"i\"", "identity = \"j\""),
            changed("ca = \"c\"", "ca = \"d\""),
            with("timeout = \"2s\"\nhedge = \"500ms\""),
            with("connections = 3"),
            with("hedge = \"100ms\""),
            with("verify = \"off\""),
            with("resolve_interval = \"31s\""),
            with("watch = \"10s\""),
        ] {
            let second = with_signers("", &[("one", &later)]).with_signers_of(&first);
            assert_ne!(signers(&second)[0].1, SignerId(0), "{later}");
        }
        let second = with_signers("allow_world_readable_keys = true", &[("one", SIGNER)]);
        let second = second.with_signers_of(&first);
        assert_ne!(signers(&second)[0].1, SignerId(0));
    }
}

//! Which client may use which keys, by the certificate that it has proved to own.

use std::num::NonZeroU32;

use propylon_config::keyserver::{Client, KeyReference, Operations};
use propylon_crypto::Hash;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Position of a `[[client]]` in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(pub usize);

/// Whose links share what there is of it: all that show the same certificate are one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// An id is the first 8 bytes of the certificate's SHA-256. Two clients that made theirs collide would only
    /// share a place.
    pub fn of(certificate: &[u8]) -> ClientId {
        let digest = Hash::Sha256.digest(certificate);
        let first = digest.as_ref().and_then(|digest| digest.as_ref().first_chunk::<8>().copied());
        ClientId(first.map_or(0, u64::from_be_bytes))
    }
}

/// The grants of a connection: a key operation is allowed if any of them allows it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Access(Box<[Grant]>);

/// The keys and operations that one `[[client]]` rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The keys that this rule names; absent: all.
    pub keys: Option<RuleId>,
    pub operations: Operations,
}

impl Access {
    pub fn new(grants: impl IntoIterator<Item = Grant>) -> Access {
        Access(grants.into_iter().collect())
    }

    /// The operations allowed on a key that `named_by` these rules, over all grants; absent if the key may not be
    /// used at all.
    pub fn to_key(&self, named_by: &[RuleId]) -> Option<Operations> {
        let grants = self.0.iter().filter(|grant| grant.keys.is_none_or(|rule| named_by.contains(&rule)));
        grants.map(|grant| grant.operations).reduce(Operations::union)
    }
}

/// The `[[client]]` sections.
pub struct Rules {
    clients: Vec<Client>,
}

/// The fields of a certificate that rules are matched against.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    common_names: Vec<String>,
    alternatives: Vec<String>,
    fingerprint: Option<[u8; 32]>,
}

impl Rules {
    pub fn new(clients: Vec<Client>) -> Rules {
        Rules { clients }
    }

    /// The grants and the rate (operations per second) for a certificate that the authority has signed and whose
    /// key the client has proved to hold. If several rules match, the highest rate counts, and one rule without a
    /// rate lifts the limit.
    pub fn access(&self, certificate: &[u8]) -> (Access, Option<NonZeroU32>) {
        if self.clients.is_empty() {
            return (Access::new([Grant { keys: None, operations: Operations::DEFAULT }]), None);
        }
        let names = Names::of(certificate);
        let matching: Vec<_> = self.clients.iter().enumerate().filter(|(_, client)| names.fit(client)).collect();
        let grant = |(id, client): &(usize, &Client)| {
            let keys = client.keys.is_some().then_some(RuleId(*id));
            Grant { keys, operations: client.operations }
        };
        let rates: Option<Vec<NonZeroU32>> = matching.iter().map(|(_, client)| client.rate).collect();
        (Access::new(matching.iter().map(grant)), rates.unwrap_or_default().into_iter().max())
    }

    /// The key references of each rule, indexed by rule id; absent where a rule names no keys and so covers all.
    pub fn references(&self) -> Vec<Option<Vec<KeyReference>>> {
        self.clients.iter().map(|client| client.keys.clone()).collect()
    }
}

impl Names {
    /// Reads the names from a DER certificate. If it cannot be parsed, only the fingerprint is known.
    fn of(der: &[u8]) -> Names {
        let fingerprint = Hash::Sha256.digest(der).and_then(|digest| digest.as_ref().try_into().ok());
        let mut names = Names { fingerprint, ..Names::default() };
        let Ok((_, certificate)) = X509Certificate::from_der(der) else { return names };
        let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        names.common_names = common.map(str::to_owned).collect();
        if let Ok(Some(extension)) = certificate.subject_alternative_name() {
            names.alternatives = extension.value.general_names.iter().filter_map(alternative).collect();
        }
        names
    }

    fn fit(&self, client: &Client) -> bool {
        let common = client.common_name.as_ref();
        common.is_none_or(|name| self.common_names.contains(name))
            && client.san.as_ref().is_none_or(|san| self.alternatives.iter().any(|name| name.eq_ignore_ascii_case(san)))
            && (client.fingerprint.is_none() || client.fingerprint == self.fingerprint)
    }
}

fn alternative(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(octets) => {
            let four = <[u8; 4]>::try_from(*octets).map(std::net::IpAddr::from);
            let sixteen = <[u8; 16]>::try_from(*octets).map(std::net::IpAddr::from);
            four.or(sixteen).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::keyserver::Operation;

    use super::*;

    fn certificate(common_name: &str, san: &str) -> Vec<u8> {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new([san.to_owned()]).expect("a name");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        parameters.self_signed(&key).expect("a certificate").der().to_vec()
    }

    fn client(common_name: Option<&str>, san: Option<&str>) -> Client {
        Client {
            common_name: common_name.map(Into::into),
            san: san.map(Into::into),
            fingerprint: None,
            keys: Some(Vec::new()),
            operations: Operations::DEFAULT,
            rate: None,
            at: propylon_config::At::default(),
        }
    }

    fn named(rules: &[usize]) -> Access {
        let grant = |id: &usize| Grant { keys: Some(RuleId(*id)), operations: Operations::DEFAULT };
        Access::new(rules.iter().map(grant))
    }

    #[test]
    fn without_rules_every_client_may_use_every_key_for_what_engines_ask_for() {
        let (access, rate) = Rules::new(Vec::new()).access(b"any");
        assert_eq!((access.to_key(&[]), rate), (Some(Operations::DEFAULT), None));
        for weak in [Operation::RsaDecrypt, Operation::RsaPkcs1Sha1, Operation::EcdsaMd5Sha1, Operation::EcdsaSha224] {
            assert!(!Operations::DEFAULT.contains(weak));
        }
    }

    #[test]
    fn every_property_that_a_rule_names_has_to_be_there() {
        let rules = Rules::new(vec![
            client(Some("engine"), None),
            client(None, Some("Engine.Example")),
            client(Some("engine"), Some("10.0.0.1")),
            client(Some("other"), Some("engine.example")),
        ]);
        let access = |common_name, san| rules.access(&certificate(common_name, san)).0;
        assert_eq!(access("engine", "engine.example"), named(&[0, 1]));
        assert_eq!(access("engine", "10.0.0.1"), named(&[0, 2]));
        assert_eq!(access("nobody", "nowhere.example"), named(&[]));
        assert_eq!(rules.access(b"no certificate").0, named(&[]));
    }

    #[test]
    fn a_fingerprint_is_the_sha_256_of_the_certificate_and_a_rule_without_keys_allows_all() {
        let der = certificate("engine", "engine.example");
        let fingerprint = Hash::Sha256.digest(&der).and_then(|digest| digest.as_ref().try_into().ok());
        let rules = Rules::new(vec![Client { fingerprint, keys: None, ..client(None, None) }]);
        assert_eq!(rules.access(&der).0.to_key(&[]), Some(Operations::DEFAULT));
        assert_eq!(rules.access(&certificate("engine", "engine.example")).0.to_key(&[]), None);
    }

    #[test]
    fn what_a_rule_allows_is_allowed_for_its_own_keys_and_the_highest_rate_counts() {
        let raw = Operations::NONE.and(Operation::RsaDecrypt);
        let rate = NonZeroU32::new;
        let mut rules = vec![
            Client { operations: raw, rate: rate(5), ..client(Some("engine"), None) },
            Client { rate: rate(7), ..client(Some("engine"), None) },
        ];
        let der = certificate("engine", "engine.example");
        let (access, most) = Rules::new(rules.clone()).access(&der);
        assert_eq!((access.to_key(&[RuleId(0)]), access.to_key(&[RuleId(2)]), most), (Some(raw), None, rate(7)));
        assert_eq!(access.to_key(&[RuleId(1), RuleId(0)]), Some(raw.union(Operations::DEFAULT)));
        rules.push(client(None, Some("engine.example")));
        assert_eq!(Rules::new(rules).access(&der).1, None);
    }
}

//! Which client may use which keys, by the certificate that it has proved to own.

use propylon_config::keyserver::{Client, KeyReference};
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
    /// The first bytes of the certificate's SHA-256. Clients that took the trouble to make two alike would share a place.
    pub fn of(certificate: &[u8]) -> ClientId {
        let digest = Hash::Sha256.digest(certificate);
        let first = digest.as_ref().and_then(|digest| digest.as_ref().first_chunk::<8>().copied());
        ClientId(first.map_or(0, u64::from_be_bytes))
    }
}

/// What a connection may do.
#[derive(Debug, PartialEq, Eq)]
pub enum Access {
    Everything,
    /// The keys that these name; of none, none.
    Rules(Box<[RuleId]>),
}

/// The `[[client]]` sections.
pub struct Rules {
    clients: Vec<Client>,
}

/// What of a certificate rules look at.
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

    /// Of a certificate that the authority has signed, and whose key the client has proved to hold.
    pub fn access(&self, certificate: &[u8]) -> Access {
        if self.clients.is_empty() {
            return Access::Everything;
        }
        let names = Names::of(certificate);
        let matching = self.clients.iter().enumerate().filter(|(_, client)| names.fit(client));
        let mut rules = Vec::new();
        for (id, client) in matching {
            if client.keys.is_none() {
                return Access::Everything;
            }
            rules.push(RuleId(id));
        }
        Access::Rules(rules.into())
    }

    /// What each rule names, by its id.
    pub fn references(&self) -> Vec<Option<Vec<KeyReference>>> {
        self.clients.iter().map(|client| client.keys.clone()).collect()
    }
}

impl Names {
    /// Of a certificate that cannot be read, nothing but the fingerprint is known.
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
            at: propylon_config::At::default(),
        }
    }

    #[test]
    fn without_rules_every_client_may_do_everything() {
        assert_eq!(Rules::new(Vec::new()).access(b"any"), Access::Everything);
    }

    #[test]
    fn every_property_that_a_rule_names_has_to_be_there() {
        let rules = Rules::new(vec![
            client(Some("engine"), None),
            client(None, Some("Engine.Example")),
            client(Some("engine"), Some("10.0.0.1")),
            client(Some("other"), Some("engine.example")),
        ]);
        let access = |common_name, san| rules.access(&certificate(common_name, san));
        assert_eq!(access("engine", "engine.example"), Access::Rules([RuleId(0), RuleId(1)].into()));
        assert_eq!(access("engine", "10.0.0.1"), Access::Rules([RuleId(0), RuleId(2)].into()));
        assert_eq!(access("nobody", "nowhere.example"), Access::Rules([].into()));
        assert_eq!(rules.access(b"no certificate"), Access::Rules([].into()));
    }

    #[test]
    fn a_fingerprint_is_the_sha_256_of_the_certificate_and_a_rule_without_keys_allows_all() {
        let der = certificate("engine", "engine.example");
        let fingerprint = Hash::Sha256.digest(&der).and_then(|digest| digest.as_ref().try_into().ok());
        let rules = Rules::new(vec![Client { fingerprint, keys: None, ..client(None, None) }]);
        assert_eq!(rules.access(&der), Access::Everything);
        assert_eq!(rules.access(&certificate("engine", "engine.example")), Access::Rules([].into()));
    }
}

//! Certificates that the engine is given one after the other, all by one authority, and which of them is shown.

use propylon_bench::failure::{Failure, Outcome, While};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};

/// The name that clients ask for and verify.
pub const NAME: &str = "chaos.test";

/// The name that the engine verifies its servers by.
pub const SERVERS_NAME: &str = "servers.test";

pub struct TestCertificates {
    issuer: Issuer<'static, KeyPair>,
    pub ca_pem: String,
    /// Certificates by number, as clients see them.
    leaves: Vec<Vec<u8>>,
    shown: u32,
}

impl TestCertificates {
    /// With its first certificate, as PEM with its key.
    pub fn new() -> Outcome<(Self, String)> {
        let doing = "making the run's authority";
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).when(doing)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Propylon chaos authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_pem = params.self_signed(&key).when(doing)?.pem();
        let mut test_certificates = Self { issuer: Issuer::new(params, key), ca_pem, leaves: Vec::new(), shown: 0 };
        let first = test_certificates.change()?;
        Ok((test_certificates, first))
    }

    /// A new one, which is to be shown from now on.
    pub fn change(&mut self) -> Outcome<String> {
        let doing = "making a certificate";
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).when(doing)?;
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).when(doing)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer).when(doing)?;
        self.leaves.push(certificate.der().to_vec());
        self.shown = u32::try_from(self.leaves.len() - 1).map_err(|_| Failure::new("too many certificates"))?;
        Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
    }

    /// A certificate for another purpose, and its key, as PEM.
    pub fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Outcome<(String, String)> {
        let doing = "making a certificate";
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).when(doing)?;
        let mut params = CertificateParams::new(vec![name.to_owned()]).when(doing)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).when(doing)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// The number of the one that is shown.
    pub fn shown(&self) -> u32 {
        self.shown
    }

    pub fn show(&mut self, number: u32) {
        self.shown = number;
    }

    /// The certificates by number, as a client sees them.
    pub fn leaves(&self) -> &[Vec<u8>] {
        &self.leaves
    }
}

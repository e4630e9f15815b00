//! Certificates from an operator's own authority, made by the test that uses them.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::testbed::Testbed;

/// The files of an authority and of a server with its signature: all in PEM.
#[derive(Debug)]
pub struct Certificates {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The server's certificate, for 127.0.0.1.
    pub certificate: PathBuf,
    /// The server's key.
    pub key: PathBuf,
}

impl Certificates {
    /// The files of an authority with this name.
    ///
    /// # Panics
    /// If there is no randomness, or the bed can't be written.
    pub fn signed_by(bed: &Testbed, name: &str) -> Certificates {
        let is_made = "keys and certificates can be made";
        let mut authority = CertificateParams::new(Vec::new()).expect(is_made);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect(is_made);
        let ca = authority.self_signed(&key).expect(is_made).pem();
        let issuer = Issuer::new(authority, key);
        let key = KeyPair::generate().expect(is_made);
        let here = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect(is_made);
        let certificate = here.signed_by(&key, &issuer).expect(is_made).pem();
        Certificates {
            ca: bed.file(&format!("{name}-ca.pem"), ca),
            certificate: bed.file(&format!("{name}.pem"), certificate),
            key: bed.file(&format!("{name}.key"), key.serialize_pem()),
        }
    }
}

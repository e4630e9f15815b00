//! Certificates from an operator's own authority, made by the test that uses them.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};

use crate::testbed::Testbed;

/// The files of an authority and of somebody with its signature: all in PEM.
#[derive(Debug)]
pub struct Certificates {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// An authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, in PEM.
    pub ca: PathBuf,
}

const IS_MADE: &str = "keys and certificates can be made";

impl Certificates {
    /// The files of an authority with this name, and of a server at 127.0.0.1.
    ///
    /// # Panics
    /// If there is no randomness, or the bed can't be written.
    pub fn signed_by(bed: &Testbed, name: &str) -> Certificates {
        Authority::new(bed, name).server(bed, name)
    }
}

impl Authority {
    /// An authority with this name.
    ///
    /// # Panics
    /// If there is no randomness, or the bed can't be written.
    pub fn new(bed: &Testbed, name: &str) -> Authority {
        let mut authority = CertificateParams::new(Vec::new()).expect(IS_MADE);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect(IS_MADE);
        let ca = authority.self_signed(&key).expect(IS_MADE).pem();
        Authority {
            issuer: Issuer::new(authority, key),
            ca: bed.file(&format!("{name}-ca.pem"), ca),
        }
    }

    /// A server at 127.0.0.1.
    ///
    /// # Panics
    /// If there is no randomness, or the bed can't be written.
    pub fn server(&self, bed: &Testbed, name: &str) -> Certificates {
        let here = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect(IS_MADE);
        self.sign(bed, name, &here)
    }

    /// A client with a URI for its name.
    ///
    /// # Panics
    /// If there is no randomness, or the bed can't be written.
    pub fn client(&self, bed: &Testbed, name: &str, uri: &str) -> Certificates {
        self.sign(bed, name, &Authority::params_of(uri))
    }

    /// A client whose certificate has ended.
    ///
    /// # Panics
    /// If there is no randomness, or the bed can't be written.
    pub fn expired_client(&self, bed: &Testbed, name: &str, uri: &str) -> Certificates {
        let mut params = Authority::params_of(uri);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        self.sign(bed, name, &params)
    }

    fn params_of(uri: &str) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).expect(IS_MADE);
        let uri = uri.try_into().expect(IS_MADE);
        params.subject_alt_names.push(SanType::URI(uri));
        params
    }

    fn sign(&self, bed: &Testbed, name: &str, params: &CertificateParams) -> Certificates {
        let key = KeyPair::generate().expect(IS_MADE);
        let certificate = params.signed_by(&key, &self.issuer).expect(IS_MADE).pem();
        Certificates {
            ca: self.ca.clone(),
            certificate: bed.file(&format!("{name}.pem"), certificate),
            key: bed.secret(&format!("{name}.key"), key.serialize_pem()),
        }
    }
}

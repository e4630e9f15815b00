//! The administrative API on the network.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::error::ConfigError;
use crate::limits::MAX_ADMIN_CERTIFICATES;

/// The administrative API on the network: the section `[admin]`. On the host it is always there.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// The address. Beyond loopback it needs a certificate.
    pub listen: Option<SocketAddr>,
    /// File with the server's certificate and those up to its authority, in PEM. Read again when it
    /// changes.
    pub certificate: Option<PathBuf>,
    /// File with its key, in PEM, readable by its owner only. Read again when it changes.
    pub key: Option<PathBuf>,
    /// File with the authorities of clients' certificates, in PEM. Read again when it changes.
    pub client_ca: Option<PathBuf>,
    /// Clients' certificates that stand for credentials. The first that fits counts.
    pub certificates: Vec<AdminCertificate>,
}

/// A client's certificate that stands for a credential: a table `[[admin.certificates]]`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct AdminCertificate {
    /// A name in the certificate, a URI or a DNS name; `*` at its end stands for any characters.
    pub name: String,
    /// The credential's tenant; without one, it is an operators' credential.
    pub tenant: Option<String>,
    /// The credential.
    pub credential: String,
}

impl AdminCertificate {
    /// Whether it is about a certificate with one of these names.
    pub(crate) fn fits(&self, names: &[String]) -> bool {
        names.iter().any(|name| match self.name.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => *name == self.name,
        })
    }
}

impl AdminConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |setting, value: String, expected: &'static str| {
            Err(ConfigError::OutOfRange {
                setting,
                value,
                expected: expected.into(),
            })
        };
        let shown = |path: &Option<PathBuf>| match path {
            Some(path) => path.display().to_string(),
            None => String::new(),
        };
        match (&self.certificate, &self.key) {
            (Some(_), None) => {
                let expected = "a certificate needs its key, in admin.key";
                return wrong("admin.certificate", shown(&self.certificate), expected);
            }
            (None, Some(_)) => {
                let expected = "a key needs its certificate, in admin.certificate";
                return wrong("admin.key", "(hidden)".to_owned(), expected);
            }
            _ => {}
        }
        if let (Some(address), None) = (&self.listen, &self.certificate)
            && !address.ip().to_canonical().is_loopback()
        {
            let expected = "beyond loopback, tokens would travel in the clear: set admin.certificate and admin.key";
            return wrong("admin.listen", address.to_string(), expected);
        }
        if self.client_ca.is_some() && self.certificate.is_none() {
            let expected = "clients' certificates need TLS: set admin.certificate and admin.key";
            return wrong("admin.client_ca", shown(&self.client_ca), expected);
        }
        if self.certificates.len() > MAX_ADMIN_CERTIFICATES {
            let expected = format!("0 to {MAX_ADMIN_CERTIFICATES} tables");
            return Err(ConfigError::OutOfRange {
                setting: "admin.certificates",
                value: self.certificates.len().to_string(),
                expected: expected.into(),
            });
        }
        for certificate in &self.certificates {
            let name = &certificate.name;
            if self.client_ca.is_none() {
                let expected =
                    "without authorities, no client has a certificate: set admin.client_ca";
                return wrong("admin.certificates", format!("{name:?}"), expected);
            }
            let beginning = name.strip_suffix('*').unwrap_or(name);
            // A bare `*` would be every certificate of the authorities.
            if beginning.is_empty() || beginning.contains('*') {
                let expected = "the name of a certificate, with `*` at its end at most";
                return wrong("admin.certificates", format!("{name:?}"), expected);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let config: AdminConfig = toml::from_str(text).unwrap();
        config.check().map_err(|error| error.to_string())
    }

    #[test]
    fn the_network_needs_tls_and_certificates_need_authorities() {
        const TLS: &str = "certificate = 'a.pem'\nkey = 'a.key'\n";
        let with = |rest: &str| checked(&format!("{TLS}{rest}"));
        assert_eq!(checked(""), Ok(()));
        assert_eq!(checked("listen = '127.0.0.1:0'"), Ok(()));
        assert_eq!(checked("listen = '[::ffff:127.0.0.1]:0'"), Ok(()));
        assert_eq!(with("listen = '0.0.0.0:7443'"), Ok(()));
        let entry = "\nclient_ca = 'ca.pem'\n[[certificates]]\ncredential = 'ci'\n";
        assert_eq!(with(&format!("{entry}name = 'spiffe://acme/ci/*'")), Ok(()));
        for (refused, words) in [
            (checked("listen = '0.0.0.0:7443'"), "in the clear"),
            (checked("listen = '[::]:7443'"), "in the clear"),
            (checked("certificate = 'a.pem'"), "needs its key"),
            (checked("key = 'a.key'"), "needs its certificate"),
            (checked("client_ca = 'ca.pem'"), "need TLS"),
            (
                with("[[certificates]]\nname = 'a'\ncredential = 'b'"),
                "set admin.client_ca",
            ),
            (with(&format!("{entry}name = '*'")), "`*` at its end"),
            (with(&format!("{entry}name = 'a*b'")), "`*` at its end"),
            (with(&format!("{entry}name = ''")), "`*` at its end"),
        ] {
            let said = refused.unwrap_err();
            assert!(said.contains(words), "{said}");
        }
        let many = "[[certificates]]\nname = 'a'\ncredential = 'b'\n";
        let many = with(&format!(
            "client_ca = 'c'\n{}",
            many.repeat(MAX_ADMIN_CERTIFICATES + 1)
        ));
        assert!(
            many.unwrap_err()
                .contains(&MAX_ADMIN_CERTIFICATES.to_string())
        );
    }

    #[test]
    fn a_name_fits_as_a_whole_or_by_its_beginning() {
        let entry = |name: &str| AdminCertificate {
            name: name.to_owned(),
            tenant: None,
            credential: "ci".to_owned(),
        };
        let names = [
            "spiffe://acme/ci/7".to_owned(),
            "ci.acme.example".to_owned(),
        ];
        for (name, fits) in [
            ("spiffe://acme/ci/7", true),
            ("spiffe://acme/ci/*", true),
            ("ci.acme.example", true),
            ("spiffe://acme/ci", false),
            ("spiffe://acme/ci/71", false),
            ("spiffe://acme/deploy/*", false),
        ] {
            assert_eq!(entry(name).fits(&names), fits, "{name}");
            assert!(!entry(name).fits(&[]));
        }
    }
}

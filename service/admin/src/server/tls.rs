//! TLS towards clients on the network (RFC 8446): the server's certificate, and clients' ones.
//!
//! A client may have a certificate. If it has, it must be one of the authorities'; its names then
//! say who the client is. The configuration is asked for with each handshake, so a renewed
//! certificate is used by the next connection.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::limits::HANDSHAKE_TIME;

/// The protocol of the connections: HTTP/2 (RFC 7301).
const ALPN: &[u8] = b"h2";

/// What the server proves itself and checks clients with, in PEM.
#[derive(Clone, Copy, Debug)]
pub struct TlsMaterial<'a> {
    /// The server's certificate, then those between it and its authority.
    pub certificates: &'a [u8],
    /// Its key.
    pub key: &'a [u8],
    /// The authorities of clients' certificates; none: clients have no certificate.
    pub client_authorities: Option<&'a [u8]>,
}

/// Why TLS can't be served with some material.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum TlsError {
    #[error("the certificate isn't PEM: {0}")]
    Certificate(rustls::pki_types::pem::Error),
    #[error("the certificate's file has no certificate")]
    NoCertificate,
    #[error("the key isn't one private key in PEM: {0}")]
    Key(rustls::pki_types::pem::Error),
    #[error("the clients' authorities aren't PEM: {0}")]
    Authorities(rustls::pki_types::pem::Error),
    #[error("a certificate of the clients' authorities can't be used: {0}")]
    Authority(rustls::Error),
    #[error("clients' certificates can't be checked: {0}")]
    Verifier(rustls::server::VerifierBuilderError),
    #[error("certificate and key can't be used together: {0}")]
    Pair(rustls::Error),
}

/// What is used for handshakes from now on.
#[derive(Clone, Debug)]
pub struct TlsConfig(Arc<ServerConfig>);

impl TlsConfig {
    /// Whether this is the same configuration, not only an equal one.
    pub fn is(&self, other: &TlsConfig) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// TLS 1.3 and nothing older.
    ///
    /// # Errors
    /// The material can't be used.
    pub fn new(material: TlsMaterial<'_>) -> Result<TlsConfig, TlsError> {
        let certificates = certificates(material.certificates).map_err(TlsError::Certificate)?;
        if certificates.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(material.key).map_err(TlsError::Key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let config = config
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(TlsError::Pair)?;
        let config = match material.client_authorities {
            None => config.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for authority in self::certificates(pem).map_err(TlsError::Authorities)? {
                    roots.add(authority).map_err(TlsError::Authority)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                let verifier = verifier.allow_unauthenticated().build();
                config.with_client_cert_verifier(verifier.map_err(TlsError::Verifier)?)
            }
        };
        let config = config.with_single_cert(certificates, key);
        let mut config = config.map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would have the names of a certificate that may have ended since.
        config.send_tls13_tickets = 0;
        Ok(TlsConfig(Arc::new(config)))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

/// Has the configuration, and is told of failures.
pub trait TlsSource: Send + Sync {
    /// The configuration for the next handshake. Must not block for long.
    fn current(&self) -> TlsConfig;

    /// A handshake failed.
    fn failed(&self, address: IpAddr, why: &str);
}

impl<S: TlsSource + ?Sized> TlsSource for Arc<S> {
    fn current(&self) -> TlsConfig {
        (**self).current()
    }

    fn failed(&self, address: IpAddr, why: &str) {
        (**self).failed(address, why);
    }
}

/// The server's side of TLS.
#[derive(Clone)]
pub struct Tls(Arc<dyn TlsSource>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    /// TLS with the configurations of a source.
    pub fn new(source: impl TlsSource + 'static) -> Tls {
        Tls(Arc::new(source))
    }

    /// Shakes hands. Returns the names of the client's certificate, too; `None`: the handshake
    /// failed.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        address: IpAddr,
    ) -> Option<(TlsStream<TcpStream>, Arc<[String]>)> {
        let TlsConfig(config) = self.0.current();
        let shaken = TlsAcceptor::from(config).accept(stream);
        let stream = match tokio::time::timeout(HANDSHAKE_TIME, shaken).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.0.failed(address, &error.to_string());
                return None;
            }
            Err(_elapsed) => {
                self.0
                    .failed(address, &format!("it took longer than {HANDSHAKE_TIME:?}"));
                return None;
            }
        };
        let (_, connection) = stream.get_ref();
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let names = certificate.map_or_else(Arc::default, names_of);
        Some((stream, names))
    }
}

/// The names of a certificate that was verified: URIs, then DNS names.
fn names_of(certificate: &CertificateDer<'_>) -> Arc<[String]> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
        return Arc::default();
    };
    let names = certificate.valid_uri_names();
    let names = names.chain(certificate.valid_dns_names());
    names.map(str::to_owned).collect()
}

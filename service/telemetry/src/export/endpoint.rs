//! Export destinations: what an operator writes, checked before a client is made of it.

use std::net::IpAddr;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tonic::codegen::http::Uri;

use crate::headers::Headers;

/// The protocol of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC: port 4317 of a collector.
    #[default]
    Grpc,
    /// OTLP over HTTP, in protobuf: port 4318 of a collector.
    Http,
}

/// An export destination, and the form of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) url: String,
    pub(super) protocol: Protocol,
    pub(super) headers: Headers,
    /// Authorities that may have signed its certificate; empty: the system's.
    pub(super) authorities: Vec<CertificateDer<'static>>,
    pub(super) is_compressed: bool,
}

/// The reason why an endpoint is invalid: the operator's mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// It isn't a URL with a host.
    #[error("{url:?} is no endpoint: use http://HOST:PORT")]
    NoUrl {
        /// The operator's text.
        url: String,
    },
    /// The URL has an invalid character. Some URL parsers skip such characters, and some don't.
    #[error("{url:?} has {character:?} in it, which a URL can't have: use http://HOST:PORT")]
    Character {
        /// The operator's text.
        url: String,
        /// The first invalid character.
        character: char,
    },
    /// The scheme isn't supported.
    #[error("{url:?}: scheme {scheme} isn't supported; use http or https")]
    Scheme {
        /// The operator's text.
        url: String,
        /// Its scheme.
        scheme: String,
    },
    /// The URL has a part that may be a secret and would be shown with the URL.
    #[error("{url:?} has {part} that isn't shown here: put secrets into headers")]
    Secret {
        /// The operator's text without that part.
        url: String,
        /// The name of the part.
        part: &'static str,
    },
    /// The endpoint doesn't use TLS, so authorities are useless.
    #[error("{url:?} has no certificate that authorities could sign: use https")]
    NoTls {
        /// The operator's text.
        url: String,
    },
    /// The authorities are invalid.
    #[error("{why}: authorities are certificates in PEM")]
    NoAuthorities {
        /// The problem.
        why: String,
    },
    /// The client can't be created.
    #[error("{url:?} can't be used: {why}")]
    Unusable {
        /// The operator's text.
        url: String,
        /// The client's error.
        why: String,
    },
}

impl Endpoint {
    /// Checks an operator's URL.
    ///
    /// # Errors
    /// If it isn't a URL, has an unsupported scheme, or has a part that may be a secret.
    pub fn new(url: &str, protocol: Protocol) -> Result<Endpoint, EndpointError> {
        let url = url.trim_end_matches('/').to_owned();
        let is_none = |c: &char| c.is_whitespace() || c.is_control() || *c == '\\';
        if let Some(character) = url.chars().find(is_none)
            && !url.contains('@')
        {
            return Err(EndpointError::Character { url, character });
        }
        let parsed = reqwest::Url::parse(&url).ok();
        let Some(mut parsed) = parsed.filter(reqwest::Url::has_host) else {
            let url = match url.rsplit_once('@') {
                Some((_maybe_secret, rest)) => format!("...@{rest}"),
                None => url,
            };
            return Err(EndpointError::NoUrl { url });
        };
        let is_named = !parsed.username().is_empty() || parsed.password().is_some();
        let has_more = parsed.query().is_some() || parsed.fragment().is_some();
        if is_named || has_more {
            let part = match is_named {
                true => "a user",
                false => "a query",
            };
            let _a_url_with_a_host_takes_them =
                (parsed.set_username(""), parsed.set_password(None));
            parsed.set_query(None);
            parsed.set_fragment(None);
            let url = parsed.into();
            return Err(EndpointError::Secret { url, part });
        }
        if !["http", "https"].contains(&parsed.scheme()) {
            let scheme = parsed.scheme().to_owned();
            return Err(EndpointError::Scheme { url, scheme });
        }
        check_place(&url)?;
        Ok(Endpoint {
            url,
            protocol,
            headers: Headers::default(),
            authorities: Vec::new(),
            is_compressed: false,
        })
    }

    /// Adds these headers to each request.
    #[must_use]
    pub fn with_headers(self, headers: Headers) -> Endpoint {
        Endpoint { headers, ..self }
    }

    /// Compresses each request with gzip.
    #[must_use]
    pub fn compressed(self) -> Endpoint {
        Endpoint {
            is_compressed: true,
            ..self
        }
    }

    /// Trusts only these authorities to sign its certificate.
    ///
    /// # Errors
    /// If they aren't certificates in PEM, or the endpoint doesn't use TLS.
    pub fn with_authorities(self, pem: &[u8]) -> Result<Endpoint, EndpointError> {
        self.needs_tls()?;
        let wrong = |why: String| EndpointError::NoAuthorities { why };
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let authorities = found.map_err(|error| wrong(error.to_string()))?;
        if authorities.is_empty() {
            return Err(wrong("there is no certificate".to_owned()));
        }
        for (number, authority) in (1..).zip(&authorities) {
            let added = RootCertStore::empty().add(authority.clone());
            added.map_err(|error| wrong(format!("certificate {number}: {error}")))?;
        }
        Ok(Endpoint {
            authorities,
            ..self
        })
    }

    /// # Errors
    /// If the endpoint doesn't use TLS.
    pub fn needs_tls(&self) -> Result<(), EndpointError> {
        match self.has_tls() {
            true => Ok(()),
            false => {
                let url = self.url.clone();
                Err(EndpointError::NoTls { url })
            }
        }
    }

    pub(super) fn has_tls(&self) -> bool {
        let scheme = self.url.split(':').next().unwrap_or_default();
        scheme.eq_ignore_ascii_case("https")
    }

    /// Whether its headers are readable on a network: they travel unencrypted to another host.
    pub fn shows_headers(&self) -> bool {
        let url = reqwest::Url::parse(&self.url).ok();
        let host = url.as_ref().and_then(reqwest::Url::host_str);
        let host = host.unwrap_or_default().trim_matches(['[', ']']);
        let address = host.parse().map(|address: IpAddr| address.is_loopback());
        let is_here = address.unwrap_or(host == "localhost");
        !self.has_tls() && !self.headers.is_empty() && !is_here
    }

    /// The URL as the operator wrote it.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Checks that connections can be made there: the gRPC library parses URLs differently from the
/// library that has parsed this one.
fn check_place(url: &str) -> Result<(), EndpointError> {
    let unusable = |why| EndpointError::Unusable {
        url: url.to_owned(),
        why,
    };
    let parsed = url.parse::<Uri>();
    let uri = parsed.map_err(|error| unusable(error.to_string()))?;
    let port = uri.authority().and_then(|authority| {
        let (_, port) = authority.as_str().rsplit_once(':')?;
        // The bracket at the end of an address is no port.
        (!port.contains(']')).then_some(port)
    });
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => Ok(()),
        Some(_) => Err(unusable(format!(
            "its port is {:?}; use 1 to 65535",
            port.unwrap_or_default()
        ))),
    }
}

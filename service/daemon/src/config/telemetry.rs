//! What is known of calls, and who is told.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tollgate_telemetry::export::{Endpoint, Protocol};
use tollgate_telemetry::headers::Headers;
use tollgate_telemetry::limits::{MAX_CA_BYTES, MAX_HEADERS_BYTES};
use tollgate_telemetry::sampling::{MILLION, Sampler, Sampling};

use super::error::ConfigError;
use crate::limits::{MAX_KEPT_SPANS, MAX_TENANT_ENDPOINTS};

/// What is known of calls, and who is told: the section `[telemetry]`. OPERATIONS.md says what each signal means.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Whether calls' durations are counted, per tenant, method, side and status. Default true.
    pub durations: bool,
    /// Where Prometheus scrapes `/metrics`, over HTTP. Default: nowhere. All tenants' numbers are there, for whoever can connect: keep it on
    /// loopback, or behind a firewall.
    pub prometheus: Option<SocketAddr>,
    /// The OpenTelemetry collector that gets everything, such as `http://127.0.0.1:4317`, or `https://` with TLS. Default: none.
    pub endpoint: Option<String>,
    /// How it is spoken to: `grpc` (default) or `http`.
    pub protocol: OtlpProtocol,
    /// File with headers that each request to it carries, one `name: value` per line, as of an API key. Read at the start. Default: none.
    pub headers_file: Option<PathBuf>,
    /// File with the certificates, in PEM, of who may have signed its own, for https. Read at the start. Default: whom the system trusts.
    pub ca: Option<PathBuf>,
    /// How requests to it are compressed: `none` (default) or `gzip`.
    pub compression: Compression,
    /// Of a million calls whose application has no span of its own for them, how many begin a trace, 0 to 1,000,000. Default 10,000: one in a
    /// hundred. Those that have one are traced if that is. Only if there is an endpoint.
    pub sample_per_million: u32,
    /// Whether calls that fail have spans in any case. Default true. Only if there is an endpoint.
    pub sample_errors: bool,
    /// Whether calls that fail have a line in the daemon's own log, too, ten a second per tenant at most. Default false; an endpoint gets them in
    /// any case.
    pub log_failures: bool,
    /// How many of the newest spans each runtime keeps for `tollgate trace` and `tollgate explain`, 0 to 100,000, each about 1 KB; with no endpoint,
    /// they are of calls that fail and of calls whose application has a span of its own. Default 1,000.
    pub kept_spans: u32,
    /// How often metrics are sent, in seconds, 1 to 3,600. Default 10.
    pub interval_s: u32,
    /// What tenants have of their own, by their names.
    pub tenants: BTreeMap<String, TenantTelemetry>,
}

/// A tenant's own telemetry: the sections `[telemetry.tenants.NAME]`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct TenantTelemetry {
    /// A collector that gets what is this tenant's, and nothing else. Default: none.
    pub endpoint: Option<String>,
    /// How it is spoken to: `grpc` (default) or `http`.
    pub protocol: OtlpProtocol,
    /// As for everybody, of this collector. Default: none; everybody's aren't sent to it.
    pub headers_file: Option<PathBuf>,
    /// As for everybody, of this collector. Default: whom the system trusts.
    pub ca: Option<PathBuf>,
    /// As for everybody, of this collector. Default: `none`.
    pub compression: Compression,
    /// As for everybody, of this tenant's calls. Default: what holds for everybody.
    pub sample_per_million: Option<u32>,
    /// As for everybody, of this tenant's calls. Default: what holds for everybody.
    pub sample_errors: Option<bool>,
}

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// OTLP over gRPC, usually port 4317
    #[default]
    Grpc,
    /// OTLP over HTTP, usually port 4318
    Http,
}

/// How requests to a collector are compressed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// They aren't
    #[default]
    None,
    /// A tenth of the bytes or so, for some CPU; the collector has to take it
    Gzip,
}

/// What is configured of one endpoint.
struct Told<'c> {
    /// Whose it is; nobody's: everything's.
    tenant: Option<&'c str>,
    url: &'c Option<String>,
    protocol: OtlpProtocol,
    headers_file: &'c Option<PathBuf>,
    ca: &'c Option<PathBuf>,
    compression: Compression,
}

impl<'c> Told<'c> {
    /// What can be known of it without its files; `None` if there is none.
    fn checked(&self) -> Result<Option<Endpoint>, ConfigError> {
        let of = self.tenant.unwrap_or("the daemon");
        let Some(url) = self.url else {
            let idle = [("headers_file", self.headers_file), ("ca", self.ca)];
            let idle = idle
                .into_iter()
                .find_map(|(key, path)| Some((key, path.as_ref()?)));
            let Some((key, path)) = idle else {
                return Ok(None);
            };
            return Err(ConfigError::OutOfRange {
                setting: "telemetry",
                value: format!("{key} {path:?} of {of}"),
                expected: "an endpoint is wanted beside it",
            });
        };
        let endpoint = Endpoint::new(url, self.protocol.into())?;
        if self.ca.is_some() {
            endpoint.needs_tls()?;
        }
        Ok(Some(match self.compression {
            Compression::None => endpoint,
            Compression::Gzip => endpoint.compressed(),
        }))
    }

    /// It, with what is in its files.
    fn endpoint(&self) -> Result<Option<(Option<&'c str>, Endpoint)>, ConfigError> {
        let Some(mut endpoint) = self.checked()? else {
            return Ok(None);
        };
        if let Some(path) = self.headers_file {
            let headers = Headers::parse(&read(path, MAX_HEADERS_BYTES)?);
            let headers = headers.map_err(|error| ConfigError::Headers {
                path: path.clone(),
                error,
            })?;
            endpoint = endpoint.with_headers(headers);
        }
        if let Some(path) = self.ca {
            let trusting = endpoint.with_authorities(&read(path, MAX_CA_BYTES)?);
            endpoint = trusting.map_err(|error| ConfigError::Authorities {
                path: path.clone(),
                error,
            })?;
        }
        Ok(Some((self.tenant, endpoint)))
    }
}

/// A small file; of a larger one, or of one that has no end, a byte more than it may have.
fn read(path: &Path, most: usize) -> Result<Vec<u8>, ConfigError> {
    let mut content = Vec::new();
    let file = File::open(path);
    let read = file.and_then(|file| file.take(most as u64 + 1).read_to_end(&mut content));
    read.map_err(|error| ConfigError::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    if content.len() > most {
        return Err(ConfigError::TooLong {
            path: path.to_owned(),
            most,
        });
    }
    Ok(content)
}

impl From<OtlpProtocol> for Protocol {
    fn from(protocol: OtlpProtocol) -> Self {
        match protocol {
            OtlpProtocol::Grpc => Protocol::Grpc,
            OtlpProtocol::Http => Protocol::Http,
        }
    }
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            durations: true,
            prometheus: None,
            endpoint: None,
            protocol: OtlpProtocol::default(),
            headers_file: None,
            ca: None,
            compression: Compression::default(),
            sample_per_million: 10_000,
            sample_errors: true,
            log_failures: false,
            kept_spans: 1_000,
            interval_s: 10,
            tenants: BTreeMap::new(),
        }
    }
}

impl TelemetryConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=3_600).contains(&self.interval_s) {
            return Err(ConfigError::OutOfRange {
                setting: "telemetry.interval_s",
                value: self.interval_s.to_string(),
                expected: "1 to 3600",
            });
        }
        if self.kept_spans > MAX_KEPT_SPANS {
            return Err(ConfigError::OutOfRange {
                setting: "telemetry.kept_spans",
                value: self.kept_spans.to_string(),
                expected: "0 to 100000",
            });
        }
        if self.tenants.len() > MAX_TENANT_ENDPOINTS {
            return Err(ConfigError::OutOfRange {
                setting: "telemetry.tenants",
                value: self.tenants.len().to_string(),
                expected: "at most 256",
            });
        }
        for (name, its) in &self.tenants {
            if its.sample_per_million.is_some_and(|part| part > MILLION) {
                return Err(ConfigError::OutOfRange {
                    setting: "telemetry.tenants",
                    value: format!("{name}.sample_per_million"),
                    expected: "0 to 1000000",
                });
            }
        }
        self.told().try_for_each(|told| told.checked().map(|_| ()))
    }

    /// Whether anybody gets spans and lines.
    pub(crate) fn is_told(&self) -> bool {
        self.endpoint.is_some() || self.tenants.values().any(|its| its.endpoint.is_some())
    }

    /// Which calls are traced: by chance only if somebody gets them.
    pub(crate) fn sampler(&self) -> Sampler {
        let by_chance = |per_million| match self.is_told() {
            true => per_million,
            false => 0,
        };
        let default = Sampling {
            per_million: by_chance(self.sample_per_million),
            errors: self.sample_errors,
        };
        let own = |its: &TenantTelemetry| Sampling {
            per_million: its
                .sample_per_million
                .map_or(default.per_million, by_chance),
            errors: its.sample_errors.unwrap_or(default.errors),
        };
        let tenants = self.tenants.iter();
        let tenants = tenants.map(|(name, its)| (name.clone(), own(its)));
        Sampler {
            default,
            tenants: Arc::new(tenants.collect()),
        }
    }

    /// Who is told: `None` is everything's, the others are tenants'. Reads their files.
    pub(crate) fn endpoints(&self) -> Result<Vec<(Option<&str>, Endpoint)>, ConfigError> {
        let endpoints = self.told().map(|told| told.endpoint());
        endpoints.filter_map(Result::transpose).collect()
    }

    fn told(&self) -> impl Iterator<Item = Told<'_>> {
        let own = Told {
            tenant: None,
            url: &self.endpoint,
            protocol: self.protocol,
            headers_file: &self.headers_file,
            ca: &self.ca,
            compression: self.compression,
        };
        let tenants = self.tenants.iter().map(|(name, its)| Told {
            tenant: Some(name),
            url: &its.endpoint,
            protocol: its.protocol,
            headers_file: &its.headers_file,
            ca: &its.ca,
            compression: its.compression,
        });
        [own].into_iter().chain(tenants)
    }
}

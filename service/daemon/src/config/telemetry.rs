//! Telemetry of calls, and its receivers.

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

use super::error::{ConfigError, is_no_path};

/// Telemetry of calls, and its receivers: the section `[telemetry]`.
/// docs/src/operate/telemetry.md describes each signal.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Whether to count calls' durations, per tenant, method, side and status.
    pub durations: bool,
    /// Address at which Prometheus scrapes `/metrics` over HTTP. It shows all tenants' numbers to
    /// every client that can connect: keep it on loopback, or behind a firewall.
    pub prometheus: Option<SocketAddr>,
    /// The OpenTelemetry collector for all signals, such as `http://127.0.0.1:4317`, or `https://`
    /// with TLS.
    pub endpoint: Option<String>,
    /// The collector's protocol: `grpc` (default) or `http`.
    pub protocol: OtlpProtocol,
    /// File with headers that each request to it carries, one `name: value` per line, for example
    /// an API key. Read at the start.
    pub headers_file: Option<PathBuf>,
    /// File with the certificates, in PEM, of the authorities that may have signed the collector's
    /// certificate, for https. Read at the start.
    pub ca: Option<PathBuf>,
    /// Compression of requests to it: `none` (default) or `gzip`.
    pub compression: Compression,
    /// Sampling rate of calls whose application has no span of its own for them: how many in a
    /// million begin a trace. Calls with an application's span are traced if that span is sampled.
    /// Applies only if there is an endpoint.
    pub sample_per_million: u32,
    /// Whether every failed call gets spans. Applies only if there is an endpoint.
    pub sample_errors: bool,
    /// Whether failed calls are also logged in the daemon's own log, at most ten lines per second
    /// and tenant. An endpoint receives them in any case.
    pub log_failures: bool,
    /// Number of the newest spans that each runtime keeps for `tollgate trace` and `tollgate
    /// explain`, each about 1 KB. Without an endpoint, these are the spans of failed calls and of
    /// calls whose application has a span of its own.
    pub kept_spans: u32,
    /// Interval at which metrics are sent.
    pub interval_s: u32,
    /// Tenants' own telemetry, by tenant name.
    pub tenants: BTreeMap<String, TenantTelemetry>,
}

/// A tenant's own telemetry: the sections `[telemetry.tenants.NAME]`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct TenantTelemetry {
    /// A collector that receives this tenant's signals only.
    pub endpoint: Option<String>,
    /// The collector's protocol: `grpc` (default) or `http`.
    pub protocol: OtlpProtocol,
    /// Like `telemetry.headers_file`, for this collector; that one isn't used for it.
    pub headers_file: Option<PathBuf>,
    /// Like `telemetry.ca`, for this collector.
    pub ca: Option<PathBuf>,
    /// Like `telemetry.compression`, for this collector.
    pub compression: Compression,
    /// Like `telemetry.sample_per_million`, for this tenant's calls.
    pub sample_per_million: Option<u32>,
    /// Like `telemetry.sample_errors`, for this tenant's calls.
    pub sample_errors: Option<bool>,
}

/// The protocol of a collector.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum OtlpProtocol {
    /// OTLP over gRPC, usually port 4317
    #[default]
    Grpc,
    /// OTLP over HTTP, usually port 4318
    Http,
}

/// Compression of requests to a collector.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression
    #[default]
    None,
    /// About a tenth of the bytes, for some CPU; the collector must support it
    Gzip,
}

/// The configuration of one endpoint.
struct Told<'c> {
    /// The tenant that it belongs to; `None`: it receives everything.
    tenant: Option<&'c str>,
    url: &'c Option<String>,
    protocol: OtlpProtocol,
    headers_file: &'c Option<PathBuf>,
    ca: &'c Option<PathBuf>,
    compression: Compression,
}

impl<'c> Told<'c> {
    /// The endpoint, checked without reading its files; `None` if there is none.
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
                expected: "it requires an endpoint".into(),
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

    /// The endpoint with the contents of its files.
    fn endpoint(&self) -> Result<Option<(Option<&'c str>, Endpoint)>, ConfigError> {
        let Some(mut endpoint) = self.checked()? else {
            return Ok(None);
        };
        if let Some(path) = self.headers_file {
            let headers = Headers::parse(&read(path, MAX_HEADERS_BYTES, true)?);
            let headers = headers.map_err(|error| ConfigError::Headers {
                path: path.clone(),
                error,
            })?;
            endpoint = endpoint.with_headers(headers);
        }
        if let Some(path) = self.ca {
            let trusting = endpoint.with_authorities(&read(path, MAX_CA_BYTES, false)?);
            endpoint = trusting.map_err(|error| ConfigError::Authorities {
                path: path.clone(),
                error,
            })?;
        }
        Ok(Some((self.tenant, endpoint)))
    }
}

/// Reads a small file; fails if it has more than `most` bytes. Reads at most one byte beyond the
/// limit, so a file without an end can't block it.
fn read(path: &Path, most: usize, is_secret: bool) -> Result<Vec<u8>, ConfigError> {
    let mut content = Vec::new();
    let file = File::open(path);
    let read = file.and_then(|file| file.take(most as u64 + 1).read_to_end(&mut content));
    read.map_err(|error| match is_no_path(&error) {
        true if is_secret => ConfigError::SecretUnreadable {
            setting: "headers_file",
            error,
        },
        _ => ConfigError::Unreadable {
            path: path.to_owned(),
            error,
        },
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
        for (name, its) in &self.tenants {
            if its.sample_per_million.is_some_and(|part| part > MILLION) {
                return Err(ConfigError::OutOfRange {
                    setting: "telemetry.tenants",
                    value: format!("{name}.sample_per_million"),
                    expected: format!("0 to {MILLION}").into(),
                });
            }
        }
        self.told().try_for_each(|told| told.checked().map(|_| ()))
    }

    /// Whether any collector receives spans and log lines.
    pub(crate) fn is_told(&self) -> bool {
        self.endpoint.is_some() || self.tenants.values().any(|its| its.endpoint.is_some())
    }

    /// Selects the calls to trace: random sampling only if a collector receives the spans.
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

    /// All collectors: `None` receives everything, the others belong to tenants. Reads their files.
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

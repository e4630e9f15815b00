//! Exporters of telemetry, one per endpoint.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_shm_abi::wait::now_ns;
use tollgate_telemetry::export::Exporter;
use tollgate_telemetry::metrics::Metrics;
use tollgate_telemetry::otlp::Daemon;
use tollgate_telemetry::prometheus::Now;
use tollgate_telemetry::record::Record;

use crate::config::Config;
use crate::control::error::DaemonError;

/// The exporters, each with its tenant; `None` for the daemon's own. Scrapes don't use them.
#[derive(Default)]
pub(crate) struct Exporters(pub(super) Vec<(Option<String>, Exporter)>);

impl Exporters {
    /// Must be called within the control plane's reactor.
    pub(crate) fn start(config: &Config) -> Result<Exporters, DaemonError> {
        let endpoints = config.telemetry.endpoints();
        let endpoints = endpoints.map_err(|error| DaemonError::Telemetry(error.into()))?;
        let daemon = Daemon {
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION"),
            started_unix_ns: now().unix_ns,
        };
        let mut exporters = Vec::new();
        for (tenant, endpoint) in endpoints {
            if endpoint.shows_headers() {
                let url = endpoint.url();
                tracing::warn!("{url} is sent its headers in clear text: use https");
            }
            let exporter = Exporter::start(endpoint, daemon.clone());
            let exporter = exporter.map_err(|error| DaemonError::Telemetry(error.into()))?;
            exporters.push((tenant.map(str::to_owned), exporter));
        }
        Ok(Exporters(exporters))
    }

    pub(crate) fn push(&self, record: Record, now: Now) {
        let whose = Arc::clone(record.tenant());
        let own = self.0.iter().filter(|(tenant, _)| tenant.is_some());
        for (_, exporter) in own.filter(|(tenant, _)| tenant.as_deref() == Some(&*whose)) {
            exporter.push(record.clone().for_tenant(), now);
        }
        let everything = self.0.iter().find(|(tenant, _)| tenant.is_none());
        if let Some((_, exporter)) = everything {
            exporter.push(record, now);
        }
    }

    pub(crate) fn snapshot(&self, metrics: &Metrics, now: Now) {
        for (tenant, exporter) in &self.0 {
            let seen = match tenant {
                Some(tenant) => metrics.of_tenant(tenant),
                None => metrics.clone(),
            };
            exporter.snapshot(seen, now);
        }
    }
}

/// The clocks' current values.
pub(crate) fn now() -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    Now {
        unix_ns: unix.map_or(0, |unix| unix.as_nanos() as u64),
        monotonic_ns: now_ns(),
    }
}

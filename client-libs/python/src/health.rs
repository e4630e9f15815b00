//! gRPC's health service.

use std::sync::Mutex;

use pyo3::prelude::*;
use tollgate_health::{HealthServer, Reporter, ServingStatus};

use crate::waiting::lock;

/// What is said of a server's services; it is served once.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Health {
    server: Mutex<Option<HealthServer<tollgate_health::Health>>>,
    reporter: Reporter,
}

impl Health {
    /// The service, for the first who asks.
    pub(crate) fn take(&self) -> Option<HealthServer<tollgate_health::Health>> {
        lock(&self.server).take()
    }
}

#[pymethods]
impl Health {
    #[new]
    fn new() -> Health {
        let (server, reporter) = tollgate_health::server();
        Health {
            server: Mutex::new(Some(server)),
            reporter,
        }
    }

    /// From now on a service is so, by the number.
    fn set(&self, service: &str, status: i32) {
        match ServingStatus(status) {
            ServingStatus::SERVICE_UNKNOWN => self.reporter.forget(service),
            status => self.reporter.set(service, status),
        }
    }

    /// Everything is NOT_SERVING from now on.
    fn shut_down(&self) {
        self.reporter.shut_down();
    }
}

//! gRPC's health service.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyString;
use tollgate_health::{HealthServer, Reporter, ServingStatus};

use crate::convert::utf8;
use crate::waiting::lock;

/// The health of a server's services. It is served once.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Health {
    server: Mutex<Option<HealthServer<tollgate_health::Health>>>,
    reporter: Reporter,
}

impl Health {
    /// The service, for the first caller.
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
    fn set(&self, service: &Bound<'_, PyString>, status: i32) -> PyResult<()> {
        let service = utf8(service, "a service's name")?;
        match ServingStatus(status) {
            ServingStatus::SERVICE_UNKNOWN => self.reporter.forget(&service),
            status => self.reporter.set(&service, status),
        }
        Ok(())
    }

    /// Everything is NOT_SERVING from now on.
    fn shut_down(&self) {
        self.reporter.shut_down();
    }
}

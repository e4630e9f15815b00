//! The program's services, as core sees them.

use std::sync::Arc;

use tollgate_core::{HandlerFuture, Incoming, Service, ServiceInfo, Status};

use crate::call::Call;
use crate::callbacks::Handler;
use crate::session::State;

/// A service of the program. Its calls are queued for its handlers.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) descriptor_set: Vec<u8>,
    pub(crate) handlers: Vec<Option<Handler<Call>>>,
    pub(crate) session: Arc<State>,
}

impl Served {
    /// Binds it.
    pub(crate) fn bind(self) -> Result<(), Status> {
        let session = Arc::clone(&self.session);
        session.block(session.core.bind_server(Bound(Arc::new(self))))?;
        session.begin_to_serve();
        Ok(())
    }
}

/// Core's view of the service. Core drops it when the session ends.
struct Bound(Arc<Served>);

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.session.wake_servers();
    }
}

impl Service for Bound {
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: &self.0.name,
            methods: &[],
            descriptor_set: &self.0.descriptor_set,
        }
    }

    fn call(&self, method: usize, call: Incoming) -> HandlerFuture {
        let handler = self.0.handlers.get(method).copied().flatten();
        let (call, handling) = Call::incoming(&self.0.session, handler, method, call);
        self.0.session.push_incoming(call);
        Box::pin(handling)
    }
}

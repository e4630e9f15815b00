//! Requests to the daemon on the control socket: binds, and draining.

use std::sync::Arc;
use std::task::{Context, Poll};

use prost::Message as _;
use rustix::fd::{AsFd, BorrowedFd};
use tollgate_shm_abi::blob::blob_create;
use tollgate_shm_abi::messages::{Bind, Empty, Request, RequestBody, SIDE_CLIENT, SIDE_SERVER};
use tollgate_shm_abi::wait::now_ns;

use crate::Status;
use crate::drive::Driven;
use crate::limits::BIND_TIMEOUT;
use crate::serve::Service;
use crate::tables::binds::Binding;

impl Driven {
    pub(crate) async fn bind_client(
        &self,
        descriptor_set: &[u8],
        service: &str,
        target: &str,
    ) -> Result<Binding, Status> {
        let bind = Bind {
            role: SIDE_CLIENT,
            service: service.to_owned(),
            target: target.to_owned(),
        };
        self.bind(bind, descriptor_set, None).await
    }

    pub(crate) async fn bind_server(&self, service: Arc<dyn Service>) -> Result<Binding, Status> {
        let info = service.info();
        let bind = Bind {
            role: SIDE_SERVER,
            service: info.name.to_owned(),
            target: String::new(),
        };
        self.bind(bind, info.descriptor_set, Some(Arc::clone(&service)))
            .await
    }

    async fn bind(
        &self,
        bind: Bind,
        descriptor_set: &[u8],
        service: Option<Arc<dyn Service>>,
    ) -> Result<Binding, Status> {
        let blob = blob_create(descriptor_set).map_err(|errno| {
            Status::resource_exhausted(format!("can't pass the schema to the daemon: {errno}"))
        })?;
        self.ask(RequestBody::Bind(bind), Some(blob.as_fd()), service)
            .await
    }

    /// Asks the daemon to send no further calls.
    pub(crate) async fn ask_to_drain(&self) -> Result<(), Status> {
        self.inner.begin_to_drain();
        let asked = self.ask(RequestBody::Drain(Empty {}), None, None);
        asked.await.map(|_| ())
    }

    /// Sends a request on the control socket, and waits for the daemon's answer.
    async fn ask(
        &self,
        body: RequestBody,
        fd: Option<BorrowedFd<'_>>,
        service: Option<Arc<dyn Service>>,
    ) -> Result<Binding, Status> {
        let mut request = Some((body, service));
        let mut waiting = WaitingBind {
            driven: self,
            id: None,
        };
        std::future::poll_fn(|cx| {
            if let Some((body, service)) = request.take() {
                waiting.send(body, fd, service, cx)?;
            }
            waiting.poll(cx)
        })
        .await
    }
}

/// A bind in flight; forgotten when dropped.
struct WaitingBind<'s> {
    driven: &'s Driven,
    id: Option<u64>,
}

impl WaitingBind<'_> {
    fn send(
        &mut self,
        body: RequestBody,
        fd: Option<BorrowedFd<'_>>,
        service: Option<Arc<dyn Service>>,
        cx: &Context<'_>,
    ) -> Result<(), Status> {
        let deadline_ns = now_ns() + BIND_TIMEOUT.as_nanos() as u64;
        let inner = &self.driven.inner;
        let mut shared = inner.lock();
        if let Some(status) = shared.ended() {
            return Err(status.clone());
        }
        let id = shared
            .binds
            .insert(service.is_some(), deadline_ns, cx.waker())?;
        shared.nudge = true;
        drop(shared);
        self.id = Some(id);
        if let Some(service) = service {
            self.driven.pending.insert(id, service);
        }
        let request = Request {
            id,
            body: Some(body),
        };
        let fds: Vec<_> = fd.into_iter().collect();
        inner
            .control
            .send(&request.encode_to_vec(), &fds)
            .map_err(|error| {
                Status::unavailable(format!("can't send the request to the daemon: {error}"))
            })
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Binding, Status>> {
        let id = self.id.expect("it was sent before it is polled");
        let polled = self.driven.inner.lock().binds.poll(id, cx.waker());
        match polled {
            Some(outcome) => {
                self.id = None;
                // The service is still there if the daemon refused or didn't answer.
                drop(self.driven.pending.take(id));
                Poll::Ready(outcome)
            }
            None => {
                self.driven.inner.ensure_driven();
                Poll::Pending
            }
        }
    }
}

impl Drop for WaitingBind<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.driven.inner.lock().binds.remove(id);
            drop(self.driven.pending.take(id));
        }
    }
}

//! The calling side: channels, and what generated clients are made of.

use std::sync::{Arc, OnceLock};

use tollgate_core::codec::{Encode, Message};
use tollgate_core::{Code, ServiceInfo, Session, Status};

use crate::{Received, Reply, Request, Response};

/// Where calls go: a session, and the daemon that serves.
#[derive(Clone, Debug)]
pub struct Channel {
    session: Session,
    target: Arc<str>,
}

impl Channel {
    /// Calls go to servers of `target`, a daemon's `host:port`, or of this host's daemon if it is empty.
    pub fn new(session: &Session, target: &str) -> Channel {
        Channel {
            session: session.clone(),
            target: target.into(),
        }
    }

    /// The session that carries the calls.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The daemon that serves.
    pub fn target(&self) -> &str {
        &self.target
    }
}

/// What generated clients call through: a channel and one service's binding.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    service: &'static ServiceInfo<'static>,
    /// The methods' handles, once bound; `None` for a method that the daemon doesn't know.
    handles: Arc<OnceLock<Vec<Option<u32>>>>,
}

impl Client {
    /// A client that binds with its first call.
    pub fn new(channel: Channel, service: &'static ServiceInfo<'static>) -> Client {
        Client {
            channel,
            service,
            handles: Arc::default(),
        }
    }

    /// Calls the method with this index in [`ServiceInfo::methods`].
    ///
    /// # Errors
    /// What binding or the call ended with.
    pub async fn unary<E: Encode, R: Message>(
        &self,
        method: usize,
        request: Request<E>,
    ) -> Reply<Received<R>> {
        let handle = match self.handles.get() {
            Some(handles) => handles[method],
            None => self.bind().await?[method],
        };
        let handle = handle.ok_or_else(|| {
            let (service, method) = (self.service.name, self.service.methods[method]);
            Status::new(
                Code::UNIMPLEMENTED,
                format!("the daemon bound {service} without its method {method}"),
            )
        })?;
        let timeout = request.timeout();
        let (metadata, message) = request.into_parts();
        let mut block = self
            .channel
            .session
            .call(handle, message, timeout)
            .with_metadata(metadata.into_buf())
            .await?;
        let metadata = block.take_metadata();
        let mut response = Response::new(Received::new(block));
        *response.metadata_mut() = metadata.into();
        Ok(response)
    }

    /// Binds the service now rather than with the first call.
    ///
    /// # Errors
    /// As of [`Session::bind_client`]; the next call tries again.
    pub async fn bind(&self) -> Result<&[Option<u32>], Status> {
        let binding = self
            .channel
            .session
            .bind_client(
                self.service.descriptor_set,
                self.service.name,
                &self.channel.target,
            )
            .await?;
        let handles = self
            .service
            .methods
            .iter()
            .map(|name| binding.handle(name))
            .collect();
        // Two first calls at once may both bind; they get the same handles.
        Ok(self.handles.get_or_init(|| handles))
    }
}

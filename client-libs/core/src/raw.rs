//! Services without generated code: blocks in, blocks out.

use tollgate_shm_abi::metadata::MetadataBuf;

use crate::Status;
use crate::codec::RawBlock;
use crate::ready::HandlerFuture;
use crate::serve::{Incoming, Service, ServiceInfo};
use crate::session::Session;

impl Session {
    /// Serves blocks without generated code: `handler` gets the method's index in the schema's
    /// order and the request's block, and returns a block in canonical form. It runs on the thread
    /// that drives the session. Returns once the service is bound; it is served until the session
    /// ends.
    ///
    /// # Errors
    /// The same as [`Session::bind_server`].
    pub async fn serve_raw(
        &self,
        descriptor_set: &[u8],
        service: &str,
        handler: impl Fn(usize, &[u8]) -> Result<Vec<u8>, Status> + Send + Sync + 'static,
    ) -> Result<(), Status> {
        let handler = move |method, request: &[u8], _: &MetadataBuf| {
            handler(method, request).map(|reply| (reply, MetadataBuf::new()))
        };
        self.serve_raw_with(descriptor_set, service, handler).await
    }

    /// Like [`Session::serve_raw`], with metadata: `handler` gets the request's metadata and
    /// returns the reply's.
    ///
    /// # Errors
    /// The same as [`Session::bind_server`].
    pub async fn serve_raw_with(
        &self,
        descriptor_set: &[u8],
        service: &str,
        handler: impl Fn(usize, &[u8], &MetadataBuf) -> Result<(Vec<u8>, MetadataBuf), Status>
        + Send
        + Sync
        + 'static,
    ) -> Result<(), Status> {
        let service = RawService {
            name: service.to_owned(),
            descriptor_set: descriptor_set.to_owned(),
            handler,
        };
        self.bind_server(service).await.map(|_| ())
    }
}

struct RawService<F> {
    name: String,
    descriptor_set: Vec<u8>,
    handler: F,
}

impl<F> Service for RawService<F>
where
    F: Fn(usize, &[u8], &MetadataBuf) -> Result<(Vec<u8>, MetadataBuf), Status>
        + Send
        + Sync
        + 'static,
{
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: &self.name,
            methods: &[],
            descriptor_set: &self.descriptor_set,
        }
    }

    fn call(&self, method: usize, call: Incoming) -> HandlerFuture {
        let answer = (self.handler)(method, &call.request, call.request.metadata());
        Box::pin(async move {
            let Incoming {
                request, responder, ..
            } = call;
            drop(request);
            match answer {
                Ok((block, metadata)) => responder.reply_with(&RawBlock(block), &metadata).await,
                Err(status) => responder.fail(&status),
            }
        })
    }
}

//! Schemas that applications have bound, shared by hash: parsed once, compiled once, off the datapath.
//!
//! Binding answers as soon as the layouts exist: the interpreter serves until the machine code is ready, a few milliseconds
//! later (see `Codec`). Applications that bind equal schemas share one entry and so one set of machine code.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::Status;
use tollgate_jit::Codec;
use tollgate_schema::{MethodLayout, Schema, ServiceLayout};
use tollgate_shm_abi::status::Code;

use crate::datapath::command::{Method, ServiceSchema};
use crate::limits::MAX_SCHEMAS;

/// A service's schema with what chains need to know of it.
pub(crate) struct BoundSchema {
    pub(crate) service: Arc<ServiceSchema>,
    pub(crate) layout: ServiceLayout,
}

/// Cached schemas by service hash.
#[derive(Default)]
pub(crate) struct Schemas {
    by_hash: HashMap<[u8; 32], Arc<BoundSchema>>,
}

impl Schemas {
    /// The cached schema equal to `layout`, or a new one; `true` if it is new and wants [`compile`].
    pub(crate) fn intern(
        &mut self,
        layout: ServiceLayout,
    ) -> Result<(Arc<BoundSchema>, bool), Status> {
        if let Some(known) = self.by_hash.get(&layout.hash) {
            return Ok((Arc::clone(known), false));
        }
        if self.by_hash.len() >= MAX_SCHEMAS {
            self.by_hash.retain(|_, schema| {
                Arc::strong_count(schema) > 1 || Arc::strong_count(&schema.service) > 1
            });
        }
        if self.by_hash.len() >= MAX_SCHEMAS {
            let text = format!("the daemon has {MAX_SCHEMAS} schemas in use, which is the limit");
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        let method = |method: &MethodLayout| {
            Arc::new(Method {
                name: format!("{}/{}", layout.name, method.name),
                request: Codec::new(&layout.layouts, method.input),
                reply: Codec::new(&layout.layouts, method.output),
            })
        };
        let service = Arc::new(ServiceSchema {
            name: layout.name.clone(),
            hash: layout.hash,
            description: layout.description.clone(),
            methods: layout.methods.iter().map(method).collect(),
        });
        let schema = Arc::new(BoundSchema { service, layout });
        self.by_hash.insert(schema.layout.hash, Arc::clone(&schema));
        Ok((schema, true))
    }

    /// Every cached schema of a service.
    pub(crate) fn named<'a>(
        &'a self,
        service: &'a str,
    ) -> impl Iterator<Item = &'a Arc<BoundSchema>> {
        self.by_hash
            .values()
            .filter(move |schema| schema.layout.name == service)
    }
}

/// Parses what an application sent.
pub(crate) fn parse(descriptor_set: &[u8], service: &str) -> Result<ServiceLayout, Status> {
    let refused = |error: tollgate_schema::SchemaError| {
        Status::new(Code::INVALID_ARGUMENT, error.to_string())
    };
    let schema = Schema::from_descriptor_set(descriptor_set).map_err(refused)?;
    let layout = schema.service(service).map_err(refused)?;
    if let Some(streaming) = layout
        .methods
        .iter()
        .find(|m| m.client_streaming || m.server_streaming)
    {
        tracing::debug!(
            "{service}/{} is streaming: it can't be called yet",
            streaming.name
        );
    }
    Ok(layout)
}

/// Makes the machine code of all methods. Takes about a millisecond per method: not on the reactor's thread.
pub(crate) fn compile(service: &ServiceSchema) {
    for method in &service.methods {
        for codec in [&method.request, &method.reply] {
            if let Err(error) = codec.compile() {
                tracing::warn!("{} stays interpreted: {error}", method.name);
            }
        }
    }
}

//! Turns a descriptor set into the layouts of a service.

use prost_reflect::{DescriptorPool, MessageDescriptor};
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::SchemaError;
use crate::layout::{Layouts, MessageId};
use crate::limits::MAX_DESCRIPTOR_SET;
use crate::resolve::Model;
use crate::spelling::did_you_mean;
use crate::{describe, descriptor, reflect};

/// A resolved descriptor set.
///
/// Immutable. Layouts are computed only for requested messages, so a large set costs little if few
/// of its types are used. Descriptors for reflection are made on request.
#[derive(Clone)]
pub struct Schema {
    inner: Arc<Inner>,
}

struct Inner {
    model: Model,
    descriptor_set: Box<[u8]>,
    pool: OnceLock<Result<DescriptorPool, SchemaError>>,
}

/// One service and the layouts of its messages.
#[derive(Clone, Debug)]
pub struct ServiceLayout {
    /// Full name, such as `hotel.Reservation`.
    pub name: String,
    /// In declaration order.
    pub methods: Vec<MethodLayout>,
    /// The closure of all inputs and outputs.
    pub layouts: Arc<Layouts>,
    /// Canonical text of all declarations that decide layout and meaning; see [`crate::describe`].
    pub description: String,
    /// SHA-256 of the description.
    pub hash: [u8; 32],
}

/// One method of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodLayout {
    /// Name inside the service.
    pub name: String,
    /// The request.
    pub input: MessageId,
    /// The reply.
    pub output: MessageId,
    /// The client sends a stream of requests.
    pub client_streaming: bool,
    /// The server sends a stream of replies.
    pub server_streaming: bool,
}

impl Schema {
    /// Parses and resolves a serialized `FileDescriptorSet`, which must contain all of its imports.
    pub fn from_descriptor_set(bytes: &[u8]) -> Result<Schema, SchemaError> {
        if bytes.len() > MAX_DESCRIPTOR_SET {
            return Err(SchemaError::DescriptorSetTooLarge { bytes: bytes.len() });
        }
        let model = Model::resolve(&descriptor::read(bytes)?)?;
        Ok(Schema {
            inner: Arc::new(Inner {
                model,
                descriptor_set: bytes.into(),
                pool: OnceLock::new(),
            }),
        })
    }

    /// The serialized `FileDescriptorSet` of this schema.
    pub fn descriptor_set(&self) -> &[u8] {
        &self.inner.descriptor_set
    }

    /// The resolved descriptors, for reflection.
    ///
    /// Made at the first use. Descriptors of editions look like proto2: names, JSON names and types
    /// are right; only the layout knows presence and encoding.
    pub fn pool(&self) -> Result<&DescriptorPool, SchemaError> {
        let inner = &self.inner;
        let pool = inner
            .pool
            .get_or_init(|| reflect::pool(&inner.descriptor_set, &inner.model));
        pool.as_ref().map_err(Clone::clone)
    }

    /// The layouts of one service.
    pub fn service(&self, name: &str) -> Result<ServiceLayout, SchemaError> {
        let model = &self.inner.model;
        let service = model.find_service(name);
        let service = service.ok_or_else(|| SchemaError::UnknownService {
            service: name.to_owned(),
            available: self.first_services(),
            meant: did_you_mean(name, self.services()),
        })?;
        let sides = service.methods.iter().flat_map(|m| [m.input, m.output]);
        let (layouts, ids) = Layouts::closure(model, &sides.collect::<Vec<_>>());
        let description = describe::service(model, service, &layouts)?;
        let methods = service.methods.iter().zip(ids.chunks_exact(2));
        Ok(ServiceLayout {
            name: service.name.clone(),
            methods: methods
                .map(|(method, ids)| MethodLayout {
                    name: method.name.clone(),
                    input: ids[0],
                    output: ids[1],
                    client_streaming: method.client_streaming,
                    server_streaming: method.server_streaming,
                })
                .collect(),
            hash: describe::hash(&description),
            description,
            layouts: Arc::new(layouts),
        })
    }

    /// The layouts of these messages (full names) and of all messages reachable from them; the
    /// named ones come first.
    pub fn layouts(&self, messages: &[&str]) -> Result<Layouts, SchemaError> {
        let model = &self.inner.model;
        let mut roots = Vec::with_capacity(messages.len());
        for name in messages {
            let found = model.find_message(name);
            let found = found.ok_or_else(|| unknown_message(name))?;
            if model.message(found).is_map_entry {
                return Err(SchemaError::InvalidMapEntry {
                    message: (*name).to_owned(),
                });
            }
            roots.push(found);
        }
        Ok(Layouts::closure(model, &roots).0)
    }

    /// The descriptor of one message, for reflection.
    pub fn message(&self, full_name: &str) -> Result<MessageDescriptor, SchemaError> {
        let descriptor = self.pool()?.get_message_by_name(full_name);
        descriptor.ok_or_else(|| unknown_message(full_name))
    }

    /// The full names of all services.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        let services = self.inner.model.services.iter();
        services.map(|service| service.name.as_str())
    }

    fn first_services(&self) -> String {
        let names: Vec<_> = self.services().take(8).collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({} files)", self.inner.model.files)
    }
}

fn unknown_message(name: &str) -> SchemaError {
    SchemaError::UnknownMessage {
        message: name.to_owned(),
    }
}

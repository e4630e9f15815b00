//! From a descriptor set, or from `.proto` files, to the layouts of a service.

use prost_reflect::prost::Message;
use prost_reflect::prost_types::FileDescriptorSet;
use prost_reflect::{DescriptorPool, MessageDescriptor, ServiceDescriptor};
use std::fmt;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;

use crate::SchemaError;
use crate::describe;
use crate::layout::{Layouts, MessageId};
use crate::limits::{MAX_DESCRIPTOR_SET, MAX_MESSAGES, MAX_METHODS};

/// A resolved descriptor set.
///
/// Immutable; what it hands out is computed for exactly the messages asked for, so a large set costs little when few of
/// its types are used.
#[derive(Clone)]
pub struct Schema {
    pool: DescriptorPool,
    descriptor_set: Arc<[u8]>,
}

/// One service and the layouts of the messages that it uses.
#[derive(Clone, Debug)]
pub struct ServiceLayout {
    /// Full name, such as `hotel.Reservation`.
    pub name: String,
    /// In declaration order.
    pub methods: Vec<MethodLayout>,
    /// The closure of all inputs and outputs.
    pub layouts: Arc<Layouts>,
    /// Canonical text of everything that decides layout and meaning; see [`crate::describe`].
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
    /// Parses and resolves a serialized `FileDescriptorSet`, which must contain everything that it imports.
    pub fn from_descriptor_set(bytes: &[u8]) -> Result<Schema, SchemaError> {
        if bytes.len() > MAX_DESCRIPTOR_SET {
            return Err(SchemaError::DescriptorSetTooLarge { bytes: bytes.len() });
        }
        let pool = resolve(bytes)?;
        let count = pool.all_messages().len();
        if count > MAX_MESSAGES {
            return Err(SchemaError::TooManyMessages { count });
        }
        Ok(Schema {
            pool,
            descriptor_set: bytes.into(),
        })
    }

    /// Compiles `.proto` files; imports are looked up in `includes`, and the well-known types are built in.
    ///
    /// Each file must lie below one of the include directories. For tools: it reads files, and the daemon never does.
    pub fn compile_proto(
        files: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<Schema, SchemaError> {
        let invalid = |e: protox::Error| SchemaError::ProtoInvalid {
            reason: one_line(&format!("{e:?}")),
        };
        let mut compiler = protox::Compiler::new(includes).map_err(invalid)?;
        compiler.include_imports(true).include_source_info(false);
        compiler.open_files(files).map_err(invalid)?;
        Schema::from_descriptor_set(&compiler.encode_file_descriptor_set())
    }

    /// The serialized `FileDescriptorSet` that this schema came from.
    pub fn descriptor_set(&self) -> &[u8] {
        &self.descriptor_set
    }

    /// The resolved descriptors, for reflection.
    pub fn pool(&self) -> &DescriptorPool {
        &self.pool
    }

    /// The layouts of one service.
    pub fn service(&self, name: &str) -> Result<ServiceLayout, SchemaError> {
        let service =
            self.pool
                .get_service_by_name(name)
                .ok_or_else(|| SchemaError::UnknownService {
                    service: name.to_owned(),
                    available: self.services(),
                })?;
        let count = service.methods().len();
        if count > MAX_METHODS {
            return Err(SchemaError::TooManyMethods {
                service: name.to_owned(),
                count,
            });
        }
        let roots: Vec<_> = service
            .methods()
            .flat_map(|m| [m.input(), m.output()])
            .collect();
        let layouts = Layouts::closure(&roots)?;
        let description = describe::service(&service, &self.pool, &layouts);
        Ok(ServiceLayout {
            name: service.full_name().to_owned(),
            methods: methods(&service, &layouts),
            hash: describe::hash(&description),
            description,
            layouts: Arc::new(layouts),
        })
    }

    /// The layouts of these messages (full names) and of all that they refer to; the named ones come first.
    pub fn layouts(&self, messages: &[&str]) -> Result<Layouts, SchemaError> {
        let roots = messages
            .iter()
            .map(|name| self.message(name))
            .collect::<Result<Vec<_>, _>>()?;
        Layouts::closure(&roots)
    }

    /// The descriptor of one message, for reflection.
    pub fn message(&self, full_name: &str) -> Result<MessageDescriptor, SchemaError> {
        self.pool
            .get_message_by_name(full_name)
            .ok_or_else(|| SchemaError::UnknownMessage {
                message: full_name.to_owned(),
            })
    }

    fn services(&self) -> String {
        let names: Vec<_> = self
            .pool
            .services()
            .take(8)
            .map(|s| s.full_name().to_owned())
            .collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({} files)", self.pool.files().len())
    }
}

fn methods(service: &ServiceDescriptor, layouts: &Layouts) -> Vec<MethodLayout> {
    let id = |m: MessageDescriptor| {
        layouts
            .find(m.full_name())
            .expect("the closure has its roots")
    };
    service
        .methods()
        .map(|m| MethodLayout {
            name: m.name().to_owned(),
            input: id(m.input()),
            output: id(m.output()),
            client_streaming: m.is_client_streaming(),
            server_streaming: m.is_server_streaming(),
        })
        .collect()
}

/// Parses and resolves, whatever the bytes are.
///
/// The library is made for descriptor sets that a compiler wrote, and indexes out of bounds on some others: those with
/// an unknown syntax, which are looked for here, and some that no compiler writes. A set comes from a client, so such a
/// panic is an answer about the bytes, not the end of the daemon.
fn resolve(bytes: &[u8]) -> Result<DescriptorPool, SchemaError> {
    let invalid = |reason: &str| SchemaError::DescriptorSetInvalid {
        reason: one_line(reason),
    };
    let set = FileDescriptorSet::decode(bytes).map_err(|e| invalid(&e.to_string()))?;
    if let Some(file) = set
        .file
        .iter()
        .find(|f| !matches!(f.syntax(), "" | "proto2" | "proto3"))
    {
        let (file, syntax) = (file.name().to_owned(), file.syntax().to_owned());
        return Err(SchemaError::UnknownSyntax { file, syntax });
    }
    match catch_unwind(|| DescriptorPool::decode(bytes)) {
        Ok(Ok(pool)) => Ok(pool),
        Ok(Err(e)) => Err(invalid(&e.to_string())),
        Err(_) => Err(invalid(
            "its files contradict each other in a way that no compiler writes",
        )),
    }
}

/// Errors are one sentence each; compilers like to draw.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

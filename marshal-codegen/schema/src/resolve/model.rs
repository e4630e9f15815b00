//! The model: all declarations of a descriptor set, with every reference resolved.

use std::sync::Arc;

use super::names::Names;
use super::symbol::{EnumIndex, MessageIndex, Symbol};
use crate::proto_type::ProtoType;

/// A resolved descriptor set.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Number of distinct files.
    pub(crate) files: usize,
    pub(crate) messages: Vec<Message>,
    pub(crate) enums: Vec<Enum>,
    pub(crate) services: Vec<Service>,
    /// Whether some file occurred twice.
    pub(crate) has_repeated_files: bool,
    /// Whether some file is written in an edition, which the reflection library doesn't know.
    pub(crate) has_editions: bool,
    pub(super) names: Names,
}

impl Model {
    pub(crate) fn message(&self, index: MessageIndex) -> &Message {
        &self.messages[index.0 as usize]
    }

    pub(crate) fn enumeration(&self, index: EnumIndex) -> &Enum {
        &self.enums[index.0 as usize]
    }

    pub(crate) fn find_message(&self, full_name: &str) -> Option<MessageIndex> {
        match self.names.find(full_name)? {
            Symbol::Message(index) => Some(index),
            _ => None,
        }
    }

    pub(crate) fn find_service(&self, full_name: &str) -> Option<&Service> {
        match self.names.find(full_name)? {
            Symbol::Service(index) => self.services.get(index as usize),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Message {
    /// Full name.
    pub(crate) name: String,
    /// In ascending order of their numbers.
    pub(crate) fields: Vec<Field>,
    /// The names of the real oneofs, in declaration order.
    pub(crate) oneofs: Vec<String>,
    pub(crate) is_map_entry: bool,
}

#[derive(Debug)]
pub(crate) struct Field {
    /// Name inside the message.
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) value: Value,
    pub(crate) label: Label,
    /// A repeated scalar that is encoded as one record.
    pub(crate) packed: bool,
}

/// The type of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A type that refers to no other type.
    Scalar(ProtoType),
    Enum(EnumIndex),
    Message(MessageIndex),
    /// A message between two tags: a group in proto2, a delimited message in an edition.
    Group(MessageIndex),
}

/// The number of a field's values, and how the field tells presence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    Implicit,
    /// The label of every message field, unless one of the others applies.
    Explicit,
    Required,
    /// Member of the real oneof with this index.
    Oneof(u32),
    Repeated,
    /// The value is an entry message.
    Map,
}

#[derive(Debug)]
pub(crate) struct Enum {
    /// Full name.
    pub(crate) name: String,
    /// In declaration order.
    pub(crate) values: Vec<(String, i32)>,
    /// For closed enums, the declared values in ascending order; no other value is valid.
    pub(crate) closed: Option<Arc<[i32]>>,
}

#[derive(Debug)]
pub(crate) struct Service {
    /// Full name.
    pub(crate) name: String,
    /// In declaration order.
    pub(crate) methods: Vec<Method>,
}

#[derive(Debug)]
pub(crate) struct Method {
    /// Name inside the service.
    pub(crate) name: String,
    pub(crate) input: MessageIndex,
    pub(crate) output: MessageIndex,
    pub(crate) client_streaming: bool,
    pub(crate) server_streaming: bool,
}

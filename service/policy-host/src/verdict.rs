//! A policy's verdict on a call, and its effects on the call.

/// A policy's decision about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Let it pass.
    Allow,
    /// End it with an error.
    Deny {
        /// The gRPC status code, 1 to 16.
        code: u32,
        /// Text for the caller, at most [`crate::limits::MESSAGE_BYTES`].
        message: String,
    },
    /// Let it pass, with at least one effect.
    Effects(Box<Effects>),
}

/// A policy's effects on a call that it allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Fields of the message, each once.
    pub fields: Vec<FieldChange>,
    /// Keys of the metadata, each once.
    pub metadata: Vec<MetadataChange>,
    /// The call's delay in microseconds, at most [`crate::limits::DELAY_US`]; 0: none.
    pub delay_us: u32,
    /// The call's priority from here on, at most [`crate::limits::PRIORITY`]: higher is sooner, 0
    /// is the default of all calls.
    pub priority: Option<u8>,
    /// The label of the route that the request takes: 1 to [`crate::limits::ROUTE_BYTES`] of
    /// `a-z 0-9 - _ .`.
    pub route: Option<String>,
}

impl Effects {
    /// True if there is no effect.
    pub fn is_empty(&self) -> bool {
        *self == Effects::default()
    }
}

/// A field's new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Index into the method's [`crate::Method::changes`].
    pub field: u32,
    /// Unchecked: the caller knows the schema and checks it against the field's type.
    pub value: Value,
}

/// A metadata key's new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataChange {
    /// Index into the method's [`crate::Method::metadata_changes`].
    pub key: u32,
    /// The key's only new value, valid for its key; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

/// A field's new content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Absent.
    Clear,
    /// A scalar, as a view has it.
    Bits(u64),
    /// A string or bytes; at most [`crate::limits::CHANGED_BYTES`] in one verdict.
    Bytes(Vec<u8>),
}

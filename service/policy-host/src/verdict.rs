//! A policy's verdict on a call, and its effects on the call.

/// What a policy decided about a call.
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
    /// Let it pass, with this done to it: something, at least.
    Effects(Box<Effects>),
}

/// What a policy does to a call that it lets pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Fields of the message, each once.
    pub fields: Vec<FieldChange>,
    /// Keys of the metadata, each once.
    pub metadata: Vec<MetadataChange>,
    /// How long the call waits before it goes on, at most [`crate::limits::DELAY_US`]; 0: not at all.
    pub delay_us: u32,
    /// How urgent the call is from here on, at most [`crate::limits::PRIORITY`]: higher is sooner, 0 is what all calls have.
    pub priority: Option<u8>,
    /// The label of the route that the request takes: 1 to [`crate::limits::ROUTE_BYTES`] of `a-z 0-9 - _ .`.
    pub route: Option<String>,
}

impl Effects {
    /// True if they do nothing.
    pub fn is_empty(&self) -> bool {
        *self == Effects::default()
    }
}

/// A field's new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Index into the method's [`crate::Method::changes`].
    pub field: u32,
    /// Unchecked: whether it fits the field's type is for whoever knows the schema.
    pub value: Value,
}

/// A metadata key's new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataChange {
    /// Index into the method's [`crate::Method::metadata_changes`].
    pub key: u32,
    /// The one value that it has from now on, fit for its key; `None`: it has none.
    pub value: Option<Vec<u8>>,
}

/// What a policy wants a field to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Absent.
    Clear,
    /// A scalar, as a view has it.
    Bits(u64),
    /// A string or bytes; at most [`crate::limits::CHANGED_BYTES`] in one verdict.
    Bytes(Vec<u8>),
}

//! What can be wrong with a schema or with a message handed to the dynamic helpers.
//!
//! The culprit is always whoever supplied the bytes or the text; nothing here is the daemon's fault.

use crate::limits::{MAX_DESCRIPTOR_SET, MAX_FIELDS, MAX_MESSAGES, MAX_METHODS};

/// Why a schema is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The descriptor set is longer than the limit.
    #[error("the descriptor set has {bytes} bytes, the limit is {MAX_DESCRIPTOR_SET}")]
    DescriptorSetTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The descriptor set isn't one, or its files contradict each other.
    #[error("the descriptor set is invalid: {reason}")]
    DescriptorSetInvalid {
        /// The parser's words.
        reason: String,
    },
    /// A `.proto` file can't be read, parsed or resolved.
    #[error("the proto files don't compile: {reason}")]
    ProtoInvalid {
        /// The compiler's words, with file, line and column.
        reason: String,
    },
    /// The descriptor set declares too many messages.
    #[error("the descriptor set declares {count} messages, the limit is {MAX_MESSAGES}")]
    TooManyMessages {
        /// How many.
        count: usize,
    },
    /// One message declares too many fields.
    #[error("message {message} has {count} fields, the limit is {MAX_FIELDS}")]
    TooManyFields {
        /// Its full name.
        message: String,
        /// How many.
        count: usize,
    },
    /// One service declares too many methods.
    #[error("service {service} has {count} methods, the limit is {MAX_METHODS}")]
    TooManyMethods {
        /// Its full name.
        service: String,
        /// How many.
        count: usize,
    },
    /// The service isn't in the schema.
    #[error("the schema has no service {service:?}; it has {available}")]
    UnknownService {
        /// The name asked for.
        service: String,
        /// The names that exist, or "none".
        available: String,
    },
    /// The message isn't in the schema.
    #[error("the schema has no message {message:?}")]
    UnknownMessage {
        /// The name asked for.
        message: String,
    },
    /// A message in use is declared in a file that isn't proto3.
    #[error(
        "message {message} is declared in {file}, which isn't proto3; only proto3 messages can be carried"
    )]
    NotProto3 {
        /// Its full name.
        message: String,
        /// The file's name.
        file: String,
    },
    /// A file is written in a syntax that isn't known.
    #[error("file {file} is written in {syntax:?}; only \"proto3\" can be carried")]
    UnknownSyntax {
        /// The file's name.
        file: String,
        /// What it declares.
        syntax: String,
    },
    /// The entry message of a map isn't `{1 key, 2 value}`, or is used as a message of its own.
    #[error("message {message} is not a proper map entry, or is used outside of a map")]
    MapEntryInvalid {
        /// Its full name.
        message: String,
    },
    /// A field is a group, is required, or is a map's entry without a map.
    #[error(
        "field {message}.{field} is a group, required, or a lone map entry, which can't be carried"
    )]
    FieldUnsupported {
        /// The message's full name.
        message: String,
        /// The field's name.
        field: String,
    },
}

/// Why a message can't be read from or written to a block, or from or to JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DynamicError {
    /// The message isn't of the type that the layout describes.
    #[error("expected a message {expected}, got {got}")]
    WrongType {
        /// The layout's message.
        expected: String,
        /// The value's message.
        got: String,
    },
    /// The message doesn't fit a block.
    #[error("the message takes more than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// Messages nest too deeply.
    #[error("messages nest deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// The block's bytes don't describe a message.
    #[error("the block is not a {message}: {reason} at byte {at}")]
    Malformed {
        /// The message being read.
        message: String,
        /// What is wrong.
        reason: &'static str,
        /// Offset in the block.
        at: usize,
    },
    /// The JSON text isn't a message of this type.
    #[error("the JSON is not a {message}: {reason}")]
    Json {
        /// The message's full name.
        message: String,
        /// The parser's words, with the field's name and position.
        reason: String,
    },
}

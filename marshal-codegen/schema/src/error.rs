//! Errors in a schema, or in a message passed to the dynamic helpers.
//!
//! The supplier of the bytes or the text is always at fault, never the daemon.

use crate::limits::{
    MAX_DESCRIPTION, MAX_DESCRIPTOR_SET, MAX_ENUM_VALUES, MAX_FIELDS, MAX_METHODS, MAX_NAME,
    MAX_NESTING,
};

/// The reason why a schema is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The descriptor set is longer than the limit.
    #[error("the descriptor set has {bytes} bytes, the limit is {MAX_DESCRIPTOR_SET}")]
    DescriptorSetTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The bytes aren't a descriptor set.
    #[error("the descriptor set is invalid: {reason}")]
    DescriptorSetInvalid {
        /// The error in its encoding.
        reason: String,
    },
    /// A `.proto` file can't be read, parsed or resolved.
    #[error("the proto files don't compile: {reason}")]
    ProtoInvalid {
        /// The compiler's message, with file, line and column.
        reason: String,
    },
    /// A path doesn't lead to a schema.
    #[error("{path} can't be loaded as a schema: {reason}")]
    PathInvalid {
        /// The path as given.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The tools' reflection library refuses a set that the resolver accepts.
    #[error("the schema can't be reflected: {reason}")]
    NotReflected {
        /// The library's message.
        reason: String,
    },
    /// The descriptor set declares too many items of one kind.
    #[error("the descriptor set declares more than {limit} {what}")]
    TooMany {
        /// The kind, such as "messages".
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// One message declares too many fields.
    #[error("message {message} has {count} fields, the limit is {MAX_FIELDS}")]
    TooManyFields {
        /// Its full name.
        message: String,
        /// The number of its fields.
        count: usize,
    },
    /// One enum declares too many values.
    #[error("enum {name} has {count} values, the limit is {MAX_ENUM_VALUES}")]
    TooManyValues {
        /// Its full name.
        name: String,
        /// The number of its values.
        count: usize,
    },
    /// One service declares too many methods.
    #[error("service {service} has {count} methods, the limit is {MAX_METHODS}")]
    TooManyMethods {
        /// Its full name.
        service: String,
        /// The number of its methods.
        count: usize,
    },
    /// Message declarations nest too deeply.
    #[error(
        "message {message:?} declares messages inside each other, more than {MAX_NESTING} levels deep"
    )]
    NestedTooDeep {
        /// The outermost message.
        message: String,
    },
    /// A service's canonical description is too long to be exchanged.
    #[error("the description of service {service} has more than {MAX_DESCRIPTION} bytes")]
    DescriptionTooLong {
        /// Its full name.
        service: String,
    },
    /// The service isn't in the schema.
    #[error("the schema has no service {service:?}; it has {available}{meant}")]
    UnknownService {
        /// The name asked for.
        service: String,
        /// The names that exist, or "none".
        available: String,
        /// The most similar name, as part of the sentence; empty if none is similar.
        meant: String,
    },
    /// The message isn't in the schema.
    #[error("the schema has no message {message:?}")]
    UnknownMessage {
        /// The name asked for.
        message: String,
    },
    /// A file has an unknown syntax.
    #[error(
        "file {file:?} is written in {syntax:?}; proto2, proto3 and the editions 2023 and 2024 are understood"
    )]
    UnknownSyntax {
        /// The file's name.
        file: String,
        /// The declared syntax.
        syntax: String,
    },
    /// Two different files have the same name.
    #[error("the descriptor set has two different files {file:?}")]
    DuplicateFile {
        /// The name.
        file: String,
    },
    /// A file imports a missing file.
    #[error("file {file:?} imports {import:?}, which is not in the descriptor set")]
    MissingImport {
        /// The importing file.
        file: String,
        /// The name of the missing file.
        import: String,
    },
    /// Files import each other in a circle.
    #[error("file {file:?} imports itself by way of {import:?}")]
    CyclicImport {
        /// One of the files.
        file: String,
        /// The next file in the circle.
        import: String,
    },
    /// A name isn't made of letters, digits and underscores.
    #[error("{name:?} in {scope:?} is not a name: names are letters, digits and underscores")]
    InvalidName {
        /// The name, cut if it is long.
        name: String,
        /// The full name of the surrounding declaration, or the file's name.
        scope: String,
    },
    /// A full name, or the name of a file, is too long.
    #[error(
        "the name that begins with {name:?} has {bytes} bytes in full, the limit is {MAX_NAME}"
    )]
    NameTooLong {
        /// Its beginning.
        name: String,
        /// Its length.
        bytes: usize,
    },
    /// Two declarations have the same full name.
    #[error("{name} is declared in {first:?} and again in {second:?}")]
    DuplicateSymbol {
        /// The full name.
        name: String,
        /// The file of the first.
        first: String,
        /// The file of the second.
        second: String,
    },
    /// A declaration refers to a missing type, or to one of another kind.
    #[error("{user} refers to {name:?}, which is not {wanted} in the descriptor set")]
    UnknownType {
        /// The full name of the field or method.
        user: String,
        /// The name that it uses.
        name: String,
        /// The expected kind, such as "a message".
        wanted: &'static str,
    },
    /// A field's number is invalid.
    #[error("field {field} has the number {number}, which {reason}")]
    InvalidNumber {
        /// Its full name.
        field: String,
        /// The number.
        number: i32,
        /// The reason.
        reason: &'static str,
    },
    /// A field contradicts its file's syntax, its message or itself.
    #[error("field {field} {reason}")]
    InvalidField {
        /// Its full name.
        field: String,
        /// The problem.
        reason: String,
    },
    /// A oneof has no members, or proto3's `optional` is misused.
    #[error("oneof {oneof} {reason}")]
    InvalidOneof {
        /// Its full name.
        oneof: String,
        /// The problem.
        reason: &'static str,
    },
    /// An enum has no values, has a reserved value, or is open and doesn't begin with 0.
    #[error("enum {name} {reason}")]
    InvalidEnum {
        /// Its full name.
        name: String,
        /// The problem.
        reason: String,
    },
    /// The entry message of a map isn't `{1 key, 2 value}`, or is used as an ordinary message.
    #[error("message {message} is not a proper map entry, or is used outside of a map")]
    InvalidMapEntry {
        /// Its full name.
        message: String,
    },
    /// A feature has an unknown value, or its file's syntax has no features.
    #[error("{owner} sets feature {feature} to {value}, which {reason}")]
    InvalidFeature {
        /// The full name of the declaration, or the file's name.
        owner: String,
        /// The feature.
        feature: &'static str,
        /// The value as protobuf's number.
        value: i32,
        /// The reason.
        reason: &'static str,
    },
}

/// The beginning of an arbitrary text, for use in a sentence.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 200;
    text.chars()
        .filter(|c| !c.is_control())
        .take(MOST)
        .collect()
}

/// Joins an error into one line: errors here are one sentence each, and compilers print drawings.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The reason why a message can't be read from or written to a block, or from or to JSON.
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
        /// The problem.
        reason: &'static str,
        /// Offset in the block.
        at: usize,
    },
    /// A message lacks a required field.
    #[error("the required field {field} of a {message} is missing")]
    RequiredMissing {
        /// The full name of the message that lacks the field.
        message: String,
        /// The field's name.
        field: String,
    },
    /// The JSON text isn't a message of this type.
    #[error("the JSON is not a {message}: {reason}")]
    Json {
        /// The message's full name.
        message: String,
        /// The parser's message, with the field's name and position.
        reason: String,
    },
}

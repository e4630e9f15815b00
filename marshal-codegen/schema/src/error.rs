//! Errors in a schema, or in a message passed to the dynamic helpers.
//!
//! The supplier of the bytes or the text is always at fault, never the daemon.

use crate::limits::{
    MAX_DESCRIPTION, MAX_DESCRIPTOR_SET, MAX_ENUM_VALUES, MAX_FIELDS, MAX_METHODS, MAX_NAME,
    MAX_NESTING,
};

/// Why a schema is refused.
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
        /// What is wrong with its encoding.
        reason: String,
    },
    /// A `.proto` file can't be read, parsed or resolved.
    #[error("the proto files don't compile: {reason}")]
    ProtoInvalid {
        /// The compiler's words, with file, line and column.
        reason: String,
    },
    /// A path that should lead to a schema doesn't.
    #[error("{path} can't be loaded as a schema: {reason}")]
    PathInvalid {
        /// The path as it was given.
        path: String,
        /// Why.
        reason: String,
    },
    /// The tools' reflection library doesn't take what the resolver took.
    #[error("the schema can't be reflected: {reason}")]
    NotReflected {
        /// The library's words.
        reason: String,
    },
    /// The descriptor set declares too many of something.
    #[error("the descriptor set declares more than {limit} {what}")]
    TooMany {
        /// Of what, such as "messages".
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// One message declares too many fields.
    #[error("message {message} has {count} fields, the limit is {MAX_FIELDS}")]
    TooManyFields {
        /// Its full name.
        message: String,
        /// How many.
        count: usize,
    },
    /// One enum declares too many values.
    #[error("enum {name} has {count} values, the limit is {MAX_ENUM_VALUES}")]
    TooManyValues {
        /// Its full name.
        name: String,
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
    /// Messages are declared inside each other too deeply.
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
        /// The one that is spelt much like it, as a part of the sentence; empty if none is.
        meant: String,
    },
    /// The message isn't in the schema.
    #[error("the schema has no message {message:?}")]
    UnknownMessage {
        /// The name asked for.
        message: String,
    },
    /// A file is written in a syntax that isn't known.
    #[error(
        "file {file:?} is written in {syntax:?}; proto2, proto3 and the editions 2023 and 2024 are understood"
    )]
    UnknownSyntax {
        /// The file's name.
        file: String,
        /// What it declares.
        syntax: String,
    },
    /// Two different files have one name.
    #[error("the descriptor set has two different files {file:?}")]
    DuplicateFile {
        /// The name.
        file: String,
    },
    /// A file imports one that isn't there.
    #[error("file {file:?} imports {import:?}, which is not in the descriptor set")]
    MissingImport {
        /// The importing file.
        file: String,
        /// The name of the other.
        import: String,
    },
    /// Files import each other in a circle.
    #[error("file {file:?} imports itself by way of {import:?}")]
    CyclicImport {
        /// One of the files.
        file: String,
        /// The next one in the circle.
        import: String,
    },
    /// A name isn't made of letters, digits and underscores.
    #[error("{name:?} in {scope:?} is not a name: names are letters, digits and underscores")]
    InvalidName {
        /// The name, cut if it is long.
        name: String,
        /// The full name of what declares it, or the file's name.
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
    /// Two declarations have one full name.
    #[error("{name} is declared in {first:?} and again in {second:?}")]
    DuplicateSymbol {
        /// The full name.
        name: String,
        /// The file of the first.
        first: String,
        /// The file of the second.
        second: String,
    },
    /// A declaration refers to a type that isn't there, or that is of another kind.
    #[error("{user} refers to {name:?}, which is not {wanted} in the descriptor set")]
    UnknownType {
        /// The full name of the field or method.
        user: String,
        /// The name it uses.
        name: String,
        /// What it should be, such as "a message".
        wanted: &'static str,
    },
    /// A field's number can't be.
    #[error("field {field} has the number {number}, which {reason}")]
    InvalidNumber {
        /// Its full name.
        field: String,
        /// The number.
        number: i32,
        /// Why not.
        reason: &'static str,
    },
    /// A field contradicts its file's syntax, its message or itself.
    #[error("field {field} {reason}")]
    InvalidField {
        /// Its full name.
        field: String,
        /// What is wrong.
        reason: String,
    },
    /// A oneof has no members, or proto3's `optional` is misused.
    #[error("oneof {oneof} {reason}")]
    InvalidOneof {
        /// Its full name.
        oneof: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// An enum has no values, or doesn't begin with 0 although it is open, or has one that is reserved.
    #[error("enum {name} {reason}")]
    InvalidEnum {
        /// Its full name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The entry message of a map isn't `{1 key, 2 value}`, or is used as a message of its own.
    #[error("message {message} is not a proper map entry, or is used outside of a map")]
    InvalidMapEntry {
        /// Its full name.
        message: String,
    },
    /// A feature has a value that isn't known, or is set where there are no features.
    #[error("{owner} sets feature {feature} to {value}, which {reason}")]
    InvalidFeature {
        /// The full name of the declaration, or the file's name.
        owner: String,
        /// The feature.
        feature: &'static str,
        /// The value as protobuf's number.
        value: i32,
        /// Why not.
        reason: &'static str,
    },
}

/// The beginning of a text that may be anything, for a sentence.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 200;
    text.chars()
        .filter(|c| !c.is_control())
        .take(MOST)
        .collect()
}

/// Errors are one sentence each; compilers like to draw.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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
    /// A message leaves out a field that must be set.
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
        /// The parser's words, with the field's name and position.
        reason: String,
    },
}

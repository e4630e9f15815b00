//! The types of expressions, of fields, and of constants.

use std::fmt;
use std::sync::Arc;

/// The names that expressions have besides lists and enums.
pub(crate) const NAMES: &[&str] = &[
    "request",
    "reply",
    "caller",
    "metadata",
    "metadata_values",
    "method",
    "now",
];

/// The fields of `caller`, which are texts: attributes of the policy ABI, without their colons.
pub const CALLER: &[&str] = &["application", "gid", "pid", "side", "tenant", "uid"];

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    /// Microseconds since 1970.
    Timestamp,
    /// Microseconds.
    Duration,
}

impl Type {
    pub(crate) fn is_number(self) -> bool {
        matches!(self, Type::Int | Type::Uint | Type::Double)
    }

    /// Whether a value is an address and a length.
    pub(crate) fn is_span(self) -> bool {
        matches!(self, Type::String | Type::Bytes)
    }
}

impl fmt::Display for Type {
    /// Its name; with an article in the alternate form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (article, name) = match self {
            Type::Bool => ("a ", "bool"),
            Type::Int => ("an ", "int"),
            Type::Uint => ("a ", "uint"),
            Type::Double => ("a ", "double"),
            Type::String => ("a ", "string"),
            Type::Bytes => ("", "bytes"),
            Type::Timestamp => ("a ", "timestamp"),
            Type::Duration => ("a ", "duration"),
        };
        if f.alternate() {
            f.write_str(article)?;
        }
        f.write_str(name)
    }
}

/// A constant. Times are in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Const {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
    Timestamp(i64),
    Duration(i64),
}

impl Const {
    pub(crate) fn ty(&self) -> Type {
        match self {
            Const::Bool(_) => Type::Bool,
            Const::Int(_) => Type::Int,
            Const::Uint(_) => Type::Uint,
            Const::Double(_) => Type::Double,
            Const::String(_) => Type::String,
            Const::Bytes(_) => Type::Bytes,
            Const::Timestamp(_) => Type::Timestamp,
            Const::Duration(_) => Type::Duration,
        }
    }

    /// The bytes of a string or bytes.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Const::String(text) => Some(text.as_bytes()),
            Const::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Whether it is its type's zero or empty value.
    pub(crate) fn is_default(&self) -> bool {
        match self {
            Const::Bool(value) => !value,
            Const::Int(value) | Const::Timestamp(value) | Const::Duration(value) => *value == 0,
            Const::Uint(value) => *value == 0,
            Const::Double(value) => value.to_bits() == 0,
            Const::String(_) | Const::Bytes(_) => self.bytes().is_some_and(<[u8]>::is_empty),
        }
    }
}

/// A list of the file's `[lists]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Strings(Vec<String>),
    Ints(Vec<i64>),
}

/// A field's type in the schema: what its values may be when it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Float,
    Double,
    String,
    Bytes,
}

impl Scalar {
    /// The type of its values in expressions.
    pub(crate) fn ty(self) -> Type {
        match self {
            Scalar::Bool => Type::Bool,
            Scalar::Int32 | Scalar::Int64 => Type::Int,
            Scalar::Uint32 | Scalar::Uint64 => Type::Uint,
            Scalar::Float | Scalar::Double => Type::Double,
            Scalar::String => Type::String,
            Scalar::Bytes => Type::Bytes,
        }
    }
}

/// A field as a view shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldType {
    pub(crate) scalar: Scalar,
    /// Its view says that it is present, whatever the message has: it is no member of a message
    /// that may be absent, and tells no presence itself. Then an entry without a value means that
    /// the operator doesn't grant the field.
    pub(crate) is_always: bool,
    /// Whether the field tells its presence.
    pub(crate) is_explicit: bool,
    /// Its value when it is absent, if that isn't zero or empty.
    pub(crate) default: Option<Const>,
    /// The values of its enum, if the enum is closed: no other can be set.
    pub(crate) closed: Option<Arc<[i32]>>,
    /// It can't be cleared.
    pub(crate) is_required: bool,
}

impl FieldType {
    /// The types that a file can declare.
    pub(crate) const NAMES: &[&str] = &[
        "bool", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
        "sfixed32", "sfixed64", "float", "double", "string", "bytes", "enum",
    ];

    /// The type of a field that a file declares: a name of protobuf's, perhaps after `optional`.
    pub(crate) fn from_name(name: &str) -> Option<FieldType> {
        let (is_explicit, name) = match name.strip_prefix("optional ") {
            Some(name) => (true, name),
            None => (false, name),
        };
        let scalar = match name {
            "bool" => Scalar::Bool,
            "int32" | "sint32" | "sfixed32" | "enum" => Scalar::Int32,
            "int64" | "sint64" | "sfixed64" => Scalar::Int64,
            "uint32" | "fixed32" => Scalar::Uint32,
            "uint64" | "fixed64" => Scalar::Uint64,
            "float" => Scalar::Float,
            "double" => Scalar::Double,
            "string" => Scalar::String,
            "bytes" => Scalar::Bytes,
            _ => return None,
        };
        Some(FieldType {
            scalar,
            is_always: !is_explicit,
            is_explicit,
            default: None,
            closed: None,
            is_required: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declared_type_has_a_meaning() {
        for name in FieldType::NAMES {
            let plain =
                FieldType::from_name(name).map(|field| (field.is_always, field.is_explicit));
            assert_eq!(plain, Some((true, false)), "{name}");
            let optional = FieldType::from_name(&format!("optional {name}"));
            let presence = optional.map(|field| (field.is_always, field.is_explicit));
            assert_eq!(presence, Some((false, true)), "{name}");
        }
        assert_eq!(FieldType::from_name("message"), None);
    }
}

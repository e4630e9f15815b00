//! Protobuf's built-in field types and their keywords.

/// The declared type of a field.
#[allow(missing_docs, reason = "the variants are protobuf's own type names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtoType {
    Double,
    Float,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Bool,
    String,
    Bytes,
    Enum,
    Message,
    Group,
}

impl ProtoType {
    /// The keyword of the interface language, or `enum` and `message`.
    pub const fn name(self) -> &'static str {
        match self {
            ProtoType::Double => "double",
            ProtoType::Float => "float",
            ProtoType::Int32 => "int32",
            ProtoType::Int64 => "int64",
            ProtoType::Uint32 => "uint32",
            ProtoType::Uint64 => "uint64",
            ProtoType::Sint32 => "sint32",
            ProtoType::Sint64 => "sint64",
            ProtoType::Fixed32 => "fixed32",
            ProtoType::Fixed64 => "fixed64",
            ProtoType::Sfixed32 => "sfixed32",
            ProtoType::Sfixed64 => "sfixed64",
            ProtoType::Bool => "bool",
            ProtoType::String => "string",
            ProtoType::Bytes => "bytes",
            ProtoType::Enum => "enum",
            ProtoType::Message => "message",
            ProtoType::Group => "group",
        }
    }

    /// The scalar type with this keyword.
    pub(crate) fn of_scalar(keyword: &str) -> Option<ProtoType> {
        const SCALARS: [ProtoType; 15] = [
            ProtoType::Double,
            ProtoType::Float,
            ProtoType::Int32,
            ProtoType::Int64,
            ProtoType::Uint32,
            ProtoType::Uint64,
            ProtoType::Sint32,
            ProtoType::Sint64,
            ProtoType::Fixed32,
            ProtoType::Fixed64,
            ProtoType::Sfixed32,
            ProtoType::Sfixed64,
            ProtoType::Bool,
            ProtoType::String,
            ProtoType::Bytes,
        ];
        SCALARS.into_iter().find(|scalar| scalar.name() == keyword)
    }
}

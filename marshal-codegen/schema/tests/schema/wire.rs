//! Descriptor sets byte by byte, for cases that prost's types can't express: editions, depths and
//! contradictions.

/// A varint.
pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// A length-delimited field.
pub(crate) fn bytes(number: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [
        varint(number << 3 | 2),
        varint(value.len() as u64),
        value.to_vec(),
    ]
    .concat()
}

/// A varint field.
pub(crate) fn int(number: u64, value: i64) -> Vec<u8> {
    [varint(number << 3), varint(value as u64)].concat()
}

/// Field presence, enum type, repeated encoding, UTF-8 validation, message encoding, as pairs of
/// number and value.
pub(crate) fn features(set: &[(u64, i64)]) -> Vec<u8> {
    set.iter().flat_map(|(n, v)| int(*n, *v)).collect()
}

/// A file of an edition with these parts.
pub(crate) fn edition(edition: i64, name: &str, package: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    let head = [
        bytes(1, name),
        bytes(2, package),
        bytes(12, "editions"),
        int(14, edition),
    ];
    [head.concat(), parts.concat()].concat()
}

/// A file of proto2 or proto3 with these parts.
pub(crate) fn file(syntax: &str, name: &str, package: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    let head = [bytes(1, name), bytes(2, package), bytes(12, syntax)];
    [head.concat(), parts.concat()].concat()
}

pub(crate) fn set(files: &[Vec<u8>]) -> Vec<u8> {
    files.iter().flat_map(|file| bytes(1, file)).collect()
}

/// A message, as a part of a file or a message.
pub(crate) fn message(number: u64, name: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    bytes(number, [bytes(1, name), parts.concat()].concat())
}

/// A field, as a part of a message; the type is protobuf's number.
pub(crate) fn field(name: &str, number: i64, proto_type: i64, more: &[Vec<u8>]) -> Vec<u8> {
    let head = [bytes(1, name), int(3, number), int(5, proto_type)];
    bytes(2, [head.concat(), more.concat()].concat())
}

/// An enum, as a part of a file (5) or a message (4).
pub(crate) fn enumeration(
    number: u64,
    name: &str,
    values: &[(&str, i64)],
    more: &[Vec<u8>],
) -> Vec<u8> {
    let values = values
        .iter()
        .flat_map(|(name, value)| bytes(2, [bytes(1, name), int(2, *value)].concat()))
        .collect();
    bytes(number, [bytes(1, name), values, more.concat()].concat())
}

/// A service, as a part of a file. Its methods take and return the messages with these names.
pub(crate) fn service(name: &str, methods: &[(&str, &str)]) -> Vec<u8> {
    let method = |(name, message): &(&str, &str)| {
        bytes(
            2,
            [bytes(1, name), bytes(2, message), bytes(3, message)].concat(),
        )
    };
    let methods: Vec<u8> = methods.iter().flat_map(method).collect();
    bytes(6, [bytes(1, name), methods].concat())
}

pub(crate) const DOUBLE: i64 = 1;
pub(crate) const INT32: i64 = 5;
pub(crate) const STRING: i64 = 9;
pub(crate) const GROUP: i64 = 10;
pub(crate) const MESSAGE: i64 = 11;
pub(crate) const ENUM: i64 = 14;

pub(crate) fn optional() -> Vec<u8> {
    int(4, 1)
}

pub(crate) fn required() -> Vec<u8> {
    int(4, 2)
}

pub(crate) fn repeated() -> Vec<u8> {
    int(4, 3)
}

/// A field's type by name.
pub(crate) fn of(name: &str) -> Vec<u8> {
    bytes(6, name)
}

//! A serialized `FileDescriptorSet`, parsed only as far as a layout needs it.
//!
//! All items borrow from the bytes; names are checked to be UTF-8 and nothing else. The bytes come
//! from a client, so the reader counts each item and stops at the first one beyond a bound. Four
//! megabytes of empty fields would become hundreds of megabytes of structs. prost's own types read
//! first and leave the counting for later, so this file doesn't use them. The only recursion is
//! over nested messages, to [`MAX_NESTING`].
//!
//! As in protobuf, the last of repeated singular values wins, repeated options are merged, and
//! unknown fields are skipped, groups among them. Absent: all items that no layout depends on
//! (defaults, JSON names, comments, other options).

use crate::SchemaError;
use crate::error::shown;
use crate::limits::{
    MAX_ENUMS, MAX_FILES, MAX_IMPORTS, MAX_MESSAGES, MAX_NESTING, MAX_RANGES, MAX_SCHEMA_FIELDS,
    MAX_SCHEMA_METHODS, MAX_SCHEMA_VALUES, MAX_SERVICES,
};

/// One `.proto` file.
#[derive(Debug, Default)]
pub(crate) struct File<'a> {
    /// The file's serialized bytes.
    pub(crate) bytes: &'a [u8],
    pub(crate) name: &'a str,
    pub(crate) package: &'a str,
    pub(crate) imports: Vec<&'a str>,
    pub(crate) messages: Vec<Message<'a>>,
    pub(crate) enums: Vec<Enum<'a>>,
    pub(crate) services: Vec<Service<'a>>,
    pub(crate) extensions: Vec<Field<'a>>,
    pub(crate) syntax: &'a str,
    /// Protobuf's number of the edition, such as 1000 for 2023.
    pub(crate) edition: i32,
    pub(crate) features: Features,
}

#[derive(Debug, Default)]
pub(crate) struct Message<'a> {
    pub(crate) name: &'a str,
    pub(crate) fields: Vec<Field<'a>>,
    pub(crate) messages: Vec<Message<'a>>,
    pub(crate) enums: Vec<Enum<'a>>,
    pub(crate) extensions: Vec<Field<'a>>,
    pub(crate) oneofs: Vec<Oneof<'a>>,
    /// Numbers reserved for extensions: start, and end exclusive.
    pub(crate) extension_ranges: Vec<(i32, i32)>,
    /// Start, and end exclusive.
    pub(crate) reserved_ranges: Vec<(i32, i32)>,
    pub(crate) reserved_names: Vec<&'a str>,
    pub(crate) map_entry: bool,
    pub(crate) features: Features,
}

#[derive(Debug, Default)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a str,
    pub(crate) number: i32,
    /// 0 if absent.
    pub(crate) label: i32,
    /// 0 if absent.
    pub(crate) proto_type: i32,
    pub(crate) type_name: &'a str,
    pub(crate) oneof: Option<i32>,
    pub(crate) proto3_optional: bool,
    pub(crate) packed: Option<bool>,
    pub(crate) features: Features,
}

#[derive(Debug, Default)]
pub(crate) struct Oneof<'a> {
    pub(crate) name: &'a str,
    pub(crate) features: Features,
}

#[derive(Debug, Default)]
pub(crate) struct Enum<'a> {
    pub(crate) name: &'a str,
    pub(crate) values: Vec<(&'a str, i32)>,
    /// Start and end, both inclusive.
    pub(crate) reserved_ranges: Vec<(i32, i32)>,
    pub(crate) reserved_names: Vec<&'a str>,
    pub(crate) features: Features,
}

#[derive(Debug, Default)]
pub(crate) struct Service<'a> {
    pub(crate) name: &'a str,
    pub(crate) methods: Vec<Method<'a>>,
}

#[derive(Debug, Default)]
pub(crate) struct Method<'a> {
    pub(crate) name: &'a str,
    pub(crate) input: &'a str,
    pub(crate) output: &'a str,
    pub(crate) client_streaming: bool,
    pub(crate) server_streaming: bool,
}

/// The features that one declaration of an edition sets; the numbers are protobuf's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    pub(crate) field_presence: Option<i32>,
    pub(crate) enum_type: Option<i32>,
    pub(crate) repeated_field_encoding: Option<i32>,
    pub(crate) utf8_validation: Option<i32>,
    pub(crate) message_encoding: Option<i32>,
}

/// Reads a serialized `FileDescriptorSet`.
pub(crate) fn read(bytes: &[u8]) -> Result<Vec<File<'_>>, SchemaError> {
    let mut counts = Counts::default();
    let mut files = Vec::new();
    each(bytes, |number, value| {
        if number == 1 {
            counts.add(Item::File)?;
            files.push(File::read(value.bytes()?, &mut counts)?);
        }
        Ok(())
    })?;
    Ok(files)
}

/// Appends a serialized file to a serialized set.
pub(crate) fn append_file(set: &mut Vec<u8>, file: &[u8]) {
    const FILE_TAG: u8 = 1 << 3 | 2;
    set.push(FILE_TAG);
    let mut len = file.len();
    while len >= 0x80 {
        set.push(len as u8 | 0x80);
        len >>= 7;
    }
    set.push(len as u8);
    set.extend_from_slice(file);
}

/// A serialized file without its comments and positions.
pub(crate) fn without_source_info(file: &[u8]) -> Result<Vec<u8>, SchemaError> {
    const SOURCE_INFO: u32 = 9;
    let mut wire = Wire { rest: file };
    let mut out = Vec::with_capacity(file.len());
    while !wire.rest.is_empty() {
        let record = wire.rest;
        let (number, wire_type) = wire.tag()?;
        match wire_type {
            3 => wire.skip_group(number)?,
            other => {
                wire.value(other)?;
            }
        }
        if number != SOURCE_INFO {
            out.extend_from_slice(&record[..record.len() - wire.rest.len()]);
        }
    }
    Ok(out)
}

impl<'a> File<'a> {
    fn read(bytes: &'a [u8], counts: &mut Counts) -> Result<File<'a>, SchemaError> {
        let mut file = File {
            bytes,
            ..File::default()
        };
        each(bytes, |number, value| {
            match number {
                1 => file.name = value.text()?,
                2 => file.package = value.text()?,
                3 => {
                    counts.add(Item::Import)?;
                    file.imports.push(value.text()?);
                }
                4 => file
                    .messages
                    .push(Message::outermost(value.bytes()?, counts)?),
                5 => file.enums.push(Enum::read(value.bytes()?, counts)?),
                6 => file.services.push(Service::read(value.bytes()?, counts)?),
                7 => file.extensions.push(Field::read(value.bytes()?, counts)?),
                8 => file.features.read(value.bytes()?, 50)?,
                12 => file.syntax = value.text()?,
                14 => file.edition = value.int32()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(file)
    }
}

impl<'a> Message<'a> {
    fn outermost(bytes: &'a [u8], counts: &mut Counts) -> Result<Message<'a>, SchemaError> {
        let read = Message::read(bytes, counts, 1);
        if let Err(SchemaError::NestedTooDeep { .. }) = read {
            // The message's name is only known after reading it; this pass reads nothing else.
            let mut message = String::new();
            each(bytes, |number, value| {
                if number == 1 {
                    message = shown(value.text()?);
                }
                Ok(())
            })?;
            return Err(SchemaError::NestedTooDeep { message });
        }
        read
    }

    fn read(
        bytes: &'a [u8],
        counts: &mut Counts,
        depth: usize,
    ) -> Result<Message<'a>, SchemaError> {
        if depth > MAX_NESTING {
            return Err(SchemaError::NestedTooDeep {
                message: String::new(),
            });
        }
        counts.add(Item::Message)?;
        let mut message = Message::default();
        each(bytes, |number, value| {
            match number {
                1 => message.name = value.text()?,
                2 => message.fields.push(Field::read(value.bytes()?, counts)?),
                3 => {
                    let nested = Message::read(value.bytes()?, counts, depth + 1)?;
                    message.messages.push(nested);
                }
                4 => message.enums.push(Enum::read(value.bytes()?, counts)?),
                5 => message
                    .extension_ranges
                    .push(range(value.bytes()?, counts)?),
                6 => message
                    .extensions
                    .push(Field::read(value.bytes()?, counts)?),
                7 => message.options(value.bytes()?)?,
                8 => message.oneofs.push(Oneof::read(value.bytes()?, counts)?),
                9 => message.reserved_ranges.push(range(value.bytes()?, counts)?),
                10 => {
                    counts.add(Item::Range)?;
                    message.reserved_names.push(value.text()?);
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(message)
    }

    fn options(&mut self, bytes: &'a [u8]) -> Result<(), SchemaError> {
        each(bytes, |number, value| {
            if number == 7 {
                self.map_entry = value.bool()?;
            }
            Ok(())
        })?;
        self.features.read(bytes, 12)
    }
}

impl<'a> Field<'a> {
    fn read(bytes: &'a [u8], counts: &mut Counts) -> Result<Field<'a>, SchemaError> {
        counts.add(Item::Field)?;
        let mut field = Field::default();
        each(bytes, |number, value| {
            match number {
                1 => field.name = value.text()?,
                3 => field.number = value.int32()?,
                4 => field.label = value.int32()?,
                5 => field.proto_type = value.int32()?,
                6 => field.type_name = value.text()?,
                8 => field.options(value.bytes()?)?,
                9 => field.oneof = Some(value.int32()?),
                17 => field.proto3_optional = value.bool()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(field)
    }

    fn options(&mut self, bytes: &'a [u8]) -> Result<(), SchemaError> {
        each(bytes, |number, value| {
            if number == 2 {
                self.packed = Some(value.bool()?);
            }
            Ok(())
        })?;
        self.features.read(bytes, 21)
    }
}

impl<'a> Oneof<'a> {
    fn read(bytes: &'a [u8], counts: &mut Counts) -> Result<Oneof<'a>, SchemaError> {
        counts.add(Item::Oneof)?;
        let mut oneof = Oneof::default();
        each(bytes, |number, value| {
            match number {
                1 => oneof.name = value.text()?,
                2 => oneof.features.read(value.bytes()?, 1)?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(oneof)
    }
}

impl<'a> Enum<'a> {
    fn read(bytes: &'a [u8], counts: &mut Counts) -> Result<Enum<'a>, SchemaError> {
        counts.add(Item::Enum)?;
        let mut declared = Enum::default();
        each(bytes, |number, value| {
            match number {
                1 => declared.name = value.text()?,
                2 => {
                    counts.add(Item::Value)?;
                    declared.values.push(enum_value(value.bytes()?)?);
                }
                3 => declared.features.read(value.bytes()?, 7)?,
                4 => declared
                    .reserved_ranges
                    .push(range(value.bytes()?, counts)?),
                5 => {
                    counts.add(Item::Range)?;
                    declared.reserved_names.push(value.text()?);
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(declared)
    }
}

impl<'a> Service<'a> {
    fn read(bytes: &'a [u8], counts: &mut Counts) -> Result<Service<'a>, SchemaError> {
        counts.add(Item::Service)?;
        let mut service = Service::default();
        each(bytes, |number, value| {
            match number {
                1 => service.name = value.text()?,
                2 => service.methods.push(Method::read(value.bytes()?, counts)?),
                _ => {}
            }
            Ok(())
        })?;
        Ok(service)
    }
}

impl<'a> Method<'a> {
    fn read(bytes: &'a [u8], counts: &mut Counts) -> Result<Method<'a>, SchemaError> {
        counts.add(Item::Method)?;
        let mut method = Method::default();
        each(bytes, |number, value| {
            match number {
                1 => method.name = value.text()?,
                2 => method.input = value.text()?,
                3 => method.output = value.text()?,
                5 => method.client_streaming = value.bool()?,
                6 => method.server_streaming = value.bool()?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(method)
    }
}

impl Features {
    /// Reads the `FeatureSet` in field `at` of an options message, and overrides the features read
    /// before.
    fn read(&mut self, options: &[u8], at: u32) -> Result<(), SchemaError> {
        each(options, |number, value| {
            if number != at {
                return Ok(());
            }
            each(value.bytes()?, |number, value| {
                let place = match number {
                    1 => &mut self.field_presence,
                    2 => &mut self.enum_type,
                    3 => &mut self.repeated_field_encoding,
                    4 => &mut self.utf8_validation,
                    5 => &mut self.message_encoding,
                    _ => return Ok(()),
                };
                *place = Some(value.int32()?);
                Ok(())
            })
        })
    }
}

fn enum_value(bytes: &[u8]) -> Result<(&str, i32), SchemaError> {
    let mut found = ("", 0);
    each(bytes, |number, value| {
        match number {
            1 => found.0 = value.text()?,
            2 => found.1 = value.int32()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

fn range(bytes: &[u8], counts: &mut Counts) -> Result<(i32, i32), SchemaError> {
    counts.add(Item::Range)?;
    let mut found = (0, 0);
    each(bytes, |number, value| {
        match number {
            1 => found.0 = value.int32()?,
            2 => found.1 = value.int32()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

/// The kinds of items that are counted.
#[derive(Clone, Copy)]
enum Item {
    File,
    Import,
    Message,
    Enum,
    Service,
    Field,
    Oneof,
    Value,
    Method,
    Range,
}

/// The number of items read, per kind.
#[derive(Default)]
struct Counts([usize; 10]);

impl Counts {
    fn add(&mut self, item: Item) -> Result<(), SchemaError> {
        let (what, limit) = match item {
            Item::File => ("files", MAX_FILES),
            Item::Import => ("imports", MAX_IMPORTS),
            Item::Message => ("messages", MAX_MESSAGES),
            Item::Enum => ("enums", MAX_ENUMS),
            Item::Service => ("services", MAX_SERVICES),
            Item::Field => ("fields", MAX_SCHEMA_FIELDS),
            Item::Oneof => ("oneofs", MAX_SCHEMA_FIELDS),
            Item::Value => ("enum values", MAX_SCHEMA_VALUES),
            Item::Method => ("methods", MAX_SCHEMA_METHODS),
            Item::Range => ("reserved and extension ranges", MAX_RANGES),
        };
        let count = &mut self.0[item as usize];
        *count += 1;
        if *count > limit {
            return Err(SchemaError::TooMany { what, limit });
        }
        Ok(())
    }
}

/// The value of one record.
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A kind that no field of a descriptor has.
    Other,
}

impl<'a> Value<'a> {
    fn bytes(self) -> Result<&'a [u8], SchemaError> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(invalid("a field has another wire type than a descriptor's")),
        }
    }

    fn text(self) -> Result<&'a str, SchemaError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| invalid("a name is not UTF-8"))
    }

    fn int32(self) -> Result<i32, SchemaError> {
        match self {
            // Like protobuf, keep the low 32 bits.
            Value::Varint(value) => Ok(value as i32),
            _ => Err(invalid("a field has another wire type than a descriptor's")),
        }
    }

    fn bool(self) -> Result<bool, SchemaError> {
        match self {
            Value::Varint(value) => Ok(value != 0),
            _ => Err(invalid("a field has another wire type than a descriptor's")),
        }
    }
}

fn invalid(reason: &str) -> SchemaError {
    SchemaError::DescriptorSetInvalid {
        reason: reason.to_owned(),
    }
}

/// Calls `take` for each record of a message, in order.
fn each<'a>(
    bytes: &'a [u8],
    mut take: impl FnMut(u32, Value<'a>) -> Result<(), SchemaError>,
) -> Result<(), SchemaError> {
    let mut wire = Wire { rest: bytes };
    while !wire.rest.is_empty() {
        let (number, wire_type) = wire.tag()?;
        let value = match wire_type {
            3 => {
                wire.skip_group(number)?;
                continue;
            }
            4 => return Err(invalid("a group ends that hasn't begun")),
            other => wire.value(other)?,
        };
        take(number, value)?;
    }
    Ok(())
}

/// Protobuf's records, one after the other.
struct Wire<'a> {
    rest: &'a [u8],
}

impl<'a> Wire<'a> {
    fn varint(&mut self) -> Result<u64, SchemaError> {
        let mut value = 0;
        for at in 0..10 {
            let byte = *self.rest.get(at).ok_or_else(|| invalid("it ends early"))?;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        Err(invalid("a number has more than 10 bytes"))
    }

    fn tag(&mut self) -> Result<(u32, u8), SchemaError> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|n| *n > 0);
        let number = number.ok_or_else(|| invalid("a field has an impossible number"))?;
        Ok((number, (tag & 7) as u8))
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], SchemaError> {
        let len = usize::try_from(len).ok().filter(|l| *l <= self.rest.len());
        let (taken, rest) = self
            .rest
            .split_at(len.ok_or_else(|| invalid("it ends early"))?);
        self.rest = rest;
        Ok(taken)
    }

    fn value(&mut self, wire_type: u8) -> Result<Value<'a>, SchemaError> {
        Ok(match wire_type {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Other
            }
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            5 => {
                self.take(4)?;
                Value::Other
            }
            _ => return Err(invalid("a field has an unknown wire type")),
        })
    }

    /// Skips a group: a custom option may be one, and no layout depends on it.
    fn skip_group(&mut self, number: u32) -> Result<(), SchemaError> {
        const MOST: usize = 100;
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            let (number, wire_type) = self.tag()?;
            match wire_type {
                3 if open.len() < MOST => open.push(number),
                3 => return Err(invalid("groups nest deeper than 100 levels")),
                4 if number == *innermost => {
                    open.pop();
                }
                4 => return Err(invalid("a group ends that hasn't begun")),
                other => {
                    self.value(other)?;
                }
            }
        }
        Ok(())
    }
}

//! Writes and reads blocks by reflection: for tools without generated code, and for tests.
//!
//! This module is slower than the programs and independent of them: it shares only the numbers of
//! [`crate::layout`] with them. Written blocks are canonical and have no extents. The reader
//! follows offsets in any order and checks every bound. It reads at most as many bytes as the block
//! has, so overlapping parts can't expand a small block into a large message.
//!
//! Unknown fields are neither written nor read: JSON has no place for them.

use prost_reflect::prost::bytes::Bytes;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind as ProtoKind, MapKey, MessageDescriptor, ReflectMessage,
    Value,
};
use std::collections::HashMap;

use crate::DynamicError;
use crate::json::is_unset;
pub use crate::json::{UnknownFields, from_json, parse_json, to_json};
use crate::layout::{
    Cardinality, EXTENT_FLAG, FieldLayout, Kind, Layouts, MessageId, MessageLayout, align_up,
};
use crate::limits::{MAX_DEPTH, MAX_MESSAGE};

/// Writes `message` as a canonical block without extents; an unset required field is an error that
/// names it.
pub fn write_block(
    layouts: &Layouts,
    id: MessageId,
    message: &DynamicMessage,
) -> Result<Vec<u8>, DynamicError> {
    Ok(write(layouts, id, message, |_| false, true)?.inline)
}

/// A block with its extents kept outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The inline bytes; slots refer to extents by index.
    pub inline: Vec<u8>,
    /// The extents in canonical order.
    pub extents: Vec<Vec<u8>>,
}

/// Writes `message` as a canonical block in which the string and bytes values that `apart` picks
/// are extents.
///
/// An empty value is never an extent. This function neither limits the number of extents nor
/// demands required fields: the block's reader checks both.
pub fn write_parts(
    layouts: &Layouts,
    id: MessageId,
    message: &DynamicMessage,
    apart: impl FnMut(&[u8]) -> bool,
) -> Result<Parts, DynamicError> {
    write(layouts, id, message, apart, false)
}

fn write(
    layouts: &Layouts,
    id: MessageId,
    message: &DynamicMessage,
    apart: impl FnMut(&[u8]) -> bool,
    wants_required: bool,
) -> Result<Parts, DynamicError> {
    let mut writer = Writer {
        layouts,
        wants_required,
        out: Vec::new(),
        extents: Vec::new(),
        apart,
    };
    let at = writer.append(layouts.get(id).size as usize, 8)?;
    writer.structure(at, id, message, 1)?;
    Ok(Parts {
        inline: writer.out,
        extents: writer.extents,
    })
}

impl Parts {
    /// The image as on the wire: the inline bytes, then each extent at the next multiple of 8.
    pub fn image(&self) -> Vec<u8> {
        let mut image = self.inline.clone();
        for extent in &self.extents {
            image.resize(align_up(image.len(), 8), 0);
            image.extend_from_slice(extent);
        }
        image
    }
}

/// Reads a block without extents, or an accepted image, as a message of type `descriptor`.
pub fn read_block(
    layouts: &Layouts,
    id: MessageId,
    descriptor: &MessageDescriptor,
    block: &[u8],
) -> Result<DynamicMessage, DynamicError> {
    let mut reader = Reader {
        layouts,
        block,
        left: block.len(),
    };
    let layout = layouts.get(id);
    reader.part(layout, 0, layout.size as usize)?;
    reader.structure(0, id, descriptor, 1)
}

struct Writer<'a, F> {
    layouts: &'a Layouts,
    out: Vec<u8>,
    extents: Vec<Vec<u8>>,
    apart: F,
    /// Whether a missing required field is an error.
    wants_required: bool,
}

impl<F: FnMut(&[u8]) -> bool> Writer<'_, F> {
    /// Appends zeros at the next multiple of `align` and returns their offset. For an empty part it
    /// appends nothing, not even padding.
    fn append(&mut self, len: usize, align: usize) -> Result<usize, DynamicError> {
        if len == 0 {
            return Ok(self.out.len());
        }
        let at = align_up(self.out.len(), align);
        let end = at.checked_add(len).filter(|end| *end <= MAX_MESSAGE);
        self.out
            .resize(end.ok_or(DynamicError::TooLarge { limit: MAX_MESSAGE })?, 0);
        Ok(at)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.out[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Sets a presence bit of the struct at `at`.
    fn set_bit(&mut self, at: usize, bit: u32) {
        self.out[at + bit as usize / 8] |= 1 << (bit % 8);
    }

    /// Writes a slot unless it's empty: an empty slot stays zero.
    fn slot(&mut self, at: usize, off: usize, len: usize) {
        if len > 0 {
            self.put(at, &(off as u32).to_le_bytes());
            self.put(at + 4, &(len as u32).to_le_bytes());
        }
    }

    fn structure(
        &mut self,
        at: usize,
        id: MessageId,
        message: &DynamicMessage,
        depth: usize,
    ) -> Result<(), DynamicError> {
        let layout = self.layouts.get(id);
        let descriptor = message.descriptor();
        if descriptor.full_name() != layout.name {
            return Err(wrong_type(layout, descriptor.full_name()));
        }
        if depth > MAX_DEPTH {
            return Err(DynamicError::TooDeep { limit: MAX_DEPTH });
        }
        for field in &layout.fields {
            let found = descriptor.get_field(field.number);
            let described = found.ok_or_else(|| wrong_type(layout, "another version of it"))?;
            let value = message.get_field(&described);
            match field.cardinality {
                Cardinality::Singular if !matches!(field.kind, Kind::Message(_)) => {}
                Cardinality::Repeated | Cardinality::Map => {
                    self.array(at + field.offset as usize, layout, field, &value, depth)?;
                    continue;
                }
                _ if !message.has_field(&described) => {
                    if field.required && self.wants_required {
                        return Err(DynamicError::RequiredMissing {
                            message: layout.name.clone(),
                            field: field.name.clone(),
                        });
                    }
                    continue;
                }
                Cardinality::Optional { bit } => self.set_bit(at, bit),
                Cardinality::Oneof { index } => {
                    let case = layout.oneofs[index as usize].case_offset as usize;
                    self.put(at + case, &field.number.to_le_bytes());
                }
                Cardinality::Singular => {}
            }
            self.value(
                at + field.offset as usize,
                layout,
                field.kind,
                &value,
                depth,
            )?;
        }
        Ok(())
    }

    fn array(
        &mut self,
        slot: usize,
        layout: &MessageLayout,
        field: &FieldLayout,
        value: &Value,
        depth: usize,
    ) -> Result<(), DynamicError> {
        let entries;
        let items = match (value, field.kind) {
            (Value::List(items), _) => items,
            (Value::Map(map), Kind::Message(entry)) => {
                entries = entry_values(self.layouts.get(entry), map);
                return self.entries(slot, entry, &entries, depth);
            }
            _ => return Err(wrong_type(layout, "a value of another type")),
        };
        let (size, align) = element(self.layouts, field.kind);
        let start = self.append(items.len() * size, align)?;
        self.slot(slot, start, items.len());
        for (i, item) in items.iter().enumerate() {
            let at = start + i * size;
            match (field.kind, item) {
                (Kind::Message(id), Value::Message(message)) => {
                    self.structure(at, id, message, depth + 1)?
                }
                (kind, item) => self.value(at, layout, kind, item, depth)?,
            }
        }
        Ok(())
    }

    fn entries(
        &mut self,
        slot: usize,
        id: MessageId,
        entries: &[(Value, &Value)],
        depth: usize,
    ) -> Result<(), DynamicError> {
        let layout = self.layouts.get(id);
        let size = layout.size as usize;
        let start = self.append(entries.len() * size, 8)?;
        self.slot(slot, start, entries.len());
        if depth >= MAX_DEPTH && !entries.is_empty() {
            return Err(DynamicError::TooDeep { limit: MAX_DEPTH });
        }
        for (i, (key, value)) in entries.iter().enumerate() {
            let at = start + i * size;
            for (field, value) in layout.fields.iter().zip([key, *value]) {
                // Entries of proto2 maps have presence bits; both are always set.
                if let Cardinality::Optional { bit } = field.cardinality {
                    self.set_bit(at, bit);
                }
                self.value(
                    at + field.offset as usize,
                    layout,
                    field.kind,
                    value,
                    depth + 1,
                )?;
            }
        }
        Ok(())
    }

    /// One value of any kind; messages and text append their part.
    fn value(
        &mut self,
        at: usize,
        layout: &MessageLayout,
        kind: Kind,
        value: &Value,
        depth: usize,
    ) -> Result<(), DynamicError> {
        match (kind, value) {
            (Kind::I32, Value::I32(v)) | (Kind::Enum, Value::EnumNumber(v)) => {
                self.put(at, &v.to_le_bytes())
            }
            (Kind::U32, Value::U32(v)) => self.put(at, &v.to_le_bytes()),
            (Kind::I64, Value::I64(v)) => self.put(at, &v.to_le_bytes()),
            (Kind::U64, Value::U64(v)) => self.put(at, &v.to_le_bytes()),
            (Kind::F32, Value::F32(v)) => self.put(at, &v.to_le_bytes()),
            (Kind::F64, Value::F64(v)) => self.put(at, &v.to_le_bytes()),
            (Kind::Bool, Value::Bool(v)) => self.put(at, &[u8::from(*v)]),
            (Kind::String, Value::String(v)) => self.bytes(at, v.as_bytes())?,
            (Kind::Bytes, Value::Bytes(v)) => self.bytes(at, v)?,
            (Kind::Message(id), Value::Message(message)) => {
                let part = self.append(self.layouts.get(id).size as usize, 8)?;
                self.put(at, &(part as u32).to_le_bytes());
                self.structure(part, id, message, depth + 1)?;
            }
            _ => return Err(wrong_type(layout, "a value of another type")),
        }
        Ok(())
    }

    fn bytes(&mut self, slot: usize, bytes: &[u8]) -> Result<(), DynamicError> {
        if !bytes.is_empty() && (self.apart)(bytes) {
            self.slot(slot, EXTENT_FLAG as usize | self.extents.len(), bytes.len());
            self.extents.push(bytes.to_vec());
            return Ok(());
        }
        let at = self.append(bytes.len(), 1)?;
        self.put(at, bytes);
        self.slot(slot, at, bytes.len());
        Ok(())
    }
}

/// The entries of a map in the order of their keys, so that equal maps have equal blocks.
fn entry_values<'v>(
    entry: &MessageLayout,
    map: &'v HashMap<MapKey, Value>,
) -> Vec<(Value, &'v Value)> {
    debug_assert_eq!(entry.fields.len(), 2);
    let mut sorted: Vec<_> = map.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(b.0));
    sorted
        .into_iter()
        .map(|(key, value)| (Value::from(key.clone()), value))
        .collect()
}

fn wrong_type(layout: &MessageLayout, got: &str) -> DynamicError {
    DynamicError::WrongType {
        expected: layout.name.clone(),
        got: got.to_owned(),
    }
}

/// Size and alignment of an array's element.
fn element(layouts: &Layouts, kind: Kind) -> (usize, usize) {
    match kind {
        Kind::Message(id) => (layouts.get(id).size as usize, 8),
        Kind::String | Kind::Bytes => (8, 4),
        scalar => (scalar.scalar_size() as usize, scalar.scalar_size() as usize),
    }
}

struct Reader<'a> {
    layouts: &'a Layouts,
    block: &'a [u8],
    /// Bytes of parts that may still be read.
    left: usize,
}

impl<'a> Reader<'a> {
    /// Claims a part: in bounds, and within what the block has left.
    fn part(
        &mut self,
        layout: &MessageLayout,
        at: usize,
        len: usize,
    ) -> Result<&'a [u8], DynamicError> {
        let malformed = |reason| DynamicError::Malformed {
            message: layout.name.clone(),
            reason,
            at,
        };
        let part = at.checked_add(len).and_then(|end| self.block.get(at..end));
        let part = part.ok_or_else(|| malformed("a part reaches past the end"))?;
        self.left = self
            .left
            .checked_sub(len)
            .ok_or_else(|| malformed("parts overlap"))?;
        Ok(part)
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    /// Bytes of a claimed part.
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.block[at..at + N].try_into().expect("N bytes")
    }

    fn structure(
        &mut self,
        at: usize,
        id: MessageId,
        descriptor: &MessageDescriptor,
        depth: usize,
    ) -> Result<DynamicMessage, DynamicError> {
        let layout = self.layouts.get(id);
        if descriptor.full_name() != layout.name {
            return Err(wrong_type(layout, descriptor.full_name()));
        }
        if depth > MAX_DEPTH {
            return Err(DynamicError::TooDeep { limit: MAX_DEPTH });
        }
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in &layout.fields {
            let found = descriptor.get_field(field.number);
            let described = found.ok_or_else(|| wrong_type(layout, "another version of it"))?;
            let offset = at + field.offset as usize;
            let present = match field.cardinality {
                Cardinality::Singular => {
                    !matches!(field.kind, Kind::Message(_)) || self.u32(offset) != 0
                }
                Cardinality::Optional { bit } => {
                    self.block[at + bit as usize / 8] >> (bit % 8) & 1 == 1
                }
                Cardinality::Oneof { index } => {
                    self.u32(at + layout.oneofs[index as usize].case_offset as usize)
                        == field.number
                }
                Cardinality::Repeated | Cardinality::Map => self.u32(offset + 4) != 0,
            };
            if !present {
                continue;
            }
            let value = match field.cardinality {
                Cardinality::Repeated | Cardinality::Map => {
                    self.list(offset, layout, field, &described, depth)?
                }
                _ => self.value(offset, layout, field.kind, &described, depth)?,
            };
            // prost-reflect distinguishes a set default from an unset one; protobuf doesn't.
            let is_implicit = field.cardinality == Cardinality::Singular
                && !matches!(field.kind, Kind::Message(_));
            if is_implicit && is_unset(&described, &value) {
                continue;
            }
            let set = message.try_set_field(&described, value);
            set.map_err(|_| wrong_type(layout, "a value of another type"))?;
        }
        Ok(message)
    }

    fn list(
        &mut self,
        slot: usize,
        layout: &MessageLayout,
        field: &FieldLayout,
        described: &FieldDescriptor,
        depth: usize,
    ) -> Result<Value, DynamicError> {
        let (start, count) = (self.u32(slot) as usize, self.u32(slot + 4) as usize);
        let (size, _) = element(self.layouts, field.kind);
        self.part(layout, start, count.saturating_mul(size))?;
        let mut items = Vec::with_capacity(count);
        for i in 0..count {
            let at = start + i * size;
            items.push(match (field.kind, described.kind()) {
                (Kind::Message(id), ProtoKind::Message(d)) => {
                    Value::Message(self.structure(at, id, &d, depth + 1)?)
                }
                (kind, _) => self.value(at, layout, kind, described, depth)?,
            });
        }
        if field.cardinality == Cardinality::Map {
            into_map(layout, items)
        } else {
            Ok(Value::List(items))
        }
    }

    fn value(
        &mut self,
        at: usize,
        layout: &MessageLayout,
        kind: Kind,
        described: &FieldDescriptor,
        depth: usize,
    ) -> Result<Value, DynamicError> {
        Ok(match kind {
            Kind::I32 => Value::I32(i32::from_le_bytes(self.array(at))),
            Kind::Enum => Value::EnumNumber(i32::from_le_bytes(self.array(at))),
            Kind::U32 => Value::U32(self.u32(at)),
            Kind::I64 => Value::I64(i64::from_le_bytes(self.array(at))),
            Kind::U64 => Value::U64(u64::from_le_bytes(self.array(at))),
            Kind::F32 => Value::F32(f32::from_le_bytes(self.array(at))),
            Kind::F64 => Value::F64(f64::from_le_bytes(self.array(at))),
            Kind::Bool => Value::Bool(self.block[at] != 0),
            Kind::String => {
                let text = std::str::from_utf8(self.bytes(at, layout)?);
                Value::String(
                    text.map_err(|_| malformed(layout, "text is not UTF-8", at))?
                        .to_owned(),
                )
            }
            Kind::Bytes => Value::Bytes(Bytes::copy_from_slice(self.bytes(at, layout)?)),
            Kind::Message(id) => {
                let part = self.u32(at) as usize;
                if part == 0 {
                    return Err(malformed(layout, "a message that is set is absent", at));
                }
                let ProtoKind::Message(descriptor) = described.kind() else {
                    return Err(wrong_type(layout, "a value of another type"));
                };
                self.part(layout, part, self.layouts.get(id).size as usize)?;
                Value::Message(self.structure(part, id, &descriptor, depth + 1)?)
            }
        })
    }

    fn bytes(&mut self, slot: usize, layout: &MessageLayout) -> Result<&'a [u8], DynamicError> {
        let (off, len) = (self.u32(slot) as usize, self.u32(slot + 4) as usize);
        if len == 0 {
            Ok(&[])
        } else {
            self.part(layout, off, len)
        }
    }
}

/// A map from its entries; the last of equal keys wins, as in protobuf.
fn into_map(layout: &MessageLayout, entries: Vec<Value>) -> Result<Value, DynamicError> {
    let mut map = HashMap::with_capacity(entries.len());
    for entry in entries {
        let Value::Message(entry) = entry else {
            continue;
        };
        let key = entry
            .get_field_by_number(1)
            .and_then(|k| k.into_owned().into_map_key());
        let value = entry.get_field_by_number(2);
        let (Some(key), Some(value)) = (key, value) else {
            return Err(wrong_type(layout, "a map entry of another type"));
        };
        map.insert(key, value.into_owned());
    }
    Ok(Value::Map(map))
}

fn malformed(layout: &MessageLayout, reason: &'static str, at: usize) -> DynamicError {
    DynamicError::Malformed {
        message: layout.name.clone(),
        reason,
        at,
    }
}

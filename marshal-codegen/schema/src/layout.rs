//! The place of every field of a message, and the order of a block's parts.
//!
//! A message is one contiguous **block**. Its root struct sits at offset 0; every value of variable
//! size is a **part**, and the struct refers to it by its offset from the block's start. All
//! integers are little endian.
//!
//! # The fixed part of a struct
//!
//! Its size is a multiple of 8 bytes and at least 8 bytes, for an empty message too: an array can't
//! claim more elements than it has bytes. Its alignment is 8 bytes:
//!
//! ```text
//! presence   u32 words; bit b of the bitmap belongs to the b-th field with explicit presence, by number:
//!            `optional` scalars, strings and bytes; not oneof members, not messages
//! cases      one u32 per oneof, in declaration order: the number of the member that is set, or 0
//! fields     by (alignment descending, number), each at its natural alignment:
//!              8  int64 uint64 sint64 fixed64 sfixed64 double
//!              4  int32 uint32 sint32 fixed32 sfixed32 float enum      (any i32, of closed enums too)
//!              4  message            reference { off u32 }             off 0: absent
//!              4  string bytes       slot { off u32, len u32 }         len in bytes
//!              4  repeated map       slot { off u32, len u32 }         len in elements
//!              4  unknown fields     slot { off u32, len u32 }         len in bytes; after all others of alignment 4
//!              1  bool               0 or 1
//! padding    written zero, never read
//! ```
//!
//! Empty and absent values have `off` and `len` zero. That includes unset oneof members and fields
//! whose presence bit is clear.
//!
//! # Unknown fields
//!
//! Every struct except a map's entry has a slot for protobuf records that the schema doesn't know,
//! so that a message loses nothing when it is decoded and encoded again. They are whole records,
//! one after the other. None of them is a record that the message type would read as one of its
//! fields: a policy that has read a field has read all of it.
//!
//! # Canonical order of the parts
//!
//! A reader owns a cursor that starts at the end of the root struct, and every part must begin
//! exactly at `align_up(cursor, alignment of the part)`. So parts can't overlap or form cycles, and
//! few bytes can't pose as many. One walk both validates a block and finds its length. Per struct,
//! in field-number order:
//!
//! | field | part | alignment |
//! |---|---|---|
//! | string, bytes | the bytes | 1 |
//! | repeated scalar | the elements | of the element |
//! | message | its fixed part, then at once its own parts | 8 |
//! | repeated message, map | the array of fixed parts, then each element's parts in order | 8 |
//! | repeated string, bytes | the array of slots, then each element's bytes in order | 4 |
//! | unknown fields, after all others | the records | 1 |
//!
//! A map is an array of entry structs `{1 key, 2 value}`. Entries tell no presence, whatever the
//! syntax: an entry has both fields, and a field that the encoding omitted is zero or empty. The
//! inline length of a block is exactly the cursor after the last part.
//!
//! # Extents
//!
//! A slot of a string or bytes value (an element of a repeated one, too) may say `off = 0x8000_0000
//! | i`: the value is the block's extent `i`, counted from 0 in canonical order, and takes no room
//! inline. The receiver holds, and the wire carries, this image:
//!
//! ```text
//! [inline][pad to 8][extent 0][pad to 8][extent 1] ... [extent n-1]
//! ```
//!
//! After acceptance, the slots carry each extent's offset in the image. There is no padding after
//! the last extent, nor after `inline` if there are no extents.
//!
//! Absent on purpose: names, numbers or types inside a block. Two sides with different layouts
//! don't exchange blocks.

use std::collections::HashMap;
use std::sync::Arc;

pub use crate::proto_type::ProtoType;
use crate::resolve::{self, Label, MessageIndex, Model, Value};

/// The bit of a slot's `off` that makes it refer to an extent instead of an inline offset.
pub const EXTENT_FLAG: u32 = 0x8000_0000;

/// Index of a message type in its [`Layouts`]; it never leaves the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u32);

/// A closed set of message types: every message that a field refers to is in it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Layouts {
    /// Indexed by [`MessageId`].
    pub messages: Vec<MessageLayout>,
}

/// The fixed part of one message type.
#[derive(Debug, PartialEq, Eq)]
pub struct MessageLayout {
    /// Full name, such as `hotel.ReserveRequest`.
    pub name: String,
    /// Bytes of the fixed part; a multiple of 8, at least 8.
    pub size: u32,
    /// Number of `u32` words of the presence bitmap, at offset 0.
    pub presence_words: u32,
    /// The real oneofs in declaration order, without proto3's synthetic ones for `optional`.
    pub oneofs: Vec<OneofLayout>,
    /// In ascending order of their numbers.
    pub fields: Vec<FieldLayout>,
    /// Offset of the slot for unknown fields; `None` for the entry of a map.
    pub unknown: Option<u32>,
}

/// One oneof of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct OneofLayout {
    /// Name inside the message.
    pub name: String,
    /// Offset of the `u32` case in the fixed part.
    pub case_offset: u32,
}

/// One field of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct FieldLayout {
    /// Name inside the message.
    pub name: String,
    /// The protobuf field number.
    pub number: u32,
    /// Offset of the value, reference or slot in the fixed part.
    pub offset: u32,
    /// The kind of one value (one element of a repeated field).
    pub kind: Kind,
    /// The number of values, and how the field tells its presence.
    pub cardinality: Cardinality,
    /// The type as the schema declares it; it decides the protobuf encoding, not the layout.
    pub proto_type: ProtoType,
    /// A repeated scalar is encoded as one packed record (both forms are always decoded).
    pub packed: bool,
    /// It must be set (proto2, and `LEGACY_REQUIRED` of editions).
    pub required: bool,
    /// The declared values, ascending, if the field's enum is closed: other values become unknown
    /// fields when decoded. A block may still hold any `i32`.
    pub closed: Option<Arc<[i32]>>,
}

/// The representation of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Signed, 4 bytes.
    I32,
    /// Unsigned, 4 bytes.
    U32,
    /// Signed, 8 bytes.
    I64,
    /// Unsigned, 8 bytes.
    U64,
    /// IEEE 754, 4 bytes.
    F32,
    /// IEEE 754, 8 bytes.
    F64,
    /// 1 byte, 0 or 1.
    Bool,
    /// Open enum: any `i32`, 4 bytes.
    Enum,
    /// UTF-8 text in a part.
    String,
    /// Bytes in a part.
    Bytes,
    /// A struct in a part.
    Message(MessageId),
}

/// The number of a field's values, and how the field tells whether it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cardinality {
    /// One value with implicit presence; a message is absent when its reference is 0.
    Singular,
    /// One value; set if its bit in the presence bitmap is. Never a message.
    Optional {
        /// Index of the bit: word `bit / 32`, mask `1 << (bit % 32)`.
        bit: u32,
    },
    /// A member of a oneof; set if the case is its number. A message member that is set is never
    /// absent.
    Oneof {
        /// Index into [`MessageLayout::oneofs`].
        index: u32,
    },
    /// An array.
    Repeated,
    /// An array of entry structs `{1 key, 2 value}`; the kind is the entry message.
    Map,
}

impl Layouts {
    /// The layout of `id`. Ids must come from the same `Layouts`; an id of other layouts panics or
    /// returns another type.
    pub fn get(&self, id: MessageId) -> &MessageLayout {
        &self.messages[id.0 as usize]
    }

    /// The message type with this full name.
    pub fn find(&self, full_name: &str) -> Option<MessageId> {
        let at = self.messages.iter().position(|m| m.name == full_name)?;
        Some(MessageId(at as u32))
    }

    /// Lays out the closure of `roots`, breadth first, and returns the roots' ids. The roots come
    /// first, in order, duplicates merged.
    pub(crate) fn closure(model: &Model, roots: &[MessageIndex]) -> (Layouts, Vec<MessageId>) {
        let mut ids = Ids::default();
        let roots = roots.iter().map(|root| ids.of(*root)).collect();
        let mut layouts = Layouts::default();
        while let Some(&message) = ids.queue.get(layouts.messages.len()) {
            let layout = MessageLayout::compute(model, model.message(message), &mut ids);
            layouts.messages.push(layout);
        }
        (layouts, roots)
    }
}

impl MessageLayout {
    /// The field with this number.
    pub fn field(&self, number: u32) -> Option<&FieldLayout> {
        let at = self
            .fields
            .binary_search_by_key(&number, |f| f.number)
            .ok()?;
        Some(&self.fields[at])
    }

    /// The field with this name.
    pub fn field_named(&self, name: &str) -> Option<&FieldLayout> {
        self.fields.iter().find(|f| f.name == name)
    }

    fn compute(model: &Model, message: &resolve::Message, ids: &mut Ids) -> MessageLayout {
        let mut fields = Vec::with_capacity(message.fields.len());
        let mut bits = 0;
        // Fields are ordered by number, and so are the bits.
        for field in &message.fields {
            let kind = kind_of(field.value, ids);
            let is_message = matches!(kind, Kind::Message(_));
            let cardinality = match field.label {
                Label::Map => Cardinality::Map,
                Label::Repeated => Cardinality::Repeated,
                Label::Oneof(index) => Cardinality::Oneof { index },
                Label::Explicit | Label::Required if !is_message => {
                    bits += 1;
                    Cardinality::Optional { bit: bits - 1 }
                }
                Label::Explicit | Label::Required | Label::Implicit => Cardinality::Singular,
            };
            fields.push(FieldLayout {
                name: field.name.clone(),
                number: field.number,
                offset: 0,
                kind,
                cardinality,
                proto_type: proto_type(field.value),
                packed: field.packed,
                required: field.label == Label::Required,
                closed: match field.value {
                    Value::Enum(index) => model.enumeration(index).closed.clone(),
                    _ => None,
                },
            });
        }
        let presence_words = bits.div_ceil(32);
        let oneofs: Vec<_> = (presence_words..)
            .zip(&message.oneofs)
            .map(|(word, name)| OneofLayout {
                name: name.clone(),
                case_offset: word * 4,
            })
            .collect();
        let start = (presence_words + oneofs.len() as u32) * 4;
        let (size, unknown) = place(&mut fields, start, !message.is_map_entry);
        MessageLayout {
            name: message.name.clone(),
            size,
            presence_words,
            oneofs,
            fields,
            unknown,
        }
    }
}

impl FieldLayout {
    /// Size in bytes and alignment of this field in the fixed part.
    pub fn fixed_size_and_align(&self) -> (u32, u32) {
        match self.cardinality {
            Cardinality::Repeated | Cardinality::Map => (8, 4),
            _ => match self.kind {
                Kind::Message(_) => (4, 4),
                Kind::String | Kind::Bytes => (8, 4),
                kind => (kind.scalar_size(), kind.scalar_size()),
            },
        }
    }
}

impl Kind {
    /// Bytes of one scalar, which is also its alignment; 0 for strings, bytes and messages.
    pub const fn scalar_size(self) -> u32 {
        match self {
            Kind::I64 | Kind::U64 | Kind::F64 => 8,
            Kind::I32 | Kind::U32 | Kind::F32 | Kind::Enum => 4,
            Kind::Bool => 1,
            Kind::String | Kind::Bytes | Kind::Message(_) => 0,
        }
    }
}

/// Rounds `at` up to a multiple of `align`, a power of two.
pub const fn align_up(at: usize, align: usize) -> usize {
    (at + align - 1) & !(align - 1)
}

/// Message types in the order of discovery.
#[derive(Default)]
struct Ids {
    by_index: HashMap<MessageIndex, MessageId>,
    queue: Vec<MessageIndex>,
}

impl Ids {
    fn of(&mut self, message: MessageIndex) -> MessageId {
        let next = MessageId(self.queue.len() as u32);
        let id = *self.by_index.entry(message).or_insert(next);
        if id == next {
            self.queue.push(message);
        }
        id
    }
}

/// Assigns each field its offset, from `start` on; returns the size of the fixed part and the
/// offset of unknown fields.
fn place(fields: &mut [FieldLayout], start: u32, keeps_unknown: bool) -> (u32, Option<u32>) {
    const SLOT: (u32, u32) = (8, 4);
    let mut items: Vec<_> = fields
        .iter()
        .map(FieldLayout::fixed_size_and_align)
        .collect();
    if keeps_unknown {
        items.push(SLOT);
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    // The sort is stable: equal alignments stay in the order of their numbers, and unknown fields
    // come last.
    order.sort_by_key(|&i| std::cmp::Reverse(items[i].1));
    let mut at = start;
    let mut unknown = None;
    for i in order {
        let (size, align) = items[i];
        at = at.next_multiple_of(align);
        match fields.get_mut(i) {
            Some(field) => field.offset = at,
            None => unknown = Some(at),
        }
        at += size;
    }
    (at.next_multiple_of(8).max(8), unknown)
}

fn proto_type(value: Value) -> ProtoType {
    match value {
        Value::Scalar(scalar) => scalar,
        Value::Enum(_) => ProtoType::Enum,
        Value::Message(_) => ProtoType::Message,
        Value::Group(_) => ProtoType::Group,
    }
}

fn kind_of(value: Value, ids: &mut Ids) -> Kind {
    let scalar = match value {
        Value::Scalar(scalar) => scalar,
        Value::Enum(_) => return Kind::Enum,
        Value::Message(message) | Value::Group(message) => {
            return Kind::Message(ids.of(message));
        }
    };
    match scalar {
        ProtoType::Double => Kind::F64,
        ProtoType::Float => Kind::F32,
        ProtoType::Int32 | ProtoType::Sint32 | ProtoType::Sfixed32 => Kind::I32,
        ProtoType::Uint32 | ProtoType::Fixed32 => Kind::U32,
        ProtoType::Int64 | ProtoType::Sint64 | ProtoType::Sfixed64 => Kind::I64,
        ProtoType::Uint64 | ProtoType::Fixed64 => Kind::U64,
        ProtoType::Bool => Kind::Bool,
        ProtoType::String => Kind::String,
        ProtoType::Bytes => Kind::Bytes,
        ProtoType::Enum | ProtoType::Message | ProtoType::Group => {
            unreachable!("types with a name of their own aren't scalars")
        }
    }
}

//! Schemas, random messages and malformed ones, for the tests of both executors.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tollgate_marshal::{FaultCode, Program};
use tollgate_schema::dynamic::{Parts, write_parts};
use tollgate_schema::prost_reflect::{
    Cardinality, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Syntax, Value,
};
use tollgate_schema::{Cardinality as LayoutCardinality, Kind as LayoutKind};
use tollgate_schema::{EXTENT_FLAG, Layouts, MessageId, Schema};

/// A message type of one of the test schemas.
pub(crate) struct Subject {
    pub(crate) layouts: Arc<Layouts>,
    pub(crate) id: MessageId,
    pub(crate) descriptor: MessageDescriptor,
    pub(crate) program: Arc<Program>,
}

pub(crate) fn schema(file: &str) -> Schema {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    Schema::compile_proto(&[protos.join(file)], &[protos]).unwrap()
}

pub(crate) fn subject(schema: &Schema, name: &str) -> Subject {
    let layouts = Arc::new(schema.layouts(&[name]).unwrap());
    let id = layouts.find(name).unwrap();
    let program = Program::new(&layouts, id);
    Subject {
        descriptor: schema.message(name).unwrap(),
        program,
        layouts,
        id,
    }
}

/// Every message type of the three schemas that is useful as a root.
pub(crate) fn subjects() -> Vec<Subject> {
    let hotel = schema("hotel.proto");
    let everything = schema("everything.proto");
    let hotels = [
        "ReserveRequest",
        "ReserveReply",
        "AvailabilityReply",
        "EchoMessage",
    ];
    let all = [
        "Empty",
        "Point",
        "Leaf",
        "Node",
        "Scalars",
        "Optionals",
        "Repeateds",
        "Choices",
        "Maps",
        "All",
    ];
    let hotels = hotels
        .iter()
        .map(|name| subject(&hotel, &format!("hotel.{name}")));
    let all = all
        .iter()
        .map(|name| subject(&everything, &format!("everything.{name}")));
    let legacy = schema("legacy.proto");
    let legacies = ["Record", "Owner"]
        .iter()
        .map(|name| subject(&legacy, &format!("legacy.{name}")));
    hotels.chain(all).chain(legacies).collect()
}

impl Subject {
    pub(crate) fn parts(
        &self,
        message: &DynamicMessage,
        apart: impl FnMut(&[u8]) -> bool,
    ) -> Parts {
        write_parts(&self.layouts, self.id, message, apart).unwrap()
    }

    pub(crate) fn parse(&self, json: &str) -> DynamicMessage {
        tollgate_schema::dynamic::from_json(&self.descriptor, json).unwrap()
    }

    pub(crate) fn offset(&self, field: &str) -> usize {
        self.layouts.get(self.id).field_named(field).unwrap().offset as usize
    }
}

/// The paths of all singular leaves, at most three messages deep, as far as a projection has room.
pub(crate) fn leaves(layouts: &Layouts, root: MessageId) -> Vec<String> {
    let mut paths = Vec::new();
    let mut open = vec![(String::new(), root, 0)];
    while let Some((prefix, id, depth)) = open.pop() {
        for field in &layouts.get(id).fields {
            match (field.kind, field.cardinality) {
                (_, LayoutCardinality::Repeated | LayoutCardinality::Map) => {}
                (LayoutKind::Message(next), _) if depth < 2 => {
                    open.push((format!("{prefix}{}.", field.name), next, depth + 1));
                }
                (LayoutKind::Message(_), _) => {}
                _ => paths.push(format!("{prefix}{}", field.name)),
            }
        }
    }
    paths.truncate(256);
    paths
}

/// A scalar in its view form.
pub(crate) fn scalar(value: &Value) -> u64 {
    match *value {
        Value::Bool(v) => u64::from(v),
        Value::I32(v) | Value::EnumNumber(v) => i64::from(v) as u64,
        Value::I64(v) => v as u64,
        Value::U32(v) => u64::from(v),
        Value::U64(v) => v,
        Value::F32(v) => u64::from(v.to_bits()),
        Value::F64(v) => v.to_bits(),
        _ => unreachable!("not a scalar"),
    }
}

/// A small generator of pseudo-random numbers (SplitMix64); one seed, one message.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A number that is often small or at the limit of its type.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.next() % 4,
            1 => u64::MAX - self.next() % 2,
            _ => self.next(),
        }
    }

    fn text(&mut self) -> String {
        let alphabet = ['a', 'Z', '0', ' ', '\n', 'é', '√', '🦀'];
        let letters = if self.chance(50) { 4 } else { alphabet.len() };
        let len = if self.chance(5) {
            self.below(300)
        } else {
            self.below(20)
        };
        (0..len).map(|_| alphabet[self.below(letters)]).collect()
    }

    pub(crate) fn value(&mut self, kind: &Kind, depth: usize) -> Value {
        match kind {
            Kind::Double => Value::F64((self.number() as i64) as f64 / 3.0),
            Kind::Float => Value::F32((self.number() as i32) as f32 / 3.0),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(self.number() as i32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(self.number() as i64),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(self.number() as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(self.number()),
            Kind::Bool => Value::Bool(self.chance(50)),
            Kind::String => Value::String(self.text()),
            Kind::Bytes => {
                let len = self.below(24);
                Value::Bytes(
                    (0..len)
                        .map(|_| self.next() as u8)
                        .collect::<Vec<_>>()
                        .into(),
                )
            }
            // Closed, so other numbers would become unknown fields.
            Kind::Enum(declared) if declared.parent_file().syntax() == Syntax::Proto2 => {
                let values: Vec<_> = declared.values().map(|v| v.number()).collect();
                Value::EnumNumber(values[self.below(values.len())])
            }
            Kind::Enum(_) => Value::EnumNumber(self.number() as i32),
            Kind::Message(descriptor) => Value::Message(self.message(descriptor, depth + 1)),
        }
    }

    fn field(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
        let count = self.below(4);
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else {
                unreachable!()
            };
            let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            let entries: HashMap<MapKey, Value> = (0..count)
                .map(|_| {
                    (
                        self.value(&key.kind(), depth).into_map_key().unwrap(),
                        self.value(&value.kind(), depth),
                    )
                })
                .collect();
            return Value::Map(entries);
        }
        if field.is_list() {
            return Value::List(
                (0..count)
                    .map(|_| self.value(&field.kind(), depth))
                    .collect(),
            );
        }
        self.value(&field.kind(), depth)
    }

    /// A message whose fields get rarer with depth.
    pub(crate) fn message(
        &mut self,
        descriptor: &MessageDescriptor,
        depth: usize,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            let leads_on = matches!(field.kind(), Kind::Message(_));
            let percent = if field.cardinality() == Cardinality::Required {
                100
            } else if leads_on {
                60_usize.saturating_sub(depth * 15)
            } else {
                60
            };
            if self.chance(percent) {
                message.set_field(&field, self.field(&field, depth));
            }
        }
        message
    }

    /// Corrupts a few bytes, mostly those that look like offsets, lengths and tags.
    pub(crate) fn spoil(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(3) {
            let len = bytes.len();
            match self.below(8) {
                0 => bytes.truncate(self.below(len + 1)),
                1 => bytes.resize(len + self.below(16), 0),
                2 | 3 if len > 0 => {
                    let at = self.below(len);
                    bytes[at] = self.next() as u8;
                }
                _ if len >= 4 => {
                    let at = self.below(len / 4) * 4;
                    let word = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                    let changed = match self.below(6) {
                        0 => word.wrapping_add(1),
                        1 => word.wrapping_sub(8),
                        2 => EXTENT_FLAG | self.below(3) as u32,
                        3 => 0,
                        4 => u32::MAX - self.below(8) as u32,
                        _ => self.below(len * 2) as u32,
                    };
                    bytes[at..at + 4].copy_from_slice(&changed.to_le_bytes());
                }
                _ => {}
            }
        }
    }
}

/// An image that `accept` must refuse.
pub(crate) struct Malformed {
    pub(crate) name: &'static str,
    pub(crate) subject: Subject,
    pub(crate) image: Vec<u8>,
    pub(crate) inline_len: usize,
    pub(crate) expected: FaultCode,
    /// The beginning of the fault's sentence.
    pub(crate) place: &'static str,
}

/// At least one image for every fault that `accept` knows.
pub(crate) fn malformed() -> Vec<Malformed> {
    let everything = schema("everything.proto");
    let of = |name: &'static str,
              message: &str,
              json: &str,
              expected,
              place,
              spoil: &dyn Fn(&Subject, &mut Vec<u8>)| {
        let subject = subject(&everything, &format!("everything.{message}"));
        let mut image = subject.parts(&subject.parse(json), |_| false).inline;
        spoil(&subject, &mut image);
        Malformed {
            name,
            inline_len: image.len(),
            subject,
            image,
            expected,
            place,
        }
    };
    let word = |image: &mut Vec<u8>, at: usize, value: u32| {
        image[at..at + 4].copy_from_slice(&value.to_le_bytes())
    };
    let leaf = r#"{"name":"one","blob":"AAAA"}"#;
    let mut cases = vec![
        of(
            "no room for the root",
            "Leaf",
            leaf,
            FaultCode::Truncated,
            "everything.Leaf:",
            &|_, i| i.truncate(8),
        ),
        of(
            "a part past the end",
            "Leaf",
            leaf,
            FaultCode::Truncated,
            "everything.Leaf.blob:",
            &|_, i| {
                i.truncate(i.len() - 1);
            },
        ),
        of(
            "a length near 2^32",
            "Leaf",
            leaf,
            FaultCode::Truncated,
            "everything.Leaf.blob:",
            &|s, i| {
                word(i, s.offset("blob") + 4, u32::MAX);
            },
        ),
        of(
            "an array too long",
            "Repeateds",
            r#"{"fDouble":[1]}"#,
            FaultCode::Truncated,
            "everything.Repeateds.f_double:",
            &|s, i| {
                word(i, s.offset("f_double") + 4, u32::MAX);
            },
        ),
        of(
            "overlapping parts",
            "Leaf",
            leaf,
            FaultCode::Misplaced,
            "everything.Leaf.blob:",
            &|s, i| {
                let name = s.offset("name");
                let off = u32::from_le_bytes(i[name..name + 4].try_into().unwrap());
                word(i, s.offset("blob"), off);
            },
        ),
        of(
            "a cycle",
            "Node",
            r#"{"next":{}}"#,
            FaultCode::Misplaced,
            "everything.Node.next:",
            &|s, i| {
                let at = s.offset("next");
                let next = u32::from_le_bytes(i[at..at + 4].try_into().unwrap()) as usize;
                word(i, next + at, next as u32);
            },
        ),
        of(
            "bytes after the end",
            "Leaf",
            leaf,
            FaultCode::Trailing,
            "everything.Leaf:",
            &|_, i| i.push(0),
        ),
        of(
            "text in Latin-1",
            "Leaf",
            leaf,
            FaultCode::NotUtf8,
            "everything.Leaf.name:",
            &|_, i| {
                let at = i.windows(3).position(|w| w == b"one").unwrap();
                i[at] = 0xe9;
            },
        ),
        of(
            "a bool of 2",
            "Leaf",
            leaf,
            FaultCode::BadBool,
            "everything.Leaf.on:",
            &|s, i| i[s.offset("on")] = 2,
        ),
        of(
            "bools of 2",
            "Repeateds",
            r#"{"fBool":[true,false]}"#,
            FaultCode::BadBool,
            "everything.Repeateds.f_bool:",
            &|_, i| {
                *i.last_mut().unwrap() = 2;
            },
        ),
        of(
            "an unknown case",
            "Choices",
            "{}",
            FaultCode::BadCase,
            "everything.Choices.text:",
            &|_, i| word(i, 0, 7),
        ),
        of(
            "an enormous case",
            "Choices",
            "{}",
            FaultCode::BadCase,
            "everything.Choices.text:",
            &|_, i| {
                word(i, 0, u32::MAX);
            },
        ),
        of(
            "another member's value",
            "Choices",
            r#"{"text":"a"}"#,
            FaultCode::NotAbsent,
            "everything.Choices.text:",
            &|_, i| {
                word(i, 0, 3);
            },
        ),
        of(
            "another member's message",
            "Choices",
            r#"{"leaf":{}}"#,
            FaultCode::NotAbsent,
            "everything.Choices.leaf:",
            &|_, i| {
                word(i, 0, 0);
            },
        ),
        of(
            "a value without its bit",
            "Optionals",
            r#"{"fString":"a"}"#,
            FaultCode::NotAbsent,
            "everything.Optionals.f_string:",
            &|_, i| {
                word(i, 0, 0);
            },
        ),
        of(
            "a member that is missing",
            "Choices",
            "{}",
            FaultCode::MemberMissing,
            "everything.Choices.leaf:",
            &|_, i| {
                word(i, 0, 5);
            },
        ),
        of(
            "an empty value with its offset",
            "Leaf",
            leaf,
            FaultCode::EmptyWithOffset,
            "everything.Leaf.blob:",
            &|s, i| {
                word(i, s.offset("blob") + 4, 0);
            },
        ),
        of(
            "an empty array with its offset",
            "Repeateds",
            r#"{"fInt32":[1]}"#,
            FaultCode::EmptyWithOffset,
            "everything.Repeateds.f_int32:",
            &|s, i| {
                word(i, s.offset("f_int32") + 4, 0);
            },
        ),
        of(
            "an empty extent",
            "Leaf",
            "{}",
            FaultCode::EmptyWithOffset,
            "everything.Leaf.name:",
            &|s, i| {
                word(i, s.offset("name"), EXTENT_FLAG);
            },
        ),
        of(
            "an extent out of order",
            "Leaf",
            "{}",
            FaultCode::ExtentOrder,
            "everything.Leaf.name:",
            &|s, i| {
                word(i, s.offset("name"), EXTENT_FLAG | 1);
                word(i, s.offset("name") + 4, 1);
            },
        ),
        of(
            "an extent past the end",
            "Leaf",
            "{}",
            FaultCode::Truncated,
            "everything.Leaf.name:",
            &|s, i| {
                word(i, s.offset("name"), EXTENT_FLAG);
                word(i, s.offset("name") + 4, 1);
            },
        ),
        of(
            "an extent past the limit",
            "Leaf",
            "{}",
            FaultCode::TooLarge,
            "everything.Leaf.name:",
            &|s, i| {
                word(i, s.offset("name"), EXTENT_FLAG);
                word(i, s.offset("name") + 4, 16 << 20);
            },
        ),
        of(
            "an image past the limit",
            "Leaf",
            "{}",
            FaultCode::TooLarge,
            "everything.Leaf:",
            &|_, i| {
                i.resize((16 << 20) + 1, 0);
            },
        ),
        of(
            "65 levels",
            "Node",
            "{}",
            FaultCode::TooDeep,
            "everything.Node.next:",
            &|s, i| *i = nested(s, 65),
        ),
    ];
    let mut inline_too_long = of(
        "an inline length past the image",
        "Leaf",
        leaf,
        FaultCode::Truncated,
        "everything.Leaf:",
        &|_, _| {},
    );
    inline_too_long.inline_len += 1;
    cases.push(inline_too_long);
    cases.extend(malformed_extents(&everything));
    cases.extend(malformed_unknown(&everything));
    cases
}

/// Known fields among unknown ones, and a missing required field.
fn malformed_unknown(everything: &Schema) -> Vec<Malformed> {
    let leaf = || subject(everything, "everything.Leaf");
    let slot = {
        let leaf = leaf();
        leaf.layouts.get(leaf.id).unknown.unwrap() as usize
    };
    let of = |name, records: &[u8], expected, spoil: &dyn Fn(&mut Vec<u8>)| {
        let subject = leaf();
        let mut image = subject
            .parts(&subject.parse(r#"{"name":"one"}"#), |_| false)
            .inline;
        let at = image.len() as u32;
        image[slot..slot + 4].copy_from_slice(&at.to_le_bytes());
        image[slot + 4..slot + 8].copy_from_slice(&(records.len() as u32).to_le_bytes());
        image.extend(records);
        spoil(&mut image);
        Malformed {
            name,
            inline_len: image.len(),
            subject,
            image,
            expected,
            place: "everything.Leaf:",
        }
    };
    // Field 9 as a varint.
    let unknown = [0x48, 0x01];
    let bad = FaultCode::BadUnknown;
    let mut cases = vec![
        of(
            "a known field among the unknown",
            &[0x0a, 0x01, b'x'],
            bad,
            &|_| {},
        ),
        of(
            "a known field behind an unknown one",
            &[0x48, 0x01, 0x10, 0x01],
            bad,
            &|_| {},
        ),
        of("half an unknown record", &[0x48], bad, &|_| {}),
        of(
            "an unknown record past its part",
            &[0x4a, 0x05, b'x'],
            bad,
            &|_| {},
        ),
        of(
            "an unknown group that isn't ended",
            &[0x4b, 0x08, 0x01],
            bad,
            &|_| {},
        ),
        of("an end without a group", &[0x4c], bad, &|_| {}),
        of("an unknown field number 0", &[0x00, 0x01], bad, &|_| {}),
        of(
            "unknown fields as an extent",
            &unknown,
            FaultCode::Misplaced,
            &|i| {
                i[slot..slot + 4].copy_from_slice(&EXTENT_FLAG.to_le_bytes());
            },
        ),
        of(
            "unknown fields elsewhere",
            &unknown,
            FaultCode::Misplaced,
            &|i| i[slot] += 1,
        ),
        of(
            "unknown fields past the end",
            &unknown,
            FaultCode::Truncated,
            &|i| i[slot + 4] += 1,
        ),
        of(
            "no unknown fields with an offset",
            &unknown,
            FaultCode::EmptyWithOffset,
            &|i| {
                i[slot + 4] = 0;
            },
        ),
    ];
    let owner = subject(&schema("legacy.proto"), "legacy.Owner");
    let image = vec![0; owner.layouts.get(owner.id).size as usize];
    cases.push(Malformed {
        name: "a required field that isn't set",
        inline_len: image.len(),
        subject: owner,
        image,
        expected: FaultCode::RequiredMissing,
        place: "legacy.Owner.name:",
    });
    cases
}

fn malformed_extents(everything: &Schema) -> [Malformed; 3] {
    let of = |name, json: &str, expected, place, spoil: &dyn Fn(&mut Vec<u8>)| {
        let subject = subject(everything, "everything.Repeateds");
        let parts = subject.parts(&subject.parse(json), |_| true);
        let mut image = parts.image();
        spoil(&mut image);
        Malformed {
            name,
            inline_len: parts.inline.len(),
            subject,
            image,
            expected,
            place,
        }
    };
    let many = format!(r#"{{"fString":[{}]}}"#, vec![r#""a""#; 65].join(","));
    let one = r#"{"fString":["a"]}"#;
    let place = "everything.Repeateds.f_string:";
    [
        of(
            "65 extents",
            &many,
            FaultCode::TooManyExtents,
            place,
            &|_| {},
        ),
        of(
            "an extent in Latin-1",
            one,
            FaultCode::NotUtf8,
            place,
            &|i| *i.last_mut().unwrap() = 0xe9,
        ),
        of(
            "bytes after the last extent",
            one,
            FaultCode::Trailing,
            "everything.Repeateds:",
            &|i| i.push(0),
        ),
    ]
}

/// A block of `levels` nodes, each the `next` of the previous one; the dynamic writer stops at 64.
pub(crate) fn nested(node: &Subject, levels: usize) -> Vec<u8> {
    let size = node.layouts.get(node.id).size as usize;
    let mut block = vec![0; levels * size];
    for level in 1..levels {
        let at = (level - 1) * size + node.offset("next");
        block[at..at + 4].copy_from_slice(&((level * size) as u32).to_le_bytes());
    }
    block
}

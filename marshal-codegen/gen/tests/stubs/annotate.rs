//! A block in hex, line by line: offset, bytes, meaning.
//!
//! It walks the layout in any order, collects the meaning of each range of bytes, and insists that
//! all ranges together cover the block: bytes that nothing refers to must be padding, and zero.

use tollgate_schema::{
    Cardinality, EXTENT_FLAG, FieldLayout, Kind, Layouts, MessageId, MessageLayout,
};

/// Bytes of a row.
const ROW: usize = 8;

/// The annotated text of a block whose slots name its extents by index.
pub(crate) fn annotate(layouts: &Layouts, block: &[u8], extents: &[Vec<u8>]) -> String {
    let mut annotator = Annotator {
        layouts,
        block,
        ranges: Vec::new(),
    };
    annotator.structure(0, MessageId(0), "");
    let mut text = annotator.text();
    for (index, extent) in extents.iter().enumerate() {
        text += &format!("\nextent {index}\n");
        rows(&mut text, 0, extent, &format!("{} bytes", extent.len()));
    }
    text
}

struct Annotator<'a> {
    layouts: &'a Layouts,
    block: &'a [u8],
    /// Offset, length, meaning.
    ranges: Vec<(usize, usize, String)>,
}

impl Annotator<'_> {
    fn text(mut self) -> String {
        self.ranges.sort();
        let (mut text, mut cursor) = (String::new(), 0);
        let end = (self.block.len(), 0, String::new());
        for (at, len, meaning) in self.ranges.into_iter().chain([end]) {
            assert!(
                at >= cursor,
                "{meaning} overlaps what is before {cursor:04x}"
            );
            let padding = &self.block[cursor..at];
            assert!(
                padding.iter().all(|b| *b == 0),
                "{cursor:04x} isn't padding"
            );
            rows(&mut text, cursor, padding, "padding");
            rows(&mut text, at, &self.block[at..at + len], &meaning);
            cursor = at + len;
        }
        text
    }

    fn note(&mut self, at: usize, len: usize, meaning: String) {
        self.ranges.push((at, len, meaning));
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.block[at..at + N].try_into().unwrap()
    }

    fn structure(&mut self, at: usize, id: MessageId, path: &str) {
        let layout = self.layouts.get(id);
        for word in 0..layout.presence_words {
            let place = at + 4 * word as usize;
            let names = present(layout, word, self.u32(place));
            self.note(place, 4, format!("{path}present: {names}"));
        }
        for oneof in &layout.oneofs {
            let place = at + oneof.case_offset as usize;
            let number = self.u32(place);
            let member = layout.field(number).map_or("nothing", |f| &f.name);
            let case = format!("{path}{}: case {number}, {member}", oneof.name);
            self.note(place, 4, case);
        }
        for field in &layout.fields {
            self.field(
                at + field.offset as usize,
                field,
                &format!("{path}{}", field.name),
            );
        }
        if let Some(unknown) = layout.unknown {
            self.text_slot(
                at + unknown as usize,
                Kind::Bytes,
                &format!("{path}(unknown fields)"),
            );
        }
    }

    fn field(&mut self, at: usize, field: &FieldLayout, label: &str) {
        if !matches!(field.cardinality, Cardinality::Repeated | Cardinality::Map) {
            return self.value(at, field.kind, label);
        }
        let (start, len) = (self.u32(at) as usize, self.u32(at + 4) as usize);
        self.note(at, 8, slot(label, start, len, "elements"));
        for i in 0..len {
            let label = format!("{label}[{i}]");
            match field.kind {
                Kind::Message(id) => {
                    let size = self.layouts.get(id).size as usize;
                    self.structure(start + i * size, id, &format!("{label}."));
                }
                Kind::String | Kind::Bytes => self.text_slot(start + i * 8, field.kind, &label),
                scalar => self.value(start + i * scalar.scalar_size() as usize, scalar, &label),
            }
        }
    }

    fn value(&mut self, at: usize, kind: Kind, label: &str) {
        let shown = match kind {
            Kind::I32 | Kind::Enum => i32::from_le_bytes(self.bytes(at)).to_string(),
            Kind::U32 => self.u32(at).to_string(),
            Kind::I64 => i64::from_le_bytes(self.bytes(at)).to_string(),
            Kind::U64 => u64::from_le_bytes(self.bytes(at)).to_string(),
            Kind::F32 => format!("{:?}", f32::from_le_bytes(self.bytes(at))),
            Kind::F64 => format!("{:?}", f64::from_le_bytes(self.bytes(at))),
            Kind::Bool => (self.block[at] == 1).to_string(),
            Kind::String | Kind::Bytes => return self.text_slot(at, kind, label),
            Kind::Message(id) => return self.reference(at, id, label),
        };
        self.note(
            at,
            kind.scalar_size() as usize,
            format!("{label} = {shown}"),
        );
    }

    fn reference(&mut self, at: usize, id: MessageId, label: &str) {
        let part = self.u32(at) as usize;
        if part == 0 {
            return self.note(at, 4, format!("{label}: absent"));
        }
        let name = &self.layouts.get(id).name;
        self.note(at, 4, format!("{label}: {name} at {part:04x}"));
        self.structure(part, id, &format!("{label}."));
    }

    fn text_slot(&mut self, at: usize, kind: Kind, label: &str) {
        let (off, len) = (self.u32(at), self.u32(at + 4) as usize);
        if off & EXTENT_FLAG != 0 {
            let index = off & !EXTENT_FLAG;
            return self.note(at, 8, format!("{label}: {len} bytes in extent {index}"));
        }
        let off = off as usize;
        self.note(at, 8, slot(label, off, len, "bytes"));
        if len > 0 {
            let bytes = &self.block[off..off + len];
            let shown = match kind {
                Kind::String => format!("{:?}", std::str::from_utf8(bytes).unwrap()),
                _ => "bytes".to_owned(),
            };
            self.note(off, len, format!("{label} = {shown}"));
        }
    }
}

fn slot(label: &str, at: usize, len: usize, unit: &str) -> String {
    match (at, len) {
        (0, 0) => format!("{label}: empty"),
        _ => format!("{label}: {len} {unit} at {at:04x}"),
    }
}

/// The names of the fields whose bits are set in one word of the presence bitmap.
fn present(layout: &MessageLayout, word: u32, bits: u32) -> String {
    let set = |field: &&FieldLayout| match field.cardinality {
        Cardinality::Optional { bit } => bit / 32 == word && bits >> (bit % 32) & 1 == 1,
        _ => false,
    };
    let names: Vec<_> = layout.fields.iter().filter(set).map(|f| &*f.name).collect();
    if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    }
}

fn rows(text: &mut String, at: usize, bytes: &[u8], meaning: &str) {
    for (row, bytes) in bytes.chunks(ROW).enumerate() {
        let hex: Vec<_> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let meaning = if row == 0 { meaning } else { "" };
        let width = ROW * 3 - 1;
        let line = format!(
            "{:04x}  {:width$}  {meaning}",
            at + row * ROW,
            hex.join(" ")
        );
        *text += line.trim_end();
        text.push('\n');
    }
}

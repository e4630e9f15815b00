//! Messages to blocks, with the same results as `tollgate_block.py`: parts in canonical order.
//!
//! A message is first written into memory of the process, with Python's lock held. The core copies
//! that memory into the send heap without the lock. Large values aren't copied twice: they stay in
//! place until then, or for good if they lie in a send heap.

use pyo3::exceptions::{PyException, PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyMemoryView, PyString};
use tollgate_core::SharedBytes;
use tollgate_core::codec::{EXTENT_FLAG, EXTENT_MIN, Encode, MAX_DEPTH, Measure, Measured, Sink};
use tollgate_core::{Code, Status};

use crate::convert::raised;
use crate::held;
use crate::tables::{Entry, Field, Kind, Layout, Tables, Value};

/// The longest image of a message, in bytes; as in `tollgate_block.py`.
const MAX_MESSAGE: usize = 16 << 20;

/// The most extents of one message; as in `tollgate_block.py`.
const MAX_EXTENTS: usize = 64;

/// A block, and the values outside of it.
#[derive(Debug, Default)]
pub(crate) struct Block {
    inline: Vec<u8>,
    extents: Vec<Extent>,
    /// Each extent but the last is padded to 8.
    extent_bytes: usize,
}

#[derive(Debug)]
enum Extent {
    Bytes(PyBackedBytes),
    Shared(SharedBytes),
}

impl Extent {
    fn as_slice(&self) -> &[u8] {
        match self {
            Extent::Bytes(bytes) => bytes,
            Extent::Shared(bytes) => bytes,
        }
    }

    fn put(&self, sink: &mut impl Sink) {
        let referred = match self {
            Extent::Shared(shared) => sink.refer(shared),
            Extent::Bytes(_) => None,
        };
        // Slots name extents by their order, and there are never too many extents.
        let _index = referred.or_else(|| sink.extent(self.as_slice()));
    }
}

impl Encode for Block {
    fn measure_within(&self, session: u64) -> Measured {
        let mut measure = Measure::within(self.inline.len(), session);
        self.extents
            .iter()
            .for_each(|extent| extent.put(&mut measure));
        measure.finish()
    }

    fn write<S: Sink>(&self, sink: &mut S) {
        let root = sink.claim(self.inline.len(), 8);
        sink.put(root, &self.inline);
        self.extents.iter().for_each(|extent| extent.put(sink));
    }
}

/// The block of an outgoing message of this layout. A message that is too long fails its call with
/// RESOURCE_EXHAUSTED, as in core.
pub(crate) fn block(layout: &Layout, message: &Bound<'_, PyAny>) -> PyResult<Block> {
    block_with(layout, message, EXTENT_MIN, true)
}

/// The block, and the values of at least `extent_min` bytes apart from it: `Message.to_parts`, for
/// tests to compare.
#[pyfunction]
pub(crate) fn encode<'py>(
    message: &Bound<'py, PyAny>,
    extent_min: usize,
) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyBytes>>)> {
    let py = message.py();
    let tables = message.getattr(intern!(py, "_TABLES"))?;
    let layout = &tables.cast::<Tables>()?.get().layout;
    let block = block_with(layout, message, extent_min, false)?;
    let extents = block.extents.iter();
    Ok((
        PyBytes::new(py, &block.inline),
        extents.map(|e| PyBytes::new(py, e.as_slice())).collect(),
    ))
}

fn block_with(
    layout: &Layout,
    message: &Bound<'_, PyAny>,
    extent_min: usize,
    is_sent: bool,
) -> PyResult<Block> {
    let py = message.py();
    if !message.is_instance(layout.owned.bind(py))? {
        return Err(PyTypeError::new_err(format!(
            "the message must be of type {}, not {}",
            layout.name,
            message.get_type().name()?
        )));
    }
    let mut writer = Writer {
        block: Block::default(),
        extent_min,
        root: layout,
        is_sent,
    };
    let at = writer.claim(py, layout.size, 8)?;
    writer.structure(layout, message, at, 1)?;
    let block = writer.block;
    if align_up(block.inline.len(), 8) + block.extent_bytes > MAX_MESSAGE {
        let text = format!("a message has more than {MAX_MESSAGE} bytes, extents included");
        return Err(too_long(layout, py, text, is_sent));
    }
    Ok(block)
}

/// A `BlockError`.
fn refusal(layout: &Layout, py: Python<'_>, text: String) -> PyErr {
    match layout.error.bind(py).call1((text,)) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// The error for a message over the maximum length.
fn too_long(layout: &Layout, py: Python<'_>, text: String, is_sent: bool) -> PyErr {
    match is_sent {
        true => raised(py, Status::new(Code::RESOURCE_EXHAUSTED, text)),
        false => refusal(layout, py, text),
    }
}

struct Writer<'l> {
    block: Block,
    extent_min: usize,
    root: &'l Layout,
    is_sent: bool,
}

impl Writer<'_> {
    fn claim(&mut self, py: Python<'_>, len: usize, align: usize) -> PyResult<usize> {
        let at = align_up(self.block.inline.len(), align);
        if at.saturating_add(len) > MAX_MESSAGE {
            let text = format!("a message has more than {MAX_MESSAGE} bytes");
            return Err(too_long(self.root, py, text, self.is_sent));
        }
        self.block.inline.resize(at + len, 0);
        Ok(at)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.block.inline[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_slot(&mut self, at: usize, offset: usize, count: usize) {
        self.put(at, &(offset as u32).to_le_bytes());
        self.put(at + 4, &(count as u32).to_le_bytes());
    }

    fn structure(
        &mut self,
        layout: &Layout,
        message: &Bound<'_, PyAny>,
        at: usize,
        depth: u32,
    ) -> PyResult<()> {
        let py = message.py();
        if depth > MAX_DEPTH {
            let text = format!("{} is nested deeper than {MAX_DEPTH}", layout.name);
            return Err(refusal(layout, py, text));
        }
        check_oneofs(layout, message)?;
        for field in &layout.fields {
            let value = message.getattr(field.name.bind(py))?;
            let written = self.field(layout, field, &value, at, depth);
            written.map_err(|error| blamed(layout, field, &value, error))?;
        }
        let unknown = message.getattr(intern!(py, "unknown_fields"))?;
        let unknown = unknown.cast::<PyBytes>()?.as_bytes();
        if !unknown.is_empty() {
            let part = self.claim(py, unknown.len(), 1)?;
            self.put(part, unknown);
            self.put_slot(at + layout.unknown, part, unknown.len());
        }
        Ok(())
    }

    fn field(
        &mut self,
        layout: &Layout,
        field: &Field,
        value: &Bound<'_, PyAny>,
        at: usize,
        depth: u32,
    ) -> PyResult<()> {
        let place = at + field.offset;
        if let Some(entry) = &field.entry {
            return self.map(field, entry, value, place, depth);
        }
        if field.many {
            return self.list(&field.value, value, place, depth);
        }
        if value.is_none() {
            let may_be_absent = field.bit.is_some() || field.oneof.is_some();
            return match may_be_absent || field.value.kind == Kind::Message {
                true => Ok(()),
                false => Err(PyTypeError::new_err("there is no default for it")),
            };
        }
        if let Some(bit) = field.bit {
            self.block.inline[at + bit / 8] |= 1 << (bit % 8);
        }
        if let Some(oneof) = field.oneof {
            let case = at + layout.oneofs[oneof].1;
            self.put(case, &field.number.to_le_bytes());
        }
        self.one(&field.value, value, place, depth)
    }

    /// One value as a field or an element.
    fn one(
        &mut self,
        of: &Value,
        value: &Bound<'_, PyAny>,
        place: usize,
        depth: u32,
    ) -> PyResult<()> {
        let py = value.py();
        if of.kind != Kind::Message {
            return self.plain(of.kind, value, place);
        }
        let layout = of.message(py)?;
        is_a(value, layout)?;
        let part = self.claim(py, layout.size, 8)?;
        self.put(place, &(part as u32).to_le_bytes());
        self.structure(layout, value, part, depth + 1)
    }

    /// A value that isn't a message.
    fn plain(&mut self, kind: Kind, value: &Bound<'_, PyAny>, place: usize) -> PyResult<()> {
        match kind {
            Kind::I32 | Kind::Enum => self.put(place, &value.extract::<i32>()?.to_le_bytes()),
            Kind::U32 => self.put(place, &value.extract::<u32>()?.to_le_bytes()),
            Kind::I64 => self.put(place, &value.extract::<i64>()?.to_le_bytes()),
            Kind::U64 => self.put(place, &value.extract::<u64>()?.to_le_bytes()),
            Kind::F64 => self.put(place, &value.extract::<f64>()?.to_le_bytes()),
            Kind::F32 => {
                let wide = value.extract::<f64>()?;
                let narrow = wide as f32;
                if narrow.is_infinite() && wide.is_finite() {
                    return Err(PyOverflowError::new_err("float too large to pack"));
                }
                self.put(place, &narrow.to_le_bytes());
            }
            Kind::Bool => match value.cast::<PyBool>() {
                Ok(value) => self.put(place, &[u8::from(value.is_true())]),
                Err(_) => return Err(PyTypeError::new_err("it must be True or False")),
            },
            Kind::String => self.text(value, place)?,
            Kind::Bytes => self.bytes(value, place)?,
            Kind::Message => return Err(PyTypeError::new_err("a message is no plain value")),
        }
        Ok(())
    }

    fn text(&mut self, value: &Bound<'_, PyAny>, place: usize) -> PyResult<()> {
        let encoded = value.cast::<PyString>()?.encode_utf8()?;
        match self.is_extent(encoded.as_bytes().len()) {
            true => self.extent(Extent::Bytes(encoded.into()), place),
            false => self.inline(value.py(), encoded.as_bytes(), place)?,
        }
        Ok(())
    }

    fn bytes(&mut self, value: &Bound<'_, PyAny>, place: usize) -> PyResult<()> {
        let py = value.py();
        let bytes = if let Ok(bytes) = value.cast::<PyBytes>() {
            bytes.clone()
        } else if let Ok(bytes) = value.cast::<PyByteArray>() {
            PyBytes::new(py, &bytes.to_vec())
        } else if value.cast::<PyMemoryView>().is_ok() {
            let object = value.getattr(intern!(py, "obj"))?;
            // A part of a buffer is copied. The daemon can only find a whole buffer.
            let shared = held::shared_of(&object);
            if let Some(shared) = shared.filter(|s| value.len().is_ok_and(|len| len == s.len()))
                && self.is_extent(shared.len())
            {
                self.extent(Extent::Shared(shared), place);
                return Ok(());
            }
            let copied = value.call_method0(intern!(py, "tobytes"))?;
            copied.cast_into::<PyBytes>()?
        } else {
            let text = "it must be bytes, a bytearray or a memoryview";
            return Err(PyTypeError::new_err(text));
        };
        match self.is_extent(bytes.as_bytes().len()) {
            true => self.extent(Extent::Bytes(bytes.into()), place),
            false => self.inline(py, bytes.as_bytes(), place)?,
        }
        Ok(())
    }

    fn is_extent(&self, len: usize) -> bool {
        len > 0 && len >= self.extent_min && self.block.extents.len() < MAX_EXTENTS
    }

    fn extent(&mut self, extent: Extent, place: usize) {
        let (index, len) = (self.block.extents.len(), extent.as_slice().len());
        self.put_slot(place, EXTENT_FLAG as usize | index, len);
        self.block.extent_bytes = align_up(self.block.extent_bytes, 8) + len;
        self.block.extents.push(extent);
    }

    fn inline(&mut self, py: Python<'_>, bytes: &[u8], place: usize) -> PyResult<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let part = self.claim(py, bytes.len(), 1)?;
        self.put(part, bytes);
        self.put_slot(place, part, bytes.len());
        Ok(())
    }

    fn list(
        &mut self,
        of: &Value,
        items: &Bound<'_, PyAny>,
        place: usize,
        depth: u32,
    ) -> PyResult<()> {
        let py = items.py();
        if !items.is_truthy()? {
            return Ok(());
        }
        let layout = match of.kind {
            Kind::Message => Some(of.message(py)?),
            _ => None,
        };
        let stride = layout.map_or(of.kind.stride(), |layout| layout.size);
        let count = items.len()?;
        let start = self.claim(py, count.saturating_mul(stride), of.kind.align())?;
        self.put_slot(place, start, count);
        for (index, item) in items.try_iter()?.enumerate() {
            let (item, at) = (item?, start + index * stride);
            if index == count {
                return Err(PyTypeError::new_err("it has more items than it says"));
            }
            match layout {
                Some(layout) => {
                    is_a(&item, layout)?;
                    self.structure(layout, &item, at, depth + 1)?;
                }
                None => self.plain(of.kind, &item, at)?,
            }
        }
        Ok(())
    }

    /// A map, in the order of its keys.
    fn map(
        &mut self,
        field: &Field,
        entry: &Entry,
        items: &Bound<'_, PyAny>,
        place: usize,
        depth: u32,
    ) -> PyResult<()> {
        let py = items.py();
        if !items.is_truthy()? {
            return Ok(());
        }
        if depth >= MAX_DEPTH {
            let text = format!("a map is nested deeper than {MAX_DEPTH}");
            return Err(refusal(self.root, py, text));
        }
        let keys = py.import(intern!(py, "builtins"))?;
        let keys = keys.call_method1(intern!(py, "sorted"), (items,))?;
        let count = keys.len()?;
        let start = self.claim(py, count.saturating_mul(entry.size), 8)?;
        self.put_slot(place, start, count);
        for (index, key) in keys.try_iter()?.enumerate() {
            let (key, at) = (key?, start + index * entry.size);
            self.plain(entry.key, &key, at + entry.key_offset)?;
            let value = items.get_item(key)?;
            self.one(&field.value, &value, at + entry.value_offset, depth + 1)?;
        }
        Ok(())
    }
}

fn is_a(value: &Bound<'_, PyAny>, layout: &Layout) -> PyResult<()> {
    let class = layout.owned.bind(value.py());
    match value.is_instance(class)? {
        true => Ok(()),
        false => {
            let name: String = class.qualname()?.extract()?;
            Err(PyTypeError::new_err(format!("it must be a {name}")))
        }
    }
}

/// Checks that at most one member of each oneof is set.
fn check_oneofs(layout: &Layout, message: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = message.py();
    for (index, (name, _)) in layout.oneofs.iter().enumerate() {
        let mut first: Option<&Field> = None;
        for field in layout.fields.iter().filter(|f| f.oneof == Some(index)) {
            if message.getattr(field.name.bind(py))?.is_none() {
                continue;
            }
            if let Some(first) = first.replace(field) {
                let text = format!(
                    "{}.{name}: {} and {} are both set",
                    layout.name, first.name, field.name
                );
                return Err(refusal(layout, py, text));
            }
        }
    }
    Ok(())
}

/// The error of a value that doesn't fit its field, as a `BlockError` that names the field.
fn blamed(layout: &Layout, field: &Field, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = value.py();
    let is_ours = error.is_instance(py, layout.error.bind(py));
    if is_ours || !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let shown = value.repr().map(|text| text.to_string());
    let shown: String = shown.unwrap_or_default().chars().take(80).collect();
    let (message, name, kind) = (&layout.name, &field.name, field.value.kind.name());
    let text = format!(
        "{message}.{name}: {shown} isn't {kind}: {}",
        error.value(py)
    );
    let refused = refusal(layout, py, text);
    refused.set_cause(py, Some(error));
    refused
}

const fn align_up(at: usize, align: usize) -> usize {
    (at + align - 1) & !(align - 1)
}

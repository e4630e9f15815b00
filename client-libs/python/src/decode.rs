//! Blocks to values, with the same results as `tollgate_block.py`. A read never leaves the block,
//! regardless of its slots. An unreadable value is zero, empty, absent.
//!
//! A view's properties are [`Reader`]s. They read blocks that the library received, and blocks that
//! are `bytes`. The Python code that the properties replace reads views of anything else.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyString};
use tollgate_core::codec::MAX_DEPTH;

use crate::held;
use crate::tables::{Entry, Field, Kind, Layout, Tables, Value};

/// A property of a view.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Reader {
    layout: Arc<Layout>,
    index: usize,
}

impl Reader {
    pub(crate) fn new(layout: Arc<Layout>, index: usize) -> Reader {
        Reader { layout, index }
    }
}

#[pymethods]
impl Reader {
    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        view: &Bound<'py, PyAny>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        if view.is_none() {
            return Ok(slf.clone().into_any());
        }
        let reader = slf.get();
        let block = view.getattr(intern!(py, "_block"))?;
        let object = block.getattr(intern!(py, "obj"))?;
        let Some(bytes) = whole(&block, &object)? else {
            return view.call_method1(intern!(py, "_get"), (reader.index,));
        };
        let at = Struct {
            block: &block,
            bytes,
            at: view.getattr(intern!(py, "_at"))?.extract()?,
            depth: view.getattr(intern!(py, "_depth"))?.extract()?,
        };
        at.field(
            &reader.layout,
            &reader.layout.fields[reader.index],
            As::View,
        )
    }

    /// A property can't be set.
    fn __set__(&self, _view: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(pyo3::exceptions::PyAttributeError::new_err(
            "a received message can't be changed; to_owned() gives one that can",
        ))
    }
}

/// The message of a view; `None` if Python has to read it.
#[pyfunction]
pub(crate) fn to_owned<'py>(view: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = view.py();
    let block = view.getattr(intern!(py, "_block"))?;
    let object = block.getattr(intern!(py, "obj"))?;
    let Some(bytes) = whole(&block, &object)? else {
        return Ok(None);
    };
    let at = Struct {
        block: &block,
        bytes,
        at: view.getattr(intern!(py, "_at"))?.extract()?,
        depth: view.getattr(intern!(py, "_depth"))?.extract()?,
    };
    let tables = view.getattr(intern!(py, "_TABLES"))?;
    at.owned(&tables.cast::<Tables>()?.get().layout).map(Some)
}

/// The bytes of a memoryview of a whole object.
fn whole<'o>(block: &Bound<'_, PyAny>, object: &'o Bound<'_, PyAny>) -> PyResult<Option<&'o [u8]>> {
    let bytes = match object.cast::<PyBytes>() {
        Ok(bytes) => Some(bytes.as_bytes()),
        Err(_) => held::bytes_of(object),
    };
    match bytes {
        Some(bytes) if block.len()? == bytes.len() => Ok(Some(bytes)),
        _ => Ok(None),
    }
}

/// The result type for messages and bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    /// Views and memoryviews.
    View,
    /// Owned messages and bytes.
    Owned,
}

/// A struct in a block.
#[derive(Clone, Copy)]
struct Struct<'a, 'py> {
    block: &'a Bound<'py, PyAny>,
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'py> Struct<'_, 'py> {
    fn py(&self) -> Python<'py> {
        self.block.py()
    }

    /// A number of `N` bytes; zero outside of the block.
    fn number<const N: usize>(&self, offset: usize) -> [u8; N] {
        let at = self.at + offset;
        let bytes = self.bytes.get(at..at + N);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; N])
    }

    fn u32(&self, offset: usize) -> usize {
        u32::from_le_bytes(self.number(offset)) as usize
    }

    /// The range of a text or bytes.
    fn range(&self, offset: usize) -> (usize, usize) {
        let (from, len) = (self.u32(offset), self.u32(offset + 4));
        match from + len <= self.bytes.len() {
            true => (from, from + len),
            false => (0, 0),
        }
    }

    /// The message that a reference names. It must lie behind this struct, so that walks end.
    fn child(&self, offset: usize) -> Option<Self> {
        let at = self.u32(offset);
        let fits = self.at < at && at < self.bytes.len() && self.depth + 1 < MAX_DEPTH;
        fits.then_some(Struct {
            at,
            depth: self.depth + 1,
            ..*self
        })
    }

    /// The elements' places: all of them, or nothing.
    fn array(&self, offset: usize, stride: usize, of_structs: bool) -> impl Iterator<Item = Self> {
        let (from, count) = (self.u32(offset), self.u32(offset + 4));
        let depth = self.depth + u32::from(of_structs);
        let end = stride
            .checked_mul(count)
            .and_then(|len| len.checked_add(from));
        let fits = from > self.at && end.is_some_and(|end| end <= self.bytes.len());
        let count = if fits && depth < MAX_DEPTH { count } else { 0 };
        let this = *self;
        (0..count).map(move |index| Struct {
            at: from + index * stride,
            depth,
            ..this
        })
    }

    fn field(&self, layout: &Layout, field: &Field, how: As) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py();
        if let Some(entry) = &field.entry {
            return self.map(field, entry, how);
        }
        if field.many {
            return self.list(field, how);
        }
        let is_set = |bit: usize| self.number::<1>(bit / 8)[0] >> (bit % 8) & 1 == 1;
        let absent = field.bit.is_some_and(|bit| !is_set(bit))
            || field
                .oneof
                .is_some_and(|oneof| self.u32(layout.oneofs[oneof].1) != field.number as usize)
            || (field.value.kind == Kind::Message
                && field.oneof.is_none()
                && self.child(field.offset).is_none());
        match absent {
            true => Ok(py.None().into_bound(py)),
            false => self.one(&field.value, field.offset, how),
        }
    }

    fn one(&self, of: &Value, offset: usize, how: As) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py();
        match of.kind {
            Kind::Message => match self.child(offset) {
                Some(child) => child.message(of.message(py)?, how),
                None => Struct::nothing(py, of.message(py)?, how),
            },
            Kind::Enum => {
                let number = i32::from_le_bytes(self.number(offset));
                of.class(py)?.call1((number,))
            }
            kind => self.plain(kind, offset, how),
        }
    }

    /// A value that is neither a message nor an enum.
    fn plain(&self, kind: Kind, offset: usize, how: As) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py();
        Ok(match kind {
            Kind::I32 | Kind::Enum => i32::from_le_bytes(self.number(offset))
                .into_pyobject(py)?
                .into_any(),
            Kind::U32 => u32::from_le_bytes(self.number(offset))
                .into_pyobject(py)?
                .into_any(),
            Kind::I64 => i64::from_le_bytes(self.number(offset))
                .into_pyobject(py)?
                .into_any(),
            Kind::U64 => u64::from_le_bytes(self.number(offset))
                .into_pyobject(py)?
                .into_any(),
            Kind::F32 => f64::from(f32::from_le_bytes(self.number(offset)))
                .into_pyobject(py)?
                .into_any(),
            Kind::F64 => f64::from_le_bytes(self.number(offset))
                .into_pyobject(py)?
                .into_any(),
            Kind::Bool => {
                let set = self.number::<1>(offset)[0] != 0;
                set.into_pyobject(py)?.to_owned().into_any()
            }
            Kind::String => {
                let (from, end) = self.range(offset);
                let text = std::str::from_utf8(&self.bytes[from..end]).unwrap_or_default();
                PyString::new(py, text).into_any()
            }
            Kind::Bytes => self.slice(offset, how)?,
            Kind::Message => py.None().into_bound(py),
        })
    }

    fn slice(&self, offset: usize, how: As) -> PyResult<Bound<'py, PyAny>> {
        let (from, end) = self.range(offset);
        match how {
            As::Owned => Ok(PyBytes::new(self.py(), &self.bytes[from..end]).into_any()),
            As::View => {
                let slice = PySlice::new(self.py(), from as isize, end as isize, 1);
                self.block.get_item(slice)
            }
        }
    }

    /// This struct as a message.
    fn message(&self, layout: &Layout, how: As) -> PyResult<Bound<'py, PyAny>> {
        match how {
            As::Owned => self.owned(layout),
            As::View => view(self.block, layout, self.at, self.depth),
        }
    }

    /// A message that is set but has an invalid place.
    fn nothing(py: Python<'py>, layout: &Layout, how: As) -> PyResult<Bound<'py, PyAny>> {
        match how {
            As::Owned => layout.owned.bind(py).call0(),
            As::View => {
                let empty = layout
                    .owned
                    .bind(py)
                    .call_method1("view", (PyBytes::new(py, &[]),))?;
                Ok(empty)
            }
        }
    }

    fn owned(&self, layout: &Layout) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py();
        let values = PyDict::new(py);
        for field in &layout.fields {
            let value = self.field(layout, field, As::Owned)?;
            values.set_item(field.name.bind(py), value)?;
        }
        let unknown = self.slice(layout.unknown, As::Owned)?;
        values.set_item(intern!(py, "unknown_fields"), unknown)?;
        layout.owned.bind(py).call((), Some(&values))
    }

    fn list(&self, field: &Field, how: As) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py();
        let list = PyList::empty(py);
        if field.value.kind == Kind::Message {
            let layout = field.value.message(py)?;
            for place in self.array(field.offset, layout.size, true) {
                list.append(place.message(layout, how)?)?;
            }
        } else {
            for place in self.array(field.offset, field.value.kind.stride(), false) {
                list.append(place.one(&field.value, 0, how)?)?;
            }
        }
        Ok(list.into_any())
    }

    /// A map. The last of equal keys counts.
    fn map(&self, field: &Field, entry: &Entry, how: As) -> PyResult<Bound<'py, PyAny>> {
        let map = PyDict::new(self.py());
        for place in self.array(field.offset, entry.size, true) {
            let key = place.plain(entry.key, entry.key_offset, As::Owned)?;
            let value = place.one(&field.value, entry.value_offset, how)?;
            map.set_item(key, value)?;
        }
        Ok(map.into_any())
    }
}

/// A view of a struct in a block. The block is a memoryview.
pub(crate) fn view<'py>(
    block: &Bound<'py, PyAny>,
    layout: &Layout,
    at: usize,
    depth: u32,
) -> PyResult<Bound<'py, PyAny>> {
    layout.view.bind(block.py()).call1((block, at, depth))
}

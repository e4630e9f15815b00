//! The stubs' tables, compiled once. `tollgate_block.py` reads and writes field by field with the
//! same tables.
//!
//! The module with the tables hands them over when it is imported
//! ([`tables`](crate::stubs::tables)); encoding and decoding (`encode`, `decode`) follow them. The
//! Python code next to the tables stays the reference. This code agrees with it, and a test
//! compares the two.

use std::sync::Arc;

use pyo3::exceptions::PyImportError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};

/// The representation of one value, with the names in `tollgate_block.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    Enum,
    Bool,
    String,
    Bytes,
    Message,
}

impl Kind {
    fn of(kind: &Bound<'_, PyAny>) -> PyResult<Kind> {
        let name: String = kind.getattr("name")?.extract()?;
        Ok(match &*name {
            "a signed 32-bit number" => Kind::I32,
            "an unsigned 32-bit number" => Kind::U32,
            "a signed 64-bit number" => Kind::I64,
            "an unsigned 64-bit number" => Kind::U64,
            "a 32-bit float" => Kind::F32,
            "a float" => Kind::F64,
            "a number of an enum" => Kind::Enum,
            "a bool" => Kind::Bool,
            "text" => Kind::String,
            "bytes" => Kind::Bytes,
            "a message" => Kind::Message,
            _ => {
                return Err(PyImportError::new_err(format!(
                    "the stubs were generated for another version of tollgate, because this one doesn't know {name}"
                )));
            }
        })
    }

    /// The name of a value of this kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::I32 => "a signed 32-bit number",
            Kind::U32 => "an unsigned 32-bit number",
            Kind::I64 => "a signed 64-bit number",
            Kind::U64 => "an unsigned 64-bit number",
            Kind::F32 => "a 32-bit float",
            Kind::F64 => "a float",
            Kind::Enum => "a number of an enum",
            Kind::Bool => "a bool",
            Kind::String => "text",
            Kind::Bytes => "bytes",
            Kind::Message => "a message",
        }
    }

    /// Bytes of an array's element. For messages, their type has it.
    pub(crate) fn stride(self) -> usize {
        match self {
            Kind::Bool => 1,
            Kind::I32 | Kind::U32 | Kind::F32 | Kind::Enum => 4,
            Kind::I64 | Kind::U64 | Kind::F64 | Kind::String | Kind::Bytes => 8,
            Kind::Message => 0,
        }
    }

    /// Alignment of an array.
    pub(crate) fn align(self) -> usize {
        match self {
            Kind::String | Kind::Bytes => 4,
            Kind::Message => 8,
            scalar => scalar.stride(),
        }
    }
}

/// The struct of a map's entries.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) size: usize,
    pub(crate) key: Kind,
    pub(crate) key_offset: usize,
    pub(crate) value_offset: usize,
}

/// One value's representation, with its type.
pub(crate) struct Value {
    pub(crate) kind: Kind,
    /// Returns the class; types may be recursive.
    of: Option<Py<PyAny>>,
    class: PyOnceLock<Py<PyAny>>,
    message: PyOnceLock<Arc<Layout>>,
}

impl Value {
    /// The class of an enum or message.
    pub(crate) fn class<'s, 'py>(&'s self, py: Python<'py>) -> PyResult<&'s Bound<'py, PyAny>> {
        let class = self.class.get_or_try_init(py, || match &self.of {
            Some(of) => of.call0(py),
            None => Err(PyImportError::new_err(
                "a field of the stubs lacks its type",
            )),
        })?;
        Ok(class.bind(py))
    }

    /// The layout of a message.
    pub(crate) fn message(&self, py: Python<'_>) -> PyResult<&Arc<Layout>> {
        self.message
            .get_or_try_init(py, || layout_of(self.class(py)?))
    }
}

/// One field.
pub(crate) struct Field {
    pub(crate) name: Py<PyString>,
    pub(crate) number: u32,
    pub(crate) offset: usize,
    pub(crate) value: Value,
    pub(crate) bit: Option<usize>,
    pub(crate) oneof: Option<usize>,
    pub(crate) many: bool,
    pub(crate) entry: Option<Entry>,
}

/// The fixed part of a message, and its classes.
pub(crate) struct Layout {
    pub(crate) name: String,
    pub(crate) size: usize,
    /// Names of the oneofs and offsets of their cases.
    pub(crate) oneofs: Vec<(String, usize)>,
    pub(crate) fields: Vec<Field>,
    pub(crate) unknown: usize,
    pub(crate) owned: Py<PyType>,
    pub(crate) view: Py<PyType>,
    /// `BlockError` of the stubs' module.
    pub(crate) error: Py<PyAny>,
}

/// A layout as a Python object: the attribute `_TABLES` of messages and views.
#[pyclass(frozen, module = "tollgate._core")]
pub(crate) struct Tables {
    pub(crate) layout: Arc<Layout>,
}

impl Field {
    pub(crate) fn read(field: &Bound<'_, PyAny>) -> PyResult<Field> {
        let name: String = field.getattr("name")?.extract()?;
        let entry = field.getattr("entry")?;
        let entry = match entry.is_none() {
            true => None,
            false => Some(Entry {
                size: entry.getattr("size")?.extract()?,
                key: Kind::of(&entry.getattr("key")?)?,
                key_offset: entry.getattr("key_offset")?.extract()?,
                value_offset: entry.getattr("value_offset")?.extract()?,
            }),
        };
        Ok(Field {
            name: PyString::intern(field.py(), &name).unbind(),
            number: field.getattr("number")?.extract()?,
            offset: field.getattr("offset")?.extract()?,
            value: Value {
                kind: Kind::of(&field.getattr("kind")?)?,
                of: field.getattr("type")?.extract()?,
                class: PyOnceLock::new(),
                message: PyOnceLock::new(),
            },
            bit: field.getattr("bit")?.extract()?,
            oneof: field.getattr("oneof")?.extract()?,
            many: field.getattr("many")?.extract()?,
            entry,
        })
    }
}

/// The layout of a message's class or instance, or of a view's.
pub(crate) fn layout_of(of: &Bound<'_, PyAny>) -> PyResult<Arc<Layout>> {
    let tables = of.getattr(intern!(of.py(), "_TABLES"))?;
    Ok(Arc::clone(&tables.cast::<Tables>()?.get().layout))
}

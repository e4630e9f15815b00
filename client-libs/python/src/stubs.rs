//! The stubs' module calls this when it is imported, to hand over its tables.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::decode::Reader;
use crate::tables::{Field, Layout, Tables};

/// Takes the tables of a message: gives its classes the attribute `_TABLES`, and the view
/// properties that read in place.
#[pyfunction]
pub(crate) fn tables(
    owned: &Bound<'_, PyType>,
    view: &Bound<'_, PyType>,
    numbers: &Bound<'_, PyAny>,
    error: Py<PyAny>,
) -> PyResult<()> {
    let py = owned.py();
    let mut fields = Vec::new();
    for field in numbers.getattr("fields")?.try_iter()? {
        fields.push(Field::read(&field?)?);
    }
    let layout = Arc::new(Layout {
        name: numbers.getattr("name")?.extract()?,
        size: numbers.getattr("size")?.extract()?,
        oneofs: numbers.getattr("oneofs")?.extract()?,
        fields,
        unknown: numbers.getattr("unknown")?.extract()?,
        owned: owned.clone().unbind(),
        view: view.clone().unbind(),
        error,
    });
    for (index, field) in layout.fields.iter().enumerate() {
        let reader = Reader::new(Arc::clone(&layout), index);
        view.setattr(field.name.bind(py), reader)?;
    }
    let tables = Bound::new(py, Tables { layout })?;
    view.setattr(intern!(py, "_TABLES"), &tables)?;
    owned.setattr(intern!(py, "_TABLES"), tables)
}

//! Between the core's values and Python's: statuses, metadata, durations.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use tollgate_core::metadata::{MetadataBuf, STATUS_DETAILS, is_binary};
use tollgate_core::{Code, Status};

/// A status as `tollgate.RpcError`, with all that it carries.
pub(crate) fn raised(py: Python<'_>, status: Status) -> PyErr {
    match error(py, &status) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

fn error<'py>(py: Python<'py>, status: &Status) -> PyResult<Bound<'py, PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.import(py, "tollgate._status", "make_error")?;
    make.call1((
        status.code.0,
        &status.message,
        PyBytes::new(py, status.details()),
        pairs(py, &status.metadata)?,
        status.retry_after.map(|pause| pause.as_secs_f64()),
    ))
}

/// A status from what a program gave.
pub(crate) fn status(
    code: u32,
    message: String,
    details: &[u8],
    trailers: Option<&Bound<'_, PyAny>>,
) -> PyResult<Status> {
    let mut status = Status::new(Code(code), message);
    status.metadata = metadata(trailers)?;
    match details.is_empty() {
        true => Ok(status),
        false => status
            .with_details(details)
            .map_err(|error| PyValueError::new_err(error.to_string())),
    }
}

/// Metadata as a list of pairs: bytes of keys that end in `-bin`, text of others. Details of a status aren't among them.
pub(crate) fn pairs<'py>(py: Python<'py>, buf: &MetadataBuf) -> PyResult<Bound<'py, PyTuple>> {
    if buf.is_empty() {
        return Ok(PyTuple::empty(py));
    }
    let list = PyList::empty(py);
    for (key, value) in buf.view().iter().filter(|(key, _)| *key != STATUS_DETAILS) {
        let value = match std::str::from_utf8(value) {
            Ok(text) if !is_binary(key) => PyString::new(py, text).into_any(),
            _ => PyBytes::new(py, value).into_any(),
        };
        list.append((key, value))?;
    }
    Ok(list.to_tuple())
}

/// Metadata from pairs, or none.
pub(crate) fn metadata(pairs: Option<&Bound<'_, PyAny>>) -> PyResult<MetadataBuf> {
    let mut buf = MetadataBuf::new();
    let Some(pairs) = pairs.filter(|pairs| !pairs.is_none()) else {
        return Ok(buf);
    };
    for pair in pairs.try_iter()? {
        let pair = pair?;
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract().map_err(|_| {
            PyValueError::new_err(format!(
                "metadata consists of pairs, and {pair:?} isn't one"
            ))
        })?;
        let key = key.extract::<String>().map_err(|_| {
            PyValueError::new_err(format!("a key of metadata is text, and {key:?} isn't"))
        })?;
        let refused = |error: &dyn std::fmt::Display| {
            PyValueError::new_err(format!("metadata {key:?}: {error}"))
        };
        let pushed = match value.cast::<PyString>() {
            Ok(text) => buf.push(&key, text.to_cow()?.as_bytes()),
            Err(_) => match value.cast::<PyBytes>() {
                Ok(bytes) => buf.push(&key, bytes.as_bytes()),
                Err(_) => return Err(refused(&format!("{value:?} is neither text nor bytes"))),
            },
        };
        pushed.map_err(|error| PyValueError::new_err(error.to_string()))?;
    }
    Ok(buf)
}

/// Metadata with what is to be said beside it, in groups: of each, all before the first field that is there already, isn't metadata, or finds no room.
#[pyfunction]
pub(crate) fn extended<'py>(
    py: Python<'py>,
    given: Option<&Bound<'py, PyAny>>,
    groups: Vec<Vec<(String, String)>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut buf = metadata(given)?;
    for group in &groups {
        for (key, value) in group {
            if buf.view().get(key).is_some() || buf.push(key, value.as_bytes()).is_err() {
                break;
            }
        }
    }
    pairs(py, &buf)
}

/// A number of seconds. What is past is now.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if seconds.is_nan() {
        return Err(PyValueError::new_err(
            "a timeout is a number of seconds, and nan isn't",
        ));
    }
    // What no clock can say is for ever.
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).ok())
}

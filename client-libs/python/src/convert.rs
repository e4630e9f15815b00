//! Between the core's values and Python's: statuses, metadata, durations.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use tollgate_core::metadata::{MetadataBuf, STATUS_DETAILS, is_binary};
use tollgate_core::{Code, Status};

/// A status as `tollgate.RpcError`, with all its data.
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

/// A sentence from Python, for people. Lone surrogates become escapes; they stand for bytes that
/// aren't UTF-8, for example in file names.
pub(crate) struct Sentence(pub(crate) String);

impl<'py> FromPyObject<'_, 'py> for Sentence {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Sentence> {
        let text = object.cast::<PyString>()?;
        if let Ok(text) = text.to_cow() {
            return Ok(Sentence(text.into_owned()));
        }
        let escaped = text.call_method1("encode", ("utf-8", "backslashreplace"))?;
        let escaped = escaped.cast::<PyBytes>()?.as_bytes();
        Ok(Sentence(String::from_utf8_lossy(escaped).into_owned()))
    }
}

/// A Python string with a meaning, such as a name. Python's own error would show the whole text in
/// its repr, and the text may be a secret.
pub(crate) fn utf8(text: &Bound<'_, PyString>, what: &str) -> PyResult<String> {
    match text.to_cow() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(PyValueError::new_err(format!(
            "{what} contains lone surrogates, which UTF-8 can't encode"
        ))),
    }
}

/// A status from a program's values.
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

/// Metadata as a list of pairs: bytes for keys that end in `-bin`, text for other keys. Details of
/// a status are left out.
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
        // The error doesn't show values: they may be passwords.
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract().map_err(|_| {
            let kind = kind_of(&pair);
            PyValueError::new_err(format!(
                "each item of metadata must be a pair, not an object of type {kind}"
            ))
        })?;
        let key = key.cast::<PyString>().map_err(|_| {
            let kind = kind_of(&key);
            PyValueError::new_err(format!(
                "a metadata key must be text, not an object of type {kind}"
            ))
        })?;
        let key = utf8(key, "a key of metadata")?;
        let pushed = match value.cast::<PyString>() {
            Ok(text) => {
                let value = utf8(text, &format!("the value of metadata {key:?}"))?;
                buf.push(&key, value.as_bytes())
            }
            Err(_) => match value.cast::<PyBytes>() {
                Ok(bytes) => buf.push(&key, bytes.as_bytes()),
                Err(_) => {
                    let kind = kind_of(&value);
                    let text = format!(
                        "the value of metadata {key:?} must be text or bytes, not an object of type {kind}"
                    );
                    return Err(PyValueError::new_err(text));
                }
            },
        };
        pushed.map_err(|error| PyValueError::new_err(error.to_string()))?;
    }
    Ok(buf)
}

/// The type of an object, for an error.
fn kind_of(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().name();
    name.map_or_else(|_| "something".to_owned(), |name| name.to_string())
}

/// Metadata with further fields, in groups. Each group ends before its first field that the
/// metadata has already, that isn't valid metadata, or that has no room.
#[pyfunction]
pub(crate) fn extended<'py>(
    py: Python<'py>,
    given: Option<&Bound<'py, PyAny>>,
    groups: Vec<Vec<(Bound<'py, PyString>, Bound<'py, PyString>)>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut buf = metadata(given)?;
    for group in &groups {
        for (key, value) in group {
            let (Ok(key), Ok(value)) = (key.to_cow(), value.to_cow()) else {
                break;
            };
            if buf.view().get(&key).is_some() || buf.push(&key, value.as_bytes()).is_err() {
                break;
            }
        }
    }
    pairs(py, &buf)
}

/// A timeout in seconds. A negative number counts as 0.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if seconds.is_nan() {
        return Err(PyValueError::new_err(
            "a timeout is a number of seconds, and nan isn't",
        ));
    }
    // A time beyond the clock's range is for ever.
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).ok())
}

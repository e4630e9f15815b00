//! Guards for state that the child of a fork must not touch.
//!
//! A session's memory and socket are shared with the parent. A child that released a block, or
//! closed its session, would do so in the parent's name. So all state of a session is in an
//! [`Own`]. In a child it reports an error instead of giving access, and it is forgotten instead of
//! dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Number of forks between this process and the one that loaded the extension.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Called in the child of each fork.
#[pyfunction]
pub(crate) fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of this process among its forks.
pub(crate) fn here() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// State of a session, with the process that made it.
#[derive(Debug)]
pub(crate) struct Own<T> {
    /// Taken in drop only.
    value: Option<T>,
    made: u64,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Own<T> {
        Own {
            value: Some(value),
            made: here(),
        }
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.check()?;
        self.value.as_ref().ok_or_else(forked)
    }

    /// Like [`get`](Self::get), for changing the value.
    pub(crate) fn get_mut(&mut self) -> PyResult<&mut T> {
        self.check()?;
        self.value.as_mut().ok_or_else(forked)
    }

    /// Like [`get`](Self::get), and takes the value out.
    pub(crate) fn into_inner(mut self) -> PyResult<Option<T>> {
        self.check()?;
        Ok(self.value.take())
    }

    fn check(&self) -> PyResult<()> {
        match self.made == here() {
            true => Ok(()),
            false => Err(forked()),
        }
    }
}

fn forked() -> PyErr {
    PyRuntimeError::new_err(
        "this process was forked from the one that opened the channel or server; open a new one in it",
    )
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.made != here() {
            std::mem::forget(self.value.take());
        }
    }
}

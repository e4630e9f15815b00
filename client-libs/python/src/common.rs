//! Code that a session's calls and its server share.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use tollgate_core::{ReceivedBlock, Session, Status};

use crate::decode::view;
use crate::fork::Own;
use crate::held::{self, Count, Memory};
use crate::tables::{Layout, layout_of};
use crate::waiting::{Give, Reactor, run};

/// The shared state of a session's objects.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) session: Arc<Own<Session>>,
    pub(crate) reactor: Option<Arc<Reactor>>,
    /// Blocks that the program holds.
    pub(crate) held: Count,
}

impl Common {
    /// Waits for an operation of the session.
    pub(crate) fn run<T: Give>(
        &self,
        py: Python<'_>,
        job: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        run(py, self.session.get()?, self.reactor.as_ref(), job)
    }

    /// Makes a Python object of a received message.
    pub(crate) fn show(
        &self,
        py: Python<'_>,
        layout: &Layout,
        block: ReceivedBlock,
    ) -> PyResult<Py<PyAny>> {
        show(py, layout, block, &self.held)
    }
}

/// A view of a block. The block lives as long as the view.
pub(crate) fn show(
    py: Python<'_>,
    layout: &Layout,
    block: ReceivedBlock,
    held: &Count,
) -> PyResult<Py<PyAny>> {
    let object = held::object(py, Memory::received(block, held))?;
    let bytes = PyMemoryView::from(&object)?;
    Ok(view(bytes.as_any(), layout, 0, 0)?.unbind())
}

/// A message of a stream for Python; `None` for its end.
pub(crate) struct Came {
    pub(crate) common: Common,
    pub(crate) layout: Arc<Layout>,
    pub(crate) block: Option<ReceivedBlock>,
}

impl Give for Came {
    fn give(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.block {
            Some(block) => self.common.show(py, &self.layout, block),
            None => Ok(py.None()),
        }
    }
}

/// The tables of a message's class.
pub(crate) fn tables_of(class: &Bound<'_, PyAny>) -> PyResult<Arc<Layout>> {
    layout_of(class).map_err(|_| {
        PyValueError::new_err(format!(
            "{class:?} has no tables: its stubs were generated for another version of tollgate"
        ))
    })
}

//! A message outside of a runtime: the view that a version gets of it, and the message that the
//! version's changes make of it. For `tollgate policy test`, `tollgate policy bench` and
//! `tollgate explain`.

use std::fmt;

use tollgate_jit::Projector;
use tollgate_marshal::limits::MAX_VIEW;
use tollgate_marshal::{Program, interpreter};
use tollgate_policy_host::{Effects, ShownKeys, changed_metadata};
use tollgate_shm_abi::metadata::MetadataBuf;

use crate::evaluation::{Unchanged, patch_change};
use crate::plan::Patcher;

/// A message: its block, without extents, and the call's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The block.
    pub block: Vec<u8>,
    /// The call's metadata.
    pub metadata: MetadataBuf,
}

/// Why a view can't be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewError {
    /// The message is invalid; the sentence names the field.
    Message(String),
    /// Its metadata exceeds the view.
    Metadata,
}

impl fmt::Display for ViewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViewError::Message(sentence) => f.write_str(sentence),
            ViewError::Metadata => f.write_str("its metadata doesn't fit into a view"),
        }
    }
}

impl std::error::Error for ViewError {}

impl Sample {
    /// The largest size of a view of this message, in bytes.
    pub fn view_max(&self, projector: &Projector, shown: &ShownKeys) -> usize {
        let fixed = projector.projection().fixed_len();
        let keys = self.metadata.as_bytes().len() + shown.attribute_bytes();
        (fixed + self.block.len() + keys).min(MAX_VIEW)
    }

    /// Writes the view, and returns its length in bytes.
    ///
    /// # Errors
    /// The view can't be written.
    pub fn write_view(
        &self,
        projector: &Projector,
        shown: &ShownKeys,
        program: &Program,
        view: &mut [u8],
    ) -> Result<usize, ViewError> {
        let written = projector.project(&self.block, &[], view);
        let len = written.map_err(|fault| ViewError::Message(program.explain(&fault)))?;
        let shown = shown.write(self.metadata.view(), view, len);
        shown.ok_or(ViewError::Metadata)
    }

    /// The message with a version's changes. The result is checked as a receiver checks it.
    ///
    /// # Errors
    /// The changes can't be made; none is.
    pub fn changed(
        &self,
        patcher: Option<&Patcher>,
        program: &Program,
        effects: &Effects,
    ) -> Result<Sample, Unchanged> {
        if effects.fields.is_empty() && effects.metadata.is_empty() {
            return Ok(self.clone());
        }
        let patcher = patcher.ok_or_else(Unchanged::undeclared)?;
        let metadata = changed_metadata(self.metadata.view(), &patcher.keys, &effects.metadata);
        let metadata = metadata.map_err(Unchanged::of_metadata)?;
        if effects.fields.is_empty() {
            let block = self.block.clone();
            return Ok(Sample { block, metadata });
        }
        let changes: Vec<_> = effects.fields.iter().map(patch_change).collect();
        let mut block = Vec::new();
        let (layouts, len) = (&patcher.layouts, self.block.len());
        let patched = patcher
            .patch
            .apply(layouts, &self.block, len, &[], &changes, &mut block)
            .map_err(Unchanged::of_patch)?;
        interpreter::accept(program, &mut block, patched.inline_len)
            .map_err(|fault| Unchanged::Policy(program.explain(&fault)))?;
        Ok(Sample { block, metadata })
    }
}

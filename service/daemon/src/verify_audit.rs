//! Verifies an audit log without a running daemon: a copy, or the log in a state directory that no
//! daemon uses.

use std::path::Path;

use tollgate_control::audit::{Anchor, FILE, Head, Verified, verify_file};
use tollgate_control::{Cause, Store, StoreError};
use tollgate_shm_abi::status::Code;

use crate::config::code_of_file;

/// A status, and a sentence.
pub type Failed = (Code, String);

/// The result of the verification, or what is wrong. The status is DATA_LOSS for an edited
/// log.
///
/// # Errors
/// The log was edited, or it can't be read.
pub fn verify(
    state: Option<&Path>,
    file: Option<&Path>,
    head: Option<&str>,
) -> Result<String, Failed> {
    let refused = |error: StoreError| {
        let code = match error.cause() {
            Cause::Broken => Code::FAILED_PRECONDITION,
            _ => Code::INVALID_ARGUMENT,
        };
        (code, error.to_string())
    };
    let (path, anchor) = match (state, file) {
        (Some(state), _) => {
            readable(state)?;
            let anchor = Store::audit_anchor(state).map_err(refused)?;
            (state.join(FILE), Anchor::End(anchor))
        }
        (None, Some(file)) => {
            readable(file)?;
            let kept = head.map(str::parse::<Head>).transpose();
            let kept = kept.map_err(|error| (Code::INVALID_ARGUMENT, error.to_string()))?;
            (file.to_owned(), kept.map_or(Anchor::None, Anchor::Kept))
        }
        (None, None) => {
            let sentence = "name a state directory or a file".to_owned();
            return Err((Code::INVALID_ARGUMENT, sentence));
        }
    };
    match verify_file(&path, anchor) {
        Ok(verified) => Ok(sentence(&verified)),
        Err(edited) => {
            let sentence = format!("{} was edited: {edited}", path.display());
            Err((Code::DATA_LOSS, sentence))
        }
    }
}

/// Whether a file or directory is there.
fn readable(path: &Path) -> Result<(), Failed> {
    let failed = |error| {
        let sentence = format!("{} can't be read: {error}", path.display());
        (code_of_file(&error), sentence)
    };
    std::fs::metadata(path).map(drop).map_err(failed)
}

/// The sentence for a log that wasn't edited.
pub(crate) fn sentence(verified: &Verified) -> String {
    let Verified {
        records,
        head,
        anchored,
    } = verified;
    let unanchored = if *anchored {
        ""
    } else {
        "; without --head or --state, records cut off its end go unnoticed"
    };
    format!("{records} records, not edited, up to {head}{unanchored}")
}

//! Verifying an audit log without a daemon: on a copy, or in a state directory that no daemon uses.

use std::path::Path;

use tollgate_control::audit::{Anchor, FILE, Head, Verified, verify_file};
use tollgate_control::{Cause, Store, StoreError};
use tollgate_shm_abi::status::Code;

/// An exit status, and a sentence.
pub type Failed = (u8, String);

/// What was verified, or what is wrong: the exit status is 15 (DATA_LOSS) for an edited log.
///
/// # Errors
/// The log was edited, or there is none that could be read.
pub fn verify(
    state: Option<&Path>,
    file: Option<&Path>,
    head: Option<&str>,
) -> Result<String, Failed> {
    let exit = |code: Code| u8::try_from(code.0).unwrap_or(2);
    let refused = |error: StoreError| {
        let code = match error.cause() {
            Cause::Broken => Code::FAILED_PRECONDITION,
            _ => Code::INVALID_ARGUMENT,
        };
        (exit(code), error.to_string())
    };
    let (path, anchor) = match (state, file) {
        (Some(state), _) => {
            let anchor = Store::audit_anchor(state).map_err(refused)?;
            (state.join(FILE), Anchor::End(anchor))
        }
        (None, Some(file)) => {
            let missing = |error| {
                (
                    exit(Code::NOT_FOUND),
                    format!("{} can't be read: {error}", file.display()),
                )
            };
            std::fs::metadata(file).map_err(missing)?;
            let kept = head.map(str::parse::<Head>).transpose();
            let kept = kept.map_err(|sentence| (exit(Code::INVALID_ARGUMENT), sentence))?;
            (file.to_owned(), kept.map_or(Anchor::None, Anchor::Kept))
        }
        (None, None) => {
            let sentence = "name a state directory or a file".to_owned();
            return Err((exit(Code::INVALID_ARGUMENT), sentence));
        }
    };
    match verify_file(&path, anchor) {
        Ok(verified) => Ok(sentence(&verified)),
        Err(edited) => {
            let sentence = format!("{} was edited: {edited}", path.display());
            Err((exit(Code::DATA_LOSS), sentence))
        }
    }
}

/// What a verification that found nothing says.
pub(crate) fn sentence(verified: &Verified) -> String {
    let Verified {
        records,
        head,
        anchored,
    } = verified;
    let unanchored = if *anchored {
        ""
    } else {
        "; records cut off its end aren't missed without --head or --state"
    };
    format!("{records} records, not edited, up to {head}{unanchored}")
}

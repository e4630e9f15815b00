//! Checks of error messages.

use std::fmt::Display;

/// Panics unless an error is one sentence, in one line.
pub(crate) fn one_sentence(error: &impl Display) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
}

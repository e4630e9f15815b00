//! Standard error: failures, warnings, questions and progress.
//!
//! Standard error has nobody to tell, so a message that it doesn't take is lost and nothing else is. A token that was
//! typed where another word belongs isn't shown. `eprintln!` is denied in this crate: it panics where this goes on.

use std::io::Write;

use tollgate_shm_abi::secret::without_tokens;
use tollgate_shm_abi::text;

/// Writes a line to standard error.
pub(crate) fn tell(line: &str) {
    let line = format!("{}\n", text::escape_lines(&without_tokens(line)));
    let _lost = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Says what is no failure.
pub(crate) fn warn(sentence: &str) {
    tell(&format!("tollgate: warning: {sentence}"));
}

/// Writes a question to standard error, whose answer is typed behind it.
pub(crate) fn prompt(question: &str) {
    let mut err = std::io::stderr().lock();
    let question = without_tokens(question);
    let shown = text::escape_lines(&question);
    let _lost = err.write_all(shown.as_bytes()).and_then(|()| err.flush());
}

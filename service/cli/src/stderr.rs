//! Standard error: failures, warnings, questions and progress.
//!
//! A failure to write standard error can't be reported, so that message is lost and the program
//! goes on. A token that was typed in the place of another argument isn't shown. `eprintln!` is
//! denied in this crate: it panics on a failed write.

use std::io::{IsTerminal as _, Write};

use tollgate_shm_abi::secret::without_tokens;
use tollgate_shm_abi::text;

/// Writes a line to standard error.
pub(crate) fn tell(line: &str) {
    let line = format!("{}\n", text::escape_lines(&without_tokens(line)));
    let _lost = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Tells a step of long work, to a terminal only.
pub(crate) fn step(doing: Option<impl AsRef<str>>) {
    if let Some(doing) = doing.filter(|_| std::io::stderr().is_terminal()) {
        tell(doing.as_ref());
    }
}

/// Prints a warning or a note.
pub(crate) fn warn(sentence: &str) {
    tell(&format!("tollgate: warning: {sentence}"));
}

/// Writes a question to standard error. The user types the answer behind it.
pub(crate) fn prompt(question: &str) {
    let mut err = std::io::stderr().lock();
    let question = without_tokens(question);
    let shown = text::escape_lines(&question);
    let _lost = err.write_all(shown.as_bytes()).and_then(|()| err.flush());
}

//! Standard output, which may be closed at any time: whoever closed it doesn't want the rest, and
//! that is no failure (`tollgate completions bash | head` is a fine command).

use std::io::Write;

/// Writes all of `text` and flushes, so that a reader of a pipe sees each line at once.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _closed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Text that others chose, as a terminal shows and doesn't obey.
pub(crate) fn plain(text: &str) -> String {
    let safe = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(safe).collect()
}

//! Standard output: the one writer that every command uses.
//!
//! A failed write to standard output fails the command: exit status 74 on a full device, and 141
//! without a message if the reader has closed the pipe (`tollgate tap | head` is a fine command,
//! and ends). `println!` is denied in this crate: it panics on a failed write.
//!
//! Untrusted text is shown without effect on the terminal: [`print`] keeps line breaks and escapes
//! other control characters. Code that puts untrusted text into a line first escapes it with
//! [`plain`], so that it stays in that line.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, makedev};
use rustix::io::Errno;
use tollgate_shm_abi::text;

use crate::failure::Failure;

/// Writes all of `text` and flushes, so that a reader of a pipe sees each line at once.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    if !text.is_empty() {
        require_open()?;
    }
    let shown = text::escape_lines(text);
    let mut out = std::io::stdout().lock();
    let written = out.write_all(shown.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failure::output(&error))
}

/// Fails if standard output was closed when the program started. Rust's runtime then opens
/// `/dev/null` in its place for reading and writing, so that writing would lose everything without
/// an error; `>/dev/null` opens it for writing only. Commands whose output is shown only once check
/// this before they change anything.
pub(crate) fn require_open() -> Result<(), Failure> {
    let out = std::io::stdout();
    let (Ok(stat), Ok(flags)) = (fstat(&out), fcntl_getfl(&out)) else {
        return Ok(());
    };
    let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == makedev(1, 3);
    if is_null && flags.contains(OFlags::RDWR) {
        return Err(Failure::output(&Errno::BADF.into()));
    }
    Ok(())
}

/// A line of JSON. Its values stay the same.
pub(crate) fn json(value: &impl Display) -> String {
    format!("{}\n", text::escape_json(&value.to_string()))
}

/// Untrusted text, as a part of one line.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    text::escape(text)
}

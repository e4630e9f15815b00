//! Verification: the first line that differs from the one that was written.

use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use super::record::{Head, parse};
use crate::limits::MAX_LINE_BYTES;

/// The result of a verification without edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Records that were read.
    pub records: u64,
    /// The end of the log.
    pub head: Head,
    /// Whether the log was compared with a head kept elsewhere; if not, a cut end goes unnoticed.
    pub anchored: bool,
}

/// The first line of a log that differs from the one that was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Edited {
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub what: String,
}

/// The reference that a log is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// None: a cut end goes unnoticed.
    None,
    /// A head that was kept elsewhere, maybe long ago: the log has to contain it.
    Kept(Head),
    /// The store's head: the log has to end with it.
    End(Head),
}

/// Verifies a log from its first record.
///
/// # Errors
/// The first line that differs from the one that was written.
pub fn verify(log: impl BufRead, anchor: Anchor) -> Result<Verified, Edited> {
    verify_from(Head::default(), log, anchor)
}

fn verify_from(start: Head, mut log: impl BufRead, anchor: Anchor) -> Result<Verified, Edited> {
    let expected = match anchor {
        Anchor::None => None,
        Anchor::Kept(head) | Anchor::End(head) => Some(head),
    };
    let (mut head, mut records) = (start, 0);
    loop {
        let edited = |what: String| Edited {
            line: records + 1,
            what,
        };
        let mut bytes = Vec::new();
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = log.by_ref().take(limit).read_until(b'\n', &mut bytes);
        read.map_err(|error| edited(format!("it can't be read: {error}")))?;
        if bytes.is_empty() {
            break;
        }
        if bytes.pop() != Some(b'\n') {
            let why = format!("it has no end, or more than {MAX_LINE_BYTES} bytes");
            return Err(edited(why));
        }
        let (before, here) = parse(&bytes).map_err(|error| edited(error.to_string()))?;
        if before.seq != head.seq {
            let (found, expected) = (here.seq, head.seq + 1);
            let what = format!("record {found} is where record {expected} should be");
            return Err(edited(what));
        }
        if before.hash != head.hash {
            let what = format!("record {} doesn't continue the line before it", here.seq);
            return Err(edited(what));
        }
        (head, records) = (here, records + 1);
        if expected.is_some_and(|anchor| anchor.seq == head.seq && anchor.hash != head.hash) {
            let what = format!("record {} isn't the one that the anchor names", head.seq);
            return Err(edited_at(records, what));
        }
    }
    match expected {
        Some(anchor) if anchor.seq > head.seq => {
            let what = format!(
                "record {} is missing: the log ends, and its anchor is record {}",
                head.seq + 1,
                anchor.seq
            );
            return Err(edited_at(records + 1, what));
        }
        Some(end) if end.seq < head.seq && matches!(anchor, Anchor::End(_)) => {
            let line = records + 1 - (head.seq - end.seq);
            let what = format!(
                "it was added: the last record that the daemon wrote is {}",
                end.seq
            );
            return Err(edited_at(line, what));
        }
        _ => {}
    }
    Ok(Verified {
        records,
        head,
        anchored: expected.is_some(),
    })
}

fn edited_at(line: u64, what: String) -> Edited {
    Edited { line, what }
}

/// The verification of a log that is being written: prepared under the store's lock, run without
/// it.
#[derive(Debug)]
pub struct Verification {
    pub(super) place: Taken,
    pub(super) head: Head,
}

#[derive(Debug)]
pub(super) enum Taken {
    /// A file, and its length at that time.
    File(PathBuf, u64),
    /// The head before the kept records, and their lines.
    Memory(Head, Vec<u8>),
}

impl Verification {
    /// Reads the whole log.
    ///
    /// # Errors
    /// The first line that differs from the one that was written.
    pub fn run(self) -> Result<Verified, Edited> {
        match self.place {
            Taken::File(path, len) => verify_part(&path, len, Anchor::End(self.head)),
            Taken::Memory(before, lines) => {
                verify_from(before, lines.as_slice(), Anchor::End(self.head))
            }
        }
    }
}

/// Verifies a file; see [`verify`]. A missing file is an empty log.
///
/// # Errors
/// The first line that differs from the one that was written, or that can't be read.
pub fn verify_file(path: &Path, anchor: Anchor) -> Result<Verified, Edited> {
    verify_part(path, u64::MAX, anchor)
}

fn verify_part(path: &Path, len: u64, anchor: Anchor) -> Result<Verified, Edited> {
    match File::open(path) {
        Ok(file) => verify(std::io::BufReader::new(file.take(len)), anchor),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => verify(&b""[..], anchor),
        Err(error) => {
            let what = format!("{} can't be read: {error}", path.display());
            Err(edited_at(1, what))
        }
    }
}

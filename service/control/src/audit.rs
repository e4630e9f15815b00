//! The audit log: changes of policies, tenants and settings with their actors, in a chain of hashes
//! that reveals every later edit.
//!
//! ```text
//!   {"seq":7,"time":"2026-11-21T15:46:02.120Z","prev":"<hash of 6>","actor":"uid 0 pid 4711","event":"attach","details":{…},"hash":"…"}
//!   └───────────────────────────────── SHA-256 over these bytes ─────────────────────────────────────────────────┘
//! ```
//!
//! A record is one line of `audit.jsonl` in the state directory, which is only appended to. The
//! store keeps a copy of the newest line, the **anchor**. It is written in the transaction of the
//! change, before the line reaches the file:
//!
//! ```text
//!   begin ─ change ─ anchor := line ─ commit (fsync) ─ append line ─ fsync
//!                                            │              └─ a crash here: the file lacks the anchor's line, or its end
//!                                            └─ a crash before: neither the change nor the record
//! ```
//!
//! A transaction of several changes has a record of each: its anchor is all their lines.
//!
//! So a record describes a change that was made, no change is made without a record, and at most
//! the newest transaction's records are only in the anchor. The next change appends them first, or
//! fails. A start after such a crash completes the file and records that (`healed`), whichever
//! bytes of the line a power cut has left, with zeros for the others. Any other end of the file was
//! changed by another program, and the next record says so (`broken`).
//!
//! Limits: a program that can write both the file and the store can forge the history. Keep the
//! output of `tollgate audit head` elsewhere from time to time, and let `verify` compare it. A cut
//! end goes unnoticed if a file is verified without store and head. The file isn't rotated:
//! [`limits::REPEATS_PER_WINDOW`] bounds the records that tenants can cause.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::limits::{self, AUDIT_RING};

mod file;
mod record;
mod verify;

pub(crate) use record::RecordError;
pub use record::{Actor, Event, Head, NotHead, Note, rfc3339};
pub(crate) use record::{head_of, lines};
pub use verify::{Anchor, Edited, Verification, Verified, verify, verify_file};

use file::{append, ends_with, last_line, last_lines, tail, torn_at};
use record::parse;
use verify::Taken;

/// The log's name in the state directory.
pub const FILE: &str = "audit.jsonl";

/// The place of the records.
#[derive(Debug)]
enum Place {
    File(PathBuf),
    /// A daemon without a state directory: the newest records, and the head before the oldest of
    /// them.
    Memory {
        before: Head,
        lines: VecDeque<String>,
    },
}

/// The log that a store writes.
#[derive(Debug)]
pub(crate) struct Log {
    place: Place,
    pub(crate) head: Head,
    /// The anchor's lines, if the file lacks some of them.
    owed: Option<String>,
    /// Why the file lacks them, after a failed attempt.
    failure: Option<String>,
}

/// The state of the file at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Whole,
    /// It lacked the anchor's line, or a part of it.
    Healed {
        seq: u64,
    },
    /// It ends in a way that no crash explains.
    Broken {
        ends: String,
    },
}

impl Log {
    pub(crate) fn in_memory() -> Log {
        Log {
            place: Place::Memory {
                before: Head::default(),
                lines: VecDeque::new(),
            },
            head: Head::default(),
            owed: None,
            failure: None,
        }
    }

    /// The log of a state directory that can't be written now, without completing it.
    pub(crate) fn as_it_is(state: &Path, anchor: Option<&str>) -> Result<Log, RecordError> {
        Ok(Log {
            place: Place::File(state.join(FILE)),
            head: head_of(anchor)?,
            owed: None,
            failure: None,
        })
    }

    /// The log of a state directory whose store has `anchor` as its newest lines.
    pub(crate) fn open(state: &Path, anchor: Option<&str>) -> std::io::Result<(Log, Found)> {
        let path = state.join(FILE);
        let mut log = Log {
            place: Place::File(path.clone()),
            head: Head::default(),
            owed: None,
            failure: None,
        };
        let (ends, open_at, len) = last_line(&path)?;
        let ended = ends.as_deref().map_or(Ok(Head::default()), |line| {
            parse(line).map(|(_, here)| here)
        });
        let rest = len - open_at;
        let Some(anchor) = anchor else {
            let found = match (&ended, len) {
                (_, 0) => Found::Whole,
                _ => broken(&ended, rest),
            };
            return Ok((log, found));
        };
        let block = record::block(anchor).map_err(std::io::Error::other)?;
        let (before, here) = (block.before, block.here);
        log.head = here;
        if ended == Ok(here) && rest == 0 && ends_with(&path, anchor)? {
            return Ok((log, Found::Whole));
        }
        let Some(torn_at) = torn_at(&path, before, anchor)? else {
            return Ok((log, broken(&ended, rest)));
        };
        if torn_at < len {
            File::options().write(true).open(&path)?.set_len(torn_at)?;
        }
        log.owed = Some(anchor.to_owned());
        log.settle()?;
        Ok((log, Found::Healed { seq: here.seq }))
    }

    /// Appends the lines that the file lacks, if any.
    pub(crate) fn settle(&mut self) -> std::io::Result<()> {
        if let Some(line) = self.owed.take()
            && let Err(error) = self.append(&line)
        {
            self.owed = Some(line);
            self.failure = Some(error.to_string());
            return Err(error);
        }
        self.failure = None;
        Ok(())
    }

    /// Why the file lacks its newest record, if it does.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Appends lines that the store has committed.
    pub(crate) fn committed(&mut self, line: String, head: Head) -> std::io::Result<()> {
        self.head = head;
        self.owed = Some(line);
        self.settle()
    }

    fn append(&mut self, line: &str) -> std::io::Result<()> {
        match &mut self.place {
            Place::File(path) => append(path, line),
            Place::Memory { before, lines } => {
                lines.extend(line.lines().map(str::to_owned));
                while lines.len() > AUDIT_RING
                    && let Some(Ok((_, here))) =
                        lines.pop_front().map(|line| parse(line.as_bytes()))
                {
                    *before = here;
                }
                Ok(())
            }
        }
    }

    /// The file; `None` if the log is in memory.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::File(path) => Some(path),
            Place::Memory { .. } => None,
        }
    }

    /// The newest records, oldest first.
    pub(crate) fn last(&self, count: usize) -> std::io::Result<Vec<String>> {
        let count = count.min(limits::MAX_SHOWN);
        match &self.place {
            Place::File(path) => last_lines(path, count),
            Place::Memory { lines, .. } => {
                let skipped = lines.len().saturating_sub(count);
                Ok(lines.iter().skip(skipped).cloned().collect())
            }
        }
    }

    pub(crate) fn verification(&self) -> std::io::Result<Verification> {
        let place = match &self.place {
            Place::File(path) => Taken::File(path.clone(), tail(path, 0)?.1),
            Place::Memory { before, lines } => {
                let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
                Taken::Memory(*before, text.into_bytes())
            }
        };
        let head = self.head;
        Ok(Verification { place, head })
    }
}

fn broken(ended: &Result<Head, RecordError>, rest: u64) -> Found {
    let ends = match ended {
        Ok(head) => format!("with record {}", head.seq),
        Err(what) => format!("with a line that isn't a record: {what}"),
    };
    let rest = if rest > 0 {
        format!(" and {rest} bytes without a line end")
    } else {
        String::new()
    };
    Found::Broken {
        ends: format!("{ends}{rest}"),
    }
}

/// The head of a directory's log; the default if it doesn't end with a record.
pub(crate) fn last_written(state: &Path) -> std::io::Result<Head> {
    let (line, ..) = last_line(&state.join(FILE))?;
    let head = line.map(|line| parse(&line).map(|(_, here)| here));
    Ok(head.and_then(Result::ok).unwrap_or_default())
}

#[cfg(test)]
mod tests;

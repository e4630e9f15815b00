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
//! So a record describes a change that was made, no change is made without a record, and at most
//! the newest record is only in the anchor. The next change appends it first, or fails. A start
//! after such a crash completes the file and records that (`healed`), whichever bytes of the line a
//! power cut has left, with zeros for the others. Any other end of the file was changed by another
//! program, and the next record says so (`broken`).
//!
//! Limits: a program that can write both the file and the store can forge the history. Keep the
//! output of `tollgate audit head` elsewhere from time to time, and let `verify` compare it. A cut
//! end goes unnoticed if a file is verified without store and head. The file isn't rotated:
//! [`limits::REPEATS_PER_WINDOW`] bounds the records that tenants can cause.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::disk;
use crate::limits::{self, AUDIT_RING, MAX_DETAILS_BYTES, MAX_LINE_BYTES};
use crate::model::hex;

/// The log's name in the state directory.
pub const FILE: &str = "audit.jsonl";

/// The actor of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The peer of an administrative connection, as the kernel reports it.
    Admin {
        /// User id.
        uid: u32,
        /// Process id.
        pid: i32,
    },
    /// The daemon itself.
    Daemon,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Admin { uid, pid } => write!(f, "uid {uid} pid {pid}"),
            Actor::Daemon => f.write_str("daemon"),
        }
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Event {
    TenantAdd,
    TenantMove,
    TenantRotate,
    TenantRemove,
    Push,
    PolicyDelete,
    Attach,
    Detach,
    Upgrade,
    Promote,
    Rollback,
    Release,
    Set,
    Reset,
    Fault,
    Quarantine,
    LoadFailed,
    Throttled,
    Migrated,
    Healed,
    Broken,
    DaemonUpgrade,
    Restored,
}

impl Event {
    /// The name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Event::TenantAdd => "tenant-add",
            Event::TenantMove => "tenant-move",
            Event::TenantRotate => "tenant-rotate",
            Event::TenantRemove => "tenant-remove",
            Event::Push => "push",
            Event::PolicyDelete => "policy-delete",
            Event::Attach => "attach",
            Event::Detach => "detach",
            Event::Upgrade => "upgrade",
            Event::Promote => "promote",
            Event::Rollback => "rollback",
            Event::Release => "release",
            Event::Set => "set",
            Event::Reset => "reset",
            Event::Fault => "fault",
            Event::Quarantine => "quarantine",
            Event::LoadFailed => "load-failed",
            Event::Throttled => "throttled",
            Event::Migrated => "migrated",
            Event::Healed => "healed",
            Event::Broken => "broken",
            Event::DaemonUpgrade => "daemon-upgrade",
            Event::Restored => "restored",
        }
    }
}

/// An event to be recorded.
#[derive(Clone, Debug)]
pub struct Note {
    /// The actor.
    pub actor: Actor,
    /// The kind.
    pub event: Event,
    /// The details, an object.
    pub details: Value,
}

/// The end of a log, to be kept elsewhere, written `SEQ:HASH`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The newest record's number; 0 if there is none.
    pub seq: u64,
    /// Its hash.
    pub hash: [u8; 32],
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, hex(&self.hash))
    }
}

impl std::str::FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Head, String> {
        let parse = || {
            let (seq, hash) = text.split_once(':')?;
            Some(Head {
                seq: seq.parse().ok()?,
                hash: unhex(hash)?,
            })
        };
        parse().ok_or_else(|| {
            format!("{text:?} isn't the head of an audit log: a number, a colon and 64 hex digits, as `audit head` prints it")
        })
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 64 || !text.bytes().all(digits) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// The text between a record's hashed bytes and its hash.
const SEAL: &str = ",\"hash\":\"";

/// The line after `head`, without its line end, and the new head.
pub(crate) fn line(head: &Head, now: SystemTime, note: &Note) -> (String, Head) {
    let text = |value: &dyn fmt::Display| Value::String(value.to_string()).to_string();
    let mut details = note.details.to_string();
    if details.len() > MAX_DETAILS_BYTES {
        details = format!("{{\"cut\":true,\"bytes\":{}}}", details.len());
    }
    let seq = head.seq + 1;
    let sealed = format!(
        "{{\"seq\":{seq},\"time\":\"{}\",\"prev\":\"{}\",\"actor\":{},\"event\":\"{}\",\"details\":{details}",
        rfc3339(now),
        hex(&head.hash),
        text(&note.actor),
        note.event.name(),
    );
    let hash: [u8; 32] = Sha256::digest(sealed.as_bytes()).into();
    (
        format!("{sealed}{SEAL}{}\"}}", hex(&hash)),
        Head { seq, hash },
    )
}

/// `2026-11-21T15:46:02.120Z`. A clock before 1970 counts as 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Civil from days, after Howard Hinnant: years begin in March, so that the leap day is a year's
    // last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let ms = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The fields of a record that is read back. The hash covers the order and the exact bytes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read1 {
    seq: u64,
    #[allow(dead_code, reason = "must be there")]
    time: String,
    prev: String,
    #[allow(dead_code, reason = "must be there")]
    actor: String,
    #[allow(dead_code, reason = "must be there")]
    event: String,
    #[allow(dead_code, reason = "must be there")]
    details: Value,
    hash: String,
}

/// Parses a line: the head before it, and its own.
fn parse(line: &[u8]) -> Result<(Head, Head), String> {
    let text = std::str::from_utf8(line).map_err(|_| "it isn't UTF-8".to_owned())?;
    let (sealed, _) = text
        .rsplit_once(SEAL)
        .ok_or_else(|| "it ends without a hash".to_owned())?;
    let found: [u8; 32] = Sha256::digest(sealed.as_bytes()).into();
    if text[sealed.len()..] != format!("{SEAL}{}\"}}", hex(&found)) {
        return Err("its hash isn't that of its bytes".to_owned());
    }
    let record: Read1 =
        serde_json::from_str(text).map_err(|error| format!("it isn't a record: {error}"))?;
    let prev = unhex(&record.prev).ok_or_else(|| "its prev isn't a hash".to_owned())?;
    let before = record
        .seq
        .checked_sub(1)
        .ok_or_else(|| "its number is 0".to_owned())?;
    let (before, here) = (
        Head {
            seq: before,
            hash: prev,
        },
        Head {
            seq: record.seq,
            hash: unhex(&record.hash).ok_or_else(|| "its hash isn't a hash".to_owned())?,
        },
    );
    Ok((before, here))
}

/// The head of a log with this newest line.
pub(crate) fn head_of(line: Option<&str>) -> Result<Head, String> {
    match line {
        Some(line) => parse(line.as_bytes()).map(|(_, here)| here),
        None => Ok(Head::default()),
    }
}

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
        let (before, here) = parse(&bytes).map_err(edited)?;
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
    /// The anchor's line, if the file lacks it.
    owed: Option<String>,
    /// Why the file lacks it, after a failed attempt.
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
    pub(crate) fn as_it_is(state: &Path, anchor: Option<&str>) -> Result<Log, String> {
        Ok(Log {
            place: Place::File(state.join(FILE)),
            head: head_of(anchor)?,
            owed: None,
            failure: None,
        })
    }

    /// The log of a state directory whose store has `anchor` as its newest line.
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
        let (before, here) = parse(anchor.as_bytes()).map_err(std::io::Error::other)?;
        log.head = here;
        if ended == Ok(here) && rest == 0 {
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

    /// Appends the line that the file lacks, if any.
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

    /// Appends a line that the store has committed.
    pub(crate) fn committed(&mut self, line: String, head: Head) -> std::io::Result<()> {
        self.head = head;
        self.owed = Some(line);
        self.settle()
    }

    fn append(&mut self, line: &str) -> std::io::Result<()> {
        match &mut self.place {
            Place::File(path) => append(path, line),
            Place::Memory { before, lines } => {
                lines.push_back(line.to_owned());
                if lines.len() > AUDIT_RING
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

/// The verification of a log that is being written: prepared under the store's lock, run without
/// it.
#[derive(Debug)]
pub struct Verification {
    place: Taken,
    head: Head,
}

#[derive(Debug)]
enum Taken {
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

fn broken(ended: &Result<Head, String>, rest: u64) -> Found {
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

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    disk::has_room()?;
    let mut file = File::options()
        .append(true)
        .read(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    let mut last = [b'\n'];
    if len > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    // After a cut line, the new record starts on its own line.
    let end = if last == [b'\n'] { "" } else { "\n" };
    let written = file.write_all(format!("{end}{line}\n").as_bytes());
    if written.is_err() {
        // No partial line shall remain; if that fails as well, the next start finds it.
        let _left_for_the_next_start = file.set_len(len);
    }
    written?;
    file.sync_data()?;
    match path.parent() {
        Some(state) if len == 0 => sync_directory(state),
        _ => Ok(()),
    }
}

/// The last complete line (without its line end), the offset after it, and the file's length.
fn last_line(path: &Path) -> std::io::Result<(Option<Vec<u8>>, u64, u64)> {
    let (tail, len) = tail(path, 2 * MAX_LINE_BYTES as u64)?;
    let Some(end) = tail.iter().rposition(|&b| b == b'\n') else {
        return Ok((None, len - tail.len() as u64, len));
    };
    let begin = tail[..end].iter().rposition(|&b| b == b'\n');
    let line = tail[begin.map_or(0, |begin| begin + 1)..end].to_vec();
    Ok((Some(line), len - (tail.len() - end - 1) as u64, len))
}

fn last_lines(path: &Path, count: usize) -> std::io::Result<Vec<String>> {
    let (mut bytes, len) = tail(path, 1 << 20)?;
    if len > bytes.len() as u64 {
        // The first line that was read is incomplete.
        let first = bytes
            .iter()
            .position(|&b| b == b'\n')
            .map_or(bytes.len(), |at| at + 1);
        bytes.drain(..first);
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(count);
    Ok(lines[skipped..]
        .iter()
        .map(|line| (*line).to_owned())
        .collect())
}

/// The last bytes of a file, at most `most`, and its length; empty if the file doesn't exist.
fn tail(path: &Path, most: u64) -> std::io::Result<(Vec<u8>, u64)> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(error),
    };
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes, len))
}

/// The offset at which the file ends with `before`, if the rest may be the remains of `line` after
/// a power cut: some of its bytes, and zeros.
fn torn_at(path: &Path, before: Head, line: &str) -> std::io::Result<Option<u64>> {
    let (bytes, len) = tail(path, 3 * MAX_LINE_BYTES as u64)?;
    let first = len - bytes.len() as u64;
    let ends = bytes.iter().enumerate().filter(|&(_, &b)| b == b'\n');
    let mut starts: Vec<usize> = ends.map(|(at, _)| at + 1).collect();
    if first == 0 {
        starts.insert(0, 0);
    }
    // The line's own end may be present.
    for (k, &start) in starts.iter().enumerate().rev().take(2) {
        let written = line.bytes().chain([b'\n']);
        let rest = &bytes[start..];
        let is_left = rest.len() <= line.len() + 1
            && rest.iter().zip(written).all(|(&b, was)| b == was || b == 0);
        let ended = match k.checked_sub(1) {
            Some(previous) => parse(&bytes[starts[previous]..start - 1]).map(|(_, here)| here),
            None if start == 0 => Ok(Head::default()),
            None => continue,
        };
        if is_left && ended == Ok(before) {
            return Ok(Some(first + start as u64));
        }
    }
    Ok(None)
}

/// The head of a directory's log; the default if it doesn't end with a record.
pub(crate) fn last_written(state: &Path) -> std::io::Result<Head> {
    let (line, ..) = last_line(&state.join(FILE))?;
    let head = line.map(|line| parse(&line).map(|(_, here)| here));
    Ok(head.and_then(Result::ok).unwrap_or_default())
}

/// Makes the names in a directory survive a power cut.
pub(crate) fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;

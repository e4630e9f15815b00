//! A record: its line, and the hash that continues the line before it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::limits::MAX_DETAILS_BYTES;
use crate::model::{Role, TokenDigest, hex};

/// The actor of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// An operator's process at the other end of a connection, as the kernel reports it.
    Admin {
        /// User id.
        uid: u32,
        /// Process id.
        pid: i32,
    },
    /// The bearer of an operators' credential.
    Operator {
        /// The credential.
        name: String,
        /// The token, which may have ended since it was checked.
        token: TokenDigest,
    },
    /// The bearer of a tenant's token.
    Credential {
        /// The tenant.
        tenant: String,
        /// Its credential.
        name: String,
        /// The token, which may have ended since it was checked.
        token: TokenDigest,
        /// The credential's role then.
        role: Role,
    },
    /// The daemon itself.
    Daemon,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Admin { uid, pid } => write!(f, "uid {uid} pid {pid}"),
            Actor::Operator { name, .. } => write!(f, "operator credential {name}"),
            Actor::Credential { tenant, name, .. } => {
                write!(f, "tenant {tenant} credential {name}")
            }
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
    TenantRemove,
    CeilingChange,
    ApprovalRequest,
    ApprovalGrant,
    ApprovalDeny,
    ApprovalWithdraw,
    ApprovalExpire,
    CredentialAdd,
    CredentialRotate,
    CredentialChange,
    CredentialRevoke,
    Guesses,
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
    Apply,
}

impl Event {
    /// The name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Event::TenantAdd => "tenant-add",
            Event::TenantMove => "tenant-move",
            Event::TenantRemove => "tenant-remove",
            Event::CeilingChange => "ceiling-change",
            Event::ApprovalRequest => "approval-request",
            Event::ApprovalGrant => "approval-grant",
            Event::ApprovalDeny => "approval-deny",
            Event::ApprovalWithdraw => "approval-withdraw",
            Event::ApprovalExpire => "approval-expire",
            Event::CredentialAdd => "credential-add",
            Event::CredentialRotate => "credential-rotate",
            Event::CredentialChange => "credential-change",
            Event::CredentialRevoke => "credential-revoke",
            Event::Guesses => "guesses",
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
            Event::Apply => "apply",
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

/// The text isn't a head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} isn't the head of an audit log: a number, a colon and 64 hex digits, as `audit head` prints it"
)]
pub struct NotHead {
    /// The text.
    pub text: String,
}

impl std::str::FromStr for Head {
    type Err = NotHead;

    fn from_str(text: &str) -> Result<Head, NotHead> {
        let parse = || {
            let (seq, hash) = text.split_once(':')?;
            Some(Head {
                seq: seq.parse().ok()?,
                hash: unhex(hash)?,
            })
        };
        parse().ok_or_else(|| NotHead {
            text: text.to_owned(),
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
pub(super) const SEAL: &str = ",\"hash\":\"";

/// The line after `head`, without its line end, and the new head.
pub(super) fn line(head: &Head, now: SystemTime, note: &Note) -> (String, Head) {
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

/// The lines after `head`, one per note, and the new head.
pub(crate) fn lines(head: &Head, now: SystemTime, notes: &[Note]) -> (Vec<String>, Head) {
    let mut head = *head;
    let next = |note| {
        let (line, next) = line(&head, now, note);
        head = next;
        line
    };
    let lines = notes.iter().map(next).collect();
    (lines, head)
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

/// The reason why a line isn't a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each message defines its fields")]
pub(crate) enum RecordError {
    #[error("it isn't UTF-8")]
    NotUtf8,
    #[error("it ends without a hash")]
    NoHash,
    #[error("its hash isn't that of its bytes")]
    OtherHash,
    #[error("it isn't a record: {error}")]
    NotRecord { error: String },
    #[error("its `{field}` isn't a hash")]
    NotHash { field: &'static str },
    #[error("its number is 0")]
    NumberZero,
}

/// Parses a line: the head before it, and its own.
pub(super) fn parse(line: &[u8]) -> Result<(Head, Head), RecordError> {
    let text = std::str::from_utf8(line).map_err(|_| RecordError::NotUtf8)?;
    let (sealed, _) = text.rsplit_once(SEAL).ok_or(RecordError::NoHash)?;
    let found: [u8; 32] = Sha256::digest(sealed.as_bytes()).into();
    if text[sealed.len()..] != format!("{SEAL}{}\"}}", hex(&found)) {
        return Err(RecordError::OtherHash);
    }
    let record: Read1 = serde_json::from_str(text).map_err(|error| RecordError::NotRecord {
        error: error.to_string(),
    })?;
    let hash_of = |field, text| unhex(text).ok_or(RecordError::NotHash { field });
    let before = Head {
        hash: hash_of("prev", &record.prev)?,
        seq: record.seq.checked_sub(1).ok_or(RecordError::NumberZero)?,
    };
    let here = Head {
        seq: record.seq,
        hash: hash_of("hash", &record.hash)?,
    };
    Ok((before, here))
}

/// The lines of one transaction: the head before the first, and after the last.
pub(crate) struct Block {
    pub(crate) before: Head,
    pub(crate) here: Head,
}

/// Parses a transaction's lines.
pub(crate) fn block(lines: &str) -> Result<Block, RecordError> {
    let first = lines.lines().next().unwrap_or_default();
    let last = lines.lines().next_back().unwrap_or_default();
    Ok(Block {
        before: parse(first.as_bytes())?.0,
        here: parse(last.as_bytes())?.1,
    })
}

/// The head of a log with these newest lines.
pub(crate) fn head_of(lines: Option<&str>) -> Result<Head, RecordError> {
    match lines {
        Some(lines) => block(lines).map(|block| block.here),
        None => Ok(Head::default()),
    }
}

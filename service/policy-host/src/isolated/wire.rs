//! The bytes between the daemon and a policy process.
//!
//! ```text
//!   order:   kind 1 | hook 1 | count 2 | instance 4 | successor 4 | version 4 | ticket 8 | unix_ms 8 | offset 8 | len 4 | zero 4
//!            | taken 8 | fuel 8                                                                                       64 bytes
//!   its part of the daemon's heap:   count x (method 4 | view_off 4 | view_len 4 | zero 4) | views, each 8-aligned
//!
//!   answer:  kind 1 | zero 3 | len 4 | ticket 8 | fuel 8 | offset 8 | log_at 4 | log_lines 4 | log_dropped 8 | metrics 4
//!            | zero                                                                                                   64 bytes
//!   its part of the process's heap, `len` bytes:
//!     done, of evaluations   count x entry, as a guest leaves it (32 bytes), with addresses from the part's start | their bytes
//!     failed                 the reason, UTF-8
//!     then the log:          log_lines x (level 4 | len 4 | text)
//!     and, at the end:       metrics x (kind 4 | index 2 | bucket 2 | value 8), changes since the instance's last answer
//! ```
//!
//! Little-endian, like everything else. The process trusts the daemon's side. The daemon copies out
//! the process's side and checks it here. Verdicts keep the guests' own form, so one reader checks
//! both.
//!
//! In all orders but a hand-over, `monotonic_us` is in the place of `successor` and `version`.
//!
//! `fuel` is the budget of each call's evaluation; 0 means the instance's own. `taken` is the first
//! ticket whose answer the daemon hasn't copied out: the parts of all earlier ones are free.
//!
//! Set-up travels over a socket: a length, a header in JSON of that length, then the parts that the
//! header announces.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use tollgate_shm_abi::Misbehaved;
use tollgate_shm_abi::descriptor::Entry;

use crate::batch::ENTRY_BYTES;
use crate::text::text;
use crate::{
    Effects, Fault, FieldChange, Hook, LogLevel, LogLine, MetadataChange, MetricChange, PolicyTime,
    Value, Verdict, limits,
};

/// An instance's place in a policy process. The daemon numbers them, and never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceId(pub(super) u32);

/// The daemon's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Evaluate `count` calls; their views are in the daemon's heap at `offset`.
    Evaluate {
        hook: Hook,
        count: u16,
        offset: u64,
        len: u32,
    },
    Tick,
    /// Save the instance's state and restore it in `successor`; it has the format `version`.
    HandOver {
        successor: InstanceId,
        version: u32,
    },
    /// The instance is given up; there is no answer.
    Leave,
}

/// One entry of the ring from the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderEntry {
    pub(super) instance: InstanceId,
    pub(super) ticket: u64,
    pub(super) time: PolicyTime,
    pub(super) taken: u64,
    pub(super) fuel_per_call: u64,
    pub(super) task: Task,
}

const EVALUATE: u8 = 1;
const TICK: u8 = 2;
const HAND_OVER: u8 = 3;
const LEAVE: u8 = 4;

impl OrderEntry {
    pub(super) fn to_entry(self) -> Entry {
        let mut entry = [0; 64];
        let mut hook = 0;
        entry[8..16].copy_from_slice(&self.time.monotonic_us.to_le_bytes());
        entry[0] = match self.task {
            Task::Evaluate {
                hook: at,
                count,
                offset,
                len,
            } => {
                hook = u8::from(at == Hook::Reply);
                entry[2..4].copy_from_slice(&count.to_le_bytes());
                entry[32..40].copy_from_slice(&offset.to_le_bytes());
                entry[40..44].copy_from_slice(&len.to_le_bytes());
                EVALUATE
            }
            Task::Tick => TICK,
            Task::HandOver { successor, version } => {
                entry[8..12].copy_from_slice(&successor.0.to_le_bytes());
                entry[12..16].copy_from_slice(&version.to_le_bytes());
                HAND_OVER
            }
            Task::Leave => LEAVE,
        };
        entry[1] = hook;
        entry[4..8].copy_from_slice(&self.instance.0.to_le_bytes());
        entry[16..24].copy_from_slice(&self.ticket.to_le_bytes());
        entry[24..32].copy_from_slice(&self.time.unix_ms.to_le_bytes());
        entry[48..56].copy_from_slice(&self.taken.to_le_bytes());
        entry[56..64].copy_from_slice(&self.fuel_per_call.to_le_bytes());
        entry
    }

    /// `None`: unknown kind of order.
    pub(super) fn of_entry(entry: &Entry) -> Option<OrderEntry> {
        let task = match entry[0] {
            EVALUATE => Task::Evaluate {
                hook: match entry[1] {
                    0 => Hook::Request,
                    _ => Hook::Reply,
                },
                count: u16::from_le_bytes([entry[2], entry[3]]),
                offset: word64(entry, 32),
                len: word32(entry, 40),
            },
            TICK => Task::Tick,
            HAND_OVER => Task::HandOver {
                successor: InstanceId(word32(entry, 8)),
                version: word32(entry, 12),
            },
            LEAVE => Task::Leave,
            _ => return None,
        };
        Some(OrderEntry {
            instance: InstanceId(word32(entry, 4)),
            ticket: word64(entry, 16),
            time: PolicyTime {
                unix_ms: word64(entry, 24),
                monotonic_us: match task {
                    Task::HandOver { .. } => 0,
                    Task::Evaluate { .. } | Task::Tick | Task::Leave => word64(entry, 8),
                },
            },
            taken: word64(entry, 48),
            fuel_per_call: word64(entry, 56),
            task,
        })
    }
}

/// An order's outcome, as the first byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Result8 {
    Done,
    /// The instance failed (of a hand-over the one that saves) and is dead.
    Failed,
    /// Of a hand-over the successor failed, and is dead.
    SuccessorFailed,
}

/// The invalid part of an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    #[error("an answer has the kind {0}; 1 to 3 exist")]
    Kind(u8),
    #[error(
        "an answer has {len} bytes, above the limit of {}",
        limits::ISOLATED_ANSWER_BYTES
    )]
    TooLong { len: u32 },
    #[error("an answer of {len} bytes has {lines} log lines at {at}")]
    Log { len: u32, lines: u32, at: u32 },
    #[error("an answer has {count} changes of metrics in {room} bytes")]
    Metrics { count: u32, room: u64 },
    #[error("a change of a metric has the kind {0}; 1 to 4 exist")]
    MetricKind(u32),
    #[error("it answered order {ticket}, and none is under way")]
    Unasked { ticket: u64 },
    #[error("it answered order {ticket} when it was order {oldest}'s turn")]
    OutOfTurn { ticket: u64, oldest: u64 },
    #[error("it blamed a successor, but the order has none")]
    NoSuccessor,
    #[error("its answer lacks verdicts")]
    NoVerdicts,
    /// The process stops invalid verdicts of guests, so this one is its own.
    #[error(transparent)]
    Verdict(#[from] Fault),
    #[error(transparent)]
    Memory(#[from] Misbehaved),
}

/// One entry of the ring from the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerEntry {
    pub(super) result: Result8,
    pub(super) ticket: u64,
    pub(super) fuel: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) log_at: u32,
    pub(super) log_lines: u32,
    pub(super) log_dropped: u64,
    pub(super) metrics: u32,
}

impl AnswerEntry {
    pub(super) fn to_entry(self) -> Entry {
        let mut entry = [0; 64];
        entry[0] = match self.result {
            Result8::Done => 1,
            Result8::Failed => 2,
            Result8::SuccessorFailed => 3,
        };
        entry[4..8].copy_from_slice(&self.len.to_le_bytes());
        entry[8..16].copy_from_slice(&self.ticket.to_le_bytes());
        entry[16..24].copy_from_slice(&self.fuel.to_le_bytes());
        entry[24..32].copy_from_slice(&self.offset.to_le_bytes());
        entry[32..36].copy_from_slice(&self.log_at.to_le_bytes());
        entry[36..40].copy_from_slice(&self.log_lines.to_le_bytes());
        entry[40..48].copy_from_slice(&self.log_dropped.to_le_bytes());
        entry[48..52].copy_from_slice(&self.metrics.to_le_bytes());
        entry
    }

    /// The process's claim.
    pub(super) fn of_entry(entry: &Entry) -> Result<AnswerEntry, AnswerError> {
        let result = match entry[0] {
            1 => Result8::Done,
            2 => Result8::Failed,
            3 => Result8::SuccessorFailed,
            other => return Err(AnswerError::Kind(other)),
        };
        let answer = AnswerEntry {
            result,
            len: word32(entry, 4),
            ticket: word64(entry, 8),
            fuel: word64(entry, 16),
            offset: word64(entry, 24),
            log_at: word32(entry, 32),
            log_lines: word32(entry, 36),
            log_dropped: word64(entry, 40),
            metrics: word32(entry, 48),
        };
        let len = answer.len;
        if len as usize > limits::ISOLATED_ANSWER_BYTES {
            return Err(AnswerError::TooLong { len });
        }
        let (at, lines) = (answer.log_at, answer.log_lines);
        if at > len || lines as usize > limits::LOG_LINES {
            return Err(AnswerError::Log { len, lines, at });
        }
        let (room, count) = (u64::from(len - at), answer.metrics);
        if u64::from(count) * METRIC_BYTES as u64 > room {
            return Err(AnswerError::Metrics { count, room });
        }
        Ok(answer)
    }
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from(word32(bytes, at)) | u64::from(word32(bytes, at + 4)) << 32
}

// ---- the views of an evaluation ----

/// Bytes before the views, per call.
pub(super) const VIEW_HEAD_BYTES: usize = 16;

/// Where the views of a batch begin.
pub(super) const fn views_at(room: usize) -> usize {
    room * VIEW_HEAD_BYTES
}

/// Records a view.
pub(super) fn put_view(block: &mut [u8], index: usize, method: u32, at: usize, len: usize) {
    let head = &mut block[index * VIEW_HEAD_BYTES..][..VIEW_HEAD_BYTES];
    for (bytes, word) in head
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .zip([method, at as u32, len as u32, 0])
    {
        *bytes = word.to_le_bytes();
    }
}

/// A view and its method; `None` if the batch has no such call.
pub(super) fn view(block: &[u8], index: usize) -> Option<(u32, &[u8])> {
    let head = block
        .get(index * VIEW_HEAD_BYTES..)?
        .get(..VIEW_HEAD_BYTES)?;
    let (at, len) = (word32(head, 4) as usize, word32(head, 8) as usize);
    Some((word32(head, 0), block.get(at..)?.get(..len)?))
}

// ---- verdicts and logs ----

/// An answer's part, under construction.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    /// Leaves room for the entries of `count` verdicts.
    pub(super) fn new(count: usize) -> Writer {
        Writer(vec![0; count * ENTRY_BYTES])
    }

    /// Adds bytes; returns their offset.
    pub(super) fn put(&mut self, bytes: &[u8]) -> u32 {
        let at = self.0.len() as u32;
        self.0.extend_from_slice(bytes);
        at
    }

    /// Records the verdict about one call.
    pub(super) fn verdict(&mut self, index: usize, verdict: &Verdict) {
        let words = match verdict {
            Verdict::Allow => [1, 0, 0, 0],
            Verdict::Deny { code, message } => {
                let at = self.put(message.as_bytes());
                [2, *code, at, message.len() as u32]
            }
            Verdict::Effects(effects) => {
                let list = self.effects(effects);
                [3, 0, self.put(&list), list.len() as u32]
            }
        };
        let entry = &mut self.0[index * ENTRY_BYTES + 12..][..16];
        for (bytes, word) in entry.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
    }

    /// The effect list in a guest's format.
    fn effects(&mut self, effects: &Effects) -> Vec<u8> {
        let mut list = Vec::new();
        for FieldChange { field, value } in &effects.fields {
            match value {
                Value::Clear => record(&mut list, 1, *field, 0),
                Value::Bits(bits) => record(&mut list, 2, *field, *bits),
                Value::Bytes(bytes) => record(&mut list, 3, *field, self.place_of(bytes)),
            }
        }
        for MetadataChange { key, value } in &effects.metadata {
            match value {
                Some(value) => record(&mut list, 4, *key, self.place_of(value)),
                None => record(&mut list, 5, *key, 0),
            }
        }
        if effects.delay_us > 0 {
            record(&mut list, 6, 0, effects.delay_us.into());
        }
        if let Some(priority) = effects.priority {
            record(&mut list, 7, 0, priority.into());
        }
        if let Some(route) = &effects.route {
            record(&mut list, 8, 0, self.place_of(route.as_bytes()));
        }
        list
    }

    fn place_of(&mut self, bytes: &[u8]) -> u64 {
        u64::from(self.put(bytes)) | (bytes.len() as u64) << 32
    }

    /// Adds the log.
    pub(super) fn log(&mut self, lines: &[LogLine]) {
        for line in lines {
            let level: u32 = match line.level {
                LogLevel::Error => 1,
                LogLevel::Warning => 2,
                LogLevel::Info => 3,
                LogLevel::Debug => 4,
            };
            self.put(&level.to_le_bytes());
            self.put(&(line.text.len() as u32).to_le_bytes());
            self.put(line.text.as_bytes());
        }
    }
}

/// Bytes of one change of a metric.
pub(super) const METRIC_BYTES: usize = 16;

impl Writer {
    /// Adds the changes of metrics.
    pub(super) fn metrics(&mut self, changes: &[MetricChange]) {
        for change in changes {
            let (kind, index, bucket, value) = match *change {
                MetricChange::Counter { index, by } => (1u32, index, 0, by),
                MetricChange::Gauge { index, to } => (2, index, 0, to.cast_unsigned()),
                MetricChange::Bucket { index, bucket, by } => (3, index, bucket, by),
                MetricChange::Sum { index, by } => (4, index, 0, by.cast_unsigned()),
            };
            self.put(&kind.to_le_bytes());
            self.put(&index.to_le_bytes());
            self.put(&bucket.to_le_bytes());
            self.put(&value.to_le_bytes());
        }
    }
}

/// The changes of metrics at the end of an answer.
pub(super) fn read_metrics(bytes: &[u8]) -> Result<Vec<MetricChange>, AnswerError> {
    let records = bytes.as_chunks::<METRIC_BYTES>().0.iter();
    let changes = records.map(|record| {
        let index = u16::from_le_bytes([record[4], record[5]]);
        let bucket = u16::from_le_bytes([record[6], record[7]]);
        let value = word64(record, 8);
        Ok(match word32(record, 0) {
            1 => MetricChange::Counter { index, by: value },
            2 => MetricChange::Gauge {
                index,
                to: value.cast_signed(),
            },
            3 => MetricChange::Bucket {
                index,
                bucket,
                by: value,
            },
            4 => MetricChange::Sum {
                index,
                by: value.cast_signed(),
            },
            other => return Err(AnswerError::MetricKind(other)),
        })
    });
    changes.collect()
}

fn record(list: &mut Vec<u8>, kind: u32, field: u32, value: u64) {
    list.extend_from_slice(&kind.to_le_bytes());
    list.extend_from_slice(&field.to_le_bytes());
    list.extend_from_slice(&value.to_le_bytes());
}

/// The log lines at the end of an answer, as far as they are complete.
pub(super) fn read_log(mut log: &[u8], lines: u32) -> Vec<LogLine> {
    let mut read = Vec::new();
    for _ in 0..lines {
        let Some((head, rest)) = log.split_at_checked(8) else {
            break;
        };
        let Some((line, rest)) = rest.split_at_checked(word32(head, 4) as usize) else {
            break;
        };
        read.push(LogLine {
            level: LogLevel::of(word32(head, 0)),
            text: text(line, limits::LOG_LINE_BYTES),
        });
        log = rest;
    }
    read
}

// ---- set-up ----

/// A request to create an instance of a policy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InstanceRequest {
    #[serde(rename = "seat")]
    pub(super) instance: InstanceId,
    pub(super) code_bytes: usize,
    pub(super) manifest_bytes: usize,
    /// None: it has no configuration.
    pub(super) config_bytes: Option<usize>,
    /// Whether each call gets a new instance.
    pub(super) fresh: bool,
    pub(super) granted: Vec<String>,
    /// Instances with the same name share their state.
    pub(super) state: String,
    pub(super) memory_bytes: usize,
    pub(super) table_elements: usize,
    pub(super) fuel_per_call: u64,
    pub(super) fuel_for_setup: u64,
    pub(super) fuel_for_handover: u64,
}

/// The result.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum InstanceReply {
    /// The process is confined, and waits for policies.
    Ready,
    #[serde(rename = "Seated")]
    Created(InstanceId),
    Refused(String),
}

/// Bytes of one header.
const HEADER_BYTES: usize = 16 << 10;

/// Writes a header and its parts.
pub(super) fn send<T: Serialize>(
    to: &mut impl Write,
    header: &T,
    parts: &[&[u8]],
) -> io::Result<()> {
    let header = serde_json::to_vec(header)?;
    to.write_all(&(header.len() as u32).to_le_bytes())?;
    to.write_all(&header)?;
    parts.iter().try_for_each(|part| to.write_all(part))
}

/// Reads a header.
pub(super) fn receive<T: for<'de> Deserialize<'de>>(from: &mut impl Read) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > HEADER_BYTES {
        let text = format!("a header of {len} bytes, above the limit of {HEADER_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let header = receive_part(from, len)?;
    serde_json::from_slice(&header).map_err(io::Error::from)
}

/// Reads a part.
pub(super) fn receive_part(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut part = vec![0; len];
    from.read_exact(&mut part)?;
    Ok(part)
}

//! What policies log.

use crate::limits;
use crate::text::text;

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// 1, and every unknown level.
    Error,
    /// 2.
    Warning,
    /// 3.
    Info,
    /// 4.
    Debug,
}

impl LogLevel {
    /// From the guest's number.
    pub(crate) fn of(level: u32) -> LogLevel {
        match level {
            2 => LogLevel::Warning,
            3 => LogLevel::Info,
            4 => LogLevel::Debug,
            _ => LogLevel::Error,
        }
    }
}

/// One line of a policy's log. The text is the tenant's: quote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The severity, according to the policy.
    pub level: LogLevel,
    /// At most [`limits::LOG_LINE_BYTES`], with invalid UTF-8 replaced.
    pub text: String,
}

/// An instance's lines since they were taken last: the first [`limits::LOG_LINES`] of them.
#[derive(Debug, Default)]
pub(crate) struct Log {
    lines: Vec<LogLine>,
    dropped: u64,
}

impl Log {
    /// Appends a line, if there is room.
    pub(crate) fn push(&mut self, level: LogLevel, line: &[u8]) {
        if self.lines.len() == limits::LOG_LINES {
            self.dropped += 1;
            return;
        }
        let text = text(line, limits::LOG_LINE_BYTES);
        self.lines.push(LogLine { level, text });
    }

    /// The last line.
    pub(crate) fn last(&self) -> Option<&LogLine> {
        self.lines.last()
    }

    /// Takes the lines, and the number of dropped ones.
    pub(crate) fn take(&mut self) -> (Vec<LogLine>, u64) {
        let Log { lines, dropped } = std::mem::take(self);
        (lines, dropped)
    }

    /// Puts another instance's earlier lines in front.
    pub(crate) fn inherit(&mut self, (mut earlier, dropped): (Vec<LogLine>, u64)) {
        earlier.append(&mut self.lines);
        let surplus = earlier.len().saturating_sub(limits::LOG_LINES);
        earlier.truncate(limits::LOG_LINES);
        self.lines = earlier;
        self.dropped += dropped + surplus as u64;
    }
}

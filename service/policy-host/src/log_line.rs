//! What policies log.

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
    /// At most [`LOG_LINE_BYTES`](crate::limits::LOG_LINE_BYTES), with invalid UTF-8 replaced.
    pub text: String,
}

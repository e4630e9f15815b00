//! Log lines of a version's past instances.

use tollgate_policy_host::LogLine;
use tollgate_policy_host::limits::LOG_LINES;

/// Log lines of past instances.
#[derive(Default)]
pub(super) struct Log {
    pub(super) lines: Vec<String>,
    pub(super) dropped: u64,
}

impl Log {
    /// The count may come from a process, so it isn't trusted.
    #[inline]
    pub(super) fn take(&mut self, lines: Vec<LogLine>, dropped: u64) {
        self.dropped = self.dropped.saturating_add(dropped);
        for line in lines {
            if self.lines.len() < LOG_LINES {
                self.lines.push(format!("{:?}: {}", line.level, line.text));
            } else {
                self.dropped += 1;
            }
        }
    }
}

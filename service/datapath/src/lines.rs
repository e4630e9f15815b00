//! Log lines that tenants and peers cause. Each kind of line has a limit per culprit,
//! [`LINES_PER_SECOND`]. The next line reports how many were left out. No culprit can fill the log
//! or suppress another's lines.

use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::{LINES_PER_SECOND, MAX_LINE_CULPRITS};

/// The period of a limit.
const SECOND: Duration = Duration::from_secs(1);

/// Logs a line unless its culprit has reached the limit of its kind: `log_limited!(warn, "kind",
/// culprit, "text {}", arguments)`.
#[macro_export]
macro_rules! log_limited {
    ($level:ident, $kind:literal, $culprit:expr, $($text:tt)+) => {
        if let Some(left_out) = $crate::lines::due($kind, $culprit) {
            tracing::$level!("{}{left_out}", format_args!($($text)+));
        }
    };
}

/// The number of lines left out before a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut(u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " (and {n} more like it)"),
        }
    }
}

/// Whether a line of this kind about this culprit may be logged.
pub fn due(kind: &'static str, culprit: &str) -> Option<LeftOut> {
    static LINES: LazyLock<Mutex<Lines>> = LazyLock::new(Mutex::default);
    // Counts that a panic left behind are still usable.
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.due(kind, culprit, Instant::now())
}

/// The counts of one kind and culprit.
struct Pace {
    /// When the current second began.
    since: Instant,
    /// Lines in that second.
    written: u32,
    left_out: u64,
}

#[derive(Default)]
struct Lines {
    of: HashMap<(&'static str, String), Pace>,
}

impl Lines {
    fn due(&mut self, kind: &'static str, culprit: &str, now: Instant) -> Option<LeftOut> {
        let mut key = (kind, culprit.to_owned());
        if !self.of.contains_key(&key) && self.of.len() >= MAX_LINE_CULPRITS {
            self.of.retain(|_, pace| now < pace.since + SECOND);
            if self.of.len() >= MAX_LINE_CULPRITS {
                // Culprits beyond the limit share one entry.
                key.1.clear();
            }
        }
        let pace = self.of.entry(key).or_insert(Pace {
            since: now,
            written: 0,
            left_out: 0,
        });
        if now >= pace.since + SECOND {
            (pace.since, pace.written) = (now, 0);
        }
        if pace.written >= LINES_PER_SECOND {
            pace.left_out += 1;
            return None;
        }
        pace.written += 1;
        Some(LeftOut(std::mem::take(&mut pace.left_out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_culprit_has_a_few_lines_of_a_kind_per_second_and_the_next_counts_the_rest() {
        let mut lines = Lines::default();
        let begin = Instant::now();
        let mut written = |kind, culprit, ms| {
            let now = begin + Duration::from_millis(ms);
            (0..1_000)
                .filter_map(|_| lines.due(kind, culprit, now))
                .collect::<Vec<_>>()
        };
        let few = vec![LeftOut(0); LINES_PER_SECOND as usize];
        let rest = 1_000 - u64::from(LINES_PER_SECOND);
        assert_eq!(written("bind", "mallory", 0), few);
        assert_eq!(written("bind", "acme", 0), few, "acme's are acme's");
        assert_eq!(written("dial", "mallory", 0), few, "another kind");
        assert_eq!(written("bind", "mallory", 999), []);
        let again = written("bind", "mallory", 1_000);
        assert_eq!(again.len(), few.len());
        assert_eq!(again[..2], [LeftOut(rest + 1_000), LeftOut(0)]);
        assert_eq!(
            again[0].to_string(),
            format!(" (and {} more like it)", rest + 1_000)
        );
        assert_eq!(LeftOut(0).to_string(), "");
    }

    #[test]
    fn culprits_without_end_share_a_place() {
        let mut lines = Lines::default();
        let now = Instant::now();
        let due =
            (0..10 * MAX_LINE_CULPRITS).filter_map(|k| lines.due("bind", &k.to_string(), now));
        assert!(due.count() <= MAX_LINE_CULPRITS + LINES_PER_SECOND as usize);
        assert!(
            lines.of.len() <= MAX_LINE_CULPRITS + 1,
            "{}",
            lines.of.len()
        );
        assert!(lines.due("bind", "late", now + SECOND).is_some());
        assert_eq!(lines.of.len(), 1);
    }
}

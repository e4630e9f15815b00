//! Repeated events, recorded rarely: no culprit can fill the audit log.
//!
//! The first event of a kind and culprit is due at once. Later events within [`REPEAT_WINDOW`] are
//! counted, and the count is due at the end of the window. At most [`REPEATS_PER_WINDOW`] records
//! are due per window over all culprits; further counts wait. The time is an argument.

use std::collections::HashMap;
use std::time::Instant;

use crate::limits::{REPEAT_KEYS, REPEAT_WINDOW, REPEATS_PER_WINDOW};

/// Counts of events that aren't recorded yet.
#[derive(Debug)]
pub struct Repeats<D> {
    counted: HashMap<String, Counted<D>>,
    window: Option<Instant>,
    spent: u32,
    /// Events of culprits without an entry.
    pub others: u64,
}

#[derive(Debug)]
struct Counted<D> {
    since: Instant,
    /// Events since the last record, and the newest of them.
    waiting: u64,
    newest: Option<D>,
}

/// A record that is due: the newest event, and the number of events since the last record.
#[derive(Debug, PartialEq, Eq)]
pub struct Due<D> {
    /// Kind and culprit.
    pub key: String,
    /// The newest event.
    pub event: D,
    /// The number of events that it stands for.
    pub times: u64,
}

impl<D> Default for Repeats<D> {
    fn default() -> Self {
        Repeats {
            counted: HashMap::new(),
            window: None,
            spent: 0,
            others: 0,
        }
    }
}

impl<D> Repeats<D> {
    /// Counts an event; returns it if it is to be recorded now.
    pub fn happened(&mut self, now: Instant, key: &str, event: D) -> Option<Due<D>> {
        if !self.counted.contains_key(key) && self.counted.len() >= REPEAT_KEYS {
            self.counted
                .retain(|_, counted| counted.waiting > 0 || now < counted.since + REPEAT_WINDOW);
            if self.counted.len() >= REPEAT_KEYS {
                self.others += 1;
                return None;
            }
        }
        let known = self.counted.contains_key(key);
        let counted = self.counted.entry(key.to_owned()).or_insert(Counted {
            since: now,
            waiting: 0,
            newest: None,
        });
        counted.waiting += 1;
        counted.newest = Some(event);
        if known && now < counted.since + REPEAT_WINDOW {
            return None;
        }
        let key = key.to_owned();
        self.take(now, &key)
    }

    /// A count whose window is over; call again until there is none.
    pub fn due(&mut self, now: Instant) -> Option<Due<D>> {
        let over =
            |counted: &Counted<D>| counted.waiting > 0 && now >= counted.since + REPEAT_WINDOW;
        let key = self
            .counted
            .iter()
            .find(|(_, counted)| over(counted))
            .map(|(key, _)| key.clone())?;
        self.take(now, &key)
    }

    fn take(&mut self, now: Instant, key: &str) -> Option<Due<D>> {
        if self.window.is_none_or(|began| now >= began + REPEAT_WINDOW) {
            (self.window, self.spent) = (Some(now), 0);
        }
        if self.spent >= REPEATS_PER_WINDOW {
            return None;
        }
        let counted = self.counted.get_mut(key)?;
        let event = counted.newest.take()?;
        let times = std::mem::take(&mut counted.waiting);
        counted.since = now;
        self.spent += 1;
        Some(Due {
            key: key.to_owned(),
            event,
            times,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_is_due_at_once_and_the_rest_as_a_count() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let first = repeats.happened(at(0), "acl", 1);
        assert_eq!(first.map(|due| (due.event, due.times)), Some((1, 1)));
        for n in 2..=1_000 {
            assert_eq!(repeats.happened(at(n), "acl", n), None);
        }
        assert_eq!(repeats.due(at(9_999)), None);
        let count = repeats.due(at(10_000));
        assert_eq!(count.map(|due| (due.event, due.times)), Some((1_000, 999)));
        assert_eq!(repeats.due(at(60_000)), None, "nothing more has happened");
        let later = repeats.happened(at(60_000), "acl", 0);
        assert_eq!(later.map(|due| due.times), Some(1));
    }

    #[test]
    fn all_culprits_together_are_bounded_too() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        let all = REPEAT_KEYS as u64 + 500;
        let mut recorded = 0;
        for n in 0..all {
            let due = repeats.happened(start, &format!("p{n}"), ());
            recorded += due.map_or(0, |due| due.times);
        }
        assert_eq!(recorded, u64::from(REPEATS_PER_WINDOW));
        assert_eq!(repeats.others, 500, "beyond {REPEAT_KEYS} culprits");
        assert_eq!(repeats.counted.len(), REPEAT_KEYS);
        let mut now = start;
        for _ in 0..all {
            now += REPEAT_WINDOW;
            let before = recorded;
            while let Some(due) = repeats.due(now) {
                recorded += due.times;
            }
            assert!(recorded - before <= u64::from(REPEATS_PER_WINDOW));
        }
        assert_eq!(recorded + repeats.others, all, "none is forgotten");
    }
}

//! The events and loads, and the settings of each pair of them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tollgate_benches::figures::Spread;

use crate::recording::{Counts, MS, Mark, Recording};

/// A name, and how the event is shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Only in the full form, because it takes seconds.
    pub(crate) is_long: bool,
}

const fn event(name: &'static str, title: &'static str) -> Event {
    Event {
        name,
        title,
        is_long: false,
    }
}

pub(crate) const SWAP: Event = event(
    "swap",
    "A policy is swapped 1,000 times per second, with 32 KiB of state",
);
pub(crate) const LIMIT: Event = event(
    "limit",
    "A rate limit is attached, raised beyond all calls, and detached",
);
pub(crate) const UPGRADE: Event = event("upgrade", "The daemon of both applications is upgraded");
pub(crate) const UPGRADE_CALLER: Event = event(
    "upgrade-caller",
    "The caller's daemon is upgraded, the server's isn't",
);
pub(crate) const UPGRADE_SERVER: Event = event(
    "upgrade-server",
    "The server's daemon is upgraded, the caller's isn't",
);
pub(crate) const FAILED: Event = event(
    "failed-upgrade",
    "Upgrades that fail: no program, a crash before and after it is given everything, a time-out",
);
pub(crate) const HUNG: Event = Event {
    is_long: true,
    ..event(
        "hung-upgrade",
        "Upgrades that hang once they are given everything",
    )
};
pub(crate) const ROLLING: Event = event(
    "rolling-upgrade",
    "Four hosts, each of which calls the next, are upgraded one after the other",
);
pub(crate) const CRASH: Event = event("crash", "The daemon is killed and started again at once");

/// All events, in the order of the report.
pub(crate) const EVENTS: [&Event; 9] = [
    &SWAP,
    &LIMIT,
    &UPGRADE,
    &UPGRADE_CALLER,
    &UPGRADE_SERVER,
    &FAILED,
    &HUNG,
    &ROLLING,
    &CRASH,
];

/// A load, as a share of the capacity.
#[derive(Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) name: &'static str,
    pub(crate) in_flight: usize,
    /// The share; `None`: calls aren't paced.
    pub(crate) share: Option<f64>,
}

/// The loads of every event.
pub(crate) const STEADY: [Share; 2] = [
    Share {
        name: "128 in flight",
        in_flight: 128,
        share: Some(0.5),
    },
    Share {
        name: "1 in flight",
        in_flight: 1,
        share: Some(0.5),
    },
];

/// As in the paper, where the rate limit applies to an application at full rate.
const FLAT_OUT: Share = Share {
    name: "128 in flight, unpaced",
    in_flight: 128,
    share: None,
};

/// All shares.
pub(crate) const SHARES: [&Share; 3] = [&STEADY[0], &STEADY[1], &FLAT_OUT];

/// Time after an event until its effects on calls are over, in ns.
pub(crate) const AFTERMATH_NS: u64 = 30 * MS;

/// Width of a plot's buckets, in ms.
pub(crate) const BUCKET_MS: u64 = 10;

/// The drawn part of a run, in ms.
const DRAWN_MS: u64 = 4_000;

/// The results of one load and one event: numbers under names. The number of values of each name
/// depends on how often the event happened.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) event: &'static Event,
    pub(crate) share: &'static Share,
    values: BTreeMap<String, Vec<f64>>,
    /// Number of failed calls by their failure.
    pub(crate) failures: BTreeMap<String, u64>,
    /// Number of calls served in each bucket of the first run.
    pub(crate) rates: Vec<u32>,
    pub(crate) marks: Vec<Mark>,
}

impl Sample {
    pub(crate) fn new(event: &'static Event, share: &'static Share) -> Sample {
        Sample {
            event,
            share,
            values: BTreeMap::new(),
            failures: BTreeMap::new(),
            rates: Vec::new(),
            marks: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, key: &str, value: f64) {
        self.values.entry(key.to_owned()).or_default().push(value);
    }

    pub(crate) fn all(&self, key: &str) -> &[f64] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    /// The latest value; 0 if there is none.
    pub(crate) fn last(&self, key: &str) -> f64 {
        self.all(key).last().copied().unwrap_or_default()
    }

    /// Adds the counts of calls.
    pub(crate) fn count(&mut self, counts: Counts, failures: &BTreeMap<String, u64>) {
        for (key, count) in [
            ("calls", counts.calls),
            ("lost", counts.lost),
            ("duplicated", counts.duplicated),
            ("mixed", counts.mixed),
            ("crossed", counts.crossed),
            ("errors", counts.errors),
        ] {
            let sum = self.last(key) + count as f64;
            self.values.insert(key.to_owned(), vec![sum]);
        }
        for (sentence, count) in failures {
            *self.failures.entry(sentence.clone()).or_default() += count;
        }
    }

    /// Keeps the drawn part of a run.
    pub(crate) fn draw(&mut self, recording: &Recording) {
        self.rates = recording.buckets(BUCKET_MS * MS);
        // The last bucket isn't complete.
        self.rates.pop();
        self.rates.truncate((DRAWN_MS / BUCKET_MS) as usize);
        let until_ns = self.rates.len() as u64 * BUCKET_MS * MS;
        let drawn = recording.marks.iter();
        self.marks = drawn
            .filter(|mark| mark.from_ns < until_ns)
            .cloned()
            .collect();
    }

    /// All values of a key.
    pub(crate) fn spread(&self, key: &str) -> Option<Spread> {
        Spread::of(self.all(key).to_vec())
    }

    pub(crate) fn to_json(&self) -> Value {
        let marks = self.marks.iter();
        let marks = marks.map(|mark| json!([mark.from_ns, mark.to_ns, mark.what]));
        json!({
            "event": self.event.name,
            "load": self.share.name,
            "values": self.values,
            "failures": self.failures,
            "rates": self.rates,
            "marks": marks.collect::<Vec<_>>(),
        })
    }

    /// `None` if the event or load doesn't exist any more.
    pub(crate) fn from_json(entry: &Value) -> Option<Sample> {
        let event = EVENTS.into_iter().find(|one| entry["event"] == one.name)?;
        let share = SHARES.into_iter().find(|one| entry["load"] == one.name)?;
        let mut sample = Sample::new(event, share);
        for (key, values) in entry["values"].as_object()? {
            let values = values.as_array()?.iter().filter_map(Value::as_f64);
            sample.values.insert(key.clone(), values.collect());
        }
        for (sentence, count) in entry["failures"].as_object()? {
            sample.failures.insert(sentence.clone(), count.as_u64()?);
        }
        let rates = entry["rates"].as_array()?.iter().filter_map(Value::as_u64);
        sample.rates = rates.map(|rate| rate as u32).collect();
        for mark in entry["marks"].as_array()? {
            sample.marks.push(Mark {
                from_ns: mark[0].as_u64()?,
                to_ns: mark[1].as_u64()?,
                what: mark[2].as_str()?.to_owned(),
            });
        }
        Some(sample)
    }
}

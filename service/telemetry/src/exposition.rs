//! Shared by both exposition formats: names of families, bounds of classic buckets, and the
//! scrape's clock.

use crate::metrics::{Family, Kind};

/// Exponents of the bounds that are written: 2^-20 s, about a microsecond, to 2^6 s.
pub(crate) const EXPONENTS: std::ops::RangeInclusive<i32> = -20..=6;

/// A clock's reading, by both clocks, so that what one has stamped can be told by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Since the epoch.
    pub unix_ns: u64,
    /// By the monotonic clock.
    pub monotonic_ns: u64,
}

impl Now {
    /// When a moment of the monotonic clock was.
    pub fn unix_of(&self, monotonic_ns: u64) -> u64 {
        let ago = self.monotonic_ns.saturating_sub(monotonic_ns);
        self.unix_ns.saturating_sub(ago)
    }
}

/// A family's name, without what a counter's samples end in.
pub(crate) fn name_of(family: &Family) -> String {
    let mut name = family.name.replace('.', "_");
    let unit = match family.unit {
        "s" => "_seconds",
        "By" => "_bytes",
        "1" => "_ratio",
        _ => "",
    };
    if !name.ends_with(unit) {
        name.push_str(unit);
    }
    name
}

/// What its samples are called, if it has this name; but those of a histogram.
pub(crate) fn sample_of(family: &Family, name: &str) -> String {
    let total = match family.kind {
        Kind::Counter => "_total",
        Kind::Gauge | Kind::Histogram => "",
    };
    format!("{name}{total}")
}

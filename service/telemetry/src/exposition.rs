//! Shared by both exposition formats: names of families, bounds of classic buckets, and the
//! scrape's clock.

use crate::metrics::{Family, Kind};

/// Exponents of the written bounds: from 2^-20 s, about a microsecond, to 2^6 s.
pub(crate) const EXPONENTS: std::ops::RangeInclusive<i32> = -20..=6;

/// One moment on both clocks, to convert times between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds since the epoch.
    pub unix_ns: u64,
    /// Nanoseconds of the monotonic clock.
    pub monotonic_ns: u64,
}

impl Now {
    /// Converts a time of the monotonic clock to nanoseconds since the epoch.
    pub fn unix_of(&self, monotonic_ns: u64) -> u64 {
        let ago = self.monotonic_ns.saturating_sub(monotonic_ns);
        self.unix_ns.saturating_sub(ago)
    }
}

/// A family's name, without the suffix of a counter's samples.
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

/// The name of a family's samples, except for histograms.
pub(crate) fn sample_of(family: &Family, name: &str) -> String {
    let total = match family.kind {
        Kind::Counter => "_total",
        Kind::Gauge | Kind::Histogram => "",
    };
    format!("{name}{total}")
}

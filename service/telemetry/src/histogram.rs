//! Durations of calls: an exponential histogram as OpenTelemetry defines it, of scale 3.
//!
//! ```text
//!  bucket i   holds durations in (2^(i/8), 2^((i+1)/8)] seconds, i from -240 to 95
//!  zero       calls with a duration of 0 on the clock: they began and ended in one turn of their runtime
//! ```
//!
//! The scale is fixed. So a double's exponent, a table lookup and a comparison find a bucket;
//! nothing is ever rescaled; and any two histograms can be added. Every eighth bound is a power of
//! two, as [`up_to`](Histogram::up_to) requires.
//!
//! Absent on purpose: allocation after the first, and floating-point sums, which depend on their
//! order.

use crate::limits::{BUCKETS_PER_OCTAVE, OCTAVES};
use crate::w3c::{SpanId, TraceId};

/// Number of buckets of a histogram.
const BUCKETS: usize = OCTAVES * BUCKETS_PER_OCTAVE;

/// The exponent of the first bucket's lower bound.
const LEAST_EXPONENT: i32 = -30;

/// OpenTelemetry's scale: the logarithm of the number of buckets per octave.
pub const SCALE: i32 = 3;

/// The first bucket's index in OpenTelemetry's numbering.
pub const FIRST_INDEX: i32 = LEAST_EXPONENT * BUCKETS_PER_OCTAVE as i32;

/// 2^(k/8) for k from 1 to 7, as a double's 52 fraction bits, rounded down: a larger mantissa is
/// beyond the bound.
const BOUNDS: [u64; BUCKETS_PER_OCTAVE - 1] = [
    0x0001_72b8_3c7d_517a,
    0x0003_06fe_0a31_b715,
    0x0004_bfda_d536_2a27,
    0x0006_a09e_667f_3bcc,
    0x0008_ace5_422a_a0db,
    0x000a_e89f_995a_d3ad,
    0x000d_5818_dcfb_a487,
];

const MANTISSA_BITS: u32 = 52;

/// A mantissa's first bits determine the bounds below it, except for one: bounds are further apart
/// than the remaining bits span.
const FIRST_BITS: u32 = 4;

/// Number of bounds below each value of the first bits.
const BELOW: [u8; 1 << FIRST_BITS] = {
    let mut below = [0; 1 << FIRST_BITS];
    let mut first = 0;
    while first < below.len() {
        let begin = (first as u64) << (MANTISSA_BITS - FIRST_BITS);
        while (below[first] as usize) < BOUNDS.len() && BOUNDS[below[first] as usize] < begin {
            below[first] += 1;
        }
        first += 1;
    }
    below
};

/// One call of a histogram that has a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// Its trace.
    pub trace: TraceId,
    /// Its span in the trace.
    pub span: SpanId,
    /// Its duration, in nanoseconds.
    pub took_ns: u64,
    /// Its end on the monotonic clock, in nanoseconds.
    pub at_ns: u64,
}

/// Durations of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    count: u64,
    zero: u64,
    sum_ns: u64,
    max_ns: u64,
    buckets: Box<[u64; BUCKETS]>,
    exemplar: Option<Exemplar>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            count: 0,
            zero: 0,
            sum_ns: 0,
            max_ns: 0,
            buckets: Box::new([0; BUCKETS]),
            exemplar: None,
        }
    }
}

impl Histogram {
    /// Records a call of this duration.
    #[inline]
    pub fn record(&mut self, took_ns: u64) {
        self.count += 1;
        self.sum_ns = self.sum_ns.wrapping_add(took_ns);
        self.max_ns = self.max_ns.max(took_ns);
        match bucket_of(took_ns) {
            Some(bucket) => self.buckets[bucket] += 1,
            None => self.zero += 1,
        }
    }

    /// Sets the exemplar: the last recorded call with a trace.
    pub fn exemplify(&mut self, exemplar: Exemplar) {
        self.exemplar = Some(exemplar);
    }

    /// Adds another histogram.
    pub fn absorb(&mut self, more: &Histogram) {
        self.count += more.count;
        self.zero += more.zero;
        self.sum_ns = self.sum_ns.wrapping_add(more.sum_ns);
        self.max_ns = self.max_ns.max(more.max_ns);
        for (bucket, more) in self.buckets.iter_mut().zip(more.buckets.iter()) {
            *bucket += more;
        }
        let newer =
            |exemplar: &Exemplar| self.exemplar.is_none_or(|own| own.at_ns < exemplar.at_ns);
        self.exemplar = more.exemplar.filter(newer).or(self.exemplar);
    }

    /// Number of recorded calls.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of recorded calls with a duration of zero.
    pub fn zero(&self) -> u64 {
        self.zero
    }

    /// Sum of all durations, in seconds.
    pub fn sum(&self) -> f64 {
        seconds(self.sum_ns)
    }

    /// The longest duration, in seconds.
    pub fn max(&self) -> f64 {
        seconds(self.max_ns)
    }

    /// A call with a trace, if there is one.
    pub fn exemplar(&self) -> Option<Exemplar> {
        self.exemplar
    }

    /// The buckets from the first to the last non-empty one, and the index of the first of them.
    pub fn positive(&self) -> (i32, &[u64]) {
        let counts = |count: &u64| *count > 0;
        let Some(first) = self.buckets.iter().position(counts) else {
            return (FIRST_INDEX, &[]);
        };
        let last = self.buckets.iter().rposition(counts).unwrap_or(first);
        (FIRST_INDEX + first as i32, &self.buckets[first..=last])
    }

    /// Number of calls that took at most 2^`exponent` seconds.
    pub fn up_to(&self, exponent: i32) -> u64 {
        let buckets = (exponent - LEAST_EXPONENT).max(0) as usize * BUCKETS_PER_OCTAVE;
        let within = &self.buckets[..buckets.min(BUCKETS)];
        self.zero + within.iter().sum::<u64>()
    }
}

/// Converts a duration to seconds, the unit of metrics.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The bucket of a duration; `None`: a duration of zero. The last bucket also holds longer
/// durations.
#[inline]
fn bucket_of(took_ns: u64) -> Option<usize> {
    if took_ns == 0 {
        return None;
    }
    let bucket = place_of(seconds(took_ns).to_bits());
    Some((bucket.max(0) as usize).min(BUCKETS - 1))
}

/// The bucket index of a positive double, from its bits; also for buckets that don't exist.
#[inline]
fn place_of(bits: u64) -> i32 {
    let exponent = (bits >> MANTISSA_BITS) as i32 - 1_023;
    let mantissa = bits & ((1 << MANTISSA_BITS) - 1);
    let below = BELOW[(mantissa >> (MANTISSA_BITS - FIRST_BITS)) as usize];
    let is_beyond = BOUNDS
        .get(usize::from(below))
        .is_some_and(|bound| mantissa > *bound);
    // Buckets include their upper bounds, so 2^e belongs to the previous octave.
    let within = i32::from(below) + i32::from(is_beyond) - i32::from(mantissa == 0);
    (exponent - LEAST_EXPONENT) * BUCKETS_PER_OCTAVE as i32 + within
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The bucket by its mathematical definition.
    fn by_logarithm(took_ns: u64) -> f64 {
        (seconds(took_ns).log2() * 8.0).ceil() - 1.0
    }

    #[test]
    fn bounds_are_powers_of_the_eighth_root_of_two() {
        for (bound, k) in BOUNDS.iter().zip(1..) {
            let exact = 2f64.powf(f64::from(k) / 8.0);
            let off = exact.to_bits().abs_diff(bound | 1_023 << MANTISSA_BITS);
            assert!(off <= 1, "2^({k}/8) is {:#x}", exact.to_bits());
        }
    }

    #[test]
    fn each_bound_ends_its_bucket() {
        for (bound, k) in BOUNDS.iter().zip(0..) {
            for exponent in [-20, 0, 5] {
                let bits = bound | ((1_023 + exponent) as u64) << MANTISSA_BITS;
                let place = |bits: u64| {
                    place_of(bits) - place_of(((1_023 + exponent) as u64) << MANTISSA_BITS)
                };
                assert_eq!((place(bits), place(bits + 1)), (k + 1, k + 2), "{k}");
            }
        }
    }

    #[test]
    fn a_duration_is_in_the_bucket_of_its_logarithm() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200_000 {
            let took_ns = (random.u64(..) >> random.u32(24..64)).max(2);
            let want = by_logarithm(took_ns);
            let bucket = bucket_of(took_ns).unwrap() as i32 + FIRST_INDEX;
            // The logarithm itself is rounded.
            let on_a_bound = (seconds(took_ns).log2() * 8.0).fract().abs() < 1e-9;
            assert!(f64::from(bucket) == want || on_a_bound, "{took_ns} ns");
        }
        assert_eq!(bucket_of(0), None);
        assert_eq!(bucket_of(u64::MAX), Some(BUCKETS - 1));
        let second = bucket_of(1_000_000_000).unwrap() as i32 + FIRST_INDEX;
        assert_eq!(second, -1, "an upper bound belongs to its bucket");
    }

    #[test]
    fn what_is_added_up_is_what_was_recorded_together() {
        let (mut all, mut odd, mut even) = (
            Histogram::default(),
            Histogram::default(),
            Histogram::default(),
        );
        for k in 0..1_000u64 {
            let took_ns = k * k * 17;
            all.record(took_ns);
            if k % 2 == 1 { &mut odd } else { &mut even }.record(took_ns);
        }
        odd.absorb(&even);
        assert_eq!(odd, all);
        assert_eq!((all.count(), all.zero()), (1_000, 1));
        let (first, counts) = all.positive();
        assert_eq!(counts.iter().sum::<u64>(), 999);
        assert!(first >= FIRST_INDEX && counts[0] > 0);
        assert_eq!(all.up_to(12), 1_000);
        let up_to = |exponent: i32| {
            let bound = 2f64.powi(exponent);
            let within = (0..1_000u64).filter(|k| seconds(k * k * 17) <= bound);
            within.count() as u64
        };
        for exponent in -31..14 {
            assert_eq!(all.up_to(exponent), up_to(exponent), "2^{exponent} s");
        }
    }

    #[test]
    fn the_latest_exemplar_stays() {
        let exemplar = |at_ns| Exemplar {
            trace: TraceId::new([1; 16]).unwrap(),
            span: SpanId::new([2; 8]).unwrap(),
            took_ns: 5,
            at_ns,
        };
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.exemplify(exemplar(7));
        one.absorb(&other);
        assert_eq!(one.exemplar(), Some(exemplar(7)));
        other.exemplify(exemplar(6));
        one.absorb(&other);
        assert_eq!(one.exemplar(), Some(exemplar(7)));
        other.exemplify(exemplar(8));
        one.absorb(&other);
        assert_eq!(one.exemplar(), Some(exemplar(8)));
    }
}

//! A policy's metrics: arrays of fixed length, so that no policy can flood a monitoring system with
//! names.

use crate::limits::BUCKETS;

/// Counts of recorded values by size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// `buckets[0]` counts values up to 0, `buckets[i]` those from 2^(i-1) to below 2^i.
    pub buckets: [u64; BUCKETS],
    /// Their sum, wrapping.
    pub sum: i64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: [0; BUCKETS],
            sum: 0,
        }
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, value: i64) {
        let bucket = match u64::try_from(value) {
            Ok(value) => (u64::BITS - value.leading_zeros()) as usize,
            Err(_) => 0,
        };
        let count = &mut self.buckets[bucket];
        *count = count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(value);
    }
}

/// All metrics of an instance, in the order of the manifest's lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Wrapping.
    pub counters: Box<[u64]>,
    /// `None` until it is set for the first time.
    pub gauges: Box<[Option<i64>]>,
    /// See [`Histogram`].
    pub histograms: Box<[Histogram]>,
}

impl Metrics {
    pub(crate) fn of(manifest: &crate::Manifest) -> Metrics {
        Metrics {
            counters: vec![0; manifest.counters().len()].into(),
            gauges: vec![None; manifest.gauges().len()].into(),
            histograms: vec![Histogram::default(); manifest.histograms().len()].into(),
        }
    }

    /// Adds the metrics of a later instance with the same manifest, so that instances for single
    /// calls get a sum. If the other has more metrics (another version's manifest), they are added
    /// at the end.
    pub fn absorb(&mut self, later: &Metrics) {
        extend(&mut self.counters, later.counters.len(), 0);
        extend(&mut self.gauges, later.gauges.len(), None);
        extend(
            &mut self.histograms,
            later.histograms.len(),
            Histogram::default(),
        );
        for (sum, more) in self.counters.iter_mut().zip(&later.counters) {
            *sum = sum.wrapping_add(*more);
        }
        for (last, newer) in self.gauges.iter_mut().zip(&later.gauges) {
            *last = newer.or(*last);
        }
        for (sum, more) in self.histograms.iter_mut().zip(&later.histograms) {
            for (sum, more) in sum.buckets.iter_mut().zip(&more.buckets) {
                *sum = sum.wrapping_add(*more);
            }
            sum.sum = sum.sum.wrapping_add(more.sum);
        }
    }
}

/// A step from earlier metrics to later ones; indices are those of the manifest's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricChange {
    /// A counter increased, wrapping.
    Counter {
        /// Its index.
        index: u16,
        /// The increase.
        by: u64,
    },
    /// A gauge was set.
    Gauge {
        /// Its index.
        index: u16,
        /// Its value.
        to: i64,
    },
    /// A histogram's bucket increased, wrapping.
    Bucket {
        /// The histogram's index.
        index: u16,
        /// The bucket's index.
        bucket: u16,
        /// The increase.
        by: u64,
    },
    /// A histogram's sum changed, wrapping.
    Sum {
        /// The histogram's index.
        index: u16,
        /// The change.
        by: i64,
    },
}

impl Metrics {
    /// The changes since `before`, which may have fewer metrics.
    pub(crate) fn changes_since(&self, before: &Metrics) -> Vec<MetricChange> {
        let mut changes = Vec::new();
        for (at, count) in self.counters.iter().enumerate() {
            let by = count.wrapping_sub(before.counters.get(at).copied().unwrap_or(0));
            if by != 0 {
                let index = at as u16;
                changes.push(MetricChange::Counter { index, by });
            }
        }
        for (at, gauge) in self.gauges.iter().enumerate() {
            if let Some(to) = *gauge
                && before.gauges.get(at).copied().flatten() != *gauge
            {
                let index = at as u16;
                changes.push(MetricChange::Gauge { index, to });
            }
        }
        for (at, histogram) in self.histograms.iter().enumerate() {
            let index = at as u16;
            let before = before.histograms.get(at);
            for (bucket, count) in histogram.buckets.iter().enumerate() {
                let by = count.wrapping_sub(before.map_or(0, |before| before.buckets[bucket]));
                if by != 0 {
                    let bucket = bucket as u16;
                    changes.push(MetricChange::Bucket { index, bucket, by });
                }
            }
            let by = histogram
                .sum
                .wrapping_sub(before.map_or(0, |before| before.sum));
            if by != 0 {
                changes.push(MetricChange::Sum { index, by });
            }
        }
        changes
    }

    /// Applies changes to the metrics of a policy with this manifest; changes of metrics that the
    /// manifest lacks are skipped.
    pub fn apply(&mut self, manifest: &crate::Manifest, changes: &[MetricChange]) {
        if changes.is_empty() {
            return;
        }
        self.absorb(&Metrics::of(manifest));
        for change in changes {
            match *change {
                MetricChange::Counter { index, by } => {
                    if let Some(count) = self.counters.get_mut(usize::from(index)) {
                        *count = count.wrapping_add(by);
                    }
                }
                MetricChange::Gauge { index, to } => {
                    if let Some(gauge) = self.gauges.get_mut(usize::from(index)) {
                        *gauge = Some(to);
                    }
                }
                MetricChange::Bucket { index, bucket, by } => {
                    let histogram = self.histograms.get_mut(usize::from(index));
                    let buckets = histogram.map(|histogram| &mut histogram.buckets);
                    if let Some(count) = buckets.and_then(|all| all.get_mut(usize::from(bucket))) {
                        *count = count.wrapping_add(by);
                    }
                }
                MetricChange::Sum { index, by } => {
                    if let Some(histogram) = self.histograms.get_mut(usize::from(index)) {
                        histogram.sum = histogram.sum.wrapping_add(by);
                    }
                }
            }
        }
    }
}

/// Lengthens a list to `len`; usually it has this length already.
fn extend<T: Clone>(list: &mut Box<[T]>, len: usize, value: T) {
    if list.len() < len {
        let mut longer = std::mem::take(list).into_vec();
        longer.resize(len, value);
        *list = longer.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_between_powers_of_two() {
        let cases = [
            (i64::MIN, 0),
            (-1, 0),
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 2),
            (4, 3),
            (1023, 10),
            (1024, 11),
            (i64::MAX, 63),
        ];
        for (value, bucket) in cases {
            let mut histogram = Histogram::default();
            histogram.record(value);
            assert_eq!(histogram.buckets[bucket], 1, "{value}");
            assert_eq!(histogram.sum, value);
        }
    }

    #[test]
    fn changes_made_to_what_was_before_yield_what_is() {
        let manifest = crate::Manifest::parse(
            br#"{"abi":1,"name":"t","hooks":["request"],"methods":[{"method":"*"}],
                 "counters":["a","b"],"gauges":["g"],"histograms":["h"]}"#,
        );
        let manifest = manifest.expect("a manifest");
        let mut now = Metrics::of(&manifest);
        let (mut told, mut rebuilt) = (Metrics::default(), Metrics::default());
        for (count, gauge, value) in [
            (0, None, None),
            (3, Some(0), Some(-5)),
            (3, Some(7), Some(9)),
        ] {
            now.counters[1] = now.counters[1].wrapping_add(count);
            now.gauges[0] = gauge.or(now.gauges[0]);
            if let Some(value) = value {
                now.histograms[0].record(value);
            }
            let changes = now.changes_since(&told);
            assert_eq!(changes.is_empty(), value.is_none(), "{changes:?}");
            rebuilt.apply(&manifest, &changes);
            told.clone_from(&now);
        }
        assert_eq!(rebuilt, now);
        assert_eq!(now.changes_since(&told), []);
        // Changes of metrics that the manifest doesn't name are ignored.
        let wild = [
            MetricChange::Counter { index: 2, by: 1 },
            MetricChange::Gauge { index: 1, to: 1 },
            MetricChange::Bucket {
                index: 0,
                bucket: 64,
                by: 1,
            },
            MetricChange::Bucket {
                index: 1,
                bucket: 0,
                by: 1,
            },
            MetricChange::Sum { index: 1, by: 1 },
        ];
        rebuilt.apply(&manifest, &wild);
        assert_eq!(rebuilt, now);
    }

    #[test]
    fn absorbing_adds_counts_and_keeps_the_last_gauge() {
        let mut histogram = Histogram::default();
        histogram.record(5);
        let one = Metrics {
            counters: [1, u64::MAX].into(),
            gauges: [Some(7), None].into(),
            histograms: [histogram].into(),
        };
        let mut sum = Metrics::default();
        sum.absorb(&one);
        assert_eq!(sum, one);
        let two = Metrics {
            gauges: [None, Some(3)].into(),
            ..one.clone()
        };
        sum.absorb(&two);
        assert_eq!(sum.counters[..], [2, u64::MAX - 1]);
        assert_eq!(sum.gauges[..], [Some(7), Some(3)]);
        assert_eq!(
            (sum.histograms[0].buckets[3], sum.histograms[0].sum),
            (2, 10)
        );
    }
}

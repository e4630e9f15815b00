//! Metrics that a filter defines by name, within the limits that native policies have.

use crate::{Histogram, limits};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It grows.
    Counter,
    /// It is set.
    Gauge,
    /// It counts values by size.
    Histogram,
}

/// A metric that a compat module has defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredMetric {
    /// The module's name for it, at most [`limits::NAME_BYTES`]: quote it.
    pub name: String,
    /// Its kind.
    pub kind: MetricKind,
    /// The value of a counter or gauge; the number of values of a histogram.
    pub value: u64,
    /// The values, if it is a histogram.
    pub histogram: Option<Box<Histogram>>,
}

/// All metrics of an instance; a metric's number is its index.
#[derive(Debug, Default)]
pub(super) struct Defined(Vec<MeasuredMetric>);

impl Defined {
    pub(super) fn all(&self) -> &[MeasuredMetric] {
        &self.0
    }

    /// `None`: the limit is reached.
    pub(super) fn define(&mut self, kind: MetricKind, name: String) -> Option<u32> {
        let same = |known: &MeasuredMetric| known.kind == kind && known.name == name;
        if let Some(known) = self.0.iter().position(same) {
            return Some(known as u32);
        }
        let of_kind = self.0.iter().filter(|known| known.kind == kind).count();
        let (most, histogram) = match kind {
            MetricKind::Counter => (limits::COUNTERS, None),
            MetricKind::Gauge => (limits::GAUGES, None),
            MetricKind::Histogram => (limits::HISTOGRAMS, Some(Box::default())),
        };
        if of_kind >= most {
            return None;
        }
        self.0.push(MeasuredMetric {
            name,
            kind,
            value: 0,
            histogram,
        });
        Some(self.0.len() as u32 - 1)
    }

    pub(super) fn get(&mut self, id: u32) -> Option<&mut MeasuredMetric> {
        self.0.get_mut(id as usize)
    }
}

impl MeasuredMetric {
    pub(super) fn record(&mut self, value: u64) {
        match &mut self.histogram {
            Some(histogram) => {
                histogram.record(i64::try_from(value).unwrap_or(i64::MAX));
                self.value += 1;
            }
            // As in Envoy.
            None if self.kind == MetricKind::Counter => self.value = self.value.wrapping_add(value),
            None => self.value = value,
        }
    }

    /// False if the metric's kind doesn't support this.
    pub(super) fn increment(&mut self, delta: i64) -> bool {
        match self.kind {
            MetricKind::Counter if delta < 0 => false,
            MetricKind::Counter | MetricKind::Gauge => {
                self.value = self.value.wrapping_add_signed(delta);
                true
            }
            MetricKind::Histogram => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn metrics_are_defined_once_and_have_limits() {
        let mut defined = Defined::default();
        let id = defined.define(MetricKind::Counter, "calls".to_owned());
        assert_eq!(id, Some(0));
        assert_eq!(defined.define(MetricKind::Counter, "calls".to_owned()), id);
        assert_eq!(
            defined.define(MetricKind::Histogram, "calls".to_owned()),
            Some(1)
        );
        let calls = defined.get(0).unwrap();
        assert!(calls.increment(3) && !calls.increment(-1));
        calls.record(4);
        assert_eq!(calls.value, 7, "what is recorded of a counter adds up");
        let sizes = defined.get(1).unwrap();
        sizes.record(5);
        assert_eq!(
            (sizes.value, sizes.histogram.as_ref().unwrap().buckets[3]),
            (1, 1)
        );
        assert!(!sizes.increment(1));
        let more =
            (0..).take_while(|k| defined.define(MetricKind::Gauge, format!("g{k}")).is_some());
        assert_eq!(more.count(), limits::GAUGES);
    }
}

//! Metrics that a filter defines by name, within the limits that native policies have.

use wasmtime::Linker;

use super::memory::{charge, copy, write};
use super::{Answer, Guest, MODULE, Proxy, status};
use crate::{Histogram, cost, limits, text::text};

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It grows.
    Counter,
    /// It is set.
    Gauge,
    /// It collects.
    Histogram,
}

/// A metric that a foreign module has defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredMetric {
    /// The module's name for it, at most [`limits::NAME_BYTES`]: quote it.
    pub name: String,
    /// What it is.
    pub kind: MetricKind,
    /// A counter's or gauge's value; how many values a histogram has.
    pub value: u64,
    /// The values, if it is a histogram.
    pub histogram: Option<Box<Histogram>>,
}

/// All metrics of an instance; a metric's number is its place, from 0.
#[derive(Debug, Default)]
pub(super) struct Defined(Vec<MeasuredMetric>);

impl Defined {
    pub(super) fn all(&self) -> &[MeasuredMetric] {
        &self.0
    }

    /// `None`: there is no room.
    fn define(&mut self, kind: MetricKind, name: String) -> Option<u32> {
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

    fn get(&mut self, id: u32) -> Option<&mut MeasuredMetric> {
        self.0.get_mut(id as usize)
    }
}

impl MeasuredMetric {
    fn record(&mut self, value: u64) {
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

    /// False if this can't be done to it.
    fn increment(&mut self, delta: i64) -> bool {
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

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_define_metric", define_metric)?;
    linker.func_wrap(MODULE, "proxy_record_metric", record_metric)?;
    linker.func_wrap(MODULE, "proxy_increment_metric", increment_metric)?;
    linker.func_wrap(MODULE, "proxy_get_metric", get_metric)?;
    Ok(())
}

fn define_metric(mut guest: Guest<'_>, kind: u32, name: u32, name_len: u32, id_at: u32) -> Answer {
    charge(&mut guest, cost::STATE)?;
    let Some(name) = copy(&mut guest, name, name_len.min(limits::NAME_BYTES as u32))? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    let kind = match kind {
        0 => MetricKind::Counter,
        1 => MetricKind::Gauge,
        2 => MetricKind::Histogram,
        _ => return Ok(status::BAD_ARGUMENT),
    };
    let name = text(&name, limits::NAME_BYTES);
    match guest.data_mut().metrics.define(kind, name) {
        Some(id) => Ok(super::memory::answer(&mut guest, id_at, id)),
        None => Ok(status::INTERNAL_FAILURE),
    }
}

fn record_metric(mut guest: Guest<'_>, id: u32, value: u64) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    Ok(match guest.data_mut().metrics.get(id) {
        Some(metric) => {
            metric.record(value);
            status::OK
        }
        None => status::NOT_FOUND,
    })
}

fn increment_metric(mut guest: Guest<'_>, id: u32, delta: i64) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    let metric = guest.data_mut().metrics.get(id);
    Ok(match metric.map(|metric| metric.increment(delta)) {
        Some(true) => status::OK,
        Some(false) => status::BAD_ARGUMENT,
        None => status::NOT_FOUND,
    })
}

fn get_metric(mut guest: Guest<'_>, id: u32, value_at: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    let Some(value) = guest.data_mut().metrics.get(id).map(|metric| metric.value) else {
        return Ok(status::NOT_FOUND);
    };
    Ok(match write(&mut guest, value_at, &value.to_le_bytes()) {
        true => status::OK,
        false => status::INVALID_MEMORY_ACCESS,
    })
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

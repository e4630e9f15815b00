//! Policies' own counters and measurements, by the names in their manifests, for `status --json`.
//!
//! Bounded by the manifest's own limits (64 names of each kind). A version's numbers survive the
//! replacement of an instance, and are summed over runtimes.

use std::collections::BTreeMap;

use serde::Serialize;
use tollgate_policy_host::{Manifest, Metrics};

/// One version's metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamedMetrics {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counters: BTreeMap<String, u64>,
    /// Gauges that were set; of several runtimes, any one's value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    gauges: BTreeMap<String, i64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    histograms: BTreeMap<String, NamedHistogram>,
}

/// Histogram of recorded values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct NamedHistogram {
    count: u64,
    sum: i64,
    /// The first bucket counts values up to 0, the others those below the next power of two.
    /// Trailing empty buckets are omitted.
    buckets: Vec<u64>,
}

impl NamedMetrics {
    pub(crate) fn new(manifest: &Manifest, metrics: &Metrics) -> Self {
        let counters = manifest.counters().iter().cloned();
        let gauges = manifest.gauges().iter().cloned();
        let histograms = manifest.histograms().iter().cloned();
        let named = |histogram: &tollgate_policy_host::Histogram| {
            let used = histogram.buckets.iter().rposition(|&count| count > 0);
            NamedHistogram {
                count: histogram.buckets.iter().sum(),
                sum: histogram.sum,
                buckets: histogram.buckets[..used.map_or(0, |last| last + 1)].to_vec(),
            }
        };
        Self {
            counters: counters.zip(metrics.counters.iter().copied()).collect(),
            gauges: gauges
                .zip(metrics.gauges.iter())
                .filter_map(|(name, value)| Some((name, (*value)?)))
                .collect(),
            histograms: histograms
                .zip(metrics.histograms.iter().map(named))
                .collect(),
        }
    }

    /// Adds another runtime's metrics.
    pub fn absorb(&mut self, more: &NamedMetrics) {
        for (name, value) in &more.counters {
            let sum = self.counters.entry(name.clone()).or_default();
            *sum = sum.wrapping_add(*value);
        }
        for (name, value) in &more.gauges {
            self.gauges.insert(name.clone(), *value);
        }
        for (name, more) in &more.histograms {
            let sum = self.histograms.entry(name.clone()).or_default();
            sum.count = sum.count.wrapping_add(more.count);
            sum.sum = sum.sum.wrapping_add(more.sum);
            let len = sum.buckets.len().max(more.buckets.len());
            sum.buckets.resize(len, 0);
            for (count, more) in sum.buckets.iter_mut().zip(&more.buckets) {
                *count = count.wrapping_add(*more);
            }
        }
    }
}

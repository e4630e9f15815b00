//! Metrics in Prometheus' protobuf format. It has native histograms: all buckets of a duration, 9 %
//! apart, instead of one per power of two.
//!
//! ```text
//!  our bucket i   (2^(i/8), 2^((i+1)/8)]   is Prometheus' bucket i+1 of schema 3, which is named after its upper bound
//!  our zero       exactly 0                is its zero bucket, of a width that no duration is in
//! ```
//!
//! The classic buckets come too, for scrapers that keep both. Absent on purpose: the descriptor's
//! other fields (summaries, float counts, creation times), and spans that skip gaps: a gap costs
//! one byte per bucket.

use prost::Message;

use crate::exposition::{EXPONENTS, Now, name_of, sample_of};
use crate::histogram::{Exemplar, Histogram, SCALE, seconds};
use crate::metrics::{Family, Kind, Metrics, Point, TENANT, Value};

/// Half the width of a zero bucket that only holds zeros, as in Prometheus' own libraries: 2^-128.
const ZERO_THRESHOLD: f64 = 2.938735877055719e-39;

/// Writes the response to a scrape: families, each after its length.
pub(crate) fn write(metrics: &Metrics, now: Now) -> Vec<u8> {
    let mut bytes = Vec::new();
    for family in &metrics.families {
        let family = MetricFamily::of(family, now);
        let encoded = family.encode_length_delimited(&mut bytes);
        encoded.expect("a vector has room");
    }
    bytes
}

/// The messages of io.prometheus.client, in proto2: absent fields are 0.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetricFamily {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) help: String,
    /// 0 is a counter, 1 a gauge, 4 a histogram.
    #[prost(int32, tag = "3")]
    pub(crate) kind: i32,
    #[prost(message, repeated, tag = "4")]
    pub(crate) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metric {
    #[prost(message, repeated, tag = "1")]
    pub(crate) labels: Vec<Pair>,
    #[prost(message, optional, tag = "2")]
    pub(crate) gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    pub(crate) counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    pub(crate) histogram: Option<Native>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pair {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Number {
    #[prost(double, tag = "1")]
    pub(crate) value: f64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Native {
    #[prost(uint64, tag = "1")]
    pub(crate) count: u64,
    #[prost(double, tag = "2")]
    pub(crate) sum: f64,
    #[prost(message, repeated, tag = "3")]
    pub(crate) buckets: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    pub(crate) schema: i32,
    #[prost(double, tag = "6")]
    pub(crate) zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    pub(crate) zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    pub(crate) spans: Vec<Span>,
    /// Each bucket's count, minus that of the previous one.
    #[prost(sint64, repeated, tag = "13")]
    pub(crate) deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Bucket {
    #[prost(uint64, tag = "1")]
    pub(crate) cumulative: u64,
    #[prost(double, tag = "2")]
    pub(crate) bound: f64,
    #[prost(message, optional, tag = "3")]
    pub(crate) exemplar: Option<Example>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Span {
    #[prost(sint32, tag = "1")]
    pub(crate) offset: i32,
    #[prost(uint32, tag = "2")]
    pub(crate) length: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Example {
    #[prost(message, repeated, tag = "1")]
    pub(crate) labels: Vec<Pair>,
    #[prost(double, tag = "2")]
    pub(crate) value: f64,
    #[prost(message, optional, tag = "3")]
    pub(crate) at: Option<Moment>,
}

/// google.protobuf.Timestamp.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Moment {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

fn pair(name: &str, value: &str) -> Pair {
    Pair {
        name: name.replace('.', "_"),
        value: value.to_owned(),
    }
}

impl MetricFamily {
    fn of(family: &Family, now: Now) -> MetricFamily {
        let metrics = family.points.iter();
        MetricFamily {
            name: sample_of(family, &name_of(family)),
            help: family.help.to_owned(),
            kind: match family.kind {
                Kind::Counter => 0,
                Kind::Gauge => 1,
                Kind::Histogram => 4,
            },
            metrics: metrics
                .map(|point| Metric::of(point, family.kind, now))
                .collect(),
        }
    }
}

impl Metric {
    fn of(point: &Point, kind: Kind, now: Now) -> Metric {
        let tenant = point.tenant.iter().map(|tenant| pair(TENANT, tenant));
        let others = point.labels.iter().map(|(key, value)| pair(key, value));
        let mut metric = Metric {
            labels: tenant.chain(others).collect(),
            ..Metric::default()
        };
        let value = match &point.value {
            Value::Durations(durations) => {
                metric.histogram = Some(Native::of(durations, now));
                return metric;
            }
            Value::Count(count) => *count as f64,
            Value::Measure(measure) => *measure,
        };
        match kind {
            Kind::Counter => metric.counter = Some(Number { value }),
            Kind::Gauge | Kind::Histogram => metric.gauge = Some(Number { value }),
        }
        metric
    }
}

impl Native {
    fn of(durations: &Histogram, now: Now) -> Native {
        let (first, counts) = durations.positive();
        let span = Span {
            offset: first + 1,
            length: counts.len() as u32,
        };
        let before = [0].iter().chain(counts);
        let deltas = counts.iter().zip(before);
        Native {
            count: durations.count(),
            sum: durations.sum(),
            buckets: buckets(durations, now),
            schema: SCALE,
            zero_threshold: ZERO_THRESHOLD,
            zero_count: durations.zero(),
            spans: (!counts.is_empty()).then_some(span).into_iter().collect(),
            deltas: deltas
                .map(|(count, before)| count.wrapping_sub(*before) as i64)
                .collect(),
        }
    }
}

/// The buckets of the text format. The count replaces the one without a bound.
fn buckets(durations: &Histogram, now: Now) -> Vec<Bucket> {
    let mut exemplar = durations.exemplar();
    let buckets = EXPONENTS.map(|exponent| {
        let bound = 2f64.powi(exponent);
        // In the first bucket that contains it.
        let shown = exemplar.take_if(|exemplar| seconds(exemplar.took_ns) <= bound);
        Bucket {
            cumulative: durations.up_to(exponent),
            bound,
            exemplar: shown.map(|exemplar| Example::of(&exemplar, now)),
        }
    });
    buckets.collect()
}

impl Example {
    fn of(exemplar: &Exemplar, now: Now) -> Example {
        let at_ns = now.unix_of(exemplar.at_ns);
        Example {
            labels: vec![
                pair("trace_id", &exemplar.trace.to_string()),
                pair("span_id", &exemplar.span.to_string()),
            ],
            value: seconds(exemplar.took_ns),
            at: Some(Moment {
                seconds: (at_ns / 1_000_000_000) as i64,
                nanos: (at_ns % 1_000_000_000) as i32,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::w3c::{SpanId, TraceId};

    const NOW: Now = Now {
        unix_ns: 1_700_000_000_500_000_000,
        monotonic_ns: 1_000_000_000,
    };

    fn read(mut bytes: &[u8]) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        while !bytes.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut bytes).unwrap());
        }
        families
    }

    fn durations(took_ns: &[u64]) -> Family {
        let mut durations = Histogram::default();
        took_ns.iter().for_each(|ns| durations.record(*ns));
        let mut family = Family::new("a.duration", "s", "How long.", Kind::Histogram);
        let labels = vec![("rpc.method", "a\"b".into())];
        let value = Value::Durations(Box::new(durations));
        family.push(Some(&"acme".into()), labels, value);
        family
    }

    #[test]
    fn a_scraper_finds_each_bucket_where_prometheus_has_it() {
        // Durations at a bound, above it, and two buckets above that (1 s, 1.05 s, 1.25 s), and a
        // duration of zero.
        let mut family = durations(&[
            0,
            1_000_000_000,
            1_050_000_000,
            1_050_000_000,
            1_250_000_000,
        ]);
        let Value::Durations(durations) = &mut family.points[0].value else {
            panic!("it is one");
        };
        durations.exemplify(Exemplar {
            trace: TraceId::new([0xab; 16]).unwrap(),
            span: SpanId::new([0xcd; 8]).unwrap(),
            took_ns: 1_250_000_000,
            at_ns: 500_000_000,
        });
        let mut calls = Family::new("a.calls", "{call}", "Calls.", Kind::Counter);
        calls.push(None, Vec::new(), Value::Count(7));
        let mut held = Family::new("a.held", "By", "Held.", Kind::Gauge);
        held.push(None, Vec::new(), Value::Measure(0.5));
        let metrics = Metrics {
            families: vec![family, calls, held],
        };
        let found = read(&write(&metrics, NOW));
        let names: Vec<_> = found.iter().map(|it| (&*it.name, it.kind)).collect();
        assert_eq!(
            names,
            [
                ("a_duration_seconds", 4),
                ("a_calls_total", 0),
                ("a_held_bytes", 1)
            ]
        );
        let metric = &found[0].metrics[0];
        let labels = [pair("tollgate_tenant", "acme"), pair("rpc_method", "a\"b")];
        assert_eq!(metric.labels, labels);
        let native = metric.histogram.as_ref().unwrap();
        assert_eq!((native.schema, native.count, native.zero_count), (3, 5, 1));
        assert_eq!(native.sum, 4.35);
        // Prometheus' bucket 0 ends at 1 s, 1 at 1.0905, 3 at 1.2968.
        let span = Span {
            offset: 0,
            length: 4,
        };
        assert_eq!(native.spans, [span]);
        assert_eq!(native.deltas, [1, 1, -2, 1]);
        let shown = |bucket: &&Bucket| bucket.exemplar.is_some();
        let with: Vec<_> = native.buckets.iter().filter(shown).collect();
        assert_eq!((with.len(), with[0].bound, with[0].cumulative), (1, 2.0, 5));
        let exemplar = with[0].exemplar.as_ref().unwrap();
        assert_eq!(exemplar.labels[0], pair("trace_id", &"ab".repeat(16)));
        let at = exemplar.at.unwrap();
        assert_eq!((at.seconds, at.nanos), (1_700_000_000, 0));
        assert_eq!(found[1].metrics[0].counter, Some(Number { value: 7.0 }));
        assert_eq!(found[2].metrics[0].gauge, Some(Number { value: 0.5 }));
    }

    /// The zero bucket's width distinguishes an empty native histogram from a classic one.
    #[test]
    fn a_histogram_of_nothing_is_a_native_one() {
        for (took_ns, zeros) in [(&[][..], 0), (&[0, 0][..], 2)] {
            let metrics = Metrics {
                families: vec![durations(took_ns)],
            };
            let found = read(&write(&metrics, NOW));
            let native = found[0].metrics[0].histogram.as_ref().unwrap();
            assert_eq!((native.count, native.zero_count), (zeros, zeros));
            assert!(native.spans.is_empty() && native.deltas.is_empty());
            assert!(native.zero_threshold > 0.0 && native.zero_threshold < 1e-9);
        }
    }
}

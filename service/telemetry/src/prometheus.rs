//! The formats for scrapers: text in Prometheus' format, or in OpenMetrics, which has exemplars; or
//! protobuf, which has native histograms.
//!
//! ```text
//!  rpc.server.call.duration, s     ─▶  rpc_server_call_duration_seconds{rpc_method="...",le="0.0009765625"}
//!  tollgate.policy.calls, {call}   ─▶  tollgate_policy_calls_total
//! ```
//!
//! Names are translated as OpenTelemetry says. A histogram's bounds are powers of two seconds. They
//! coincide with bounds of the exponential buckets, so the counts are exact.

use std::fmt::Write;

pub use crate::exposition::Now;

use crate::exposition::{EXPONENTS, name_of, sample_of};
use crate::histogram::{Histogram, seconds};
use crate::metrics::{Family, Kind, Metrics, Point, TENANT, Value};

/// An exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format that every scraper reads.
    Prometheus,
    /// With exemplars.
    OpenMetrics,
    /// With exemplars and native histograms.
    Protobuf,
}

impl Format {
    /// The preferred format of an `Accept` header.
    pub fn accepted(accept: &str) -> Format {
        let mut best = (Format::Prometheus, 0.0);
        for offer in accept.split(',') {
            let mut words = offer.split(';').map(str::trim);
            let kind = words.next().unwrap_or_default();
            let is_said = |word: &str| offer.split(';').any(|said| said.trim() == word);
            let format = match kind {
                "application/vnd.google.protobuf"
                    if is_said("proto=io.prometheus.client.MetricFamily")
                        && is_said("encoding=delimited") =>
                {
                    Format::Protobuf
                }
                "application/openmetrics-text" => Format::OpenMetrics,
                "text/plain" => Format::Prometheus,
                _ => continue,
            };
            let quality = words.find_map(|word| word.strip_prefix("q="));
            let quality: f64 = quality.map_or(1.0, |text| text.parse().unwrap_or(0.0));
            if quality > best.1 {
                best = (format, quality);
            }
        }
        best.0
    }

    /// The value of `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// Writes all metrics.
pub fn write(metrics: &Metrics, format: Format, now: Now) -> Vec<u8> {
    match format {
        Format::Protobuf => crate::protobuf::write(metrics, now),
        Format::Prometheus | Format::OpenMetrics => text(metrics, format, now).into_bytes(),
    }
}

fn text(metrics: &Metrics, format: Format, now: Now) -> String {
    let mut text = String::new();
    for family in &metrics.families {
        write_family(&mut text, family, format, now);
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn write_family(text: &mut String, family: &Family, format: Format, now: Now) {
    let name = name_of(family);
    let sample = sample_of(family, &name);
    let kind = match family.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    // OpenMetrics announces the family, the other format its samples.
    let announced = match format {
        Format::OpenMetrics => &name,
        Format::Prometheus | Format::Protobuf => &sample,
    };
    let _to_memory = writeln!(text, "# HELP {announced} {}", family.help);
    let _to_memory = writeln!(text, "# TYPE {announced} {kind}");
    for point in &family.points {
        let labels = labels_of(point);
        let _to_memory = match &point.value {
            Value::Count(count) => writeln!(text, "{sample}{} {count}", braced(&labels, "")),
            Value::Measure(measure) => {
                writeln!(text, "{sample}{} {measure}", braced(&labels, ""))
            }
            Value::Durations(durations) => {
                let series = Series {
                    name: &name,
                    labels: &labels,
                };
                write_histogram(text, series, durations, format, now);
                Ok(())
            }
        };
    }
}

/// The common properties of a family's samples at one point.
#[derive(Clone, Copy)]
struct Series<'a> {
    name: &'a str,
    /// Without braces.
    labels: &'a str,
}

fn write_histogram(
    text: &mut String,
    series: Series<'_>,
    histogram: &Histogram,
    format: Format,
    now: Now,
) {
    let Series { name, labels } = series;
    let exemplar = histogram
        .exemplar()
        .filter(|_| format == Format::OpenMetrics);
    let mut shown = false;
    let bounds = EXPONENTS.map(|exponent| (2f64.powi(exponent), histogram.up_to(exponent)));
    for (bound, count) in bounds.chain([(f64::INFINITY, histogram.count())]) {
        let le = match bound.is_finite() {
            true => format!("le=\"{bound}\""),
            false => "le=\"+Inf\"".to_owned(),
        };
        let _to_memory = write!(text, "{name}_bucket{} {count}", braced(labels, &le));
        // In the first bucket that contains it.
        if let Some(exemplar) = exemplar.filter(|e| !shown && seconds(e.took_ns) <= bound) {
            shown = true;
            let at_ms = now.unix_of(exemplar.at_ns) / 1_000_000;
            let _to_memory = write!(
                text,
                " # {{trace_id=\"{}\",span_id=\"{}\"}} {} {}.{:03}",
                exemplar.trace,
                exemplar.span,
                seconds(exemplar.took_ns),
                at_ms / 1_000,
                at_ms % 1_000,
            );
        }
        text.push('\n');
    }
    let _to_memory = writeln!(text, "{name}_sum{} {}", braced(labels, ""), histogram.sum());
    let _to_memory = writeln!(
        text,
        "{name}_count{} {}",
        braced(labels, ""),
        histogram.count()
    );
}

fn labels_of(point: &Point) -> String {
    let tenant = point.tenant.as_deref().map(|tenant| (TENANT, tenant));
    let others = point.labels.iter().map(|(key, value)| (*key, &**value));
    let mut labels = String::new();
    for (key, value) in tenant.into_iter().chain(others) {
        let comma = if labels.is_empty() { "" } else { "," };
        let _to_memory = write!(labels, "{comma}{}=\"", key.replace('.', "_"));
        for c in value.chars() {
            match c {
                '\\' => labels.push_str("\\\\"),
                '"' => labels.push_str("\\\""),
                '\n' => labels.push_str("\\n"),
                c => labels.push(c),
            }
        }
        labels.push('"');
    }
    labels
}

fn braced(labels: &str, more: &str) -> String {
    match (labels.is_empty(), more.is_empty()) {
        (true, true) => String::new(),
        (false, false) => format!("{{{labels},{more}}}"),
        _ => format!("{{{labels}{more}}}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::histogram::Exemplar;
    use crate::w3c::{SpanId, TraceId};

    const NOW: Now = Now {
        unix_ns: 1_700_000_000_500_000_000,
        monotonic_ns: 1_000_000_000,
    };

    fn metrics() -> Metrics {
        let mut calls = Family::new(
            "rpc.server.call.duration",
            "s",
            "Durations.",
            Kind::Histogram,
        );
        let mut durations = Histogram::default();
        for took_ns in [0, 900, 3_000_000, 100_000_000_000] {
            durations.record(took_ns);
        }
        durations.exemplify(Exemplar {
            trace: TraceId::new([0xab; 16]).unwrap(),
            span: SpanId::new([0xcd; 8]).unwrap(),
            took_ns: 3_000_000,
            at_ns: 500_000_000,
        });
        let labels = vec![("rpc.method", "a\"b\\c\nd".into())];
        let durations = Value::Durations(Box::new(durations));
        calls.push(Some(&"acme".into()), labels, durations);
        let mut bytes = Family::new("tollgate.link.bytes", "By", "Bytes.", Kind::Counter);
        bytes.push(None, Vec::new(), Value::Count(7));
        let mut held = Family::new("tollgate.heap.used", "By", "Held.", Kind::Gauge);
        held.push(None, Vec::new(), Value::Measure(0.5));
        Metrics {
            families: vec![calls, bytes, held],
        }
    }

    #[test]
    fn counts_are_cumulative_and_labels_are_escaped() {
        let text = text(&metrics(), Format::Prometheus, NOW);
        let labels = r#"tollgate_tenant="acme",rpc_method="a\"b\\c\nd""#;
        let name = "rpc_server_call_duration_seconds";
        let wanted = [
            format!("# TYPE {name} histogram\n"),
            format!("{name}_bucket{{{labels},le=\"0.00000095367431640625\"}} 2\n"),
            format!("{name}_bucket{{{labels},le=\"0.00390625\"}} 3\n"),
            format!("{name}_bucket{{{labels},le=\"64\"}} 3\n"),
            format!("{name}_bucket{{{labels},le=\"+Inf\"}} 4\n"),
            format!("{name}_count{{{labels}}} 4\n"),
            "# TYPE tollgate_link_bytes_total counter\ntollgate_link_bytes_total 7\n".to_owned(),
            "# TYPE tollgate_heap_used_bytes gauge\ntollgate_heap_used_bytes 0.5\n".to_owned(),
        ];
        for wanted in wanted {
            assert!(text.contains(&wanted), "{wanted} isn't in\n{text}");
        }
        assert!(!text.contains("trace_id"), "the format has no exemplars");
    }

    #[test]
    fn openmetrics_has_an_exemplar_and_an_end() {
        let text = text(&metrics(), Format::OpenMetrics, NOW);
        let (trace, span) = ("ab".repeat(16), "cd".repeat(8));
        let exemplar = format!(
            "le=\"0.00390625\"}} 3 # {{trace_id=\"{trace}\",span_id=\"{span}\"}} 0.003 1700000000.000\n"
        );
        assert!(text.contains(&exemplar), "{text}");
        assert_eq!(text.matches("trace_id").count(), 1);
        assert!(text.contains("# TYPE tollgate_link_bytes counter\ntollgate_link_bytes_total 7\n"));
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_scraper_says_what_it_reads() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let open = "application/openmetrics-text;version=1.0.0";
        for (accept, expected) in [
            (
                format!("{open},text/plain;version=0.0.4;q=0.5"),
                Format::OpenMetrics,
            ),
            (
                format!("{open};q=0.2, text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
                Format::Prometheus,
            ),
            (
                format!("{protobuf},{open};q=0.8,text/plain;q=0.5"),
                Format::Protobuf,
            ),
            (
                format!("{protobuf};q=0.6,{open};q=0.8"),
                Format::OpenMetrics,
            ),
            (
                format!("{};q=1", protobuf.replace(';', " ; ")),
                Format::Protobuf,
            ),
            // Other encodings of the same messages aren't supported.
            (protobuf.replace("delimited", "text"), Format::Prometheus),
            (
                "application/vnd.google.protobuf".to_owned(),
                Format::Prometheus,
            ),
            (format!("{open};q=NaN"), Format::Prometheus),
            (format!("{open};q=0"), Format::Prometheus),
            ("*/*".to_owned(), Format::Prometheus),
            (String::new(), Format::Prometheus),
            (",;q=,;;".to_owned(), Format::Prometheus),
        ] {
            let format = Format::accepted(&accept);
            assert_eq!(format, expected, "{accept}");
            let kind = format.content_type().split(';').next().unwrap();
            assert!(
                accept.contains(kind) || format == Format::Prometheus,
                "{accept}"
            );
        }
    }
}

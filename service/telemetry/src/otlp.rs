//! Spans, lines and metrics as OTLP messages.
//!
//! Everything comes from one resource, the daemon; the tenant is an attribute. Names follow
//! OpenTelemetry's conventions for RPC (`rpc.system.name`, `rpc.method`,
//! `rpc.response.status_code`, `error.type`); Tollgate's own names begin with `tollgate.`.
//! Monotonic times become times since the epoch here.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value as Any,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar as OtlpExemplar, ExponentialHistogram,
    ExponentialHistogramDataPoint, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics,
    Sum, exemplar, exponential_histogram_data_point::Buckets, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use crate::exposition::Now;
use crate::histogram::{Exemplar, Histogram, SCALE, seconds};
use crate::metrics::{Family, Kind, Metrics, Point, TENANT, Value};
use crate::record::{Attribute, Line, Outcome, POLICY, PROVIDERS_POLICY, Side, Span};

mod spans;

pub use spans::TracesRequest;

/// The daemon, as the resource of all data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// The name by which peers and status know it.
    pub name: String,
    /// The version of its program.
    pub version: &'static str,
    /// The start of its counts, in nanoseconds since the epoch.
    pub started_unix_ns: u64,
}

impl Daemon {
    fn resource(&self) -> Resource {
        Resource {
            attributes: vec![
                text("service.name", "tollgated"),
                text("service.instance.id", &self.name),
                text("service.version", self.version),
            ],
            ..Resource::default()
        }
    }

    fn scope(&self) -> InstrumentationScope {
        InstrumentationScope {
            name: "tollgate".to_owned(),
            version: self.version.to_owned(),
            ..InstrumentationScope::default()
        }
    }

    /// Converts spans to a request.
    pub fn traces(&self, spans: &[Arc<Span>], now: Now) -> TracesRequest {
        let mut writer = spans::Writer::default();
        let written = spans.iter().map(|span| writer.write(span, now));
        let scope_spans = spans::ScopeSpans {
            scope: Some(self.scope()),
            spans: written.collect(),
        };
        TracesRequest {
            resource_spans: vec![spans::ResourceSpans {
                resource: Some(self.resource()),
                scope_spans: vec![scope_spans],
            }],
        }
    }

    /// Converts lines to a request.
    pub fn logs(&self, lines: &[Box<Line>], now: Now) -> ExportLogsServiceRequest {
        let log_records = lines.iter().map(|line| line_of(line, now)).collect();
        let scope_logs = ScopeLogs {
            scope: Some(self.scope()),
            log_records,
            ..ScopeLogs::default()
        };
        ExportLogsServiceRequest {
            resource_logs: vec![ResourceLogs {
                resource: Some(self.resource()),
                scope_logs: vec![scope_logs],
                ..ResourceLogs::default()
            }],
        }
    }

    /// Converts metrics to a request.
    pub fn metrics(&self, metrics: &Metrics, now: Now) -> ExportMetricsServiceRequest {
        let families = metrics.families.iter();
        let scope_metrics = ScopeMetrics {
            scope: Some(self.scope()),
            metrics: families.map(|f| self.family(f, now)).collect(),
            ..ScopeMetrics::default()
        };
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource()),
                scope_metrics: vec![scope_metrics],
                ..ResourceMetrics::default()
            }],
        }
    }

    fn family(&self, family: &Family, now: Now) -> Metric {
        let aggregation_temporality = AggregationTemporality::Cumulative as i32;
        let numbers = || {
            let points = family.points.iter();
            points.filter_map(|p| self.number(p, now)).collect()
        };
        let data = match family.kind {
            Kind::Counter => metric::Data::Sum(Sum {
                data_points: numbers(),
                aggregation_temporality,
                is_monotonic: true,
            }),
            Kind::Gauge => metric::Data::Gauge(Gauge {
                data_points: numbers(),
            }),
            Kind::Histogram => {
                let points = family.points.iter();
                metric::Data::ExponentialHistogram(ExponentialHistogram {
                    data_points: points.filter_map(|p| self.durations(p, now)).collect(),
                    aggregation_temporality,
                })
            }
        };
        Metric {
            name: family.name.to_owned(),
            description: family.help.to_owned(),
            unit: family.unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        }
    }

    fn number(&self, point: &Point, now: Now) -> Option<NumberDataPoint> {
        let value = match &point.value {
            Value::Count(count) => number_data_point::Value::AsInt(*count as i64),
            Value::Measure(measure) => number_data_point::Value::AsDouble(*measure),
            Value::Durations(_) => return None,
        };
        Some(NumberDataPoint {
            attributes: labels_of(point),
            start_time_unix_nano: self.started_unix_ns,
            time_unix_nano: now.unix_ns,
            value: Some(value),
            ..NumberDataPoint::default()
        })
    }

    fn durations(&self, point: &Point, now: Now) -> Option<ExponentialHistogramDataPoint> {
        let Value::Durations(histogram) = &point.value else {
            return None;
        };
        let histogram: &Histogram = histogram;
        let (offset, counts) = histogram.positive();
        Some(ExponentialHistogramDataPoint {
            attributes: labels_of(point),
            start_time_unix_nano: self.started_unix_ns,
            time_unix_nano: now.unix_ns,
            count: histogram.count(),
            sum: Some(histogram.sum()),
            max: Some(histogram.max()),
            scale: SCALE,
            zero_count: histogram.zero(),
            positive: Some(Buckets {
                offset,
                bucket_counts: counts.to_vec(),
            }),
            exemplars: histogram
                .exemplar()
                .map(|e| exemplar_of(e, now))
                .into_iter()
                .collect(),
            ..ExponentialHistogramDataPoint::default()
        })
    }
}

fn exemplar_of(exemplar: Exemplar, now: Now) -> OtlpExemplar {
    OtlpExemplar {
        time_unix_nano: now.unix_of(exemplar.at_ns),
        trace_id: exemplar.trace.bytes().to_vec(),
        span_id: exemplar.span.bytes().to_vec(),
        value: Some(exemplar::Value::AsDouble(seconds(exemplar.took_ns))),
        ..OtlpExemplar::default()
    }
}

fn line_of(line: &Line, now: Now) -> LogRecord {
    let mut attributes = call_attributes(&line.tenant, &line.method, &line.outcome);
    let side = match line.side {
        Side::Client => "client",
        Side::Server => "server",
    };
    attributes.push(text("tollgate.side", side));
    if let Some(policy) = &line.policy {
        let key = match line.is_providers {
            true => PROVIDERS_POLICY,
            false => POLICY,
        };
        attributes.push(text(key, policy));
    }
    if line.withheld > 0 {
        attributes.push(pair(&("tollgate.withheld", (line.withheld as i64).into())));
    }
    let ids = |(trace, span): (crate::w3c::TraceId, crate::w3c::SpanId)| {
        (trace.bytes().to_vec(), span.bytes().to_vec())
    };
    let (trace_id, span_id) = line.span.map(ids).unwrap_or_default();
    let at = now.unix_of(line.at_ns);
    LogRecord {
        time_unix_nano: at,
        observed_time_unix_nano: at,
        severity_number: SeverityNumber::Warn as i32,
        severity_text: "WARN".to_owned(),
        body: Some(AnyValue {
            value: Some(Any::StringValue(line.outcome.message.clone())),
        }),
        attributes,
        trace_id,
        span_id,
        event_name: "tollgate.call.failed".to_owned(),
        ..LogRecord::default()
    }
}

fn call_attributes(tenant: &str, method: &str, outcome: &Outcome) -> Vec<KeyValue> {
    let mut attributes = vec![
        text("rpc.system.name", "tollgate"),
        text("rpc.method", method),
        text("rpc.response.status_code", outcome.code),
        text(TENANT, tenant),
    ];
    if outcome.is_error {
        attributes.push(text("error.type", outcome.code));
    }
    attributes
}

fn labels_of(point: &Point) -> Vec<KeyValue> {
    let tenant = point.tenant.as_deref().map(|tenant| text(TENANT, tenant));
    let others = point.labels.iter().map(|(key, value)| text(key, value));
    tenant.into_iter().chain(others).collect()
}

fn text(key: &str, value: &str) -> KeyValue {
    key_value(key, Any::StringValue(value.to_owned()))
}

fn pair((key, value): &(&'static str, Attribute)) -> KeyValue {
    let value = match value {
        Attribute::Text(text) => Any::StringValue(text.to_string()),
        Attribute::Number(number) => Any::IntValue(*number),
    };
    key_value(key, value)
}

fn key_value(key: &str, value: Any) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

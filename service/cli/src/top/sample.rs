//! A daemon's counters at one moment, from its report. Reports may be older, newer or nonsensical.
//!
//! A missing or impossible number counts as zero, and unknown fields are skipped: no report is
//! refused. All text is shown without control characters.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::limits::{MAX_BUCKETS, MAX_NAME_CHARS};
use crate::output;

/// The side on which calls were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}

/// The key of a series of durations. Without a tenant: calls that had no series of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Calls {
    pub(crate) tenant: Option<String>,
    pub(crate) method: String,
    pub(crate) side: Side,
    pub(crate) status: String,
}

/// Durations of calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Durations {
    pub(crate) count: u64,
    /// Number of durations too short for the daemon's clock.
    pub(crate) zero: u64,
    /// The number of buckets per octave is 2 to the power of this.
    pub(crate) scale: i32,
    /// Counts by OpenTelemetry's bucket index.
    pub(crate) buckets: BTreeMap<i32, u64>,
    pub(crate) is_error: bool,
}

/// A version of a policy. Without a tenant: the provider's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) tenant: Option<String>,
    pub(crate) name: String,
    pub(crate) version: String,
}

/// The verdicts and costs of a version, summed over all places.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Evaluated {
    /// With any verdict.
    pub(crate) calls: u64,
    pub(crate) denied: u64,
    /// Not evaluated because the version was out of order.
    pub(crate) refused: u64,
    pub(crate) faults: u64,
    pub(crate) cpu_s: f64,
}

/// How long a runtime has been in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub(crate) busy_s: f64,
    pub(crate) spinning_s: f64,
    pub(crate) sleeping_s: f64,
}

/// The counters of one report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The origin of the counters: the process, and when it began to count.
    pub(crate) counter: (u64, u64),
    pub(crate) now_ns: u64,
    pub(crate) sessions: u64,
    pub(crate) services: u64,
    pub(crate) links: u64,
    pub(crate) ready_links: u64,
    pub(crate) live_calls: u64,
    pub(crate) durations: BTreeMap<Calls, Durations>,
    pub(crate) policies: BTreeMap<Version, Evaluated>,
    /// The versions that are out of force at some place.
    pub(crate) quarantined: BTreeSet<Version>,
    pub(crate) runtimes: BTreeMap<u64, Times>,
}

impl Sample {
    pub(crate) fn of(report: &Value) -> Sample {
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let mut sample = Sample {
            name: text(&report["name"]),
            version: text(&report["version"]),
            counter: (count(&report["pid"]), count(&report["began_ns"])),
            now_ns: count(&report["now_ns"]),
            sessions: count(&report["sessions"]),
            services: count(&report["services"]),
            links: count(&report["links"]["all"]),
            ready_links: count(&report["links"]["ready"]),
            ..Sample::default()
        };
        for one in list(&report["quarantined"])
            .iter()
            .filter(|one| one.is_object())
        {
            let version = Version {
                tenant: tenant(one),
                name: text(&one["name"]),
                version: text(&one["version"]),
            };
            // The version is shown even if it never evaluated.
            sample.policies.entry(version.clone()).or_default();
            sample.quarantined.insert(version);
        }
        for family in list(&report["metrics"]) {
            let name = family["name"].as_str().unwrap_or_default();
            for point in list(&family["points"]) {
                sample.add(name, point);
            }
        }
        // Metrics still contain runtimes that have ended. The others are numbered from 0 on.
        if let Some(runtimes) = report["runtimes"].as_u64() {
            sample.runtimes.retain(|runtime, _| *runtime < runtimes);
        }
        sample
    }

    fn add(&mut self, family: &str, point: &Value) {
        let value = &point["value"];
        let (count, seconds) = (value.as_u64().unwrap_or(0), measure(value));
        match family {
            "rpc.client.call.duration" => self.add_durations(Side::Client, point),
            "rpc.server.call.duration" => self.add_durations(Side::Server, point),
            "tollgate.policy.calls" => {
                let decision = label(point, "tollgate.policy.decision");
                let evaluated = self.evaluated(point);
                evaluated.calls = evaluated.calls.saturating_add(count);
                match &*decision {
                    "denied" => evaluated.denied = evaluated.denied.saturating_add(count),
                    "refused" => evaluated.refused = evaluated.refused.saturating_add(count),
                    _ => {}
                }
            }
            "tollgate.policy.faults" => {
                let evaluated = self.evaluated(point);
                evaluated.faults = evaluated.faults.saturating_add(count);
            }
            "tollgate.policy.cpu.time" => self.evaluated(point).cpu_s += seconds,
            "tollgate.runtime.time" => self.add_time(point, seconds),
            "tollgate.calls.live" => self.live_calls = self.live_calls.saturating_add(count),
            _ => {}
        }
    }

    fn add_durations(&mut self, side: Side, point: &Value) {
        let is_rest = !point["labels"]["otel.metric.overflow"].is_null();
        let calls = Calls {
            tenant: tenant(point),
            method: match is_rest {
                true => "(all others)".to_owned(),
                false => label(point, "rpc.method"),
            },
            side,
            status: label(point, "rpc.response.status_code"),
        };
        let mut durations = Durations::of(&point["value"]);
        durations.is_error = !point["labels"]["error.type"].is_null();
        self.durations.insert(calls, durations);
    }

    fn evaluated(&mut self, point: &Value) -> &mut Evaluated {
        let version = Version {
            tenant: tenant(point),
            name: label(point, "tollgate.policy.name"),
            version: label(point, "tollgate.policy.version"),
        };
        self.policies.entry(version).or_default()
    }

    fn add_time(&mut self, point: &Value, seconds: f64) {
        let Ok(runtime) = label(point, "tollgate.runtime").parse() else {
            return;
        };
        let times = self.runtimes.entry(runtime).or_default();
        match &*label(point, "tollgate.runtime.state") {
            "busy" => times.busy_s += seconds,
            "spinning" => times.spinning_s += seconds,
            "sleeping" => times.sleeping_s += seconds,
            _ => {}
        }
    }
}

impl Durations {
    fn of(value: &Value) -> Durations {
        let number = |value: &Value| value.as_i64().and_then(|n| i32::try_from(n).ok());
        let (first, scale) = (number(&value["first"]), number(&value["scale"]));
        let mut durations = Durations {
            count: value["count"].as_u64().unwrap_or(0),
            zero: value["zero"].as_u64().unwrap_or(0),
            ..Durations::default()
        };
        // OpenTelemetry's scales. Without a scale or an offset the buckets are meaningless.
        let (Some(first), Some(scale @ -10..=20)) = (first, scale) else {
            return durations;
        };
        durations.scale = scale;
        let indices = (0..MAX_BUCKETS as i32).map_while(|k| first.checked_add(k));
        let counts = list(&value["buckets"]).iter().map(Value::as_u64);
        let counts = indices.zip(counts.map(|count| count.unwrap_or(0)));
        durations.buckets = counts.filter(|(_, count)| *count > 0).collect();
        durations
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn measure(value: &Value) -> f64 {
    let number = value.as_f64().unwrap_or(0.0);
    if number.is_finite() {
        number.max(0.0)
    } else {
        0.0
    }
}

fn label(point: &Value, name: &str) -> String {
    text(&point["labels"][name])
}

fn tenant(point: &Value) -> Option<String> {
    point["tenant"].as_str().map(shown)
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| "?".to_owned(), shown)
}

/// A text without control characters, cut to the maximum length.
pub(crate) fn shown(text: &str) -> String {
    output::plain(text).chars().take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_report_is_refused() {
        for report in [
            json!(null),
            json!([1, 2]),
            json!({"name": 7, "links": "none", "metrics": {"a": 1}}),
            json!({"metrics": [1, {"name": "rpc.client.call.duration", "points": [null, 3, {"value": []}]}]}),
            json!({"now_ns": -1, "pid": 1.5, "metrics": [{"name": "tollgate.runtime.time", "points": [{"value": -1e308}]}]}),
        ] {
            let sample = Sample::of(&report);
            assert_eq!(sample.name, "?", "{report}");
            assert!(sample.runtimes.is_empty() && sample.policies.is_empty());
        }
    }

    #[test]
    fn a_runtime_that_has_ended_is_not_shown() {
        let point = |runtime: u64| {
            let labels =
                json!({"tollgate.runtime": runtime.to_string(), "tollgate.runtime.state": "busy"});
            json!({"labels": labels, "value": 1.0})
        };
        let family = json!({"name": "tollgate.runtime.time", "points": [point(0), point(1)]});
        let shown = |report: &Value| Sample::of(report).runtimes.into_keys().collect::<Vec<_>>();
        let mut report = json!({"metrics": [family]});
        assert_eq!(shown(&report), [0, 1], "of an older daemon");
        report["runtimes"] = json!(1);
        assert_eq!(shown(&report), [0]);
    }

    #[test]
    fn buckets_that_cannot_be_are_none() {
        let of = |first: i64, scale: i64, buckets: usize| {
            let buckets = vec![1; buckets];
            let value = json!({"count": 1, "first": first, "scale": scale, "buckets": buckets});
            Durations::of(&value)
        };
        assert_eq!(of(-80, 3, 2).buckets, [(-80, 1), (-79, 1)].into());
        assert_eq!(of(i64::MAX, 3, 2).buckets, [].into());
        assert_eq!(
            of(i64::from(i32::MAX), 3, 2).buckets,
            [(i32::MAX, 1)].into()
        );
        assert_eq!(of(0, 21, 2).buckets, [].into());
        assert_eq!(of(0, 3, MAX_BUCKETS + 1).buckets.len(), MAX_BUCKETS);
    }

    #[test]
    fn names_do_not_move_the_cursor() {
        assert_eq!(shown("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(shown(&"x".repeat(MAX_NAME_CHARS + 1)).len(), MAX_NAME_CHARS);
    }
}

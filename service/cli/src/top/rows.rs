//! The difference between two samples of one daemon, as rows: rates, percentiles, shares.
//!
//! Percentiles are those of the interval: the later histogram's buckets minus the earlier one's. A
//! bucket of scale 3 spans a factor of 2^(1/8). The shown value is its geometric middle, so the
//! error is at most 4.4 percent (2^(1/16)), plus the error of the clock of turns. 0 means: too
//! short to measure.
//!
//! A counter that has gone down has restarted, and so does its rate. All counters have restarted if
//! another process counts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::top::args::Sort;
use crate::top::sample::{Calls, Durations, Evaluated, Sample, Side, Times};

/// The calls of a method on one side, with any status.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Method {
    pub(crate) tenant: Option<String>,
    pub(crate) method: String,
    pub(crate) side: Side,
    /// Calls since the daemon began to count.
    pub(crate) total: u64,
    pub(crate) total_denied: u64,
    /// Calls in the interval.
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) denied: u64,
    /// In seconds; `None` without calls.
    pub(crate) p50_s: Option<f64>,
    pub(crate) p99_s: Option<f64>,
}

/// A version of a policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    pub(crate) tenant: Option<String>,
    /// `name@version`.
    pub(crate) policy: String,
    /// It is out of force at some place, because of its faults.
    pub(crate) is_quarantined: bool,
    pub(crate) total: Evaluated,
    pub(crate) calls: u64,
    pub(crate) denied: u64,
    pub(crate) refused: u64,
    pub(crate) faults: u64,
    /// CPU time as a share of one core; 1 is all of it.
    pub(crate) cpu: f64,
}

/// A runtime; shares of the interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Runtime {
    pub(crate) runtime: u64,
    pub(crate) busy: f64,
    pub(crate) spinning: f64,
    pub(crate) sleeping: f64,
}

/// An interval of a daemon.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) now: Sample,
    pub(crate) interval: Duration,
    pub(crate) methods: Vec<Method>,
    pub(crate) policies: Vec<Policy>,
    pub(crate) runtimes: Vec<Runtime>,
}

impl View {
    /// The interval between two samples: for one tenant's calls and policies, or for all.
    pub(crate) fn between(before: &Sample, now: &Sample, tenant: Option<&str>) -> View {
        let nothing = Sample::default();
        let is_same = before.counter == now.counter && before.now_ns < now.now_ns;
        // Without an earlier sample there is no interval, and no calls in it.
        let (before, interval) = match is_same {
            true => (before, Duration::from_nanos(now.now_ns - before.now_ns)),
            false => (&nothing, Duration::ZERO),
        };
        let is_meant = |whose: &Option<String>| tenant.is_none() || whose.as_deref() == tenant;
        let mut view = View {
            now: now.clone(),
            interval,
            methods: methods(before, now),
            policies: policies(before, now, interval),
            runtimes: runtimes(before, now),
        };
        view.methods.retain(|row| is_meant(&row.tenant));
        view.policies.retain(|row| is_meant(&row.tenant));
        if interval.is_zero() {
            view.begin_anew();
        }
        view
    }

    /// Resets the row to totals only.
    fn begin_anew(&mut self) {
        for row in &mut self.methods {
            (row.calls, row.errors, row.denied) = (0, 0, 0);
            (row.p50_s, row.p99_s) = (None, None);
        }
        for row in &mut self.policies {
            (row.calls, row.denied, row.refused, row.faults) = (0, 0, 0, 0);
        }
        self.runtimes.clear();
    }

    /// Sorts the rows by this key; equal rows by name.
    pub(crate) fn sort(&mut self, by: Sort) {
        let bits = |seconds: Option<f64>| seconds.map_or(0, f64::to_bits);
        // Positive doubles have the order of their bits.
        self.methods.sort_by_key(|row| {
            let key = match by {
                Sort::Rate | Sort::Cpu => (row.calls, 0),
                Sort::P99 => (bits(row.p99_s), row.calls),
                Sort::Denials => (row.denied, row.calls),
            };
            std::cmp::Reverse(key)
        });
        self.policies.sort_by_key(|row| {
            let key = match by {
                Sort::Rate => (row.calls, 0),
                Sort::P99 | Sort::Cpu => (row.cpu.to_bits(), row.calls),
                Sort::Denials => (row.denied, row.calls),
            };
            std::cmp::Reverse(key)
        });
    }

    /// A count of the interval per second.
    pub(crate) fn per_second(&self, count: u64) -> f64 {
        match self.interval.is_zero() {
            true => 0.0,
            false => count as f64 / self.interval.as_secs_f64(),
        }
    }

    /// Calls, errors and denials of one side, all methods together.
    pub(crate) fn sums(&self, side: Side) -> [u64; 3] {
        let rows = self.methods.iter().filter(|row| row.side == side);
        rows.fold([0; 3], |[calls, errors, denied], row| {
            [
                calls.saturating_add(row.calls),
                errors.saturating_add(row.errors),
                denied.saturating_add(row.denied),
            ]
        })
    }

    /// How long the daemon has counted.
    pub(crate) fn up(&self) -> Duration {
        Duration::from_nanos(self.now.now_ns.saturating_sub(self.now.counter.1))
    }

    /// The view as JSON, for programs.
    pub(crate) fn json(&self) -> Value {
        let methods = self.methods.iter().map(|row| {
            json!({
                "tenant": row.tenant, "method": row.method, "side": row.side.name(), "total": row.total, "total_denied": row.total_denied,
                "calls": row.calls, "errors": row.errors, "denied": row.denied, "calls_per_s": self.per_second(row.calls),
                "p50_us": row.p50_s.map(|s| s * 1e6), "p99_us": row.p99_s.map(|s| s * 1e6),
            })
        });
        let policies = self.policies.iter().map(|row| {
            json!({
                "tenant": row.tenant, "policy": row.policy, "quarantined": row.is_quarantined, "total": row.total.calls, "total_denied": row.total.denied,
                "total_faults": row.total.faults, "calls": row.calls, "denied": row.denied, "refused": row.refused, "faults": row.faults,
                "calls_per_s": self.per_second(row.calls), "cpu": row.cpu,
            })
        });
        let runtimes = self.runtimes.iter().map(|row| {
            json!({"runtime": row.runtime, "busy": row.busy, "spinning": row.spinning, "sleeping": row.sleeping})
        });
        json!({
            "name": self.now.name, "version": self.now.version, "pid": self.now.counter.0, "up_s": self.up().as_secs_f64(),
            "interval_s": self.interval.as_secs_f64(), "sessions": self.now.sessions, "services": self.now.services,
            "links": {"all": self.now.links, "ready": self.now.ready_links}, "live_calls": self.now.live_calls,
            "methods": methods.collect::<Vec<_>>(), "policies": policies.collect::<Vec<_>>(), "runtimes": runtimes.collect::<Vec<_>>(),
        })
    }
}

/// The methods, with all statuses of a method together.
fn methods(before: &Sample, now: &Sample) -> Vec<Method> {
    let mut rows: BTreeMap<_, (Method, Durations)> = BTreeMap::new();
    for (calls, durations) in &now.durations {
        let Calls {
            tenant,
            method,
            side,
            status,
        } = calls;
        let key = (tenant, method, side);
        let (row, all) = rows.entry(key).or_insert_with(|| {
            let row = Method {
                tenant: tenant.clone(),
                method: method.clone(),
                side: *side,
                total: 0,
                total_denied: 0,
                calls: 0,
                errors: 0,
                denied: 0,
                p50_s: None,
                p99_s: None,
            };
            (row, Durations::default())
        });
        let more = durations.since(before.durations.get(calls));
        row.total = row.total.saturating_add(durations.count);
        row.calls = row.calls.saturating_add(more.count);
        if durations.is_error {
            row.errors = row.errors.saturating_add(more.count);
        }
        if status == "PERMISSION_DENIED" {
            row.total_denied = row.total_denied.saturating_add(durations.count);
            row.denied = row.denied.saturating_add(more.count);
        }
        all.absorb(&more);
    }
    let rows = rows.into_values().map(|(mut row, all)| {
        row.p50_s = all.quantile(0.5);
        row.p99_s = all.quantile(0.99);
        row
    });
    rows.collect()
}

fn policies(before: &Sample, now: &Sample, interval: Duration) -> Vec<Policy> {
    let rows = now.policies.iter().map(|(version, evaluated)| {
        let nothing = Evaluated::default();
        let before = before.policies.get(version).unwrap_or(&nothing);
        let cpu_s = more_of(before.cpu_s, evaluated.cpu_s);
        let cpu = match interval.is_zero() {
            true => 0.0,
            false => cpu_s / interval.as_secs_f64(),
        };
        Policy {
            tenant: version.tenant.clone(),
            policy: format!("{}@{}", version.name, version.version),
            is_quarantined: now.quarantined.contains(version),
            total: evaluated.clone(),
            calls: evaluated.calls.saturating_sub(before.calls),
            denied: evaluated.denied.saturating_sub(before.denied),
            refused: evaluated.refused.saturating_sub(before.refused),
            faults: evaluated.faults.saturating_sub(before.faults),
            cpu,
        }
    });
    rows.collect()
}

/// Shares of the sum of the three times. The sum is the interval, up to the time of a runtime's
/// last look at the clock.
fn runtimes(before: &Sample, now: &Sample) -> Vec<Runtime> {
    let rows = now.runtimes.iter().map(|(runtime, times)| {
        let nothing = Times::default();
        let before = before.runtimes.get(runtime).unwrap_or(&nothing);
        let busy = more_of(before.busy_s, times.busy_s);
        let spinning = more_of(before.spinning_s, times.spinning_s);
        let sleeping = more_of(before.sleeping_s, times.sleeping_s);
        let all = (busy + spinning + sleeping).max(f64::MIN_POSITIVE);
        Runtime {
            runtime: *runtime,
            busy: busy / all,
            spinning: spinning / all,
            sleeping: sleeping / all,
        }
    });
    rows.collect()
}

/// The increase; never negative.
fn more_of(before: f64, now: f64) -> f64 {
    (now - before).max(0.0)
}

impl Durations {
    /// The durations since an earlier sample. Empty if the counter has restarted since, or has
    /// other buckets.
    fn since(&self, before: Option<&Durations>) -> Durations {
        let Some(before) = before else {
            return self.clone();
        };
        let mut more = self.clone();
        let is_less = self.count < before.count || self.zero < before.zero;
        if is_less || (self.scale != before.scale && before.count > 0) {
            return Durations::default();
        }
        more.count -= before.count;
        more.zero -= before.zero;
        for (index, count) in &before.buckets {
            let own = more.buckets.entry(*index).or_default();
            *own = own.saturating_sub(*count);
        }
        more
    }

    /// Adds another one. All histograms of a daemon have the same scale. Buckets of another scale
    /// are left out, but its calls are counted.
    fn absorb(&mut self, more: &Durations) {
        if self.buckets.is_empty() {
            self.scale = more.scale;
        }
        self.count = self.count.saturating_add(more.count);
        self.zero = self.zero.saturating_add(more.zero);
        if self.scale == more.scale {
            for (index, count) in &more.buckets {
                let own = self.buckets.entry(*index).or_default();
                *own = own.saturating_add(*count);
            }
        }
    }

    /// The duration in seconds that this fraction of the calls didn't exceed; `None` if no calls
    /// are in buckets.
    fn quantile(&self, part: f64) -> Option<f64> {
        let counts = self.buckets.values();
        let all = counts.fold(self.zero, |sum, count| sum.saturating_add(*count));
        if all == 0 {
            return None;
        }
        let rank = ((all as f64 * part).ceil() as u64).clamp(1, all);
        let mut seen = self.zero;
        if rank <= seen {
            return Some(0.0);
        }
        for (index, count) in &self.buckets {
            seen = seen.saturating_add(*count);
            if rank <= seen {
                let middle = (f64::from(*index) + 0.5) / 2f64.powi(self.scale);
                return Some(middle.exp2()).filter(|seconds| seconds.is_finite());
            }
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A daemon's report with these numbers of calls, `at_ns` nanoseconds after its start.
    pub(crate) fn report(at_ns: u64, fine: u64, denied: u64) -> Value {
        let labels = |status: &str, error: bool| {
            let mut labels =
                json!({"rpc.method": "hotel.Echo/Echo", "rpc.response.status_code": status});
            if error {
                labels["error.type"] = status.into();
            }
            labels
        };
        // 2^-13.5 s is 86 us; 2^-5.5 s is 22 ms.
        let slow = fine / 50;
        let mut buckets = vec![0; 65];
        (buckets[0], buckets[64]) = (fine - slow, slow);
        let took = json!({"count": fine, "zero": 0, "sum": 0.1, "scale": 3, "first": -108, "buckets": buckets});
        let at_once = json!({"count": denied, "zero": denied, "sum": 0.0, "scale": 3, "first": -240, "buckets": []});
        let policy = |decision: &str| json!({"tollgate.policy.name": "acl", "tollgate.policy.version": "2", "tollgate.policy.place": "p", "tollgate.policy.decision": decision});
        let state = |state: &str| json!({"tollgate.runtime": "0", "tollgate.runtime.state": state});
        let s = at_ns as f64 / 1e9;
        json!({
            "name": "a", "version": "0.1.0", "pid": 7, "began_ns": 1_000, "now_ns": 1_000 + at_ns, "sessions": 3, "services": 1,
            "links": {"all": 2, "ready": 1},
            "metrics": [
                {"name": "rpc.client.call.duration", "points": [
                    {"tenant": "acme", "labels": labels("OK", false), "value": took},
                    {"tenant": "acme", "labels": labels("PERMISSION_DENIED", true), "value": at_once},
                    {"tenant": "bank", "labels": labels("OK", false), "value": took},
                ]},
                {"name": "rpc.server.call.duration", "points": [{"tenant": "acme", "labels": labels("OK", false), "value": took}]},
                {"name": "tollgate.policy.calls", "points": [
                    {"tenant": "acme", "labels": policy("allowed"), "value": fine},
                    {"tenant": "acme", "labels": policy("denied"), "value": denied},
                    {"tenant": null, "labels": policy("refused"), "value": 1},
                ]},
                {"name": "tollgate.policy.cpu.time", "points": [{"tenant": "acme", "labels": policy(""), "value": s / 20.0}]},
                {"name": "tollgate.runtime.time", "points": [
                    {"tenant": null, "labels": state("busy"), "value": s * 0.3},
                    {"tenant": null, "labels": state("spinning"), "value": s * 0.2},
                    {"tenant": null, "labels": state("sleeping"), "value": s * 0.5},
                ]},
                {"name": "tollgate.calls.live", "points": [{"tenant": null, "labels": {}, "value": 5}]},
                {"name": "tollgate.of.tomorrow", "points": [{"value": {"a": 1}}]},
            ],
        })
    }

    pub(crate) fn view(tenant: Option<&str>) -> View {
        let before = Sample::of(&report(3_000_000_000, 1_000, 100));
        let now = Sample::of(&report(5_000_000_000, 2_000, 150));
        View::between(&before, &now, tenant)
    }

    fn about(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    }

    #[test]
    fn rates_and_percentiles_are_those_of_the_interval() {
        let view = view(None);
        assert_eq!(view.interval, Duration::from_secs(2));
        assert_eq!(view.up(), Duration::from_secs(5));
        let [acme, server, bank] = &view.methods[..] else {
            panic!("{:?}", view.methods);
        };
        assert_eq!((acme.side, server.side), (Side::Client, Side::Server));
        assert_eq!(bank.tenant.as_deref(), Some("bank"));
        assert_eq!((acme.total, acme.total_denied), (2_150, 150));
        assert_eq!((acme.calls, acme.errors, acme.denied), (1_050, 50, 50));
        assert_eq!(view.per_second(acme.calls), 525.0);
        assert_eq!(view.sums(Side::Client), [2_050, 50, 50]);
        about(acme.p50_s, 2f64.powf(-107.5 / 8.0));
        about(acme.p99_s, 2f64.powf(-43.5 / 8.0));
        let [provider, own] = &view.policies[..] else {
            panic!("{:?}", view.policies);
        };
        assert_eq!((provider.total.refused, provider.calls), (1, 0));
        assert_eq!(own.policy, "acl@2");
        assert_eq!((own.calls, own.denied), (1_050, 50));
        assert!((own.cpu - 0.05).abs() < 1e-9);
        let runtime = view.runtimes[0];
        assert!((runtime.busy - 0.3).abs() < 1e-9 && (runtime.spinning - 0.2).abs() < 1e-9);
        assert_eq!(super::View::json(&view)["methods"][0]["denied"], 50);
    }

    #[test]
    fn a_percentile_is_off_by_no_more_than_its_bucket() {
        let mut durations = Durations {
            scale: 3,
            ..Durations::default()
        };
        let times: Vec<f64> = (1..=1_000).map(|k| f64::from(k) * 17e-6).collect();
        for time in &times {
            let index = (time.log2() * 8.0).ceil() as i32 - 1;
            *durations.buckets.entry(index).or_default() += 1;
        }
        for part in [0.001, 0.5, 0.9, 0.99, 1.0] {
            let exact = times[(part * 1_000.0) as usize - 1];
            let off = durations.quantile(part).unwrap() / exact;
            assert!((off.log2()).abs() <= 1.0 / 16.0 + 1e-9, "{part}: {off}");
        }
        durations.zero = 3_000;
        assert_eq!(durations.quantile(0.5), Some(0.0));
        assert_eq!(Durations::default().quantile(0.5), None);
    }

    #[test]
    fn what_counts_anew_begins_anew() {
        let before = Sample::of(&report(5_000_000_000, 2_000, 100));
        // One series has restarted, and the others go on.
        let now = Sample::of(&report(6_000_000_000, 2_100, 1));
        let view = View::between(&before, &now, Some("acme"));
        let row = &view.methods[0];
        assert_eq!((row.calls, row.denied, row.total_denied), (100, 0, 1));
        // Another process counts.
        let mut now = report(7_000_000_000, 5_000, 300);
        now["began_ns"] = json!(2_000);
        let view = View::between(&before, &Sample::of(&now), None);
        assert_eq!(view.interval, Duration::ZERO);
        let row = &view.methods[0];
        assert_eq!((row.calls, row.total, row.p50_s), (0, 5_300, None));
        assert_eq!((view.per_second(7), view.policies[1].calls), (0.0, 0));
        assert!(view.runtimes.is_empty());
    }

    #[test]
    fn rows_are_sorted_by_what_is_asked() {
        let mut view = view(None);
        let first = |view: &View| (view.methods[0].side, view.methods[0].tenant.clone());
        let acme = Some("acme".to_owned());
        view.methods[1].p99_s = Some(9.0);
        for (by, side) in [
            (Sort::Rate, Side::Client),
            (Sort::P99, Side::Server),
            (Sort::Denials, Side::Client),
            (Sort::Cpu, Side::Client),
        ] {
            view.sort(by);
            assert_eq!(first(&view), (side, acme.clone()), "{by:?}");
            assert_eq!(view.policies[0].tenant, acme, "{by:?}");
        }
    }

    #[test]
    fn a_tenant_sees_its_own_rows() {
        let view = view(Some("bank"));
        assert_eq!((view.methods.len(), view.policies.len()), (1, 0));
        assert_eq!(view.sums(Side::Server), [0; 3]);
    }

    #[test]
    fn nonsense_has_rows_too() {
        let mut wild = report(u64::MAX - 1_000, u64::MAX / 2, u64::MAX);
        wild["began_ns"] = json!(u64::MAX);
        let (wild, sane) = (Sample::of(&wild), Sample::of(&report(1, 1, 1)));
        for (before, now) in [(&wild, &sane), (&sane, &wild), (&wild, &wild)] {
            let mut view = View::between(before, now, None);
            view.sort(Sort::P99);
            assert_eq!(view.json()["methods"].as_array().unwrap().len(), 3);
        }
    }
}

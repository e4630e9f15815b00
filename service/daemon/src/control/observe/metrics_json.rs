//! Data of live views, as JSON: all metrics, with their time.
//!
//! The numbers are those of [`telemetry`]. They only grow, so a viewer computes the difference of
//! two answers. The daemon stores nothing for it, and computes only on request. `pid` and
//! `began_ns` identify a process that restarted its counters.
//!
//! Absent on purpose: percentiles, which depend on an interval that only the viewer knows, and
//! exemplars, which a tracing system shows.

use serde_json::{Map, Value, json};
use tollgate_control::Attachment;
use tollgate_engine::Status;
use tollgate_shm_abi::wait::now_ns;
use tollgate_telemetry::histogram::{Histogram, SCALE};
use tollgate_telemetry::metrics::{Family, Point, Value as Number};

use crate::control::observe::telemetry;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::policies::model::LiveAttachment;
use crate::control::state::Control;

/// All metrics, and the numbers of sessions, services and links; or one tenant's. A tenant's have
/// nothing of the provider's policies, nor of the runtimes, which are everybody's.
pub(crate) async fn report(control: &Control, of: Option<&str>) -> Result<Value, Status> {
    let mut report = telemetry::measure(&control.runtimes).await?;
    let is_its = |tenant: &str| of.is_none_or(|of| of == tenant);
    let links = report.links.iter();
    let links: Vec<_> = links
        .filter(|link| of.is_none() || link.tenant.as_deref().is_some_and(is_its))
        .collect();
    let ready = links.iter().filter(|link| link.state == "ready");
    let links = json!({"all": links.len(), "ready": ready.count()});
    let sessions = report.sessions.iter().filter(|one| is_its(&one.tenant));
    let services = report.services.iter().filter(|one| is_its(one.tenant()));
    let (sessions, services) = (sessions.count(), services.count());
    let mut metrics = telemetry::metrics(&control.policies, &control.exporters, &mut report);
    if let Some(of) = of {
        metrics = metrics.of_tenant(of);
    }
    let families: Vec<_> = metrics.families.iter().map(of_family).collect();
    let mut quarantined = quarantined(&control.policies);
    quarantined.retain(|one| of.is_none_or(|of| one["tenant"] == of));
    let runtimes = of.is_none().then(|| control.runtimes.count());
    Ok(json!({
        "name": control.config().name,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "began_ns": control.process.began_ns,
        "now_ns": now_ns(),
        "sessions": sessions,
        "services": services,
        "links": links,
        "runtimes": runtimes,
        "quarantined": quarantined,
        "metrics": families,
    }))
}

/// Versions that are quarantined somewhere.
fn quarantined(policies: &LivePolicies) -> Vec<Value> {
    let of = |live: &LiveAttachment| {
        let Attachment {
            target,
            policy,
            slot,
            ..
        } = &live.attachment;
        slot.quarantine.as_ref()?;
        let version = slot.stable?.to_string();
        let owner = target.owner();
        Some(json!({"tenant": owner.tenant(), "name": policy, "version": version}))
    };
    let mut all: Vec<_> = policies.read(|attachments| {
        let attached = attachments.live().iter();
        attached.filter_map(|(_, live)| of(live)).collect()
    });
    // Each once, not once per runtime or place.
    all.sort_by_cached_key(Value::to_string);
    all.dedup();
    all
}

fn of_family(family: &Family) -> Value {
    let points: Vec<_> = family.points.iter().map(of_point).collect();
    json!({"name": family.name, "unit": family.unit, "points": points})
}

fn of_point(point: &Point) -> Value {
    let labels = point.labels.iter();
    let labels: Map<_, _> = labels
        .map(|(name, value)| ((*name).to_owned(), Value::from(&**value)))
        .collect();
    let value = match &point.value {
        Number::Count(count) => json!(count),
        Number::Measure(measure) => json!(measure),
        Number::Durations(durations) => of_durations(durations),
    };
    json!({"tenant": point.tenant.as_deref(), "labels": labels, "value": value})
}

/// Bucket k of `buckets` counts durations in (2^((first+k)/2^scale), 2^((first+k+1)/2^scale)]
/// seconds; `zero` counts durations of 0.
fn of_durations(durations: &Histogram) -> Value {
    let (first, buckets) = durations.positive();
    json!({
        "count": durations.count(), "zero": durations.zero(), "sum": durations.sum(), "scale": SCALE, "first": first, "buckets": buckets,
    })
}

#[cfg(test)]
mod tests {
    use tollgate_telemetry::metrics::Kind;

    use super::*;

    #[test]
    fn a_family_has_its_points_with_their_buckets() {
        let mut durations = Histogram::default();
        // Half a second is the upper bound of its bucket.
        for took_ns in [0, 500_000_000, 1_000_000_000, 1_000_000_000] {
            durations.record(took_ns);
        }
        let mut family = Family::new("a.duration", "s", "Time.", Kind::Histogram);
        let labels = vec![("rpc.method", "a.B/C".into())];
        let value = Number::Durations(Box::new(durations));
        family.push(Some(&"acme".into()), labels, value);
        family.push(None, Vec::new(), Number::Count(7));
        family.push(None, Vec::new(), Number::Measure(0.5));
        let buckets = [1, 0, 0, 0, 0, 0, 0, 0, 2];
        let durations =
            json!({"count": 4, "zero": 1, "sum": 2.5, "scale": 3, "first": -9, "buckets": buckets});
        let expected = json!({"name": "a.duration", "unit": "s", "points": [
            {"tenant": "acme", "labels": {"rpc.method": "a.B/C"}, "value": durations},
            {"tenant": null, "labels": {}, "value": 7},
            {"tenant": null, "labels": {}, "value": 0.5},
        ]});
        assert_eq!(of_family(&family), expected);
    }
}

//! Telemetry: the runtimes' counts as metrics under OpenTelemetry's and Prometheus's names, records
//! of single calls, and their destinations.
//!
//! ```text
//!   scrapes ────▶ /metrics ────┐
//!                              ├─ gather: Measure ──▶ every runtime, between two calls
//!   every interval_s ──────────┘      │
//!                                     ▼ families
//!        the scrape's answer, the daemon's exporter, each tenant's exporter (own points only), JSON
//! ```
//!
//! Invariant: points of the provider's policies have no tenant, so only the daemon's own exporter
//! gets them (P5).
//!
//! Absent on purpose: `server.address` on durations, which would multiply every series by its
//! peers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tokio::net::TcpListener;
use tollgate_engine::Status;
use tollgate_telemetry::export::{Counts as Exports, Fate};
use tollgate_telemetry::histogram::{Histogram, seconds};
use tollgate_telemetry::limits::{COLLECT_EVERY, MAX_RECORDS};
use tollgate_telemetry::metrics::{Family, Kind, Metrics, OVERFLOW, Value};
use tollgate_telemetry::prometheus::{Format, write};
use tollgate_telemetry::record::{DECISION, Line, Record, Side};
use tollgate_telemetry::scrape;

use crate::control::observe::exporters::{Exporters, now};
use crate::control::observe::watching;
use crate::control::placement::running::Runtimes;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::state::Control;
use tollgate_datapath::durations::{Kind as Measured, MeasuredOf, is_error};
use tollgate_datapath::report::Report;
use tollgate_datapath::{Command, RuntimeIndex};
use tollgate_policy_chain::counts::{Counts, decision};

type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// Pause before a busy listening address is tried again: the predecessor may still have it, for
/// example.
const LISTEN_AGAIN: Duration = Duration::from_millis(200);

/// Answers scrapes, if they are configured, for as long as this process serves.
pub(crate) async fn follow_scrapes(control: Rc<Control>) {
    let Some(address) = control.config().telemetry.prometheus else {
        return;
    };
    let mut has_warned = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) if !has_warned => {
                has_warned = true;
                tracing::warn!("metrics can't be served at {address} yet: {error}");
            }
            Err(_) => {}
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    };
    if let Ok(address) = listener.local_addr() {
        tracing::info!("metrics are at http://{address}/metrics");
    }
    let shown = Rc::clone(&control);
    let show = move |format: Format| {
        let control = Rc::clone(&shown);
        async move {
            let metrics = gather(&control.runtimes, &control.policies, &control.exporters);
            let metrics = metrics.await;
            metrics.ok().map(|metrics| write(&metrics, format, now()))
        }
    };
    scrape::serve(listener, show).await;
}

/// Exports metrics, if there are exporters.
pub(crate) async fn follow_metrics(control: Rc<Control>) {
    let exporters = &control.exporters;
    if exporters.0.is_empty() {
        return;
    }
    let every = Duration::from_secs(control.config().telemetry.interval_s.into());
    loop {
        tokio::time::sleep(every).await;
        match gather(&control.runtimes, &control.policies, exporters).await {
            Ok(metrics) => exporters.snapshot(&metrics, now()),
            Err(status) => tracing::warn!("metrics can't be gathered: {}", status.message),
        }
    }
}

/// Passes on the records of single calls while there is a destination.
pub(crate) async fn follow_records(control: Rc<Control>, left: Receiver<Record>) {
    let config = control.config();
    let (is_told, is_logged) = (config.telemetry.is_told(), config.telemetry.log_failures);
    loop {
        if !is_told && !is_logged && !control.taps.any() {
            control.taps.opened().await;
        }
        tokio::time::sleep(COLLECT_EVERY).await;
        watching::end_abandoned(&control).await;
        let now = now();
        // A bounded number: a fast runtime can't keep the control plane here.
        for record in left.try_iter().take(MAX_RECORDS) {
            if let (true, Record::Line(line)) = (is_logged, &record) {
                log(line);
            }
            control.taps.note(&record, now);
            control.exporters.push(record, now);
        }
    }
}

/// Logs a failed call in the daemon's own log.
fn log(line: &Line) {
    let (trace, span) = line.span.unzip();
    tracing::info!(
        trace = trace.map(tracing::field::display),
        span = span.map(tracing::field::display),
        tenant = &*line.tenant,
        method = line.method,
        side = ?line.side,
        status = line.outcome.code,
        policy = line.policy,
        withheld = line.withheld,
        // Quoted: an unquoted message could imitate fields.
        "a call failed: {:?}",
        line.outcome.message
    );
}

/// All metrics now.
async fn gather(
    runtimes: &Runtimes,
    policies: &LivePolicies,
    exporters: &Exporters,
) -> Result<Metrics, Status> {
    let mut report = measure(runtimes).await?;
    Ok(metrics(policies, exporters, &mut report))
}

/// The counts and durations of all runtimes.
pub(in crate::control) async fn measure(runtimes: &Runtimes) -> Result<Report, Status> {
    let mut report = runtimes.counted_before();
    let measured = runtimes.ask_all(|_, reply| Command::Measure { reply });
    for measured in measured.await? {
        report.absorb(measured);
    }
    report.merge_shares();
    Ok(report)
}

/// A report as metrics. Takes the report's durations.
pub(in crate::control) fn metrics(
    policies: &LivePolicies,
    exporters: &Exporters,
    report: &mut Report,
) -> Metrics {
    let mut families = durations(report);
    families.extend(of_policies(policies, report));
    families.extend(of_tenants(report));
    families.extend(of_runtimes(report));
    families.extend(of_links(report));
    families.extend(of_exports(exporters));
    families.extend(of_records(report));
    families.retain(|family| !family.points.is_empty());
    Metrics { families }
}

/// Durations. A tenant that moved has series on several runtimes.
fn durations(report: &mut Report) -> Vec<Family> {
    let mut sums: BTreeMap<(Measured, Option<MeasuredOf>), Histogram> = BTreeMap::new();
    for series in report.measured.drain(..) {
        let sum = sums.entry((series.kind, series.of)).or_default();
        sum.absorb(&series.durations);
    }
    let family = |name, help| Family::new(name, "s", help, Kind::Histogram);
    let mut client = family(
        "rpc.client.call.duration",
        "From an application's call to its answer.",
    );
    let mut server = family(
        "rpc.server.call.duration",
        "From a request's arrival at its server's daemon to its answer.",
    );
    let mut waited = family(
        "tollgate.call.queue.duration",
        "From a request's arrival at its server's daemon to its delivery.",
    );
    for ((kind, of), durations) in sums {
        let family = match kind {
            Measured::Client => &mut client,
            Measured::Server => &mut server,
            Measured::Waited => &mut waited,
        };
        let value = Value::Durations(Box::new(durations));
        let Some(of) = of else {
            family.push(None, vec![(OVERFLOW, "true".into())], value);
            continue;
        };
        let method = of.method.map_or(Cow::Borrowed("_OTHER"), Cow::Owned);
        let mut labels: Labels = vec![
            ("rpc.system.name", "tollgate".into()),
            ("rpc.method", method),
        ];
        if kind != Measured::Waited {
            let code = of.code.name().unwrap_or("UNKNOWN");
            labels.push(("rpc.response.status_code", code.into()));
            let side = match kind {
                Measured::Client => Side::Client,
                Measured::Server | Measured::Waited => Side::Server,
            };
            if is_error(side, of.code) {
                labels.push(("error.type", code.into()));
            }
        }
        family.push(Some(&of.tenant), labels, value);
    }
    vec![client, server, waited]
}

/// Each version in each place, by its decisions. The points of a tenant's policies have the tenant;
/// those of the provider's have none.
fn of_policies(policies: &LivePolicies, report: &Report) -> Vec<Family> {
    let counter = |name, unit, help| Family::new(name, unit, help, Kind::Counter);
    let mut calls = counter(
        "tollgate.policy.calls",
        "{call}",
        "Calls that a policy has evaluated, by its decision.",
    );
    let mut faults = counter("tollgate.policy.faults", "{fault}", "Faults of a policy.");
    let mut cpu = counter(
        "tollgate.policy.cpu.time",
        "s",
        "CPU time of a policy's evaluations.",
    );
    let mut memory = Family::new(
        "tollgate.policy.memory",
        "By",
        "Linear memory of a policy's instances, on all runtimes.",
        Kind::Gauge,
    );
    let mut sums: BTreeMap<_, (Counts, u64)> = BTreeMap::new();
    policies.read(|attachments| {
        for policy in &report.policies {
            // A removed attachment has no name any more.
            if let Some(live) = attachments.live().get(policy.id) {
                let attachment = &live.attachment;
                let tenant = attachment.target.owner().tenant().map(Arc::<str>::from);
                let place = attachment.target.to_string();
                let name = attachment.policy.clone();
                let key = (tenant, name, policy.version, place);
                let (counts, memory_bytes) = sums.entry(key).or_default();
                counts.add(&policy.counts);
                *memory_bytes += policy.memory_bytes;
            }
        }
    });
    for ((tenant, name, version, place), (counts, memory_bytes)) in sums {
        let labels = || -> Labels {
            vec![
                ("tollgate.policy.name", name.clone().into()),
                ("tollgate.policy.version", version.to_string().into()),
                ("tollgate.policy.place", place.clone().into()),
            ]
        };
        let tenant = tenant.as_ref();
        for (said, count) in [
            (decision::ALLOWED, counts.allowed),
            (decision::CHANGED, counts.changed),
            (decision::DENIED, counts.denied),
            (decision::REFUSED, counts.refused),
            (decision::UNEVALUATED, counts.unevaluated),
        ] {
            let mut labels = labels();
            labels.push((DECISION, said.into()));
            calls.push(tenant, labels, Value::Count(count));
        }
        faults.push(tenant, labels(), Value::Count(counts.faults));
        let took = Value::Measure(seconds(counts.cpu_ns));
        cpu.push(tenant, labels(), took);
        memory.push(tenant, labels(), Value::Count(memory_bytes));
    }
    vec![calls, faults, cpu, memory]
}

fn of_tenants(report: &Report) -> Vec<Family> {
    let counter = |name, unit, help| Family::new(name, unit, help, Kind::Counter);
    let gauge = |name, unit, help| Family::new(name, unit, help, Kind::Gauge);
    let mut busy = counter(
        "tollgate.tenant.datapath.time",
        "s",
        "Time that a runtime spent on a tenant's calls.",
    );
    for share in &report.shares {
        let tenant = Arc::from(&*share.tenant);
        let took = Value::Measure(seconds(share.busy_ns));
        busy.push(Some(&tenant), Vec::new(), took);
    }
    let mut cpu = counter(
        "tollgate.tenant.policy.cpu.time",
        "s",
        "CPU time of all policies of a tenant.",
    );
    let mut throttled = counter(
        "tollgate.tenant.policy.throttled",
        "{call}",
        "Calls rejected because a tenant's policies had used up their CPU share.",
    );
    let mut waiting = gauge(
        "tollgate.tenant.calls.parked",
        "{call}",
        "Calls that wait for a tenant's policies, or that a policy delays.",
    );
    for account in &report.accounts {
        let tenant = Arc::from(&*account.tenant);
        let took = Value::Measure(seconds(account.cpu_ns));
        cpu.push(Some(&tenant), Vec::new(), took);
        let count = Value::Count(account.throttled);
        throttled.push(Some(&tenant), Vec::new(), count);
        let count = Value::Count(account.waiting as u64);
        waiting.push(Some(&tenant), Vec::new(), count);
    }
    let mut heaps: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for session in &report.sessions {
        let (size, used) = heaps.entry(&session.tenant).or_default();
        *size += session.send_heap_bytes + session.receive_heap_bytes;
        *used += session.receive_heap_used;
    }
    let mut size = gauge(
        "tollgate.tenant.heap.size",
        "By",
        "Shared memory of a tenant's sessions.",
    );
    let mut used = gauge(
        "tollgate.tenant.heap.received",
        "By",
        "Bytes of received messages that a tenant's applications haven't released.",
    );
    for (tenant, (total, taken)) in heaps {
        let tenant = Arc::from(tenant);
        size.push(Some(&tenant), Vec::new(), Value::Count(total));
        used.push(Some(&tenant), Vec::new(), Value::Count(taken));
    }
    vec![busy, cpu, throttled, waiting, size, used]
}

fn of_runtimes(report: &Report) -> Vec<Family> {
    let mut time = Family::new(
        "tollgate.runtime.time",
        "s",
        "Time that a runtime was busy, spinning or sleeping.",
        Kind::Counter,
    );
    // A removed runtime's number is used again.
    let mut sums: BTreeMap<RuntimeIndex, [u64; 3]> = BTreeMap::new();
    for (runtime, times) in &report.times {
        let more = [times.busy_ns, times.spinning_ns, times.sleeping_ns];
        let sum = sums.entry(*runtime).or_default();
        sum.iter_mut()
            .zip(more)
            .for_each(|(sum, more)| *sum += more);
    }
    for (runtime, times) in sums {
        for (state, ns) in ["busy", "spinning", "sleeping"].into_iter().zip(times) {
            let labels = vec![
                ("tollgate.runtime", runtime.to_string().into()),
                ("tollgate.runtime.state", state.into()),
            ];
            time.push(None, labels, Value::Measure(seconds(ns)));
        }
    }
    let mut live = Family::new(
        "tollgate.calls.live",
        "{call}",
        "Calls in flight.",
        Kind::Gauge,
    );
    live.push(None, Vec::new(), Value::Count(report.live_calls as u64));
    vec![time, live]
}

/// Links as metrics. Several links to one peer, such as one dialled and one accepted, make one
/// point.
fn of_links(report: &Report) -> Vec<Family> {
    let mut sums: BTreeMap<(Option<&str>, &str), [u64; 6]> = BTreeMap::new();
    for link in &report.links {
        let sum = sums.entry((link.tenant.as_deref(), &link.address));
        let sum = sum.or_default();
        let credit = [
            u64::from(link.credit_calls),
            link.credit_bytes,
            link.unanswered,
        ];
        sum.iter_mut()
            .zip(credit)
            .for_each(|(sum, more)| *sum += more);
    }
    for link in &report.link_bytes {
        let sum = sums.entry((link.tenant.as_deref(), &link.address));
        let sum = sum.or_default();
        sum[3] += link.sent;
        sum[4] += link.received;
        sum[5] += u64::from(link.retransmits.unwrap_or_default());
    }
    let gauge = |name, unit, help| Family::new(name, unit, help, Kind::Gauge);
    let mut families = [
        gauge(
            "tollgate.link.credit.calls",
            "{call}",
            "Calls that a peer currently accepts.",
        ),
        gauge(
            "tollgate.link.credit.bytes",
            "By",
            "Bytes of calls that a peer currently accepts.",
        ),
        gauge(
            "tollgate.link.unanswered",
            "{call}",
            "Calls that a peer hasn't answered yet.",
        ),
        gauge(
            "tollgate.link.sent",
            "By",
            "Bytes of messages sent since the link was opened.",
        ),
        gauge(
            "tollgate.link.received",
            "By",
            "Bytes of messages received since the link was opened.",
        ),
        gauge(
            "tollgate.link.retransmits",
            "{segment}",
            "TCP segments retransmitted since the connection was opened, by the kernel's count.",
        ),
    ];
    for ((tenant, address), values) in sums {
        let tenant = tenant.map(Arc::from);
        for (family, value) in families.iter_mut().zip(values) {
            let labels = vec![("network.peer.address", address.to_owned().into())];
            family.push(tenant.as_ref(), labels, Value::Count(value));
        }
    }
    families.into()
}

/// The fates of exported items. A tenant sees those of its own endpoint.
fn of_exports(exporters: &Exporters) -> Vec<Family> {
    let mut items = Family::new(
        "tollgate.telemetry.items",
        "{item}",
        "Spans, log lines and snapshots of metrics, by their fate.",
        Kind::Counter,
    );
    let mut failed = Family::new(
        "tollgate.telemetry.failed_requests",
        "{request}",
        "Failed requests to an endpoint, including those that were retried.",
        Kind::Counter,
    );
    for (tenant, exporter) in &exporters.0 {
        let tenant = tenant.as_deref().map(Arc::from);
        let Exports {
            spans,
            lines,
            snapshots,
            failed_requests,
        } = exporter.counts();
        for (signal, fate) in [("spans", spans), ("lines", lines), ("metrics", snapshots)] {
            let Fate {
                exported,
                rejected,
                overflowed,
                failed,
            } = fate;
            let fates = [
                ("exported", exported),
                ("rejected", rejected),
                ("overflowed", overflowed),
                ("failed", failed),
            ];
            for (name, count) in fates {
                let labels = vec![
                    ("tollgate.telemetry.signal", signal.into()),
                    ("tollgate.telemetry.fate", name.into()),
                ];
                items.push(tenant.as_ref(), labels, Value::Count(count));
            }
        }
        failed.push(tenant.as_ref(), Vec::new(), Value::Count(failed_requests));
    }
    vec![items, failed]
}

/// Items that were dropped before the export.
fn of_records(report: &Report) -> Vec<Family> {
    let count = |name, unit, help, count| {
        let mut family = Family::new(name, unit, help, Kind::Counter);
        family.push(None, Vec::new(), Value::Count(count));
        family
    };
    vec![
        count(
            "tollgate.telemetry.untraced",
            "{call}",
            "Sampled calls that weren't traced because the limit of traced calls was reached.",
            report.untraced,
        ),
        count(
            "tollgate.telemetry.unrecorded",
            "{item}",
            "Spans and lines that were dropped on the way to the control plane.",
            report.unrecorded,
        ),
        count(
            "tollgate.log.dropped",
            "{line}",
            "Log lines that were dropped because standard error was too slow.",
            crate::output::dropped_lines(),
        ),
    ]
}

//! Watching single calls: `tollgate tap` as they end, and `tollgate trace` afterwards.
//!
//! ```text
//!   tap    a request ──▶ runtimes get the tap ──▶ a record per matching call as it ends
//!                    ──▶ kept here until the next request
//!          no request for TAP_PATIENCE ──▶ runtimes drop the tap
//!   trace  a request ──▶ every runtime's newest spans ──▶ those of one trace, or the newest traces
//! ```
//!
//! Operators see calls of all tenants and the provider's policies; a tenant's principals see their
//! own calls, without the provider's policies. Nobody sees contents of messages, except for the
//! message of a status. Without watchers, a runtime checks an empty list when a call ends.
//!
//! Absent on purpose: fields of messages, which a runtime no longer has when a call ends.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_admin::proto::TapCallsRequest as Watched;
use tollgate_control::audit::Actor;
use tollgate_control::{Store, check_method};
use tollgate_engine::Status;
use tollgate_schema::spelling::did_you_mean;
use tollgate_shm_abi::status::Code;
use tollgate_telemetry::prometheus::Now;
use tollgate_telemetry::record::{Side, Span};
use tollgate_telemetry::w3c::TraceId;

use crate::config::Config;
use crate::control::observe::exporters::now;
use crate::control::observe::taps::{Taps, View, denied_by, told};
use crate::control::placement::running::Runtimes;
use crate::control::policies::live_policies::LivePolicies;
use crate::control::refusals::{invalid, store_failed};
use crate::control::state::Control;
use crate::limits::{
    MAX_SHOWN_TRACES, MAX_TAPS, MAX_TAPS_PER_TENANT, OPERATORS_TAPS, TAP_PATIENCE,
};
use tollgate_datapath::{Command, RuntimeIndex, Tap};

/// Opens a tap if `known` is 0, or fetches the calls of that tap.
pub(crate) async fn tap(
    control: &Control,
    actor: &Actor,
    known: u64,
    request: Watched,
) -> Result<Value, Status> {
    if known == 0 {
        // A name that is none would take a place, and watch nothing.
        let named = check_method(&request.service, &request.method);
        named.map_err(|error| store_failed(&error))?;
        let _one_at_a_time = control.changes.begin(actor).await?;
        let store = control.changes.store();
        let id = open(
            &control.taps,
            store,
            &control.policies,
            view_of(actor),
            request,
        )?;
        control.tune(false).await?;
        control.taps.told();
        return Ok(json!({"tap": id, "calls": [], "missed": 0}));
    }
    let Some((calls, missed)) = control.taps.fetch(known) else {
        let text = format!(
            "tap {known} doesn't exist: it was never opened, or nobody asked for its calls for {TAP_PATIENCE:?}"
        );
        return Err(Status::new(Code::NOT_FOUND, text));
    };
    Ok(json!({"tap": known, "calls": calls, "missed": missed}))
}

/// Which view of calls an actor gets.
pub(in crate::control) fn view_of(actor: &Actor) -> View {
    match actor {
        Actor::Credential { .. } => View::Tenants,
        Actor::Admin { .. } | Actor::Operator { .. } | Actor::Daemon => View::Whole,
    }
}

fn open(
    taps: &Taps,
    store: &Store,
    policies: &LivePolicies,
    view: View,
    request: Watched,
) -> Result<u64, Status> {
    let method = match request.service.is_empty() {
        true if !request.method.is_empty() => {
            let text = format!("method {:?} needs a service", request.method);
            return Err(invalid(text));
        }
        true => String::new(),
        false => format!("{}/{}", request.service, request.method),
    };
    check(store, policies, &request)?;
    let tap = Tap {
        tenant: request.tenant,
        method,
        denied: request.denied,
        failed: request.failed,
    };
    taps.open(tap, view).ok_or_else(|| {
        let text = match view {
            View::Whole => format!("{MAX_TAPS} taps are open already, which is the limit"),
            View::Tenants => format!(
                "{MAX_TAPS_PER_TENANT} taps of this tenant, or {} of all tenants, are open already, which is the limit",
                MAX_TAPS - OPERATORS_TAPS
            ),
        };
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    })
}

/// Rejects unknown tenants, and methods that no bound version of the service has: their calls would
/// never come.
fn check(store: &Store, policies: &LivePolicies, request: &Watched) -> Result<(), Status> {
    let is_its = |tenant: &str| request.tenant.is_empty() || tenant == request.tenant;
    let tenants = store.tenants();
    let tenants = tenants.map_err(|error| store_failed(&error))?;
    if !tenants.iter().any(|tenant| is_its(tenant)) && !request.tenant.is_empty() {
        return Err(no_tenant(&request.tenant, &tenants));
    }
    policies.read(|attachments| {
        let bindings = attachments.bindings().iter();
        let its = bindings.filter(|binding| {
            is_its(&binding.tenant) && binding.schema.layout.name == request.service
        });
        let methods = its.flat_map(|binding| &binding.schema.layout.methods);
        let names: BTreeSet<_> = methods.map(|method| method.name.as_str()).collect();
        if request.method.is_empty() || names.is_empty() || names.contains(&*request.method) {
            return Ok(());
        }
        Err(no_method(&request.service, &request.method, names))
    })
}

/// The status for an unknown tenant.
pub(crate) fn no_tenant(tenant: &str, tenants: &[String]) -> Status {
    let meant = did_you_mean(tenant, tenants.iter().map(String::as_str));
    let text = format!("there is no tenant {tenant:?}{meant}");
    Status::new(Code::NOT_FOUND, text)
}

/// The status for a method that its service doesn't have.
pub(crate) fn no_method<'n>(
    service: &str,
    method: &str,
    names: impl IntoIterator<Item = &'n str>,
) -> Status {
    let names: Vec<_> = names.into_iter().collect();
    let meant = did_you_mean(method, names.iter().copied());
    let names = names.join(", ");
    let text = format!("service {service} has no method {method:?}; it has {names}{meant}");
    Status::new(Code::NOT_FOUND, text)
}

/// Closes taps that were not asked for a while.
pub(crate) async fn end_abandoned(control: &Control) {
    if !control.taps.any_abandoned() {
        return;
    }
    let Ok(_one_at_a_time) = control.changes.begin(&Actor::Daemon).await else {
        return;
    };
    control.taps.close_abandoned();
    if let Err(status) = control.tune(false).await {
        tracing::warn!(
            "runtimes may still record calls for closed taps: {}",
            status.message
        );
    }
}

/// The kept spans of a trace, or the newest traces if `id` is empty: of all tenants, or of one in
/// its own view.
pub(in crate::control) async fn show(
    runtimes: &Runtimes,
    config: &Config,
    of: Option<&str>,
    view: View,
    (id, last): (&str, u32),
) -> Result<Value, Status> {
    let mut spans = kept(runtimes).await?;
    spans.retain(|span| of.is_none_or(|of| *span.tenant == *of));
    let now = now();
    if id.is_empty() {
        let most = (last as usize).min(MAX_SHOWN_TRACES);
        return Ok(json!({"traces": newest(&spans, view, most, now), "kept": spans.len()}));
    }
    let wanted = id.to_ascii_lowercase();
    let is_it =
        |span: &&Arc<Span>| span.trace.to_string() == wanted || span.span.to_string() == wanted;
    let Some(trace) = spans.iter().find(is_it).map(|span| span.trace) else {
        let text = format!(
            "no span of {id:?} is kept here; each runtime keeps its newest {} (telemetry.kept_spans)",
            config.telemetry.kept_spans
        );
        return Err(Status::new(Code::NOT_FOUND, text));
    };
    let spans = spans.iter().filter(|span| span.trace == trace);
    let spans: Vec<_> = spans.map(|span| told(span, view, true, now)).collect();
    Ok(json!({"trace": trace.to_string(), "spans": spans}))
}

/// The newest kept calls that a policy has denied, newest first: of all tenants, or of one in its
/// own view. A call within the host has two spans; only the client's is shown.
pub(in crate::control) async fn denied(
    runtimes: &Runtimes,
    of: Option<&str>,
    view: View,
    last: u32,
) -> Result<Value, Status> {
    let most = (last as usize).min(MAX_SHOWN_TRACES);
    let mut spans = kept(runtimes).await?;
    spans.retain(|span| of.is_none_or(|of| *span.tenant == *of));
    let is_denied = |span: &&Arc<Span>| denied_by(&span.attributes).is_some();
    let clients = spans.iter().filter(is_denied);
    let clients = clients.filter(|span| span.side == Side::Client);
    let clients: HashSet<_> = clients.map(|span| span.span).collect();
    let is_shown = |span: &&Arc<Span>| match (span.side, span.parent) {
        (Side::Server, Some(parent)) => !clients.contains(&parent),
        _ => true,
    };
    let newest = spans.iter().rev().filter(is_denied).filter(is_shown);
    let newest = newest.take(most);
    let now = now();
    let line = |span: &Arc<Span>| told(span, view, true, now);
    let denied: Vec<_> = newest.map(line).collect();
    Ok(json!({"denied": denied}))
}

/// The kept spans of all runtimes, by their beginning.
async fn kept(runtimes: &Runtimes) -> Result<Vec<Arc<Span>>, Status> {
    let mut spans = Vec::new();
    for runtime in RuntimeIndex::all(runtimes.count()) {
        let kept = runtimes.ask(runtime, |reply| Command::KeptSpans { reply });
        spans.extend(kept.await?);
    }
    spans.sort_by_key(|span| span.began_ns);
    Ok(spans)
}

/// The newest traces, newest first, each with its first span.
fn newest(spans: &[Arc<Span>], view: View, most: usize, now: Now) -> Vec<Value> {
    let mut counts: HashMap<TraceId, usize> = HashMap::new();
    let mut firsts = Vec::new();
    for span in spans {
        let count = counts.entry(span.trace).or_default();
        if *count == 0 {
            firsts.push(span);
        }
        *count += 1;
    }
    let newest = firsts.into_iter().rev().take(most);
    let line = |span: &Arc<Span>| {
        let mut line = told(span, view, true, now);
        line["spans"] = counts[&span.trace].into();
        line
    };
    newest.map(line).collect()
}

//! `tollgate tap`: calls as they end.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use serde_json::Value;
use tollgate_admin::proto::{GetStatusRequest, TapCallsRequest};
use tollgate_schema::spelling::did_you_mean;

use crate::api::{Api, json_of};
use crate::calls::args::{Tap, Watched};
use crate::calls::line::line;
use crate::failure::Failure;
use crate::{output, stderr};

/// `tollgate tap`: prints calls until it has enough, or is interrupted.
pub(crate) fn tap(socket: &Path, args: &Tap) -> Result<String, Failure> {
    let (service, method) = match &args.of {
        Some(Watched { service, method }) => (service.clone(), method.clone().unwrap_or_default()),
        None => Default::default(),
    };
    let request = TapCallsRequest {
        tenant: args.tenant.clone().unwrap_or_default(),
        service,
        method,
        denied: args.denied,
        failed: args.failed,
    };
    let api = Api::connect(socket, &args.acting)?;
    if !request.service.is_empty() {
        let tenant = request.tenant.clone();
        let status = json_of(api.ask(GetStatusRequest { tenant })?.report);
        tell_unknown(&request.service, &status);
    }
    let until = args.time.map(|time| Instant::now() + time);
    let (mut shown, mut failed) = (0, None);
    api.tap(request, until, |came| {
        match show(&json_of(came.report), args, &mut shown) {
            Ok(flow) => flow,
            Err(failure) => {
                failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    })?;
    failed.map_or(Ok(String::new()), Err)
}

/// Prints the calls of one answer. Breaks when there are enough.
fn show(came: &Value, args: &Tap, shown: &mut u64) -> Result<ControlFlow<()>, Failure> {
    for call in came["calls"].as_array().into_iter().flatten() {
        match args.json {
            true => output::print(&output::json(call))?,
            false => output::print(&line(call))?,
        }
        *shown += 1;
        if args.count.is_some_and(|count| *shown >= count) {
            return Ok(ControlFlow::Break(()));
        }
    }
    if let Some(missed) = came["missed"].as_u64().filter(|missed| *missed > 0) {
        stderr::tell(&format!(
            "{missed} more calls are not shown: the daemon's limit was reached"
        ));
    }
    Ok(ControlFlow::Continue(()))
}

/// Prints a note about an unknown service: its applications may still come, or its name is
/// mistyped.
fn tell_unknown(service: &str, status: &Value) {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let served = list(&status["services"])
        .into_iter()
        .map(|one| one["service"].clone());
    let bound = list(&status["links"])
        .into_iter()
        .flat_map(|link| list(&link["bound"]));
    let known: Vec<_> = served
        .chain(bound)
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    if !known.iter().any(|name| name == service) {
        let meant = did_you_mean(service, known.iter().map(String::as_str));
        stderr::tell(&format!(
            "waiting for calls of {service}: no application here serves or calls it now{}",
            output::plain(&meant)
        ));
    }
}

//! `tollgate tap`: calls as they end.

use std::path::Path;
use std::thread;
use std::time::Instant;

use serde_json::Value;
use tollgate_schema::spelling::did_you_mean;
use tollgate_shm_abi::messages::{self, Empty, RequestBody};
use tollgate_shm_abi::status::Code;

use crate::calls::args::{Tap, Watched};
use crate::calls::line::line;
use crate::failure::Failure;
use crate::limits::TAP_EVERY;
use crate::request::report;
use crate::tenant::require_tenant;
use crate::{output, stderr};

/// `tollgate tap`: prints calls until it has enough, or is interrupted.
pub(crate) fn tap(socket: &Path, args: &Tap) -> Result<String, Failure> {
    let (service, method) = match &args.of {
        Some(Watched { service, method }) => (service.clone(), method.clone().unwrap_or_default()),
        None => Default::default(),
    };
    if let Some(tenant) = &args.tenant {
        require_tenant(socket, tenant)?;
    }
    let mut request = messages::Tap {
        tap: 0,
        tenant: args.tenant.clone().unwrap_or_default(),
        service,
        method,
        denied: args.denied,
        failed: args.failed,
    };
    if !request.service.is_empty() {
        let status = report(socket, RequestBody::Status(Empty {}))?;
        tell_unknown(&request.service, &status);
    }
    let (began, mut shown) = (Instant::now(), 0);
    loop {
        let came = report(socket, RequestBody::Tap(request.clone()))?;
        request.tap = came["tap"].as_u64().unwrap_or_default();
        if request.tap == 0 {
            let text = "the daemon's answer has no number of this tap";
            return Err(Failure::new(Code::INTERNAL, text));
        }
        for call in came["calls"].as_array().into_iter().flatten() {
            match args.json {
                true => output::print(&output::json(call))?,
                false => output::print(&line(call))?,
            }
            shown += 1;
            if args.count.is_some_and(|count| shown >= count) {
                return Ok(String::new());
            }
        }
        if let Some(missed) = came["missed"].as_u64().filter(|missed| *missed > 0) {
            stderr::tell(&format!(
                "{missed} more calls are not shown: the daemon's limit was reached"
            ));
        }
        if args.time.is_some_and(|time| began.elapsed() >= time) {
            return Ok(String::new());
        }
        thread::sleep(TAP_EVERY);
    }
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

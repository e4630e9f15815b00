//! `tollgate usage`: what a tenant uses, beside the limits.

use std::path::Path;

use clap::Args;
use serde_json::json;
use tollgate_admin::proto::{ShowUsageRequest, ShowUsageResponse};

use crate::api::{Acting, Api};
use crate::failure::Failure;
use crate::output;
use crate::render::lines;

#[derive(Debug, Args)]
#[command(after_help = "Examples: tollgate usage --tenant acme\n          \
         tollgate usage --token-file owner.token --json")]
pub(crate) struct Usage {
    /// The tenant; with a token, the token's tenant if left out
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    pub(crate) acting: Acting,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// `tollgate usage`
pub(crate) fn usage(socket: &Path, args: &Usage) -> Result<String, Failure> {
    let api = Api::connect(socket, &args.acting)?;
    let tenant = api.tenant(args.tenant.as_deref())?;
    let found = api.ask(ShowUsageRequest { tenant })?;
    Ok(match args.json {
        true => as_json(&found),
        false => shown(&found),
    })
}

fn as_json(found: &ShowUsageResponse) -> String {
    let usage = found.usage.iter();
    let usage = usage.map(|one| json!({"what": one.what, "used": one.used, "limit": one.limit}));
    output::json(&json!({
        "tenant": found.tenant, "usage": usage.collect::<Vec<_>>(),
        "policy_cpu_ns": found.policy_cpu_ns, "throttled_calls": found.throttled_calls,
    }))
}

/// A line per thing: its name, how much there is, and how much there may be.
fn shown(found: &ShowUsageResponse) -> String {
    let mut rows = vec![format!("tenant {}", output::plain(&found.tenant))];
    rows.extend(found.usage.iter().map(|one| {
        let (what, used, limit) = match one.what.strip_suffix("_bytes") {
            Some(what) => (what, mebibytes(one.used), mebibytes(one.limit)),
            None => (&*one.what, one.used.to_string(), one.limit.to_string()),
        };
        let what = what.replace('_', " ");
        format!("{:<20}  {used} of {limit}", output::plain(&what))
    }));
    let cpu_ms = found.policy_cpu_ns / 1_000_000;
    rows.push(format!("{:<20}  {cpu_ms} ms", "CPU of policies"));
    rows.push(format!(
        "{:<20}  {}",
        "throttled calls", found.throttled_calls
    ));
    lines(&rows)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use tollgate_admin::proto;

    use super::*;

    #[test]
    fn usage_is_a_table() {
        let of = |what: &str, used, limit| proto::Usage {
            what: what.to_owned(),
            used,
            limit,
        };
        let found = ShowUsageResponse {
            tenant: "acme".to_owned(),
            usage: vec![
                of("sessions", 2, 1_024),
                of("receive_heap_bytes", 64 << 20, 64 << 30),
            ],
            policy_cpu_ns: 1_999_999,
            throttled_calls: 3,
        };
        let expected = "tenant acme\nsessions              2 of 1024\nreceive heap          64 MiB of 65536 MiB\n\
                        CPU of policies       1 ms\nthrottled calls       3\n";
        assert_eq!(shown(&found), expected);
    }
}

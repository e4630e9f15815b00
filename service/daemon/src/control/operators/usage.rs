//! What a tenant uses, beside the limits.

use tollgate_admin::proto::{ShowUsageResponse, Usage};
use tollgate_control::limits::MAX_CREDENTIALS;
use tollgate_control::{Owner, Party};
use tollgate_engine::Status;

use crate::control::operators::report::gather;
use crate::control::refusals::store_failed;
use crate::control::state::Control;
use crate::limits::{MAX_SESSIONS_PER_TENANT, RECEIVE_HEAP_BYTES_PER_TENANT};

/// What a tenant uses.
///
/// # Errors
/// NOT_FOUND: there is no such tenant.
pub(in crate::control) async fn usage(
    control: &Control,
    tenant: &str,
) -> Result<ShowUsageResponse, Status> {
    let (store, apps) = (control.changes.store(), &control.apps);
    let failed = |error| store_failed(&error);
    let has = store.holdings(tenant).map_err(failed)?;
    let credentials = store
        .credentials(&Owner::Tenant(tenant.to_owned()))
        .map_err(failed)?;
    let ceiling = store.ceiling(tenant).map_err(failed)?;
    let stored = store.stored_of(tenant).map_err(failed)?;
    // Not the provider's that name it.
    let own = has
        .attachments
        .iter()
        .filter(|at| at.target.party == Party::Tenant);
    let count = |what: &str, used: usize, limit: usize| Usage {
        what: what.to_owned(),
        used: used as u64,
        limit: limit as u64,
    };
    let mut usage = vec![
        count(
            "sessions",
            apps.sessions.count_of(tenant),
            MAX_SESSIONS_PER_TENANT,
        ),
        count(
            "policies",
            stored.policies as usize,
            ceiling.policies as usize,
        ),
        count(
            "versions",
            stored.versions as usize,
            ceiling.versions as usize,
        ),
        count("attachments", own.count(), ceiling.attachments as usize),
        count("credentials", credentials.len(), MAX_CREDENTIALS),
    ];
    let (changes, compile_s) = (ceiling.changes_per_hour, ceiling.compile_s_per_hour);
    let counted = [
        ("module_bytes", stored.bytes, ceiling.module_bytes),
        (
            "largest_module_kib",
            stored.largest_module_bytes.div_ceil(1 << 10),
            ceiling.largest_module_bytes >> 10,
        ),
        (
            "receive_heap_bytes",
            apps.heaps.of(tenant),
            RECEIVE_HEAP_BYTES_PER_TENANT,
        ),
        (
            "changes_per_hour",
            control.paces.changes(tenant, changes).ceil() as u64,
            changes.into(),
        ),
        (
            "compile_s_per_hour",
            control.modules.compile_s(tenant, compile_s).ceil() as u64,
            compile_s.into(),
        ),
    ];
    usage.extend(counted.map(|(what, used, limit)| Usage {
        what: what.to_owned(),
        used,
        limit,
    }));
    let report = gather(&control.runtimes).await?;
    let accounts = report
        .accounts
        .iter()
        .filter(|account| account.tenant == tenant);
    let (mut policy_cpu_ns, mut throttled_calls) = (0, 0);
    for account in accounts {
        policy_cpu_ns += account.cpu_ns;
        throttled_calls += account.throttled;
    }
    Ok(ShowUsageResponse {
        tenant: tenant.to_owned(),
        usage,
        policy_cpu_ns,
        throttled_calls,
    })
}

//! Schemas that are resolved and compiled before the first application binds them. A binding then
//! costs a look-up, and first calls don't compete with the compiler for a core. mRPC (section 4.1)
//! does the same with its cache of bindings.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use tollgate_control::Owner;
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::apps::schema_cache::SchemaCache;
use crate::control::apps::schemas::{BoundSchema, Resolved, SetKey, parse_all};
use crate::control::apps::turns::Turn;
use crate::control::error::DaemonError;
use crate::control::state::Control;
use crate::limits::PREFETCH_TIMEOUT;

/// How often the progress of the compilation is checked.
const LOOK: Duration = Duration::from_millis(2);

/// Prefetches the files of the configuration.
pub(crate) async fn configured(config: &Config, schemas: &SchemaCache) -> Result<(), DaemonError> {
    for path in &config.prefetch {
        let failed = |why| DaemonError::Prefetch {
            path: path.clone(),
            why,
        };
        let bytes = std::fs::read(path).map_err(|error| failed(error.into()))?;
        let done = prefetch(schemas, bytes).await;
        done.map_err(|status| failed(status.message.into()))?;
    }
    Ok(())
}

/// Resolves and keeps every service of a descriptor set, and compiles its methods. Answers when
/// they are compiled.
pub(crate) async fn prefetch(schemas: &SchemaCache, set: Vec<u8>) -> Result<Value, Status> {
    let operators = Turn::operators();
    compiled(&operators, set, |key, resolved, set| {
        schemas.keep(key, resolved, set)
    })
    .await
}

/// The same for a tenant's schema, at its cost: the schema counts against the tenant's share, as if
/// an application had bound it, and may be dropped like that when nobody uses it; the time counts
/// against the ceiling's `compile_s_per_hour`.
pub(in crate::control) async fn of_tenant(
    control: &Control,
    tenant: &str,
    set: Vec<u8>,
) -> Result<Value, Status> {
    let owner = Owner::Tenant(tenant.to_owned());
    control.changes.require_owner(&owner)?;
    let per_hour = control.compile_s_per_hour(&owner)?.unwrap_or_default();
    let (modules, apps) = (&control.modules, &control.apps);
    let turn = apps.turns.of(tenant).await?;
    modules.may_compile((tenant, per_hour))?;
    let by = Some(Arc::from(tenant));
    let begin = Instant::now();
    let done = compiled(&turn, set, |key, resolved, set| {
        apps.schemas.intern(key, resolved, set, &by)
    });
    let done = done.await;
    modules.compiled_for((tenant, per_hour), begin.elapsed());
    done
}

/// Resolves every service of a descriptor set, caches it, and compiles its methods.
async fn compiled(
    turn: &Turn,
    set: Vec<u8>,
    cache: impl Fn(SetKey, Resolved, &[u8]) -> Result<Arc<BoundSchema>, Status>,
) -> Result<Value, Status> {
    let set = Arc::new(set);
    let read = Arc::clone(&set);
    let parsed = turn.on_blocking_thread(move || parse_all(&read)).await??;
    if parsed.is_empty() {
        let text = "the descriptor set has no service";
        return Err(Status::new(Code::INVALID_ARGUMENT, text));
    }
    let cached = parsed
        .into_iter()
        .map(|(key, resolved)| cache(key, resolved, &set));
    let cached = cached.collect::<Result<Vec<_>, _>>()?;
    let begin = Instant::now();
    while !cached.iter().all(|schema| is_settled(schema)) && begin.elapsed() < PREFETCH_TIMEOUT {
        tokio::time::sleep(LOOK).await;
    }
    let services: Vec<Value> = cached.iter().map(report).collect();
    Ok(json!({ "services": services }))
}

/// Asks for missing machine code. Whether everything is compiled or has failed.
fn is_settled(schema: &BoundSchema) -> bool {
    let mut settled = true;
    for method in &schema.service.methods {
        // Asks again if the queue was full.
        method.called();
        method.crosses();
        settled &= method.is_settled();
    }
    settled
}

fn report(schema: &Arc<BoundSchema>) -> Value {
    let methods = &schema.service.methods;
    json!({
        "service": schema.service.name,
        "methods": methods.len(),
        "compiled": methods.iter().filter(|method| method.is_compiled()).count(),
        "compiled_wire": methods.iter().filter(|method| method.is_wire_compiled()).count(),
    })
}

//! The inputs of a compat instance's set-up, for any of the interfaces.

use wasmtime::{Instance, Store, StoreLimits, StoreLimitsBuilder, TypedFunc};

use crate::text::cut;
use crate::{LoadError, Setup, TenantLimits, limits};

/// An instance's limits, as the engine enforces them. A module that imports its memory has it in an
/// instance of the host.
pub(crate) fn limiter(limits: &TenantLimits) -> StoreLimits {
    StoreLimitsBuilder::new()
        .memory_size(limits.memory_bytes)
        .table_elements(limits.table_elements)
        .instances(2)
        .memories(1)
        .tables(1)
        .build()
}

/// Refuses a configuration that is too long.
pub(crate) fn configuration<'a>(setup: &Setup<'a>) -> Result<&'a [u8], LoadError> {
    let config = setup.config.unwrap_or_default();
    if config.len() > limits::CONFIG_BYTES {
        return Err(LoadError::ConfigTooLarge {
            bytes: config.len(),
            max: limits::CONFIG_BYTES,
        });
    }
    Ok(config)
}

/// An optional export; one of another type is refused.
pub(crate) fn optional<T, P: wasmtime::WasmParams, R: wasmtime::WasmResults>(
    instance: &Instance,
    store: &mut Store<T>,
    name: &'static str,
) -> Result<Option<TypedFunc<P, R>>, LoadError> {
    if instance.get_export(&mut *store, name).is_none() {
        return Ok(None);
    }
    let found = instance.get_typed_func(&mut *store, name);
    found.map(Some).map_err(|error| LoadError::CompatExport {
        name,
        found: cut(&format!("{:#}", error)),
    })
}

/// A required export.
pub(crate) fn required<T, P: wasmtime::WasmParams, R: wasmtime::WasmResults>(
    instance: &Instance,
    store: &mut Store<T>,
    name: &'static str,
) -> Result<TypedFunc<P, R>, LoadError> {
    optional(instance, store, name)?.ok_or_else(|| LoadError::CompatExport {
        name,
        found: "missing".to_owned(),
    })
}

//! The functions that an OPA policy can import. None of them does anything for it.

use wasmtime::{Caller, Engine, Linker, Memory, StoreLimits};

use crate::limits;
use crate::text::text;

/// The module name of the imports.
pub(super) const MODULE: &str = "env";
/// The memory, which the host creates for this interface.
pub(super) const MEMORY: &str = "memory";

/// The functions of the interface.
const FUNCTIONS: [&str; 7] = [
    "opa_abort",
    "opa_println",
    "opa_builtin0",
    "opa_builtin1",
    "opa_builtin2",
    "opa_builtin3",
    "opa_builtin4",
];

/// Whether a policy can import this.
pub(crate) fn offers(module: &str, name: &str) -> bool {
    module == MODULE && (name == MEMORY || FUNCTIONS.contains(&name))
}

/// A store's data.
pub(crate) struct Evaluation {
    pub(super) limiter: StoreLimits,
    pub(super) memory: Option<Memory>,
}

type Guest<'a> = Caller<'a, Evaluation>;

/// Defines all functions; the memory is an instance's own.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Evaluation>> {
    let mut linker = Linker::new(engine);
    linker.func_wrap(MODULE, "opa_abort", abort)?;
    linker.func_wrap(MODULE, "opa_println", |_: Guest<'_>, _text: u32| {})?;
    linker.func_wrap(MODULE, "opa_builtin0", |_: Guest<'_>, id: u32, _c: u32| {
        builtin(id)
    })?;
    linker.func_wrap(
        MODULE,
        "opa_builtin1",
        |_: Guest<'_>, id: u32, _c: u32, _1: u32| builtin(id),
    )?;
    linker.func_wrap(
        MODULE,
        "opa_builtin2",
        |_: Guest<'_>, id: u32, _c: u32, _1: u32, _2: u32| builtin(id),
    )?;
    linker.func_wrap(
        MODULE,
        "opa_builtin3",
        |_: Guest<'_>, id: u32, _c: u32, _1: u32, _2: u32, _3: u32| builtin(id),
    )?;
    linker.func_wrap(
        MODULE,
        "opa_builtin4",
        |_: Guest<'_>, id: u32, _c: u32, _1: u32, _2: u32, _3: u32, _4: u32| builtin(id),
    )?;
    Ok(linker)
}

fn builtin(id: u32) -> wasmtime::Result<u32> {
    Err(wasmtime::Error::msg(format!(
        "it calls the built-in function {id}, which it doesn't contain and isn't offered"
    )))
}

fn abort(guest: Guest<'_>, address: u32) -> wasmtime::Result<()> {
    let memory = guest
        .data()
        .memory
        .map_or(&[][..], |memory| memory.data(&guest));
    let reason = zero_ended(memory, address, limits::CONFIG_ERROR_BYTES).unwrap_or_default();
    let reason = text(reason, limits::NAME_BYTES);
    Err(wasmtime::Error::msg(format!("it aborted: {reason}")))
}

/// Text up to its terminating zero byte, if that lies within memory and `max`.
pub(super) fn zero_ended(memory: &[u8], address: u32, max: usize) -> Option<&[u8]> {
    let rest = memory.get(address as usize..)?;
    let rest = &rest[..rest.len().min(max + 1)];
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(&rest[..end])
}

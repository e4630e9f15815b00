//! The two functions a policy can call, and what they leave behind for the daemon to collect.
//!
//! Both charge fuel for the host's work, so that calling them in a loop is bounded like everything else.

use wasmtime::{Caller, Engine, Linker, Memory, StoreLimits};

use crate::{cost, limits};

/// The module name of the imports.
pub(crate) const MODULE: &str = "tollgate";
/// The imports: name and type, as shown to an author.
pub(crate) const FUNCTIONS: [(&str, &str); 2] = [
    ("log", "function (i32, i32, i32)"),
    ("counter", "function (i32, i64)"),
];

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// 1, and everything that isn't a level.
    Error,
    /// 2.
    Warning,
    /// 3.
    Info,
    /// 4.
    Debug,
}

/// One line of a policy's log. The text is the tenant's: quote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How much it matters, says the policy.
    pub level: LogLevel,
    /// At most [`limits::LOG_LINE_BYTES`], with what isn't UTF-8 replaced.
    pub text: String,
}

/// A store's data: what the host functions need.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) limiter: StoreLimits,
    /// Known once the module is instantiated, so a start function can't log.
    pub(crate) memory: Option<Memory>,
    pub(crate) log: Vec<LogLine>,
    pub(crate) log_dropped: u64,
    pub(crate) counters: Box<[u64]>,
}

/// Defines both functions.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    linker.func_wrap(MODULE, "log", log)?;
    linker.func_wrap(MODULE, "counter", counter)?;
    Ok(linker)
}

fn charge(caller: &mut Caller<'_, State>, units: u64) -> wasmtime::Result<()> {
    let left = caller.get_fuel()?;
    match left.checked_sub(units) {
        Some(rest) => caller.set_fuel(rest),
        None => Err(wasmtime::Trap::OutOfFuel.into()),
    }
}

fn log(mut caller: Caller<'_, State>, level: u32, address: u32, len: u32) -> wasmtime::Result<()> {
    charge(&mut caller, cost::LOG + u64::from(len))?;
    let memory = caller
        .data()
        .memory
        .ok_or_else(|| wasmtime::Error::msg("log was called before the instance was complete"))?;
    let (bytes, state) = memory.data_and_store_mut(&mut caller);
    let line = bytes
        .get(address as usize..)
        .and_then(|b| b.get(..len as usize))
        .ok_or_else(|| {
            wasmtime::Error::msg(format!(
                "the log line at {address}+{len} is outside of memory"
            ))
        })?;
    if state.log.len() == limits::LOG_LINES {
        state.log_dropped += 1;
        return Ok(());
    }
    let level = match level {
        2 => LogLevel::Warning,
        3 => LogLevel::Info,
        4 => LogLevel::Debug,
        _ => LogLevel::Error,
    };
    state.log.push(LogLine {
        level,
        text: text(line, limits::LOG_LINE_BYTES),
    });
    Ok(())
}

fn counter(mut caller: Caller<'_, State>, id: u32, delta: u64) -> wasmtime::Result<()> {
    charge(&mut caller, cost::COUNTER)?;
    let counters = &mut caller.data_mut().counters;
    let count = counters.len();
    let value = counters.get_mut(id as usize).ok_or_else(|| {
        wasmtime::Error::msg(format!("counter {id} is not among the manifest's {count}"))
    })?;
    *value = value.wrapping_add(delta);
    Ok(())
}

/// Text from a guest: cut at a character to at most `max` bytes, with what isn't UTF-8 replaced.
pub(crate) fn text(bytes: &[u8], max: usize) -> String {
    let is_continuation = |byte: u8| byte & 0xc0 == 0x80;
    let mut cut = bytes.len().min(max);
    for _ in 0..3 {
        if cut > 0 && cut < bytes.len() && is_continuation(bytes[cut]) {
            cut -= 1;
        }
    }
    let mut text = String::from_utf8_lossy(&bytes[..cut]).into_owned();
    // A replacement character is longer than the byte that it replaces.
    text.truncate(text.floor_char_boundary(max));
    text
}

//! The functions that a policy can call, and their results that the daemon collects.
//!
//! Each function charges fuel for the host's work before it does the work, so a loop of calls is
//! bounded like any other code. An address outside memory is a fault, and so is an undeclared id.
//! No function reaches a message, a file, a socket, or another owner's state.

use wasmtime::{Caller, Engine, Linker, Memory, StoreLimits};

use crate::budget::charge;
use crate::log::Log;
use crate::state::Unstored;
use crate::wasi::{self, Process};
use crate::{Capabilities, LogLevel, Metrics, PolicyTime, SharedState, cost, limits};

/// The module name of the imports.
pub(crate) const MODULE: &str = "tollgate";
/// The imports: name, type as shown to an author, and the capability that they belong to.
pub(crate) const FUNCTIONS: [(&str, &str, Capabilities); 12] = [
    ("log", "function (i32, i32, i32)", Capabilities::LOG),
    ("counter", "function (i32, i64)", Capabilities::METRICS),
    ("gauge", "function (i32, i64)", Capabilities::METRICS),
    ("histogram", "function (i32, i64)", Capabilities::METRICS),
    (
        "state_get",
        "function (i32, i32, i32, i32) -> (i32)",
        Capabilities::STATE,
    ),
    (
        "state_set",
        "function (i32, i32, i32, i32) -> (i32)",
        Capabilities::STATE,
    ),
    (
        "state_delete",
        "function (i32, i32) -> (i32)",
        Capabilities::STATE,
    ),
    (
        "state_add",
        "function (i32, i32, i64) -> (i64)",
        Capabilities::STATE,
    ),
    (
        "state_replace",
        "function (i32, i32, i32, i32, i32, i32) -> (i32)",
        Capabilities::STATE,
    ),
    ("now_ms", "function () -> (i64)", Capabilities::CLOCK),
    ("monotonic_us", "function () -> (i64)", Capabilities::CLOCK),
    ("random", "function (i32, i32)", Capabilities::RANDOM),
];

/// Whether a policy can import this; `has_wasi` if its manifest declares `wasi`.
pub(crate) fn offers(module: &str, name: &str, has_wasi: bool) -> bool {
    match module {
        MODULE => FUNCTIONS.iter().any(|(offered, ..)| *offered == name),
        wasi::MODULE => has_wasi && wasi::FUNCTIONS.contains(&name),
        _ => false,
    }
}

/// A store's data: the host functions' state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) limiter: StoreLimits,
    /// The declared capabilities; an instance exists only if they are granted.
    pub(crate) capabilities: Capabilities,
    /// Known once the module is instantiated, so a start function can't use functions that take
    /// addresses.
    pub(crate) memory: Option<Memory>,
    pub(crate) log: Log,
    pub(crate) metrics: Metrics,
    pub(crate) shared: SharedState,
    /// As the host last set it.
    pub(crate) time: PolicyTime,
}

impl Process for State {
    fn memory(&self) -> Option<Memory> {
        self.memory
    }

    fn may(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    fn now_ms(&self) -> u64 {
        self.time.unix_ms
    }

    fn log(&mut self) -> &mut Log {
        &mut self.log
    }
}

type Guest<'a> = Caller<'a, State>;

/// Defines all functions.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    linker.func_wrap(MODULE, "log", log)?;
    linker.func_wrap(MODULE, "counter", counter)?;
    linker.func_wrap(MODULE, "gauge", gauge)?;
    linker.func_wrap(MODULE, "histogram", histogram)?;
    linker.func_wrap(MODULE, "state_get", state_get)?;
    linker.func_wrap(MODULE, "state_set", state_set)?;
    linker.func_wrap(MODULE, "state_delete", state_delete)?;
    linker.func_wrap(MODULE, "state_add", state_add)?;
    linker.func_wrap(MODULE, "state_replace", state_replace)?;
    linker.func_wrap(MODULE, "now_ms", now_ms)?;
    linker.func_wrap(MODULE, "monotonic_us", monotonic_us)?;
    linker.func_wrap(MODULE, "random", random)?;
    wasi::define(&mut linker)?;
    Ok(linker)
}

/// The guest's whole memory, and the store's data.
fn memory<'a>(
    guest: &'a mut Guest<'_>,
    function: &str,
) -> wasmtime::Result<(&'a mut [u8], &'a mut State)> {
    let memory = guest.data().memory.ok_or_else(|| {
        wasmtime::Error::msg(format!(
            "{function} was called before the instance was complete"
        ))
    })?;
    Ok(memory.data_and_store_mut(guest))
}

/// A range of memory that the guest named.
fn range(
    memory: &[u8],
    what: &str,
    address: u32,
    len: u32,
) -> wasmtime::Result<std::ops::Range<usize>> {
    let (begin, len) = (address as usize, len as usize);
    if begin > memory.len() || memory.len() - begin < len {
        return Err(wasmtime::Error::msg(format!(
            "the {what} at {begin}+{len} is outside of memory"
        )));
    }
    Ok(begin..begin + len)
}

fn log(mut guest: Guest<'_>, level: u32, address: u32, len: u32) -> wasmtime::Result<()> {
    charge(&mut guest, cost::LOG + u64::from(len))?;
    let (bytes, state) = memory(&mut guest, "log")?;
    let line = &bytes[range(bytes, "log line", address, len)?];
    state.log.push(LogLevel::of(level), line);
    Ok(())
}

/// The metric with the guest's id.
fn metric<'a, T>(list: &'a mut [T], what: &str, id: u32) -> wasmtime::Result<&'a mut T> {
    let count = list.len();
    list.get_mut(id as usize).ok_or_else(|| {
        wasmtime::Error::msg(format!("{what} {id} is not among the manifest's {count}"))
    })
}

fn counter(mut guest: Guest<'_>, id: u32, delta: u64) -> wasmtime::Result<()> {
    charge(&mut guest, cost::METRIC)?;
    let value = metric(&mut guest.data_mut().metrics.counters, "counter", id)?;
    *value = value.wrapping_add(delta);
    Ok(())
}

fn gauge(mut guest: Guest<'_>, id: u32, value: i64) -> wasmtime::Result<()> {
    charge(&mut guest, cost::METRIC)?;
    *metric(&mut guest.data_mut().metrics.gauges, "gauge", id)? = Some(value);
    Ok(())
}

fn histogram(mut guest: Guest<'_>, id: u32, value: i64) -> wasmtime::Result<()> {
    charge(&mut guest, cost::METRIC)?;
    metric(&mut guest.data_mut().metrics.histograms, "histogram", id)?.record(value);
    Ok(())
}

fn state_get(
    mut guest: Guest<'_>,
    key: u32,
    key_len: u32,
    room: u32,
    room_len: u32,
) -> wasmtime::Result<i32> {
    // The whole room is charged, and the unused part is refunded.
    charge(
        &mut guest,
        cost::STATE + u64::from(key_len) + u64::from(room_len),
    )?;
    let (memory, state) = memory(&mut guest, "state_get")?;
    let key = range(memory, "key", key, key_len)?;
    let room = range(memory, "room for a value", room, room_len)?;
    let len = state.shared.read(memory, key, room);
    let copied = len.unwrap_or(0).min(room_len as usize) as u64;
    let left = guest.get_fuel()?;
    guest.set_fuel(left + u64::from(room_len) - copied)?;
    Ok(len.map_or(-1, |len| len as i32))
}

fn state_set(
    mut guest: Guest<'_>,
    key: u32,
    key_len: u32,
    value: u32,
    value_len: u32,
) -> wasmtime::Result<u32> {
    let bytes = u64::from(key_len) + u64::from(value_len);
    charge(&mut guest, cost::STATE_SET + bytes)?;
    let (memory, state) = memory(&mut guest, "state_set")?;
    let key = &memory[range(memory, "key", key, key_len)?];
    let value = &memory[range(memory, "value", value, value_len)?];
    Ok(state.shared.set(key, value).is_err().into())
}

/// The length that stands for no value.
const ABSENT: u32 = u32::MAX;

fn state_replace(
    mut guest: Guest<'_>,
    key: u32,
    key_len: u32,
    old: u32,
    old_len: u32,
    value: u32,
    value_len: u32,
) -> wasmtime::Result<u32> {
    let old_bytes = if old_len == ABSENT { 0 } else { old_len };
    let bytes = [key_len, old_bytes, value_len].map(u64::from);
    charge(&mut guest, cost::STATE_SET + bytes.iter().sum::<u64>())?;
    let (memory, state) = memory(&mut guest, "state_replace")?;
    let key = &memory[range(memory, "key", key, key_len)?];
    let old = match old_len {
        ABSENT => None,
        len => Some(&memory[range(memory, "old value", old, len)?]),
    };
    let value = &memory[range(memory, "value", value, value_len)?];
    Ok(match state.shared.replace(key, old, value) {
        Ok(true) => 0,
        Err(_) => 1,
        Ok(false) => 2,
    })
}

fn state_delete(mut guest: Guest<'_>, key: u32, key_len: u32) -> wasmtime::Result<u32> {
    charge(&mut guest, cost::STATE_SET + u64::from(key_len))?;
    let (memory, state) = memory(&mut guest, "state_delete")?;
    let key = &memory[range(memory, "key", key, key_len)?];
    Ok(state.shared.delete(key).into())
}

fn state_add(mut guest: Guest<'_>, key: u32, key_len: u32, delta: i64) -> wasmtime::Result<i64> {
    charge(&mut guest, cost::STATE_SET + u64::from(key_len))?;
    let (memory, state) = memory(&mut guest, "state_add")?;
    let key = &memory[range(memory, "key", key, key_len)?];
    state.shared.add(key, delta).map_err(|error| {
        wasmtime::Error::msg(match error {
            Unstored::Full => format!(
                "state_add has no room for a key of {key_len} bytes among {} keys of {} bytes",
                state.shared.keys(),
                state.shared.bytes()
            ),
            Unstored::NoInteger(len) => {
                format!("state_add found a value of {len} bytes; an integer has 8")
            }
        })
    })
}

fn now_ms(mut guest: Guest<'_>) -> wasmtime::Result<u64> {
    charge(&mut guest, cost::METRIC)?;
    Ok(guest.data().time.unix_ms)
}

fn monotonic_us(mut guest: Guest<'_>) -> wasmtime::Result<u64> {
    charge(&mut guest, cost::METRIC)?;
    Ok(guest.data().time.monotonic_us)
}

fn random(mut guest: Guest<'_>, address: u32, len: u32) -> wasmtime::Result<()> {
    charge(
        &mut guest,
        cost::RANDOM + u64::from(len) * cost::RANDOM_BYTE,
    )?;
    if len as usize > limits::RANDOM_BYTES {
        return Err(wasmtime::Error::msg(format!(
            "random was asked for {len} bytes; {} are allowed",
            limits::RANDOM_BYTES
        )));
    }
    let (memory, _) = memory(&mut guest, "random")?;
    let room = range(memory, "room for random bytes", address, len)?;
    getrandom::fill(&mut memory[room])
        .map_err(|e| wasmtime::Error::msg(format!("the kernel gives no random bytes: {e}")))
}

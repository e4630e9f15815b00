//! The harmless functions of WASI that compilers for `wasm32-wasip1` link in: in filters for Envoy,
//! and in policies whose manifest declares `wasi`.
//!
//! There are no files, no arguments and no environment. Standard output goes to the log. The clock
//! and random bytes are there if the policy was granted them. Otherwise the time is fixed, and the
//! random function fails; it never returns a constant. Waiting ends at once. Ending the process
//! ends the instance.

use wasmtime::{Caller, Linker, Memory};

use crate::budget::charge;
use crate::log::Log;
use crate::{Capabilities, LogLevel, cost, limits};

/// A store's data, as these functions use it.
pub(crate) trait Process: 'static {
    /// The guest's memory; `None` before the instance is complete.
    fn memory(&self) -> Option<Memory>;
    /// Whether the policy was granted this.
    fn may(&self, capability: Capabilities) -> bool;
    /// Unix time in milliseconds, as the host last set it.
    fn now_ms(&self) -> u64;
    /// The lines for the operator.
    fn log(&mut self) -> &mut Log;

    /// The time in nanoseconds, if granted.
    fn now_ns(&self) -> u64 {
        match self.may(Capabilities::CLOCK) {
            true => self.now_ms().saturating_mul(1_000_000),
            false => 0,
        }
    }
}

/// The guest that calls.
type Guest<'a, P> = Caller<'a, P>;

/// The result of a function; an error ends the instance.
type Answer = wasmtime::Result<u32>;

/// The module name of these functions.
pub(crate) const MODULE: &str = "wasi_snapshot_preview1";

/// All of them.
pub(crate) const FUNCTIONS: [&str; 22] = [
    "args_get",
    "args_sizes_get",
    "clock_res_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_close",
    "fd_fdstat_get",
    "fd_fdstat_set_flags",
    "fd_filestat_get",
    "fd_prestat_dir_name",
    "fd_prestat_get",
    "fd_read",
    "fd_readdir",
    "fd_seek",
    "fd_write",
    "path_filestat_get",
    "path_open",
    "poll_oneoff",
    "proc_exit",
    "random_get",
    "sched_yield",
];

/// WASI's `errno`.
mod errno {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const BADF: u32 = 8;
    pub(super) const FAULT: u32 = 21;
    pub(super) const INVAL: u32 = 28;
    pub(super) const NOSYS: u32 = 52;
    pub(super) const NOTSUP: u32 = 58;
}

pub(crate) fn define<P: Process>(linker: &mut Linker<P>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "args_sizes_get", no_strings::<P>)?;
    linker.func_wrap(MODULE, "environ_sizes_get", no_strings::<P>)?;
    linker.func_wrap(
        MODULE,
        "args_get",
        |guest: Guest<'_, P>, _a: u32, _b: u32| done(guest, errno::SUCCESS),
    )?;
    linker.func_wrap(
        MODULE,
        "environ_get",
        |guest: Guest<'_, P>, _a: u32, _b: u32| done(guest, errno::SUCCESS),
    )?;
    linker.func_wrap(MODULE, "clock_time_get", clock_time_get::<P>)?;
    linker.func_wrap(MODULE, "clock_res_get", clock_res_get::<P>)?;
    linker.func_wrap(MODULE, "random_get", random_get::<P>)?;
    linker.func_wrap(MODULE, "fd_write", fd_write::<P>)?;
    linker.func_wrap(MODULE, "fd_close", |guest: Guest<'_, P>, fd: u32| {
        standard(guest, fd)
    })?;
    linker.func_wrap(MODULE, "fd_fdstat_get", fd_fdstat_get::<P>)?;
    linker.func_wrap(
        MODULE,
        "fd_fdstat_set_flags",
        |guest: Guest<'_, P>, fd: u32, _flags: u32| standard(guest, fd),
    )?;
    linker.func_wrap(
        MODULE,
        "fd_filestat_get",
        |guest: Guest<'_, P>, _fd: u32, _at: u32| done(guest, errno::BADF),
    )?;
    linker.func_wrap(
        MODULE,
        "fd_prestat_get",
        |guest: Guest<'_, P>, _fd: u32, _at: u32| done(guest, errno::BADF),
    )?;
    linker.func_wrap(
        MODULE,
        "fd_prestat_dir_name",
        |guest: Guest<'_, P>, _fd: u32, _at: u32, _len: u32| done(guest, errno::BADF),
    )?;
    linker.func_wrap(
        MODULE,
        "fd_read",
        |guest: Guest<'_, P>, _fd: u32, _iovs: u32, _count: u32, _at: u32| done(guest, errno::BADF),
    )?;
    linker.func_wrap(
        MODULE,
        "fd_readdir",
        |guest: Guest<'_, P>, _fd: u32, _at: u32, _len: u32, _cookie: u64, _used: u32| {
            done(guest, errno::BADF)
        },
    )?;
    linker.func_wrap(
        MODULE,
        "fd_seek",
        |guest: Guest<'_, P>, _fd: u32, _offset: i64, _whence: u32, _at: u32| {
            done(guest, errno::BADF)
        },
    )?;
    linker.func_wrap(
        MODULE,
        "path_filestat_get",
        |guest: Guest<'_, P>, _fd: u32, _flags: u32, _path: u32, _len: u32, _at: u32| {
            done(guest, errno::BADF)
        },
    )?;
    linker.func_wrap(MODULE, "path_open", path_open::<P>)?;
    linker.func_wrap(MODULE, "poll_oneoff", poll_oneoff::<P>)?;
    linker.func_wrap(MODULE, "sched_yield", |guest: Guest<'_, P>| {
        done(guest, errno::SUCCESS)
    })?;
    linker.func_wrap(MODULE, "proc_exit", proc_exit::<P>)?;
    Ok(())
}

/// The whole memory and the state; the memory is empty before the instance is complete.
fn both<'a, P: Process>(guest: &'a mut Guest<'_, P>) -> (&'a mut [u8], &'a mut P) {
    match guest.data().memory() {
        Some(memory) => memory.data_and_store_mut(guest),
        None => (&mut [], guest.data_mut()),
    }
}

/// A part of memory that the guest named.
fn part(memory: &[u8], address: u32, len: u32) -> Option<&[u8]> {
    memory.get(address as usize..)?.get(..len as usize)
}

fn done<P: Process>(mut guest: Guest<'_, P>, answer: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    Ok(answer)
}

fn standard<P: Process>(guest: Guest<'_, P>, fd: u32) -> Answer {
    done(guest, if fd <= 2 { errno::SUCCESS } else { errno::BADF })
}

fn put<P: Process>(guest: &mut Guest<'_, P>, address: u32, bytes: &[u8]) -> u32 {
    let (memory, _) = both(guest);
    let place = memory
        .get_mut(address as usize..)
        .and_then(|rest| rest.get_mut(..bytes.len()));
    match place {
        Some(place) => {
            place.copy_from_slice(bytes);
            errno::SUCCESS
        }
        None => errno::FAULT,
    }
}

/// No arguments, no environment.
fn no_strings<P: Process>(mut guest: Guest<'_, P>, count_at: u32, bytes_at: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    Ok(match put(&mut guest, count_at, &[0; 4]) {
        errno::SUCCESS => put(&mut guest, bytes_at, &[0; 4]),
        bad => bad,
    })
}

/// Real time and monotonic time are the same here: the daemon's coarse clock. Without a clock, the
/// monotonic one is fixed at 1, because Go's runtime doesn't start when it reads 0.
fn clock_time_get<P: Process>(
    mut guest: Guest<'_, P>,
    clock: u32,
    _precision: u64,
    time_at: u32,
) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    if clock > 1 {
        return Ok(errno::NOTSUP);
    }
    let now = guest.data().now_ns().max(u64::from(clock));
    Ok(put(&mut guest, time_at, &now.to_le_bytes()))
}

fn clock_res_get<P: Process>(mut guest: Guest<'_, P>, clock: u32, resolution_at: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    if clock > 1 {
        return Ok(errno::NOTSUP);
    }
    Ok(put(&mut guest, resolution_at, &1_000_000u64.to_le_bytes()))
}

fn random_get<P: Process>(mut guest: Guest<'_, P>, address: u32, len: u32) -> Answer {
    charge(
        &mut guest,
        cost::RANDOM + u64::from(len) * cost::RANDOM_BYTE,
    )?;
    if !guest.data().may(Capabilities::RANDOM) {
        return Ok(errno::NOSYS);
    }
    let (memory, _) = both(&mut guest);
    let room = memory
        .get_mut(address as usize..)
        .and_then(|rest| rest.get_mut(..len as usize));
    let Some(room) = room else {
        return Ok(errno::FAULT);
    };
    getrandom::fill(room).map_err(|error| {
        wasmtime::Error::msg(format!("the kernel gives no random bytes: {error}"))
    })?;
    Ok(errno::SUCCESS)
}

/// One write is one line; a longer one is cut.
fn fd_write<P: Process>(
    mut guest: Guest<'_, P>,
    fd: u32,
    vectors: u32,
    count: u32,
    written_at: u32,
) -> Answer {
    charge(&mut guest, cost::LOG)?;
    let level = match fd {
        1 => LogLevel::Info,
        2 => LogLevel::Error,
        _ => return Ok(errno::BADF),
    };
    if count as usize > limits::WRITE_VECTORS {
        return Ok(errno::INVAL);
    }
    let Some(parts) = vectors_of(&mut guest, vectors, count) else {
        return Ok(errno::FAULT);
    };
    let sum = parts
        .iter()
        .fold(0u32, |sum, (_, len)| sum.saturating_add(*len));
    charge(&mut guest, sum.into())?;
    let (memory, state) = both(&mut guest);
    let mut line = Vec::new();
    for (address, len) in parts {
        let Some(bytes) = part(memory, address, len) else {
            return Ok(errno::FAULT);
        };
        let room = (limits::LOG_LINE_BYTES + 4).saturating_sub(line.len());
        line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
    state.log().push(level, line.trim_ascii_end());
    Ok(put(&mut guest, written_at, &sum.to_le_bytes()))
}

/// Addresses and lengths; `None` if they are outside memory.
fn vectors_of<P: Process>(
    guest: &mut Guest<'_, P>,
    at: u32,
    count: u32,
) -> Option<Vec<(u32, u32)>> {
    let (memory, _) = both(guest);
    let bytes = part(memory, at, 8 * count)?;
    let word = |bytes: &[u8]| {
        bytes
            .first_chunk::<4>()
            .map(|word| u32::from_le_bytes(*word))
    };
    let pairs = bytes.chunks_exact(8);
    pairs
        .map(|pair| Some((word(pair)?, word(&pair[4..])?)))
        .collect()
}

/// Standard streams are character devices without rights.
fn fd_fdstat_get<P: Process>(mut guest: Guest<'_, P>, fd: u32, stat_at: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    if fd > 2 {
        return Ok(errno::BADF);
    }
    let mut stat = [0; 24];
    stat[0] = 2;
    Ok(put(&mut guest, stat_at, &stat))
}

#[expect(clippy::too_many_arguments, reason = "the specification's")]
fn path_open<P: Process>(
    guest: Guest<'_, P>,
    _fd: u32,
    _lookup: u32,
    _path: u32,
    _path_len: u32,
    _open: u32,
    _rights: u64,
    _inheriting: u64,
    _flags: u32,
    _fd_at: u32,
) -> Answer {
    done(guest, errno::BADF)
}

/// Every subscription has happened: a guest can't wait, and Go's runtime uses this function only
/// to sleep.
fn poll_oneoff<P: Process>(
    mut guest: Guest<'_, P>,
    subscriptions: u32,
    events: u32,
    count: u32,
    told_at: u32,
) -> Answer {
    charge(&mut guest, cost::COMPAT)?;
    if count == 0 || count as usize > limits::WRITE_VECTORS {
        return Ok(errno::INVAL);
    }
    for k in 0..count {
        charge(&mut guest, cost::METRIC)?;
        let (memory, _) = both(&mut guest);
        let at = subscriptions.saturating_add(48 * k);
        let Some(subscription) = part(memory, at, 48) else {
            return Ok(errno::FAULT);
        };
        // The user's own number, no error, and the kind of the event.
        let mut event = [0; 32];
        event[..8].copy_from_slice(&subscription[..8]);
        event[10] = subscription[8];
        let told = put(&mut guest, events.saturating_add(32 * k), &event);
        if told != errno::SUCCESS {
            return Ok(told);
        }
    }
    Ok(put(&mut guest, told_at, &count.to_le_bytes()))
}

fn proc_exit<P: Process>(_guest: Guest<'_, P>, code: u32) -> wasmtime::Result<()> {
    Err(wasmtime::Error::msg(format!(
        "it ended itself with exit status {code}"
    )))
}

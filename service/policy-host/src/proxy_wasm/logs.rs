//! Log lines, the clock and the timer.

use wasmtime::Linker;

use super::guest::{Answer, Guest, MODULE};
use super::memory::{answer, both, charge, part, write};
use super::state::Proxy;
use super::status;
use crate::wasi::Process;
use crate::{LogLevel, cost, limits};

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_log", log)?;
    linker.func_wrap(MODULE, "proxy_get_log_level", get_log_level)?;
    linker.func_wrap(MODULE, "proxy_get_current_time_nanoseconds", get_time)?;
    linker.func_wrap(
        MODULE,
        "proxy_set_tick_period_milliseconds",
        set_tick_period,
    )?;
    Ok(())
}

fn log(mut guest: Guest<'_>, level: u32, address: u32, len: u32) -> Answer {
    let level = match level {
        0 | 1 => LogLevel::Debug,
        2 => LogLevel::Info,
        3 => LogLevel::Warning,
        4 | 5 => LogLevel::Error,
        _ => return Ok(status::BAD_ARGUMENT),
    };
    charge(&mut guest, cost::LOG + u64::from(len))?;
    let (memory, state) = both(&mut guest);
    let Some(line) = part(memory, address, len) else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    state.log.push(level, line);
    Ok(status::OK)
}

/// Always TRACE: the operator drops unneeded lines.
fn get_log_level(mut guest: Guest<'_>, level_at: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    Ok(answer(&mut guest, level_at, 0))
}

fn get_time(mut guest: Guest<'_>, time_at: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    let now = guest.data().now_ns();
    Ok(match write(&mut guest, time_at, &now.to_le_bytes()) {
        true => status::OK,
        false => status::INVALID_MEMORY_ACCESS,
    })
}

/// A value out of bounds becomes the nearest bound.
fn set_tick_period(mut guest: Guest<'_>, ms: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    guest.data_mut().tick_ms = match ms {
        0 => 0,
        ms => ms.clamp(limits::TICK_MS_MIN, limits::TICK_MS_MAX),
    };
    Ok(status::OK)
}

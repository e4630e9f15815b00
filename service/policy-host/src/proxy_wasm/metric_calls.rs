//! The functions that define, record and read metrics.

use wasmtime::Linker;

use super::guest::{Answer, Guest, MODULE};
use super::memory::{answer, charge, copy, write};
use super::metrics::MetricKind;
use super::state::Proxy;
use super::status;
use crate::text::text;
use crate::{cost, limits};

pub(super) fn define(linker: &mut Linker<Proxy>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "proxy_define_metric", define_metric)?;
    linker.func_wrap(MODULE, "proxy_record_metric", record_metric)?;
    linker.func_wrap(MODULE, "proxy_increment_metric", increment_metric)?;
    linker.func_wrap(MODULE, "proxy_get_metric", get_metric)?;
    Ok(())
}

fn define_metric(mut guest: Guest<'_>, kind: u32, name: u32, name_len: u32, id_at: u32) -> Answer {
    charge(&mut guest, cost::STATE)?;
    let Some(name) = copy(&mut guest, name, name_len.min(limits::NAME_BYTES as u32))? else {
        return Ok(status::INVALID_MEMORY_ACCESS);
    };
    let kind = match kind {
        0 => MetricKind::Counter,
        1 => MetricKind::Gauge,
        2 => MetricKind::Histogram,
        _ => return Ok(status::BAD_ARGUMENT),
    };
    let name = text(&name, limits::NAME_BYTES);
    match guest.data_mut().metrics.define(kind, name) {
        Some(id) => Ok(answer(&mut guest, id_at, id)),
        None => Ok(status::INTERNAL_FAILURE),
    }
}

fn record_metric(mut guest: Guest<'_>, id: u32, value: u64) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    Ok(match guest.data_mut().metrics.get(id) {
        Some(metric) => {
            metric.record(value);
            status::OK
        }
        None => status::NOT_FOUND,
    })
}

fn increment_metric(mut guest: Guest<'_>, id: u32, delta: i64) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    let metric = guest.data_mut().metrics.get(id);
    Ok(match metric.map(|metric| metric.increment(delta)) {
        Some(true) => status::OK,
        Some(false) => status::BAD_ARGUMENT,
        None => status::NOT_FOUND,
    })
}

fn get_metric(mut guest: Guest<'_>, id: u32, value_at: u32) -> Answer {
    charge(&mut guest, cost::METRIC)?;
    let Some(value) = guest.data_mut().metrics.get(id).map(|metric| metric.value) else {
        return Ok(status::NOT_FOUND);
    };
    Ok(match write(&mut guest, value_at, &value.to_le_bytes()) {
        true => status::OK,
        false => status::INVALID_MEMORY_ACCESS,
    })
}

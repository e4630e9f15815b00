//! Durations of calls per tenant, method, side and status: the counting that a runtime does for
//! each call.
//!
//! A call is timed by the turns in which it arrived and ended, so no clock is read for it. A call
//! that is answered in the same turn, for example a denied one, took no time. A series is made when
//! its first call has ended; after that, counting allocates nothing. There are at most
//! [`MAX_SERIES`], and at most [`MAX_SERIES_PER_TENANT`] of one tenant, so no tenant uses up all of
//! them. Calls without room for a series are counted in one overflow series per kind.
//!
//! Absent on purpose: calls that end after their caller has gone. They have no status.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_engine::fair::FlowId;
use tollgate_shm_abi::status::Code;
use tollgate_telemetry::histogram::{Exemplar, Histogram};
use tollgate_telemetry::limits::{MAX_SERIES, MAX_SERIES_PER_TENANT};
use tollgate_telemetry::record::Side;

use tollgate_jit::on_demand::Method;

/// The measured interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// From an application's call to its answer.
    Client,
    /// From a request's arrival to its answer, for calls of peers; from its delivery to its answer,
    /// for calls within the host.
    Server,
    /// From the arrival of a peer's request to its delivery: conversion, evaluation and waiting.
    Waited,
}

const KINDS: usize = 3;

/// A call that has ended, as durations know it.
#[derive(Clone, Copy)]
pub(crate) struct EndedCall<'r> {
    pub(crate) flow: FlowId,
    pub(crate) tenant: &'r Arc<str>,
    /// `None`: unknown.
    pub(crate) method: Option<&'r Arc<Method>>,
    pub(crate) kind: Kind,
    pub(crate) code: Code,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    flow: FlowId,
    /// The address of the method; 0: unknown.
    method: usize,
    kind: Kind,
    code: Code,
}

impl Key {
    #[inline]
    fn of(call: &EndedCall<'_>) -> Key {
        Key {
            flow: call.flow,
            method: call.method.map_or(0, |method| Arc::as_ptr(method).addr()),
            kind: call.kind,
            // Peers may send unknown codes.
            code: call.code.name().map_or(Code::UNKNOWN, |_| call.code),
        }
    }

    /// Some of its bits. Sessions and services have their own methods, so the flow adds no
    /// information.
    #[inline]
    fn recent(&self) -> usize {
        let method = (self.method >> 4) ^ (self.method >> 9);
        (method ^ ((self.kind as usize) << 3) ^ self.code.0 as usize) % RECENT
    }
}

/// For a caller, every status but OK is an error. A server isn't responsible for its caller's
/// mistakes; the rule is OpenTelemetry's.
pub fn is_error(side: Side, code: Code) -> bool {
    match side {
        Side::Client => code != Code::OK,
        Side::Server => matches!(
            code,
            Code::UNKNOWN
                | Code::DEADLINE_EXCEEDED
                | Code::UNIMPLEMENTED
                | Code::INTERNAL
                | Code::UNAVAILABLE
                | Code::DATA_LOSS
        ),
    }
}

/// One series. It keeps the method, so that no other method gets its address.
struct Series {
    key: Key,
    tenant: Arc<str>,
    method: Option<Arc<Method>>,
    durations: Histogram,
}

/// Series that are found without hashing: most calls resemble one of the last few.
const RECENT: usize = 32;

/// All series of one runtime. A series is never removed.
#[derive(Default)]
pub(crate) struct Durations {
    series: Vec<Series>,
    places: HashMap<Key, usize, foldhash::fast::RandomState>,
    /// The place where a series was found last, by some bits of its key.
    recent: [usize; RECENT],
    overflow: [Histogram; KINDS],
}

/// One series, for metrics.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The measured interval.
    pub kind: Kind,
    /// `None`: calls without a series of their own.
    pub of: Option<MeasuredOf>,
    /// The durations.
    pub durations: Histogram,
}

/// The labels of a series; see [`Measured`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MeasuredOf {
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// The method, if it is known.
    pub method: Option<String>,
    /// The status of the calls.
    pub code: Code,
}

impl Durations {
    /// Records the duration of one call, and its span if it has one.
    #[inline]
    pub(crate) fn note(&mut self, call: &EndedCall<'_>, took_ns: u64, exemplar: Option<Exemplar>) {
        self.record(call, took_ns);
        if let Some(exemplar) = exemplar {
            self.exemplify(call, exemplar);
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, call: &EndedCall<'_>, took_ns: u64) {
        let key = Key::of(call);
        match self.of(&key) {
            Some(series) => series.durations.record(took_ns),
            None => self.record_first(key, call.tenant, call.method, took_ns),
        }
    }

    #[inline]
    fn of(&mut self, key: &Key) -> Option<&mut Series> {
        let recent = key.recent();
        let at = self.recent[recent];
        let is_it = self.series.get(at).is_some_and(|series| series.key == *key);
        let at = match is_it {
            true => at,
            false => {
                self.recent[recent] = *self.places.get(key)?;
                self.recent[recent]
            }
        };
        self.series.get_mut(at)
    }

    /// Adds a span to a recorded call's series; the overflow series have none.
    fn exemplify(&mut self, call: &EndedCall<'_>, exemplar: Exemplar) {
        let key = Key::of(call);
        if let Some(series) = self.of(&key) {
            series.durations.exemplify(exemplar);
        }
    }

    #[cold]
    fn record_first(
        &mut self,
        key: Key,
        tenant: &Arc<str>,
        method: Option<&Arc<Method>>,
        took_ns: u64,
    ) {
        let its = self.series.iter().filter(|s| s.key.flow == key.flow);
        if self.series.len() >= MAX_SERIES || its.count() >= MAX_SERIES_PER_TENANT {
            return self.overflow[key.kind as usize].record(took_ns);
        }
        let mut durations = Histogram::default();
        durations.record(took_ns);
        let series = Series {
            key,
            tenant: Arc::clone(tenant),
            method: method.cloned(),
            durations,
        };
        self.places.insert(key, self.series.len());
        self.series.push(series);
    }

    /// A copy of everything measured so far: 2.7 KB per series.
    pub(crate) fn measured(&self) -> Vec<Measured> {
        let own = self.series.iter().map(|series| Measured {
            kind: series.key.kind,
            of: Some(MeasuredOf {
                tenant: Arc::clone(&series.tenant),
                method: series.method.as_ref().map(|method| method.name.clone()),
                code: series.key.code,
            }),
            durations: series.durations.clone(),
        });
        let kinds = [Kind::Client, Kind::Server, Kind::Waited];
        let others = kinds.into_iter().zip(&self.overflow);
        let others = others.filter(|(_, durations)| durations.count() > 0);
        let others = others.map(|(kind, durations)| Measured {
            kind,
            of: None,
            durations: durations.clone(),
        });
        own.chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_engine::fair::Schedule;

    fn call(flow: FlowId, tenant: &Arc<str>, kind: Kind, code: Code) -> EndedCall<'_> {
        EndedCall {
            flow,
            tenant,
            method: None,
            kind,
            code,
        }
    }

    #[test]
    fn series_are_limited_per_tenant_and_in_all_and_the_rest_is_counted() {
        let mut schedule = Schedule::default();
        let mut durations = Durations::default();
        let codes = Code::ALL.len();
        let tenants = MAX_SERIES / codes + 2;
        for tenant in 0..tenants {
            let (flow, name): (_, Arc<str>) = (schedule.add(), format!("t{tenant}").into());
            for code in Code::ALL {
                durations.record(&call(flow, &name, Kind::Client, *code), 5);
            }
        }
        let measured = durations.measured();
        assert_eq!(measured.len(), MAX_SERIES + 1);
        let rest = measured.iter().find(|series| series.of.is_none());
        let rest = rest.map(|series| series.durations.count());
        assert_eq!(rest, Some((tenants * codes - MAX_SERIES) as u64));

        let mut durations = Durations::default();
        let (flow, name): (_, Arc<str>) = (schedule.add(), "greedy".into());
        let kinds = [Kind::Client, Kind::Server, Kind::Waited];
        let known = kinds
            .iter()
            .flat_map(|k| Code::ALL.iter().map(|c| (*k, *c)));
        let before = known.clone().count();
        known.for_each(|(kind, code)| durations.record(&call(flow, &name, kind, code), 5));
        // An unknown status counts as UNKNOWN.
        let strange = Code(u32::MAX);
        durations.record(&call(flow, &name, Kind::Client, strange), 5);
        assert_eq!(durations.measured().len(), before);
        assert!(before < MAX_SERIES_PER_TENANT);
        for method in 1..=MAX_SERIES_PER_TENANT {
            let key = Key {
                flow,
                method,
                kind: Kind::Server,
                code: Code::OK,
            };
            durations.record_first(key, &name, None, 5);
        }
        let measured = durations.measured();
        assert_eq!(measured.len(), MAX_SERIES_PER_TENANT + 1);
        // Another tenant has room.
        let (other, name) = (schedule.add(), "other".into());
        durations.record(&call(other, &name, Kind::Client, Code::OK), 5);
        assert_eq!(durations.measured().len(), MAX_SERIES_PER_TENANT + 2);
    }
}

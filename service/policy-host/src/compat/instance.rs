//! An instance of a compat module, for any of the interfaces.

use std::time::Duration;

use crate::opa::Rego;
use crate::proxy_wasm::Filter;
use crate::{CompatCall, CompatVerdict, Fault, LogLine, MeasuredMetric, Policy};

/// A compat module with its own memory, ready to evaluate. May move between threads, but serves one
/// at a time.
#[derive(Debug)]
pub struct CompatInstance(Kind);

#[derive(Debug)]
enum Kind {
    Filter(Box<Filter>),
    Rego(Box<Rego>),
}

impl CompatInstance {
    pub(crate) fn filter(filter: Filter) -> CompatInstance {
        CompatInstance(Kind::Filter(Box::new(filter)))
    }

    pub(crate) fn rego(rego: Rego) -> CompatInstance {
        CompatInstance(Kind::Rego(Box::new(rego)))
    }

    /// Evaluates one call.
    ///
    /// # Errors
    /// The module failed and is dead. Only [`CompatVerdict::Allow`] and [`CompatVerdict::Change`]
    /// let a call pass.
    pub fn evaluate(&mut self, call: &CompatCall<'_>) -> Result<CompatVerdict, Fault> {
        match &mut self.0 {
            Kind::Filter(filter) => filter.evaluate(call),
            Kind::Rego(rego) => rego.evaluate(call),
        }
    }

    /// Bytes of its linear memory.
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Kind::Filter(filter) => filter.memory_bytes(),
            Kind::Rego(rego) => rego.memory_bytes(),
        }
    }

    /// Its current tick period, if any.
    pub fn tick_period(&self) -> Option<Duration> {
        match &self.0 {
            Kind::Filter(filter) => filter.tick_period(),
            Kind::Rego(_) => None,
        }
    }

    /// Runs its tick, with the fuel of one call; does nothing if it has none.
    ///
    /// # Errors
    /// The module failed and is dead.
    pub fn tick(&mut self) -> Result<(), Fault> {
        match &mut self.0 {
            Kind::Filter(filter) => filter.tick(),
            Kind::Rego(_) => Ok(()),
        }
    }

    /// The policy of this instance.
    pub fn policy(&self) -> &Policy {
        match &self.0 {
            Kind::Filter(filter) => filter.policy(),
            Kind::Rego(rego) => rego.policy(),
        }
    }

    /// True after a fault: discard the instance, or replace it with a fresh one.
    pub fn is_dead(&self) -> bool {
        match &self.0 {
            Kind::Filter(filter) => filter.is_dead(),
            Kind::Rego(rego) => rego.is_dead(),
        }
    }

    /// Units of fuel that the last evaluation or tick used; before any, the units that the set-up
    /// used.
    pub fn fuel_used(&self) -> u64 {
        match &self.0 {
            Kind::Filter(filter) => filter.fuel_used(),
            Kind::Rego(rego) => rego.fuel_used(),
        }
    }

    /// Changes the budget of each call's evaluation.
    pub fn set_fuel_per_call(&mut self, fuel: u64) {
        match &mut self.0 {
            Kind::Filter(filter) => filter.set_fuel_per_call(fuel),
            Kind::Rego(rego) => rego.set_fuel_per_call(fuel),
        }
    }

    /// Sets the clock that the module reads, if granted, in milliseconds of Unix time; initially 0.
    pub fn set_time_ms(&mut self, now_ms: u64) {
        match &mut self.0 {
            Kind::Filter(filter) => filter.set_time_ms(now_ms),
            Kind::Rego(_) => {}
        }
    }

    /// Takes the log lines since the last time, and the number of dropped ones. Also works after a
    /// fault.
    pub fn take_log(&mut self) -> (Vec<LogLine>, u64) {
        match &mut self.0 {
            Kind::Filter(filter) => filter.take_log(),
            Kind::Rego(_) => (Vec::new(), 0),
        }
    }

    /// The metrics that the module has defined.
    pub fn metrics(&self) -> &[MeasuredMetric] {
        match &self.0 {
            Kind::Filter(filter) => filter.metrics(),
            Kind::Rego(_) => &[],
        }
    }
}

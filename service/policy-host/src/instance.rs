//! A policy with its own memory, ready to evaluate.
//!
//! ```text
//!   new --start, buffer, configure--> alive --evaluate--> alive
//!                                       |
//!                                       +--any fault--> dead   (every later evaluation: Fault::Dead)
//! ```
//!
//! Every call into the guest has its own budget of fuel, and the fuel used is known afterwards.

use wasmtime::InstancePre;

use crate::batch::{Batch, ENTRY_BYTES};
use crate::budget::Budget;
use crate::imports::State;
use crate::sandbox::Sandbox;
use crate::span::Span;
use crate::{
    BatchError, EvaluateError, Fault, Hook, LoadError, LogLine, Metrics, Misuse, Policy,
    PolicyTime, Setup, Verdict, limits,
};

/// One policy, one configuration, one memory. May move between threads, but serves one at a time.
pub struct Instance {
    sandbox: Sandbox,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance")
            .field("policy", &self.sandbox.policy.manifest().name())
            .field("dead", &self.sandbox.dead)
            .finish_non_exhaustive()
    }
}

impl Instance {
    pub(crate) fn new(
        policy: &Policy,
        pre: &InstancePre<State>,
        setup: &Setup<'_>,
    ) -> Result<Instance, LoadError> {
        Ok(Instance {
            sandbox: Sandbox::new(policy, pre, setup)?,
        })
    }

    /// The policy of this instance.
    pub fn policy(&self) -> &Policy {
        &self.sandbox.policy
    }

    /// True after a fault: discard the instance, or replace it with a fresh one.
    pub fn is_dead(&self) -> bool {
        self.sandbox.dead
    }

    /// Values of the manifest's counters, wrapping. Also readable after a fault.
    pub fn counters(&self) -> &[u64] {
        &self.metrics().counters
    }

    /// All the policy's metrics. Also readable after a fault.
    pub fn metrics(&self) -> &Metrics {
        &self.sandbox.store.data().metrics
    }

    /// Units of fuel that the last evaluation, tick, save or restore used, including the host's
    /// work for the guest. Before any, the units that the set-up used. A trap leaves no exact
    /// count, so it counts as everything granted.
    pub fn fuel_used(&self) -> u64 {
        self.sandbox.budget.used()
    }

    /// The budget of each call's evaluation, in units of fuel.
    pub fn fuel_per_call(&self) -> u64 {
        self.sandbox.fuel_per_call
    }

    /// Changes the budget of each call's evaluation.
    pub fn set_fuel_per_call(&mut self, fuel: u64) {
        self.sandbox.fuel_per_call = fuel;
    }

    /// Bytes of its linear memory.
    pub fn memory_bytes(&self) -> usize {
        self.sandbox.memory.data_size(&self.sandbox.store)
    }

    /// Sets the clocks that the policy reads; initially 0.
    pub fn set_time(&mut self, time: PolicyTime) {
        self.sandbox.store.data_mut().time = time;
    }

    /// Takes the log lines since the last time, and the number of dropped ones. Also works after a
    /// fault.
    pub fn take_log(&mut self) -> (Vec<LogLine>, u64) {
        self.sandbox.store.data_mut().log.take()
    }

    /// Takes over another instance's uncollected log lines.
    pub(crate) fn inherit_log(&mut self, other: &mut Instance) {
        let earlier = other.take_log();
        self.sandbox.store.data_mut().log.inherit(earlier);
    }

    /// Evaluates one call.
    ///
    /// `method` is an index into the manifest's methods. `write_view` writes a view of at most
    /// `view_len_max` bytes to the given slice, which lies in the guest's memory, and returns its
    /// length. This is the only copy.
    ///
    /// # Errors
    /// See [`EvaluateError`]. Nothing but [`Verdict::Allow`] allows.
    pub fn evaluate<E>(
        &mut self,
        hook: Hook,
        method: u32,
        view_len_max: usize,
        write_view: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Verdict, EvaluateError<E>> {
        let mut batch = self.batch(hook, 1, view_len_max)?;
        batch.push(method, view_len_max, write_view)?;
        let mut verdict = None;
        batch.evaluate(|_, v| verdict = Some(v))?;
        Ok(verdict.expect("a batch of one has one verdict"))
    }

    /// Begins a batch of up to `count` calls. Their views have up to `views_len_max` bytes together
    /// (each rounded up to a multiple of 8). One host call evaluates them all; from about eight
    /// calls on, this halves the cost per call.
    ///
    /// # Errors
    /// The instance is dead, or dies because it can't provide the buffer; or the numbers exceed the
    /// limits.
    #[inline]
    pub fn batch(
        &mut self,
        hook: Hook,
        count: usize,
        views_len_max: usize,
    ) -> Result<Batch<'_>, BatchError> {
        self.sandbox.check_alive()?;
        if !self.sandbox.has(hook) {
            return Err(Misuse::NoHook(hook).into());
        }
        if count > limits::BATCH {
            return Err(Misuse::BatchTooLong {
                count,
                max: limits::BATCH,
            }
            .into());
        }
        let max = limits::VIEW_BYTES * count;
        if views_len_max > max {
            return Err(Misuse::ViewTooLong {
                len: views_len_max,
                max,
            }
            .into());
        }
        let len = count * ENTRY_BYTES + views_len_max.next_multiple_of(8);
        self.sandbox.budget = Budget::default();
        self.sandbox.make_room(len)?;
        Ok(Batch::new(&mut self.sandbox, hook, count, len))
    }

    /// Runs the policy's tick, with the fuel of one call; does nothing if the policy has none.
    ///
    /// # Errors
    /// The policy failed and is dead.
    pub fn tick(&mut self) -> Result<(), Fault> {
        self.sandbox.check_alive()?;
        self.sandbox.budget = Budget::default();
        self.sandbox.grant(self.sandbox.fuel_per_call);
        match self
            .sandbox
            .enter(|exports, store| exports.tick.as_ref().map_or(Ok(0), |f| f.call(store, ())))
        {
            Ok(0) => Ok(()),
            Ok(returned) => Err(self.sandbox.kill(Fault::BadReturn {
                function: "tick",
                returned,
            })),
            Err(fault) => Err(fault),
        }
    }

    /// The state for the policy's next version, in the format of the manifest's
    /// [`crate::Manifest::state_version`]; `None` if the policy declares none. The instance stays
    /// alive.
    ///
    /// # Errors
    /// The policy failed and is dead.
    pub fn save(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        self.sandbox.check_alive()?;
        let Some(save) = self.sandbox.exports.save.clone() else {
            return Ok(None);
        };
        self.sandbox.budget = Budget::default();
        self.sandbox.grant(self.sandbox.fuel_for_handover);
        let place = self.sandbox.enter(|_, store| save.call(store, ()))?;
        let span = Span {
            address: place as u32,
            len: (place >> 32) as u32,
        };
        let memory = self.sandbox.memory.data(&self.sandbox.store);
        let saved = span
            .of(memory)
            .filter(|saved| saved.len() <= limits::SAVED_BYTES);
        let Some(saved) = saved else {
            let fault = Fault::BadSave {
                address: span.address,
                len: span.len,
                max: limits::SAVED_BYTES,
                memory: memory.len(),
            };
            return Err(self.sandbox.kill(fault));
        };
        match self.sandbox.budget.charge(saved.len() as u64) {
            Ok(()) => Ok(Some(saved.to_vec())),
            Err(fault) => Err(self.sandbox.kill(fault)),
        }
    }

    /// Restores another instance's saved state, possibly from another version.
    ///
    /// # Errors
    /// The policy failed or refused, and is dead; or it declares no state, and stays alive.
    pub fn restore(&mut self, version: u32, saved: &[u8]) -> Result<(), Fault> {
        self.sandbox.check_alive()?;
        let Some(restore) = self.sandbox.exports.restore.clone() else {
            return Err(Fault::NoState);
        };
        self.sandbox.budget = Budget::default();
        self.sandbox.make_room(saved.len())?;
        self.sandbox.buffer_mut()[..saved.len()].copy_from_slice(saved);
        self.sandbox.used = self.sandbox.used.max(saved.len());
        self.sandbox.grant(self.sandbox.fuel_for_handover);
        let params = (version, saved.len() as u32);
        match self.sandbox.enter(|_, store| restore.call(store, params))? {
            0 => Ok(()),
            returned => Err(self
                .sandbox
                .kill(Fault::RestoreRefused { version, returned })),
        }
    }
}

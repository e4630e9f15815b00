//! A policy with a memory of its own, ready to judge.
//!
//! ```text
//!   new --start, buffer, configure--> alive --judge--> alive
//!                                       |
//!                                       +--any fault--> dead   (every later judgement: Fault::Dead)
//! ```
//!
//! Every call into the guest has its own budget of fuel, and afterwards it is known how much of it was used.
//! The typed functions and the memory are looked up once, here; a judgement does none of that.

use std::ops::Range;

use wasmtime::{InstancePre, Memory, Store, StoreLimitsBuilder, TypedFunc};

use crate::batch::{Batch, ENTRY_BYTES};
use crate::budget::{Budget, start_error, store};
use crate::effects::part;
use crate::imports::State;
use crate::text::text;
use crate::{
    BatchError, Fault, Hook, JudgeError, LoadError, LogLine, Metrics, Misuse, Policy, Setup,
    SharedState, StateLimits, Verdict, limits,
};

/// Bytes of the first buffer: enough for one call with small fields.
const FIRST_BUFFER_BYTES: usize = 4096;

/// One policy, one configuration, one memory. May move between threads, but serves one at a time.
pub struct Instance {
    pub(crate) store: Store<State>,
    pub(crate) memory: Memory,
    exports: Exports,
    pub(crate) policy: Policy,
    /// Entries of the manifest's methods.
    pub(crate) methods: u32,
    fuel_per_call: u64,
    fuel_for_handover: u64,
    pub(crate) budget: Budget,
    /// The guest's buffer, within its memory and 8-aligned.
    pub(crate) buffer: Range<usize>,
    /// Bytes from the buffer's start that may hold something of an earlier judgement.
    pub(crate) used: usize,
    dead: bool,
}

struct Exports {
    buffer: TypedFunc<u32, u32>,
    configure: TypedFunc<u32, u32>,
    request: Option<TypedFunc<u32, u32>>,
    reply: Option<TypedFunc<u32, u32>>,
    save: Option<TypedFunc<(), u64>>,
    restore: Option<TypedFunc<(u32, u32), u32>>,
    tick: Option<TypedFunc<(), u32>>,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance")
            .field("policy", &self.policy.manifest().name())
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

impl Instance {
    pub(crate) fn new(
        policy: &Policy,
        pre: &InstancePre<State>,
        setup: &Setup<'_>,
    ) -> Result<Instance, LoadError> {
        let (limits, config) = (setup.limits, setup.config.unwrap_or_default());
        let (mut store, budget) = store(
            pre.module().engine(),
            state(policy, setup),
            |state| &mut state.limiter,
            limits.fuel_for_setup,
        );
        let instance = pre
            .instantiate(&mut store)
            .map_err(|e| start_error(&e, limits.fuel_for_setup))?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .expect("load checked the exported memory");
        store.data_mut().memory = Some(memory);
        let mut instance = Instance {
            exports: Exports::of(&instance, &mut store, policy.manifest()),
            store,
            memory,
            policy: policy.clone(),
            methods: policy.manifest().methods().len() as u32,
            fuel_per_call: limits.fuel_per_call,
            fuel_for_handover: limits.fuel_for_handover,
            budget,
            buffer: 0..0,
            used: 0,
            dead: false,
        };
        let failed = |step| move |fault| LoadError::Setup { step, fault };
        instance
            .ask_buffer(config.len().max(FIRST_BUFFER_BYTES))
            .map_err(failed("buffer"))?;
        instance.configure(config)?;
        Ok(instance)
    }

    /// The policy that this is an instance of.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// True after a fault: discard the instance, or replace it by a fresh one.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Values of the manifest's counters, wrapping. Also readable after a fault.
    pub fn counters(&self) -> &[u64] {
        &self.metrics().counters
    }

    /// All that the policy counts and measures. Also readable after a fault.
    pub fn metrics(&self) -> &Metrics {
        &self.store.data().metrics
    }

    /// Units of fuel that the last judgement, tick, save or restore used; before any, what the set-up used. Work that the
    /// host did for the guest is in it. A trap leaves no exact count behind, so it counts as all that was given.
    pub fn fuel_used(&self) -> u64 {
        self.budget.used()
    }

    /// Units of fuel that each call's judgement may use.
    pub fn fuel_per_call(&self) -> u64 {
        self.fuel_per_call
    }

    /// Changes what each call's judgement may use.
    pub fn set_fuel_per_call(&mut self, fuel: u64) {
        self.fuel_per_call = fuel;
    }

    /// Bytes of its linear memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory.data_size(&self.store)
    }

    /// Sets the clock that the policy reads, in milliseconds of Unix time; 0 before.
    pub fn set_time_ms(&mut self, now_ms: u64) {
        self.store.data_mut().now_ms = now_ms;
    }

    /// Takes the log lines since the last time, and how many more were dropped. Also works after a fault.
    pub fn take_log(&mut self) -> (Vec<LogLine>, u64) {
        let state = self.store.data_mut();
        (
            std::mem::take(&mut state.log),
            std::mem::take(&mut state.log_dropped),
        )
    }

    /// Takes over what another instance has logged and nobody has collected.
    pub(crate) fn inherit_log(&mut self, other: &mut Instance) {
        let (mut lines, dropped) = other.take_log();
        let state = self.store.data_mut();
        lines.append(&mut state.log);
        let surplus = lines.len().saturating_sub(limits::LOG_LINES);
        lines.truncate(limits::LOG_LINES);
        state.log = lines;
        state.log_dropped += dropped + surplus as u64;
    }

    /// Asks for a verdict on one call.
    ///
    /// `method` is an index into the manifest's methods. `write_view` writes a view of at most `view_len_max` bytes to
    /// the slice it gets, which lies in the guest's memory, and returns its length: that is the only copy.
    ///
    /// # Errors
    /// See [`JudgeError`]. Nothing but [`Verdict::Allow`] allows.
    pub fn judge<E>(
        &mut self,
        hook: Hook,
        method: u32,
        view_len_max: usize,
        write_view: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Verdict, JudgeError<E>> {
        let mut batch = self.batch(hook, 1, view_len_max)?;
        batch.push(method, view_len_max, write_view)?;
        let mut verdict = None;
        batch.judge(|_, v| verdict = Some(v))?;
        Ok(verdict.expect("a batch of one has one verdict"))
    }

    /// Begins a batch of up to `count` calls whose views have up to `views_len_max` bytes together (each rounded up to
    /// a multiple of 8). One host call judges them all; from about eight on that halves the cost per call.
    ///
    /// # Errors
    /// The instance is dead, or dies because it can't provide the buffer; or the numbers are beyond the limits.
    #[inline]
    pub fn batch(
        &mut self,
        hook: Hook,
        count: usize,
        views_len_max: usize,
    ) -> Result<Batch<'_>, BatchError> {
        self.check_alive()?;
        let exists = match hook {
            Hook::Request => self.exports.request.is_some(),
            Hook::Reply => self.exports.reply.is_some(),
        };
        if !exists {
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
        self.budget = Budget::default();
        self.make_room(len)?;
        Ok(Batch::new(self, hook, count, len))
    }

    /// Runs the policy's tick, with the fuel of one call; nothing if it has none.
    ///
    /// # Errors
    /// The policy failed and is dead.
    pub fn tick(&mut self) -> Result<(), Fault> {
        self.check_alive()?;
        self.budget = Budget::default();
        self.grant(self.fuel_per_call);
        match self
            .enter(|exports, store| exports.tick.as_ref().map_or(Ok(0), |f| f.call(store, ())))
        {
            Ok(0) => Ok(()),
            Ok(returned) => Err(self.kill(Fault::BadReturn {
                function: "tick",
                returned,
            })),
            Err(fault) => Err(fault),
        }
    }

    /// The state that the next version may go on with, in the format of the manifest's [`crate::Manifest::state_version`];
    /// `None` if the policy declares none. The instance lives on.
    ///
    /// # Errors
    /// The policy failed and is dead.
    pub fn save(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        self.check_alive()?;
        let Some(save) = self.exports.save.clone() else {
            return Ok(None);
        };
        self.budget = Budget::default();
        self.grant(self.fuel_for_handover);
        let place = self.enter(|_, store| save.call(store, ()))?;
        let (address, len) = (place as u32, (place >> 32) as u32);
        let memory = self.memory.data(&self.store);
        let saved = part(memory, address, len).filter(|saved| saved.len() <= limits::SAVED_BYTES);
        let Some(saved) = saved else {
            let fault = Fault::BadSave {
                address,
                len,
                max: limits::SAVED_BYTES,
                memory: memory.len(),
            };
            return Err(self.kill(fault));
        };
        match self.budget.charge(saved.len() as u64) {
            Ok(()) => Ok(Some(saved.to_vec())),
            Err(fault) => Err(self.kill(fault)),
        }
    }

    /// Gives the policy what another instance has saved, perhaps of another version.
    ///
    /// # Errors
    /// The policy failed or refuses, and is dead; or it declares no state, and lives on.
    pub fn restore(&mut self, version: u32, saved: &[u8]) -> Result<(), Fault> {
        self.check_alive()?;
        let Some(restore) = self.exports.restore.clone() else {
            return Err(Fault::NoState);
        };
        self.budget = Budget::default();
        self.make_room(saved.len())?;
        self.buffer_mut()[..saved.len()].copy_from_slice(saved);
        self.used = self.used.max(saved.len());
        self.grant(self.fuel_for_handover);
        let params = (version, saved.len() as u32);
        match self.enter(|_, store| restore.call(store, params))? {
            0 => Ok(()),
            returned => Err(self.kill(Fault::RestoreRefused { version, returned })),
        }
    }
}

impl Exports {
    /// Those that the manifest declares; load checked that they are there.
    fn of(
        instance: &wasmtime::Instance,
        store: &mut Store<State>,
        manifest: &crate::Manifest,
    ) -> Exports {
        let hooks = manifest.hooks();
        let has_state = manifest.state_version().is_some();
        let mut function = |name| instance.get_typed_func::<u32, u32>(&mut *store, name).ok();
        Exports {
            buffer: function("tollgate_buffer").expect("load checked this export"),
            configure: function("tollgate_configure").expect("load checked this export"),
            request: function("tollgate_request").filter(|_| hooks.contains(&Hook::Request)),
            reply: function("tollgate_reply").filter(|_| hooks.contains(&Hook::Reply)),
            save: typed(instance, store, "tollgate_save").filter(|_| has_state),
            restore: typed(instance, store, "tollgate_restore").filter(|_| has_state),
            tick: typed(instance, store, "tollgate_tick").filter(|_| manifest.tick().is_some()),
        }
    }
}

fn typed<P: wasmtime::WasmParams, R: wasmtime::WasmResults>(
    instance: &wasmtime::Instance,
    store: &mut Store<State>,
    name: &str,
) -> Option<TypedFunc<P, R>> {
    instance.get_typed_func(store, name).ok()
}

impl Instance {
    fn check_alive(&self) -> Result<(), Fault> {
        match self.dead {
            true => Err(Fault::Dead),
            false => Ok(()),
        }
    }

    fn configure(&mut self, config: &[u8]) -> Result<(), LoadError> {
        self.buffer_mut()[..config.len()].copy_from_slice(config);
        self.used = config.len();
        let len = self
            .enter(|exports, store| exports.configure.call(store, config.len() as u32))
            .map_err(|fault| LoadError::Setup {
                step: "configure",
                fault,
            })? as usize;
        if len == 0 {
            return Ok(());
        }
        // The text was written by the guest, within the buffer that it gave us.
        let buffer = &self.memory.data(&self.store)[self.buffer.clone()];
        let said = &buffer[..len.min(buffer.len())];
        Err(LoadError::ConfigRefused(text(
            said,
            limits::CONFIG_ERROR_BYTES,
        )))
    }

    /// Sees to it that the buffer has `len` bytes; a longer one is asked for with the fuel of a call, and more for its length.
    #[inline]
    fn make_room(&mut self, len: usize) -> Result<(), Fault> {
        if len <= self.buffer.len() {
            return Ok(());
        }
        let len = len.next_power_of_two();
        self.grant(self.fuel_per_call + len as u64 * limits::FUEL_PER_BUFFER_BYTE);
        self.ask_buffer(len)
    }

    /// Asks the guest for a buffer of at least `len` bytes; burns fuel that is already granted.
    fn ask_buffer(&mut self, len: usize) -> Result<(), Fault> {
        let address = self.enter(|exports, store| exports.buffer.call(store, len as u32))?;
        let memory = self.memory.data_size(&self.store);
        let begin = address as usize;
        if !begin.is_multiple_of(8) || begin > memory || memory - begin < len {
            return Err(self.kill(Fault::BadBuffer {
                address,
                len,
                memory,
            }));
        }
        self.buffer = begin..begin + len;
        // Nothing is known about the new place: whatever it holds is the guest's own.
        self.used = 0;
        Ok(())
    }

    #[inline]
    pub(crate) fn buffer_mut(&mut self) -> &mut [u8] {
        &mut self.memory.data_mut(&mut self.store)[self.buffer.clone()]
    }

    /// Runs a hook on the `count` entries in the buffer.
    #[inline]
    pub(crate) fn run(&mut self, hook: Hook, count: usize) -> Result<(), Fault> {
        self.grant(self.fuel_per_call.saturating_mul(count as u64));
        let returned = self.enter(|exports, store| {
            let function = match hook {
                Hook::Request => &exports.request,
                Hook::Reply => &exports.reply,
            };
            let function = function
                .as_ref()
                .expect("a batch exists only for a hook that exists");
            function.call(store, count as u32)
        })?;
        match returned {
            0 => Ok(()),
            returned => Err(self.kill(Fault::BadReturn {
                function: hook.name(),
                returned,
            })),
        }
    }

    /// Sets the fuel for the next call into the guest.
    #[inline]
    fn grant(&mut self, fuel: u64) {
        self.budget.grant(fuel);
        self.store.set_fuel(fuel).expect("the engine counts fuel");
    }

    /// Calls into the guest with the fuel that is left of what was granted.
    #[inline]
    fn enter<R>(
        &mut self,
        call: impl FnOnce(&Exports, &mut Store<State>) -> wasmtime::Result<R>,
    ) -> Result<R, Fault> {
        let returned = call(&self.exports, &mut self.store);
        let settled = self.budget.settle(&self.store, returned);
        settled.map_err(|fault| self.kill(fault))
    }

    /// Ends the instance.
    #[cold]
    pub(crate) fn kill(&mut self, fault: Fault) -> Fault {
        self.dead = true;
        fault
    }
}

fn state(policy: &Policy, setup: &Setup<'_>) -> State {
    let limiter = StoreLimitsBuilder::new()
        .memory_size(setup.limits.memory_bytes)
        .table_elements(setup.limits.table_elements)
        .instances(1)
        .memories(1)
        .tables(1)
        .build();
    let own = || SharedState::new(&StateLimits::default());
    State {
        limiter,
        memory: None,
        log: Vec::new(),
        log_dropped: 0,
        metrics: Metrics::of(policy.manifest()),
        shared: setup.state.cloned().unwrap_or_else(own),
        now_ms: 0,
    }
}

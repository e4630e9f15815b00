//! A policy with a memory of its own, ready to judge.
//!
//! ```text
//!   new --start, buffer, configure--> alive --judge--> alive
//!                                       |
//!                                       +--any fault--> dead   (every later judgement: Fault::Dead)
//! ```
//!
//! The typed functions and the memory are looked up once, here; a judgement does none of that.

use std::ops::Range;

use wasmtime::{InstancePre, Memory, Store, StoreLimitsBuilder, Trap, TypedFunc};

use crate::batch::{Batch, ENTRY_BYTES};
use crate::imports::{State, text};
use crate::{
    BatchError, Fault, Hook, JudgeError, LoadError, LogLine, Misuse, Policy, TenantLimits, Verdict,
    error::cut, limits,
};

/// Bytes of the first buffer: enough for one call with small fields.
const FIRST_BUFFER_BYTES: usize = 4096;

/// One policy, one configuration, one memory. May move between threads, but serves one at a time.
pub struct Instance {
    pub(crate) store: Store<State>,
    pub(crate) memory: Memory,
    exports: Exports,
    policy: Policy,
    /// Entries of the manifest's methods.
    pub(crate) methods: u32,
    fuel_per_call: u64,
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
        limits: TenantLimits,
        config: &[u8],
    ) -> Result<Instance, LoadError> {
        if config.len() > limits::CONFIG_BYTES {
            return Err(LoadError::ConfigTooLarge {
                bytes: config.len(),
                max: limits::CONFIG_BYTES,
            });
        }
        let mut store = Store::new(pre.module().engine(), state(policy, &limits));
        store.limiter(|state| &mut state.limiter);
        store
            .set_fuel(limits.fuel_for_setup)
            .expect("the engine counts fuel");
        let setup = |step, fault| LoadError::Setup { step, fault };
        let instance = pre
            .instantiate(&mut store)
            .map_err(|e| start_error(&e, limits.fuel_for_setup))?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .expect("load checked the exported memory");
        store.data_mut().memory = Some(memory);
        let mut function = |name| instance.get_typed_func::<u32, u32>(&mut store, name).ok();
        let hooks = policy.manifest().hooks();
        let exports = Exports {
            buffer: function("tollgate_buffer").expect("load checked this export"),
            configure: function("tollgate_configure").expect("load checked this export"),
            request: function("tollgate_request").filter(|_| hooks.contains(&Hook::Request)),
            reply: function("tollgate_reply").filter(|_| hooks.contains(&Hook::Reply)),
        };
        let mut instance = Instance {
            store,
            memory,
            exports,
            policy: policy.clone(),
            methods: policy.manifest().methods().len() as u32,
            fuel_per_call: limits.fuel_per_call,
            buffer: 0..0,
            used: 0,
            dead: false,
        };
        let fuel = limits.fuel_for_setup;
        instance
            .ask_buffer(config.len().max(FIRST_BUFFER_BYTES), fuel)
            .map_err(|fault| setup("buffer", fault))?;
        instance.configure(config, fuel)?;
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
        &self.store.data().counters
    }

    /// Takes the log lines since the last time, and how many more were dropped. Also works after a fault.
    pub fn take_log(&mut self) -> (Vec<LogLine>, u64) {
        let state = self.store.data_mut();
        (
            std::mem::take(&mut state.log),
            std::mem::take(&mut state.log_dropped),
        )
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
        if self.dead {
            return Err(Fault::Dead.into());
        }
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
        if len > self.buffer.len() {
            let fuel = self.fuel_per_call;
            self.store.set_fuel(fuel).expect("the engine counts fuel");
            self.ask_buffer(len.next_power_of_two(), fuel)?;
        }
        Ok(Batch::new(self, hook, count, len))
    }
}

impl Instance {
    fn configure(&mut self, config: &[u8], fuel: u64) -> Result<(), LoadError> {
        let setup = |fault| LoadError::Setup {
            step: "configure",
            fault,
        };
        self.buffer_mut()[..config.len()].copy_from_slice(config);
        self.used = config.len();
        let returned = self
            .exports
            .configure
            .call(&mut self.store, config.len() as u32);
        let len = returned.map_err(|e| setup(self.fault_of(&e, fuel)))? as usize;
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

    /// Asks the guest for a buffer of at least `len` bytes; burns fuel that is already set.
    fn ask_buffer(&mut self, len: usize, fuel: u64) -> Result<(), Fault> {
        let returned = self.exports.buffer.call(&mut self.store, len as u32);
        let address = returned.map_err(|e| self.fault_of(&e, fuel))?;
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
        let function = match hook {
            Hook::Request => &self.exports.request,
            Hook::Reply => &self.exports.reply,
        };
        let function = function
            .as_ref()
            .expect("a batch exists only for a hook that exists");
        let fuel = self.fuel_per_call.saturating_mul(count as u64);
        self.store.set_fuel(fuel).expect("the engine counts fuel");
        match function.call(&mut self.store, count as u32) {
            Ok(0) => Ok(()),
            Ok(returned) => Err(self.kill(Fault::BadReturn { hook, returned })),
            Err(error) => Err(self.fault_of(&error, fuel)),
        }
    }

    /// Ends the instance.
    #[cold]
    pub(crate) fn kill(&mut self, fault: Fault) -> Fault {
        self.dead = true;
        fault
    }

    #[cold]
    fn fault_of(&mut self, error: &wasmtime::Error, fuel: u64) -> Fault {
        self.kill(fault(error, fuel))
    }
}

fn state(policy: &Policy, limits: &TenantLimits) -> State {
    let limiter = StoreLimitsBuilder::new()
        .memory_size(limits.memory_bytes)
        .table_elements(limits.table_elements)
        .instances(1)
        .memories(1)
        .tables(1)
        .build();
    let counters = vec![0; policy.manifest().counters().len()].into();
    State {
        limiter,
        memory: None,
        log: Vec::new(),
        log_dropped: 0,
        counters,
    }
}

/// What a failed call into the guest means.
fn fault(error: &wasmtime::Error, fuel: u64) -> Fault {
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Fault::OutOfFuel { fuel },
        Some(trap) => Fault::Trap(
            trap.to_string()
                .trim_start_matches("wasm trap: ")
                .to_owned(),
        ),
        None => Fault::Trap(cut(&error.root_cause().to_string())),
    }
}

/// What a failed instantiation means.
fn start_error(error: &wasmtime::Error, fuel: u64) -> LoadError {
    if error.is::<wasmtime::PoolConcurrencyLimitError>() {
        return LoadError::PoolFull(cut(&error.to_string()));
    }
    LoadError::Setup {
        step: "start",
        fault: fault(error, fuel),
    }
}

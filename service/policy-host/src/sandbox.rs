//! The sandbox of one instance: a module's functions, its memory and the buffer in it, entered with
//! fuel.
//!
//! The typed functions and the memory are looked up once, here; evaluations do no look-ups.

use std::ops::Range;

use wasmtime::{InstancePre, Memory, Store, StoreLimitsBuilder, TypedFunc};

use crate::budget::{Budget, start_error, store};
use crate::compat::setup::optional;
use crate::imports::State;
use crate::log::Log;
use crate::text::text;
use crate::{
    Fault, Hook, LoadError, Manifest, Metrics, Policy, PolicyTime, Setup, SharedState, StateLimits,
    limits,
};

/// Bytes of the first buffer: enough for one call with small fields.
const FIRST_BUFFER_BYTES: usize = 4096;

/// A policy's module with its own memory and budget.
pub(crate) struct Sandbox {
    pub(crate) store: Store<State>,
    pub(crate) memory: Memory,
    pub(crate) exports: Exports,
    pub(crate) policy: Policy,
    /// Entries of the manifest's methods.
    pub(crate) methods: u32,
    pub(crate) fuel_per_call: u64,
    pub(crate) fuel_for_handover: u64,
    pub(crate) budget: Budget,
    /// The guest's buffer, within its memory and 8-aligned.
    pub(crate) buffer: Range<usize>,
    /// Bytes from the buffer's start that may hold leftovers of an earlier evaluation.
    pub(crate) used: usize,
    pub(crate) dead: bool,
}

/// The functions that the host calls.
pub(crate) struct Exports {
    pub(crate) buffer: TypedFunc<u32, u32>,
    pub(crate) configure: TypedFunc<u32, u32>,
    pub(crate) request: Option<TypedFunc<u32, u32>>,
    pub(crate) reply: Option<TypedFunc<u32, u32>>,
    pub(crate) save: Option<TypedFunc<(), u64>>,
    pub(crate) restore: Option<TypedFunc<(u32, u32), u32>>,
    pub(crate) tick: Option<TypedFunc<(), u32>>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox")
            .field("policy", &self.policy.manifest().name())
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Instantiates the module, asks it for its buffer and configures it.
    pub(crate) fn new(
        policy: &Policy,
        pre: &InstancePre<State>,
        setup: &Setup<'_>,
    ) -> Result<Sandbox, LoadError> {
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
        let mut sandbox = Sandbox {
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
        sandbox.initialize(&instance)?;
        sandbox
            .ask_buffer(config.len().max(FIRST_BUFFER_BYTES))
            .map_err(failed("buffer"))?;
        sandbox.configure(config)?;
        Ok(sandbox)
    }

    /// Starts the run-time library of a module with WASI.
    fn initialize(&mut self, instance: &wasmtime::Instance) -> Result<(), LoadError> {
        if !self.policy.manifest().has_wasi() {
            return Ok(());
        }
        let initialize = optional::<_, (), ()>(instance, &mut self.store, "_initialize")?;
        let Some(initialize) = initialize else {
            return Ok(());
        };
        self.enter(|_, store| initialize.call(store, ()))
            .map_err(|fault| LoadError::Setup {
                step: "start",
                fault,
            })
    }

    /// Refuses everything after a fault.
    #[inline]
    pub(crate) fn check_alive(&self) -> Result<(), Fault> {
        match self.dead {
            true => Err(Fault::Dead),
            false => Ok(()),
        }
    }

    /// Whether the policy runs at this hook.
    #[inline]
    pub(crate) fn has(&self, hook: Hook) -> bool {
        match hook {
            Hook::Request => self.exports.request.is_some(),
            Hook::Reply => self.exports.reply.is_some(),
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
        // The guest wrote the text, within its own buffer.
        let buffer = &self.memory.data(&self.store)[self.buffer.clone()];
        let said = &buffer[..len.min(buffer.len())];
        Err(LoadError::ConfigRefused(text(
            said,
            limits::CONFIG_ERROR_BYTES,
        )))
    }

    /// Ensures that the buffer has `len` bytes; a longer one is requested with the fuel of a call,
    /// plus some for its length.
    #[inline]
    pub(crate) fn make_room(&mut self, len: usize) -> Result<(), Fault> {
        if len <= self.buffer.len() {
            return Ok(());
        }
        let len = len.next_power_of_two();
        self.grant(self.fuel_per_call + len as u64 * limits::FUEL_PER_BUFFER_BYTE);
        self.ask_buffer(len)
    }

    /// Requests a buffer of at least `len` bytes from the guest; burns fuel that is already
    /// granted.
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
        // The new place has unknown content, but it is the guest's own.
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
    pub(crate) fn grant(&mut self, fuel: u64) {
        self.budget.grant(fuel);
        self.store.set_fuel(fuel).expect("the engine counts fuel");
    }

    /// Calls into the guest with the rest of the granted fuel.
    #[inline]
    pub(crate) fn enter<R>(
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

impl Exports {
    /// The declared functions; load checked that they exist.
    fn of(instance: &wasmtime::Instance, store: &mut Store<State>, manifest: &Manifest) -> Exports {
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
        capabilities: policy.manifest().capabilities(),
        memory: None,
        log: Log::default(),
        metrics: Metrics::of(policy.manifest()),
        shared: setup.state.cloned().unwrap_or_else(own),
        time: PolicyTime::default(),
    }
}

//! An instance of an OPA policy: its set-up and its evaluations.

use wasmtime::{ExternType, Linker, Memory, MemoryType, Module, Store, TypedFunc};

use super::imports::{Evaluation, MEMORY, MODULE, zero_ended};
use super::{decision, input};
use crate::budget::{Budget, start_error, store};
use crate::compat::setup::{configuration, limiter, required};
use crate::text::cut;
use crate::{CompatCall, CompatVerdict, Fault, LoadError, Policy, Setup, cost, limits};

/// Unused, entrypoint, data, input, its length, the heap's end, format 0 (JSON); returns the
/// decision's address.
type Eval = TypedFunc<(u32, u32, u32, u32, u32, u32, u32), u32>;

/// An OPA policy with its own memory.
pub(crate) struct Rego {
    store: Store<Evaluation>,
    memory: Memory,
    eval: Eval,
    policy: Policy,
    fuel_per_call: u64,
    budget: Budget,
    /// The number of the decision to evaluate.
    entrypoint: u32,
    /// Address of the document `data`.
    data: u32,
    /// End of the heap without an evaluation.
    heap: u32,
    dead: bool,
}

impl std::fmt::Debug for Rego {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rego")
            .field("policy", &self.policy.manifest().name())
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

/// The type of the memory that a module imports.
fn memory_type(module: &Module) -> Option<MemoryType> {
    let mut imports = module.imports();
    let import = imports.find(|import| import.module() == MODULE && import.name() == MEMORY)?;
    match import.ty() {
        ExternType::Memory(memory) => Some(memory),
        _ => None,
    }
}

/// The set-up.
impl Rego {
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory.data_size(&self.store)
    }

    pub(crate) fn new(
        policy: &Policy,
        linker: &Linker<Evaluation>,
        module: &Module,
        setup: &Setup<'_>,
    ) -> Result<Rego, LoadError> {
        let config = configuration(setup)?;
        let limits = setup.limits;
        let evaluation = Evaluation {
            limiter: limiter(limits),
            memory: None,
        };
        let (mut store, budget) = store(
            module.engine(),
            evaluation,
            |state| &mut state.limiter,
            limits.fuel_for_setup,
        );
        let ty = memory_type(module).ok_or(LoadError::CompatExport {
            name: "memory",
            found: "not imported; OPA's interface imports it".to_owned(),
        })?;
        let max = limits.memory_bytes as u64;
        let bytes = ty.minimum() * ty.page_size();
        if bytes > max {
            return Err(LoadError::Memory { bytes, max });
        }
        let started = |error: wasmtime::Error| start_error(&error, limits.fuel_for_setup);
        let memory = Memory::new(&mut store, ty).map_err(started)?;
        store.data_mut().memory = Some(memory);
        let mut linker = linker.clone();
        linker
            .define(&store, MODULE, MEMORY, memory)
            .map_err(started)?;
        let instance = linker.instantiate(&mut store, module).map_err(started)?;
        check_version(&instance, &mut store)?;
        let mut rego = Rego {
            eval: required(&instance, &mut store, "opa_eval")?,
            store,
            memory,
            policy: policy.clone(),
            fuel_per_call: limits.fuel_per_call,
            budget,
            entrypoint: 0,
            data: 0,
            heap: 0,
            dead: false,
        };
        rego.check_builtins(&instance)?;
        rego.entrypoint = rego.find_entrypoint(&instance)?;
        rego.load_data(&instance, config)?;
        Ok(rego)
    }

    /// A JSON document that one of the module's functions stores.
    fn document(
        &mut self,
        instance: &wasmtime::Instance,
        name: &'static str,
    ) -> Result<serde_json::Map<String, serde_json::Value>, LoadError> {
        let failed = |fault| LoadError::Setup { step: name, fault };
        let value: TypedFunc<(), u32> = required(instance, &mut self.store, name)?;
        let dump: TypedFunc<u32, u32> = required(instance, &mut self.store, "opa_json_dump")?;
        let value = self.enter(|store| value.call(store, ())).map_err(failed)?;
        let address = self
            .enter(|store| dump.call(store, value))
            .map_err(failed)?;
        let memory = self.memory.data(&self.store);
        let json = zero_ended(memory, address, limits::DECISION_BYTES);
        let json = json.and_then(|json| serde_json::from_slice(json).ok());
        json.ok_or_else(|| failed(Fault::BadAnswer(format!("{name} returned no JSON object"))))
    }

    fn check_builtins(&mut self, instance: &wasmtime::Instance) -> Result<(), LoadError> {
        let needed = self.document(instance, "builtins")?;
        if needed.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = needed.keys().map(String::as_str).collect();
        Err(LoadError::Builtins(cut(&names.join(", "))))
    }

    fn find_entrypoint(&mut self, instance: &wasmtime::Instance) -> Result<u32, LoadError> {
        let there = self.document(instance, "entrypoints")?;
        let wanted = self
            .policy
            .manifest()
            .compat()
            .and_then(|compat| compat.entrypoint());
        let Some(wanted) = wanted else {
            return Ok(0);
        };
        let number = there.get(wanted).and_then(serde_json::Value::as_u64);
        number
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| {
                let names: Vec<_> = there.keys().map(String::as_str).collect();
                LoadError::Entrypoint {
                    wanted: wanted.to_owned(),
                    there: cut(&names.join(", ")),
                }
            })
    }

    /// The configuration becomes the document `data`.
    fn load_data(&mut self, instance: &wasmtime::Instance, config: &[u8]) -> Result<(), LoadError> {
        let failed = |fault| LoadError::Setup {
            step: "data",
            fault,
        };
        let json = if config.is_empty() { b"{}" } else { config };
        let store = &mut self.store;
        let malloc: TypedFunc<u32, u32> = required(instance, store, "opa_malloc")?;
        let parse: TypedFunc<(u32, u32), u32> = required(instance, store, "opa_json_parse")?;
        let heap: TypedFunc<(), u32> = required(instance, store, "opa_heap_ptr_get")?;
        let len = json.len() as u32;
        let place = self
            .enter(|store| malloc.call(store, len))
            .map_err(failed)?;
        self.write(place, json).map_err(failed)?;
        self.data = self
            .enter(|store| parse.call(store, (place, len)))
            .map_err(failed)?;
        if self.data == 0 {
            let text = "the configuration isn't JSON; it becomes the document `data`".to_owned();
            return Err(LoadError::ConfigRefused(text));
        }
        self.heap = self.enter(|store| heap.call(store, ())).map_err(failed)?;
        Ok(())
    }
}

/// ABI 1.2 is the first with `opa_eval`.
fn check_version(
    instance: &wasmtime::Instance,
    store: &mut Store<Evaluation>,
) -> Result<(), LoadError> {
    let mut version = |name| {
        let global = instance.get_global(&mut *store, name)?;
        global.get(&mut *store).i32()
    };
    let (major, minor) = (
        version("opa_wasm_abi_version"),
        version("opa_wasm_abi_minor_version"),
    );
    match (major, minor) {
        (Some(1), Some(2..)) => Ok(()),
        _ => Err(LoadError::OpaVersion {
            major: major.unwrap_or(0),
            minor: minor.unwrap_or(0),
        }),
    }
}

/// Evaluating.
impl Rego {
    pub(crate) fn evaluate(&mut self, call: &CompatCall<'_>) -> Result<CompatVerdict, Fault> {
        if self.dead {
            return Err(Fault::Dead);
        }
        self.budget = Budget::default();
        self.budget.grant(self.fuel_per_call);
        let input = input::json(call);
        // Written here, copied to the guest.
        self.charge(cost::COMPAT_CALL + 2 * input.len() as u64)?;
        self.store
            .set_fuel(self.budget.left())
            .expect("the engine counts fuel");
        self.write(self.heap, input.as_bytes())?;
        let (len, heap) = (input.len() as u32, self.heap);
        let arguments = (0, self.entrypoint, self.data, heap, len, heap + len, 0);
        let eval = self.eval.clone();
        let address = self.enter(|store| eval.call(store, arguments))?;
        let answer = zero_ended(
            self.memory.data(&self.store),
            address,
            limits::DECISION_BYTES,
        );
        let Some(answer) = answer.map(<[u8]>::to_vec) else {
            return Err(self.kill(Fault::BadAnswer(format!(
                "the decision at {address} has no end within {} bytes",
                limits::DECISION_BYTES
            ))));
        };
        self.charge(4 * answer.len() as u64)?;
        let grants = self.policy.manifest().compat();
        let may_change =
            |key: &str| grants.is_some_and(|grants| grants.changes_key(call.hook, key));
        decision::read(&answer, may_change).map_err(|fault| self.kill(fault))
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    pub(crate) fn set_fuel_per_call(&mut self, fuel: u64) {
        self.fuel_per_call = fuel;
    }

    pub(crate) fn fuel_used(&self) -> u64 {
        self.budget.used()
    }

    /// Writes to memory, which grows if needed and allowed.
    fn write(&mut self, address: u32, bytes: &[u8]) -> Result<(), Fault> {
        let (begin, end) = (address as usize, address as usize + bytes.len());
        let there = self.memory.data_size(&self.store);
        if end > there {
            let pages = (end - there).div_ceil(self.memory.page_size(&self.store) as usize);
            let grown = self.memory.grow(&mut self.store, pages as u64);
            grown.map_err(|_| {
                self.kill(Fault::BadAnswer(format!(
                    "{} bytes at {address} don't fit into the module's {there} bytes of memory",
                    bytes.len()
                )))
            })?;
        }
        self.memory.data_mut(&mut self.store)[begin..end].copy_from_slice(bytes);
        Ok(())
    }

    fn charge(&mut self, units: u64) -> Result<(), Fault> {
        self.budget.charge(units).map_err(|fault| self.kill(fault))
    }

    fn enter<R>(
        &mut self,
        call: impl FnOnce(&mut Store<Evaluation>) -> wasmtime::Result<R>,
    ) -> Result<R, Fault> {
        let returned = call(&mut self.store);
        let settled = self.budget.settle(&self.store, returned);
        settled.map_err(|fault| self.kill(fault))
    }

    #[cold]
    fn kill(&mut self, fault: Fault) -> Fault {
        self.dead = true;
        fault
    }
}

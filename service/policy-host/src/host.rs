//! From uploaded bytes to a policy that can be instantiated.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use wasmparser::WasmFeatures;
use wasmtime::{
    Config, Enabled, Engine, ExternType, InstanceAllocationStrategy, InstancePre, Linker, Module,
    OptLevel, PoolingAllocationConfig,
};

use crate::foreign::{Abi, ForeignInstance};
use crate::imports::{self, State};
use crate::opa::{self, Evaluation, Rego};
use crate::proxy_wasm::{self, Filter, Proxy};
use crate::scan::{self, FEATURES};
use crate::{
    Capabilities, Hook, HostConfig, Instance, LoadError, Manifest, Setup, TenantLimits, cost,
    limits, text::cut,
};

/// The engine: compiles policies and holds the pool that their instances live in.
///
/// Cheap to clone; all clones share the engine and the pool.
#[derive(Clone)]
pub struct Host {
    linkers: Arc<Linkers>,
    engine: Engine,
    config: HostConfig,
}

/// What each interface's modules can import.
struct Linkers {
    own: Linker<State>,
    proxy_wasm: Linker<Proxy>,
    opa: Linker<Evaluation>,
}

impl Linkers {
    fn new(engine: &Engine) -> wasmtime::Result<Linkers> {
        Ok(Linkers {
            own: imports::linker(engine)?,
            proxy_wasm: proxy_wasm::linker(engine)?,
            opa: opa::linker(engine)?,
        })
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// Reserves the pool's address space.
    ///
    /// # Errors
    /// A sentence of the engine's, if the machine can't provide it (too many `instances` for its address space).
    pub fn new(config: HostConfig) -> Result<Host, String> {
        let engine = Engine::new(&engine_config(&config))
            .map_err(|e| format!("the policy engine doesn't start: {e:#}"))?;
        let linkers = Linkers::new(&engine)
            .map_err(|e| format!("the policy engine lacks its imports: {e:#}"))?;
        Ok(Host {
            linkers: Arc::new(linkers),
            engine,
            config,
        })
    }

    /// A host without a pool, for a policy process: its instances are few, and its memory is limited as a whole.
    pub(crate) fn for_process() -> Result<Host, String> {
        let failed = |error: wasmtime::Error| format!("the policy engine doesn't start: {error:#}");
        let engine = Engine::new(&compiler_config()).map_err(failed)?;
        let linkers = Linkers::new(&engine).map_err(failed)?;
        Ok(Host {
            linkers: Arc::new(linkers),
            engine,
            // The daemon has cut its tenants' limits to its own maxima.
            config: HostConfig {
                instances: u32::MAX,
                memory_bytes_max: usize::MAX,
                table_elements_max: usize::MAX,
            },
        })
    }

    /// Scans, compiles and checks a module in this very process, for modules whose author is trusted with it: on a desk, in
    /// tests. A daemon has a [`crate::Compiler`].
    ///
    /// # Errors
    /// Says what is wrong with the module; nothing of it is kept.
    pub fn load(&self, wasm: &[u8]) -> Result<Policy, LoadError> {
        let manifest = Host::scan(wasm)?;
        let module = Module::new(&self.engine, wasm).map_err(refused)?;
        self.accept(&module, manifest, Sha256::digest(wasm).into(), wasm.len())
    }

    /// Looks at a module without compiling it.
    pub(crate) fn scan(wasm: &[u8]) -> Result<Manifest, LoadError> {
        Manifest::parse(scan::scan(wasm)?).map_err(LoadError::Manifest)
    }

    /// Checks a compiled module against its manifest and the ABI.
    pub(crate) fn accept(
        &self,
        module: &Module,
        manifest: Manifest,
        digest: [u8; 32],
        wasm_bytes: usize,
    ) -> Result<Policy, LoadError> {
        check_memory(module, self.config.memory_bytes_max)?;
        let code = match manifest.foreign().map(|foreign| foreign.abi()) {
            None => {
                check_imports(module, &manifest)?;
                check_exports(module, &manifest)?;
                Code::Own(self.linkers.own.instantiate_pre(module).map_err(refused)?)
            }
            Some(Abi::ProxyWasm) => {
                let pre = self.linkers.proxy_wasm.instantiate_pre(module);
                Code::ProxyWasm(pre.map_err(refused)?)
            }
            Some(Abi::Opa) => Code::Opa(Arc::clone(&self.linkers), module.clone()),
        };
        let policy = Loaded {
            code,
            manifest,
            digest,
            wasm_bytes,
            host: self.config.clone(),
        };
        Ok(Policy(Arc::new(policy)))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
}

fn refused(error: wasmtime::Error) -> LoadError {
    LoadError::Compile(cut(&format!("{error:#}")))
}

/// Refuses imports that exist with another type or aren't declared; the scan has refused those that don't exist.
fn check_imports(module: &Module, manifest: &Manifest) -> Result<(), LoadError> {
    for (name, expected, capability) in imports::FUNCTIONS {
        for import in module.imports().filter(|import| import.name() == name) {
            let found = describe(&import.ty());
            if found != expected {
                return Err(LoadError::ImportType {
                    name: name.to_owned(),
                    found,
                    expected,
                });
            }
            if !manifest.capabilities().contains(capability) {
                return Err(LoadError::UndeclaredImport { name, capability });
            }
        }
    }
    Ok(())
}

/// Refuses a module whose first page count alone is above `max` bytes.
fn check_memory(module: &Module, max: usize) -> Result<(), LoadError> {
    let Some(ExternType::Memory(memory)) = module.get_export("memory") else {
        return Ok(());
    };
    let (bytes, max) = (memory.minimum() * memory.page_size(), max as u64);
    if bytes > max {
        Err(LoadError::Memory { bytes, max })
    } else {
        Ok(())
    }
}

fn engine_config(host: &HostConfig) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(host.instances)
        .total_memories(host.instances)
        .total_tables(host.instances)
        .max_memories_per_module(1)
        .max_tables_per_module(limits::TABLES)
        .max_memory_size(host.memory_bytes_max)
        .table_elements(host.table_elements_max)
        // What an instance has touched is zeroed in place and stays mapped, up to a bound; the kernel says what that is. For an
        // instance per call that is two to three times as fast as giving pages back and faulting them in again.
        .linear_memory_keep_resident(limits::KEPT_MEMORY_BYTES)
        .table_keep_resident(limits::KEPT_TABLE_BYTES)
        .pagemap_scan(Enabled::Auto);
    let mut config = compiler_config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// What decides about the code that comes out; a compile worker has nothing else.
pub(crate) fn compiler_config() -> Config {
    let mut config = Config::new();
    config
        .wasm_features(WasmFeatures::all(), false)
        .wasm_features(FEATURES, true)
        .consume_fuel(true)
        .operator_cost(cost::operators())
        .max_wasm_stack(limits::STACK_BYTES)
        .cranelift_opt_level(OptLevel::Speed)
        // Traps are reported by kind; nobody reads a guest's backtrace.
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .native_unwind_info(false)
        .gc_support(false)
        .concurrency_support(false);
    config
}

/// A compiled module with its manifest. Immutable and cheap to clone.
#[derive(Clone)]
pub struct Policy(Arc<Loaded>);

/// Machine code, ready to be instantiated.
#[derive(Clone)]
enum Code {
    Own(InstancePre<State>),
    ProxyWasm(InstancePre<Proxy>),
    /// Its memory is an import, and so an instance's own.
    Opa(Arc<Linkers>, Module),
}

impl Code {
    fn module(&self) -> &Module {
        match self {
            Code::Own(pre) => pre.module(),
            Code::ProxyWasm(pre) => pre.module(),
            Code::Opa(_, module) => module,
        }
    }
}

struct Loaded {
    code: Code,
    manifest: Manifest,
    digest: [u8; 32],
    wasm_bytes: usize,
    host: HostConfig,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy")
            .field("manifest", &self.0.manifest)
            .finish_non_exhaustive()
    }
}

impl Policy {
    /// What the policy declares.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// SHA-256 of the uploaded bytes.
    pub fn digest(&self) -> &[u8; 32] {
        &self.0.digest
    }

    /// Bytes uploaded.
    pub fn wasm_bytes(&self) -> usize {
        self.0.wasm_bytes
    }

    /// Names of the host functions that the module can call.
    pub fn imports(&self) -> Vec<&str> {
        let imports = self.0.code.module().imports();
        imports.map(|import| import.name()).collect()
    }

    /// Bytes of its machine code.
    pub fn code_bytes(&self) -> usize {
        self.0.code.module().text().len()
    }

    /// The machine code as another engine of the same settings loads it.
    pub(crate) fn code(&self) -> Result<Vec<u8>, LoadError> {
        self.0.code.module().serialize().map_err(refused)
    }

    /// What an instance gets of `limits`; in `memory_bytes` is what its kind of module has.
    pub(crate) fn cut(&self, limits: &TenantLimits) -> TenantLimits {
        let host = &self.0.host;
        let memory_bytes = match &self.0.code {
            Code::Own(_) => limits.memory_bytes,
            Code::ProxyWasm(_) | Code::Opa(..) => limits.foreign_memory_bytes,
        };
        TenantLimits {
            memory_bytes: memory_bytes.min(host.memory_bytes_max),
            table_elements: limits.table_elements.min(host.table_elements_max),
            ..limits.clone()
        }
    }

    /// The policy as this configuration makes it: with the metadata keys that its manifest leaves to the configuration.
    /// A manifest that leaves nothing to it is as it was.
    ///
    /// # Errors
    /// The configuration doesn't say which keys, or names impossible ones.
    pub fn configured(&self, config: Option<&[u8]>) -> Result<Policy, LoadError> {
        if !self.0.manifest.is_configurable() {
            return Ok(self.clone());
        }
        let config = config.unwrap_or_default();
        check_config_length(config)?;
        let manifest = self.0.manifest.configured(config);
        let loaded = Loaded {
            manifest: manifest.map_err(LoadError::ConfigKeys)?,
            code: self.0.code.clone(),
            host: self.0.host.clone(),
            ..*self.0
        };
        Ok(Policy(Arc::new(loaded)))
    }

    /// Starts and configures an instance of the policy as [`Policy::configured`] makes it.
    ///
    /// Runs guest code, up to `setup.limits.fuel_for_setup`.
    ///
    /// # Errors
    /// A declared capability isn't granted, the configuration is too large or refused, the module fails while it starts, or the
    /// pool is full; or it is a foreign module.
    pub fn instantiate(&self, setup: &Setup<'_>) -> Result<Instance, LoadError> {
        let limits = self.limits(setup)?;
        let setup = Setup {
            limits: &limits,
            ..*setup
        };
        match &self.0.code {
            Code::Own(pre) => {
                check_config_length(setup.config.unwrap_or_default())?;
                Instance::new(&self.configured(setup.config)?, pre, &setup)
            }
            Code::ProxyWasm(_) | Code::Opa(..) => Err(self.wrong_interface()),
        }
    }

    /// Starts and configures an instance of a foreign module.
    ///
    /// Runs guest code, up to `setup.limits.fuel_for_setup`.
    ///
    /// # Errors
    /// As [`Policy::instantiate`]; or it isn't a foreign module.
    pub fn instantiate_foreign(&self, setup: &Setup<'_>) -> Result<ForeignInstance, LoadError> {
        let limits = self.limits(setup)?;
        let setup = Setup {
            limits: &limits,
            ..*setup
        };
        match &self.0.code {
            Code::Own(_) => Err(self.wrong_interface()),
            Code::ProxyWasm(pre) => Filter::new(self, pre, &setup).map(ForeignInstance::filter),
            Code::Opa(linkers, module) => {
                Rego::new(self, &linkers.opa, module, &setup).map(ForeignInstance::rego)
            }
        }
    }

    fn wrong_interface(&self) -> LoadError {
        let foreign = self.0.manifest.foreign();
        let abi = foreign.map_or("tollgate's own", |foreign| foreign.abi().name());
        LoadError::WrongInterface { abi }
    }

    /// What an instance may use at most, if it may exist.
    fn limits(&self, setup: &Setup<'_>) -> Result<TenantLimits, LoadError> {
        let missing = self.0.manifest.capabilities().without(setup.granted);
        if !missing.without(Capabilities::ALWAYS).is_empty() {
            return Err(LoadError::NotGranted(missing));
        }
        let limits = self.cut(setup.limits);
        check_memory(self.0.code.module(), limits.memory_bytes)?;
        Ok(limits)
    }
}

fn check_config_length(config: &[u8]) -> Result<(), LoadError> {
    let (bytes, max) = (config.len(), limits::CONFIG_BYTES);
    match bytes > max {
        true => Err(LoadError::ConfigTooLarge { bytes, max }),
        false => Ok(()),
    }
}

/// The exports that the ABI asks for, with their types.
fn required_exports(manifest: &Manifest) -> impl Iterator<Item = (&'static str, &'static str)> {
    let hook = |hook, name| manifest.hooks().contains(&hook).then_some((name, CALL));
    [
        Some(("memory", MEMORY)),
        Some(("tollgate_abi_v1", MARKER)),
        Some(("tollgate_buffer", CALL)),
        Some(("tollgate_configure", CALL)),
        hook(Hook::Request, "tollgate_request"),
        hook(Hook::Reply, "tollgate_reply"),
        manifest.state_version().map(|_| ("tollgate_save", SAVE)),
        manifest
            .state_version()
            .map(|_| ("tollgate_restore", RESTORE)),
        manifest.tick().map(|_| ("tollgate_tick", TICK)),
    ]
    .into_iter()
    .flatten()
}

const MEMORY: &str = "a memory";
const MARKER: &str = "a function () or a global";
const CALL: &str = "function (i32) -> (i32)";
const SAVE: &str = "function () -> (i64)";
const RESTORE: &str = "function (i32, i32) -> (i32)";
const TICK: &str = "function () -> (i32)";

fn check_exports(module: &Module, manifest: &Manifest) -> Result<(), LoadError> {
    for (name, expected) in required_exports(manifest) {
        let found = module.get_export(name);
        let fits = match (&found, expected) {
            (Some(ExternType::Memory(_)), MEMORY) | (Some(ExternType::Global(_)), MARKER) => true,
            (Some(ty), MARKER) => describe(ty) == "function ()",
            (Some(ty), function) => describe(ty) == function,
            (None, _) => false,
        };
        if !fits {
            let found = found.map_or_else(|| "missing".to_owned(), |ty| describe(&ty));
            return Err(LoadError::Export {
                name,
                found,
                expected,
            });
        }
    }
    Ok(())
}

/// A type in words, cut: a module can have functions of a thousand parameters.
fn describe(ty: &ExternType) -> String {
    let list = |types: &mut dyn Iterator<Item = wasmtime::ValType>| {
        types.map(|t| t.to_string()).collect::<Vec<_>>().join(", ")
    };
    match ty {
        ExternType::Func(f) => {
            let (params, results) = (list(&mut f.params()), list(&mut f.results()));
            let arrow = if results.is_empty() {
                String::new()
            } else {
                format!(" -> ({results})")
            };
            cut(&format!("function ({params}){arrow}"))
        }
        ExternType::Memory(_) => "a memory".to_owned(),
        ExternType::Table(_) => "a table".to_owned(),
        ExternType::Global(_) => "a global".to_owned(),
        _ => "something else".to_owned(),
    }
}

//! From uploaded bytes to a policy that can be instantiated.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use wasmparser::WasmFeatures;
use wasmtime::{
    Config, Enabled, Engine, ExternType, InstanceAllocationStrategy, Module, OptLevel,
    PoolingAllocationConfig,
};

use crate::compat::Abi;
use crate::imports;
use crate::policy::{Code, Linkers, Loaded, check_memory, refused};
use crate::scan::{self, FEATURES};
use crate::text::{cut, text};
use crate::{Hook, HostConfig, LoadError, Manifest, Policy, cost, limits};

/// Why the engine doesn't start: the machine's or a bug.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The machine can't provide the pool: too many `instances` for its address space.
    #[error("the policy engine doesn't start: {0:#}")]
    Engine(wasmtime::Error),
    /// A bug: the linker refuses the host's functions.
    #[error("the policy engine lacks its imports: {0:#}")]
    Imports(wasmtime::Error),
}

/// The engine: compiles policies and holds the pool of their instances.
///
/// Cheap to clone; all clones share the engine and the pool.
#[derive(Clone)]
pub struct Host {
    linkers: Arc<Linkers>,
    engine: Engine,
    config: HostConfig,
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
    /// The engine doesn't start.
    pub fn new(config: HostConfig) -> Result<Host, HostError> {
        Host::with_engine(&engine_config(&config), config)
    }

    /// A host without a pool, for a policy process: it has few instances, and its memory is limited
    /// as a whole.
    pub(crate) fn for_process() -> Result<Host, HostError> {
        // The daemon has cut its tenants' limits to its own maxima.
        let config = HostConfig {
            instances: u32::MAX,
            memory_bytes_max: usize::MAX,
            table_elements_max: usize::MAX,
        };
        Host::with_engine(&compiler_config(), config)
    }

    fn with_engine(engine: &Config, config: HostConfig) -> Result<Host, HostError> {
        let engine = Engine::new(engine).map_err(HostError::Engine)?;
        let linkers = Linkers::new(&engine).map_err(HostError::Imports)?;
        Ok(Host {
            linkers: Arc::new(linkers),
            engine,
            config,
        })
    }

    /// Scans, compiles and checks a module in this same process. For modules of trusted authors: on
    /// a developer's machine, in tests. A daemon has a [`crate::Compiler`].
    ///
    /// # Errors
    /// States the module's error; nothing of the module is kept.
    pub fn load(&self, wasm: &[u8]) -> Result<Policy, LoadError> {
        let manifest = Host::scan(wasm)?;
        let module = Module::new(&self.engine, wasm).map_err(refused)?;
        self.accept(&module, manifest, Sha256::digest(wasm).into(), wasm.len())
    }

    /// Scans a module without compiling it.
    ///
    /// # Errors
    /// Says what is wrong with the module or its manifest.
    pub fn scan(wasm: &[u8]) -> Result<Manifest, LoadError> {
        let manifest = Manifest::parse(scan::scan(wasm)?);
        // It quotes the manifest, and the compiler remembers it.
        manifest.map_err(|error| {
            LoadError::Manifest(text(error.to_string().as_bytes(), limits::REASON_BYTES))
        })
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
        let code = match manifest.compat().map(|compat| compat.abi()) {
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

/// Refuses imports that exist with another type or aren't declared; the scan has refused unknown
/// ones.
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

fn engine_config(host: &HostConfig) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(host.instances)
        .total_memories(host.instances)
        .total_tables(host.instances)
        .max_memories_per_module(1)
        .max_tables_per_module(limits::TABLES)
        .max_memory_size(host.memory_bytes_max)
        .table_elements(host.table_elements_max)
        // Touched memory is zeroed in place and stays mapped, up to a bound; the kernel reports
        // which pages were touched. For an instance per call this is two to three times as fast as
        // returning pages and faulting them in again.
        .linear_memory_keep_resident(limits::KEPT_MEMORY_BYTES)
        .table_keep_resident(limits::KEPT_TABLE_BYTES)
        .pagemap_scan(Enabled::Auto);
    let mut config = compiler_config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// The settings that determine the resulting code; a compile worker has no others.
pub(crate) fn compiler_config() -> Config {
    let mut config = Config::new();
    config
        .wasm_features(WasmFeatures::all(), false)
        .wasm_features(FEATURES, true)
        .consume_fuel(true)
        .operator_cost(cost::operators())
        .max_wasm_stack(limits::STACK_BYTES)
        .cranelift_opt_level(OptLevel::Speed)
        // Traps are reported by kind; a guest's backtrace isn't used.
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .native_unwind_info(false)
        .gc_support(false)
        .concurrency_support(false);
    config
}

/// The exports that the ABI requires, with their types.
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

//! A compiled module with its manifest: a policy.

use std::sync::Arc;

use wasmtime::{Engine, ExternType, InstancePre, Linker, Module};

use crate::imports::{self, State};
use crate::opa::{self, Evaluation};
use crate::proxy_wasm::{self, Proxy};
use crate::text::cut;
use crate::{HostConfig, LoadError, Manifest, TenantLimits, limits};

/// A compiled module with its manifest. Immutable and cheap to clone.
#[derive(Clone)]
pub struct Policy(pub(crate) Arc<Loaded>);

/// Machine code, ready to be instantiated.
#[derive(Clone)]
pub(crate) enum Code {
    Own(InstancePre<State>),
    ProxyWasm(InstancePre<Proxy>),
    /// Its memory is an import, and so belongs to an instance.
    Opa(Arc<Linkers>, Module),
}

impl Code {
    pub(crate) fn module(&self) -> &Module {
        match self {
            Code::Own(pre) => pre.module(),
            Code::ProxyWasm(pre) => pre.module(),
            Code::Opa(_, module) => module,
        }
    }
}

/// The parts that all clones of a policy share.
pub(crate) struct Loaded {
    pub(crate) code: Code,
    pub(crate) manifest: Manifest,
    pub(crate) digest: [u8; 32],
    pub(crate) wasm_bytes: usize,
    pub(crate) host: HostConfig,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy")
            .field("manifest", &self.0.manifest)
            .finish_non_exhaustive()
    }
}

impl Policy {
    /// The policy's manifest.
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

    /// The machine code, for loading into another engine with the same settings.
    pub(crate) fn code(&self) -> Result<Vec<u8>, LoadError> {
        self.0.code.module().serialize().map_err(refused)
    }

    /// An instance's share of `limits`; `memory_bytes` is the limit for its kind of module.
    pub(crate) fn cut(&self, limits: &TenantLimits) -> TenantLimits {
        let host = &self.0.host;
        let memory_bytes = match &self.0.code {
            Code::Own(_) if !self.0.manifest.has_wasi() => limits.memory_bytes,
            Code::Own(_) | Code::ProxyWasm(_) | Code::Opa(..) => limits.compat_memory_bytes,
        };
        TenantLimits {
            memory_bytes: memory_bytes.min(host.memory_bytes_max),
            table_elements: limits.table_elements.min(host.table_elements_max),
            ..limits.clone()
        }
    }

    /// Bytes of memory with which an instance begins.
    pub fn memory_bytes(&self) -> usize {
        declared_memory(self.0.code.module()) as usize
    }

    /// The policy with this configuration: with the metadata keys that its manifest leaves to the
    /// configuration. Other manifests stay unchanged.
    ///
    /// # Errors
    /// The configuration doesn't name the keys, or names invalid ones.
    pub fn configured(&self, config: Option<&[u8]>) -> Result<Policy, LoadError> {
        if !self.0.manifest.is_configurable() {
            return Ok(self.clone());
        }
        let config = config.unwrap_or_default();
        check_config_length(config)?;
        let manifest = self.0.manifest.configured(config);
        let loaded = Loaded {
            manifest: manifest.map_err(|error| LoadError::ConfigKeys(error.to_string()))?,
            code: self.0.code.clone(),
            host: self.0.host.clone(),
            ..*self.0
        };
        Ok(Policy(Arc::new(loaded)))
    }
}

/// Refuses a configuration that is too long.
pub(crate) fn check_config_length(config: &[u8]) -> Result<(), LoadError> {
    let (bytes, max) = (config.len(), limits::CONFIG_BYTES);
    match bytes > max {
        true => Err(LoadError::ConfigTooLarge { bytes, max }),
        false => Ok(()),
    }
}

/// The imports for modules of each interface.
pub(crate) struct Linkers {
    pub(crate) own: Linker<State>,
    pub(crate) proxy_wasm: Linker<Proxy>,
    pub(crate) opa: Linker<Evaluation>,
}

impl Linkers {
    pub(crate) fn new(engine: &Engine) -> wasmtime::Result<Linkers> {
        Ok(Linkers {
            own: imports::linker(engine)?,
            proxy_wasm: proxy_wasm::linker(engine)?,
            opa: opa::linker(engine)?,
        })
    }
}

/// The compiler's error for a module that it refuses.
pub(crate) fn refused(error: wasmtime::Error) -> LoadError {
    LoadError::Compile(cut(&format!("{error:#}")))
}

/// Bytes of the memory that a module exports, when an instance begins.
fn declared_memory(module: &Module) -> u64 {
    match module.get_export("memory") {
        Some(ExternType::Memory(memory)) => memory.minimum() * memory.page_size(),
        _ => 0,
    }
}

/// Refuses a module with more than `max` bytes of initial memory.
pub(crate) fn check_memory(module: &Module, max: usize) -> Result<(), LoadError> {
    let (bytes, max) = (declared_memory(module), max as u64);
    if bytes > max {
        Err(LoadError::Memory { bytes, max })
    } else {
        Ok(())
    }
}

//! Machine code on its way from the compile worker to the engine.
//!
//! Invariant: an [`Artifact`] was written by this build's own compile worker, for an engine of
//! exactly these settings on this CPU, and hasn't changed since. The one `unsafe` of this crate
//! relies on this.
//!
//! ```text
//!   file:  magic 8 | engine 8 | module 32 | length 8 | SHA-256 of all before and of the code 32 | code
//! ```
//!
//! The checksum detects damage, not forgery: a process that can write to the daemon's state
//! directory already has the daemon's rights. [`crate::cache`] ensures that no other process can
//! write there.

use std::hash::{DefaultHasher, Hash, Hasher};

use sha2::{Digest, Sha256};
use wasmtime::{Engine, Module};

const MAGIC: &[u8; 8] = b"TGCODE01";
const CHECKED: usize = 8 + 8 + 32 + 8;
const HEADER: usize = CHECKED + 32;

/// Names the code by its module and engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// SHA-256 of the module.
    pub(crate) module: [u8; 32],
    /// See [`engine_number`].
    pub(crate) engine: u64,
}

/// A number for wasmtime's version, the engine's settings, the price list of fuel and the features
/// of this CPU.
pub(crate) fn engine_number(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

/// A compiled module, not yet loaded.
pub(crate) struct Artifact(Vec<u8>);

impl Artifact {
    /// The output of a successful worker; `code` must be nothing else.
    pub(crate) fn from_worker(code: Vec<u8>) -> Artifact {
        Artifact(code)
    }

    /// Code that a policy process receives over its socket.
    pub(crate) fn from_daemon(code: Vec<u8>) -> Artifact {
        Artifact(code)
    }

    /// The file that stores it.
    pub(crate) fn to_file(&self, key: &Key) -> Vec<u8> {
        let mut file = Vec::with_capacity(HEADER + self.0.len());
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&key.engine.to_le_bytes());
        file.extend_from_slice(&key.module);
        file.extend_from_slice(&(self.0.len() as u64).to_le_bytes());
        let sum = checksum(&file, &self.0);
        file.extend_from_slice(&sum);
        file.extend_from_slice(&self.0);
        file
    }

    /// Reads a file; `None` if it is damaged, or belongs to another module or engine.
    pub(crate) fn from_file(mut file: Vec<u8>, key: &Key) -> Option<Artifact> {
        let (header, code) = file.split_at_checked(HEADER)?;
        let (checked, sum) = header.split_at(CHECKED);
        let mut expected = Vec::with_capacity(CHECKED);
        expected.extend_from_slice(MAGIC);
        expected.extend_from_slice(&key.engine.to_le_bytes());
        expected.extend_from_slice(&key.module);
        expected.extend_from_slice(&(code.len() as u64).to_le_bytes());
        if checked != expected || sum != checksum(checked, code) {
            return None;
        }
        file.drain(..HEADER);
        Some(Artifact(file))
    }

    /// Loads it into an engine.
    ///
    /// # Errors
    /// The engine's own check of version, settings and CPU failed.
    pub(crate) fn load(&self, engine: &Engine) -> wasmtime::Result<Module> {
        // SAFETY: `deserialize` demands bytes that `Engine::precompile_module` wrote and nobody
        // changed. `from_worker` gets the whole output of a worker that ended with success, which
        // is that function's result and nothing else: the worker is this very executable, and alone
        // held the memfd's writing end while it lived. `from_file` gets what `to_file` wrote, by
        // its checksum, from a directory that only the daemon's user can write. `from_daemon` gets
        // what the daemon holds as the code of a module that it has loaded in one of these ways;
        // the socket that it came over has no other end. That engine, settings and CPU fit is
        // checked by `deserialize` itself.
        unsafe { Module::deserialize(engine, &self.0) }
    }
}

fn checksum(header: &[u8], code: &[u8]) -> [u8; 32] {
    let mut sum = Sha256::new();
    sum.update(header);
    sum.update(code);
    sum.finalize().into()
}

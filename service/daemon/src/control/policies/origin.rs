//! Checks that a module comes from an author whom the operator trusts.
//!
//! Invariant: if keys are trusted, every module that reaches the scan or the compiler is signed
//! with one of them, regardless of its uploader.

use tollgate_admin::proto::PolicyProof;
use tollgate_engine::Status;
use tollgate_provenance::{KeyError, Proof, TrustedKeys};
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::error::DaemonError;
use crate::limits::SIGNATURES;

/// Reads the trusted keys of the configuration.
pub(crate) fn trusted_keys(config: &Config) -> Result<TrustedKeys, DaemonError> {
    let mut keys = TrustedKeys::default();
    for path in &config.policies.trusted_keys {
        let failed = |why| DaemonError::Key {
            path: path.clone(),
            why,
        };
        let bytes = std::fs::read(path).map_err(|error| failed(error.into()))?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        keys.add(&name.to_string_lossy(), &bytes)
            .map_err(|error| failed(error.into()))?;
    }
    Ok(keys)
}

/// The keys of a ceiling: each is the base64 text of a PEM file.
///
/// # Errors
/// One isn't a public key.
pub(crate) fn signers(keys: &[String]) -> Result<TrustedKeys, KeyError> {
    /// Characters of a line of PEM.
    const LINE: usize = 64;
    let mut signers = TrustedKeys::default();
    for (at, key) in keys.iter().enumerate() {
        let lines = key.as_bytes().chunks(LINE).map(String::from_utf8_lossy);
        let body = lines.collect::<Vec<_>>().join("\n");
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n");
        let name = format!("key {} of the tenant's ceiling", at + 1);
        signers.add(&name, pem.as_bytes())?;
    }
    Ok(signers)
}

/// Rejects a module that none of the keys has signed. Without keys, every module passes.
pub(crate) fn check(
    keys: &TrustedKeys,
    module: &[u8],
    proof: Option<&PolicyProof>,
) -> Result<(), Status> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut outcome = keys.verify(module, &Proof::Embedded);
    for proof in proof.into_iter().flat_map(proofs).take(SIGNATURES) {
        if outcome.is_ok() {
            break;
        }
        outcome = keys.verify(module, &proof);
    }
    let name = outcome.map_err(|error| Status::new(Code::PERMISSION_DENIED, error.to_string()))?;
    tracing::info!("a module signed with {name} was pushed");
    Ok(())
}

fn proofs(proof: &PolicyProof) -> impl Iterator<Item = Proof<'_>> {
    proof.signatures.iter().map(|one| {
        if proof.manifest.is_empty() {
            return Proof::Blob {
                signature: &one.signature,
            };
        }
        Proof::Image {
            manifest: &proof.manifest,
            layer: &proof.layer,
            payload: &one.payload,
            signature: &one.signature,
        }
    })
}

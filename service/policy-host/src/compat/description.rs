//! A compat module's description by the user that pushes it, and its conversion to the missing
//! manifest.

use wasmparser::{ExternalKind, Payload};

use crate::compat::{Abi, Body, CompatDescription};
use crate::sections::{MANIFEST_SECTION, invalid, manifests, sections};
use crate::{LoadError, Manifest};

/// A description by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The interface; none: detected from the module's exports.
    pub abi: Option<Abi>,
    /// The policy's name.
    pub name: String,
    /// `request`, `reply`, `tick`; empty: `request`.
    pub hooks: Vec<String>,
    /// `package.Service/Method`, `package.Service/*` or `*`; empty: `*`.
    pub methods: Vec<String>,
    /// Dotted paths of the request's fields that an OPA policy is shown.
    pub fields: Vec<String>,
    /// The same for the reply's fields.
    pub reply_fields: Vec<String>,
    /// Keys that it reads; `*`: all.
    pub metadata: Vec<String>,
    /// The same for the reply.
    pub reply_metadata: Vec<String>,
    /// Keys that it changes; `*`: all.
    pub metadata_changes: Vec<String>,
    /// The same for the reply.
    pub reply_metadata_changes: Vec<String>,
    /// Its access to the request's bytes.
    pub body: Body,
    /// Its access to the reply's bytes.
    pub reply_body: Body,
    /// Further needs: `clock`, `random`.
    pub capabilities: Vec<String>,
    /// The root context's name, for filters that have several.
    pub root_id: Option<String>,
    /// The decision that an OPA policy evaluates.
    pub entrypoint: Option<String>,
}

impl Description {
    /// The manifest for this description, as JSON.
    ///
    /// # Errors
    /// The module's interface isn't known, or the description breaks a manifest's rules.
    pub fn to_manifest(&self, wasm: &[u8]) -> Result<String, LoadError> {
        let abi = match self.abi {
            Some(abi) => abi,
            None => detect(wasm)?.ok_or(LoadError::UnknownAbi)?,
        };
        let or = |given: &[String], otherwise: &str| match given {
            [] => vec![otherwise.to_owned()],
            given => given.to_vec(),
        };
        let compat = CompatDescription {
            abi,
            metadata: self.metadata.clone(),
            reply_metadata: self.reply_metadata.clone(),
            metadata_changes: self.metadata_changes.clone(),
            reply_metadata_changes: self.reply_metadata_changes.clone(),
            body: self.body,
            reply_body: self.reply_body,
            root_id: self.root_id.clone(),
            entrypoint: self.entrypoint.clone(),
        };
        let mut capabilities = self.capabilities.clone();
        if compat.changes() {
            capabilities.push("change".to_owned());
        }
        if abi == Abi::ProxyWasm {
            capabilities.push("state".to_owned());
        }
        capabilities.sort();
        capabilities.dedup();
        let methods: Vec<_> = or(&self.methods, "*")
            .into_iter()
            .map(|method| {
                serde_json::json!({
                    "method": method, "fields": self.fields, "reply_fields": self.reply_fields,
                })
            })
            .collect();
        let manifest = serde_json::json!({
            "abi": 1, "name": self.name, "hooks": or(&self.hooks, "request"), "methods": methods,
            "capabilities": capabilities, "foreign": compat,
        })
        .to_string();
        let parsed = Manifest::parse(manifest.as_bytes());
        parsed.map_err(|error| LoadError::Manifest(error.to_string()))?;
        Ok(manifest)
    }
}

/// Appends a manifest to a module that has none.
///
/// # Errors
/// The module has a manifest.
pub fn describe(wasm: &[u8], manifest: &str) -> Result<Vec<u8>, LoadError> {
    let there = manifests(wasm)?.len();
    if there > 0 {
        return Err(LoadError::Described);
    }
    let mut content = Vec::with_capacity(manifest.len() + 32);
    leb128(&mut content, MANIFEST_SECTION.len());
    content.extend_from_slice(MANIFEST_SECTION.as_bytes());
    content.extend_from_slice(manifest.as_bytes());
    let mut described = Vec::with_capacity(wasm.len() + content.len() + 6);
    described.extend_from_slice(wasm);
    described.push(0); // A custom section.
    leb128(&mut described, content.len());
    described.extend_from_slice(&content);
    Ok(described)
}

fn leb128(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The interface of an undescribed module, if its exports identify it without doubt; `None` also
/// for a module that has a manifest.
///
/// # Errors
/// The bytes aren't a module.
pub fn detect(wasm: &[u8]) -> Result<Option<Abi>, LoadError> {
    if !manifests(wasm)?.is_empty() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for payload in sections(wasm) {
        let Payload::ExportSection(exports) = payload? else {
            continue;
        };
        for export in exports {
            let export = export.map_err(invalid)?;
            match (export.name, export.kind) {
                ("proxy_abi_version_0_2_0" | "proxy_abi_version_0_2_1", _) => {
                    found.push(Abi::ProxyWasm)
                }
                ("opa_wasm_abi_version", ExternalKind::Global) => found.push(Abi::Opa),
                _ => {}
            }
        }
    }
    found.dedup();
    Ok(match found[..] {
        [abi] => Some(abi),
        _ => None,
    })
}

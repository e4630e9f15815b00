//! What a foreign module may see and do: the part of a manifest that its author couldn't write, and how it gets into the module.
//!
//! ```json
//!   { "abi": 1, "name": "auth", "hooks": ["request"], "methods": [{ "method": "*" }],
//!     "foreign": { "abi": "proxy-wasm", "metadata": ["authorization"], "metadata_changes": ["x-user"], "body": "read" } }
//! ```
//!
//! Invariant: all that is absent is refused. Without `metadata` a filter sees no metadata, without `body` no byte of the message.
//! Reserved keys of the metadata are in no list, nor in what `*` stands for.

use serde::{Deserialize, Serialize};
use tollgate_shm_abi::limits::MAX_METADATA_KEY_BYTES;
use tollgate_shm_abi::metadata::{check_key, is_reserved};
use wasmparser::{ExternalKind, Parser, Payload};

use crate::scan::MANIFEST_SECTION;
use crate::{Hook, LoadError, Manifest, limits};

/// The interface that a foreign module was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Abi {
    /// Envoy's filters: proxy-wasm 0.2.0 and 0.2.1.
    #[serde(rename = "proxy-wasm")]
    ProxyWasm,
    /// What `opa build -t wasm` writes: ABI 1.2 and later 1.x.
    #[serde(rename = "opa")]
    Opa,
}

impl Abi {
    /// As descriptions write it.
    pub fn name(self) -> &'static str {
        match self {
            Abi::ProxyWasm => "proxy-wasm",
            Abi::Opa => "opa",
        }
    }
}

impl std::fmt::Display for Abi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a filter may do with a message's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// It doesn't see them.
    #[default]
    None,
    /// It sees all of them.
    Read,
    /// It sees and replaces them.
    Change,
}

/// The manifest's key `foreign`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foreign {
    abi: Abi,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    metadata: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reply_metadata: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    metadata_changes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reply_metadata_changes: Vec<String>,
    #[serde(default)]
    body: Body,
    #[serde(default)]
    reply_body: Body,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    root_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entrypoint: Option<String>,
}

/// What stands for every key in a list of them, but for the reserved ones.
pub const EVERY_KEY: &str = "*";

impl Foreign {
    /// Which interface it is.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// Whether it may read a key of the metadata at this hook.
    pub fn reads_key(&self, hook: Hook, key: &str) -> bool {
        covers(self.keys(hook), key)
    }

    /// Whether it may change a key of the metadata at this hook.
    pub fn changes_key(&self, hook: Hook, key: &str) -> bool {
        covers(self.key_changes(hook), key)
    }

    /// Keys that it reads at this hook; [`EVERY_KEY`] for all.
    pub fn keys(&self, hook: Hook) -> &[String] {
        match hook {
            Hook::Request => &self.metadata,
            Hook::Reply => &self.reply_metadata,
        }
    }

    /// Keys that it changes at this hook; [`EVERY_KEY`] for all.
    pub fn key_changes(&self, hook: Hook) -> &[String] {
        match hook {
            Hook::Request => &self.metadata_changes,
            Hook::Reply => &self.reply_metadata_changes,
        }
    }

    /// What it may do with the message's bytes at this hook.
    pub fn body(&self, hook: Hook) -> Body {
        match hook {
            Hook::Request => self.body,
            Hook::Reply => self.reply_body,
        }
    }

    /// The root context's name, for filters that have several.
    pub(crate) fn root_id(&self) -> &str {
        self.root_id.as_deref().unwrap_or_default()
    }

    /// The decision that is asked for; none: the module's first.
    pub(crate) fn entrypoint(&self) -> Option<&str> {
        self.entrypoint.as_deref()
    }

    /// Whether it changes anything.
    pub(crate) fn changes(&self) -> bool {
        let body = self.body == Body::Change || self.reply_body == Body::Change;
        body || !self.metadata_changes.is_empty() || !self.reply_metadata_changes.is_empty()
    }

    /// The rest of a sentence that begins with "the manifest".
    pub(crate) fn check(&self) -> Result<(), String> {
        let lists = [
            ("metadata", &self.metadata),
            ("reply_metadata", &self.reply_metadata),
            ("metadata_changes", &self.metadata_changes),
            ("reply_metadata_changes", &self.reply_metadata_changes),
        ];
        for (what, keys) in lists {
            check_keys(what, keys)?;
        }
        let only_for = |abi: Abi, what: &str, there: bool| {
            if there && self.abi != abi {
                return Err(format!(
                    "has a {what}, which modules of {} don't have",
                    self.abi
                ));
            }
            Ok(())
        };
        only_for(Abi::ProxyWasm, "body", self.body != Body::None)?;
        only_for(Abi::ProxyWasm, "reply_body", self.reply_body != Body::None)?;
        only_for(Abi::ProxyWasm, "root_id", self.root_id.is_some())?;
        only_for(Abi::Opa, "entrypoint", self.entrypoint.is_some())?;
        let names = [&self.root_id, &self.entrypoint];
        match names
            .into_iter()
            .flatten()
            .find(|name| name.len() > limits::NAME_BYTES)
        {
            Some(long) => Err(format!(
                "has a name of {} bytes, above the limit of {}",
                long.len(),
                limits::NAME_BYTES
            )),
            None => Ok(()),
        }
    }
}

/// Whether a list of keys has a key, or all of them.
pub fn covers(keys: &[String], key: &str) -> bool {
    let mut keys = keys.iter();
    !is_reserved(key) && keys.any(|listed| listed == EVERY_KEY || listed == key)
}

fn check_keys(what: &str, keys: &[String]) -> Result<(), String> {
    if keys.len() > limits::FOREIGN_KEYS {
        return Err(format!(
            "lists {} {what}; {} are allowed",
            keys.len(),
            limits::FOREIGN_KEYS
        ));
    }
    for key in keys.iter().filter(|key| *key != EVERY_KEY) {
        let shown: String = key.chars().take(32).collect();
        if check_key(key.as_bytes()).is_err() {
            return Err(format!(
                "lists {shown:?} in {what}; a key is 1 to {MAX_METADATA_KEY_BYTES} of a-z 0-9 - _ . or *"
            ));
        }
        if is_reserved(key) {
            return Err(format!(
                "lists {shown:?} in {what}; keys that begin with grpc- or tollgate- are the daemon's own"
            ));
        }
    }
    Ok(())
}

/// A description as a person gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The interface; none: by what the module exports.
    pub abi: Option<Abi>,
    /// The policy's name.
    pub name: String,
    /// `request`, `reply`, `tick`; empty: `request`.
    pub hooks: Vec<String>,
    /// `package.Service/Method`, `package.Service/*` or `*`; empty: `*`.
    pub methods: Vec<String>,
    /// Dotted paths of the request's fields that a policy of OPA's is shown.
    pub fields: Vec<String>,
    /// And of the reply's.
    pub reply_fields: Vec<String>,
    /// Keys that it reads; `*`: all.
    pub metadata: Vec<String>,
    /// And of the reply.
    pub reply_metadata: Vec<String>,
    /// Keys that it changes; `*`: all.
    pub metadata_changes: Vec<String>,
    /// And of the reply.
    pub reply_metadata_changes: Vec<String>,
    /// What it does with the request's bytes.
    pub body: Body,
    /// And with the reply's.
    pub reply_body: Body,
    /// What it needs beside what follows from the rest: `clock`, `random`.
    pub capabilities: Vec<String>,
    /// The root context's name, for filters that have several.
    pub root_id: Option<String>,
    /// The decision that a policy of OPA's is asked for.
    pub entrypoint: Option<String>,
}

impl Description {
    /// The manifest that describes the module so, as JSON.
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
        let foreign = Foreign {
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
        if foreign.changes() {
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
            "capabilities": capabilities, "foreign": foreign,
        })
        .to_string();
        Manifest::parse(manifest.as_bytes()).map_err(LoadError::Manifest)?;
        Ok(manifest)
    }
}

/// Appends a manifest to a module that has none.
///
/// # Errors
/// It has one.
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

/// The interface that an undescribed module was made for, if its exports say so without doubt; `None` also for a module that has a
/// manifest.
///
/// # Errors
/// It is no module.
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
            let export = export.map_err(crate::scan::invalid)?;
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

/// What the only manifest says about its interface, if there is one and it parses: by which rules a scan goes.
pub(crate) fn peek(wasm: &[u8]) -> Option<Abi> {
    let manifests = manifests(wasm).ok()?;
    let [manifest] = manifests[..] else {
        return None;
    };
    Some(Manifest::parse(manifest).ok()?.foreign()?.abi())
}

fn manifests(wasm: &[u8]) -> Result<Vec<&[u8]>, LoadError> {
    if wasm.len() > limits::FOREIGN_MODULE_BYTES {
        return Err(LoadError::TooLarge {
            bytes: wasm.len(),
            max: limits::FOREIGN_MODULE_BYTES,
        });
    }
    let mut found = Vec::new();
    for payload in sections(wasm) {
        if let Payload::CustomSection(section) = payload?
            && section.name() == MANIFEST_SECTION
        {
            found.push(section.data());
        }
    }
    Ok(found)
}

fn sections(wasm: &[u8]) -> impl Iterator<Item = Result<Payload<'_>, LoadError>> {
    Parser::new(0)
        .parse_all(wasm)
        .map(|payload| payload.map_err(crate::scan::invalid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_described_in_one_place() {
        let manifest = |method: &str| {
            let text = format!(
                r#"{{"abi": 1, "name": "f", "hooks": ["request"], "methods": [{method}], "foreign": {{"abi": "opa"}}}}"#
            );
            Manifest::parse(text.as_bytes()).map(drop)
        };
        assert_eq!(manifest(r#"{"method": "*"}"#), Ok(()));
        let text = "lists metadata of *; a description lists it under foreign, for all methods";
        for lists in [r#""metadata": ["a"]"#, r#""reply_metadata": ["*"]"#] {
            let refused = manifest(&format!(r#"{{"method": "*", {lists}}}"#));
            assert_eq!(refused, Err(text.to_owned()));
        }
    }
}

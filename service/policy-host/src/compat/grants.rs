//! The rights of a compat module: the part of a manifest that its author couldn't write.
//!
//! ```json
//!   { "abi": 1, "name": "auth", "hooks": ["request"], "methods": [{ "method": "*" }],
//!     "foreign": { "abi": "proxy-wasm", "metadata": ["authorization"], "metadata_changes": ["x-user"], "body": "read" } }
//! ```
//!
//! Invariant: anything absent is refused. Without `metadata` a filter sees no metadata, without
//! `body` no byte of the message. Reserved metadata keys are in no list, and `*` doesn't include
//! them.

use serde::{Deserialize, Serialize};
use tollgate_shm_abi::metadata::{check_key, is_reserved};

use crate::error::ManifestError;
use crate::{Hook, limits};

/// The interface of a compat module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Abi {
    /// Envoy's filters: proxy-wasm 0.2.0 and 0.2.1.
    #[serde(rename = "proxy-wasm")]
    ProxyWasm,
    /// Modules from `opa build -t wasm`: ABI 1.2 and later 1.x.
    #[serde(rename = "opa")]
    Opa,
}

impl Abi {
    /// Its name in descriptions.
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

/// A filter's access to a message's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// No access.
    #[default]
    None,
    /// It reads all of them.
    Read,
    /// It reads and replaces them.
    Change,
}

/// The manifest's key `foreign`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompatDescription {
    pub(super) abi: Abi,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) metadata: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) reply_metadata: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) metadata_changes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) reply_metadata_changes: Vec<String>,
    #[serde(default)]
    pub(super) body: Body,
    #[serde(default)]
    pub(super) reply_body: Body,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) root_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) entrypoint: Option<String>,
}

/// Stands for every key in a list of keys, except the reserved ones.
pub const EVERY_KEY: &str = "*";

impl CompatDescription {
    /// Its interface.
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

    /// Its access to the message's bytes at this hook.
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

    /// The decision to evaluate; none: the module's first.
    pub(crate) fn entrypoint(&self) -> Option<&str> {
        self.entrypoint.as_deref()
    }

    /// Whether it changes anything.
    pub(crate) fn changes(&self) -> bool {
        let body = self.body == Body::Change || self.reply_body == Body::Change;
        body || !self.metadata_changes.is_empty() || !self.reply_metadata_changes.is_empty()
    }

    /// Checks the rules.
    pub(crate) fn check(&self) -> Result<(), ManifestError> {
        let lists = [
            ("metadata", &self.metadata),
            ("reply_metadata", &self.reply_metadata),
            ("metadata_changes", &self.metadata_changes),
            ("reply_metadata_changes", &self.reply_metadata_changes),
        ];
        for (what, keys) in lists {
            check_keys(what, keys)?;
        }
        let only_for = |abi: Abi, what: &'static str, there: bool| {
            if there && self.abi != abi {
                let abi = self.abi.name();
                return Err(ManifestError::OtherAbi { what, abi });
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
            Some(long) => Err(ManifestError::LongName { bytes: long.len() }),
            None => Ok(()),
        }
    }
}

/// Whether a list of keys contains a key, or all of them.
pub fn covers(keys: &[String], key: &str) -> bool {
    let mut keys = keys.iter();
    !is_reserved(key) && keys.any(|listed| listed == EVERY_KEY || listed == key)
}

fn check_keys(list: &'static str, keys: &[String]) -> Result<(), ManifestError> {
    if keys.len() > limits::COMPAT_KEYS {
        let count = keys.len();
        return Err(ManifestError::CompatKeys { list, count });
    }
    for key in keys.iter().filter(|key| *key != EVERY_KEY) {
        let shown = || key.chars().take(32).collect();
        if check_key(key.as_bytes()).is_err() {
            return Err(ManifestError::CompatKey { key: shown(), list });
        }
        if is_reserved(key) {
            let what = list.to_owned();
            return Err(ManifestError::ReservedKey { key: shown(), what });
        }
    }
    Ok(())
}

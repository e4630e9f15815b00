//! The manifest: what a policy says about itself, parsed once and checked against the limits.
//!
//! It comes from the tenant, so unknown keys, doubled entries and odd names are refused rather than guessed at:
//! what a policy declares here is what it will be shown.

use std::collections::HashSet;

use serde::Deserialize;

use crate::{Hook, limits};

/// A policy's declaration of name, hooks, methods, fields and counters, in bounds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    abi: u32,
    name: String,
    #[serde(default)]
    version: Option<String>,
    hooks: Vec<Hook>,
    methods: Vec<Method>,
    #[serde(default)]
    counters: Vec<String>,
}

/// One entry of the manifest's `methods`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    method: String,
    #[serde(default)]
    fields: Vec<String>,
    #[serde(default)]
    reply_fields: Vec<String>,
}

impl Method {
    /// `package.Service/Method`, `package.Service/*` or `*`.
    pub fn pattern(&self) -> &str {
        &self.method
    }

    /// Dotted paths of the fields the policy wants to see at this hook, in the order of the view.
    pub fn fields(&self, hook: Hook) -> &[String] {
        match hook {
            Hook::Request => &self.fields,
            Hook::Reply => &self.reply_fields,
        }
    }

    fn is_wildcard(&self) -> bool {
        self.method.ends_with('*')
    }
}

impl Manifest {
    /// The author's name for the policy.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The author's version, free text.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Where in a call's life the policy wants to be asked.
    pub fn hooks(&self) -> &[Hook] {
        &self.hooks
    }

    /// The methods; an index into this list is what `judge` takes.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// Names of the counters, in the order of [`crate::Instance::counters`].
    pub fn counters(&self) -> &[String] {
        &self.counters
    }

    /// The index of the entry that applies to a method: the most exact pattern wins. `None` if the policy doesn't
    /// care about that method.
    pub fn method_index(&self, service: &str, method: &str) -> Option<u32> {
        let exactness = |pattern: &str| match pattern.split_once('/') {
            Some((s, m)) if s == service && m == method => Some(2),
            Some((s, "*")) if s == service => Some(1),
            None => Some(0), // Only `*` has no slash.
            Some(_) => None,
        };
        let candidates = self.methods.iter().zip(0u32..);
        candidates
            .filter_map(|(entry, index)| Some((exactness(&entry.method)?, index)))
            .max_by_key(|(exact, _)| *exact)
            .map(|(_, index)| index)
    }

    /// Parses the section's bytes; the error is the rest of a sentence that begins with "the manifest".
    pub(crate) fn parse(bytes: &[u8]) -> Result<Manifest, String> {
        if bytes.len() > limits::MANIFEST_BYTES {
            return Err(format!(
                "has {} bytes, above the limit of {}",
                bytes.len(),
                limits::MANIFEST_BYTES
            ));
        }
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|e| format!("doesn't parse: {e}"))?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), String> {
        if self.abi != 1 {
            return Err(format!("asks for ABI {}; this host speaks 1", self.abi));
        }
        check_policy_name(&self.name)?;
        if let Some(version) = &self.version {
            check_length("version", version)?;
        }
        check_list("hooks", self.hooks.iter(), 1..=2)?;
        check_list(
            "methods",
            self.methods.iter().map(|m| &m.method),
            1..=limits::METHODS,
        )?;
        check_list("counters", self.counters.iter(), 0..=limits::COUNTERS)?;
        self.counters
            .iter()
            .try_for_each(|name| check_length("counter", name))?;
        self.methods.iter().try_for_each(check_method)
    }
}

fn check_policy_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if name.is_empty() || name.len() > limits::POLICY_NAME_BYTES || !name.chars().all(allowed) {
        let shown: String = name.chars().take(limits::POLICY_NAME_BYTES).collect();
        return Err(format!(
            "names the policy {shown:?}; a name is 1 to {} of a-z 0-9 - _ .",
            limits::POLICY_NAME_BYTES
        ));
    }
    Ok(())
}

fn check_method(entry: &Method) -> Result<(), String> {
    let pattern = &entry.method;
    check_length("method", pattern)?;
    let well_formed = match pattern.split_once('/') {
        None => pattern == "*",
        Some((service, method)) => {
            let word = |s: &str| !s.is_empty() && !s.contains(['/', '*']);
            word(service) && (word(method) || method == "*")
        }
    };
    if !well_formed {
        return Err(format!(
            "has the method {pattern:?}; write package.Service/Method, package.Service/* or *"
        ));
    }
    for hook in [Hook::Request, Hook::Reply] {
        let fields = entry.fields(hook);
        check_list(
            &format!("fields of {pattern}"),
            fields.iter(),
            0..=limits::FIELDS,
        )?;
        fields
            .iter()
            .try_for_each(|field| check_length("field", field))?;
        if entry.is_wildcard() && !fields.is_empty() {
            return Err(format!(
                "declares the field {:?} for {pattern}; only an exact method has a known schema",
                fields[0]
            ));
        }
    }
    Ok(())
}

fn check_length(what: &str, text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > limits::NAME_BYTES {
        let shown: String = text.chars().take(32).collect();
        return Err(format!(
            "has a {what} of {} bytes ({shown:?}); 1 to {} are allowed",
            text.len(),
            limits::NAME_BYTES
        ));
    }
    Ok(())
}

fn check_list<T: std::hash::Hash + Eq + std::fmt::Debug>(
    what: &str,
    items: impl ExactSizeIterator<Item = T>,
    allowed: std::ops::RangeInclusive<usize>,
) -> Result<(), String> {
    if !allowed.contains(&items.len()) {
        return Err(format!(
            "lists {} {what}; {} to {} are allowed",
            items.len(),
            allowed.start(),
            allowed.end()
        ));
    }
    let mut seen = HashSet::new();
    for item in items {
        if let Some(twice) = seen.replace(item) {
            return Err(format!("lists {twice:?} twice in {what}"));
        }
    }
    Ok(())
}

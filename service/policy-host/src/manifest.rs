//! The manifest: a policy's description of itself, parsed once and checked against the limits.
//!
//! It comes from the tenant. Unknown keys, duplicate entries and invalid names are refused rather
//! than guessed at: the declaration decides what the policy is shown.
//!
//! Everything in it is fixed when the policy is built, with one exception. A list of fields or
//! metadata keys that is `["*"]` stands for the list of the same name in the policy's
//! configuration, and is replaced by it before any other use ([`crate::Policy::configured`]). So a
//! policy for any field or key needs no new build, and still declares what it reads. `fields.rs`
//! has the lists of fields.

use std::collections::HashSet;
use std::time::Duration;

use serde::Deserialize;
use tollgate_shm_abi::metadata::{check_key, is_reserved};

use crate::compat::{Abi, CompatDescription};
use crate::error::ManifestError;
use crate::fields::{Absent, CONFIGURED, FieldItem, FieldList, FieldTypes, Scope, is_pattern};
use crate::{Attribute, Capabilities, Hook, limits};

/// A policy's declaration of name, hooks, methods, fields, capabilities and metrics, within the
/// limits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    abi: u32,
    name: String,
    #[serde(default)]
    version: Option<String>,
    #[serde(rename = "hooks")]
    declared_hooks: Vec<DeclaredHook>,
    /// The call hooks among `declared_hooks`.
    #[serde(skip)]
    hooks: Vec<Hook>,
    /// What the configuration says about methods, if the policy takes fields from it.
    #[serde(skip)]
    scope: Scope,
    /// The parsed bytes, for sending to a policy process.
    #[serde(skip)]
    source: std::sync::Arc<[u8]>,
    #[serde(default)]
    tick_ms: Option<u32>,
    methods: Vec<Method>,
    #[serde(default)]
    wasi: bool,
    #[serde(default)]
    capabilities: Vec<Capability>,
    #[serde(default)]
    state: Option<State>,
    #[serde(default)]
    counters: Vec<String>,
    #[serde(default)]
    gauges: Vec<String>,
    #[serde(default)]
    histograms: Vec<String>,
    #[serde(default)]
    #[serde(rename = "foreign")]
    compat: Option<CompatDescription>,
}

/// An entry of `hooks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DeclaredHook {
    Request,
    Reply,
    Tick,
}

/// An entry of `capabilities`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
struct Capability(Capabilities);

impl TryFrom<String> for Capability {
    type Error = crate::UnknownCapability;

    fn try_from(name: String) -> Result<Capability, Self::Error> {
        name.parse().map(Capability)
    }
}

/// The state that the policy can hand over to its next version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    #[serde(default)]
    stateless_replies: bool,
}

/// One entry of the manifest's `methods`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    method: String,
    #[serde(default)]
    fields: FieldList,
    #[serde(default)]
    reply_fields: FieldList,
    #[serde(default)]
    changes: FieldList,
    #[serde(default)]
    reply_changes: FieldList,
    #[serde(default)]
    metadata: Vec<String>,
    #[serde(default)]
    reply_metadata: Vec<String>,
    #[serde(default)]
    metadata_changes: Vec<String>,
    #[serde(default)]
    reply_metadata_changes: Vec<String>,
}

/// Names of an entry's lists of fields.
const FIELD_LISTS: [&str; 4] = ["fields", "reply_fields", "changes", "reply_changes"];

impl Method {
    /// `package.Service/Method`, `package.Service/*` or `*`.
    pub fn pattern(&self) -> &str {
        &self.method
    }

    /// Dotted paths of the fields that the policy reads at this hook, in the order of the view.
    pub fn fields(&self, hook: Hook) -> &[String] {
        &self.reads(hook).paths
    }

    /// For each of [`Method::fields`]: the types that the policy takes, if its configuration names
    /// the field.
    pub fn field_types(&self, hook: Hook) -> &[Option<FieldTypes>] {
        &self.reads(hook).types
    }

    /// The list of fields that the policy reads, as the manifest has it.
    pub fn field_items(&self, hook: Hook) -> &[FieldItem] {
        self.reads(hook).items()
    }

    fn reads(&self, hook: Hook) -> &FieldList {
        match hook {
            Hook::Request => &self.fields,
            Hook::Reply => &self.reply_fields,
        }
    }

    /// Dotted paths of the fields that the policy may change at this hook; [`crate::FieldChange`]
    /// has an index into this list.
    pub fn changes(&self, hook: Hook) -> &[String] {
        &self.writes(hook).paths
    }

    /// For each of [`Method::changes`]: the types that the policy takes, if its configuration names
    /// the field.
    pub fn change_types(&self, hook: Hook) -> &[Option<FieldTypes>] {
        &self.writes(hook).types
    }

    /// The list of fields that the policy may change, as the manifest has it.
    pub fn change_items(&self, hook: Hook) -> &[FieldItem] {
        self.writes(hook).items()
    }

    fn writes(&self, hook: Hook) -> &FieldList {
        match hook {
            Hook::Request => &self.changes,
            Hook::Reply => &self.reply_changes,
        }
    }

    /// The lists of fields, in the order of their names.
    fn field_lists(&self) -> [(&'static str, &FieldList); 4] {
        let [fields, reply_fields, changes, reply_changes] = FIELD_LISTS;
        [
            (fields, &self.fields),
            (reply_fields, &self.reply_fields),
            (changes, &self.changes),
            (reply_changes, &self.reply_changes),
        ]
    }

    /// A list by its name, with its limit.
    fn field_list_mut(&mut self, name: &str) -> (&mut FieldList, usize) {
        match name {
            "fields" => (&mut self.fields, limits::FIELDS),
            "reply_fields" => (&mut self.reply_fields, limits::FIELDS),
            "changes" => (&mut self.changes, limits::CHANGES),
            _ => (&mut self.reply_changes, limits::CHANGES),
        }
    }

    /// Whether the policy takes fields from its configuration, at any hook.
    fn takes_fields(&self) -> bool {
        let mut lists = self.field_lists().into_iter();
        lists.any(|(_, list)| list.lists().next().is_some())
    }

    /// Keys of the metadata that the policy reads at this hook, in the order of the view.
    pub fn metadata(&self, hook: Hook) -> &[String] {
        match hook {
            Hook::Request => &self.metadata,
            Hook::Reply => &self.reply_metadata,
        }
    }

    /// Keys of the metadata that the policy may change at this hook; [`crate::MetadataChange`] has
    /// an index into this list.
    pub fn metadata_changes(&self, hook: Hook) -> &[String] {
        match hook {
            Hook::Request => &self.metadata_changes,
            Hook::Reply => &self.reply_metadata_changes,
        }
    }

    fn is_wildcard(&self) -> bool {
        self.method.ends_with('*')
    }

    /// The lists of metadata keys, by their names.
    fn key_lists(&self) -> [(&'static str, &Vec<String>); 4] {
        [
            ("metadata", &self.metadata),
            ("reply_metadata", &self.reply_metadata),
            ("metadata_changes", &self.metadata_changes),
            ("reply_metadata_changes", &self.reply_metadata_changes),
        ]
    }

    fn key_list_mut(&mut self, name: &str) -> &mut Vec<String> {
        match name {
            "metadata" => &mut self.metadata,
            "reply_metadata" => &mut self.reply_metadata,
            "metadata_changes" => &mut self.metadata_changes,
            _ => &mut self.reply_metadata_changes,
        }
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

    /// The points in a call's life at which the policy runs; empty if it only ticks.
    pub fn hooks(&self) -> &[Hook] {
        &self.hooks
    }

    /// The methods; `evaluate` takes an index into this list.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// Names of the counters, in the order of [`crate::Instance::counters`].
    pub fn counters(&self) -> &[String] {
        &self.counters
    }

    /// Names of the gauges, in the order of [`crate::Metrics::gauges`].
    pub fn gauges(&self) -> &[String] {
        &self.gauges
    }

    /// Names of the histograms, in the order of [`crate::Metrics::histograms`].
    pub fn histograms(&self) -> &[String] {
        &self.histograms
    }

    /// The capabilities that the policy declares, plus those that every policy has.
    pub fn capabilities(&self) -> Capabilities {
        let all = self.capabilities.iter();
        all.fold(Capabilities::ALWAYS, |all, one| all | one.0)
    }

    /// Whether the module contains a language's run-time library, which imports WASI. Its bounds
    /// are those of compat modules.
    pub fn has_wasi(&self) -> bool {
        self.wasi
    }

    /// The version of its saved state; `None` if it hands over none.
    pub fn state_version(&self) -> Option<u32> {
        self.state.map(|state| state.version)
    }

    /// Whether evaluating replies never changes the saved state, as the manifest declares. Then the
    /// policy can continue to evaluate replies to its requests after its state has moved to the
    /// next version.
    pub fn has_stateless_replies(&self) -> bool {
        self.state.is_some_and(|state| state.stateless_replies)
    }

    /// The module's description, if it was made for another host.
    pub fn compat(&self) -> Option<&CompatDescription> {
        self.compat.as_ref()
    }

    /// Whether it has a tick.
    pub(crate) fn ticks(&self) -> bool {
        self.declared_hooks.contains(&DeclaredHook::Tick)
    }

    /// The tick's period, if it has one; a compat module sets its own, at any time.
    pub fn tick(&self) -> Option<Duration> {
        self.tick_ms.map(|ms| Duration::from_millis(ms.into()))
    }

    /// The index of the entry for a method: the most specific pattern wins. `None` if no entry
    /// matches, or if the configuration lists other methods.
    pub fn method_index(&self, service: &str, method: &str) -> Option<u32> {
        if !self.scope.covers(service, method) {
            return None;
        }
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

    /// What happens to a method whose message lacks a field that the configuration names.
    pub fn absent(&self) -> Absent {
        self.scope.absent
    }

    /// The only methods for which the policy is evaluated, as its configuration lists them; empty:
    /// all that [`Manifest::methods`] matches.
    pub fn only_methods(&self) -> &[String] {
        &self.scope.methods
    }

    /// The entries with the patterns for which they can be evaluated.
    pub fn scopes(&self) -> impl Iterator<Item = (&Method, &str)> {
        self.methods.iter().flat_map(|entry| {
            let parts = self.scope.parts_of(&entry.method);
            parts.into_iter().map(move |pattern| (entry, pattern))
        })
    }

    /// Whether a configuration can name fields.
    pub fn takes_fields(&self) -> bool {
        self.methods.iter().any(Method::takes_fields)
    }

    /// True if the configuration must name some of the fields or metadata keys.
    pub(crate) fn is_configurable(&self) -> bool {
        let lists = self.methods.iter().flat_map(Method::key_lists);
        let mut fields = self.methods.iter().flat_map(Method::field_lists);
        lists.into_iter().any(|(_, keys)| is_configured(keys))
            || fields.any(|(_, list)| list.is_open)
    }

    /// The manifest with the fields and keys that a configuration names.
    pub(crate) fn configured(&self, config: &[u8]) -> Result<Manifest, ManifestError> {
        let mut manifest = self.clone();
        if config.trim_ascii().is_empty() {
            return Err(ManifestError::NoConfiguration);
        }
        let config: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(config).map_err(ManifestError::NotAnObject)?;
        for entry in &mut manifest.methods {
            for name in [
                "metadata",
                "reply_metadata",
                "metadata_changes",
                "reply_metadata_changes",
            ] {
                let list = entry.key_list_mut(name);
                if !is_configured(list) {
                    continue;
                }
                let named = config
                    .get(name)
                    .cloned()
                    .unwrap_or(serde_json::Value::Array(Vec::new()));
                *list = serde_json::from_value(named)
                    .map_err(|_| ManifestError::NotKeys { list: name })?;
                if list.iter().any(|key| key == CONFIGURED) {
                    return Err(ManifestError::ConfiguredTwice { list: name });
                }
                check_keys(name, &format!("{name:?}"), list)?;
            }
            for name in FIELD_LISTS {
                let (list, max) = entry.field_list_mut(name);
                if list.is_open {
                    *list = list.filled(&config, max)?;
                }
            }
        }
        if manifest.takes_fields() {
            manifest.scope = Scope::of(&config)?;
        }
        Ok(manifest)
    }

    /// The section's bytes.
    pub(crate) fn source(&self) -> &[u8] {
        &self.source
    }

    /// Parses the section's bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if bytes.len() > limits::MANIFEST_BYTES {
            return Err(ManifestError::TooLarge { bytes: bytes.len() });
        }
        let mut manifest: Manifest =
            serde_json::from_slice(bytes).map_err(ManifestError::Syntax)?;
        for entry in &mut manifest.methods {
            for name in FIELD_LISTS {
                let (list, _) = entry.field_list_mut(name);
                *list = std::mem::take(list).named(name);
            }
        }
        manifest.check()?;
        manifest.source = bytes.into();
        let declared = manifest.declared_hooks.iter();
        manifest.hooks = declared
            .filter_map(|hook| match hook {
                DeclaredHook::Request => Some(Hook::Request),
                DeclaredHook::Reply => Some(Hook::Reply),
                DeclaredHook::Tick => None,
            })
            .collect();
        Ok(manifest)
    }

    fn check(&self) -> Result<(), ManifestError> {
        if self.abi != 1 {
            return Err(ManifestError::Abi(self.abi));
        }
        check_policy_name(&self.name)?;
        if let Some(version) = &self.version {
            check_length("version", version)?;
        }
        check_list("hooks", self.declared_hooks.iter(), 1..=3)?;
        self.check_tick()?;
        self.check_compat()?;
        check_list(
            "methods",
            self.methods.iter().map(|m| &m.method),
            1..=limits::METHODS,
        )?;
        let capabilities = self.capabilities.iter();
        check_list("capabilities", capabilities.map(|c| c.0.to_string()), 0..=9)?;
        let metrics = [
            ("counter", "counters", &self.counters, limits::COUNTERS),
            ("gauge", "gauges", &self.gauges, limits::GAUGES),
            (
                "histogram",
                "histograms",
                &self.histograms,
                limits::HISTOGRAMS,
            ),
        ];
        for (one, many, names, max) in metrics {
            check_list(many, names.iter(), 0..=max)?;
            names.iter().try_for_each(|name| check_length(one, name))?;
        }
        let may_change = self.capabilities().contains(Capabilities::CHANGE);
        self.methods
            .iter()
            .try_for_each(|entry| check_method(entry, may_change))
    }

    fn check_compat(&self) -> Result<(), ManifestError> {
        let Some(compat) = &self.compat else {
            return Ok(());
        };
        compat.check()?;
        if self.wasi {
            return Err(ManifestError::CompatWasi);
        }
        let may_change = self.capabilities().contains(Capabilities::CHANGE);
        if compat.changes() && !may_change {
            return Err(ManifestError::UndeclaredChanges);
        }
        let keys = |entry: &Method| entry.key_lists().iter().any(|(_, keys)| !keys.is_empty());
        if let Some(entry) = self.methods.iter().find(|entry| keys(entry)) {
            let pattern = entry.method.clone();
            return Err(ManifestError::MethodMetadata { pattern });
        }
        if let Some(entry) = self.methods.iter().find(|entry| entry.takes_fields()) {
            return Err(ManifestError::CompatConfigured {
                pattern: entry.method.clone(),
                abi: compat.abi().name(),
            });
        }
        let reads = |entry: &Method| !entry.fields.is_empty() || !entry.reply_fields.is_empty();
        let changes = |entry: &Method| !entry.changes.is_empty() || !entry.reply_changes.is_empty();
        match self
            .methods
            .iter()
            .find(|entry| changes(entry) || (compat.abi() == Abi::ProxyWasm && reads(entry)))
        {
            Some(entry) => Err(ManifestError::CompatFields {
                pattern: entry.method.clone(),
                abi: compat.abi().name(),
            }),
            None => Ok(()),
        }
    }

    fn check_tick(&self) -> Result<(), ManifestError> {
        let (min, max) = (limits::TICK_MS_MIN, limits::TICK_MS_MAX);
        match (
            self.declared_hooks.contains(&DeclaredHook::Tick),
            self.tick_ms,
        ) {
            (true, Some(ms)) if (min..=max).contains(&ms) => Ok(()),
            (true, Some(ms)) => Err(ManifestError::TickRange { ms }),
            // A compat module sets its timer itself.
            (true, None) if self.compat.is_some() => Ok(()),
            (true, None) => Err(ManifestError::TickWithoutPeriod),
            (false, Some(_)) => Err(ManifestError::PeriodWithoutTick),
            (false, None) => Ok(()),
        }
    }
}

fn check_policy_name(name: &str) -> Result<(), ManifestError> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if name.is_empty() || name.len() > limits::POLICY_NAME_BYTES || !name.chars().all(allowed) {
        let shown = name.chars().take(limits::POLICY_NAME_BYTES).collect();
        return Err(ManifestError::PolicyName { shown });
    }
    Ok(())
}

fn check_method(entry: &Method, may_change: bool) -> Result<(), ManifestError> {
    let pattern = &entry.method;
    check_length("method", pattern)?;
    if !is_pattern(pattern) {
        let pattern = pattern.clone();
        return Err(ManifestError::Pattern { pattern });
    }
    for (what, list) in entry.field_lists() {
        let max = match what.ends_with("changes") {
            true => limits::CHANGES,
            false => limits::FIELDS,
        };
        list.check()?;
        check_paths(entry, what, &list.paths, max)?;
        if list.is_open {
            let lists = list.lists().map(|list| &list.config);
            let lists: Vec<_> = lists.collect();
            check_list(&format!("{what} of {pattern}"), lists.into_iter(), 0..=max)?;
        }
    }
    for hook in [Hook::Request, Hook::Reply] {
        let keys = entry.metadata_changes(hook);
        for (list, first) in [
            ("changes", entry.writes(hook).first()),
            ("metadata_changes", keys.first().cloned()),
        ] {
            if let (Some(item), false) = (first, may_change) {
                return Err(ManifestError::UndeclaredChange {
                    item,
                    list,
                    pattern: pattern.clone(),
                });
            }
        }
    }
    let lists = entry.key_lists().into_iter();
    lists
        .filter(|(_, keys)| !is_configured(keys))
        .try_for_each(|(what, keys)| check_keys(what, &format!("{what} of {pattern}"), keys))
}

fn is_configured(keys: &[String]) -> bool {
    matches!(keys, [key] if key == CONFIGURED)
}

/// Checks that a policy may name these metadata keys.
/// The list's name says whether the policy changes them: attributes can only be read.
fn check_keys(list: &str, what: &str, keys: &[String]) -> Result<(), ManifestError> {
    check_list(what, keys.iter(), 0..=limits::METADATA_KEYS)?;
    for key in keys {
        let what = || what.to_owned();
        if let Some(attribute) = Attribute::of_key(key) {
            let why = match attribute {
                Ok(_) if !list.ends_with("_changes") => None,
                Ok(_) => Some("policies can't change what the daemon knows of a caller".to_owned()),
                Err(unknown) => Some(unknown.to_string()),
            };
            if let Some(why) = why {
                let (key, what) = (key.clone(), what());
                return Err(ManifestError::Attribute { key, what, why });
            }
            continue;
        }
        check_key(key.as_bytes()).map_err(|why| ManifestError::Key { what: what(), why })?;
        if is_reserved(key) {
            let key = key.clone();
            return Err(ManifestError::ReservedKey { key, what: what() });
        }
    }
    Ok(())
}

fn check_paths(
    entry: &Method,
    what: &str,
    paths: &[String],
    max: usize,
) -> Result<(), ManifestError> {
    let pattern = &entry.method;
    check_list(&format!("{what} of {pattern}"), paths.iter(), 0..=max)?;
    paths
        .iter()
        .try_for_each(|path| check_length("field", path))?;
    match paths.first() {
        Some(path) if entry.is_wildcard() => Err(ManifestError::WildcardField {
            path: path.clone(),
            pattern: pattern.clone(),
        }),
        _ => Ok(()),
    }
}

fn check_length(what: &'static str, text: &str) -> Result<(), ManifestError> {
    if text.is_empty() || text.len() > limits::NAME_BYTES {
        return Err(ManifestError::Length {
            what,
            bytes: text.len(),
            shown: text.chars().take(32).collect(),
        });
    }
    Ok(())
}

fn check_list<T: std::hash::Hash + Eq + std::fmt::Debug>(
    what: &str,
    items: impl ExactSizeIterator<Item = T>,
    allowed: std::ops::RangeInclusive<usize>,
) -> Result<(), ManifestError> {
    if !allowed.contains(&items.len()) {
        return Err(ManifestError::Count {
            what: what.to_owned(),
            count: items.len(),
            min: *allowed.start(),
            max: *allowed.end(),
        });
    }
    let mut seen = HashSet::new();
    for item in items {
        if let Some(twice) = seen.replace(item) {
            return Err(ManifestError::Twice {
                item: format!("{twice:?}"),
                what: what.to_owned(),
            });
        }
    }
    Ok(())
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
            let parsed = Manifest::parse(text.as_bytes());
            parsed.map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(manifest(r#"{"method": "*"}"#), Ok(()));
        let text = "lists metadata of *; a description lists it under foreign, for all methods";
        for lists in [r#""metadata": ["a"]"#, r#""reply_metadata": ["*"]"#] {
            let refused = manifest(&format!(r#"{{"method": "*", {lists}}}"#));
            assert_eq!(refused, Err(text.to_owned()));
        }
    }
}

//! A manifest's lists of fields, and the parts of them that a policy's configuration names.
//!
//! ```text
//!   "fields": ["customer_name", {"config": "mask", "types": ["string"]}]      the manifest
//!   {"mask": ["stay.in_date"], "absent": "skip"}                              the configuration
//!        -> customer_name, stay.in_date                                       the version
//! ```
//!
//! A list from the configuration is put in its place when the version is pushed and whenever it is
//! loaded, before any code looks at the manifest. So a version declares exactly what it reads, and
//! grants, ceilings and views know no difference. What differs is known per path: the types that
//! the policy takes, and that the view's entry has the field's type.
//!
//! Two keys of such a configuration are the daemon's: `absent`, for methods whose messages lack a
//! field, and `methods`, the only methods for which the policy is evaluated. Other policies'
//! configurations are never looked at.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::error::ManifestError;
use crate::limits;

/// In a list of fields or metadata keys, as its only entry: the configuration has a list of the
/// same name.
pub(crate) const CONFIGURED: &str = "*";

/// The keys of a configuration that the daemon reads.
const ABSENT: &str = "absent";
const METHODS: &str = "methods";

/// Types of fields that a policy takes; `Default`: all. A type's bit is the number that the view's
/// entry has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
pub struct FieldTypes(u32);

impl FieldTypes {
    /// The names, each at its number.
    const NAMES: [(u32, &str); 8] = [
        (2, "bool"),
        (3, "int"),
        (4, "uint"),
        (5, "float"),
        (6, "double"),
        (7, "string"),
        (8, "bytes"),
        (9, "enum"),
    ];

    /// One bit per type, at its number.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The names of the types.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let known = FieldTypes::NAMES.into_iter();
        let known = known.filter(move |(number, _)| self.0 & 1 << number != 0);
        known.map(|(_, name)| name)
    }
}

impl Default for FieldTypes {
    fn default() -> FieldTypes {
        let known = FieldTypes::NAMES.iter();
        FieldTypes(known.fold(0, |bits, (number, _)| bits | 1 << number))
    }
}

impl TryFrom<Vec<String>> for FieldTypes {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<FieldTypes, String> {
        let mut bits = 0;
        for name in &names {
            let known = FieldTypes::NAMES.iter().find(|(_, known)| known == name);
            let (number, _) = known.ok_or_else(|| {
                format!("there is no type {name:?}; there are bool, int, uint, float, double, string, bytes and enum")
            })?;
            bits |= 1 << number;
        }
        match names.is_empty() {
            true => Err("a list of types names at least one".to_owned()),
            false => Ok(FieldTypes(bits)),
        }
    }
}

impl Serialize for FieldTypes {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.names())
    }
}

/// A list that the configuration has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredList {
    /// Its key at the top of the configuration.
    pub config: String,
    /// The types that its fields may have.
    #[serde(default)]
    pub types: FieldTypes,
}

/// An entry of a list of fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FieldItem {
    /// A path.
    Path(String),
    /// The paths that the configuration names.
    List(ConfiguredList),
}

impl<'de> Deserialize<'de> for FieldItem {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FieldItem, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = FieldItem;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field's path, or an object such as {\"config\": \"fields\"}")
            }

            fn visit_str<E: Error>(self, path: &str) -> Result<FieldItem, E> {
                Ok(FieldItem::Path(path.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FieldItem, A::Error> {
                ConfiguredList::deserialize(MapAccessDeserializer::new(map)).map(FieldItem::List)
            }
        }

        from.deserialize_any(Either)
    }
}

/// A list of fields as the manifest has it, and its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<FieldItem>")]
pub(crate) struct FieldList {
    items: Vec<FieldItem>,
    /// Without those that a configuration has yet to name.
    pub(crate) paths: Vec<String>,
    /// For each path: the types that the policy takes, if the configuration names it.
    pub(crate) types: Vec<Option<FieldTypes>>,
    /// Whether a configuration has yet to name some.
    pub(crate) is_open: bool,
}

impl From<Vec<FieldItem>> for FieldList {
    fn from(items: Vec<FieldItem>) -> FieldList {
        let paths: Vec<_> = items.iter().filter_map(FieldItem::path).collect();
        FieldList {
            types: vec![None; paths.len()],
            is_open: paths.len() < items.len(),
            paths,
            items,
        }
    }
}

impl FieldItem {
    fn path(&self) -> Option<String> {
        match self {
            FieldItem::Path(path) => Some(path.clone()),
            FieldItem::List(_) => None,
        }
    }
}

impl FieldList {
    /// The same, with a list `["*"]` replaced by the configuration's list of this name.
    pub(crate) fn named(self, name: &str) -> FieldList {
        match self.paths.as_slice() {
            [only] if only == CONFIGURED && !self.is_open => {
                FieldList::from(vec![FieldItem::List(ConfiguredList {
                    config: name.to_owned(),
                    types: FieldTypes::default(),
                })])
            }
            _ => self,
        }
    }

    /// As the manifest has it.
    pub(crate) fn items(&self) -> &[FieldItem] {
        &self.items
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The first entry, for a sentence about the list.
    pub(crate) fn first(&self) -> Option<String> {
        self.items.first().map(|item| match item {
            FieldItem::Path(path) => path.clone(),
            FieldItem::List(list) => format!("{} of the configuration", list.config),
        })
    }

    /// Names of the configuration's lists in it.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &ConfiguredList> {
        self.items.iter().filter_map(|item| match item {
            FieldItem::List(list) => Some(list),
            FieldItem::Path(_) => None,
        })
    }

    /// Checks the names of the configuration's lists.
    pub(crate) fn check(&self) -> Result<(), ManifestError> {
        for ConfiguredList { config, .. } in self.lists() {
            if config.is_empty() || config.len() > limits::NAME_BYTES {
                return Err(ManifestError::Length {
                    what: "list's name",
                    bytes: config.len(),
                    shown: config.chars().take(32).collect(),
                });
            }
            if [ABSENT, METHODS].contains(&config.as_str()) {
                let list = config.clone();
                return Err(ManifestError::ReservedList { list });
            }
        }
        Ok(())
    }

    /// The list with the paths that a configuration names; at most `max` in all.
    pub(crate) fn filled(
        &self,
        config: &Map<String, Value>,
        max: usize,
    ) -> Result<FieldList, ManifestError> {
        let mut filled = FieldList {
            items: self.items.clone(),
            ..FieldList::default()
        };
        for item in &self.items {
            match item {
                FieldItem::Path(path) => {
                    filled.paths.push(path.clone());
                    filled.types.push(None);
                }
                FieldItem::List(list) => {
                    let paths = paths_of(config, &list.config)?;
                    filled
                        .types
                        .extend(std::iter::repeat_n(Some(list.types), paths.len()));
                    filled.paths.extend(paths);
                }
            }
        }
        let names: Vec<_> = self
            .lists()
            .map(|list| format!("{:?}", list.config))
            .collect();
        let what = names.join(" and ");
        if filled.paths.len() > max {
            let declared = self.items.len() - names.len();
            return Err(ManifestError::Count {
                what: format!("fields in {what}"),
                count: filled.paths.len() - declared,
                min: 0,
                max: max - declared,
            });
        }
        for (at, path) in filled.paths.iter().enumerate() {
            if filled.paths[..at].contains(path) {
                let item = format!("{path:?}");
                return Err(ManifestError::Twice { item, what });
            }
        }
        Ok(filled)
    }
}

/// The paths in a configuration's list; a missing list is empty.
fn paths_of(config: &Map<String, Value>, name: &str) -> Result<Vec<String>, ManifestError> {
    let list = || name.to_owned();
    let paths = match config.get(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(paths)) => paths,
        Some(_) => return Err(ManifestError::NotPaths { list: list() }),
    };
    let one = |path: &Value| {
        let path = path
            .as_str()
            .ok_or_else(|| ManifestError::NotPaths { list: list() })?;
        if path.len() > limits::NAME_BYTES {
            let bytes = path.len();
            return Err(ManifestError::LongPath {
                list: list(),
                bytes,
            });
        }
        let is_name = |name: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
            !name.is_empty() && name.chars().all(allowed)
        };
        match path.split('.').all(is_name) {
            true => Ok(path.to_owned()),
            false => Err(ManifestError::Path {
                list: list(),
                path: path.to_owned(),
            }),
        }
    };
    paths.iter().map(one).collect()
}

/// What happens to a method whose message lacks a field that the configuration names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absent {
    /// The policy doesn't fit the method: it can't be attached, or the application's binding is
    /// refused.
    #[default]
    Refuse,
    /// The policy isn't evaluated for these messages: calls pass it.
    Skip,
    /// The policy is shown an absent field.
    Empty,
}

impl Absent {
    /// Its value in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Absent::Refuse => "refuse",
            Absent::Skip => "skip",
            Absent::Empty => "empty",
        }
    }
}

/// The keys of a configuration that the daemon reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) absent: Absent,
    /// The only methods for which the policy is evaluated; empty: those of the manifest.
    pub(crate) methods: Vec<String>,
}

impl Scope {
    pub(crate) fn of(config: &Map<String, Value>) -> Result<Scope, ManifestError> {
        let absent = match config.get(ABSENT) {
            None => Absent::Refuse,
            Some(value) => {
                let all = [Absent::Refuse, Absent::Skip, Absent::Empty];
                let known = all.into_iter().find(|known| value == known.name());
                known.ok_or_else(|| ManifestError::Absent {
                    found: crate::text::cut(&value.to_string()),
                })?
            }
        };
        let methods = match config.get(METHODS) {
            None => Vec::new(),
            Some(value) => {
                let methods: Vec<String> =
                    Vec::deserialize(value).map_err(|_| ManifestError::NotMethods)?;
                check_methods(&methods)?;
                methods
            }
        };
        Ok(Scope { absent, methods })
    }

    /// Whether the policy is evaluated for a method.
    pub(crate) fn covers(&self, service: &str, method: &str) -> bool {
        let is_it = |pattern: &String| match pattern.split_once('/') {
            None => true, // Only `*` has no slash.
            Some((its, "*")) => its == service,
            Some((its, name)) => its == service && name == method,
        };
        self.methods.is_empty() || self.methods.iter().any(is_it)
    }

    /// A pattern's part that is in scope, as patterns.
    pub(crate) fn parts_of<'p>(&'p self, pattern: &'p str) -> Vec<&'p str> {
        if self.methods.is_empty() {
            return vec![pattern];
        }
        let narrower = |one: &'p str| narrower(pattern, one);
        let parts = self.methods.iter();
        parts.filter_map(|part| narrower(part)).collect()
    }
}

/// The narrower of two patterns, if one contains the other.
fn narrower<'p>(one: &'p str, other: &'p str) -> Option<&'p str> {
    let contains = |wide: &str, narrow: &str| match wide.split_once('/') {
        None => true,
        Some((service, "*")) => narrow
            .split_once('/')
            .is_some_and(|(its, _)| its == service),
        Some(_) => wide == narrow,
    };
    match (contains(one, other), contains(other, one)) {
        (true, _) => Some(other),
        (_, true) => Some(one),
        _ => None,
    }
}

fn check_methods(methods: &[String]) -> Result<(), ManifestError> {
    let what = format!("{METHODS:?}");
    if !(1..=limits::METHODS).contains(&methods.len()) {
        return Err(ManifestError::Count {
            what: format!("methods in {what}"),
            count: methods.len(),
            min: 1,
            max: limits::METHODS,
        });
    }
    for (at, pattern) in methods.iter().enumerate() {
        if pattern.len() > limits::NAME_BYTES || !is_pattern(pattern) {
            let pattern = crate::text::cut(pattern);
            return Err(ManifestError::Pattern { pattern });
        }
        if methods[..at].contains(pattern) {
            let item = format!("{pattern:?}");
            return Err(ManifestError::Twice { item, what });
        }
    }
    Ok(())
}

/// Whether this is `package.Service/Method`, `package.Service/*` or `*`.
pub(crate) fn is_pattern(pattern: &str) -> bool {
    match pattern.split_once('/') {
        None => pattern == "*",
        Some((service, method)) => {
            let word = |s: &str| !s.is_empty() && !s.contains(['/', '*']);
            word(service) && (word(method) || method == "*")
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_narrower_of_two_patterns_is_what_both_are_for() {
        for (one, other, expected) in [
            ("*", "a.B/C", Some("a.B/C")),
            ("a.B/*", "*", Some("a.B/*")),
            ("a.B/*", "a.B/C", Some("a.B/C")),
            ("a.B/C", "a.B/C", Some("a.B/C")),
            ("a.B/C", "a.B/D", None),
            ("a.B/*", "a.X/*", None),
        ] {
            assert_eq!(narrower(one, other), expected, "{one} {other}");
            assert_eq!(narrower(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn types_are_named() {
        let types: FieldTypes = serde_json::from_str(r#"["string", "int"]"#).unwrap();
        assert_eq!(types.names().collect::<Vec<_>>(), ["int", "string"]);
        assert_eq!(types.bits(), 1 << 7 | 1 << 3);
        for (text, expected) in [
            (
                r#"["text"]"#,
                "there is no type \"text\"; there are bool, int",
            ),
            ("[]", "a list of types names at least one"),
        ] {
            let refused = serde_json::from_str::<FieldTypes>(text).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}

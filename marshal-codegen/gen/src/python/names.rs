//! Python names: modules, classes, attributes.
//!
//! A package `a.b` is the module `a_b_tollgate`; types that are declared inside a message are attributes of its class.

use std::collections::BTreeSet;

use crate::model::TypeName;

const KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

/// What messages and views have besides their fields, or need while their bodies are executed.
const OF_MESSAGES: &[&str] = &[
    "to_block",
    "to_parts",
    "from_block",
    "view",
    "which",
    "to_owned",
    "unknown_fields",
    "property",
    "self",
];

/// What stubs and servicers have besides their methods.
const OF_SERVICES: &[&str] = &["self"];

/// What members of enums can't be called.
const OF_ENUMS: &[&str] = &["mro", "name", "value"];

pub(crate) fn module_name(package: &str) -> String {
    match package {
        "" => "_tollgate".to_owned(),
        _ => package.replace('.', "_") + "_tollgate",
    }
}

/// The name of a class in its module or in the class around it.
pub(crate) fn class_name(name: &TypeName) -> String {
    not_a_keyword(&name.name)
}

/// The name of a class in its module.
pub(crate) fn class_path(name: &TypeName) -> String {
    let parts: Vec<_> = name
        .outer
        .iter()
        .chain([&name.name])
        .map(|part| not_a_keyword(part))
        .collect();
    parts.join(".")
}

/// A member of an enum. Python keeps names between underscores to itself.
pub(crate) fn enum_member(value: &str) -> String {
    if value.starts_with('_') {
        format!("V{value}")
    } else {
        value.to_owned()
    }
}

fn not_a_keyword(name: &str) -> String {
    let taken = KEYWORDS.contains(&name) || name.starts_with("__");
    if taken {
        format!("{}_", name.trim_start_matches('_'))
    } else {
        name.to_owned()
    }
}

/// The names of one class's attributes, each once.
pub(crate) struct Attributes {
    taken: BTreeSet<String>,
}

impl Attributes {
    pub(crate) fn of_message() -> Attributes {
        Attributes::without(OF_MESSAGES)
    }

    pub(crate) fn of_enum() -> Attributes {
        Attributes::without(OF_ENUMS)
    }

    pub(crate) fn of_service() -> Attributes {
        Attributes::without(OF_SERVICES)
    }

    fn without(names: &[&str]) -> Attributes {
        let taken = KEYWORDS.iter().chain(names);
        Attributes {
            taken: taken.map(|name| (*name).to_owned()).collect(),
        }
    }

    pub(crate) fn reserve(&mut self, name: String) {
        self.taken.insert(name);
    }

    /// The name, or what it becomes: names that begin with an underscore are not for fields, and those that are taken get
    /// one at their end.
    pub(crate) fn take(&mut self, name: &str) -> String {
        let bare = name.trim_start_matches('_');
        let mut attribute = "_".repeat(name.len() - bare.len());
        attribute.insert_str(0, bare);
        if attribute.starts_with(|c: char| c.is_ascii_digit() || c == '_') {
            attribute.insert(0, 'f');
        }
        while !self.taken.insert(attribute.clone()) {
            attribute.push('_');
        }
        attribute
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_distinct_and_never_keywords() {
        let mut names = Attributes::of_message();
        for (name, expected) in [
            ("x", "x"),
            ("_x", "x_"),
            ("x_", "x__"),
            ("class", "class_"),
            ("to_block", "to_block_"),
            ("_1", "f1_"),
            ("__", "f__"),
        ] {
            assert_eq!(names.take(name), expected, "{name}");
        }
    }

    #[test]
    fn classes_are_nested_as_messages_are() {
        let name = TypeName {
            package: "a.b".into(),
            outer: vec!["Outer".into()],
            name: "None".into(),
        };
        assert_eq!(
            (module_name("a.b"), class_path(&name)),
            ("a_b_tollgate".into(), "Outer.None_".into())
        );
    }
}

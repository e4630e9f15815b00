//! Rust names for protobuf's, and paths from one generated module to another's types.
//!
//! ```text
//! package a.b { message Outer { message Inner {} } }      a/b: Outer, outer::Inner
//! ```
//!
//! A package is a module path that the user writes down; messages nested in a message live in a module that is named
//! after it. Paths between types climb with `super`, so that the user may put the whole tree anywhere.

use tollgate_schema::prost_reflect::{EnumDescriptor, MessageDescriptor};

/// A type's place: its package's segments, the modules of the messages that contain it, its own name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypePath {
    /// Package segments and containing modules.
    modules: Vec<String>,
    /// Rust type name.
    name: String,
}

impl TypePath {
    pub(crate) fn of_message(message: &MessageDescriptor) -> TypePath {
        place(
            message.package_name(),
            message.parent_message(),
            message.name(),
        )
    }

    pub(crate) fn of_enum(descriptor: &EnumDescriptor) -> TypePath {
        place(
            descriptor.package_name(),
            descriptor.parent_message(),
            descriptor.name(),
        )
    }

    /// The Rust path to this type as seen from inside the module `from`, with `suffix` behind the type's name.
    pub(crate) fn seen_from(&self, from: &[String], suffix: &str) -> String {
        let shared = self
            .modules
            .iter()
            .zip(from)
            .take_while(|(a, b)| a == b)
            .count();
        let mut path = "super::".repeat(from.len() - shared);
        for module in &self.modules[shared..] {
            path.push_str(module);
            path.push_str("::");
        }
        path + &self.name + suffix
    }
}

fn place(package: &str, parent: Option<MessageDescriptor>, name: &str) -> TypePath {
    let mut outer = Vec::new();
    let mut next = parent;
    while let Some(message) = next {
        outer.push(snake(message.name()));
        next = message.parent_message();
    }
    let modules = package_modules(package)
        .into_iter()
        .chain(outer.into_iter().rev())
        .collect();
    TypePath {
        modules,
        name: camel(name),
    }
}

/// The module path of a package.
pub(crate) fn package_modules(package: &str) -> Vec<String> {
    package
        .split('.')
        .filter(|s| !s.is_empty())
        .map(snake)
        .collect()
}

/// `ReserveRequest`, `reserveRequest` and `RESERVE_REQUEST` to `reserve_request`, as an identifier.
pub(crate) fn snake(name: &str) -> String {
    identifier(words(name).join("_"))
}

/// `reserve_request` and `reserveRequest` to `ReserveRequest`, as an identifier.
pub(crate) fn camel(name: &str) -> String {
    let name: String = words(name)
        .iter()
        .map(|word| word[..1].to_ascii_uppercase() + &word[1..])
        .collect();
    identifier(name)
}

/// `Color` and `COLOR_DARK_RED` to `DARK_RED`, if the value's name begins with the enum's and something is left.
pub(crate) fn enum_value<'a>(enum_name: &str, value: &'a str) -> &'a str {
    let prefix = words(enum_name).join("_").to_ascii_uppercase() + "_";
    match value.strip_prefix(&prefix) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_alphabetic()) => rest,
        _ => value,
    }
}

/// `name` where it can be an identifier, else the nearest thing that can.
pub(crate) fn identifier(name: String) -> String {
    const RAW: &[&str] = &[
        "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do",
        "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in",
        "let", "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref",
        "return", "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe",
        "unsized", "use", "virtual", "where", "while", "yield",
    ];
    match name.as_str() {
        // These can't be raw identifiers.
        "self" | "super" | "crate" | "Self" => name + "_",
        // A view has this method already.
        "to_owned" => name + "_",
        keyword if RAW.contains(&keyword) => format!("r#{keyword}"),
        _ if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("_{name}")
        }
        _ => name,
    }
}

/// Splits at underscores and where a capital begins a word; all lower case.
fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (i, c) in chars.iter().enumerate() {
        let previous_lower = i > 0 && !chars[i - 1].is_ascii_uppercase() && chars[i - 1] != '_';
        let next_lower = chars.get(i + 1).is_some_and(char::is_ascii_lowercase);
        let inside_acronym = i > 0 && chars[i - 1].is_ascii_uppercase();
        let starts = c.is_ascii_uppercase() && (previous_lower || (inside_acronym && next_lower));
        if *c == '_' || starts {
            words.push(String::new());
        }
        if *c != '_' {
            words
                .last_mut()
                .expect("there is always one")
                .push(c.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_rusts() {
        for (name, snaked, cameled) in [
            ("ReserveRequest", "reserve_request", "ReserveRequest"),
            ("reserve_request", "reserve_request", "ReserveRequest"),
            ("RESERVE_REQUEST", "reserve_request", "ReserveRequest"),
            ("HTTPServer", "http_server", "HttpServer"),
            ("v2Beta1", "v2_beta1", "V2Beta1"),
            ("_x__y", "x_y", "XY"),
            ("type", "r#type", "Type"),
            ("self", "self_", "Self_"),
            ("_1", "_1", "_1"),
        ] {
            assert_eq!(
                (snake(name), camel(name)),
                (snaked.to_owned(), cameled.to_owned()),
                "{name}"
            );
        }
    }

    #[test]
    fn enum_values_lose_their_enums_name() {
        assert_eq!(enum_value("RoomKind", "ROOM_KIND_SUITE"), "SUITE");
        assert_eq!(enum_value("RoomKind", "SUITE"), "SUITE");
        assert_eq!(enum_value("RoomKind", "ROOM_KIND_2"), "ROOM_KIND_2");
    }

    #[test]
    fn paths_climb_to_the_common_module() {
        let path = TypePath {
            modules: vec!["a".into(), "b".into(), "outer".into()],
            name: "Inner".into(),
        };
        let at = |modules: &[&str]| {
            path.seen_from(
                &modules.iter().map(|m| (*m).to_owned()).collect::<Vec<_>>(),
                "",
            )
        };
        assert_eq!(at(&["a", "b", "outer"]), "Inner");
        assert_eq!(at(&["a", "b"]), "outer::Inner");
        assert_eq!(at(&["a", "b", "outer", "inner"]), "super::Inner");
        assert_eq!(at(&["a", "c"]), "super::b::outer::Inner");
        assert_eq!(at(&["x"]), "super::a::b::outer::Inner");
    }
}

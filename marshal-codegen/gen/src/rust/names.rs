//! Rust names for protobuf's, and paths from one generated module to another's types.
//!
//! ```text
//! package a.b { message Outer { message Inner {} } }      a/b: Outer, outer::Inner
//! ```
//!
//! A package is a module path that the user writes down; messages nested in a message live in a module that is named
//! after it. Paths between types climb with `super`, so that the user may put the whole tree anywhere.

use crate::model::TypeName;
use crate::names::words;

/// A type's place: its package's segments, the modules of the messages that contain it, its own name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypePath {
    /// Package segments and containing modules.
    modules: Vec<String>,
    /// Rust type name.
    name: String,
}

impl TypePath {
    pub(crate) fn of(name: &TypeName) -> TypePath {
        let outer = name.outer.iter().map(|message| snake(message));
        TypePath {
            modules: package_modules(&name.package)
                .into_iter()
                .chain(outer)
                .collect(),
            name: camel(&name.name),
        }
    }

    /// The Rust path to this type as seen from inside the module `from`.
    pub(crate) fn seen_from(&self, from: &[String]) -> String {
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
        path + &self.name
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

/// The constant for an enum's value.
pub(crate) fn constant(value: &str) -> String {
    match value {
        // Enums have this method.
        "name" => "name_".to_owned(),
        _ => identifier(value.to_owned()),
    }
}

/// `name` where it can be an identifier, else the nearest thing that can.
fn identifier(name: String) -> String {
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
        // A view has these methods already.
        "to_owned" | "unknown_fields" => name + "_",
        keyword if RAW.contains(&keyword) => format!("r#{keyword}"),
        _ if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("_{name}")
        }
        _ => name,
    }
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
    fn paths_climb_to_the_common_module() {
        let path = TypePath {
            modules: vec!["a".into(), "b".into(), "outer".into()],
            name: "Inner".into(),
        };
        let at = |modules: &[&str]| {
            path.seen_from(&modules.iter().map(|m| (*m).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(at(&["a", "b", "outer"]), "Inner");
        assert_eq!(at(&["a", "b"]), "outer::Inner");
        assert_eq!(at(&["a", "b", "outer", "inner"]), "super::Inner");
        assert_eq!(at(&["a", "c"]), "super::b::outer::Inner");
        assert_eq!(at(&["x"]), "super::a::b::outer::Inner");
    }
}

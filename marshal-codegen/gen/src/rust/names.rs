//! Rust names for protobuf names, and paths from one generated module to the types of another.
//!
//! ```text
//! package a.b { message Outer { message Inner {} } }      a/b: Outer, outer::Inner
//! ```
//!
//! A package is a module path that the user writes down; messages nested in a message live in a
//! module named after it. Paths between types climb with `super`, so the user may put the whole
//! tree anywhere.
//!
//! All names of a schema are assigned at once, scope by scope. Order of precedence in a module:
//! packages below it, its own declarations, oneofs, views, modules of nested types, modules of
//! services. Later names that collide get an underscore (see [`Scope`]).

use std::collections::{BTreeMap, BTreeSet};

use crate::error::GenError;
use crate::language::Language;
use crate::model::{Enum, Message, Model, Package, Service, TypeName};
use crate::names::{Scope, no_two, words};

/// The names of a schema's items.
pub(crate) struct Names {
    types: BTreeMap<TypeName, TypePath>,
    messages: BTreeMap<TypeName, MessageNames>,
    services: BTreeMap<TypeName, ServiceNames>,
}

/// The names of a message's items other than its struct.
#[derive(Default)]
pub(crate) struct MessageNames {
    /// The name of its view, in the module of the struct.
    pub(crate) view: String,
    /// The module of its inner items.
    pub(crate) module: String,
    /// Its oneofs, in that module.
    pub(crate) oneofs: Vec<OneofNames>,
}

/// The names of a oneof's items.
pub(crate) struct OneofNames {
    /// The name of its enum.
    pub(crate) name: String,
    pub(crate) view: String,
}

/// The names of a service's items, in the module of its package's messages.
pub(crate) struct ServiceNames {
    pub(crate) constant: String,
    pub(crate) client: String,
    pub(crate) server: String,
}

impl Names {
    pub(crate) fn new(model: &Model) -> Result<Names, GenError> {
        let mut names = Names {
            types: BTreeMap::new(),
            messages: BTreeMap::new(),
            services: BTreeMap::new(),
        };
        let packages = || model.packages.iter().map(|package| &*package.name);
        no_two(Language::Rust, packages(), |name| {
            format!("the module {}", package_modules(name).join("::"))
        })?;
        let modules: BTreeSet<Vec<String>> = packages().map(package_modules).collect();
        for package in &model.packages {
            let path = package_modules(&package.name);
            let below = modules.iter().filter(|other| other.starts_with(&path));
            let below = below.filter_map(|other| other.get(path.len()).map(|name| bare(name)));
            names.package(package, path.clone(), Scope::without(below));
        }
        Ok(names)
    }

    pub(crate) fn of_type(&self, name: &TypeName) -> &TypePath {
        &self.types[name]
    }

    pub(crate) fn of_message(&self, name: &TypeName) -> &MessageNames {
        &self.messages[name]
    }

    pub(crate) fn of_service(&self, name: &TypeName) -> &ServiceNames {
        &self.services[name]
    }

    fn package(&mut self, package: &Package, path: Vec<String>, mut scope: Scope) {
        let (messages, enums) = (&package.messages, &package.enums);
        self.level(messages, enums, None, &path, &mut scope);
        // Constants don't collide with modules and types, except tuple structs.
        let tuples = enums.iter().map(|e| self.types[&e.name].name.clone());
        let views = messages.iter().map(|m| self.messages[&m.name].view.clone());
        let mut values = Scope::without(tuples.chain(views));
        values.take("DESCRIPTOR_SET".to_owned());
        let services = &package.services;
        let all = |scope: &mut Scope, spell: &dyn Fn(&str) -> String| {
            scope.take_all(services.iter().map(|s| s.name.name.as_str()), spell)
        };
        let constants = all(&mut values, &|name| bare(&snake(name)).to_ascii_uppercase());
        let clients = all(&mut scope, &|name| {
            bare(&snake(name)).to_owned() + "_client"
        });
        let servers = all(&mut scope, &|name| {
            bare(&snake(name)).to_owned() + "_server"
        });
        let names = constants.into_iter().zip(clients).zip(servers);
        for (Service { name, .. }, ((constant, client), server)) in services.iter().zip(names) {
            let names = ServiceNames {
                constant,
                client,
                server,
            };
            self.services.insert(name.clone(), names);
        }
    }

    /// Names the declarations at one level, and below it; `outer` is the surrounding message.
    fn level(
        &mut self,
        messages: &[Message],
        enums: &[Enum],
        outer: Option<&Message>,
        path: &[String],
        scope: &mut Scope,
    ) {
        let declared = enums.iter().map(|e| &e.name);
        let declared = declared.chain(messages.iter().map(|m| &m.name));
        let declared: Vec<&TypeName> = declared.collect();
        let taken = scope.take_all(declared.iter().map(|d| d.name.as_str()), camel);
        for (declared, name) in declared.into_iter().zip(taken) {
            let modules = path.to_vec();
            let path = TypePath { modules, name };
            self.types.insert(declared.clone(), path);
        }
        if let Some(outer) = outer {
            let oneofs = outer.oneofs.iter().map(|o| o.name.as_str());
            let oneofs = scope.take_all(oneofs, camel);
            let names = |name: String| OneofNames {
                view: scope.take(format!("{name}View")),
                name,
            };
            self.messages.entry(outer.name.clone()).or_default().oneofs =
                oneofs.into_iter().map(names).collect();
        }
        for message in messages {
            let view = scope.take(self.types[&message.name].name.clone() + "View");
            self.messages.entry(message.name.clone()).or_default().view = view;
        }
        for message in messages.iter().filter(|m| m.has_module()) {
            let module = scope.take(snake(&message.name.name));
            let path = path.iter().cloned().chain([module.clone()]);
            let path: Vec<String> = path.collect();
            self.messages
                .entry(message.name.clone())
                .or_default()
                .module = module;
            let (messages, enums) = (&message.messages, &message.enums);
            self.level(messages, enums, Some(message), &path, &mut Scope::default());
        }
    }
}

/// A type's place: its package's segments, the modules of the surrounding messages, its own name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TypePath {
    /// Package segments and containing modules.
    modules: Vec<String>,
    /// Rust type name.
    pub(crate) name: String,
}

impl TypePath {
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
    identifier(value.to_owned())
}

/// An identifier without `r#`, to become a part of another one.
pub(crate) fn bare(identifier: &str) -> &str {
    identifier.trim_start_matches("r#")
}

/// `name` if it is a valid identifier, else the most similar valid one.
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
        // A single underscore isn't an identifier.
        "" | "_" => "__".to_owned(),
        _ if name.starts_with(|c: char| c.is_ascii_digit()) => format!("_{name}"),
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
            ("_", "__", "__"),
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

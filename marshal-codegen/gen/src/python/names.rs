//! Python names: modules, classes, attributes.
//!
//! A package `a.b` is the module `a_b_tollgate`; types declared inside a message are attributes of
//! its class.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Enum, Message, Model, Package, Service, TypeName};
use crate::names::Scope;

/// The names of a schema's classes. Order of precedence in a module and in a class: declarations, a
/// message's fields, views, generated items for services. Later names that collide get an
/// underscore (see [`Scope`]).
#[derive(Default)]
pub(crate) struct Names {
    /// Enums and messages.
    classes: BTreeMap<TypeName, Class>,
    services: BTreeMap<TypeName, ServiceNames>,
    /// By package: the names that its module defines.
    globals: BTreeMap<String, BTreeSet<String>>,
}

/// A class and, for a message, the sibling class of its view.
pub(crate) struct Class {
    /// The surrounding classes.
    outer: Vec<String>,
    pub(crate) name: String,
    pub(crate) view: String,
}

/// The names of a service's items in its module.
pub(crate) struct ServiceNames {
    pub(crate) table: String,
    pub(crate) stub: String,
    pub(crate) async_stub: String,
    pub(crate) servicer: String,
    pub(crate) async_servicer: String,
    pub(crate) adder: String,
}

impl ServiceNames {
    pub(crate) fn stub(&self, is_async: bool) -> &str {
        if is_async {
            &self.async_stub
        } else {
            &self.stub
        }
    }

    pub(crate) fn servicer(&self, is_async: bool) -> &str {
        if is_async {
            &self.async_servicer
        } else {
            &self.servicer
        }
    }
}

impl Class {
    /// The path of the class within its module.
    pub(crate) fn path(&self) -> String {
        self.beside(&self.name)
    }

    pub(crate) fn view_path(&self) -> String {
        self.beside(&self.view)
    }

    fn beside(&self, name: &str) -> String {
        let outer = self.outer.iter().map(String::as_str);
        outer.chain([name]).collect::<Vec<_>>().join(".")
    }
}

impl Names {
    pub(crate) fn new(model: &Model) -> Names {
        let mut names = Names::default();
        let mut aliases = OF_MODULES.map(str::to_owned).to_vec();
        aliases.extend(model.packages.iter().map(|p| module_alias(&p.name)));
        for package in &model.packages {
            names.package(package, &aliases);
        }
        names
    }

    pub(crate) fn class(&self, name: &TypeName) -> &Class {
        &self.classes[name]
    }

    pub(crate) fn service(&self, name: &TypeName) -> &ServiceNames {
        &self.services[name]
    }

    /// The names that a package's module defines.
    pub(crate) fn globals(&self, package: &str) -> &BTreeSet<String> {
        &self.globals[package]
    }

    fn package(&mut self, package: &Package, aliases: &[String]) {
        let mut scope = Scope::without(aliases.iter().cloned());
        // From `__future__`.
        scope.take("annotations".to_owned());
        let (messages, enums) = (&package.messages, &package.enums);
        self.level(messages, enums, None, &[], aliases, &mut scope);
        // Parameters in whose scope a service's table is named.
        for parameter in ["channel", "self", "server", "servicer"] {
            scope.take(parameter.to_owned());
        }
        for Service { name, .. } in &package.services {
            let own = not_a_keyword(&name.name);
            let mut take = |name: String| scope.take(name);
            let service = ServiceNames {
                table: take(own.clone()),
                stub: take(format!("{own}Stub")),
                async_stub: take(format!("{own}AsyncStub")),
                servicer: take(format!("{own}Servicer")),
                async_servicer: take(format!("{own}AsyncServicer")),
                adder: take(format!("add_{own}Servicer_to_server")),
            };
            self.services.insert(name.clone(), service);
        }
        self.globals
            .insert(package.name.clone(), scope.into_taken());
    }

    /// Names the declarations in a module, or in the class of a message.
    fn level(
        &mut self,
        messages: &[Message],
        enums: &[Enum],
        within: Option<&Message>,
        outer: &[String],
        aliases: &[String],
        scope: &mut Scope,
    ) {
        let declared = enums.iter().map(|e| &e.name);
        let declared = declared.chain(messages.iter().map(|m| &m.name));
        let declared: Vec<&TypeName> = declared.collect();
        let taken = scope.take_all(declared.iter().map(|d| d.name.as_str()), not_a_keyword);
        if let Some(message) = within {
            for attribute in attributes(message, taken.iter().cloned()) {
                scope.take(attribute);
            }
        }
        for (declared, name) in declared.into_iter().zip(taken) {
            let class = Class {
                outer: outer.to_vec(),
                name,
                view: String::new(),
            };
            self.classes.insert(declared.clone(), class);
        }
        for message in messages {
            let class = self.classes.get_mut(&message.name);
            let class = class.expect("every message has just been given a name");
            class.view = scope.take(class.name.clone() + "View");
        }
        for message in messages {
            let name = self.classes[&message.name].name.clone();
            let outer: Vec<String> = outer.iter().cloned().chain([name]).collect();
            let taken = aliases
                .iter()
                .map(String::as_str)
                .chain(OF_MESSAGES.iter().copied());
            let mut scope = Scope::without(taken);
            let (messages, enums) = (&message.messages, &message.enums);
            self.level(messages, enums, Some(message), &outer, aliases, &mut scope);
        }
    }
}

const KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

/// Names that messages and views have in addition to their fields, or need while their bodies are
/// executed.
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
    "_LAYOUT",
    "_VIEW",
    "_OWNED",
];

/// Names that modules have in addition to their classes.
const OF_MODULES: [&str; 7] = [
    "DESCRIPTOR_SET",
    "_aio",
    "_builtins",
    "_dataclasses",
    "_tb",
    "_tollgate",
    "_typing",
];

/// Names that stubs and servicers have in addition to their methods.
const OF_SERVICES: &[&str] = &["self"];

/// Names that members of enums can't have.
const OF_ENUMS: &[&str] = &[
    "mro",
    "name",
    "value",
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "from_bytes",
    "imag",
    "is_integer",
    "numerator",
    "real",
    "to_bytes",
];

pub(crate) fn module_name(package: &str) -> String {
    match package {
        "" => "_tollgate".to_owned(),
        _ => package.replace('.', "_") + "_tollgate",
    }
}

/// Other modules' name for a package's module. Names with two leading underscores would be private
/// to a class, so this name ends with the module's leading underscores.
pub(crate) fn module_alias(package: &str) -> String {
    let module = module_name(package);
    let bare = module.trim_start_matches('_');
    format!("_{bare}{}", "_".repeat(module.len() - bare.len()))
}

/// The name of an enum's member. Python reserves names between underscores.
pub(crate) fn enum_member(value: &str) -> String {
    if value.starts_with('_') {
        format!("V{value}")
    } else {
        value.to_owned()
    }
}

/// The name of a class: of an enum, a message or a service.
fn not_a_keyword(name: &str) -> String {
    // A name with two leading underscores is private to a class; the view or a twin of a name with
    // one would have two. The last names are those that modules give to classes themselves.
    let is_taken = KEYWORDS.contains(&name)
        || name == "_"
        || name.starts_with("__")
        || name.starts_with("_type_");
    if !is_taken {
        return name.to_owned();
    }
    let bare = name.trim_start_matches('_');
    match bare.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => format!("{bare}_"),
        false => format!("T{name}"),
    }
}

/// The attributes of a message's fields, by number; `inner` are the classes inside it.
pub(crate) fn attributes(message: &Message, inner: impl Iterator<Item = String>) -> Vec<String> {
    let mut taken = Attributes::without(OF_MESSAGES);
    taken.taken.extend(inner);
    message.fields.iter().map(|f| taken.take(&f.name)).collect()
}

/// The names of one class's attributes, each once.
pub(crate) struct Attributes {
    taken: BTreeSet<String>,
}

impl Attributes {
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

    /// Takes the name, or a variant of it: fields can't have names with a leading underscore, and
    /// taken names get an underscore at their end.
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
        let mut names = Attributes::without(OF_MESSAGES);
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
    fn no_name_is_private_to_a_class() {
        for (name, expected) in [
            ("M", "M"),
            ("None", "None_"),
            ("_M", "_M"),
            ("__M", "M_"),
            ("__1", "T__1"),
            ("_", "T_"),
            ("__", "T__"),
            ("_type_M", "type_M_"),
        ] {
            assert_eq!(not_a_keyword(name), expected);
        }
        for (package, expected) in [
            ("", "_tollgate_"),
            ("a.b", "_a_b_tollgate"),
            ("_a", "_a_tollgate_"),
            ("__", "_tollgate___"),
        ] {
            assert_eq!(module_alias(package), expected);
        }
    }

    #[test]
    fn classes_are_nested_as_messages_are() {
        let class = Class {
            outer: vec!["Outer".into()],
            name: not_a_keyword("None"),
            view: "None_View".into(),
        };
        assert_eq!(module_name("a.b"), "a_b_tollgate");
        assert_eq!(
            (&*class.path(), &*class.view_path()),
            ("Outer.None_", "Outer.None_View")
        );
    }
}

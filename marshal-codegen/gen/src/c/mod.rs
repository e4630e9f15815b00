//! Stubs for C: one header per package, for C11 and C++17.
//!
//! ```text
//! includes tollgate_block.h
//! types      fixed parts (asserted), views, values, and the names of other packages' types
//! includes   the other packages, which may include this one in turn
//! functions  readers, writers
//! services
//! ```
//!
//! A package with services has a second header with functions to call and serve them. It includes
//! this header and the C library's.
//!
//! Types come before the inclusion of other packages, because packages may use each other in a
//! circle: types only need the names of foreign types, functions need their definitions.

mod enums;
mod message;
mod names;
mod rpc;
mod service;
mod slot;

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use crate::model::{Enum, Message, Model, Package, TypeName};
use crate::output::Files;
use crate::text::Text;
use message::Struct;
use names::Names;

/// The file that all headers include.
const RUNTIME: (&str, &str) = ("tollgate_block.h", include_str!("tollgate_block.h"));

pub(crate) fn generate(model: &Model) -> Files {
    let names = give_names(model);
    let mut files = BTreeMap::from([(RUNTIME.0.to_owned(), RUNTIME.1.to_owned())]);
    for package in model.wanted() {
        let mut header = Header {
            package,
            names: &names,
            text: Text::default(),
        };
        header.emit(model);
        files.insert(file_name(&package.name), header.text.finish());
        if !package.services.is_empty() {
            let name = header_name(&package.name, "tollgate_service");
            files.insert(name, services_header(package, &names));
        }
    }
    files
}

/// Names every item of the schema. A trial run of each item's writer, on its own, finds the names
/// that the item defines.
fn give_names(model: &Model) -> Names {
    let (mut names, alone) = (Names::new(), Names::default());
    let called: BTreeSet<&TypeName> = (model.packages.iter().flat_map(|p| &p.services))
        .flat_map(|service| &service.methods)
        .flat_map(|method| [&method.input, &method.output])
        .collect();
    for package in &model.packages {
        names.take_guard(guard(&package.name, "TOLLGATE_H"));
        names.take_guard(guard(&package.name, "TOLLGATE_SERVICE_H"));
        if !package.services.is_empty() {
            names.give_descriptor_set(&package.name);
        }
    }
    for package in &model.packages {
        let nowhere = &mut Text::default();
        let mut items: Vec<(&TypeName, Vec<String>)> = Vec::new();
        for declared in enums(package) {
            let defined = enums::emit_enum(declared, &alone, nowhere);
            items.push((&declared.name, defined));
        }
        for message in package.all_messages() {
            for one in Struct::of(message, &alone) {
                let mut defined = one.emit_types(nowhere);
                defined.extend(one.emit_functions(nowhere));
                if called.contains(one.declared) {
                    let name = alone.of(one.declared);
                    defined.extend(rpc::OF_MESSAGE.map(|suffix| name.clone() + suffix));
                }
                items.push((one.declared, defined));
            }
        }
        for service in &package.services {
            let defined = service::emit(service, &alone, "", nowhere);
            items.push((&service.name, defined));
        }
        items.sort_by_key(|(name, _)| name.outer.len());
        for (name, defined) in items {
            names.give(name, &defined);
        }
    }
    names
}

/// One header under construction.
struct Header<'a> {
    package: &'a Package,
    names: &'a Names,
    text: Text,
}

impl Header<'_> {
    /// The comment at the top, and the guard's name.
    fn head(&mut self, kind: &str) {
        let guard = guard(&self.package.name, kind);
        let head = self.package.head();
        self.text.line(format!("/* {}", head[0]));
        for line in &head[1..] {
            self.text.line(format!(" * {line}"));
        }
        self.text.line(" */");
        self.text.line(format!("#ifndef {guard}"));
        self.text.line(format!("#define {guard}"));
        self.text.line("");
    }

    fn emit(&mut self, model: &Model) {
        let messages = self.package.all_messages();
        let names = self.names;
        let structs = messages.iter().flat_map(|m| Struct::of(m, names));
        let structs: Vec<Struct<'_>> = structs.collect();
        self.head("TOLLGATE_H");
        self.text.line("#include \"tollgate_block.h\"");
        self.types(&structs);
        for package in &self.package.uses {
            self.text
                .line(format!("#include \"{}\"", file_name(package)));
        }
        for one in &structs {
            one.emit_functions(&mut self.text);
        }
        if !self.package.services.is_empty() {
            self.services(model);
        }
        self.text.lines(["", "#endif"]);
    }

    fn types(&mut self, structs: &[Struct<'_>]) {
        for declared in enums(self.package) {
            enums::emit_enum(declared, self.names, &mut self.text);
        }
        self.text.line("");
        for line in message::forward(structs) {
            self.text.line(line);
        }
        for one in structs {
            one.emit_types(&mut self.text);
        }
        self.text.line("");
        for one in structs {
            self.text.line(format!("{};", one.put_signature()));
        }
        self.text.line("");
    }

    fn services(&mut self, model: &Model) {
        let set = self.names.descriptor_set(&self.package.name);
        self.text.line("");
        self.text
            .line("/* The compiled schema, a serialized google.protobuf.FileDescriptorSet. */");
        self.text.line(format!("static const uint8_t {set}[] = {{"));
        self.text.bytes(&model.descriptor_set);
        self.text.line("};");
        for service in &self.package.services {
            service::emit(service, self.names, set, &mut self.text);
        }
    }
}

/// The header of a package's calls. Other such headers may have functions for the same messages.
fn services_header(package: &Package, names: &Names) -> String {
    let mut header = Header {
        package,
        names,
        text: Text::default(),
    };
    header.head("TOLLGATE_SERVICE_H");
    let text = &mut header.text;
    text.line("#include <tollgate.h>");
    text.line(format!("#include \"{}\"", file_name(&package.name)));
    let methods = package.services.iter().flat_map(|service| &service.methods);
    let messages = methods.flat_map(|method| [&method.input, &method.output]);
    let messages: BTreeSet<String> = messages.map(|name| names.of(name)).collect();
    for message in messages {
        rpc::emit_message(&message, text);
    }
    for service in &package.services {
        rpc::emit(service, names, text);
    }
    text.lines(["", "#endif"]);
    header.text.finish()
}

/// The macro that guards a header. A hash distinguishes packages that are equal in capitals: if two
/// headers had the same guard, the second would be silently skipped.
fn guard(package: &str, kind: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.';
    let mut guard = package.replace('.', "_").to_ascii_uppercase() + "_";
    if !package.chars().all(is_plain) || package.is_empty() {
        let hash = Sha256::digest(package.as_bytes());
        guard = format!("P{guard}");
        guard += &format!(
            "{:02x}{:02x}{:02x}{:02x}_",
            hash[0], hash[1], hash[2], hash[3]
        );
    }
    guard + kind
}

/// All enums of a package, including those inside messages.
fn enums(package: &Package) -> impl Iterator<Item = &Enum> {
    let inner = package
        .all_messages()
        .into_iter()
        .flat_map(|m: &Message| &m.enums);
    package.enums.iter().chain(inner)
}

pub(crate) fn file_name(package: &str) -> String {
    header_name(package, "tollgate")
}

fn header_name(package: &str, kind: &str) -> String {
    let package = if package.is_empty() { "_" } else { package };
    format!("{package}.{kind}.h")
}

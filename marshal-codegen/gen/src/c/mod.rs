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
//! A package with services has a second header, which includes this one and the C library's, with what calls and serves.
//!
//! Types come before the inclusion of other packages, because packages may use each other in a circle: types need no
//! more than the names of foreign ones, functions need them whole.

mod message;
mod names;
mod rpc;
mod service;

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Enum, Message, Model, Package};
use crate::text::Text;
use crate::{Files, GenError};
use message::Struct;
use names::{ident, screaming};

/// The file that all headers include.
const RUNTIME: (&str, &str) = ("tollgate_block.h", include_str!("tollgate_block.h"));

pub(crate) fn generate(model: &Model) -> Result<Files, GenError> {
    let mut files = BTreeMap::from([(RUNTIME.0.to_owned(), RUNTIME.1.to_owned())]);
    let mut taken = BTreeSet::new();
    let mut called = BTreeSet::new();
    for package in &model.packages {
        let mut header = Header {
            package,
            text: Text::default(),
            taken: &mut taken,
        };
        header.emit(model)?;
        files.insert(file_name(&package.name), header.text.finish());
        if !package.services.is_empty() {
            let name = file_name(&package.name).replace(".tollgate.h", ".tollgate_service.h");
            files.insert(name, services_header(package, &mut taken, &mut called)?);
        }
    }
    Ok(files)
}

/// One header under construction.
struct Header<'a> {
    package: &'a Package,
    text: Text,
    /// What the headers define; C has one name space.
    taken: &'a mut BTreeSet<String>,
}

impl Header<'_> {
    fn emit(&mut self, model: &Model) -> Result<(), GenError> {
        let messages = self.package.all_messages();
        let structs: Vec<Struct<'_>> = messages.iter().flat_map(|m| Struct::of(m)).collect();
        let guard = screaming(&self.package.name) + "TOLLGATE_H";
        let head = self.package.head();
        self.text.line(format!("/* {}", head[0]));
        for line in &head[1..] {
            self.text.line(format!(" * {line}"));
        }
        self.text.line(" */");
        self.text.line(format!("#ifndef {guard}"));
        self.text.line(format!("#define {guard}"));
        self.text.lines(["", "#include \"tollgate_block.h\""]);
        self.types(&structs)?;
        for package in &self.package.uses {
            self.text
                .line(format!("#include \"{}\"", file_name(package)));
        }
        for one in &structs {
            let defined = one.emit_functions(&mut self.text);
            self.take_all(defined)?;
        }
        if !self.package.services.is_empty() {
            self.services(model)?;
        }
        self.text.lines(["", "#endif"]);
        Ok(())
    }

    fn types(&mut self, structs: &[Struct<'_>]) -> Result<(), GenError> {
        for declared in enums(self.package) {
            let defined = message::emit_enum(declared, &mut self.text);
            self.take_all(defined)?;
        }
        self.text.line("");
        for line in message::forward(structs) {
            self.text.line(line);
        }
        for one in structs {
            let defined = one.emit_types(&mut self.text);
            self.take_all(defined)?;
        }
        self.text.line("");
        for one in structs {
            self.text.line(format!("{};", one.put_signature()));
        }
        self.text.line("");
        Ok(())
    }

    fn services(&mut self, model: &Model) -> Result<(), GenError> {
        let set = ident(&self.package.name, &[], "descriptor_set");
        self.take_all(vec![set.clone()])?;
        self.text.line("");
        self.text
            .line("/* The compiled schema, a serialized google.protobuf.FileDescriptorSet. */");
        self.text.line(format!("static const uint8_t {set}[] = {{"));
        self.text.bytes(&model.descriptor_set);
        self.text.line("};");
        for service in &self.package.services {
            let defined = service::emit(service, &set, &mut self.text);
            self.take_all(defined)?;
        }
        Ok(())
    }

    /// Notes what was defined; each name may be defined once.
    fn take_all(&mut self, names: Vec<String>) -> Result<(), GenError> {
        for name in names {
            if !self.taken.insert(name.clone()) {
                return Err(GenError::NameClash {
                    package: self.package.name.clone(),
                    language: "C",
                    name,
                });
            }
        }
        Ok(())
    }
}

/// The header of a package's calls. `called` has the messages that other headers of this kind have, too.
fn services_header(
    package: &Package,
    taken: &mut BTreeSet<String>,
    called: &mut BTreeSet<String>,
) -> Result<String, GenError> {
    let guard = screaming(&package.name) + "TOLLGATE_SERVICE_H";
    let mut header = Header {
        package,
        text: Text::default(),
        taken,
    };
    let text = &mut header.text;
    let head = package.head();
    text.line(format!("/* {}", head[0]));
    for line in &head[1..] {
        text.line(format!(" * {line}"));
    }
    text.line(" */");
    text.line(format!("#ifndef {guard}"));
    text.line(format!("#define {guard}"));
    text.line("");
    text.line("#include <tollgate.h>");
    text.line(format!("#include \"{}\"", file_name(&package.name)));
    let methods = package.services.iter().flat_map(|service| &service.methods);
    let messages = methods.flat_map(|method| [&method.input, &method.output]);
    let messages: BTreeSet<String> = messages.map(names::type_name).collect();
    for message in messages {
        let defined = rpc::emit_message(&message, &mut header.text);
        if called.insert(message) {
            header.take_all(defined)?;
        }
    }
    for service in &package.services {
        let defined = rpc::emit(service, &mut header.text);
        header.take_all(defined)?;
    }
    header.text.lines(["", "#endif"]);
    Ok(header.text.finish())
}

/// All enums of a package, those inside messages, too.
fn enums(package: &Package) -> impl Iterator<Item = &Enum> {
    let inner = package
        .all_messages()
        .into_iter()
        .flat_map(|m: &Message| &m.enums);
    package.enums.iter().chain(inner)
}

fn file_name(package: &str) -> String {
    match package {
        "" => "_.tollgate.h".to_owned(),
        _ => format!("{package}.tollgate.h"),
    }
}

//! Stubs for Rust: one file per package, for `include!`.

mod message;
mod names;
mod service;

use crate::error::GenError;
use crate::model::{Model, Package};
use crate::output::Files;
use crate::text::Text;
pub(crate) use names::package_modules as modules;

use names::{Names, package_modules};

pub(crate) fn generate(model: &Model) -> Result<Files, GenError> {
    let names = Names::new(model)?;
    let files = model.wanted().map(|package| {
        let code = code(package, &names, &model.descriptor_set);
        (file_name(&package.name), code)
    });
    Ok(files.collect())
}

fn code(package: &Package, names: &Names, descriptor_set: &[u8]) -> String {
    let mut text = Text::default();
    for line in package.head() {
        text.line(format!("// {line}"));
    }
    let module = message::Module {
        names,
        path: package_modules(&package.name),
    };
    module.items(&package.messages, &package.enums, &mut text);
    for service in &package.services {
        service::emit(service, names, &module.path, &mut text);
    }
    if !package.services.is_empty() {
        service::emit_descriptor_set(descriptor_set, &mut text);
    }
    text.finish()
}

pub(crate) fn file_name(package: &str) -> String {
    if package.is_empty() {
        "_.rs".to_owned()
    } else {
        format!("{package}.rs")
    }
}

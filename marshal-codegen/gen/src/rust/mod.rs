//! Stubs for Rust: one file per package, for `include!`.

mod message;
mod names;
mod service;

use std::collections::BTreeMap;

use crate::model::{Model, Package};
use crate::text::Text;
use crate::{Files, GenError};
use names::package_modules;

pub(crate) fn generate(model: &Model) -> Result<Files, GenError> {
    let mut files = BTreeMap::new();
    for package in &model.packages {
        files.insert(file_name(&package.name), code(package, model)?);
    }
    Ok(files)
}

fn code(package: &Package, model: &Model) -> Result<String, GenError> {
    let mut text = Text::default();
    for line in package.head() {
        text.line(format!("// {line}"));
    }
    let mut module = message::Module::new(&package.name, package_modules(&package.name));
    module.items(&package.messages, &package.enums, &mut text)?;
    for service in &package.services {
        service::emit(service, &package_modules(&package.name), &mut text);
    }
    if !package.services.is_empty() {
        service::emit_descriptor_set(&model.descriptor_set, &mut text);
    }
    Ok(text.finish())
}

fn file_name(package: &str) -> String {
    if package.is_empty() {
        "_.rs".to_owned()
    } else {
        format!("{package}.rs")
    }
}

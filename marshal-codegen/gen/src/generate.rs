//! Turns a schema into the files of one language.

use std::collections::BTreeSet;

use tollgate_schema::Schema;

use crate::error::GenError;
use crate::language::Language;
use crate::model::Model;
use crate::names::no_two;
use crate::output::Files;
use crate::{c, python, rust};

impl Language {
    /// Generates the stubs of every package of `schema`, and the runtime file that they need.
    pub fn generate(self, schema: &Schema) -> Result<Files, GenError> {
        self.write(&Model::new(schema)?)
    }

    /// Generates the stubs of some packages only, if the others' stubs exist elsewhere.
    pub fn generate_packages(
        self,
        schema: &Schema,
        packages: &BTreeSet<String>,
    ) -> Result<Files, GenError> {
        let mut model = Model::new(schema)?;
        model.only = Some(packages.clone());
        self.write(&model)
    }

    pub(crate) fn write(self, model: &Model) -> Result<Files, GenError> {
        let packages = || model.packages.iter().map(|package| &*package.name);
        let file: fn(&str) -> String = match self {
            Language::Rust => rust::file_name,
            Language::C => c::file_name,
            Language::Python => python::file_name,
        };
        no_two(self, packages(), |name| format!("the file {}", file(name)))?;
        match self {
            Language::Rust => rust::generate(model),
            Language::C => Ok(c::generate(model)),
            Language::Python => Ok(python::generate(model)),
        }
    }
}

//! Rust code for `.proto` files, for use from `build.rs`. No protoc is needed.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), tollgate_gen::GenError> {
//!     tollgate_gen::configure().compile_protos(&["proto/hotel.proto"], &["proto"])
//! }
//! ```
//!
//! Then `pub mod hotel { tollgate::include_proto!("hotel"); }`. There is one file per package, also for packages that are
//! imported; the modules that include them have to be nested as the packages are (package `a.b` in `mod a { mod b {} }`).
//!
//! | protobuf | owned | view |
//! |---|---|---|
//! | message `M` | `struct M` with public fields | `MView<'a>`: a getter per field |
//! | scalar; string; bytes | the scalar; `String`; `Vec<u8>` | the scalar; `&str`; `&[u8]` |
//! | `optional` | `Option` | `Option` |
//! | message field | `Option`, boxed where the type is recursive | `Option` of the view |
//! | repeated, map | `Vec`, `BTreeMap` | `List`, `Map` |
//! | oneof | `Option` of an enum in the message's module | `Option` of a view enum |
//! | enum | newtype over `i32` with constants: unknown values survive | the same |
//! | service | `service_client::ServiceClient`, `service_server::{Service, ServiceServer}` | |
//!
//! The generated text names everything by absolute path, contains no `unsafe`, and depends on the `tollgate` crate only.
//! The offsets come from the schema crate's layout; that both agree is tested by comparing blocks.
//!
//! Absent: streaming methods. They are laid out, but get no stub yet.

#![forbid(unsafe_code)]

mod message;
mod names;
mod service;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tollgate_schema::prost_reflect::{EnumDescriptor, MessageDescriptor, ServiceDescriptor};
use tollgate_schema::{Schema, SchemaError};

use names::package_modules;
use text::Text;

/// Why no code was generated.
#[derive(Debug, thiserror::Error)]
pub enum GenError {
    /// The files don't compile, or use what blocks can't hold.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Two types of one package get the same Rust name.
    #[error(
        "two types of package `{package}` would both be called `{name}` in Rust; rename one of them"
    )]
    NameClash {
        /// The protobuf package.
        package: String,
        /// The Rust name, with its modules.
        name: String,
    },
    /// The generated file can't be written.
    #[error("can't write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// There is no directory to write to.
    #[error("OUT_DIR isn't set: run from build.rs, or name a directory with out_dir()")]
    NoOutDir,
}

/// Options of the generator; begin with [`configure`].
#[derive(Clone, Debug, Default)]
pub struct Config {
    out_dir: Option<PathBuf>,
}

/// The defaults: files go to cargo's `OUT_DIR`.
pub fn configure() -> Config {
    Config::default()
}

impl Config {
    /// Writes the files to `dir` instead of `OUT_DIR`.
    pub fn out_dir(mut self, dir: impl Into<PathBuf>) -> Config {
        self.out_dir = Some(dir.into());
        self
    }

    /// Compiles `files` (imports are looked up in `includes`) and writes `<package>.rs` for each package; `_.rs` for files
    /// without one. Tells cargo to run again when one of the files changes.
    pub fn compile_protos(
        self,
        files: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), GenError> {
        let out_dir = self
            .out_dir
            .or_else(|| std::env::var_os("OUT_DIR").map(PathBuf::from))
            .ok_or(GenError::NoOutDir)?;
        for path in files
            .iter()
            .map(AsRef::as_ref)
            .chain(includes.iter().map(AsRef::as_ref))
        {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        for (package, code) in generate(&Schema::compile_proto(files, includes)?)? {
            let path = out_dir.join(file_name(&package));
            std::fs::write(&path, code).map_err(|error| GenError::Write { path, error })?;
        }
        Ok(())
    }
}

/// The code of each package of `schema`, by package name.
pub fn generate(schema: &Schema) -> Result<BTreeMap<String, String>, GenError> {
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    for file in schema.pool()?.files() {
        let package = packages.entry(file.package_name().to_owned()).or_default();
        package.messages.extend(file.messages());
        package.enums.extend(file.enums());
        package.services.extend(file.services());
    }
    packages
        .into_iter()
        .map(|(name, package)| Ok((name.clone(), package.generate(&name, schema)?)))
        .collect()
}

/// The top-level items of one package, possibly of several files.
#[derive(Default)]
struct Package {
    messages: Vec<MessageDescriptor>,
    enums: Vec<EnumDescriptor>,
    services: Vec<ServiceDescriptor>,
}

impl Package {
    fn generate(&self, name: &str, schema: &Schema) -> Result<String, GenError> {
        let mut text = Text::default();
        text.line(format!(
            "// Generated by tollgate-gen from package `{name}`. Do not edit."
        ));
        let mut module = message::Module::new(schema, name, package_modules(name));
        module.items(&self.messages, &self.enums, &mut text)?;
        for service in &self.services {
            service::emit(service, &package_modules(name), &mut text);
        }
        if !self.services.is_empty() {
            service::emit_descriptor_set(schema.descriptor_set(), &mut text);
        }
        Ok(text.finish())
    }
}

fn file_name(package: &str) -> String {
    if package.is_empty() {
        "_.rs".to_owned()
    } else {
        format!("{package}.rs")
    }
}

//! Stubs for `.proto` files in Rust, C and Python, from the one layout that the daemon checks blocks against.
//!
//! From `build.rs`, with no protoc:
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
//!
//! The same code is behind `tollgate gen` and the protoc plugin `protoc-gen-tollgate` (see [`plugin`]).
//!
#![doc = include_str!("../STUBS.md")]
#![forbid(unsafe_code)]

mod c;
mod model;
mod names;
mod output;
pub mod plugin;
mod python;
mod rust;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tollgate_schema::{Schema, SchemaError};

use model::Model;
pub use output::{stale, write};

/// Generated files: name, without a directory, and text.
pub type Files = BTreeMap<String, String>;

/// Why no code was generated.
#[derive(Debug, thiserror::Error)]
pub enum GenError {
    /// The files don't compile, or use what blocks can't hold.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Two packages get the same file or module.
    #[error(
        "{} and {} would both be {name} in {language}; rename one of them, or generate each from its own files into a directory of its \
         own",
        package(first),
        package(second)
    )]
    NameClash {
        /// The language.
        language: &'static str,
        /// The name in that language.
        name: String,
        /// One package.
        first: String,
        /// The other package.
        second: String,
    },
    /// A path that was to name `bytes` fields names none.
    #[error(
        "no `bytes` field is below {path:?}; it is `.` for all of them, or `.package.Message.field`, or a beginning of that"
    )]
    NoBytes {
        /// The path.
        path: String,
    },
    /// There are no stubs in this language.
    #[error("there are no stubs in {name:?}; the languages are rust, c and python")]
    UnknownLanguage {
        /// What was asked for.
        name: String,
    },
    /// A generated file can't be written.
    #[error("can't write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file can't be compared with what would be generated.
    #[error("can't read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// There is no directory to write to.
    #[error("OUT_DIR isn't set: run from build.rs, or name a directory with out_dir()")]
    NoOutDir,
}

/// A package in a sentence.
fn package(name: &str) -> String {
    match name {
        "" => "the package without a name".to_owned(),
        name => format!("package `{name}`"),
    }
}

/// A language that stubs are written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    /// `<package>.rs`, for `include!`, on top of the `tollgate` crate.
    #[default]
    Rust,
    /// `<package>.tollgate.h` for C11 and C++17, and `tollgate_block.h`, which they include.
    C,
    /// `<package>_tollgate.py` for Python 3.9, and `tollgate_block.py`, which they import.
    Python,
}

impl Language {
    /// All of them.
    pub const ALL: [Language; 3] = [Language::Rust, Language::C, Language::Python];

    /// The name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::C => "c",
            Language::Python => "python",
        }
    }

    /// The stubs of every package of `schema`, and what they need beside them.
    pub fn generate(self, schema: &Schema) -> Result<Files, GenError> {
        self.write(&Model::new(schema)?)
    }

    /// The stubs of some packages only, for when others' are elsewhere.
    pub fn generate_packages(
        self,
        schema: &Schema,
        packages: &BTreeSet<String>,
    ) -> Result<Files, GenError> {
        let mut model = Model::new(schema)?;
        model.only = Some(packages.clone());
        self.write(&model)
    }

    fn write(self, model: &Model) -> Result<Files, GenError> {
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

/// Refuses two packages that would be called the same in a language.
fn no_two<'p>(
    language: Language,
    packages: impl Iterator<Item = &'p str>,
    called: impl Fn(&str) -> String,
) -> Result<(), GenError> {
    let mut met: BTreeMap<String, &str> = BTreeMap::new();
    for second in packages {
        let name = called(second);
        if let Some(first) = met.insert(name.clone(), second) {
            return Err(GenError::NameClash {
                language: match language {
                    Language::Rust => "Rust",
                    Language::C => "C",
                    Language::Python => "Python",
                },
                name,
                first: first.to_owned(),
                second: second.to_owned(),
            });
        }
    }
    Ok(())
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Language {
    type Err = GenError;

    fn from_str(name: &str) -> Result<Language, GenError> {
        let known = Language::ALL.into_iter().find(|l| l.name() == name);
        known.ok_or_else(|| GenError::UnknownLanguage {
            name: name.to_owned(),
        })
    }
}

/// The modules, outermost first, in which the Rust file of a package is to be included: those that paths in it climb through.
pub fn rust_modules(package: &str) -> Vec<String> {
    rust::modules(package)
}

/// Options of the generator; begin with [`configure`].
#[derive(Clone, Debug, Default)]
pub struct Config {
    out_dir: Option<PathBuf>,
    language: Language,
    bytes: Vec<String>,
}

/// The defaults: Rust, and files go to cargo's `OUT_DIR`.
pub fn configure() -> Config {
    Config::default()
}

impl Config {
    /// Writes the files to `dir` instead of `OUT_DIR`.
    pub fn out_dir(mut self, dir: impl Into<PathBuf>) -> Config {
        self.out_dir = Some(dir.into());
        self
    }

    /// Writes stubs in another language, such as C for code that a `build.rs` compiles.
    pub fn language(mut self, language: Language) -> Config {
        self.language = language;
        self
    }

    /// Makes `bytes` fields below `path` a `tollgate::Bytes` in Rust, instead of a `Vec<u8>`: clones share it, and one from
    /// `Session::buffer` is sent without a copy. `.` is every field, `.hotel.EchoMessage.payload` that one, and what such a path begins
    /// with everything below. May be called more than once.
    pub fn bytes(mut self, path: impl Into<String>) -> Config {
        self.bytes.push(path.into());
        self
    }

    /// Compiles `files` (imports are looked up in `includes`) and writes the files of each package; a package without a
    /// name is called `_`. Tells cargo to run again when one of the files changes.
    pub fn compile_protos(
        self,
        files: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), GenError> {
        let out_dir = self
            .out_dir
            .or_else(|| std::env::var_os("OUT_DIR").map(PathBuf::from))
            .ok_or(GenError::NoOutDir)?;
        let files_and_includes = files.iter().map(AsRef::as_ref);
        let files_and_includes = files_and_includes.chain(includes.iter().map(AsRef::as_ref));
        // A file may be named as seen from an include, and is watched with that. What isn't there at all is, to cargo,
        // something that has changed, in every build.
        for path in files_and_includes.filter(|path| path.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        let schema = Schema::compile_proto(files, includes)?;
        let mut model = Model::new(&schema)?;
        for path in &self.bytes {
            model.share_bytes(path)?;
        }
        write(&self.language.write(&model)?, &out_dir)
    }
}

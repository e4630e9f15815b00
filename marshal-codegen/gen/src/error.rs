//! Reasons why no code was generated.

use std::path::PathBuf;

use tollgate_schema::SchemaError;

/// The reason why no code was generated.
#[derive(Debug, thiserror::Error)]
pub enum GenError {
    /// The files don't compile, or use features that blocks can't hold.
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
    /// A path for `bytes` fields matches none.
    #[error(
        "no `bytes` field is below {path:?}; use `.` for all fields, `.package.Message.field`, or its beginning"
    )]
    NoBytes {
        /// The path.
        path: String,
    },
    /// There is no stub generator for this language.
    #[error("{name:?} isn't a language of stubs; use rust, c or python")]
    UnknownLanguage {
        /// The requested name.
        name: String,
    },
    /// A generated file can't be written.
    #[error("can't write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A file can't be read to compare it with the generated text.
    #[error("can't read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// There is no directory to write to.
    #[error("OUT_DIR isn't set: run from build.rs, or name a directory with out_dir()")]
    NoOutDir,
}

/// A package's name in a sentence.
fn package(name: &str) -> String {
    match name {
        "" => "the package without a name".to_owned(),
        name => format!("package `{name}`"),
    }
}

//! Options for a `build.rs`: the files, the language, and the directory of the stubs.

use std::path::{Path, PathBuf};

use tollgate_schema::Schema;

use crate::error::GenError;
use crate::language::Language;
use crate::model::Model;
use crate::output::write;

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

    /// Makes `bytes` fields below `path` a `tollgate::Bytes` in Rust, instead of a `Vec<u8>`:
    /// clones share it, and one from `Session::buffer` is sent without a copy. `.` means every
    /// field, `.hotel.EchoMessage.payload` that field, and a prefix of such a path every field
    /// below it. May be called more than once.
    pub fn bytes(mut self, path: impl Into<String>) -> Config {
        self.bytes.push(path.into());
        self
    }

    /// Compiles `files` (imports are looked up in `includes`) and writes the files of each package;
    /// a package without a name becomes `_`. Tells cargo to rerun when one of the files changes.
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
        // A file may be named relative to an include; watching the include covers it. Missing paths
        // are filtered out: cargo would consider them changed in every build.
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

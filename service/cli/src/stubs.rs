//! `tollgate gen`: stubs for applications, without a daemon.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tollgate_gen::{GenError, Language};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::schema;

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate gen --lang c --out stubs proto/hotel.proto\n\n\
         The command prints the changed files. There is one per package, also for imported packages."
)]
pub(crate) struct Gen {
    /// The language
    #[arg(long)]
    pub(crate) lang: Lang,
    /// The directory of the stubs; created if it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The directories of imports; those of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR")]
    pub(crate) include: Vec<PathBuf>,
    /// Write nothing, and fail if a file is out of date: for CI
    #[arg(long)]
    pub(crate) check: bool,
    /// The schema: .proto files, directories of them, serialized descriptor sets
    #[arg(value_name = "INPUT", required = true)]
    pub(crate) inputs: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Lang {
    /// `<package>.rs`, for include!, on top of the tollgate crate
    Rust,
    /// `<package>.tollgate.h` and `<package>.tollgate_service.h` for C11 and C++17, and
    /// tollgate_block.h
    C,
    /// `<package>_tollgate.py` for Python 3.9 and newer, and tollgate_block.py
    Python,
}

impl Lang {
    pub(crate) fn language(self) -> Language {
        match self {
            Lang::Rust => Language::Rust,
            Lang::C => Language::C,
            Lang::Python => Language::Python,
        }
    }
}

/// Writes the stubs, or compares them with the existing files. Returns the paths of the written
/// files.
pub(crate) fn generate(args: &Gen) -> Result<String, Failure> {
    for input in &args.inputs {
        std::fs::metadata(input).map_err(|error| Failure::file(input, &error))?;
    }
    let schema = schema::compiled(&args.inputs, &args.include)?;
    let files = args.lang.language().generate(&schema).map_err(failure)?;
    let stale = tollgate_gen::stale(&files, &args.out).map_err(failure)?;
    let paths: Vec<_> = stale
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    if !args.check {
        tollgate_gen::write(&files, &args.out).map_err(failure)?;
        return Ok(paths.iter().map(|path| format!("{path}\n")).collect());
    }
    if paths.is_empty() {
        return Ok(String::new());
    }
    let sentence = format!("out of date: {}", paths.join(", "));
    Err(Failure::new(Code::FAILED_PRECONDITION, sentence).hint("the same command without --check"))
}

/// Errors of the file system have their own status. All other errors are in the command line or the
/// schema.
fn failure(error: GenError) -> Failure {
    match &error {
        GenError::Read { error: its, .. } | GenError::Write { error: its, .. } => {
            Failure::new(Failure::code_of(its), &error)
        }
        _ => Failure::input(error),
    }
}

//! `tollgate gen`: stubs for applications, without a daemon.

use tollgate_gen::GenError;
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::{args, schema};

/// Writes the stubs, or compares them with what is there; answers the paths of the files that were written.
pub(crate) fn generate(args: &args::Gen) -> Result<String, Failure> {
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
    let sentence = format!("not what would be generated: {}", paths.join(", "));
    Err(Failure::new(Code::FAILED_PRECONDITION, sentence).hint("the same command without --check"))
}

/// What the system says of a file has its own status; all else is in the command line or the schema.
fn failure(error: GenError) -> Failure {
    match &error {
        GenError::Read { error: its, .. } | GenError::Write { error: its, .. } => {
            Failure::new(Failure::code_of(its), &error)
        }
        _ => Failure::input(error),
    }
}

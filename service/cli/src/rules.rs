//! Files of rules: the compiler, with the errors of a command line.

use std::path::Path;

use tollgate_policy_rules::{Compiled, Options, compile, limits};
use tollgate_schema::Schema;
use tollgate_shm_abi::text::point_at;

use crate::failure::Failure;
use crate::input::read_at_most;

/// The module of a file of rules; `name` is the policy's, unless the file has one.
pub(crate) fn compiled(
    path: &Path,
    name: &str,
    schema: Option<&Schema>,
) -> Result<Compiled, Failure> {
    let shown = path.display();
    let text = String::from_utf8(read_at_most(path, limits::FILE_BYTES as u64)?);
    let text = text.map_err(|_| Failure::input(format_args!("{shown} isn't UTF-8")))?;
    compile(&text, &Options { name, schema }).map_err(|error| {
        let (line, column, excerpt) = point_at(&text, error.offset..error.offset);
        let sentence = format!("{shown}:{line}:{column}: {}", error.reason);
        Failure::excerpt(sentence, &excerpt)
    })
}

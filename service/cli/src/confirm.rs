//! Asks before something that can't be taken back, or that surprises.

use std::fmt::Display;
use std::io::IsTerminal;

use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::stderr;

/// Shows what happens, and asks. `undone` is the sentence if the answer is no; `sure` is the
/// command line that doesn't ask.
///
/// # Errors
/// CANCELLED: the answer is no. INVALID_ARGUMENT: nobody can be asked.
pub(crate) fn confirm(
    happens: &str,
    question: impl Display,
    undone: &str,
    sure: impl Display,
) -> Result<(), Failure> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        stderr::prompt(happens);
        let sentence = format!("{undone}: confirmation needs a terminal");
        return Err(Failure::input(sentence).hint(sure.to_string()));
    }
    stderr::prompt(&format!("{happens}{question} [y/N] "));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(|error| Failure::input(format_args!("the answer can't be read: {error}")))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(Code::CANCELLED, undone)),
    }
}

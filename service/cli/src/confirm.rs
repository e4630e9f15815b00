//! Asks before something that can't be taken back, or that surprises.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::IsTerminal;

use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::stderr;

/// The options that name the daemon, and whom the command acts as. They may be anywhere.
const EVERYWHERE: [&str; 7] = [
    "--context",
    "--socket",
    "--endpoint",
    "--ca",
    "--certificate",
    "--key",
    "--token-file",
];

/// Shows what happens, and asks. `undone` is the sentence if the answer is no. The hint is the
/// command line with `--yes`, which doesn't ask.
///
/// # Errors
/// CANCELLED: the answer is no. INVALID_ARGUMENT: nobody can be asked.
pub(crate) fn confirm(happens: &str, question: impl Display, undone: &str) -> Result<(), Failure> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        stderr::prompt(happens);
        let sentence = format!("{undone}: confirmation needs a terminal");
        return Err(Failure::input(sentence).hint(sure(std::env::args_os())));
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

/// The command line with `--yes`, for a shell. The options that are anywhere are at its end.
fn sure(typed: impl Iterator<Item = OsString>) -> String {
    let (mut words, mut everywhere) = (vec!["tollgate".to_owned()], Vec::new());
    let mut typed = typed.skip(1);
    while let Some(word) = typed.next() {
        let word = word.to_string_lossy();
        let (option, value) = word
            .split_once('=')
            .map_or((&*word, None), |(option, value)| {
                (option, Some(value.to_owned()))
            });
        if EVERYWHERE.contains(&option) {
            let value = value.or_else(|| Some(typed.next()?.to_string_lossy().into_owned()));
            everywhere.push(option.to_owned());
            everywhere.extend(value.map(|value| quoted(&value)));
        } else {
            words.push(quoted(&word));
        }
    }
    words.push("--yes".to_owned());
    words.extend(everywhere);
    words.join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_has_the_options_that_were_typed_and_quotes() {
        let check = |typed: &[&str], hint: &str| {
            assert_eq!(sure(typed.iter().map(OsString::from)), hint);
        };
        check(
            &["/usr/bin/tollgate", "tenant", "remove", "acme"],
            "tollgate tenant remove acme --yes",
        );
        check(
            &[
                "tollgate",
                "--context",
                "my daemon",
                "ceiling",
                "set",
                "attachments=0",
                "fields_deny=*/*:name",
                "--socket=/a.sock",
                "--tenant",
                "acme",
            ],
            "tollgate ceiling set attachments=0 'fields_deny=*/*:name' --tenant acme --yes \
             --context 'my daemon' --socket /a.sock",
        );
        check(
            &["tollgate", "apply", "-f", "it's", ""],
            r"tollgate apply -f 'it'\''s' '' --yes",
        );
    }
}

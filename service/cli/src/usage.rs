//! Command lines that clap doesn't handle: help, the version, and unknown commands.

use std::ffi::{OsStr, OsString};

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::Cli;
use crate::failure::Failure;
use crate::{output, stderr};

/// Turns clap's result into an answer or a failure. Help and the version are answers. If a command
/// is missing, the help is a failure with a hint. Everything else is a failure of one sentence.
pub(crate) fn explain(error: &clap::Error, typed: &[OsString]) -> Result<(), Failure> {
    let text = error.render();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => output::print(&text.to_string()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            stderr::tell(help_of(&command(typed)).trim_end());
            Err(Failure::input("a command is missing"))
        }
        _ => Err(refusal(error, typed)),
    }
}

/// The failure for an invalid command line. Clap's first paragraph is the sentence; `--help` has
/// its usage text.
fn refusal(error: &clap::Error, typed: &[impl AsRef<OsStr>]) -> Failure {
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = paragraph
        .trim_start_matches("error: ")
        .split_whitespace()
        .collect();
    let meant =
        suggestion(error).map_or_else(String::new, |name| format!("; did you mean {name:?}?"));
    let sentence = words.join(" ") + &meant;
    Failure::input(sentence).hint(format!("{} --help", command(typed).join(" ")))
}

/// The help of a command, such as `tollgate audit`.
fn help_of(words: &[String]) -> String {
    let mut command = Cli::command();
    command.build();
    for word in words.iter().skip(1) {
        if let Some(found) = command.find_subcommand(word) {
            command = found.clone();
        }
    }
    command.render_help().to_string()
}

/// The typed command, such as `tollgate audit`, up to the first unknown word.
fn command(typed: &[impl AsRef<OsStr>]) -> Vec<String> {
    let mut command = Cli::command();
    command.build();
    let mut names = vec![command.get_name().to_owned()];
    let mut words = typed
        .iter()
        .skip(1)
        .filter_map(|word| word.as_ref().to_str());
    while let Some(word) = words.next() {
        if let Some(option) = word.strip_prefix("--") {
            let mut its = command.get_arguments();
            let takes_value = its.any(|argument| {
                argument.get_long() == Some(option) && argument.get_action().takes_values()
            });
            // The next word is the value of this option, in any form.
            takes_value.then(|| words.next());
        } else if let Some(found) = command.find_subcommand(word).cloned() {
            names.push(found.get_name().to_owned());
            command = found;
        }
    }
    names
}

/// Clap's suggestion: a command, an option, a value.
fn suggestion(error: &clap::Error) -> Option<String> {
    let kinds = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        // The last suggestion is the likeliest.
        ContextValue::Strings(several) => several.last().cloned(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use tollgate_shm_abi::status::Code;

    use super::*;

    #[test]
    fn a_wrong_command_line_is_one_sentence_too() {
        let check = |line: &str, expected: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let error = Cli::try_parse_from(&words).map(|_| ()).unwrap_err();
            assert_eq!(refusal(&error, &words).to_string(), expected);
        };
        check(
            "tollgate policy attach acl@1 --tenant acme --side client",
            "tollgate: INVALID_ARGUMENT: the following required arguments were not provided: \
             --service <SERVICE>. Try: tollgate policy attach --help",
        );
        check(
            "tollgate call --token T --proto F Reserve",
            "tollgate: INVALID_ARGUMENT: invalid value 'Reserve' for '<SERVICE/METHOD>': \
             a method is written package.Service/Method. Try: tollgate call --help",
        );
        check(
            "tollgate statsu",
            "tollgate: INVALID_ARGUMENT: unrecognized subcommand 'statsu'; did you mean \"status\"? Try: tollgate --help",
        );
        check(
            "tollgate policy atach acl@1",
            "tollgate: INVALID_ARGUMENT: unrecognized subcommand 'atach'; did you mean \"attach\"? Try: tollgate policy --help",
        );
        check(
            "tollgate top --sort cpuu",
            "tollgate: INVALID_ARGUMENT: invalid value 'cpuu' for '--sort <SORT>' [possible values: cpu, rate, p99, denials]; \
             did you mean \"cpu\"? Try: tollgate top --help",
        );
        for (line, why) in [
            ("trace --last 0", "it must be a whole number from 1 to 1000"),
            (
                "audit show --last=-1",
                "it must be a whole number, 4294967295 at most",
            ),
            (
                "tenant move acme --runtime x",
                "it must be a whole number, 4294967295 at most",
            ),
            ("tap --for 99999999999999999999s", "at most one day"),
        ] {
            let words: Vec<_> = std::iter::once("tollgate").chain(line.split(' ')).collect();
            let error = Cli::try_parse_from(&words).map(|_| ()).unwrap_err();
            let said = refusal(&error, &words).to_string();
            assert!(said.contains(why) && !said.contains("type"), "{said}");
        }
        check(
            "tollgate --socket status policy push --zzz audit",
            "tollgate: INVALID_ARGUMENT: unexpected argument '--zzz' found. Try: tollgate policy push --help",
        );
    }

    #[test]
    fn a_token_in_the_wrong_place_is_not_shown() {
        let token = format!("tg_{}", "0123456789abcdef".repeat(4));
        for typed in [
            vec!["tollgate", &token],
            vec!["tollgate", "status", &token],
            vec![
                "tollgate",
                "call",
                "--token",
                "T",
                "--proto",
                "p",
                "--deadline",
                &token,
                "a.B/C",
            ],
            vec!["tollgate", "policy", "upgrade", &token],
        ] {
            let failure = refusal(&Cli::try_parse_from(&typed).unwrap_err(), &typed);
            let shown = failure.to_string();
            assert!(
                !shown.contains("0123") && shown.contains("tg_(hidden)"),
                "{shown}"
            );
        }
        let gone = Failure::new(
            Code::UNAVAILABLE,
            format_args!("no daemon answers at {token}"),
        );
        assert!(
            gone.to_string()
                .contains("no daemon answers at tg_(hidden)")
        );
    }
}

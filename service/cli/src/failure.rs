//! What went wrong, said once: a sentence, a status code, and what to try next.
//!
//! Everything that fails in this program becomes a [`Failure`]. It prints as
//! `tollgate: SENTENCE. Try: HINT`, and its code's number is the exit status, so that a script
//! tells a denied call (7) from an unreachable daemon (14) without reading the sentence.

use std::fmt;
use std::process::ExitCode;

use tollgate::Status;
use tollgate_shm_abi::status::Code;

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    code: Code,
    sentence: String,
    hint: Option<String>,
}

impl Failure {
    /// A failure whose sentence names the culprit and the value.
    pub(crate) fn new(code: Code, sentence: impl fmt::Display) -> Failure {
        Failure {
            code,
            sentence: sentence.to_string(),
            hint: None,
        }
    }

    /// The same failure with a next step for the user.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Failure {
        Failure {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// What the user typed, or wrote into a file, is wrong.
    pub(crate) fn input(sentence: impl fmt::Display) -> Failure {
        Failure::new(Code::INVALID_ARGUMENT, sentence)
    }

    /// A file can't be read.
    pub(crate) fn file(path: &std::path::Path, error: &std::io::Error) -> Failure {
        Failure::new(
            Code::NOT_FOUND,
            format_args!("{} can't be read: {error}", path.display()),
        )
    }

    /// What kind of failure it is.
    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// The sentence alone.
    pub(crate) fn sentence(&self) -> String {
        self.sentence.clone()
    }

    /// The same failure, as an answer to a caller.
    pub(crate) fn into_status(self) -> Status {
        Status::new(self.code, self.sentence)
    }

    /// The process's exit status: the code's number, never 0.
    pub(crate) fn exit(&self) -> ExitCode {
        let number = u8::try_from(self.code.0).ok().filter(|&number| number > 0);
        ExitCode::from(number.unwrap_or(Code::UNKNOWN.0 as u8))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentence = self.sentence.trim().trim_end_matches('.');
        write!(f, "tollgate: {}: {sentence}", self.code)?;
        match &self.hint {
            Some(hint) => write!(f, ". Try: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<clap::Error> for Failure {
    /// Clap's first paragraph is the sentence; its usage text is a `--help` away.
    fn from(error: clap::Error) -> Failure {
        let text = error.to_string();
        let paragraph = text.split("\n\n").next().unwrap_or_default();
        let words: Vec<_> = paragraph
            .trim_start_matches("error: ")
            .split_whitespace()
            .collect();
        let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
        let is_name = |word: &&str| !word.starts_with(['-', '<', '[']);
        let command: Vec<_> = usage
            .unwrap_or("tollgate")
            .split(' ')
            .take_while(is_name)
            .collect();
        Failure::input(words.join(" ")).hint(format!("{} --help", command.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn a_failure_is_one_sentence_and_its_hint() {
        let failure = Failure::new(Code::UNAVAILABLE, "nobody listens on /a.sock.");
        assert_eq!(
            failure.to_string(),
            "tollgate: UNAVAILABLE: nobody listens on /a.sock"
        );
        assert_eq!(
            failure.hint("tollgate up").to_string(),
            "tollgate: UNAVAILABLE: nobody listens on /a.sock. Try: tollgate up"
        );
    }

    #[test]
    fn the_exit_status_is_the_codes_number_and_never_success() {
        let exit = |code| format!("{:?}", Failure::new(code, "").exit());
        assert_eq!(
            exit(Code::PERMISSION_DENIED),
            format!("{:?}", ExitCode::from(7))
        );
        assert_eq!(exit(Code::OK), format!("{:?}", ExitCode::from(2)));
        assert_eq!(exit(Code(256)), format!("{:?}", ExitCode::from(2)));
    }

    #[test]
    fn a_wrong_command_line_is_one_sentence_too() {
        let check = |line: &str, expected: &str| {
            let error = Cli::try_parse_from(line.split(' '))
                .map(|_| ())
                .unwrap_err();
            assert_eq!(Failure::from(error).to_string(), expected);
        };
        check(
            "tollgate policy attach acl@1 --tenant acme --side client",
            "tollgate: INVALID_ARGUMENT: the following required arguments were not provided: \
             --service <SERVICE>. Try: tollgate policy attach --help",
        );
        check(
            "tollgate call --token T --proto F Reserve",
            "tollgate: INVALID_ARGUMENT: invalid value 'Reserve' for '<SERVICE/METHOD>': \
             a method is written package.Service/Method. Try: tollgate --help",
        );
    }
}

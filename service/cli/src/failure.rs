//! Failures: a sentence, a status code, and a hint.
//!
//! Every failure of this program becomes a [`Failure`]. It prints as `tollgate: CODE: SENTENCE.
//! Try: HINT`. The number of its code is the exit status, so a script can tell a denied call (7)
//! from an unreachable daemon (14) without reading the sentence. Failures to write standard output
//! have exit statuses of their own, since the command itself may have done its work; so has a
//! change that waits, since it isn't refused:
//!
//! | exit status | what |
//! |---|---|
//! | 0 | done |
//! | 1 | CANCELLED, such as a `tenant remove` that the user answered with no; or a case of `policy test` failed |
//! | 2 to 16 | a status code of gRPC; 2 is UNKNOWN |
//! | 20 | `apply --dry-run`: something would change; no failure |
//! | 74 | standard output can't be written (EX_IOERR of sysexits.h) |
//! | 75 | a tenant's change waits for an operator's approval (EX_TEMPFAIL of sysexits.h) |
//! | 141 | the reader of standard output closed it (like SIGPIPE in a shell); nothing is printed |
//!
//! `tollgated` follows the same table.

use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;

use tollgate::Status;
use tollgate_shm_abi::secret::without_tokens;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::text;

use crate::stderr;

/// Standard output can't be written.
const UNWRITTEN: u8 = 74;

/// A change waits for an operator's approval.
const WAITS: u8 = 75;

/// The reader of standard output closed it.
const CLOSED: u8 = 141;

/// A dry run would change something. No status code has this number.
const WOULD_CHANGE: u8 = 20;

/// The exit status of a dry run that would change something.
pub(crate) fn would_change() -> ExitCode {
    ExitCode::from(WOULD_CHANGE)
}

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    kind: Kind,
    sentence: String,
    /// The lines of a file with the error.
    excerpt: Option<String>,
    hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Status(Code),
    /// A failure of standard output; the exit status.
    Output(u8),
    /// A change isn't made yet.
    Waits,
}

impl Failure {
    /// A failure. Its sentence names the culprit and the value.
    pub(crate) fn new(code: Code, sentence: impl fmt::Display) -> Failure {
        Failure {
            kind: Kind::Status(code),
            sentence: sentence.to_string(),
            excerpt: None,
            hint: None,
        }
    }

    /// A failure to write standard output.
    pub(crate) fn output(error: &std::io::Error) -> Failure {
        let exit = match error.kind() {
            ErrorKind::BrokenPipe => CLOSED,
            _ => UNWRITTEN,
        };
        let sentence = format!("standard output can't be written: {error}");
        Failure {
            kind: Kind::Output(exit),
            ..Failure::new(Code::UNKNOWN, sentence)
        }
    }

    /// A change waits for an operator's approval.
    pub(crate) fn waits(sentence: impl fmt::Display) -> Failure {
        Failure {
            kind: Kind::Waits,
            ..Failure::new(Code::UNKNOWN, sentence)
        }
    }

    /// The same failure of standard output, which lost something that is shown only once.
    pub(crate) fn lost(self, what: impl fmt::Display, hint: String) -> Failure {
        let sentence = format!("{}, but {what}", self.sentence);
        Failure { sentence, ..self }.hint(hint)
    }

    /// The same failure with a next step for the user.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Failure {
        Failure {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// The same failure, about an object of a document.
    pub(crate) fn within(self, path: &std::path::Path, object: &str) -> Failure {
        let sentence = format!("{}: {object}: {}", path.display(), self.sentence);
        Failure { sentence, ..self }
    }

    /// An error in the command line, or in a file of the user.
    pub(crate) fn input(sentence: impl fmt::Display) -> Failure {
        Failure::new(Code::INVALID_ARGUMENT, sentence)
    }

    /// An error in a file of the user; the lines show the place.
    pub(crate) fn excerpt(sentence: impl fmt::Display, lines: &str) -> Failure {
        Failure {
            excerpt: Some(lines.trim_end().to_owned()),
            ..Failure::input(sentence)
        }
    }

    /// A file can't be read.
    pub(crate) fn file(path: &std::path::Path, error: &std::io::Error) -> Failure {
        Failure::new(
            Failure::code_of(error),
            format_args!("{} can't be read: {error}", path.display()),
        )
    }

    /// The system's error for a file, as a status code.
    pub(crate) fn code_of(error: &std::io::Error) -> Code {
        match error.kind() {
            ErrorKind::NotFound => Code::NOT_FOUND,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Code::PERMISSION_DENIED,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Code::RESOURCE_EXHAUSTED
            }
            // The path leads to a file of another type.
            ErrorKind::AlreadyExists
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidData => Code::INVALID_ARGUMENT,
            _ => Code::UNKNOWN,
        }
    }

    /// The status code of the failure.
    pub(crate) fn code(&self) -> Code {
        match self.kind {
            Kind::Status(code) => code,
            Kind::Output(_) | Kind::Waits => Code::UNKNOWN,
        }
    }

    /// The sentence alone.
    pub(crate) fn sentence(&self) -> String {
        self.sentence.clone()
    }

    /// The way out, if it has one.
    pub(crate) fn way_out(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The same failure, as a status for a caller.
    pub(crate) fn into_status(self) -> Status {
        Status::new(self.code(), self.sentence)
    }

    /// Prints it, and returns the process's exit status, which is never 0.
    pub(crate) fn exit(&self) -> ExitCode {
        ExitCode::from(self.say())
    }

    /// Prints it and ends the process, where no caller can handle it.
    pub(crate) fn end(&self) -> ! {
        std::process::exit(i32::from(self.say()))
    }

    /// Prints it, and returns the exit status. If the reader closed standard output, nothing is
    /// printed, unless something is lost.
    fn say(&self) -> u8 {
        if self.kind != Kind::Output(CLOSED) || self.hint.is_some() {
            stderr::tell(&self.to_string());
        }
        self.status()
    }

    fn status(&self) -> u8 {
        match self.kind {
            Kind::Output(status) => status,
            Kind::Waits => WAITS,
            Kind::Status(code) => match u8::try_from(code.0) {
                Ok(number @ 1..=16) => number,
                _ => Code::UNKNOWN.0 as u8,
            },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // If two arguments are swapped, a token is in the place of a path or a name.
        let sentence = without_tokens(&self.sentence);
        f.write_str("tollgate: ")?;
        if let Kind::Status(code) = self.kind {
            write!(f, "{code}: ")?;
        }
        f.write_str(&text::escape(sentence.trim().trim_end_matches('.')))?;
        if let Some(hint) = &self.hint {
            let stop = if self.sentence.ends_with('?') {
                ""
            } else {
                "."
            };
            write!(f, "{stop} Try: {}", text::escape(&without_tokens(hint)))?;
        }
        match &self.excerpt {
            Some(lines) => write!(f, "\n{}", text::escape_lines(lines)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
    fn what_others_say_stays_in_the_sentence() {
        let said = "no\u{1b}[2J\u{7}\ntollgate: OK\u{2028}\u{202e}";
        assert_eq!(
            Failure::new(Code::ABORTED, said).to_string(),
            "tollgate: ABORTED: no\\u{1b}[2J\\u{7}\\ntollgate: OK\\u{2028}\\u{202e}"
        );
        let failure = Failure::excerpt("a.toml, line 1: no", "1 | a = \u{9b}\n  |     ^\n");
        assert_eq!(
            failure.hint("b").to_string(),
            "tollgate: INVALID_ARGUMENT: a.toml, line 1: no. Try: b\n1 | a = \\u{9b}\n  |     ^"
        );
    }

    #[test]
    fn the_exit_status_is_the_codes_number_and_never_success() {
        let exit = |code| Failure::new(code, "").status();
        assert_eq!(exit(Code::PERMISSION_DENIED), 7);
        assert_eq!(exit(Code::OK), 2);
        assert_eq!(exit(Code(74)), 2);
        assert_eq!(exit(Code(256)), 2);
    }

    #[test]
    fn a_file_that_can_not_be_used_has_the_status_that_says_why() {
        let code = |kind: ErrorKind| Failure::file("f".as_ref(), &kind.into()).code();
        assert_eq!(code(ErrorKind::NotFound), Code::NOT_FOUND);
        assert_eq!(code(ErrorKind::PermissionDenied), Code::PERMISSION_DENIED);
        assert_eq!(code(ErrorKind::StorageFull), Code::RESOURCE_EXHAUSTED);
        assert_eq!(code(ErrorKind::NotADirectory), Code::INVALID_ARGUMENT);
        assert_eq!(code(ErrorKind::Other), Code::UNKNOWN);
    }

    #[test]
    fn what_standard_output_does_not_take_has_its_own_exit_status() {
        let full = Failure::output(&ErrorKind::StorageFull.into());
        assert_eq!(full.status(), 74);
        assert_eq!(
            full.to_string(),
            "tollgate: standard output can't be written: no storage space"
        );
        assert_eq!(Failure::waits("not yet").status(), 75);
        let closed = Failure::output(&ErrorKind::BrokenPipe.into());
        assert_eq!(closed.status(), 141);
    }
}

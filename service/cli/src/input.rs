//! Messages on standard input: consecutive JSON values, each handed on once it is complete.
//!
//! A value is complete with its last bracket or quote, and a bare one (a number, `null`) with the
//! space behind it. This module counts only brackets and quotes; the parser decides whether a value
//! is valid JSON. So a mistyped value is an error only for its own message. `answers.rs` does the
//! same for text that is complete.

use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::limits::MAX_INPUT_BYTES;

/// The argument itself, or all of standard input for `-`.
pub(crate) fn argument_or_stdin(argument: &str) -> Result<String, Failure> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    let most = MAX_INPUT_BYTES as u64 + 1;
    let read = io::stdin().lock().take(most).read_to_string(&mut text);
    read.map_err(unreadable)?;
    match text.len() > MAX_INPUT_BYTES {
        true => Err(too_long(MAX_INPUT_BYTES)),
        false => Ok(text),
    }
}

/// Refuses unread input, because piping a message into a command that doesn't read it is a mistake.
/// `what` is the message, and `hint` says how to make the command read it. Returns whether more
/// input may come.
pub(crate) fn refuse_unread(what: &str, hint: &str) -> Result<bool, Failure> {
    let input = io::stdin();
    if input.is_terminal() {
        return Ok(false);
    }
    let mut fds = [PollFd::new(&input, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let has_come = poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0);
    let is_open = !fds[0].revents().contains(PollFlags::HUP);
    // /dev/null doesn't support this request.
    match rustix::io::ioctl_fionread(&input) {
        Ok(1..) => {
            let sentence = format!("no {what} is given, but standard input has data");
            Err(Failure::input(sentence).hint(hint))
        }
        Ok(0) => Ok(!has_come && is_open),
        _ => Ok(false),
    }
}

/// The values of standard input, until its end.
pub(crate) fn each(
    input: impl BufRead,
    each: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut values = Values::new(MAX_INPUT_BYTES, each);
    let mut input = input;
    loop {
        let bytes = match input.fill_buf() {
            Ok([]) => return values.end(),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(error)),
        };
        values.add(bytes)?;
        let taken = bytes.len();
        input.consume(taken);
    }
}

/// A file of a bounded length.
pub(crate) fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| Failure::file(path, &error);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > most {
        let sentence = format!("{} is longer than {most} bytes", path.display());
        return Err(Failure::new(Code::RESOURCE_EXHAUSTED, sentence));
    }
    Ok(bytes)
}

fn unreadable(error: io::Error) -> Failure {
    Failure::input(format_args!("standard input can't be read: {error}"))
}

fn too_long(most_bytes: usize) -> Failure {
    let sentence = format!("standard input has a request of more than {most_bytes} bytes");
    Failure::new(Code::RESOURCE_EXHAUSTED, sentence)
}

/// Finds where a value begins and ends.
struct Values<F> {
    value: Vec<u8>,
    /// Number of open brackets.
    depth: usize,
    is_quoted: bool,
    /// After a backslash.
    is_escaped: bool,
    most_bytes: usize,
    each: F,
}

impl<F: FnMut(&str) -> Result<(), Failure>> Values<F> {
    fn new(most_bytes: usize, each: F) -> Self {
        Values {
            value: Vec::new(),
            depth: 0,
            is_quoted: false,
            is_escaped: false,
            most_bytes,
            each,
        }
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for &byte in bytes {
            let is_outside = self.depth == 0 && !self.is_quoted;
            if is_outside && byte.is_ascii_whitespace() {
                self.end()?;
                continue;
            }
            // A value in brackets or quotes ends a bare one before it.
            if is_outside && matches!(byte, b'{' | b'[' | b'"') {
                self.end()?;
            }
            if self.value.len() == self.most_bytes {
                return Err(too_long(self.most_bytes));
            }
            self.value.push(byte);
            if self.completes(byte) {
                self.end()?;
            }
        }
        Ok(())
    }

    /// Whether this byte, the newest, is the last of a value.
    fn completes(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.is_quoted => self.is_escaped = true,
            b'"' => {
                self.is_quoted = !self.is_quoted;
                return !self.is_quoted && self.depth == 0;
            }
            _ if self.is_quoted => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    /// Hands on the current value.
    fn end(&mut self) -> Result<(), Failure> {
        (self.depth, self.is_quoted, self.is_escaped) = (0, false, false);
        let value = std::mem::take(&mut self.value);
        if value.is_empty() {
            return Ok(());
        }
        let text = std::str::from_utf8(&value);
        let text =
            text.map_err(|_| Failure::input("standard input has a request that isn't UTF-8"))?;
        (self.each)(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn values(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let add = |value: &str| {
            found.push(value.to_owned());
            Ok(())
        };
        each(text.as_bytes(), add).unwrap();
        found
    }

    #[test]
    fn values_follow_each_other_on_lines_or_over_them() {
        let check = |text: &str, expected: &[&str]| assert_eq!(values(text), expected, "{text}");
        check("", &[]);
        check(" \n\n", &[]);
        check(
            "{\"a\": 1}\n{\n \"a\": [2]\n}{}",
            &["{\"a\": 1}", "{\n \"a\": [2]\n}", "{}"],
        );
        check(
            r#"{"a": "}\"{\\"} "1.5s""2s" null 7"#,
            &[r#"{"a": "}\"{\\"}"#, "\"1.5s\"", "\"2s\"", "null", "7"],
        );
        check("1{}", &["1", "{}"]);
        // The parser reports an invalid value.
        check("}{} {\"a\": oh", &["}", "{}", "{\"a\": oh"]);
    }

    #[test]
    fn a_value_is_handed_on_when_its_last_byte_has_come() {
        let mut found = 0;
        let mut values = Values::new(16, |_| {
            found += 1;
            Ok(())
        });
        values.add(b"{\"a\": {}").unwrap();
        values.add(b"}").unwrap();
        values.add(b" \"x").unwrap();
        values.add(b"\" tru").unwrap();
        values.add(b"e\n").unwrap();
        assert_eq!(found, 3);
    }

    #[test]
    fn a_value_has_so_many_bytes() {
        let mut values = Values::new(8, |_| Ok(()));
        values.add(b"{\"a\": 1}{\"a\": 1}").unwrap();
        let refused = values.add(b"{\"a\": 12}").unwrap_err();
        assert_eq!(refused.code(), Code::RESOURCE_EXHAUSTED);
        assert!(refused.sentence().contains("more than 8 bytes"));
    }
}

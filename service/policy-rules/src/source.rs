//! Places in the file: of its lines, and of the characters inside its strings.
//!
//! An expression is a TOML string, so its characters aren't where the parser of expressions thinks
//! they are: quotes come before them, and escapes between them.

use crate::error::{ErrorAt, RulesError};

/// A string of the file.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) value: String,
    /// The place in the file of each byte of the value, and of its end.
    places: Vec<u32>,
}

impl Text {
    /// A string whose TOML form is at `begin` of the file.
    pub(crate) fn new(value: &str, raw: &str, begin: usize) -> Text {
        let mut places = Vec::with_capacity(value.len() + 1);
        let mut raw = Raw::new(raw);
        for char in value.chars() {
            let at = (begin + raw.next_char(char)) as u32;
            (0..char.len_utf8()).for_each(|_| places.push(at));
        }
        places.push((begin + raw.at) as u32);
        Text {
            value: value.to_owned(),
            places,
        }
    }

    /// The place in the file of a byte of the value.
    pub(crate) fn place(&self, offset: usize) -> usize {
        let last = self.places.len() - 1;
        self.places[offset.min(last)] as usize
    }
}

/// A text as TOML writes it, in one line.
pub(crate) fn toml_text(text: &str) -> String {
    let mut all = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => all.extend(['\\', c]),
            c if c.is_control() => all.push_str(&format!("\\u{:04x}", c as u32)),
            c => all.push(c),
        }
    }
    all + "\""
}

/// The TOML form of a string.
struct Raw<'a> {
    text: &'a str,
    at: usize,
    has_escapes: bool,
}

impl<'a> Raw<'a> {
    fn new(text: &'a str) -> Raw<'a> {
        let quotes = match text.starts_with("\"\"\"") || text.starts_with("'''") {
            true => 3,
            false => 1,
        };
        let mut raw = Raw {
            text,
            at: quotes.min(text.len()),
            has_escapes: text.starts_with('"'),
        };
        // The newline after three quotes isn't part of the value.
        if quotes == 3 {
            let newline = ["\r\n", "\n"].iter().find(|n| raw.rest().starts_with(**n));
            raw.at += newline.map_or(0, |newline| newline.len());
        }
        raw
    }

    fn rest(&self) -> &'a str {
        &self.text[self.text.floor_char_boundary(self.at)..]
    }

    /// The place of the next character of the value.
    fn next_char(&mut self, expected: char) -> usize {
        self.skip_line_ends();
        let begin = self.at;
        let rest = self.rest();
        self.at += match rest.chars().next() {
            Some('\\') if self.has_escapes => match rest[1..].chars().next() {
                Some('x') => 4.min(rest.len()),
                Some('u') => 6.min(rest.len()),
                Some('U') => 10.min(rest.len()),
                Some(one) => 1 + one.len_utf8(),
                None => 1,
            },
            // A newline that the parser has made of two characters.
            Some('\r') if expected == '\n' => 2.min(rest.len()),
            Some(one) => one.len_utf8(),
            None => 0,
        };
        begin
    }

    /// A backslash at the end of a line hides the white space after it.
    fn skip_line_ends(&mut self) {
        while self.has_escapes
            && self
                .rest()
                .strip_prefix('\\')
                .is_some_and(|rest| rest.starts_with([' ', '\t', '\r', '\n']))
        {
            let rest = &self.rest()[1..];
            self.at += 1 + rest.len() - rest.trim_start().len();
        }
    }
}

/// The line and the character of a place in the file, both from 1.
pub(crate) fn line_and_column(file: &str, at: usize) -> (usize, usize) {
    let before = &file[..file.floor_char_boundary(at)];
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before[begin..].chars().count() + 1)
}

/// An error with its line.
pub(crate) fn located(file: &str, error: ErrorAt) -> RulesError {
    let (line, column) = line_and_column(file, error.at);
    RulesError {
        offset: file.floor_char_boundary(error.at),
        line,
        column,
        reason: error.reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where `needle` of the value is in the TOML form.
    fn found(raw: &str, value: &str, needle: &str) -> String {
        let text = Text::new(value, raw, 0);
        let at = text.place(value.find(needle).unwrap_or(value.len()));
        raw[at..].chars().take(needle.chars().count()).collect()
    }

    #[test]
    fn characters_are_found_behind_quotes_escapes_and_line_ends() {
        let check = |raw: &str, value: &str| assert_eq!(found(raw, value, "here"), "here", "{raw}");
        check("\"a here\"", "a here");
        check("'a here'", "a here");
        check(r#""\"ü\u00fc\U000000fc\x41 here""#, "\"üüüA here");
        check("'''\na\n here'''", "a\n here");
        check("\"\"\"\r\na\r\n here\"\"\"", "a\r\n here");
        check("\"\"\"\r\na\r\n here\"\"\"", "a\n here");
        check("\"\"\"a \\\n   here\"\"\"", "a here");
        assert_eq!(found("\"a\"", "a", "none"), "\"");
        assert_eq!(Text::new("", "\"\"", 7).place(9), 8);
        assert_eq!(Text::new("abc", "", 7).place(1), 7);
    }

    #[test]
    fn lines_and_columns_count_characters_from_one() {
        let file = "ü\nab\n";
        let check = |at, expected| assert_eq!(line_and_column(file, at), expected, "{at}");
        check(0, (1, 1));
        check(1, (1, 1));
        check(2, (1, 2));
        check(3, (2, 1));
        check(5, (2, 3));
        check(6, (3, 1));
        check(99, (3, 1));
    }
}

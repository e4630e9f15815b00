//! Makes text from others safe to read.
//!
//! A status message, a name or a key may contain characters that control a terminal (ESC), begin a
//! new line in a log (a newline, U+2028), display other text than there is (U+202E reverses it), or
//! are invisible (U+200B). All of them are escaped like in Rust: `\n`, `\u{1b}`. All programs use
//! this one function.
//!
//! | escaped | which |
//! |---|---|
//! | control | C0, DEL, C1 |
//! | line ending | U+2028, U+2029, and of the controls newline, carriage return, U+0085 |
//! | bidirectional | U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069 |
//! | zero width | U+00AD, U+034F, U+17B4, U+17B5, U+180B to U+180F, U+200B to U+200D, U+2060 to U+206F, U+FE00 to U+FE0F, U+FEFF, U+FFF9 to U+FFFB, U+1D173 to U+1D17A, U+E0000 to U+E007F, U+E0100 to U+E01EF |
//! | blank | U+115F, U+1160, U+3164, U+FFA0: fillers of Hangul; U+2800: Braille without dots |
//!
//! A backslash is unchanged: `\n` may be a newline or those two characters. JSON for programs keeps
//! its values: there the same characters are written as JSON escapes.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use core::fmt::{self, Write as _};
use core::ops::Range;

/// Escapes `text` to one line without invisible characters.
pub fn escape(text: &str) -> Cow<'_, str> {
    replace(text, is_obeyed, |c, out| out.extend(c.escape_default()))
}

/// The same for text of several lines, such as a parser's error with the lines of a file: newlines
/// and tabs are kept.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    replace(text, is_obeyed_in_lines, |c, out| {
        out.extend(c.escape_default());
    })
}

/// JSON with the same values, for programs and for a terminal: `"\u202e"`.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    replace(json, is_obeyed_in_lines, |c, out| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _infallible = write!(out, "\\u{unit:04x}");
        }
    })
}

/// The position of a span in a file (line and column, from 1), and its line with a caret below, for
/// a parser's error.
pub fn point_at(source: &str, span: Range<usize>) -> (usize, usize, String) {
    let before = source.get(..span.start).unwrap_or(source);
    let begin = before.rfind('\n').map_or(0, |at| at + 1);
    let line = source[begin..].lines().next().unwrap_or_default();
    let (number, indent) = (before.matches('\n').count() + 1, &before[begin..]);
    // A tab below is as wide as above.
    let space = indent.chars().map(|c| if c == '\t' { c } else { ' ' });
    let space: String = space.collect();
    let marked = source.get(span).unwrap_or_default();
    let marked = marked.lines().next().unwrap_or_default().chars().count();
    let (margin, carets) = (" ".repeat(digits(number)), "^".repeat(marked.max(1)));
    let shown = format!("{margin} |\n{number} | {line}\n{margin} | {space}{carets}");
    (number, indent.chars().count() + 1, shown)
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// A sink that escapes everything written through it, like [`escape`].
pub struct Escaping<W>(pub W);

impl<W: fmt::Write> fmt::Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&escape(text))
    }
}

fn replace(
    text: &str,
    is_replaced: fn(char) -> bool,
    by: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.contains(is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_replaced(c) {
            true => by(c, &mut escaped),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

fn is_obeyed_in_lines(c: char) -> bool {
    is_obeyed(c) && !matches!(c, '\n' | '\t')
}

fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e007f}'
                | '\u{e0100}'..='\u{e01ef}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_obeyed_or_unseen_is_escaped_and_the_rest_stays() {
        for (text, expected) in [
            ("", ""),
            ("no guests", "no guests"),
            ("Zoë, 東京, 🚕, עברית, a\\n", "Zoë, 東京, 🚕, עברית, a\\n"),
            ("\u{1b}[2J\u{7}", "\\u{1b}[2J\\u{7}"),
            ("a\nb\r\tc\0", "a\\nb\\r\\tc\\u{0}"),
            ("\u{7f}\u{85}\u{9b}31m", "\\u{7f}\\u{85}\\u{9b}31m"),
            ("a\u{2028}b\u{2029}c", "a\\u{2028}b\\u{2029}c"),
            ("x\u{202e}y\u{2066}z", "x\\u{202e}y\\u{2066}z"),
            ("a\u{200b}b\u{feff}\u{ad}", "a\\u{200b}b\\u{feff}\\u{ad}"),
            ("tag\u{e0041}", "tag\\u{e0041}"),
            ("a\u{115f}b\u{1160}", "a\\u{115f}b\\u{1160}"),
            ("a\u{3164}b\u{ffa0}", "a\\u{3164}b\\u{ffa0}"),
            ("a\u{17b4}b\u{2800}", "a\\u{17b4}b\\u{2800}"),
            ("a\u{180b}b\u{180f}", "a\\u{180b}b\\u{180f}"),
            ("a\u{fe00}b\u{fe0f}", "a\\u{fe00}b\\u{fe0f}"),
            ("a\u{e0100}b\u{e01ef}", "a\\u{e0100}b\\u{e01ef}"),
        ] {
            assert_eq!(escape(text), expected);
            let mut sink = Escaping(String::new());
            assert!(sink.write_str(text).is_ok());
            assert_eq!(sink.0, expected);
            // Escaped text isn't escaped again.
            assert_eq!(escape(expected), expected);
        }
    }

    #[test]
    fn an_error_points_at_its_place_in_a_file() {
        let source = "a = 1\n\tb = 'é' c\nd";
        let check = |span: Range<usize>, line, column, expected: &str| {
            let (l, c, shown) = point_at(source, span.clone());
            assert_eq!((l, c, &*shown), (line, column, expected), "{span:?}");
        };
        check(0..1, 1, 1, "  |\n1 | a = 1\n  | ^");
        check(7..8, 2, 2, "  |\n2 | \tb = 'é' c\n  | \t^");
        check(16..17, 2, 10, "  |\n2 | \tb = 'é' c\n  | \t        ^");
        // Up to the end of the line at most; the end of the file is a valid position.
        check(11..19, 2, 6, "  |\n2 | \tb = 'é' c\n  | \t    ^^^^^");
        check(19..19, 3, 2, "  |\n3 | d\n  |  ^");
        check(900..901, 3, 2, "  |\n3 | d\n  |  ^");
        // Inside a character.
        let _no_panic = point_at(source, 13..14);
        assert_eq!(point_at("", 0..0), (1, 1, "  |\n1 | \n  | ^".into()));
    }

    #[test]
    fn json_means_the_same() {
        let json = "{\n\t\"a\": \"\\n\u{9b}\u{202e}\u{e0041}é\"\n}";
        let shown = "{\n\t\"a\": \"\\n\\u009b\\u202e\\udb40\\udc41é\"\n}";
        assert_eq!(escape_json(json), shown);
        assert_eq!(escape_lines(shown), shown);
    }

    #[test]
    fn lines_stay_lines_where_they_are_meant_to() {
        let shown = "1 | a =\t\u{1b}\n  |   ^\r\n";
        assert_eq!(escape_lines(shown), "1 | a =\t\\u{1b}\n  |   ^\\r\n");
    }
}

//! Rewrites `.proto` sources that protoc accepts into sources that the parser accepts.
//!
//! The built-in parser knows proto2 and proto3 and is a little strict. This file expresses
//! everything else in the parser's syntax, token by token. Every line stays where it is, so that
//! the parser's errors name the right place:
//!
//! | protoc takes | the parser gets |
//! |---|---|
//! | a byte order mark | nothing |
//! | bytes that aren't UTF-8: in a comment; in a string | `?`; an octal escape |
//! | `extensions 100, 105 [...];` | `extensions 100 to 100, 105 to 105 [...];` |
//! | `edition = "2023";` | `syntax = "proto2";`, and the caller puts the edition into the descriptor |
//! | in an edition: a field without a label; reserved names | `optional`; strings |
//! | of edition 2024: `export`, `local`, `import option` | nothing, nothing, `import` |
//! | features of languages: `features.(pb.cpp).string_type` | nothing: blocks don't depend on them |
//!
//! The parser accepts or refuses everything else. Text that is no `.proto` file passes through
//! unchanged.

use std::ops::Range;

use super::built_in::features;
use crate::spelling::did_you_mean;

/// A source that the parser accepts.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) text: String,
    pub(super) places: Places,
    /// Protobuf's number of the edition.
    pub(super) edition: Option<i32>,
}

/// Maps places in the rewritten text to places in the source.
#[derive(Debug)]
pub(super) struct Places {
    /// The line starts of both texts.
    source: Vec<usize>,
    rewritten: Vec<usize>,
    /// The replaced ranges and the lengths of their replacements in bytes, in order.
    edits: Vec<(Range<usize>, usize)>,
}

impl Places {
    /// Returns the line and the column in the source; both count from 1.
    pub(super) fn in_source(&self, line: usize, column: usize) -> (usize, usize) {
        let begin = self.rewritten.get(line.saturating_sub(1));
        let mut left = begin.map_or(usize::MAX, |begin| begin + column.saturating_sub(1));
        let mut from = 0;
        for (replaced, by) in &self.edits {
            let same = replaced.start - from;
            if left < same {
                break;
            }
            left -= same;
            from = replaced.start;
            if left < *by {
                left = 0;
                break;
            }
            left -= by;
            from = replaced.end;
        }
        let at = from.saturating_add(left);
        let line = self.source.partition_point(|begin| *begin <= at).max(1);
        (line, at - self.source[line - 1] + 1)
    }
}

/// The offsets of line starts.
fn lines(bytes: &[u8]) -> Vec<usize> {
    let feeds = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n');
    [0].into_iter().chain(feeds.map(|(at, _)| at + 1)).collect()
}

/// Files that declare language features; their imports are removed.
const FEATURE_FILES: [&str; 3] = [
    "google/protobuf/cpp_features.proto",
    "google/protobuf/go_features.proto",
    "google/protobuf/java_features.proto",
];

/// The extensions that these files declare in the package `pb`.
const LANGUAGES: [&str; 3] = ["cpp", "go", "java"];

/// A mistake in a source and its place, which count from 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {mistake}")]
pub(super) struct SourceError {
    line: usize,
    column: usize,
    mistake: Mistake,
}

/// What the author of a source has to change.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Mistake {
    #[error("edition {name:?} isn't known; 2023 and 2024 are")]
    Edition { name: String },
    #[error("an edition has no labels `optional` and `required`; it has features.field_presence")]
    Label,
    #[error(
        "import {file:?} isn't a path from an include directory: it can't have `.`, `..`, empty parts or backslashes"
    )]
    Import { file: String },
    /// `meant` is the most similar name, as part of the sentence.
    #[error("there is no feature {name:?}{meant}")]
    Feature { name: String, meant: String },
    #[error("feature {name:?} has no value {value:?}{meant}")]
    FeatureValue {
        name: String,
        value: String,
        meant: String,
    },
}

/// Returns the rewritten source; `None` if it can stay as it is.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Source>, SourceError> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let body = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let mut reader = Reader {
        bytes: body,
        tokens: Vec::new(),
        edits: Vec::new(),
        edition: None,
    };
    reader.tokens();
    reader.statements()?;
    if reader.edits.is_empty() && body.len() == bytes.len() {
        return Ok(None);
    }
    // The parser checks names and punctuation, and reports errors in its own words.
    let text = String::from_utf8_lossy(&reader.edited()).into_owned();
    let places = Places {
        source: lines(body),
        rewritten: lines(text.as_bytes()),
        edits: std::mem::take(&mut reader.edits)
            .into_iter()
            .map(|(at, text)| (at, text.len()))
            .collect(),
    };
    let edition = reader.edition;
    Ok(Some(Source {
        text,
        places,
        edition,
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A name, a keyword, a number.
    Word,
    Text,
    /// One character.
    Mark(u8),
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    at: Range<usize>,
}

/// The kind of statement that braces belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    File,
    /// A message or a group; extension blocks look alike.
    Message,
    /// Statements of which only the options matter.
    Other,
}

struct Reader<'s> {
    bytes: &'s [u8],
    tokens: Vec<Token>,
    /// The replaced ranges and their replacements.
    edits: Vec<(Range<usize>, String)>,
    edition: Option<i32>,
}

impl Reader<'_> {
    fn edited(&mut self) -> Vec<u8> {
        self.edits.sort_by_key(|(at, _)| (at.start, at.end));
        let mut end = 0;
        // Removed text can't be replaced as well.
        self.edits.retain(|(at, _)| {
            let is_free = at.start >= end;
            end = if is_free { at.end } else { end };
            is_free
        });
        let mut out = Vec::with_capacity(self.bytes.len());
        let mut from = 0;
        for (at, text) in &self.edits {
            out.extend_from_slice(&self.bytes[from..at.start]);
            out.extend_from_slice(text.as_bytes());
            from = at.end;
        }
        out.extend_from_slice(&self.bytes[from..]);
        out
    }

    /// Splits the source into tokens, skipping comments and replacing bytes that aren't UTF-8.
    fn tokens(&mut self) {
        let bytes = self.bytes;
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let rest = &bytes[at..];
            let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
            let (kind, len) = match byte {
                b'/' if rest.starts_with(b"//") => (None, find(rest, b"\n")),
                b'/' if rest.starts_with(b"/*") => (None, 2 + find(&rest[2..], b"*/")),
                b'"' | b'\'' => (Some(Kind::Text), string_len(rest)),
                _ if is_word(&byte) => {
                    let end = rest.iter().position(|b| !is_word(b));
                    (Some(Kind::Word), end.unwrap_or(rest.len()))
                }
                _ if byte.is_ascii_whitespace() => (None, 1),
                _ => (Some(Kind::Mark(byte)), 1),
            };
            let len = len.min(rest.len());
            match kind {
                None => self.replace_foreign(at..at + len, |_| "?".to_owned()),
                Some(Kind::Text) => self.replace_foreign(at..at + len, |b| format!("\\{b:03o}")),
                Some(_) => {}
            }
            let at_once = at..at + len;
            self.tokens
                .extend(kind.map(|kind| Token { kind, at: at_once }));
            at += len;
        }
    }

    /// Replaces each byte of a range that isn't UTF-8.
    fn replace_foreign(&mut self, within: Range<usize>, by: impl Fn(u8) -> String) {
        let mut at = within.start;
        for chunk in self.bytes[within].utf8_chunks() {
            at += chunk.valid().len();
            for byte in chunk.invalid() {
                self.edits.push((at..at + 1, by(*byte)));
                at += 1;
            }
        }
    }

    fn kind(&self, token: usize) -> Option<Kind> {
        self.tokens.get(token).map(|token| token.kind)
    }

    /// The text of a token; empty past the last.
    fn text(&self, token: usize) -> &str {
        let token = self.tokens.get(token);
        let bytes = token.map_or(&[][..], |token| &self.bytes[token.at.clone()]);
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    fn is(&self, token: usize, mark: u8) -> bool {
        self.kind(token) == Some(Kind::Mark(mark))
    }

    /// Replaces tokens, but keeps their line feeds.
    fn replace(&mut self, tokens: Range<usize>, by: &str) {
        let (Some(first), Some(last)) = (
            self.tokens.get(tokens.start),
            self.tokens.get(tokens.end - 1),
        ) else {
            return;
        };
        let at = first.at.start..last.at.end;
        let lines = self.bytes[at.clone()].iter().filter(|b| **b == b'\n');
        let text = by.to_owned() + &"\n".repeat(lines.count());
        self.edits.push((at, text));
    }

    fn error(&self, token: usize, mistake: Mistake) -> SourceError {
        let at = self
            .tokens
            .get(token)
            .map_or(self.bytes.len(), |t| t.at.start);
        let before = &self.bytes[..at];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        let column = before.iter().rev().take_while(|b| **b != b'\n').count();
        SourceError {
            line,
            column: column + 1,
            mistake,
        }
    }

    /// Walks over all statements at any depth.
    fn statements(&mut self) -> Result<(), SourceError> {
        let mut blocks = vec![Block::File];
        let mut at = 0;
        while at < self.tokens.len() {
            let block = blocks.last().copied().unwrap_or(Block::File);
            if self.is(at, b'}') {
                blocks.pop();
                at += 1;
                continue;
            }
            let (end, inner) = self.statement(at, block)?;
            blocks.extend(inner);
            at = end.max(at + 1);
        }
        Ok(())
    }

    /// Reads one statement; returns the place after it, and the kind of the block that it opens.
    fn statement(
        &mut self,
        at: usize,
        block: Block,
    ) -> Result<(usize, Option<Block>), SourceError> {
        let end = self.end(at);
        let opens = self.is(end - 1, b'{');
        let in_edition = self.edition.is_some();
        let is_message = block == Block::Message;
        // A name may equal a keyword, as in `message message`.
        match self.text(at) {
            "edition" if block == Block::File && self.is(at + 1, b'=') => self.edition(at, end)?,
            "import" if block == Block::File => self.import(at, end)?,
            "export" | "local" if in_edition && matches!(self.text(at + 1), "message" | "enum") => {
                self.replace(at..at + 1, "");
                return Ok((at + 1, None));
            }
            "message" | "extend" if opens => return Ok((end, Some(Block::Message))),
            "enum" | "service" | "oneof" | "rpc" if opens => return Ok((end, Some(Block::Other))),
            "extensions" if is_message => self.ranges(at, end),
            "reserved" if in_edition => self.reserved(at, end),
            "option" if in_edition => self.option(at, end)?,
            "optional" | "required" if in_edition && is_message => {
                return Err(self.error(at, Mistake::Label));
            }
            "repeated" | ";" => {}
            "map" if self.is(at + 1, b'<') => {}
            _ if in_edition
                && is_message
                && (self.kind(at) == Some(Kind::Word) || self.is(at, b'.')) =>
            {
                let start = self.tokens[at].at.start;
                self.edits.push((start..start, "optional ".to_owned()));
            }
            _ => {}
        }
        if in_edition {
            self.option_lists(at, end)?;
        }
        self.numbers(at, end);
        // The remaining case is a group.
        Ok((end, opens.then_some(Block::Message)))
    }

    /// The end of a statement: after its semicolon or its opening brace. Braces of options belong
    /// to the statement.
    fn end(&self, start: usize) -> usize {
        let (mut depth, mut is_value) = (0_usize, self.text(start) == "option");
        for at in start..self.tokens.len() {
            match self.kind(at) {
                Some(Kind::Mark(b'[')) => (depth, is_value) = (depth + 1, true),
                Some(Kind::Mark(b'{')) if is_value => depth += 1,
                Some(Kind::Mark(b']' | b'}')) if depth > 0 => {
                    depth -= 1;
                    is_value = depth > 0 || self.text(start) == "option";
                }
                Some(Kind::Mark(b'{' | b';')) if depth == 0 => return at + 1,
                // It is no statement, and the parser reports that.
                Some(Kind::Mark(b'}')) => return at.max(start + 1),
                _ => {}
            }
        }
        self.tokens.len()
    }

    fn edition(&mut self, at: usize, end: usize) -> Result<(), SourceError> {
        const EDITIONS: [(&str, i32); 2] = [("2023", 1000), ("2024", 1001)];
        let name: String = (at + 2..end)
            .filter(|i| self.kind(*i) == Some(Kind::Text))
            .map(|i| unescaped(self.text(i)))
            .collect();
        let known = EDITIONS.into_iter().find(|(known, _)| *known == name);
        let Some((_, number)) = known else {
            return Err(self.error(at, Mistake::Edition { name }));
        };
        self.edition = Some(number);
        self.replace(at..end, "syntax = \"proto2\";");
        Ok(())
    }

    fn import(&mut self, at: usize, end: usize) -> Result<(), SourceError> {
        if self.text(at + 1) == "option" {
            self.replace(at + 1..at + 2, "");
        }
        let file = self.text(end.saturating_sub(2)).trim_matches(['"', '\'']);
        let is_text = self.kind(end.saturating_sub(2)) == Some(Kind::Text);
        let is_wrong = |part: &str| matches!(part, "" | "." | "..") || part.contains('\\');
        let is_escaped = file.contains('\\') && !file.contains("\\\\");
        if is_text && !is_escaped && file.split('/').any(is_wrong) {
            let file = file.to_owned();
            return Err(self.error(end.saturating_sub(2), Mistake::Import { file }));
        }
        if FEATURE_FILES.contains(&file) {
            self.replace(at..end, "");
        }
        Ok(())
    }

    /// Rewrites extension ranges: the parser only accepts options on ranges with two ends.
    fn ranges(&mut self, at: usize, end: usize) {
        let Some(options) = (at..end).find(|&i| self.is(i, b'[')) else {
            return;
        };
        for i in at + 1..options {
            let is_alone = self.text(i - 1) != "to" && self.text(i + 1) != "to";
            if self.kind(i) == Some(Kind::Word) && self.text(i) != "to" && is_alone {
                let behind = self.tokens[i].at.end;
                let to = format!(" to {}", self.text(i));
                self.edits.push((behind..behind, to));
            }
        }
    }

    /// Rewrites numbers in options that only fit a double.
    fn numbers(&mut self, at: usize, end: usize) {
        let mut is_value = self.text(at) == "option";
        for i in at + 1..end {
            is_value |= self.is(i, b'[');
            let text = self.text(i);
            if !is_value || self.kind(i) != Some(Kind::Word) {
                continue;
            }
            let is_whole = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
            if is_whole && !text.is_empty() && text.parse::<u64>().is_err() {
                let behind = self.tokens[i].at.end;
                let is_point = self.is(i + 1, b'.') && self.tokens[i + 1].at.start == behind;
                if !is_point {
                    self.edits.push((behind..behind, ".0".to_owned()));
                }
            } else if i >= at + 3
                && self.is(i - 1, b'-')
                && self.is(i - 2, b'=')
                && self.text(i - 3) != "default"
            {
                match text {
                    "inf" => self.replace(i..i + 1, "1e999"),
                    "nan" => self.replace(i - 1..i + 1, "nan"),
                    _ => {}
                }
            }
        }
    }

    /// Rewrites reserved names, which an edition writes as identifiers.
    fn reserved(&mut self, at: usize, end: usize) {
        for i in at + 1..end {
            let text = self.text(i);
            let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            if is_name && self.kind(i) == Some(Kind::Word) && !matches!(text, "to" | "max") {
                let text = format!("\"{text}\"");
                self.replace(i..i + 1, &text);
            }
        }
    }

    /// The end of `pb.cpp` or a similar name in these brackets, if one begins here.
    fn language(&self, at: usize, [open, close]: [u8; 2]) -> Option<usize> {
        let name = at + 1 + usize::from(self.is(at + 1, b'.'));
        let is_language = self.is(at, open)
            && self.text(name) == "pb"
            && self.is(name + 1, b'.')
            && LANGUAGES.contains(&self.text(name + 2))
            && self.is(name + 3, close);
        is_language.then_some(name + 4)
    }

    /// Whether a language feature begins here.
    fn is_left_out(&self, at: usize) -> bool {
        let is_feature = self.text(at) == "features" && self.is(at + 1, b'.');
        is_feature && self.language(at + 2, [b'(', b')']).is_some()
    }

    fn option(&mut self, at: usize, end: usize) -> Result<(), SourceError> {
        if !self.is_left_out(at + 1) {
            return self.aggregate(at + 1, end);
        }
        self.replace(at..end, "");
        Ok(())
    }

    /// Removes language features from `features = { [pb.cpp] { ... } }`, and checks the others: the
    /// parser doesn't report errors inside such braces.
    fn aggregate(&mut self, at: usize, end: usize) -> Result<(), SourceError> {
        if self.text(at) != "features" || !self.is(at + 1, b'=') || !self.is(at + 2, b'{') {
            return Ok(());
        }
        let known = features();
        let mut next = at + 3;
        while next < end {
            if let Some(behind) = self.language(next, [b'[', b']']) {
                let value = behind + usize::from(self.is(behind, b':'));
                let mut last = self.closed(value, end);
                if matches!(self.kind(last), Some(Kind::Mark(b',' | b';'))) {
                    last += 1;
                }
                self.replace(next..last, "");
                next = last;
            } else if self.is(next, b'[') || self.is(next, b'{') || self.is(next, b'<') {
                // A third party's extension of features.
                while next < end && !self.is(next, b']') && !self.is(next, b'}') {
                    next += 1;
                }
                next += 1;
            } else if self.kind(next) == Some(Kind::Word) && self.is(next + 1, b':') {
                let (name, value) = (self.text(next), self.text(next + 2));
                let names = known.iter().map(|(known, _)| &**known);
                let Some((_, values)) = known.iter().find(|(known, _)| known == name) else {
                    let (name, meant) = (name.to_owned(), did_you_mean(name, names));
                    return Err(self.error(next, Mistake::Feature { name, meant }));
                };
                let is_number = value.starts_with(|c: char| c.is_ascii_digit());
                if !is_number && !values.iter().any(|known| known == value) {
                    let meant = did_you_mean(value, values.iter().map(String::as_str));
                    let (name, value) = (name.to_owned(), value.to_owned());
                    let mistake = Mistake::FeatureValue { name, value, meant };
                    return Err(self.error(next + 2, mistake));
                }
                next += 3;
            } else {
                next += 1;
            }
        }
        Ok(())
    }

    /// The place after the message that opens here.
    fn closed(&self, open: usize, end: usize) -> usize {
        let mut depth = 0_usize;
        for at in open..end {
            match self.kind(at) {
                Some(Kind::Mark(b'{' | b'<')) => depth += 1,
                Some(Kind::Mark(b'}' | b'>')) => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return at + 1;
            }
        }
        end
    }

    /// Removes language features from lists in brackets, each with one adjacent comma.
    fn option_lists(&mut self, at: usize, end: usize) -> Result<(), SourceError> {
        let Some(open) = (at..end).find(|&i| self.is(i, b'[')) else {
            return Ok(());
        };
        let (mut depth, mut start) = (0_usize, open + 1);
        let mut items = Vec::new();
        for i in open + 1..end {
            match self.kind(i) {
                Some(Kind::Mark(b'{' | b'[' | b'<')) => depth += 1,
                Some(Kind::Mark(b'}' | b'>')) => depth = depth.saturating_sub(1),
                Some(Kind::Mark(b']')) if depth > 0 => depth -= 1,
                Some(Kind::Mark(mark @ (b',' | b']'))) if depth == 0 => {
                    items.push(start..i);
                    start = i + 1;
                    if mark == b']' {
                        break;
                    }
                }
                _ => {}
            }
        }
        if !items.iter().any(|item| !self.is_left_out(item.start)) {
            if !items.is_empty() {
                self.replace(open..start, "");
            }
            return Ok(());
        }
        let mut is_behind = false;
        for item in items {
            if !self.is_left_out(item.start) {
                self.aggregate(item.start, item.end)?;
                is_behind = true;
            } else if is_behind {
                self.replace(item.start - 1..item.end, "");
            } else {
                self.replace(item.start..item.end + 1, "");
            }
        }
        Ok(())
    }
}

/// The content of a quoted ASCII string.
fn unescaped(text: &str) -> String {
    let text = text.strip_prefix(['"', '\'']).unwrap_or(text);
    let text = text.strip_suffix(['"', '\'']).unwrap_or(text);
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (radix, digits) = match part.strip_prefix(['x', 'X']) {
            Some(digits) => (16, digits),
            None => (8, part),
        };
        let most = if radix == 16 { 2 } else { 3 };
        let len = digits.chars().take(most).take_while(|c| c.is_digit(radix));
        let (number, rest) = digits.split_at(len.count());
        let escaped = u8::from_str_radix(number, radix).map(char::from);
        match escaped {
            Ok(escaped) => out.push(escaped),
            Err(_) => out.push('\\'),
        }
        out += rest;
    }
    out
}

/// The offset of a piece's end in the bytes; their length if the piece is absent.
fn find(bytes: &[u8], piece: &[u8]) -> usize {
    let at = bytes.windows(piece.len()).position(|w| w == piece);
    at.map_or(bytes.len(), |at| at + piece.len())
}

/// Length of a string in bytes, with its quotes. The end of the line always ends it.
fn string_len(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\n' => return at,
            b'\\' => at += 1,
            _ if byte == bytes[0] => return at + 1,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

#[cfg(test)]
mod tests;

//! Reads pages as tables, and Rust source as string literals.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The string literals of Rust source outside of comments and of its test module, as they read at
/// run time, with the places where they begin.
pub(crate) fn literals(source: &str) -> Vec<(usize, String)> {
    let end = source.find("\nmod tests {");
    let source = &source[..end.unwrap_or(source.len())];
    let mut found = Vec::new();
    let mut at = 0;
    let begins = |byte: &u8| matches!(byte, b'/' | b'\'' | b'"' | b'r');
    while let Some(skipped) = source.as_bytes()[at..].iter().position(begins) {
        at += skipped;
        let rest = &source[at..];
        let line = || rest.find('\n').unwrap_or(rest.len());
        at += match rest.as_bytes()[0] {
            b'/' if rest.starts_with("//") => line(),
            b'\'' if rest[1..].starts_with('\\') => 2 + rest[2..].find('\'').unwrap_or(0),
            b'\'' => {
                let quoted = rest[1..].chars().next().map_or(1, char::len_utf8);
                match rest[1 + quoted..].starts_with('\'') {
                    true => 2 + quoted,
                    false => 1,
                }
            }
            b'r' if rest.starts_with("r\"") || rest.starts_with("r#") => raw(rest),
            b'"' => {
                let len = closing(&rest[1..]);
                found.push((at, unescaped(&rest[1..1 + len])));
                len + 2
            }
            _ => 1,
        };
    }
    found
}

/// The length of a raw string, or of what only looks like one.
fn raw(rest: &str) -> usize {
    let hashes = rest[1..].find(|c| c != '#').unwrap_or(0);
    let end = format!("\"{}", "#".repeat(hashes));
    match rest[1 + hashes..].strip_prefix('"') {
        None => 1,
        Some(text) => 2 + hashes + text.find(&end).unwrap_or(0) + end.len(),
    }
}

/// The length of a string literal up to its closing quote.
fn closing(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    text.len()
}

fn unescaped(literal: &str) -> String {
    let mut text = String::new();
    let mut rest = literal;
    while let Some((before, escape)) = rest.split_once('\\') {
        text += before;
        let mut after = escape.chars();
        match after.next() {
            Some('\n') => {
                rest = escape.trim_start();
                continue;
            }
            Some('n') => text.push('\n'),
            Some(other) => text.push(other),
            None => {}
        }
        rest = after.as_str();
    }
    text + rest
}

/// The rows of a page's tables, as cells.
pub(crate) fn rows(page: &str) -> Vec<Vec<String>> {
    table(&read(page))
}

/// The rows of the tables in a page, or in the comment at a file's head.
pub(crate) fn table(text: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for line in text.lines() {
        let line = line.strip_prefix("//!").unwrap_or(line).trim();
        let Some(line) = line
            .strip_prefix("| ")
            .and_then(|line| line.strip_suffix('|'))
        else {
            continue;
        };
        let line = line.replace("\\|", "\u{0}");
        let cell = |cell: &str| cell.trim().replace('\u{0}', "|");
        rows.push(line.split('|').map(cell).collect());
    }
    rows
}

/// The rows of a page that begin with a number: the number and another cell without quotes.
pub(crate) fn numbered(page: &str, column: usize) -> BTreeMap<u32, String> {
    let number = |row: Vec<String>| -> Option<(u32, String)> {
        let number = row[0].parse().ok()?;
        Some((number, row[column].trim_matches('`').to_owned()))
    };
    rows(page).into_iter().filter_map(number).collect()
}

pub(crate) fn read(file: &str) -> String {
    let path = root().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// The Rust files below some directories that aren't tests.
pub(crate) fn sources(directories: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<_> = directories.iter().map(|name| root().join(name)).collect();
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                let skipped = ["target", "tests", "out"];
                if !skipped.iter().any(|skipped| name == *skipped) {
                    open.push(path);
                }
            } else if path.extension().is_some_and(|kind| kind == "rs") && name != "tests.rs" {
                found.push(path);
            }
        }
    }
    found
}

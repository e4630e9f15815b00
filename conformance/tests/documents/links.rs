//! The links of a page, and the anchors that its headings are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The anchors of a page's headings, as GitHub and mdbook make them.
pub(crate) fn anchors(lines: &[(usize, String)]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for (_, line) in lines {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let mut slug = String::new();
        for letter in heading.trim().to_lowercase().chars() {
            match letter {
                ' ' => slug.push('-'),
                '-' => slug.push('-'),
                letter if letter.is_alphanumeric() => slug.push(letter),
                _ => {}
            }
        }
        let before = times.entry(slug.clone()).or_default();
        let anchor = match *before {
            0 => slug,
            before => format!("{slug}-{before}"),
        };
        *before += 1;
        all.insert(anchor);
    }
    all
}

/// The targets of the links and pictures of a page, with their lines. A link may break between its
/// text and its end.
pub(crate) fn targets(lines: &[(usize, String)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in lines {
        let line = without_code(line);
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let target = match rest.strip_prefix('<') {
                Some(rest) => rest.split('>').next(),
                None => rest.split([')', ' ']).next(),
            };
            found.push((*number, target.unwrap_or_default().to_owned()));
        }
    }
    found
}

/// The lines of a page with their numbers, except blocks and comments.
pub(crate) fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut is_block, mut is_comment) = (false, false);
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.trim_start().trim_start_matches("1. ");
        if fence.starts_with("```") || fence.starts_with("~~~") {
            is_block = !is_block;
        } else if !is_block {
            is_comment |= line.trim_start().starts_with("<!--");
            if !is_comment {
                lines.push((number, line.to_owned()));
            }
            is_comment &= !line.contains("-->");
        }
    }
    lines
}

/// A line without the text between backticks.
fn without_code(line: &str) -> String {
    match line.matches('`').count() % 2 {
        // Code that begins in another line: leave it.
        1 => line.to_owned(),
        _ => line.split('`').step_by(2).collect(),
    }
}

/// A path without `.` and `..`, links followed by nobody.
pub(crate) fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                flat.pop();
            }
            Component::CurDir => {}
            part => flat.push(part),
        }
    }
    flat
}

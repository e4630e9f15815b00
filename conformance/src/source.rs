//! Reads Rust source for the repository's own checks: comments and literals are blanked out, so
//! that a word in a sentence isn't mistaken for a keyword.
//!
//! The blanked text keeps its lines, so a finding still has its line number. It is a scanner, not a
//! parser: it recognizes only comments, strings and characters. A macro that composes a keyword
//! would escape it, but not the compiler's own `forbid(unsafe_code)`, which the same checks
//! require.

/// Replaces every comment and every string or character literal by blanks, keeping line breaks.
pub fn code_only(source: &str) -> String {
    let mut scanner = Scanner {
        rest: source,
        previous: ' ',
        code: String::with_capacity(source.len()),
    };
    while let Some(next) = scanner.rest.chars().next() {
        let skipped = scanner
            .comment()
            .or_else(|| scanner.raw_string())
            .or_else(|| scanner.quoted());
        match skipped {
            Some(len) => scanner.blank(len),
            None => scanner.keep(next),
        }
    }
    scanner.code
}

/// The one-based lines of `code` (see [`code_only`]) that contain `word` as a whole word.
pub fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let has_word = |line: &str| line.split(|c| !part_of_word(c)).any(|found| found == word);
    (1..)
        .zip(code.lines())
        .filter(|(_, line)| has_word(line))
        .map(|(number, _)| number)
        .collect()
}

struct Scanner<'a> {
    rest: &'a str,
    previous: char,
    code: String,
}

impl Scanner<'_> {
    fn keep(&mut self, c: char) {
        self.code.push(c);
        self.previous = c;
        self.rest = &self.rest[c.len_utf8()..];
    }

    fn blank(&mut self, len: usize) {
        let (skipped, rest) = self.rest.split_at(len);
        self.code
            .extend(skipped.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        self.previous = ' ';
        self.rest = rest;
    }

    /// The length of the comment that begins here, block comments nested.
    fn comment(&self) -> Option<usize> {
        if self.rest.starts_with("//") {
            return Some(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
        if !self.rest.starts_with("/*") {
            return None;
        }
        let (mut depth, mut at) = (0_usize, 0);
        while at < self.rest.len() {
            let here = &self.rest.as_bytes()[at..];
            if here.starts_with(b"/*") {
                depth += 1;
                at += 2;
            } else if here.starts_with(b"*/") {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return Some(at);
                }
            } else {
                at += 1;
            }
        }
        Some(self.rest.len())
    }

    /// The length of the raw string (`r"…"`, `br#"…"#`) that begins here.
    fn raw_string(&self) -> Option<usize> {
        if self.previous.is_alphanumeric() || self.previous == '_' {
            return None;
        }
        let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
            self.rest
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
        })?;
        let hashes = self.rest[prefix.len()..]
            .chars()
            .take_while(|&c| c == '#')
            .count();
        let begin = prefix.len() + hashes + 1;
        let end = format!("\"{}", "#".repeat(hashes));
        let len = self.rest[begin..]
            .find(&end)
            .map(|at| begin + at + end.len());
        Some(len.unwrap_or(self.rest.len()))
    }

    /// The length of the string or character literal that begins here; a lifetime is neither.
    fn quoted(&self) -> Option<usize> {
        let quote = self
            .rest
            .chars()
            .next()
            .filter(|c| matches!(c, '"' | '\''))?;
        let mut chars = self.rest.char_indices().skip(1);
        if quote == '\'' {
            let mut ahead = self.rest.chars().skip(1);
            let (first, second) = (ahead.next()?, ahead.next());
            if first != '\\' && second != Some('\'') {
                return None;
            }
        }
        while let Some((at, c)) = chars.next() {
            if c == '\\' {
                chars.next();
            } else if c == quote {
                return Some(at + 1);
            }
        }
        Some(self.rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_in_code_only() {
        let check = |source: &str, expected: &[usize]| {
            assert_eq!(
                lines_with_word(&code_only(source), "unsafe"),
                expected,
                "{source}"
            );
        };
        check("fn a() {\n    unsafe { b() }\n}", &[2]);
        check(
            "// unsafe\n/* unsafe /* unsafe */\nunsafe */ unsafe fn a() {}",
            &[3],
        );
        check("let a = \"unsafe \\\" unsafe\"; unsafe {}", &[1]);
        check(
            "let a = r#\"unsafe \" unsafe\"#;\nlet b = br\"unsafe\";",
            &[],
        );
        check("#![forbid(unsafe_code)]", &[]);
        check(
            "fn a<'unsafe_>(b: &'static str) { match c { '\"' => unsafe {}, '\\'' => {} } }",
            &[1],
        );
        check("let quote = '\\\\'; unsafe {}", &[1]);
        check("#[unsafe(no_mangle)]\nextern \"C\" fn a() {}", &[1]);
        check("let bar = 1; let a = bar\"unsafe\";", &[]);
    }

    #[test]
    fn an_unfinished_literal_ends_with_the_file() {
        for source in ["\"unsafe", "/* unsafe", "r#\"unsafe\"", "'\\", "'"] {
            assert!(
                lines_with_word(&code_only(source), "unsafe").is_empty(),
                "{source}"
            );
        }
    }
}

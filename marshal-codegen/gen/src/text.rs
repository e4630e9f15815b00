//! Text of generated code, indented by its braces.

/// Bytes of a descriptor set per line of text.
const BYTES_PER_LINE: usize = 32;

/// Lines of code. Each is indented by the number of open braces and parentheses before it.
#[derive(Default)]
pub(crate) struct Text {
    out: String,
    open: usize,
}

impl Text {
    /// Appends one line. It may first close levels of earlier lines, and finally open further
    /// levels.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        if line.starts_with(['}', ')', ']']) {
            self.open -= 1;
        }
        if !line.is_empty() {
            self.out.extend(std::iter::repeat_n("    ", self.open));
            self.out.push_str(line);
        }
        self.out.push('\n');
        if line.ends_with(['{', '(', '[']) {
            self.open += 1;
        }
    }

    /// Appends several lines.
    pub(crate) fn lines<const N: usize>(&mut self, lines: [&str; N]) {
        for line in lines {
            self.line(line);
        }
    }

    /// Opens a level without a brace.
    pub(crate) fn indent(&mut self) {
        self.open += 1;
    }

    /// Closes the level that [`Text::indent`] opened.
    pub(crate) fn dedent(&mut self) {
        self.open -= 1;
    }

    /// Appends bytes as decimal numbers.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for row in bytes.chunks(BYTES_PER_LINE) {
            let row: Vec<_> = row.iter().map(u8::to_string).collect();
            self.line(row.join(", ") + ",");
        }
    }

    /// The whole text.
    pub(crate) fn finish(self) -> String {
        debug_assert_eq!(self.open, 0, "every brace that was opened is closed");
        self.out
    }
}

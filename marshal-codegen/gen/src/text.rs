//! Text of generated code, indented by its braces.

/// Lines of Rust. Each begins indented by the braces and parentheses that are open before it.
#[derive(Default)]
pub(crate) struct Text {
    out: String,
    open: usize,
}

impl Text {
    /// Appends one line. It may close what earlier lines opened (first), and open further levels (last).
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

    /// The whole text.
    pub(crate) fn finish(self) -> String {
        debug_assert_eq!(self.open, 0, "every brace that was opened is closed");
        self.out
    }
}

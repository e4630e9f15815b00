//! The demo's output: colours on a terminal that supports them, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Standard output, and the start time of the demo.
pub(crate) struct Terminal {
    is_terminal: bool,
    colours: bool,
    begin: Instant,
}

/// One row of the table at the end.
pub(crate) struct Expectation {
    pub(crate) what: &'static str,
    pub(crate) expected: String,
    pub(crate) observed: String,
    pub(crate) met: bool,
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

impl Terminal {
    pub(crate) fn new() -> Terminal {
        let is_terminal = std::io::stdout().is_terminal();
        let colours =
            is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Terminal {
            is_terminal,
            colours,
            begin: Instant::now(),
        }
    }

    /// A chapter of the story.
    pub(crate) fn chapter(&self, number: u32, title: &str) {
        self.line(&format!(
            "\n{}",
            self.paint(BOLD, &format!("{number}. {title}"))
        ));
    }

    /// A sentence.
    pub(crate) fn tell(&self, sentence: &str) {
        self.line(&format!("   {sentence}"));
    }

    /// A command and its output.
    pub(crate) fn command(&self, command: &str, output: &str) {
        let output = output.trim();
        let arrow = if output.is_empty() {
            String::new()
        } else {
            format!("  → {output}")
        };
        self.line(&format!(
            "   {}{}",
            self.paint(CYAN, &format!("$ {command}")),
            self.paint(DIM, &arrow)
        ));
    }

    /// The progress of a longer step: replaces the last such line on a terminal.
    pub(crate) fn progress(&self, done: f64, text: &str) {
        const WIDTH: usize = 16;
        let filled = ((done.clamp(0.0, 1.0) * WIDTH as f64) as usize).min(WIDTH);
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(WIDTH - filled));
        if self.is_terminal {
            self.write(&format!("\r\x1b[2K   {} {text}", self.paint(DIM, &bar)));
            if done >= 1.0 {
                self.write("\n");
            }
        } else {
            self.line(&format!("   {bar} {text}"));
        }
    }

    /// Prints the table at the end; returns whether everything is as expected.
    pub(crate) fn table(&self, rows: &[Expectation]) -> bool {
        let width = |text: fn(&Expectation) -> &str| {
            rows.iter()
                .map(|row| text(row).chars().count())
                .max()
                .unwrap_or(0)
        };
        let (what, expected) = (
            width(|row| row.what),
            width(|row| &row.expected).max("expected".len()),
        );
        let observed = width(|row| &row.observed).max("observed".len());
        let head = format!(
            "   {:what$}   {:>expected$}   {:>observed$}",
            "", "expected", "observed"
        );
        self.line(&format!("\n{}", self.paint(BOLD, &head)));
        for Expectation {
            what: name,
            expected: want,
            observed: got,
            met,
        } in rows
        {
            let mark = if *met {
                self.paint(GREEN, "✓")
            } else {
                self.paint(RED, "✗ failed")
            };
            self.line(&format!(
                "   {name:what$}   {want:>expected$}   {got:>observed$}   {mark}"
            ));
        }
        let met = rows.iter().all(|row| row.met);
        let seconds = self.begin.elapsed().as_secs();
        let verdict = match met {
            true => self.paint(
                GREEN,
                &format!("Everything went as expected, in {seconds} s."),
            ),
            false => self.paint(RED, "Not everything went as expected; see above."),
        };
        self.line(&format!("\n{verdict}"));
        met
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours && !text.is_empty() {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn line(&self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    fn write(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        // A user that closed the terminal doesn't need the output; the exit status still has the
        // result.
        let _closed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, expected) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), expected);
        }
    }
}

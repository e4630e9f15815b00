//! What somebody sees in a terminal: the cells that a program has painted there, and the same as a page, for a picture.
//!
//! It knows what crossterm writes: where to, in which of 16 colours, bold or not, and what is cleared. Anything else is an error that names it, so that no
//! picture leaves something out.
//!
//! Absent on purpose: scrolling, wide characters, and everything that isn't written by what is looked at here.

use std::fmt::Write as _;

/// The colours of a terminal, as those of many are: eight, and eight brighter ones.
const PALETTE: [&str; 16] = [
    "#1b2027", "#ff8a80", "#8fd694", "#f2c35b", "#79aef5", "#d59bf0", "#62cfd6", "#cfd6df",
    "#7d8897", "#ffb3ac", "#b5e8b9", "#f9dc97", "#a9ccfa", "#e5c3f7", "#9be4e9", "#ffffff",
];

/// How a cell is written; by default as the terminal likes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// One of 16.
    pub color: Option<u8>,
    /// One of 16.
    pub behind: Option<u8>,
    /// Whether it is bold.
    pub is_bold: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    text: char,
    style: Style,
}

const BLANK: Cell = Cell {
    text: ' ',
    style: Style {
        color: None,
        behind: None,
        is_bold: false,
    },
};

/// A terminal's cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Screen {
    rows: Vec<Vec<Cell>>,
    at: (usize, usize),
    style: Style,
}

impl Screen {
    /// An empty one with all of this written to it.
    ///
    /// # Errors
    /// For what it doesn't know, and what is written outside.
    pub fn painted(columns: usize, rows: usize, text: &str) -> Result<Screen, String> {
        let mut screen = Screen {
            rows: vec![vec![BLANK; columns]; rows],
            at: (0, 0),
            style: Style::default(),
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            rest = &rest[first.len_utf8()..];
            match first {
                '\u{1b}' => rest = screen.escaped(rest)?,
                '\r' => screen.at.1 = 0,
                '\n' => screen.at.0 += 1,
                text if text.is_control() => return Err(format!("{text:?} isn't known")),
                text => screen.put(text)?,
            }
        }
        Ok(screen)
    }

    fn put(&mut self, text: char) -> Result<(), String> {
        let (row, column) = self.at;
        let style = self.style;
        let cell = self.rows.get_mut(row).and_then(|row| row.get_mut(column));
        let cell = cell.ok_or_else(|| format!("{text:?} is outside, at {row}, {column}"))?;
        *cell = Cell { text, style };
        self.at.1 += 1;
        Ok(())
    }

    /// Does what an escape sequence says; what is behind it.
    fn escaped<'t>(&mut self, text: &'t str) -> Result<&'t str, String> {
        let unknown = || format!("{:?} isn't known", &text[..text.len().min(12)]);
        let sequence = text.strip_prefix('[').ok_or_else(unknown)?;
        let end = sequence.find(|c: char| ('@'..='~').contains(&c));
        let end = end.ok_or_else(unknown)?;
        let (parameters, kind) = (&sequence[..end], sequence.as_bytes()[end]);
        let numbers: Option<Vec<usize>> = match parameters {
            "" => Some(Vec::new()),
            _ => parameters
                .split(';')
                .map(|word| word.parse().ok())
                .collect(),
        };
        match (kind, numbers.as_deref()) {
            (b'H', Some([])) => self.at = (0, 0),
            (b'H', Some(&[row, column])) if row > 0 && column > 0 => {
                self.at = (row - 1, column - 1);
            }
            (b'J', Some([2])) => self.rows.iter_mut().for_each(|row| row.fill(BLANK)),
            (b'm', Some(numbers)) => self.restyle(numbers).ok_or_else(unknown)?,
            // Modes: who hears keys, whether a cursor is seen, which of two screens this is.
            (b'h' | b'l', None) if parameters.starts_with('?') => {}
            _ => return Err(unknown()),
        }
        Ok(&sequence[end + 1..])
    }

    fn restyle(&mut self, numbers: &[usize]) -> Option<()> {
        let color = |number: usize| u8::try_from(number).ok().filter(|number| *number < 16);
        let mut rest = numbers;
        if rest.is_empty() {
            self.style = Style::default();
        }
        while let [first, behind @ ..] = rest {
            rest = behind;
            match (first, behind) {
                (0, _) => self.style = Style::default(),
                (1, _) => self.style.is_bold = true,
                (22, _) => self.style.is_bold = false,
                (39, _) => self.style.color = None,
                (49, _) => self.style.behind = None,
                // The color of underlines, of which there are none.
                (59, _) => {}
                (38, [5, number, ..]) => {
                    self.style.color = Some(color(*number)?);
                    rest = &behind[2..];
                }
                (48, [5, number, ..]) => {
                    self.style.behind = Some(color(*number)?);
                    rest = &behind[2..];
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Its rows, without what is blank at their ends.
    pub fn lines(&self) -> Vec<String> {
        let line = |row: &Vec<Cell>| {
            let text: String = row.iter().map(|cell| cell.text).collect();
            text.trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }

    /// How these words are written, where they are first.
    pub fn style_of(&self, words: &str) -> Option<Style> {
        let mut rows = self.lines().into_iter().zip(&self.rows);
        rows.find_map(|(line, cells)| {
            let before = line[..line.find(words)?].chars().count();
            Some(cells[before].style)
        })
    }

    /// A page with nothing else, as large as it is.
    pub fn html(&self) -> String {
        let mut page = format!(
            "<!doctype html><meta charset=\"utf-8\"><style>body {{ margin: 0; width: max-content; background: {}; }}\n\
             pre {{ margin: 0; padding: 14px 18px; font: 14px/1.3 'DejaVu Sans Mono', monospace; color: {}; }}</style><pre>",
            "#10151d", PALETTE[7]
        );
        for row in &self.rows {
            for run in row.chunk_by(|a, b| a.style == b.style) {
                let text: String = run.iter().map(|cell| cell.text).collect();
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let Style {
                    color,
                    behind,
                    is_bold,
                } = run[0].style;
                let color = color.map(|it| format!("color: {};", PALETTE[usize::from(it)]));
                let behind = behind.map(|it| format!("background: {};", PALETTE[usize::from(it)]));
                let style = [
                    color,
                    behind,
                    is_bold.then(|| "font-weight: bold;".to_owned()),
                ];
                let style: String = style.into_iter().flatten().collect();
                let _to_memory = write!(page, "<span style=\"{style}\">{text}</span>");
            }
            page.push('\n');
        }
        page + "</pre>"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cells_are_where_and_how_they_were_written() {
        let text = "\u{1b}[?1049h\u{1b}[2Jgone\u{1b}[2J\u{1b}[2;3H\u{1b}[1m\u{1b}[38;5;6;49mBo<\u{1b}[22;39mld\u{1b}[0m";
        let screen = Screen::painted(8, 2, text).unwrap();
        assert_eq!(screen.lines(), ["", "  Bo<ld"]);
        let bold = Style {
            color: Some(6),
            behind: None,
            is_bold: true,
        };
        assert_eq!(screen.style_of("Bo"), Some(bold));
        assert_eq!(screen.style_of("ld"), Some(Style::default()));
        assert_eq!(screen.style_of("gone"), None);
        let html = screen.html();
        let run = "<span style=\"color: #62cfd6;font-weight: bold;\">Bo&lt;</span>";
        assert!(html.contains(run), "{html}");
    }

    #[test]
    fn what_is_not_known_is_named() {
        let check = |text: &str, words: &str| {
            let error = Screen::painted(4, 1, text).unwrap_err();
            assert!(error.contains(words), "{error}");
        };
        check("\u{1b}]0;title", "]0;title");
        check("\u{1b}[38;2;1;2;3m", "[38;2;1;2;3m");
        check("\u{1b}[38;5;16m", "[38;5;16m");
        check("\u{1b}[4m", "[4m");
        check("\u{1b}[0;0H", "[0;0H");
        check("\u{1b}[", "[");
        check("12345", "'5' is outside, at 0, 4");
        check("\t", "'\\t'");
    }
}

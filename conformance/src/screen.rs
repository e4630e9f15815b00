//! The contents of a terminal: the cells that a program has painted, also as an HTML page, for a
//! picture.

use std::fmt::Write as _;
use std::num::NonZero;

use vt100::{Cell, Color, Parser};

/// The common colours of terminals: eight, and eight brighter ones.
const PALETTE: [&str; 16] = [
    "#1b2027", "#ff8a80", "#8fd694", "#f2c35b", "#79aef5", "#d59bf0", "#62cfd6", "#cfd6df",
    "#7d8897", "#ffb3ac", "#b5e8b9", "#f9dc97", "#a9ccfa", "#e5c3f7", "#9be4e9", "#ffffff",
];

/// The style of a cell; by default the terminal's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// One of 16.
    pub color: Option<u8>,
    /// One of 16.
    pub behind: Option<u8>,
    /// Whether it is bold.
    pub is_bold: bool,
}

impl Style {
    fn of(cell: &Cell) -> Style {
        Style {
            color: number_of(cell.fgcolor()),
            behind: number_of(cell.bgcolor()),
            is_bold: cell.bold(),
        }
    }
}

fn number_of(color: Color) -> Option<u8> {
    match color {
        Color::Default => None,
        Color::Idx(number) if number < 16 => Some(number),
        other => panic!("{other:?} isn't one of 16 colours"),
    }
}

/// A terminal's cells.
#[derive(Debug)]
pub struct Screen(vt100::Screen);

impl Screen {
    /// An empty screen, then painted with this text.
    ///
    /// # Panics
    /// If it would have no cells.
    pub fn painted(columns: u16, rows: u16, text: &str) -> Screen {
        let [rows, columns] = [rows, columns].map(|n| NonZero::new(n).expect("there are cells"));
        let mut terminal = Parser::new(rows, columns, 0);
        terminal.process(text.as_bytes());
        Screen(terminal.screen().clone())
    }

    /// Its rows, without trailing blanks.
    pub fn lines(&self) -> Vec<String> {
        let (_, columns) = self.0.size();
        let rows = self.0.rows(0, columns.get());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    /// The style of the first occurrence of these words.
    ///
    /// # Panics
    /// If its colour isn't one of 16.
    pub fn style_of(&self, words: &str) -> Option<Style> {
        let mut lines = (0..).zip(self.lines());
        lines.find_map(|(row, line)| {
            let before = line[..line.find(words)?].chars().count();
            self.0.cell(row, before as u16).map(Style::of)
        })
    }

    /// A page of exactly its size.
    ///
    /// # Panics
    /// Like [`Screen::style_of`].
    pub fn html(&self) -> String {
        let mut page = format!(
            "<!doctype html><meta charset=\"utf-8\"><style>body {{ margin: 0; width: max-content; background: {}; }}\n\
             pre {{ margin: 0; padding: 14px 18px; font: 14px/1.3 'DejaVu Sans Mono', monospace; color: {}; }}</style><pre>",
            "#10151d", PALETTE[7]
        );
        let (rows, columns) = self.0.size();
        for row in 0..rows.get() {
            let cells = (0..columns.get()).filter_map(|column| self.0.cell(row, column));
            let cells: Vec<_> = cells
                .map(|cell| (cell.contents(), Style::of(cell)))
                .collect();
            for run in cells.chunk_by(|(_, a), (_, b)| a == b) {
                let text = run
                    .iter()
                    .map(|(text, _)| if text.is_empty() { " " } else { text });
                let text = text.collect::<String>();
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let Style {
                    color,
                    behind,
                    is_bold,
                } = run[0].1;
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
    use super::*;

    #[test]
    fn cells_are_where_and_how_they_were_written() {
        let text = "\u{1b}[?1049h\u{1b}[2Jgone\u{1b}[2J\u{1b}[2;3H\u{1b}[1m\u{1b}[38;5;6;49mBo<\u{1b}[22;39mld\u{1b}[0m";
        let screen = Screen::painted(8, 2, text);
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
}

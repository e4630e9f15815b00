//! The view as a frame. Nothing here knows a terminal or a daemon.
//!
//! ```text
//!  who, how much        2 lines
//!  methods              what is left; scrolls
//!  policies             a quarter, if there is room
//!  runtimes             a quarter, if there is room
//!  what is wrong, keys  1 line
//! ```
//!
//! A part without room for its lines is left out. The smallest terminal shows the beginning of the
//! first part.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use crate::top::args::Sort;
use crate::top::rows::View;
use crate::top::sample::{Sample, shown};
use crate::top::table::{self, Table};

/// With fewer lines than this, only methods are shown.
const SMALL: u16 = 14;

const KEYS: &str = "q quit  s sort  t tenant  p pause  ? help";

const HELP: [&str; 8] = [
    "q, Esc, Ctrl-C  quit",
    "s               sort by cpu, rate, p99, denials",
    "t               the next tenant only, or all",
    "p, space        pause, and go on",
    "Down, j         scroll down; PageDown by ten",
    "Up, k           scroll up; PageUp by ten",
    "?               show or hide this help",
    "Percentiles are of the interval, and within 4.4 %.",
];

/// A pressed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Quit,
    Sort,
    Tenant,
    Pause,
    Help,
    Scroll(i16),
}

/// The state that the frame shows.
pub(crate) struct Model {
    /// The last two samples of one daemon, or the last one twice.
    pub(crate) samples: [Sample; 2],
    pub(crate) sort: Sort,
    pub(crate) tenant: Option<String>,
    pub(crate) paused: bool,
    pub(crate) help: bool,
    /// Rows of methods above the first visible one.
    pub(crate) scrolled: usize,
    /// The reason why there is no newer sample.
    pub(crate) trouble: Option<String>,
    pub(crate) is_colored: bool,
}

impl Model {
    pub(crate) fn new(first: Sample, sort: Sort, tenant: Option<String>) -> Model {
        Model {
            samples: [first.clone(), first],
            sort,
            tenant,
            paused: false,
            help: false,
            scrolled: 0,
            trouble: None,
            is_colored: false,
        }
    }

    /// Adds the daemon's answer. The sample before stays the start of the interval, also if another
    /// process counts now: see [`View::between`].
    pub(crate) fn add(&mut self, sample: Sample) {
        self.trouble = None;
        self.samples.swap(0, 1);
        self.samples[1] = sample;
    }

    /// Handles a key. Returns whether the view goes on.
    pub(crate) fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Quit => return false,
            Key::Sort => self.sort = self.sort.next(),
            Key::Pause => self.paused = !self.paused,
            Key::Help => self.help = !self.help,
            Key::Tenant => self.tenant = self.next_tenant(),
            Key::Scroll(rows) => {
                let most = self.view().methods.len().saturating_sub(1);
                let to = self.scrolled.saturating_add_signed(rows.into());
                self.scrolled = to.min(most);
            }
        }
        true
    }

    /// The next tenant to show: all, then each by name.
    fn next_tenant(&self) -> Option<String> {
        let now = &self.samples[1];
        let of_calls = now
            .durations
            .keys()
            .filter_map(|calls| calls.tenant.as_ref());
        let of_policies = now.policies.keys().filter_map(|v| v.tenant.as_ref());
        let names = of_calls.chain(of_policies);
        let later = names.filter(|name| Some(*name) > self.tenant.as_ref());
        later.min().cloned()
    }

    pub(crate) fn view(&self) -> View {
        let [before, now] = &self.samples;
        let mut view = View::between(before, now, self.tenant.as_deref());
        view.sort(self.sort);
        view
    }

    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let (area, view) = (frame.area(), self.view());
        let methods = table::methods(&view, self.sort);
        let policies = table::policies(&view, self.sort);
        let runtimes = table::runtimes(&view);
        let part = |rows: usize| match area.height < SMALL {
            true => 0,
            // The heading, and an empty line before it.
            false => {
                (area.height / 4).min(u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2))
            }
        };
        let [header, above, middle, below, footer] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(0),
            Constraint::Length(part(view.policies.len())),
            Constraint::Length(part(view.runtimes.len())),
            Constraint::Length(u16::from(area.height > 3)),
        ])
        .areas(area);
        let lines = table::header(&view).map(|line| Line::styled(line, self.bold(Color::Cyan)));
        frame.render_widget(Paragraph::new(lines.to_vec()), header);
        let last = view.methods.len().saturating_sub(1);
        self.show(frame, above, &methods, self.scrolled.min(last));
        self.show(frame, middle, &policies, 0);
        self.show(frame, below, &runtimes, 0);
        frame.render_widget(self.footer(), footer);
        if self.help {
            self.show_help(frame, area);
        }
    }

    fn show(&self, frame: &mut Frame<'_>, area: Rect, table: &Table, skipped: usize) {
        let (heading, lines) = table.lines(area.width.into());
        let heading = Line::styled(heading, self.bold(Color::Yellow));
        let rows = lines.into_iter().skip(skipped).map(Line::raw);
        let all: Vec<_> = std::iter::once(heading).chain(rows).collect();
        frame.render_widget(Paragraph::new(all), area);
    }

    fn footer(&self) -> Line<'_> {
        let plain = |text: String| Span::raw(text);
        let tenant = self.tenant.as_deref().unwrap_or("all");
        let state = format!("sort {}, tenant {}", self.sort.name(), shown(tenant));
        let mut spans = Vec::new();
        if let Some(trouble) = &self.trouble {
            let text = format!("STALE, trying again: {} ", shown(trouble));
            spans.push(Span::styled(text, self.bold(Color::Red)));
        }
        if self.paused {
            spans.push(Span::styled("PAUSED ", self.bold(Color::Yellow)));
        }
        spans.push(plain(format!("{state}  {KEYS}")));
        Line::from(spans)
    }

    fn show_help(&self, frame: &mut Frame<'_>, area: Rect) {
        let width = HELP.iter().map(|line| line.chars().count()).max();
        let width = u16::try_from(width.unwrap_or(0) + 2).unwrap_or(u16::MAX);
        let wanted = Rect::new(
            area.x + area.width.saturating_sub(width) / 2,
            area.y + 2,
            width,
            HELP.len() as u16 + 2,
        );
        let place = wanted.intersection(area);
        frame.render_widget(Clear, place);
        let lines: Vec<_> = HELP.iter().map(|line| Line::raw(*line)).collect();
        let block = Block::bordered().title("Keys");
        frame.render_widget(Paragraph::new(lines).block(block), place);
    }

    fn bold(&self, color: Color) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        match self.is_colored {
            true => style.fg(color),
            false => style,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;
    use crate::top::rows::tests::report;

    fn model() -> Model {
        let [before, now] = [(3_000_000_000, 1_000, 100), (5_000_000_000, 2_000, 150)]
            .map(|(at, fine, denied)| Sample::of(&report(at, fine, denied)));
        let mut model = Model::new(before, Sort::Cpu, None);
        model.add(now);
        model
    }

    /// The lines of the frame.
    fn drawn(model: &Model, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| model.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_frame_has_all_parts() {
        let lines = drawn(&model(), 90, 20);
        let expected = "\
tollgate top: a 0.1.0, up 5s, sessions 3, services 1, links 1/2, calls in flight 5
made here: 1025/s, 25.0 errors/s, 25.0 denied/s; served here: 500/s, 0.0 errors/s, 0.0 den
METHOD           tenant  side    calls/s▼  errors   p50   p99  denied/s
hotel.Echo/Echo  acme    client       525    4.8%  90us  23ms      25.0
hotel.Echo/Echo  acme    server       500    0.0%  90us  23ms       0.0
hotel.Echo/Echo  bank    client       500    0.0%  90us  23ms       0.0






POLICY  tenant       CPU▼  calls/s  denied/s  refused/s  faults
acl@2   acme        5.00%      525      25.0        0.0       0
acl@2   (provider)  0.00%      0.0       0.0        0.0       0

RUNTIME  █ busy, ▒ spins, · sleeps  busy  spins  sleeps
0        ██████▒▒▒▒··········        30%    20%     50%

sort cpu, tenant all  q quit  s sort  t tenant  p pause  ? help";
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn keys_change_what_is_shown() {
        let mut model = model();
        assert!(model.press(Key::Tenant) && model.press(Key::Sort) && model.press(Key::Pause));
        let lines = drawn(&model, 90, 20).join("\n");
        assert!(lines.contains("PAUSED sort rate, tenant acme"), "{lines}");
        assert!(
            !lines.contains("bank") && !lines.contains("(provider)"),
            "{lines}"
        );
        assert!(model.press(Key::Tenant) && model.press(Key::Tenant));
        assert_eq!(model.tenant, None);
        for _ in 0..5 {
            assert!(model.press(Key::Scroll(1)));
        }
        let lines = drawn(&model, 90, 20);
        assert!(
            lines[3].contains("bank") && lines[4].is_empty(),
            "{lines:?}"
        );
        assert!(model.press(Key::Scroll(-10)));
        assert_eq!(model.scrolled, 0);
        assert!(model.press(Key::Help));
        assert!(drawn(&model, 90, 20).join("\n").contains("Ctrl-C  quit"));
        assert!(!model.press(Key::Quit));
    }

    #[test]
    fn what_is_wrong_is_said_until_it_is_not() {
        let mut model = model();
        model.trouble = Some("no daemon answers".to_owned());
        let lines = drawn(&model, 90, 20).join("\n");
        assert!(
            lines.contains("STALE, trying again: no daemon answers "),
            "{lines}"
        );
        assert!(lines.contains("hotel.Echo/Echo"), "{lines}");
        let mut other = report(1_000_000_000, 7, 1);
        other["pid"] = json!(8);
        model.add(Sample::of(&other));
        let lines = drawn(&model, 90, 20).join("\n");
        assert!(
            lines.contains("up 1s") && !lines.contains("trying again"),
            "{lines}"
        );
        assert!(lines.contains("made here: 0.0/s"), "{lines}");
    }

    #[test]
    fn no_terminal_is_too_small() {
        let mut model = model();
        for help in [false, true] {
            model.help = help;
            for width in [1, 2, 7, 30, 300] {
                for height in 1..30 {
                    let lines = drawn(&model, width, height);
                    assert!(lines[0].starts_with('t'), "{width}x{height}: {lines:?}");
                }
            }
        }
        model.help = false;
        // The methods are shown in any case.
        assert!(drawn(&model, 90, 5)[3].starts_with("hotel.Echo/Echo  acme"));
    }

    #[test]
    fn colors_can_be_left_out() {
        for is_colored in [false, true] {
            let mut model = model();
            model.is_colored = is_colored;
            let mut terminal = Terminal::new(TestBackend::new(90, 20)).unwrap();
            terminal.draw(|frame| model.draw(frame)).unwrap();
            let cells = terminal.backend().buffer().content();
            let has_any = cells.iter().any(|cell| cell.fg != Color::Reset);
            assert_eq!(has_any, is_colored);
        }
    }
}

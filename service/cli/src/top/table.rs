//! Rows as text in columns, for a terminal, a pipe or a test.
//!
//! The first column is as wide as there is room, down to a minimum, and cut off with `…`; the
//! others are as wide as their contents. The caller cuts off a line that is too long.

use crate::render::age;
use crate::top::args::Sort;
use crate::top::rows::View;
use crate::top::sample::Side;

/// The narrowest first column, in characters.
const NAME_CHARS: usize = 12;

/// Characters of a runtime's bar.
const BAR_CHARS: usize = 20;

/// A heading and lines. All columns have numbers, except the first and those in `left`.
pub(crate) struct Table {
    headings: Vec<String>,
    left: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The heading and the rows, with each cell padded to its column, in `width` characters if
    /// possible.
    pub(crate) fn lines(&self, width: usize) -> (String, Vec<String>) {
        let all = || std::iter::once(&self.headings).chain(&self.rows);
        let mut widths = vec![0; self.headings.len()];
        for row in all() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
        let room = width.saturating_sub(others).max(NAME_CHARS);
        if let Some(name) = widths.first_mut() {
            *name = (*name).min(room);
        }
        let mut lines = all().map(|row| self.line(row, &widths));
        (lines.next().unwrap_or_default(), lines.collect())
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let cell = cut(cell, *width);
            let padding = " ".repeat(width - cell.chars().count());
            match column <= self.left {
                true => line.extend([&*cell, &*padding]),
                false => line.extend([&*padding, &*cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

fn cut(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(chars.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn headings(names: &[&str], sorted: &str) -> Vec<String> {
    let mark = |name: &&str| match *name == sorted {
        true => format!("{name}▼"),
        false => (*name).to_owned(),
    };
    names.iter().map(mark).collect()
}

/// The daemon, the number of calls, and the tenants.
pub(crate) fn header(view: &View) -> [String; 2] {
    let now = &view.now;
    let of = |side| {
        let [calls, errors, denied] = view.sums(side).map(|count| rate(view.per_second(count)));
        format!("{calls}/s, {errors} errors/s, {denied} denied/s")
    };
    [
        format!(
            "tollgate top: {} {}, up {}, sessions {}, services {}, links {}/{}, calls in flight {}",
            now.name,
            now.version,
            age(view.up()),
            now.sessions,
            now.services,
            now.ready_links,
            now.links,
            now.live_calls
        ),
        format!(
            "made here: {}; served here: {}",
            of(Side::Client),
            of(Side::Server)
        ),
    ]
}

pub(crate) fn methods(view: &View, sort: Sort) -> Table {
    let sorted = match sort {
        Sort::Rate | Sort::Cpu => "calls/s",
        Sort::P99 => "p99",
        Sort::Denials => "denied/s",
    };
    let names = [
        "METHOD", "tenant", "side", "calls/s", "errors", "p50", "p99", "denied/s",
    ];
    let rows = view.methods.iter().map(|row| {
        let errors = match row.calls {
            0 => "-".to_owned(),
            calls => format!("{:.1}%", row.errors as f64 / calls as f64 * 100.0),
        };
        vec![
            row.method.clone(),
            row.tenant.clone().unwrap_or_else(|| "-".to_owned()),
            row.side.name().to_owned(),
            rate(view.per_second(row.calls)),
            errors,
            row.p50_s.map_or_else(|| "-".to_owned(), time),
            row.p99_s.map_or_else(|| "-".to_owned(), time),
            rate(view.per_second(row.denied)),
        ]
    });
    Table {
        headings: headings(&names, sorted),
        left: 2,
        rows: rows.collect(),
    }
}

pub(crate) fn policies(view: &View, sort: Sort) -> Table {
    let sorted = match sort {
        Sort::Rate => "calls/s",
        Sort::P99 | Sort::Cpu => "CPU",
        Sort::Denials => "denied/s",
    };
    let names = [
        "POLICY",
        "tenant",
        "CPU",
        "calls/s",
        "denied/s",
        "refused/s",
        "faults",
    ];
    let rows = view.policies.iter().map(|row| {
        let owner = row.tenant.clone();
        let state = if row.is_quarantined {
            " QUARANTINED"
        } else {
            ""
        };
        vec![
            format!("{}{state}", row.policy),
            owner.unwrap_or_else(|| "(provider)".to_owned()),
            format!("{:.2}%", row.cpu * 100.0),
            rate(view.per_second(row.calls)),
            rate(view.per_second(row.denied)),
            rate(view.per_second(row.refused)),
            row.total.faults.to_string(),
        ]
    });
    Table {
        headings: headings(&names, sorted),
        left: 1,
        rows: rows.collect(),
    }
}

pub(crate) fn runtimes(view: &View) -> Table {
    let names = [
        "RUNTIME",
        "█ busy, ▒ spins, · sleeps",
        "busy",
        "spins",
        "sleeps",
    ];
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let rows = view.runtimes.iter().map(|row| {
        vec![
            row.runtime.to_string(),
            bar(row.busy, row.spinning),
            percent(row.busy),
            percent(row.spinning),
            percent(row.sleeping),
        ]
    });
    Table {
        headings: headings(&names, ""),
        left: 1,
        rows: rows.collect(),
    }
}

/// All three tables as text, for output without a screen.
pub(crate) fn plain(view: &View, sort: Sort) -> String {
    let mut text = String::new();
    for line in header(view) {
        text.extend([&*line, "\n"]);
    }
    for table in [methods(view, sort), policies(view, sort), runtimes(view)] {
        let (heading, lines) = table.lines(usize::MAX);
        text.extend(["\n", &*heading, "\n"]);
        for line in lines {
            text.extend([&*line, "\n"]);
        }
    }
    text
}

/// The shares of a runtime's states, distinguishable without colour.
fn bar(busy: f64, spinning: f64) -> String {
    let cells = |share: f64| (share * BAR_CHARS as f64).round() as usize;
    let busy = cells(busy).min(BAR_CHARS);
    let spinning = cells(spinning).min(BAR_CHARS - busy);
    let sleeping = BAR_CHARS - busy - spinning;
    ["█".repeat(busy), "▒".repeat(spinning), "·".repeat(sleeping)].concat()
}

/// A rate with about three digits.
fn rate(per_second: f64) -> String {
    match per_second {
        n if n < 100.0 => format!("{n:.1}"),
        n if n < 10_000.0 => format!("{n:.0}"),
        n if n < 10_000_000.0 => format!("{:.1}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// A duration with two or three digits.
fn time(seconds: f64) -> String {
    let (number, unit) = match seconds {
        0.0 => return "0".to_owned(),
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    match number < 10.0 {
        true => format!("{number:.1}{unit}"),
        false => format!("{number:.0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rows::tests::view;

    #[test]
    fn an_interval_reads_as_a_table() {
        let mut view = view(None);
        view.sort(Sort::Cpu);
        let expected = "\
tollgate top: a 0.1.0, up 5s, sessions 3, services 1, links 1/2, calls in flight 5
made here: 1025/s, 25.0 errors/s, 25.0 denied/s; served here: 500/s, 0.0 errors/s, 0.0 denied/s

METHOD           tenant  side    calls/s▼  errors   p50   p99  denied/s
hotel.Echo/Echo  acme    client       525    4.8%  90us  23ms      25.0
hotel.Echo/Echo  acme    server       500    0.0%  90us  23ms       0.0
hotel.Echo/Echo  bank    client       500    0.0%  90us  23ms       0.0

POLICY  tenant       CPU▼  calls/s  denied/s  refused/s  faults
acl@2   acme        5.00%      525      25.0        0.0       0
acl@2   (provider)  0.00%      0.0       0.0        0.0       0

RUNTIME  █ busy, ▒ spins, · sleeps  busy  spins  sleeps
0        ██████▒▒▒▒··········        30%    20%     50%
";
        assert_eq!(plain(&view, Sort::Cpu), expected);
    }

    #[test]
    fn a_quarantined_policy_says_so_whether_it_has_evaluated_calls_or_not() {
        use crate::top::rows::tests::report;
        use crate::top::sample::Sample;

        let mut now = report(5_000_000_000, 2_000, 150);
        now["quarantined"] = serde_json::json!([
            {"tenant": "acme", "name": "acl", "version": "2"}, {"tenant": "bank", "name": "quota", "version": "1"}, 7,
        ]);
        let before = Sample::of(&report(3_000_000_000, 1_000, 100));
        let mut view = View::between(&before, &Sample::of(&now), None);
        view.sort(Sort::Cpu);
        let shown = policies(&view, Sort::Cpu).lines(usize::MAX).1.join("\n");
        let expected = "\
acl@2 QUARANTINED    acme        5.00%      525      25.0        0.0       0
acl@2                (provider)  0.00%      0.0       0.0        0.0       0
quota@1 QUARANTINED  bank        0.00%      0.0       0.0        0.0       0";
        assert_eq!(shown, expected);
        assert_eq!(view.json()["policies"][0]["quarantined"], true);
    }

    #[test]
    fn numbers_are_short() {
        let rates = [0.0, 9.96, 150.4, 99_950.0, 2.5e7].map(rate);
        assert_eq!(rates, ["0.0", "10.0", "150", "100.0k", "25.0M"]);
        let times = [0.0, 1.5e-9, 8.56e-5, 0.0021, 0.5, 12.0].map(time);
        assert_eq!(times, ["0", "0.0us", "86us", "2.1ms", "500ms", "12s"]);
        assert_eq!(bar(0.99, 0.5), "█".repeat(BAR_CHARS));
        assert_eq!(bar(f64::NAN, f64::INFINITY), "▒".repeat(BAR_CHARS));
    }

    #[test]
    fn the_name_gives_way_first() {
        let table = methods(&view(None), Sort::P99);
        let (heading, lines) = table.lines(67);
        assert!(
            heading.starts_with("METHOD") && heading.contains("p99▼"),
            "{heading}"
        );
        assert!(lines[0].starts_with("hotel.Echo/…"), "{lines:?}");
        // The width isn't enough even for that.
        assert!(table.lines(20).1[0].starts_with("hotel.Echo/…  acme"));
    }
}

//! The claims, and the tables.

use serde_json::{Value, json};
use std::fmt::Write;

use crate::bind::{Binds, COMPILED, SERVING, STEPS};
use crate::calls::Calls;
use crate::schemas::Size;

/// Median, minimum and maximum.
#[derive(Clone, Copy)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<_> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Spread {
            median: quantile(&sorted, 0.5),
            min,
            max,
        })
    }

    fn show(self, digits: usize) -> String {
        let Spread { median, min, max } = self;
        format!("{median:.digits$} [{min:.digits$}-{max:.digits$}]")
    }
}

/// The smallest of sorted values that the fraction `q` of them doesn't exceed.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

/// p50 and p99.
fn percentiles(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut sorted: Vec<_> = values.collect();
    sorted.sort_by(f64::total_cmp);
    (quantile(&sorted, 0.5), quantile(&sorted, 0.99))
}

/// The contenders that an operation is compared with.
struct Rival {
    operation: &'static str,
    /// The better of these counts.
    executors: &'static [&'static str],
    /// Machine code takes at most this many times the rival's time.
    at_most: f64,
}

const RIVALS: [Rival; 4] = [
    Rival {
        operation: "gather",
        executors: &["by hand"],
        at_most: 1.3,
    },
    Rival {
        operation: "accept",
        executors: &["by hand"],
        at_most: 1.3,
    },
    Rival {
        operation: "encode",
        executors: &["prost"],
        at_most: 0.5,
    },
    Rival {
        operation: "decode",
        executors: &["prost", "prost, reused"],
        at_most: 0.5,
    },
];

/// The tables of one run.
pub(crate) fn markdown(binds: &[Binds], calls: &[Calls]) -> String {
    let mut text = String::from("## Marshalling: claims\n\n");
    text.push_str("| claim | measured | bar | |\n|---|---|---|---|\n");
    for (what, measured, shown, bar) in bind_claims(binds).chain(call_claims(calls)) {
        let verdict = if measured <= bar {
            "holds"
        } else {
            "**falls short**"
        };
        line(
            &mut text,
            format_args!("| {what} | {shown} | <= {bar} | {verdict} |"),
        );
    }
    text.push('\n');
    bind_table(&mut text, binds);
    for rival in &RIVALS {
        rival_table(&mut text, rival, calls);
    }
    interpreter_table(&mut text, calls);
    text
}

type Claimed = (String, f64, String, f64);

fn bind_claims(binds: &[Binds]) -> impl Iterator<Item = Claimed> {
    binds.iter().flat_map(|binds| {
        let how = if binds.cold { "cold" } else { "warm" };
        let size = name(binds.size);
        let bar = match binds.size {
            Size::Hotel => 300.0,
            Size::Large => 20_000.0,
        };
        let (p50, p99) = percentiles(binds.each.iter().map(|times| times[SERVING]));
        let (known50, known99) = percentiles(binds.known.iter().copied());
        let claim = |what: String, p50: f64, p99: f64, bar| {
            (what, p50, format!("{p50:.0} (p99 {p99:.0})"), bar)
        };
        // Each pair of functions is compiled at its first call.
        let code = (COMPILED..STEPS.len()).map(|step| {
            let (p50, p99) = percentiles(binds.each.iter().map(|times| times[step]));
            let what = STEPS[step];
            claim(
                format!("{size}, {how}: p50 of machine code for {what}, us"),
                p50,
                p99,
                3_000.0,
            )
        });
        let serving = claim(
            format!("{size}, {how}: p50 from set to serving, us"),
            p50,
            p99,
            bar,
        );
        let known = (!binds.known.is_empty()).then(|| {
            claim(
                format!("{size}: p50 to find a known set, us"),
                known50,
                known99,
                50.0,
            )
        });
        let all: Vec<_> = std::iter::once(serving).chain(code).chain(known).collect();
        all
    })
}

fn call_claims(calls: &[Calls]) -> impl Iterator<Item = Claimed> {
    RIVALS.iter().filter_map(|rival| {
        let worst = messages(calls, rival.operation)
            .filter_map(|message| Some((message, ratio(calls, message, rival)?)))
            .max_by(|a, b| a.1.median.total_cmp(&b.1.median))?;
        let (message, ratio) = worst;
        Some((
            format!(
                "{}: time relative to {}, worst message",
                rival.operation, rival.executors[0]
            ),
            ratio.median,
            format!("{} ({message})", ratio.show(2)),
            rival.at_most,
        ))
    })
}

fn bind_table(text: &mut String, binds: &[Binds]) {
    text.push_str("## Marshalling: binding\n\nMicroseconds, p50 (p99). Every schema is new; cold ones are bound by a process that has done nothing before.\n\n");
    line(
        text,
        format_args!("| schema | {} | a known set |", STEPS.join(" | ")),
    );
    line(
        text,
        format_args!("|---|{}---|", "---|".repeat(STEPS.len())),
    );
    for binds in binds {
        let how = if binds.cold { "cold" } else { "warm" };
        let (count, bytes) = (binds.each.len(), binds.set_bytes);
        let mut row = format!(
            "| {}, {how} ({count} schemas, {bytes} B) ",
            name(binds.size)
        );
        for step in 0..STEPS.len() {
            let (p50, p99) = percentiles(binds.each.iter().map(|times| times[step]));
            row.push_str(&format!("| {p50:.0} ({p99:.0}) "));
        }
        if binds.known.is_empty() {
            row.push_str("| - |");
        } else {
            let (p50, p99) = percentiles(binds.known.iter().copied());
            row.push_str(&format!("| {p50:.0} ({p99:.0}) |"));
        }
        line(text, format_args!("{row}"));
    }
    text.push('\n');
}

fn rival_table(text: &mut String, rival: &Rival, calls: &[Calls]) {
    let instructions = instructions();
    let (operation, against) = (rival.operation, rival.executors.join(" or "));
    line(
        text,
        format_args!(
            "## Marshalling: {operation}\n\nNanoseconds per call, median [least-most]; the ratio is machine code's time to the better of {against}, within a repetition.\n"
        ),
    );
    let others = rival.executors.join(", ns | ");
    line(
        text,
        format_args!(
            "| message | machine code, ns | {others}, ns | ratio | instructions | of {} |",
            rival.executors.join(" | of ")
        ),
    );
    line(
        text,
        format_args!(
            "|---|---|---|---|---|---|{}",
            "---|---|".repeat(rival.executors.len() - 1)
        ),
    );
    for message in messages(calls, operation) {
        let ns = |executor| match find(calls, message, operation, executor) {
            Some(found) => {
                Spread::of(found.ns.iter().copied()).map_or("-".to_owned(), |s| s.show(1))
            }
            None => "-".to_owned(),
        };
        let count = |executor: &str| {
            let count = instructions[format!("{message} {operation}, {executor}")].as_f64();
            count.map_or("-".to_owned(), |count| format!("{count:.0}"))
        };
        let mut row = format!("| {message} | {} ", ns("machine code"));
        for executor in rival.executors {
            row.push_str(&format!("| {} ", ns(executor)));
        }
        let ratio = ratio(calls, message, rival).map_or("-".to_owned(), |ratio| ratio.show(2));
        row.push_str(&format!("| {ratio} | {} ", count("machine code")));
        for executor in rival.executors {
            row.push_str(&format!("| {} ", count(executor)));
        }
        line(text, format_args!("{row}|"));
    }
    text.push('\n');
}

fn interpreter_table(text: &mut String, calls: &[Calls]) {
    text.push_str("## Marshalling: the interpreter\n\nNanoseconds per call, median [least-most], beside machine code's.\n\n| message | operation | interpreter | machine code |\n|---|---|---|---|\n");
    for interpreted in calls.iter().filter(|c| c.executor == "interpreter") {
        let (message, operation) = (interpreted.message, interpreted.operation);
        let compiled = find(calls, message, operation, "machine code");
        let show = |calls: Option<&Calls>| {
            let spread = calls.and_then(|calls| Spread::of(calls.ns.iter().copied()));
            spread.map_or("-".to_owned(), |spread| spread.show(1))
        };
        let (interpreted, compiled) = (show(Some(interpreted)), show(compiled));
        line(
            text,
            format_args!("| {message} | {operation} | {interpreted} | {compiled} |"),
        );
    }
}

/// Machine code's time relative to the rival's, within each repetition.
fn ratio(calls: &[Calls], message: &str, rival: &Rival) -> Option<Spread> {
    let ours = find(calls, message, rival.operation, "machine code")?;
    let theirs: Vec<_> = rival
        .executors
        .iter()
        .filter_map(|executor| find(calls, message, rival.operation, executor))
        .collect();
    let ratio = |(i, ours): (usize, &f64)| {
        let best = theirs
            .iter()
            .map(|calls| calls.ns[i])
            .fold(f64::INFINITY, f64::min);
        ours / best
    };
    Spread::of(ours.ns.iter().enumerate().map(ratio))
}

fn find<'c>(
    calls: &'c [Calls],
    message: &str,
    operation: &str,
    executor: &str,
) -> Option<&'c Calls> {
    let mut found = calls.iter();
    found.find(|c| (c.message, c.operation, c.executor) == (message, operation, executor))
}

fn messages<'c>(calls: &'c [Calls], operation: &'c str) -> impl Iterator<Item = &'static str> + 'c {
    let of = calls.iter().filter(move |c| c.operation == operation);
    of.filter(|c| c.executor == "machine code")
        .map(|c| c.message)
}

/// The counts that CI keeps.
fn instructions() -> Value {
    let kept = include_str!("../../../../instructions.json");
    let mut kept: Value = serde_json::from_str(kept).unwrap_or_default();
    kept["instructions_per_call"].take()
}

fn name(size: Size) -> &'static str {
    match size {
        Size::Hotel => "hotel service",
        Size::Large => "500 messages",
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a String takes all that is written");
}

/// Every schema's times.
pub(crate) fn binds_json(binds: &[Binds]) -> Value {
    let each = binds.iter().map(|binds| {
        json!({
            "schema": name(binds.size),
            "cold": binds.cold,
            "set_bytes": binds.set_bytes,
            "steps": STEPS,
            "us": binds.each,
            "known_set_us": binds.known,
        })
    });
    each.collect()
}

/// Every repetition's times.
pub(crate) fn calls_json(calls: &[Calls]) -> Value {
    let each = calls.iter().map(|calls| {
        json!({
            "message": calls.message,
            "operation": calls.operation,
            "executor": calls.executor,
            "ns": calls.ns,
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(quantile(&sorted, 0.5), 100.0);
        assert_eq!(quantile(&sorted, 0.99), 198.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_ratio_is_taken_within_a_repetition_to_the_better_rival() {
        let calls = |executor, ns: &[f64]| Calls {
            message: "M",
            operation: "decode",
            executor,
            ns: ns.to_vec(),
        };
        let all = [
            calls("machine code", &[10.0, 100.0]),
            calls("prost", &[40.0, 800.0]),
            calls("prost, reused", &[50.0, 400.0]),
        ];
        let ratio = ratio(&all, "M", &RIVALS[3]);
        let (median, max) = (ratio.map(|r| r.median), ratio.map(|r| r.max));
        assert_eq!((median, max), (Some(0.25), Some(0.25)));
        let text = markdown(&[], &all);
        assert!(text.contains("| decode: time relative to prost, worst message | 0.25 [0.25-0.25] (M) | <= 0.5 | holds |"), "{text}");
    }
}

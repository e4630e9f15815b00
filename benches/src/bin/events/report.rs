//! From samples to tables and verdicts. Pure: samples in, text and JSON out.

use serde_json::{Value, json};
use tollgate_benches::figures::{Spread, field, line, machine_lines};

use crate::model::{
    AFTERMATH_NS, CRASH, EVENTS, Event, FAILED, HUNG, LIMIT, ROLLING, SWAP, Sample, UPGRADE,
    UPGRADE_CALLER, UPGRADE_SERVER,
};
use crate::plot::Picture;
use crate::recording::MS;

/// A claim about the samples of some events.
struct Claim {
    events: &'static [&'static Event],
    text: &'static str,
    bar: &'static str,
    evaluate: fn(&Sample) -> Option<(String, bool)>,
}

const EVERY_UPGRADE: &[&Event] = &[&UPGRADE, &UPGRADE_CALLER, &UPGRADE_SERVER];

const CLAIMS: [Claim; 11] = [
    Claim {
        events: &[&SWAP],
        text: "no call is lost, duplicated, judged not at all or twice on one way, or fails",
        bar: "0, 0, 0, 0",
        evaluate: |sample| none_of(sample, &["lost", "duplicated", "mixed", "errors"]),
    },
    Claim {
        events: &[&SWAP],
        text: "no reply is judged by another version than its request",
        bar: "0",
        evaluate: |sample| none_of(sample, &["crossed"]),
    },
    Claim {
        events: &[&SWAP],
        text: "swaps per second, each with its state",
        bar: ">= 1000, no state lost",
        evaluate: |sample| {
            let rate = sample.spread("swaps_per_s")?;
            let off: f64 = sample.all("state_off").iter().sum();
            let text = match off {
                0.0 => rate.show(0),
                off => format!("{}, {off} judgements forgotten", rate.show(0)),
            };
            Some((text, rate.median >= 1000.0 && off == 0.0))
        },
    },
    Claim {
        events: &[&SWAP],
        text: "the longest gap grows, ms",
        bar: "<= 1",
        evaluate: |sample| {
            let pairs = sample.all("gap_ms").iter().zip(sample.all("quiet_gap_ms"));
            let growth = Spread::of(pairs.map(|(gap, quiet)| gap - quiet).collect())?;
            Some((growth.show(2), growth.median <= 1.0))
        },
    },
    Claim {
        events: &[&LIMIT],
        text: "no call is lost, duplicated, or fails otherwise than by the limit",
        bar: "0, 0, 0",
        evaluate: |sample| none_of(sample, &["lost", "duplicated", "errors"]),
    },
    Claim {
        events: &[&LIMIT],
        text: "the rate follows the limit, and its end, ms: the slowest of all; until it is what it is, where nothing happens",
        bar: "<= 10, or as without",
        evaluate: |sample| {
            let (limit, raise) = (sample.spread("limit_ms")?, sample.spread("raise_ms")?);
            let quiet = sample.spread("quiet_raise_ms")?;
            let text = format!("{}; {}; {}", limit.show(0), raise.show(0), quiet.show(0));
            let bar = quiet.max.max(10.0);
            Some((text, limit.max <= 10.0 && raise.max <= bar))
        },
    },
    Claim {
        events: &[&LIMIT],
        text: "the rate after the policy, to that before",
        bar: "as without, in whiles as far apart",
        evaluate: |sample| {
            let after = sample.spread("after_to_before")?;
            let noise = sample.spread("quiet_after_to_before")?;
            let holds = (noise.min..=noise.max).contains(&after.median);
            Some((format!("{}; {}", after.show(3), noise.show(3)), holds))
        },
    },
    Claim {
        events: EVERY_UPGRADE,
        text: "no call is lost, duplicated, or fails",
        bar: "0, 0, 0",
        evaluate: |sample| none_of(sample, &["lost", "duplicated", "errors"]),
    },
    Claim {
        events: EVERY_UPGRADE,
        text: "the longest gap around an upgrade, ms: p99",
        bar: "<= 20",
        evaluate: |sample| {
            let p99 = percentile(sample.all("gap_ms"), 0.99)?;
            let spread = sample.spread("gap_ms")?.show(1);
            let count = sample.all("gap_ms").len();
            Some((format!("{p99:.1} of {count}: {spread}"), p99 <= 20.0))
        },
    },
    Claim {
        events: &[&FAILED, &HUNG, &ROLLING],
        text: "no call is lost, duplicated, or fails",
        bar: "0, 0, 0",
        evaluate: |sample| none_of(sample, &["lost", "duplicated", "errors"]),
    },
    Claim {
        events: &[&FAILED, &HUNG],
        text: "the longest gap around any of them, ms",
        bar: "<= 20",
        evaluate: |sample| {
            let gap = sample.spread("gap_ms")?;
            let count = sample.all("gap_ms").len();
            Some((
                format!("{:.1} of {count}: {}", gap.max, gap.show(1)),
                gap.max <= 20.0,
            ))
        },
    },
];

/// In a crash, calls may fail.
const OF_CRASHES: [Claim; 2] = [
    Claim {
        events: &[&CRASH],
        text: "each call ends, and none is served twice",
        bar: "0, 0",
        evaluate: |sample| none_of(sample, &["lost", "duplicated"]),
    },
    Claim {
        events: &[&CRASH],
        text: "from the kill to the first reply, ms: the slowest of all",
        bar: "<= 250",
        evaluate: |sample| {
            let again = sample.spread("again_ms")?;
            let count = sample.all("again_ms").len();
            Some((
                format!("{:.0} of {count}: {}", again.max, again.show(0)),
                again.max <= 250.0,
            ))
        },
    },
];

fn claims() -> impl Iterator<Item = &'static Claim> {
    CLAIMS.iter().chain(&OF_CRASHES)
}

fn none_of(sample: &Sample, keys: &[&str]) -> Option<(String, bool)> {
    if sample.all("calls").is_empty() {
        return None;
    }
    let values = keys.iter().map(|key| sample.last(key));
    let values: Vec<f64> = values.collect();
    let text: Vec<_> = values.iter().map(f64::to_string).collect();
    let calls = sample.last("calls");
    let holds = values.iter().all(|value| *value == 0.0);
    Some((format!("{} of {calls}", text.join(", ")), holds))
}

/// The smallest value that this fraction of all values doesn't exceed.
fn percentile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// The errors of a run of any length, on any machine: counts only, no times.
pub(crate) fn wrong(sample: &Sample) -> Vec<String> {
    let mut keys = vec!["lost", "duplicated"];
    let expected = sample.event == &CRASH;
    if !expected {
        keys.push("errors");
    }
    keys.extend(match sample.event {
        event if event == &SWAP => &["mixed", "state_off"][..],
        event if event == &LIMIT => &["over_limit", "refused_late"],
        _ => &[],
    });
    let (event, load) = (sample.event.name, sample.share.name);
    let mut wrong = Vec::new();
    for key in keys {
        let sum: f64 = sample.all(key).iter().sum();
        if sum != 0.0 {
            wrong.push(format!("{event}, {load}: {key} is {sum}, not 0"));
        }
    }
    // If a call outlives many swaps, for example on a machine that stalls, the version in force at
    // the time evaluates it.
    let (crossed, calls) = (sample.last("crossed"), sample.last("calls"));
    if sample.event == &SWAP && crossed * 100.0 > calls {
        wrong.push(format!(
            "{event}, {load}: {crossed} of {calls} replies were judged by another version than their requests"
        ));
    }
    // In one short interval a stalled machine may be the limit.
    if sample.event == &LIMIT && sample.all("refused").iter().all(|refused| *refused == 0.0) {
        wrong.push(format!("{event}, {load}: the limit has refused no call"));
    }
    if let Some((sentence, count)) = sample.failures.iter().next().filter(|_| !expected) {
        wrong.push(format!("{event}, {load}: {count} calls failed: {sentence}"));
    }
    wrong
}

/// Everything as JSON.
pub(crate) fn to_json(run: &Value, samples: &[Sample]) -> Value {
    let verdicts = verdicts(samples).map(|(claim, sample, verdict)| {
        json!({
            "claim": claim.text,
            "event": sample.event.name,
            "load": sample.share.name,
            "measured": verdict.as_ref().map(|(text, _)| text),
            "holds": verdict.as_ref().map(|(_, holds)| holds),
        })
    });
    json!({
        "run": run,
        "claims": verdicts.collect::<Vec<_>>(),
        "samples": samples.iter().map(Sample::to_json).collect::<Vec<_>>(),
    })
}

/// Reads the output of [`to_json`].
pub(crate) fn from_json(json: &Value) -> Vec<Sample> {
    let samples = json["samples"].as_array().map_or(&[][..], Vec::as_slice);
    samples.iter().filter_map(Sample::from_json).collect()
}

type Verdict<'s> = (&'static Claim, &'s Sample, Option<(String, bool)>);

fn verdicts(samples: &[Sample]) -> impl Iterator<Item = Verdict<'_>> {
    let of = |event: &'static Event| samples.iter().filter(move |one| one.event == event);
    let claims = EVENTS.into_iter().flat_map(|event| {
        claims()
            .filter(move |claim| claim.events.contains(&event))
            .map(move |claim| (event, claim))
    });
    claims.flat_map(move |(event, claim)| {
        of(event).map(move |sample| (claim, sample, (claim.evaluate)(sample)))
    })
}

/// Everything as Markdown.
pub(crate) fn to_markdown(run: &Value, samples: &[Sample], pictures: &[Picture]) -> String {
    let mut text = String::from("# What happens to calls when something is changed\n\n");
    line(
        &mut text,
        format_args!(
            "Written by `{}`. Each event happens under a steady load of half of what goes, measured before; and in turns it doesn't. A gap is the \
             time between two replies, whatever the load; around an event it is looked for until {} ms after it. The daemons have no state directory, so no change waits for a disk. Numbers are median [least-most].\n",
            field(run, "command"),
            AFTERMATH_NS / MS,
        ),
    );
    text.push_str(&machine_lines(run));
    text.push_str("| event | load | claim | measured | bar | |\n|---|---|---|---|---|---|\n");
    for (claim, sample, verdict) in verdicts(samples) {
        let (measured, verdict) = match verdict {
            None => ("-".to_owned(), "not measured"),
            Some((measured, true)) => (measured, "holds"),
            Some((measured, false)) => (measured, "**falls short**"),
        };
        let (event, load) = (sample.event.name, sample.share.name);
        let (claim, bar) = (claim.text, claim.bar);
        line(
            &mut text,
            format_args!("| {event} | {load} | {claim} | {measured} | {bar} | {verdict} |"),
        );
    }
    text.push('\n');
    for event in EVENTS {
        let of_it: Vec<_> = samples.iter().filter(|one| one.event == event).collect();
        if !of_it.is_empty() {
            section(&mut text, event, &of_it, pictures);
        }
    }
    text
}

/// The name of a number in the tables, its key, and its digits.
const NUMBERS: [(&str, &str, usize); 12] = [
    ("calls/s that go", "capacity", 0),
    ("offered", "offered", 0),
    ("limit", "limit", 0),
    ("longest gap, ms", "gap_ms", 2),
    ("without, ms", "quiet_gap_ms", 2),
    ("calls stood still, ms", "pause_ms", 2),
    ("swaps/s", "swaps_per_s", 0),
    ("limit followed after, ms", "limit_ms", 0),
    ("its end after, ms", "raise_ms", 0),
    ("with an endless limit, to before", "endless_to_before", 3),
    ("served again after, ms", "again_ms", 1),
    ("of which the daemon's start, ms", "start_ms", 1),
];

fn section(text: &mut String, event: &Event, samples: &[&Sample], pictures: &[Picture]) {
    line(text, format_args!("## {}: {}\n", event.name, event.title));
    if let Some(picture) = pictures.iter().find(|picture| picture.event == event) {
        line(
            text,
            format_args!("![{}]({})\n", event.title, picture.file()),
        );
    }
    let has = |key: &&str| samples.iter().any(|sample| !sample.all(key).is_empty());
    let shown = NUMBERS.iter().filter(|(_, key, _)| has(key));
    let shown: Vec<_> = shown.collect();
    let names: Vec<_> = shown.iter().map(|(name, _, _)| *name).collect();
    line(
        text,
        format_args!(
            "| load | {} | calls | lost | duplicated | errors |\n|{}",
            names.join(" | "),
            "---|".repeat(names.len() + 5)
        ),
    );
    for sample in samples {
        let cell = |&&(_, key, digits): &&(&str, &str, usize)| match sample.all(key) {
            [one] => format!("{one:.digits$}"),
            _ => sample
                .spread(key)
                .map_or("-".to_owned(), |spread| spread.show(digits)),
        };
        let cells: Vec<_> = shown.iter().map(cell).collect();
        let counts = ["calls", "lost", "duplicated", "errors"].map(|key| sample.last(key));
        let [calls, lost, duplicated, errors] = counts;
        let (load, cells) = (sample.share.name, cells.join(" | "));
        line(
            text,
            format_args!("| {load} | {cells} | {calls} | {lost} | {duplicated} | {errors} |"),
        );
    }
    text.push('\n');
    for sample in samples {
        for (sentence, count) in &sample.failures {
            let load = sample.share.name;
            line(text, format_args!("- {load}: {count} times {sentence}"));
        }
    }
    if samples.iter().any(|sample| !sample.failures.is_empty()) {
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::SHARES;
    use crate::recording::Mark;

    fn sample(event: &'static Event, values: &[(&str, &[f64])]) -> Sample {
        let mut sample = Sample::new(event, SHARES[0]);
        for (key, all) in values {
            for value in *all {
                sample.push(key, *value);
            }
        }
        sample
    }

    #[test]
    fn the_report_tells_what_holds_and_what_falls_short() {
        let gaps: Vec<f64> = (1..=100).map(f64::from).map(|gap| gap / 4.9).collect();
        let mut samples = vec![
            sample(
                &SWAP,
                &[
                    ("calls", &[1000.0]),
                    ("mixed", &[3.0]),
                    ("gap_ms", &[3.0, 9.0, 4.0]),
                    ("quiet_gap_ms", &[2.5, 2.0, 3.5]),
                    ("swaps_per_s", &[1005.0]),
                ],
            ),
            sample(&UPGRADE, &[("calls", &[7.0]), ("gap_ms", &gaps)]),
            sample(
                &CRASH,
                &[
                    ("calls", &[7.0]),
                    ("errors", &[5.0]),
                    ("again_ms", &[90.0, 251.0]),
                ],
            ),
        ];
        samples[1].rates = vec![7, 8];
        samples[1].marks = vec![Mark {
            from_ns: 1,
            to_ns: 2,
            what: "upgrade".to_owned(),
        }];
        samples[2].failures.insert("gone".to_owned(), 5);
        let run = json!({"command": "this", "commit": "abc"});
        let text = to_markdown(&run, &samples, &[]);
        for expected in [
            "| swap | 128 in flight | no call is lost, duplicated, judged not at all or twice on one way, or fails | 0, 0, 3, 0 of 1000 | 0, 0, 0, 0 | **falls short** |",
            "| swap | 128 in flight | the longest gap grows, ms | 0.50 [0.50-7.00] | <= 1 | holds |",
            "| 1005 [1005-1005] | >= 1000, no state lost | holds |",
            "| 20.2 of 100: 10.3 [0.2-20.4] | <= 20 | **falls short** |",
            "| upgrade | 128 in flight | no call is lost, duplicated, or fails | 0, 0, 0 of 7 |",
            "| 0, 0 of 7 | 0, 0 | holds |",
            "| 251 of 2: 170 [90-251] | <= 250 | **falls short** |",
            "- 128 in flight: 5 times gone",
            "- Commit: abc",
        ] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
        let json = to_json(&run, &samples);
        let again = from_json(&json);
        assert_eq!(to_markdown(&run, &again, &[]), text);
        assert_eq!(again[1].rates, samples[1].rates);
        assert_eq!(again[1].marks, samples[1].marks);
    }

    #[test]
    fn a_short_run_fails_for_counts_only() {
        let slow = sample(&UPGRADE, &[("calls", &[9.0]), ("gap_ms", &[5e3])]);
        assert_eq!(wrong(&slow), [""; 0]);
        let lost = sample(&UPGRADE_CALLER, &[("calls", &[9.0]), ("lost", &[1.0])]);
        assert_eq!(
            wrong(&lost),
            ["upgrade-caller, 128 in flight: lost is 1, not 0"]
        );
        let failed = sample(&UPGRADE_CALLER, &[("calls", &[9.0]), ("errors", &[1.0])]);
        let errors = "upgrade-caller, 128 in flight: errors is 1, not 0";
        assert_eq!(wrong(&failed), [errors]);
        let crash = sample(&CRASH, &[("calls", &[9.0]), ("errors", &[1.0])]);
        assert_eq!(wrong(&crash), [""; 0]);
        let mut limit = sample(&LIMIT, &[("refused", &[5.0]), ("over_limit", &[0.0, 2.0])]);
        assert_eq!(
            wrong(&limit),
            ["limit, 128 in flight: over_limit is 2, not 0"]
        );
        limit = sample(&LIMIT, &[("refused", &[5.0, 0.0])]);
        assert_eq!(wrong(&limit), [""; 0]);
        limit = sample(&LIMIT, &[("refused", &[0.0, 0.0])]);
        assert_eq!(
            wrong(&limit),
            ["limit, 128 in flight: the limit has refused no call"]
        );
    }

    #[test]
    fn every_event_is_claimed_of() {
        for event in EVENTS {
            assert!(
                claims().any(|claim| claim.events.contains(&event)),
                "{}",
                event.name
            );
        }
    }

    #[test]
    fn a_percentile_is_the_least_that_so_many_are_not_above() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.99), Some(99.0));
        assert_eq!(percentile(&[5.0], 0.99), Some(5.0));
        assert_eq!(percentile(&[], 0.99), None);
    }
}

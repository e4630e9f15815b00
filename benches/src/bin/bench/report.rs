//! From [samples](crate::samples) to tables and verdicts. Pure: samples in, text and JSON out.

use serde_json::{Map, Value, json};
use tollgate_benches::figures::{field, line, machine_lines};

use crate::claim::{Bar, CLAIMS};
use crate::metric::{CPU, Metric};
use crate::plot::Picture;
use crate::samples::{Sample, Samples};
use crate::scenario::{SCENARIOS, Scenario};
use crate::subject::{Subject, TONICS};

/// Everything as JSON: the run's description, all samples, and the results of the claims.
pub(crate) fn to_json(run: &Value, samples: &Samples) -> Value {
    let each = samples.0.iter().map(|sample| {
        let mut entry = Map::new();
        entry.insert("scenario".to_owned(), json!(sample.scenario));
        entry.insert("subject".to_owned(), json!(sample.subject.name()));
        entry.insert("repetition".to_owned(), json!(sample.repetition));
        match &sample.outcome {
            Ok(result) => entry.extend(result.clone()),
            Err(sentence) => drop(entry.insert("failed".to_owned(), json!(sentence))),
        }
        Value::Object(entry)
    });
    let claims = CLAIMS.iter().map(|claim| {
        let spread = samples.claimed(claim);
        json!({
            "claim": claim.text,
            "scenario": claim.scenario,
            "median": spread.map(|spread| spread.median),
            "holds": spread.map(|spread| claim.bar.holds(spread.median)),
        })
    });
    json!({
        "run": run,
        "claims": claims.collect::<Vec<_>>(),
        "samples": each.collect::<Vec<_>>(),
    })
}

/// Everything as Markdown.
pub(crate) fn to_markdown(run: &Value, samples: &Samples, pictures: &[Picture]) -> String {
    let mut text = String::from("# Benchmark results\n\n");
    head(&mut text, run);
    verdicts(&mut text, samples);
    if !pictures.is_empty() {
        text.push_str("## Plots\n\nDots are medians, lines go from the least to the most.\n\n");
    }
    for picture in pictures {
        let (title, file) = (picture.title, picture.file());
        line(&mut text, format_args!("![{title}]({file})\n"));
    }
    for scenario in &SCENARIOS {
        table(&mut text, scenario, samples);
    }
    let failures: Vec<_> = samples.failures().collect();
    if !failures.is_empty() {
        text.push_str("## Failed\n\n");
        for each in failures {
            line(&mut text, format_args!("{}", failure(each)));
        }
    }
    text
}

/// An item of a list.
pub(crate) fn failure((sample, sentence): (&Sample, &str)) -> String {
    let (scenario, subject) = (sample.scenario, sample.subject.name());
    format!("- {scenario}, {subject}: {}", sentence.trim())
}

fn head(text: &mut String, run: &Value) {
    line(
        text,
        format_args!(
            "Written by `make bench` (`bench --record`). {} repetitions of {} s windows after {} s of warm-up, \
             all subjects interleaved and their order rotated; median [least-most]. A ratio is taken within \
             each repetition, to the better of tonic (server on one thread) and tonic-mt (on two). CPU counts user and system time of all processes involved \
             (client, server, both daemons), in ticks of 10 ms.\n",
            field(run, "repetitions"),
            field(run, "secs"),
            field(run, "warmup"),
        ),
    );
    text.push_str(&machine_lines(run));
}

fn verdicts(text: &mut String, samples: &Samples) {
    text.push_str("## Claims\n\n| claim | scenario | measured | bar | |\n|---|---|---|---|---|\n");
    for claim in &CLAIMS {
        let spread = samples.claimed(claim);
        let bar = match claim.bar {
            Bar::Below(bar) => format!("< {}", rounded(bar)),
            Bar::AtLeast(bar) => format!(">= {}", rounded(bar)),
        };
        let (measured, verdict) = match spread {
            None => ("-".to_owned(), "not measured"),
            Some(spread) if claim.bar.holds(spread.median) => (spread.show(2), "holds"),
            Some(spread) => (spread.show(2), "**falls short**"),
        };
        let (claim, scenario) = (claim.text, claim.scenario);
        line(
            text,
            format_args!("| {claim} | {scenario} | {measured} | {bar} | {verdict} |"),
        );
    }
    text.push('\n');
}

/// Rounded to as many digits as necessary, at most three.
fn rounded(bar: f64) -> f64 {
    (bar * 1e3).round() / 1e3
}

fn table(text: &mut String, scenario: &Scenario, samples: &Samples) {
    let measured = |subject: &Subject| {
        let is_this = |s: &&Sample| (s.scenario, s.subject) == (scenario.name, *subject);
        samples.0.iter().any(|sample| is_this(&sample))
    };
    let subjects: Vec<_> = scenario.subjects.iter().copied().filter(measured).collect();
    if subjects.is_empty() {
        return;
    }
    let [first, second] = scenario.metrics;
    let (name, size, inflight) = (scenario.name, scenario.size, scenario.inflight);
    let over = match scenario.sessions {
        1 => String::new(),
        sessions => format!(" over {sessions} sessions"),
    };
    let offered = match scenario.rate {
        0 => String::new(),
        rate => format!("; {rate} calls/s offered"),
    };
    let spinners = match scenario.spinners {
        true => "; a spinner of the idle class on each CPU",
        false => "",
    };
    let placement = scenario.placement.map_or_else(String::new, |placement| {
        format!("; placement {}", placement.describe())
    });
    let beside = scenario.rival.map_or_else(String::new, |rival| {
        let (size, inflight, sessions) = (rival.size, rival.inflight, rival.sessions);
        format!("; beside another tenant's {size} B, {inflight} in flight over {sessions}")
    });
    line(
        text,
        format_args!(
            "## {name}: {size} B, {inflight} in flight{over}{offered}{beside}{spinners}{placement}\n"
        ),
    );
    line(
        text,
        format_args!(
            "| subject | {} | to tonic | {} | {} |\n|---|---|---|---|---|",
            first.title, second.title, CPU.title
        ),
    );
    for subject in subjects {
        let cell = |metric: Metric| {
            let spread = samples.spread(name, subject, metric.key);
            spread.map_or("-".to_owned(), |spread| spread.show(metric.digits))
        };
        let ratio = samples.ratio(name, subject, TONICS, first);
        let ratio = ratio.map_or("-".to_owned(), |ratio| ratio.show(2));
        let cpu = if scenario.once {
            "-".to_owned()
        } else {
            cell(CPU)
        };
        let (subject, first, second) = (subject.name(), cell(first), cell(second));
        line(
            text,
            format_args!("| {subject} | {first} | {ratio} | {second} | {cpu} |"),
        );
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_benches::figures::Spread;
    use tollgate_benches::settings::Wait;

    const TONIC: Subject = TONICS[0];
    const TONIC_MT: Subject = TONICS[1];
    const ACL: Subject = Subject::Tollgate(crate::subject::Policy::Acl);

    fn samples(values: &[(&'static str, Subject, usize, &str, f64)]) -> Samples {
        let sample = |&(scenario, subject, repetition, key, value): &(_, _, _, &str, f64)| {
            let outcome = Ok(Map::from_iter([(key.to_owned(), json!(value))]));
            Sample {
                scenario,
                subject,
                repetition,
                outcome,
            }
        };
        Samples(values.iter().map(sample).collect())
    }

    fn headline(name: &str) -> Metric {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
        scenario.map(|scenario| scenario.metrics[0]).unwrap()
    }

    #[test]
    fn a_ratio_compares_within_a_repetition() {
        // The machine got ten times slower in the second repetition. The ratio stayed the same.
        let samples = samples(&[
            ("rate-hotel", TONIC, 0, "rps", 100.0),
            ("rate-hotel", ACL, 0, "rps", 200.0),
            ("rate-hotel", TONIC, 1, "rps", 10.0),
            ("rate-hotel", ACL, 1, "rps", 20.0),
            // Without a partner it doesn't count.
            ("rate-hotel", ACL, 2, "rps", 1.0),
        ]);
        let ratio = samples.ratio("rate-hotel", ACL, TONICS, headline("rate-hotel"));
        assert_eq!(ratio, Spread::of(vec![2.0, 2.0]));
    }

    #[test]
    fn a_ratio_is_taken_to_the_better_peer() {
        let samples = samples(&[
            ("rate-hotel", TONIC, 0, "rps", 100.0),
            ("rate-hotel", TONIC_MT, 0, "rps", 200.0),
            ("rate-hotel", ACL, 0, "rps", 200.0),
            ("latency-hotel", TONIC, 0, "p50_us", 100.0),
            ("latency-hotel", TONIC_MT, 0, "p50_us", 200.0),
            ("latency-hotel", ACL, 0, "p50_us", 100.0),
        ]);
        for scenario in ["rate-hotel", "latency-hotel"] {
            let ratio = samples.ratio(scenario, ACL, TONICS, headline(scenario));
            assert_eq!(ratio, Spread::of(vec![1.0]), "{scenario}");
        }
    }

    #[test]
    fn the_report_tells_what_holds_what_falls_short_and_what_is_missing() {
        let mut samples = samples(&[
            ("rate-hotel", TONIC, 0, "rps", 100.0),
            ("rate-hotel", ACL, 0, "rps", 299.0),
            ("latency-hotel", TONIC, 0, "p50_us", 80.0),
            ("latency-hotel", ACL, 0, "p50_us", 16.0),
        ]);
        samples.0.push(Sample {
            scenario: "rate-echo",
            subject: Subject::Tcp(Wait::Block),
            repetition: 0,
            outcome: Err("it fell over".to_owned()),
        });
        let run = json!({"repetitions": 1, "commit": "abc"});
        let text = to_markdown(&run, &samples, &[]);
        for expected in [
            "| p50 with the ACL is at most a quarter of tonic's | latency-hotel | 0.20 [0.20-0.20] | < 0.25 | holds |",
            "| rate-hotel | 2.99 [2.99-2.99] | >= 3 | **falls short** |",
            "| bind | - | < 5 | not measured |",
            "| tollgate+acl | 299 [299-299] | 2.99 [2.99-2.99] | - | - |",
            "- Commit: abc",
            "- rate-echo, tcp: it fell over",
        ] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
        let json = to_json(&json!({}), &samples);
        let holds = |scenario: &str| {
            let claim = CLAIMS.iter().position(|claim| claim.scenario == scenario);
            json["claims"][claim.unwrap()]["holds"].clone()
        };
        assert_eq!(holds("latency-hotel"), json!(true));
        assert_eq!(holds("rate-hotel"), json!(false));
        assert_eq!(holds("bind"), Value::Null);
        assert_eq!(json["samples"][4]["failed"], json!("it fell over"));
        let again = Samples::from_json(&json);
        assert_eq!(to_markdown(&run, &again, &[]), text);
    }
}

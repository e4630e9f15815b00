//! From samples to medians, ratios, tables and verdicts. Pure: samples in, text and JSON out.
//!
//! A ratio is taken within a repetition, between two windows that ran seconds apart, and then the
//! median over the repetitions is shown; so a machine that gets slower over minutes doesn't bias it.

use serde_json::{Map, Value, json};
use tollgate_benches::figures::{Spread, field, line, machine_lines};

use crate::plot::Picture;
use crate::scenario::{Bar, CLAIMS, CPU, Claim, Metric, SCENARIOS, Scenario, Subject, TONICS};

/// One window of one subject.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// In which scenario.
    pub(crate) scenario: &'static str,
    /// Of which subject.
    pub(crate) subject: Subject,
    /// In which repetition, from 0.
    pub(crate) repetition: usize,
    /// The client's numbers, or why there are none.
    pub(crate) outcome: Result<Map<String, Value>, String>,
}

/// All samples of a run.
#[derive(Debug, Default)]
pub(crate) struct Samples(pub(crate) Vec<Sample>);

impl Samples {
    /// What [`to_json`] made of samples; without those of scenarios and subjects that there aren't any more.
    pub(crate) fn from_json(json: &Value) -> Samples {
        let sample = |entry: &Value| {
            let is_this = |name: &str, key: &str| entry[key].as_str() == Some(name);
            let scenario = SCENARIOS.iter().find(|s| is_this(s.name, "scenario"))?;
            let mut subjects = Subject::ALL.into_iter();
            let subject = subjects.find(|subject| is_this(subject.name(), "subject"))?;
            Some(Sample {
                scenario: scenario.name,
                subject,
                repetition: usize::try_from(entry["repetition"].as_u64()?).ok()?,
                outcome: match entry["failed"].as_str() {
                    Some(sentence) => Err(sentence.to_owned()),
                    None => Ok(entry.as_object()?.clone()),
                },
            })
        };
        let entries = json["samples"].as_array().map_or(&[][..], Vec::as_slice);
        Samples(entries.iter().filter_map(sample).collect())
    }

    fn value(&self, scenario: &str, subject: Subject, repetition: usize, key: &str) -> Option<f64> {
        let found = self.0.iter().find(|sample| {
            (sample.scenario, sample.subject, sample.repetition) == (scenario, subject, repetition)
        });
        found?.outcome.as_ref().ok()?.get(key)?.as_f64()
    }

    fn repetitions(&self) -> usize {
        self.0
            .iter()
            .map(|sample| sample.repetition + 1)
            .max()
            .unwrap_or(0)
    }

    /// A number over the repetitions.
    pub(crate) fn spread(&self, scenario: &str, subject: Subject, key: &str) -> Option<Spread> {
        let each = 0..self.repetitions();
        Spread::of(
            each.filter_map(|rep| self.value(scenario, subject, rep, key))
                .collect(),
        )
    }

    /// A number divided by the best of other subjects' in the same repetition, over the repetitions.
    pub(crate) fn ratio(
        &self,
        scenario: &str,
        of: Subject,
        to: &[Subject],
        metric: Metric,
    ) -> Option<Spread> {
        self.ratio_to(scenario, of, (&[scenario], to), metric)
    }

    /// As [`ratio`](Self::ratio), to what others have reached in any of these scenarios.
    fn ratio_to(
        &self,
        scenario: &str,
        of: Subject,
        (elsewhere, to): (&[&str], &[Subject]),
        metric: Metric,
    ) -> Option<Spread> {
        let each = 0..self.repetitions();
        let ratio = |rep| {
            let value = self.value(scenario, of, rep, metric.key)?;
            let places = elsewhere
                .iter()
                .flat_map(|at| to.iter().map(move |to| (at, to)));
            let others = places.filter_map(|(at, to)| self.value(at, *to, rep, metric.key));
            let best = others.reduce(if metric.more { f64::max } else { f64::min });
            Some(value / best?)
        };
        Spread::of(each.filter_map(ratio).collect())
    }

    /// The samples that are no numbers.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&Sample, &str)> {
        let failed = |sample: &'_ Sample| sample.outcome.is_err();
        self.0
            .iter()
            .filter(move |sample| failed(sample))
            .map(|sample| {
                let sentence = sample.outcome.as_ref().err();
                (sample, sentence.map_or("", String::as_str))
            })
    }

    fn claimed(&self, claim: &Claim) -> Option<Spread> {
        let scenario = SCENARIOS.iter().find(|s| s.name == claim.scenario)?;
        let metric = claim.metric.unwrap_or(scenario.metrics[0]);
        let same = [claim.scenario];
        let elsewhere = match claim.elsewhere {
            [] => &same[..],
            elsewhere => elsewhere,
        };
        match claim.to {
            [] => self.spread(claim.scenario, claim.subject, metric.key),
            to => self.ratio_to(claim.scenario, claim.subject, (elsewhere, to), metric),
        }
    }
}

/// Everything as JSON: the run's description, all samples, and what the claims came to.
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

/// With as many digits as it takes, three at most.
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
    use tollgate_benches::settings::Wait;

    const TONIC: Subject = TONICS[0];
    const TONIC_MT: Subject = TONICS[1];
    const ACL: Subject = Subject::Tollgate(crate::scenario::Policy::Acl);

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
        // The machine got ten times slower in the second repetition; the ratio didn't.
        let samples = samples(&[
            ("rate-hotel", TONIC, 0, "rps", 100.0),
            ("rate-hotel", ACL, 0, "rps", 200.0),
            ("rate-hotel", TONIC, 1, "rps", 10.0),
            ("rate-hotel", ACL, 1, "rps", 20.0),
            // No partner: doesn't count.
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

//! `bench`: measures Tollgate and the systems compared with it, interleaved in one run.
//!
//! For each repetition, each scenario, each subject in rotated order: start, warm up, measure one
//! window, stop. So changes during a run (heat, neighbours) hit all subjects alike, and ratios are
//! taken within a repetition ([`samples`]). [`scenario`] lists the comparisons, [`claim`] lists the
//! claims, [`stage`] starts and stops the subjects, and [`machine`] describes the machine.
//! `marshal-bench` and `policy-bench` measure the marshalling and the sandbox alone. They run
//! first, one at a time ([`part`]).
//!
//! The program writes `benches/out/`: the samples as JSON, a report, and plots ([`plot`]); with
//! `--record` also `benches/results.json`, `benches/RESULTS.md` and `benches/plots/`, which are
//! committed. A missed claim is reported; it is not an error. A wrong answer, or a subject that
//! can't be measured, is an error: exit status 1.
#![forbid(unsafe_code)]

mod claim;
mod collector;
mod envoy;
mod metric;
mod part;
mod placement;
mod plot;
mod program;
mod report;
mod samples;
mod scenario;
mod stage;
mod subject;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use tollgate_benches::figures::{machine_lines, put};
use tollgate_benches::machine;
use tollgate_benches::measure::exit;

use crate::part::{Found, PARTS, Part, Recorded};
use crate::placement::Placement;
use crate::samples::{Sample, Samples};
use crate::scenario::{SCENARIOS, Scenario};
use crate::stage::{Stage, Window};
use crate::subject::Subject;

/// Measure Tollgate against tonic and raw TCP, interleaved in one run.
#[derive(Debug, Parser)]
struct Args {
    /// Run everything once, too shortly to mean anything: does it work?
    #[arg(long)]
    smoke: bool,
    /// Only scenarios whose name contains this (repeat for more).
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only these subjects, such as `tcp,tonic`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = subject)]
    subjects: Vec<Subject>,
    /// Repetitions.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repetitions: u16,
    /// Seconds of each measured window.
    #[arg(long, default_value_t = 2.0)]
    secs: f64,
    /// Which thread runs where.
    #[arg(long, value_enum, default_value = "free")]
    placement: Placement,
    /// Write benches/results.json, benches/RESULTS.md and benches/plots.
    #[arg(long)]
    record: bool,
    /// Measure nothing: write benches/RESULTS.md and benches/plots anew from benches/results.json.
    #[arg(long, conflicts_with_all = ["smoke", "only", "subjects", "record"])]
    again: bool,
}

fn subject(name: &str) -> Result<Subject, String> {
    let found = Subject::ALL.into_iter().find(|s| s.name() == name);
    let names = Subject::ALL.map(Subject::name).join(", ");
    found.ok_or_else(|| format!("the subjects are {names}"))
}

/// The part of [`SCENARIOS`] that the arguments select, and the length of its windows.
struct Plan {
    chosen: Vec<(&'static Scenario, Vec<Subject>)>,
    repetitions: usize,
    window: Window,
    placement: Placement,
    /// The selected parts that are measured alone.
    parts: Vec<Part>,
}

/// Warm-up before a window, as a fraction of the window.
const WARMUP: f64 = 0.25;

/// The window of a smoke run, and of a scenario that needs only one call, in seconds.
const SHORT_SECS: f64 = 0.1;

impl Plan {
    fn new(args: &Args) -> Result<Plan, String> {
        let takes_part = |subject: &Subject| match args.subjects.is_empty() {
            // Missing subjects are reported.
            true => subject.is_installed(),
            false => args.subjects.contains(subject),
        };
        let named = |scenario: &&Scenario| {
            args.only.is_empty() || args.only.iter().any(|part| scenario.name.contains(part))
        };
        let chosen: Vec<_> = SCENARIOS
            .iter()
            .filter(named)
            .map(|scenario| {
                let subjects = scenario.subjects.iter().copied().filter(takes_part);
                (scenario, subjects.collect::<Vec<_>>())
            })
            .filter(|(_, subjects)| !subjects.is_empty())
            .collect();
        let everything = args.only.is_empty() && args.subjects.is_empty();
        let asked = |part: &Part| args.only.iter().any(|name| part.name.contains(name));
        let parts = PARTS.into_iter().filter(|part| everything || asked(part));
        let parts: Vec<_> = parts.collect();
        if chosen.is_empty() && parts.is_empty() {
            let scenarios = SCENARIOS.iter().map(|scenario| scenario.name);
            let names: Vec<_> = scenarios.chain(PARTS.map(|part| part.name)).collect();
            let names = names.join(", ");
            return Err(format!("nothing to measure; the scenarios are {names}"));
        }
        let secs = if args.smoke { SHORT_SECS } else { args.secs };
        Ok(Plan {
            chosen,
            repetitions: if args.smoke {
                1
            } else {
                args.repetitions.into()
            },
            window: Window {
                secs,
                warmup: secs * WARMUP,
            },
            placement: args.placement,
            parts,
        })
    }

    /// The subjects that are left out because they aren't installed.
    fn missing(&self) -> Vec<&'static str> {
        let all = Subject::ALL.into_iter();
        let missing = all.filter(|subject| !subject.is_installed());
        missing.map(Subject::name).collect()
    }

    fn windows(&self) -> usize {
        let each = self.chosen.iter().map(|(_, subjects)| subjects.len());
        each.sum::<usize>() * self.repetitions
    }

    fn needs_tollgate(&self) -> bool {
        let mut all = self.chosen.iter().flat_map(|(_, subjects)| subjects);
        all.any(|subject| subject.needs_daemons())
    }
}

fn main() -> ExitCode {
    exit("bench", bench(&Args::parse()))
}

fn bench(args: &Args) -> Result<(), String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    if args.again {
        let (json, _) = kept(home)?;
        return write(
            home,
            true,
            &json["run"],
            &Samples::from_json(&json),
            Vec::new(),
        );
    }
    let plan = Plan::new(args)?;
    let missing = plan.missing().join(", ");
    if !missing.is_empty() {
        eprintln!("bench: not measured, because `.ci/peers` hasn't installed them: {missing}");
    }
    let mut run = machine::describe(home);
    for (key, value) in [
        ("repetitions", json!(plan.repetitions)),
        ("secs", json!(plan.window.secs)),
        ("warmup", json!(plan.window.warmup)),
        ("placement", json!(plan.placement.describe())),
        ("missing", json!(missing)),
    ] {
        run[key] = value;
    }
    let out = home.join("out");
    fs::create_dir_all(&out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let parts = plan.parts.iter();
    let found: Vec<Found> = parts
        .map(|part| part::measure(*part, &out, args.smoke))
        .collect::<Result<_, _>>()?;
    let samples = measure(&plan)?;
    run["load_after"] = json!(machine::load());
    write(home, args.record, &run, &samples, found)?;
    let failed: Vec<_> = samples.failures().map(report::failure).collect();
    match &failed[..] {
        [] => Ok(()),
        // Reported once more, because the tables are long.
        failed => Err(format!(
            "{} of {} windows failed:\n{}",
            failed.len(),
            plan.windows(),
            failed.join("\n")
        )),
    }
}

fn measure(plan: &Plan) -> Result<Samples, String> {
    let (began, windows) = (Instant::now(), plan.windows());
    let mut samples = Samples::default();
    for repetition in 0..plan.repetitions {
        let stage = Stage::set(plan.placement, plan.needs_tollgate())?;
        for (scenario, subjects) in &plan.chosen {
            let mut order = subjects.clone();
            order.rotate_left(repetition % subjects.len());
            for subject in order {
                let outcome = stage.measure(scenario, subject, window(plan, scenario));
                let sample = Sample {
                    scenario: scenario.name,
                    subject,
                    repetition,
                    outcome,
                };
                let done = samples.0.len() + 1;
                let seconds = began.elapsed().as_secs();
                eprintln!(
                    "[{seconds:4}s] {done:3}/{windows} {}",
                    progress(scenario, &sample)
                );
                samples.0.push(sample);
            }
        }
    }
    Ok(samples)
}

fn window(plan: &Plan, scenario: &Scenario) -> Window {
    match scenario.once {
        true => Window {
            secs: SHORT_SECS,
            warmup: 0.0,
        },
        // Long enough for a few calls.
        false => Window {
            secs: plan.window.secs * (scenario.gap_us as f64 * 2.5e-6).max(1.0),
            ..plan.window
        },
    }
}

fn progress(scenario: &Scenario, sample: &Sample) -> String {
    let [metric, _] = scenario.metrics;
    let (name, subject) = (scenario.name, sample.subject.name());
    match &sample.outcome {
        Ok(result) => {
            let value = result.get(metric.key).and_then(Value::as_f64);
            let (value, digits) = (value.unwrap_or(f64::NAN), metric.digits);
            format!("{name:18} {subject:13} {value:10.digits$} {}", metric.title)
        }
        Err(sentence) => format!("{name:18} {subject:13} failed: {sentence}"),
    }
}

fn write(
    home: &Path,
    record: bool,
    run: &Value,
    samples: &Samples,
    found: Vec<Found>,
) -> Result<(), String> {
    // Parts that weren't measured this time keep their recorded results.
    let (mut json, recorded) = match record {
        true => kept(home)?,
        false => (json!({}), Recorded::cut("")),
    };
    let mut markdown = recorded.scenarios;
    let pictures = plot::draw(samples)?;
    if !samples.0.is_empty() || !record {
        let mut fresh = report::to_json(run, samples);
        for part in PARTS {
            for key in [part.name.to_owned(), run_of(part)] {
                fresh[&key] = json[&key].take();
            }
        }
        json = fresh;
        markdown = report::to_markdown(run, samples, &pictures);
    }
    for (part, recorded) in PARTS.into_iter().zip(recorded.parts) {
        match found.iter().find(|found| found.part == part) {
            Some(found) => {
                json[part.name] = found.json.clone();
                json[run_of(part)] = run.clone();
                markdown.push_str(&format!("{}\n\n", part.heading));
                markdown.push_str(&machine_lines(run));
                markdown.push_str(&format!("{}\n\n", found.markdown.trim_end()));
            }
            None => markdown.push_str(&recorded),
        }
    }
    let markdown = format!("{}\n", markdown.trim_end());
    let json = serde_json::to_string_pretty(&json).map_err(|error| error.to_string())? + "\n";
    let out = home.join("out");
    for place in [Some(&*out), record.then_some(home)].into_iter().flatten() {
        put(&place.join("results.json"), &json)?;
        put(&place.join("RESULTS.md"), &markdown)?;
        for picture in &pictures {
            put(&place.join(picture.file()), &picture.svg)?;
        }
    }
    println!("{markdown}");
    Ok(())
}

/// The key of the run that measured a part.
fn run_of(part: Part) -> String {
    format!("{}_run", part.name)
}

/// The recorded results.
fn kept(home: &Path) -> Result<(Value, Recorded), String> {
    let read = |name: &str| {
        let path = home.join(name);
        fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let json = serde_json::from_str(&read("results.json")?)
        .map_err(|error| format!("results.json is not JSON: {error}"))?;
    Ok((json, Recorded::cut(&read("RESULTS.md")?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn plan(args: &[&str]) -> Result<Plan, String> {
        let args = ["bench"].iter().chain(args);
        let args = Args::try_parse_from(args).map_err(|error| error.to_string())?;
        Plan::new(&args)
    }

    #[test]
    fn arguments_choose_what_runs() {
        let names = |args: &[&str]| {
            let plan = plan(args).map_err(|error| error.to_owned());
            plan.map(|p| {
                p.chosen
                    .iter()
                    .map(|(s, who)| (s.name, who.len()))
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(
            names(&["--only", "goodput-2m", "--subjects", "tonic,tcp"]),
            Ok(vec![("goodput-2m-echo", 2), ("goodput-2m-hotel", 1)])
        );
        let all = names(&[]).map(|all| all.len());
        assert_eq!(all, Ok(SCENARIOS.len()));
        let parts = |args: &[&str]| {
            let plan = plan(args).map_err(|error| error.to_owned());
            plan.map(|p| p.parts.iter().map(|part| part.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["--only", "marshal"]), Ok(vec![]));
        assert_eq!(parts(&["--only", "marshal"]), Ok(vec!["marshalling"]));
        assert_eq!(parts(&["--only", "sandbox"]), Ok(vec!["sandbox"]));
        assert_eq!(parts(&["--only", "latency"]), Ok(vec![]));
        let error = names(&["--only", "nothing"]).unwrap_err();
        assert!(
            error.starts_with("nothing to measure; the scenarios are bind, "),
            "{error}"
        );
        let error = names(&["--subjects", "grpc"]).unwrap_err();
        assert!(
            error.contains("the subjects are shm, shm-relay, iceoryx2, tcp, tcp-spin, tonic,"),
            "{error}"
        );
    }

    #[test]
    fn a_smoke_run_is_short_and_complete() {
        let plan = plan(&["--smoke"]).unwrap();
        assert_eq!(plan.chosen.len(), SCENARIOS.len());
        assert_eq!(plan.repetitions, 1);
        assert!(plan.window.secs + plan.window.warmup < 0.2);
        assert!(plan.needs_tollgate());
        assert_eq!(plan.parts, PARTS);
    }
}

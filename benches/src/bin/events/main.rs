//! `events`: measures the effect on calls when policies and daemons are changed, or die.
//!
//! For each event ([`event`]): fresh hosts, a load of half of the capacity ([`load`]), and the load
//! with and without the event, in turns. The recordings ([`recording`]) become tables and verdicts
//! ([`report`]) and rates over time ([`plot`]).
//!
//! The program writes `benches/out/`: the samples as JSON, a report, and plots; with `--record`
//! also `benches/events.json`, `benches/EVENTS.md` and `benches/plots/`, which are committed. A
//! missed claim is reported; it is not an error. An event that can't be measured is an error: exit
//! status 1. With `--smoke` a call that was lost, served twice or evaluated twice is an error, too.
#![forbid(unsafe_code)]

mod event;
mod load;
mod model;
mod plot;
mod recording;
mod report;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use tollgate_benches::figures::put;
use tollgate_benches::machine;
use tollgate_benches::measure::exit;

use crate::event::Size;
use crate::model::{EVENTS, Event, Sample};

/// Measure what calls notice when policies and daemons are changed, or die.
#[derive(Debug, Parser)]
struct Args {
    /// Have everything happen a few times, and fail if a call is lost, served twice or evaluated
    /// twice; times are not believed.
    #[arg(long)]
    smoke: bool,
    /// Only events whose name contains this (repeat for more).
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Write benches/events.json, benches/EVENTS.md and benches/plots.
    #[arg(long, conflicts_with_all = ["smoke", "only"])]
    record: bool,
    /// Measure nothing: write benches/EVENTS.md and benches/plots anew from benches/events.json.
    #[arg(long, conflicts_with_all = ["smoke", "only", "record"])]
    again: bool,
}

impl Args {
    fn chosen(&self) -> Result<Vec<&'static Event>, String> {
        let named = |event: &&Event| {
            let is_part = |part: &String| event.name.contains(part.as_str());
            match self.only.is_empty() {
                // The event takes the same time in a short run.
                true => !(self.smoke && event.is_long),
                false => self.only.iter().any(is_part),
            }
        };
        let chosen: Vec<_> = EVENTS.into_iter().filter(named).collect();
        if chosen.is_empty() {
            let names = EVENTS.map(|event| event.name).join(", ");
            return Err(format!("nothing to measure; the events are {names}"));
        }
        Ok(chosen)
    }
}

fn main() -> ExitCode {
    exit("events", events(&Args::parse()))
}

fn events(args: &Args) -> Result<(), String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    if args.again {
        let path = home.join("events.json");
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let json: Value = serde_json::from_str(&text)
            .map_err(|error| format!("events.json is not JSON: {error}"))?;
        return write(home, true, &json["run"], &report::from_json(&json));
    }
    let chosen = args.chosen()?;
    let mut run = machine::describe(home);
    // The build profile has to be visible.
    run["command"] = json!(match cfg!(debug_assertions) {
        true => "target/debug/events --record",
        false => ".ci/events --record",
    });
    let size = if args.smoke { Size::SHORT } else { Size::FULL };
    let (began, mut samples, mut failed) = (Instant::now(), Vec::new(), Vec::new());
    for event in chosen {
        eprintln!("[{:4}s] {}", began.elapsed().as_secs(), event.name);
        match event::measure(event, size) {
            Ok(measured) => samples.extend(measured),
            Err(sentence) => failed.push(format!("{}: {sentence}", event.name)),
        }
    }
    run["load_after"] = json!(machine::load());
    write(home, args.record, &run, &samples)?;
    if args.smoke {
        failed.extend(samples.iter().flat_map(report::wrong));
    }
    match &failed[..] {
        [] => Ok(()),
        failed => Err(failed.join("\n")),
    }
}

fn write(home: &Path, record: bool, run: &Value, samples: &[Sample]) -> Result<(), String> {
    let pictures = plot::draw(samples)?;
    let markdown = report::to_markdown(run, samples, &pictures);
    let markdown = format!("{}\n", markdown.trim_end());
    let json = report::to_json(run, samples);
    let json = serde_json::to_string(&json).map_err(|error| error.to_string())? + "\n";
    let out = home.join("out");
    for place in [Some(&*out), record.then_some(home)].into_iter().flatten() {
        put(&place.join("events.json"), &json)?;
        put(&place.join("EVENTS.md"), &markdown)?;
        for picture in &pictures {
            put(&place.join(picture.file()), &picture.svg)?;
        }
    }
    println!("{markdown}");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn arguments_choose_what_happens() {
        let names = |args: &[&str]| {
            let args = Args::try_parse_from(["events"].iter().chain(args));
            let chosen = args.map_err(|error| error.to_string())?.chosen()?;
            Ok::<_, String>(chosen.iter().map(|event| event.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["--only", "crash"]).unwrap(), ["crash"]);
        assert_eq!(names(&[]).unwrap().len(), EVENTS.len());
        assert_eq!(names(&["--smoke"]).unwrap().len(), EVENTS.len() - 1);
        let error = names(&["--only", "nothing"]).unwrap_err();
        assert!(error.contains("the events are swap, limit, "), "{error}");
        assert!(names(&["--record", "--only", "crash"]).is_err());
    }
}

//! The suite over Tollgate beside the suite over tonic: the mixed workload on each in turns, all
//! services in Rust.
//!
//! ```text
//! cargo build --release -p tollgate-hotel -p tollgate-daemon -p tollgate-cli -p tollgate-conformance
//! cargo bench -p tollgate-hotel --bench compare -- --turns 7 --seconds 5
//! ```
//!
//! Everything runs the whole time, and sleeps while another has its turn. Ratios are taken within a
//! round, so that a machine whose pace changes between rounds disturbs them little. CPU time is
//! that of all processes of the suite, memcached's too, and not the load's.

#![forbid(unsafe_code)]

#[path = "../tests/suite/mod.rs"]
mod suite;

use std::path::Path;
use std::process::Command;

use clap::Parser;
use suite::{Carrier, Suite, all_in_rust};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::process::{cpu_seconds, program};
use tollgate_conformance::testbed::succeed;
use tollgate_hotel::load::Outcome;

/// Compares the hotel reservation over Tollgate with that over tonic.
#[derive(Debug, Parser)]
struct Options {
    /// Rounds, in each of which everything has a turn.
    #[arg(long, default_value_t = 7)]
    turns: u64,
    /// Length of a turn.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Requests under way, each number in rounds of its own.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    connections: Vec<usize>,
    /// What cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

/// One turn.
struct Turn {
    load: Outcome,
    cpu_us: f64,
}

fn main() {
    let options = Options::parse();
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hotel-compare");
    let tonic = |name: &str, threads: &str| {
        let more = ["--threads", threads];
        Suite::start(&place.join(name), Carrier::Tonic, &more, all_in_rust)
    };
    let tollgate = |name: &str, carrier: fn(Box<Hosts>) -> Carrier| {
        let carrier = carrier(Box::new(Hosts::new()));
        Suite::start(&place.join(name), carrier, &[], all_in_rust)
    };
    let mut subjects = [
        ("Tollgate, two hosts", tollgate("hosts", Carrier::Tollgate)),
        ("Tollgate, one host", tollgate("host", Carrier::OneHost)),
        ("tonic, 1 thread", tonic("one", "1")),
        ("tonic, 2 threads", tonic("two", "2")),
    ];
    println!(
        "| connections | | requests/s | p50 ms | p99 ms | CPU us/request | rate of the first to it | CPU of the first to it |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for &connections in &options.connections {
        let mut turns: Vec<Vec<Turn>> = subjects.iter().map(|_| Vec::new()).collect();
        // The first round fills the caches, and doesn't count.
        for round in 0..=options.turns {
            eprintln!(
                "{connections} connections, round {round} of {}",
                options.turns
            );
            for ((_, suite), turns) in subjects.iter_mut().zip(&mut turns) {
                let turn = turn(suite, connections, &options, round);
                if round > 0 {
                    turns.push(turn);
                }
            }
        }
        for ((name, _), own) in subjects.iter().zip(&turns) {
            println!("{}", row(connections, name, own, &turns[0]));
        }
    }
}

fn turn(suite: &mut Suite, connections: usize, options: &Options, round: u64) -> Turn {
    let mut load = Command::new(program("hotel"));
    load.args(["load", "--json", "--frontend", &suite.frontend]);
    load.args(["--connections", &connections.to_string()]);
    load.args(["--seconds", &options.seconds.to_string()]);
    load.args(["--seed", &round.to_string()]);
    let before = cpu_us(suite);
    let load: Outcome = serde_json::from_str(&succeed(&mut load)).expect("it prints an outcome");
    assert_eq!(load.errors, 0, "{load:?}");
    let cpu_us = (cpu_us(suite) - before) / load.answered as f64;
    Turn { load, cpu_us }
}

/// What all processes of a suite have had of the processors.
fn cpu_us(suite: &mut Suite) -> f64 {
    let mut pids = suite.pids();
    pids.push(suite.memcached.process.pid());
    cpu_seconds(&pids) * 1e6
}

fn row(connections: usize, name: &str, own: &[Turn], first: &[Turn]) -> String {
    let all = |value: &dyn Fn(&Turn) -> f64| sorted(own.iter().map(value));
    let ratios = |value: &dyn Fn(&Turn) -> f64| {
        let ratios = first.iter().zip(own).map(|(a, b)| value(a) / value(b));
        let ratios = sorted(ratios);
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        format!("{:.2} [{least:.2}-{most:.2}]", median(&ratios))
    };
    format!(
        "| {connections} | {name} | {:.0} | {:.2} | {:.2} | {:.0} | {} | {} |",
        median(&all(&|turn| turn.load.rate)),
        median(&all(&|turn| turn.load.p50_us as f64 / 1e3)),
        median(&all(&|turn| turn.load.p99_us as f64 / 1e3)),
        median(&all(&|turn| turn.cpu_us)),
        ratios(&|turn| turn.load.rate),
        ratios(&|turn| turn.cpu_us),
    )
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

//! `policy-bench [--smoke] [--json FILE]`: measures the cost of evaluating and of instances,
//! without a daemon.
//!
//! [`life`] measures instances (how many a second, how much memory, swaps and traps), [`calls`]
//! measures the work per call, and [`report`] lists the claims. `policy-instructions`, in the same
//! directory, counts the instructions of the same build. The program prints Markdown; `--json`
//! keeps all samples. `bench` runs the program and puts both into its results.
//!
//! A missed claim is reported. It is not an error.

#![forbid(unsafe_code)]

mod calls;
mod clock;
mod effort;
mod life;
mod report;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use serde_json::Value;
use tollgate_bench_marshal::exit;

use effort::{FULL, SMOKE};

fn main() -> ExitCode {
    exit(Args::parse(std::env::args().skip(1)).and_then(|args| bench(&args)))
}

#[derive(Default)]
struct Args {
    smoke: bool,
    json: Option<PathBuf>,
}

impl Args {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut parsed = Args::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--smoke" => parsed.smoke = true,
                "--json" => parsed.json = Some(args.next().ok_or("--json wants a file")?.into()),
                _ => return Err("usage: policy-bench [--smoke] [--json FILE]".to_owned()),
            }
        }
        Ok(parsed)
    }
}

fn bench(args: &Args) -> Result<(), String> {
    let effort = if args.smoke { SMOKE } else { FULL };
    // First, because memory is measured in a process that has done nothing else.
    let life = life::measure(effort)?;
    let calls = calls::measure(effort)?;
    let instructions = if args.smoke { None } else { count() };
    let instructions = instructions.unwrap_or_default();
    println!("{}", report::markdown(&life, &calls, &instructions));
    if let Some(file) = &args.json {
        let json = report::json(&life, &calls, instructions);
        std::fs::write(file, json.to_string())
            .map_err(|e| format!("can't write {}: {e}", file.display()))?;
    }
    Ok(())
}

/// Instructions per call, by name. Without valgrind, prints a sentence and returns `None`.
fn count() -> Option<Value> {
    let program = std::env::current_exe().ok()?;
    let program = program.with_file_name("policy-instructions");
    let counted = Command::new(program).arg("--print").output().ok()?;
    if !counted.status.success() {
        let why = String::from_utf8_lossy(&counted.stderr);
        eprintln!("instructions aren't counted: {}", why.trim());
        return None;
    }
    let mut counted: Value = serde_json::from_slice(&counted.stdout).ok()?;
    Some(counted["instructions_per_call"].take())
}

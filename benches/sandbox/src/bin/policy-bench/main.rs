//! `policy-bench [--smoke] [--json FILE]`: what judging costs, and what instances cost, without a daemon.
//!
//! [`life`] measures instances (how many a second, how much memory, swaps and traps), [`calls`] what happens per call, [`report`]
//! says what is claimed; `policy-instructions`, which lies beside this program, counts instructions of the same build. Prints Markdown; `--json` keeps all samples. `bench` runs it and puts both into its results.
//!
//! A claim that falls short is reported as such and is no error.

#![forbid(unsafe_code)]

mod calls;
mod life;
mod report;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tollgate_bench_marshal::exit;

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    /// Repetitions over everything.
    repetitions: usize,
    /// Length of one sample of calls.
    sample: Duration,
    /// Instances alive at once.
    instances: u32,
    /// Lives, one after the other, in one sample.
    lives: u32,
}

const FULL: Effort = Effort {
    repetitions: 11,
    sample: Duration::from_millis(2),
    instances: 10_000,
    lives: 2_000,
};

/// Does it work?
const SMOKE: Effort = Effort {
    repetitions: 1,
    sample: Duration::from_micros(50),
    instances: 200,
    lives: 20,
};

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
    // First: memory is counted in a process that has done nothing else.
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

/// Instructions per call, by name; `None` and a sentence without valgrind.
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

/// CPU time of this thread: what others do on the machine doesn't count.
struct Clock(Duration);

impl Clock {
    fn start() -> Clock {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Clock(Duration::new(
            now.tv_sec.cast_unsigned(),
            now.tv_nsec as u32,
        ))
    }

    fn elapsed(&self) -> Duration {
        Clock::start().0.saturating_sub(self.0)
    }

    /// Nanoseconds for each of so many.
    fn ns_each(&self, count: u32) -> f64 {
        self.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    }
}

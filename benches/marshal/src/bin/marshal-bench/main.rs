//! `marshal-bench [--smoke] [--json FILE]`: measures the time to bind and the cost of a call.
//!
//! [`bind`] measures what happens when an application hands over a schema, [`calls`] measures each
//! operation on the hotel service's messages, and [`report`] lists the claims. The program prints
//! Markdown; `--json` keeps all samples. `bench` runs the program and puts both into its results.
//!
//! A missed claim is reported. It is not an error.

#![forbid(unsafe_code)]

mod bind;
mod calls;
mod effort;
mod report;
mod schemas;

use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use tollgate_bench_marshal::exit;

use effort::{FULL, SMOKE};

fn main() -> ExitCode {
    exit(match Args::parse(std::env::args().skip(1)) {
        Ok(Args { child: true, .. }) => bind::child(),
        Ok(args) => bench(&args),
        Err(sentence) => Err(sentence),
    })
}

#[derive(Default)]
struct Args {
    smoke: bool,
    json: Option<PathBuf>,
    /// This process binds one schema, cold.
    child: bool,
}

impl Args {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut parsed = Args::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--smoke" => parsed.smoke = true,
                "--json" => parsed.json = Some(args.next().ok_or("--json wants a file")?.into()),
                bind::CHILD => parsed.child = true,
                _ => return Err("usage: marshal-bench [--smoke] [--json FILE]".to_owned()),
            }
        }
        Ok(parsed)
    }
}

fn bench(args: &Args) -> Result<(), String> {
    let effort = if args.smoke { SMOKE } else { FULL };
    let binds = bind::measure(effort)?;
    let calls = calls::measure(effort);
    println!("{}", report::markdown(&binds, &calls));
    if let Some(file) = &args.json {
        let all = json!({"bind": report::binds_json(&binds), "calls": report::calls_json(&calls)});
        std::fs::write(file, all.to_string())
            .map_err(|e| format!("can't write {}: {e}", file.display()))?;
    }
    Ok(())
}

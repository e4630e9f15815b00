//! Counts the instructions of an evaluation: `policy-instructions [--bless] FILE`; see
//! [`tollgate_bench_marshal::counting`].
//!
//! CI keeps the counts of the test build, which are two to three times those of a release, and
//! guards against regressions. The claim that a null call costs at most 60 ns is about a release.
//! `policy-bench` checks it, by time and by instructions.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use tollgate_bench_marshal::counting::{self, Counted};
use tollgate_bench_sandbox::evaluating::{Part, jobs};
use tollgate_bench_sandbox::guests::Guests;

fn main() -> ExitCode {
    counting::main(|| {
        let guests = Guests::new(4)?;
        let counted = jobs(&guests)?.into_iter().map(|job| Counted {
            name: match job.part {
                Part::Evaluation => job.name,
                Part::Hook => format!("hook {}", job.name),
                Part::HostFunction => format!("in a batch of 64: {}", job.name),
            },
            ours: true,
            work: job.work,
        });
        Ok(counted.collect())
    })
}

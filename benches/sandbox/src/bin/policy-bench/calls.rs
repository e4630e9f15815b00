//! What happens per call. All jobs run in turn, repeatedly, so a disturbance of the machine hits
//! all of them.

use tollgate_bench_sandbox::evaluating::{Job, Part, jobs};
use tollgate_bench_sandbox::guests::Guests;

use crate::clock::Clock;
use crate::effort::Effort;

/// One job's nanoseconds per call, by repetition.
pub(crate) struct Calls {
    pub(crate) part: Part,
    pub(crate) name: String,
    pub(crate) ns: Vec<f64>,
}

pub(crate) fn measure(effort: Effort) -> Result<Vec<Calls>, String> {
    let guests = Guests::new(64)?;
    let mut all: Vec<(u32, Job, Vec<f64>)> = jobs(&guests)?
        .into_iter()
        .map(|mut job| (calls_in(&mut job, effort), job, Vec::new()))
        .collect();
    let count = all.len();
    for repetition in 0..effort.repetitions {
        // Another job is first each time.
        for i in 0..count {
            let (calls, job, ns) = &mut all[(i + repetition * 7) % count];
            ns.push(time(job, *calls));
        }
    }
    let named = |(_, job, ns): (u32, Job, Vec<f64>)| Calls {
        part: job.part,
        name: job.name,
        ns,
    };
    Ok(all.into_iter().map(named).collect())
}

/// Number of calls that fill a sample.
fn calls_in(job: &mut Job, effort: Effort) -> u32 {
    let mut calls = 64;
    loop {
        let clock = Clock::start();
        (job.work)(calls);
        if clock.elapsed() >= effort.sample || calls >= 1 << 24 {
            return calls;
        }
        calls *= 2;
    }
}

/// The better of two samples. A disturbance rarely hits both.
fn time(job: &mut Job, calls: u32) -> f64 {
    let mut sample = || {
        let clock = Clock::start();
        (job.work)(calls);
        clock.ns_each(calls)
    };
    sample().min(sample())
}

//! What each operation costs, by each contender.
//!
//! All contenders run in turn, repeatedly. So a disturbance of the machine hits all of them, and
//! ratios are taken within a repetition.

use std::time::{Duration, Instant};
use tollgate_bench_marshal::{Contender, contenders};

use crate::effort::Effort;

/// One contender's nanoseconds per call, by repetition.
pub(crate) struct Calls {
    pub(crate) message: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) executor: &'static str,
    pub(crate) ns: Vec<f64>,
}

pub(crate) fn measure(effort: Effort) -> Vec<Calls> {
    let sample = Duration::from_micros(effort.sample_us);
    let mut all: Vec<_> = contenders()
        .into_iter()
        .map(|mut contender| (calls_in(&mut contender, sample), contender, Vec::new()))
        .collect();
    let count = all.len();
    for repetition in 0..effort.repetitions {
        // Another contender is first each time.
        for i in 0..count {
            let (calls, contender, ns) = &mut all[(i + repetition * 7) % count];
            ns.push(time(contender, *calls));
        }
    }
    let named = |(_, contender, ns): (u32, Contender, Vec<f64>)| Calls {
        message: contender.message,
        operation: contender.operation,
        executor: contender.executor,
        ns,
    };
    all.into_iter().map(named).collect()
}

/// Number of calls that fill a sample.
fn calls_in(contender: &mut Contender, sample: Duration) -> u32 {
    let mut calls = 16;
    loop {
        let start = Instant::now();
        (contender.work)(calls);
        if start.elapsed() >= sample || calls >= 1 << 24 {
            return calls;
        }
        calls *= 2;
    }
}

/// The better of two samples. A disturbance rarely hits both.
fn time(contender: &mut Contender, calls: u32) -> f64 {
    let mut sample = || {
        let start = Instant::now();
        (contender.work)(calls);
        start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    };
    sample().min(sample())
}

//! The closed loop, its recorder, and how an outside harness steps it.
//!
//! ```text
//!  client                          harness
//!    warm up
//!    "BEGIN"            ->         reads CPU clocks
//!                       <-         a line
//!    run for `secs`
//!    "END"              ->         reads CPU clocks
//!                       <-         a line
//!    {"rps": ...}       ->
//! ```
//!
//! `inflight` workers each keep one call in flight. A call counts if it was answered within the
//! window. Calls still in flight at its end are awaited but not counted, so `secs` is exact and no
//! rate profits from a tail. The end of standard input stands for both lines, so a run with
//! `</dev/null` needs no harness.
//!
//! `rps` is answered calls (`ok + denied`) per second. Latency and goodput count `ok` only: a
//! denied call is short and would flatter both.
//!
//! With a rate the loop is open: every [`TICK`] the calls that are due are issued, and latency
//! counts from there. Calls that are due while `inflight` calls are in flight aren't issued
//! (`unsent`). Calls that an overloaded server rejects (RESOURCE_EXHAUSTED) are counted separately,
//! with the time until the rejection.

use std::future::Future;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

pub use crate::answer::Answer;
use crate::request::Requests;
use crate::settings::Settings;

/// The longest recorded latency. Longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// The interval at which an open loop issues the calls that are due.
pub const TICK: Duration = Duration::from_micros(200);

/// Significant digits of a latency: 0.1% of its value.
const DIGITS: u8 = 3;

/// A client that can issue one call.
pub trait Caller {
    /// Issues call number `index` of `requests` and awaits its end.
    fn call(&self, requests: &Requests, index: usize) -> impl Future<Output = Answer>;
}

/// One phase of a client: the warm-up, or the measured window.
#[derive(Debug)]
pub struct Run {
    /// The calls to issue.
    pub requests: Arc<Requests>,
    /// When the window ends.
    pub until: Instant,
    began: Instant,
    gap: Duration,
    next: AtomicUsize,
    tally: Mutex<Tally>,
}

#[derive(Debug)]
struct Tally {
    latency_ns: Histogram<u64>,
    refused_ns: Histogram<u64>,
    denied: u64,
    failed: u64,
    unsent: u64,
    blocked: u64,
    first_failure: Option<String>,
}

impl Run {
    /// Begins a window of this length now. A caller pauses for `gap` between two calls.
    pub fn begin(requests: Arc<Requests>, window: Duration, gap: Duration) -> Arc<Run> {
        let latency_ns = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS)
            .expect("the bounds are in order and the digits at most 5");
        let began = Instant::now();
        if let Some(split) = &requests.split {
            split.reset();
        }
        Arc::new(Run {
            requests,
            until: began + window,
            began,
            gap,
            next: AtomicUsize::new(0),
            tally: Mutex::new(Tally {
                refused_ns: latency_ns.clone(),
                latency_ns,
                denied: 0,
                failed: 0,
                unsent: 0,
                blocked: 0,
                first_failure: None,
            }),
        })
    }

    /// The number of the next call.
    pub fn next_call(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Records how call `index` ended, unless the window is over.
    pub fn record(&self, index: usize, answer: Answer, started: Instant, ended: Instant) {
        if ended > self.until {
            return;
        }
        let latency = u64::try_from((ended - started).as_nanos()).unwrap_or(LONGEST_NS);
        let mut tally = self.tally();
        tally.blocked += u64::from(self.requests.booking(index).blocked);
        match answer {
            Answer::Ok => tally.latency_ns.saturating_record(latency),
            Answer::Denied => tally.denied += 1,
            Answer::Refused => tally.refused_ns.saturating_record(latency),
            Answer::Failed(sentence) => {
                tally.failed += 1;
                tally.first_failure.get_or_insert(sentence);
            }
        }
    }

    /// Makes one call after the other until the window ends.
    pub async fn worker<C: Caller>(&self, caller: &C) {
        let mut started = Instant::now();
        while started < self.until {
            let index = self.next_call();
            let answer = caller.call(&self.requests, index).await;
            let ended = Instant::now();
            self.record(index, answer, started, ended);
            started = pause(ended, self.gap);
        }
    }

    /// Issues `rate` calls per second until the window ends, at most `most` at once, and awaits
    /// them.
    pub async fn paced<C: Caller>(&self, caller: &C, rate: u32, most: usize) {
        let mut due = ticks(self.began, self.until, rate);
        let mut calls = FuturesUnordered::new();
        loop {
            let tick = tokio::select! {
                // Answers first, because they make room.
                biased;
                Some(()) = calls.next() => continue,
                tick = due.recv() => tick,
            };
            let Some((started, count)) = tick else { break };
            for _ in 0..count {
                if calls.len() >= most {
                    self.tally().unsent += 1;
                    continue;
                }
                let index = self.next_call();
                calls.push(async move {
                    let answer = caller.call(&self.requests, index).await;
                    self.record(index, answer, started, Instant::now());
                });
            }
        }
        while calls.next().await.is_some() {}
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result as one JSON object. `blocked` counts the bookings with a customer on the block
    /// list, which a policy should have denied.
    fn result(&self, window: Duration) -> Map<String, Value> {
        let tally = self.tally();
        let (secs, ok) = (window.as_secs_f64(), tally.latency_ns.len());
        let us = |ns: u64| ns as f64 / 1e3;
        let quantile = |q| us(tally.latency_ns.value_at_quantile(q));
        let bytes = ok as f64 * self.requests.size as f64;
        let mut result = Map::new();
        for (key, value) in [
            ("secs", json!(secs)),
            ("ok", json!(ok)),
            ("denied", json!(tally.denied)),
            ("err", json!(tally.failed)),
            ("refused", json!(tally.refused_ns.len())),
            (
                "refused_p99_us",
                json!(us(tally.refused_ns.value_at_quantile(0.99))),
            ),
            ("unsent", json!(tally.unsent)),
            ("blocked", json!(tally.blocked)),
            ("rps", json!((ok + tally.denied) as f64 / secs)),
            ("gbytes_s", json!(bytes / secs / 1e9)),
            ("p50_us", json!(quantile(0.5))),
            ("p99_us", json!(quantile(0.99))),
            ("p999_us", json!(quantile(0.999))),
            ("min_us", json!(us(tally.latency_ns.min()))),
            ("mean_us", json!(tally.latency_ns.mean() / 1e3)),
        ] {
            result.insert(key.to_owned(), value);
        }
        if let Some(split) = &self.requests.split {
            let (whole, application) = (tally.latency_ns.mean() / 1e3, split.mean_us());
            result.insert("application_us".to_owned(), json!(application));
            result.insert(
                "network_us".to_owned(),
                json!((whole - application).max(0.0)),
            );
        }
        if let Some(sentence) = &tally.first_failure {
            result.insert("first_error".to_owned(), json!(sentence));
        }
        result
    }
}

/// Runs a client from warm-up to its JSON. `phase` drives one [`Run`] until its window and its
/// calls have ended; `facts` are further numbers of the client.
///
/// # Errors
/// The error of `phase`, or of standard input or output.
pub fn step(
    settings: &Settings,
    requests: Arc<Requests>,
    facts: &[(&str, f64)],
    mut phase: impl FnMut(&Arc<Run>) -> Result<(), String>,
) -> Result<(), String> {
    if !settings.warmup.is_zero() {
        phase(&Run::begin(requests.clone(), settings.warmup, settings.gap))?;
    }
    say("BEGIN")?;
    await_line()?;
    let run = Run::begin(requests, settings.run, settings.gap);
    phase(&run)?;
    say("END")?;
    await_line()?;
    let mut result = run.result(settings.run);
    result.extend(
        facts
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value))),
    );
    say(&Value::Object(result).to_string())
}

/// Sends every [`TICK`] the number of calls that have become due since the last time, at `rate`
/// calls per second. It stops at the end, and then the channel ends, too; or when the receiver is
/// gone.
pub fn ticks(began: Instant, until: Instant, rate: u32) -> mpsc::UnboundedReceiver<(Instant, u64)> {
    let (ticks, due) = mpsc::unbounded_channel();
    thread::spawn(move || {
        let mut issued = 0;
        loop {
            let now = Instant::now();
            let by_now = ((now.min(until) - began).as_secs_f64() * f64::from(rate)) as u64;
            if ticks.send((now, by_now - issued)).is_err() || now >= until {
                break;
            }
            issued = by_now;
            thread::sleep(TICK);
        }
    });
    due
}

/// Computes for a handler's time, on this thread.
pub fn work(span: Duration) {
    if span.is_zero() {
        return;
    }
    let until = Instant::now() + span;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Pauses on this thread, like a thinking caller. Nothing else on this thread runs meanwhile.
/// Returns the time of its end. A short pause spins, because a timer would take longer.
fn pause(from: Instant, gap: Duration) -> Instant {
    const SLEPT: Duration = Duration::from_millis(1);
    if gap >= SLEPT {
        thread::sleep(gap);
        return Instant::now();
    }
    let mut now = from;
    while now - from < gap {
        thread::yield_now();
        now = Instant::now();
    }
    now
}

/// Prints a line that a harness waits for.
///
/// # Errors
/// If standard output is gone.
pub fn say(line: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| format!("cannot write to standard output: {error}"))
}

fn await_line() -> Result<(), String> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .map(|_end_of_input_counts_as_a_line| ())
        .map_err(|error| format!("cannot read standard input: {error}"))
}

/// The exit status of a program: on an error, its sentence goes to standard error.
pub fn exit(program: &str, result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{program}: {sentence}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Method;

    fn run(window: Duration) -> Arc<Run> {
        let requests = Arc::new(Requests::new(Method::Hotel, 64));
        Run::begin(requests, window, Duration::ZERO)
    }

    #[test]
    fn answers_are_counted_by_their_kind() {
        let run = run(Duration::from_secs(1000));
        let now = Instant::now();
        for index in 0..100 {
            let answer = match run.requests.booking(index).blocked {
                true => Answer::Denied,
                false => Answer::Ok,
            };
            run.record(index, answer, now, now + Duration::from_micros(50));
        }
        run.record(0, Answer::Failed("gone".to_owned()), now, now);
        let result = run.result(Duration::from_secs(2));
        let expect = [("ok", json!(99)), ("denied", json!(1)), ("err", json!(1))];
        for (key, value) in expect {
            assert_eq!(result[key], value, "{key}");
        }
        assert_eq!(result["rps"], json!(50.0));
        assert_eq!(result["gbytes_s"], json!(99.0 * 64.0 / 2.0 / 1e9));
        assert_eq!(result["first_error"], json!("gone"));
        let p50 = result["p50_us"].as_f64().unwrap_or_default();
        assert!((p50 - 50.0).abs() < 0.1, "{p50}");
    }

    #[test]
    fn a_pause_takes_as_long_as_it_is_to() {
        for us in [0, 200, 2_000] {
            let (from, gap) = (Instant::now(), Duration::from_micros(us));
            assert!(pause(from, gap) - from >= gap);
        }
    }

    #[test]
    fn an_answer_after_the_window_does_not_count() {
        let run = run(Duration::ZERO);
        let late = run.until + Duration::from_nanos(1);
        run.record(0, Answer::Ok, run.until, late);
        assert_eq!(run.result(Duration::from_secs(1))["ok"], json!(0));
    }

    #[test]
    fn a_latency_beyond_the_longest_counts_as_the_longest() {
        let run = run(Duration::from_secs(1_000_000));
        let now = Instant::now();
        run.record(0, Answer::Ok, now, now + Duration::from_secs(100_000));
        let p50 = run.result(Duration::from_secs(1))["p50_us"].as_f64();
        assert!(p50.is_some_and(|us| us >= LONGEST_NS as f64 / 1e3));
    }
}

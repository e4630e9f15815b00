//! A call's latency, split into the applications' part and the network's.
//!
//! ```text
//!  client     build the request |                                  | look at the reply
//!  network                      | marshal, send, evaluate, queue, ... |
//!  server                                 | handler |
//!             ^ application       ^ network  ^ appl.   ^ network     ^ application
//! ```
//!
//! The server returns the handler's part with the reply, in the format of HTTP's `server-timing`
//! (W3C Server Timing), and only if the client asks for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The metadata key of a request that asks for the handler's time.
pub const ASKED: &str = "time-me";

/// The metadata key of a reply with the handler's time.
pub const TOLD: &str = "server-timing";

/// The time that the calls of a window spent in applications.
#[derive(Debug, Default)]
pub struct Split {
    ns: AtomicU64,
    calls: AtomicU64,
}

impl Split {
    /// Resets it at the beginning of a window.
    pub fn reset(&self) {
        self.ns.store(0, Ordering::Relaxed);
        self.calls.store(0, Ordering::Relaxed);
    }

    /// Begins a call, before its client builds the request.
    pub fn begin(&self) -> Call<'_> {
        let now = Instant::now();
        Call {
            split: self,
            began: now,
            sent: now,
            came: now,
        }
    }

    /// The mean time that a call spent in applications, in microseconds; 0 if none was answered.
    pub fn mean_us(&self) -> f64 {
        let calls = self.calls.load(Ordering::Relaxed).max(1);
        self.ns.load(Ordering::Relaxed) as f64 / calls as f64 / 1e3
    }
}

/// One call of a [`Split`].
#[derive(Debug)]
pub struct Call<'a> {
    split: &'a Split,
    began: Instant,
    sent: Instant,
    came: Instant,
}

impl Call<'_> {
    /// Records that the request is handed over.
    pub fn sent(&mut self) {
        self.sent = Instant::now();
    }

    /// Records that the reply has come.
    pub fn came(&mut self) {
        self.came = Instant::now();
    }

    /// Ends the call, after the client has looked at the reply; `told` is the handler's time in the
    /// reply.
    pub fn ended(self, told: Option<&str>) {
        let Some(handler) = told.and_then(parse) else {
            return;
        };
        let client = (self.sent - self.began) + self.came.elapsed();
        let ns = (client + handler).as_nanos() as u64;
        self.split.ns.fetch_add(ns, Ordering::Relaxed);
        self.split.calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// The metadata of a handler that took this long.
pub fn told(handler: Duration) -> String {
    format!("app;dur={:.6}", handler.as_secs_f64() * 1e3)
}

fn parse(told: &str) -> Option<Duration> {
    let ms: f64 = told.strip_prefix("app;dur=")?.parse().ok()?;
    Duration::try_from_secs_f64(ms / 1e3).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_handler_says_is_understood() {
        let long = Duration::from_nanos(1_234_567);
        assert_eq!(parse(&told(long)), Some(long));
        for other in [
            "",
            "app",
            "app;dur=",
            "app;dur=-1",
            "app;dur=NaN",
            "db;dur=1",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_call_counts_once_it_has_been_timed() {
        let split = Split::default();
        let mut call = split.begin();
        call.sent();
        call.came();
        call.ended(Some(&told(Duration::from_millis(2))));
        split.begin().ended(None);
        assert!(
            (2_000.0..1e6).contains(&split.mean_us()),
            "{}",
            split.mean_us()
        );
        split.reset();
        assert_eq!(split.mean_us(), 0.0);
    }
}

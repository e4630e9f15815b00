//! An application of a tenant, and daemons that it attacks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tollgate::{Session, SessionOptions, Status, block_on};
use tollgate_conformance::testbed::{Daemon, Options, Testbed};
use tollgate_conformance::traffic::{ECHO, echo_block, hotel};

/// How often each outcome was seen: `ok`, or the status with its message.
pub(crate) type Outcomes = BTreeMap<String, u64>;

/// A call without an answer for this long is a lost call.
const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon that doesn't quarantine faulting policies (quarantine would end these attacks after
/// five faults), with further lines of `[policies]`.
pub(crate) fn patient_daemon(bed: &Testbed, more: &str) -> Daemon {
    let config = format!("[policies]\nquarantine_faults = 1000\n{more}\n");
    bed.daemon_with("a", &with_config(&config))
}

pub(crate) fn with_config(config: &str) -> Options {
    Options {
        config: config.to_owned(),
        ..Options::default()
    }
}

/// An application that serves echoes and calls its own service, one call at a time.
pub(crate) struct Caller {
    session: Session,
    handle: u32,
    request: Vec<u8>,
}

impl Caller {
    pub(crate) fn new(daemon: &Daemon, token: String) -> Caller {
        Caller::with_payload(daemon, token, "Y2FsbA==")
    }

    /// The same with another payload, in base64.
    pub(crate) fn with_payload(daemon: &Daemon, token: String, payload: &str) -> Caller {
        let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
        let echo = |_, request: &[u8]| Ok(request.to_vec());
        let schema = hotel();
        let serving = session.serve_raw(schema.descriptor_set(), ECHO, echo);
        block_on(&session, serving).unwrap();
        let binding = session.bind_client(schema.descriptor_set(), ECHO, "");
        let handle = block_on(&session, binding).unwrap().handle("Echo").unwrap();
        Caller {
            session,
            handle,
            request: echo_block(&schema, payload),
        }
    }

    /// Makes one call. It is answered with its request, or with a status.
    pub(crate) fn call(&self) -> Result<(), Status> {
        block_on(&self.session, async {
            let called = self
                .session
                .call_raw(self.handle, &self.request, Some(PATIENCE));
            let reply = called.await?;
            assert_eq!(*reply, *self.request, "a wrong reply");
            Ok(())
        })
    }

    /// Makes one call, and returns its outcome.
    pub(crate) fn outcome(&self) -> String {
        match self.call() {
            Ok(()) => "ok".to_owned(),
            Err(status) => status.to_string(),
        }
    }

    /// Makes `count` calls at once.
    pub(crate) fn at_once(&self, count: usize) -> Outcomes {
        block_on(&self.session, async {
            let call = |_| {
                let called = self
                    .session
                    .call_raw(self.handle, &self.request, Some(PATIENCE));
                async {
                    let outcome = called.await;
                    outcome.map_or_else(|status| status.to_string(), |_| "ok".to_owned())
                }
            };
            let mut calls: FuturesUnordered<_> = (0..count).map(call).collect();
            let mut outcomes = Outcomes::new();
            while let Some(outcome) = calls.next().await {
                *outcomes.entry(outcome).or_default() += 1;
            }
            outcomes
        })
    }

    /// Makes one call, and returns its outcome and how long it took.
    pub(crate) fn timed(&self) -> (String, Duration) {
        let begin = Instant::now();
        let outcome = self.outcome();
        (outcome, begin.elapsed())
    }

    /// Makes one call that is evaluated: it is retried while the tenant's account is overdrawn.
    pub(crate) fn evaluated(&self) -> String {
        loop {
            let outcome = self.outcome();
            if !outcome.contains("has used up its CPU share for policies") {
                return outcome;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Makes this number of evaluated calls.
    pub(crate) fn calls(&self, times: u64) -> Outcomes {
        let mut outcomes = Outcomes::new();
        for _ in 0..times {
            *outcomes.entry(self.evaluated()).or_default() += 1;
        }
        outcomes
    }

    /// Makes calls until it is stopped.
    pub(crate) fn call_until(&self, stop: &AtomicBool) -> Outcomes {
        let mut outcomes = Outcomes::new();
        while !stop.load(Ordering::Relaxed) {
            *outcomes.entry(self.outcome()).or_default() += 1;
        }
        outcomes
    }

    /// Makes calls while `meanwhile` runs.
    pub(crate) fn call_while(&self, meanwhile: impl FnOnce()) -> Outcomes {
        call_all_while(std::slice::from_ref(self), meanwhile)
    }
}

/// Makes calls with all of them while `meanwhile` runs.
pub(crate) fn call_all_while(callers: &[Caller], meanwhile: impl FnOnce()) -> Outcomes {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let calling: Vec<_> = callers
            .iter()
            .map(|caller| scope.spawn(|| caller.call_until(&stop)))
            .collect();
        meanwhile();
        stop.store(true, Ordering::Relaxed);
        let mut all = Outcomes::new();
        for outcomes in calling {
            for (text, times) in outcomes.join().unwrap() {
                *all.entry(text).or_default() += times;
            }
        }
        all
    })
}

/// Number of calls that ended with a text containing `part`.
pub(crate) fn with_text(outcomes: &Outcomes, part: &str) -> u64 {
    let matching = outcomes.iter().filter(|(text, _)| text.contains(part));
    matching.map(|(_, times)| times).sum()
}

/// Number of calls that were answered with their request.
pub(crate) fn passed(outcomes: &Outcomes) -> u64 {
    outcomes.get("ok").copied().unwrap_or(0)
}

pub(crate) fn total(outcomes: &Outcomes) -> u64 {
    outcomes.values().sum()
}

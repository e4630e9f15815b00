//! Bound services, and binds that wait for the daemon's answer on the control socket. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use tollgate_shm_abi::Code;

use crate::Status;
use crate::limits::{BIND_TIMEOUT, MAX_BINDS};

#[derive(Default)]
pub(crate) struct Binds {
    waiting: BTreeMap<u64, Waiting>,
    last_id: u64,
}

struct Waiting {
    waker: Waker,
    deadline_ns: u64,
    /// It is a server's bind.
    serves: bool,
    outcome: Option<Result<Binding, Status>>,
}

impl Binds {
    /// Adds a bind. Returns the id of its request, from 2 on: opening the session was request 1.
    pub(crate) fn insert(
        &mut self,
        serves: bool,
        deadline_ns: u64,
        waker: &Waker,
    ) -> Result<u64, Status> {
        if self.waiting.len() == MAX_BINDS {
            return Err(Status::resource_exhausted(format!(
                "the session has {MAX_BINDS} binds in flight, the most that it may have"
            )));
        }
        self.last_id = self.last_id.max(1) + 1;
        self.waiting.insert(
            self.last_id,
            Waiting {
                waker: waker.clone(),
                deadline_ns,
                serves,
                outcome: None,
            },
        );
        Ok(self.last_id)
    }

    /// Whether a bind for serving is in flight.
    pub(crate) fn serves_soon(&self) -> bool {
        self.waiting
            .values()
            .any(|waiting| waiting.serves && waiting.outcome.is_none())
    }

    /// Takes the outcome of a bind that is done; otherwise keeps the waker until it is.
    pub(crate) fn poll(&mut self, id: u64, waker: &Waker) -> Option<Result<Binding, Status>> {
        let waiting = self.waiting.get_mut(&id)?;
        if waiting.outcome.is_some() {
            return self.waiting.remove(&id)?.outcome;
        }
        waiting.waker = waker.clone();
        None
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.waiting.remove(&id);
    }

    /// Handles the daemon's answer. Returns the waker to wake; `None` if no task waits.
    pub(crate) fn complete(
        &mut self,
        id: u64,
        outcome: Result<Vec<BoundMethod>, Status>,
    ) -> Option<Waker> {
        let waiting = self.waiting.get_mut(&id)?;
        waiting.outcome = Some(outcome.map(Binding::new));
        Some(waiting.waker.clone())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The earliest deadline; `u64::MAX` if there is none.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        let undecided = self.waiting.values().filter(|w| w.outcome.is_none());
        undecided.map(|w| w.deadline_ns).min().unwrap_or(u64::MAX)
    }

    /// Fails the binds that the daemon didn't answer in time; returns the wakers to wake.
    pub(crate) fn expire(&mut self, now_ns: u64) -> Vec<Waker> {
        let text = format!(
            "the daemon didn't answer within {} s",
            BIND_TIMEOUT.as_secs()
        );
        let status = Status::new(Code::DEADLINE_EXCEEDED, text);
        self.fail(&status, |waiting| waiting.deadline_ns <= now_ns)
    }

    pub(crate) fn fail_all(&mut self, status: &Status) -> Vec<Waker> {
        self.fail(status, |_| true)
    }

    fn fail(&mut self, status: &Status, which: impl Fn(&Waiting) -> bool) -> Vec<Waker> {
        let failing = self
            .waiting
            .values_mut()
            .filter(|w| w.outcome.is_none() && which(w));
        failing
            .map(|waiting| {
                waiting.outcome = Some(Err(status.clone()));
                waiting.waker.clone()
            })
            .collect()
    }
}

/// The methods of a bound service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    methods: Arc<[BoundMethod]>,
}

/// One method of a bound service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundMethod {
    /// Its name within the service.
    pub name: String,
    /// The handle for calls.
    pub handle: u32,
    /// The reason why its calls fail although the service was bound: the method is incompatible
    /// between the two applications' schemas (FAILED_PRECONDITION), or the server has no such
    /// method (UNIMPLEMENTED).
    pub refused: Option<String>,
}

impl Binding {
    pub(crate) fn new(methods: Vec<BoundMethod>) -> Binding {
        Binding {
            methods: methods.into(),
        }
    }

    /// All methods, in the order of the schema.
    pub fn methods(&self) -> &[BoundMethod] {
        &self.methods
    }

    /// The handle of the method with this name.
    pub fn handle(&self, method: &str) -> Option<u32> {
        self.methods
            .iter()
            .find(|m| m.name == method)
            .map(|m| m.handle)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_bind_is_answered_expires_or_fails() {
        let mut binds = Binds::default();
        let [answered, expired, failed] =
            [300, 100, 200].map(|at| binds.insert(false, at, Waker::noop()).unwrap());
        assert_eq!((answered, binds.next_deadline_ns()), (2, 100));
        assert!(binds.poll(answered, Waker::noop()).is_none());
        assert!(binds.complete(answered, Ok(Vec::new())).is_some());
        assert!(binds.complete(77, Ok(Vec::new())).is_none());
        assert_eq!(binds.expire(100).len(), 1);
        assert_eq!(binds.fail_all(&Status::unavailable("gone")).len(), 1);
        assert!(binds.poll(answered, Waker::noop()).unwrap().is_ok());
        let code = |result: Option<Result<Binding, Status>>| result.unwrap().unwrap_err().code;
        assert_eq!(
            code(binds.poll(expired, Waker::noop())),
            Code::DEADLINE_EXCEEDED
        );
        assert_eq!(code(binds.poll(failed, Waker::noop())), Code::UNAVAILABLE);
        assert!(binds.waiting.is_empty());
    }

    #[test]
    fn binds_under_way_are_bounded() {
        let mut binds = Binds::default();
        for _ in 0..MAX_BINDS {
            binds.insert(false, 1, Waker::noop()).unwrap();
        }
        assert_eq!(
            binds.insert(false, 1, Waker::noop()).unwrap_err().code,
            Code::RESOURCE_EXHAUSTED
        );
    }
}

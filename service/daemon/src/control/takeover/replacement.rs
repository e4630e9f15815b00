//! The replacement of this process by another one.
//!
//! Invariants: a successor is kept only after it has taken over, so this process serves nothing
//! afterwards. It ends when it is told to retire, which happens after the last answer. No borrow
//! outlives a method, so none is held across a wait.

use std::cell::RefCell;
use std::process::Child;

use tokio::sync::Notify;

/// Whether another process has taken over, and why the last one didn't.
#[derive(Default)]
pub(crate) struct Replacement {
    successor: RefCell<Option<Child>>,
    /// For operators that used a signal.
    refused: RefCell<Option<String>>,
    retired: Notify,
}

impl Replacement {
    /// Another process has taken over.
    pub(crate) fn succeeded(&self, successor: Option<Child>) {
        self.successor.replace(successor);
    }

    /// Whether another process has taken over.
    pub(crate) fn is_replaced(&self) -> bool {
        self.successor.borrow().is_some()
    }

    /// The process that has taken over.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.successor.borrow().as_ref().map(Child::id)
    }

    /// The process that has taken over, to wait for it.
    pub(crate) fn take_successor(&self) -> Option<Child> {
        self.successor.take()
    }

    /// An upgrade has failed: a sentence with its time.
    pub(crate) fn refused(&self, problem: String) {
        self.refused.replace(Some(problem));
    }

    /// Why the last upgrade failed, if one has.
    pub(crate) fn problem(&self) -> Option<String> {
        self.refused.borrow().clone()
    }

    /// This process has sent its last answer.
    pub(crate) fn retire(&self) {
        self.retired.notify_one();
    }

    /// Waits until this process has sent its last answer.
    pub(crate) async fn retired(&self) {
        self.retired.notified().await;
    }
}

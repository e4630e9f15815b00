//! The running runtimes: their handles, their threads, the commands to them, and the counts of
//! removed ones.
//!
//! Invariants: there is one thread per handle, in the same order; runtimes are added and removed at
//! the end only, so the others keep their numbers. A removed runtime gets no command, and its
//! counts are kept. No borrow outlives a method, so none is held across a wait.

use std::cell::RefCell;

use tokio::sync::oneshot;
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::apps::peers::Peers;
use crate::control::error::DaemonError;
use crate::control::placement::runtimes::{Starter, Threads};
use crate::limits::COMMAND_TIMEOUT;
use tollgate_datapath::RuntimeIndex;
use tollgate_datapath::command::{Command, Handle};
use tollgate_datapath::reply::Reply;
use tollgate_datapath::report::Report;
use tollgate_policy_chain::plan::PolicyChange;

/// The runtimes.
pub(in crate::control) struct Runtimes {
    starter: Starter,
    handles: RefCell<Vec<Handle>>,
    threads: RefCell<Threads>,
    counted_before: RefCell<Report>,
}

impl Runtimes {
    /// None so far.
    pub(crate) fn new(starter: Starter) -> Runtimes {
        Runtimes {
            starter,
            handles: RefCell::default(),
            threads: RefCell::default(),
            counted_before: RefCell::default(),
        }
    }

    /// Starts the next runtime.
    pub(crate) fn start_next(
        &self,
        config: &Config,
        peers: &Peers,
    ) -> Result<RuntimeIndex, DaemonError> {
        let index = RuntimeIndex(self.count());
        let (handle, thread) = self.starter.start(config, peers, index)?;
        self.handles.borrow_mut().push(handle);
        self.threads.borrow_mut().push(thread);
        Ok(index)
    }

    /// Adds a runtime that has no thread: a test runs it.
    #[cfg(test)]
    pub(crate) fn add_without_thread(&self, handle: Handle) {
        self.handles.borrow_mut().push(handle);
    }

    /// The number of runtimes.
    pub(crate) fn count(&self) -> usize {
        self.handles.borrow().len()
    }

    /// Sends a command to a runtime. A removed runtime needs none.
    pub(crate) fn send(&self, runtime: RuntimeIndex, command: Command) {
        if let Some(runtime) = self.handles.borrow().get(runtime.0) {
            runtime.send(command);
        }
    }

    /// Sends a command, and waits for its answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        runtime: RuntimeIndex,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Status> {
        answered(self.begin(runtime, command)).await
    }

    /// Sends a command to every runtime, and waits for all answers, which are in the order of the
    /// runtimes' numbers.
    pub(crate) async fn ask_all<T: Send + 'static>(
        &self,
        command: impl Fn(RuntimeIndex, Reply<T>) -> Command,
    ) -> Result<Vec<T>, Status> {
        // All runtimes are told before one is waited for.
        let asked: Vec<_> = RuntimeIndex::all(self.count())
            .map(|runtime| self.begin(runtime, |reply| command(runtime, reply)))
            .collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.push(answered(answer).await?);
        }
        Ok(answers)
    }

    /// Sends a command that has an answer.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        runtime: RuntimeIndex,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> oneshot::Receiver<T> {
        let (reply, answer) = reply();
        self.send(runtime, command(reply));
        answer
    }

    /// Changes a runtime's policies.
    pub(crate) async fn apply(
        &self,
        runtime: RuntimeIndex,
        change: PolicyChange,
    ) -> Result<(), Status> {
        let applied = self.ask(runtime, |done| Command::Policies { change, done });
        applied
            .await?
            .map_err(|refusal| Status::new(Code::FAILED_PRECONDITION, refusal.to_string()))
    }

    /// A runtime's handle, if it hasn't been removed.
    #[cfg(feature = "rdma")]
    pub(crate) fn handle(&self, runtime: RuntimeIndex) -> Option<Handle> {
        self.handles.borrow().get(runtime.0).cloned()
    }

    /// All handles, in the order of the runtimes' numbers.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        self.handles.borrow().clone()
    }

    /// Removes all runtimes but the first `count`. The caller retires them.
    pub(crate) fn split_off(&self, count: usize) -> (Vec<Handle>, Threads) {
        let gone = self.handles.borrow_mut().split_off(count);
        (gone, self.threads.borrow_mut().split_off(count))
    }

    /// Keeps the counts of a removed runtime.
    pub(crate) fn keep_counts(&self, counted: Report) {
        let mut before = self.counted_before.borrow_mut();
        before.absorb(counted);
        before.merge_shares();
    }

    /// The counts of removed runtimes.
    pub(crate) fn counted_before(&self) -> Report {
        self.counted_before.borrow().clone()
    }

    /// Stops all runtimes, and returns their threads for joining.
    pub(crate) fn stop(&self) -> Threads {
        for runtime in &*self.handles.borrow() {
            runtime.send(Command::Stop);
        }
        self.threads.take()
    }
}

/// Waits for the answer to a command.
pub(in crate::control) async fn answered<T>(answer: oneshot::Receiver<T>) -> Result<T, Status> {
    match tokio::time::timeout(COMMAND_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_dropped)) => Err(Status::new(
            Code::UNAVAILABLE,
            "the runtime dropped the request: it is ending, or has too many others",
        )),
        Err(_elapsed) => {
            let text = format!(
                "the runtime didn't answer within {} s",
                COMMAND_TIMEOUT.as_secs()
            );
            Err(Status::new(Code::UNAVAILABLE, text))
        }
    }
}

/// What a command is answered through, and where its answer comes.
pub(in crate::control) fn reply<T: Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (sender, answer) = oneshot::channel();
    (Reply::new(|told| sender.send(told)), answer)
}

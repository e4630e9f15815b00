//! Machine code, made on first use by one thread beside the datapath; until it is there the
//! interpreter serves.
//!
//! ```text
//!   first call of a method ── ask ──▶ [ at most COMPILE_QUEUE; tenants take turns ]
//!                                          │ Jobs::next
//!   Codec, Projector ◀── publishes ── compile thread: Job::run
//! ```
//!
//! Code is compiled apart, so that unused code costs nothing: a method's `gather` and `accept` when
//! it is first called, its `encode` and `decode` when a message of it first crosses between two
//! schemas, a projection when a policy first reads it.
//!
//! Invariants: asking never waits, and costs one relaxed load once it was done. What is asked for
//! is compiled once, however many runtimes ask. A full or a locked queue refuses, and the next call
//! asks again. A schema with many methods delays no other tenant's. A compiler that panics costs
//! one piece of code.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use tollgate_marshal::{Fault, FaultCode};

use crate::limits::COMPILE_QUEUE_PER_TENANT;
use crate::{Codec, CompileError, Projector};

/// One piece of work for the compile thread.
pub struct Job(Target);

/// What one job compiles.
enum Target {
    Native(Arc<Method>),
    Wire(Arc<Method>),
    Projection(Arc<LazyProjector>),
}

/// Asks for machine code. All clones share one queue.
pub struct Compiler {
    queue: Arc<Queue>,
    /// The tenant that asks; `None`: the provider.
    tenant: Option<Arc<str>>,
}

/// The compile thread's end of the queue.
pub struct Jobs(Arc<Queue>);

/// Why a method or a projection stays interpreted.
#[derive(Debug, thiserror::Error)]
#[error("{name} stays interpreted: {reason}")]
pub struct StaysInterpreted {
    /// The method, or the policy and its method.
    pub name: String,
    /// What the compiler says.
    pub reason: String,
}

/// A queue with room for `room` jobs: the end that asks, and the end of the compile thread.
pub fn queue(room: usize) -> (Compiler, Jobs) {
    let queue = Queue::new(room);
    (Compiler::asking(&queue, None), Jobs(queue))
}

impl Jobs {
    /// Waits for the next job. `None`: no compiler is left that could ask.
    pub fn next(&self) -> Option<Job> {
        self.0.next()
    }
}

/// What waits for the compile thread.
struct Queue {
    room: usize,
    lines: Mutex<Lines>,
    more: Condvar,
    /// Compilers that may ask. Without any, the thread ends.
    askers: AtomicUsize,
}

/// The tenants' lines, and whose turn is when.
#[derive(Default)]
struct Lines {
    of: HashMap<Option<Arc<str>>, VecDeque<Job>>,
    turns: VecDeque<Option<Arc<str>>>,
    waiting: usize,
}

impl Queue {
    fn new(room: usize) -> Arc<Queue> {
        Arc::new(Queue {
            room,
            lines: Mutex::default(),
            more: Condvar::new(),
            askers: AtomicUsize::new(0),
        })
    }

    /// Never waits. Whether there is a place.
    fn try_push(&self, tenant: &Option<Arc<str>>, job: Job) -> bool {
        let mut lines = match self.lines.try_lock() {
            Ok(lines) => lines,
            Err(TryLockError::Poisoned(lines)) => lines.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let length = lines.of.get(tenant).map_or(0, VecDeque::len);
        let is_full = tenant.is_some() && length >= COMPILE_QUEUE_PER_TENANT;
        if is_full || lines.waiting >= self.room {
            return false;
        }
        lines.of.entry(tenant.clone()).or_default().push_back(job);
        lines.waiting += 1;
        if length == 0 {
            lines.turns.push_back(tenant.clone());
        }
        self.more.notify_one();
        true
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one; `None`: nobody can ask any more.
    fn next(&self) -> Option<Job> {
        let mut lines = self.lock();
        loop {
            if let Some(job) = lines.pop() {
                return Some(job);
            }
            if self.askers.load(Ordering::Acquire) == 0 {
                return None;
            }
            let waited = self.more.wait(lines);
            lines = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Lines {
    fn pop(&mut self) -> Option<Job> {
        let tenant = self.turns.pop_front()?;
        let line = self.of.get_mut(&tenant)?;
        let job = line.pop_front()?;
        self.waiting -= 1;
        match line.is_empty() {
            true => drop(self.of.remove(&tenant)),
            false => self.turns.push_back(tenant),
        }
        Some(job)
    }
}

impl Compiler {
    fn asking(queue: &Arc<Queue>, tenant: Option<Arc<str>>) -> Compiler {
        queue.askers.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::clone(queue);
        Compiler { queue, tenant }
    }

    /// The same thread, asked for a tenant.
    pub fn of(&self, tenant: &Option<Arc<str>>) -> Compiler {
        Compiler::asking(&self.queue, tenant.clone())
    }
}

impl Clone for Compiler {
    fn clone(&self) -> Self {
        self.of(&self.tenant)
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        if self.queue.askers.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Not between its look and its wait.
            let _lines = self.queue.lock();
            self.queue.more.notify_one();
        }
    }
}

/// Whether something was asked for, and whether it is there.
#[derive(Default)]
struct Lazy {
    asked: AtomicBool,
    ready: AtomicBool,
    /// It can't be compiled.
    failed: AtomicBool,
}

impl Lazy {
    /// Asks once. Cold: the caller has seen that nobody had asked.
    #[cold]
    fn ask(&self, compiler: &Compiler, job: impl FnOnce() -> Job) {
        let first = !self.asked.swap(true, Ordering::Relaxed);
        if first && !compiler.queue.try_push(&compiler.tenant, job()) {
            self.asked.store(false, Ordering::Relaxed);
        }
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Whether it is there, or will never be.
    fn is_settled(&self) -> bool {
        self.is_ready() || self.failed.load(Ordering::Relaxed)
    }
}

/// A method and its programs.
pub struct Method {
    /// `hotel.Reservation/Reserve`.
    pub name: String,
    /// Of the requests.
    pub request: Codec,
    /// Of the replies.
    pub reply: Codec,
    /// Which of them are streams.
    pub streams: Streams,
    native: Lazy,
    wire: Lazy,
    compiler: Compiler,
}

/// Which of a method's messages there may be any number of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// The client sends any number of requests.
    pub requests: bool,
    /// The server sends any number of responses.
    pub responses: bool,
}

impl Streams {
    /// Whether requests or responses are a stream.
    pub fn any(self) -> bool {
        self.requests || self.responses
    }
}

impl Method {
    /// A method of a service, interpreted until `compiler` has compiled it. `name` is its full
    /// name, such as `hotel.Reservation/Reserve`.
    pub fn new(
        name: String,
        request: Codec,
        reply: Codec,
        streams: Streams,
        compiler: &Compiler,
    ) -> Self {
        Self {
            name,
            request,
            reply,
            streams,
            native: Lazy::default(),
            wire: Lazy::default(),
            compiler: compiler.clone(),
        }
    }

    /// The method is called: it's worth `gather` and `accept` in machine code.
    #[inline]
    pub fn called(self: &Arc<Self>) {
        if !self.native.is_asked() {
            self.native
                .ask(&self.compiler, || Job(Target::Native(Arc::clone(self))));
        }
    }

    /// A message of the method becomes protobuf, or was: it's worth `encode` and `decode`.
    #[inline]
    pub fn crosses(self: &Arc<Self>) {
        if !self.wire.is_asked() {
            self.wire
                .ask(&self.compiler, || Job(Target::Wire(Arc::clone(self))));
        }
    }

    /// Whether `gather` and `accept` are machine code.
    pub fn is_compiled(&self) -> bool {
        self.native.is_ready()
    }

    /// Whether `encode` and `decode` are machine code.
    pub fn is_wire_compiled(&self) -> bool {
        self.wire.is_ready()
    }

    /// Whether there is nothing more to come of what was asked for.
    pub fn is_settled(&self) -> bool {
        self.native.is_settled() && self.wire.is_settled()
    }

    fn codecs(&self) -> [&Codec; 2] {
        [&self.request, &self.reply]
    }
}

/// A projection that is compiled when it is first used.
pub struct LazyProjector {
    projector: Projector,
    /// For the log: `acl@1 of hotel.Reservation/Reserve`.
    label: String,
    lazy: Lazy,
    compiler: Compiler,
}

impl LazyProjector {
    /// `projector`, interpreted until `compiler` has compiled it. `label` names it in the log, as
    /// `acl@1 of hotel.Reservation/Reserve`.
    pub fn new(projector: Projector, label: String, compiler: &Compiler) -> Self {
        Self {
            projector,
            label,
            lazy: Lazy::default(),
            compiler: compiler.clone(),
        }
    }

    /// The projector, for a use that isn't worth compiling it.
    pub fn projector(&self) -> &Projector {
        &self.projector
    }

    /// The fault of a message that doesn't fit into its view.
    pub fn too_large(&self) -> Fault {
        self.projector.projection().fault(FaultCode::ViewTooLarge)
    }

    /// Bytes that its views take at least.
    #[inline]
    pub fn fixed_len(&self) -> usize {
        self.projector.projection().fixed_len()
    }

    /// As [`Projector::project`].
    #[inline]
    pub fn project(
        self: &Arc<Self>,
        image: &[u8],
        extent_offsets: &[u32],
        view: &mut [u8],
    ) -> Result<usize, Fault> {
        if !self.lazy.is_asked() {
            self.lazy
                .ask(&self.compiler, || Job(Target::Projection(Arc::clone(self))));
        }
        self.projector.project(image, extent_offsets, view)
    }
}

impl Job {
    /// Compiles, and publishes what came of it.
    ///
    /// # Errors
    /// It can't be compiled, or the compiler panicked. It isn't tried again.
    pub fn run(self) -> Result<(), StaysInterpreted> {
        let (name, lazy) = match &self.0 {
            Target::Native(method) => (&method.name, &method.native),
            Target::Wire(method) => (&method.name, &method.wire),
            Target::Projection(projector) => (&projector.label, &projector.lazy),
        };
        // The compiler's state is its own; what it was to publish stays unset when it panics.
        let reason = match catch_unwind(AssertUnwindSafe(|| self.compile())) {
            Ok(Ok(())) => {
                lazy.ready.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Ok(Err(error)) => error.to_string(),
            Err(_panic) => "the compiler has a bug, told above".to_owned(),
        };
        lazy.failed.store(true, Ordering::Relaxed);
        Err(StaysInterpreted {
            name: name.clone(),
            reason,
        })
    }

    fn compile(&self) -> Result<(), CompileError> {
        match &self.0 {
            Target::Native(method) => method.codecs().into_iter().try_for_each(Codec::compile),
            Target::Wire(method) => method
                .codecs()
                .into_iter()
                .try_for_each(Codec::compile_wire),
            Target::Projection(lazy) => lazy.projector.compile(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::limits::COMPILE_QUEUE;
    use tollgate_schema::Schema;

    fn methods(count: usize, compiler: &Compiler) -> Vec<Arc<Method>> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("t.proto");
        let proto = r#"syntax = "proto3"; package t; message A { string name = 1; }"#;
        std::fs::write(&file, proto).unwrap();
        let schema = Schema::compile_proto(&[&file], &[directory.path()]).unwrap();
        let layouts = Arc::new(schema.layouts(&["t.A"]).unwrap());
        let id = layouts.find("t.A").unwrap();
        (0..count)
            .map(|k| {
                let codec = || Codec::new(&layouts, id);
                let name = format!("m.S/M{k}");
                let streams = Streams::default();
                Arc::new(Method::new(name, codec(), codec(), streams, compiler))
            })
            .collect()
    }

    /// What waits.
    fn waiting(jobs: &Jobs) -> Vec<Job> {
        let mut lines = jobs.0.lock();
        std::iter::from_fn(|| lines.pop()).collect()
    }

    #[test]
    fn only_what_is_used_is_compiled_and_once() {
        let (compiler, jobs) = queue(COMPILE_QUEUE);
        let methods = methods(50, &compiler);
        for _ in 0..3 {
            methods[7].called();
        }
        let queued = waiting(&jobs);
        assert_eq!(queued.len(), 1, "asked for once");
        assert!(!methods[7].is_compiled(), "until it is compiled, it isn't");
        queued.into_iter().for_each(|job| job.run().unwrap());
        for (k, method) in methods.iter().enumerate() {
            let native = method.codecs().map(Codec::is_compiled);
            assert_eq!(native, [k == 7; 2], "method {k}");
            assert_eq!(method.is_compiled(), k == 7, "method {k}");
            assert!(!method.is_wire_compiled(), "nothing has crossed");
        }
        methods[7].crosses();
        methods[8].crosses();
        methods[7].called();
        waiting(&jobs)
            .into_iter()
            .for_each(|job| job.run().unwrap());
        assert!(methods[7].is_wire_compiled() && methods[8].is_wire_compiled());
        assert!(
            !methods[8].is_compiled(),
            "its native code wasn't asked for"
        );
    }

    #[test]
    fn a_full_queue_refuses_without_waiting_and_is_asked_again() {
        let (compiler, jobs) = queue(COMPILE_QUEUE);
        let methods = methods(COMPILE_QUEUE + 1, &compiler);
        for method in &methods {
            method.called();
        }
        assert_eq!(waiting(&jobs).len(), COMPILE_QUEUE);
        let last = methods.last().unwrap();
        last.called();
        assert_eq!(waiting(&jobs).len(), 1, "there is room now");
        let busy = jobs.0.lock();
        methods[0].crosses();
        drop(busy);
        assert!(waiting(&jobs).is_empty(), "nobody waited");
        methods[0].crosses();
        assert_eq!(waiting(&jobs).len(), 1, "it is asked for again");
    }

    #[test]
    fn a_tenant_with_many_methods_keeps_nobodys_waiting() {
        let (compiler, jobs) = queue(COMPILE_QUEUE);
        let of = |tenant: &str| compiler.of(&Some(tenant.into()));
        let (many, few) = (
            methods(COMPILE_QUEUE, &of("mallory")),
            methods(2, &of("acme")),
        );
        many.iter().for_each(Method::called);
        few.iter().for_each(Method::called);
        let names: Vec<_> = waiting(&jobs)
            .iter()
            .map(|job| match &job.0 {
                Target::Native(method) => few.iter().any(|its| Arc::ptr_eq(its, method)),
                _ => false,
            })
            .collect();
        assert_eq!(names.len(), COMPILE_QUEUE_PER_TENANT + 2);
        assert_eq!(names[..5], [false, true, false, true, false]);
    }

    #[test]
    fn the_thread_ends_when_nobody_can_ask_any_more() {
        let (compiler, jobs) = queue(COMPILE_QUEUE);
        let thread = std::thread::spawn(move || jobs.next().is_none());
        drop(compiler.clone());
        drop(compiler);
        assert!(thread.join().unwrap());
    }
}

//! Machine code, compiled on first use by one thread; the interpreter runs until the code is ready.
//!
//! ```text
//!   first call of a method ── ask ──▶ [ queue: at most COMPILE_QUEUE; tenants take turns ]
//!                  ──▶ compile thread ── publishes ──▶ Codec, Projector
//! ```
//!
//! Pieces are compiled separately, so unused code costs nothing: a method's `gather` and `accept`
//! when it is first called, its `encode` and `decode` when its first message is converted between
//! two schemas, a projection when a policy first reads it.
//!
//! Invariants: asking never waits, and costs one relaxed load after the first time. Each piece is
//! compiled once, even if several runtimes ask. A full or locked queue refuses, and the next call
//! asks again. A tenant whose schemas have many methods doesn't delay the others. A compiler that
//! panics costs only that piece of code.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};

use tollgate_jit::{Codec, CompileError, Projector};
use tollgate_marshal::{Fault, FaultCode};

use crate::limits::{COMPILE_QUEUE, COMPILE_QUEUE_PER_TENANT};
use crate::lines::log_limited;

/// A unit of compilation.
enum Job {
    Native(Arc<Method>),
    Wire(Arc<Method>),
    Projection(Arc<LazyProjector>),
}

/// A handle for requesting machine code. All clones lead to one thread.
pub(crate) struct Compiler {
    queue: Arc<Queue>,
    /// The tenant to compile for; `None`: no tenant.
    tenant: Option<Arc<str>>,
}

/// The queue of the compile thread.
struct Queue {
    room: usize,
    lines: Mutex<Lines>,
    more: Condvar,
    /// Compilers that may still ask. When none is left, the thread ends.
    askers: AtomicUsize,
}

/// One queue per tenant, and the order of turns.
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

    /// Never waits. Whether the job was queued.
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

    /// The next job; `None` if no compiler is left.
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

    /// A compiler on the same thread, for a tenant.
    pub(crate) fn of(&self, tenant: &Option<Arc<str>>) -> Compiler {
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
            // The lock prevents a notification between the thread's check and its wait.
            let _lines = self.queue.lock();
            self.queue.more.notify_one();
        }
    }
}

/// Whether a piece was asked for, and whether it is ready.
#[derive(Default)]
struct Lazy {
    asked: AtomicBool,
    ready: AtomicBool,
    /// It can't be compiled.
    failed: AtomicBool,
}

impl Lazy {
    /// Asks once. Cold: the caller has seen that nobody has asked yet.
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

    /// Whether it is ready, or never will be.
    fn is_settled(&self) -> bool {
        self.is_ready() || self.failed.load(Ordering::Relaxed)
    }
}

/// A method's programs.
pub(crate) struct Method {
    /// `hotel.Reservation/Reserve`.
    pub(crate) name: String,
    pub(crate) request: Codec,
    pub(crate) reply: Codec,
    pub(crate) streams: Streams,
    native: Lazy,
    wire: Lazy,
    compiler: Compiler,
}

/// Which of a method's messages are streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) requests: bool,
    pub(crate) responses: bool,
}

impl Streams {
    pub(crate) fn any(self) -> bool {
        self.requests || self.responses
    }
}

impl Method {
    pub(crate) fn new(
        name: String,
        (request, reply): (Codec, Codec),
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

    /// Notes a call of the method: its `gather` and `accept` are worth compiling.
    #[inline]
    pub(crate) fn called(self: &Arc<Self>) {
        if !self.native.is_asked() {
            self.native
                .ask(&self.compiler, || Job::Native(Arc::clone(self)));
        }
    }

    /// Notes a conversion to or from protobuf: `encode` and `decode` are worth compiling.
    #[inline]
    pub(crate) fn crosses(self: &Arc<Self>) {
        if !self.wire.is_asked() {
            self.wire
                .ask(&self.compiler, || Job::Wire(Arc::clone(self)));
        }
    }

    pub(crate) fn is_compiled(&self) -> bool {
        self.native.is_ready()
    }

    pub(crate) fn is_wire_compiled(&self) -> bool {
        self.wire.is_ready()
    }

    /// Whether each piece is ready, or never will be.
    pub(crate) fn is_settled(&self) -> bool {
        self.native.is_settled() && self.wire.is_settled()
    }

    fn codecs(&self) -> [&Codec; 2] {
        [&self.request, &self.reply]
    }
}

/// A projection that is compiled on first use.
pub(crate) struct LazyProjector {
    projector: Projector,
    /// For the log: `acl@1 of hotel.Reservation/Reserve`.
    label: String,
    lazy: Lazy,
    compiler: Compiler,
}

impl LazyProjector {
    pub(crate) fn new(projector: Projector, label: String, compiler: &Compiler) -> Self {
        Self {
            projector,
            label,
            lazy: Lazy::default(),
            compiler: compiler.clone(),
        }
    }

    /// The fault of a message that doesn't fit into its view.
    pub(crate) fn too_large(&self) -> Fault {
        self.projector.projection().fault(FaultCode::ViewTooLarge)
    }

    /// Smallest size of its views, in bytes.
    pub(crate) fn fixed_len(&self) -> usize {
        self.projector.projection().fixed_len()
    }

    /// As [`Projector::project`].
    #[inline]
    pub(crate) fn project(
        self: &Arc<Self>,
        image: &[u8],
        extent_offsets: &[u32],
        view: &mut [u8],
    ) -> Result<usize, Fault> {
        if !self.lazy.is_asked() {
            self.lazy
                .ask(&self.compiler, || Job::Projection(Arc::clone(self)));
        }
        self.projector.project(image, extent_offsets, view)
    }
}

/// Starts the compile thread. It ends with the daemon, or when no compiler is left.
pub(crate) fn start() -> std::io::Result<Compiler> {
    let queue = Queue::new(COMPILE_QUEUE);
    let compiler = Compiler::asking(&queue, None);
    std::thread::Builder::new()
        .name("compiler".to_owned())
        .spawn(move || {
            while let Some(job) = queue.next() {
                job.run();
            }
        })?;
    Ok(compiler)
}

impl Job {
    fn run(self) {
        let (name, lazy) = match &self {
            Job::Native(method) => (&method.name, &method.native),
            Job::Wire(method) => (&method.name, &method.wire),
            Job::Projection(projector) => (&projector.label, &projector.lazy),
        };
        // The compiler's state is its own; a piece that panics is never published.
        match catch_unwind(AssertUnwindSafe(|| self.compile())) {
            Ok(Ok(())) => lazy.ready.store(true, Ordering::Relaxed),
            Ok(Err(error)) => {
                lazy.failed.store(true, Ordering::Relaxed);
                log_limited!(
                    warn,
                    "stays interpreted",
                    "",
                    "{name} stays interpreted: {error}"
                );
            }
            Err(_panic) => {
                lazy.failed.store(true, Ordering::Relaxed);
                log_limited!(
                    warn,
                    "stays interpreted",
                    "",
                    "{name} stays interpreted: the compiler panicked, as logged above; please report this bug"
                );
            }
        }
    }

    fn compile(&self) -> Result<(), CompileError> {
        match self {
            Job::Native(method) => method.codecs().into_iter().try_for_each(Codec::compile),
            Job::Wire(method) => method
                .codecs()
                .into_iter()
                .try_for_each(Codec::compile_wire),
            Job::Projection(lazy) => lazy.projector.compile(),
        }
    }
}

#[cfg(test)]
impl Compiler {
    /// A compiler that never compiles: its queue takes `room` jobs.
    pub(crate) fn idle(room: usize) -> (Self, impl Sized) {
        let queue = Queue::new(room);
        (Compiler::asking(&queue, None), queue)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_schema::{Layouts, MessageId, Schema};

    /// The layout of a message with these fields, as in a .proto file.
    pub(crate) fn layout_of(fields: &str) -> (Arc<Layouts>, MessageId) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("t.proto");
        let proto = format!(r#"syntax = "proto3"; package t; message A {{ {fields} }}"#);
        std::fs::write(&file, proto).unwrap();
        let schema = Schema::compile_proto(&[&file], &[directory.path()]).unwrap();
        let layouts = Arc::new(schema.layouts(&["t.A"]).unwrap());
        let id = layouts.find("t.A").unwrap();
        (layouts, id)
    }

    fn methods(count: usize, compiler: &Compiler) -> Vec<Arc<Method>> {
        let (layouts, id) = layout_of("string name = 1;");
        (0..count)
            .map(|k| {
                let codec = || Codec::new(&layouts, id);
                let (name, codecs) = (format!("m.S/M{k}"), (codec(), codec()));
                Arc::new(Method::new(name, codecs, Streams::default(), compiler))
            })
            .collect()
    }

    fn queue() -> (Compiler, Arc<Queue>) {
        let queue = Queue::new(COMPILE_QUEUE);
        (Compiler::asking(&queue, None), queue)
    }

    /// The queued jobs.
    fn jobs(queue: &Queue) -> Vec<Job> {
        let mut lines = queue.lock();
        std::iter::from_fn(|| lines.pop()).collect()
    }

    #[test]
    fn only_what_is_used_is_compiled_and_once() {
        let (compiler, queue) = queue();
        let methods = methods(50, &compiler);
        for _ in 0..3 {
            methods[7].called();
        }
        let queued = jobs(&queue);
        assert_eq!(queued.len(), 1, "asked for once");
        assert!(!methods[7].is_compiled(), "until it is compiled, it isn't");
        queued.into_iter().for_each(Job::run);
        for (k, method) in methods.iter().enumerate() {
            let native = method.codecs().map(Codec::is_compiled);
            assert_eq!(native, [k == 7; 2], "method {k}");
            assert_eq!(method.is_compiled(), k == 7, "method {k}");
            assert!(!method.is_wire_compiled(), "nothing has crossed");
        }
        methods[7].crosses();
        methods[8].crosses();
        methods[7].called();
        jobs(&queue).into_iter().for_each(Job::run);
        assert!(methods[7].is_wire_compiled() && methods[8].is_wire_compiled());
        assert!(
            !methods[8].is_compiled(),
            "its native code wasn't asked for"
        );
    }

    #[test]
    fn a_full_queue_refuses_without_waiting_and_is_asked_again() {
        let (compiler, queue) = queue();
        let methods = methods(COMPILE_QUEUE + 1, &compiler);
        for method in &methods {
            method.called();
        }
        assert_eq!(jobs(&queue).len(), COMPILE_QUEUE);
        let last = methods.last().unwrap();
        last.called();
        assert_eq!(jobs(&queue).len(), 1, "there is room now");
        let busy = queue.lock();
        methods[0].crosses();
        drop(busy);
        assert!(jobs(&queue).is_empty(), "nobody waited");
        methods[0].crosses();
        assert_eq!(jobs(&queue).len(), 1, "it is asked for again");
    }

    #[test]
    fn a_tenant_with_many_methods_keeps_nobodys_waiting() {
        let (compiler, queue) = queue();
        let of = |tenant: &str| compiler.of(&Some(tenant.into()));
        let (many, few) = (
            methods(COMPILE_QUEUE, &of("mallory")),
            methods(2, &of("acme")),
        );
        many.iter().for_each(Method::called);
        few.iter().for_each(Method::called);
        let names: Vec<_> = jobs(&queue)
            .iter()
            .map(|job| match job {
                Job::Native(method) => few.iter().any(|its| Arc::ptr_eq(its, method)),
                _ => false,
            })
            .collect();
        assert_eq!(names.len(), COMPILE_QUEUE_PER_TENANT + 2);
        assert_eq!(names[..5], [false, true, false, true, false]);
    }

    #[test]
    fn the_thread_ends_when_nobody_can_ask_any_more() {
        let (compiler, queue) = queue();
        let thread = std::thread::spawn(move || queue.next().is_none());
        drop(compiler.clone());
        drop(compiler);
        assert!(thread.join().unwrap());
    }
}

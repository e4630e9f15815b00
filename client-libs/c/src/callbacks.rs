//! Functions from C, to be run with their `user` pointers.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, OnceLock};

use tollgate_core::Status;

use crate::status::{Ended, StatusObject};

/// A pointer that the library only hands back to the program.
#[derive(Clone, Copy)]
struct User(*mut c_void);

// SAFETY: it is never followed here, and handed back on a thread that the program has called the
// library from; tollgate.h tells the program so.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

// Unwinding through these functions is defined, but only a guard stops it. Without a guard, a C++
// exception ends the process with a message.
/// `tollgate_done_fn`, which takes a message.
type CompletionFn<M> = unsafe extern "C-unwind" fn(*mut c_void, i32, *mut M, *const StatusObject);
/// `tollgate_handler_fn` and `tollgate_ready_fn`, which take a call.
type CallFn<C> = unsafe extern "C-unwind" fn(*mut C, *mut c_void);
/// `tollgate_run_fn`.
pub(crate) type RunFn = unsafe extern "C-unwind" fn(*mut c_void);
/// `tollgate_guard_fn`.
pub(crate) type GuardFn = unsafe extern "C" fn(RunFn, *mut c_void, *mut c_char, usize) -> i32;

/// The guard of a C++ program. Rust can't catch C++ exceptions. Code from the program's own
/// compiler can.
static GUARD: OnceLock<GuardFn> = OnceLock::new();

/// The longest text of an exception in bytes, including its zero byte.
const EXCEPTION_TEXT_BYTES: usize = 512;

/// Makes the program's functions run in this guard. If several parts of a program set one, the
/// first is used for all.
pub(crate) fn guard_with(guard: GuardFn) {
    let _others = GUARD.set(guard);
}

/// Runs a function of the program. Returns the text of its exception, if it threw one.
fn guarded<F: FnOnce()>(run: F) -> Result<(), String> {
    let Some(guard) = GUARD.get() else {
        run();
        return Ok(());
    };
    /// # Safety
    /// `state` is an `Option<F>` that nobody else uses.
    unsafe extern "C-unwind" fn call<F: FnOnce()>(state: *mut c_void) {
        // SAFETY: the caller's.
        let run = unsafe { &mut *state.cast::<Option<F>>() };
        if let Some(run) = run.take() {
            run();
        }
    }
    let (mut run, mut text) = (Some(run), [0u8; EXCEPTION_TEXT_BYTES]);
    let (state, room) = ((&raw mut run).cast(), text.len() - 1);
    // SAFETY: the guard came with tollgate_cpp.h, which calls `call` once with `state`, and writes
    // `room` bytes at most: `text` ends with a zero byte whatever it is.
    match unsafe { guard(call::<F>, state, text.as_mut_ptr().cast(), room) } {
        0 => Ok(()),
        _ => Err(CStr::from_bytes_until_nul(&text)
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()),
    }
}

/// Prints an error that can't be reported in any other way.
fn complain(what: &str, thrown: &str) {
    eprintln!("tollgate: a {what} threw an exception: {thrown}");
}

/// The completion function of a call that the program started.
pub(crate) struct Completion<M> {
    done: CompletionFn<M>,
    user: User,
    outcome: Option<Result<M, Status>>,
}

impl<M> Completion<M> {
    pub(crate) fn new(done: CompletionFn<M>, user: *mut c_void) -> Completion<M> {
        Completion {
            done,
            user: User(user),
            outcome: None,
        }
    }

    /// Sets the outcome of the call.
    pub(crate) fn ended(&mut self, outcome: Result<M, Status>) {
        self.outcome = Some(outcome);
    }

    /// Runs the function.
    pub(crate) fn run(self) {
        let mut object = StatusObject::default();
        let message = match self.outcome {
            Some(Ok(message)) => Box::into_raw(Box::new(message)),
            Some(Err(status)) => {
                object.set(&Ended::With(status));
                std::ptr::null_mut()
            }
            None => return,
        };
        // SAFETY: the function came with this pointer from the program, which promises in
        // tollgate.h that they go together.
        let run = || unsafe { (self.done)(self.user.0, object.code, message, &raw const object) };
        if let Err(thrown) = guarded(run) {
            complain("completion", &thrown);
        }
    }
}

/// The handler of a method's calls.
pub(crate) struct Handler<C> {
    handle: CallFn<C>,
    user: User,
}

impl<C> Clone for Handler<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Handler<C> {}

impl<C> Handler<C> {
    pub(crate) fn new(handle: CallFn<C>, user: *mut c_void) -> Handler<C> {
        Handler {
            handle,
            user: User(user),
        }
    }

    /// Runs it; the text of its exception as an error.
    pub(crate) fn run(self, call: &Arc<C>) -> Result<(), String> {
        // SAFETY: function and pointer go together, as above; the call lives at least as long as
        // the caller's reference, and longer if the handler keeps it.
        let ran = guarded(|| unsafe { (self.handle)(Arc::as_ptr(call).cast_mut(), self.user.0) });
        ran.inspect_err(|thrown| complain("handler", thrown))
    }
}

/// The function to run when a call may go on.
pub(crate) struct Readiness<C> {
    ready: CallFn<C>,
    user: User,
}

impl<C> Clone for Readiness<C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Readiness<C> {}

impl<C> Readiness<C> {
    pub(crate) fn new(ready: CallFn<C>, user: *mut c_void) -> Readiness<C> {
        Readiness {
            ready,
            user: User(user),
        }
    }

    pub(crate) fn run(self, call: &Arc<C>) {
        // SAFETY: as of a handler.
        let run = || unsafe { (self.ready)(Arc::as_ptr(call).cast_mut(), self.user.0) };
        if let Err(thrown) = guarded(run) {
            complain("readiness function", &thrown);
        }
    }
}

//! What C hands over as pointers: functions to run with their `user` pointers, handles, and structs of other versions.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, OnceLock};

use tollgate_core::{ReceivedBlock, Status};

use crate::call::Call;
use crate::session::{Message, State};
use crate::status::{Ended, StatusObject, invalid};

/// A pointer that the library only hands back.
#[derive(Clone, Copy)]
struct User(*mut c_void);

// SAFETY: it is never followed here, and handed back on a thread that the program has called the library from; tollgate.h tells the
// program so.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

// Unwinding through them is defined, though only a guard stops it: without one, a C++ exception ends the process with a sentence.
/// `tollgate_done_fn`.
pub(crate) type DoneFn =
    unsafe extern "C-unwind" fn(*mut c_void, i32, *mut Message, *const StatusObject);
/// `tollgate_handler_fn`.
pub(crate) type HandlerFn = unsafe extern "C-unwind" fn(*mut Call, *mut c_void);
/// `tollgate_ready_fn`.
pub(crate) type ReadyFn = unsafe extern "C-unwind" fn(*mut Call, *mut c_void);
/// `tollgate_run_fn`.
pub(crate) type RunFn = unsafe extern "C-unwind" fn(*mut c_void);
/// `tollgate_guard_fn`.
pub(crate) type GuardFn = unsafe extern "C" fn(RunFn, *mut c_void, *mut c_char, usize) -> i32;

/// A C++ program's. Rust can't catch what C++ throws; the program's own compiler has made something that can.
static GUARD: OnceLock<GuardFn> = OnceLock::new();

/// The longest text of an exception, its zero byte included.
const EXCEPTION_TEXT_BYTES: usize = 512;

/// Has the program's functions run in this. Of several, from several parts of a program, the first does for all.
pub(crate) fn guard_with(guard: GuardFn) {
    let _others = GUARD.set(guard);
}

/// Runs a function of the program's; what it threw, if it did, as text.
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
    // SAFETY: the guard came with tollgate_cpp.h, which calls `call` once with `state`, and writes `room` bytes at most: `text` ends with a
    // zero byte whatever it is.
    match unsafe { guard(call::<F>, state, text.as_mut_ptr().cast(), room) } {
        0 => Ok(()),
        _ => Err(CStr::from_bytes_until_nul(&text)
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()),
    }
}

/// Says what nobody else will hear of.
fn complain(what: &str, thrown: &str) {
    eprintln!("tollgate: a {what} threw an exception: {thrown}");
}

/// What a program wants to be told of the end of a call that it started.
pub(crate) struct Completion {
    done: DoneFn,
    user: User,
    outcome: Option<Result<Message, Status>>,
}

impl Completion {
    pub(crate) fn new(done: DoneFn, user: *mut c_void) -> Completion {
        Completion {
            done,
            user: User(user),
            outcome: None,
        }
    }

    /// How the call has ended.
    pub(crate) fn ended(&mut self, outcome: Result<ReceivedBlock, Status>, session: &Arc<State>) {
        self.outcome = Some(outcome.map(|block| Message::new(block, session)));
    }

    /// Tells it.
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
        // SAFETY: the function came with this pointer from the program, which promises in tollgate.h that they go together.
        let run = || unsafe { (self.done)(self.user.0, object.code, message, &raw const object) };
        if let Err(thrown) = guarded(run) {
            complain("completion", &thrown);
        }
    }
}

/// What handles the calls of a method.
#[derive(Clone, Copy)]
pub(crate) struct Handler {
    handle: HandlerFn,
    user: User,
}

impl Handler {
    pub(crate) fn new(handle: HandlerFn, user: *mut c_void) -> Handler {
        Handler {
            handle,
            user: User(user),
        }
    }

    /// Runs it; what it threw, as text.
    pub(crate) fn run(self, call: &Arc<Call>) -> Result<(), String> {
        // SAFETY: function and pointer go together, as above; the call lives at least as long as the caller's reference, and longer
        // if the handler keeps it.
        let ran = guarded(|| unsafe { (self.handle)(Arc::as_ptr(call).cast_mut(), self.user.0) });
        ran.inspect_err(|thrown| complain("handler", thrown))
    }
}

/// What wants to know that a call may go on.
#[derive(Clone, Copy)]
pub(crate) struct Readiness {
    ready: ReadyFn,
    user: User,
}

impl Readiness {
    pub(crate) fn new(ready: ReadyFn, user: *mut c_void) -> Readiness {
        Readiness {
            ready,
            user: User(user),
        }
    }

    pub(crate) fn run(self, call: &Arc<Call>) {
        // SAFETY: as of a handler.
        let run = || unsafe { (self.ready)(Arc::as_ptr(call).cast_mut(), self.user.0) };
        if let Err(thrown) = guarded(run) {
            complain("readiness function", &thrown);
        }
    }
}

/// What a pointer points to.
///
/// # Safety
/// It is NULL or as the header asks: a handle that wasn't freed, or a struct of its type; for as long as the caller uses it.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Status> {
    // SAFETY: the caller's.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// As [`given`], to be changed.
///
/// # Safety
/// As there, and nobody else uses it.
pub(crate) unsafe fn given_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Status> {
    // SAFETY: the caller's.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

/// A share in what a counted handle names.
///
/// # Safety
/// As of [`given`]; the handle came from [`Arc::into_raw`].
pub(crate) unsafe fn shared<T>(pointer: *const T, name: &str) -> Result<Arc<T>, Status> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the handle holds a count, by the contract above; this adds one for what is returned.
    unsafe {
        Arc::increment_strong_count(pointer);
        Ok(Arc::from_raw(pointer))
    }
}

/// Puts a result where C wants it.
///
/// # Safety
/// The pointer is NULL, or one value of `T` may be written there.
pub(crate) unsafe fn put<T>(pointer: *mut T, name: &str, value: T) -> Result<(), Status> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's.
    unsafe { pointer.write(value) };
    Ok(())
}

fn null(name: &str) -> Status {
    invalid(format!("`{name}` is NULL"))
}

/// A zero-terminated string.
///
/// # Safety
/// It is NULL, or zero-terminated for as long as the caller uses it.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(pointer) };
    // Where, not what: it may be a secret.
    text.to_str().map_err(|error| {
        let at = error.valid_up_to();
        invalid(format!(
            "`{name}` isn't UTF-8: see its byte {at}, counted from 0"
        ))
    })
}

/// As [`text`], where NULL stands for a default.
///
/// # Safety
/// As there.
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Status> {
    match pointer.is_null() {
        true => Ok(None),
        // SAFETY: the caller's.
        false => unsafe { text(pointer, name) }.map(Some),
    }
}

/// So many bytes.
///
/// # Safety
/// `len` bytes can be read there, or it is NULL or `len` 0.
pub(crate) unsafe fn bytes<'a>(
    pointer: *const u8,
    len: usize,
    name: &str,
) -> Result<&'a [u8], Status> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        // SAFETY: the caller's.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// The longest struct that a newer header may bring.
const MAX_STRUCT_BYTES: usize = 4096;

/// A struct that begins with its size, as the program's header knew it: what an older one lacks is zero, what a newer one adds has to be.
///
/// # Safety
/// The pointer is NULL, or to a struct whose first field tells its size. Zero is a value of every field of `T`, which has no padding that
/// matters and no type that isn't a number or a pointer.
pub(crate) unsafe fn sized<T>(
    pointer: *const T,
    least: usize,
    name: &str,
) -> Result<Option<T>, Status> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the size comes first, whatever the version.
    let size = unsafe { pointer.cast::<usize>().read() };
    let known = size_of::<T>();
    if size < least || size > MAX_STRUCT_BYTES {
        return Err(invalid(format!(
            "`{name}.struct_size` is {size}, which is no size of that struct: set it to its sizeof"
        )));
    }
    // SAFETY: zero is a value of `T`, by the contract above.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: the program's struct has `size` bytes, ours `known`, and they don't overlap.
    unsafe {
        pointer
            .cast::<u8>()
            .copy_to_nonoverlapping((&raw mut value).cast::<u8>(), size.min(known));
    }
    for at in known..size {
        // SAFETY: within the program's struct.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            return Err(invalid(format!(
                "`{name}` sets something that this version of the library doesn't know: byte {at}, and it knows {known}"
            )));
        }
    }
    Ok(Some(value))
}

/// Gives C what a struct that begins with its size has room for.
///
/// # Safety
/// The pointer is to a struct whose first field tells its size, and which may be written. `T` has no padding.
pub(crate) unsafe fn put_sized<T>(
    pointer: *mut T,
    least: usize,
    name: &str,
    mut value: T,
) -> Result<(), Status> {
    // SAFETY: the size comes first, whatever the version.
    let size = unsafe { pointer.cast::<usize>().read() };
    let known = size_of::<T>();
    if size < least || size > MAX_STRUCT_BYTES {
        return Err(invalid(format!(
            "`{name}.struct_size` is {size}, which is no size of that struct: set it to its sizeof"
        )));
    }
    // SAFETY: the program's struct has `size` bytes, ours `known`; its size stays what it says.
    unsafe {
        (&raw mut value).cast::<usize>().write(size);
        (&raw const value)
            .cast::<u8>()
            .copy_to_nonoverlapping(pointer.cast::<u8>(), size.min(known));
    }
    Ok(())
}

//! Sessions, their drivers, their services, and buffers in their send heaps.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{SendBuffer, Session, SessionOptions, SharedBytes, Status};

use super::client::{Described, tollgate_service};
use super::{
    answer, or_else, tollgate_bytes, tollgate_code, tollgate_guard_fn, tollgate_handler_fn,
    tollgate_session, tollgate_status,
};
use crate::args::{given, given_mut, optional_text, put, put_sized, shared, sized, text};
use crate::callbacks::{Handler, guard_with};
use crate::served::Served;
use crate::session::{Held, State};
use crate::status::{Ended, invalid, precondition};

#[repr(C)]
pub struct tollgate_session_options {
    struct_size: usize,
    socket: *const c_char,
    token: *const c_char,
    app: *const c_char,
    label: *const c_char,
    send_heap_bytes: u64,
    receive_heap_bytes: u64,
    spin_us: i64,
    reconnect: i64,
    retries: i64,
}

/// The fields up to the token, which is required.
const LEAST_SESSION_OPTIONS: usize = std::mem::offset_of!(tollgate_session_options, app);

#[repr(C)]
pub struct tollgate_leaks {
    struct_size: usize,
    messages: usize,
    message_bytes: u64,
    calls: usize,
    buffers: usize,
    buffer_bytes: u64,
}

/// The fields up to the messages' bytes.
const LEAST_LEAKS: usize = std::mem::offset_of!(tollgate_leaks, calls);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_guard_with(guard: tollgate_guard_fn) {
    if let Some(guard) = guard {
        guard_with(guard);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_open(
    options: *const tollgate_session_options,
    session: *mut *mut tollgate_session,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or room for a handle.
        unsafe { put(session, "session", std::ptr::null_mut()) }?;
        // SAFETY: NULL or a struct that begins with its size, of numbers and pointers.
        let options = unsafe { sized(options, LEAST_SESSION_OPTIONS, "options") }?;
        let options = options.ok_or_else(|| invalid("`options` is NULL"))?;
        // SAFETY: its strings are NULL or zero-terminated.
        let options = unsafe { opening(&options) }?;
        let state = Arc::new(State::new(Session::open(options)?));
        // SAFETY: as above.
        Ok(unsafe { put(session, "session", Arc::into_raw(state).cast_mut()) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

/// # Safety
/// The strings are NULL or zero-terminated.
unsafe fn opening(options: &tollgate_session_options) -> Result<SessionOptions, Status> {
    // SAFETY: the caller's.
    let (socket, token, app, label) = unsafe {
        (
            text(options.socket, "options.socket")?,
            optional_text(options.token, "options.token")?,
            optional_text(options.app, "options.app")?,
            optional_text(options.label, "options.label")?,
        )
    };
    let mut opening = SessionOptions::new(socket, token.unwrap_or_default());
    if let Some(app) = app {
        opening.app = app.to_owned();
    }
    opening.label = label.unwrap_or_default().to_owned();
    opening.send_heap_bytes = options.send_heap_bytes;
    opening.receive_heap_bytes = options.receive_heap_bytes;
    match options.spin_us {
        0 => {}
        -1 => opening.spin = Duration::ZERO,
        us => {
            let us = u64::try_from(us).map_err(|_| {
                invalid(format!(
                    "`options.spin_us` is {us}: it must be a time in us, 0 for the default, or -1 for no spinning"
                ))
            })?;
            opening.spin = Duration::from_micros(us);
        }
    }
    opening.reconnect = match options.reconnect {
        0 => true,
        -1 => false,
        other => {
            let text = format!(
                "`options.reconnect` is {other}: it must be 0 if the session may reconnect, -1 if not"
            );
            return Err(invalid(text));
        }
    };
    opening.retries = match options.retries {
        0 => opening.retries,
        -1 => 0,
        times => u32::try_from(times).map_err(|_| {
            invalid(format!(
                "`options.retries` is {times}: it must be a number of retries, 0 for the default, or -1 for none"
            ))
        })?,
    };
    Ok(opening)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_close(
    session: *mut tollgate_session,
    leaks: *mut tollgate_leaks,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let session = unsafe { shared(session, "session") }?;
        let held = session
            .close()
            .ok_or_else(|| precondition("the session is closed already"))?;
        if !leaks.is_null() {
            let found = tollgate_leaks {
                struct_size: 0,
                messages: held.messages,
                message_bytes: held.message_bytes,
                calls: held.calls,
                buffers: held.buffers,
                buffer_bytes: held.buffer_bytes,
            };
            // SAFETY: a struct that begins with its size; every field is 8 bytes long, so there is
            // no padding.
            unsafe { put_sized(leaks, LEAST_LEAKS, "leaks", found) }?;
        }
        match held == Held::default() {
            true => Ok(()),
            false => Err(precondition(leaked(&held)).into()),
        }
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

fn leaked(held: &Held) -> String {
    let Held {
        messages,
        message_bytes,
        calls,
        buffers,
        buffer_bytes,
    } = held;
    format!(
        "the session is closed, but the program still holds {messages} messages of {message_bytes} bytes, {calls} calls, \
         {buffers} buffers of {buffer_bytes} bytes"
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_free(session: *mut tollgate_session) {
    or_else((), || {
        if session.is_null() {
            return Ok(());
        }
        // SAFETY: live, and from `tollgate_session_open`, which gave its count to the program.
        let session = unsafe { Arc::from_raw(session.cast_const()) };
        let _closed_before = session.close();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_tenant(
    session: *const tollgate_session,
) -> *const c_char {
    or_else(c"".as_ptr(), || {
        // SAFETY: NULL or live. The name has a zero byte behind it.
        unsafe { given(session, "session") }.map(|session| session.tenant.as_ptr().cast())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_id(session: *const tollgate_session) -> u64 {
    or_else(0, || {
        // SAFETY: NULL or live.
        unsafe { given(session, "session") }.map(|session| session.core.id())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_max_message_bytes(
    session: *const tollgate_session,
) -> usize {
    or_else(0, || {
        // SAFETY: NULL or live.
        unsafe { given(session, "session") }.map(|session| session.core.max_message_bytes())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_fd(
    session: *mut tollgate_session,
    status: *mut tollgate_status,
) -> i32 {
    let mut descriptor = -1;
    let work = || {
        // SAFETY: NULL or live.
        let session = unsafe { given(session.cast_const(), "session") }?;
        descriptor = session.descriptor()?;
        Ok(())
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) };
    descriptor
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_drive(
    session: *mut tollgate_session,
    timeout_ms: i64,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let session = unsafe { shared(session, "session") }?;
        Ok(session.drive(patience(timeout_ms)?)?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

/// How long to wait; `None` for ever.
fn patience(timeout_ms: i64) -> Result<Option<Duration>, Status> {
    match (timeout_ms, u64::try_from(timeout_ms)) {
        (-1, _) => Ok(None),
        (_, Ok(ms)) => Ok(Some(Duration::from_millis(ms))),
        (_, Err(_)) => {
            let text = format!(
                "`timeout_ms` is {timeout_ms}: it must be a time in ms, or -1 for no limit"
            );
            Err(invalid(text))
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_add_service(
    session: *mut tollgate_session,
    service: *const tollgate_service,
    handlers: *const tollgate_handler_fn,
    handler_count: usize,
    user: *mut c_void,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let session = unsafe { shared(session, "session") }?;
        // SAFETY: NULL or a service as the stubs have them.
        let described = unsafe { Described::read(service) }?;
        if handlers.is_null() || handler_count != described.methods.len() {
            let count = described.methods.len();
            let text = format!(
                "`handlers` is NULL, or `handler_count` is {handler_count}: {} has {count} methods",
                described.name
            );
            return Err(invalid(text).into());
        }
        // SAFETY: so many handlers.
        let handlers = unsafe { std::slice::from_raw_parts(handlers, handler_count) };
        let handlers = handlers.iter();
        let served = Served {
            name: described.name,
            descriptor_set: described.descriptor_set,
            handlers: handlers
                .map(|handler| handler.map(|handler| Handler::new(handler, user)))
                .collect(),
            session,
        };
        Ok(served.bind()?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_serve(
    session: *mut tollgate_session,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let session = unsafe { shared(session, "session") }?;
        Ok(session.serve()?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_stop(session: *mut tollgate_session) {
    or_else((), || {
        // SAFETY: NULL or live.
        unsafe { given(session.cast_const(), "session") }?.stop();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_session_drain(
    session: *mut tollgate_session,
    timeout_ms: i64,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let session = unsafe { shared(session, "session") }?;
        Ok(session.drain(patience(timeout_ms)?)?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

/// Memory of a session's send heap, held by the program.
pub struct tollgate_buffer {
    session: Arc<State>,
    len: usize,
    memory: Memory,
}

enum Memory {
    Filling(SendBuffer),
    Frozen(SharedBytes),
    /// Between the two states.
    Changing,
}

impl Drop for tollgate_buffer {
    fn drop(&mut self) {
        if let Memory::Frozen(bytes) = &self.memory {
            self.session.unshare(bytes.as_ptr().addr());
        }
        self.session.buffers.remove(self.len);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_buffer_new(
    session: *mut tollgate_session,
    len: usize,
    buffer: *mut *mut tollgate_buffer,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or room for a handle.
        unsafe { put(buffer, "buffer", std::ptr::null_mut()) }?;
        // SAFETY: NULL or live.
        let session = unsafe { shared(session, "session") }?;
        let memory = Memory::Filling(session.core.buffer(len)?);
        session.buffers.add(len);
        let made = Box::new(tollgate_buffer {
            session,
            len,
            memory,
        });
        // SAFETY: as above.
        Ok(unsafe { put(buffer, "buffer", Box::into_raw(made)) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_buffer_data(buffer: *mut tollgate_buffer) -> *mut u8 {
    or_else(std::ptr::null_mut(), || {
        // SAFETY: NULL or live, and nobody else's.
        match &mut unsafe { given_mut(buffer, "buffer") }?.memory {
            Memory::Filling(memory) => Ok(memory.as_mut_ptr()),
            Memory::Frozen(_) | Memory::Changing => Err(precondition("the buffer is frozen")),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_buffer_freeze(
    buffer: *mut tollgate_buffer,
    bytes: *mut tollgate_bytes,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live, and nobody else's.
        let buffer = unsafe { given_mut(buffer, "buffer") }?;
        if bytes.is_null() {
            return Err(Ended::With(invalid("`bytes` is NULL")));
        }
        let frozen = match std::mem::replace(&mut buffer.memory, Memory::Changing) {
            Memory::Filling(memory) => memory.freeze(),
            other => {
                buffer.memory = other;
                return Err(precondition("the buffer is frozen already").into());
            }
        };
        buffer.session.share(frozen.clone());
        let view = tollgate_bytes::from(&*frozen);
        buffer.memory = Memory::Frozen(frozen);
        // SAFETY: room for a value; it isn't NULL.
        Ok(unsafe { put(bytes, "bytes", view) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_buffer_free(buffer: *mut tollgate_buffer) {
    or_else((), || {
        if !buffer.is_null() {
            // SAFETY: live, and from `tollgate_buffer_new`.
            drop(unsafe { Box::from_raw(buffer) });
        }
        Ok(())
    });
}

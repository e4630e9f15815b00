//! Calls as handles.

use std::ffi::c_void;
use std::sync::Arc;

use tollgate_core::{Code, Status};

use super::client::{NONBLOCK, outgoing};
use super::{
    answer, or_else, tollgate_call, tollgate_code, tollgate_message, tollgate_metadata,
    tollgate_ready_fn, tollgate_source, tollgate_status,
};
use crate::args::{given, put, shared};
use crate::callbacks::Readiness;
use crate::status::{Ended, invalid};

fn may_block(flags: u32) -> Result<bool, Status> {
    match flags {
        0 => Ok(true),
        NONBLOCK => Ok(false),
        _ => Err(invalid(format!(
            "`flags` is {flags:#x}, but only TOLLGATE_NONBLOCK is allowed"
        ))),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_send(
    call: *mut tollgate_call,
    message: *const tollgate_source,
    flags: u32,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live; a message of the program's.
        let (call, message) = unsafe {
            let call = shared(call, "call")?;
            let message = outgoing(message, &call.session, "message")?;
            (call, message)
        };
        call.send(message, tollgate_metadata::new(), may_block(flags)?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_send_metadata(
    call: *mut tollgate_call,
    metadata: *const tollgate_metadata,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live, both.
        let (call, metadata) = unsafe { (shared(call, "call")?, given(metadata, "metadata")?) };
        Ok(call.send_metadata(metadata.clone())?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_half_close(
    call: *mut tollgate_call,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let call = unsafe { shared(call, "call") }?;
        Ok(call.half_close()?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_receive(
    call: *mut tollgate_call,
    flags: u32,
    message: *mut *mut tollgate_message,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or room for a handle; NULL or live.
        let call = unsafe {
            put(message, "message", std::ptr::null_mut())?;
            shared(call, "call")?
        };
        let received = Box::new(call.receive(may_block(flags)?)?);
        // SAFETY: as above.
        Ok(unsafe { put(message, "message", Box::into_raw(received)) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_metadata(
    call: *mut tollgate_call,
    flags: u32,
    metadata: *mut *const tollgate_metadata,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or room for a pointer; NULL or live.
        let call = unsafe {
            put(metadata, "metadata", std::ptr::null())?;
            shared(call, "call")?
        };
        let come = std::ptr::from_ref(call.metadata(may_block(flags)?)?);
        // SAFETY: as above. What it points to lives as long as the call.
        Ok(unsafe { put(metadata, "metadata", come) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_trailers(
    call: *const tollgate_call,
) -> *const tollgate_metadata {
    or_else(std::ptr::null(), || {
        // SAFETY: NULL or live.
        let trailers = unsafe { given(call, "call") }?.trailers();
        Ok(trailers.map_or(std::ptr::null(), std::ptr::from_ref))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_cancel(
    call: *mut tollgate_call,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let call = unsafe { shared(call, "call") }?;
        Ok(call.cancel()?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_is_cancelled(call: *mut tollgate_call) -> bool {
    or_else(true, || {
        // SAFETY: NULL or live.
        let call = unsafe { shared(call, "call") }?;
        Ok(call.is_cancelled())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_on_ready(
    call: *mut tollgate_call,
    ready: tollgate_ready_fn,
    user: *mut c_void,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let call = unsafe { shared(call, "call") }?;
        call.on_ready(ready.map(|ready| Readiness::new(ready, user)));
        Ok(())
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_method(call: *const tollgate_call) -> i32 {
    or_else(-1, || {
        // SAFETY: NULL or live.
        let method = unsafe { given(call, "call") }?.method();
        Ok(method
            .and_then(|method| i32::try_from(method).ok())
            .unwrap_or(-1))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_time_left_ms(call: *const tollgate_call) -> i64 {
    or_else(-1, || {
        // SAFETY: NULL or live.
        let left = unsafe { given(call, "call") }?.time_left();
        Ok(left.map_or(-1, |left| {
            i64::try_from(left.as_millis()).unwrap_or(i64::MAX)
        }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_keep(
    call: *mut tollgate_call,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live.
        let call = unsafe { shared(call, "call") }?;
        Ok(call.keep()?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_reply(
    call: *mut tollgate_call,
    message: *const tollgate_source,
    metadata: *const tollgate_metadata,
    trailers: *const tollgate_metadata,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live; a message of the program's.
        let (call, message, metadata, trailers) = unsafe {
            let call = shared(call, "call")?;
            let message = outgoing(message, &call.session, "message")?;
            let metadata = metadata.as_ref().cloned().unwrap_or_default();
            let trailers = trailers.as_ref().cloned().unwrap_or_default();
            (call, message, metadata, trailers)
        };
        Ok(call.reply(message, metadata, trailers)?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_finish(
    call: *mut tollgate_call,
    how: *const tollgate_status,
    trailers: *const tollgate_metadata,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live, all of them.
        let (call, how, trailers) =
            unsafe { (shared(call, "call")?, how.as_ref(), trailers.as_ref()) };
        let mut end = match how {
            Some(how) => how.to_status(),
            None => Status::new(Code::OK, ""),
        };
        for (key, value) in trailers.iter().flat_map(|trailers| trailers.view().iter()) {
            // Details are part of the status. A program may not send other reserved keys.
            let pushed = end.metadata.push(key, value);
            pushed.map_err(|error| Ended::With(error.into()))?;
        }
        Ok(call.finish(end)?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_free(call: *mut tollgate_call) {
    or_else((), || {
        // SAFETY: NULL or live.
        let borrowed = unsafe { given(call.cast_const(), "call") }?;
        if borrowed.unkeep() {
            // SAFETY: the program has a share in it, which is this.
            let call = unsafe { Arc::from_raw(call.cast_const()) };
            call.give_up();
        }
        Ok(())
    });
}

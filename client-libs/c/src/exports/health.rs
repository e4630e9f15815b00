//! gRPC's health service.

use std::ffi::c_char;

use ::tollgate_health::{Reporter, ServingStatus};
use tollgate_core::Status;

use super::{answer, or_else, tollgate_code, tollgate_session, tollgate_status};
use crate::args::{given, put, shared, text};
use crate::status::invalid;

/// The health status of a server.
pub struct tollgate_health(Reporter);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_health_new(
    session: *mut tollgate_session,
    health: *mut *mut tollgate_health,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or room for a handle.
        unsafe { put(health, "health", std::ptr::null_mut()) }?;
        // SAFETY: NULL or live.
        let session = unsafe { shared(session, "session") }?;
        let reporter = session.serve_health()?;
        let made = Box::new(tollgate_health(reporter));
        // SAFETY: as above.
        Ok(unsafe { put(health, "health", Box::into_raw(made)) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_health_set(
    health: *const tollgate_health,
    service: *const c_char,
    serving: i32,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or live; zero-terminated.
        let (health, service) = unsafe { (given(health, "health")?, text(service, "service")?) };
        Ok(set_status(&health.0, service, serving)?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

// The numbers of grpc.health.v1.
const HEALTH_UNKNOWN: i32 = 0;
const HEALTH_SERVING: i32 = 1;
const HEALTH_NOT_SERVING: i32 = 2;
const HEALTH_SERVICE_UNKNOWN: i32 = 3;

fn set_status(reporter: &Reporter, service: &str, serving: i32) -> Result<(), Status> {
    match serving {
        HEALTH_SERVICE_UNKNOWN => reporter.forget(service),
        HEALTH_UNKNOWN | HEALTH_SERVING | HEALTH_NOT_SERVING => {
            reporter.set(service, ServingStatus(serving));
        }
        other => {
            let text = format!("`serving` is {other}: it must be one of TOLLGATE_HEALTH_*, 0 to 3");
            return Err(invalid(text));
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_health_shut_down(health: *const tollgate_health) {
    or_else((), || {
        // SAFETY: NULL or live.
        unsafe { given(health, "health") }?.0.shut_down();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_health_free(health: *mut tollgate_health) {
    or_else((), || {
        if !health.is_null() {
            // SAFETY: live, and from `tollgate_health_new`.
            drop(unsafe { Box::from_raw(health) });
        }
        Ok(())
    });
}

//! Clients of services, and calls with one request and one reply.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Code, Opening, Status};

use super::{
    answer, or_else, tollgate_call, tollgate_code, tollgate_done_fn, tollgate_message,
    tollgate_metadata, tollgate_session, tollgate_source, tollgate_status,
};
use crate::args::{bytes, given, optional_text, put, shared, sized, text};
use crate::call::Call;
use crate::callbacks::Completion;
use crate::outgoing::{Outgoing, OutgoingMessage};
use crate::session::{Message, State};
use crate::status::{Ended, invalid};

/// The call must not wait.
pub(crate) const NONBLOCK: u32 = 1;

/// `tollgate_method` of tollgate_block.h.
#[repr(C)]
pub struct tollgate_method {
    name: *const c_char,
    client_streaming: bool,
    server_streaming: bool,
}

/// `tollgate_service` of tollgate_block.h.
#[repr(C)]
pub struct tollgate_service {
    name: *const c_char,
    methods: *const tollgate_method,
    method_count: usize,
    descriptor_set: *const u8,
    descriptor_set_len: usize,
    schema_hash: *const c_char,
}

#[repr(C)]
pub struct tollgate_call_options {
    struct_size: usize,
    timeout_ms: u64,
    metadata: *const tollgate_metadata,
    flags: u32,
    reserved: u32,
}

/// The fields before the metadata.
const LEAST_CALL_OPTIONS: usize = std::mem::offset_of!(tollgate_call_options, flags);

/// The program's description of a service.
pub(crate) struct Described {
    pub(crate) name: String,
    /// Names of the methods, and whether they stream.
    pub(crate) methods: Vec<(String, bool)>,
    pub(crate) descriptor_set: Vec<u8>,
}

impl Described {
    /// # Safety
    /// The pointer is NULL or to a service as the stubs have them.
    pub(crate) unsafe fn read(service: *const tollgate_service) -> Result<Described, Status> {
        // SAFETY: the caller's: what a service points to is as long as it says.
        unsafe {
            let service = given(service, "service")?;
            let set = bytes(
                service.descriptor_set,
                service.descriptor_set_len,
                "service.descriptor_set",
            )?;
            let methods = match service.method_count {
                0 => &[],
                _ if service.methods.is_null() => return Err(invalid("`service.methods` is NULL")),
                count => std::slice::from_raw_parts(service.methods, count),
            };
            let methods = methods.iter().map(|method| {
                let name = text(method.name, "service.methods[].name")?;
                let streams = method.client_streaming || method.server_streaming;
                Ok((name.to_owned(), streams))
            });
            Ok(Described {
                name: text(service.name, "service.name")?.to_owned(),
                methods: methods.collect::<Result<_, Status>>()?,
                descriptor_set: set.to_vec(),
            })
        }
    }
}

/// A service that was bound for calling.
pub struct tollgate_client {
    session: Arc<State>,
    service: String,
    methods: Vec<Method>,
}

struct Method {
    name: String,
    streams: bool,
    /// `None`: the daemon doesn't know the method.
    handle: Option<u32>,
}

impl tollgate_client {
    fn method(&self, index: u32) -> Result<(u32, &Method), Status> {
        let Some(method) = self.methods.get(index as usize) else {
            let (service, count) = (&self.service, self.methods.len());
            return Err(invalid(format!(
                "{service} has no method {index}: it has {count} methods"
            )));
        };
        match method.handle {
            Some(handle) => Ok((handle, method)),
            None => Err(Status::new(
                Code::UNIMPLEMENTED,
                format!(
                    "the daemon bound {} without its method {}",
                    self.service, method.name
                ),
            )),
        }
    }

    fn unary(&self, index: u32) -> Result<u32, Status> {
        let (handle, method) = self.method(index)?;
        match method.streams {
            false => Ok(handle),
            true => Err(invalid(format!(
                "{}/{} is a streaming method: call it with tollgate_call_open",
                self.service, method.name
            ))),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_new(
    session: *mut tollgate_session,
    service: *const tollgate_service,
    target: *const c_char,
    client: *mut *mut tollgate_client,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or room for a handle.
        unsafe { put(client, "client", std::ptr::null_mut()) }?;
        // SAFETY: NULL or live; a service as the stubs have them; NULL or zero-terminated.
        let (session, described, target) = unsafe {
            (
                shared(session, "session")?,
                Described::read(service)?,
                optional_text(target, "target")?.unwrap_or_default(),
            )
        };
        let set = &described.descriptor_set;
        let binding = session.core.bind_client(set, &described.name, target);
        let binding = session.block(binding)?;
        let methods = described.methods.into_iter();
        let methods = methods.map(|(name, streams)| Method {
            handle: binding.handle(&name),
            name,
            streams,
        });
        let made = Box::new(tollgate_client {
            methods: methods.collect(),
            session,
            service: described.name,
        });
        // SAFETY: as above.
        Ok(unsafe { put(client, "client", Box::into_raw(made)) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_client_free(client: *mut tollgate_client) {
    or_else((), || {
        if !client.is_null() {
            // SAFETY: live, and from `tollgate_client_new`.
            drop(unsafe { Box::from_raw(client) });
        }
        Ok(())
    });
}

/// The options of a call; NULL: the defaults.
///
/// # Safety
/// NULL, or a struct that begins with its size; its metadata is NULL or live.
unsafe fn read_options(
    options: *const tollgate_call_options,
    allowed: u32,
) -> Result<(Opening, u32), Status> {
    // SAFETY: the caller's; its fields are numbers and pointers.
    let Some(options) = (unsafe { sized(options, LEAST_CALL_OPTIONS, "options") })? else {
        return Ok((Opening::default(), 0));
    };
    if options.flags & !allowed != 0 || options.reserved != 0 {
        let flags = options.flags;
        return Err(invalid(format!(
            "`options.flags` is {flags:#x}, but only {allowed:#x} is allowed here, or `options.reserved` isn't 0"
        )));
    }
    // SAFETY: the caller's.
    let metadata = unsafe { options.metadata.as_ref() };
    let opening = Opening {
        metadata: metadata.cloned().unwrap_or_default(),
        timeout: (options.timeout_ms > 0).then(|| Duration::from_millis(options.timeout_ms)),
        is_last: false,
    };
    Ok((opening, options.flags))
}

/// A message of the program.
///
/// # Safety
/// As of [`Outgoing::new`]; or NULL.
pub(crate) unsafe fn outgoing(
    source: *const tollgate_source,
    session: &State,
    name: &str,
) -> Result<Outgoing, Status> {
    // SAFETY: the caller's.
    unsafe { Outgoing::new(*given(source, name)?, session) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_unary(
    client: *const tollgate_client,
    method: u32,
    request: *const tollgate_source,
    options: *const tollgate_call_options,
    reply: *mut *mut tollgate_message,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or room for a handle; NULL or live; NULL or options; a message of the
        // program's.
        let (client, (opening, _), request) = unsafe {
            put(reply, "reply", std::ptr::null_mut())?;
            let client = given(client, "client")?;
            let options = read_options(options, 0)?;
            (
                client,
                options,
                outgoing(request, &client.session, "request")?,
            )
        };
        let handle = client.unary(method)?;
        let session = &client.session;
        let mut call = session
            .core
            .call(handle, OutgoingMessage(&request), opening.timeout);
        if !opening.metadata.is_empty() {
            call = call.with_metadata(opening.metadata);
        }
        let block = session.block(call)?;
        request.check_unchanged()?;
        let message = Box::new(Message::new(block, session));
        // SAFETY: as above.
        Ok(unsafe { put(reply, "reply", Box::into_raw(message)) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_unary_start(
    client: *const tollgate_client,
    method: u32,
    request: *const tollgate_source,
    options: *const tollgate_call_options,
    done: tollgate_done_fn,
    user: *mut c_void,
    call: *mut *mut tollgate_call,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        let done = done.ok_or_else(|| invalid("`done` is NULL"))?;
        // SAFETY: NULL or live; NULL or options; a message of the program's.
        let (client, (opening, _), request) = unsafe {
            let client = given(client, "client")?;
            let options = read_options(options, 0)?;
            (
                client,
                options,
                outgoing(request, &client.session, "request")?,
            )
        };
        let handle = client.unary(method)?;
        let completion = Completion::new(done, user);
        let started = Call::start(&client.session, handle, request, opening, completion);
        if !call.is_null() {
            let handle = Arc::into_raw(started).cast_mut();
            // SAFETY: room for a handle.
            unsafe { put(call, "call", handle) }?;
        }
        Ok(())
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tollgate_call_open(
    client: *const tollgate_client,
    method: u32,
    first: *const tollgate_source,
    is_last: bool,
    options: *const tollgate_call_options,
    call: *mut *mut tollgate_call,
    status: *mut tollgate_status,
) -> tollgate_code {
    let work = || {
        // SAFETY: NULL or room for a handle; NULL or live; NULL or options.
        let (client, (mut opening, flags)) = unsafe {
            put(call, "call", std::ptr::null_mut())?;
            (given(client, "client")?, read_options(options, NONBLOCK)?)
        };
        let first = match first.is_null() {
            true => None,
            // SAFETY: a message of the program's.
            false => Some(unsafe { outgoing(first, &client.session, "first") }?),
        };
        opening.is_last = is_last;
        let (handle, _) = client.method(method)?;
        let may_block = flags & NONBLOCK == 0;
        let opened = Call::open(&client.session, handle, first, opening, may_block)?;
        // SAFETY: as above.
        Ok::<_, Ended>(unsafe { put(call, "call", Arc::into_raw(opened).cast_mut()) }?)
    };
    // SAFETY: the header's contract.
    unsafe { answer(status, work) }
}

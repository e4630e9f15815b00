//! The content ACL of `policies-wasm/acl` as an Envoy filter. It refuses a reservation if the
//! customer is on a list.
//!
//! Every filter on a gRPC message has to wait for the whole body, take gRPC's frame off, and find
//! the field. This filter does so by hand. Without a list it looks at nothing.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, LogLevel};
use serde::Deserialize;

/// gRPC's PERMISSION_DENIED.
const PERMISSION_DENIED: u32 = 7;

/// Bytes of gRPC's frame before a message: a flag and a length.
const FRAME: usize = 5;

/// `hotel.ReserveRequest.customer_name`: field 1, wire type 2.
const CUSTOMER_NAME: u8 = 1 << 3 | 2;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Warn);
    proxy_wasm::set_root_context(|_| Box::<Root>::default());
}}

#[derive(Default)]
struct Root {
    blocked: Option<Rc<HashSet<Box<[u8]>>>>,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        #[derive(Deserialize)]
        struct Text {
            blocked: Option<Vec<String>>,
        }
        let bytes = self.get_plugin_configuration().unwrap_or_default();
        let Ok(text) = serde_json::from_slice::<Text>(&bytes) else {
            return false;
        };
        self.blocked = text.blocked.map(|names| {
            let names = names.into_iter().map(|name| name.into_bytes().into());
            Rc::new(names.collect())
        });
        true
    }

    fn create_http_context(&self, _id: u32) -> Option<Box<dyn HttpContext>> {
        Some(match &self.blocked {
            None => Box::new(Null),
            Some(blocked) => Box::new(Acl {
                blocked: Rc::clone(blocked),
                guards: false,
            }),
        })
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Null;

impl Context for Null {}

impl HttpContext for Null {}

struct Acl {
    blocked: Rc<HashSet<Box<[u8]>>>,
    guards: bool,
}

impl Context for Acl {}

impl HttpContext for Acl {
    fn on_http_request_headers(&mut self, _count: usize, _end: bool) -> Action {
        let path = self.get_http_request_header(":path");
        self.guards = path.is_some_and(|path| path == "/hotel.Reservation/Reserve");
        Action::Continue
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        if !self.guards {
            return Action::Continue;
        }
        if !end {
            return Action::Pause;
        }
        let body = self.get_http_request_body(0, size).unwrap_or_default();
        match customer_name(&body) {
            Some(name) if !self.blocked.contains(name) => Action::Continue,
            _ => {
                self.send_grpc_response(PERMISSION_DENIED, Some("customer is on the block list"));
                Action::Pause
            }
        }
    }
}

impl Acl {
    fn send_grpc_response(&self, status: u32, message: Option<&str>) {
        let status = status.to_string();
        let headers = [
            ("content-type", "application/grpc"),
            ("grpc-status", status.as_str()),
            ("grpc-message", message.unwrap_or_default()),
        ];
        self.send_http_response(200, headers.to_vec(), None);
    }
}

/// The name in a framed message; `None` if the frame or the message is invalid. Clients write this
/// field first.
fn customer_name(body: &[u8]) -> Option<&[u8]> {
    let message = body.get(FRAME..)?;
    let (&key, rest) = message.split_first()?;
    if key != CUSTOMER_NAME {
        return None;
    }
    let (mut len, mut shift, mut rest) = (0usize, 0, rest);
    loop {
        let (&byte, after) = rest.split_first()?;
        len |= usize::from(byte & 0x7f) << shift;
        rest = after;
        if byte < 0x80 {
            break;
        }
        shift += 7;
        if shift > 28 {
            return None;
        }
    }
    rest.get(..len)
}

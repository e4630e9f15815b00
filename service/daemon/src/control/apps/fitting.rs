//! Fits answers into packets of the control socket. A long text is cut. An answer that can't be cut
//! becomes an error. Every request gets an answer.

use prost::Message as _;
use tollgate_engine::Status;
use tollgate_schema::ServiceLayout;
use tollgate_shm_abi::limits::MAX_PACKET_BYTES;
use tollgate_shm_abi::messages::{Bound, BoundMethod, Failure, Response, ResponseBody};
use tollgate_shm_abi::status::Code;

use crate::limits::{MAX_FAILURE_BYTES, MAX_SERVICE_NAME};

/// Marks a cut text.
const CUT: &str = "…";

/// A response as one packet.
pub(crate) fn packet(id: u64, mut body: ResponseBody) -> Vec<u8> {
    shorten(&mut body);
    let bytes = encoded(id, body);
    if bytes.len() <= MAX_PACKET_BYTES {
        return bytes;
    }
    let message = format!(
        "the answer has {} bytes; a packet of the control socket holds at most {MAX_PACKET_BYTES}",
        bytes.len()
    );
    let code = Code::RESOURCE_EXHAUSTED.0;
    encoded(id, ResponseBody::Failure(Failure { code, message }))
}

fn encoded(id: u64, body: ResponseBody) -> Vec<u8> {
    let body = Some(body);
    Response { id, body }.encode_to_vec()
}

fn shorten(body: &mut ResponseBody) {
    match body {
        ResponseBody::Failure(failure) => cut(&mut failure.message, MAX_FAILURE_BYTES),
        ResponseBody::Bound(bound) => shorten_reasons(bound),
        _ => {}
    }
}

/// Cuts the reasons of refused methods to equal shares of the room that the names leave. A reason
/// is never emptied: an empty one means that the method can be called.
fn shorten_reasons(bound: &mut Bound) {
    /// Bytes around the methods, and around one reason: tags and lengths.
    const AROUND: usize = 32;
    const AROUND_REASON: usize = 6;
    if bound.encoded_len() + AROUND <= MAX_PACKET_BYTES {
        return;
    }
    let names: usize = bound.methods.iter().map(length_without_reason).sum();
    let refused = bound.methods.iter().filter(|m| !m.refused.is_empty());
    let room = MAX_PACKET_BYTES.saturating_sub(names + AROUND);
    let share = (room / refused.count().max(1)).saturating_sub(AROUND_REASON);
    for method in &mut bound.methods {
        cut(&mut method.refused, share.max(CUT.len()));
    }
}

/// Including the reason's tag and length.
fn length_without_reason(method: &BoundMethod) -> usize {
    method.encoded_len() - method.refused.len() + 4
}

/// Cuts a text to at most this many bytes, at a character boundary.
fn cut(text: &mut String, bytes: usize) {
    if text.len() <= bytes {
        return;
    }
    text.truncate(text.floor_char_boundary(bytes.saturating_sub(CUT.len())));
    text.push_str(CUT);
}

/// Whether a service's name is short enough to be repeated in errors.
///
/// # Errors
/// The name is too long.
pub(crate) fn check_name(service: &str) -> Result<(), Status> {
    if service.len() <= MAX_SERVICE_NAME {
        return Ok(());
    }
    let text = format!(
        "the service's name has {} bytes, the limit is {MAX_SERVICE_NAME}",
        service.len()
    );
    Err(Status::new(Code::INVALID_ARGUMENT, text))
}

/// Whether the answer to a binding of the service fits into a packet.
///
/// # Errors
/// The methods' names don't fit into a packet.
pub(crate) fn check_names(service: &ServiceLayout) -> Result<(), Status> {
    let methods = service.methods.iter().map(|method| BoundMethod {
        name: method.name.clone(),
        handle: u32::MAX,
        refused: String::new(),
    });
    let bound = Bound {
        methods: methods.collect(),
    };
    let bytes = encoded(u64::MAX, ResponseBody::Bound(bound)).len();
    if bytes <= MAX_PACKET_BYTES {
        return Ok(());
    }
    let text = format!(
        "the names of the {} methods of service {} take {bytes} bytes of the answer to a binding; the limit is {MAX_PACKET_BYTES}: \
         split the service",
        service.methods.len(),
        service.name
    );
    Err(Status::new(Code::RESOURCE_EXHAUSTED, text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The answer as the other end reads it.
    fn sent(body: ResponseBody) -> ResponseBody {
        let bytes = packet(u64::MAX, body);
        assert!(bytes.len() <= MAX_PACKET_BYTES, "{}", bytes.len());
        Response::decode(bytes.as_slice()).unwrap().body.unwrap()
    }

    fn bound(methods: usize, name: usize, reason: usize) -> ResponseBody {
        let method = |k| BoundMethod {
            name: "n".repeat(name),
            handle: 1 << 30,
            refused: "é".repeat(if k % 2 == 0 { reason } else { 0 }),
        };
        let methods = (0..methods).map(method).collect();
        ResponseBody::Bound(Bound { methods })
    }

    #[test]
    fn reasons_that_do_not_fit_are_cut_and_stay_reasons() {
        assert_eq!(sent(bound(100, 20, 100)), bound(100, 20, 100));
        for (methods, reason) in [(2, 100_000), (401, 1_000), (1_000, 300), (2_000, 60)] {
            let ResponseBody::Bound(cut) = sent(bound(methods, 20, reason)) else {
                panic!("{methods}")
            };
            assert_eq!(cut.methods.len(), methods);
            for (k, method) in cut.methods.iter().enumerate() {
                assert_eq!(method.name, "n".repeat(20));
                assert_eq!(method.refused.ends_with(CUT), k % 2 == 0, "{methods} {k}");
            }
        }
    }

    #[test]
    fn what_can_not_be_cut_becomes_an_error() {
        let ResponseBody::Failure(failure) = sent(bound(1_000, 80, 1)) else {
            panic!()
        };
        assert_eq!(failure.code, Code::RESOURCE_EXHAUSTED.0);
        assert!(failure.message.contains("at most 65536"), "{failure:?}");
    }

    #[test]
    fn errors_are_cut() {
        let message = "é".repeat(100_000);
        let ResponseBody::Failure(failure) =
            sent(ResponseBody::Failure(Failure { code: 3, message }))
        else {
            panic!()
        };
        assert!(failure.message.len() <= MAX_FAILURE_BYTES);
        assert!(failure.message.ends_with("é…"));
    }
}

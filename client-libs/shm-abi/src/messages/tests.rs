//! Control messages keep their encoding, and hostile bytes are errors.
#![allow(clippy::unwrap_used)]

use super::*;
use alloc::vec;
use proptest::prelude::*;
use prost::Message;

#[test]
fn the_first_packets_of_a_session_have_these_bytes() {
    let open = OpenSession {
        abi_version: 1,
        token: "tg_x".into(),
        app: "hotel".into(),
        send_heap_bytes: 0,
        receive_heap_bytes: 1 << 20,
        features: FEATURE_METADATA,
        label: "blue".into(),
    };
    let request = Request {
        id: 7,
        body: Some(RequestBody::OpenSession(open)),
    };
    let bytes =
        b"\x08\x07\x52\x1b\x08\x01\x12\x04tg_x\x1a\x05hotel\x28\x80\x80\x40\x30\x01\x3a\x04blue";
    assert_eq!(request.encode_to_vec(), bytes);
    assert_eq!(Request::decode(&bytes[..]), Ok(request));

    let failure = Failure {
        code: 16,
        message: "no such token".into(),
    };
    let response = Response {
        id: 0,
        body: Some(ResponseBody::Failure(failure)),
    };
    let bytes = b"\x12\x11\x08\x10\x12\x0dno such token";
    assert_eq!(response.encode_to_vec(), bytes);
    assert_eq!(Response::decode(&bytes[..]), Ok(response));
}

#[test]
fn every_request_and_response_has_its_number() {
    let requests = [
        (10, RequestBody::OpenSession(OpenSession::default())),
        (11, RequestBody::Bind(Bind::default())),
        (12, RequestBody::Drain(Empty {})),
    ];
    for (number, body) in requests {
        let request = Request {
            id: 0,
            body: Some(body),
        };
        check_number(number, &request.encode_to_vec());
        assert_eq!(Request::decode(&request.encode_to_vec()[..]), Ok(request));
    }
    let responses = [
        (2, ResponseBody::Failure(Failure::default())),
        (10, ResponseBody::SessionOpened(SessionOpened::default())),
        (11, ResponseBody::Bound(Bound::default())),
        (12, ResponseBody::ReceiveHeap(ReceiveHeap { bytes: 0 })),
        (23, ResponseBody::Done(Empty {})),
    ];
    for (number, body) in responses {
        let response = Response {
            id: 0,
            body: Some(body),
        };
        check_number(number, &response.encode_to_vec());
        assert_eq!(
            Response::decode(&response.encode_to_vec()[..]),
            Ok(response)
        );
    }
}

#[test]
fn what_earlier_administrators_send_is_told_apart() {
    // `tollgate status` and `tollgate tenant remove acme` of release 0.2.
    assert!(is_administrative(b"\x08\x01\xd2\x01\x00"));
    assert!(is_administrative(b"\x08\x01\xe2\x02\x06\x0a\x04acme"));
    // A newer body, a session's, and bytes that end too early.
    assert!(!is_administrative(b"\x08\x07\x9a\x06\x00"));
    assert!(!is_administrative(b"\x08\x07\x62\x00"));
    assert!(!is_administrative(b"\x08\x01\xd2\x01\x05"));
    assert!(!is_administrative(b""));
}

/// The bytes are one empty message field of this number.
fn check_number(number: u32, bytes: &[u8]) {
    let mut wanted = vec![];
    prost::encoding::encode_key(
        number,
        prost::encoding::WireType::LengthDelimited,
        &mut wanted,
    );
    wanted.push(0);
    assert_eq!(bytes, wanted);
}

#[test]
fn what_a_newer_peer_adds_is_skipped() {
    // Field 15, a string, and an unknown body 99.
    let bytes = b"\x08\x07\x7a\x03new\x9a\x06\x00";
    assert_eq!(
        Request::decode(&bytes[..]),
        Ok(Request { id: 7, body: None })
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), tag in 0u8..32) {
        let _request = (Request::decode(&bytes[..]), is_administrative(&bytes));
        let _response = Response::decode(&bytes[..]);
        // Again inside a body, since random bytes would rarely get past the first key.
        let body = [&[8, 1, tag << 3 | 2, bytes.len().min(127) as u8][..], &bytes].concat();
        bytes.truncate(127);
        let _request = (Request::decode(&body[..]), is_administrative(&body));
        let _response = Response::decode(&body[..]);
    }
}

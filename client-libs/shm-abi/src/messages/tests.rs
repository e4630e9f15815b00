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
        (20, RequestBody::TenantAdd(TenantAdd::default())),
        (21, RequestBody::TenantList(TenantList::default())),
        (22, RequestBody::PolicyPush(PolicyPush::default())),
        (23, RequestBody::PolicyAttach(PolicyAttach::default())),
        (24, RequestBody::PolicyDetach(PolicySelection::default())),
        (25, RequestBody::PolicyList(Empty {})),
        (26, RequestBody::Status(Empty {})),
        (27, RequestBody::PolicyUpgrade(PolicyUpgrade::default())),
        (28, RequestBody::PolicyStep(PolicyStep::default())),
        (29, RequestBody::PolicyShow(PolicyShow::default())),
        (30, RequestBody::PolicyDiff(PolicyDiff::default())),
        (31, RequestBody::AuditShow(AuditShow::default())),
        (32, RequestBody::AuditVerify(Empty {})),
        (33, RequestBody::Prefetch(Empty {})),
        (34, RequestBody::Settings(Empty {})),
        (35, RequestBody::SettingsChange(SettingsChange::default())),
        (37, RequestBody::TenantMove(super::TenantMove::default())),
        (39, RequestBody::Explain(Explain::default())),
        (40, RequestBody::Tap(Tap::default())),
        (41, RequestBody::TraceShow(TraceShow::default())),
        (36, RequestBody::Upgrade(Upgrade::default())),
        (38, RequestBody::Metrics(Empty {})),
        (42, RequestBody::Console(super::Console::default())),
        (43, RequestBody::TenantRotate(TenantRotate::default())),
        (44, RequestBody::TenantRemove(TenantRemove::default())),
        (45, RequestBody::PolicyDelete(PolicyDelete::default())),
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
        (20, ResponseBody::TenantAdded(TenantAdded::default())),
        (21, ResponseBody::Tenants(Tenants::default())),
        (22, ResponseBody::PolicyPushed(PolicyPushed::default())),
        (23, ResponseBody::Done(Done::default())),
        (26, ResponseBody::Report(Report {})),
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
fn a_change_of_settings_has_these_bytes() {
    let change = |key: &str, value: Option<&str>| SettingChange {
        key: key.into(),
        value: value.map(Into::into),
    };
    let changes = vec![change("spin_us", Some("0")), change("cores", None)];
    let changes = SettingsChange { changes };
    let bytes = b"\x0a\x0c\x0a\x07spin_us\x12\x010\x0a\x07\x0a\x05cores";
    assert_eq!(changes.encode_to_vec(), bytes);
    assert_eq!(SettingsChange::decode(&bytes[..]), Ok(changes));
}

#[test]
fn an_attachment_has_these_bytes() {
    let options = PolicyOptions {
        on_fault: Some(ON_FAULT_RELOAD),
        hooks: Some(Names { names: vec![] }),
        capabilities: Some(Names {
            names: vec!["clock".into()],
        }),
        cpu_us: Some(50),
        ..PolicyOptions::default()
    };
    let attach = PolicyAttach {
        policy: "acl@2".into(),
        tenant: "*".into(),
        service: "a.B".into(),
        method: String::new(),
        side: SIDE_SERVER,
        party: PARTY_PROVIDER_POST,
        mode: MODE_CANARY,
        percent: 10,
        options: Some(options),
        has_schema: false,
    };
    // Omitted fields, and fields given as empty or 0, have different encodings.
    let bytes = b"\x0a\x05acl@2\x12\x01*\x1a\x03a.B\x28\x01\x30\x02\x38\x02\x40\x0a\
        \x4a\x0f\x08\x00\x12\x00\x22\x07\x0a\x05clock\x28\x32";
    assert_eq!(attach.encode_to_vec(), bytes);
    assert_eq!(PolicyAttach::decode(&bytes[..]), Ok(attach));
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
        let _request = Request::decode(&bytes[..]);
        let _response = Response::decode(&bytes[..]);
        // Again inside a body, since random bytes would rarely get past the first key.
        let body = [&[8, 1, tag << 3 | 2, bytes.len().min(127) as u8][..], &bytes].concat();
        bytes.truncate(127);
        let _request = Request::decode(&body[..]);
        let _response = Response::decode(&body[..]);
    }
}

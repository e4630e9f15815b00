//! Policies and large values: what a policy reads is judged and sent from the daemon's private copy, wherever it was posted.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use tollgate::{Channel, Code, Session, SessionOptions, block_on};
use tollgate_conformance::hotel::ReserveRequest;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::testbed::{Testbed, policy_file, proto_file};

/// A value of this size is an extent: it stays in the application's heap, beside the message's block.
const EXTENT: usize = 5_000;

/// More than a policy's view can hold.
const TOO_LARGE: usize = 70_000;

#[test]
fn a_policy_judges_values_that_are_extents() {
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
    let proto = proto_file("hotel.proto").display().to_string();
    let reply = r#"{"reservation_id": 7}"#;
    let server = [
        "--token",
        &token_b,
        "--proto",
        &proto,
        "--service",
        "hotel.Reservation",
        "--reply",
        reply,
    ];
    let _server = b.serve(server);
    let listed = "x".repeat(EXTENT);
    let config = bed
        .file(
            "acl.json",
            format!(r#"{{"blocked": ["{listed}", "short"]}}"#),
        )
        .display()
        .to_string();
    let acl = policy_file("acl").display().to_string();
    let session = Session::open(SessionOptions::new(a.socket(), token_a)).unwrap();
    let client = ReservationClient::new(Channel::new(&session, &b.listen().to_string()));
    let reserve = |name: &str| {
        let request = ReserveRequest {
            customer_name: name.to_owned(),
            ..ReserveRequest::default()
        };
        block_on(&session, client.reserve(request))
            .map(|_| ())
            .map_err(|status| status.code)
    };
    for (side, daemon) in [("client", &a), ("server", &b)] {
        let push = [
            "policy", "push", &acl, "--tenant", "acme", "--name", "acl", "--config", &config,
        ];
        let pushed = daemon.tollgate(push);
        assert_eq!(pushed.out.trim(), "acl@1", "{pushed}");
        let target = [
            "--tenant",
            "acme",
            "--service",
            "hotel.Reservation",
            "--side",
            side,
        ];
        let attached = daemon.tollgate(["policy", "attach", "acl@1"].iter().chain(&target));
        assert_eq!(attached.code, 0, "{attached}");
        assert_eq!(reserve("Ada"), Ok(()), "{side}");
        assert_eq!(reserve("short"), Err(Code::PERMISSION_DENIED), "{side}");
        assert_eq!(reserve(&"y".repeat(EXTENT)), Ok(()), "{side}");
        assert_eq!(reserve(&listed), Err(Code::PERMISSION_DENIED), "{side}");
        assert_eq!(
            reserve(&"y".repeat(TOO_LARGE)),
            Err(Code::RESOURCE_EXHAUSTED),
            "{side}"
        );
        assert_eq!(reserve("Ada"), Ok(()), "{side}: the policy lives on");
        let detached = daemon.tollgate(["policy", "detach", "acl"].iter().chain(&target));
        assert_eq!(detached.code, 0, "{detached}");
        assert_eq!(reserve(&listed), Ok(()), "{side}");
        assert_eq!(reserve(&"y".repeat(TOO_LARGE)), Ok(()), "{side}");
    }
}

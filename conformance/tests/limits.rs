//! The daemon's limits, reached: the next one is refused with the number in the sentence, and what was there goes on.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use tollgate::{Code, Session, SessionOptions, Status, block_on};
use tollgate_conformance::testbed::{Testbed, proto_file};
use tollgate_schema::Schema;

const ECHO: &str = "hotel.Echo";

/// Answers with what it was asked.
async fn serve(session: &Session, schema: &Schema) -> Result<(), Status> {
    session
        .serve_raw(schema.descriptor_set(), ECHO, |_, request| {
            Ok(request.to_vec())
        })
        .await
}

#[test]
fn methods_that_a_session_has_bound_are_limited() {
    /// `MAX_METHODS_PER_SESSION` of the daemon; `Echo` has one method.
    const LIMIT: usize = 4_096;
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let hotel = proto_file("hotel.proto");
    let schema = Schema::compile_proto(&[&hotel], &[hotel.parent().unwrap()]).unwrap();
    let open = || Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap();
    let (server, client) = (open(), open());
    block_on(&server, serve(&server, &schema)).unwrap();
    let bind = || {
        block_on(
            &client,
            client.bind_client(schema.descriptor_set(), ECHO, ""),
        )
    };
    let first = bind().unwrap();
    for _ in 1..LIMIT {
        bind().unwrap();
    }
    let refused = bind().unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
    assert!(refused.message.contains("the limit is 4096"), "{refused}");
    let layouts = schema.service(ECHO).unwrap().layouts;
    let empty = vec![0; layouts.messages[0].size as usize];
    let called = block_on(&client, async {
        let call = client.call_raw(
            first.handle("Echo").unwrap(),
            &empty,
            Some(Duration::from_secs(10)),
        );
        call.await.map(|reply| reply.to_vec())
    });
    assert_eq!(called.as_deref(), Ok(&empty[..]));
}

/// A link has 4,096 bind ids (`transport::limits::MAX_BINDS`): those of sessions that have ended are used again.
#[test]
fn bindings_at_a_peer_are_not_used_up_by_sessions_that_come_and_go() {
    const EACH: usize = 2_500;
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let (token, peer) = (a.tenant("acme"), b.listen().to_string());
    let hotel = proto_file("hotel.proto");
    let schema = Schema::compile_proto(&[&hotel], &[hotel.parent().unwrap()]).unwrap();
    let server = Session::open(SessionOptions::new(b.socket(), b.tenant("acme"))).unwrap();
    block_on(&server, serve(&server, &schema)).unwrap();
    for round in 0..3 {
        let session = Session::open(SessionOptions::new(a.socket(), &token)).unwrap();
        for k in 0..EACH {
            let bound = block_on(
                &session,
                session.bind_client(schema.descriptor_set(), ECHO, &peer),
            );
            assert!(bound.is_ok(), "round {round}, binding {k}: {bound:?}");
        }
    }
}

#[test]
fn services_and_schemas_that_a_tenant_serves_are_limited() {
    /// `MAX_SERVICES_PER_TENANT` of the daemon.
    const LIMIT: usize = 256;
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let (token, other) = (daemon.tenant("acme"), daemon.tenant("other"));
    let version = |k: usize| {
        let proto = format!(
            "syntax = \"proto3\"; package hotel; service Echo {{ rpc Echo(M) returns (M); }} message M {{ bytes f{k} = 1; }}"
        );
        let file = bed.file("echo.proto", proto);
        Schema::compile_proto(&[&file], &[file.parent().unwrap()]).unwrap()
    };
    let served = |token: &str, k: usize| {
        let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
        block_on(&session, serve(&session, &version(k)))
    };
    for k in 0..LIMIT {
        served(&token, k).unwrap();
    }
    let refused = served(&token, LIMIT).unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
    assert!(refused.message.contains("256 services"), "{refused}");
    assert_eq!(
        served(&token, 0),
        Ok(()),
        "what has been served may be served again"
    );
    assert_eq!(
        served(&other, LIMIT),
        Ok(()),
        "another tenant has its own count"
    );
}

#[test]
fn links_are_limited() {
    /// `MAX_LINKS` of the daemon.
    const LIMIT: usize = 1_024;
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut greeted = Vec::new();
    // A link is greeted with a HELLO; one too many is closed instead. Silent ones are let go after 5 s.
    let refused = (0..4 * LIMIT).find(|_| {
        let mut link = TcpStream::connect(daemon.listen()).unwrap();
        link.set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let hello = link.read(&mut [0; 64]).unwrap_or(0);
        greeted.push(link);
        hello == 0
    });
    assert_eq!(
        refused,
        Some(LIMIT),
        "links that were greeted before one was refused"
    );
    assert_eq!(
        daemon.tollgate(["tenant", "add", "acme"]).code,
        0,
        "the daemon goes on"
    );
}

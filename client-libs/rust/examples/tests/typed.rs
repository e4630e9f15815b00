//! Generated clients and servers over real shared memory, against the fake daemon of the core's
//! tests.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../../core/tests/session/fake/mod.rs"]
mod fake;

use std::sync::Arc;
use std::time::Duration;

use tollgate::codec::{Message, Place, encode_inline};
use tollgate::{
    Bytes, Channel, Code, MetadataBuf, Received, Reply, Request, Response, Server, Session,
    SharedBytes, Status, block_on,
};
use tollgate_examples::hotel::echo_client::EchoClient;
use tollgate_examples::hotel::reservation_client::ReservationClient;
use tollgate_examples::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_examples::hotel::{
    AvailabilityReply, AvailabilityRequest, EchoMessage, ReserveReply, ReserveRequest,
};
use tollgate_shm_abi::descriptor::Submission;

fn hotel_limits() -> fake::Limits {
    let mut limits = fake::Limits {
        max_message_bytes: 16 << 20,
        ..Default::default()
    };
    limits.shape.send_heap_bytes = 64 << 20;
    limits.shape.receive_heap_bytes = 64 << 20;
    // In a different order than the schema's: handles are found by name.
    limits.methods = ["CheckAvailability", "Reserve", "Echo"]
        .map(str::to_owned)
        .to_vec();
    limits
}

#[test]
fn payloads_of_every_size_come_back() {
    let (session, daemon) = fake::start(hotel_limits(), fake::echo());
    let client = EchoClient::new(Channel::new(&session, ""));
    block_on(&session, async {
        for len in [
            0,
            1,
            63,
            4_095,
            4_096,
            4_097,
            100_000,
            2 << 20,
            (16 << 20) - 64,
        ] {
            let message = Arc::new(EchoMessage {
                payload: (0..len).map(|i| i as u8).collect::<Vec<_>>().into(),
            });
            let reply = client.echo(Arc::clone(&message)).await.unwrap();
            assert!(
                reply.get_ref().view().payload() == &*message.payload,
                "{len} bytes"
            );
        }
        let too_long = client
            .echo(EchoMessage {
                payload: vec![0; 16 << 20].into(),
            })
            .await
            .unwrap_err();
        assert_eq!(too_long.code, Code::RESOURCE_EXHAUSTED, "{too_long}");
    });
    // Values of at least 4,096 bytes were sent as extents from the same block each time.
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() == 0);
}

/// A value in a session's heap, filled with ascending bytes.
fn counting(session: &Session, len: usize) -> SharedBytes {
    let mut buffer = session.buffer(len).unwrap();
    (0..)
        .zip(buffer.iter_mut())
        .for_each(|(i, byte)| *byte = i as u8);
    buffer.freeze()
}

#[test]
fn values_in_shared_memory_are_sent_from_there() {
    const LARGE: usize = 12 << 20;
    let (session, _daemon) = fake::start(hotel_limits(), fake::echo());
    let client = EchoClient::new(Channel::new(&session, ""));
    let shared = counting(&session, LARGE);
    // Of 64 MiB, the payload takes 16; 1 is left.
    let others = [32, 8, 4, 2, 1].map(|mib| session.buffer(mib << 20).unwrap());
    let payload = Bytes::from(shared.clone());
    let mut request = Request::new(EchoMessage { payload });
    request.metadata_mut().append("tag", "one").unwrap();
    for call in 0..3 {
        let reply = block_on(&session, client.echo(request.clone())).unwrap();
        assert!(reply.get_ref().view().payload() == &*shared, "call {call}");
        assert_eq!(reply.metadata().get("tag"), Some("one"));
    }
    let full = session.buffer(2 << 20).unwrap_err();
    assert_eq!(full.code, Code::RESOURCE_EXHAUSTED, "{full}");
    let copied = || {
        let payload = shared.to_vec().into();
        block_on(&session, client.echo(EchoMessage { payload }))
    };
    let refused = copied().unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
    let beside = format!("in which buffers take {}", (64 - 1) << 20);
    assert!(refused.message.contains(&beside), "{refused}");
    drop(others);
    copied().unwrap();
    drop((shared.clone(), request));
    drop(shared);
    session.buffer(33 << 20).unwrap();
}

#[test]
fn small_values_and_those_of_other_sessions_are_copied() {
    let (session, daemon) = fake::start(hotel_limits(), fake::echo());
    let (other, _other_daemon) = fake::start(hotel_limits(), fake::echo());
    let client = EchoClient::new(Channel::new(&session, ""));
    let values = [
        counting(&session, 0),
        counting(&session, 4_095),
        counting(&other, 4_095),
        counting(&other, 100_000),
    ];
    // Replies are dropped while the session is driven, so that their blocks are returned.
    block_on(&session, async {
        for shared in values {
            let payload = Bytes::from(shared.clone());
            let reply = client.echo(EchoMessage { payload }).await.unwrap();
            assert!(reply.get_ref().view().payload() == &*shared, "{shared:?}");
        }
    });
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() == 0);
}

#[test]
fn a_value_stays_where_it_is_for_as_long_as_the_daemon_may_read_it() {
    // The daemon answers at once, but returns blocks only when told to.
    let (session, daemon) = fake::start(
        hotel_limits(),
        Box::new(|fake, submission| {
            if let Submission::Call { call, block, .. } = submission {
                let held = fake.end.send_heap.span(block.offset, 1).unwrap();
                fake.held.push(held.offset());
                fake.status(call, Code::UNAVAILABLE, "");
            }
        }),
    );
    let client = EchoClient::new(Channel::new(&session, ""));
    let shared = counting(&session, 5_000);
    let payload = Bytes::from(shared.clone());
    let ended = block_on(&session, client.echo(EchoMessage { payload })).unwrap_err();
    assert_eq!(ended.code, Code::UNAVAILABLE);
    let shared = shared.try_reuse().unwrap_err();
    let offsets = daemon.run(|fake| std::mem::take(&mut fake.held));
    daemon.run(move |fake| fake.reclaim(&offsets));
    // Any other call: it makes the session read the daemon's messages.
    let call = session.call_raw(fake::FIRST_HANDLE, [0; 8], None);
    assert!(block_on(&session, call).is_err());
    let mut buffer = shared.try_reuse().unwrap();
    buffer.fill(1);
    let payload = buffer.freeze().into();
    let last = client.echo(EchoMessage { payload });
    assert!(block_on(&session, last).is_err());
    // The session ends while the daemon still holds the block.
    drop((client, session));
}

#[test]
fn metadata_goes_beside_messages_of_every_size() {
    let (session, daemon) = fake::start(hotel_limits(), fake::echo());
    let client = EchoClient::new(Channel::new(&session, ""));
    for len in [0, 1, 4_095, 100_000] {
        let payload = vec![7; len].into();
        let mut request = Request::new(EchoMessage { payload });
        let metadata = request.metadata_mut();
        metadata.append("tag", "one").unwrap();
        metadata.append("tag", "two").unwrap();
        metadata.insert_bin("trace-bin", &[0, 255]).unwrap();
        let sent = metadata.clone();
        let reply = block_on(&session, client.echo(request)).unwrap();
        assert_eq!(reply.metadata(), &sent, "{len} bytes");
        let (metadata, message) = reply.into_parts();
        assert_eq!(metadata.get_all("tag").collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(message.view().payload(), vec![7; len]);
    }
    // Dropped while the session is driven, so that its block is returned.
    block_on(&session, async {
        let reply = client.echo(EchoMessage::default()).await.unwrap();
        assert!(reply.metadata().is_empty());
    });
    daemon.wait_until(|fake| fake.end.receive_heap.in_use() == 0);
}

#[test]
fn metadata_that_may_not_be_sent_fails_its_call_only() {
    let (session, _daemon) = fake::start(hotel_limits(), fake::echo());
    let mut reserved = MetadataBuf::new();
    reserved.push_any("tollgate-route", b"blue").unwrap();
    let call = session.call_raw(fake::FIRST_HANDLE, [0; 8], None);
    let refused = block_on(&session, call.with_metadata(reserved)).unwrap_err();
    assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused}");
    assert!(block_on(&session, session.call_raw(fake::FIRST_HANDLE, [0; 8], None)).is_ok());

    let old = fake::Limits {
        features: 0,
        ..hotel_limits()
    };
    let (session, _daemon) = fake::start(old, fake::echo());
    let mut metadata = MetadataBuf::new();
    metadata.push("tag", b"one").unwrap();
    let call = session.call_raw(fake::FIRST_HANDLE, [0; 8], None);
    let refused = block_on(&session, call.with_metadata(metadata)).unwrap_err();
    assert_eq!(refused.code, Code::UNIMPLEMENTED, "{refused}");
}

#[test]
fn a_typed_call_has_a_timeout_and_a_status() {
    let (session, _daemon) = fake::start(
        hotel_limits(),
        Box::new(|fake, submission| {
            if let Submission::Call {
                call,
                block,
                deadline_ns,
                ..
            } = submission
            {
                fake.take(&block);
                if deadline_ns == 0 {
                    fake.status(
                        call,
                        Code::PERMISSION_DENIED,
                        "customer is on the block list",
                    );
                }
            }
        }),
    );
    let client = ReservationClient::new(Channel::new(&session, "127.0.0.1:7472"));
    let mut request = Request::new(ReserveRequest::default());
    let denied = block_on(&session, client.reserve(request.clone())).unwrap_err();
    assert_eq!(
        denied,
        Status::new(Code::PERMISSION_DENIED, "customer is on the block list")
    );
    request.set_timeout(Duration::from_millis(20));
    let late = block_on(&session, client.reserve(request)).unwrap_err();
    assert_eq!(late.code, Code::DEADLINE_EXCEEDED);
}

#[test]
fn a_method_that_the_daemon_does_not_know_is_unimplemented() {
    let limits = fake::Limits {
        methods: vec!["Reserve".to_owned()],
        ..hotel_limits()
    };
    let (session, _daemon) = fake::start(limits, fake::echo());
    let client = ReservationClient::new(Channel::new(&session, ""));
    let status = block_on(
        &session,
        client.check_availability(AvailabilityRequest::default()),
    )
    .unwrap_err();
    assert_eq!(status.code, Code::UNIMPLEMENTED);
}

struct Hotel;

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        let booking = request.get_ref().view();
        match booking.customer_name() {
            "Mallory" => Err(Status::new(Code::PERMISSION_DENIED, "not you")),
            _ => Ok(Response::new(ReserveReply {
                reservation_id: 41 + u64::from(booking.room_count()),
                hotel_ids: booking.hotel_ids().to_vec(),
            })),
        }
    }

    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Ok(Response::new(AvailabilityReply::default()))
    }
}

#[test]
fn a_typed_server_answers() {
    let (session, daemon) = fake::start(hotel_limits(), fake::silence());
    block_on(
        &session,
        Server::new(&session)
            .add_service(ReservationServer::new(Hotel))
            .bind(),
    )
    .unwrap();
    let call = |id: u64, name: &str| {
        let request = ReserveRequest {
            customer_name: name.to_owned(),
            hotel_ids: vec!["ritz".to_owned(), "x".repeat(5_000)],
            room_count: 1,
            ..Default::default()
        };
        let block = encode_inline(&request).unwrap();
        daemon.run(move |fake| fake.call(fake::FIRST_HANDLE + 1, id, &block));
    };
    call(1, "Ada");
    call(2, "Mallory");
    daemon.wait_until(|fake| fake.answers.len() == 2);
    let answers = daemon.run(|fake| fake.answers.clone());
    let reply = answers[0].1.clone().unwrap();
    let reply = ReserveReply::from_view(ReserveReply::view(Place::root(&reply)));
    assert_eq!(
        (reply.reservation_id, reply.hotel_ids[1].len()),
        (42, 5_000)
    );
    assert_eq!(
        answers[1].1,
        Err(Status::new(Code::PERMISSION_DENIED, "not you"))
    );
}

//! Sessions that outlive their daemon: bindings and services are restored, and nothing runs twice.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Session, SessionOptions, Sessions, Status,
    block_on,
};
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_conformance::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually};

/// Counts its reservations.
#[derive(Clone, Default)]
struct Hotel(Arc<AtomicU64>);

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(ReserveReply {
            reservation_id: request.get_ref().view().room_count().into(),
            hotel_ids: Vec::new(),
        }))
    }

    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Ok(Response::new(AvailabilityReply::default()))
    }
}

fn durable() -> Options {
    Options {
        durable: true,
        ..Options::default()
    }
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

async fn book(client: &ReservationClient, rooms: u32) -> Result<u64, Status> {
    let request = ReserveRequest {
        room_count: rooms,
        ..ReserveRequest::default()
    };
    let reply = client.reserve(request).await?;
    Ok(reply.get_ref().view().reservation_id())
}

/// Books until that succeeds, which takes as long as a daemon and its applications need to find
/// each other.
async fn book_in_time(client: &ReservationClient, rooms: u32) -> u32 {
    let began = Instant::now();
    for failed in 0.. {
        match book(client, rooms).await {
            Ok(id) => {
                assert_eq!(id, u64::from(rooms));
                return failed;
            }
            Err(status) => {
                assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
                assert!(began.elapsed() < SOON, "{status}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    unreachable!("it returns or panics")
}

#[test]
fn a_daemon_that_comes_back_finds_its_applications_again() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let hotel = Hotel::default();
    let serving = open(&daemon, &token);
    let server = tollgate::Server::new(&serving).add_service(ReservationServer::new(hotel.clone()));
    block_on(&serving, server.bind()).unwrap();
    // One driven by its own thread, one driven where it is used, two driven together.
    let idle = open(&daemon, &token);
    let mut together = Sessions::new([open(&daemon, &token), open(&daemon, &token)]).unwrap();
    let client = ReservationClient::new(Channel::new(&idle, ""));
    let mut booked = 0;
    for round in 0..5 {
        let one = block_on(&idle, book_in_time(&client, round + 1));
        assert!(round > 0 || one == 0, "nothing has happened yet");
        together.block_on(async {
            book_in_time(&client, round + 100).await;
        });
        booked += 2;
        assert_eq!(hotel.0.load(Ordering::Relaxed), booked, "each ran once");
        daemon.process().kill();
        let status = block_on(&idle, book(&client, 1)).unwrap_err();
        assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
        daemon = bed.daemon_with("a", &durable());
    }
}

/// A thread that waits in a call, or only serves, continues with the new connection.
#[test]
fn who_waits_while_the_daemon_is_gone_goes_on_with_the_next() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let serving = open(&daemon, &token);
    let hotel = Hotel::default();
    let served = hotel.clone();
    let server = tollgate::Server::new(&serving).add_service(ReservationServer::new(served));
    block_on(&serving, server.bind()).unwrap();
    std::thread::spawn(move || block_on(&serving, std::future::pending::<()>()));
    let session = open(&daemon, &token);
    let client = ReservationClient::new(Channel::new(&session, ""));
    block_on(&session, book_in_time(&client, 1));
    for _ in 0..3 {
        daemon.process().kill();
        daemon = bed.daemon_with("a", &durable());
        block_on(&session, book_in_time(&client, 2));
    }
    assert_eq!(hotel.0.load(Ordering::Relaxed), 4);
}

#[test]
fn a_session_that_is_not_to_reopen_stays_ended() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let mut options = SessionOptions::new(daemon.socket(), &token);
    options.reconnect = false;
    let session = Session::open(options).unwrap();
    let client = ReservationClient::new(Channel::new(&session, ""));
    daemon.process().kill();
    let _daemon = bed.daemon_with("a", &durable());
    let status = block_on(&session, session.closed());
    assert_eq!(status.code, Code::UNAVAILABLE);
    assert_eq!(
        block_on(&session, book(&client, 1)).unwrap_err().code,
        Code::UNAVAILABLE
    );
}

/// A future that never waits gives its thread no turn to drive the session, and so to find the
/// server again.
#[test]
fn who_does_nothing_but_call_finds_what_comes_back_later() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let serve = |daemon: &Daemon| {
        let serving = open(daemon, &token);
        let service = ReservationServer::new(Hotel::default());
        let server = tollgate::Server::new(&serving).add_service(service);
        block_on(&serving, server.bind()).unwrap();
        serving
    };
    let serving = serve(&daemon);
    let session = open(&daemon, &token);
    let client = ReservationClient::new(Channel::new(&session, ""));
    block_on(&session, book_in_time(&client, 1));
    drop(serving);
    daemon.process().kill();
    daemon = bed.daemon_with("a", &durable());
    let is_open_again = || {
        let status = block_on(&session, book(&client, 1)).unwrap_err();
        status.message.contains("isn't available again yet")
    };
    eventually(SOON, is_open_again).expect("the session opens itself anew");
    let began = Instant::now();
    block_on(&session, async {
        let mut serving = None;
        while let Err(status) = book(&client, 2).await {
            assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
            assert!(began.elapsed() < SOON, "{status}");
            serving.get_or_insert_with(|| serve(&daemon));
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

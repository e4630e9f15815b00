//! Retries: for methods that are marked idempotent, and for no others.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::{Aborted, abortable, join, join_all};
use tollgate::limits::{DEFAULT_RETRIES, MAX_RETRIES, RETRY_PAUSE, RETRY_TOKENS};
use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Session, SessionOptions, Status, block_on,
};
use tollgate_conformance::backstage::Backstage;
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_conformance::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};
use tollgate_conformance::testbed::SOON;

/// Fails as often as instructed, and counts its calls.
#[derive(Clone, Default)]
struct Hotel {
    asked: Arc<AtomicU64>,
    fails: u64,
    /// The caller's pause.
    pause: Option<Duration>,
}

impl Hotel {
    fn failing(fails: u64) -> Hotel {
        Hotel {
            fails,
            ..Hotel::default()
        }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    fn answer<T: Default>(&self) -> Reply<T> {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= self.fails {
            return Ok(Response::new(T::default()));
        }
        let status = Status::unavailable("try again");
        Err(match self.pause {
            Some(pause) => status.with_retry_after(pause),
            None => status,
        })
    }
}

impl Reservation for Hotel {
    async fn reserve(&self, _: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        self.answer()
    }

    /// This method is marked.
    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        self.answer()
    }
}

/// A served hotel, and its caller.
struct Served {
    client: ReservationClient,
    session: Session,
    _backstage: Backstage,
}

impl Served {
    fn new(hotel: &Hotel, retries: u32) -> Served {
        let backstage = Backstage::with(ReservationServer::new(hotel.clone()));
        let mut options = backstage.options();
        options.retries = retries;
        let session = Session::open(options).unwrap();
        Served {
            client: ReservationClient::new(Channel::new(&session, "")),
            session,
            _backstage: backstage,
        }
    }

    fn check(&self, timeout: Option<Duration>) -> Result<(), Status> {
        block_on(&self.session, check(&self.client, timeout))
    }
}

/// Calls the idempotent method.
async fn check(client: &ReservationClient, timeout: Option<Duration>) -> Result<(), Status> {
    let mut request = Request::new(AvailabilityRequest::default());
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    client.check_availability(request).await.map(|_| ())
}

#[test]
fn only_methods_that_are_marked_are_called_again() {
    let hotel = Hotel::failing(u64::from(DEFAULT_RETRIES));
    let served = Served::new(&hotel, DEFAULT_RETRIES);
    let began = Instant::now();
    served.check(None).unwrap();
    assert_eq!(hotel.asked(), 1 + u64::from(DEFAULT_RETRIES));
    assert!(began.elapsed() >= RETRY_PAUSE.0 / 2, "no pause");

    let hotel = Hotel::failing(1);
    let served = Served::new(&hotel, DEFAULT_RETRIES);
    let call = served.client.reserve(ReserveRequest::default());
    let status = block_on(&served.session, call).unwrap_err();
    assert_eq!((status.code, hotel.asked()), (Code::UNAVAILABLE, 1));
}

#[test]
fn options_say_how_often() {
    for (retries, asked) in [(0, 1), (1, 2), (u32::MAX, 1 + u64::from(MAX_RETRIES))] {
        let hotel = Hotel::failing(u64::MAX);
        let status = Served::new(&hotel, retries).check(None).unwrap_err();
        assert_eq!(status.code, Code::UNAVAILABLE);
        assert_eq!(hotel.asked(), asked, "{retries} retries");
    }
}

#[test]
fn a_deadline_is_kept_and_the_servers_pause_as_well() {
    let hotel = Hotel {
        pause: Some(Duration::from_secs(3600)),
        ..Hotel::failing(u64::MAX)
    };
    let served = Served::new(&hotel, DEFAULT_RETRIES);
    // A pause would be useless: the answer comes at once, and is the server's.
    let status = served.check(Some(SOON)).unwrap_err();
    assert_eq!(
        (status.code, &*status.message),
        (Code::UNAVAILABLE, "try again")
    );
    assert_eq!(hotel.asked(), 1);

    // Dropping a call during its pause leaves nothing behind.
    let (call, over) = abortable(check(&served.client, None));
    // Between two polls the session has its turn: calls are sent at the end of one.
    let abort = poll_fn(|cx| {
        if hotel.asked() < 2 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        over.abort();
        Poll::Ready(())
    });
    let (outcome, ()) = block_on(&served.session, join(call, abort));
    assert_eq!(outcome, Err(Aborted));
    assert_eq!(hotel.asked(), 2);
}

#[test]
fn a_server_in_trouble_is_not_asked_all_the_more() {
    const ROUNDS: u64 = 4;
    let hotel = Hotel::failing(u64::MAX);
    let served = Served::new(&hotel, DEFAULT_RETRIES);
    for _ in 0..ROUNDS {
        let calls = join_all((0..RETRY_TOKENS).map(|_| check(&served.client, None)));
        let outcomes = block_on(&served.session, calls);
        assert!(outcomes.iter().all(Result::is_err));
    }
    let again = hotel.asked() - ROUNDS * u64::from(RETRY_TOKENS);
    assert!(
        (1..u64::from(RETRY_TOKENS)).contains(&again),
        "{again} calls were made again"
    );
}

/// One of two servers on another host is killed during calls: callers of idempotent methods don't
/// notice.
#[test]
fn who_asks_again_survives_a_server() {
    let hosts = Hosts::new();
    let serve = || {
        let args = ["--reply", "{}"];
        hosts
            .b
            .serve_hotel(&hosts.tokens[1], "hotel.Reservation", &args)
    };
    let _other = serve();
    let options = SessionOptions::new(hosts.a.socket(), &*hosts.tokens[0]);
    let session = Session::open(options).unwrap();
    let client = ReservationClient::new(Channel::new(&session, &hosts.b.listen().to_string()));
    for round in 0..5 {
        let mut victim = serve();
        let death = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10 + round));
            victim.kill();
        });
        while !death.is_finished() {
            let calls = join_all((0..20).map(|_| check(&client, Some(SOON))));
            for outcome in block_on(&session, calls) {
                outcome.unwrap();
            }
        }
    }
}

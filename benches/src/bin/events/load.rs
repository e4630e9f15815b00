//! A steady load. A thread of its own issues calls when they are due, up to a maximum in flight,
//! while the event happens.
//!
//! Each call has a number that the server sees. So for each call it is known how it ended and how
//! often it was served. If the maximum is in flight when a call is due, the call is issued as soon
//! as another one ends. So a pause is followed by a peak.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status,
    block_on,
};
use tollgate_benches::measure::ticks;
use tollgate_conformance::chain::Chain;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_conformance::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};
use tollgate_conformance::testbed::{Daemon, SOON, eventually};

use crate::recording::{Completion, End, Mark, Recording};

/// The called service.
pub(crate) const SERVICE: &str = "hotel.Reservation";

/// Number of calls with a recorded end. Numbers use the bits below this; policies use the bits
/// above.
const NUMBERS: u32 = 1 << 24;

/// How long a call that was issued before the end may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// After this many served calls, service has resumed: they are more than the answers that were in
/// flight.
const SERVED_AGAIN: u64 = 200;

/// The longest load.
const LONGEST: Duration = Duration::from_secs(600);

/// Room for completions without reallocation. A reallocation would be a pause of the client itself.
const ROOM: usize = 4 << 20;

/// The amount of calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// Calls in flight, at most.
    pub(crate) in_flight: usize,
    /// Calls per second; `None`: as many as possible.
    pub(crate) rate: Option<u32>,
}

/// How policies treat the calls: which ones they refuse, and their stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evaluated {
    /// By no visible policy.
    Plainly,
    /// By a policy that refuses calls over a limit.
    Limited,
    /// By a policy that [stamps](tollgate_conformance::module::stamping) requests and replies with
    /// [`STAMPS`].
    Stamped,
}

/// The numbers that the versions of a policy add. Neither is twice the other.
pub(crate) const STAMPS: [u8; 2] = [1, 16];

/// The caller, and the record of served calls.
pub(crate) struct Lane {
    session: Session,
    client: ReservationClient,
    next: AtomicU32,
    served: Served,
    /// The serving session, unless a chain serves.
    serving: Option<Session>,
}

enum Served {
    Here(Arc<Ledger>),
    AtTheEndOf(Arc<Chain>),
}

/// How often each number was served, for the last [`NUMBERS`] calls.
struct Ledger(Vec<AtomicU8>);

struct Counting(Arc<Ledger>);

impl Reservation for Counting {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        let number = request.get_ref().view().room_count();
        if let Some(times) = self.0.0.get((number % NUMBERS) as usize) {
            times.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Response::new(ReserveReply {
            reservation_id: number.into(),
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

/// The time since a load began, for its event.
pub(crate) struct Clock<'l> {
    began: Instant,
    marks: Vec<Mark>,
    /// Number of calls served so far.
    served: &'l AtomicU64,
}

impl Clock<'_> {
    /// Nanoseconds since the beginning.
    pub(crate) fn now_ns(&self) -> u64 {
        since(self.began)
    }

    /// Waits this many milliseconds.
    pub(crate) fn wait(&self, ms: u64) {
        thread::sleep(Duration::from_millis(ms));
    }

    /// Runs a step of the event, and records its times.
    pub(crate) fn mark<T>(&mut self, what: &str, happens: impl FnOnce() -> T) -> T {
        let from_ns = self.now_ns();
        let done = happens();
        self.marks.push(Mark {
            from_ns,
            to_ns: self.now_ns(),
            what: what.to_owned(),
        });
        done
    }

    /// Waits until calls are served again.
    pub(crate) fn wait_for_service(&self) -> Result<(), String> {
        let served = || self.served.load(Ordering::Relaxed);
        let before = served();
        match eventually(SOON, || served() > before + SERVED_AGAIN) {
            Ok(_) => Ok(()),
            Err(waited) => Err(format!("no call is served for {waited:?}")),
        }
    }
}

fn since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A tenant of a daemon.
#[derive(Clone, Copy)]
pub(crate) struct Tenant<'d> {
    daemon: &'d Daemon,
    token: &'d str,
}

impl<'d> Tenant<'d> {
    /// The tenant with this token.
    pub(crate) fn of(daemon: &'d Daemon, token: &'d str) -> Tenant<'d> {
        Tenant { daemon, token }
    }

    fn open(self) -> Result<Session, String> {
        let options = SessionOptions::new(self.daemon.socket(), self.token);
        Session::open(options).map_err(|status| format!("no session: {status}"))
    }
}

impl Lane {
    /// A lane from an application of `from` to one of `to`, which may be the same daemon.
    pub(crate) fn between(from: Tenant<'_>, to: Tenant<'_>) -> Result<Lane, String> {
        let ledger = Arc::new(Ledger((0..NUMBERS).map(|_| AtomicU8::new(0)).collect()));
        let serving = to.open()?;
        let service = ReservationServer::new(Counting(Arc::clone(&ledger)));
        let server = Server::new(&serving).add_service(service);
        block_on(&serving, server.bind()).map_err(|status| format!("cannot serve: {status}"))?;
        let drives = serving.clone();
        thread::spawn(move || block_on(&drives, drives.closed()));
        let session = from.open()?;
        let target = match from.daemon.name() == to.daemon.name() {
            true => String::new(),
            false => to.daemon.listen().to_string(),
        };
        Ok(Lane {
            client: ReservationClient::new(Channel::new(&session, &target)),
            session,
            next: AtomicU32::new(1),
            served: Served::Here(ledger),
            serving: Some(serving),
        })
    }

    /// A lane through all hosts of a chain.
    pub(crate) fn through(chain: &Arc<Chain>) -> Lane {
        let (session, client) = chain.caller();
        Lane {
            session,
            client,
            next: AtomicU32::new(1),
            served: Served::AtTheEndOf(Arc::clone(chain)),
            serving: None,
        }
    }

    /// How often a call was served.
    pub(crate) fn served(&self, number: u32) -> u32 {
        match &self.served {
            Served::Here(ledger) => ledger.0[number as usize].load(Ordering::Relaxed).into(),
            Served::AtTheEndOf(chain) => chain.reached(number),
        }
    }

    /// The number of the next call.
    fn issue(&self) -> u32 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % NUMBERS;
        if let Served::Here(ledger) = &self.served {
            ledger.0[number as usize].store(0, Ordering::Relaxed);
        }
        number
    }

    async fn reserve(&self, number: u32) -> Result<u64, Status> {
        let request = ReserveRequest {
            customer_name: "Ada".to_owned(),
            room_count: number,
            ..ReserveRequest::default()
        };
        let reply = self.client.reserve(request).await?;
        Ok(reply.get_ref().view().reservation_id())
    }

    /// Makes a call and waits for its end. A failure has a sentence.
    async fn made(
        &self,
        number: u32,
        evaluated: Evaluated,
        began: Instant,
    ) -> (Completion, Option<String>) {
        let reply = self.reserve(number).await;
        let at_ns = since(began);
        let (end, failure) = end_of(number, reply, evaluated);
        (Completion { at_ns, number, end }, failure)
    }

    /// Makes one call alone, and returns the number in its reply.
    pub(crate) fn call(&self) -> Result<u64, String> {
        let number = self.issue();
        let reply = block_on(&self.session, self.reserve(number));
        reply.map_err(|status| format!("a call by itself failed: {status}"))
    }

    /// Keeps a load on the lane while `happens` runs, and waits for its calls.
    pub(crate) fn under<T>(
        &self,
        load: Load,
        evaluated: Evaluated,
        happens: impl FnOnce(&mut Clock<'_>) -> Result<T, String>,
    ) -> Result<(Recording, T), String> {
        let (over, served) = (AtomicBool::new(false), AtomicU64::new(0));
        let began = Instant::now();
        let mut clock = Clock {
            began,
            marks: Vec::new(),
            served: &served,
        };
        let (mut recording, happened) = thread::scope(|scope| {
            let calls = scope.spawn(|| {
                let flow = self.flow(load, evaluated, began, &over, &served);
                block_on(&self.session, flow)
            });
            let happened = happens(&mut clock);
            over.store(true, Ordering::Relaxed);
            let recording = calls.join().map_err(|_| "the client's thread died");
            (recording, happened)
        });
        if let Ok(recording) = &mut recording {
            recording.marks = clock.marks;
        }
        Ok((recording?, happened?))
    }

    async fn flow(
        &self,
        load: Load,
        evaluated: Evaluated,
        began: Instant,
        over: &AtomicBool,
        served: &AtomicU64,
    ) -> Recording {
        let mut recording = Recording {
            completions: Vec::with_capacity(ROOM),
            ..Recording::default()
        };
        let mut due = ticks(began, began + LONGEST, load.rate.unwrap_or(0));
        let mut calls = FuturesUnordered::new();
        let mut owed = load.rate.map_or(u64::MAX, |_| 0);
        let mut ended: Option<Instant> = None;
        loop {
            let tick = tokio::select! {
                // Answers first, because they make room.
                biased;
                Some(made) = calls.next() => {
                    let (completion, failure): (Completion, Option<String>) = made;
                    let is_served = u64::from(completion.end.is_answered());
                    served.fetch_add(is_served, Ordering::Relaxed);
                    recording.completions.push(completion);
                    if let Some(sentence) = failure {
                        *recording.failures.entry(sentence).or_default() += 1;
                    }
                    None
                }
                tick = due.recv() => tick,
            };
            if let Some((_, count)) = tick {
                owed = owed.saturating_add(count);
            }
            if ended.is_none() && over.load(Ordering::Relaxed) {
                ended = Some(Instant::now());
                recording.until_ns = since(began);
            }
            if let Some(ended) = ended {
                if calls.is_empty() || ended.elapsed() > PATIENCE {
                    return recording;
                }
                continue;
            }
            while owed > 0 && calls.len() < load.in_flight {
                owed -= u64::from(load.rate.is_some());
                recording.issued += 1;
                let number = self.issue();
                calls.push(self.made(number, evaluated, began));
            }
        }
    }
}

/// The end of the call with this number, from its reply or its status. A failure has a sentence.
fn end_of(number: u32, reply: Result<u64, Status>, evaluated: Evaluated) -> (End, Option<String>) {
    let said = match reply {
        Ok(said) => said,
        Err(status)
            if status.code == Code::RESOURCE_EXHAUSTED && evaluated == Evaluated::Limited =>
        {
            return (End::Refused, None);
        }
        Err(status) => return (End::Failed, Some(anonymous(&status))),
    };
    let own = (said % u64::from(NUMBERS)) as u32;
    if own != number {
        return (
            End::Failed,
            Some("the reply is that of another call".to_owned()),
        );
    }
    match evaluated {
        Evaluated::Stamped => (evaluated_by(said), None),
        Evaluated::Plainly | Evaluated::Limited => (End::Served, None),
    }
}

/// Which versions stamped a reservation. There should be one stamp on the request and one on the
/// reply.
fn evaluated_by(said: u64) -> End {
    let [request, reply] = [24, 32].map(|at| (said >> at) as u8);
    match [request, reply].map(|stamp| STAMPS.contains(&stamp)) {
        [true, true] if request == reply => End::Served,
        [true, true] => End::Crossed,
        _ => End::Mixed,
    }
}

/// A failure's sentence without addresses of hosts.
fn anonymous(status: &Status) -> String {
    let said = status.to_string();
    let word = |word: &str| {
        let bare = word.trim_end_matches([':', ',']);
        match bare.parse::<std::net::SocketAddr>() {
            Ok(_) => word.replace(bare, "ADDRESS"),
            Err(_) => word.to_owned(),
        }
    };
    said.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Number of requests that the policy had evaluated when it stamped this reply, in as many bits as
/// there are.
pub(crate) fn evaluated_so_far(said: u64) -> u64 {
    said >> 40
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Otherwise it would try to reconnect to its daemon.
        self.session.close();
        if let Some(serving) = &self.serving {
            serving.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_one_version_is_told_from_all_others() {
        let stamped = |request: u64, reply: u64| 7 | request << 24 | reply << 32 | 99 << 40;
        for (request, reply, end) in [
            (1, 1, End::Served),
            (16, 16, End::Served),
            (1, 16, End::Crossed),
            (16, 1, End::Crossed),
            // Not evaluated, or evaluated twice.
            (0, 0, End::Mixed),
            (1, 0, End::Mixed),
            (2, 2, End::Mixed),
            (17, 17, End::Mixed),
            (32, 32, End::Mixed),
        ] {
            let said = stamped(request, reply);
            let found = end_of(7, Ok(said), Evaluated::Stamped);
            assert_eq!(found, (end, None), "{request} and {reply}");
            assert_eq!(evaluated_so_far(said), 99);
        }
        let (end, sentence) = end_of(8, Ok(7), Evaluated::Plainly);
        assert_eq!(end, End::Failed);
        assert!(sentence.is_some());
        let too_much = || Err(Status::new(Code::RESOURCE_EXHAUSTED, "no"));
        assert_eq!(
            end_of(8, too_much(), Evaluated::Limited),
            (End::Refused, None)
        );
        let (end, sentence) = end_of(8, too_much(), Evaluated::Plainly);
        assert_eq!(
            (end, sentence.as_deref()),
            (End::Failed, Some("RESOURCE_EXHAUSTED: no"))
        );
        let gone = Status::new(Code::UNAVAILABLE, "peer 10.77.0.2:7472: it is gone");
        assert_eq!(anonymous(&gone), "UNAVAILABLE: peer ADDRESS: it is gone");
    }
}

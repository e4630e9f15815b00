//! The demo's applications: a hotel that takes reservations, and its customers.
//!
//! Both are ordinary users of the client library. The first line on standard input is the tenant's
//! token; every further line is an order, answered by one line on standard output:
//!
//! ```text
//! rules none one       -> rules none one    (client) from now on, one of these rules is in force
//! report               -> a line of JSON    the counts since the start
//! stop                 -> a line of JSON    (client) the same, once every call has been answered
//! ```
//!
//! **Checking the decisions.** While a policy is being changed, either its old or its new rule may
//! decide a call. So the driver announces every rule that may be in force, and the client records
//! which were in force at any time between a call's submission and its end. If all of them agree
//! about the customer, the outcome is certain and checked; otherwise either outcome is right.

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::process::geteuid;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::json;
use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status,
    block_on,
};
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_conformance::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};
use tollgate_conformance::workload::{Booking, Bookings, blocked_names, other_names};

/// A call without an answer for this time is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// The latencies kept between two reports; beyond that a report describes the first ones.
const MAX_LATENCIES: usize = 2_000_000;

/// The message of the access list's denials.
pub(crate) const DENIAL: &str = "customer is on the block list";

/// The user as whom tenants act if the demo is root. No account has this number.
pub(crate) const TENANTS_USER: u32 = 64_711;

/// Gives up root's rights. This process has one thread yet.
fn become_the_tenants_user() -> Result<(), String> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(TENANTS_USER), Gid::from_raw(TENANTS_USER));
    let changed = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(group, group, group))
        .and_then(|()| set_thread_res_uid(user, user, user));
    changed.map_err(|errno| format!("root's rights can't be given up: {errno}"))
}

fn open(socket: &str, app: &str) -> Result<Session, String> {
    become_the_tenants_user()?;
    let mut token = String::new();
    let read = std::io::stdin().read_line(&mut token);
    read.map_err(|error| format!("the token can't be read from standard input: {error}"))?;
    let mut options = SessionOptions::new(socket, token.trim());
    options.app = app.to_owned();
    Session::open(options).map_err(|status| format!("no session at {socket}: {status}"))
}

/// The orders that follow the token.
fn orders() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map_while(Result::ok)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The driver is gone, and nobody reads the output.
    let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The hotel: confirms every reservation, and counts them.
struct Hotel {
    seen: Arc<AtomicU64>,
}

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        let reservation_id = 1 + self.seen.fetch_add(1, Ordering::Relaxed);
        let hotel_ids = request
            .get_ref()
            .view()
            .hotel_ids()
            .iter()
            .map(|id| id.to_owned())
            .collect();
        Ok(Response::new(ReserveReply {
            reservation_id,
            hotel_ids,
        }))
    }

    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Err(Status::new(
            Code::UNIMPLEMENTED,
            "the demo's hotel only takes reservations",
        ))
    }
}

/// `demo server`: serves until its standard input ends.
pub(crate) fn server(socket: &str) -> Result<(), String> {
    let session = open(socket, "hotel-server")?;
    let seen = Arc::new(AtomicU64::new(0));
    let hotel = ReservationServer::new(Hotel { seen: seen.clone() });
    std::thread::spawn(move || {
        for _report in orders() {
            say(&json!({ "seen": seen.load(Ordering::Relaxed) }).to_string());
        }
        std::process::exit(0);
    });
    let server = Server::new(&session).add_service(hotel);
    block_on(&session, async {
        server
            .bind()
            .await
            .map_err(|status| format!("not serving: {status}"))?;
        say("ready");
        Err(format!("the session ended: {}", session.closed().await))
    })
}

/// The rules that may decide a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// All customers may book.
    None,
    /// The workload's block list.
    One,
    /// Another block list of the same length.
    Two,
    /// A policy that never reaches a verdict: every call must fail.
    Broken,
}

/// The required outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allow,
    Deny,
    Fail,
}

struct Evaluate {
    one: HashSet<String>,
    two: HashSet<String>,
    /// All rules ever announced, in order; alternatives are announced together, as a set.
    history: Vec<Vec<Rule>>,
}

impl Evaluate {
    fn new() -> Evaluate {
        let (one, two) = (
            blocked_names().into_iter().collect(),
            other_names().into_iter().collect(),
        );
        Evaluate {
            one,
            two,
            history: vec![vec![Rule::None]],
        }
    }

    fn verdict(&self, rule: Rule, customer: &str) -> Verdict {
        let listed = match rule {
            Rule::None => false,
            Rule::One => self.one.contains(customer),
            Rule::Two => self.two.contains(customer),
            Rule::Broken => return Verdict::Fail,
        };
        if listed {
            Verdict::Deny
        } else {
            Verdict::Allow
        }
    }

    /// The required outcome of a call that was submitted at `since` in the history and has just
    /// ended; `None` if rules with different verdicts were in force in between.
    fn certain(&self, since: usize, customer: &str) -> Option<Verdict> {
        let rules = self.history[since..].iter().flatten();
        let mut verdicts = rules.map(|&rule| self.verdict(rule, customer));
        let first = verdicts.next()?;
        verdicts.all(|verdict| verdict == first).then_some(first)
    }
}

/// The counts since the start.
#[derive(Debug, Default)]
struct Counts {
    answered: u64,
    ok: u64,
    denied: u64,
    failed: u64,
    expected_denied: u64,
    uncertain: u64,
    misjudged: u64,
    lost: u64,
    first_wrong: Option<String>,
}

impl Counts {
    /// Records one outcome; `certain` is the required one.
    fn count(&mut self, customer: &str, certain: Option<Verdict>, outcome: &Result<(), Status>) {
        self.answered += 1;
        let observed = match outcome {
            Ok(()) => Verdict::Allow,
            Err(status)
                if status.code() == Code::PERMISSION_DENIED && status.message() == DENIAL =>
            {
                Verdict::Deny
            }
            Err(_) => Verdict::Fail,
        };
        match observed {
            Verdict::Allow => self.ok += 1,
            Verdict::Deny => self.denied += 1,
            Verdict::Fail => self.failed += 1,
        }
        if outcome
            .as_ref()
            .is_err_and(|status| status.code() == Code::DEADLINE_EXCEEDED)
        {
            self.lost += 1;
        }
        match certain {
            None => {
                self.uncertain += 1;
                self.expected_denied += u64::from(observed == Verdict::Deny);
            }
            Some(verdict) => {
                self.expected_denied += u64::from(verdict == Verdict::Deny);
                if verdict != observed {
                    self.misjudged += 1;
                    let wrong = || format!("{customer}: {verdict:?} was expected, got {outcome:?}");
                    self.first_wrong.get_or_insert_with(wrong);
                }
            }
        }
    }
}

/// `demo client`: books with `in_flight` calls at once, until its standard input ends.
pub(crate) fn client(socket: &str, target: &str, in_flight: usize) -> Result<(), String> {
    let session = open(socket, "hotel-client")?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for order in orders() {
            if sender.send(order).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    let customers = Customers {
        client: ReservationClient::new(Channel::new(&session, target)),
        bookings: Bookings::new(1),
        orders: receiver,
        evaluate: Evaluate::new(),
        counts: Counts::default(),
        latencies_us: Vec::new(),
        reported: Instant::now(),
        stopping: false,
    };
    block_on(&session, customers.book(in_flight))
}

struct Customers {
    client: ReservationClient,
    bookings: Bookings,
    orders: Receiver<String>,
    evaluate: Evaluate,
    counts: Counts,
    latencies_us: Vec<u32>,
    reported: Instant,
    stopping: bool,
}

/// A call that ended.
struct Ended {
    booking: Booking,
    /// The position in the rules' history at its submission.
    since: usize,
    latency: Duration,
    outcome: Result<(), Status>,
}

impl Customers {
    async fn book(mut self, in_flight: usize) -> Result<(), String> {
        let mut calls = FuturesUnordered::new();
        for _ in 0..in_flight {
            calls.push(self.call());
        }
        say("ready");
        while let Some(ended) = calls.next().await {
            let certain = self.evaluate.certain(ended.since, &ended.booking.customer);
            self.counts
                .count(&ended.booking.customer, certain, &ended.outcome);
            if self.latencies_us.len() < MAX_LATENCIES {
                self.latencies_us
                    .push(u32::try_from(ended.latency.as_micros()).unwrap_or(u32::MAX));
            }
            while let Ok(order) = self.orders.try_recv() {
                self.obey(&order)?;
            }
            if !self.stopping {
                calls.push(self.call());
            }
        }
        say(&self.report());
        // The end of the orders ends the process; until then the last report is valid.
        while self.orders.recv().is_ok() {}
        Ok(())
    }

    fn call(&mut self) -> impl Future<Output = Ended> + use<> {
        let booking = self
            .bookings
            .next()
            .unwrap_or_else(|| unreachable!("bookings never end"));
        let (client, since) = (self.client.clone(), self.evaluate.history.len() - 1);
        async move {
            let mut request = Request::new(ReserveRequest {
                customer_name: booking.customer.clone(),
                hotel_ids: vec!["grand-budapest".to_owned()],
                room_count: 1,
                ..ReserveRequest::default()
            });
            request.set_timeout(PATIENCE);
            let begin = Instant::now();
            let outcome = client.reserve(request).await.map(|_reply| ());
            Ended {
                booking,
                since,
                latency: begin.elapsed(),
                outcome,
            }
        }
    }

    fn obey(&mut self, order: &str) -> Result<(), String> {
        match order {
            "report" => {
                say(&self.report());
                return Ok(());
            }
            "stop" => {
                self.stopping = true;
                return Ok(());
            }
            _ => {}
        }
        let rules = order
            .strip_prefix("rules ")
            .ok_or_else(|| format!("no such order: {order:?}"))?;
        let rule = |name| match name {
            "none" => Ok(Rule::None),
            "one" => Ok(Rule::One),
            "two" => Ok(Rule::Two),
            "broken" => Ok(Rule::Broken),
            _ => Err(format!("no such rule: {name:?}")),
        };
        self.evaluate
            .history
            .push(rules.split(' ').map(rule).collect::<Result<_, _>>()?);
        say(order);
        Ok(())
    }

    /// Totals, and rate and latencies since the last report.
    fn report(&mut self) -> String {
        let latencies = &mut self.latencies_us;
        latencies.sort_unstable();
        let seconds = self.reported.elapsed().as_secs_f64();
        let percentile = |percent: usize| {
            let at = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
            latencies.get(at).copied().unwrap_or_default()
        };
        let counts = &self.counts;
        let report = json!({
            "answered": counts.answered, "ok": counts.ok, "denied": counts.denied, "failed": counts.failed,
            "expected_denied": counts.expected_denied, "uncertain": counts.uncertain,
            "misjudged": counts.misjudged, "lost": counts.lost, "first_wrong": counts.first_wrong,
            "rate": latencies.len() as f64 / seconds,
            "p50_us": percentile(50), "p90_us": percentile(90), "p99_us": percentile(99),
        });
        latencies.clear();
        self.reported = Instant::now();
        report.to_string()
    }
}

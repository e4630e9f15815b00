//! Tollgate's client: calls through the daemon at `socket=` to the one at `to=` (or, without it, to
//! a server of the same host).
//!
//! The sessions are distributed over `threads=` threads, of which this one is the first. The result
//! has two more numbers, in ms. `open_ms` is the time to open the first session. `first_call_ms` is
//! the time from there to its first reply: sending the schema to the daemon and its peer, compiling
//! it there, and one call.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tollgate::{Bytes, Channel, Code, Request, Session, Sessions, Status, block_on};
use tollgate_benches::measure::{self, Answer, Caller, Run, exit};
use tollgate_benches::request::{Requests, reservation_id};
use tollgate_benches::settings::{Method, Settings};
use tollgate_benches::split::{self, Split};
use tollgate_benches::stubs::hotel::echo_client::EchoClient;
use tollgate_benches::stubs::hotel::reservation_client::ReservationClient;
use tollgate_benches::stubs::hotel::{EchoMessage, ReserveRequest, Stay};
use tollgate_benches::stubs::kv::store_client::StoreClient;
use tollgate_benches::stubs::kv::{Field, Key, Range, Record};
use tollgate_benches::ycsb::{self, NAMES, Store};

struct Tollgate {
    session: Session,
    echo: EchoClient,
    hotel: ReservationClient,
    store: StoreClient,
    message: Arc<EchoMessage>,
    /// The value of a field of the store.
    value: Bytes,
}

impl Tollgate {
    fn open(settings: &Settings, requests: &Requests) -> Result<Tollgate, String> {
        let options = settings.session().map_err(|error| error.to_string())?;
        let session = Session::open(options).map_err(|status| format!("no session: {status}"))?;
        let target = settings.to.map_or(String::new(), |to| to.to_string());
        let channel = Channel::new(&session, &target);
        let payload = shared(&session, &requests.payload)?;
        Ok(Tollgate {
            session,
            echo: EchoClient::new(channel.clone()),
            hotel: ReservationClient::new(channel.clone()),
            store: StoreClient::new(channel),
            message: Arc::new(EchoMessage { payload }),
            value: ycsb::value().into(),
        })
    }

    /// The first call over a session, including the bind.
    fn first_call(&self, requests: &Requests) -> Result<(), String> {
        block_on(&self.session, self.call(requests, 0)).of_first_call()
    }

    async fn echo(&self, requests: &Requests) -> Result<bool, Status> {
        let reply = self.echo.echo(self.message.clone()).await?;
        Ok(requests.echoed(reply.get_ref().view().payload()))
    }

    async fn reserve(&self, requests: &Requests, index: usize) -> Result<bool, Status> {
        let mut timed = requests.split.as_ref().map(Split::begin);
        let (customer, filling) = (&requests.booking(index).customer, &requests.filling);
        let mut request = Request::new(ReserveRequest {
            customer_name: customer.clone(),
            hotel_ids: vec![filling.hotel.clone()],
            stay: filling.dates.map(|[in_date, out_date]| Stay {
                in_date: in_date.to_owned(),
                out_date: out_date.to_owned(),
            }),
            room_count: 1,
            coupon: (!filling.coupon.is_empty()).then(|| filling.coupon.clone()),
        });
        if let Some(timed) = &mut timed {
            let asked = request.metadata_mut().insert(split::ASKED, "1");
            asked.map_err(|error| Status::new(Code::INTERNAL, error.to_string()))?;
            timed.sent();
        }
        let reply = self.hotel.reserve(request).await?;
        if let Some(timed) = &mut timed {
            timed.came();
        }
        let expected = reply.get_ref().view().reservation_id() == reservation_id(customer);
        if let Some(timed) = timed {
            timed.ended(reply.metadata().get(split::TOLD));
        }
        Ok(expected)
    }
}

/// Keeps the given number of calls in flight over each client until the window ends.
fn drive(run: &Run, dealt: &[(&Tollgate, usize)]) -> Result<(), String> {
    let sessions = dealt.iter().map(|(caller, _)| caller.session.clone());
    let mut sessions = Sessions::new(sessions).map_err(|status| status.to_string())?;
    let workers = dealt
        .iter()
        .flat_map(|(caller, inflight)| (0..*inflight).map(|_| run.worker(*caller)));
    let mut workers: FuturesUnordered<_> = workers.collect();
    sessions.block_on(async { while workers.next().await.is_some() {} });
    Ok(())
}

/// A payload that every call sends in place.
fn shared(session: &Session, payload: &[u8]) -> Result<Bytes, String> {
    let buffer = session.buffer(payload.len());
    let mut buffer = buffer.map_err(|status| format!("no room for the payload: {status}"))?;
    buffer.copy_from_slice(payload);
    Ok(buffer.freeze().into())
}

impl Caller for Tollgate {
    async fn call(&self, requests: &Requests, index: usize) -> Answer {
        if let Some(operations) = &requests.operations {
            return operations.call(self, index).await;
        }
        let answer = match requests.method {
            Method::Hotel => self.reserve(requests, index).await,
            _ => self.echo(requests).await,
        };
        match answer {
            Ok(true) => Answer::Ok,
            Ok(false) => Answer::Failed("the reply is not the one expected".to_owned()),
            Err(status) if status.code() == Code::PERMISSION_DENIED => Answer::Denied,
            Err(status) if status.code() == Code::RESOURCE_EXHAUSTED => Answer::Refused,
            Err(status) => Answer::Failed(status.to_string()),
        }
    }
}

impl Store for Tollgate {
    type Error = Status;

    async fn read(&self, key: &str) -> Result<usize, Status> {
        let key = key.to_owned();
        let reply = self.store.read(Key { key }).await?;
        let fields = reply.get_ref().view().fields().iter();
        Ok(fields.filter(|field| field.value() == &*self.value).count())
    }

    async fn scan(&self, from: &str, count: u32) -> Result<usize, Status> {
        let from = from.to_owned();
        let reply = self.store.scan(Range { from, count }).await?;
        Ok(reply.get_ref().view().records().len())
    }

    async fn put(&self, key: &str, fields: &[usize]) -> Result<bool, Status> {
        let field = |at: &usize| Field {
            name: NAMES[*at].to_owned(),
            value: self.value.clone(),
        };
        let fields = fields.iter().map(field).collect();
        let key = key.to_owned();
        let reply = self.store.put(Record { key, fields }).await?;
        Ok(reply.get_ref().view().existed())
    }
}

fn main() -> ExitCode {
    exit("bench-client", run())
}

fn run() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    let requests = Arc::new(Requests::of(&settings));
    let began = Instant::now();
    let first = Tollgate::open(&settings, &requests)?;
    let opened = Instant::now();
    first.first_call(&requests)?;
    let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
    let facts = [
        ("open_ms", ms(began, opened)),
        ("first_call_ms", ms(opened, Instant::now())),
    ];
    let mut callers = vec![first];
    for _ in 1..settings.sessions {
        let another = Tollgate::open(&settings, &requests)?;
        another.first_call(&requests)?;
        callers.push(another);
    }
    measure::step(&settings, requests, &facts, |run| {
        if settings.rate > 0 {
            let first = &callers[0];
            let paced = run.paced(first, settings.rate, settings.inflight);
            block_on(&first.session, paced);
            return Ok(());
        }
        let mut hands = vec![Vec::new(); settings.threads];
        let busy = callers.iter().zip(settings.spread());
        for (at, dealt) in busy.filter(|(_, calls)| *calls > 0).enumerate() {
            hands[at % settings.threads].push(dealt);
        }
        let (mine, others) = hands.split_at(1);
        thread::scope(|threads| {
            let others = others
                .iter()
                .map(|hand| threads.spawn(move || drive(run, hand)));
            let others: Vec<_> = others.collect();
            let mut ended = vec![drive(run, &mine[0])];
            ended.extend(others.into_iter().map(|other| {
                let died = |_| Err("a thread died".to_owned());
                other.join().unwrap_or_else(died)
            }));
            ended.into_iter().collect()
        })
    })
}

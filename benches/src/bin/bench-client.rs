//! Tollgate's client: calls through the daemon at `socket=` to the one at `to=` (or, without it, to a
//! server of the same host).
//!
//! Everything runs on this thread, which drives the session. Two more numbers join the result:
//! `open_ms` for the session, and `first_call_ms` from there to the first reply: the schema's way to
//! the daemon and its peer, what they compile, and one call.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tollgate::{Channel, Code, Session, Status, block_on};
use tollgate_benches::measure::{self, Answer, Caller, exit};
use tollgate_benches::request::{Requests, reservation_id};
use tollgate_benches::settings::{Method, Settings};
use tollgate_benches::stubs::hotel::echo_client::EchoClient;
use tollgate_benches::stubs::hotel::reservation_client::ReservationClient;
use tollgate_benches::stubs::hotel::{EchoMessage, ReserveRequest, Stay};

struct Tollgate {
    echo: EchoClient,
    hotel: ReservationClient,
    message: Arc<EchoMessage>,
}

impl Tollgate {
    async fn echo(&self, requests: &Requests) -> Result<bool, Status> {
        let reply = self.echo.echo(self.message.clone()).await?;
        Ok(requests.echoed(reply.get_ref().view().payload()))
    }

    async fn reserve(&self, requests: &Requests, index: usize) -> Result<bool, Status> {
        let (customer, filling) = (&requests.booking(index).customer, &requests.filling);
        let request = ReserveRequest {
            customer_name: customer.clone(),
            hotel_ids: vec![filling.hotel.clone()],
            stay: filling.dates.map(|[in_date, out_date]| Stay {
                in_date: in_date.to_owned(),
                out_date: out_date.to_owned(),
            }),
            room_count: 1,
            coupon: (!filling.coupon.is_empty()).then(|| filling.coupon.clone()),
        };
        let reply = self.hotel.reserve(request).await?;
        Ok(reply.get_ref().view().reservation_id() == reservation_id(customer))
    }
}

impl Caller for Tollgate {
    async fn call(&self, requests: &Requests, index: usize) -> Answer {
        let answer = match requests.method {
            Method::Echo => self.echo(requests).await,
            Method::Hotel => self.reserve(requests, index).await,
        };
        match answer {
            Ok(true) => Answer::Ok,
            Ok(false) => Answer::Failed("the reply is not the one expected".to_owned()),
            Err(status) if status.code() == Code::PERMISSION_DENIED => Answer::Denied,
            Err(status) => Answer::Failed(status.to_string()),
        }
    }
}

fn main() -> ExitCode {
    exit("bench-client", run())
}

fn run() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    let options = settings.session().map_err(|error| error.to_string())?;
    let requests = Arc::new(Requests::new(settings.method, settings.size));
    let began = Instant::now();
    let session = Session::open(options).map_err(|status| format!("no session: {status}"))?;
    let opened = Instant::now();
    let target = settings.to.map_or(String::new(), |to| to.to_string());
    let channel = Channel::new(&session, &target);
    let caller = Tollgate {
        echo: EchoClient::new(channel.clone()),
        hotel: ReservationClient::new(channel),
        message: Arc::new(EchoMessage {
            payload: requests.payload.clone(),
        }),
    };
    let first = block_on(&session, caller.call(&requests, 0));
    if let Answer::Failed(sentence) = first {
        return Err(format!("the first call failed: {sentence}"));
    }
    let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
    let facts = [
        ("open_ms", ms(began, opened)),
        ("first_call_ms", ms(opened, Instant::now())),
    ];
    measure::step(&settings, requests, &facts, |run| {
        let workers = (0..settings.inflight).map(|_| run.worker(&caller));
        let mut workers: FuturesUnordered<_> = workers.collect();
        block_on(&session, async { while workers.next().await.is_some() {} });
        Ok(())
    })
}

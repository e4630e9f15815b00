//! tonic's client: unary calls over one direct TCP connection.
//!
//! tonic's best configuration on two cores (see `tuning.rs`): TCP_NODELAY, payloads shared as
//! `Bytes`, one task per call in flight.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tollgate_benches::measure::{self, Answer, Caller, Run, exit};
use tollgate_benches::request::{Requests, reservation_id};
use tollgate_benches::settings::{Method, Settings};
use tollgate_benches::split::{self, Split};
use tollgate_benches::stubs::tonic_hotel::echo_client::EchoClient;
use tollgate_benches::stubs::tonic_hotel::reservation_client::ReservationClient;
use tollgate_benches::stubs::tonic_hotel::{EchoMessage, ReserveRequest, Stay};
use tollgate_benches::stubs::tonic_kv::store_client::StoreClient;
use tollgate_benches::stubs::tonic_kv::{Field, Key, Range, Record};
use tollgate_benches::tuning::{self, MESSAGE};
use tollgate_benches::ycsb::{self, NAMES, Store};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

#[derive(Clone)]
struct Tonic {
    echo: EchoClient<Channel>,
    hotel: ReservationClient<Channel>,
    store: StoreClient<Channel>,
    payload: Bytes,
    /// The value of a field of the store.
    value: Bytes,
}

impl Tonic {
    fn new(channel: Channel, requests: &Requests) -> Tonic {
        Tonic {
            echo: EchoClient::new(channel.clone()).max_decoding_message_size(MESSAGE),
            hotel: ReservationClient::new(channel.clone()).max_decoding_message_size(MESSAGE),
            store: StoreClient::new(channel),
            payload: Bytes::copy_from_slice(&requests.payload),
            value: ycsb::value().into(),
        }
    }

    async fn echo(&self, requests: &Requests) -> Result<bool, Status> {
        let payload = self.payload.clone();
        let reply = self.echo.clone().echo(EchoMessage { payload }).await?;
        Ok(requests.echoed(&reply.get_ref().payload))
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
            let asked = MetadataValue::from_static("1");
            request.metadata_mut().insert(split::ASKED, asked);
            timed.sent();
        }
        let reply = self.hotel.clone().reserve(request).await?;
        if let Some(timed) = &mut timed {
            timed.came();
        }
        let expected = reply.get_ref().reservation_id == reservation_id(customer);
        if let Some(timed) = timed {
            let told = reply.metadata().get(split::TOLD);
            timed.ended(told.and_then(|told| told.to_str().ok()));
        }
        Ok(expected)
    }
}

impl Caller for Tonic {
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
            Err(status) if status.code() == Code::PermissionDenied => Answer::Denied,
            Err(status) if status.code() == Code::ResourceExhausted => Answer::Refused,
            Err(status) => Answer::Failed(status.to_string()),
        }
    }
}

impl Store for Tonic {
    type Error = Status;

    async fn read(&self, key: &str) -> Result<usize, Status> {
        let key = key.to_owned();
        let reply = self.store.clone().read(Key { key }).await?;
        let fields = reply.get_ref().fields.iter();
        Ok(fields.filter(|field| field.value == self.value).count())
    }

    async fn scan(&self, from: &str, count: u32) -> Result<usize, Status> {
        let from = from.to_owned();
        let reply = self.store.clone().scan(Range { from, count }).await?;
        Ok(reply.get_ref().records.len())
    }

    async fn put(&self, key: &str, fields: &[usize]) -> Result<bool, Status> {
        let field = |at: &usize| Field {
            name: NAMES[*at].to_owned(),
            value: self.value.clone(),
        };
        let fields = fields.iter().map(field).collect();
        let key = key.to_owned();
        let reply = self.store.clone().put(Record { key, fields }).await?;
        Ok(reply.get_ref().existed)
    }
}

fn main() -> ExitCode {
    exit("tonic-client", run())
}

fn run() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    let server = settings.server().map_err(|error| error.to_string())?;
    let requests = Arc::new(Requests::of(&settings));
    let runtime = tuning::runtime(&settings)?;
    let began = Instant::now();
    let connect = async || {
        let channel = Endpoint::from_shared(format!("http://{server}"))?
            .tcp_nodelay(true)
            .connect()
            .await?;
        Ok(Tonic::new(channel, &requests))
    };
    let unreachable = |error: tonic::transport::Error| format!("cannot reach {server}: {error}");
    let mut callers = vec![runtime.block_on(connect()).map_err(unreachable)?];
    runtime
        .block_on(callers[0].call(&requests, 0))
        .of_first_call()?;
    let facts = [("first_call_ms", began.elapsed().as_secs_f64() * 1e3)];
    for _ in 1..settings.sessions {
        callers.push(runtime.block_on(connect()).map_err(unreachable)?);
    }
    measure::step(&settings, requests.clone(), &facts, |run| {
        if settings.rate > 0 {
            runtime.block_on(run.paced(&callers[0], settings.rate, settings.inflight));
            return Ok(());
        }
        runtime.block_on(phase(run, &callers, settings.inflight))
    })
}

async fn phase(run: &Arc<Run>, callers: &[Tonic], inflight: usize) -> Result<(), String> {
    let callers = callers.iter().cycle().take(inflight);
    let workers: Vec<_> = callers
        .map(|caller| {
            let (run, caller) = (run.clone(), caller.clone());
            tokio::spawn(async move { run.worker(&caller).await })
        })
        .collect();
    for worker in workers {
        worker
            .await
            .map_err(|error| format!("a worker died: {error}"))?;
    }
    Ok(())
}

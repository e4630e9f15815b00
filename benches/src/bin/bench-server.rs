//! Tollgate's server: `hotel.Reservation`, `hotel.Echo` and `kv.Store` on the daemon at `socket=`.
//!
//! Handlers run on the thread that drives the session, which is the only busy thread of this
//! program. The program prints `ready` once the services are bound, and ends when the session ends.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tollgate::{
    Bytes, Code, Received, Reply, Request, Response, Server, Session, Status, block_on,
};
use tollgate_benches::measure::{exit, say, work};
use tollgate_benches::request::{echo_reply, reservation_id};
use tollgate_benches::settings::Settings;
use tollgate_benches::split;
use tollgate_benches::stubs::hotel::echo_server::{Echo, EchoServer};
use tollgate_benches::stubs::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_benches::stubs::hotel::{
    AvailabilityReply, AvailabilityRequest, EchoMessage, ReserveReply, ReserveRequest,
};
use tollgate_benches::stubs::kv::store_server::{Store, StoreServer};
use tollgate_benches::stubs::kv::{self, Field, Key, Range, Record, Written};
use tollgate_benches::ycsb::{FIELDS, NAMES, Table};

struct Hotel;

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        let timed = request
            .metadata()
            .contains_key(split::ASKED)
            .then(Instant::now);
        let mut reply = Response::new(ReserveReply {
            reservation_id: reservation_id(request.get_ref().view().customer_name()),
            hotel_ids: Vec::new(),
        });
        if let Some(began) = timed {
            let told = reply
                .metadata_mut()
                .insert(split::TOLD, &split::told(began.elapsed()));
            told.map_err(|error| Status::new(Code::INTERNAL, error.to_string()))?;
        }
        Ok(reply)
    }

    async fn check_availability(
        &self,
        _request: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Err(Status::new(
            Code::UNIMPLEMENTED,
            "no benchmark asks for availability",
        ))
    }
}

struct EchoBack {
    work: Duration,
}

impl Echo for EchoBack {
    async fn echo(&self, request: Request<Received<EchoMessage>>) -> Reply<EchoMessage> {
        work(self.work);
        Ok(Response::new(EchoMessage {
            payload: echo_reply(request.get_ref().view().payload()).into(),
        }))
    }
}

#[derive(Default)]
struct Records {
    table: Table<Bytes>,
}

impl Store for Records {
    async fn read(&self, request: Request<Received<Key>>) -> Reply<Record> {
        let key = request.get_ref().view().key();
        let fields = self.table.read(key);
        Ok(Response::new(Record {
            key: key.to_owned(),
            fields: fields.map_or_else(Vec::new, |fields| named(&fields)),
        }))
    }

    async fn scan(&self, request: Request<Received<Range>>) -> Reply<kv::Records> {
        let range = request.get_ref().view();
        let record = |key: &str, fields: &[Bytes; FIELDS]| Record {
            key: key.to_owned(),
            fields: named(fields),
        };
        let records = self.table.scan(range.from(), range.count(), record);
        Ok(Response::new(kv::Records { records }))
    }

    async fn put(&self, request: Request<Received<Record>>) -> Reply<Written> {
        let record = request.get_ref().view();
        let fields = record.fields().iter();
        let fields = fields.map(|field| (field.name(), field.value().into()));
        let existed = self.table.put(record.key(), fields);
        Ok(Response::new(Written { existed }))
    }
}

fn named(fields: &[Bytes; FIELDS]) -> Vec<Field> {
    let field = |(name, value): (&&str, &Bytes)| Field {
        name: (*name).to_owned(),
        value: value.clone(),
    };
    NAMES.iter().zip(fields).map(field).collect()
}

fn main() -> ExitCode {
    exit("bench-server", serve())
}

fn serve() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    let options = settings.session().map_err(|error| error.to_string())?;
    let session = Session::open(options).map_err(|status| format!("no session: {status}"))?;
    let server = Server::new(&session)
        .add_service(ReservationServer::new(Hotel))
        .add_service(EchoServer::new(EchoBack {
            work: settings.work,
        }))
        .add_service(StoreServer::new(Records::default()));
    block_on(&session, server.bind()).map_err(|status| format!("cannot serve: {status}"))?;
    say("ready")?;
    let status = block_on(&session, session.closed());
    Err(format!("serving ended: {status}"))
}

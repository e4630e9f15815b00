//! tonic's server: `hotel.Reservation`, `hotel.Echo` and `kv.Store` over plain HTTP/2.
//!
//! Configured for speed with tonic's own settings: see `tuning.rs`.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tollgate_benches::measure::{exit, say, work};
use tollgate_benches::request::{REPLY_BYTES, reservation_id};
use tollgate_benches::settings::Settings;
use tollgate_benches::split;
use tollgate_benches::stubs::tonic_hotel::echo_server::{Echo, EchoServer};
use tollgate_benches::stubs::tonic_hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_benches::stubs::tonic_hotel::{
    AvailabilityReply, AvailabilityRequest, EchoMessage, ReserveReply, ReserveRequest,
};
use tollgate_benches::stubs::tonic_kv::store_server::{Store, StoreServer};
use tollgate_benches::stubs::tonic_kv::{self, Field, Key, Range, Record, Written};
use tollgate_benches::tuning::{self, MESSAGE};
use tollgate_benches::ycsb::{FIELDS, NAMES, Table};
use tollgate_conformance::workload::blocked_names;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

struct Hotel {
    /// Customers that the handler itself refuses.
    blocked: HashSet<String>,
}

#[tonic::async_trait]
impl Reservation for Hotel {
    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveReply>, Status> {
        let timed = request
            .metadata()
            .contains_key(split::ASKED)
            .then(Instant::now);
        if self.blocked.contains(&request.get_ref().customer_name) {
            return Err(Status::permission_denied("customer is on the block list"));
        }
        let mut reply = Response::new(ReserveReply {
            reservation_id: reservation_id(&request.get_ref().customer_name),
            hotel_ids: Vec::new(),
        });
        if let Some(began) = timed {
            let told = split::told(began.elapsed()).parse();
            let told = told.map_err(|_| Status::internal("a header that HTTP doesn't allow"))?;
            reply.metadata_mut().insert(split::TOLD, told);
        }
        Ok(reply)
    }

    async fn check_availability(
        &self,
        _request: Request<AvailabilityRequest>,
    ) -> Result<Response<AvailabilityReply>, Status> {
        Err(Status::unimplemented("no benchmark asks for availability"))
    }
}

struct EchoBack {
    work: Duration,
}

#[tonic::async_trait]
impl Echo for EchoBack {
    async fn echo(&self, request: Request<EchoMessage>) -> Result<Response<EchoMessage>, Status> {
        work(self.work);
        let payload = request.into_inner().payload;
        Ok(Response::new(EchoMessage {
            payload: payload.slice(..payload.len().min(REPLY_BYTES)),
        }))
    }
}

#[derive(Default)]
struct Records {
    table: Table<Bytes>,
}

#[tonic::async_trait]
impl Store for Records {
    async fn read(&self, request: Request<Key>) -> Result<Response<Record>, Status> {
        let key = request.into_inner().key;
        let fields = self.table.read(&key);
        let fields = fields.map_or_else(Vec::new, |fields| named(&fields));
        Ok(Response::new(Record { key, fields }))
    }

    async fn scan(&self, request: Request<Range>) -> Result<Response<tonic_kv::Records>, Status> {
        let range = request.into_inner();
        let record = |key: &str, fields: &[Bytes; FIELDS]| Record {
            key: key.to_owned(),
            fields: named(fields),
        };
        let records = self.table.scan(&range.from, range.count, record);
        Ok(Response::new(tonic_kv::Records { records }))
    }

    async fn put(&self, request: Request<Record>) -> Result<Response<Written>, Status> {
        let record = request.into_inner();
        let fields = record.fields.iter();
        // A copy, because the received bytes are in a buffer of the connection and would keep it
        // alive.
        let fields = fields.map(|field| (&*field.name, Bytes::copy_from_slice(&field.value)));
        let existed = self.table.put(&record.key, fields);
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
    exit("tonic-server", serve())
}

fn serve() -> Result<(), String> {
    let settings = Settings::from_args().map_err(|error| error.to_string())?;
    let runtime = tuning::runtime(&settings)?;
    let blocked = match settings.acl {
        true => blocked_names().into_iter().collect(),
        false => HashSet::new(),
    };
    runtime.block_on(async {
        let incoming = TcpIncoming::bind(settings.listen)
            .map_err(|error| format!("cannot listen on {}: {error}", settings.listen))?
            .with_nodelay(Some(true));
        let listen = incoming.local_addr().map_err(|error| error.to_string())?;
        say(&format!("ready listen={listen}"))?;
        Server::builder()
            .add_service(
                EchoServer::new(EchoBack {
                    work: settings.work,
                })
                .max_decoding_message_size(MESSAGE),
            )
            .add_service(
                ReservationServer::new(Hotel { blocked }).max_decoding_message_size(MESSAGE),
            )
            .add_service(StoreServer::new(Records::default()))
            .serve_with_incoming(incoming)
            .await
            .map_err(|error| format!("serving ended: {error}"))
    })
}

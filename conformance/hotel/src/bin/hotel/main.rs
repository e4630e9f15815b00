//! The hotel reservation's services, its frontend and its load, one subcommand each.
//!
//! A service that serves says so on standard output: `SERVICE ready`, with `listen=IP:PORT` if it
//! listens itself. SIGTERM and SIGINT end it when what came has been answered.

#![forbid(unsafe_code)]

mod options;
mod serve;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tollgate::Workers;
use tollgate_hotel::dataset;
use tollgate_hotel::load::Load;
use tollgate_hotel::rpc::{over_tollgate as tollgates, over_tonic as tonics};
use tollgate_hotel::services::geo::Geo;
use tollgate_hotel::services::profile::Profiles;
use tollgate_hotel::services::rate::Rates;
use tollgate_hotel::services::recommendation::Recommendations;
use tollgate_hotel::services::reservation::Reservations;
use tollgate_hotel::services::search::Search;
use tollgate_hotel::services::user::Users;
use tonic::service::Routes;

use options::{Command, Frontend, Kind, Loading, Program, Searching, Table};
use serve::Done;

/// Threads for handlers that look into a store, or ask memcached.
const WORKERS: usize = 8;

/// Serves what has no other services to call, over either transport; what blocks, off the threads
/// that carry the calls.
macro_rules! serves {
    ($options:ident, $package:ident, $module:ident::$server:ident, blocking $service:expr) => {{
        let service = $service;
        match $options.rpc.rpc {
            Kind::Tollgate => serve::tollgate(&$options.rpc, stringify!($package), |_| {
                let service = tollgates::stubs::$package::$module::$server::new(service);
                Ok(Workers::start(WORKERS)?.serve(service))
            }),
            Kind::Tonic => serve::tonic(&$options.rpc, stringify!($package), || {
                let service = Arc::new(service);
                let service = tonics::stubs::$package::$module::$server::new(service);
                Ok(Routes::new(service))
            }),
        }
    }};
    ($options:ident, $package:ident, $module:ident::$server:ident, $service:expr) => {{
        let service = $service;
        match $options.rpc.rpc {
            Kind::Tollgate => serve::tollgate(&$options.rpc, stringify!($package), |_| {
                Ok(tollgates::stubs::$package::$module::$server::new(service))
            }),
            Kind::Tonic => serve::tonic(&$options.rpc, stringify!($package), || {
                let service = tonics::stubs::$package::$module::$server::new(service);
                Ok(Routes::new(service))
            }),
        }
    }};
}

fn main() -> ExitCode {
    match run(Program::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hotel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Done {
    match command {
        Command::Geo(own) => serves!(own, geo, geo_server::GeoServer, Geo::open(&own.store()?)?),
        Command::Recommendation(own) => {
            let all = Recommendations::open(&own.store()?)?;
            serves!(
                own,
                recommendation,
                recommendation_server::RecommendationServer,
                all
            )
        }
        Command::User(own) => serves!(
            own,
            user,
            user_server::UserServer,
            Users::open(&own.store()?)?
        ),
        Command::Rate(own) => {
            let rates = Rates::open(&own.store()?, own.memcached)?;
            serves!(own, rate, rate_server::RateServer, blocking rates)
        }
        Command::Profile(own) => {
            let profiles = Profiles::open(&own.store()?, own.memcached)?;
            serves!(own, profile, profile_server::ProfileServer, blocking profiles)
        }
        Command::Reservation(own) => {
            let rooms = Reservations::open(&own.store()?, own.memcached)?;
            serves!(own, reservation, reservation_server::ReservationServer, blocking rooms)
        }
        Command::Search(own) => search(&own),
        Command::Frontend(own) => frontend(&own),
        Command::Load(own) => load(&own),
        Command::Data { table } => {
            print_table(table);
            Ok(())
        }
    }
}

fn search(Searching { rpc, peers }: &Searching) -> Done {
    use tollgates::stubs::search::search_server::SearchServer as OverTollgate;
    use tonics::stubs::search::search_server::SearchServer as OverTonic;
    let targets = peers.targets();
    match rpc.rpc {
        Kind::Tollgate => serve::tollgate(rpc, "search", |session| {
            let search = Search::new(tollgates::Clients::new(session, &targets));
            Ok(OverTollgate::new(search))
        }),
        Kind::Tonic => serve::tonic(rpc, "search", || {
            let search = Search::new(tonics::Clients::new(&targets)?);
            Ok(Routes::new(OverTonic::new(search)))
        }),
    }
}

fn frontend(options: &Frontend) -> Done {
    let timeout = Duration::from_millis(options.timeout_ms);
    let targets = options.peers.targets();
    let runtime = serve::runtime(options.rpc.threads)?;
    match options.rpc.rpc {
        Kind::Tollgate => {
            let session = serve::session(&options.rpc)?;
            let clients = tollgates::Clients::new(&session, &targets);
            runtime.block_on(serve::http(&options.rpc, clients, timeout))
        }
        Kind::Tonic => runtime.block_on(async {
            let clients = tonics::Clients::new(&targets)?;
            serve::http(&options.rpc, clients, timeout).await
        }),
    }
}

fn load(options: &Loading) -> Done {
    let load = Load {
        frontend: options.frontend.clone(),
        connections: options.connections,
        time: Duration::from_secs_f64(options.seconds),
        seed: options.seed,
    };
    let outcome = serve::runtime(1)?.block_on(load.run())?;
    if options.json {
        println!("{}", serde_json::to_string(&outcome)?);
        return Ok(());
    }
    let (p50_ms, p99_ms) = (outcome.p50_us as f64 / 1e3, outcome.p99_us as f64 / 1e3);
    println!(
        "{} requests, {:.0}/s, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, {} errors",
        outcome.answered, outcome.rate, outcome.errors
    );
    match outcome.error {
        Some(error) => Err(format!("an error: {error}").into()),
        None => Ok(()),
    }
}

/// A line per hotel, numbers as they are written the shortest; what reads them gets the same
/// numbers.
fn print_table(table: Table) {
    match table {
        Table::Geo => {
            for (id, point) in dataset::points() {
                println!("{id} {} {}", point.lat, point.lon);
            }
        }
        Table::Recommendation => {
            for (id, offer) in dataset::offers() {
                let point = offer.point;
                println!(
                    "{id} {} {} {} {}",
                    point.lat, point.lon, offer.rate, offer.price
                );
            }
        }
    }
}

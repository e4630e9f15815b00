//! The command line.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tollgate_hotel::failure::Failure;
use tollgate_hotel::rpc::Targets;

/// DeathStarBench's hotel reservation over Tollgate, and over tonic for comparison.
#[derive(Debug, Parser)]
#[command(name = "hotel", version)]
pub(crate) struct Program {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves search: which hotels to offer. Calls geo and rate.
    Search(Searching),
    /// Serves geo: where the hotels are.
    Geo(Stored),
    /// Serves rate: what rooms cost.
    Rate(Cached),
    /// Serves profile: what hotels say of themselves.
    Profile(Cached),
    /// Serves recommendation: the best hotels by one criterion.
    Recommendation(Stored),
    /// Serves user: who may make reservations.
    User(Stored),
    /// Serves reservation: which rooms are taken.
    Reservation(Cached),
    /// Serves HTTP: /hotels, /recommendations, /user and /reservation. Calls all services but geo
    /// and rate.
    Frontend(Frontend),
    /// Puts the mixed workload on a frontend: 60% searches, 39% recommendations, 0.5% log-ins, 0.5%
    /// reservations.
    Load(Loading),
    /// Prints a table of the data set, for the services that aren't written in Rust.
    Data {
        /// Whose: geo has "ID LAT LON" per line, recommendation also "RATE PRICE".
        table: Table,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Table {
    Geo,
    Recommendation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Through the host's daemon.
    Tollgate,
    /// gRPC, from process to process.
    Tonic,
}

/// What carries the calls.
#[derive(Debug, Args)]
pub(crate) struct Rpc {
    /// What carries the calls.
    #[arg(long, value_enum, default_value = "tollgate")]
    pub(crate) rpc: Kind,
    /// The socket of the host's daemon.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// A file with the tenant's token; `-` is standard input. If left out, the environment has the
    /// token in TOLLGATE_TOKEN, or the path of a file with it in TOLLGATE_TOKEN_FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Where a frontend listens, and a service over tonic. Port 0: one that is free.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// Threads of tokio, for a frontend and for services over tonic.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub(crate) threads: usize,
}

/// A service with records.
#[derive(Debug, Args)]
pub(crate) struct Stored {
    #[command(flatten)]
    pub(crate) rpc: Rpc,
    /// The directory of the service's file, SERVICE.redb. It is made, with the data set, if it
    /// isn't there.
    #[arg(long, value_name = "DIRECTORY")]
    store: PathBuf,
}

/// A service that also caches.
#[derive(Debug, Args)]
pub(crate) struct Cached {
    #[command(flatten)]
    stored: Stored,
    /// A memcached. Without one, or if it is gone, everything is looked up in the store.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) memcached: Option<SocketAddr>,
}

impl Stored {
    /// The directory, which is there now.
    pub(crate) fn store(&self) -> Result<PathBuf, Failure> {
        let shown = self.store.display();
        std::fs::create_dir_all(&self.store)
            .map_err(|error| Failure::internal(format!("the store {shown}: {error}")))?;
        Ok(self.store.clone())
    }
}

impl Deref for Cached {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        &self.stored
    }
}

#[derive(Debug, Args)]
pub(crate) struct Searching {
    #[command(flatten)]
    pub(crate) rpc: Rpc,
    #[command(flatten)]
    pub(crate) peers: SearchPeers,
}

#[derive(Debug, Args)]
pub(crate) struct Frontend {
    #[command(flatten)]
    pub(crate) rpc: Rpc,
    /// How long a request may take, all of its calls together.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 5000)]
    pub(crate) timeout_ms: u64,
    #[command(flatten)]
    pub(crate) peers: FrontendPeers,
}

/// Whom a service calls: an option for each, which is where it is.
macro_rules! peers {
    ($(#[$doc:meta])* $name:ident: $($peer:ident),*) => {
        $(#[$doc])*
        #[derive(Debug, Args)]
        #[command(
            next_help_heading = "Peers: the daemon that serves each, this host's by default; over tonic, the service itself"
        )]
        pub(crate) struct $name {
            $(
                #[arg(
                    long,
                    value_name = "HOST:PORT",
                    default_value = "",
                    hide_default_value = true,
                    required_if_eq("rpc", "tonic")
                )]
                $peer: String,
            )*
        }

        impl $name {
            pub(crate) fn targets(&self) -> Targets<'_> {
                Targets { $($peer: &self.$peer,)* ..Targets::default() }
            }
        }
    };
}

peers!(
    /// Whom search calls.
    SearchPeers: geo, rate
);
peers!(
    /// Whom a frontend calls.
    FrontendPeers: search, profile, recommendation, user, reservation
);

#[derive(Debug, Args)]
pub(crate) struct Loading {
    /// Where the frontend listens.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) frontend: String,
    /// How long.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) seconds: f64,
    /// How many requests are under way.
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    pub(crate) connections: usize,
    /// Which requests; the same number gives the same ones.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Prints one object of JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

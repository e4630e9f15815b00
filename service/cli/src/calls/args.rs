//! The arguments of `tollgate explain`, `tap` and `trace`, with their help.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use crate::api::Acting;
use crate::metadata::Pair;
use crate::values::{MethodName, Side, duration};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate explain --tenant acme --method hotel.Reservation/Reserve '{\"customer_name\": \"Ada\"}'\n          \
         tollgate explain 00f067aa0ba902b7\n\n\
        Policies run in temporary instances without state: a policy that counts calls sees its first one.\n\
        The schema is the one that the tenant's application has bound; if there is none, give it with --proto."
)]
pub(crate) struct Explain {
    /// The tenant of the call; with a token, the token's tenant if left out
    #[arg(long, value_name = "NAME", requires = "method")]
    pub(crate) tenant: Option<String>,
    /// The method, such as hotel.Reservation/Reserve
    #[arg(long, value_name = "SERVICE/METHOD")]
    pub(crate) method: Option<MethodName>,
    /// Only this side; both if left out, as for a call within the host
    #[arg(long, requires = "method")]
    pub(crate) side: Option<Side>,
    /// Treat the message as a reply
    #[arg(long, requires = "method")]
    pub(crate) reply: bool,
    /// Metadata of the message; in base64 if the key ends in -bin. Repeat for more, also with the
    /// same key
    #[arg(long, value_name = "KEY=VALUE", requires = "method")]
    pub(crate) metadata: Vec<Pair>,
    /// What is known of the caller: application, uid, gid or pid, for policies that are shown it.
    /// Repeat for more
    #[arg(long, value_name = "NAME=VALUE", requires = "method", value_parser = named)]
    pub(crate) caller: Vec<(String, String)>,
    /// The schema, if no application has bound the service: a .proto file, a directory of them, or
    /// a serialized descriptor set
    #[arg(long, value_name = "PATH", requires = "method")]
    pub(crate) proto: Vec<PathBuf>,
    /// The directories of imports; those of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR", requires = "proto")]
    pub(crate) include: Vec<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// With --method: the message to evaluate, as JSON; `-` reads it from standard
    /// input. Without it: a call, by the ID of its trace or its span
    #[arg(value_name = "JSON|CALL", required_unless_present = "method")]
    pub(crate) subject: Option<String>,
    #[command(flatten)]
    pub(crate) acting: Acting,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate tap hotel.Reservation/Reserve --denied\n          \
         tollgate tap --tenant acme --json --count 100\n\n\
        The output has nothing from messages, except the status text of a failed call. Calls beyond the daemon's limit are counted, not shown."
)]
pub(crate) struct Tap {
    /// Only calls of this method, such as hotel.Reservation/Reserve, or of this service
    #[arg(value_name = "SERVICE[/METHOD]")]
    pub(crate) of: Option<Watched>,
    /// Only calls of this tenant; with a token, the token's
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// Only calls that a policy denied
    #[arg(long)]
    pub(crate) denied: bool,
    /// Only calls that didn't end with OK
    #[arg(long)]
    pub(crate) failed: bool,
    /// End after this many calls
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) count: Option<u64>,
    /// End after this time, such as 10s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) time: Option<Duration>,
    /// Print a line of JSON per call, for programs
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) acting: Acting,
}

/// The calls to watch: those of a service, or of one method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) service: String,
    pub(crate) method: Option<String>,
}

impl FromStr for Watched {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let service = text.trim_start_matches('/');
        if !service.is_empty() && !service.contains('/') {
            return Ok(Watched {
                service: service.to_owned(),
                method: None,
            });
        }
        let MethodName { service, method } = text.parse().map_err(|_| {
            "a service is written package.Service, a method package.Service/Method".to_owned()
        })?;
        Ok(Watched {
            service,
            method: Some(method),
        })
    }
}

/// An attribute's name and value; the daemon knows which there are.
fn named(text: &str) -> Result<(String, String), String> {
    let named = text.split_once('=');
    let (name, value) = named.ok_or("it isn't NAME=VALUE, such as uid=1000")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A positive number.
fn positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err("it must be a whole number, 1 at least".to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate trace 4bf92f3577b34da6a3ce929d0e0e4736\n\n\
        A daemon keeps its newest spans (telemetry.kept_spans): of sampled calls, of calls whose application has a sampled span, and of failed \
        calls. Each daemon shows its own spans only."
)]
pub(crate) struct Trace {
    /// The trace, or one of its spans, in hexadecimal; the newest traces if left out
    #[arg(value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) id: String,
    /// The number of newest traces, at most 1000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = traces)]
    pub(crate) last: u32,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) acting: Acting,
}

/// The number of newest traces.
fn traces(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1..=1_000).contains(n));
    number.ok_or_else(|| "it must be a whole number from 1 to 1000".to_owned())
}

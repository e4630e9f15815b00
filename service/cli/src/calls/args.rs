//! What can be typed behind `tollgate explain`, `tap` and `trace`, with its help.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use crate::metadata::Pair;
use crate::values::{MethodName, Side, duration};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate explain --tenant acme --method hotel.Reservation/Reserve '{\"customer_name\": \"Ada\"}'\n          \
         tollgate explain 00f067aa0ba902b7\n\n\
        Policies are asked in instances that are thrown away, which begin without state: one that counts calls answers as to its first.\n\
        The schema is the one that the tenant's application has bound; if none has, give it with --proto."
)]
pub(crate) struct Explain {
    /// Whose call it would be
    #[arg(long, value_name = "NAME", requires = "method")]
    pub(crate) tenant: Option<String>,
    /// The method, such as hotel.Reservation/Reserve
    #[arg(long, value_name = "SERVICE/METHOD", requires = "tenant")]
    pub(crate) method: Option<MethodName>,
    /// Only this side; both if left out, as of a call within the host
    #[arg(long, requires = "tenant")]
    pub(crate) side: Option<Side>,
    /// The message is a reply
    #[arg(long, requires = "tenant")]
    pub(crate) reply: bool,
    /// This would be beside the message; in base64 if the key ends in -bin. Repeat for more, also of one key
    #[arg(long, value_name = "KEY=VALUE", requires = "tenant")]
    pub(crate) metadata: Vec<Pair>,
    /// What defines the service, if no application has bound it: a .proto file, a directory of them, or a serialized descriptor set
    #[arg(long, value_name = "PATH", requires = "tenant")]
    pub(crate) proto: Vec<PathBuf>,
    /// Where imports are; the directories of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR", requires = "proto")]
    pub(crate) include: Vec<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// With --tenant and --method: the message as JSON, which is then judged; `-` reads it from standard input. Without: a call, by its
    /// trace or its span
    #[arg(value_name = "JSON|CALL", required_unless_present = "tenant")]
    pub(crate) subject: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate tap hotel.Reservation/Reserve --denied\n          \
         tollgate tap --tenant acme --json --count 100\n\n\
        Nothing of what is in messages is shown, but for what the status of a failed call says. What a daemon has too much of is counted."
)]
pub(crate) struct Tap {
    /// Of these calls only: a method, such as hotel.Reservation/Reserve, or a service
    #[arg(value_name = "SERVICE[/METHOD]")]
    pub(crate) of: Option<Watched>,
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// Only those that a policy denied
    #[arg(long)]
    pub(crate) denied: bool,
    /// Only those that didn't end with OK
    #[arg(long)]
    pub(crate) failed: bool,
    /// End after so many
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) count: Option<u64>,
    /// End after this time, such as 10s or 5m
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) time: Option<Duration>,
    /// Print a line of JSON per call, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whose calls are watched: a service's, or one method's.
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

/// A number of things, of which there is one at least.
fn positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err("it must be a whole number, 1 at least".to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate trace 4bf92f3577b34da6a3ce929d0e0e4736\n\n\
        A daemon keeps its newest spans (telemetry.kept_spans): of calls that are sampled, of calls whose application has a span of its own that is, \
        and of calls that fail. Those of other daemons are theirs to show."
)]
pub(crate) struct Trace {
    /// The trace, or one of its spans, in hexadecimal; the newest traces if left out
    #[arg(value_name = "ID", default_value = "", hide_default_value = true)]
    pub(crate) id: String,
    /// How many of the newest, at most 1000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = traces)]
    pub(crate) last: u32,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// How many of the newest traces.
fn traces(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| (1..=1_000).contains(n));
    number.ok_or_else(|| "it must be a whole number from 1 to 1000".to_owned())
}

//! The arguments of `tollgate call` and `serve`, with their help.

use std::time::Duration;

use clap::Args;

use crate::metadata::Pair;
use crate::schema::Files;
use crate::token::Token;
use crate::values::{MethodName, duration};

/// Who calls or serves, and what.
#[derive(Debug, Args)]
pub(crate) struct Schema {
    #[command(flatten)]
    pub(crate) token: Token,
    #[command(flatten)]
    pub(crate) files: Files,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate call --token-file acme.token --proto hotel.proto --to 127.0.0.1:7472 \\
         hotel.Reservation/Reserve '{\"customer_name\": \"Ada\"}'"
)]
pub(crate) struct Call {
    #[command(flatten)]
    pub(crate) schema: Schema,
    /// The peer daemon that serves the method; this host if left out
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) to: String,
    /// Give up after this time, such as 500ms, 5s or 1m; if left out, after 10s, or after one day
    /// if a stream of requests comes from standard input
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) deadline: Option<Duration>,
    /// Metadata of the request; in base64 if the key ends in -bin. Repeat for more, also with the
    /// same key
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// Print the reply's metadata as a further line of JSON, and the trailers, if any, as another
    #[arg(long)]
    pub(crate) show_metadata: bool,
    /// The method, such as hotel.Reservation/Reserve
    #[arg(value_name = "SERVICE/METHOD")]
    pub(crate) method: MethodName,
    /// The request as JSON, {} if left out; `-` reads it from standard input. A method that takes a
    /// stream of requests takes several in a row; from standard input, each is sent as soon as it
    /// is complete
    #[arg(value_name = "JSON")]
    pub(crate) request: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate serve --token-file acme.token --proto hotel.proto \\
         --service hotel.Reservation --reply '{\"reservation_id\": 7}'"
)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) schema: Schema,
    /// The service, such as hotel.Reservation
    #[arg(long)]
    pub(crate) service: String,
    #[command(flatten)]
    pub(crate) answer: Answer,
    /// Print every request as one line of JSON
    #[arg(long)]
    pub(crate) print_requests: bool,
    /// Serve under this label, to which policies can route calls; without it, serve calls without a
    /// route
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) label: String,
    /// Metadata of every reply; in base64 if the key ends in -bin. Repeat for more, also with the
    /// same key
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) metadata: Vec<Pair>,
    /// Print the metadata of each request, too, as a further line of JSON
    #[arg(long, requires = "print_requests")]
    pub(crate) show_metadata: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Answer {
    /// Answer every call with this reply, as JSON; in a conversation, answer every request with it.
    /// Several replies in a row make a stream. `-` reads from standard input
    #[arg(long, value_name = "JSON")]
    pub(crate) reply: Option<String>,
    /// Answer every request with itself and its metadata, if request and reply have the same type.
    /// A single reply to a stream of requests is the last request
    #[arg(long)]
    pub(crate) echo: bool,
}

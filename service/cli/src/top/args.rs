//! The arguments of `tollgate top`, with their help.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::api::Acting;
use crate::limits::MIN_INTERVAL;
use crate::values::duration;

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The interval of rates and percentiles, such as 500ms, 1s or 1m; at least 100ms
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Only this tenant's calls and policies; with a token, the token's
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    /// Print one interval as a table, also to a terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one interval as JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// The order of the rows
    #[arg(long, value_enum, default_value_t = Sort::Cpu)]
    pub(crate) sort: Sort,
    #[command(flatten)]
    pub(crate) acting: Acting,
}

/// An interval between two requests to a daemon.
fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time < MIN_INTERVAL {
        true => Err(format!("an interval is at least {MIN_INTERVAL:?}")),
        false => Ok(time),
    }
}

/// What comes first among methods and among policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Policies with most CPU time, methods with most calls
    Cpu,
    /// Methods and policies with most calls
    Rate,
    /// The slowest methods, policies with most CPU time
    P99,
    /// Methods and policies with most denials
    Denials,
}

impl Sort {
    pub(crate) fn next(self) -> Sort {
        match self {
            Sort::Cpu => Sort::Rate,
            Sort::Rate => Sort::P99,
            Sort::P99 => Sort::Denials,
            Sort::Denials => Sort::Cpu,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Sort::Cpu => "cpu",
            Sort::Rate => "rate",
            Sort::P99 => "p99",
            Sort::Denials => "denials",
        }
    }
}

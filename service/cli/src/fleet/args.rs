//! The arguments of `tollgate fleet`, with their help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::fleet::file::Fleet as Hosts;
use crate::limits::MAX_SETTLE;
use crate::values::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Fleet {
    /// Replace the daemons of several hosts, those that others call first
    #[command(subcommand)]
    Upgrade(Upgrade),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Upgrade {
    /// Show the order, the version of each host, and the hosts that it calls
    #[command(after_help = "Example: tollgate fleet upgrade plan --fleet fleet.toml")]
    Plan(Plan),
    /// Upgrade host by host, and stop at the first host that doesn't serve and call as before
    #[command(
        after_help = "The journal FILE.upgrade.json, next to the fleet file, records the upgraded hosts. After a failure, --resume continues with the \
         others. Deleting the journal forgets the upgrade, and undoes nothing.\n\n\
         Examples: tollgate fleet upgrade run --binary /usr/local/bin/tollgated-0.2.0\n          \
         tollgate fleet upgrade run --resume\n          \
         tollgate fleet upgrade run --resume --accept b"
    )]
    Run(Run),
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The hosts, and how their daemons are reached (TOML)
    #[arg(long, value_name = "FILE", default_value = "fleet.toml")]
    pub(crate) fleet: PathBuf,
    /// The path of the new program on each host; overrides the fleet file. Without both, the
    /// program that each daemon was started from
    #[arg(long, value_name = "PATH")]
    pub(crate) binary: Option<String>,
}

impl Which {
    /// Loads the fleet file.
    pub(super) fn load(&self) -> Result<Hosts, Failure> {
        Hosts::load(&self.fleet, self.binary.as_deref())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) which: Which,
    /// The time until each new process must be ready, such as 500ms, 30s or 2m; at most 10m
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// The time until each host must then serve and call as before; at most 10m
    #[arg(long, value_name = "TIME", value_parser = settle, default_value = "30s")]
    pub(crate) settle: Duration,
    /// Continue the upgrade that has stopped
    #[arg(long)]
    pub(crate) resume: bool,
    /// Accept the host at which the upgrade has stopped as done
    #[arg(long, value_name = "HOST", requires = "resume")]
    pub(crate) accept: Option<String>,
}

fn settle(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time > MAX_SETTLE {
        true => Err(format!(
            "at most {}m are allowed",
            MAX_SETTLE.as_secs() / 60
        )),
        false => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_settles_within_a_bounded_time() {
        assert_eq!(settle("10m"), Ok(MAX_SETTLE));
        assert_eq!(settle("601s"), Err("at most 10m are allowed".to_owned()));
        assert!(settle("0s").is_err());
    }
}

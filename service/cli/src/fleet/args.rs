//! What can be typed behind `tollgate fleet`, with its help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::fleet::file::Fleet as Hosts;
use crate::limits::MAX_SETTLE;
use crate::values::duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Fleet {
    /// Replace the daemons of several hosts, those first that others call
    #[command(subcommand)]
    Upgrade(Upgrade),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Upgrade {
    /// Show in which order, what each host runs now, and whom it calls
    #[command(after_help = "Example: tollgate fleet upgrade plan --fleet fleet.toml")]
    Plan(Plan),
    /// Do it, host by host, and stop at the first that isn't as it was
    #[command(
        after_help = "What is done is kept beside the fleet file, in FILE.upgrade.json. After a failure, --resume goes on behind the hosts that are \
         done; deleting that file forgets the upgrade, and undoes nothing.\n\n\
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
    /// The new program, by its path on each host, whatever the fleet file says; by default the one that each daemon was started from
    #[arg(long, value_name = "PATH")]
    pub(crate) binary: Option<String>,
}

impl Which {
    /// Reads them.
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
    /// How long each new process may take until it is ready, such as 500ms, 30s or 2m; at most 10m
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    /// How long each host may then take until it serves and calls as before; at most 10m
    #[arg(long, value_name = "TIME", value_parser = settle, default_value = "30s")]
    pub(crate) settle: Duration,
    /// Go on with the upgrade that has stopped
    #[arg(long)]
    pub(crate) resume: bool,
    /// Take the host at which it has stopped for done, as it is
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

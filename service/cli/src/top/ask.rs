//! One report of the daemon, as a sample.

use std::path::PathBuf;

use tollgate_admin::Secret;
use tollgate_admin::proto::GetMetricsRequest;

use crate::api::{Api, Remote, json_of};
use crate::failure::Failure;
use crate::top::sample::Sample;

/// Which daemon is asked, and as whom.
#[derive(Clone)]
pub(super) struct Asker {
    pub(super) socket: PathBuf,
    pub(super) remote: Remote,
    pub(super) token: Option<Secret>,
}

impl Asker {
    /// Asks the daemon for its current counters; anew each time, since it may have been replaced.
    pub(super) fn ask(&self) -> Result<Sample, Failure> {
        let api = Api::connect_as(&self.socket, &self.remote, self.token.as_ref())?;
        let metrics = api.ask(GetMetricsRequest::default())?;
        Ok(Sample::of(&json_of(metrics.report)))
    }
}

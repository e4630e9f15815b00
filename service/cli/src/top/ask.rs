//! One report of the daemon, as a sample.

use std::path::Path;

use tollgate_shm_abi::messages::{Empty, RequestBody};

use crate::failure::Failure;
use crate::request::report;
use crate::top::sample::Sample;

/// Asks the daemon for its current counters.
pub(super) fn ask(socket: &Path) -> Result<Sample, Failure> {
    let report = report(socket, RequestBody::Metrics(Empty {}))?;
    Ok(Sample::of(&report))
}

//! `tollgate check`: checks this host, and the daemon if it runs, and says how to mend each
//! problem.
//!
//! This module reads the facts. The verdicts are pure functions of the facts.

mod config;
mod daemon;
mod finding;
mod host;
mod state;

use std::path::{Path, PathBuf};

use clap::Args;
use rustix::process::{Resource, getrlimit};
use serde_json::Value;
use tollgate_admin::proto::VerifyAuditLogRequest;
use tollgate_shm_abi::status::Code;

use crate::admin;
use crate::api::{Api, json_of};
use crate::check::config::configuration;
use crate::check::daemon::{
    capacity, links, not_started, policies, rdma, runtimes, silent, versions,
};
use crate::check::finding::{Finding, Verdict, as_json, as_text, bad, count};
use crate::check::host::{
    address_space, descriptors, kernel, mappings, open_files, overcommit, sealed_memory,
    system_call_filters,
};
use crate::check::state::{audit, directory, look_at};
use crate::failure::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The state directory; if left out, the running daemon's
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) state: Option<PathBuf>,
    /// A configuration file: report the most memory and descriptors that a daemon with it can need
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs all checks. The report is the answer if nothing fails. Otherwise it is printed before the
/// failure.
pub(crate) fn check(socket: &Path, args: &Check) -> Result<String, Failure> {
    let findings = look(socket, args.state.as_deref(), args.config.as_deref());
    let text = match args.json {
        true => as_json(&findings),
        false => as_text(&findings),
    };
    let failures = count(&findings, Verdict::Failure);
    if failures == 0 {
        return Ok(text);
    }
    output::print(&text)?;
    let sentence = format!("{failures} of {} checks failed", findings.len());
    Err(Failure::new(Code::FAILED_PRECONDITION, sentence).hint("the fix below each of them"))
}

fn look(socket: &Path, state: Option<&Path>, config: Option<&Path>) -> Vec<Finding> {
    let mut findings = vec![
        kernel(&read("/proc/sys/kernel/osrelease"), sealed_memory()),
        system_call_filters(&read("/proc/sys/kernel/seccomp/actions_avail")),
        overcommit(&read("/proc/sys/vm/overcommit_memory")),
        mappings(read("/proc/sys/vm/max_map_count").parse().ok()),
        address_space(getrlimit(Resource::As).maximum),
    ];
    let meminfo = read("/proc/meminfo");
    let status = admin::status_here(socket);
    let pid = status
        .as_ref()
        .ok()
        .and_then(|status| status["pid"].as_u64());
    let limits = pid.map(|pid| read(&format!("/proc/{pid}/limits")));
    let own = getrlimit(Resource::Nofile).maximum;
    findings.push(descriptors(match limits.as_deref().and_then(open_files) {
        Some(limit) => Some(limit),
        None => own,
    }));
    findings.extend(config.map(|file| configuration(file, &meminfo)));
    match &status {
        Err(failure) => {
            findings.push(match (state.or(config), failure.code()) {
                (Some(_), Code::UNAVAILABLE) if !socket.exists() => not_started(failure),
                _ => silent(socket, failure),
            });
            findings.extend(state.map(|state| directory(state, &look_at(state))));
        }
        Ok(status) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            findings.push(versions(status));
            findings.push(runtimes(status, cores));
            findings.extend(capacity(&status["capacity"], "the daemon", &meminfo));
            let file = status["audit"]["file"].as_str().map(PathBuf::from);
            let its = file.as_deref().and_then(Path::parent);
            findings.push(match state.or(its) {
                Some(state) => directory(state, &look_at(state)),
                None => bad(
                    Verdict::Warning,
                    "state",
                    "the daemon keeps tenants, policies and its audit log in memory: they are lost when it ends",
                    "set state = \"DIRECTORY\" in its configuration, and restart it",
                ),
            });
            findings.push(audit(verified(socket)));
            findings.extend(policies(status));
            findings.extend(links(status));
            findings.extend(rdma(status));
        }
    }
    findings
}

/// The result of a verification of the audit log.
fn verified(socket: &Path) -> Result<Value, Failure> {
    let verified = Api::connect_here(socket)?.ask(VerifyAuditLogRequest {})?;
    Ok(json_of(verified.report))
}

/// A file's text without white space around it; empty if it can't be read.
fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_daemon_is_a_failure_unless_a_directory_was_named() {
        let bed = tempfile::tempdir().unwrap();
        let of_daemon = |state| {
            let findings = look(&bed.path().join("a.sock"), state, None);
            let its = findings.into_iter().find(|one| one.area == "daemon");
            its.map(|one| (one.verdict, one.sentence.contains("no daemon answers")))
        };
        assert_eq!(of_daemon(None), Some((Verdict::Failure, true)));
        assert_eq!(of_daemon(Some(bed.path())), Some((Verdict::Ok, true)));
        // A daemon that has died leaves its socket.
        std::fs::write(bed.path().join("a.sock"), "").unwrap();
        assert_eq!(of_daemon(Some(bed.path())), Some((Verdict::Failure, true)));
    }
}

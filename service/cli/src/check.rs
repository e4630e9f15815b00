//! `tollgate check`: whether this host, and the daemon if it runs, are as they should be; and of what isn't, how to mend it.
//!
//! What is looked at is read here; what is thought of it are functions of what was read.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create, statvfs};
use rustix::process::{Resource, geteuid, getrlimit};
use serde_json::{Value, json};
use tollgate_shm_abi::messages::{Empty, RequestBody};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::limits::{DESCRIPTORS, FREE_STATE_BYTES, MAPPINGS};
use crate::output;
use crate::request::report;

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The state directory; the running daemon's if left out
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) state: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// It works, and not for long, or not as it could.
    Warning,
    /// Something doesn't work.
    Failure,
}

/// What one check came to.
#[derive(Debug)]
struct Finding {
    area: &'static str,
    verdict: Verdict,
    sentence: String,
    /// What to do about it.
    fix: Option<String>,
}

fn fine(area: &'static str, sentence: impl Into<String>) -> Finding {
    Finding {
        area,
        verdict: Verdict::Ok,
        sentence: sentence.into(),
        fix: None,
    }
}

fn bad(
    verdict: Verdict,
    area: &'static str,
    sentence: impl Into<String>,
    fix: impl Into<String>,
) -> Finding {
    Finding {
        area,
        verdict,
        sentence: sentence.into(),
        fix: Some(fix.into()),
    }
}

/// Looks at everything. The report is the answer if nothing fails, and printed before the failure otherwise.
pub(crate) fn check(socket: &Path, args: &Check) -> Result<String, Failure> {
    let findings = look(socket, args.state.as_deref());
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
    Err(Failure::new(Code::FAILED_PRECONDITION, sentence).hint("what is said beside each of them"))
}

fn look(socket: &Path, state: Option<&Path>) -> Vec<Finding> {
    let mut findings = vec![
        kernel(&read("/proc/sys/kernel/osrelease"), sealed_memory()),
        system_call_filters(&read("/proc/sys/kernel/seccomp/actions_avail")),
        overcommit(&read("/proc/sys/vm/overcommit_memory")),
        mappings(read("/proc/sys/vm/max_map_count").parse().ok()),
        address_space(getrlimit(Resource::As).maximum),
    ];
    let status = report(socket, RequestBody::Status(Empty {}));
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
    match &status {
        Err(failure) => {
            findings.push(match (state, failure.code()) {
                (Some(_), Code::UNAVAILABLE) if !socket.exists() => not_started(failure),
                _ => silent(socket, failure),
            });
            findings.extend(state.map(|state| directory(state, &look_at(state))));
        }
        Ok(status) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            findings.push(versions(status));
            findings.push(runtimes(status, cores));
            let file = status["audit"]["file"].as_str().map(PathBuf::from);
            let its = file.as_deref().and_then(Path::parent);
            findings.push(match state.or(its) {
                Some(state) => directory(state, &look_at(state)),
                None => bad(
                    Verdict::Warning,
                    "state",
                    "the daemon keeps tenants, policies and its audit log in memory: they are gone when it ends",
                    "say state = \"DIRECTORY\" in its configuration, and start it again",
                ),
            });
            findings.push(audit(report(socket, RequestBody::AuditVerify(Empty {}))));
            findings.extend(policies(status));
            findings.extend(links(status));
            findings.extend(rdma(status));
        }
    }
    findings
}

/// A file's text without white space around it; empty if it can't be read.
fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// Whether memory can be shared whose size nobody can change.
fn sealed_memory() -> bool {
    let made = memfd_create(
        "tollgate-check",
        MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC,
    );
    made.is_ok_and(|memory| fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).is_ok())
}

/// The hard limit of open files in a process's table of limits.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))?;
    match line.split_whitespace().nth(4)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// What there is to know of a directory.
enum Directory {
    Missing(String),
    There { mode: u32, owner: u32, free: u64 },
}

fn look_at(path: &Path) -> Directory {
    let there = std::fs::metadata(path).and_then(|data| Ok((data, statvfs(path)?)));
    match there {
        Err(error) => Directory::Missing(error.to_string()),
        Ok((data, _)) if !data.is_dir() => Directory::Missing("it is no directory".to_owned()),
        Ok((data, disk)) => Directory::There {
            mode: data.mode() & 0o777,
            owner: data.uid(),
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
        },
    }
}

// ---- what is thought of it ----

fn kernel(release: &str, sealed: bool) -> Finding {
    if sealed {
        return fine("host", format!("Linux {release} has sealed memory"));
    }
    bad(
        Verdict::Failure,
        "host",
        format!(
            "Linux {release} gives no sealed memory (memfd_create), through which applications are reached"
        ),
        "a kernel of 4.14 or newer, or a container that allows memfd_create",
    )
}

fn system_call_filters(actions: &str) -> Finding {
    if actions
        .split_whitespace()
        .any(|action| action == "kill_process")
    {
        return fine("host", "processes can be confined by system call filters");
    }
    bad(
        Verdict::Failure,
        "host",
        "there are no system call filters (seccomp), without which no policy is compiled",
        "a kernel with CONFIG_SECCOMP_FILTER",
    )
}

fn overcommit(mode: &str) -> Finding {
    if mode != "2" {
        return fine("host", "addresses can be reserved without memory");
    }
    bad(
        Verdict::Failure,
        "host",
        "vm.overcommit_memory is 2: addresses count as memory, and each instance of a policy reserves 4 GiB of them",
        "sysctl vm.overcommit_memory=0",
    )
}

fn mappings(most: Option<u64>) -> Finding {
    let Some(most) = most else {
        return bad(
            Verdict::Warning,
            "limits",
            "vm.max_map_count can't be read",
            "mount /proc",
        );
    };
    if most >= MAPPINGS {
        return fine("limits", format!("{most} memory mappings per process"));
    }
    bad(
        Verdict::Warning,
        "limits",
        format!(
            "{most} memory mappings per process: {MAPPINGS} are for 10,000 instances of policies and their sessions"
        ),
        format!("sysctl vm.max_map_count={MAPPINGS}"),
    )
}

fn address_space(limit: Option<u64>) -> Finding {
    match limit {
        None => fine("limits", "addresses aren't limited"),
        Some(bytes) => bad(
            Verdict::Failure,
            "limits",
            format!(
                "a process has {} GiB of addresses, and each instance of a policy reserves 4",
                bytes >> 30
            ),
            "ulimit -Hv unlimited, or LimitAS=infinity in the unit",
        ),
    }
}

/// No limit: unlimited.
fn descriptors(hard: Option<u64>) -> Finding {
    match hard.filter(|hard| *hard < DESCRIPTORS) {
        None => fine("limits", format!("at least {DESCRIPTORS} open files")),
        Some(hard) => bad(
            Verdict::Warning,
            "limits",
            format!(
                "{hard} open files: a session takes 5, so about {} applications find room, of 4,096",
                hard.saturating_sub(100) / 5
            ),
            format!("ulimit -Hn {DESCRIPTORS}, or LimitNOFILE={DESCRIPTORS} in the unit"),
        ),
    }
}

fn silent(socket: &Path, failure: &Failure) -> Finding {
    let fix = match (failure.code(), socket.exists()) {
        (Code::PERMISSION_DENIED, _) => "run this as the daemon's user, or as root",
        (_, true) => {
            "start the daemon (tollgate up --config FILE), or look whether it hangs; the file alone is no daemon"
        }
        (_, false) => "start the daemon (tollgate up --config FILE), or say --socket PATH",
    };
    bad(Verdict::Failure, "daemon", failure.sentence(), fix)
}

/// A named state directory is looked at before the first start, too, when there is no socket yet.
fn not_started(failure: &Failure) -> Finding {
    let sentence = format!(
        "{}; only the host and the directory are checked",
        failure.sentence()
    );
    fine("daemon", sentence)
}

fn versions(status: &Value) -> Finding {
    let (ours, its) = (
        env!("CARGO_PKG_VERSION"),
        status["version"].as_str().unwrap_or("?"),
    );
    let sentence = format!("{its} answers, process {}", status["pid"]);
    if ours == its {
        return fine("daemon", sentence);
    }
    bad(
        Verdict::Warning,
        "daemon",
        format!("{sentence}; this program is {ours}"),
        "tollgate upgrade --binary NEW, or this program of the daemon's version",
    )
}

fn runtimes(status: &Value, cores: usize) -> Finding {
    let runtimes = status["runtimes"].as_u64().unwrap_or(1);
    if runtimes <= cores as u64 {
        return fine(
            "daemon",
            format!("{runtimes} of {cores} cores for its runtimes"),
        );
    }
    bad(
        Verdict::Warning,
        "daemon",
        format!("{runtimes} runtimes share {cores} cores: each waits for the others"),
        format!("tollgate daemon set runtimes={cores}"),
    )
}

fn directory(path: &Path, found: &Directory) -> Finding {
    let shown = path.display();
    let (mode, owner, free) = match found {
        Directory::Missing(why) => {
            return bad(
                Verdict::Failure,
                "state",
                format!("{shown} can't be used: {why}"),
                format!("install -d -m 700 {shown}, as the daemon's user"),
            );
        }
        Directory::There { mode, owner, free } => (*mode, *owner, *free),
    };
    let me = geteuid().as_raw();
    if mode & 0o077 != 0 {
        return bad(
            Verdict::Failure,
            "state",
            format!("{shown} has mode {mode:o}: others can read tokens' hashes and policies"),
            format!("chmod 700 {shown}"),
        );
    }
    if owner != me && me != 0 {
        return bad(
            Verdict::Warning,
            "state",
            format!("{shown} is user {owner}'s, and this is run by {me}"),
            "run this as the daemon's user, or as root",
        );
    }
    if free < FREE_STATE_BYTES {
        return bad(
            Verdict::Failure,
            "state",
            format!(
                "{shown} has {} MiB of free space: no change can be stored when there is none",
                free >> 20
            ),
            "make room on that disk",
        );
    }
    fine(
        "state",
        format!(
            "{shown} is its user's alone and has {} MiB of free space",
            free >> 20
        ),
    )
}

fn audit(found: Result<Value, Failure>) -> Finding {
    let fix =
        "keep the file and the store as they are, and compare them with a copy (OPERATIONS.md)";
    match found {
        Err(failure) => bad(Verdict::Failure, "state", failure.sentence(), fix),
        Ok(found) => {
            let sentence = found["sentence"].as_str().unwrap_or_default().to_owned();
            match found["edited"] == Value::Bool(false) {
                true => fine("state", sentence),
                false => bad(Verdict::Failure, "state", sentence, fix),
            }
        }
    }
}

/// Attachments that aren't as somebody wanted them.
fn policies(status: &Value) -> Vec<Finding> {
    let all = status["attachments"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let mut findings = Vec::new();
    for one in all {
        let name = one["policy"].as_str().unwrap_or("?");
        let (whose, owner) = match (one["party"].as_str(), one["owner"].as_str()) {
            (Some("tenant"), Some(tenant)) => (
                format!(" of tenant {tenant}"),
                format!(" --tenant {tenant}"),
            ),
            (Some(_), _) => (" of the provider".to_owned(), " --provider".to_owned()),
            (None, _) => Default::default(),
        };
        let place = one["place"].as_str();
        let at = place.map_or_else(String::new, |place| format!(" at {place}"));
        for (key, how) in [
            ("quarantine", "is quarantined"),
            ("fallback", "isn't the version that is wanted"),
        ] {
            if let Some(why) = one[key].as_str() {
                findings.push(bad(
                    Verdict::Warning,
                    "policies",
                    format!("{name}{whose} {how}{at}: {why}"),
                    format!(
                        "tollgate policy show {name}{owner}; then upgrade, rollback or release it"
                    ),
                ));
            }
        }
    }
    if findings.is_empty() {
        let sentence = format!(
            "all {} attachments have the version that is wanted",
            all.len()
        );
        findings.push(fine("policies", sentence));
    }
    findings
}

fn links(status: &Value) -> Vec<Finding> {
    let all = status["links"].as_array().map_or(&[][..], Vec::as_slice);
    let down = all.iter().filter(|link| link["state"] != "ready");
    let mut findings: Vec<_> = down
        .map(|link| {
            let peer = link["address"].as_str().unwrap_or("?");
            bad(
                Verdict::Warning,
                "links",
                format!("no link with {peer} stands"),
                "look whether that daemon runs and has the same key; this one's log says why it was refused",
            )
        })
        .collect();
    if findings.is_empty() {
        findings.push(fine(
            "links",
            format!("all {} links with other daemons stand", all.len()),
        ));
    }
    findings
}

/// What links go over. A host without a device is as it should be.
fn rdma(status: &Value) -> Vec<Finding> {
    let its = &status["rdma"];
    if let Some(why) = its["unavailable"].as_str() {
        return vec![fine("rdma", format!("links go over TCP: {why}"))];
    }
    let devices = its["devices"].as_array().map_or(&[][..], Vec::as_slice);
    if devices.is_empty() {
        // A daemon of before links could.
        return Vec::new();
    }
    let mut findings = Vec::new();
    if let Some(why) = its["not_listening"].as_str() {
        let sentence = format!("peers aren't accepted over RDMA: {why}");
        let fix =
            "have the daemon listen on an address of an RDMA device (`rdma link`), or on 0.0.0.0";
        findings.push(bad(Verdict::Warning, "rdma", sentence, fix));
    }
    for link in status["links"].as_array().into_iter().flatten() {
        let peer = link["address"].as_str().unwrap_or("?");
        if let Some(why) = link["not_rdma"].as_str() {
            let sentence = format!("calls to {peer} go over TCP: {why}");
            let fix = "OPERATIONS.md, under RDMA, says what each reason means";
            findings.push(bad(Verdict::Warning, "rdma", sentence, fix));
        }
        if let Some(why) = link["copies_because"].as_str() {
            let sentence = format!("messages to {peer} are copied before they are sent: {why}");
            let fix = "LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited; a kernel of 6.2 or later";
            findings.push(bad(Verdict::Warning, "rdma", sentence, fix));
        }
    }
    if findings.is_empty() {
        let names: Vec<_> = devices.iter().filter_map(|d| d["name"].as_str()).collect();
        let sentence = format!(
            "links go over RDMA where the peer has it: {}",
            names.join(", ")
        );
        findings.push(fine("rdma", sentence));
    }
    findings
}

// ---- how it is shown ----

fn count(findings: &[Finding], verdict: Verdict) -> usize {
    let those = findings.iter().filter(|finding| finding.verdict == verdict);
    those.count()
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Failure => "FAILED",
    }
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for (number, finding) in (1..).zip(findings) {
        let Finding {
            area,
            verdict,
            sentence,
            fix,
        } = finding;
        // Writing to a string never fails.
        let _ = writeln!(
            text,
            "{number:2}  {:7}  {area:8}  {}",
            word(*verdict),
            output::plain(sentence)
        );
        if let Some(fix) = fix {
            let _ = writeln!(text, "{:23}to mend it: {}", "", output::plain(fix));
        }
    }
    let [warnings, failures] = [Verdict::Warning, Verdict::Failure].map(|of| count(findings, of));
    let _ = writeln!(
        text,
        "checks: {}, warnings: {warnings}, failed: {failures}",
        findings.len()
    );
    text
}

fn as_json(findings: &[Finding]) -> String {
    let all = (1..).zip(findings).map(|(number, finding)| {
        json!({
            "number": number, "area": finding.area, "verdict": word(finding.verdict).to_lowercase(),
            "sentence": finding.sentence, "fix": finding.fix,
        })
    });
    output::json(&json!({"checks": all.collect::<Vec<Value>>()}))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                          Max cpu time              unlimited            unlimited            seconds\n\
                          Max open files            1024                 4096                 files\n";

    #[test]
    fn what_is_wrong_with_a_host_is_said_with_what_to_do() {
        assert_eq!(open_files(LIMITS), Some(4096));
        assert_eq!(
            open_files(&LIMITS.replace("4096", "unlimited")),
            Some(u64::MAX)
        );
        assert_eq!(open_files(""), None);
        for (finding, verdict, words) in [
            (kernel("4.4.0", false), Verdict::Failure, "4.4.0"),
            (kernel("6.1.0", true), Verdict::Ok, "6.1.0"),
            (system_call_filters("errno"), Verdict::Failure, "seccomp"),
            (
                system_call_filters("kill_process kill_thread errno"),
                Verdict::Ok,
                "",
            ),
            (
                overcommit("2"),
                Verdict::Failure,
                "vm.overcommit_memory is 2",
            ),
            (overcommit("0"), Verdict::Ok, ""),
            (
                mappings(Some(1_000)),
                Verdict::Warning,
                "1000 memory mappings",
            ),
            (mappings(Some(65_530)), Verdict::Ok, "65530"),
            (mappings(None), Verdict::Warning, "can't be read"),
            (address_space(Some(8 << 30)), Verdict::Failure, "8 GiB"),
            (address_space(None), Verdict::Ok, ""),
            (
                descriptors(Some(4_096)),
                Verdict::Warning,
                "about 799 applications",
            ),
            (descriptors(Some(23_700)), Verdict::Ok, ""),
            (descriptors(None), Verdict::Ok, ""),
        ] {
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.sentence.contains(words), "{finding:?}");
            assert_eq!(finding.fix.is_none(), verdict == Verdict::Ok, "{finding:?}");
        }
    }

    #[test]
    fn no_daemon_is_a_failure_unless_a_directory_was_named() {
        let bed = tempfile::tempdir().unwrap();
        let of_daemon = |state| {
            let findings = look(&bed.path().join("a.sock"), state);
            let its = findings.into_iter().find(|one| one.area == "daemon");
            its.map(|one| (one.verdict, one.sentence.contains("no daemon answers")))
        };
        assert_eq!(of_daemon(None), Some((Verdict::Failure, true)));
        assert_eq!(of_daemon(Some(bed.path())), Some((Verdict::Ok, true)));
        // One that has died leaves its socket.
        std::fs::write(bed.path().join("a.sock"), "").unwrap();
        assert_eq!(of_daemon(Some(bed.path())), Some((Verdict::Failure, true)));
    }

    #[test]
    fn what_is_wrong_with_a_daemon_is_said_with_what_to_do() {
        let status = json!({
            "version": "0.0.1", "pid": 7, "runtimes": 4,
            "attachments": [
                {"policy": "acl"}, {"policy": "quota", "quarantine": "five faults", "owner": "acme", "party": "tenant", "place": "client a.B/*"},
                {"policy": "jwt", "fallback": "no key", "owner": "(provider)", "party": "provider-pre", "place": "server *"},
            ],
            "links": [{"address": "10.0.0.1:1", "state": "ready"}, {"address": "10.0.0.2:1", "state": "opening"}],
        });
        let its = |findings: Vec<Finding>| {
            let shown = findings
                .iter()
                .map(|f| format!("{} {}", word(f.verdict), f.sentence));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(versions(&status).verdict, Verdict::Warning);
        assert_eq!(runtimes(&status, 4).verdict, Verdict::Ok);
        assert_eq!(runtimes(&status, 2).verdict, Verdict::Warning);
        assert_eq!(
            its(policies(&status)),
            [
                "warning quota of tenant acme is quarantined at client a.B/*: five faults",
                "warning jwt of the provider isn't the version that is wanted at server *: no key"
            ]
        );
        let fixes: Vec<_> = policies(&status)
            .into_iter()
            .filter_map(|f| f.fix)
            .collect();
        assert!(fixes[0].starts_with("tollgate policy show quota --tenant acme;"));
        assert!(fixes[1].starts_with("tollgate policy show jwt --provider;"));
        assert_eq!(
            its(links(&status)),
            ["warning no link with 10.0.0.2:1 stands"]
        );
        let sound = json!({"attachments": [], "links": []});
        assert_eq!(
            its(policies(&sound)),
            ["ok all 0 attachments have the version that is wanted"]
        );
        assert_eq!(
            its(links(&sound)),
            ["ok all 0 links with other daemons stand"]
        );
    }

    #[test]
    fn of_rdma_is_said_what_links_go_over_and_why() {
        let its = |status: Value| {
            let findings = rdma(&status);
            let shown = findings.iter().map(|f| (f.verdict, f.sentence.clone()));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(its(json!({"version": "0.0.1"})), []);
        let none = json!({"rdma": {"unavailable": "no device", "devices": []}});
        let sentence = "links go over TCP: no device".to_owned();
        assert_eq!(its(none), [(Verdict::Ok, sentence)]);
        let sound =
            json!({"rdma": {"devices": [{"name": "mlx5_0"}]}, "links": [{"address": "b:1"}]});
        let sentence = "links go over RDMA where the peer has it: mlx5_0".to_owned();
        assert_eq!(its(sound), [(Verdict::Ok, sentence)]);
        let unsound = json!({
            "rdma": {"devices": [{"name": "mlx5_0"}], "not_listening": "no such device"},
            "links": [{"address": "b:1", "not_rdma": "refused"}, {"address": "c:1", "copies_because": "too much"}],
        });
        let sentences = [
            "peers aren't accepted over RDMA: no such device",
            "calls to b:1 go over TCP: refused",
            "messages to c:1 are copied before they are sent: too much",
        ];
        let warned = sentences.map(|said| (Verdict::Warning, said.to_owned()));
        assert_eq!(its(unsound), warned);
    }

    #[test]
    fn a_state_directory_is_its_users_alone_and_has_room() {
        let me = geteuid().as_raw();
        let there = |mode, free| Directory::There {
            mode,
            owner: me,
            free,
        };
        let path = Path::new("/var/lib/tollgate");
        let verdict = |found| directory(path, &found).verdict;
        assert_eq!(verdict(there(0o700, FREE_STATE_BYTES)), Verdict::Ok);
        assert_eq!(verdict(there(0o750, FREE_STATE_BYTES)), Verdict::Failure);
        assert_eq!(
            verdict(there(0o700, FREE_STATE_BYTES - 1)),
            Verdict::Failure
        );
        assert_eq!(
            verdict(look_at(Path::new("/no/such/place"))),
            Verdict::Failure
        );
        assert_eq!(
            verdict(look_at(Path::new("/proc/version"))),
            Verdict::Failure
        );
    }
}

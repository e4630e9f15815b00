//! Tenants, status, the console's links and prefetching, and how any administrative request is asked: one request to the daemon, one answer.
//!
//! The daemon authorises these by the user id that the kernel reports, so there is no password to
//! ask for; a refusal says who may. What doesn't fit a packet travels as a sealed memfd. Each command
//! returns what it prints.

use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde_json::Value;
use tollgate_schema::spelling::did_you_mean;
use tollgate_shm_abi::blob::{blob_create, blob_read};
use tollgate_shm_abi::control::{self, ControlError, ControlSocket};
use tollgate_shm_abi::messages::{
    self, Empty, Request, RequestBody, Response, ResponseBody, TenantAdd, TenantList, TenantMove,
    TenantRemove, TenantRotate,
};
use tollgate_shm_abi::status::Code;

use crate::args::{Console, DaemonUpgrade, Prefetch, Status, Tenant};
use crate::failure::Failure;
use crate::limits::{CALLS_LOOK, MAX_REPORT_BYTES};
use crate::{output, schema, screen, stderr};

/// How long the daemon may take for one answer. Compiling a large policy takes the longest.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a tenant lives now, and what it took.
fn moved(report: &Value) -> String {
    let of = |field: &str| flat(&report[field]);
    match report["pause_us"].as_u64() {
        Some(pause_us) => format!(
            "{} lives on runtime {}, with {} sessions, {} links and {} calls in flight; it stood still for {pause_us} us\n",
            of("tenant"),
            of("runtime"),
            of("sessions"),
            of("links"),
            of("calls")
        ),
        None => format!(
            "{} lives on runtime {}, as before\n",
            of("tenant"),
            of("runtime")
        ),
    }
}

/// `tollgate tenant …`
pub(crate) fn tenant(socket: &Path, command: &Tenant) -> Result<String, Failure> {
    match command {
        Tenant::Add { name } => {
            let name = name.clone();
            new_token(socket, RequestBody::TenantAdd(TenantAdd { name }))
        }
        Tenant::Rotate { name, grace } => {
            let rotate = TenantRotate {
                tenant: name.clone(),
                grace_ms: grace.map_or(0, |grace| grace.as_millis() as u64),
            };
            new_token(socket, RequestBody::TenantRotate(rotate))
        }
        Tenant::Remove { name, yes } => remove(socket, name, *yes),
        Tenant::Move(wanted) => {
            let body = RequestBody::TenantMove(TenantMove {
                tenant: wanted.name.clone(),
                runtime: wanted.runtime,
            });
            Ok(moved(&report(socket, body)?))
        }
        Tenant::List => Ok(lines(&tenants(socket)?)),
    }
}

/// The names of all tenants, sorted.
fn tenants(socket: &Path) -> Result<Vec<String>, Failure> {
    let request = RequestBody::TenantList(TenantList { in_report: true });
    match ask(socket, request, &[])? {
        (ResponseBody::Report(_), fds) => {
            let names = of_blob(&fds)?;
            Ok(names.as_array().into_iter().flatten().map(flat).collect())
        }
        // A daemon that predates reports of tenants.
        (ResponseBody::Tenants(tenants), _) => Ok(tenants.names),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Nothing ever comes of a tenant that isn't there.
pub(crate) fn require_tenant(socket: &Path, tenant: &str) -> Result<(), Failure> {
    let names = tenants(socket)?;
    if names.iter().any(|name| name == tenant) {
        return Ok(());
    }
    let meant = did_you_mean(tenant, names.iter().map(String::as_str));
    let sentence = format!("there is no tenant {tenant:?}{meant}");
    Err(Failure::new(Code::NOT_FOUND, sentence).hint("tollgate tenant list"))
}

/// A request that is answered with a token. It isn't sent if the token couldn't be shown.
fn new_token(socket: &Path, body: RequestBody) -> Result<String, Failure> {
    output::require_open()?;
    match ask(socket, body, &[])? {
        (ResponseBody::TenantAdded(added), _) => Ok(format!("{}\n", added.token)),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Says what would end with a tenant, asks, and removes it.
fn remove(socket: &Path, tenant: &str, is_sure: bool) -> Result<String, Failure> {
    let body = |is_question| {
        RequestBody::TenantRemove(TenantRemove {
            tenant: tenant.to_owned(),
            is_question,
        })
    };
    if !is_sure {
        let has = report(socket, body(true))?;
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            let sentence =
                format!("tenant {tenant} isn't removed, because there is no terminal to ask on");
            return Err(
                Failure::input(sentence).hint(format!("tollgate tenant remove {tenant} --yes"))
            );
        }
        let ends = ending(&has, "would end");
        stderr::prompt(&format!("{ends}Remove tenant {tenant}? [y/N] "));
        let mut answer = String::new();
        let read = std::io::stdin().read_line(&mut answer);
        read.map_err(|error| Failure::input(format_args!("there is no answer: {error}")))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            let sentence = format!("tenant {tenant} isn't removed");
            return Err(Failure::new(Code::CANCELLED, sentence));
        }
    }
    Ok(ending(&report(socket, body(false))?, "ended"))
}

/// What ends with a tenant, a line each.
fn ending(has: &Value, ends: &str) -> String {
    let items = |key: &str| has[key].as_array().map_or(&[][..], Vec::as_slice);
    let sessions = match has["sessions"].as_u64() {
        Some(1) => "1 session".to_owned(),
        _ => format!("{} sessions", has["sessions"]),
    };
    let mut text = format!("of tenant {} {ends}: {sessions}\n", flat(&has["tenant"]));
    for policy in items("policies") {
        text += &format!("  policy {}\n", flat(policy));
    }
    for attachment in items("attachments") {
        let of = |key: &str| flat(&attachment[key]);
        text += &format!(
            "  attachment of {}'s {} at {}\n",
            of("owner"),
            of("policy"),
            of("place")
        );
    }
    text
}

/// `tollgate status`
pub(crate) fn status(socket: &Path, args: &Status) -> Result<String, Failure> {
    let report = report(socket, RequestBody::Status(Empty {}))?;
    if args.json {
        return Ok(output::json(&report));
    }
    if !args.verbose {
        std::thread::sleep(CALLS_LOOK);
        let later = self::report(socket, RequestBody::Status(Empty {}))?;
        return Ok(screen::of_status(&report, &later));
    }
    let mut text = String::new();
    outline(&mut text, 0, &report);
    Ok(text)
}

/// `tollgate console`
pub(crate) fn console(socket: &Path, args: &Console) -> Result<String, Failure> {
    let is_operator = args.operator;
    let body = RequestBody::Console(messages::Console { is_operator });
    let report = report(socket, body)?;
    if args.json {
        return Ok(output::json(&report));
    }
    Ok(format!("{}\n", flat(&report["link"])))
}

/// `tollgate prefetch`
pub(crate) fn prefetch(socket: &Path, args: &Prefetch) -> Result<String, Failure> {
    let schema = schema::load(&args.files)?;
    let blob = blob("the schema", schema.descriptor_set())?;
    let prefetch = RequestBody::Prefetch(Empty {});
    let report = report_within(ANSWER_TIMEOUT, socket, prefetch, &[blob.as_fd()])?;
    if args.json {
        return Ok(output::json(&report));
    }
    let mut text = String::new();
    outline(&mut text, 0, &report);
    Ok(text)
}

/// `tollgate upgrade`
pub(crate) fn upgrade(socket: &Path, args: &DaemonUpgrade) -> Result<String, Failure> {
    let binary = match &args.binary {
        Some(binary) => {
            let found = binary.canonicalize();
            let found = found.map_err(|error| Failure::file(binary, &error))?;
            let path = found.to_str().map(str::to_owned);
            path.ok_or_else(|| Failure::input(format_args!("the path {found:?} is no text")))?
        }
        None => String::new(),
    };
    let report = replace(socket, binary, args.timeout)?;
    if args.json {
        return Ok(output::json(&report));
    }
    let (from, to) = (&report["from"], &report["to"]);
    Ok(format!(
        "{} {}, process {}, has taken over from {}, process {}: ready after {} ms, calls stood still for {} us\n",
        flat(&to["program"]),
        flat(&to["version"]),
        to["pid"],
        flat(&from["version"]),
        from["pid"],
        report["prepared_ms"],
        report["pause_us"],
    ))
}

/// Replaces the daemon by this program, an absolute path; by the one that it was started from, if that is empty.
pub(crate) fn replace(socket: &Path, binary: String, timeout: Duration) -> Result<Value, Failure> {
    let request = messages::Upgrade {
        binary,
        timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
    };
    let limit = timeout + ANSWER_TIMEOUT;
    report_within(limit, socket, RequestBody::Upgrade(request), &[])
}

/// A request that is answered with JSON.
pub(crate) fn report(socket: &Path, body: RequestBody) -> Result<Value, Failure> {
    report_within(ANSWER_TIMEOUT, socket, body, &[])
}

pub(crate) fn report_within(
    limit: Duration,
    socket: &Path,
    body: RequestBody,
    fds: &[BorrowedFd<'_>],
) -> Result<Value, Failure> {
    let (answer, fds) = ask_within(limit, socket, body, fds)?;
    let ResponseBody::Report(_) = &answer else {
        return Err(unexpected(&answer));
    };
    of_blob(&fds)
}

/// The JSON of a report.
fn of_blob(fds: &[OwnedFd]) -> Result<Value, Failure> {
    let wrong = |what: &dyn std::fmt::Display| {
        Failure::new(Code::INTERNAL, format_args!("the daemon's report: {what}"))
    };
    let blob = fds.first().ok_or_else(|| wrong(&"it is missing"))?;
    let json = blob_read(blob, MAX_REPORT_BYTES).map_err(|error| wrong(&error))?;
    serde_json::from_slice(&json).map_err(|error| wrong(&error))
}

/// What doesn't fit a packet.
pub(crate) fn blob(what: &str, bytes: &[u8]) -> Result<OwnedFd, Failure> {
    let failed = |errno| {
        Failure::new(
            Code::RESOURCE_EXHAUSTED,
            format_args!("no memory for {what}: {errno}"),
        )
    };
    blob_create(bytes).map_err(failed)
}

/// One request, one answer; the daemon's refusal is the failure.
pub(crate) fn ask(
    socket: &Path,
    body: RequestBody,
    fds: &[BorrowedFd<'_>],
) -> Result<(ResponseBody, Vec<OwnedFd>), Failure> {
    ask_within(ANSWER_TIMEOUT, socket, body, fds)
}

fn ask_within(
    limit: Duration,
    socket: &Path,
    body: RequestBody,
    fds: &[BorrowedFd<'_>],
) -> Result<(ResponseBody, Vec<OwnedFd>), Failure> {
    let path = socket
        .to_str()
        .ok_or_else(|| Failure::input(format_args!("the socket's path {socket:?} is no text")))?;
    let connection = ControlSocket::connect(path)
        .map_err(|errno| unreachable(socket, &control::unreachable(&path, errno)))?;
    let lost = |error: ControlError| {
        Failure::new(
            Code::UNAVAILABLE,
            format_args!("the daemon at {path}: {error}"),
        )
    };
    let request = Request {
        id: 1,
        body: Some(body),
    }
    .encode_to_vec();
    connection.send(&request, fds).map_err(lost)?;
    wait(&connection, limit)?;
    let gone = || {
        Failure::new(
            Code::UNAVAILABLE,
            format_args!("the daemon at {path} hung up without an answer"),
        )
    };
    let packet = connection.recv().map_err(lost)?.ok_or_else(gone)?;
    let response = Response::decode(&packet.bytes[..]).map_err(|error| {
        Failure::new(
            Code::INTERNAL,
            format_args!("the daemon's answer is malformed: {error}"),
        )
    })?;
    match response.body {
        Some(ResponseBody::Failure(failure)) => {
            Err(Failure::new(Code(failure.code), failure.message))
        }
        Some(body) => Ok((body, packet.fds)),
        None => Err(Failure::new(
            Code::UNIMPLEMENTED,
            "the daemon's answer is of a kind that this version doesn't know",
        )),
    }
}

fn wait(connection: &ControlSocket, limit: Duration) -> Result<(), Failure> {
    let timeout = Timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => Err(Failure::new(
            Code::DEADLINE_EXCEEDED,
            format_args!("the daemon gave no answer in {limit:?}"),
        )),
        Ok(_) => Ok(()),
        Err(errno) => Err(Failure::new(
            Code::INTERNAL,
            format_args!("waiting for the daemon failed: {errno}"),
        )),
    }
}

/// No daemon could be reached, which the sentence says. One that this user may not reach needn't be started.
pub(crate) fn unreachable(socket: &Path, sentence: &str) -> Failure {
    if access(socket, Access::WRITE_OK) == Err(Errno::ACCESS) {
        return Failure::new(Code::PERMISSION_DENIED, sentence);
    }
    Failure::new(Code::UNAVAILABLE, sentence)
        .hint("tollgate up --config FILE, or another --socket PATH")
}

pub(crate) fn unexpected(answer: &ResponseBody) -> Failure {
    Failure::new(
        Code::INTERNAL,
        format_args!("the daemon answered something else: {answer:?}"),
    )
}

pub(crate) fn lines(items: &[String]) -> String {
    items
        .iter()
        .map(|item| format!("{}\n", output::plain(item)))
        .collect()
}

/// JSON as an indented outline: whatever a daemon reports, older and newer ones too.
pub(crate) fn outline(text: &mut String, depth: usize, value: &Value) {
    let indent = "  ".repeat(depth);
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), value))
            .collect(),
        Value::Array(items) => items.iter().map(|item| ("-".to_owned(), item)).collect(),
        _ => return,
    };
    for (name, child) in children {
        match child {
            Value::Object(_) | Value::Array(_) if !is_flat(child) => {
                text.push_str(&format!("{indent}{}\n", output::plain(&name)));
                outline(text, depth + 1, child);
            }
            child => {
                let name = output::plain(&name);
                text.push_str(&format!("{indent}{name} {}\n", flat(child)));
            }
        }
    }
}

/// Whether a value fits a line: a scalar, or a collection of at most eight scalars.
fn is_flat(value: &Value) -> bool {
    let scalar = |value: &Value| !value.is_object() && !value.is_array();
    match value {
        Value::Object(fields) => fields.len() <= 8 && fields.values().all(scalar),
        Value::Array(items) => items.len() <= 8 && items.iter().all(scalar),
        _ => true,
    }
}

/// A value in a line, without what a terminal would obey.
pub(crate) fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => output::plain(text).into_owned(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(flat).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| format!("{}={}", output::plain(name), flat(value)))
                .collect();
            fields.join(" ")
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_ends_with_a_tenant_is_a_line_each() {
        let has = json!({
            "tenant": "acme", "sessions": 2, "policies": ["acl@1"],
            "attachments": [{"owner": "acme", "policy": "acl", "place": "client a.B/*"}],
        });
        assert_eq!(
            ending(&has, "would end"),
            "of tenant acme would end: 2 sessions\n  policy acl@1\n  attachment of acme's acl at client a.B/*\n"
        );
        let one = json!({"tenant": "acme", "sessions": 1});
        assert_eq!(ending(&one, "ended"), "of tenant acme ended: 1 session\n");
    }

    #[test]
    fn a_report_reads_as_an_outline() {
        let report = json!({
            "name": "a",
            "tenants": ["acme", "evil"],
            "links": [],
            "sessions": [{"session": 1, "tenant": "acme"}, {"session": 2, "tenant": "acme"}],
            "policies": [{"name": "acl", "attachments": [{"service": "hotel.Reservation"}]}],
        });
        let mut text = String::new();
        outline(&mut text, 0, &report);
        let expected = "links none\nname a\npolicies\n  -\n    attachments\n      - service=hotel.Reservation\n    name acl\n\
                        sessions\n  - session=1 tenant=acme\n  - session=2 tenant=acme\ntenants acme evil\n";
        assert_eq!(text, expected);
    }
}

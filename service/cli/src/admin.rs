//! Tenants, policies and status: one request to the daemon, one answer.
//!
//! The daemon authorises these by the user id that the kernel reports, so there is no password to
//! ask for; a refusal says who may. What doesn't fit a packet travels as a sealed memfd. Each command
//! returns what it prints.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tollgate_shm_abi::blob::{blob_create, blob_read};
use tollgate_shm_abi::control::{ControlError, ControlSocket};
use tollgate_shm_abi::limits::MAX_PACKET_BYTES;
use tollgate_shm_abi::messages::{
    Empty, PolicyAttach, PolicyDetach, PolicyInfo, PolicyPush, Request, RequestBody, Response,
    ResponseBody, SIDE_ANY, SIDE_CLIENT, SIDE_SERVER, TenantAdd,
};
use tollgate_shm_abi::status::Code;

use crate::args::{Attach, Detach, Policy, Push, Side, Status, Tenant};
use crate::failure::Failure;

/// How long the daemon may take for one answer. Compiling a large policy takes the longest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest status report that is read: 16 MiB.
const MAX_STATUS_BYTES: usize = 16 << 20;

/// `tollgate tenant …`
pub(crate) fn tenant(socket: &Path, command: &Tenant) -> Result<String, Failure> {
    match command {
        Tenant::Add { name } => {
            let body = RequestBody::TenantAdd(TenantAdd { name: name.clone() });
            match ask(socket, body, &[])? {
                (ResponseBody::TenantAdded(added), _) => Ok(format!("{}\n", added.token)),
                (other, _) => Err(unexpected(&other)),
            }
        }
        Tenant::List => match ask(socket, RequestBody::TenantList(Empty {}), &[])? {
            (ResponseBody::Tenants(tenants), _) => Ok(lines(&tenants.names)),
            (other, _) => Err(unexpected(&other)),
        },
    }
}

/// `tollgate policy …`
pub(crate) fn policy(socket: &Path, command: &Policy) -> Result<String, Failure> {
    match command {
        Policy::Push(args) => push(socket, args),
        Policy::Attach(args) => attach(socket, args),
        Policy::Detach(args) => detach(socket, args),
        Policy::List => match ask(socket, RequestBody::PolicyList(Empty {}), &[])? {
            (ResponseBody::Policies(found), _) => {
                let policies: Vec<_> = found.policies.iter().map(describe).collect();
                Ok(lines(&policies))
            }
            (other, _) => Err(unexpected(&other)),
        },
    }
}

/// `tollgate status`
pub(crate) fn status(socket: &Path, args: &Status) -> Result<String, Failure> {
    let (answer, fds) = ask(socket, RequestBody::Status(Empty {}), &[])?;
    let (ResponseBody::Status(_), Some(blob)) = (&answer, fds.first()) else {
        return Err(unexpected(&answer));
    };
    let wrong = |what: &dyn std::fmt::Display| {
        Failure::new(Code::INTERNAL, format_args!("the status report: {what}"))
    };
    let json = blob_read(blob, MAX_STATUS_BYTES).map_err(|error| wrong(&error))?;
    if args.json {
        let mut json = json;
        json.push(b'\n');
        return Ok(String::from_utf8_lossy(&json).into_owned());
    }
    let report: Value = serde_json::from_slice(&json).map_err(|error| wrong(&error))?;
    let mut text = String::new();
    outline(&mut text, 0, &report);
    Ok(text)
}

fn push(socket: &Path, args: &Push) -> Result<String, Failure> {
    let blob = |path: &Path| {
        let bytes = std::fs::read(path).map_err(|error| Failure::file(path, &error))?;
        let failed = |errno| {
            Failure::new(
                Code::RESOURCE_EXHAUSTED,
                format_args!("no memory for {}: {errno}", path.display()),
            )
        };
        blob_create(&bytes).map_err(failed)
    };
    let mut blobs = vec![blob(&args.module)?];
    if let Some(config) = &args.config {
        blobs.push(blob(config)?);
    }
    let push = PolicyPush {
        tenant: args.tenant.clone(),
        name: args.name.clone(),
        has_config: args.config.is_some(),
    };
    let fds: Vec<_> = blobs.iter().map(AsFd::as_fd).collect();
    match ask(socket, RequestBody::PolicyPush(push), &fds)? {
        (ResponseBody::PolicyPushed(pushed), _) => {
            Ok(format!("{}@{}\n", pushed.name, pushed.version))
        }
        (other, _) => Err(unexpected(&other)),
    }
}

fn attach(socket: &Path, args: &Attach) -> Result<String, Failure> {
    let place = &args.place;
    let attach = PolicyAttach {
        policy: args.policy.clone(),
        tenant: place.tenant.clone(),
        service: place.service.clone(),
        method: place.method.clone().unwrap_or_default(),
        side: number(args.side),
    };
    done(socket, RequestBody::PolicyAttach(attach))
}

fn detach(socket: &Path, args: &Detach) -> Result<String, Failure> {
    let place = &args.place;
    let detach = PolicyDetach {
        policy: args.name.clone(),
        tenant: place.tenant.clone(),
        service: place.service.clone(),
        method: place.method.clone().unwrap_or_default(),
        side: args.side.map_or(SIDE_ANY, number),
    };
    done(socket, RequestBody::PolicyDetach(detach))
}

fn done(socket: &Path, body: RequestBody) -> Result<String, Failure> {
    match ask(socket, body, &[])? {
        (ResponseBody::Done(_), _) => Ok(String::new()),
        (other, _) => Err(unexpected(&other)),
    }
}

/// One request, one answer; the daemon's refusal is the failure.
fn ask(
    socket: &Path,
    body: RequestBody,
    fds: &[BorrowedFd<'_>],
) -> Result<(ResponseBody, Vec<OwnedFd>), Failure> {
    let path = socket
        .to_str()
        .ok_or_else(|| Failure::input(format_args!("the socket's path {socket:?} is no text")))?;
    let connection =
        ControlSocket::connect(path).map_err(|errno| unreachable(socket, &errno.to_string()))?;
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
    wait(&connection)?;
    let mut buffer = vec![0; MAX_PACKET_BYTES];
    let gone = || {
        Failure::new(
            Code::UNAVAILABLE,
            format_args!("the daemon at {path} hung up without an answer"),
        )
    };
    let packet = connection
        .recv(&mut buffer)
        .map_err(lost)?
        .ok_or_else(gone)?;
    let response = Response::decode(&buffer[..packet.len]).map_err(|error| {
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

fn wait(connection: &ControlSocket) -> Result<(), Failure> {
    let timeout = Timespec {
        tv_sec: ANSWER_TIMEOUT.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => Err(Failure::new(
            Code::DEADLINE_EXCEEDED,
            format_args!("the daemon gave no answer in {ANSWER_TIMEOUT:?}"),
        )),
        Ok(_) => Ok(()),
        Err(errno) => Err(Failure::new(
            Code::INTERNAL,
            format_args!("waiting for the daemon failed: {errno}"),
        )),
    }
}

/// Nobody listens on the socket.
pub(crate) fn unreachable(socket: &Path, why: &str) -> Failure {
    let path = socket.display();
    let sentence = format!("no daemon answers at {path}: {why}");
    Failure::new(Code::UNAVAILABLE, sentence)
        .hint("tollgate up --config FILE, or another --socket PATH")
}

fn unexpected(answer: &ResponseBody) -> Failure {
    Failure::new(
        Code::INTERNAL,
        format_args!("the daemon answered something else: {answer:?}"),
    )
}

fn number(side: Side) -> i32 {
    match side {
        Side::Client => SIDE_CLIENT,
        Side::Server => SIDE_SERVER,
    }
}

/// `acme  acl@2  1823 bytes  sha256:5f0c…  client hotel.Reservation/Reserve`
fn describe(policy: &PolicyInfo) -> String {
    let PolicyInfo {
        tenant,
        name,
        version,
        module_bytes,
        digest,
        attachments,
    } = policy;
    let place = |at: &tollgate_shm_abi::messages::AttachmentInfo| {
        let side = if at.side == SIDE_CLIENT {
            "client"
        } else {
            "server"
        };
        let method = if at.method.is_empty() {
            "*"
        } else {
            &at.method
        };
        format!("{side} {}/{method}", at.service)
    };
    let places: Vec<_> = attachments.iter().map(place).collect();
    let places = if places.is_empty() {
        "not attached".to_owned()
    } else {
        places.join(", ")
    };
    let digest: String = digest.chars().take(12).collect();
    format!("{tenant}  {name}@{version}  {module_bytes} bytes  sha256:{digest}  {places}")
}

fn lines(items: &[String]) -> String {
    items.iter().map(|item| format!("{item}\n")).collect()
}

/// JSON as an indented outline: whatever a daemon reports, older and newer ones too.
fn outline(text: &mut String, depth: usize, value: &Value) {
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
                text.push_str(&format!("{indent}{name}\n"));
                outline(text, depth + 1, child);
            }
            child => text.push_str(&format!("{indent}{name} {}\n", flat(child))),
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

fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(flat).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", flat(value)))
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

    #[test]
    fn a_policy_is_a_line() {
        let attachments = vec![tollgate_shm_abi::messages::AttachmentInfo {
            service: "hotel.Reservation".to_owned(),
            method: String::new(),
            side: SIDE_SERVER,
        }];
        let mut policy = PolicyInfo {
            tenant: "acme".to_owned(),
            name: "acl".to_owned(),
            version: 2,
            module_bytes: 1823,
            digest: "0123456789abcdef".to_owned(),
            attachments,
        };
        assert_eq!(
            describe(&policy),
            "acme  acl@2  1823 bytes  sha256:0123456789ab  server hotel.Reservation/*"
        );
        policy.attachments.clear();
        assert!(describe(&policy).ends_with("  not attached"));
    }
}

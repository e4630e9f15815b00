//! `tollgate status`, `console`, `prefetch` and `upgrade`: one request to the daemon, and its
//! report.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tollgate_admin::Secret;
use tollgate_admin::proto::{
    GetStatusRequest, OpenConsoleRequest, PrefetchSchemaRequest, UpgradeDaemonRequest,
    UpgradeDaemonStep,
};
use tollgate_shm_abi::status::Code;

use crate::api::{ANSWER_TIMEOUT, Acting, Api, Remote, json_of};
use crate::failure::Failure;
use crate::limits::CALLS_LOOK;
use crate::render::{flat, outline};
use crate::schema::Files;
use crate::values::duration;
use crate::{former, output, schema, screen, stderr};

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Only what is this tenant's; with a token, the token's
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) acting: Acting,
    /// Print everything, indented
    #[arg(long, conflicts_with = "json")]
    pub(crate) verbose: bool,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Console {
    /// Let an operator's link change policies, too; the audit log records the changes as yours
    #[arg(long)]
    pub(crate) operator: bool,
    /// Show only what is this tenant's; with a token, the token's
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) acting: Acting,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate prefetch --proto hotel.proto\n          \
         tollgate prefetch --proto hotel.proto --token-file owner.token\n\n\
         The daemon keeps an operator's until it ends. Its configuration can name descriptor sets to prefetch at every start. A tenant's count as its \
         applications' do, and may be dropped like theirs while nobody uses them; the time counts against its ceiling's compile_s_per_hour."
)]
pub(crate) struct Prefetch {
    /// Prefetch for this tenant, in its share; with a token, the token's tenant
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) acting: Acting,
    #[command(flatten)]
    pub(crate) files: Files,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tollgate upgrade --binary /usr/local/bin/tollgated\n\n\
        The new process gets the arguments of the running one. It reads its configuration, loads all policies and proves that it can \
        serve before it takes over. If a step fails, the running daemon continues unchanged."
)]
pub(crate) struct DaemonUpgrade {
    /// The new program; if left out, the current content of the file that the daemon was started
    /// from, which is the only one that an operator's credential may name
    #[arg(long, value_name = "FILE")]
    pub(crate) binary: Option<PathBuf>,
    /// The time until the new process must be ready, such as 500ms, 30s or 2m; at most 10m
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) acting: Acting,
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate status`
pub(crate) fn status(socket: &Path, args: &Status) -> Result<String, Failure> {
    let (token, remote) = (args.acting.token()?, &args.acting.remote);
    let look = || {
        if token.is_none() && args.tenant.is_none() && remote.endpoint().is_none() {
            return status_here(socket);
        }
        let tenant = args.tenant.clone().unwrap_or_default();
        let api = Api::connect_as(socket, remote, token.as_ref())?;
        Ok(json_of(api.ask(GetStatusRequest { tenant })?.report))
    };
    let first = look()?;
    let is_tenants = first.get("tenant").is_some();
    if args.json {
        return Ok(output::json(&first));
    }
    if !args.verbose && is_tenants {
        return Ok(screen::of_tenant(&first));
    }
    if !args.verbose {
        std::thread::sleep(CALLS_LOOK);
        return Ok(screen::of_status(&first, &look()?));
    }
    let mut text = String::new();
    outline(&mut text, 0, &first);
    Ok(text)
}

/// The state of a daemon of this host, also of one without the API.
pub(crate) fn status_here(socket: &Path) -> Result<Value, Failure> {
    if former::is_there(socket) {
        return former::status(socket);
    }
    let api = Api::connect_here(socket)?;
    Ok(json_of(api.ask(GetStatusRequest::default())?.report))
}

/// `tollgate console`
pub(crate) fn console(socket: &Path, args: &Console) -> Result<String, Failure> {
    output::require_open()?;
    let api = Api::connect(socket, &args.acting)?;
    let opened = api.ask(OpenConsoleRequest {
        operator: args.operator,
        tenant: args.tenant.clone().unwrap_or_default(),
    })?;
    let report = json_of(opened.report);
    if args.json {
        return Ok(output::json(&report));
    }
    let address = report["address"].as_str().unwrap_or_default();
    if let Some(words) = tunnel(&args.acting.remote, address) {
        stderr::tell(&words);
    }
    Ok(format!("{}\n", flat(&report["link"])))
}

/// How to reach a console that listens on the loopback address of another host.
fn tunnel(remote: &Remote, address: &str) -> Option<String> {
    let host = remote.other_host()?.trim_matches(['[', ']']);
    let at: SocketAddr = address.parse().ok()?;
    let port = at.port();
    at.ip().is_loopback().then(|| {
        format!(
            "the console listens on the daemon's host only; to reach it from here: \
             ssh -L {port}:{at} {host}"
        )
    })
}

/// `tollgate prefetch`
pub(crate) fn prefetch(socket: &Path, args: &Prefetch) -> Result<String, Failure> {
    let schema = schema::load(&args.files)?;
    let api = Api::connect(socket, &args.acting)?;
    let prefetched = api.ask(PrefetchSchemaRequest {
        schema: schema.descriptor_set().to_vec(),
        tenant: args.tenant.clone().unwrap_or_default(),
    })?;
    let report = json_of(prefetched.report);
    if args.json {
        return Ok(output::json(&report));
    }
    let mut text = String::new();
    outline(&mut text, 0, &report);
    Ok(text)
}

/// `tollgate upgrade`
pub(crate) fn upgrade(socket: &Path, args: &DaemonUpgrade) -> Result<String, Failure> {
    let (token, remote) = (args.acting.token()?, &args.acting.remote);
    let is_here = token.is_none() && remote.endpoint().is_none();
    let program = match &args.binary {
        // On the daemon's host: perhaps not this one.
        Some(binary) if !is_here => utf8(binary)?,
        Some(binary) => {
            let found = binary.canonicalize();
            utf8(&found.map_err(|error| Failure::file(binary, &error))?)?
        }
        None => String::new(),
    };
    let report = match is_here {
        true => replace_here(socket, program, args.timeout)?,
        false => replace((socket, remote, token.as_ref()), program, args.timeout)?,
    };
    if args.json {
        return Ok(output::json(&report));
    }
    let (from, to) = (&report["from"], &report["to"]);
    Ok(format!(
        "{} {}, process {}, has taken over from {}, process {}: ready after {} ms, calls were paused for {} us\n",
        flat(&to["program"]),
        flat(&to["version"]),
        to["pid"],
        flat(&from["version"]),
        from["pid"],
        report["prepared_ms"],
        report["pause_us"],
    ))
}

fn utf8(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::input(format_args!("the path {path:?} isn't UTF-8")))
}

/// Replaces a daemon of this host, also one without the API, by this program, an absolute path. If
/// it is empty, by the program that the daemon was started from.
pub(crate) fn replace_here(
    socket: &Path,
    program: String,
    timeout: Duration,
) -> Result<Value, Failure> {
    if former::is_there(socket) {
        return former::upgrade(socket, program, timeout);
    }
    let here = (socket, &Remote::default(), None);
    match replace(here, program.clone(), timeout) {
        // A daemon from between the releases: its API can't.
        Err(failure) if failure.code() == Code::UNIMPLEMENTED => {
            former::upgrade(socket, program, timeout)
        }
        replaced => replaced,
    }
}

fn replace(
    (socket, remote, token): (&Path, &Remote, Option<&Secret>),
    program: String,
    timeout: Duration,
) -> Result<Value, Failure> {
    let api = Api::connect_for(socket, remote, token, timeout + ANSWER_TIMEOUT)?;
    let timeout = prost_types::Duration::try_from(timeout);
    let request = UpgradeDaemonRequest {
        program,
        timeout: timeout.ok(),
    };
    let report = api.upgrade(request, |step| stderr::step(doing(step)))?;
    Ok(json_of(Some(report)))
}

/// What the daemon does in a step.
fn doing(step: UpgradeDaemonStep) -> Option<&'static str> {
    match step {
        UpgradeDaemonStep::Unspecified => None,
        UpgradeDaemonStep::Waiting => Some("waiting for other changes"),
        UpgradeDaemonStep::Preparing => Some("the new process prepares"),
        UpgradeDaemonStep::HandingOver => Some("handing over"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_of_another_host_is_reached_through_ssh() {
        let check = |endpoint: Option<&str>, address: &str, expected: Option<&str>| {
            let remote = Remote {
                endpoint: endpoint.map(str::to_owned),
                ..Remote::default()
            };
            let words = tunnel(&remote, address);
            let command = words.as_deref().and_then(|words| words.split_once(": "));
            assert_eq!(command.map(|(_, command)| command), expected, "{remote:?}");
        };
        let ssh = Some("ssh -L 7470:127.0.0.1:7470 a.example");
        check(Some("https://a.example:7443"), "127.0.0.1:7470", ssh);
        check(Some("https://127.0.0.1:7443"), "127.0.0.1:7470", None);
        check(Some("https://a.example:7443"), "10.0.0.1:7470", None);
        check(None, "127.0.0.1:7470", None);
    }
}

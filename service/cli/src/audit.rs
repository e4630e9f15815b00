//! `tollgate audit …`: the log of all administration and of all faults of policies.
//!
//! A running daemon shows and verifies its own log. The daemon's program, which wrote the log, also
//! verifies a file. This program shares no code with it, so it executes the daemon's program, as
//! `up` does.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;
use tollgate_admin::proto::{ShowAuditRecordsRequest, VerifyAuditLogRequest};
use tollgate_shm_abi::status::Code;

use crate::api::{Acting, Api, json_of};
use crate::failure::Failure;
use crate::values::number;
use crate::{output, up};

#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Print the newest records, oldest first
    #[command(
        after_help = "Of a tenant, the command shows those of the log's newest 1,000 records that are about it.\n\n\
         Examples: tollgate audit show --last 100\n          \
         tollgate audit show --tenant acme\n          \
         tollgate audit show --token-file owner.token"
    )]
    Show(Show),
    /// Detect edits of the log; the exit status is 0 if there is none, and 15 (DATA_LOSS) if there
    /// is one
    Verify(Verify),
    /// Print the end of the log as SEQ:HASH; a copy kept elsewhere reveals a rewritten log
    Head(Head),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples: tollgate audit head >> heads\n          \
         tollgate audit head --endpoint https://tollgate.example:7443 --token-file deploy.token")]
pub(crate) struct Head {
    #[command(flatten)]
    pub(crate) acting: Acting,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Print at most this many records
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = number)]
    last: u32,
    /// Print the lines of the log, which are JSON
    #[arg(long)]
    json: bool,
    /// Only records about this tenant; with a token, the token's tenant if left out
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    pub(crate) acting: Acting,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Without --state and --file, the running daemon verifies its own log.\n\n\
         Examples: tollgate audit verify\n          \
         tollgate audit verify --endpoint https://tollgate.example:7443 --token-file deploy.token\n          \
         tollgate audit verify --state /var/lib/tollgate\n          \
         tollgate audit verify --file copy.jsonl --head 41:5f0c..."
)]
pub(crate) struct Verify {
    /// Verify the log in this state directory; no daemon may be using it
    #[arg(long, value_name = "DIR", conflicts_with_all = ["file", "token_file"])]
    pub(crate) state: Option<PathBuf>,
    /// Verify this file
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    pub(crate) file: Option<PathBuf>,
    /// An earlier output of `audit head`; the log must contain it
    #[arg(long, value_name = "SEQ:HASH", requires = "file")]
    pub(crate) head: Option<String>,
    #[command(flatten)]
    pub(crate) acting: Acting,
}

impl Verify {
    /// Whether it is about files, and needs no daemon.
    pub(crate) fn is_offline(&self) -> bool {
        self.state.is_some() || self.file.is_some()
    }
}

/// Carries out one command.
pub(crate) fn audit(socket: &Path, command: &Audit) -> Result<String, Failure> {
    match command {
        Audit::Show(args) => {
            let api = Api::connect(socket, &args.acting)?;
            let tenant = args.tenant.clone().unwrap_or_default();
            let last = args.last;
            let shown = api.ask(ShowAuditRecordsRequest { last, tenant })?;
            Ok(show(&json_of(shown.report), args.json))
        }
        Audit::Head(args) => {
            let api = Api::connect(socket, &args.acting)?;
            let shown = api.ask(ShowAuditRecordsRequest::default())?;
            let shown = json_of(shown.report);
            // A tenant's records are no log of their own.
            let head = shown["head"].as_str().ok_or_else(|| {
                let sentence = "the end of the audit log is for operators";
                Failure::new(Code::PERMISSION_DENIED, sentence)
            })?;
            Ok(format!("{}\n", output::plain(head)))
        }
        Audit::Verify(args) if args.is_offline() => offline(args).map(|never| match never {}),
        Audit::Verify(args) => {
            let api = Api::connect(socket, &args.acting)?;
            let found = api.ask(VerifyAuditLogRequest {})?;
            let found = json_of(found.report);
            let sentence = found["sentence"].as_str().unwrap_or_default();
            if found["edited"] == Value::Bool(false) {
                return Ok(format!("{}\n", output::plain(sentence)));
            }
            Err(Failure::new(Code::DATA_LOSS, sentence))
        }
    }
}

fn offline(args: &Verify) -> Result<Infallible, Failure> {
    let mut words = vec!["verify-audit".into()];
    let options = [
        ("--state", args.state.as_ref().map(|path| path.as_os_str())),
        ("--file", args.file.as_ref().map(|path| path.as_os_str())),
        ("--head", args.head.as_ref().map(|head| head.as_ref())),
    ];
    for (option, value) in options {
        if let Some(value) = value {
            words.extend([option.into(), value.to_owned()]);
        }
    }
    up::become_daemon(&words)
}

fn show(shown: &Value, json: bool) -> String {
    let records = shown["records"].as_array().map_or(&[][..], Vec::as_slice);
    let mut text = String::new();
    if let (Some(kept), false) = (shown["kept"].as_u64(), json) {
        text += &format!(
            "the newest {kept} records, kept in memory only: the daemon has no state directory\n"
        );
    }
    for record in records.iter().filter_map(Value::as_str) {
        match serde_json::from_str(record) {
            Ok(value) if !json => text += &readable(&value),
            _ if json => text += &output::json(&record),
            _ => text += &format!("{}\n", output::plain(record)),
        }
    }
    text
}

/// `7 2026-11-21T15:46:02.120Z uid 0 pid 4711: attach {"policy":"acl@2", …}`
fn readable(record: &Value) -> String {
    let word = |key: &str| output::plain(record[key].as_str().unwrap_or("?"));
    let (seq, details) = (&record["seq"], &record["details"]);
    let (time, actor, event) = (word("time"), word("actor"), word("event"));
    format!("{seq} {time} {actor}: {event} {details}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn records_are_lines_and_a_broken_one_is_shown_as_it_is() {
        let record = r#"{"seq":1,"time":"T","prev":"","actor":"daemon","event":"push","details":{"n":1},"hash":""}"#;
        let shown = json!({"records": [record, "no record"], "kept": 1024});
        let memory =
            "the newest 1024 records, kept in memory only: the daemon has no state directory\n";
        let line = "1 T daemon: push {\"n\":1}\n";
        assert_eq!(show(&shown, false), format!("{memory}{line}no record\n"));
        assert_eq!(show(&shown, true), format!("{record}\nno record\n"));
    }
}

//! `tollgate apply`: documents to the daemon, and what they change.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tollgate_admin::proto::{
    AppliedState, ApplyStateHeader, ApplyStateStep, StateAction, StateChange,
};

use crate::api::Api;
use crate::desired::args::Apply;
use crate::desired::model::SCHEMA;
use crate::desired::order::order;
use crate::desired::read::read;
use crate::failure::Failure;
use crate::output::{self, plain};
use crate::policy::doing;
use crate::render::lines;
use crate::stderr::{tell, warn};

/// How long the daemon may take: it compiles every new module.
const PATIENCE: Duration = Duration::from_secs(600);

/// `tollgate apply`. Returns what is printed, and whether a dry run would change something.
pub(crate) fn apply(socket: &Path, args: &Apply) -> Result<(String, bool), Failure> {
    if args.schema {
        return Ok((SCHEMA.to_owned(), false));
    }
    let mut order = order(read(&args.files)?)?;
    order.header = ApplyStateHeader {
        tenant: args.tenant.clone().unwrap_or_default(),
        set: args.set.clone(),
        dry_run: args.dry_run,
        prune: args.prune,
    };
    let api = Api::connect_for(
        socket,
        &args.acting.remote,
        args.acting.token()?.as_ref(),
        PATIENCE,
    )?;
    let is_watched = std::io::stderr().is_terminal();
    let answer = api.apply(order, |step| {
        if let Some(line) = progress(&step).filter(|_| is_watched) {
            tell(&line);
        }
    })?;
    let warnings = answer.warnings.iter();
    warnings.for_each(|warning| warn(&plain(warning)));
    let differs = answer
        .changes
        .iter()
        .any(|change| change.action() != StateAction::Keep);
    let text = match args.json {
        true => as_json(&answer, args.dry_run),
        false => shown(&answer.changes, args),
    };
    Ok((text, args.dry_run && differs))
}

/// What the daemon does, in a line.
fn progress(step: &ApplyStateStep) -> Option<String> {
    let doing = doing(step.step())?;
    Some(match step.number {
        0 => format!("{doing} all objects"),
        number => format!("{} ({number} of {}): {doing}", plain(&step.policy), step.of),
    })
}

fn verb(action: StateAction) -> &'static str {
    match action {
        StateAction::Create => "create",
        StateAction::Change => "change",
        StateAction::Delete => "delete",
        StateAction::Keep | StateAction::Unspecified => "keep",
    }
}

fn as_json(answer: &AppliedState, is_dry: bool) -> String {
    let changes = answer.changes.iter().map(|change| {
        json!({"action": verb(change.action()), "object": change.object, "details": change.details})
    });
    let changes: Vec<_> = changes.collect();
    output::json(&json!({"dry_run": is_dry, "changes": changes, "warnings": answer.warnings}))
}

/// A line per object that changes, and their numbers.
fn shown(changes: &[StateChange], args: &Apply) -> String {
    let mut rows = Vec::new();
    for change in changes {
        let mark = match change.action() {
            StateAction::Create => '+',
            StateAction::Change => '~',
            StateAction::Delete => '-',
            StateAction::Keep | StateAction::Unspecified => '=',
        };
        if mark == '=' && !args.verbose {
            continue;
        }
        let object = plain(&change.object);
        let details: Vec<_> = change.details.iter().map(|words| plain(words)).collect();
        rows.push(match details.is_empty() {
            true => format!("{mark} {object}"),
            false => format!("{mark} {object} ({})", details.join("; ")),
        });
    }
    let count = |action| {
        let its = changes.iter().filter(|change| change.action() == action);
        its.count()
    };
    let [created, changed, deleted, kept] = [
        StateAction::Create,
        StateAction::Change,
        StateAction::Delete,
        StateAction::Keep,
    ]
    .map(count);
    rows.push(match args.dry_run {
        true => format!(
            "{created} to create, {changed} to change, {deleted} to delete, {kept} unchanged"
        ),
        false => {
            format!("{created} created, {changed} changed, {deleted} deleted, {kept} unchanged")
        }
    });
    lines(&rows)
}

//! `tollgate apply`: documents to the daemon, and what they change.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tollgate_admin::ApplyOrder;
use tollgate_admin::proto::{
    AppliedState, ApplyStateHeader, ApplyStateStep, StateAction, StateChange,
};

use crate::api::Api;
use crate::confirm::confirm;
use crate::desired::args::Apply;
use crate::desired::model::SCHEMA;
use crate::desired::order::order;
use crate::desired::read::read;
use crate::failure::Failure;
use crate::output::{self, plain};
use crate::policy::doing;
use crate::render::lines;
use crate::stderr::{step, warn};

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
    if args.prune && !args.dry_run && !args.yes && api.is_operator()? {
        ask(&api, &order)?;
    }
    let answer = api.apply(order, |at| step(progress(&at)))?;
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

/// Asks if a prune would delete tenants or values of ceilings. Tenants delete neither.
fn ask(api: &Api, order: &ApplyOrder) -> Result<(), Failure> {
    let dry = ApplyOrder {
        header: ApplyStateHeader {
            dry_run: true,
            ..order.header.clone()
        },
        state: order.state.clone(),
        contents: order.contents.clone(),
        ..ApplyOrder::default()
    };
    let changes = api.apply(dry, |at| step(progress(&at)))?.changes;
    let ends: Vec<_> = changes
        .iter()
        .filter(|change| is_asked(change))
        .map(row)
        .collect();
    match ends.is_empty() {
        true => Ok(()),
        false => confirm(
            &lines(&ends),
            "Apply the documents, and delete these?",
            "nothing is applied",
        ),
    }
}

/// Whether a change deletes what `tenant remove` and `ceiling reset` delete.
fn is_asked(change: &StateChange) -> bool {
    let kinds = ["tenant ", "ceiling ", "default ceiling "];
    change.action() == StateAction::Delete
        && kinds.iter().any(|kind| change.object.starts_with(kind))
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

/// `+ tenant acme`
fn row(change: &StateChange) -> String {
    let mark = match change.action() {
        StateAction::Create => '+',
        StateAction::Change => '~',
        StateAction::Delete => '-',
        StateAction::Keep | StateAction::Unspecified => '=',
    };
    let object = plain(&change.object);
    let details: Vec<_> = change.details.iter().map(|words| plain(words)).collect();
    match details.is_empty() {
        true => format!("{mark} {object}"),
        false => format!("{mark} {object} ({})", details.join("; ")),
    }
}

/// A line per object that changes or has details, and their numbers.
fn shown(changes: &[StateChange], args: &Apply) -> String {
    let is_shown = |change: &&StateChange| {
        args.verbose || change.action() != StateAction::Keep || !change.details.is_empty()
    };
    let mut rows: Vec<_> = changes.iter().filter(is_shown).map(row).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_and_ceilings_are_asked_for_before_they_are_deleted() {
        let change = |action: StateAction, object: &str| StateChange {
            action: action.into(),
            object: object.to_owned(),
            details: vec!["5".to_owned()],
        };
        for object in [
            "tenant acme",
            "ceiling attachments of tenant acme",
            "default ceiling versions",
        ] {
            assert!(is_asked(&change(StateAction::Delete, object)), "{object}");
            assert!(!is_asked(&change(StateAction::Keep, object)), "{object}");
        }
        let other = change(StateAction::Delete, "credential tenant of tenant acme");
        assert!(!is_asked(&other));
        assert_eq!(row(&other), "- credential tenant of tenant acme (5)");
    }
}

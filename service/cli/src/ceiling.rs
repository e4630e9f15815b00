//! `tollgate ceiling …`: what a tenant may have at most.

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::json;
use tollgate_admin::proto::{
    CeilingChange, CeilingOrigin, CeilingValue, ChangeCeilingRequest, ShowCeilingRequest,
    ShowCeilingResponse,
};

use crate::api::{Acting, Api};
use crate::confirm::confirm;
use crate::daemon::SettingValue;
use crate::failure::Failure;
use crate::output;
use crate::render::lines;

/// Ceilings of tenants, and the default one.
#[derive(Debug, Args)]
pub(crate) struct CeilingCommand {
    #[command(flatten)]
    pub(crate) acting: Acting,
    #[command(subcommand)]
    pub(crate) command: Ceiling,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Ceiling {
    /// Show every key with the value in force and its origin
    #[command(
        after_help = "Examples: tollgate ceiling show --tenant acme\n          \
         tollgate ceiling show --token-file owner.token --json"
    )]
    Show {
        #[command(flatten)]
        of: Of,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Set values, all or none
    #[command(
        after_help = "Where a tenant has more already, the command says so and asks for confirmation. What it has stays, and can't grow.\n\n\
         Examples: tollgate ceiling set policies=20 module_mib=64\n          \
         tollgate ceiling set isolation=process capabilities=state --tenant acme\n          \
         tollgate ceiling set cpu_us=200 --dry-run"
    )]
    Set {
        /// Keys and values; `tollgate ceiling show` has the keys
        #[arg(value_name = "KEY=VALUE", required = true)]
        values: Vec<SettingValue>,
        #[command(flatten)]
        change: Change,
    },
    /// Remove values: the default ceiling's count again, or the built-in ones
    #[command(after_help = "Example: tollgate ceiling reset versions --tenant acme")]
    Reset {
        /// Keys
        #[arg(value_name = "KEY", required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        change: Change,
    },
}

/// Whose ceiling.
#[derive(Debug, Args)]
pub(crate) struct Of {
    /// The tenant; if left out, the token's, or, for an operator, the default ceiling, of all
    /// tenants that have no value of their own
    #[arg(long)]
    tenant: Option<String>,
}

/// How a ceiling is changed.
#[derive(Debug, Args)]
pub(crate) struct Change {
    #[command(flatten)]
    of: Of,
    /// Print what tenants have above the ceiling then, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Don't ask for confirmation
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
}

/// `tollgate ceiling …`
pub(crate) fn ceiling(socket: &Path, args: &CeilingCommand) -> Result<String, Failure> {
    let api = Api::connect(socket, &args.acting)?;
    match &args.command {
        Ceiling::Show { of, json } => {
            let tenant = of.tenant.clone().unwrap_or_default();
            let found = api.ask(ShowCeilingRequest { tenant })?;
            Ok(match json {
                true => as_json(&found),
                false => shown(&found),
            })
        }
        Ceiling::Set { values, change } => {
            let set = values.iter().map(|one| CeilingChange {
                key: one.key.clone(),
                value: Some(one.value.clone()),
            });
            apply(&api, set.collect(), change)
        }
        Ceiling::Reset { keys, change } => {
            let reset = keys.iter().map(|key| CeilingChange {
                key: key.clone(),
                value: None,
            });
            apply(&api, reset.collect(), change)
        }
    }
}

/// Changes a ceiling; asks first if a tenant is above it then.
fn apply(api: &Api, changes: Vec<CeilingChange>, how: &Change) -> Result<String, Failure> {
    let request = |dry_run| ChangeCeilingRequest {
        tenant: how.of.tenant.clone().unwrap_or_default(),
        changes: changes.clone(),
        dry_run,
    };
    if how.yes {
        return api.ask(request(false)).map(|done| told(&done.consequences));
    }
    let would_be = told(&api.ask(request(true))?.consequences);
    if how.dry_run {
        return Ok(would_be);
    }
    if !would_be.is_empty() {
        confirm(
            &would_be,
            "Change the ceiling?",
            "the ceiling isn't changed",
        )?;
    }
    api.ask(request(false))?;
    Ok(String::new())
}

fn told(consequences: &[String]) -> String {
    let plain: Vec<_> = consequences
        .iter()
        .map(|sentence| output::plain(sentence).into_owned())
        .collect();
    lines(&plain)
}

fn origin(value: &CeilingValue) -> &'static str {
    match value.origin() {
        CeilingOrigin::Tenant => "tenant",
        CeilingOrigin::Default => "default",
        CeilingOrigin::BuiltIn => "built-in",
        CeilingOrigin::Unspecified => "unknown",
    }
}

fn as_json(found: &ShowCeilingResponse) -> String {
    let values = found.values.iter();
    let values = values
        .map(|one| json!({"key": one.key, "value": one.value, "origin": origin(one)}))
        .collect::<Vec<_>>();
    let tenant = Some(&found.tenant).filter(|tenant| !tenant.is_empty());
    output::json(&json!({"tenant": tenant, "values": values}))
}

/// A line per key: its value, and where that comes from.
fn shown(found: &ShowCeilingResponse) -> String {
    let whose = match &*found.tenant {
        "" => "default ceiling".to_owned(),
        tenant => format!("ceiling of tenant {}", output::plain(tenant)),
    };
    let width = |of: fn(&CeilingValue) -> &str| {
        let widths = found.values.iter().map(|value| of(value).len());
        widths.max().unwrap_or(0)
    };
    let (keys, values) = (width(|one| &one.key), width(|one| &one.value));
    let mut rows = vec![whose];
    rows.extend(found.values.iter().map(|one| {
        let (key, value) = (output::plain(&one.key), output::plain(&one.value));
        format!("{key:<keys$}  {value:<values$}  {}", origin(one))
    }));
    lines(&rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_are_shown_with_their_origins() {
        let value = |key: &str, value: &str, origin: CeilingOrigin| CeilingValue {
            key: key.to_owned(),
            value: value.to_owned(),
            origin: origin.into(),
        };
        let found = ShowCeilingResponse {
            tenant: "acme".to_owned(),
            values: vec![
                value("versions", "2048", CeilingOrigin::BuiltIn),
                value("cpu_us", "50", CeilingOrigin::Tenant),
            ],
        };
        let expected = "ceiling of tenant acme\nversions  2048  built-in\ncpu_us    50    tenant\n";
        assert_eq!(shown(&found), expected);
        let json: serde_json::Value = serde_json::from_str(&as_json(&found)).unwrap();
        assert_eq!(json["values"][1]["origin"], "tenant");
    }
}

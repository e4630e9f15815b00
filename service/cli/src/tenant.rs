//! `tollgate tenant …`: tenants and their tokens.

use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use tollgate_admin::proto::{
    AddTenantRequest, ListTenantsRequest, MoveTenantRequest, RemoveTenantRequest,
    RotateCredentialRequest,
};
use tollgate_schema::spelling::did_you_mean;
use tollgate_shm_abi::status::Code;

use crate::api::{Acting, Api, json_of};
use crate::confirm::confirm;
use crate::credential::sent;
use crate::failure::Failure;
use crate::private_file::TokenOut;
use crate::render::{flat, lines};
use crate::values::{duration, number};

/// Tenants and their tokens.
#[derive(Debug, Args)]
pub(crate) struct TenantCommand {
    #[command(flatten)]
    pub(crate) acting: Acting,
    #[command(subcommand)]
    pub(crate) command: Tenant,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Tenant {
    /// Add a tenant and print its token, this once
    #[command(
        after_help = "The token is all that the tenant's applications need: keep it from others.\n\n\
         Examples: tollgate tenant add acme --out acme.token\n          \
         tollgate tenant add acme --endpoint https://tollgate.example:7443 --token-file deploy.token --out acme.token"
    )]
    Add {
        /// Lower-case letters, digits, `-`, `_` and `.`; at most 64
        name: String,
        #[command(flatten)]
        out: TokenOut,
    },
    /// Replace a tenant's token and print the new one, this once
    #[command(
        after_help = "Without --grace, the old token and the sessions that it opened end at once. With --grace, they stay valid for that time, and the old \
         token still opens sessions: applications can be restarted one by one with the new token. Another rotation ends all earlier tokens.\n\n\
         Examples: tollgate tenant rotate acme --out acme.token\n          \
         tollgate tenant rotate acme --grace 60m --out acme.token"
    )]
    Rotate {
        /// The tenant's name
        name: String,
        /// How long the old token stays valid, such as 30s or 60m; at most one day
        #[arg(long, value_name = "TIME", value_parser = duration)]
        grace: Option<Duration>,
        #[command(flatten)]
        out: TokenOut,
    },
    /// Remove a tenant with its token, sessions, policies and attachments
    #[command(
        after_help = "The command lists what it removes and asks for confirmation. The provider's attachments to this tenant by name end, too. Each call in \
         flight ends once, with a status. Removed policies can't be restored; a tenant that is added later under the same name starts empty.\n\n\
         Examples: tollgate tenant remove acme\n          \
         tollgate tenant remove acme --yes"
    )]
    Remove {
        /// The tenant's name
        name: String,
        /// Don't ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// List the tenants
    List,
    /// Move a tenant with its sessions, links and calls in flight to another runtime
    #[command(
        after_help = "The move lasts until another move or --reset, also after a restart. `tollgate status --json` shows the runtime of each tenant.\n\n\
         Examples: tollgate tenant move acme --runtime 1\n          \
         tollgate tenant move acme --reset"
    )]
    Move(TenantMove),
}

#[derive(Debug, Args)]
pub(crate) struct TenantMove {
    /// The tenant's name
    pub(crate) name: String,
    /// The runtime's number; the first is 0
    #[arg(long, value_name = "N", required_unless_present = "reset", value_parser = number)]
    pub(crate) runtime: Option<u32>,
    /// Remove the override; use hash placement
    #[arg(long, conflicts_with = "runtime")]
    pub(crate) reset: bool,
}

/// The credential that a tenant is added with.
const FIRST_CREDENTIAL: &str = "default";

/// `tollgate tenant …`
pub(crate) fn tenant(socket: &Path, args: &TenantCommand) -> Result<String, Failure> {
    let api = || Api::connect(socket, &args.acting);
    match &args.command {
        Tenant::Add { name, out } => {
            let tenant = name.clone();
            out.keep(|| Ok(api()?.ask(AddTenantRequest { tenant })?.token))
        }
        Tenant::Rotate { name, grace, out } => {
            let request = RotateCredentialRequest {
                tenant: name.clone(),
                name: FIRST_CREDENTIAL.to_owned(),
                grace: grace.map(sent).transpose()?,
                keep_sessions: false,
            };
            out.keep(|| Ok(api()?.ask(request)?.token))
        }
        Tenant::Remove { name, yes } => remove(&api()?, name, *yes),
        Tenant::Move(wanted) => {
            let moving = MoveTenantRequest {
                tenant: wanted.name.clone(),
                runtime: wanted.runtime,
            };
            Ok(moved(&json_of(api()?.ask(moving)?.report)))
        }
        Tenant::List => Ok(lines(&tenants(&api()?)?)),
    }
}

/// A tenant's new runtime, and the cost of the move.
fn moved(report: &Value) -> String {
    let of = |field: &str| flat(&report[field]);
    match report["pause_us"].as_u64() {
        Some(pause_us) => format!(
            "{} is on runtime {}, with {} sessions, {} links and {} calls in flight; it was paused for {pause_us} us\n",
            of("tenant"),
            of("runtime"),
            of("sessions"),
            of("links"),
            of("calls")
        ),
        None => format!(
            "{} is on runtime {}, as before\n",
            of("tenant"),
            of("runtime")
        ),
    }
}

/// The names of all tenants, sorted.
fn tenants(api: &Api) -> Result<Vec<String>, Failure> {
    Ok(api.ask(ListTenantsRequest {})?.tenants)
}

/// Fails if the tenant doesn't exist, because no call of it would ever come.
pub(crate) fn require_tenant(socket: &Path, tenant: &str) -> Result<(), Failure> {
    let names = tenants(&Api::connect_here(socket)?)?;
    if names.iter().any(|name| name == tenant) {
        return Ok(());
    }
    let meant = did_you_mean(tenant, names.iter().map(String::as_str));
    let sentence = format!("there is no tenant {tenant:?}{meant}");
    Err(Failure::new(Code::NOT_FOUND, sentence).hint("tollgate tenant list"))
}

/// Lists everything that would be removed with a tenant, asks, and removes the tenant.
fn remove(api: &Api, tenant: &str, is_sure: bool) -> Result<String, Failure> {
    let remove = |dry_run| {
        let removed = api.ask(RemoveTenantRequest {
            tenant: tenant.to_owned(),
            dry_run,
        })?;
        Ok::<_, Failure>(json_of(removed.report))
    };
    if !is_sure {
        confirm(
            &ending(&remove(true)?, "would remove"),
            format_args!("Remove tenant {tenant}?"),
            &format!("tenant {tenant} isn't removed"),
        )?;
    }
    Ok(ending(&remove(false)?, "removed"))
}

/// The things that are removed with a tenant, a line each.
fn ending(has: &Value, verb: &str) -> String {
    let items = |key: &str| has[key].as_array().map_or(&[][..], Vec::as_slice);
    let sessions = match has["sessions"].as_u64() {
        Some(1) => "1 session".to_owned(),
        _ => format!("{} sessions", has["sessions"]),
    };
    let mut text = format!("{verb} tenant {}: {sessions}\n", flat(&has["tenant"]));
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
            ending(&has, "would remove"),
            "would remove tenant acme: 2 sessions\n  policy acl@1\n  attachment of acme's acl at client a.B/*\n"
        );
        let one = json!({"tenant": "acme", "sessions": 1});
        assert_eq!(ending(&one, "removed"), "removed tenant acme: 1 session\n");
    }
}

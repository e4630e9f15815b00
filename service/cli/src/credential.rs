//! `tollgate credential …`: who may act for a tenant, and for the operators.

use std::path::Path;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum};
use tollgate_admin::proto::{
    self, AddCredentialRequest, ListCredentialsRequest, RevokeCredentialRequest,
    RotateCredentialRequest,
};
use tollgate_shm_abi::status::Code;

use crate::api::{Acting, Api};
use crate::failure::Failure;
use crate::output;
use crate::private_file::TokenOut;
use crate::render::lines;
use crate::values::long_duration;

/// Credentials of a tenant, or of the operators.
#[derive(Debug, Args)]
pub(crate) struct CredentialCommand {
    #[command(flatten)]
    pub(crate) acting: Acting,
    #[command(subcommand)]
    pub(crate) command: Credential,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Credential {
    /// Add a credential to a tenant, or to the operators, and print its token, this once
    #[command(
        after_help = "With an operators' token, commands administer the daemon without root, also over the network (--endpoint).\n\n\
         Examples: tollgate credential add booking --tenant acme --out booking.token\n          \
         tollgate credential add audit --role viewer --expires 30d --token-file owner.token --out audit.token\n          \
         tollgate credential add deploy --operator --expires 90d --out deploy.token"
    )]
    Add(Add),
    /// List a tenant's or the operators' credentials with their roles and ends; never a token
    List(Of),
    /// Give a credential a new token and print it, this once
    #[command(
        after_help = "Other credentials stay as they are. Without --grace, the old token ends at once; with it, the old token stays valid for that time. \
         The sessions of the old token end with it, unless --keep-sessions is given.\n\n\
         Example: tollgate credential rotate booking --tenant acme --grace 60m --out booking.token"
    )]
    Rotate(Rotate),
    /// End a credential with its tokens, and the sessions that they opened
    #[command(after_help = "Example: tollgate credential revoke booking --tenant acme")]
    Revoke(Revoke),
}

/// Whose credentials.
#[derive(Debug, Args)]
pub(crate) struct Of {
    /// The tenant; with a token, the token's tenant if left out
    #[arg(long)]
    tenant: Option<String>,
    /// The operators' credentials, in place of a tenant's
    #[arg(long, conflicts_with = "tenant")]
    operator: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// The credential's name: lower-case letters, digits, `-`, `_` and `.`; at most 64
    name: String,
    #[command(flatten)]
    of: Of,
    /// What its bearer may do
    #[arg(
        long,
        value_enum,
        default_value = "application",
        conflicts_with = "operator"
    )]
    role: Role,
    /// How long it is valid, such as 12h or 30d, 60s to 3650d; until it is revoked if left out
    #[arg(long, value_name = "TIME", value_parser = long_duration)]
    expires: Option<Duration>,
    #[command(flatten)]
    out: TokenOut,
}

#[derive(Debug, Args)]
pub(crate) struct Rotate {
    /// The credential
    name: String,
    #[command(flatten)]
    of: Of,
    /// How long the old token stays valid, such as 30s or 60m; at most 30 days
    #[arg(long, value_name = "TIME", value_parser = long_duration)]
    grace: Option<Duration>,
    /// Let the sessions of the old token go on
    #[arg(long)]
    keep_sessions: bool,
    #[command(flatten)]
    out: TokenOut,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    /// The credential
    name: String,
    #[command(flatten)]
    of: Of,
    /// Let its sessions go on until they close
    #[arg(long)]
    keep_sessions: bool,
}

/// What the bearer of a credential's token may do.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    /// Administer the tenant, look at it, and open sessions
    Owner,
    /// Look at the tenant
    Viewer,
    /// Open sessions
    Application,
}

/// `tollgate credential …`
pub(crate) fn credential(socket: &Path, args: &CredentialCommand) -> Result<String, Failure> {
    let api = Api::connect(socket, &args.acting)?;
    let tenant = |of: &Of| match of.operator {
        true => Ok(String::new()),
        false => api.tenant(of.tenant.as_deref()),
    };
    // A tenant's request without a tenant would be about its own credentials. Where one is added,
    // the daemon refuses the role.
    let existing = |of: &Of| match of.operator && !api.is_operator()? {
        true => Err(Failure::new(
            Code::PERMISSION_DENIED,
            "--operator is about operators' credentials: only an operator may",
        )),
        false => tenant(of),
    };
    match &args.command {
        Credential::Add(add) => {
            let role = match add.role {
                _ if add.of.operator => proto::Role::Operator,
                Role::Owner => proto::Role::Owner,
                Role::Viewer => proto::Role::Viewer,
                Role::Application => proto::Role::Application,
            };
            let request = AddCredentialRequest {
                tenant: tenant(&add.of)?,
                name: add.name.clone(),
                role: role.into(),
                lifetime: add.expires.map(sent).transpose()?,
            };
            add.out.keep(|| Ok(api.ask(request)?.token))
        }
        Credential::List(of) => {
            let tenant = existing(of)?;
            let listed = api.ask(ListCredentialsRequest { tenant })?;
            let now = SystemTime::now();
            let listed: Vec<_> = listed
                .credentials
                .iter()
                .map(|one| describe(one, now))
                .collect();
            Ok(lines(&listed))
        }
        Credential::Rotate(rotate) => {
            let request = RotateCredentialRequest {
                tenant: existing(&rotate.of)?,
                name: rotate.name.clone(),
                grace: rotate.grace.map(sent).transpose()?,
                keep_sessions: rotate.keep_sessions,
            };
            rotate.out.keep(|| Ok(api.ask(request)?.token))
        }
        Credential::Revoke(revoke) => {
            let revoked = api.ask(RevokeCredentialRequest {
                tenant: existing(&revoke.of)?,
                name: revoke.name.clone(),
                keep_sessions: revoke.keep_sessions,
            })?;
            let sessions = match revoked.ended_sessions {
                1 => "1 session ended".to_owned(),
                many => format!("{many} sessions ended"),
            };
            Ok(format!("revoked {}: {sessions}\n", revoke.name))
        }
    }
}

pub(crate) fn sent(time: Duration) -> Result<prost_types::Duration, Failure> {
    let failed = |_| Failure::input(format_args!("{time:?} is too long"));
    prost_types::Duration::try_from(time).map_err(failed)
}

/// `booking  application  expires in 29 days; the former token ends in 59 minutes`
fn describe(credential: &proto::Credential, now: SystemTime) -> String {
    let role = match credential.role() {
        proto::Role::Owner => "owner",
        proto::Role::Viewer => "viewer",
        proto::Role::Application => "application",
        proto::Role::Operator => "operator",
        proto::Role::Unspecified => "unknown role",
    };
    let mut text = format!("{}  {role}", output::plain(&credential.name));
    let left = |until: &prost_types::Timestamp| {
        let until = SystemTime::try_from(*until).ok()?;
        until.duration_since(now).ok()
    };
    if let Some(expires) = &credential.expires {
        text += &match left(expires) {
            Some(left) => format!("  expires in {}", rough(left)),
            None => "  has expired".to_owned(),
        };
    }
    if let Some(former) = credential.former_token_until.as_ref().and_then(left) {
        text += &format!("  its former token ends in {}", rough(former));
    }
    text
}

/// A time in its largest unit, rounded down.
fn rough(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    match unit {
        Some((unit, name)) => format!("{} {name}", seconds / unit),
        None => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_a_line() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let at = |seconds: u64| {
            Some(prost_types::Timestamp::from(
                now + Duration::from_secs(seconds),
            ))
        };
        let mut credential = proto::Credential {
            name: "booking".to_owned(),
            role: proto::Role::Application.into(),
            ..proto::Credential::default()
        };
        assert_eq!(describe(&credential, now), "booking  application");
        credential.expires = at(30 * 86_400 - 1);
        credential.former_token_until = at(119);
        assert_eq!(
            describe(&credential, now),
            "booking  application  expires in 29 days  its former token ends in 119 s"
        );
        credential.expires = Some(prost_types::Timestamp::from(SystemTime::UNIX_EPOCH));
        credential.former_token_until = None;
        assert_eq!(
            describe(&credential, now),
            "booking  application  has expired"
        );
    }
}

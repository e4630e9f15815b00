//! The API's values in the control plane's words, and back.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tollgate_admin::proto;
use tollgate_admin::{Status, from_json};
use tollgate_shm_abi::blob::{blob_create, blob_read};
use tollgate_shm_abi::messages::{
    ISOLATION_NONE, ISOLATION_PROCESS, MODE_CANARY, MODE_ENFORCE, MODE_SHADOW, Names,
    ON_FAULT_CLOSED, ON_FAULT_OPEN, ON_FAULT_RELOAD, PARTY_PROVIDER, PARTY_PROVIDER_POST,
    PARTY_PROVIDER_PRE, PARTY_TENANT, PolicyOptions, PolicySelection, ResponseBody, SIDE_ANY,
    SIDE_CLIENT, SIDE_SERVER,
};
use tollgate_shm_abi::status::Code;

use crate::control::answers::Answer;
use crate::control::operators::visitor::role_of;

type Result<T> = std::result::Result<T, Status>;

/// A status of the control plane.
pub(super) fn refused(status: tollgate_engine::Status) -> Status {
    Status::new(status.code, status.message.into_owned())
}

pub(super) fn invalid(text: String) -> Status {
    Status::new(Code::INVALID_ARGUMENT, text)
}

/// A value of an enumeration that has to be known.
fn known<T: TryFrom<i32>>(what: &str, number: i32) -> Result<T> {
    T::try_from(number).map_err(|_| invalid(format!("the {what} {number} is unknown")))
}

/// Bytes that travel as a memory file.
pub(super) fn blob(bytes: &[u8]) -> Result<OwnedFd> {
    let failed = |error| {
        Status::new(
            Code::RESOURCE_EXHAUSTED,
            format!("no memory for a request: {error}"),
        )
    };
    blob_create(bytes).map_err(failed)
}

/// The JSON of a report.
pub(super) fn report_of(answer: &Answer) -> Result<Option<prost_types::Struct>> {
    let broken = |what: String| Status::new(Code::INTERNAL, format!("the report {what}"));
    let (ResponseBody::Report(_), Some(blob)) = (&answer.body, answer.fds.first()) else {
        return Err(broken("is missing".to_owned()));
    };
    let json = blob_read(blob, tollgate_admin::MAX_REPORT_BYTES);
    let json = json.map_err(|error| broken(format!("can't be read: {error}")))?;
    let json = serde_json::from_slice(&json);
    let json = json.map_err(|error| broken(format!("isn't JSON: {error}")))?;
    Ok(Some(from_json(json)))
}

/// A side, if it isn't left open.
pub(super) fn side(side: i32) -> Result<i32> {
    Ok(match known("side", side)? {
        proto::Side::Unspecified => SIDE_ANY,
        proto::Side::Client => SIDE_CLIENT,
        proto::Side::Server => SIDE_SERVER,
    })
}

/// A mode; it may not be left open.
pub(super) fn mode(mode: i32) -> Result<i32> {
    Ok(match known("mode", mode)? {
        proto::Mode::Unspecified => return Err(invalid("the mode is missing".to_owned())),
        proto::Mode::Enforce => MODE_ENFORCE,
        proto::Mode::Shadow => MODE_SHADOW,
        proto::Mode::Canary => MODE_CANARY,
    })
}

/// The part of the chain for an owner's policy; `open` is the provider's if it is left open.
pub(super) fn party(party: i32, is_provider: bool, open: i32) -> Result<i32> {
    let party = known("party", party)?;
    Ok(match (party, is_provider) {
        (proto::Party::Unspecified, false) | (proto::Party::Tenant, false) => PARTY_TENANT,
        (proto::Party::Unspecified, true) => open,
        (proto::Party::ProviderPre, true) => PARTY_PROVIDER_PRE,
        (proto::Party::ProviderPost, true) => PARTY_PROVIDER_POST,
        (proto::Party::Tenant, true) => {
            return Err(invalid(
                "the provider's policies have no place in a tenant's part".into(),
            ));
        }
        (proto::Party::ProviderPre | proto::Party::ProviderPost, false) => {
            return Err(invalid(
                "a tenant's policies have no place in the provider's parts".into(),
            ));
        }
    })
}

/// Some attachments.
pub(super) fn selection(at: Option<&proto::PolicySelection>) -> Result<PolicySelection> {
    let at = at.cloned().unwrap_or_default();
    let owner = at.owner.unwrap_or_default();
    Ok(PolicySelection {
        policy: at.name,
        side: side(at.side)?,
        party: party(at.party, owner.provider, PARTY_PROVIDER)?,
        tenant: owner.tenant,
        service: at.service,
        method: at.method,
    })
}

/// The conditions of an attachment.
pub(super) fn options(options: proto::AttachmentOptions) -> Result<PolicyOptions> {
    let names = |names: Option<proto::Names>| names.map(|names| Names { names: names.names });
    Ok(PolicyOptions {
        on_fault: match known("on_fault", options.on_fault)? {
            proto::OnFault::Unspecified => None,
            proto::OnFault::Reload => Some(ON_FAULT_RELOAD),
            proto::OnFault::Closed => Some(ON_FAULT_CLOSED),
            proto::OnFault::Open => Some(ON_FAULT_OPEN),
        },
        isolation: match known("isolation", options.isolation)? {
            proto::Isolation::Unspecified => None,
            proto::Isolation::None => Some(ISOLATION_NONE),
            proto::Isolation::Process => Some(ISOLATION_PROCESS),
        },
        hooks: names(options.hooks),
        fields: names(options.fields),
        metadata: names(options.metadata),
        capabilities: names(options.capabilities),
        cpu_us: options.cpu_us,
        fresh: options.fresh,
        record: options.record,
        max_worse: options.max_worse,
    })
}

/// A role; it may not be left open.
pub(super) fn role(role: i32) -> Result<tollgate_control::Role> {
    Ok(match known("role", role)? {
        proto::Role::Unspecified => return Err(invalid("the role is missing".to_owned())),
        proto::Role::Owner => tollgate_control::Role::Owner,
        proto::Role::Viewer => tollgate_control::Role::Viewer,
        proto::Role::Application => tollgate_control::Role::Application,
        proto::Role::Operator => tollgate_control::Role::Operator,
    })
}

/// A time that isn't negative. It may come in any form: out of its range, its text can't be made.
pub(super) fn duration(what: &str, duration: prost_types::Duration) -> Result<Duration> {
    let prost_types::Duration { seconds, nanos } = duration;
    match (u64::try_from(seconds), u32::try_from(nanos)) {
        (Ok(seconds), Ok(nanos @ 0..1_000_000_000)) => Ok(Duration::new(seconds, nanos)),
        _ => Err(invalid(format!(
            "the {what} of {seconds} s and {nanos} ns is negative, or has too many nanoseconds"
        ))),
    }
}

/// A credential, without its token.
pub(super) fn credential(credential: tollgate_control::Credential) -> proto::Credential {
    proto::Credential {
        name: credential.name,
        role: role_of(credential.role).into(),
        expires: credential.expires.map(Into::into),
        former_token_until: credential.former_until.map(Into::into),
    }
}

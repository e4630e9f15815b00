//! The API's values in the control plane's words, and back.

use std::time::Duration;

use tollgate_admin::{Status, proto};
use tollgate_control::{ALL, Isolation, OnFault, Owner, Party, Selection, Side, Trial};
use tollgate_shm_abi::status::Code;

use crate::control::operators::visitor::role_of;
use crate::control::policies::lifecycle::{GivenOptions, Selected};

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

/// A text, if there is one.
pub(super) fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// A descriptor set, if there is one.
pub(super) fn schema(bytes: Vec<u8>) -> Option<Vec<u8>> {
    Some(bytes).filter(|bytes| !bytes.is_empty())
}

/// The owner of a policy.
pub(super) fn owner(owner: Option<proto::Owner>) -> Owner {
    match owner.unwrap_or_default() {
        proto::Owner { provider: true, .. } => Owner::Provider,
        proto::Owner { tenant, .. } => Owner::Tenant(tenant),
    }
}

/// A tenant or service of an attachment: the provider's are for all if they are left open.
pub(super) fn or_all(name: String, is_provider: bool) -> String {
    match name.is_empty() && is_provider {
        true => ALL.to_owned(),
        false => name,
    }
}

/// A side, if it isn't left open.
pub(super) fn side(side: i32) -> Result<Option<Side>> {
    Ok(match known("side", side)? {
        proto::Side::Unspecified => None,
        proto::Side::Client => Some(Side::Client),
        proto::Side::Server => Some(Side::Server),
    })
}

/// The side of an attachment; it may not be left open.
pub(super) fn one_side(number: i32) -> Result<Side> {
    side(number)?.ok_or_else(|| invalid("the side is missing: client or server".to_owned()))
}

/// The trial of a mode, which may not be left open; `None`: the version decides all calls.
pub(super) fn trial(mode: i32, percent: u32) -> Result<Option<Trial>> {
    Ok(match (known("mode", mode)?, u8::try_from(percent)) {
        (proto::Mode::Unspecified, _) => return Err(invalid("the mode is missing".to_owned())),
        (proto::Mode::Enforce, _) => None,
        (proto::Mode::Shadow, _) => Some(Trial::Shadow),
        (proto::Mode::Canary, Ok(percent @ 1..=100)) => Some(Trial::Canary(percent)),
        (proto::Mode::Canary, _) => {
            let text = format!("a canary of {percent}% is out of range: 1 to 100 are allowed");
            return Err(invalid(text));
        }
    })
}

/// The part of the chain for an owner's policy; `None`: a part of the provider's that is left open.
pub(super) fn party(party: i32, is_provider: bool) -> Result<Option<Party>> {
    Ok(match (known("party", party)?, is_provider) {
        (proto::Party::Unspecified | proto::Party::Tenant, false) => Some(Party::Tenant),
        (proto::Party::Unspecified, true) => None,
        (proto::Party::ProviderPre, true) => Some(Party::ProviderPre),
        (proto::Party::ProviderPost, true) => Some(Party::ProviderPost),
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
pub(super) fn selection(at: Option<proto::PolicySelection>) -> Result<Selected> {
    let at = at.unwrap_or_default();
    let of = at.owner.clone().unwrap_or_default();
    Ok(Selected {
        policy: at.name,
        places: Selection {
            party: party(at.party, of.provider)?,
            tenant: some(of.tenant),
            service: some(at.service),
            method: some(at.method),
            side: side(at.side)?,
        },
        owner: owner(at.owner),
    })
}

/// The conditions of an attachment.
pub(super) fn options(options: proto::AttachmentOptions) -> Result<GivenOptions> {
    let names = |names: Option<proto::Names>| names.map(|names| names.names);
    let points = options.max_worse.map(|points| {
        u8::try_from(points).map_err(|_| {
            invalid(format!(
                "max-worse {points} is out of range: 0 to 100 are allowed"
            ))
        })
    });
    Ok(GivenOptions {
        on_fault: match known("on_fault", options.on_fault)? {
            proto::OnFault::Unspecified => None,
            proto::OnFault::Reload => Some(OnFault::Reload),
            proto::OnFault::Closed => Some(OnFault::Closed),
            proto::OnFault::Open => Some(OnFault::Open),
        },
        isolation: match known("isolation", options.isolation)? {
            proto::Isolation::Unspecified => None,
            proto::Isolation::None => Some(Isolation::None),
            proto::Isolation::Process => Some(Isolation::Process),
        },
        hooks: names(options.hooks),
        fields: names(options.fields),
        metadata: names(options.metadata),
        callers: names(options.callers),
        capabilities: names(options.capabilities),
        cpu_us: options.cpu_us,
        fresh: options.fresh,
        record: options.record,
        max_worse: points.transpose()?,
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

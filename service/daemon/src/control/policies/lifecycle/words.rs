//! Translates the numbers and lists of an administrative request. They come from any client that
//! may open the socket, maybe of another version: unknown values are rejected.

use tollgate_control::{Isolation, OnFault, Options, Owner, Party, Selection, Side, Trial};
use tollgate_engine::Status;
use tollgate_shm_abi::messages::{
    ISOLATION_NONE, ISOLATION_PROCESS, MODE_CANARY, MODE_SHADOW, ON_FAULT_CLOSED, ON_FAULT_OPEN,
    ON_FAULT_RELOAD, PARTY_PROVIDER, PARTY_PROVIDER_POST, PARTY_PROVIDER_PRE, PARTY_TENANT,
    PolicyOptions, PolicySelection, SIDE_ANY, SIDE_CLIENT, SIDE_SERVER,
};

use crate::control::policies::lifecycle::refused;
use crate::control::refusals::invalid;

/// The owner of the selected policies, and their selected attachments.
pub(in crate::control) fn selection_of(
    request: &PolicySelection,
) -> Result<(Owner, Selection), Status> {
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    let side = match request.side {
        SIDE_ANY => None,
        side => Some(side_of(side)?),
    };
    let party = match request.party {
        PARTY_PROVIDER => None,
        party => Some(party_of(party)?),
    };
    let owner = match party {
        Some(Party::Tenant) => Owner::Tenant(request.tenant.clone()),
        _ => Owner::Provider,
    };
    let which = Selection {
        party,
        tenant: some(&request.tenant),
        service: some(&request.service),
        method: some(&request.method),
        side,
    };
    Ok((owner, which))
}

pub(in crate::control) fn trial_of(mode: i32, percent: u32) -> Result<Trial, Status> {
    match (mode, u8::try_from(percent)) {
        (MODE_SHADOW, _) => Ok(Trial::Shadow),
        (MODE_CANARY, Ok(percent @ 1..=100)) => Ok(Trial::Canary(percent)),
        (MODE_CANARY, _) => Err(invalid(format!(
            "a canary of {percent}% is out of range: 1 to 100 are allowed"
        ))),
        (other, _) => Err(invalid(format!(
            "mode {other} is neither shadow (1) nor canary (2)"
        ))),
    }
}

pub(in crate::control) fn party_of(party: i32) -> Result<Party, Status> {
    match party {
        PARTY_TENANT => Ok(Party::Tenant),
        PARTY_PROVIDER_PRE => Ok(Party::ProviderPre),
        PARTY_PROVIDER_POST => Ok(Party::ProviderPost),
        other => Err(invalid(format!(
            "party {other} is neither tenant (0), provider-pre (1) nor provider-post (2)"
        ))),
    }
}

pub(in crate::control) fn side_of(side: i32) -> Result<Side, Status> {
    match side {
        SIDE_CLIENT => Ok(Side::Client),
        SIDE_SERVER => Ok(Side::Server),
        other => Err(invalid(format!(
            "side {other} is neither client (0) nor server (1)"
        ))),
    }
}

/// Given options replace the present ones.
pub(in crate::control) fn merge(options: &mut Options, given: PolicyOptions) -> Result<(), Status> {
    if let Some(on_fault) = given.on_fault {
        options.on_fault = match on_fault {
            ON_FAULT_RELOAD => OnFault::Reload,
            ON_FAULT_CLOSED => OnFault::Closed,
            ON_FAULT_OPEN => OnFault::Open,
            other => {
                return Err(invalid(format!(
                    "on-fault {other} is neither reload (0), closed (1) nor open (2)"
                )));
            }
        };
    }
    let lists = [
        (&mut options.hooks, given.hooks),
        (&mut options.fields, given.fields),
        (&mut options.metadata, given.metadata),
        (&mut options.capabilities, given.capabilities),
    ];
    for (list, given) in lists {
        if let Some(given) = given {
            *list = Some(given.names);
        }
    }
    options.cpu_us = given.cpu_us.or(options.cpu_us);
    options.fresh = given.fresh.unwrap_or(options.fresh);
    if let Some(isolation) = given.isolation {
        options.isolation = Some(match isolation {
            ISOLATION_NONE => Isolation::None,
            ISOLATION_PROCESS => Isolation::Process,
            other => {
                return Err(invalid(format!(
                    "isolation {other} is neither none (0) nor process (1)"
                )));
            }
        });
    }
    options.record = given.record.unwrap_or(options.record);
    if let Some(points) = given.max_worse {
        let points = u8::try_from(points).map_err(|_| {
            invalid(format!(
                "max-worse {points} is out of range: 0 to 100 are allowed"
            ))
        });
        options.max_worse = points?;
    }
    // Lists that are too long cost nobody a search.
    options.check().map_err(refused)
}

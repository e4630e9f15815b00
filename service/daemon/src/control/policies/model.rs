//! Policies in force: versions, attachments, and the bindings that they cover.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_control::{Attachment, OnFault, Owner, Party, Side, Trial};
use tollgate_engine::{ServiceId, SessionId, chain};
use tollgate_policy_host::{Attribute, Attributes, Policy};

use crate::control::apps::schemas::BoundSchema;
use crate::limits::{FAULT_MEMORY, RELOAD_PAUSE};
use tollgate_datapath::RuntimeIndex;
use tollgate_policy_chain::ids::{AttachmentId, VersionNumber};
use tollgate_policy_chain::plan::{Installed, Place, Scope};

/// A version of a policy in one place of an attachment.
#[derive(Clone)]
pub(crate) struct Version {
    pub(crate) number: VersionNumber,
    /// The error is the sentence that says why it can't run, which also becomes the status of
    /// calls. Its calls are handled as the attachment says.
    pub(crate) loaded: Result<Loaded, String>,
}

/// A compiled module and its configuration.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) policy: Policy,
    pub(crate) config: Option<Arc<[u8]>>,
}

/// An attachment on one runtime.
#[derive(Clone)]
pub(crate) struct LiveAttachment {
    /// As stored.
    pub(crate) attachment: Attachment,
    pub(crate) runtime: RuntimeIndex,
    /// The order among the attachments of its party.
    pub(crate) place: u64,
    pub(crate) stable: Option<Version>,
    pub(crate) candidate: Option<Version>,
    /// Why the stable version isn't the stored one, which couldn't be loaded when the daemon
    /// started.
    pub(crate) fallback: Option<String>,
    /// Rises with every change of a place, so that a task that waited notices the change.
    pub(crate) incarnation: u64,
    pub(crate) faults: Faults,
}

/// The faults of a stable version, for the pause before the next instance and for the circuit
/// breaker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    in_a_row: u32,
    last: Option<Instant>,
    recent: VecDeque<Instant>,
}

impl Faults {
    /// Notes a fault; returns the pause before the next instance.
    pub(crate) fn pause(&mut self, now: Instant) -> Duration {
        let recent = self.last.is_some_and(|at| now < at + FAULT_MEMORY);
        self.in_a_row = if recent {
            (self.in_a_row + 1).min(16)
        } else {
            0
        };
        self.last = Some(now);
        let (first, longest) = RELOAD_PAUSE;
        (first * (1 << self.in_a_row)).min(longest)
    }

    /// Notes a fault; returns whether there were `most` within `window`.
    pub(crate) fn breaks(&mut self, now: Instant, most: u32, window: Duration) -> bool {
        self.recent.push_back(now);
        while self.recent.front().is_some_and(|at| now >= *at + window) {
            self.recent.pop_front();
        }
        // Older faults don't matter.
        while self.recent.len() > most as usize {
            self.recent.pop_front();
        }
        self.recent.len() >= most as usize
    }
}

impl LiveAttachment {
    /// Whether it evaluates calls of a caller with these attributes.
    pub(crate) fn evaluates_calls_of(&self, caller: &Attributes) -> bool {
        let options = &self.attachment.options;
        options.are_for(|name| caller.get(Attribute::named(name).ok()?))
    }

    /// `acl of tenant acme`, `acl of the provider`.
    pub(crate) fn label(&self) -> String {
        let name = &self.attachment.policy;
        match self.attachment.target.owner() {
            Owner::Provider => format!("{name} of the provider"),
            Owner::Tenant(tenant) => format!("{name} of tenant {tenant}"),
        }
    }

    /// The attachment for a runtime, with the given places.
    pub(crate) fn installed(&self, id: AttachmentId, stable: Place, candidate: Place) -> Installed {
        let Attachment {
            target,
            slot,
            options,
            ..
        } = &self.attachment;
        let account = match target.party {
            Party::Tenant => target.tenant.as_str(),
            Party::ProviderPre | Party::ProviderPost => "",
        };
        Installed {
            id,
            label: self.label(),
            party: party(target.party),
            account: account.into(),
            on_fault: match options.on_fault {
                OnFault::Reload => chain::OnFault::Reload,
                OnFault::Closed => chain::OnFault::Closed,
                OnFault::Open => chain::OnFault::Open,
            },
            max_worse: options.max_worse,
            stable,
            candidate,
            trial: slot.candidate.map(|candidate| match candidate.trial {
                Trial::Shadow => chain::Trial::Shadow,
                Trial::Canary(percent) => chain::Trial::Canary(percent),
            }),
            record: options.record,
        }
    }
}

fn party(party: Party) -> chain::Party {
    match party {
        Party::ProviderPre => chain::Party::ProviderPre,
        Party::Tenant => chain::Party::Tenant,
        Party::ProviderPost => chain::Party::ProviderPost,
    }
}

/// A binding that has chains.
pub(crate) struct LiveBinding {
    pub(crate) runtime: RuntimeIndex,
    pub(crate) session: SessionId,
    pub(crate) tenant: String,
    /// Of who calls through it.
    pub(crate) caller: Attributes,
    pub(crate) schema: Arc<BoundSchema>,
    pub(crate) first_handle: u32,
    /// Only for servers.
    pub(crate) service: Option<ServiceId>,
}

impl LiveBinding {
    pub(crate) fn side(&self) -> Side {
        if self.service.is_some() {
            Side::Server
        } else {
            Side::Client
        }
    }

    pub(crate) fn scope(&self, method: u16) -> Scope {
        match self.service {
            Some(service) => Scope::Server { service, method },
            None => Scope::Client {
                session: self.session,
                handle: self.first_handle + u32::from(method),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_instances_double_up_to_the_limit() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        let pauses: Vec<u128> = (0..9).map(|_| faults.pause(start).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        let later = start + FAULT_MEMORY;
        assert_eq!(
            faults.pause(later),
            RELOAD_PAUSE.0,
            "forgiven after {FAULT_MEMORY:?} without a fault"
        );
    }

    #[test]
    fn the_circuit_breaks_at_the_fifth_fault_within_the_window() {
        let (start, window) = (Instant::now(), Duration::from_secs(60));
        let at = |secs| start + Duration::from_secs(secs);
        let mut faults = Faults::default();
        let broken: Vec<bool> = [0, 1, 2, 59, 59]
            .map(|s| faults.breaks(at(s), 5, window))
            .into();
        assert_eq!(broken, [false, false, false, false, true]);
        let mut faults = Faults::default();
        let broken: Vec<bool> = [0, 20, 40, 59, 60, 80, 99]
            .map(|s| faults.breaks(at(s), 5, window))
            .into();
        assert_eq!(
            broken,
            [false, false, false, false, false, false, true],
            "the first was forgiven at 60"
        );
    }
}

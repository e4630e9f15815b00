//! A version's state: handed over to a successor, or saved for another process.

use tollgate_policy_host::{Fault, Instance, Policy};

use super::{Body, Version};
use crate::context::Meter;
use crate::ids::{AccountId, AttachmentId};
use crate::isolated::{IsolatedVersion, Processes};

/// Why state wasn't handed over.
pub(crate) enum HandOver {
    /// The version in force failed.
    Save(Fault),
    /// The new version failed, or rejected the state, or its process takes no orders.
    Restore(String),
}

impl Version {
    /// Hands this version's state over to `successor`. An error ends the successor. A fault of this
    /// version while saving counts as any other fault, and is also returned.
    pub(crate) fn hand_over(
        &mut self,
        successor: &mut Instance,
        account: Option<AccountId>,
        meter: &mut Meter,
    ) -> Result<(), HandOver> {
        if let Body::Isolated(isolated) = &self.body {
            return hands_nothing(&isolated.policy, successor.policy());
        }
        let saved = self.save(account, meter).map_err(HandOver::Save)?;
        let own_format = successor.policy().manifest().state_version();
        let (Some((format, saved)), Some(_)) = (saved, own_format) else {
            return Ok(());
        };
        let restored = successor.restore(format, &saved);
        meter.charge(account, successor.fuel_used());
        restored.map_err(|fault| HandOver::Restore(fault.to_string()))
    }

    /// Saves its state, with its format number; `None` if there is no state here. An error is a
    /// fault as any other.
    pub(crate) fn save(
        &mut self,
        account: Option<AccountId>,
        meter: &mut Meter,
    ) -> Result<Option<(u32, Vec<u8>)>, Fault> {
        let Body::Kept(instance) = &mut self.body else {
            return Ok(None);
        };
        let saved = instance.save();
        let format = instance.policy().manifest().state_version().unwrap_or(0);
        self.counts.cpu_ns += meter.charge(account, instance.fuel_used());
        match saved {
            Ok(saved) => Ok(saved.map(|saved| (format, saved))),
            Err(fault) => {
                self.fail(&fault.to_string());
                Err(fault)
            }
        }
    }

    /// Continues from a state that another process has saved.
    pub(crate) fn restore(&mut self, format: u32, saved: &[u8]) -> Result<(), Fault> {
        match &mut self.body {
            Body::Kept(instance) => instance.restore(format, saved),
            Body::Compat(_) | Body::Fresh(_) | Body::Isolated(_) | Body::Down => Ok(()),
        }
    }

    /// Orders that `successor` continues from this version's state. The result is known later: if
    /// it fails, the successor fails.
    pub(crate) fn hand_over_isolated(
        &self,
        successor: IsolatedVersion<'_>,
        slot: AttachmentId,
        meter: &Meter,
        processes: &mut Processes,
    ) -> Result<(), HandOver> {
        match &self.body {
            Body::Kept(instance) => hands_nothing(instance.policy(), &successor.isolated.policy),
            Body::Isolated(isolated) if isolated.process == successor.isolated.process => {
                let from = IsolatedVersion {
                    version: self.number,
                    isolated,
                };
                processes
                    .hand_over(from, successor, slot, meter.order_time())
                    .map_err(|error| HandOver::Restore(error.to_string()))
            }
            // This version's process has ended, and its state with it.
            Body::Isolated(_) | Body::Compat(_) | Body::Fresh(_) | Body::Down => Ok(()),
        }
    }
}

/// State can't be handed over between the daemon and a process; an error if both versions have
/// state.
fn hands_nothing(from: &Policy, to: &Policy) -> Result<(), HandOver> {
    let both = [from, to].map(|policy| policy.manifest().state_version().is_some());
    match both {
        [true, true] => Err(HandOver::Restore(
            "state isn't handed over between the daemon and a process of the tenant's; attach the policy anew"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}

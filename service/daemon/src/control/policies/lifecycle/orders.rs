//! Changes of attachments as they are ordered. A stored order is JSON, so that another version of
//! this daemon can carry it out.

use serde::{Deserialize, Serialize};
use tollgate_control::{Isolation, OnFault, Options, Owner, Selection, StoreError, Target, Trial};

/// A change that an operator or a tenant orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::control) enum Order {
    Attach(Attach),
    Upgrade(Upgrade),
    Promote(Selected),
}

/// A version comes into force, or on trial if no version decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::control) struct Attach {
    pub(in crate::control) policy: String,
    pub(in crate::control) version: u32,
    pub(in crate::control) target: Target,
    pub(in crate::control) trial: Option<Trial>,
    pub(in crate::control) options: GivenOptions,
}

/// A version comes on trial beside the stable one, or replaces it at once; it continues from that
/// one's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::control) struct Upgrade {
    pub(in crate::control) at: Selected,
    pub(in crate::control) version: u32,
    pub(in crate::control) trial: Option<Trial>,
    /// The daemon promotes it after this time without a failure; none: only an operator does.
    pub(in crate::control) probation_ms: Option<u64>,
}

/// Some attachments of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::control) struct Selected {
    pub(in crate::control) owner: Owner,
    pub(in crate::control) policy: String,
    pub(in crate::control) places: Selection,
}

/// The options that a request gives. An attachment keeps the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::control) struct GivenOptions {
    pub(in crate::control) on_fault: Option<OnFault>,
    pub(in crate::control) hooks: Option<Vec<String>>,
    pub(in crate::control) fields: Option<Vec<String>>,
    pub(in crate::control) metadata: Option<Vec<String>>,
    /// Empty: everybody's calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::control) callers: Option<Vec<String>>,
    pub(in crate::control) capabilities: Option<Vec<String>>,
    pub(in crate::control) cpu_us: Option<u32>,
    pub(in crate::control) fresh: Option<bool>,
    pub(in crate::control) isolation: Option<Isolation>,
    pub(in crate::control) record: Option<u32>,
    pub(in crate::control) max_worse: Option<u8>,
}

impl GivenOptions {
    /// The options with the given ones in place of the present ones.
    ///
    /// # Errors
    /// One is out of its range. Lists that are too long cost nobody a search.
    pub(in crate::control) fn over(self, present: Options) -> Result<Options, StoreError> {
        let options = Options {
            on_fault: self.on_fault.unwrap_or(present.on_fault),
            hooks: self.hooks.or(present.hooks),
            fields: self.fields.or(present.fields),
            metadata: self.metadata.or(present.metadata),
            callers: self
                .callers
                .or(present.callers)
                .filter(|list| !list.is_empty()),
            capabilities: self.capabilities.or(present.capabilities),
            cpu_us: self.cpu_us.or(present.cpu_us),
            fresh: self.fresh.unwrap_or(present.fresh),
            isolation: self.isolation.or(present.isolation),
            record: self.record.unwrap_or(present.record),
            max_worse: self.max_worse.unwrap_or(present.max_worse),
        };
        options.check()?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_control::{Party, Side};

    /// Requests that wait are stored like this, for whichever version of the daemon approves them.
    #[test]
    fn a_stored_order_has_this_form() {
        let at = || Selected {
            owner: Owner::Tenant("acme".to_owned()),
            policy: "acl".to_owned(),
            places: Selection {
                party: Some(Party::Tenant),
                tenant: Some("acme".to_owned()),
                side: Some(Side::Server),
                ..Selection::default()
            },
        };
        let attach = Attach {
            policy: "acl".to_owned(),
            version: 2,
            target: Target {
                party: Party::Tenant,
                tenant: "acme".to_owned(),
                service: "a.B".to_owned(),
                method: String::new(),
                side: Side::Client,
            },
            trial: Some(Trial::Canary(10)),
            options: GivenOptions {
                isolation: Some(Isolation::Process),
                ..GivenOptions::default()
            },
        };
        let upgrade = Upgrade {
            at: at(),
            version: 3,
            trial: Some(Trial::Shadow),
            probation_ms: Some(60_000),
        };
        let places = r#"{"owner":{"tenant":"acme"},"policy":"acl","places":{"party":"tenant","tenant":"acme","service":null,"method":null,"side":"server"}}"#;
        let options = r#"{"on_fault":null,"hooks":null,"fields":null,"metadata":null,"capabilities":null,"cpu_us":null,"fresh":null,"isolation":"process","record":null,"max_worse":null}"#;
        let stored = [
            (
                Order::Attach(attach),
                format!(
                    r#"{{"attach":{{"policy":"acl","version":2,"target":{{"party":"tenant","tenant":"acme","service":"a.B","method":"","side":"client"}},"trial":{{"canary":10}},"options":{options}}}}}"#
                ),
            ),
            (
                Order::Upgrade(upgrade),
                format!(
                    r#"{{"upgrade":{{"at":{places},"version":3,"trial":"shadow","probation_ms":60000}}}}"#
                ),
            ),
            (Order::Promote(at()), format!(r#"{{"promote":{places}}}"#)),
        ];
        for (order, json) in stored {
            assert_eq!(serde_json::to_string(&order).unwrap(), json);
            assert_eq!(serde_json::from_str::<Order>(&json).unwrap(), order);
        }
    }
}

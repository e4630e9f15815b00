//! What documents want. The names in it are checked by the store when it is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tollgate_admin::proto::PolicyProof;
use tollgate_control::{DocumentSet, Hashed, Options, Owner, Target, Trial, WantedCredential};

/// What documents want, and how they are applied.
#[derive(Debug, Default)]
pub(in crate::control) struct Wanted {
    /// The only tenant that they are about; `None`: everything.
    pub(in crate::control) only: Option<String>,
    pub(in crate::control) set: DocumentSet,
    pub(in crate::control) dry_run: bool,
    pub(in crate::control) prune: bool,
    pub(in crate::control) tenants: BTreeSet<String>,
    /// By tenant, empty for the default ceiling, and key.
    pub(in crate::control) ceilings: BTreeMap<(String, String), String>,
    /// By tenant and name.
    pub(in crate::control) credentials: BTreeMap<(String, String), WantedCredential>,
    pub(in crate::control) policies: Vec<WantedPolicy>,
    pub(in crate::control) attachments: Vec<WantedAttachment>,
    pub(in crate::control) settings: BTreeMap<String, String>,
}

/// A version of a policy.
#[derive(Debug)]
pub(in crate::control) struct WantedPolicy {
    pub(in crate::control) owner: Owner,
    pub(in crate::control) name: String,
    /// `None`: the one with this content, or else the next one.
    pub(in crate::control) version: Option<u32>,
    pub(in crate::control) module: Content,
    pub(in crate::control) configuration: Option<Content>,
    pub(in crate::control) proof: Option<Arc<PolicyProof>>,
}

/// Bytes, or their digest.
#[derive(Clone, Debug)]
pub(in crate::control) enum Content {
    Bytes(Hashed),
    /// The owner has a version with them.
    Digest([u8; 32]),
}

impl Content {
    pub(super) fn digest(&self) -> [u8; 32] {
        match self {
            Content::Bytes(hashed) => *hashed.digest(),
            Content::Digest(digest) => *digest,
        }
    }
}

/// A policy at a place.
#[derive(Debug)]
pub(in crate::control) struct WantedAttachment {
    pub(in crate::control) target: Target,
    pub(in crate::control) policy: String,
    pub(in crate::control) stable: Option<WantedVersion>,
    pub(in crate::control) trial: Option<WantedTrial>,
    pub(in crate::control) options: Options,
}

/// A version of a policy.
#[derive(Clone, Copy, Debug)]
pub(in crate::control) enum WantedVersion {
    Number(u32),
    /// That of one of the documents.
    Of(usize),
}

/// A version on trial.
#[derive(Debug)]
pub(in crate::control) struct WantedTrial {
    pub(in crate::control) version: WantedVersion,
    pub(in crate::control) trial: Trial,
    pub(in crate::control) probation_ms: Option<u64>,
}

impl Wanted {
    /// The owners of all objects; the provider's is also what the daemon has.
    pub(super) fn owners(&self) -> BTreeSet<Owner> {
        let tenant = |name: &String| match name.is_empty() {
            true => Owner::Provider,
            false => Owner::Tenant(name.clone()),
        };
        let tenants = self.tenants.iter().map(tenant);
        let ceilings = self.ceilings.keys().map(|(of, _)| tenant(of));
        let credentials = self.credentials.keys().map(|(of, _)| tenant(of));
        let policies = self.policies.iter().map(|policy| policy.owner.clone());
        let attachments = self.attachments.iter().flat_map(|attachment| {
            let calls = attachment.target.tenant.as_str();
            let calls = (calls != tollgate_control::ALL).then(|| Owner::Tenant(calls.to_owned()));
            [attachment.target.owner()].into_iter().chain(calls)
        });
        let owners = tenants.chain(ceilings).chain(credentials);
        owners.chain(policies).chain(attachments).collect()
    }
}

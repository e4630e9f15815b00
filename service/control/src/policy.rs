//! How policies are named: whose they are, and which version.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The owner of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Owner {
    /// The daemon's operator: the policy may evaluate every tenant's calls.
    Provider,
    /// A tenant: the policy evaluates only that tenant's calls.
    Tenant(String),
}

impl Owner {
    /// The owner in keys: the tenant's name, which is never empty, or an empty text.
    pub(crate) fn key(&self) -> &str {
        match self {
            Owner::Provider => "",
            Owner::Tenant(tenant) => tenant,
        }
    }

    pub(crate) fn from_key(key: &str) -> Owner {
        match key {
            "" => Owner::Provider,
            tenant => Owner::Tenant(tenant.to_owned()),
        }
    }

    /// The tenant, if the owner is one.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Owner::Provider => None,
            Owner::Tenant(tenant) => Some(tenant),
        }
    }
}

/// `tenant "acme"` or `the provider`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Provider => f.write_str("the provider"),
            Owner::Tenant(tenant) => write!(f, "tenant {tenant:?}"),
        }
    }
}

/// One version of a policy, written `acl@1`. Versions count from 1 per owner and name, and are
/// never reused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyVersion {
    /// The policy's name.
    pub name: String,
    /// The version.
    pub version: u32,
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

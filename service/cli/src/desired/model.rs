//! What a document may say. `schema.json` says the same to editors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Desired state of a Tollgate daemon. What no document names stays as it is.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Document {
    /// The schema of the document, for editors.
    #[serde(rename = "$schema", skip_serializing_if = "Option::is_none")]
    pub(super) schema: Option<String>,
    /// Values of the default ceiling, of all tenants that have no own value. For operators.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) default_ceiling: BTreeMap<String, Scalar>,
    /// Settings of the daemon, set at run time. For operators.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) settings: BTreeMap<String, Scalar>,
    /// Tenants that exist.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tenants: Vec<Tenant>,
    /// Versions of policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) policies: Vec<Policy>,
    /// Policies in force, and on trial. New ones of a place are evaluated in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) attachments: Vec<Attachment>,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub(super) enum Scalar {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
    /// Several values.
    List(Vec<Scalar>),
}

/// A tenant that exists.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tenant {
    /// Its name.
    pub(super) name: String,
    /// Values of its own ceiling, by key. For operators.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) ceiling: BTreeMap<String, Scalar>,
    /// Its credentials.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) credentials: Vec<Credential>,
}

/// A credential. Its token is named, never written; the daemon gets its digest.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Credential {
    /// Its name.
    pub(super) name: String,
    /// What its bearer may do.
    pub(super) role: Role,
    /// When it ends, such as `2027-01-01T00:00:00Z`; if left out, when it is revoked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<String>,
    /// A file with its token. Without a token, an existing credential keeps its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_file: Option<String>,
    /// A variable of the environment with its token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_env: Option<String>,
    /// The SHA-256 of its token, as `sha256:` and 64 hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_digest: Option<String>,
}

/// What a bearer may do.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    /// Administer the tenant, look at it, and open sessions.
    Owner,
    /// Look at the tenant.
    Viewer,
    /// Open sessions.
    Application,
}

/// A version of a policy.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    /// The tenant that owns it; with a token, the token's tenant if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<String>,
    /// The provider owns it. For operators.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) provider: bool,
    /// Its name.
    pub(super) name: String,
    /// Its version; if left out, the one with this module and configuration, or else the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<u32>,
    /// The module: a file's path, from the document's directory; `oci://IMAGE@sha256:DIGEST`; or
    /// `sha256:DIGEST`, which one of the owner's versions has.
    pub(super) module: String,
    /// A signature of the file's bytes, as `cosign sign-blob` prints it: a file's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signature: Option<String>,
    /// The configuration: a file's path; or `sha256:DIGEST`, which one of the owner's versions has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) configuration: Option<String>,
    /// The configuration itself, instead of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) configuration_text: Option<String>,
}

/// A policy in force, or on trial, where it evaluates calls.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Attachment {
    /// The tenant that owns the policy; for the provider's, the tenant whose calls are evaluated,
    /// all if left out; with a token, the token's tenant if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<String>,
    /// The provider owns the policy. For operators.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) provider: bool,
    /// The policy's name.
    pub(super) policy: String,
    /// The version that decides. If left out, it is that of the policy in the documents; beside a
    /// trial, none decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<u32>,
    /// A version on trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trial: Option<Trial>,
    /// The service's full name; if left out, for the provider, every service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) service: Option<String>,
    /// The method's name; if left out, every method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) method: Option<String>,
    /// The daemon of a call in which it is evaluated.
    pub(super) side: Side,
    /// The part of the chain, for the provider's; if left out, before the tenants'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) part: Option<Part>,
    /// How calls are handled after a fault; `reload` if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) on_fault: Option<OnFault>,
    /// The hooks at which it may run; if left out, all declared ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hooks: Option<Vec<String>>,
    /// The fields that it may see; if left out, all declared ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fields: Option<Vec<String>>,
    /// The metadata keys that it may see; if left out, all declared ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<Vec<String>>,
    /// Whose calls it evaluates, on the client's side: `application=NAME` of a credential,
    /// `uid=NUMBER` or `gid=NUMBER`; if left out, everybody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) callers: Option<Vec<String>>,
    /// Capabilities in addition to `log` and `metrics`; if left out, `state` and `change`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) capabilities: Option<Vec<String>>,
    /// CPU time per call in microseconds; if left out, the daemon's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_us: Option<u32>,
    /// A new instance for every call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fresh: Option<bool>,
    /// Where it runs; if left out, as the daemon is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) isolation: Option<Isolation>,
    /// The number of evaluated calls that are recorded for `policy diff`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<u32>,
    /// Percentage points by which the rate of denials and faults of a version on trial may exceed
    /// that of the one that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_worse: Option<u32>,
}

/// A version on trial.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trial {
    /// The version; if left out, that of the policy in the documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<u32>,
    /// Whether it decides.
    pub(super) mode: Mode,
    /// The percentage of calls that a canary decides, 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) percent: Option<u32>,
    /// The daemon promotes it after this time without a failure, such as `60s` or `2h`; if left
    /// out, nobody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) probation: Option<String>,
}

/// Whether a version on trial decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// It evaluates calls, and decides nothing.
    Shadow,
    /// It decides some percent of the calls.
    Canary,
}

/// The daemon of a call.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Side {
    /// The client's.
    Client,
    /// The server's.
    Server,
}

/// The provider's part of a chain.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Part {
    /// Before the tenants' policies.
    Pre,
    /// After them.
    Post,
}

/// How calls are handled after a fault.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OnFault {
    /// They are rejected until a fresh instance is ready.
    Reload,
    /// They are rejected until the policy is released.
    Closed,
    /// They pass without evaluation until a fresh instance is ready.
    Open,
}

/// Where a policy runs.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Isolation {
    /// In the daemon, in a sandbox.
    None,
    /// In a process of its tenant.
    Process,
}

fn is_false(value: &bool) -> bool {
    !*value
}

impl Scalar {
    /// The value as the daemon takes it.
    pub(super) fn text(&self) -> String {
        match self {
            Scalar::Bool(value) => value.to_string(),
            Scalar::Integer(value) => value.to_string(),
            Scalar::Float(value) => value.to_string(),
            Scalar::Text(text) => text.clone(),
            Scalar::List(values) if values.is_empty() => "none".to_owned(),
            Scalar::List(values) => {
                let texts: Vec<_> = values.iter().map(Scalar::text).collect();
                texts.join(",")
            }
        }
    }

    /// A value of the daemon's. A text that reads like a number is one.
    pub(super) fn of(text: &str) -> Scalar {
        match text.parse::<i64>() {
            Ok(number) if number.to_string() == text => Scalar::Integer(number),
            _ => Scalar::Text(text.to_owned()),
        }
    }
}

/// The JSON schema of documents. A test compares it with the types.
pub(super) const SCHEMA: &str = include_str!("schema.json");

#[cfg(test)]
mod tests;

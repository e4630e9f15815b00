//! Errors of the store: rejected requests, and failures of the file or the machine.

use crate::limits;
use crate::policy::{Owner, PolicyVersion};
use crate::slot::{Need, SlotError};

/// The kind of a status that the operator gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The request is invalid: INVALID_ARGUMENT.
    Invalid,
    /// The object exists already: ALREADY_EXISTS.
    Exists,
    /// An object of the request doesn't exist: NOT_FOUND.
    Missing,
    /// The request isn't possible in this state: FAILED_PRECONDITION.
    State,
    /// A named limit is reached: RESOURCE_EXHAUSTED.
    Limit,
    /// Another daemon is taking the state over: UNAVAILABLE.
    Away,
    /// A failure of the file or the machine: INTERNAL.
    Broken,
}

/// Why the store changed nothing.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum StoreError {
    #[error(
        "the {what} {value:?} isn't a name: use 1 to {} of a-z, 0-9, '-', '_' and '.'",
        limits::MAX_NAME
    )]
    Name { what: &'static str, value: String },
    #[error("{value:?} isn't a full name of a {what}: use letters, digits, '_' and '.'")]
    Identifier { what: &'static str, value: String },
    #[error("{value:?} isn't a version of a policy: write it as name@version, like acl@1")]
    Reference { value: String },
    #[error("the {what} has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        what: &'static str,
        bytes: usize,
        limit: usize,
    },
    #[error("tenant {tenant:?} exists already")]
    TenantExists { tenant: String },
    #[error("{}", no_tenant_text(tenant))]
    NoTenant { tenant: String },
    #[error("{owner} has a credential {credential:?} already")]
    CredentialExists { owner: Owner, credential: String },
    #[error("{owner} has no credential {credential:?}")]
    NoCredential { owner: Owner, credential: String },
    #[error(
        "a credential of {owner} can't have the role {role}: operators' credentials have the role operator, tenants' ones another"
    )]
    RoleOf { owner: Owner, role: &'static str },
    #[error(
        "credential {credential:?} of tenant {tenant:?} is new and has no token: name a file with one, or its digest"
    )]
    NoToken { tenant: String, credential: String },
    #[error(
        "the token of credential {credential:?} of tenant {tenant:?} is another credential's already: make another token"
    )]
    TokenTaken { tenant: String, credential: String },
    #[error(
        "{owner} can't get {policy}: a version with this number, or a later one, was there before; leave the number out"
    )]
    VersionUsed { owner: Owner, policy: PolicyVersion },
    #[error("the lifetime of {seconds} s is out of range: 60 s to {} days are allowed", limits::MAX_LIFETIME.as_secs() / 86_400)]
    Lifetime { seconds: u64 },
    #[error("{owner} has no policy {policy}")]
    NoPolicy { owner: Owner, policy: PolicyVersion },
    #[error("{owner} has no policy {policy:?}")]
    NoPolicyNamed { owner: Owner, policy: String },
    #[error("{policy} {need} at {place}: {}", need.way_out())]
    Needed {
        policy: PolicyVersion,
        need: Need,
        place: String,
    },
    #[error("policy {policy:?} of {owner} isn't attached at such a place")]
    NotAttached { owner: Owner, policy: String },
    #[error("at {place}, {why}")]
    Step { place: String, why: SlotError },
    #[error("{what} {value} is out of range: {least} to {most} are allowed")]
    OutOfRange {
        what: &'static str,
        value: u32,
        least: u32,
        most: u32,
    },
    #[error("caller {caller:?}: {why}")]
    Caller { caller: String, why: String },
    #[error(
        "{target} is on the server's side, where callers aren't known: attach it with `--side client` to choose callers"
    )]
    ServersCallers { target: String },
    #[error("there are {count} {what}; the limit is {limit}")]
    TooMany {
        what: &'static str,
        count: usize,
        limit: usize,
    },
    #[error("there are {limit} {what} already, which is the limit")]
    Full { what: &'static str, limit: usize },
    #[error("{sentence}")]
    AtCeiling { sentence: String },
    #[error("a ceiling has no key {key:?}; it has {keys}")]
    NoCeilingKey { key: String, keys: String },
    #[error("the ceiling's key {key} takes {values}, not {value:?}")]
    CeilingValue {
        key: &'static str,
        value: String,
        values: &'static str,
    },
    #[error("tenant {tenant:?} has no request {number} for approval")]
    NoApproval { tenant: String, number: u64 },
    #[error("request {number} of tenant {tenant} for approval is {state} already")]
    Decided {
        tenant: String,
        number: u64,
        state: &'static str,
    },
    #[error("the daemon is being upgraded; changes are rejected until the upgrade ends")]
    HandedOver,
    #[error("another daemon uses the state in {path}")]
    InUse { path: String },
    #[error("the state in {path} has format {found}; this daemon reads format {expected}")]
    Format {
        path: String,
        found: u32,
        expected: u32,
    },
    #[error(
        "the state in {path} and its copy are damaged (tollgate.redb: {file}; tollgate.redb.copy: {copy}): policies would be missing, so \
         the daemon doesn't start; restore a backup of the directory, or move the directory away to start without tenants and policies"
    )]
    Damaged {
        path: String,
        file: String,
        copy: String,
    },
    #[error(
        "the state in {path} is older than its audit log: it ends with audit record {stored}, audit.jsonl with record {logged}; policies may be missing, so \
         the daemon doesn't start; restore a backup of the directory, or move audit.jsonl away to continue with this state"
    )]
    WentBack {
        path: String,
        stored: u64,
        logged: u64,
    },
    #[error("the state is inconsistent: {what}")]
    Contradiction { what: String },
    #[error(
        "the state in {path} is read-only at the moment: {why}; each change tries to write again"
    )]
    ReadOnly { path: String, why: String },
    #[error("the state has a row that this daemon can't read: {error}")]
    Unreadable { error: serde_json::Error },
    #[error("the audit log {path} can't be written, so nothing is changed: {error}")]
    Audit { path: String, error: std::io::Error },
    #[error("the state lost module {digest}, which a policy needs")]
    ModuleLost { digest: String },
    #[error("the state directory {path} can't be used: {error}")]
    Directory { path: String, error: std::io::Error },
    #[error("the system gave no random bytes for a token: {error}")]
    Random { error: getrandom::Error },
    #[error("the state file failed: {0}")]
    Database(#[source] Box<redb::Error>),
}

impl StoreError {
    /// The kind of a status that the operator gets.
    pub fn cause(&self) -> Cause {
        use StoreError as E;
        match self {
            E::Name { .. }
            | E::Identifier { .. }
            | E::Reference { .. }
            | E::TooLarge { .. }
            | E::OutOfRange { .. }
            | E::NoCeilingKey { .. }
            | E::CeilingValue { .. }
            | E::Lifetime { .. }
            | E::NoToken { .. }
            | E::RoleOf { .. }
            | E::Caller { .. }
            | E::ServersCallers { .. }
            | E::TooMany { .. } => Cause::Invalid,
            E::Step { .. } | E::Needed { .. } | E::VersionUsed { .. } | E::Decided { .. } => {
                Cause::State
            }
            E::TenantExists { .. } | E::CredentialExists { .. } | E::TokenTaken { .. } => {
                Cause::Exists
            }
            E::NoTenant { .. }
            | E::NoCredential { .. }
            | E::NoApproval { .. }
            | E::NoPolicy { .. }
            | E::NoPolicyNamed { .. }
            | E::NotAttached { .. } => Cause::Missing,
            E::Full { .. } | E::AtCeiling { .. } => Cause::Limit,
            E::HandedOver => Cause::Away,
            E::InUse { .. }
            | E::Format { .. }
            | E::Damaged { .. }
            | E::WentBack { .. }
            | E::Contradiction { .. }
            | E::ReadOnly { .. }
            | E::Unreadable { .. }
            | E::Audit { .. }
            | E::ModuleLost { .. }
            | E::Directory { .. }
            | E::Random { .. }
            | E::Database(_) => Cause::Broken,
        }
    }
}

/// A disk's I/O error, for which `ErrorKind` has no name.
const EIO: i32 = 5;

impl StoreError {
    /// Whether the database has to be opened again: after a file error it answers nothing else.
    pub(crate) fn needs_reopening(&self) -> bool {
        matches!(self, StoreError::Database(_))
    }

    /// Whether the disk can't be written at the moment, in contrast to a wrong directory.
    pub(crate) fn is_disks(&self) -> bool {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let error = match self {
            StoreError::Directory { error, .. } | StoreError::Audit { error, .. } => error,
            StoreError::Database(error) => match &**error {
                redb::Error::Io(error) => error,
                redb::Error::PreviousIo => return true,
                _ => return false,
            },
            _ => return false,
        };
        let full = [FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull];
        full.contains(&error.kind()) || error.raw_os_error() == Some(EIO)
    }
}

/// redb has an error type per step; for operators they are one.
macro_rules! from_redb {
    ($($error:ty),*) => {$(
        impl From<$error> for StoreError {
            fn from(error: $error) -> StoreError {
                StoreError::Database(Box::new(error.into()))
            }
        }
    )*};
}

from_redb!(
    redb::DatabaseError,
    redb::TransactionError,
    redb::TableError,
    redb::StorageError,
    redb::CommitError
);

pub(crate) fn contradiction(what: String) -> StoreError {
    StoreError::Contradiction { what }
}

pub(crate) fn full(what: &'static str, limit: usize) -> StoreError {
    StoreError::Full { what, limit }
}

fn no_tenant_text(tenant: &str) -> String {
    match tenant {
        "" => "no tenant is named: an operator names one (--tenant NAME)".to_owned(),
        tenant => format!("there is no tenant {tenant:?}"),
    }
}

pub(crate) fn no_tenant(tenant: &str) -> StoreError {
    let tenant = tenant.to_owned();
    StoreError::NoTenant { tenant }
}

pub(crate) fn no_policy(owner: &Owner, policy: &PolicyVersion) -> StoreError {
    StoreError::NoPolicy {
        owner: owner.clone(),
        policy: policy.clone(),
    }
}

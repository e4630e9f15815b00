//! What is stored, as types; and the rules for names, which hold for every value that reaches the file.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::StoreError;
use crate::limits;
use crate::policy::{Owner, PolicyVersion};
use crate::slot::Slot;

/// Which part of a chain an attachment belongs to, in the order in which they are asked, for requests and for replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Party {
    /// The provider's, before the tenant's.
    ProviderPre,
    /// The tenant's own.
    Tenant,
    /// The provider's, after the tenant's: it sees what is sent.
    ProviderPost,
}

impl Party {
    pub(crate) fn code(self) -> u8 {
        match self {
            Party::ProviderPre => 0,
            Party::Tenant => 1,
            Party::ProviderPost => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Party {
        match code {
            0 => Party::ProviderPre,
            1 => Party::Tenant,
            _ => Party::ProviderPost,
        }
    }

    /// `provider-pre`, `tenant` or `provider-post`.
    pub fn name(self) -> &'static str {
        match self {
            Party::ProviderPre => "provider-pre",
            Party::Tenant => "tenant",
            Party::ProviderPost => "provider-post",
        }
    }
}

/// Which daemon of a call a policy judges in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The caller's.
    Client,
    /// The server's.
    Server,
}

impl Side {
    pub(crate) fn code(self) -> u8 {
        match self {
            Side::Client => 0,
            Side::Server => 1,
        }
    }

    pub(crate) fn from_code(code: u8) -> Side {
        if code == 0 {
            Side::Client
        } else {
            Side::Server
        }
    }

    /// `client` or `server`.
    pub fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}

impl FromStr for PolicyVersion {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<PolicyVersion, StoreError> {
        let parse = || {
            let (name, version) = text.split_once('@')?;
            let digits = version.bytes().all(|b| b.is_ascii_digit());
            let version = version.parse().ok().filter(|v| digits && *v > 0)?;
            valid_name(name).then(|| PolicyVersion {
                name: name.to_owned(),
                version,
            })
        };
        parse().ok_or_else(|| StoreError::Reference {
            value: text.to_owned(),
        })
    }
}

/// What stands for every tenant, or every service, in a target of the provider's.
pub const ALL: &str = "*";

/// Where a policy judges. A tenant's policies judge only its own calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// In which part of the chain, and so whose policy.
    pub party: Party,
    /// Whose calls; [`ALL`] is for the provider only.
    pub tenant: String,
    /// The service's full name, like `hotel.Reservation`; [`ALL`] is for the provider only.
    pub service: String,
    /// The method's name, or empty for every method of the service.
    pub method: String,
    /// In which daemon.
    pub side: Side,
}

impl Target {
    /// Whose policies are attached here.
    pub fn owner(&self) -> Owner {
        match self.party {
            Party::Tenant => Owner::Tenant(self.tenant.clone()),
            Party::ProviderPre | Party::ProviderPost => Owner::Provider,
        }
    }

    /// Whether calls of a tenant, service, method and side are judged here.
    pub fn covers(&self, tenant: &str, service: &str, method: &str, side: Side) -> bool {
        let matches = |mine: &str, theirs: &str| mine == ALL || mine == theirs;
        matches(&self.tenant, tenant)
            && matches(&self.service, service)
            && self.side == side
            && self.is_for(method)
    }

    /// Whether calls of a method of its service are.
    pub fn is_for(&self, method: &str) -> bool {
        self.method.is_empty() || self.method == method
    }
}

/// `client hotel.Reservation/Reserve`, and for the provider's also which part of the chain and whose calls.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match self.method.as_str() {
            "" => ALL,
            method => method,
        };
        write!(f, "{} {}/{method}", self.side.name(), self.service)?;
        match self.party {
            Party::Tenant => Ok(()),
            party => write!(f, " of tenant {} ({})", self.tenant, party.name()),
        }
    }
}

/// A policy at a target: which of its versions are in force there, and under which conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Where.
    pub target: Target,
    /// The policy's name; whose follows from the target.
    pub policy: String,
    /// The versions.
    pub slot: Slot,
    /// The conditions.
    pub options: Options,
}

/// What happens to the calls of a policy that has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFault {
    /// They are refused until a fresh instance is in place, which comes after a pause that grows.
    #[default]
    Reload,
    /// They are refused until an operator acts.
    Closed,
    /// They pass unjudged until a fresh instance is in place.
    Open,
}

impl OnFault {
    /// `reload`, `closed` or `open`.
    pub fn name(self) -> &'static str {
        match self {
            OnFault::Reload => "reload",
            OnFault::Closed => "closed",
            OnFault::Open => "open",
        }
    }
}

/// Where a tenant's policy runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// In the daemon, in a sandbox that the compiler makes.
    #[default]
    None,
    /// In a process of its tenant's, besides.
    Process,
}

/// The conditions under which a policy is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// What becomes of its calls after a fault.
    pub on_fault: OnFault,
    /// The hooks at which it is asked; none: all that it declares.
    pub hooks: Option<Vec<String>>,
    /// The fields that it is shown; none: all that it declares.
    pub fields: Option<Vec<String>>,
    /// The metadata keys that it is shown; none: all that it declares. Left out of the file if there is no such list, so that daemons
    /// of before it can read the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Vec<String>>,
    /// What it may use beside `log` and `metrics`; none: `state` and `change`.
    pub capabilities: Option<Vec<String>>,
    /// Its CPU time per call; none: what the daemon's configuration says.
    pub cpu_us: Option<u32>,
    /// Whether each call gets an instance of its own.
    pub fresh: bool,
    /// Where it runs; none: where the daemon's configuration says.
    pub isolation: Option<Isolation>,
    /// How many views of the stable are kept for `policy diff`.
    pub record: u32,
    /// By how many percentage points a candidate's error rate may be worse than the stable's.
    pub max_worse: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            on_fault: OnFault::default(),
            hooks: None,
            fields: None,
            metadata: None,
            capabilities: None,
            cpu_us: None,
            fresh: false,
            isolation: None,
            record: limits::DEFAULT_RECORD,
            max_worse: limits::DEFAULT_MAX_WORSE,
        }
    }
}

impl Options {
    /// Bounds what reaches the file; what the names mean is for those who attach.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let range = |what, value: u32, range: std::ops::RangeInclusive<u32>| {
            if range.contains(&value) {
                return Ok(());
            }
            let (least, most) = range.into_inner();
            Err(StoreError::OutOfRange {
                what,
                value,
                least,
                most,
            })
        };
        let (least, most) = limits::CPU_US;
        range("cpu-us", self.cpu_us.unwrap_or(least), least..=most)?;
        range("record", self.record, 0..=limits::MAX_RECORD)?;
        range("max-worse", u32::from(self.max_worse), 0..=100)?;
        let lists = [
            ("granted hooks", &self.hooks),
            ("granted fields", &self.fields),
            ("granted metadata keys", &self.metadata),
            ("granted capabilities", &self.capabilities),
        ];
        for (what, list) in lists {
            let list = list.as_deref().unwrap_or_default();
            if list.len() > limits::MAX_GRANTS {
                return Err(StoreError::TooMany {
                    what,
                    count: list.len(),
                    limit: limits::MAX_GRANTS,
                });
            }
            if let Some(long) = list.iter().find(|item| item.len() > limits::MAX_GRANT) {
                return Err(StoreError::TooLarge {
                    what,
                    bytes: long.len(),
                    limit: limits::MAX_GRANT,
                });
            }
        }
        Ok(())
    }
}

/// Which attachments of a policy are meant; a field that is `None` doesn't restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// In this part of the chain.
    pub party: Option<Party>,
    /// To calls of this tenant, `Some("*")` being those to every tenant's.
    pub tenant: Option<String>,
    /// Of this service.
    pub service: Option<String>,
    /// Of this method, `Some("")` being those to every method.
    pub method: Option<String>,
    /// On this side.
    pub side: Option<Side>,
}

impl Selection {
    /// Whether this attachment is meant.
    pub fn selects(&self, target: &Target) -> bool {
        fn allows<T: PartialEq>(wanted: &Option<T>, found: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        }
        allows(&self.party, &target.party)
            && allows(&self.tenant, &target.tenant)
            && allows(&self.service, &target.service)
            && allows(&self.method, &target.method)
            && allows(&self.side, &target.side)
    }
}

/// A stored version of a policy, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Whose.
    pub owner: Owner,
    /// Which.
    pub policy: PolicyVersion,
    /// SHA-256 of the module.
    pub digest: [u8; 32],
    /// Bytes of the module.
    pub module_bytes: u64,
    /// SHA-256 of the configuration, if it was pushed with one.
    pub config_digest: Option<[u8; 32]>,
}

/// A stored version of a policy, to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyBytes {
    /// SHA-256 of the module.
    pub digest: [u8; 32],
    /// The module.
    pub wasm: Vec<u8>,
    /// Its configuration, if it was pushed with one.
    pub config: Option<Vec<u8>>,
}

/// What a tenant has, which ends with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Its policies, all versions.
    pub policies: Vec<PolicyVersion>,
    /// Its attachments, and then those of the provider that name it.
    pub attachments: Vec<Attachment>,
}

/// What is stored of a token: enough to know it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenDigest(pub(crate) [u8; 32]);

impl TokenDigest {
    /// Of what somebody says is a token.
    pub fn of(token: &str) -> TokenDigest {
        TokenDigest(Sha256::digest(token.as_bytes()).into())
    }
}

/// What a tenant's applications authenticate with. It is shown once; only its digest is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new token: `tg_` and 256 random bits in hex.
    pub(crate) fn random() -> Result<Token, StoreError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| StoreError::Random { error })?;
        Ok(Token(format!("tg_{}", hex(&bytes))))
    }

    pub(crate) fn digest(&self) -> TokenDigest {
        TokenDigest::of(&self.0)
    }

    /// The token itself, to be printed once.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Never prints the token.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn valid_name(name: &str) -> bool {
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    (1..=limits::MAX_NAME).contains(&name.len()) && name.bytes().all(allowed)
}

/// A tenant's or policy's name, as it may be stored.
pub(crate) fn check_name(what: &'static str, value: &str) -> Result<(), StoreError> {
    if valid_name(value) {
        return Ok(());
    }
    Err(StoreError::Name {
        what,
        value: value.to_owned(),
    })
}

/// A target's names, as they may be stored.
pub(crate) fn check_target(target: &Target) -> Result<(), StoreError> {
    let provider = target.party != Party::Tenant;
    let all = |text: &str| provider && text == ALL;
    if !all(&target.tenant) {
        check_name("tenant", &target.tenant)?;
    }
    let identifier = |text: &str, dots: bool| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || (dots && b == b'.');
        text.len() <= limits::MAX_SERVICE && text.bytes().all(allowed)
    };
    let error = |what, value: &str| {
        Err(StoreError::Identifier {
            what,
            value: value.to_owned(),
        })
    };
    let service_ok = !target.service.is_empty() && identifier(&target.service, true);
    if !service_ok && !all(&target.service) {
        return error("service", &target.service);
    }
    if !identifier(&target.method, false) || (all(&target.service) && !target.method.is_empty()) {
        return error("method", &target.method);
    }
    Ok(())
}

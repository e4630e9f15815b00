//! The types of the stored state, and the rules for names, which every stored value obeys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::StoreError;
use crate::limits;
use crate::policy::{Owner, PolicyVersion};
use crate::slot::Slot;

/// An attachment's part of a chain, in the order of evaluation for requests and for replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Party {
    /// The provider's, before the tenant's.
    ProviderPre,
    /// The tenant's own.
    Tenant,
    /// The provider's, after the tenant's: it sees the final message.
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

/// The daemon of a call in which a policy evaluates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The client's.
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

/// Stands for every tenant or every service in a provider's target.
pub const ALL: &str = "*";

/// Where a policy evaluates calls. A tenant's policies evaluate only the tenant's own calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    /// The part of the chain, which determines the owner.
    pub party: Party,
    /// The tenant of the calls; [`ALL`] is for the provider only.
    pub tenant: String,
    /// The service's full name, like `hotel.Reservation`; [`ALL`] is for the provider only.
    pub service: String,
    /// The method's name, or empty for every method of the service.
    pub method: String,
    /// The daemon in which the policy evaluates calls.
    pub side: Side,
}

impl Target {
    /// The owner of policies at this target.
    pub fn owner(&self) -> Owner {
        match self.party {
            Party::Tenant => Owner::Tenant(self.tenant.clone()),
            Party::ProviderPre | Party::ProviderPost => Owner::Provider,
        }
    }

    /// Whether this target covers calls of a tenant, service, method and side.
    pub fn covers(&self, tenant: &str, service: &str, method: &str, side: Side) -> bool {
        let matches = |mine: &str, theirs: &str| mine == ALL || mine == theirs;
        matches(&self.tenant, tenant)
            && matches(&self.service, service)
            && self.side == side
            && self.is_for(method)
    }

    /// Whether this target covers calls of this method of the service.
    pub fn is_for(&self, method: &str) -> bool {
        self.method.is_empty() || self.method == method
    }
}

/// `client hotel.Reservation/Reserve`; for the provider's targets also the tenant and the part of
/// the chain.
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

/// A policy at a target: its versions there, and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The place.
    pub target: Target,
    /// The policy's name; the owner follows from the target.
    pub policy: String,
    /// The versions.
    pub slot: Slot,
    /// The options.
    pub options: Options,
}

/// How calls are handled after a policy has faulted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFault {
    /// They are rejected until a fresh instance is in place, after a growing pause.
    #[default]
    Reload,
    /// They are rejected until the policy is released or upgraded.
    Closed,
    /// They pass without evaluation until a fresh instance is in place.
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
    /// Additionally in a process of the tenant.
    Process,
}

/// The options of an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// How calls are handled after a fault.
    pub on_fault: OnFault,
    /// The hooks at which the policy is evaluated; none: all declared ones.
    pub hooks: Option<Vec<String>>,
    /// The fields that it may read; none: all declared ones.
    pub fields: Option<Vec<String>>,
    /// The metadata keys that it may read; none: all declared ones. The file omits an absent list,
    /// so that daemons that predate this option can read the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Vec<String>>,
    /// Whose calls it evaluates, on the client's side: `NAME=VALUE` of `application`, `uid` and
    /// `gid`. Of one attribute, any value may be the caller's; of several, all have one. None:
    /// everybody's. Like an absent list of metadata keys, an absent one is omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callers: Option<Vec<String>>,
    /// Capabilities in addition to `log` and `metrics`; none: `state` and `change`.
    pub capabilities: Option<Vec<String>>,
    /// CPU time per call in microseconds; none: the daemon's default.
    pub cpu_us: Option<u32>,
    /// Whether each call gets an instance of its own.
    pub fresh: bool,
    /// Where it runs; none: the daemon's default.
    pub isolation: Option<Isolation>,
    /// The number of views of the stable version that are kept for `policy diff`.
    pub record: u32,
    /// Percentage points by which a candidate's error rate may exceed the stable version's.
    pub max_worse: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            on_fault: OnFault::default(),
            hooks: None,
            fields: None,
            metadata: None,
            callers: None,
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
    /// Whether the calls of a caller with these attributes are evaluated. They are, too, if an
    /// attribute isn't known: nobody avoids a policy by being unknown.
    pub fn are_for<'a>(&self, attribute: impl Fn(&str) -> Option<&'a str>) -> bool {
        let listed = self.callers.iter().flatten();
        let listed = listed.filter_map(|caller| caller.split_once('='));
        listed.clone().all(|(name, _)| {
            let mut values = listed.clone().filter(|(other, _)| *other == name);
            attribute(name).is_none_or(|has| values.any(|(_, value)| value == has))
        })
    }

    /// What it grants: hooks, fields, metadata keys and capabilities.
    fn grants(&self) -> [Option<&[String]>; 4] {
        [
            &self.hooks,
            &self.fields,
            &self.metadata,
            &self.capabilities,
        ]
        .map(Option::as_deref)
    }

    /// Checks the limits of the file. The meaning of names is checked when the policy is attached.
    ///
    /// # Errors
    /// A value is out of its range, or a list or a name in it is too long.
    pub fn check(&self) -> Result<(), StoreError> {
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
            ("callers", &self.callers),
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

/// A selection of a policy's attachments; a field that is `None` doesn't restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// The part of the chain.
    pub party: Option<Party>,
    /// The tenant of the calls; `Some("*")` selects attachments for all tenants.
    pub tenant: Option<String>,
    /// The service.
    pub service: Option<String>,
    /// The method; `Some("")` selects attachments for all methods.
    pub method: Option<String>,
    /// The side.
    pub side: Option<Side>,
}

impl Selection {
    /// Whether this attachment is selected.
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
    /// The owner.
    pub owner: Owner,
    /// The name and the version.
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

impl PolicyBytes {
    /// SHA-256 of the configuration, if there is one.
    pub fn config_digest(&self) -> Option<[u8; 32]> {
        self.config
            .as_deref()
            .map(|bytes| Sha256::digest(bytes).into())
    }
}

/// What a tenant has stored of policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Policies, by name.
    pub policies: u64,
    /// Versions of all of them.
    pub versions: u64,
    /// Bytes of all versions, with their configurations.
    pub bytes: u64,
    /// Bytes of the largest module.
    pub largest_module_bytes: u64,
}

/// A tenant's objects, which end with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Its policies, all versions.
    pub policies: Vec<PolicyVersion>,
    /// Its attachments, then the provider's attachments that name it.
    pub attachments: Vec<Attachment>,
}

/// The name of a tenant's first credential.
pub const FIRST_CREDENTIAL: &str = "default";

/// What the bearer of a credential's token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Administer the tenant, look at it, and open sessions.
    Owner,
    /// Look at the tenant.
    Viewer,
    /// Open sessions.
    Application,
    /// Administer the daemon.
    Operator,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 4] = [Role::Owner, Role::Viewer, Role::Application, Role::Operator];

    pub(crate) fn code(self) -> u8 {
        match self {
            Role::Owner => 0,
            Role::Viewer => 1,
            Role::Application => 2,
            Role::Operator => 3,
        }
    }

    /// An unknown code gets the least rights: a viewer opens no session and changes nothing.
    pub(crate) fn from_code(code: u8) -> Role {
        match code {
            0 => Role::Owner,
            2 => Role::Application,
            3 => Role::Operator,
            _ => Role::Viewer,
        }
    }

    /// `owner`, `viewer`, `application` or `operator`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Owner => "owner",
            Role::Viewer => "viewer",
            Role::Application => "application",
            Role::Operator => "operator",
        }
    }

    /// Whether its tokens open applications' sessions.
    pub fn opens_sessions(self) -> bool {
        match self {
            Role::Owner | Role::Application => true,
            Role::Viewer | Role::Operator => false,
        }
    }
}

/// A credential, without its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Its name, unique within its owner's.
    pub name: String,
    /// What its bearer may do.
    pub role: Role,
    /// When it ends; `None`: only when it is revoked.
    pub expires: Option<SystemTime>,
    /// When the token that was replaced last ends, if it is still valid.
    pub former_until: Option<SystemTime>,
}

/// Whose token it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The tenant; operators' credentials are the provider's.
    pub owner: Owner,
    /// Its credential.
    pub credential: String,
    /// The credential's role.
    pub role: Role,
}

/// The stored digest of a token, enough to recognize the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenDigest(pub(crate) [u8; 32]);

impl TokenDigest {
    /// A digest that was made elsewhere.
    pub fn from_bytes(digest: [u8; 32]) -> TokenDigest {
        TokenDigest(digest)
    }

    /// The SHA-256 of the token.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// The digest of an alleged token.
    pub fn of(token: &str) -> TokenDigest {
        TokenDigest(Sha256::digest(token.as_bytes()).into())
    }
}

/// The secret of a credential. It is shown once; only its digest is stored.
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

/// Checks a tenant's or policy's name.
pub(crate) fn check_name(what: &'static str, value: &str) -> Result<(), StoreError> {
    if valid_name(value) {
        return Ok(());
    }
    Err(StoreError::Name {
        what,
        value: value.to_owned(),
    })
}

/// Bytes with their digest. Only [`Hashed::of`] makes it, so the digest is theirs.
#[derive(Clone, PartialEq, Eq)]
pub struct Hashed {
    digest: [u8; 32],
    bytes: Arc<[u8]>,
}

impl Hashed {
    /// Hashes bytes, which takes a while for large ones.
    pub fn of(bytes: impl Into<Arc<[u8]>>) -> Hashed {
        let bytes = bytes.into();
        let digest = Sha256::digest(&bytes).into();
        Hashed { digest, bytes }
    }

    /// The SHA-256 digest.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The bytes.
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

impl fmt::Debug for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes, sha256:{}",
            self.bytes.len(),
            hex(&self.digest)
        )
    }
}

/// Checks a length in bytes.
pub(crate) fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<(), StoreError> {
    if bytes <= limit {
        Ok(())
    } else {
        Err(StoreError::TooLarge { what, bytes, limit })
    }
}

impl Attachment {
    /// Checks its names and the limits of its options.
    ///
    /// # Errors
    /// One isn't a name, or a value is out of its range.
    pub fn check(&self) -> Result<(), StoreError> {
        check_target(&self.target)?;
        check_name("policy", &self.policy)?;
        self.options.check()?;
        let Some(callers) = &self.options.callers else {
            return Ok(());
        };
        if self.target.side == Side::Server {
            let target = self.target.to_string();
            return Err(StoreError::ServersCallers { target });
        }
        callers.iter().try_for_each(|caller| check_caller(caller))
    }

    /// The slot that it gets in place of its own, under these options. If they grant something
    /// else, no former version is the target of a rollback any more: it would be shown what it
    /// wasn't granted.
    pub fn next_slot(&self, slot: Slot, options: &Options) -> Slot {
        let grants_the_same = self.options.grants() == options.grants();
        Slot {
            previous: slot.previous.filter(|_| grants_the_same),
            ..slot
        }
    }
}

fn check_caller(caller: &str) -> Result<(), StoreError> {
    let wrong = |why: String| {
        let caller = caller.to_owned();
        Err(StoreError::Caller { caller, why })
    };
    match caller.split_once('=') {
        Some(("application", name)) => check_name("credential", name),
        Some(("uid" | "gid", number)) => match number.parse::<u32>() {
            Ok(parsed) if parsed.to_string() == number => Ok(()),
            _ => wrong(format!("{number:?} is no number of a user or group")),
        },
        Some((name, _)) => wrong(format!(
            "callers are chosen by application, uid or gid, not by {name:?}"
        )),
        None => wrong("it isn't NAME=VALUE, such as application=web".to_owned()),
    }
}

/// Checks a target's names.
fn check_target(target: &Target) -> Result<(), StoreError> {
    let provider = target.party != Party::Tenant;
    let all = |text: &str| provider && text == ALL;
    if !all(&target.tenant) {
        check_name("tenant", &target.tenant)?;
    }
    let (service, method) = (target.service.as_str(), target.method.as_str());
    let wrong = |what, value: &str| {
        let value = value.to_owned();
        Err(StoreError::Identifier { what, value })
    };
    match (service, method) {
        ("", _) => wrong("service", service),
        (service, "") if all(service) => Ok(()),
        (service, method) if all(service) => wrong("method", method),
        (service, method) => check_method(service, method),
    }
}

/// Checks the names of a service and a method, each of which may be empty.
///
/// # Errors
/// One isn't an identifier of protobuf, or is too long.
pub fn check_method(service: &str, method: &str) -> Result<(), StoreError> {
    for (what, value, dots) in [("service", service, true), ("method", method, false)] {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || (dots && b == b'.');
        if value.len() > limits::MAX_SERVICE || !value.bytes().all(allowed) {
            let value = value.to_owned();
            return Err(StoreError::Identifier { what, value });
        }
    }
    Ok(())
}

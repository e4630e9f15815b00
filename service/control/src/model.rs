//! What is stored, as types; and the rules for names, which hold for every value that reaches the file.

use std::fmt;
use std::str::FromStr;

use crate::error::StoreError;
use crate::limits;

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
}

/// One version of a policy, written `acl@1`. Versions count from 1 in each tenant and name, and are never reused.
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

/// Where a policy judges. A tenant's policies judge only its own calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Whose calls.
    pub tenant: String,
    /// The service's full name, like `hotel.Reservation`.
    pub service: String,
    /// The method's name, or empty for every method of the service.
    pub method: String,
    /// In which daemon.
    pub side: Side,
}

/// A policy at a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attachment {
    /// Where.
    pub target: Target,
    /// What.
    pub policy: PolicyVersion,
}

/// Which attachments to end; a field that is `None` doesn't restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detach {
    /// Of this service.
    pub service: Option<String>,
    /// Of this method, `Some("")` being those to every method.
    pub method: Option<String>,
    /// On this side.
    pub side: Option<Side>,
}

/// A stored version of a policy, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Whose.
    pub tenant: String,
    /// Which.
    pub policy: PolicyVersion,
    /// SHA-256 of the module.
    pub digest: [u8; 32],
    /// Bytes of the module.
    pub module_bytes: u64,
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
    check_name("tenant", &target.tenant)?;
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
    if target.service.is_empty() || !identifier(&target.service, true) {
        return error("service", &target.service);
    }
    if !identifier(&target.method, false) {
        return error("method", &target.method);
    }
    Ok(())
}

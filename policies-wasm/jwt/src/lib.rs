//! Allows only calls with a valid JSON Web Token: signed by one of the configured public keys,
//! within its validity period, from the right issuer, for this audience, with the required claims
//! and scopes.
//!
//! A caller's token is hostile until its signature has been checked, and costs at most one check;
//! see `token.rs` and `keys.rs`. Claims can be copied into metadata for the server and for later
//! policies. The caller's own values under those keys are always removed, even if the token lacks
//! the claim: the keys only ever hold what the issuer signed.

#![forbid(unsafe_code)]

mod cache;
mod check;
mod claims;
mod keys;
mod rsa;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeMap;

use cache::Cache;
use check::Check;
use claims::{Pass, Rules};
use keys::{KeyConfig, KeySet};
use serde::Deserialize;
use token::Refusal;
use tollgate_policy::{Status, Values, Verdict, json_object, now_ms, policy};

/// The maximum clock skew in seconds.
const LEEWAY_S: u32 = 300;

/// The maximum number of cached tokens: the longest tokens would fill half of an instance's memory.
const REMEMBERED: u32 = 256;

/// The maximum number of names in one list of the configuration.
const NAMES: usize = 16;

/// The key in which HTTP and gRPC carry credentials, after the name of their scheme.
const AUTHORIZATION: &str = "authorization";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    keys: Vec<KeyConfig>,
    issuer: String,
    #[serde(default)]
    audience: Vec<String>,
    metadata: Vec<String>,
    #[serde(default)]
    metadata_changes: Vec<String>,
    #[serde(default)]
    copy: BTreeMap<String, String>,
    #[serde(default)]
    remove_token: bool,
    #[serde(default)]
    required_claims: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    scopes: Vec<String>,
    #[serde(default = "default_scope_claim")]
    scope_claim: String,
    #[serde(default = "default_leeway_s")]
    leeway_s: u32,
    #[serde(default = "default_remembered")]
    remembered: u32,
}

fn default_scope_claim() -> String {
    "scope".to_owned()
}

fn default_leeway_s() -> u32 {
    30
}

fn default_remembered() -> u32 {
    64
}

impl Config {
    fn check(&self) -> Result<(), String> {
        for (name, value, max) in [
            ("leeway_s", self.leeway_s, LEEWAY_S),
            ("remembered", self.remembered, REMEMBERED),
        ] {
            if value > max {
                return Err(format!("{name} is {value}; 0 to {max} are allowed"));
            }
        }
        for (name, count) in [
            ("audience", self.audience.len()),
            ("required_claims", self.required_claims.len()),
            ("scopes", self.scopes.len()),
        ] {
            if count > NAMES {
                return Err(format!("{name} has {count} entries; {NAMES} are allowed"));
            }
        }
        match &self.metadata[..] {
            [_] => self.check_changes(),
            keys => Err(format!(
                "metadata lists {} keys; list the 1 key in which callers send their token, such as \"{AUTHORIZATION}\"",
                keys.len()
            )),
        }
    }

    /// Checks that each key of `metadata_changes` has exactly one source.
    fn check_changes(&self) -> Result<(), String> {
        let removed = self.metadata.iter().filter(|_| self.remove_token);
        let written: Vec<&String> = self.copy.values().chain(removed).collect();
        for key in &written {
            if !self.metadata_changes.contains(key) {
                return Err(format!(
                    "{key:?} is written, but metadata_changes doesn't list it"
                ));
            }
            if written.iter().filter(|other| *other == key).count() > 1 {
                return Err(format!("{key:?} would be written twice"));
            }
        }
        match self
            .metadata_changes
            .iter()
            .find(|key| !written.contains(key))
        {
            Some(key) => Err(format!(
                "metadata_changes lists {key:?}, which neither copy nor remove_token writes"
            )),
            None => Ok(()),
        }
    }

    /// The index of a key in `metadata_changes`.
    fn change(&self, key: &str) -> Option<u32> {
        let mut places = self.metadata_changes.iter().zip(0..);
        places
            .find(|(listed, _)| *listed == key)
            .map(|(_, place)| place)
    }
}

/// The check, and the targets of claims.
pub struct Jwt {
    check: Check,
    /// A token may stand alone, without `Bearer`.
    bare: bool,
    /// The target of each copied claim, as its index in `metadata_changes`.
    copies: Vec<u32>,
    /// The token's key, if it is removed.
    removed: Option<u32>,
}

#[policy(
    name = "jwt",
    version = "1.0",
    counters(
        checked,
        from_memory,
        missing,
        malformed,
        unknown_key,
        bad_signature,
        expired,
        too_early,
        wrong_claims,
        missing_scope
    ),
    capabilities(clock)
)]
impl Jwt {
    fn configure(config: &[u8]) -> Result<Jwt, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        config.check()?;
        let removed = config.metadata.first().filter(|_| config.remove_token);
        Ok(Jwt {
            bare: config.metadata != [AUTHORIZATION],
            copies: config
                .copy
                .values()
                .filter_map(|key| config.change(key))
                .collect(),
            removed: removed.and_then(|key| config.change(key)),
            check: Check {
                keys: KeySet::new(&config.keys)?,
                cache: Cache::new(config.remembered as usize),
                rules: Rules {
                    issuer: config.issuer,
                    audience: config.audience,
                    required: config.required_claims,
                    scopes: config.scopes,
                    scope_claim: config.scope_claim,
                    copied: config.copy.into_keys().collect(),
                    leeway_ms: u64::from(config.leeway_s) * 1000,
                },
            },
        })
    }

    #[request("*", metadata(*), metadata_changes(*))]
    fn any(&mut self, request: &mut Bearer<'_>) -> Verdict<'_> {
        match self.pass(request.metadata(0)) {
            Ok(pass) => {
                for (place, value) in self.copies.iter().zip(&pass.copies) {
                    match value {
                        Some(value) => request.set_metadata(*place, value.as_bytes()),
                        None => request.remove_metadata(*place),
                    }
                }
                if let Some(place) = self.removed {
                    request.remove_metadata(place);
                }
                Verdict::Allow
            }
            Err(refusal) => denial(refusal),
        }
    }

    fn pass(&mut self, values: Values<'_>) -> Result<Pass, Refusal> {
        let value = values.first().ok_or(Refusal::Missing)?;
        if values.len() > 1 {
            // It is unclear which one the server would use.
            return Err(Refusal::Malformed);
        }
        let passed = self
            .check
            .check(check::presented(value, self.bare)?, now_ms())?;
        match passed.remembered {
            true => FROM_MEMORY.add(1),
            false => CHECKED.add(1),
        }
        Ok(passed.pass)
    }
}

/// The caller's error: enough to get a better token, but not which key, issuer or claim was
/// expected.
fn denial(refusal: Refusal) -> Verdict<'static> {
    const UNACCEPTABLE: &str = "the token isn't accepted";
    let (counter, message) = match refusal {
        Refusal::Missing => (MISSING, "a token is needed"),
        Refusal::Malformed => (MALFORMED, UNACCEPTABLE),
        Refusal::UnknownKey => (UNKNOWN_KEY, UNACCEPTABLE),
        Refusal::Signature => (BAD_SIGNATURE, UNACCEPTABLE),
        Refusal::Claims => (WRONG_CLAIMS, UNACCEPTABLE),
        Refusal::Expired => (EXPIRED, "the token has expired"),
        Refusal::TooEarly => (TOO_EARLY, "the token isn't valid yet"),
        Refusal::Scope => (MISSING_SCOPE, "the token doesn't allow this call"),
    };
    counter.add(1);
    let status = match refusal {
        Refusal::Scope => Status::PERMISSION_DENIED,
        _ => Status::UNAUTHENTICATED,
    };
    Verdict::deny(status, message)
}

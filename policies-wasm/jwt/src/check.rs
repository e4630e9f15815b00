//! The complete check of a token: extraction, cache, signature, claims, time.

use crate::cache::Cache;
use crate::claims::{Pass, Rules};
use crate::keys::KeySet;
use crate::token::{Refusal, Token};

/// The rules for tokens, and the cache of accepted ones.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) keys: KeySet,
    pub(crate) rules: Rules,
    pub(crate) cache: Cache,
}

/// The result for an accepted token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) pass: Pass,
    /// Its signature was checked earlier.
    pub(crate) remembered: bool,
}

impl Check {
    /// Checks a token at this time.
    pub(crate) fn check(&mut self, token: &[u8], now_ms: u64) -> Result<Passed, Refusal> {
        if let Some(pass) = self.cache.get(token) {
            pass.check(now_ms)?;
            let pass = pass.clone();
            return Ok(Passed {
                pass,
                remembered: true,
            });
        }
        let verified = Token::parse(token)?.verify(&self.keys)?;
        let pass = self.rules.check(&verified)?;
        pass.check(now_ms)?;
        self.cache.put(token, pass.clone());
        Ok(Passed {
            pass,
            remembered: false,
        })
    }
}

/// The token in a metadata value: after the scheme `Bearer` (RFC 6750, in any case), or bare where
/// that is allowed.
pub(crate) fn presented(value: &[u8], bare: bool) -> Result<&[u8], Refusal> {
    const SCHEME: &[u8] = b"bearer ";
    match value.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => {
            Ok(token.trim_ascii_start())
        }
        _ if bare => Ok(value),
        _ => Err(Refusal::Missing),
    }
}

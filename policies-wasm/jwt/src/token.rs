//! Parses a token (a JWT in the compact form of a JWS, RFC 7515) and verifies its signature.
//!
//! ```text
//!   eyJhbGciOiJFUzI1NiJ9 . eyJpc3MiOi... . MEUCIQD...
//!   header                 payload         signature        each base64url, without padding
//!   \__________________________________/
//!                 the signed part
//! ```
//!
//! The bytes come from a caller. A [`Token`] is the parsed form; it is trusted only to select the
//! key. Only [`Token::verify`] makes a [`Verified`], and claims are parsed from nothing else. Each
//! step is linear in the token's length, and at most one signature is checked. Absent: JSON
//! serialisations, encryption (JWE), keys inside tokens (`jwk`, `jku`, `x5c`: they would be the
//! caller's own), and extensions (`crit`): RFC 7515 requires refusing unknown ones.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::keys::{Algorithm, Key, KeySet};

/// The maximum size of a token in bytes: that of a call's metadata.
pub(crate) const TOKEN_BYTES: usize = 8 << 10;

/// The maximum size of an encoded header in bytes. The header is the only part that is parsed
/// before the signature is verified.
pub(crate) const HEADER_BYTES: usize = 1 << 10;

/// The reason for refusing a token. The caller learns less than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no token.
    Missing,
    /// It isn't a token, or not of a supported kind; or there are several.
    Malformed,
    /// No key matches it.
    UnknownKey,
    /// The signature is wrong for the key.
    Signature,
    /// It has expired.
    Expired,
    /// It isn't valid yet.
    TooEarly,
    /// It is for another audience or from another issuer, or lacks a required claim.
    Claims,
    /// It is valid, but lacks a required scope.
    Scope,
}

/// A token whose signature hasn't been verified.
#[derive(Debug)]
pub(crate) struct Token<'t> {
    algorithm: Algorithm,
    key_id: Option<String>,
    signed: &'t [u8],
    payload: &'t [u8],
    signature: Vec<u8>,
}

/// The payload of a token with a verified signature.
#[derive(Debug)]
pub(crate) struct Verified(Vec<u8>);

impl Verified {
    /// The payload's bytes: claims, if the signer works correctly.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The relevant members of the header.
#[derive(Deserialize)]
struct Header<'h> {
    #[serde(borrow)]
    alg: Cow<'h, str>,
    #[serde(borrow)]
    kid: Option<Cow<'h, str>>,
    #[serde(default, deserialize_with = "there")]
    crit: bool,
}

/// True for any value, even `null`.
fn there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

impl<'t> Token<'t> {
    /// Splits and parses a token.
    pub(crate) fn parse(bytes: &'t [u8]) -> Result<Token<'t>, Refusal> {
        if bytes.len() > TOKEN_BYTES {
            return Err(Refusal::Malformed);
        }
        let mut parts = bytes.split(|byte| *byte == b'.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Refusal::Malformed);
        };
        if header.len() > HEADER_BYTES {
            return Err(Refusal::Malformed);
        }
        let json = decoded(header)?;
        let read: Header<'_> = serde_json::from_slice(&json).map_err(|_| Refusal::Malformed)?;
        if read.crit {
            return Err(Refusal::Malformed);
        }
        Ok(Token {
            algorithm: Algorithm::named(&read.alg).ok_or(Refusal::UnknownKey)?,
            key_id: read.kid.map(Cow::into_owned),
            signed: &bytes[..header.len() + 1 + payload.len()],
            payload,
            signature: decoded(signature)?,
        })
    }

    /// Verifies the signature with the one matching key.
    pub(crate) fn verify(&self, keys: &KeySet) -> Result<Verified, Refusal> {
        let key: &Key = keys
            .find(self.algorithm, self.key_id.as_deref())
            .ok_or(Refusal::UnknownKey)?;
        if !key.verifies(self.signed, &self.signature) {
            return Err(Refusal::Signature);
        }
        Ok(Verified(decoded(self.payload)?))
    }
}

fn decoded(part: &[u8]) -> Result<Vec<u8>, Refusal> {
    // Strict about padding and unused bits: one text per value.
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part);
    bytes.map_err(|_| Refusal::Malformed)
}

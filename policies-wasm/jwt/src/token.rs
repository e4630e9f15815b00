//! A token (a JWT in the compact form of a JWS, RFC 7515), from a caller's bytes to a payload that somebody has signed.
//!
//! ```text
//!   eyJhbGciOiJFUzI1NiJ9 . eyJpc3MiOi... . MEUCIQD...
//!   header                 payload         signature        each base64url, without padding
//!   \__________________________________/
//!                 what is signed
//! ```
//!
//! The bytes are whatever a caller sent. A [`Token`] is that, taken apart and believed in nothing but which key to try; only
//! [`Token::verify`] makes a [`Verified`], and claims are read from nothing else. Each step is linear in the token's length, and one
//! signature is checked at most. Absent: JSON serialisations, encryption (JWE), keys inside of tokens (`jwk`, `jku`, `x5c`: they would be
//! the caller's own), and extensions (`crit`): RFC 7515 asks to refuse what one doesn't understand.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::keys::{Algorithm, Key, KeySet};

/// Bytes of a token: as much as the metadata of a call.
pub(crate) const TOKEN_BYTES: usize = 8 << 10;

/// Bytes of a header as it is encoded. It is the only part that is parsed before the signature is known to be good.
pub(crate) const HEADER_BYTES: usize = 1 << 10;

/// Why a token doesn't let its call pass. Who called is told less than this says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no token.
    Missing,
    /// It is no token, or none of a kind that is known; or there are several.
    Malformed,
    /// None of the keys is for it.
    UnknownKey,
    /// The key says that it was forged.
    Signature,
    /// Its time is over.
    Expired,
    /// Its time hasn't begun.
    TooEarly,
    /// It is somebody else's, or lacks what is required.
    Claims,
    /// It is all right, and not for this.
    Scope,
}

/// A token that nobody has vouched for yet.
#[derive(Debug)]
pub(crate) struct Token<'t> {
    algorithm: Algorithm,
    key_id: Option<String>,
    signed: &'t [u8],
    payload: &'t [u8],
    signature: Vec<u8>,
}

/// The payload of a token whose signature is good.
#[derive(Debug)]
pub(crate) struct Verified(Vec<u8>);

impl Verified {
    /// The payload's bytes: claims, if it is the token of a sane signer.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The header's members that matter.
#[derive(Deserialize)]
struct Header<'h> {
    #[serde(borrow)]
    alg: Cow<'h, str>,
    #[serde(borrow)]
    kid: Option<Cow<'h, str>>,
    #[serde(default, deserialize_with = "there")]
    crit: bool,
}

/// True for whatever is there, `null` included.
fn there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

impl<'t> Token<'t> {
    /// Takes a token apart.
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

    /// Checks the signature with the one key that is for it.
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
    // Strict about padding and about bits that are left over: one text per value.
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part);
    bytes.map_err(|_| Refusal::Malformed)
}

//! Signatures of modules.
//!
//! | proof | what is signed | keys |
//! |---|---|---|
//! | [`Proof::Embedded`] | the module, in its first section (WebAssembly tool conventions, *Signatures*; `wasmsign2 sign`) | Ed25519 |
//! | [`Proof::Blob`] | the module's bytes, beside them (`cosign sign-blob`) | ECDSA P-256 |
//! | [`Proof::Image`] | a sentence about the image's manifest, whose digest leads to the module (`cosign sign`, *simple signing*) | ECDSA P-256 |
//!
//! In each case the complete chain from the key to the module's bytes is checked here: no claim of
//! the uploader is trusted.

use std::io::Cursor;

use base64::Engine as _;
use p256::ecdsa::signature::Verifier as _;
use p256::ecdsa::{DerSignature, VerifyingKey};
use p256::pkcs8::DecodePublicKey as _;
use serde::Deserialize;
use wasmsign2::{PublicKey, PublicKeySet, WSError};

use crate::image::digest;
use crate::{Image, ImageError, limits};

/// The first byte of wasmsign2's key files.
const WASMSIGN2_KEY: u8 = 1;
const WASMSIGN2_KEY_BYTES: usize = 33;

/// Trusted keys, each with the operator's name for it.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys {
    keys: Vec<(String, Key)>,
}

#[derive(Clone, Debug)]
enum Key {
    Ed25519(PublicKey),
    P256(VerifyingKey),
}

/// Why a key can't be used. The operator's configuration is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The format is unknown.
    #[error(
        "{name} isn't a public key: neither PEM (Ed25519, or ECDSA P-256 as cosign.pub) nor wasmsign2's format"
    )]
    Format {
        /// The key's name.
        name: String,
    },
    /// There would be too many keys.
    #[error("{name} would be key {count}; the limit is {max}", max = limits::KEYS)]
    TooMany {
        /// The key's name.
        name: String,
        /// The number of keys with this one.
        count: usize,
    },
}

/// The proof of a module's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof<'a> {
    /// A signature inside the module.
    Embedded,
    /// A signature of the module's bytes.
    Blob {
        /// In base64, as `cosign sign-blob` prints it.
        signature: &'a [u8],
    },
    /// A signature of the module's image.
    Image {
        /// The image's manifest.
        manifest: &'a [u8],
        /// The layer with the module, as stored in the registry.
        layer: &'a [u8],
        /// The signed text: JSON that names the manifest's digest.
        payload: &'a [u8],
        /// In base64.
        signature: &'a [u8],
    },
}

/// Why a module counts as unsigned. The uploader is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is no signature.
    #[error("the module isn't signed; this daemon takes modules signed with {trusted}")]
    Unsigned {
        /// The trusted keys' names.
        trusted: String,
    },
    /// No trusted key made the signature.
    #[error("the signature was made with none of the keys that this daemon trusts ({trusted})")]
    Untrusted {
        /// The trusted keys' names.
        trusted: String,
    },
    /// The signature doesn't parse.
    #[error("the signature is malformed: {0}")]
    Malformed(&'static str),
    /// The signature is for something else.
    #[error("the signature is for {signed}, but this is {found}")]
    Other {
        /// The digest that was signed.
        signed: String,
        /// The actual digest.
        found: String,
    },
    /// The image doesn't contain the module.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// cosign's signed text: `{"critical": {"image": {"docker-manifest-digest": "sha256:..."}, ...},
/// ...}`.
#[derive(Deserialize)]
struct SimpleSigning {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: SignedImage,
}

#[derive(Deserialize)]
struct SignedImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

impl TrustedKeys {
    /// Adds a public key: PEM of either kind, or wasmsign2's own format.
    ///
    /// # Errors
    /// The format is unknown, or there would be too many keys.
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), KeyError> {
        let name = name.to_owned();
        if self.keys.len() == limits::KEYS {
            let count = self.keys.len() + 1;
            return Err(KeyError::TooMany { name, count });
        }
        let key = parse_key(bytes).ok_or_else(|| KeyError::Format { name: name.clone() })?;
        self.keys.push((name, key));
        Ok(())
    }

    /// Whether no key is trusted; then no signature is demanded.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The name of the key that signed `module`.
    ///
    /// # Errors
    /// No trusted key signed it, or the proof is malformed or for something else.
    pub fn verify(&self, module: &[u8], proof: &Proof<'_>) -> Result<&str, SignatureError> {
        match *proof {
            Proof::Embedded => self.verify_embedded(module),
            Proof::Blob { signature } => self.verify_p256(module, signature),
            Proof::Image {
                manifest,
                layer,
                payload,
                signature,
            } => {
                let name = self.verify_p256(payload, signature)?;
                expect_digest(&signed_digest(payload)?, manifest)?;
                let inside = Image::parse(manifest)?.open(layer)?;
                expect_digest(&digest(&inside), module)?;
                Ok(name)
            }
        }
    }

    fn trusted(&self) -> String {
        let names: Vec<&str> = self.keys.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }

    fn verify_p256(&self, signed: &[u8], signature: &[u8]) -> Result<&str, SignatureError> {
        if signature.len() > limits::SIGNATURE_BYTES {
            return Err(SignatureError::Malformed("it is longer than 16 KiB"));
        }
        let der = base64::prelude::BASE64_STANDARD
            .decode(signature.trim_ascii())
            .map_err(|_| SignatureError::Malformed("it isn't base64"))?;
        let signature = DerSignature::try_from(&der[..])
            .map_err(|_| SignatureError::Malformed("it isn't an ECDSA signature in DER"))?;
        let made_it = |key: &Key| match key {
            Key::P256(key) => key.verify(signed, &signature).is_ok(),
            Key::Ed25519(_) => false,
        };
        match self.keys.iter().find(|(_, key)| made_it(key)) {
            Some((name, _)) => Ok(name),
            None => Err(SignatureError::Untrusted {
                trusted: self.trusted(),
            }),
        }
    }

    fn verify_embedded(&self, module: &[u8]) -> Result<&str, SignatureError> {
        let unsigned = || SignatureError::Unsigned {
            trusted: self.trusted(),
        };
        let section = signature_section(module)?.ok_or_else(unsigned)?;
        check_lengths(section)?;
        for (name, key) in &self.keys {
            let Key::Ed25519(key) = key else { continue };
            let mut alone = PublicKeySet::empty();
            let added = alone.insert(key.clone());
            added.map_err(|_| SignatureError::Malformed("a key can't be used alone"))?;
            match alone.verify(&mut Cursor::new(module), None) {
                Ok(found) if !found.is_empty() => return Ok(name),
                Ok(_) | Err(WSError::VerificationFailed) => {}
                Err(WSError::NoSignatures) => return Err(unsigned()),
                Err(_) => return Err(SignatureError::Malformed("its section doesn't parse")),
            }
        }
        Err(SignatureError::Untrusted {
            trusted: self.trusted(),
        })
    }
}

fn parse_key(bytes: &[u8]) -> Option<Key> {
    if bytes.len() == WASMSIGN2_KEY_BYTES && bytes[0] == WASMSIGN2_KEY {
        return PublicKey::from_bytes(bytes).ok().map(Key::Ed25519);
    }
    let pem = str::from_utf8(bytes).ok()?;
    let p256 = VerifyingKey::from_public_key_pem(pem).ok().map(Key::P256);
    p256.or_else(|| PublicKey::from_pem(pem).ok().map(Key::Ed25519))
}

/// The manifest's digest in the signed text.
fn signed_digest(payload: &[u8]) -> Result<String, SignatureError> {
    if payload.len() > limits::SIGNATURE_BYTES {
        return Err(SignatureError::Malformed(
            "the signed text is longer than 16 KiB",
        ));
    }
    let signed: SimpleSigning = serde_json::from_slice(payload)
        .map_err(|_| SignatureError::Malformed("the signed text names no image"))?;
    Ok(signed.critical.image.digest)
}

fn expect_digest(signed: &str, bytes: &[u8]) -> Result<(), SignatureError> {
    let found = digest(bytes);
    if found == signed {
        return Ok(());
    }
    let signed = signed.chars().take(80).collect();
    Err(SignatureError::Other { signed, found })
}

/// The content of a module's first section, if it is a signature. Also checks the length of every
/// section: the library allocates memory by these lengths.
fn signature_section(module: &[u8]) -> Result<Option<&[u8]>, SignatureError> {
    let mut rest = module
        .get(8..)
        .ok_or(SignatureError::Malformed("the module has no sections"))?;
    let mut first = None;
    let mut index = 0;
    while let Some((&id, after)) = rest.split_first() {
        rest = after;
        let content = slice(&mut rest)?;
        if index == 0 && id == 0 {
            let mut content = content;
            if slice(&mut content)? == b"signature" {
                first = Some(content);
            }
        }
        index += 1;
    }
    Ok(first)
}

/// Checks each length inside a signature's section against the available bytes.
///
/// ```text
///   version u8 | content type u8 | hash function u8 | count | { length | hashes: count, 32 bytes each | signatures: count, { length | .. } }
///   a signature: length | key id | algorithm u8 | length | bytes
/// ```
fn check_lengths(mut section: &[u8]) -> Result<(), SignatureError> {
    let truncated = SignatureError::Malformed("its section ends early");
    section = section.get(3..).ok_or(truncated.clone())?;
    for _ in 0..length(&mut section)? {
        let mut signed = slice(&mut section)?;
        let hashes = length(&mut signed)?.saturating_mul(32);
        signed = signed.get(hashes..).ok_or(truncated.clone())?;
        for _ in 0..length(&mut signed)? {
            let mut signature = slice(&mut signed)?;
            slice(&mut signature)?;
            signature = signature.get(1..).ok_or(truncated.clone())?;
            slice(&mut signature)?;
        }
    }
    Ok(())
}

/// Takes a LEB128 length and that many bytes.
fn slice<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], SignatureError> {
    let len = length(bytes)?;
    let taken = bytes.split_at_checked(len);
    let (slice, rest) = taken.ok_or(SignatureError::Malformed("a length exceeds the module"))?;
    *bytes = rest;
    Ok(slice)
}

fn length(bytes: &mut &[u8]) -> Result<usize, SignatureError> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes
            .split_first()
            .ok_or(SignatureError::Malformed("a length is cut off"))?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value as usize);
        }
    }
    Err(SignatureError::Malformed(
        "a length has more than five bytes",
    ))
}

#[cfg(test)]
mod tests;

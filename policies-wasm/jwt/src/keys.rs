//! The public keys of a configuration, from JWK sets (RFC 7517) or PEM.
//!
//! A key has exactly one algorithm, which follows from its type; a token's `alg` only selects among
//! keys. So algorithm confusion is impossible: there are no keys for `none` or HMAC. At most one
//! key is tried per token, which bounds the cost of a caller's token.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use p256::ecdsa::signature::Verifier as _;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::rsa;

/// The maximum number of keys in a configuration.
const KEYS: usize = 16;

/// A signature algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Es256,
    EdDsa,
    Rs256,
}

impl Algorithm {
    /// The algorithm with this name in RFC 7518 or RFC 8037, which is case-sensitive.
    pub(crate) fn named(name: &str) -> Option<Algorithm> {
        match name {
            "ES256" => Some(Algorithm::Es256),
            "EdDSA" => Some(Algorithm::EdDsa),
            "RS256" => Some(Algorithm::Rs256),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Algorithm::Es256 => "ES256",
            Algorithm::EdDsa => "EdDSA",
            Algorithm::Rs256 => "RS256",
        }
    }
}

/// A key in the configuration. Other members of a JWK are ignored, as the RFC requires.
#[derive(Deserialize)]
pub(crate) struct KeyConfig {
    kty: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    /// The private part, which must be absent.
    d: Option<IgnoredAny>,
    pem: Option<String>,
}

/// The verifier of a signature.
#[derive(Debug)]
enum Verifier {
    // Boxed: the three differ much in size.
    P256(Box<p256::ecdsa::VerifyingKey>),
    Ed25519(Box<ed25519_dalek::VerifyingKey>),
    Rsa(Box<rsa::PublicKey>),
}

/// A key for tokens.
#[derive(Debug)]
pub(crate) struct Key {
    id: Option<String>,
    verifier: Verifier,
}

impl Key {
    fn algorithm(&self) -> Algorithm {
        match self.verifier {
            Verifier::P256(_) => Algorithm::Es256,
            Verifier::Ed25519(_) => Algorithm::EdDsa,
            Verifier::Rsa(_) => Algorithm::Rs256,
        }
    }

    /// Whether this key made the signature of the message.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.verifier {
            Verifier::P256(key) => p256::ecdsa::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify(message, &signature).is_ok()),
            // Strict: rejects keys and commitments of small order, under which one signature would
            // fit many messages.
            Verifier::Ed25519(key) => ed25519_dalek::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(message, &signature).is_ok()),
            Verifier::Rsa(key) => key.verifies(message, signature),
        }
    }
}

/// All keys.
#[derive(Debug)]
pub(crate) struct KeySet(Vec<Key>);

impl KeySet {
    /// Parses a configuration's keys.
    pub(crate) fn new(configs: &[KeyConfig]) -> Result<KeySet, String> {
        if !(1..=KEYS).contains(&configs.len()) {
            let count = configs.len();
            return Err(format!("there are {count} keys; 1 to {KEYS} are allowed"));
        }
        let mut keys: Vec<Key> = Vec::new();
        for (config, number) in configs.iter().zip(1..) {
            let key = key(config).map_err(|problem| match &config.kid {
                Some(id) => format!("key {number} ({id:?}): {problem}"),
                None => format!("key {number}: {problem}"),
            })?;
            let rival = |known: &Key| known.algorithm() == key.algorithm() && known.id == key.id;
            if keys.iter().any(rival) {
                let name = key.algorithm().name();
                return Err(match &key.id {
                    Some(id) => format!("two keys for {name} have the same kid {id:?}"),
                    None => format!("two keys for {name} have no kid; give each a kid"),
                });
            }
            keys.push(key);
        }
        Ok(KeySet(keys))
    }

    /// The key for a token: the one with its id, or else the one without an id. If the token has no
    /// id, the only key of the algorithm.
    pub(crate) fn find(&self, algorithm: Algorithm, id: Option<&str>) -> Option<&Key> {
        let mut usable = self.0.iter().filter(|key| key.algorithm() == algorithm);
        match id {
            Some(id) => {
                let exact = usable.clone().find(|key| key.id.as_deref() == Some(id));
                exact.or_else(|| usable.find(|key| key.id.is_none()))
            }
            None => usable.next().filter(|_| usable.next().is_none()),
        }
    }
}

fn key(config: &KeyConfig) -> Result<Key, String> {
    if config.d.is_some() {
        return Err("it has its private part, `d`; remove `d`, which must stay secret".to_owned());
    }
    if config
        .purpose
        .as_deref()
        .is_some_and(|purpose| purpose != "sig")
    {
        return Err("its `use` isn't \"sig\"; remove this key".to_owned());
    }
    let verifier = match (&config.pem, config.kty.as_deref()) {
        (Some(_), Some(_)) => return Err("it has both `pem` and `kty`; give only one".to_owned()),
        (Some(pem), None) => of_pem(pem)?,
        (None, Some(kty)) => of_jwk(config, kty)?,
        (None, None) => return Err("it has neither `kty` (a JWK) nor `pem`".to_owned()),
    };
    let key = Key {
        id: config.kid.clone(),
        verifier,
    };
    let name = key.algorithm().name();
    match &config.alg {
        Some(alg) if alg != name => Err(format!(
            "its `alg` is {alg:?}; a key of this type is for {name}"
        )),
        _ => Ok(key),
    }
}

fn of_jwk(config: &KeyConfig, kty: &str) -> Result<Verifier, String> {
    match (kty, config.crv.as_deref()) {
        ("EC", Some("P-256")) => {
            let mut point = vec![4];
            point.extend(exactly_32("x", &config.x)?);
            point.extend(exactly_32("y", &config.y)?);
            of_p256(&point)
        }
        ("OKP", Some("Ed25519")) => of_ed25519(&exactly_32("x", &config.x)?),
        ("RSA", _) => of_rsa(&number("n", &config.n)?, &number("e", &config.e)?),
        ("EC" | "OKP", Some(curve)) => Err(format!(
            "its curve is {curve:?}; P-256 and Ed25519 are supported"
        )),
        ("EC" | "OKP", None) => Err("it has no `crv`".to_owned()),
        ("oct", _) => Err("it is a shared secret; only public keys are allowed".to_owned()),
        _ => Err(format!(
            "its `kty` is {kty:?}; EC, OKP and RSA are supported"
        )),
    }
}

fn of_p256(point: &[u8]) -> Result<Verifier, String> {
    let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(point);
    let key = key.map_err(|_| "it is not a point on the curve P-256")?;
    Ok(Verifier::P256(Box::new(key)))
}

fn of_ed25519(bytes: &[u8; 32]) -> Result<Verifier, String> {
    let key = ed25519_dalek::VerifyingKey::from_bytes(bytes);
    match key {
        Ok(key) if !key.is_weak() => Ok(Verifier::Ed25519(Box::new(key))),
        _ => Err("it is not a valid Ed25519 key".to_owned()),
    }
}

fn of_rsa(modulus: &[u8], exponent: &[u8]) -> Result<Verifier, String> {
    Ok(Verifier::Rsa(Box::new(rsa::PublicKey::new(
        modulus, exponent,
    )?)))
}

fn number(name: &str, text: &Option<String>) -> Result<Vec<u8>, String> {
    let text = text.as_ref().ok_or_else(|| format!("it has no `{name}`"))?;
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text);
    bytes.map_err(|problem| format!("its `{name}` isn't base64url: {problem}"))
}

fn exactly_32(name: &str, text: &Option<String>) -> Result<[u8; 32], String> {
    let bytes = number(name, text)?;
    let len = bytes.len();
    let exact = bytes.try_into();
    exact.map_err(|_| format!("its `{name}` has {len} bytes instead of 32"))
}

/// The DER before the point of a P-256 key: its length, the type EC, the curve's name, and the BIT
/// STRING's header.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The DER before the 32 bytes of an Ed25519 key (RFC 8410).
const ED25519_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
/// The DER that announces an RSA key.
const RSA_ALGORITHM: [u8; 13] = [
    0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];

fn of_pem(pem: &str) -> Result<Verifier, String> {
    let der = pem_body(pem)?;
    if let Some(point) = der.strip_prefix(&P256_HEAD) {
        return of_p256(point);
    }
    if let Some(bytes) = der.strip_prefix(&ED25519_HEAD) {
        let bytes = bytes
            .try_into()
            .map_err(|_| "it is not a valid Ed25519 key")?;
        return of_ed25519(bytes);
    }
    match rsa_numbers(&der) {
        Some((modulus, exponent)) => of_rsa(modulus, exponent),
        None => Err("its PEM has no P-256, Ed25519 or RSA key".to_owned()),
    }
}

fn pem_body(pem: &str) -> Result<Vec<u8>, String> {
    let body = pem
        .trim()
        .strip_prefix("-----BEGIN PUBLIC KEY-----")
        .and_then(|rest| rest.strip_suffix("-----END PUBLIC KEY-----"));
    let Some(body) = body else {
        return Err(if pem.contains("PRIVATE KEY") {
            "its PEM is a private key; `openssl pkey -pubout` extracts the public key".to_owned()
        } else if pem.contains("BEGIN CERTIFICATE") {
            "its PEM is a certificate; `openssl x509 -pubkey -noout` extracts its key".to_owned()
        } else {
            "its PEM isn't exactly one BEGIN PUBLIC KEY block".to_owned()
        });
    };
    let letters: String = body.split_whitespace().collect();
    let der = BASE64_STANDARD.decode(letters);
    der.map_err(|problem| format!("its PEM isn't base64: {problem}"))
}

/// `SEQUENCE { SEQUENCE { rsaEncryption, NULL }, BIT STRING { SEQUENCE { modulus, exponent } } }`,
/// and nothing after it.
fn rsa_numbers(der: &[u8]) -> Option<(&[u8], &[u8])> {
    const SEQUENCE: u8 = 0x30;
    const BIT_STRING: u8 = 0x03;
    const INTEGER: u8 = 0x02;
    let (key, rest) = element(der, SEQUENCE)?;
    let (algorithm, key) = element(key, SEQUENCE)?;
    let (bits, after) = element(key, BIT_STRING)?;
    let (numbers, last) = element(bits.strip_prefix(&[0])?, SEQUENCE)?;
    let (modulus, numbers) = element(numbers, INTEGER)?;
    let (exponent, end) = element(numbers, INTEGER)?;
    let whole = [rest, after, last, end].iter().all(|rest| rest.is_empty());
    (whole && algorithm == RSA_ALGORITHM).then_some((modulus, exponent))
}

/// One DER element with this tag: its content, and the rest.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let rest = der.strip_prefix(&[tag])?;
    let (len, rest) = match rest {
        [len @ 0..=0x7f, rest @ ..] => (usize::from(*len), rest),
        [0x81, len, rest @ ..] => (usize::from(*len), rest),
        [0x82, high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        _ => return None,
    };
    rest.split_at_checked(len)
}

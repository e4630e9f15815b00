//! RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017, section 8.2.2): checking only.
//!
//! A signature is raised to the public exponent. The result must equal, byte for byte, the only
//! encoding of the message's digest. The encoding is built and compared, never parsed: lenient
//! parsing enables forgeries against small exponents. No value here is secret, so nothing needs
//! constant time.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use sha2::{Digest, Sha256};

/// The size of a modulus in bits: smaller is too weak, larger is too slow for a call.
const MODULUS_BITS: std::ops::RangeInclusive<u32> = 2048..=4096;

/// The bytes before a SHA-256 digest in the encoding: its DER without the digest.
const DIGEST_INFO: [u8; 19] = [
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05,
    0x00, 0x04, 0x20,
];

/// A public key, prepared for multiplication.
#[derive(Debug)]
pub(crate) struct PublicKey {
    modulus: BoxedUint,
    params: BoxedMontyParams,
    /// The bytes of the modulus, and of a signature.
    len: usize,
    /// The exponent is 2 to this power, plus 1.
    squarings: u32,
}

impl PublicKey {
    /// A key from its numbers, big-endian.
    pub(crate) fn new(modulus: &[u8], exponent: &[u8]) -> Result<PublicKey, String> {
        let modulus = BoxedUint::from_be_slice_vartime(trimmed(modulus));
        let bits = modulus.bits_vartime();
        if !MODULUS_BITS.contains(&bits) {
            return Err(format!(
                "its modulus has {bits} bits; {} to {} are allowed",
                MODULUS_BITS.start(),
                MODULUS_BITS.end()
            ));
        }
        let squarings = match *trimmed(exponent) {
            [3] => 1,
            [17] => 4,
            [1, 0, 1] => 16,
            _ => return Err("its exponent isn't 3, 17 or 65537".to_owned()),
        };
        let odd = Option::from(Odd::new(modulus.clone()));
        let odd = odd.ok_or("its modulus is even")?;
        Ok(PublicKey {
            params: BoxedMontyParams::new_vartime(odd),
            modulus,
            len: bits.div_ceil(8) as usize,
            squarings,
        })
    }

    /// Whether the signature is this message's.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        if signature.len() != self.len {
            return false;
        }
        let precision = self.modulus.bits_precision();
        let Ok(number) = BoxedUint::from_be_slice(signature, precision) else {
            return false;
        };
        if number >= self.modulus {
            return false;
        }
        let number = BoxedMontyForm::new(number, &self.params);
        let mut power = number.square();
        for _ in 1..self.squarings {
            power = power.square();
        }
        let decoded = power.mul(&number).retrieve().to_be_bytes();
        let (padding, encoded) = decoded.split_at(decoded.len() - self.len);
        padding.iter().all(|byte| *byte == 0) && encoded == encoding(message, self.len)
    }
}

/// The only encoding of a message: `00 01 ff .. ff 00`, the digest's type, and the digest.
fn encoding(message: &[u8], len: usize) -> Vec<u8> {
    let digest = Sha256::digest(message);
    let mut encoded = vec![0xff; len];
    encoded[..2].copy_from_slice(&[0, 1]);
    let info_at = len - digest.len() - DIGEST_INFO.len();
    encoded[info_at - 1] = 0;
    encoded[info_at..][..DIGEST_INFO.len()].copy_from_slice(&DIGEST_INFO);
    encoded[len - digest.len()..].copy_from_slice(&digest);
    encoded
}

/// A number's bytes without leading zeros.
fn trimmed(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

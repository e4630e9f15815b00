//! The origin of a module: the contents of a registry's image, and signatures.
//!
//! ```text
//!   manifest ──Image::parse──▶ Image ──open(layer's bytes)──▶ module
//!   module, proof ──TrustedKeys::verify──▶ who signed it
//! ```
//!
//! Both ends use it: a client that fetches an image extracts the module with [`Image`]. The daemon,
//! which doesn't trust the client, follows the chain from the signature to the module's bytes
//! itself ([`Proof::Image`]).
//!
//! Bytes in, bytes out: no network, no files. All input is untrusted until a signature is verified,
//! so every length is checked against [`limits`] before an allocation.

#![forbid(unsafe_code)]

mod image;
pub mod limits;
mod signature;

pub use image::{Image, ImageError, Layer, Layout};
pub use signature::{KeyError, Proof, SignatureError, TrustedKeys};

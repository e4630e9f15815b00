//! Where a module comes from: what an image of a registry holds, and who signed it.
//!
//! ```text
//!   manifest ──Image::parse──▶ Image ──open(layer's bytes)──▶ module
//!   module, proof ──TrustedKeys::verify──▶ who signed it
//! ```
//!
//! Shared by both ends: whoever fetches an image takes the module out with [`Image`], and the daemon, which trusts nobody's
//! word for what was fetched, follows the same way from the signature to the module's bytes ([`Proof::Image`]).
//!
//! Bytes in, bytes out: no network, no file. Everything here comes from strangers until a signature says otherwise, so
//! every length is bounded ([`limits`]) before anything is allocated for it.

#![forbid(unsafe_code)]

mod image;
pub mod limits;
mod signature;

pub use image::{Image, ImageError, Layer, Layout};
pub use signature::{KeyError, Proof, SignatureError, TrustedKeys};

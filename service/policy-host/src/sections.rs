//! The sections of an uncompiled module: iterating over them, and finding its manifests.

use wasmparser::{Parser, Payload};

use crate::text::cut;
use crate::{LoadError, limits};

/// The custom section that holds the manifest.
pub(crate) const MANIFEST_SECTION: &str = "tollgate.manifest";

/// The data of every section that holds a manifest.
pub(crate) fn manifests(wasm: &[u8]) -> Result<Vec<&[u8]>, LoadError> {
    if wasm.len() > limits::COMPAT_MODULE_BYTES {
        return Err(LoadError::TooLarge {
            bytes: wasm.len(),
            max: limits::COMPAT_MODULE_BYTES,
        });
    }
    let mut found = Vec::new();
    for payload in sections(wasm) {
        if let Payload::CustomSection(section) = payload?
            && section.name() == MANIFEST_SECTION
        {
            found.push(section.data());
        }
    }
    Ok(found)
}

/// All sections, in their order.
pub(crate) fn sections(wasm: &[u8]) -> impl Iterator<Item = Result<Payload<'_>, LoadError>> {
    Parser::new(0)
        .parse_all(wasm)
        .map(|payload| payload.map_err(invalid))
}

/// The parser's error for bytes that aren't a module.
pub(crate) fn invalid(error: wasmparser::BinaryReaderError) -> LoadError {
    LoadError::Invalid(cut(&error.to_string()))
}

//! Images that contain a module, in three layouts.
//!
//! | layout | the module is | source |
//! |---|---|---|
//! | CNCF | the layer of type `application/wasm` | CNCF TAG Runtime, *Wasm OCI Artifact layout* |
//! | Istio, oci | the layer of type `application/vnd.module.wasm.content.layer.v1+wasm` | Solo.io, *WASM Artifact Image Specification* |
//! | Istio, compat | `plugin.wasm` in the archive that is the last layer | the same, *compat variant*, which any image builder can make |
//!
//! These archives are read. The content decides about the compression, not the media type:
//!
//! | archive | media types | |
//! |---|---|---|
//! | tar | `application/vnd.oci.image.layer.v1.tar`, `application/vnd.docker.image.rootfs.diff.tar` | read |
//! | tar, gzip, of one member or several (pigz, eStargz) | the same with `+gzip`, and Docker's with `.gzip` | read |
//! | tar, zstd | the same with `+zstd`, and Docker's with `.zstd` | refused by name: a decoder in C or a young one, for modules that gzip makes as small |
//!
//! A manifest of Docker's schema 1, which registries no longer accept, is rejected by name as well.

use std::fmt;
use std::io::Read;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::limits;

/// The file with the module in a compat image.
const PLUGIN: &str = "plugin.wasm";

/// The first bytes of compressed files (RFC 1952, RFC 8878).
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The layout of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A layer of type `application/wasm`.
    Cncf,
    /// A layer of type `application/vnd.module.wasm.content.layer.v1+wasm`.
    IstioOci,
    /// `plugin.wasm` in an archive.
    IstioCompat,
}

impl Layout {
    fn of(media_type: &str) -> Option<Layout> {
        match media_type {
            "application/wasm" => Some(Layout::Cncf),
            "application/vnd.module.wasm.content.layer.v1+wasm" => Some(Layout::IstioOci),
            "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd" => Some(Layout::IstioCompat),
            _ => None,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Cncf => "CNCF",
            Layout::IstioOci => "Istio (oci)",
            Layout::IstioCompat => "Istio (compat)",
        })
    }
}

/// A layer as its manifest announces it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Layer {
    /// The type of its content.
    pub media_type: String,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    /// Its size in bytes.
    pub size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    layers: Vec<Layer>,
}

/// A manifest's statement about the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    layer: Layer,
    layout: Layout,
}

/// Why an image has no module. The author of the image is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The manifest doesn't parse.
    #[error("the manifest doesn't parse: {0}")]
    Manifest(String),
    /// A limit is exceeded.
    #[error("the image has {count} {what}, above the limit of {max}")]
    TooMuch {
        /// The counted items.
        what: &'static str,
        /// Their number; counting may have stopped early.
        count: u64,
        /// The limit.
        max: u64,
    },
    /// Docker's first format.
    #[error(
        "the manifest has Docker's schema version 1, which isn't supported; build and push the image again, which makes version 2"
    )]
    Schema1,
    /// No layer can contain a module.
    #[error(
        "no layer of the image holds a module; its layers are {found:?}. Supported are application/wasm, \
         application/vnd.module.wasm.content.layer.v1+wasm, and a tar or tar+gzip layer with {PLUGIN}"
    )]
    NoModule {
        /// The layers' media types.
        found: Vec<String>,
    },
    /// The layer isn't the one that the manifest announces.
    #[error("the layer has the digest {found}, but the manifest announces {announced}")]
    Digest {
        /// The digest of the bytes.
        found: String,
        /// The digest in the manifest.
        announced: String,
    },
    /// The layer is compressed with zstd.
    #[error(
        "the layer is compressed with zstd, which isn't supported; build the image with gzip (buildx: --output type=image,compression=gzip,force-compression=true)"
    )]
    Zstd,
    /// The archive doesn't unpack.
    #[error("the layer's archive doesn't unpack: {0}")]
    Archive(String),
    /// The archive has no module.
    #[error("the layer's archive has no file {PLUGIN}")]
    NoPlugin,
}

fn bounded(what: &'static str, count: u64, max: u64) -> Result<(), ImageError> {
    if count > max {
        Err(ImageError::TooMuch { what, count, max })
    } else {
        Ok(())
    }
}

impl Image {
    /// Reads a manifest and finds the layer with the module.
    ///
    /// # Errors
    /// The manifest doesn't parse, is too large, or announces no such layer.
    pub fn parse(manifest: &[u8]) -> Result<Image, ImageError> {
        bounded(
            "bytes of manifest",
            manifest.len() as u64,
            limits::MANIFEST_BYTES as u64,
        )?;
        let manifest: Manifest = serde_json::from_slice(manifest)
            .map_err(|error| ImageError::Manifest(error.to_string()))?;
        if manifest.schema_version == 1 {
            return Err(ImageError::Schema1);
        }
        let layers = manifest.layers;
        bounded("layers", layers.len() as u64, limits::LAYERS as u64)?;
        let is = |wanted: &[Layout], layer: &Layer| {
            Layout::of(&layer.media_type).is_some_and(|layout| wanted.contains(&layout))
        };
        let bare = layers
            .iter()
            .find(|layer| is(&[Layout::Cncf, Layout::IstioOci], layer));
        // An archive's files replace those of the layers below, so the last layer counts.
        let archived = || {
            layers
                .last()
                .filter(|layer| is(&[Layout::IstioCompat], layer))
        };
        let Some(layer) = bare.or_else(archived) else {
            let found = layers.into_iter().map(|layer| layer.media_type).collect();
            return Err(ImageError::NoModule { found });
        };
        if layer.media_type.ends_with("zstd") {
            return Err(ImageError::Zstd);
        }
        bounded("bytes of layer", layer.size, limits::LAYER_BYTES as u64)?;
        let layout = Layout::of(&layer.media_type).expect("only layers of known types were picked");
        Ok(Image {
            layer: layer.clone(),
            layout,
        })
    }

    /// The layer to fetch.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// The image's layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Extracts the module from the layer's bytes, which must be those that the manifest announces.
    ///
    /// # Errors
    /// The bytes differ, or they contain no module of at most [`limits::MODULE_BYTES`].
    pub fn open(&self, layer: &[u8]) -> Result<Vec<u8>, ImageError> {
        let found = digest(layer);
        if found != self.layer.digest {
            let announced = self.layer.digest.clone();
            return Err(ImageError::Digest { found, announced });
        }
        let module = match self.layout {
            Layout::Cncf | Layout::IstioOci => layer.to_vec(),
            Layout::IstioCompat => unpack(layer)?,
        };
        bounded(
            "bytes of module",
            module.len() as u64,
            limits::MODULE_BYTES as u64,
        )?;
        Ok(module)
    }
}

/// `sha256:` and the digest in hex, as manifests write it.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    let digest: String = Sha256::digest(bytes).iter().map(hex).collect();
    format!("sha256:{digest}")
}

/// The module in an archive, which may be a decompression bomb.
fn unpack(layer: &[u8]) -> Result<Vec<u8>, ImageError> {
    let broken = |error: std::io::Error| ImageError::Archive(error.to_string());
    if layer.starts_with(&ZSTD) {
        return Err(ImageError::Zstd);
    }
    // Builders that compress in parallel, or file by file, write several members.
    let unpacked: Box<dyn Read> = match layer.starts_with(&GZIP) {
        true => Box::new(MultiGzDecoder::new(layer)),
        false => Box::new(layer),
    };
    let unpacked = unpacked.take(limits::UNPACKED_BYTES);
    let mut archive = tar::Archive::new(unpacked);
    for entry in archive
        .entries()
        .map_err(broken)?
        .take(limits::ARCHIVE_ENTRIES)
    {
        let entry = entry.map_err(broken)?;
        let path = entry.path_bytes();
        let name = path.strip_prefix(b"./").unwrap_or(&path);
        if name != PLUGIN.as_bytes() {
            continue;
        }
        bounded("bytes of module", entry.size(), limits::MODULE_BYTES as u64)?;
        let mut module = Vec::new();
        entry
            .take(limits::MODULE_BYTES as u64)
            .read_to_end(&mut module)
            .map_err(broken)?;
        return Ok(module);
    }
    Err(ImageError::NoPlugin)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const CNCF: &str = "application/wasm";
    const COMPAT: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    fn manifest(layers: &[(&str, &[u8])]) -> Vec<u8> {
        let layers: Vec<_> = layers
            .iter()
            .map(|(media_type, bytes)| {
                serde_json::json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
            })
            .collect();
        serde_json::to_vec(&serde_json::json!({"schemaVersion": 2, "layers": layers})).unwrap()
    }

    fn zipped(bytes: &[u8]) -> Vec<u8> {
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut zipped, bytes).unwrap();
        zipped.finish().unwrap()
    }

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        zipped(&plain(files))
    }

    fn plain(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, *bytes).unwrap();
        }
        archive.into_inner().unwrap()
    }

    #[track_caller]
    fn check(layers: &[(&str, &[u8])], fetched: &[u8], expected: Result<(Layout, &[u8]), &str>) {
        let opened = Image::parse(&manifest(layers))
            .and_then(|image| Ok((image.layout(), image.open(fetched)?)));
        let opened = opened.map_err(|error| error.to_string());
        match (opened, expected) {
            (Ok((layout, module)), Ok(expected)) => assert_eq!((layout, &module[..]), expected),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error:?} lacks {part:?}"),
            (opened, expected) => panic!("{opened:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn each_layout_gives_its_module() {
        check(
            &[(CNCF, b"module")],
            b"module",
            Ok((Layout::Cncf, b"module")),
        );
        let istio = "application/vnd.module.wasm.content.layer.v1+wasm";
        let config = "application/vnd.module.wasm.config.v1+json";
        let layers: [(&str, &[u8]); 2] = [(config, b"{}"), (istio, b"module")];
        check(&layers, b"module", Ok((Layout::IstioOci, b"module")));
        let packed = archive(&[("./README", b"about"), ("./plugin.wasm", b"module")]);
        let layers: [(&str, &[u8]); 2] = [(COMPAT, b"a layer below"), (COMPAT, &packed)];
        check(&layers, &packed, Ok((Layout::IstioCompat, b"module")));
        let docker = "application/vnd.docker.image.rootfs.diff.tar.gzip";
        check(
            &[(docker, &packed)],
            &packed,
            Ok((Layout::IstioCompat, b"module")),
        );
    }

    /// pigz splits at a number of bytes, eStargz at files.
    #[test]
    fn an_archive_may_have_several_gzip_members_or_none() {
        let module = vec![7; 2_000];
        let tar = plain(&[("README", b"about"), ("plugin.wasm", &module)]);
        for bytes in [1, 100, 512, 1_024, 1_536, 2_048] {
            let members: Vec<u8> = tar.chunks(bytes).flat_map(zipped).collect();
            check(
                &[(COMPAT, &members)],
                &members,
                Ok((Layout::IstioCompat, &module)),
            );
        }
        let docker = "application/vnd.docker.image.rootfs.diff.tar";
        for media_type in [docker, "application/vnd.oci.image.layer.v1.tar", COMPAT] {
            check(
                &[(media_type, &tar)],
                &tar,
                Ok((Layout::IstioCompat, &module)),
            );
        }
        // A decompression bomb may be in any member.
        let bomb = vec![0; limits::UNPACKED_BYTES as usize];
        let large = plain(&[("padding", &bomb), ("plugin.wasm", b"module")]);
        let members: Vec<u8> = large.chunks(1 << 20).flat_map(zipped).collect();
        check(&[(COMPAT, &members)], &members, Err("the layer's archive"));
    }

    #[test]
    fn zstd_and_schema_1_are_refused_by_name() {
        let zstd = b"\x28\xb5\x2f\xfd and so on";
        for media_type in [
            "application/vnd.oci.image.layer.v1.tar+zstd",
            "application/vnd.docker.image.rootfs.diff.tar.zstd",
            // The content decides, not the media type.
            COMPAT,
        ] {
            check(&[(media_type, zstd)], zstd, Err("compressed with zstd"));
        }
        let first =
            br#"{"schemaVersion": 1, "name": "acl", "fsLayers": [{"blobSum": "sha256:0"}]}"#;
        assert_eq!(Image::parse(first), Err(ImageError::Schema1));
    }

    #[test]
    fn what_holds_no_module_is_refused_with_the_reason() {
        check(&[], b"", Err("its layers are []"));
        check(&[("text/html", b"x")], b"x", Err("[\"text/html\"]"));
        check(
            &[(CNCF, b"module")],
            b"modulo",
            Err("the manifest announces sha256:"),
        );
        check(
            &[(COMPAT, b"no archive")],
            b"no archive",
            Err("doesn't unpack"),
        );
        let packed = archive(&[("other.wasm", b"module")]);
        check(
            &[(COMPAT, &packed)],
            &packed,
            Err("has no file plugin.wasm"),
        );
        let error = Image::parse(b"<html>").unwrap_err().to_string();
        assert!(error.starts_with("the manifest doesn't parse"), "{error}");
    }

    #[test]
    fn every_limit_is_enforced() {
        let large = vec![0; limits::MODULE_BYTES + 1];
        check(
            &[(CNCF, &large)],
            &large,
            Err("1048577 bytes of module, above the limit of 1048576"),
        );
        let packed = archive(&[("plugin.wasm", &large)]);
        check(
            &[(COMPAT, &packed)],
            &packed,
            Err("1048577 bytes of module"),
        );
        let huge = vec![0; limits::LAYER_BYTES + 1];
        check(&[(CNCF, &huge)], &huge, Err("2097153 bytes of layer"));
        // Zeroes compress by a factor of 1,000.
        let bomb = vec![0; limits::UNPACKED_BYTES as usize];
        let packed = archive(&[("padding", &bomb), ("plugin.wasm", b"module")]);
        check(&[(COMPAT, &packed)], &packed, Err("the layer's archive"));
        let many = vec![("padding", &b""[..]); limits::ARCHIVE_ENTRIES];
        let packed = archive(&[&many[..], &[("plugin.wasm", b"module")]].concat());
        check(
            &[(COMPAT, &packed)],
            &packed,
            Err("has no file plugin.wasm"),
        );
        let many = vec![("text/html", &b""[..]); limits::LAYERS + 1];
        check(&many, b"", Err("65 layers"));
        let error = Image::parse(&vec![b' '; limits::MANIFEST_BYTES + 1]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the image has 65537 bytes of manifest, above the limit of 65536"
        );
    }

    proptest! {
        #[test]
        fn damaged_archives_are_errors_or_modules(at in 0usize..400, bit in 0u8..8) {
            let mut packed = archive(&[("plugin.wasm", b"module")]);
            let at = at % packed.len();
            packed[at] ^= 1 << bit;
            let _any_outcome = unpack(&packed);
        }
    }
}

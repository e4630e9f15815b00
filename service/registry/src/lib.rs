//! Modules from an OCI registry: `oci://ghcr.io/acme/acl:1.2`, or pinned,
//! `oci://ghcr.io/acme/acl@sha256:...`.
//!
//! ```text
//!   reference ─▶ manifest (an index leads to one) ─▶ the layer with the module ─▶ module
//!                    └─▶ sha256-<digest>.sig: cosign's signatures of this image, if there are any
//! ```
//!
//! Used by clients that push policies; the daemon fetches nothing. Fetched data is as untrusted as
//! any upload: [`Fetched`] contains the manifest, the layer and the signatures, so that the daemon
//! can check them itself.
//!
//! Credentials come from `docker login` (`~/.docker/config.json`, also through credential helpers);
//! without them the access is anonymous. An identity token is exchanged ([`token`]). Registries on
//! this host are accessed over plain HTTP, all others over TLS.
//!
//! A missing signature doesn't prevent the fetch: the daemon may demand one and finds that there is
//! none. [`Fetched::unsigned`] says why.

#![forbid(unsafe_code)]

mod error;
mod http;
pub mod token;

use std::path::PathBuf;

use docker_credential::{CredentialRetrievalError, DockerCredential};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use serde::Deserialize;
use tollgate_provenance::{Image, Layout, limits as provenance};

use crate::error::failed;
use crate::http::{USER_AGENT, is_this_host};

pub use crate::error::FetchError;
pub use crate::http::TIMEOUT;

/// The prefix of a reference, which distinguishes it from a file's path.
pub const SCHEME: &str = "oci://";

/// Signatures of one image that are fetched; further ones are ignored.
pub const SIGNATURES: usize = 8;

const MANIFESTS: [&str; 4] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];

/// The annotation with cosign's signature.
const COSIGN_ANNOTATION: &str = "dev.cosignproject.cosign/signature";

/// A module, and the proof of its origin.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The module.
    pub module: Vec<u8>,
    /// The image's name by digest: `ghcr.io/acme/acl@sha256:...`.
    pub pinned: String,
    /// The image's layout.
    pub layout: Layout,
    /// The image's manifest.
    pub manifest: Vec<u8>,
    /// The layer, as stored in the registry.
    pub layer: Vec<u8>,
    /// cosign's signatures, unchecked.
    pub signatures: Vec<ImageSignature>,
    /// Why the signatures couldn't be fetched; `None` if the image is unsigned or they are here.
    pub unsigned: Option<String>,
}

/// One of cosign's signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSignature {
    /// The signed text.
    pub payload: Vec<u8>,
    /// The signature in base64.
    pub signature: Vec<u8>,
}

/// Fetches the module of an image. Blocks: not for a reactor's thread.
///
/// # Errors
/// See [`FetchError`].
pub fn fetch(reference: &str) -> Result<Fetched, FetchError> {
    let image = parse(reference)?;
    let login = credentials(image.resolve_registry())?;
    fetch_as(image, login)
}

fn fetch_as(image: Reference, login: Option<DockerCredential>) -> Result<Fetched, FetchError> {
    let name = image.whole();
    let broken = |error: std::io::Error| FetchError::Registry {
        image: name.clone(),
        reason: error.to_string(),
    };
    let reactor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(broken)?;
    reactor.block_on(async {
        let fetched = async {
            let registry = Registry::of(&image, login).await?;
            registry.fetch(image.clone()).await
        };
        let fetched = tokio::time::timeout(TIMEOUT, fetched);
        fetched.await.map_err(|_elapsed| FetchError::Timeout {
            image: name.clone(),
        })?
    })
}

fn parse(text: &str) -> Result<Reference, FetchError> {
    let bare = text.strip_prefix(SCHEME).unwrap_or(text);
    bare.parse::<Reference>()
        .map_err(|error| FetchError::Reference {
            text: text.to_owned(),
            reason: error.to_string(),
        })
}

/// A registry, with the credentials for it.
struct Registry {
    client: Client,
    auth: RegistryAuth,
}

impl Registry {
    async fn of(
        image: &Reference,
        login: Option<DockerCredential>,
    ) -> Result<Registry, FetchError> {
        // Only one provider is built in; other code may have installed it already.
        let _chosen_before = rustls::crypto::ring::default_provider().install_default();
        let registry = image.resolve_registry();
        let (protocol, scheme) = match is_this_host(registry) {
            true => (ClientProtocol::Http, "http"),
            false => (ClientProtocol::Https, "https"),
        };
        let config = ClientConfig {
            protocol,
            connect_timeout: Some(TIMEOUT / 4),
            user_agent: USER_AGENT,
            ..ClientConfig::default()
        };
        Ok(Registry {
            client: Client::new(config),
            auth: token::auth(image, scheme, login).await?,
        })
    }

    async fn fetch(&self, image: Reference) -> Result<Fetched, FetchError> {
        let name = image.whole();
        let no_module = |error| FetchError::Image {
            image: name.clone(),
            error,
        };
        let (image, manifest, digest) = self.manifest(image).await?;
        let found = Image::parse(&manifest).map_err(no_module)?;
        let layer = self.blob(&image, &found.layer().digest).await?;
        let module = found.open(&layer).map_err(no_module)?;
        let (signatures, unsigned) = match self.signatures(&image, &digest).await {
            Ok(signatures) => (signatures, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Ok(Fetched {
            module,
            pinned: format!("{}/{}@{digest}", image.registry(), image.repository()),
            layout: found.layout(),
            signatures,
            unsigned,
            manifest,
            layer,
        })
    }

    /// The image's manifest and digest; if the reference names an index, those of the chosen image.
    async fn manifest(&self, image: Reference) -> Result<(Reference, Vec<u8>, String), FetchError> {
        let (manifest, digest) = self.raw_manifest(&image).await?;
        let Some(chosen) = chosen_of_index(&manifest, &image)? else {
            return Ok((image, manifest, digest));
        };
        let image = image.clone_with_digest(chosen);
        let (manifest, digest) = self.raw_manifest(&image).await?;
        Ok((image, manifest, digest))
    }

    async fn raw_manifest(&self, image: &Reference) -> Result<(Vec<u8>, String), FetchError> {
        let pulled = self
            .client
            .pull_manifest_raw(image, &self.auth, &MANIFESTS)
            .await;
        let (manifest, digest) = pulled.map_err(|error| failed(image, error))?;
        Ok((manifest.to_vec(), digest))
    }

    async fn blob(&self, image: &Reference, digest: &str) -> Result<Vec<u8>, FetchError> {
        let mut bytes = Bounded::default();
        let pulled = self.client.pull_blob(image, digest, &mut bytes).await;
        pulled.map_err(|error| failed(image, error))?;
        Ok(bytes.0)
    }

    /// cosign's signatures of the image.
    async fn signatures(
        &self,
        image: &Reference,
        digest: &str,
    ) -> Result<Vec<ImageSignature>, FetchError> {
        let tag = format!("{}.sig", digest.replace(':', "-"));
        let (registry, repository) = (image.registry().to_owned(), image.repository().to_owned());
        let beside = Reference::with_tag(registry, repository, tag);
        let manifest = match self.raw_manifest(&beside).await {
            Ok((manifest, _)) => manifest,
            Err(FetchError::NotFound { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let listed: SignatureManifest =
            serde_json::from_slice(&manifest).map_err(|error| FetchError::Registry {
                image: beside.whole(),
                reason: error.to_string(),
            })?;
        let mut signatures = Vec::new();
        for layer in listed.layers.into_iter().take(SIGNATURES) {
            let Some(signature) = layer.annotations.get(COSIGN_ANNOTATION) else {
                continue;
            };
            signatures.push(ImageSignature {
                payload: self.blob(&beside, &layer.digest).await?,
                signature: signature.clone().into_bytes(),
            });
        }
        Ok(signatures)
    }
}

#[derive(Deserialize)]
struct SignatureManifest {
    #[serde(default)]
    layers: Vec<SignatureLayer>,
}

#[derive(Deserialize)]
struct SignatureLayer {
    digest: String,
    #[serde(default)]
    annotations: std::collections::HashMap<String, String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<IndexEntry>,
}

#[derive(Deserialize)]
struct IndexEntry {
    digest: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::HashMap<String, String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
}

/// buildx's annotation of manifests with provenance and SBOMs, which it stores beside an image.
const ABOUT_ANNOTATION: &str = "vnd.docker.reference.type";

impl IndexEntry {
    fn is_image(&self) -> bool {
        let is_unknown = |platform: &Platform| platform.architecture == "unknown";
        !self.annotations.contains_key(ABOUT_ANNOTATION)
            && !self.platform.as_ref().is_some_and(is_unknown)
    }

    fn is_for_wasm(&self) -> bool {
        let platform = self.platform.as_ref();
        platform.is_some_and(|platform| ["wasm", "wasm32"].contains(&&*platform.architecture))
    }
}

/// The image to take if this is an index: the only one, or the first for Wasm. Manifests about an
/// image don't count.
fn chosen_of_index(manifest: &[u8], image: &Reference) -> Result<Option<String>, FetchError> {
    let Ok(Index { mut manifests }) = serde_json::from_slice(manifest) else {
        return Ok(None);
    };
    manifests.retain(IndexEntry::is_image);
    let for_wasm = manifests.iter().find(|entry| entry.is_for_wasm());
    match (&manifests[..], for_wasm) {
        ([only], None) => Ok(Some(only.digest.clone())),
        (_, Some(entry)) => Ok(Some(entry.digest.clone())),
        (_, None) => Err(FetchError::Index {
            image: image.whole(),
            count: manifests.len(),
        }),
    }
}

fn credentials(registry: &str) -> Result<Option<DockerCredential>, FetchError> {
    use CredentialRetrievalError::{ConfigNotFound, ConfigReadError, NoCredentialConfigured};
    match docker_credential::get_credential(registry) {
        Ok(login) => Ok(Some(login)),
        Err(ConfigNotFound | NoCredentialConfigured) => Ok(None),
        // This error also stands for a missing file.
        Err(ConfigReadError) if !login_file().is_some_and(|path| path.exists()) => Ok(None),
        Err(error) => Err(FetchError::Credentials {
            registry: registry.to_owned(),
            reason: error.to_string(),
        }),
    }
}

/// The file with `docker login`'s credentials.
fn login_file() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker"));
    let directory = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    Some(directory.or_else(home)?.join("config.json"))
}

/// Collects a layer's bytes up to the limit.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl tokio::io::AsyncWrite for Bounded {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        let max = provenance::LAYER_BYTES;
        if self.0.len() + bytes.len() > max {
            let text = format!("the layer has more than {max} bytes");
            return std::task::Poll::Ready(Err(std::io::Error::other(text)));
        }
        self.0.extend_from_slice(bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod answers;
#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn references_are_parsed_or_refused_with_the_reason() {
        let whole = |text| parse(text).unwrap().whole();
        assert_eq!(whole("oci://localhost:5000/acl:1"), "localhost:5000/acl:1");
        assert_eq!(whole("oci://ghcr.io/acme/acl"), "ghcr.io/acme/acl:latest");
        let error = parse("oci://ghcr.io/ACME/acl").unwrap_err().to_string();
        assert!(
            error.starts_with("\"oci://ghcr.io/ACME/acl\" isn't a reference to an image ("),
            "{error}"
        );
        assert!(parse("oci://").is_err());
    }

    #[test]
    fn only_this_host_is_asked_without_tls() {
        for here in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:5000",
            "[::1]",
        ] {
            assert!(is_this_host(here), "{here}");
        }
        for elsewhere in [
            "ghcr.io",
            "localhost.example.com",
            "10.0.0.1:5000",
            "127.0.0.1.nip.io",
            "[2001:db8::1]:80",
        ] {
            assert!(!is_this_host(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn of_an_index_the_only_image_or_the_one_for_wasm_is_taken() {
        let image = parse("oci://localhost/acl:1").unwrap();
        let entry = |digest: &str, architecture: &str| serde_json::json!({"digest": digest, "platform": {"architecture": architecture, "os": "linux"}});
        let chosen = |entries: &[serde_json::Value]| {
            let index = serde_json::json!({"schemaVersion": 2, "manifests": entries});
            chosen_of_index(index.to_string().as_bytes(), &image)
        };
        let (arm, wasm) = (entry("sha256:a", "arm64"), entry("sha256:b", "wasm"));
        assert_eq!(
            chosen(&[arm.clone(), wasm.clone()]).unwrap().unwrap(),
            "sha256:b"
        );
        assert_eq!(
            chosen(std::slice::from_ref(&arm)).unwrap().unwrap(),
            "sha256:a"
        );
        let error = chosen(&[arm.clone(), arm]).unwrap_err().to_string();
        assert_eq!(
            error,
            "localhost/acl:1 is an index of 2 images, none of architecture wasm; name one by its digest"
        );
        assert_eq!(chosen_of_index(b"{\"layers\": []}", &image).unwrap(), None);
    }

    /// The default format of buildx.
    #[test]
    fn what_an_index_has_about_an_image_is_no_image() {
        let image = parse("oci://localhost/acl:1").unwrap();
        let entry = |digest: &str, platform: &str| serde_json::json!({"digest": digest, "platform": {"architecture": platform, "os": platform}});
        let about = |digest: &str| {
            let mut about = entry(digest, "unknown");
            about["annotations"] = serde_json::json!({
                "vnd.docker.reference.digest": "sha256:a", "vnd.docker.reference.type": "attestation-manifest"});
            about
        };
        let chosen = |entries: &[serde_json::Value]| {
            let index = serde_json::json!({"schemaVersion": 2, "manifests": entries});
            chosen_of_index(index.to_string().as_bytes(), &image)
        };
        let only = [entry("sha256:a", "amd64"), about("sha256:b")];
        assert_eq!(chosen(&only).unwrap().unwrap(), "sha256:a");
        let wasm = [
            about("sha256:b"),
            entry("sha256:c", "amd64"),
            entry("sha256:a", "wasm32"),
        ];
        assert_eq!(chosen(&wasm).unwrap().unwrap(), "sha256:a");
        let several = [
            entry("sha256:a", "amd64"),
            entry("sha256:c", "arm64"),
            about("sha256:b"),
        ];
        let error = chosen(&several).unwrap_err().to_string();
        assert!(error.contains("an index of 2 images"), "{error}");
        let error = chosen(&[about("sha256:b")]).unwrap_err().to_string();
        assert!(error.contains("an index of 0 images"), "{error}");
    }
}

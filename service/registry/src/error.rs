//! Why there is no module, and how what a registry said becomes that.

use oci_client::Reference;
use oci_client::errors::OciDistributionError;
use tollgate_provenance::ImageError;

use crate::http::TIMEOUT;

/// Why there is no module. Each names the image.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The reference is none.
    #[error(
        "{text:?} is no reference to an image ({reason}); write oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:DIGEST"
    )]
    Reference {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The registry refused.
    #[error("{image} needs a login: run `docker login {registry}` first ({reason})")]
    Unauthorized {
        /// The image.
        image: String,
        /// Its registry.
        registry: String,
        /// What it said.
        reason: String,
    },
    /// There is no such image.
    #[error("{image} doesn't exist, or isn't shown without a login")]
    NotFound {
        /// The image.
        image: String,
    },
    /// The stored credentials can't be used.
    #[error("the credentials for {registry} can't be used: {reason}")]
    Credentials {
        /// The registry.
        registry: String,
        /// Why.
        reason: String,
    },
    /// The registry can't be reached or talks nonsense.
    #[error("{image} can't be fetched: {reason}")]
    Registry {
        /// The image.
        image: String,
        /// What happened.
        reason: String,
    },
    /// It took too long.
    #[error("{image} wasn't fetched within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// The image.
        image: String,
    },
    /// An index of several images, none of them for Wasm.
    #[error(
        "{image} is an index of {count} images, none of architecture wasm; name one by its digest"
    )]
    Index {
        /// The index.
        image: String,
        /// Images in it.
        count: usize,
    },
    /// The image has no module.
    #[error("{image}: {error}")]
    Image {
        /// The image.
        image: String,
        /// Why not.
        error: ImageError,
    },
}

pub(crate) fn failed(image: &Reference, error: OciDistributionError) -> FetchError {
    let name = image.whole();
    match error {
        OciDistributionError::ImageManifestNotFoundError(_)
        | OciDistributionError::ServerError { code: 404, .. } => {
            FetchError::NotFound { image: name }
        }
        OciDistributionError::RegistryError { ref envelope, .. }
            if envelope.errors.iter().any(|error| {
                use oci_client::errors::OciErrorCode::{ManifestUnknown, NameUnknown, NotFound};
                matches!(error.code, ManifestUnknown | NameUnknown | NotFound)
            }) =>
        {
            FetchError::NotFound { image: name }
        }
        ref refused if is_unauthorized(refused) => FetchError::Unauthorized {
            image: name,
            registry: image.resolve_registry().to_owned(),
            reason: refused.to_string(),
        },
        error => FetchError::Registry {
            image: name,
            reason: with_sources(&error),
        },
    }
}

/// Whether it is who asks that the registry doesn't like: 401 and 403, as registries say them.
pub(crate) fn is_unauthorized(error: &OciDistributionError) -> bool {
    use oci_client::errors::OciErrorCode::{Denied, Unauthorized};
    match error {
        OciDistributionError::AuthenticationFailure(_)
        | OciDistributionError::UnauthorizedError { .. }
        | OciDistributionError::ServerError {
            code: 401 | 403, ..
        } => true,
        OciDistributionError::RegistryError { envelope, .. } => {
            let mut codes = envelope.errors.iter().map(|error| &error.code);
            codes.any(|code| matches!(code, Denied | Unauthorized))
        }
        _ => false,
    }
}

/// An error and what caused it, in one line.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

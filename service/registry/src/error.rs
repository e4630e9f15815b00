//! Errors of a fetch, and their origin in a registry's answers.

use oci_client::Reference;
use oci_client::errors::OciDistributionError;
use tollgate_provenance::ImageError;

use crate::http::TIMEOUT;

/// Why a module can't be fetched. Each error names the image.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The reference is invalid.
    #[error(
        "{text:?} isn't a reference to an image ({reason}); write oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:DIGEST"
    )]
    Reference {
        /// The given text.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The registry rejected the request.
    #[error("{image} needs a login: run `docker login {registry}` first ({reason})")]
    Unauthorized {
        /// The image.
        image: String,
        /// Its registry.
        registry: String,
        /// The registry's answer.
        reason: String,
    },
    /// The image doesn't exist.
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
        /// The reason.
        reason: String,
    },
    /// The registry can't be reached, or its answer is invalid.
    #[error("{image} can't be fetched: {reason}")]
    Registry {
        /// The image.
        image: String,
        /// What happened.
        reason: String,
    },
    /// The fetch took too long.
    #[error("{image} wasn't fetched within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// The image.
        image: String,
    },
    /// An index of several images, none of which is for Wasm.
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
        /// The reason.
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

/// Whether the registry rejects the client: 401 and 403 in the forms that registries use.
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

/// An error and its causes, in one line.
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

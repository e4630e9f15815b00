//! Exchanges an identity token for an access token, which is valid for one repository and a short
//! time.
//!
//! ```text
//!   GET  https://HOST/v2/ ─▶ 401, WWW-Authenticate: Bearer realm="https://auth.example/token",service="HOST"
//!   POST realm              grant_type=refresh_token & service & scope & client_id & refresh_token ─▶ {"access_token": ...}
//! ```
//!
//! Some registries, such as Azure's, give `docker login` an identity token to keep instead of a
//! password. It is an OAuth2 refresh token, which the registry itself doesn't accept. It is sent
//! once, to the realm that the registry names, and never in clear text to another host.

use docker_credential::DockerCredential;
use oci_client::Reference;
use oci_client::secrets::RegistryAuth;
use reqwest::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;

use crate::error::{FetchError, with_sources};
use crate::http::{TIMEOUT, USER_AGENT, is_this_host};

/// Largest answer of a realm that is read, in bytes. Tokens have some KiB.
pub const ANSWER_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
struct Answer {
    access_token: String,
}

/// The reason why an identity token wasn't exchanged. No sentence has the token in it.
#[derive(Debug, thiserror::Error)]
enum TokenError {
    #[error("{}", with_sources(.0))]
    Request(reqwest::Error),
    #[error(
        "`docker login` stored an identity token, but the registry needs a name and a password"
    )]
    NoRealm,
    #[error("its realm {realm:?} isn't a URL: {error}")]
    NoUrl { realm: String, error: String },
    #[error("the identity token would be sent to {realm:?} in clear text")]
    ClearText { realm: String },
    #[error("{realm:?} answers {status} to the identity token; run `docker login` again")]
    Refused { realm: String, status: StatusCode },
    #[error("{realm:?} answers more than {ANSWER_BYTES} bytes")]
    TooLong { realm: String },
    #[error("{realm:?} answers no access token")]
    NoToken { realm: String },
}

/// The credentials of requests.
pub(crate) async fn auth(
    image: &Reference,
    scheme: &str,
    login: Option<DockerCredential>,
) -> Result<RegistryAuth, FetchError> {
    match login {
        None => Ok(RegistryAuth::Anonymous),
        Some(DockerCredential::UsernamePassword(user, password)) => {
            Ok(RegistryAuth::Basic(user, password))
        }
        Some(DockerCredential::IdentityToken(token)) => {
            let exchanged = exchange(image, scheme, &token).await;
            exchanged.map_err(|error| FetchError::Credentials {
                registry: image.resolve_registry().to_owned(),
                reason: error.to_string(),
            })
        }
    }
}

async fn exchange(
    image: &Reference,
    scheme: &str,
    token: &str,
) -> Result<RegistryAuth, TokenError> {
    let failed = TokenError::Request;
    // A redirect must not receive the token.
    let client = Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(TIMEOUT / 4)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(failed)?;
    let asked = client.get(format!("{scheme}://{}/v2/", image.resolve_registry()));
    let answer = asked.send().await.map_err(failed)?;
    let Some(challenge) = answer.headers().get(WWW_AUTHENTICATE) else {
        // The registry allows anonymous access.
        return Ok(RegistryAuth::Anonymous);
    };
    let challenge = challenge.to_str().unwrap_or_default();
    let Some((realm, service)) = realm(challenge) else {
        return Err(TokenError::NoRealm);
    };
    let url = Url::parse(&realm).map_err(|error| TokenError::NoUrl {
        realm: realm.clone(),
        error: error.to_string(),
    })?;
    let host = url.host_str().unwrap_or_default();
    if url.scheme() != "https" && !is_this_host(host) {
        return Err(TokenError::ClearText { realm });
    }
    let scope = format!("repository:{}:pull", image.repository());
    let form = [
        ("grant_type", "refresh_token"),
        ("service", &service),
        ("scope", &scope),
        ("client_id", "tollgate"),
        ("refresh_token", token),
    ];
    let form = Url::parse_with_params("form:", form).map_err(|error| TokenError::NoUrl {
        realm: realm.clone(),
        error: error.to_string(),
    })?;
    let post = client
        .post(url)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(form.query().unwrap_or_default().to_owned());
    let mut answer = post.send().await.map_err(failed)?;
    let status = answer.status();
    if !status.is_success() {
        return Err(TokenError::Refused { realm, status });
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(failed)? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_BYTES {
            return Err(TokenError::TooLong { realm });
        }
    }
    match serde_json::from_slice::<Answer>(&body) {
        Ok(answer) => Ok(RegistryAuth::Bearer(answer.access_token)),
        // The unreadable answer isn't shown: it may contain a secret.
        Err(_) => Err(TokenError::NoToken { realm }),
    }
}

/// The realm that issues tokens, and the service, if the registry uses tokens.
fn realm(challenge: &str) -> Option<(String, String)> {
    let challenges = http_auth::parse_challenges(challenge).ok()?;
    let bearer = challenges
        .into_iter()
        .find(|challenge| challenge.scheme.eq_ignore_ascii_case("bearer"))?;
    let of = |wanted: &str| {
        let mut found = bearer.params.iter();
        let found = found.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.to_unescaped())
    };
    Some((of("realm")?, of("service").unwrap_or_default()))
}

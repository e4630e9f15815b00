//! HTTP: the page for every client, and the daemon's state for signed-in users.
//!
//! ```text
//!   GET  /, /main.js, …    the page, the same for every client
//!   POST /api/session      Authorization: Invitation SECRET ─▶ {"session", "role", "acts", "tenant"}
//!   POST /api/session      {"token": TOKEN}, as JSON         ─▶ the same
//!   DELETE /api/session    Authorization: Session SECRET     ─▶ signed out
//!   GET  /api/state        Authorization: Session SECRET     ─▶ the source's state
//!   POST /api/act          Authorization: Session SECRET     ─▶ done; not for viewers
//! ```
//!
//! `HEAD` is `GET` without the body. A wrong method is a 405 with the allowed ones.
//!
//! Each connection serves one request. Another site's page can't make a browser send the header
//! `Authorization`, or JSON: the browser would ask for permission first (CORS), and no answer
//! grants it.

use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, WWW_AUTHENTICATE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tollgate_shm_abi::text;
use tollgate_telemetry::places::{Place, Places};

use crate::assets::ASSETS;
use crate::limits::{
    CONNECTION_TIMEOUT, MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_HEAD_BYTES, READ_TIMEOUT,
    SESSION_LASTS,
};
use crate::sessions::Guest;
use crate::{Console, ConsoleError, Refusal, Source};

/// The headers of every answer: nothing is loaded from elsewhere, cached or framed, and text isn't
/// run as a script.
const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

type Answer = Response<Full<Bytes>>;

/// The status and message of a refused request.
type Refused = (StatusCode, String);

/// Serves each listener that the console opens: until the last session ends, or for good if it
/// stays. Call it within a tokio `LocalSet`.
pub async fn serve<S: Source>(console: Rc<Console<S::Who>>, source: Rc<S>, stays: bool) {
    loop {
        match console.door.take() {
            Some(listener) => {
                accept(&console, &listener, &source, stays).await;
                console.listening.set(None);
            }
            None => console.opened.notified().await,
        }
    }
}

async fn accept<S: Source>(
    console: &Rc<Console<S::Who>>,
    listener: &TcpListener,
    source: &Rc<S>,
    stays: bool,
) {
    let places = Places::new(MAX_CONNECTIONS, CONNECTION_TIMEOUT);
    loop {
        let now = Instant::now();
        let end = match console.sessions.borrow_mut().next_end(now) {
            Some(end) => end,
            None if stays => now + SESSION_LASTS,
            None => return,
        };
        tokio::select! {
            (stream, place) = next(listener, &places) => {
                let (console, source) = (Rc::clone(console), Rc::clone(source));
                tokio::task::spawn_local(async move {
                    talk((stream, place), console, source, CONNECTION_TIMEOUT).await;
                });
            }
            () = tokio::time::sleep_until(end.into()) => {}
            () = console.changed.notified() => {}
        }
    }
}

/// The next connection, once there is a place for it.
async fn next(listener: &TcpListener, places: &Places) -> (TcpStream, Place) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, places.take().await),
            // For example, no descriptors are left: connections that end release theirs.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves one connection, within its time limit.
pub(crate) async fn talk<S: Source>(
    (stream, place): (TcpStream, Place),
    console: Rc<Console<S::Who>>,
    source: Rc<S>,
    most: Duration,
) {
    let service = service_fn(|request: Request<Incoming>| async {
        let path = request.uri().path().to_owned();
        let mut answer = answer(request, &console, &*source, &place)
            .await
            .unwrap_or_else(|refused| refusal(&path, refused));
        for (name, value) in HEADERS {
            let value = HeaderValue::from_static(value);
            answer.headers_mut().insert(name, value);
        }
        Ok::<_, Infallible>(answer)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    let connection = http
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    place.serve(connection, most).await;
}

async fn answer<S: Source>(
    request: Request<Incoming>,
    console: &Console<S::Who>,
    source: &S,
    place: &Place,
) -> Result<Answer, Refused> {
    check_site(request.headers())?;
    let path = request.uri().path().to_owned();
    let method = match request.method() {
        // hyper omits the body.
        &Method::HEAD => Method::GET,
        method => method.clone(),
    };
    match (method, &*path) {
        (Method::POST, "/api/session") => {
            let (session, guest) = match request.headers().contains_key(AUTHORIZATION) {
                true => by_link(console, source, request.headers())?,
                false => by_token(console, source, request).await?,
            };
            Ok(json(&json!({
                "session": session, "role": guest.role.name(), "acts": guest.role.may_act(), "tenant": guest.tenant,
            })))
        }
        (Method::DELETE, "/api/session") => {
            let secret = secret_of(request.headers(), "Session")?;
            console.sessions.borrow_mut().leave(secret);
            console.changed.notify_one();
            Ok(said(StatusCode::OK, "signed out"))
        }
        (Method::GET, "/api/state") => {
            let guest = guest_of(console, source, request.headers())?;
            place.deserve();
            let state = source.state(guest.who, guest.tenant).await;
            let failed = |refusal| refused(refusal, StatusCode::SERVICE_UNAVAILABLE);
            // It may have been gathered while the session ended.
            guest_of(console, source, request.headers())?;
            state.map(|state| json(&state)).map_err(failed)
        }
        (Method::POST, "/api/act") => {
            let guest = guest_of(console, source, request.headers())?;
            place.deserve();
            if !guest.role.may_act() {
                let sentence = match guest.bearer_of {
                    None => {
                        "this session is read-only: `tollgate console --operator` prints a link for a session that can act"
                    }
                    Some(_) => {
                        "this session is read-only: its credential has the role viewer; an owner's can act"
                    }
                };
                return Err((StatusCode::FORBIDDEN, sentence.to_owned()));
            }
            let action = body_of(request, "a valid action").await?;
            let failed = |refusal| refused(refusal, StatusCode::CONFLICT);
            source.act(guest.who, action).await.map_err(failed)?;
            Ok(said(StatusCode::OK, "done"))
        }
        (method, path) => {
            if allowed(path).is_none() {
                return Err((StatusCode::NOT_FOUND, "this page doesn't exist".to_owned()));
            }
            match ASSETS.iter().find(|asset| asset.path == path) {
                Some(asset) if method == Method::GET => {
                    Ok(typed(asset.kind, Bytes::from_static(asset.text.as_bytes())))
                }
                _ => Err((
                    StatusCode::METHOD_NOT_ALLOWED,
                    "this path doesn't allow the method".to_owned(),
                )),
            }
        }
    }
}

/// Signs in with a link.
fn by_link<S: Source>(
    console: &Console<S::Who>,
    source: &S,
    headers: &HeaderMap,
) -> Result<(String, Guest<S::Who>), Refused> {
    let secret = secret_of(headers, "Invitation")?;
    let entered = console.sessions.borrow_mut().enter(Instant::now(), secret);
    let (session, guest) = entered.map_err(not_let_in)?;
    still_here(console, source, &guest, &session)?;
    Ok((session, guest))
}

/// A sign-in with a token. No browser sends it for another site's page: it is JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    token: String,
}

/// Signs in with a token.
async fn by_token<S: Source>(
    console: &Console<S::Who>,
    source: &S,
    request: Request<Incoming>,
) -> Result<(String, Guest<S::Who>), Refused> {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "application/json") {
        return Err(stranger());
    }
    if console.listening().is_none_or(|at| !at.ip().is_loopback()) {
        let sentence = "this console doesn't listen on loopback, and isn't encrypted: it takes no tokens; `tollgate console` with a token prints a link";
        return Err((StatusCode::FORBIDDEN, sentence.to_owned()));
    }
    let SignIn { token } = body_of(request, "a valid sign-in").await?;
    let failed = |refusal| refused(refusal, StatusCode::SERVICE_UNAVAILABLE);
    let guest = source.sign_in(token.trim()).await.map_err(failed)?;
    let admitted = console
        .sessions
        .borrow_mut()
        .admit(Instant::now(), guest.clone());
    let session = admitted.map_err(not_let_in)?;
    console.changed.notify_one();
    Ok((session, guest))
}

/// The methods of a path, as listed in `Allow`; `None` if the path doesn't exist.
fn allowed(path: &str) -> Option<&'static str> {
    match path {
        "/api/session" => Some("POST, DELETE"),
        "/api/state" => Some("GET, HEAD"),
        "/api/act" => Some("POST"),
        page => {
            let is_there = ASSETS.iter().any(|asset| asset.path == page);
            is_there.then_some("GET, HEAD")
        }
    }
}

/// An error response, with the header that RFC 9110 requires for its status.
fn refusal(path: &str, (status, sentence): Refused) -> Answer {
    let mut answer = said(status, sentence);
    let header = match status {
        StatusCode::METHOD_NOT_ALLOWED => allowed(path).map(|methods| (ALLOW, methods)),
        StatusCode::UNAUTHORIZED => Some((WWW_AUTHENTICATE, "Session, Invitation")),
        _ => None,
    };
    if let Some((name, value)) = header {
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Refuses requests for another site, whose name was made to resolve here (DNS rebinding), and
/// requests from other sites' pages. An address can't be made to resolve elsewhere. Every port is
/// accepted, because of `ssh -L`.
fn check_site(headers: &HeaderMap) -> Result<(), Refused> {
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let host = headers.get(HOST).map(text).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => &host,
    };
    let address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_own = name == "localhost" || address.unwrap_or(name).parse::<IpAddr>().is_ok();
    let origin = headers.get(ORIGIN).map(text);
    if is_own && origin.is_none_or(|origin| origin == format!("http://{host}")) {
        return Ok(());
    }
    let sentence = "the console answers only requests to its address or to localhost, and none from other sites' pages";
    Err((StatusCode::FORBIDDEN, sentence.to_owned()))
}

/// The secret that authenticates a request.
fn secret_of<'h>(headers: &'h HeaderMap, scheme: &str) -> Result<&'h str, Refused> {
    let text = headers.get(AUTHORIZATION);
    let text = text.and_then(|value| value.to_str().ok());
    let words = text.and_then(|text| text.split_once(' '));
    let secret = words.filter(|(first, _)| *first == scheme);
    secret.map(|(_, secret)| secret).ok_or_else(stranger)
}

/// The guest of a session that isn't over.
fn guest_of<S: Source>(
    console: &Console<S::Who>,
    source: &S,
    headers: &HeaderMap,
) -> Result<Guest<S::Who>, Refused> {
    let secret = secret_of(headers, "Session")?;
    let found = console.sessions.borrow_mut().find(Instant::now(), secret);
    let guest = found.ok_or_else(stranger)?;
    still_here(console, source, &guest, secret)?;
    Ok(guest)
}

/// Ends the session of a guest that may no longer be here.
fn still_here<S: Source>(
    console: &Console<S::Who>,
    source: &S,
    guest: &Guest<S::Who>,
    session: &str,
) -> Result<(), Refused> {
    let Err(refusal) = source.check(&guest.who) else {
        return Ok(());
    };
    if matches!(refusal, Refusal::Over(_)) {
        console.sessions.borrow_mut().leave(session);
        console.changed.notify_one();
    }
    Err(refused(refusal, StatusCode::SERVICE_UNAVAILABLE))
}

/// The answer to a refused request; the status for other reasons depends on the request.
fn refused(refusal: Refusal, otherwise: StatusCode) -> Refused {
    match refusal {
        Refusal::Over(sentence) => (StatusCode::UNAUTHORIZED, sentence),
        Refusal::Forbidden(sentence) => (StatusCode::FORBIDDEN, sentence),
        Refusal::Failed(sentence) => (otherwise, sentence),
    }
}

fn stranger() -> Refused {
    let sentence = "you aren't signed in, or your session has expired: sign in with a token, or with the link that `tollgate console` prints";
    (StatusCode::UNAUTHORIZED, sentence.to_owned())
}

fn not_let_in(error: ConsoleError) -> Refused {
    let status = match error {
        ConsoleError::Uninvited => StatusCode::UNAUTHORIZED,
        ConsoleError::Invitations
        | ConsoleError::TenantsInvitations
        | ConsoleError::Sessions
        | ConsoleError::TenantsSessions => StatusCode::TOO_MANY_REQUESTS,
        ConsoleError::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}

/// What a request's body says.
async fn body_of<T: DeserializeOwned>(
    request: Request<Incoming>,
    what: &str,
) -> Result<T, Refused> {
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
    let Ok(body) = tokio::time::timeout(READ_TIMEOUT, body).await else {
        return Err((
            StatusCode::REQUEST_TIMEOUT,
            "the request's body took too long".to_owned(),
        ));
    };
    let body = body.map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| {
        let sentence = format!("this isn't {what}: {error}");
        (StatusCode::BAD_REQUEST, sentence)
    })
}

fn json(value: &serde_json::Value) -> Answer {
    // The values are unchanged; a terminal that shows them interprets none of their characters.
    let text = text::escape_json(&value.to_string()).into_owned();
    typed("application/json", Bytes::from(text))
}

fn said(status: StatusCode, sentence: impl Into<String>) -> Answer {
    let sentence = text::escape(&sentence.into()).into_owned();
    let sentence = Bytes::from(sentence);
    let mut response = typed("text/plain; charset=utf-8", sentence);
    *response.status_mut() = status;
    response
}

fn typed(kind: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

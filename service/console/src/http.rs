//! HTTP: the page for every client, and the daemon's state for signed-in users.
//!
//! ```text
//!   GET  /, /main.js, …    the page, the same for every client
//!   POST /api/session      Authorization: Invitation SECRET ─▶ {"session", "operator"}
//!   DELETE /api/session    Authorization: Session SECRET     ─▶ signed out
//!   GET  /api/state        Authorization: Session SECRET     ─▶ the source's state
//!   POST /api/act          Authorization: Session SECRET     ─▶ done; operators only
//! ```
//!
//! `HEAD` is `GET` without the body. A wrong method is a 405 with the allowed ones.
//!
//! Each connection serves one request. Another site's page can't make a browser send the header
//! `Authorization`: the browser would ask for permission first (CORS), and no answer grants it.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
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
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tollgate_shm_abi::text;
use tollgate_telemetry::places::{Place, Places};

use crate::assets::ASSETS;
use crate::limits::{
    CONNECTION_TIMEOUT, MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_HEAD_BYTES, READ_TIMEOUT,
};
use crate::sessions::Guest;
use crate::{Action, Console, ConsoleError, Refusal, Role, Source};

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

/// Serves invited users until the last session ends. Call it within a tokio `LocalSet`. It marks
/// the console as listening at once.
pub fn serve<S: Source>(
    console: Rc<Console<S::Who>>,
    listener: TcpListener,
    at: SocketAddr,
    source: Rc<S>,
) -> impl Future<Output = ()> {
    console.listening.set(Some(at));
    accept(console, listener, source)
}

async fn accept<S: Source>(console: Rc<Console<S::Who>>, listener: TcpListener, source: Rc<S>) {
    let places = Places::new(MAX_CONNECTIONS, CONNECTION_TIMEOUT);
    loop {
        let now = Instant::now();
        let Some(end) = console.sessions.borrow_mut().next_end(now) else {
            console.listening.set(None);
            return;
        };
        tokio::select! {
            (stream, place) = next(&listener, &places) => {
                let (console, source) = (Rc::clone(&console), Rc::clone(&source));
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
    let now = Instant::now();
    match (method, &*path) {
        (Method::POST, "/api/session") => {
            let secret = secret_of(request.headers(), "Invitation")?;
            let entered = console.sessions.borrow_mut().enter(now, secret);
            let (session, guest) = entered.map_err(not_let_in)?;
            let is_operator = guest.role == Role::Operator;
            Ok(json(&json!({"session": session, "operator": is_operator})))
        }
        (Method::DELETE, "/api/session") => {
            let secret = secret_of(request.headers(), "Session")?;
            console.sessions.borrow_mut().leave(secret);
            console.changed.notify_one();
            Ok(said(StatusCode::OK, "signed out"))
        }
        (Method::GET, "/api/state") => {
            guest_of(console, request.headers())?;
            place.deserve();
            let state = source.state().await;
            let failed = |refusal: Refusal| (StatusCode::SERVICE_UNAVAILABLE, refusal.0);
            state.map(|state| json(&state)).map_err(failed)
        }
        (Method::POST, "/api/act") => {
            let guest = guest_of(console, request.headers())?;
            place.deserve();
            if guest.role != Role::Operator {
                let sentence = "this session is read-only: `tollgate console --operator` prints a link for a session that can act";
                return Err((StatusCode::FORBIDDEN, sentence.to_owned()));
            }
            let action = action_of(request).await?;
            let refused = |refusal: Refusal| (StatusCode::CONFLICT, refusal.0);
            source.act(guest.who, action).await.map_err(refused)?;
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

fn guest_of<W: Clone>(console: &Console<W>, headers: &HeaderMap) -> Result<Guest<W>, Refused> {
    let secret = secret_of(headers, "Session")?;
    let found = console.sessions.borrow_mut().find(Instant::now(), secret);
    found.ok_or_else(stranger)
}

fn stranger() -> Refused {
    let sentence =
        "you aren't signed in, or your session has expired: `tollgate console` prints a link";
    (StatusCode::UNAUTHORIZED, sentence.to_owned())
}

fn not_let_in(error: ConsoleError) -> Refused {
    let status = match error {
        ConsoleError::Uninvited => StatusCode::UNAUTHORIZED,
        ConsoleError::Invitations | ConsoleError::Sessions => StatusCode::TOO_MANY_REQUESTS,
        ConsoleError::Random(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}

async fn action_of(request: Request<Incoming>) -> Result<Action, Refused> {
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
    let Ok(body) = tokio::time::timeout(READ_TIMEOUT, body).await else {
        return Err((
            StatusCode::REQUEST_TIMEOUT,
            "the request's body took too long".to_owned(),
        ));
    };
    let body = body.map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| {
        let sentence = format!("this isn't a valid action: {error}");
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

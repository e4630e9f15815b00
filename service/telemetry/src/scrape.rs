//! The endpoint that Prometheus scrapes: `GET /metrics` over HTTP, its `HEAD`, and nothing else.
//!
//! Scrapers are strangers: at most [`MAX_SCRAPES`] connections at once, each with one request,
//! [`SCRAPE_HEAD_TIMEOUT`] for its head and [`SCRAPE_TIMEOUT`] for all of it. Silent connections
//! lock no scraper out: [`Places`]. The starter of the endpoint supplies its content. Absent on
//! purpose: authentication and TLS, so it listens where the operator says, which should be
//! loopback.

use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::limits::{MAX_SCRAPES, SCRAPE_HEAD_TIMEOUT, SCRAPE_KEPT, SCRAPE_TIMEOUT};
use crate::places::Places;
use crate::prometheus::Format;

/// Answers scrapes with the output of `show`, forever; `None` from it: not now. Runs within a tokio
/// `LocalSet`.
pub async fn serve<S, F>(listener: TcpListener, show: S)
where
    S: Fn(Format) -> F + 'static,
    F: Future<Output = Option<Vec<u8>>> + 'static,
{
    let (show, places) = (Rc::new(show), Places::new(MAX_SCRAPES, SCRAPE_KEPT));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // For example, out of descriptors: current scrapes free theirs.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let place = places.take().await;
        let show = Rc::clone(&show);
        tokio::task::spawn_local(async move {
            let service = service_fn(|request| {
                place.deserve();
                answer(request, &*show)
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            let connection = http
                .timer(TokioTimer::new())
                .header_read_timeout(SCRAPE_HEAD_TIMEOUT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            place.serve(connection, SCRAPE_TIMEOUT).await;
        });
    }
}

async fn answer<S, F>(
    request: Request<Incoming>,
    show: &S,
) -> Result<Response<Full<Bytes>>, Infallible>
where
    S: Fn(Format) -> F,
    F: Future<Output = Option<Vec<u8>>>,
{
    if request.uri().path() != "/metrics" {
        return Ok(said(StatusCode::NOT_FOUND, "there is /metrics"));
    }
    // HEAD is GET without the body (RFC 9110); hyper omits the body.
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refused = said(StatusCode::METHOD_NOT_ALLOWED, "GET /metrics");
        let allowed = HeaderValue::from_static("GET, HEAD");
        refused.headers_mut().insert(ALLOW, allowed);
        return Ok(refused);
    }
    let accept = request.headers().get(ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let Some(content) = show(format).await else {
        return Ok(said(StatusCode::SERVICE_UNAVAILABLE, "ask again"));
    };
    let mut response = Response::new(Full::new(Bytes::from(content)));
    let kind = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

fn said(status: StatusCode, sentence: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(sentence.as_bytes())));
    *response.status_mut() = status;
    response
}

//! Exporters to collectors that use TLS and identify the exporter, over both protocols.

use std::collections::BTreeSet;
use std::io::{Read, Write};

use flate2::read::GzDecoder;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tonic::codec::CompressionEncoding;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Identity, Server, ServerTlsConfig};

use super::*;
use crate::headers::Headers;
use crate::limits::EXPORT_PAUSE;

const KEY: &str = "Bearer s3cret";

/// A certificate authority, and a certificate for this host with its key, all in PEM.
struct Signed {
    ca: String,
    certificate: String,
    key: String,
}

fn signed() -> Signed {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let here = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    Signed {
        ca,
        certificate: here.signed_by(&key, &issuer).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

/// A collector over gRPC that answers clients with the key.
async fn grpc(signed: &Signed) -> (Arc<Collector>, SocketAddr) {
    let collector = Arc::new(Collector {
        mood: Mood::Good,
        asked: AtomicU32::new(0),
        traces: Mutex::default(),
        logs: Mutex::default(),
        metrics: Mutex::default(),
    });
    let knows = |request: Request<()>| match request.metadata().get("authorization") {
        Some(key) if key == KEY => Ok(request),
        // A rude answer: it quotes the request, so it must not reach the log.
        key => Err(Status::unauthenticated(format!("who is {key:?}?"))),
    };
    let served = || Served(Arc::clone(&collector));
    let gzip = CompressionEncoding::Gzip;
    let traces = TraceServiceServer::new(served()).accept_compressed(gzip);
    let logs = LogsServiceServer::new(served()).accept_compressed(gzip);
    let metrics = MetricsServiceServer::new(served()).accept_compressed(gzip);
    let identity = Identity::from_pem(&signed.certificate, &signed.key);
    let server = Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity))
        .unwrap()
        .add_service(InterceptedService::new(traces, knows))
        .add_service(InterceptedService::new(logs, knows))
        .add_service(InterceptedService::new(metrics, knows));
    let incoming = tonic::transport::server::TcpIncoming::bind("127.0.0.1:0".parse().unwrap());
    let incoming = incoming.unwrap();
    let address = incoming.local_addr().unwrap();
    tokio::task::spawn(server.serve_with_incoming(incoming));
    (collector, address)
}

/// Requests received over HTTP: head and body.
type Sent = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A collector over HTTP that answers clients with the key.
fn https(signed: &Signed) -> (Sent, SocketAddr) {
    let provider = rustls::crypto::ring::default_provider();
    let certificate = CertificateDer::from_pem_slice(signed.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sent = Sent::default();
    let kept = Arc::clone(&sent);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let (kept, stream) = (Arc::clone(&kept), StreamOwned::new(connection, stream));
            std::thread::spawn(move || answer(stream, &kept));
        }
    });
    (sent, address)
}

fn answer(mut stream: impl Read + Write, kept: &Sent) -> std::io::Result<()> {
    let (mut text, mut chunk) = (Vec::new(), [0; 65_536]);
    loop {
        let len = stream.read(&mut chunk)?;
        if len == 0 {
            return Ok(());
        }
        text.extend_from_slice(&chunk[..len]);
        let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&text[..end]).into_owned();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        if text.len() < end + 4 + length {
            continue;
        }
        let said = match head.contains(&format!("authorization: {KEY}\r\n")) {
            true => "200 OK",
            false => "401 Unauthorized",
        };
        let body = text[end + 4..].to_vec();
        kept.lock().unwrap().push((head, body));
        write!(stream, "HTTP/1.1 {said}\r\ncontent-length: 0\r\n\r\n")?;
        text.clear();
    }
}

fn endpoint(address: SocketAddr, protocol: Protocol, ca: &str) -> Endpoint {
    let endpoint = Endpoint::new(&format!("https://{address}"), protocol).unwrap();
    endpoint.with_authorities(ca.as_bytes()).unwrap()
}

fn with_key(endpoint: Endpoint) -> Endpoint {
    let headers = format!("authorization: {KEY}\nx-scope-orgid: acme\n");
    endpoint.with_headers(Headers::parse(headers.as_bytes()).unwrap())
}

fn push_all(exporter: &Exporter) {
    exporter.push(span(0), NOW);
    exporter.push(line(), NOW);
    exporter.snapshot(metrics(), NOW);
}

fn exported(exporter: &Exporter) -> [u64; 3] {
    let counts = exporter.counts();
    [counts.spans, counts.lines, counts.snapshots].map(|fate| fate.exported)
}

#[tokio::test]
async fn a_collector_with_tls_that_demands_a_header_gets_everything_over_both_protocols() {
    let signed = signed();
    let (collector, at_grpc) = grpc(&signed).await;
    let (sent, at_http) = https(&signed);
    for is_compressed in [false, true] {
        for (address, protocol) in [(at_grpc, Protocol::Grpc), (at_http, Protocol::Http)] {
            let mut endpoint = with_key(endpoint(address, protocol, &signed.ca));
            if is_compressed {
                endpoint = endpoint.compressed();
            }
            let exporter = Exporter::start(endpoint, daemon()).unwrap();
            push_all(&exporter);
            until("the export", || exported(&exporter) == [1; 3]).await;
            assert_eq!(exporter.counts().failed_requests, 0);
        }
    }
    assert_eq!(collector.spans(), 2);
    let sent = sent.lock().unwrap();
    let paths: BTreeSet<_> = sent
        .iter()
        .filter_map(|(head, _)| head.split(' ').nth(1))
        .collect();
    assert_eq!(paths, ["/v1/logs", "/v1/metrics", "/v1/traces"].into());
    let [plain, compressed] = [false, true].map(|is_compressed| {
        let is_it = |head: &str| {
            let says = head.contains("content-encoding: gzip\r\n");
            head.starts_with("POST /v1/metrics") && says == is_compressed
        };
        let mut found = sent.iter().filter(|(head, _)| is_it(head));
        let (head, body) = found.next().unwrap();
        assert!(head.contains("x-scope-orgid: acme\r\n"), "{head}");
        assert!(found.next().is_none());
        body
    });
    let mut content = Vec::new();
    GzDecoder::new(&compressed[..])
        .read_to_end(&mut content)
        .unwrap();
    assert!(compressed.len() < plain.len());
    let decode = |body: &[u8]| ExportMetricsServiceRequest::decode(body).unwrap();
    assert_eq!(decode(&content), decode(plain));
}

#[tokio::test]
async fn without_its_header_a_collector_takes_nothing_and_is_not_asked_again() {
    let signed = signed();
    let (collector, at_grpc) = grpc(&signed).await;
    let (_sent, at_http) = https(&signed);
    for (address, protocol) in [(at_grpc, Protocol::Grpc), (at_http, Protocol::Http)] {
        let endpoint = endpoint(address, protocol, &signed.ca);
        let exporter = Exporter::start(endpoint, daemon()).unwrap();
        push_all(&exporter);
        until("the end", || exporter.counts().snapshots.failed == 1).await;
        let counts = exporter.counts();
        assert_eq!((counts.spans.failed, counts.lines.failed), (1, 1));
        assert_eq!(counts.failed_requests, 3, "{protocol:?}");
    }
    assert_eq!(collector.spans(), 0);
}

#[tokio::test]
async fn a_collector_whose_certificate_somebody_else_has_signed_gets_nothing() {
    let (own, others) = (signed(), signed());
    let (collector, at_grpc) = grpc(&own).await;
    let (sent, at_http) = https(&own);
    for (address, protocol) in [(at_grpc, Protocol::Grpc), (at_http, Protocol::Http)] {
        // Another authority, and the system's authorities, which don't know this one.
        let system = Endpoint::new(&format!("https://{address}"), protocol).unwrap();
        let other = endpoint(address, protocol, &others.ca);
        for endpoint in [other, system].map(with_key) {
            let exporter = Exporter::start(endpoint, daemon()).unwrap();
            exporter.snapshot(metrics(), NOW);
            until("the failure", || exporter.counts().snapshots.failed == 1).await;
            assert_eq!(exporter.counts().failed_requests, 1);
        }
        // The operator may fix it, so spans are kept and retried.
        let endpoint = with_key(endpoint(address, protocol, &others.ca));
        let exporter = Exporter::start(endpoint, daemon()).unwrap();
        exporter.push(span(0), NOW);
        until("a second failure", || {
            exporter.counts().failed_requests == 2
        })
        .await;
        assert_eq!(exporter.counts().spans, Fate::default());
        assert!(EXPORT_PAUSE.0 < Duration::from_secs(1));
    }
    // Not even headers have been sent.
    assert_eq!(collector.asked.load(Ordering::SeqCst), 0);
    assert!(sent.lock().unwrap().is_empty());
}

#[test]
fn authorities_that_are_none_are_refused() {
    let signed = signed();
    let endpoint = |scheme: &str| {
        let url = format!("{scheme}://a:4317");
        Endpoint::new(&url, Protocol::Grpc).unwrap()
    };
    let wrong = |pem: &str| {
        let refused = endpoint("https").with_authorities(pem.as_bytes());
        refused.unwrap_err().to_string()
    };
    assert_eq!(
        wrong(&signed.key),
        "there is no certificate: authorities are certificates in PEM"
    );
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let refused = wrong(&format!("{}{garbage}", signed.ca));
    assert!(refused.starts_with("certificate 2: "), "{refused}");
    let cut = &signed.ca[..signed.ca.len() / 2];
    assert!(wrong(cut).ends_with(": authorities are certificates in PEM"));
    let refused = endpoint("http").with_authorities(signed.ca.as_bytes());
    assert_eq!(
        refused.unwrap_err().to_string(),
        "\"http://a:4317\" has no certificate that authorities could sign: use https"
    );
    // Several certificates work as well as one.
    let both = format!("{}{}", signed.ca, self::signed().ca);
    endpoint("https").with_authorities(both.as_bytes()).unwrap();
}

#[test]
fn headers_in_the_clear_are_noticed() {
    let shows = |url: &str, headers: &str| {
        let endpoint = Endpoint::new(url, Protocol::Http).unwrap();
        let headers = Headers::parse(headers.as_bytes()).unwrap();
        endpoint.with_headers(headers).shows_headers()
    };
    assert!(shows("http://collector:4318", "key: s3cret"));
    assert!(shows("http://192.0.2.1", "key: s3cret"));
    assert!(
        !shows("http://collector:4318", ""),
        "there is nothing to see"
    );
    for here in [
        "https://collector",
        "http://127.0.0.1:4318",
        "http://[::1]:1",
        "http://localhost",
    ] {
        assert!(!shows(here, "key: s3cret"), "{here}");
    }
}

//! A daemon's telemetry about calls: metrics for Prometheus, data for a collector, and its handling
//! when the collector is stuck.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prost::Message;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use tollgate_conformance::backends::{http, sample, scrape};
use tollgate_conformance::certificates::Certificates;
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::ports::free;
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, proto_file};
use tollgate_conformance::traffic::ECHO;

fn hosts(telemetry: [String; 2]) -> Hosts {
    let bed = Testbed::new();
    let [a, b] = telemetry.map(|lines| Options {
        config: format!("[telemetry]\n{lines}"),
        ..Options::default()
    });
    let (a, b) = (bed.daemon_with("a", &a), bed.daemon_with("b", &b));
    let tokens = [a.tenant("acme"), b.tenant("acme")];
    Hosts { bed, a, b, tokens }
}

#[test]
fn calls_of_two_hosts_are_in_the_metrics_of_both() {
    let places = [free(), free()];
    let hosts = hosts(places.map(|at| format!("prometheus = \"{at}\"")));
    let _server = hosts.b.serve_hotel(&hosts.tokens[1], ECHO, &["--echo"]);
    let proto = proto_file("hotel.proto");
    for _ in 0..3 {
        let outcome = hosts.call(true, &proto, "hotel.Echo/Echo", &[]);
        assert_eq!(outcome.code, 0, "{outcome}");
    }
    let labels =
        r#"tollgate_tenant="acme",rpc_system_name="tollgate",rpc_method="hotel.Echo/Echo""#;
    let ok = r#"rpc_response_status_code="OK""#;
    let client = format!("rpc_client_call_duration_seconds_count{{{labels},{ok}}}");
    let server = format!("rpc_server_call_duration_seconds_count{{{labels},{ok}}}");
    let waited = format!("tollgate_call_queue_duration_seconds_count{{{labels}}}");
    let [a, b] = places.map(scrape);
    assert_eq!(sample(&a, &client), Some(3.0), "{a}");
    assert_eq!(sample(&a, &server), None, "nobody serves there: {a}");
    assert_eq!(sample(&b, &server), Some(3.0), "{b}");
    assert_eq!(sample(&b, &waited), Some(3.0), "{b}");
    let took = client.replace("_count", "_sum");
    let took = sample(&a, &took).unwrap();
    assert!(took > 0.0 && took < 3.0 * SOON.as_secs_f64(), "{took} s");
    let link = |name: &str| -> f64 {
        let series = format!("tollgate_link_{name}{{tollgate_tenant=\"acme\"");
        let line = a.lines().find(|line| line.starts_with(&series));
        let (_, value) = line
            .unwrap_or_else(|| panic!("{a}"))
            .rsplit_once(' ')
            .unwrap();
        value.parse().unwrap()
    };
    assert!(link("sent_bytes") > 0.0, "{a}");
    // An echo returns its input.
    assert_eq!(link("received_bytes"), link("sent_bytes"), "{a}");
    assert!(link("retransmits") < 100.0, "it is a loopback device: {a}");
    let slept = r#"tollgate_runtime_time_seconds_total{tollgate_runtime="0",tollgate_runtime_state="sleeping"}"#;
    assert!(sample(&a, slept).unwrap() > 0.0, "{a}");

    // Within the host both sides are counted there; failures are counted with their status.
    let _here = hosts.a.serve_hotel(&hosts.tokens[0], ECHO, &["--echo"]);
    let outcome = hosts.call(false, &proto, "hotel.Echo/Echo", &[]);
    assert_eq!(outcome.code, 0, "{outcome}");
    let null = hosts.a.push("--tenant acme", "null", "null", None);
    let attach = format!("policy attach {null} --tenant acme --service {ECHO} --side client");
    hosts.a.ok(&attach);
    let outcome = hosts.call(false, &proto, "hotel.Echo/Echo", &[]);
    assert_eq!(outcome.code, 0, "{outcome}");
    let a = scrape(places[0]);
    assert_eq!(sample(&a, &server), Some(2.0), "{a}");
    let evaluated = a.lines().find(|line| {
        line.starts_with("tollgate_policy_calls_total{tollgate_tenant=\"acme\"")
            && line.contains(r#"tollgate_policy_name="null",tollgate_policy_version="1""#)
            && line.contains(r#"tollgate_policy_decision="allowed""#)
    });
    let evaluated = evaluated.unwrap_or_else(|| panic!("{a}"));
    assert!(evaluated.ends_with(" 1"), "{evaluated}");
    let memory = "tollgate_policy_memory_bytes{tollgate_tenant=\"acme\"";
    let memory = a.lines().find(|line| line.starts_with(memory));
    let (_, memory) = memory
        .unwrap_or_else(|| panic!("{a}"))
        .rsplit_once(' ')
        .unwrap();
    let pages = memory.parse::<u64>().unwrap() / 65_536;
    assert!((1..=64).contains(&pages), "4 MiB at most: {memory}");

    // Not from here on.
    hosts.a.ok("daemon set telemetry.durations=false");
    let before = sample(&scrape(places[0]), &client);
    hosts.call(true, &proto, "hotel.Echo/Echo", &[]);
    assert_eq!(sample(&scrape(places[0]), &client), before);
}

/// The words in a text that begin like this.
fn words<'t>(text: &'t str, beginning: &str) -> Vec<&'t str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    words.filter(|word| word.starts_with(beginning)).collect()
}

/// The metrics of alerts and dashboard, with their labels.
#[test]
fn alerts_and_dashboard_name_only_what_daemons_have() {
    let place = free();
    let nobody = free();
    let told = [
        format!("prometheus = \"{place}\"\nendpoint = \"http://{nobody}\"\n"),
        String::new(),
    ];
    let hosts = hosts(told);
    let _there = hosts.b.serve_hotel(&hosts.tokens[1], ECHO, &["--echo"]);
    let _here = hosts.a.serve_hotel(&hosts.tokens[0], ECHO, &["--echo"]);
    let null = hosts.a.push("--tenant acme", "null", "null", None);
    let attach = format!("policy attach {null} --tenant acme --service {ECHO} --side server");
    hosts.a.ok(&attach);
    let proto = proto_file("hotel.proto");
    for to_peer in [true, false] {
        let outcome = hosts.call(to_peer, &proto, "hotel.Echo/Echo", &[]);
        assert_eq!(outcome.code, 0, "{outcome}");
    }
    // A call from a peer waits for its server, and one without a server fails.
    let token = hosts.tokens[1].clone();
    let back = hosts.a.listen().to_string();
    let outcome = hosts.b.call_hotel(&token, &back, "hotel.Echo/Echo", "{}");
    assert_eq!(outcome.code, 0, "{outcome}");
    let known = scrape(place);
    let dashboards = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let dashboards = dashboards.join("../service/telemetry/dashboards");
    // These appear with the first failure, or with the first series beyond the limit.
    let later = ["error_type", "otel_metric_overflow"];
    for name in ["alerts.yml", "grafana.json"] {
        let text = std::fs::read_to_string(dashboards.join(name)).unwrap();
        let mut named = words(&text, "tollgate_");
        named.extend(words(&text, "rpc_"));
        named.extend(words(&text, "network_"));
        assert!(named.len() > 20, "{name}: {named:?}");
        for word in named {
            let is_known = words(&known, word).contains(&word);
            assert!(
                is_known || later.contains(&word),
                "{name}: {word} in {known}"
            );
        }
    }
}

/// Calls don't notice a collector that is stuck or missing; the loss of metrics is reported.
#[test]
fn calls_do_not_wait_for_a_collector() {
    let stuck = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stuck.local_addr().unwrap();
    let places = [free(), free()];
    let lines = |at: SocketAddr, endpoint: SocketAddr| {
        format!(
            "prometheus = \"{at}\"\nendpoint = \"http://{endpoint}\"\ninterval_s = 1\nprotocol = \"http\""
        )
    };
    let hosts = hosts([lines(places[0], address), lines(places[1], free())]);
    let _server = hosts.b.serve_hotel(&hosts.tokens[1], ECHO, &["--echo"]);
    let fate = |at: SocketAddr, fate: &str| {
        let labels =
            format!("tollgate_telemetry_signal=\"metrics\",tollgate_telemetry_fate=\"{fate}\"");
        sample(
            &scrape(at),
            &format!("tollgate_telemetry_items_total{{{labels}}}"),
        )
    };
    // There is no collector.
    eventually(SOON, || fate(places[1], "failed") > Some(1.0)).unwrap();
    // There is one, but it doesn't answer.
    eventually(SOON, || fate(places[0], "overflowed") > Some(0.0)).unwrap();
    let began = std::time::Instant::now();
    let proto = proto_file("hotel.proto");
    let outcome = hosts.call(true, &proto, "hotel.Echo/Echo", &[]);
    assert_eq!(outcome.code, 0, "{outcome}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// A daemon gets the security settings of its collector from its configuration, and from files that
/// an upgrade reads again.
#[test]
fn a_secured_collector_gets_what_is_called_once_its_authority_and_the_key_are_right() {
    let bed = Testbed::new();
    let (own, others) = ["own", "others"]
        .map(|name| Certificates::signed_by(&bed, name))
        .into();
    let (collector, address) = Collector::secured(&own, "api-key: s3cret");
    let ca = bed.file("ca.pem", std::fs::read(&others.ca).unwrap());
    let key = bed.file("key", "api-key: wr0ng\n");
    let at = free();
    let config = format!(
        "[telemetry]\nprometheus = \"{at}\"\nendpoint = \"https://{address}\"\nprotocol = \"http\"\ninterval_s = 1\n\
         sample_per_million = 1000000\nca = {ca:?}\nheaders_file = {key:?}\n"
    );
    let options = Options {
        config,
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
    let call = |daemon: &Daemon| {
        let outcome = daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}");
        assert_eq!(outcome.code, 0, "{outcome}");
    };
    let failed = || sample(&scrape(at), "tollgate_telemetry_failed_requests_total ");
    let next = bed.successor("next", &program("tollgated").display().to_string());

    // Another authority.
    call(&daemon);
    let says = |daemon: &mut Daemon, words: &str| {
        let line = daemon.process().line(SOON, |line| line.contains(words));
        line.unwrap_or_else(|error| panic!("{words}: {error}"))
    };
    let line = says(&mut daemon, "doesn't take metrics");
    assert!(
        line.contains(&format!("https://{address}")) && line.contains("invalid peer certificate"),
        "{line}"
    );
    eventually(SOON, || failed() > Some(1.0)).unwrap();
    assert_eq!(collector.spans(), Vec::new());

    // The right authority, and the wrong key.
    std::fs::copy(&own.ca, &ca).unwrap();
    daemon.upgrade(&next);
    let line = says(&mut daemon, "it answers 401 Unauthorized");
    assert!(line.contains("doesn't take"), "{line}");
    assert_eq!(collector.spans(), Vec::new());

    // No key at all: the running process stays.
    std::fs::write(&key, "wr0ng").unwrap();
    let before = daemon.pid();
    let refused = daemon.run(&format!("upgrade --binary {}", next.display()));
    assert_eq!(refused.code, 9, "{refused}");
    says(&mut daemon, "line 1 is no header");
    daemon.follow();
    assert_eq!(daemon.pid(), before);

    // The right key.
    std::fs::write(&key, "api-key: s3cret\n").unwrap();
    daemon.upgrade(&next);
    call(&daemon);
    let there = eventually(SOON, || collector.spans().len() == 2);
    there.unwrap_or_else(|error| panic!("{error:?}: {:?}", collector.spans()));
    // No output contains a key.
    let said = daemon.process().said().join("\n");
    let shown = ["status --json", "daemon settings --json"].map(|line| daemon.ok(line));
    for text in [said, refused.to_string()].iter().chain(&shown) {
        for key in ["s3cret", "wr0ng"] {
            assert!(!text.contains(key), "{text}");
        }
    }
}

/// Consecutive scrapes: the time and the counts; `None` if nobody has answered.
type Scraped = Vec<(Instant, Option<f64>)>;

/// Counts restart with a process, which scrapers detect by a lower count; within a process they
/// only grow.
#[test]
fn the_port_of_scrapes_is_handed_over_with_the_daemon() {
    let bed = Testbed::new();
    let at = free();
    let options = Options {
        config: format!("[telemetry]\nprometheus = \"{at}\"\n"),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
    let labels =
        r#"tollgate_tenant="acme",rpc_system_name="tollgate",rpc_method="hotel.Echo/Echo""#;
    let calls = format!(
        "rpc_client_call_duration_seconds_count{{{labels},rpc_response_status_code=\"OK\"}}"
    );
    let counted = || {
        let (status, text) = http(at, "GET /metrics", b"")?;
        assert!(status == 200 || status == 503, "{status}: {text}");
        let is_whole = status == 200;
        is_whole.then(|| sample(&text, &calls).unwrap_or_default())
    };
    let call = |daemon: &Daemon, times| {
        for _ in 0..times {
            let outcome = daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}");
            assert_eq!(outcome.code, 0, "{outcome}");
        }
    };
    call(&daemon, 3);
    let before = daemon.pid();
    assert_eq!(counted(), Some(3.0));
    let next = bed.successor("next", &program("tollgated").display().to_string());
    let is_over = AtomicBool::new(false);
    let (scraped, answered) = std::thread::scope(|scope| {
        let scraper = scope.spawn(|| {
            let mut scraped = Scraped::new();
            while !is_over.load(Ordering::Relaxed) {
                scraped.push((Instant::now(), counted()));
                std::thread::sleep(Duration::from_millis(5));
            }
            scraped
        });
        let upgrade = format!("upgrade --binary {}", next.display());
        let upgraded = daemon.run(&upgrade);
        // Nothing panics before the scraper has been stopped.
        let answered = eventually(SOON, || counted().is_some());
        for _ in 0..2 {
            daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}");
        }
        let answered = answered.and_then(|_| eventually(SOON, || counted() == Some(2.0)));
        is_over.store(true, Ordering::Relaxed);
        let scraped = scraper.join().unwrap();
        (scraped, (upgraded, answered))
    });
    let (upgraded, answered) = answered;
    assert_eq!(upgraded.code, 0, "{upgraded}");
    answered.unwrap_or_else(|error| panic!("{error:?}: {:?}", counted()));
    daemon.follow();
    assert_ne!(daemon.pid(), before);
    let counts: Vec<f64> = scraped.iter().filter_map(|(_, count)| *count).collect();
    let is_less = |pair: &&[f64]| pair[1] < pair[0];
    let steps: Vec<_> = counts.windows(2).filter(is_less).collect();
    // A delayed scraper sees the next process's first calls at once.
    let is_once = matches!(steps[..], [[3.0, next]] if *next <= 2.0);
    assert!(is_once, "the process changed once: {steps:?}");
    // A scraper with an interval of 1 s misses at most one scrape, on a machine that isn't loaded.
    let gone = scraped.iter().filter(|(_, count)| count.is_none());
    let gone: Vec<_> = gone.map(|(when, _)| *when).collect();
    if let (Some(first), Some(last)) = (gone.first(), gone.last()) {
        let took = *last - *first;
        println!("nobody answered scrapes for {took:?}");
        assert!(took < SOON / 3, "{took:?}");
    }
}

/// The checked part of OTLP's messages; the crate's tests compare OpenTelemetry's own with
/// Tollgate's.
mod otlp {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Text {
        #[prost(string, tag = "1")]
        pub(super) text: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Pair {
        #[prost(string, tag = "1")]
        pub(super) key: String,
        #[prost(message, optional, tag = "2")]
        pub(super) value: Option<Text>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Event {
        #[prost(string, tag = "2")]
        pub(super) name: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub(super) trace: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) id: Vec<u8>,
        #[prost(bytes = "vec", tag = "4")]
        pub(super) parent: Vec<u8>,
        #[prost(string, tag = "5")]
        pub(super) name: String,
        #[prost(int32, tag = "6")]
        pub(super) kind: i32,
        #[prost(message, repeated, tag = "9")]
        pub(super) attributes: Vec<Pair>,
        #[prost(message, repeated, tag = "11")]
        pub(super) events: Vec<Event>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Line {
        #[prost(message, optional, tag = "5")]
        pub(super) body: Option<Text>,
        #[prost(message, repeated, tag = "6")]
        pub(super) attributes: Vec<Pair>,
        #[prost(bytes = "vec", tag = "9")]
        pub(super) trace: Vec<u8>,
    }

    /// A span or a line.
    pub(super) trait Item: Message + Default + Clone + PartialEq + std::fmt::Debug {}

    impl Item for Span {}
    impl Item for Line {}

    /// The layers of a request are the same for both.
    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Scope<T: Item> {
        #[prost(message, repeated, tag = "2")]
        pub(super) items: Vec<T>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Resource<T: Item> {
        #[prost(message, repeated, tag = "2")]
        pub(super) scopes: Vec<Scope<T>>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Request<T: Item> {
        #[prost(message, repeated, tag = "1")]
        pub(super) resources: Vec<Resource<T>>,
    }

    impl<T: Item> Request<T> {
        pub(super) fn items(self) -> Vec<T> {
            let scopes = self.resources.into_iter().flat_map(|r| r.scopes);
            scopes.flat_map(|scope| scope.items).collect()
        }
    }
}

/// An OTLP collector over HTTP that keeps its input.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<otlp::Span>>>,
    lines: Arc<Mutex<Vec<otlp::Line>>>,
    /// A required line of a request's head, in lower case; without it nothing is accepted.
    demands: Option<&'static str>,
}

impl Collector {
    /// A collector with TLS that requires such a line.
    fn secured(certificates: &Certificates, demands: &'static str) -> (Collector, SocketAddr) {
        let provider = rustls::crypto::ring::default_provider();
        let certificate = CertificateDer::from_pem_file(&certificates.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&certificates.key).unwrap();
        let config = ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Collector {
            demands: Some(demands),
            ..Collector::default()
        };
        let kept = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let (kept, stream) = (kept.clone(), StreamOwned::new(connection, stream));
                std::thread::spawn(move || kept.answer(stream));
            }
        });
        (collector, address)
    }

    fn start() -> (Collector, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Collector::default();
        let kept = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = kept.clone();
                std::thread::spawn(move || kept.answer(stream));
            }
        });
        (collector, address)
    }

    fn answer(&self, mut stream: impl Read + Write) -> std::io::Result<()> {
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
            let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
            let length = head.split("content-length: ").nth(1).unwrap();
            let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
            if text.len() < end + 4 + length {
                continue;
            }
            let body = &text[end + 4..end + 4 + length];
            if self
                .demands
                .is_some_and(|line| !head.lines().any(|it| it == line))
            {
                stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")?;
                text.drain(..end + 4 + length);
                continue;
            }
            if head.starts_with("post /v1/traces ") {
                let request = otlp::Request::<otlp::Span>::decode(body).unwrap();
                self.spans.lock().unwrap().extend(request.items());
            }
            if head.starts_with("post /v1/logs ") {
                let request = otlp::Request::<otlp::Line>::decode(body).unwrap();
                self.lines.lock().unwrap().extend(request.items());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
            text.drain(..end + 4 + length);
        }
    }

    fn spans(&self) -> Vec<otlp::Span> {
        self.spans.lock().unwrap().clone()
    }

    fn lines(&self) -> Vec<otlp::Line> {
        self.lines.lock().unwrap().clone()
    }
}

fn attribute<'a>(attributes: &'a [otlp::Pair], key: &str) -> Option<&'a str> {
    let pair = attributes.iter().find(|pair| pair.key == key)?;
    Some(&pair.value.as_ref()?.text)
}

const CLIENT: i32 = 3;
const SERVER: i32 = 2;
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_call_over_two_daemons_is_one_trace() {
    let (collector, address) = Collector::start();
    let (own, owns) = Collector::start();
    let told =
        format!("endpoint = \"http://{address}\"\nprotocol = \"http\"\nsample_per_million = 0\n");
    let acme =
        format!("[telemetry.tenants.acme]\nendpoint = \"http://{owns}\"\nprotocol = \"http\"\n");
    let hosts = hosts([format!("{told}{acme}"), told]);
    let server = hosts.serve_echo(&[]);
    let spans = |count: usize| {
        let there = eventually(SOON, || collector.spans().len() >= count);
        let spans = collector.spans();
        there.unwrap_or_else(|_| panic!("{spans:?}"));
        spans
    };

    // Without a parent and not sampled: not traced.
    let outcome = hosts.echo(&[]);
    assert_eq!(outcome.code, 0, "{outcome}");
    // An application's own span is the parent of the daemons' spans, which are the parents of the
    // server's.
    let parent = format!("traceparent=00-{TRACE}-00f067aa0ba902b7-01");
    let outcome = hosts.echo(&[&parent, "tracestate=vendor=1"]);
    assert_eq!(outcome.code, 0, "{outcome}");
    let found = spans(2);
    assert_eq!(found.len(), 2, "{found:?}");
    let of = |kind| found.iter().find(|span| span.kind == kind).unwrap();
    let (client, served) = (of(CLIENT), of(SERVER));
    assert!(
        found.iter().all(|span| hex(&span.trace) == TRACE),
        "{found:?}"
    );
    assert_eq!(hex(&client.parent), "00f067aa0ba902b7");
    assert_eq!(served.parent, client.id);
    assert!(found.iter().all(|span| span.name == "hotel.Echo/Echo"));
    assert_eq!(
        attribute(&client.attributes, "rpc.response.status_code"),
        Some("OK")
    );
    assert_eq!(attribute(&client.attributes, "error.type"), None);
    assert_eq!(
        attribute(&client.attributes, "server.address"),
        Some("127.0.0.1")
    );
    let names = |span: &otlp::Span| -> Vec<String> {
        span.events.iter().map(|event| event.name.clone()).collect()
    };
    let [marshalled, sent, delivered] =
        ["marshalled", "sent", "delivered"].map(|name| format!("tollgate.{name}"));
    assert_eq!(names(client), [&*marshalled, &sent, &marshalled]);
    assert_eq!(names(served), [&*marshalled, &delivered, &marshalled]);
    let heard = format!("00-{TRACE}-{}-01", hex(&served.id));
    server.line(SOON, |line| line.contains(&heard)).unwrap();
    // The tenant's collector gets its daemon's data.
    eventually(SOON, || own.spans().len() == 1).unwrap();
    assert_eq!(own.spans()[0].id, client.id);

    // A call without a parent begins a trace, which the server's application sees.
    for host in [&hosts.a, &hosts.b] {
        host.ok("daemon set telemetry.sample_per_million=1000000");
    }
    let outcome = hosts.echo(&[]);
    assert_eq!(outcome.code, 0, "{outcome}");
    let found = spans(4).split_off(2);
    let of = |kind| found.iter().find(|span| span.kind == kind).unwrap();
    let (client, served) = (of(CLIENT), of(SERVER));
    assert_eq!(client.parent, Vec::<u8>::new());
    assert_eq!((&served.trace, &served.parent), (&client.trace, &client.id));
    let heard = format!("00-{}-{}-01", hex(&client.trace), hex(&served.id));
    server.line(SOON, |line| line.contains(&heard)).unwrap();

    // A failed call always has a span, and a line with its trace.
    for host in [&hosts.a, &hosts.b] {
        host.ok("daemon set telemetry.sample_per_million=0");
    }
    assert_eq!(collector.lines(), Vec::new());
    let admins = json!({"metadata": ["x-role"], "allow": ["admin"], "message": "admins only"});
    hosts.attach("metadata-acl", &admins, "");
    let outcome = hosts.echo(&["x-role=guest"]);
    assert!(outcome.err.contains("admins only"), "{outcome}");
    let found = spans(5).split_off(4);
    let denied = &found[0];
    assert_eq!(
        attribute(&denied.attributes, "error.type"),
        Some("PERMISSION_DENIED")
    );
    assert_eq!(
        attribute(&denied.attributes, "tollgate.policy"),
        Some("metadata-acl@1")
    );
    eventually(SOON, || !collector.lines().is_empty()).unwrap();
    let lines = collector.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    assert_eq!(line.trace, denied.trace);
    assert_eq!(line.body.as_ref().unwrap().text, "admins only");
    assert_eq!(attribute(&line.attributes, "tollgate.tenant"), Some("acme"));
    assert_eq!(
        attribute(&line.attributes, "rpc.method"),
        Some("hotel.Echo/Echo")
    );
    assert_eq!(
        attribute(&line.attributes, "tollgate.policy"),
        Some("metadata-acl@1")
    );
}

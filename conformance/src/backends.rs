//! What telemetry is sent to: an OpenTelemetry collector, Jaeger and Prometheus, as real processes that `.ci/backends` has built or installed.
//!
//! Each is on ports of its own of the loopback interface, and asked as anybody asks it: files, or HTTP. Where a registry was out of reach, `.ci/backends`
//! has left behind why, and tests say that and do nothing; in CI it has failed then. Where it didn't run, tests fail and say so. What a daemon shows
//! Prometheus can be read without one.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::certificates::Certificates;
use crate::process::{Process, programs};
use crate::testbed::{SOON, Testbed, eventually};

/// Where something of `.ci/backends` is; `None`, once that is said, if it couldn't be had.
///
/// # Panics
/// If nobody has tried.
pub fn place_of(name: &str) -> Option<PathBuf> {
    let place = programs().join("../backends");
    if let Ok(why) = std::fs::read_to_string(place.join(format!("{name}.missed"))) {
        eprintln!("NOT TESTED: there is no {name}: {}", why.trim());
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|directory| directory.join(name));
    let mut found = [place.join(name)].into_iter().chain(installed);
    let found = found.find(|path| path.is_file());
    assert!(
        found.is_some(),
        "{name} is not there: run `.ci/backends` first"
    );
    found
}

/// An address that nobody listens on.
///
/// # Panics
/// If there is none.
pub fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    listener.local_addr().expect("it is bound")
}

/// What a daemon shows Prometheus; nothing if it shows nothing.
pub fn scrape(at: SocketAddr) -> String {
    http(at, "GET /metrics", b"").unwrap_or_default().1
}

/// The sample whose line begins like this.
pub fn sample(scraped: &str, series: &str) -> Option<f64> {
    let mut lines = scraped.lines();
    let line = lines.find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

/// What a server answers: status and content. `None` if there is no whole answer.
pub fn http(at: SocketAddr, head: &str, body: &[u8]) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    // By 1.0 the answer ends with the connection.
    let length = body.len();
    let head = format!("{head} HTTP/1.0\r\nhost: {at}\r\ncontent-type: application/json\r\n");
    let head = format!("{head}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, content) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, content.to_owned()))
}

fn get(at: SocketAddr, path: &str) -> Option<Value> {
    let (status, content) = http(at, &format!("GET {path}"), b"")?;
    let is_ok = status == 200;
    is_ok.then(|| serde_json::from_str(&content).ok()).flatten()
}

/// Text as it is written in a URL.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut url, byte| {
        if byte.is_ascii_alphanumeric() {
            url.push(char::from(byte));
        } else {
            let _to_memory = write!(url, "%{byte:02X}");
        }
        url
    })
}

fn start(program: &Path, args: &[String], serves: impl Fn() -> bool) -> Process {
    let process = Process::start(program, args).expect("leash is built");
    let waited = eventually(SOON, serves);
    let said = process.said();
    waited.unwrap_or_else(|error| {
        panic!("{} doesn't serve in {error:?}: {said:?}", program.display())
    });
    process
}

/// A collector that writes what it gets into a file.
#[derive(Debug)]
pub struct Collector {
    /// Where it takes OTLP over gRPC.
    pub grpc: SocketAddr,
    /// Where it takes OTLP over HTTP.
    pub http: SocketAddr,
    /// It.
    pub process: Process,
    program: PathBuf,
    config: PathBuf,
    file: PathBuf,
}

impl Collector {
    /// One of this name in the bed; `None` if there is no collector.
    ///
    /// # Panics
    /// If it doesn't come to serve.
    pub fn start(bed: &Testbed, name: &str) -> Option<Collector> {
        Collector::configured(bed, name, "", "")
    }

    /// One that shows a certificate, and answers who has a token: `authorization: Bearer TOKEN`.
    ///
    /// # Panics
    /// If it doesn't come to serve.
    pub fn secured(
        bed: &Testbed,
        name: &str,
        its: &Certificates,
        token: &str,
    ) -> Option<Collector> {
        let (certificate, key) = (its.certificate.display(), its.key.display());
        let receives = format!(
            ", tls: {{cert_file: '{certificate}', key_file: '{key}'}}, auth: {{authenticator: bearertokenauth}}"
        );
        let extensions = format!("extensions: {{bearertokenauth: {{token: '{token}'}}}}\n");
        Collector::configured(bed, name, &receives, &extensions)
    }

    /// `receives` is how it does that by both protocols, beside where.
    fn configured(
        bed: &Testbed,
        name: &str,
        receives: &str,
        extensions: &str,
    ) -> Option<Collector> {
        let program = place_of("collector")?;
        let (grpc, http) = (free(), free());
        let file = bed.path(&format!("{name}.jsonl"));
        let shown = file.display();
        let pipeline = "{receivers: [otlp], exporters: [file]}";
        let enabled = match extensions {
            "" => "",
            _ => "  extensions: [bearertokenauth]\n",
        };
        let config = format!(
            "{extensions}receivers: {{otlp: {{protocols: {{grpc: {{endpoint: '{grpc}'{receives}}}, http: {{endpoint: '{http}'{receives}}}}}}}}}\n\
             exporters: {{file: {{path: '{shown}', append: true, flush_interval: 100ms}}}}\n\
             service:\n  telemetry: {{metrics: {{level: none}}}}\n{enabled}\
             \x20 pipelines: {{traces: {pipeline}, metrics: {pipeline}, logs: {pipeline}}}\n"
        );
        let config = bed.file(&format!("{name}.yaml"), config);
        let process = Collector::run(&program, &config, [grpc, http]);
        Some(Collector {
            grpc,
            http,
            process,
            program,
            config,
            file,
        })
    }

    fn run(program: &Path, config: &Path, at: [SocketAddr; 2]) -> Process {
        let args = ["--config".to_owned(), config.display().to_string()];
        let serves = || at.iter().all(|at| TcpStream::connect(at).is_ok());
        start(program, &args, serves)
    }

    /// Starts it again where it was, after it has ended.
    ///
    /// # Panics
    /// If it doesn't come to serve.
    pub fn restart(&mut self) {
        self.process = Collector::run(&self.program, &self.config, [self.grpc, self.http]);
    }

    /// All requests of a kind that it got: `resourceSpans`, `resourceMetrics`, `resourceLogs`; their resources in order.
    ///
    /// # Panics
    /// If a line of its file that is whole is no JSON.
    pub fn got(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        // It may be writing the last one.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let requests = whole.lines().map(|line| {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        });
        let resources = requests.filter_map(|request| request.get(kind)?.as_array().cloned());
        resources.flatten().collect()
    }

    /// All spans that it got.
    pub fn spans(&self) -> Vec<Value> {
        let resources = self.got("resourceSpans");
        below(&resources, "/scopeSpans", "/spans").collect()
    }

    /// All metrics that it got; a metric that was sent often is there often, the latest last.
    pub fn metrics(&self) -> Vec<Value> {
        let resources = self.got("resourceMetrics");
        below(&resources, "/scopeMetrics", "/metrics").collect()
    }
}

/// What is in all scopes of all resources.
fn below<'v>(
    resources: &'v [Value],
    scopes: &'v str,
    items: &'v str,
) -> impl Iterator<Item = Value> + 'v {
    let scopes = resources.iter().flat_map(move |r| list(r, scopes));
    scopes.flat_map(move |scope| list(scope, items)).cloned()
}

/// The elements of an array inside of a value; none if it isn't there.
pub fn list<'v>(value: &'v Value, at: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    let array = value.pointer(at).and_then(Value::as_array);
    array.into_iter().flatten()
}

/// The text of an attribute in OTLP's JSON.
pub fn attribute<'v>(of: &'v Value, key: &str) -> Option<&'v str> {
    let pair = list(of, "/attributes").find(|pair| pair["key"] == key)?;
    pair.pointer("/value/stringValue")?.as_str()
}

/// The points of a metric, of any kind.
pub fn points(metric: &Value) -> impl Iterator<Item = &Value> {
    ["sum", "gauge", "exponentialHistogram"]
        .iter()
        .flat_map(|kind| list(metric, &format!("/{kind}/dataPoints")).collect::<Vec<_>>())
}

/// Jaeger, all in one program, with what it gets in memory.
#[derive(Debug)]
pub struct Jaeger {
    /// Where it takes OTLP over gRPC.
    pub grpc: SocketAddr,
    /// Where it takes OTLP over HTTP.
    pub http: SocketAddr,
    query: SocketAddr,
    _process: Process,
}

impl Jaeger {
    /// `None` if there is no Jaeger.
    ///
    /// # Panics
    /// If it doesn't come to serve.
    pub fn start() -> Option<Jaeger> {
        let program = place_of("jaeger")?;
        let (grpc, http, query) = (free(), free(), free());
        let mut args = vec![
            format!("--collector.otlp.grpc.host-port={grpc}"),
            format!("--collector.otlp.http.host-port={http}"),
            format!("--query.http-server.host-port={query}"),
        ];
        // What else it listens on, and nobody here uses.
        for unused in [
            "admin.http",
            "collector.grpc-server",
            "collector.http-server",
            "query.grpc-server",
        ] {
            args.push(format!("--{unused}.host-port={}", free()));
        }
        let serves = || get(query, "/api/services").is_some();
        let process = start(&program, &args, serves);
        Some(Jaeger {
            grpc,
            http,
            query,
            _process: process,
        })
    }

    /// A trace, as its query API has it.
    pub fn trace(&self, id: &str) -> Option<Value> {
        let answer = get(self.query, &format!("/api/traces/{id}"))?;
        answer["data"].get(0).cloned()
    }

    /// How many traces a service has within the last hour.
    pub fn traces_of(&self, service: &str) -> usize {
        let path = format!("/api/traces?service={service}&limit=1000&lookback=1h");
        let answer = get(self.query, &path).unwrap_or_default();
        list(&answer, "/data").count()
    }
}

/// Prometheus, which scrapes some daemons each second.
#[derive(Debug)]
pub struct Prometheus {
    at: SocketAddr,
    _process: Process,
}

impl Prometheus {
    /// `None` if there is no Prometheus.
    ///
    /// # Panics
    /// If it doesn't come to serve.
    pub fn start(bed: &Testbed, targets: &[SocketAddr]) -> Option<Prometheus> {
        Prometheus::with(bed, targets, "exemplar-storage")
    }

    /// One with some of what isn't stable.
    ///
    /// # Panics
    /// If it doesn't come to serve.
    pub fn with(bed: &Testbed, targets: &[SocketAddr], features: &str) -> Option<Prometheus> {
        let program = place_of("prometheus")?;
        let targets: Vec<_> = targets.iter().map(|at| format!("'{at}'")).collect();
        let config = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs: [{{job_name: tollgate, static_configs: [{{targets: [{}]}}]}}]\n",
            targets.join(", ")
        );
        let config = bed.file("prometheus.yml", config);
        let at = free();
        let args = [
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", bed.path("prometheus").display()),
            format!("--web.listen-address={at}"),
            format!("--enable-feature={features}"),
        ];
        let serves = || http(at, "GET /-/ready", b"").is_some_and(|(status, _)| status == 200);
        let process = start(&program, &args, serves);
        Some(Prometheus {
            at,
            _process: process,
        })
    }

    /// What a query of PromQL answers at the moment: the series, each with its labels in `metric`.
    pub fn query(&self, query: &str) -> Vec<Value> {
        let answer = get(self.at, &format!("/api/v1/query?query={}", escaped(query)));
        let answer = answer.unwrap_or_default();
        list(&answer, "/data/result").cloned().collect()
    }

    /// The exemplars of the series that a query is about, of the last hour: each series with its labels in `seriesLabels`.
    pub fn exemplars(&self, query: &str) -> Vec<Value> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        let (query, start, end) = (escaped(query), now.saturating_sub(3_600), now + 60);
        let path = format!("/api/v1/query_exemplars?query={query}&start={start}&end={end}");
        let answer = get(self.at, &path).unwrap_or_default();
        list(&answer, "/data").cloned().collect()
    }

    /// The one number that a query answers.
    pub fn number(&self, query: &str) -> Option<f64> {
        let series = self.query(query);
        let [one] = &series[..] else { return None };
        one.pointer("/value/1")?.as_str()?.parse().ok()
    }
}

//! The backends of telemetry: an OpenTelemetry collector, Jaeger and Prometheus, as real processes
//! that `.ci/backends` has built or installed.
//!
//! Each uses its own loopback ports and is read by its ordinary interfaces: files, or HTTP. If a
//! registry was out of reach, `.ci/backends` has recorded the reason; tests then print it and do
//! nothing (in CI the script fails instead). If the script didn't run, tests fail and name it. A
//! daemon's metrics for Prometheus can be read without Prometheus.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::certificates::Certificates;
use crate::ports::free;
use crate::process::{Process, programs};
use crate::testbed::{SOON, Testbed, eventually};

/// The path of a program from `.ci/backends`; `None`, with a message, if it couldn't be built.
///
/// # Panics
/// If `.ci/backends` didn't run.
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

/// A daemon's metrics for Prometheus; empty if it exports none.
pub fn scrape(at: SocketAddr) -> String {
    http(at, "GET /metrics", b"").unwrap_or_default().1
}

/// The value of the sample whose line begins with `series`.
pub fn sample(scraped: &str, series: &str) -> Option<f64> {
    let mut lines = scraped.lines();
    let line = lines.find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

/// A server's answer: status and content. `None` if it is incomplete.
pub fn http(at: SocketAddr, head: &str, body: &[u8]) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(SOON)).ok()?;
    // In HTTP 1.0 the answer ends with the connection.
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

/// Text, escaped for a URL.
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

/// A collector that writes its input into a file.
#[derive(Debug)]
pub struct Collector {
    /// The address for OTLP over gRPC.
    pub grpc: SocketAddr,
    /// The address for OTLP over HTTP.
    pub http: SocketAddr,
    /// The process.
    pub process: Process,
    program: PathBuf,
    config: PathBuf,
    file: PathBuf,
}

impl Collector {
    /// Starts a collector with this name in the bed; `None` if there is no collector.
    ///
    /// # Panics
    /// If it doesn't start serving.
    pub fn start(bed: &Testbed, name: &str) -> Option<Collector> {
        Collector::configured(bed, name, "", "")
    }

    /// Starts a collector with a certificate that requires a token: `authorization: Bearer TOKEN`.
    ///
    /// # Panics
    /// If it doesn't start serving.
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

    /// `receives` has the settings of both protocols, in addition to the addresses.
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

    /// Restarts it at the same addresses, after it has ended.
    ///
    /// # Panics
    /// If it doesn't start serving.
    pub fn restart(&mut self) {
        self.process = Collector::run(&self.program, &self.config, [self.grpc, self.http]);
    }

    /// All received requests of a kind: `resourceSpans`, `resourceMetrics`, `resourceLogs`; their
    /// resources in order.
    ///
    /// # Panics
    /// If a complete line of its file isn't JSON.
    pub fn got(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        // It may be writing the last line.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let requests = whole.lines().map(|line| {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        });
        let resources = requests.filter_map(|request| request.get(kind)?.as_array().cloned());
        resources.flatten().collect()
    }

    /// All received spans.
    pub fn spans(&self) -> Vec<Value> {
        let resources = self.got("resourceSpans");
        below(&resources, "/scopeSpans", "/spans").collect()
    }

    /// All received metrics; a metric that was sent repeatedly occurs repeatedly, the latest last.
    pub fn metrics(&self) -> Vec<Value> {
        let resources = self.got("resourceMetrics");
        below(&resources, "/scopeMetrics", "/metrics").collect()
    }
}

/// The entries of all scopes of all resources.
fn below<'v>(
    resources: &'v [Value],
    scopes: &'v str,
    items: &'v str,
) -> impl Iterator<Item = Value> + 'v {
    let scopes = resources.iter().flat_map(move |r| list(r, scopes));
    scopes.flat_map(move |scope| list(scope, items)).cloned()
}

/// The elements of an array in a value; none if it is absent.
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

/// Jaeger in one process, with its data in memory.
#[derive(Debug)]
pub struct Jaeger {
    /// The address for OTLP over gRPC.
    pub grpc: SocketAddr,
    /// The address for OTLP over HTTP.
    pub http: SocketAddr,
    query: SocketAddr,
    _process: Process,
}

impl Jaeger {
    /// Starts Jaeger; `None` if there is none.
    ///
    /// # Panics
    /// If it doesn't start serving.
    pub fn start() -> Option<Jaeger> {
        let program = place_of("jaeger")?;
        let (grpc, http, query) = (free(), free(), free());
        let mut args = vec![
            format!("--collector.otlp.grpc.host-port={grpc}"),
            format!("--collector.otlp.http.host-port={http}"),
            format!("--query.http-server.host-port={query}"),
        ];
        // Its other listeners, which nobody uses here.
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

    /// A trace from its query API.
    pub fn trace(&self, id: &str) -> Option<Value> {
        let answer = get(self.query, &format!("/api/traces/{id}"))?;
        answer["data"].get(0).cloned()
    }

    /// The number of a service's traces within the last hour.
    pub fn traces_of(&self, service: &str) -> usize {
        let path = format!("/api/traces?service={service}&limit=1000&lookback=1h");
        let answer = get(self.query, &path).unwrap_or_default();
        list(&answer, "/data").count()
    }
}

/// Prometheus, which scrapes some daemons every second.
#[derive(Debug)]
pub struct Prometheus {
    at: SocketAddr,
    _process: Process,
}

impl Prometheus {
    /// Starts Prometheus; `None` if there is none.
    ///
    /// # Panics
    /// If it doesn't start serving.
    pub fn start(bed: &Testbed, targets: &[SocketAddr]) -> Option<Prometheus> {
        Prometheus::with(bed, targets, "exemplar-storage")
    }

    /// Starts it with unstable features.
    ///
    /// # Panics
    /// If it doesn't start serving.
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

    /// The current result of a PromQL query: the series, each with its labels in `metric`.
    pub fn query(&self, query: &str) -> Vec<Value> {
        let answer = get(self.at, &format!("/api/v1/query?query={}", escaped(query)));
        let answer = answer.unwrap_or_default();
        list(&answer, "/data/result").cloned().collect()
    }

    /// The exemplars of the query's series in the last hour: each series with its labels in
    /// `seriesLabels`.
    pub fn exemplars(&self, query: &str) -> Vec<Value> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        let (query, start, end) = (escaped(query), now.saturating_sub(3_600), now + 60);
        let path = format!("/api/v1/query_exemplars?query={query}&start={start}&end={end}");
        let answer = get(self.at, &path).unwrap_or_default();
        list(&answer, "/data").cloned().collect()
    }

    /// The single number that a query returns.
    pub fn number(&self, query: &str) -> Option<f64> {
        let series = self.query(query);
        let [one] = &series[..] else { return None };
        one.pointer("/value/1")?.as_str()?.parse().ok()
    }
}

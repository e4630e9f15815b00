//! Telemetry with the real backends: the output of an OpenTelemetry collector, the answers of
//! Prometheus, and the use of names from OpenTelemetry's conventions. The tests of the hotel
//! reservation check that Jaeger gets a request of many services as one trace.
//!
//! `.ci/backends` builds and installs them.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tollgate_conformance::backends::{
    Collector, Prometheus, attribute, list, place_of, points, sample, scrape,
};
use tollgate_conformance::certificates::Certificates;
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::ports::free;
use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually};
use tollgate_conformance::traffic::ECHO;

const CALL: &str = "hotel.Echo/Echo";

fn daemon(bed: &Testbed, name: &str, telemetry: &str) -> Daemon {
    let config = format!("[telemetry]\n{telemetry}");
    let options = Options {
        config,
        ..Options::default()
    };
    bed.daemon_with(name, &options)
}

/// A tenant that calls an echo server on host `b` from host `a`.
struct Caller {
    token: String,
    to: String,
    _server: Process,
}

impl Caller {
    fn new(tenant: &str, a: &Daemon, b: &Daemon) -> Caller {
        Caller {
            token: a.tenant(tenant),
            to: b.listen().to_string(),
            _server: b.serve_hotel(&b.tenant(tenant), ECHO, &["--echo"]),
        }
    }

    #[track_caller]
    fn call(&self, a: &Daemon, times: usize) {
        for _ in 0..times {
            let outcome = a.call_hotel(&self.token, &self.to, CALL, "{}");
            assert_eq!(outcome.code, 0, "{outcome}");
        }
    }
}

/// In OTLP's JSON, numbers of 64 bits are text.
fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

/// The number of spans by tenant and kind: 3 is a client's, 2 a server's.
fn spans_of(collector: &Collector) -> BTreeMap<(String, u64), usize> {
    let mut counts = BTreeMap::new();
    for span in collector.spans() {
        let tenant = attribute(&span, "tollgate.tenant").unwrap().to_owned();
        let kind = span["kind"].as_u64().unwrap();
        *counts.entry((tenant, kind)).or_default() += 1;
    }
    counts
}

/// The number of calls in a histogram by tenant, from its latest version.
fn calls_of(collector: &Collector, metric: &str) -> BTreeMap<String, u64> {
    let metrics = collector.metrics();
    let same = metrics.iter().filter(|m| m["name"] == metric);
    let counts = same.flat_map(points).map(|point| {
        let tenant = attribute(point, "tollgate.tenant").unwrap().to_owned();
        (tenant, number(&point["count"]).unwrap())
    });
    counts.collect()
}

fn counts<K: Ord, V>(of: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    of.into_iter().collect()
}

/// Waits until both are equal, and shows both if they don't become equal.
#[track_caller]
fn becomes<T: PartialEq + std::fmt::Debug>(expected: &T, found: impl Fn() -> T) {
    let waited = eventually(SOON, || found() == *expected);
    waited.unwrap_or_else(|error| panic!("{error:?}: {:?} instead of {expected:?}", found()));
}

#[test]
fn a_collector_gets_what_was_called_and_a_tenants_own_what_is_the_tenants() {
    let bed = Testbed::new();
    let Some(all) = Collector::start(&bed, "all") else {
        return;
    };
    let [acmes, others] = ["acmes", "others"].map(|name| Collector::start(&bed, name).unwrap());
    let often = "interval_s = 1\nsample_per_million = 1000000\n";
    let grpc = |at: SocketAddr| format!("endpoint = \"http://{at}\"\n");
    let over_http = |at: SocketAddr| format!("endpoint = \"http://{at}\"\nprotocol = \"http\"\n");
    // Each is used with both protocols.
    let a = format!(
        "{often}{}[telemetry.tenants.acme]\n{}[telemetry.tenants.other]\n{}",
        grpc(all.grpc),
        over_http(acmes.http),
        grpc(others.grpc)
    );
    let b = format!(
        "{often}{}[telemetry.tenants.acme]\n{}[telemetry.tenants.other]\n{}",
        over_http(all.http),
        grpc(acmes.grpc),
        over_http(others.http)
    );
    let (a, b) = (daemon(&bed, "a", &a), daemon(&bed, "b", &b));
    let (acme, other) = (Caller::new("acme", &a, &b), Caller::new("other", &a, &b));
    acme.call(&a, 3);
    other.call(&a, 2);

    let of = |tenant: &str, calls| {
        [
            ((tenant.to_owned(), 2), calls),
            ((tenant.to_owned(), 3), calls),
        ]
    };
    let both = counts(of("acme", 3).into_iter().chain(of("other", 2)));
    becomes(&both, || spans_of(&all));
    becomes(&counts(of("acme", 3)), || spans_of(&acmes));
    becomes(&counts(of("other", 2)), || spans_of(&others));
    let (three, two) = (("acme".to_owned(), 3), ("other".to_owned(), 2));
    for metric in ["rpc.client.call.duration", "rpc.server.call.duration"] {
        let both = counts([three.clone(), two.clone()]);
        becomes(&both, || calls_of(&all, metric));
        becomes(&counts([three.clone()]), || calls_of(&acmes, metric));
        becomes(&counts([two.clone()]), || calls_of(&others, metric));
    }
    for (collector, tenant) in [(&acmes, "acme"), (&others, "other")] {
        for metric in collector.metrics() {
            for point in points(&metric) {
                let whose = attribute(point, "tollgate.tenant");
                assert_eq!(whose, Some(tenant), "{metric:#}");
            }
        }
    }
    assert_eq!(hosts_in(&all), BTreeSet::from(["a".into(), "b".into()]));
    // Ids have OTLP's length, and no two spans share one.
    let spans = all.spans();
    let ids: BTreeSet<_> = spans.iter().map(|span| span["spanId"].as_str()).collect();
    assert_eq!(ids.len(), 10);
    for span in &spans {
        let length = |key: &str| span[key].as_str().map(str::len);
        assert_eq!((length("traceId"), length("spanId")), (Some(32), Some(16)));
        let [began, ended] =
            ["startTimeUnixNano", "endTimeUnixNano"].map(|key| number(&span[key]).unwrap());
        assert!(began <= ended && ended - began < SOON.as_nanos() as u64);
    }
}

#[test]
fn a_collector_with_tls_gets_what_was_called_from_those_with_a_token() {
    let bed = Testbed::new();
    let certificates = Certificates::signed_by(&bed, "own");
    let Some(all) = Collector::secured(&bed, "all", &certificates, "s3cret") else {
        return;
    };
    let key = bed.file("key", "authorization: Bearer s3cret\n");
    let told = |at: SocketAddr, protocol: &str| {
        let ca = &certificates.ca;
        format!(
            "interval_s = 1\nsample_per_million = 1000000\nendpoint = \"https://{at}\"\nprotocol = \"{protocol}\"\nca = {ca:?}\n"
        )
    };
    let allowed = |text: String| format!("{text}compression = \"gzip\"\nheaders_file = {key:?}\n");
    let a = daemon(&bed, "a", &allowed(told(all.grpc, "grpc")));
    let b = daemon(&bed, "b", &allowed(told(all.http, "http")));
    // Two have no token, and two don't know the authority.
    let strange = |name, at, protocol, is_trusted| {
        let told = told(at, protocol);
        let told = match is_trusted {
            true => told,
            false => allowed(told.replace("ca = ", "#")),
        };
        daemon(&bed, name, &told)
    };
    let strangers = [
        (strange("c", all.grpc, "grpc", true), "Unauthenticated"),
        (strange("d", all.http, "http", true), "401 Unauthorized"),
        (
            strange("e", all.grpc, "grpc", false),
            "invalid peer certificate",
        ),
        (
            strange("f", all.http, "http", false),
            "invalid peer certificate",
        ),
    ];
    let acme = Caller::new("acme", &a, &b);
    acme.call(&a, 3);
    let both = counts([("acme".to_owned(), 2), ("acme".to_owned(), 3)].map(|of| (of, 3)));
    becomes(&both, || spans_of(&all));
    let three = counts([("acme".to_owned(), 3)]);
    becomes(&three, || calls_of(&all, "rpc.client.call.duration"));
    becomes(&three, || calls_of(&all, "rpc.server.call.duration"));
    assert_eq!(hosts_in(&all), BTreeSet::from(["a".into(), "b".into()]));

    // Each failure is reported with its reason, and their data doesn't arrive. They try every
    // second.
    std::thread::sleep(Duration::from_secs(3));
    for (mut stranger, words) in strangers {
        let line = stranger.process().line(SOON, |line| line.contains(words));
        let line = line.unwrap_or_else(|error| panic!("{words}: {error}"));
        assert!(line.contains("doesn't take metrics"), "{line}");
        // Reported once, however often it is tried, and by none of the others.
        let said = stranger.process().said();
        let said = said.iter().filter(|line| line.contains(words));
        assert_eq!(said.count(), 1, "{:?}", stranger.process().said());
    }
    let resources = all.got("resourceMetrics");
    let from: BTreeSet<_> = resources
        .iter()
        .map(|it| attribute(&it["resource"], "service.instance.id"))
        .collect();
    assert_eq!(from, BTreeSet::from([Some("a"), Some("b")]));
}

/// The daemons that a collector's spans are from.
fn hosts_in(collector: &Collector) -> BTreeSet<String> {
    let resources = collector.got("resourceSpans");
    let from = |resource: &Value| {
        let resource = &resource["resource"];
        assert_eq!(attribute(resource, "service.name"), Some("tollgated"));
        attribute(resource, "service.instance.id")
            .unwrap()
            .to_owned()
    };
    resources.iter().map(from).collect()
}

/// The counts of one kind of data in a daemon's metrics: exported, rejected, overflowed, failed.
fn fates(at: SocketAddr, signal: &str) -> [u64; 4] {
    let text = scrape(at);
    ["exported", "rejected", "overflowed", "failed"].map(|fate| {
        let labels = format!(
            "tollgate_telemetry_items_total{{tollgate_telemetry_signal=\"{signal}\",tollgate_telemetry_fate=\"{fate}\"}} "
        );
        sample(&text, &labels).unwrap_or_else(|| panic!("{labels} in {text}")) as u64
    })
}

/// A daemon's timeout for an answer, and its total time until it drops unsent data: five attempts
/// with pauses.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
const GIVEN_UP: Duration = Duration::from_secs(60);

#[test]
fn a_collector_that_hangs_and_dies_stops_no_call_and_gets_what_comes_after() {
    let bed = Testbed::new();
    let Some(mut collector) = Collector::start(&bed, "all") else {
        return;
    };
    let at = free();
    let told = format!(
        "prometheus = \"{at}\"\ninterval_s = 1\nsample_per_million = 1000000\nendpoint = \"http://{}\"\n",
        collector.grpc
    );
    let (mut a, b) = (daemon(&bed, "a", &told), bed.daemon("b"));
    let acme = Caller::new("acme", &a, &b);
    let failed_requests = || {
        let series = "tollgate_telemetry_failed_requests_total ";
        sample(&scrape(at), series).unwrap() as u64
    };
    acme.call(&a, 2);
    // Written to the file, so that nothing is lost with the process.
    becomes(&2, || collector.spans().len());
    becomes(&[2, 0, 0, 0], || fates(at, "spans"));
    assert_eq!(failed_requests(), 0);

    // It hangs: connections stay open, and nobody answers.
    collector.process.signal(Signal::STOP);
    let hung = Instant::now();
    acme.call(&a, 3);
    let waited = eventually(EXPORT_TIMEOUT + SOON, || failed_requests() > 0);
    waited.unwrap();
    assert!(
        hung.elapsed() + Duration::from_secs(5) > EXPORT_TIMEOUT,
        "{:?}",
        hung.elapsed()
    );
    let [_, _, overflowed, _] = fates(at, "metrics");
    assert!(overflowed > 0, "a snapshot a second, and one is kept");
    assert_eq!(fates(at, "spans"), [2, 0, 0, 0], "the others are kept");

    // It dies: connections are refused. Data is dropped after enough attempts.
    collector.process.kill();
    acme.call(&a, 2);
    let dropped = || fates(at, "spans")[3];
    let waited = eventually(GIVEN_UP, || dropped() > 0);
    waited.unwrap_or_else(|error| panic!("{error:?}: {:?}", fates(at, "spans")));

    // It is back: spans and metrics arrive again, and every call is either exported or counted as
    // dropped.
    collector.restart();
    acme.call(&a, 4);
    let settled = || {
        let [exported, rejected, overflowed, failed] = fates(at, "spans");
        (rejected, overflowed, exported + failed)
    };
    let waited = eventually(GIVEN_UP, || settled() == (0, 0, 11));
    waited.unwrap_or_else(|error| panic!("{error:?}: {:?}", fates(at, "spans")));
    let [exported, ..] = fates(at, "spans");
    assert!(exported >= 6, "{exported} of 2 before and 4 after");
    becomes(&(exported as usize), || collector.spans().len());
    let eleven = counts([("acme".to_owned(), 11)]);
    becomes(&eleven, || calls_of(&collector, "rpc.client.call.duration"));
    // The log has the beginning and the end of the failure.
    for words in [
        "doesn't take spans: no answer within 10 s",
        "takes spans again",
    ] {
        let line = a.process().line(SOON, |line| line.contains(words));
        line.unwrap_or_else(|error| panic!("{words}: {error}"));
    }
}

#[test]
fn prometheus_counts_what_was_called_by_tenant() {
    let bed = Testbed::new();
    let places = [free(), free()];
    let Some(prometheus) = Prometheus::start(&bed, &places) else {
        return;
    };
    let [a, b] = [("a", places[0]), ("b", places[1])]
        .map(|(name, at)| daemon(&bed, name, &format!("prometheus = \"{at}\"\n")));
    let (acme, other) = (Caller::new("acme", &a, &b), Caller::new("other", &a, &b));
    acme.call(&a, 7);
    let began = Instant::now();
    other.call(&a, 2);
    let longest = began.elapsed().as_secs_f64();
    becomes(&Some(2.0), || {
        prometheus.number("sum(up{job=\"tollgate\"})")
    });
    for metric in [
        "rpc_client_call_duration_seconds",
        "rpc_server_call_duration_seconds",
    ] {
        let by_tenant = || {
            let series = prometheus.query(&format!("sum by (tollgate_tenant) ({metric}_count)"));
            let counts = series.iter().map(|series| {
                let tenant = series["metric"]["tollgate_tenant"].as_str().unwrap();
                let count = series["value"][1].as_str().unwrap();
                (tenant.to_owned(), count.to_owned())
            });
            counts.collect::<BTreeMap<_, _>>()
        };
        let expected = [("acme", "7"), ("other", "2")];
        let expected = expected.map(|(tenant, count)| (tenant.to_owned(), count.to_owned()));
        becomes(&counts(expected), by_tenant);
    }
    // Callers are on one host, servers on the other.
    for (metric, host) in [("client", places[0]), ("server", places[1])] {
        let count = format!("count by (instance) (rpc_{metric}_call_duration_seconds_count)");
        let series = prometheus.query(&count);
        assert_eq!(series.len(), 1, "{series:?}");
        assert_eq!(series[0]["metric"]["instance"], json!(host.to_string()));
    }
    // All calls are within the bounds, and the buckets agree with the sum.
    let buckets =
        "sum by (le) (rpc_client_call_duration_seconds_bucket{tollgate_tenant=\"other\"})";
    let quantile = |q: f64| {
        let found = prometheus.number(&format!("histogram_quantile({q}, {buckets})"));
        found.unwrap_or_else(|| panic!("{:?}", prometheus.query(buckets)))
    };
    let (half, most) = (quantile(0.5), quantile(1.0));
    assert!(0.0 < half && half <= most, "{half} s, {most} s");
    // A bound is a power of two, so at most twice the value.
    assert!(most <= 2.0 * longest, "{most} s of at most {longest} s");
    let sum = "sum(rpc_client_call_duration_seconds_sum{tollgate_tenant=\"other\"})";
    let sum = prometheus.number(sum).unwrap();
    assert!(
        0.0 < sum && sum <= 2.0 * most,
        "{sum} s in two calls of at most {most} s"
    );
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// From a duration in a dashboard to the trace of a call with that duration.
#[test]
fn prometheus_has_the_trace_of_a_call_as_an_exemplar_of_its_duration() {
    let bed = Testbed::new();
    let at = free();
    let Some(prometheus) = Prometheus::start(&bed, &[at]) else {
        return;
    };
    let told = format!("prometheus = \"{at}\"\n");
    let (a, b) = (daemon(&bed, "a", &told), bed.daemon("b"));
    let tokens = [a.tenant("acme"), b.tenant("acme")];
    let hosts = Hosts { bed, a, b, tokens };
    let _server = hosts.serve_echo(&[]);
    let parent = format!("traceparent=00-{TRACE}-00f067aa0ba902b7-01");
    assert_eq!(hosts.echo(&[&parent]).code, 0);
    // An untraced call has no exemplar.
    assert_eq!(hosts.echo(&[]).code, 0);
    let metric = "rpc_client_call_duration_seconds";
    let count = format!("sum({metric}_count{{tollgate_tenant=\"acme\"}})");
    becomes(&Some(2.0), || prometheus.number(&count));
    let selector = format!("{metric}_bucket{{tollgate_tenant=\"acme\"}}");
    let found = || prometheus.exemplars(&selector);
    eventually(SOON, || !found().is_empty()).unwrap();
    let found = found();
    let [series] = &found[..] else {
        panic!("one bucket has one: {found:?}");
    };
    assert_eq!(series["seriesLabels"]["rpc_method"], CALL);
    let exemplars: Vec<_> = list(series, "/exemplars").collect();
    assert_eq!(exemplars.len(), 1, "{series:#}");
    let exemplar = exemplars[0];
    assert_eq!(exemplar["labels"]["trace_id"], TRACE);
    let span = exemplar["labels"]["span_id"].as_str().unwrap();
    assert_eq!(span.len(), 16);
    // It is in the bucket where it is shown, and it names a trace that the daemon keeps.
    let text = |value: &Value| value.as_str().unwrap().parse::<f64>().unwrap();
    let (took, bound) = (
        text(&exemplar["value"]),
        text(&series["seriesLabels"]["le"]),
    );
    assert!(0.0 < took && took <= bound, "{series:#}");
    let kept = hosts.a.ok(&format!("trace {TRACE} --json"));
    assert!(kept.contains(span), "{span} in {kept}");
}

/// A native histogram has all buckets, so a percentile is exact to 9 % and not only between powers
/// of two.
#[test]
fn prometheus_has_native_histograms_of_durations_if_it_wants_them() {
    let bed = Testbed::new();
    let at = free();
    let features = "native-histograms,exemplar-storage";
    let Some(prometheus) = Prometheus::with(&bed, &[at], features) else {
        return;
    };
    let a = daemon(&bed, "a", &format!("prometheus = \"{at}\"\n"));
    let b = bed.daemon("b");
    let (acme, other) = (Caller::new("acme", &a, &b), Caller::new("other", &a, &b));
    acme.call(&a, 3);
    other.call(&a, 1);
    let of = |function: &str, tenant: &str| {
        let series = format!("rpc_client_call_duration_seconds{{tollgate_tenant=\"{tenant}\"}}");
        prometheus.number(&format!("{function}{series})"))
    };
    becomes(&Some(3.0), || of("histogram_count(", "acme"));
    becomes(&Some(1.0), || of("histogram_count(", "other"));
    let text = scrape(at);
    let labels = r#"tollgate_tenant="other",rpc_system_name="tollgate",rpc_method="hotel.Echo/Echo",rpc_response_status_code="OK""#;
    let took = format!("rpc_client_call_duration_seconds_sum{{{labels}}}");
    let took = sample(&text, &took).unwrap_or_else(|| panic!("{text}"));
    assert!(took > 0.0, "{text}");
    let sum = of("histogram_sum(", "other").unwrap();
    assert!((sum - took).abs() < 1e-9, "{sum} of {took}");
    // It is alone in its bucket, whose bounds are 9 % apart.
    for quantile in ["0.01", "0.5", "1"] {
        let found = of(&format!("histogram_quantile({quantile},"), "other").unwrap();
        let ratio = found / took;
        assert!(
            (0.917..=1.091).contains(&ratio),
            "{quantile}: {found} of {took}"
        );
    }
    // Other metrics are unchanged.
    let time = "count(tollgate_runtime_time_seconds_total{tollgate_runtime_state=\"sleeping\"})";
    assert_eq!(prometheus.number(time), Some(1.0));
}

/// All names in a collector's data.
fn names_in(collector: &Collector) -> BTreeSet<String> {
    fn collect(value: &Value, names: &mut BTreeSet<String>) {
        let keys = list(value, "/attributes").map(|pair| pair["key"].as_str().unwrap());
        names.extend(keys.map(str::to_owned));
        let below: Vec<&Value> = match value {
            Value::Object(fields) => fields.values().collect(),
            Value::Array(elements) => elements.iter().collect(),
            _ => return,
        };
        below.into_iter().for_each(|value| collect(value, names));
    }
    let mut names = BTreeSet::new();
    for kind in ["resourceSpans", "resourceMetrics", "resourceLogs"] {
        let got = collector.got(kind);
        assert!(!got.is_empty(), "{kind}");
        got.iter()
            .for_each(|resource| collect(resource, &mut names));
    }
    let metrics = collector.metrics();
    let metrics = metrics.iter().map(|m| m["name"].as_str().unwrap());
    names.extend(metrics.map(str::to_owned));
    names
}

/// The specification's name for data without a series of its own; no convention has it.
const SPECIFIED: &str = "otel.metric.overflow";

#[test]
fn names_are_those_of_the_conventions_or_our_own() {
    let Some(known) = place_of("conventions") else {
        return;
    };
    let known = std::fs::read_to_string(known).unwrap();
    let known: BTreeSet<_> = known.lines().collect();
    let bed = Testbed::new();
    let Some(collector) = Collector::start(&bed, "all") else {
        return;
    };
    let told = format!(
        "interval_s = 1\nsample_per_million = 1000000\nendpoint = \"http://{}\"\n",
        collector.grpc
    );
    let (a, b) = (daemon(&bed, "a", &told), daemon(&bed, "b", &told));
    let tokens = [a.tenant("acme"), b.tenant("acme")];
    let hosts = Hosts { bed, a, b, tokens };
    let _server = hosts.serve_echo(&[]);
    let admins = json!({"metadata": ["x-role"], "allow": ["admin"], "message": "admins only"});
    hosts.attach("metadata-acl", &admins, "");
    assert_eq!(hosts.echo(&["x-role=admin"]).code, 0);
    let denied = hosts.echo(&["x-role=guest"]);
    assert!(denied.err.contains("admins only"), "{denied}");

    let expected = [
        "error.type",
        "network.peer.address",
        "rpc.client.call.duration",
        "rpc.method",
        "rpc.response.status_code",
        "rpc.server.call.duration",
        "rpc.system.name",
        "server.address",
        "server.port",
        "service.instance.id",
        "service.name",
        "service.version",
    ];
    let all_there = eventually(SOON, || {
        let there = ["resourceSpans", "resourceMetrics", "resourceLogs"];
        let there = there.iter().all(|kind| !collector.got(kind).is_empty());
        there
            && expected
                .iter()
                .all(|name| names_in(&collector).contains(*name))
    });
    let names = names_in(&collector);
    all_there.unwrap_or_else(|error| panic!("{error:?}: {names:?}"));
    let strange: Vec<_> = names
        .iter()
        .filter(|name| !name.starts_with("tollgate.") && *name != SPECIFIED)
        .filter(|name| !known.contains(&***name))
        .collect();
    assert!(strange.is_empty(), "no convention has {strange:?}");
    let borrowed: Vec<_> = names
        .iter()
        .filter(|name| !name.starts_with("tollgate."))
        .collect();
    assert_eq!(
        borrowed, expected,
        "a convention's name that is looked at nowhere else"
    );
    // None of Tollgate's own names is in the conventions.
    assert!(!known.iter().any(|name| name.starts_with("tollgate.")));
}

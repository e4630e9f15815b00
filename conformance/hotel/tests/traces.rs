//! A request of the hotel reservation's frontend is one trace over its services and both daemons,
//! as Jaeger has it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod suite;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use suite::{Carrier, Suite, all_in_rust};
use tollgate_conformance::backends::{Jaeger, http, list};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::testbed::{Options, SOON, eventually};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// The browser's span.
const ROOT: &str = "00f067aa0ba902b7";

/// What the browser tells Jaeger of its own span.
fn tell_of_root(jaeger: &Jaeger) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ns = |ns: u128| ns.to_string();
    let request = json!({"resourceSpans": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "browser"}}]},
        "scopeSpans": [{"spans": [{
            "traceId": TRACE, "spanId": ROOT, "name": "GET /hotels", "kind": 3,
            "startTimeUnixNano": ns(now.as_nanos()), "endTimeUnixNano": ns(now.as_nanos() + 1_000_000),
        }]}],
    }]});
    let told = http(
        jaeger.http,
        "POST /v1/traces",
        request.to_string().as_bytes(),
    );
    assert_eq!(told.map(|(status, _)| status), Some(200));
}

/// Asks a frontend, from within the browser's span; the status.
fn browse(frontend: &str) -> String {
    let path = "/hotels?inDate=2015-04-09&outDate=2015-04-10&lat=37.7867&lon=-122.4112";
    let traceparent = format!("traceparent: 00-{TRACE}-{ROOT}-01\r\ntracestate: browser=1");
    let request = format!("GET {path} HTTP/1.0\r\nhost: {frontend}\r\n{traceparent}\r\n\r\n");
    let mut stream = TcpStream::connect(frontend).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

/// The id of the span that a span of Jaeger's is the child of.
fn parent(span: &Value) -> Option<&str> {
    let parent = list(span, "/references").find(|r| r["refType"] == "CHILD_OF")?;
    parent["spanID"].as_str()
}

fn tag<'v>(of: &'v Value, key: &str) -> Option<&'v str> {
    list(of, "/tags").find(|tag| tag["key"] == key)?["value"].as_str()
}

#[test]
fn a_request_of_the_frontend_is_one_trace_over_all_services_and_both_daemons() {
    let Some(jaeger) = Jaeger::start() else {
        return;
    };
    let options = Options {
        // Nothing begins a trace but the browser.
        config: format!(
            "[telemetry]\nendpoint = \"http://{}\"\nsample_per_million = 0\n",
            jaeger.grpc
        ),
        ..Options::default()
    };
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hotel-traces");
    let carrier = Carrier::Tollgate(Box::new(Hosts::with(&options)));
    let suite = Suite::start(&place, carrier, &[], all_in_rust);
    tell_of_root(&jaeger);
    let status = browse(&suite.frontend);
    assert!(status.ends_with("200 OK"), "{status}");

    // Five calls, each with a client's and a server's span, below the browser's.
    let spans = || {
        let trace = jaeger.trace(TRACE).unwrap_or_default();
        list(&trace, "/spans").count()
    };
    let whole = eventually(SOON, || spans() == 11);
    let trace = jaeger.trace(TRACE).unwrap();
    whole.unwrap_or_else(|error| panic!("{error:?}: {} spans of 11: {trace:#}", spans()));
    let by_id: BTreeMap<_, _> = list(&trace, "/spans")
        .map(|span| (span["spanID"].as_str().unwrap(), span))
        .collect();
    assert_eq!(by_id.len(), 11, "each span has an id of its own: {trace:#}");
    let roots: Vec<_> = by_id.iter().filter(|(_, s)| parent(s).is_none()).collect();
    assert_eq!(roots.len(), 1, "{roots:?}");
    assert_eq!(*roots[0].0, ROOT);
    for (id, span) in &by_id {
        let parent = parent(span);
        let is_there = parent.is_none_or(|parent| by_id.contains_key(parent));
        assert!(is_there, "{id}'s parent {parent:?} is not in {trace:#}");
    }

    // Who called whom, by the methods of the spans above a server's.
    let name = |span: &Value| span["operationName"].as_str().unwrap().to_owned();
    let mut calls = BTreeMap::new();
    for server in by_id
        .values()
        .filter(|s| tag(s, "span.kind") == Some("server"))
    {
        let client = by_id[parent(server).unwrap()];
        assert_eq!(tag(client, "span.kind"), Some("client"), "{client:#}");
        assert_eq!(name(client), name(server));
        let caller = by_id[parent(client).unwrap()];
        calls.insert(name(server), name(caller));
    }
    let expected = [
        ("geo.Geo/Nearby", "search.Search/Nearby"),
        ("profile.Profile/GetProfiles", "GET /hotels"),
        ("rate.Rate/GetRates", "search.Search/Nearby"),
        ("reservation.Reservation/CheckAvailability", "GET /hotels"),
        ("search.Search/Nearby", "GET /hotels"),
    ];
    let expected = expected.map(|(callee, caller)| (callee.to_owned(), caller.to_owned()));
    assert_eq!(calls, BTreeMap::from(expected));

    // Both daemons had their part, and nothing else was traced.
    let processes = trace["processes"].as_object().unwrap();
    let daemons: BTreeSet<_> = processes
        .values()
        .filter(|process| process["serviceName"] == "tollgated")
        .filter_map(|process| tag(process, "service.instance.id"))
        .collect();
    assert_eq!(daemons, BTreeSet::from(["a", "b"]));
    assert_eq!(jaeger.traces_of("tollgated"), 1);
}

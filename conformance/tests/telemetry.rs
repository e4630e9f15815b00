//! What a daemon tells of calls: the numbers that Prometheus scrapes, and what becomes of them when a collector is stuck.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::testbed::{Options, SOON, Testbed, eventually, proto_file};
use tollgate_conformance::traffic::ECHO;

/// An address that nobody listens on.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

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

fn scrape(address: SocketAddr) -> String {
    let mut text = String::new();
    let Ok(mut stream) = TcpStream::connect(address) else {
        return text;
    };
    stream.set_read_timeout(Some(SOON)).unwrap();
    let asked = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n");
    let _cut_off = asked.and_then(|()| stream.read_to_string(&mut text));
    text
}

/// The sample whose line begins like this.
fn sample(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
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
    let sent = "tollgate_link_sent_bytes{tollgate_tenant=\"acme\"";
    let sent = a.lines().find(|line| line.starts_with(sent)).unwrap();
    assert!(!sent.ends_with(" 0"), "{sent}");
    let slept = r#"tollgate_runtime_time_seconds_total{tollgate_runtime="0",tollgate_runtime_state="sleeping"}"#;
    assert!(sample(&a, slept).unwrap() > 0.0, "{a}");

    // Within the host both sides are counted there; what fails is counted with its status.
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
    let judged = a.lines().find(|line| {
        line.starts_with("tollgate_policy_calls_total{tollgate_tenant=\"acme\"")
            && line.contains(r#"tollgate_policy_name="null",tollgate_policy_version="1""#)
            && line.contains(r#"tollgate_policy_decision="allowed""#)
    });
    let judged = judged.unwrap_or_else(|| panic!("{a}"));
    assert!(judged.ends_with(" 1"), "{judged}");

    // Not from here on.
    hosts.a.ok("daemon set telemetry.durations=false");
    let before = sample(&scrape(places[0]), &client);
    hosts.call(true, &proto, "hotel.Echo/Echo", &[]);
    assert_eq!(sample(&scrape(places[0]), &client), before);
}

/// A collector that is stuck, or isn't there, is nothing that calls notice; what becomes of metrics is told.
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
    // Nobody is there.
    eventually(SOON, || fate(places[1], "failed") > Some(1.0)).unwrap();
    // Somebody is, and doesn't answer.
    eventually(SOON, || fate(places[0], "overflowed") > Some(0.0)).unwrap();
    let began = std::time::Instant::now();
    let proto = proto_file("hotel.proto");
    let outcome = hosts.call(true, &proto, "hotel.Echo/Echo", &[]);
    assert_eq!(outcome.code, 0, "{outcome}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

//! Parsing of configuration files, and errors about them.
#![allow(clippy::unwrap_used)]

use tollgate_telemetry::limits::{MAX_CA_BYTES, MAX_HEADERS_BYTES};

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.toml");
    std::fs::write(&path, text).unwrap();
    Config::read(&path).map_err(|e| e.to_string().replace(path.to_str().unwrap(), "host.toml"))
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(parse(""), Ok(Config::default()));
}

#[test]
fn a_runtime_waits_in_one_of_three_ways() {
    let spin = |text| parse(text).unwrap().spin();
    assert_eq!(spin("spin_us = 7"), Duration::from_micros(7));
    assert_eq!(spin("waiting = 'adaptive'"), Duration::from_micros(50));
    assert_eq!(spin("waiting = 'spin'"), Duration::MAX);
    assert_eq!(spin("waiting = 'sleep'\nspin_us = 7"), Duration::ZERO);
    let scheduling = |text| parse(text).unwrap().scheduling;
    assert_eq!(scheduling(""), Scheduling::Fair);
    assert_eq!(
        scheduling("scheduling = 'round-robin'"),
        Scheduling::RoundRobin
    );
    let target = |text| parse(text).unwrap().wait_target();
    assert_eq!(target(""), None);
    let millisecond = Duration::from_millis(1);
    assert_eq!(target("wait_target_us = 1000"), Some(millisecond));
    let error = parse("waiting = 'seldom'").unwrap_err();
    assert!(
        error.contains("seldom") && error.contains("`adaptive`"),
        "{error}"
    );
}

#[test]
fn it_is_known_who_has_said_what() {
    let mut config = parse("spin_us = 50\nwaiting = 'spin'\n[policies]\ncpu_us = 5").unwrap();
    config.given_on_command_line("waiting");
    for (key, source) in [
        ("spin_us", Source::File),
        ("waiting", Source::CommandLine),
        ("policies.cpu_us", Source::File),
        ("policies.memory_kib", Source::Default),
        ("cores", Source::Default),
    ] {
        assert_eq!(config.source_of(key), source, "{key}");
    }
}

#[test]
fn a_sockets_mode_is_octal_and_leaves_it_to_its_owner() {
    let mode = |text: &str| parse(text).map(|config| config.socket_mode.bits());
    assert_eq!(mode(""), Ok(0o666));
    assert_eq!(mode("socket_mode = '0660'"), Ok(0o660));
    assert_eq!(mode("socket_mode = '777'"), Ok(0o777));
    for wrong in ["'0066'", "'1666'", "'0668'", "'rw'", "'-1'"] {
        let error = mode(&format!("socket_mode = {wrong}")).unwrap_err();
        assert!(error.contains("is no mode for a socket"), "{error}");
    }
    let error = mode("socket_mode = 660").unwrap_err();
    assert!(error.contains("expected a string"), "{error}");
}

#[test]
fn a_section_is_about_policies() {
    let config = parse("[policies]\ncpu_us = 5\ncpu_share_percent = 100").unwrap();
    assert_eq!(
        (config.policies.cpu_us, config.policies.cpu_share_percent),
        (5, 100)
    );
    assert_eq!(
        config.policies.quarantine_faults, 5,
        "what isn't said is the default"
    );
}

/// The files are read only at the start, so a user who can't read the secrets can check a
/// configuration.
#[test]
fn files_of_an_endpoint_are_small_and_what_is_wrong_with_one_is_said_without_its_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let endpoints = |key: &str, name: &str, content: Option<&[u8]>| {
        if let Some(content) = content {
            std::fs::write(path(name), content).unwrap();
        }
        let text = format!(
            "[telemetry.tenants.acme]\nendpoint = 'https://a'\n{key} = '{}'",
            path(name)
        );
        let config = parse(&text).unwrap();
        let found = config
            .telemetry
            .endpoints()
            .map(|found| format!("{found:?}"));
        found.map_err(|error| error.to_string().replace(&path(name), name))
    };
    let found = endpoints("headers_file", "key", Some(b"api-key: s3cret")).unwrap();
    assert!(
        found.contains("api-key") && !found.contains("s3cret"),
        "{found}"
    );
    let refused = endpoints("headers_file", "bad", Some(b"\ns3cret")).unwrap_err();
    assert!(
        refused.starts_with("bad: line 2 is no header") && !refused.contains("s3cret"),
        "{refused}"
    );
    for (key, most) in [("headers_file", MAX_HEADERS_BYTES), ("ca", MAX_CA_BYTES)] {
        let refused = endpoints(key, "gone", None).unwrap_err();
        let expected = match key {
            // What stands there may be the headers themselves.
            "headers_file" => "headers_file: No such",
            _ => "can't read gone: No such",
        };
        assert!(refused.starts_with(expected), "{refused}");
        let content = vec![b'#'; most + 1];
        let refused = endpoints(key, "long", Some(&content)).unwrap_err();
        assert_eq!(refused, format!("long: more than {most} bytes"));
    }
    let most = vec![b'#'; MAX_HEADERS_BYTES];
    endpoints("headers_file", "most", Some(&most)).unwrap();
    let most = vec![b'#'; MAX_CA_BYTES];
    let refused = endpoints("ca", "most", Some(&most)).unwrap_err();
    assert_eq!(
        refused,
        "most: there is no certificate: authorities are certificates in PEM"
    );
}

#[test]
fn a_mistake_in_a_file_is_shown_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.toml");
    std::fs::write(&path, "name = 'a'\nspin_us = oh\n").unwrap();
    let error = Config::read(&path).unwrap_err();
    assert_eq!(
        error.shown(),
        Some("  |\n2 | spin_us = oh\n  |           ^^")
    );
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
}

#[test]
fn refusals_name_the_setting_and_the_value() {
    let check = |text: &str, expected: &str| {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    };
    check(
        "nmae = 'a'",
        "host.toml, line 1, column 1: unknown field `nmae`",
    );
    check("nmae = 'a'", "; did you mean \"name\"?");
    check(
        "\n[link]\nwindow_cals = 3",
        "host.toml, line 3, column 1: unknown",
    );
    check("waiting = 'slep'", "; did you mean \"sleep\"?");
    check("name = 'A b'", "name = \"A b\"");
    check("spin_us = 10001", "spin_us = 10001: 0 to 10000");
    for (value, text) in [(99, "99"), (1_000_001, "1000001")] {
        let expected = format!("wait_target_us = {text}: 0 (off), or 100 to 1000000");
        check(&format!("wait_target_us = {value}"), &expected);
    }
    check(
        &format!("cores = {:?}", vec![0; 65]),
        "0,0: at most 64 entries",
    );
    check(
        "cores = [1024]",
        "cores = 1024: at most 64 entries below 1024",
    );
    check(
        "[link]\nwindow_calls = 0",
        "link.window_calls = 0: 1 to 1048576",
    );
    check(
        "[[peers]]\naddress = 'b'",
        "peers.address = \"b\": host:port, or * for either",
    );
    check("[[peers]]\naddres = 'b:1'", "addres");
    check("[[peers]]\n", "address");
    check(
        "[link]\nadvertise = ['b', '::1']",
        "link.advertise = \"::1\": host or host:port",
    );
    check("[rdma]\nring_kib = 63", "rdma.ring_kib = 63: 64 to 65536");
    check(
        "[rdma]\nfrom = 'eth0'",
        "line 2, column 8: invalid IP address",
    );
    check(
        "listen = 'nowhere'",
        "line 1, column 10: invalid socket address",
    );
    check("[policies]\ncpu = 1", "cpu");
    for (setting, value, expected) in [
        ("cpu_us", 4, "5 to 10000"),
        ("cpu_us", 10_001, "5 to 10000"),
        ("cpu_share_percent", 0, "1 to 100"),
        ("cpu_share_percent", 101, "1 to 100"),
        ("memory_kib", 63, "64 to 16384"),
        ("instances", 20_001, "1 to 20000"),
        ("quarantine_faults", 0, "1 to 1000"),
        ("quarantine_window_s", 3_601, "1 to 3600"),
    ] {
        let words = format!("policies.{setting} = {value}: {expected}");
        check(&format!("[policies]\n{setting} = {value}"), &words);
    }
    check(
        "[compile]\ntimeout_ms = 99",
        "compile.timeout_ms = 99: 100 to",
    );
    check(
        "[compile]\nmemory_bytes = 1",
        "compile.memory_bytes = 1: 64 MiB",
    );
    check("[compile]\nworkers = 0", "compile.workers = 0: 1 to 16");
    check("[compile]\nworkers = 17", "compile.workers = 17: 1 to 16");
    check(
        "[telemetry]\ninterval_s = 0",
        "telemetry.interval_s = 0: 1 to 3600",
    );
    check(
        "[telemetry]\nendpoint = 'ftp://a:4317'",
        "\"ftp://a:4317\": scheme ftp isn't supported",
    );
    check(
        "[telemetry]\nendpoint = 'http://a:4317'\nca = 'ca.pem'",
        "telemetry: \"http://a:4317\" has no certificate",
    );
    check(
        "[telemetry.tenants.acme]\nheaders_file = 'key'",
        "telemetry = headers_file \"key\" of acme: it requires an endpoint",
    );
    check(
        "[telemetry]\nca = 'ca.pem'",
        "ca \"ca.pem\" of the daemon: it requires an endpoint",
    );
    check("[telemetry]\ncompression = 'zip'", "`gzip`");
    check(
        "[telemetry.tenants.acme]\nendpoint = 'nowhere'",
        "telemetry: \"nowhere\" is no endpoint",
    );
    check(
        "[telemetry]\nsample_per_million = 1000001",
        "telemetry.sample_per_million = 1000001: 0 to 1000000",
    );
    check(
        "[telemetry]\nkept_spans = 100001",
        "telemetry.kept_spans = 100001: 0 to 100000",
    );
    check(
        "[telemetry.tenants.acme]\nsample_per_million = 1000001",
        "telemetry.tenants = acme.sample_per_million: 0 to 1000000",
    );
    let tenants = (0..257).map(|k| format!("[telemetry.tenants.t{k}]\n"));
    check(
        &tenants.collect::<String>(),
        "telemetry.tenants = 257: 0 to 256",
    );
    assert!(
        Config::read(std::path::Path::new("/nonexistent.toml"))
            .unwrap_err()
            .to_string()
            .contains("/nonexistent.toml")
    );
}

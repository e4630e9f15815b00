//! Envoy as gRPC's sidecar: one beside the client and one beside the server, each with one worker thread, speaking HTTP/2.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use serde_json::{Value, json};
use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{SOON, eventually};

use crate::stage::on_cpu;

/// A filter in WebAssembly, for Envoy's V8.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filter<'a> {
    /// Where its module is.
    pub(crate) module: &'a Path,
    /// What it is given.
    pub(crate) configuration: &'a str,
}

/// Starts an Envoy that hands everything to `upstream`. Returns where it listens.
///
/// # Errors
/// What it said instead.
pub(crate) fn start(
    program: &Path,
    cpu: Option<usize>,
    upstream: SocketAddr,
    filter: Option<Filter<'_>>,
) -> Result<(Process, SocketAddr), String> {
    // It can't be asked for a free port and then say which.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let listen = free.map_err(|error| format!("no port is free: {error}"))?;
    let bootstrap = bootstrap(listen, upstream, filter).to_string();
    let args = [
        "--config-yaml",
        &bootstrap,
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "error",
    ];
    let args = args.map(str::to_owned);
    let envoy = match cpu {
        None => Process::start(program, &args),
        Some(cpu) => on_cpu(program, cpu, &args),
    };
    let envoy = envoy.map_err(|error| format!("no Envoy: {error}"))?;
    eventually(SOON, || TcpStream::connect(listen).is_ok()).map_err(|waited| {
        format!(
            "Envoy listens to nobody after {waited:?}: {:?}",
            envoy.said()
        )
    })?;
    Ok((envoy, listen))
}

fn bootstrap(listen: SocketAddr, upstream: SocketAddr, filter: Option<Filter<'_>>) -> Value {
    let kind = |name: &str| format!("type.googleapis.com/envoy.extensions.{name}");
    let socket = |at: SocketAddr| json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}});
    let mut filters: Vec<_> = filter
        .map(|filter| wasm(&kind, filter))
        .into_iter()
        .collect();
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": kind("filters.http.router.v3.Router")},
    }));
    let everything =
        json!({"match": {"prefix": "/"}, "route": {"cluster": "next", "timeout": "0s"}});
    let manager = json!({
        "@type": kind("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "in",
        "codec_type": "HTTP2",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [everything]}]},
        "http_filters": filters,
    });
    let http2 = json!({
        "@type": kind("upstreams.http.v3.HttpProtocolOptions"),
        "explicit_http_config": {"http2_protocol_options": {}},
    });
    json!({"static_resources": {
        "listeners": [{
            "name": "in",
            "address": socket(listen),
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": manager,
            }]}],
        }],
        "clusters": [{
            "name": "next",
            "type": "STATIC",
            "connect_timeout": "5s",
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2,
            },
            "load_assignment": {
                "cluster_name": "next",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(upstream)}}]}],
            },
        }],
    }})
}

fn wasm(kind: &impl Fn(&str) -> String, filter: Filter<'_>) -> Value {
    let configuration = json!({
        "@type": "type.googleapis.com/google.protobuf.StringValue",
        "value": filter.configuration,
    });
    json!({
        "name": "envoy.filters.http.wasm",
        "typed_config": {
            "@type": kind("filters.http.wasm.v3.Wasm"),
            "config": {
                "name": "acl",
                "root_id": "acl",
                "configuration": configuration,
                "vm_config": {
                    "vm_id": "acl",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": filter.module}},
                },
            },
        },
    })
}

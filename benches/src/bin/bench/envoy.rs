//! Envoy as gRPC's sidecar: one on the client's side and one on the server's, each with one worker
//! thread, speaking HTTP/2.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use serde_json::{Value, json};
use tollgate_conformance::ports::free;
use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{SOON, eventually};

use crate::program::on_cpu;

/// What an Envoy does with calls besides forwarding them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Filter<'a> {
    /// A WebAssembly module for its V8, with the module's configuration.
    Wasm {
        module: &'a Path,
        configuration: &'a str,
    },
    /// Its own local rate limit, with a bucket that never gets empty.
    RateLimit,
}

/// Starts an Envoy that forwards everything to `upstream`. Returns the address that it listens on.
///
/// # Errors
/// Envoy's output if it doesn't start.
pub(crate) fn start(
    program: &Path,
    cpu: Option<usize>,
    upstream: SocketAddr,
    filter: Option<Filter<'_>>,
) -> Result<(Process, SocketAddr), String> {
    // Envoy can't choose a free port and report it.
    let listen = free();
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
        .map(|filter| match filter {
            Filter::Wasm {
                module,
                configuration,
            } => wasm(&kind, module, configuration),
            Filter::RateLimit => rate_limit(&kind),
        })
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

fn rate_limit(kind: &impl Fn(&str) -> String) -> Value {
    let all = json!({"numerator": 100, "denominator": "HUNDRED"});
    json!({
        "name": "envoy.filters.http.local_ratelimit",
        "typed_config": {
            "@type": kind("filters.http.local_ratelimit.v3.LocalRateLimit"),
            "stat_prefix": "limit",
            "token_bucket": {"max_tokens": u32::MAX, "tokens_per_fill": u32::MAX, "fill_interval": "0.050s"},
            "filter_enabled": {"default_value": all},
            "filter_enforced": {"default_value": all},
        },
    })
}

fn wasm(kind: &impl Fn(&str) -> String, module: &Path, configuration: &str) -> Value {
    let configuration = json!({
        "@type": "type.googleapis.com/google.protobuf.StringValue",
        "value": configuration,
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
                    "code": {"local": {"filename": module}},
                },
            },
        },
    })
}

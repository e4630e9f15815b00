//! Binding is quick. The rest is done on demand: machine code per method, on its first call.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tollgate::{Binding, Session, SessionOptions, block_on};
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, proto_file, run};
use tollgate_conformance::traffic::{ECHO, hotel};
use tollgate_schema::Schema;

const METHODS: usize = 50;

/// A service of 50 methods, each with its own message; `extra` is a further field of each.
fn large_schema(bed: &Testbed, extra: &str) -> Schema {
    let mut proto = "syntax = \"proto3\"; package big; service Big {\n".to_owned();
    for k in 0..METHODS {
        writeln!(proto, "  rpc Do{k}(M{k}) returns (M{k});").unwrap();
    }
    proto.push_str("}\n");
    for k in 0..METHODS {
        writeln!(proto, "message M{k} {{ string name = 1; {extra} }}").unwrap();
    }
    let file = bed.file("big.proto", proto);
    Schema::compile_proto(&[&file], &[file.parent().unwrap()]).unwrap()
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

fn serve(session: &Session, schema: &Schema, service: &str) {
    let echo = |_, request: &[u8]| Ok(request.to_vec());
    let served = session.serve_raw(schema.descriptor_set(), service, echo);
    block_on(session, served).unwrap();
}

fn bind(session: &Session, schema: &Schema, service: &str, to: &str) -> Binding {
    let bound = session.bind_client(schema.descriptor_set(), service, to);
    block_on(session, bound).unwrap()
}

fn call(session: &Session, binding: &Binding, method: &str, block: &[u8]) {
    let handle = binding.handle(method).unwrap();
    let deadline = Some(Duration::from_secs(20));
    let reply = block_on(session, async {
        let reply = session.call_raw(handle, block, deadline).await;
        reply.map(|reply| reply.to_vec())
    });
    assert_eq!(reply.as_deref(), Ok(block));
}

/// The entry of the only service in the status.
fn service(daemon: &Daemon) -> Value {
    let services = daemon.status()["services"].clone();
    assert_eq!(services.as_array().unwrap().len(), 1);
    services[0].clone()
}

fn compiled(daemon: &Daemon, want: [usize; 3]) -> bool {
    let service = service(daemon);
    ["methods", "compiled", "compiled_wire"].map(|count| service[count].as_u64().unwrap() as usize)
        == want
}

#[test]
fn of_fifty_methods_only_the_called_one_becomes_machine_code() {
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
    let schema = large_schema(&bed, "");
    let empty = vec![0; schema.layouts(&["big.M0"]).unwrap().messages[0].size as usize];
    let server = open(&b, &token_b);
    serve(&server, &schema, "big.Big");
    let (local, remote) = (open(&b, &token_b), open(&a, &token_a));
    let to = b.listen().to_string();
    let here = bind(&local, &schema, "big.Big", "");
    let there = bind(&remote, &schema, "big.Big", &to);
    assert!(
        compiled(&b, [METHODS, 0, 0]),
        "bound, and nothing compiled: {}",
        service(&b)
    );
    // The interpreter executes the first calls, from any caller.
    for _ in 0..20 {
        call(&remote, &there, "Do17", &empty);
    }
    eventually(SOON, || compiled(&b, [METHODS, 1, 0])).unwrap();
    for _ in 0..20 {
        call(&local, &here, "Do17", &empty);
        call(&remote, &there, "Do17", &empty);
    }
    assert!(compiled(&b, [METHODS, 1, 0]), "{}", service(&b));
    call(&local, &here, "Do18", &empty);
    eventually(SOON, || compiled(&b, [METHODS, 2, 0])).unwrap();

    // Code for protobuf is made when a message first crosses, for that method only.
    let newer = large_schema(&bed, "uint32 more = 2;");
    let empty = vec![0; newer.layouts(&["big.M0"]).unwrap().messages[0].size as usize];
    let across = bind(&remote, &newer, "big.Big", &to);
    assert!(compiled(&b, [METHODS, 2, 0]), "{}", service(&b));
    for _ in 0..20 {
        call(&remote, &across, "Do30", &empty);
    }
    eventually(SOON, || compiled(&b, [METHODS, 3, 1])).unwrap();
}

#[test]
fn a_descriptor_set_is_resolved_once_whoever_binds_it() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let schema = hotel();
    let counters = || {
        let schemas = daemon.status()["schemas"].clone();
        ["held", "known_sets", "misses", "hits"].map(|name| schemas[name].as_u64().unwrap())
    };
    assert_eq!(counters(), [0, 0, 0, 0]);
    let server = open(&daemon, &daemon.tenant("acme"));
    serve(&server, &schema, ECHO);
    assert_eq!(counters(), [1, 1, 1, 0]);
    let client = bind(&server, &schema, ECHO, "");
    call(
        &server,
        &client,
        "Echo",
        &tollgate_conformance::traffic::echo_block(&schema, "eA=="),
    );
    assert_eq!(counters(), [1, 1, 1, 1]);
    // Another tenant has sent the same set; its permissions are separate.
    let stranger = open(&daemon, &daemon.tenant("other"));
    let bound = stranger.bind_client(schema.descriptor_set(), ECHO, "");
    let refused = block_on(&stranger, bound).unwrap_err();
    assert_eq!(refused.code, tollgate::Code::UNIMPLEMENTED, "{refused}");
    assert!(refused.message.contains("tenant other"), "{refused}");
    assert_eq!(counters(), [1, 1, 1, 2]);
    // Another service of the same set, and a set of different bytes with the same meaning.
    serve(&stranger, &schema, "hotel.Reservation");
    assert_eq!(counters(), [2, 2, 2, 2]);
    let mut padded = schema.descriptor_set().to_vec();
    // An unknown field.
    padded.extend(b"\xba\x3e\x01x");
    let bound = server.bind_client(&padded, ECHO, "");
    block_on(&server, bound).unwrap();
    assert_eq!(counters(), [2, 3, 3, 2], "resolved, and found equal");
}

#[test]
fn what_is_prefetched_is_resolved_and_compiled_before_anybody_binds_it() {
    let bed = Testbed::new();
    let schema = large_schema(&bed, "");
    let set = bed.file("big.binpb", schema.descriptor_set());
    let hotel_file = proto_file("hotel.proto");
    let at_start = Options {
        config: format!("prefetch = ['{}']", set.display()),
        ..Options::default()
    };
    let daemon = bed.daemon_with("a", &at_start);
    let schemas = || daemon.status()["schemas"].clone();
    assert_eq!(schemas()["prefetched"], 1);

    let said = daemon.ok(&format!("prefetch --proto {} --json", hotel_file.display()));
    let said: Value = serde_json::from_str(&said).unwrap();
    let services = said["services"].as_array().unwrap();
    assert_eq!(services.len(), 2, "{said}");
    for service in services {
        for compiled in ["compiled", "compiled_wire"] {
            assert_eq!(service[compiled], service["methods"], "{said}");
        }
    }
    let again = daemon.ok(&format!("prefetch --proto {}", set.display()));
    assert!(again.contains("big.Big") && again.contains("50"), "{again}");
    assert_eq!(schemas()["prefetched"], 3);

    let server = open(&daemon, &daemon.tenant("acme"));
    serve(&server, &schema, "big.Big");
    assert!(compiled(&daemon, [METHODS, METHODS, METHODS]));
    serve(&server, &hotel(), ECHO);
    let schemas = schemas();
    assert_eq!(
        (&schemas["misses"], &schemas["hits"]),
        (&0.into(), &2.into())
    );
}

#[test]
fn a_tenant_prefetches_in_its_share_and_at_its_cost() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    daemon.tenant("evil");
    let viewer = daemon.ok("credential add looks --tenant acme --role viewer");
    let prefetch = |token: &str, file: &Path, more: &str| {
        let token = daemon.token_file(token.trim()).display().to_string();
        let line = format!("prefetch --json --proto {} {more}", file.display());
        let words = line.split_whitespace().map(str::to_owned);
        daemon.tollgate(words.chain(["--token-file".to_owned(), token]))
    };
    let hotel_file = proto_file("hotel.proto");
    let done = prefetch(&token, &hotel_file, "");
    assert_eq!(done.code, 0, "{done}");
    let said: Value = serde_json::from_str(&done.out).unwrap();
    for service in said["services"].as_array().unwrap() {
        assert_eq!(service["compiled"], service["methods"], "{said}");
    }
    let schemas = daemon.status()["schemas"].clone();
    assert_eq!(
        (&schemas["held"], &schemas["prefetched"]),
        (&2.into(), &0.into()),
        "an operator's are kept, a tenant's aren't"
    );
    let session = open(&daemon, &token);
    serve(&session, &hotel(), ECHO);
    assert_eq!(daemon.status()["schemas"]["hits"], 1);
    assert_eq!(prefetch(&viewer, &hotel_file, "").code, 7);
    for others in ["evil", "nobody"] {
        let refused = prefetch(&token, &hotel_file, &format!("--tenant {others}"));
        assert_eq!(refused.code, 5, "{refused}");
    }
    // The time is the tenant's.
    daemon.ok("ceiling set compile_s_per_hour=1 --tenant acme --yes");
    let refused = (0..100).find_map(|number| {
        let schema = large_schema(&bed, &format!("int32 another_{number} = 100;"));
        let file = bed.file(&format!("{number}.binpb"), schema.descriptor_set());
        let done = prefetch(&token, &file, "");
        (done.code != 0).then_some(done)
    });
    let refused = refused.unwrap();
    assert_eq!(refused.code, 8, "{refused}");
    assert!(
        refused.err.contains("`compile_s_per_hour` = 1"),
        "{refused}"
    );
    assert_eq!(
        daemon
            .run(&format!("prefetch --proto {}", hotel_file.display()))
            .code,
        0,
        "an operator's costs no tenant"
    );
}

#[test]
fn what_cannot_be_prefetched_is_refused_with_a_reason() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let nothing = bed.file("nothing.proto", "syntax = \"proto3\"; message M {}");
    let refused = daemon.run(&format!("prefetch --proto {}", nothing.display()));
    assert_eq!(refused.code, 3, "{refused}");
    assert!(refused.err.contains("has no service"), "{refused}");

    let missing = bed.path("missing.binpb");
    let config = bed.file("b.toml", format!("prefetch = ['{}']", missing.display()));
    let socket = bed.path("b.sock").display().to_string();
    let args = [
        "--config",
        &config.display().to_string(),
        "--socket",
        &socket,
    ];
    let ended = run(&program("tollgated"), args, b"");
    assert_ne!(ended.code, 0, "{ended}");
    for said in ["missing.binpb", "can't be prefetched", "No such file"] {
        assert!(ended.err.contains(said), "{ended}");
    }
}

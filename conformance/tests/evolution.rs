//! Two versions of one schema in use at the same time: compatible methods work, natively or through
//! protobuf; incompatible ones are refused by name.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{Binding, Channel, Code, Session, SessionOptions, Status, block_on};
use tollgate_conformance::hostile::Hostile;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::{EchoMessage, ReserveRequest};
use tollgate_conformance::peer::{END, Frame, PROTOBUF, Peer, kind};
use tollgate_conformance::testbed::{Daemon, SOON, Testbed, eventually, policy_file, proto_file};
use tollgate_schema::dynamic::{from_json, read_block, to_json, write_block, write_parts};
use tollgate_schema::{Schema, ServiceLayout};
use tollgate_shm_abi::descriptor::Completion;
use tollgate_shm_abi::messages::SIDE_CLIENT;

const SHOP: &str = "shop.Shop";

const OLD: &str = r#"syntax = "proto3"; package shop;
service Shop {
  rpc Order(OrderRequest) returns (OrderReply);
  rpc Mirror(Note) returns (Note);
  rpc Price(PriceRequest) returns (PriceReply);
  rpc Ping(Same) returns (Same);
}
message OrderRequest {
  string customer = 1;
  uint32 count = 2;
  Kind kind = 3;
  repeated Item items = 4;
}
message Item { string name = 1; }
enum Kind { PLAIN = 0; FANCY = 1; }
message OrderReply { uint32 order = 1; string said = 2; }
message Note { string title = 1; map<string, Item> by_name = 3; }
message PriceRequest { string item = 1; string currency = 2; }
message PriceReply { uint32 cents = 1; }
message Same { string text = 1; repeated uint32 numbers = 2; }
"#;

/// Fields added (also in a nested message), renamed and widened, an enum value added, methods added
/// and moved, and one method made incompatible.
const NEW: &str = r#"syntax = "proto3"; package shop;
service Shop {
  rpc Added(Same) returns (Same);
  rpc Ping(Same) returns (Same);
  rpc Price(PriceRequest) returns (PriceReply);
  rpc Order(OrderRequest) returns (OrderReply);
  rpc Mirror(Note) returns (Note);
}
message OrderRequest {
  string client = 1;
  uint64 count = 2;
  Kind kind = 3;
  repeated Item items = 4;
  optional string coupon = 5;
}
message Item { string name = 1; repeated sint64 sizes = 2; }
enum Kind { PLAIN = 0; FANCY = 1; ROYAL = 2; }
message OrderReply { uint64 order = 1; string said = 2; repeated string hints = 3; }
message Note { string title = 1; bytes body = 2; map<string, Item> by_name = 3; Item first = 4; double weight = 5; }
message PriceRequest { string item = 1; fixed32 currency = 2; }
message PriceReply { uint32 cents = 1; }
message Same { string text = 1; repeated uint32 numbers = 2; }
"#;

/// A schema, and a way to write messages of it.
struct Version {
    schema: Schema,
    layout: ServiceLayout,
}

impl Version {
    fn new(bed: &Testbed, proto: &str, service: &str) -> Arc<Version> {
        let file = bed.file("version.proto", proto);
        let schema = Schema::compile_proto(&[&file], &[file.parent().unwrap()]).unwrap();
        let layout = schema.service(service).unwrap();
        Arc::new(Version { schema, layout })
    }

    fn service(&self) -> &str {
        &self.layout.name
    }

    fn block(&self, message: &str, json: &Value) -> Vec<u8> {
        let descriptor = self.schema.message(message).unwrap();
        let id = self.layout.layouts.find(message).unwrap();
        let message = from_json(&descriptor, &json.to_string()).unwrap();
        write_block(&self.layout.layouts, id, &message).unwrap()
    }

    fn json(&self, message: &str, block: &[u8]) -> Value {
        let descriptor = self.schema.message(message).unwrap();
        let id = self.layout.layouts.find(message).unwrap();
        let message = read_block(&self.layout.layouts, id, &descriptor, block).unwrap();
        serde_json::from_str(&to_json(&message).unwrap()).unwrap()
    }

    fn answer_order(&self, request: &[u8]) -> Vec<u8> {
        let said = self.json("shop.OrderRequest", request).to_string();
        let mut reply = json!({ "order": 7, "said": said });
        let descriptor = self.schema.message("shop.OrderReply").unwrap();
        if descriptor.get_field_by_name("hints").is_some() {
            reply["hints"] = json!(["wear", "gloves"]);
        }
        self.block("shop.OrderReply", &reply)
    }
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

/// Serves: `Order` reports its input, methods with one type echo their block, the others return
/// empty messages.
fn serve(daemon: &Daemon, token: &str, version: &Arc<Version>) -> Session {
    let session = open(daemon, token);
    let ours = Arc::clone(version);
    let handler = move |index: usize, request: &[u8]| {
        let method = &ours.layout.methods[index];
        if method.name == "Order" {
            return Ok(ours.answer_order(request));
        }
        if method.input == method.output {
            return Ok(request.to_vec());
        }
        Ok(vec![
            0;
            ours.layout.layouts.get(method.output).size as usize
        ])
    };
    let set = version.schema.descriptor_set();
    block_on(&session, session.serve_raw(set, version.service(), handler)).unwrap();
    session
}

/// A client of one version, bound to a server of any version.
struct Client {
    session: Session,
    version: Arc<Version>,
    binding: Binding,
}

impl Client {
    fn bind(
        daemon: &Daemon,
        token: &str,
        version: &Arc<Version>,
        to: &str,
    ) -> Result<Client, Status> {
        let session = open(daemon, token);
        let set = version.schema.descriptor_set();
        let binding = block_on(&session, session.bind_client(set, version.service(), to))?;
        Ok(Client {
            session,
            version: Arc::clone(version),
            binding,
        })
    }

    fn raw(&self, method: &str, block: &[u8]) -> Result<Vec<u8>, Status> {
        let handle = self.binding.handle(method).unwrap();
        let deadline = Some(Duration::from_secs(20));
        block_on(&self.session, async {
            let reply = self.session.call_raw(handle, block, deadline).await?;
            Ok(reply.to_vec())
        })
    }

    fn call(&self, method: &str, messages: [&str; 2], request: &Value) -> Result<Value, Status> {
        let block = self.version.block(messages[0], request);
        let reply = self.raw(method, &block)?;
        Ok(self.version.json(messages[1], &reply))
    }

    fn order(&self, request: &Value) -> Result<Value, Status> {
        self.call("Order", ["shop.OrderRequest", "shop.OrderReply"], request)
    }

    fn price(&self) -> Result<Vec<u8>, Status> {
        let request = self
            .version
            .block("shop.PriceRequest", &json!({"item": "hat"}));
        self.raw("Price", &request)
    }

    fn echo(&self, method: &str, message: &str, request: &Value) -> Value {
        self.call(method, [message, message], request).unwrap()
    }
}

/// Three hosts of one tenant: clients at `a`, the old server at `b`, the new one at `c`.
struct Scene {
    a: (Daemon, String),
    b: (Daemon, String),
    c: (Daemon, String),
    old: Arc<Version>,
    new: Arc<Version>,
    _servers: [Session; 2],
    _bed: Testbed,
}

impl Scene {
    fn new(old: &str, new: &str, service: &str) -> Scene {
        let bed = Testbed::new();
        let host = |name: &str| {
            let daemon = bed.daemon(name);
            let token = daemon.tenant("acme");
            (daemon, token)
        };
        let (a, b, c) = (host("a"), host("b"), host("c"));
        let (old, new) = (
            Version::new(&bed, old, service),
            Version::new(&bed, new, service),
        );
        let servers = [serve(&b.0, &b.1, &old), serve(&c.0, &c.1, &new)];
        Scene {
            a,
            b,
            c,
            old,
            new,
            _servers: servers,
            _bed: bed,
        }
    }

    fn shop() -> Scene {
        Scene::new(OLD, NEW, SHOP)
    }

    /// A client at `a`.
    fn client(&self, version: &Arc<Version>, server: &(Daemon, String)) -> Client {
        let to = server.0.listen().to_string();
        Client::bind(&self.a.0, &self.a.1, version, &to).unwrap()
    }

    /// A client on the server's own host.
    fn neighbour(&self, version: &Arc<Version>, server: &(Daemon, String)) -> Client {
        Client::bind(&server.0, &server.1, version, "").unwrap()
    }

    /// A client for every path to a server of the other version.
    fn crossing(&self) -> [(&'static str, Client); 4] {
        let (old, new) = (&self.old, &self.new);
        [
            ("old client, new peer", self.client(old, &self.c)),
            ("new client, old peer", self.client(new, &self.b)),
            ("old client, new neighbour", self.neighbour(old, &self.c)),
            ("new client, old neighbour", self.neighbour(new, &self.b)),
        ]
    }
}

/// The server's report of its input.
fn understood(reply: &Value) -> Value {
    serde_json::from_str(reply["said"].as_str().unwrap()).unwrap()
}

#[test]
fn old_and_new_applications_call_each_other_at_once() {
    let scene = Scene::shop();
    let (old, new) = (&scene.old, &scene.new);
    let old_request = json!({
        "customer": "Ada", "count": 3, "kind": "FANCY", "items": [{"name": "hat"}, {"name": "cane"}]
    });
    let new_request = json!({
        "client": "Ada", "count": "3", "kind": "FANCY", "coupon": "none",
        "items": [{"name": "hat", "sizes": ["-5", "9"]}, {"name": "cane"}]
    });
    // The same request, with each server's interpretation, from each client.
    let without = |request: &Value| {
        let mut request = request.clone();
        request.as_object_mut().unwrap().remove("coupon");
        request["items"][0].as_object_mut().unwrap().remove("sizes");
        request
    };
    let as_new = without(&new_request);
    let clients = [
        (
            scene.client(old, &scene.b),
            &old_request,
            &old_request,
            false,
        ),
        (
            scene.client(new, &scene.c),
            &new_request,
            &new_request,
            true,
        ),
        (scene.client(old, &scene.c), &old_request, &as_new, true),
        (
            scene.client(new, &scene.b),
            &new_request,
            &old_request,
            false,
        ),
        (
            scene.neighbour(old, &scene.b),
            &old_request,
            &old_request,
            false,
        ),
        (
            scene.neighbour(new, &scene.c),
            &new_request,
            &new_request,
            true,
        ),
        (scene.neighbour(old, &scene.c), &old_request, &as_new, true),
        (
            scene.neighbour(new, &scene.b),
            &new_request,
            &old_request,
            false,
        ),
    ];
    let old_hash = old.layout.hash;
    std::thread::scope(|threads| {
        for (k, (client, request, want, hints)) in clients.iter().enumerate() {
            threads.spawn(move || {
                for _ in 0..100 {
                    let reply = client.order(request).unwrap_or_else(|e| panic!("{k}: {e}"));
                    assert_eq!(understood(&reply), **want, "client {k}");
                    let knows_hints = client.version.layout.hash != old_hash;
                    let want = (*hints && knows_hints).then(|| json!(["wear", "gloves"]));
                    assert_eq!(reply.get("hints"), want.as_ref(), "client {k}");
                }
            });
        }
    });
    let converted = |host: &(Daemon, String)| host.0.status()["calls"]["converted"].clone();
    assert_eq!(
        converted(&scene.a),
        400,
        "two messages of each of 200 calls"
    );
    assert_eq!(
        converted(&scene.b),
        400,
        "as many of peers' and of neighbours' calls"
    );
    assert_eq!(converted(&scene.c), 400);
}

#[test]
fn what_the_other_version_does_not_know_survives_the_round_trip() {
    let scene = Scene::shop();
    let note = json!({
        "title": "t", "body": "AAEC", "weight": 2.5,
        "byName": {"a": {"name": "x", "sizes": ["1", "-2"]}, "b": {"name": "y"}},
        "first": {"name": "f", "sizes": ["70000"]}
    });
    let royal = json!({"client": "Ada", "kind": "ROYAL"});
    for client in [
        scene.client(&scene.new, &scene.b),
        scene.neighbour(&scene.new, &scene.b),
    ] {
        // The old server echoes a block; its layout can hold half of this only as unknown fields.
        assert_eq!(client.echo("Mirror", "shop.Note", &note), note);
        // An enum value without a name there is a number.
        let reply = client.order(&royal).unwrap();
        assert_eq!(understood(&reply), json!({"customer": "Ada", "kind": 2}));
    }
    for client in [
        scene.client(&scene.old, &scene.c),
        scene.neighbour(&scene.old, &scene.c),
    ] {
        let note = json!({"title": "t", "byName": {"a": {"name": "x"}}});
        assert_eq!(client.echo("Mirror", "shop.Note", &note), note);
    }
}

#[test]
fn numbers_are_widened_and_cut_as_protobuf_does() {
    let scene = Scene::shop();
    let large = json!({"client": "Ada", "count": "4294967299"});
    let reply = scene.client(&scene.new, &scene.b).order(&large).unwrap();
    assert_eq!(understood(&reply), json!({"customer": "Ada", "count": 3}));
}

#[test]
fn an_incompatible_method_is_refused_by_name_and_its_siblings_work() {
    let scene = Scene::shop();
    let same = json!({"text": "hello", "numbers": [1, 2, 3]});
    for (who, client) in scene.crossing() {
        let refused = client.price().unwrap_err();
        assert_eq!(refused.code, Code::FAILED_PRECONDITION, "{who}: {refused}");
        for word in ["shop.PriceRequest", "currency", "string", "fixed32"] {
            assert!(refused.message.contains(word), "{who}: {refused}");
        }
        for method in client.binding.methods() {
            let added = method.name == "Added";
            let bad = method.name == "Price" || added;
            let said = method.refused.as_deref().unwrap_or_default();
            assert_eq!(!said.is_empty(), bad, "{who}: {method:?}");
            assert_eq!(said.contains("currency"), bad && !added, "{who}: {said}");
        }
        // It has another index at the server and the same layout: it works natively.
        let before = scene.a.0.status()["calls"]["converted"].clone();
        assert_eq!(client.echo("Ping", "shop.Same", &same), same, "{who}");
        assert_eq!(scene.a.0.status()["calls"]["converted"], before, "{who}");
        assert!(client.order(&json!({"count": 1})).is_ok(), "{who}");
    }
}

/// Like gRPC: UNIMPLEMENTED for methods that the server doesn't know, FAILED_PRECONDITION for
/// differences.
#[test]
fn a_method_that_the_server_lacks_is_unimplemented() {
    let scene = Scene::shop();
    for (who, client) in [
        ("old peer", scene.client(&scene.new, &scene.b)),
        ("old neighbour", scene.neighbour(&scene.new, &scene.b)),
    ] {
        let request = client.version.block("shop.Same", &json!({"text": "hello"}));
        let refused = client.raw("Added", &request).unwrap_err();
        assert_eq!(refused.code, Code::UNIMPLEMENTED, "{who}: {refused}");
        assert!(
            refused.message.contains("shop.Shop/Added"),
            "{who}: {refused}"
        );
    }
    // A service can't be bound if the server has none of its methods.
    let old = r#"syntax = "proto3"; package p; service S { rpc Do(M) returns (M); } message M { string name = 1; }"#;
    let scene = Scene::new(old, &old.replace("rpc Do", "rpc Other"), "p.S");
    for (host, to) in [
        (&scene.a, scene.b.0.listen().to_string()),
        (&scene.b, String::new()),
    ] {
        let refused = Client::bind(&host.0, &host.1, &scene.new, &to).err();
        let refused = refused.unwrap();
        assert_eq!(refused.code, Code::UNIMPLEMENTED, "{refused}");
        assert!(refused.message.contains("p.S/Other"), "{refused}");
    }
}

#[test]
fn a_service_without_a_compatible_method_is_not_bound() {
    let old = r#"syntax = "proto3"; package p; service S { rpc Do(M) returns (M); } message M { string name = 1; }"#;
    let new = old.replace("string name", "double name");
    let scene = Scene::new(old, &new, "p.S");
    for (host, to) in [
        (&scene.a, scene.b.0.listen().to_string()),
        (&scene.b, String::new()),
    ] {
        let refused = Client::bind(&host.0, &host.1, &scene.new, &to)
            .err()
            .unwrap();
        assert_eq!(refused.code, Code::FAILED_PRECONDITION, "{refused}");
        for word in ["p.S", "p.M", "name", "string", "double"] {
            assert!(refused.message.contains(word), "{refused}");
        }
    }
}

/// A server is replaced by one with another schema: the daemon dials and binds again, and compares
/// again.
#[test]
fn a_binding_is_compared_anew_when_the_peer_comes_back_changed() {
    let bed = Testbed::new();
    let a = bed.daemon("a");
    let durable = |listen| tollgate_conformance::testbed::Options {
        durable: true,
        listen,
        ..Default::default()
    };
    let mut b = bed.daemon_with("b", &durable(None));
    let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
    let (old, new) = (Version::new(&bed, OLD, SHOP), Version::new(&bed, NEW, SHOP));
    let to = b.listen();
    let mut server = serve(&b, &token_b, &old);
    let client = Client::bind(&a, &token_a, &old, &to.to_string()).unwrap();
    for version in [&new, &old, &new] {
        assert!(client.order(&json!({"count": 2})).is_ok());
        b.process().kill();
        drop(server);
        b = bed.daemon_with("b", &durable(Some(to)));
        server = serve(&b, &token_b, version);
        eventually(SOON, || client.order(&json!({"count": 2})).is_ok()).unwrap();
        let compatible = Arc::ptr_eq(version, &old);
        assert_eq!(client.price().is_ok(), compatible, "{:?}", client.price());
    }
}

#[test]
fn policies_evaluate_each_sides_own_layout() {
    let hotel = std::fs::read_to_string(proto_file("hotel.proto")).unwrap();
    let newer = hotel
        .replace(
            "uint32 room_count = 4;",
            "uint64 room_count = 4; string remark = 9;",
        )
        .replace(
            "string customer_name = 1;",
            "bytes padding = 8; string customer_name = 1;",
        );
    assert_ne!(newer, hotel);
    let scene = Scene::new(&hotel, &newer, "hotel.Reservation");
    let acl = policy_file("acl").display().to_string();
    let listed = "x".repeat(6_000);
    let hosts = [
        ("client", &scene.a),
        ("server", &scene.b),
        ("server", &scene.c),
    ];
    let config = scene._bed.file(
        "acl.json",
        json!({"blocked": ["Mallory", &listed]}).to_string(),
    );
    let config = config.display().to_string();
    for (_, host) in hosts {
        let push = [
            "policy", "push", &acl, "--tenant", "acme", "--name", "acl", "--config", &config,
        ];
        assert_eq!(host.0.tollgate(push).out.trim(), "acl@1");
    }
    let reserve = |client: &Client, name: &str| {
        let request = json!({"customerName": name, "hotelIds": ["a", "b"], "roomCount": 2});
        let block = client.version.block("hotel.ReserveRequest", &request);
        client
            .raw("Reserve", &block)
            .map(|_| ())
            .map_err(|status| status.code)
    };
    let clients = [
        scene.client(&scene.old, &scene.c),
        scene.client(&scene.new, &scene.b),
    ];
    let neighbours = [
        scene.neighbour(&scene.old, &scene.c),
        scene.neighbour(&scene.new, &scene.b),
    ];
    for side in ["client", "server"] {
        let target = [
            "--tenant",
            "acme",
            "--service",
            "hotel.Reservation",
            "--side",
            side,
        ];
        let of_side: Vec<_> = hosts.iter().filter(|(of, _)| *of == side).collect();
        for (_, host) in &of_side {
            let attached = host
                .0
                .tollgate(["policy", "attach", "acl@1"].iter().chain(&target));
            assert_eq!(attached.code, 0, "{attached}");
        }
        for client in &clients {
            assert_eq!(reserve(client, "Ada"), Ok(()), "{side}");
            assert_eq!(
                reserve(client, "Mallory"),
                Err(Code::PERMISSION_DENIED),
                "{side}"
            );
        }
        // The generated stub sends a large value as an extent: the message is copied, evaluated,
        // and encoded from the copy.
        let (session, to) = (&clients[0].session, scene.c.0.listen().to_string());
        let stub = ReservationClient::new(Channel::new(session, &to));
        for (name, want) in [
            ("x", Ok(())),
            (listed.as_str(), Err(Code::PERMISSION_DENIED)),
        ] {
            let request = ReserveRequest {
                customer_name: name.to_owned(),
                hotel_ids: vec!["y".repeat(9_000)],
                ..ReserveRequest::default()
            };
            let reserved = block_on(session, stub.reserve(request));
            assert_eq!(
                reserved.map(|_| ()).map_err(|status| status.code),
                want,
                "{side}"
            );
        }
        for client in &neighbours {
            let denied = if side == "server" {
                Err(Code::PERMISSION_DENIED)
            } else {
                Ok(())
            };
            assert_eq!(reserve(client, "Mallory"), denied, "{side} of neighbours");
        }
        for (_, host) in &of_side {
            let detached = host
                .0
                .tollgate(["policy", "detach", "acl"].iter().chain(&target));
            assert_eq!(detached.code, 0, "{detached}");
        }
        assert_eq!(reserve(&clients[0], "Mallory"), Ok(()));
    }
}

const ECHO: &str = "hotel.Echo";

/// The generated client sends large values as extents.
#[test]
fn large_messages_cross_whole() {
    let hotel = std::fs::read_to_string(proto_file("hotel.proto")).unwrap();
    let newer = hotel.replace("bytes payload = 1;", "uint32 check = 3; bytes payload = 1;");
    assert_ne!(newer, hotel);
    let scene = Scene::new(&hotel, &newer, ECHO);
    let remote = (open(&scene.a.0, &scene.a.1), scene.c.0.listen().to_string());
    let local = (open(&scene.c.0, &scene.c.1), String::new());
    for (session, to) in [&remote, &local] {
        let client = EchoClient::new(Channel::new(session, to));
        for len in [0, 1, 5_000, 64 << 10, 70_000, 2 << 20, (16 << 20) - 64] {
            let payload: Vec<u8> = (0..len).map(|k| (k % 251) as u8).collect();
            let payload = payload.into();
            let request = EchoMessage { payload };
            let reply = block_on(session, client.echo(request.clone()));
            let reply = reply.unwrap_or_else(|status| panic!("{len} bytes to {to:?}: {status}"));
            assert_eq!(
                reply.get_ref().view().payload(),
                &*request.payload,
                "{len} bytes to {to:?}"
            );
        }
    }
    // Many in a row, more than the link's window of bytes: credit is used and returned by the
    // encoded size.
    let client = EchoClient::new(Channel::new(&remote.0, &remote.1));
    let payload = tollgate::Bytes::from(vec![7; 6 << 20]);
    for k in 0..40 {
        let reply = block_on(
            &remote.0,
            client.echo(EchoMessage {
                payload: payload.clone(),
            }),
        );
        assert!(reply.is_ok(), "call {k}");
    }
}

/// Nothing reads text in an extent before the message is encoded: then it must be UTF-8.
#[test]
fn an_extent_that_is_no_text_costs_its_call_only() {
    const LEN: usize = 200_000;
    let hotel = std::fs::read_to_string(proto_file("hotel.proto")).unwrap();
    let newer = hotel.replace("uint32 room_count = 4;", "uint64 room_count = 4;");
    let scene = Scene::new(&hotel, &newer, "hotel.Reservation");
    let request = json!({"customerName": "x".repeat(LEN), "roomCount": 2});
    let message = scene.old.schema.message("hotel.ReserveRequest").unwrap();
    let message = from_json(&message, &request.to_string()).unwrap();
    let layouts = &scene.old.layout.layouts;
    let id = layouts.find("hotel.ReserveRequest").unwrap();
    let parts = write_parts(layouts, id, &message, |_| true).unwrap();
    let remote = scene.c.0.listen().to_string();
    for (host, to) in [(&scene.a, remote.as_str()), (&scene.c, "")] {
        let mut app = Hostile::open_with(host.0.socket(), &host.1, 8 << 20);
        let set = scene.old.schema.descriptor_set();
        let reserve = app.bind(SIDE_CLIENT, set, "hotel.Reservation", to);
        for (call, letter, want) in [
            (1, b'x', Code::OK),
            (2, 0xff, Code::INVALID_ARGUMENT),
            (3, b'y', Code::OK),
        ] {
            app.call_with_extents(reserve, call, &parts.inline, &[LEN], |_, place| {
                place.fill(letter)
            });
            let code = match app.answer(SOON) {
                Some(Completion::Reply { .. }) => Code::OK,
                Some(Completion::Status { code, .. }) => code,
                other => panic!("call {call} at {to:?}: {other:?}"),
            };
            assert_eq!(code, want, "call {call} at {to:?}");
        }
        assert_eq!(app.is_ended(Duration::from_millis(50)), None);
    }
}

#[test]
fn a_peer_that_sends_malformed_protobuf_gets_a_status_and_keeps_its_link() {
    let scene = Scene::shop();
    let mut peer = Peer::connect(scene.b.0.listen(), PROTOBUF.into());
    peer.bind(3, "acme", SHOP, [0; 32]);
    let bound = peer.receive().unwrap();
    assert_eq!((bound.kind, bound.bind), (kind::BOUND, 3));
    assert_eq!(bound.text(), scene.old.layout.description);
    assert_eq!(bound.aux as usize, bound.payload.len());
    let call = |method, payload: &[u8]| Frame {
        kind: kind::CALL,
        flags: END | PROTOBUF,
        method,
        call: 77,
        bind: 3,
        payload: payload.to_vec(),
        ..Frame::default()
    };
    let long = [&b"\x0a\xff\xff\xff\xff\x0f"[..], &[b'x'; 70_000]].concat();
    let malformed: [&[u8]; 9] = [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00",
        b"\x07",
        b"\x0b",
        b"\x0c",
        b"\x0a\x02\xff\xfe",
        &long,
    ];
    // Order, Mirror.
    for method in [0, 1] {
        for bytes in malformed {
            peer.send(&call(method, bytes));
            let answer = peer.receive().unwrap();
            let shown = &bytes[..bytes.len().min(20)];
            assert_eq!(answer.kind, kind::STATUS, "{shown:x?}: {answer:?}");
            assert_eq!(answer.aux, Code::INVALID_ARGUMENT.0, "{shown:x?}");
            assert!(answer.text().contains("isn't valid"), "{}", answer.text());
        }
    }
    // Unknown groups, nested deeper than any stack: any answer is valid.
    peer.send(&call(0, &[[0x7b; 30_000], [0x7c; 30_000]].concat()));
    assert_eq!(peer.receive().unwrap().call, 77);
    // 2 MiB of items of two bytes each, which take 16 bytes or more in a block: limited, with a
    // message.
    peer.send(&call(0, &b"\x22\x00".repeat(1 << 20)));
    let answer = peer.receive().unwrap();
    assert_eq!(answer.aux, Code::RESOURCE_EXHAUSTED.0, "{}", answer.text());
    assert!(answer.text().contains("16 MiB"), "{}", answer.text());
    // Every prefix and every single wrong bit of a valid message gets an answer.
    let good = b"\x0a\x03Ada\x10\x03\x18\x01\x22\x05\x0a\x03hat\xaa\x06\x02ab";
    for len in 0..=good.len() {
        peer.send(&call(0, &good[..len]));
        assert_eq!(peer.receive().unwrap().call, 77);
    }
    for bit in 0..good.len() * 8 {
        let mut bytes = good.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        peer.send(&call(0, &bytes));
        assert_eq!(peer.receive().unwrap().call, 77);
    }
    // A method that doesn't exist, and bytes of an image where the layouts differ.
    peer.send(&call(99, b""));
    assert_eq!(peer.receive().unwrap().aux, Code::UNIMPLEMENTED.0);
    let image = Frame {
        flags: END,
        aux: 3,
        ..call(0, b"abc")
    };
    peer.send(&image);
    assert_eq!(peer.receive().unwrap().aux, Code::INVALID_ARGUMENT.0);
    peer.send(&call(0, good));
    let answer = peer.receive().unwrap();
    assert_eq!(
        (answer.kind, answer.flags, answer.aux),
        (kind::REPLY, END | PROTOBUF, 0)
    );
    assert!(answer.text().contains("Ada"));
    assert!(scene.client(&scene.old, &scene.b).order(&json!({})).is_ok());
}

#[test]
fn a_peer_that_cannot_carry_protobuf_is_refused_with_the_description() {
    let scene = Scene::shop();
    let mut peer = Peer::connect(scene.b.0.listen(), 0);
    peer.bind(3, "acme", SHOP, [0; 32]);
    let refused = peer.receive().unwrap();
    assert_eq!((refused.kind, refused.bind), (kind::REFUSED, 3));
    assert_eq!(refused.aux, Code::FAILED_PRECONDITION.0);
    assert!(refused.text().ends_with(&scene.old.layout.description));
    peer.bind(4, "acme", SHOP, scene.old.layout.hash);
    let bound = peer.receive().unwrap();
    assert_eq!(
        (bound.kind, bound.aux, bound.text().as_str()),
        (kind::BOUND, 0, "")
    );
    let call = Frame {
        kind: kind::CALL,
        flags: END | PROTOBUF,
        bind: 4,
        ..Frame::default()
    };
    peer.send(&call);
    assert_eq!(
        peer.receive().unwrap().kind,
        kind::GOAWAY,
        "it offered no protobuf"
    );
    assert_eq!(peer.receive(), None);
}

/// The other direction: the daemon calls the test.
#[test]
fn a_peer_that_serves_nonsense_fails_its_callers_calls_only() {
    let scene = Scene::shop();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let (host, old, new) = (&scene.a, &scene.old, &scene.new);
    let described = |bind: &Frame, text: &str| Frame {
        kind: kind::BOUND,
        bind: bind.bind,
        aux: text.len() as u32,
        payload: text.as_bytes().to_vec(),
        ..Frame::default()
    };
    std::thread::scope(|threads| {
        let client = threads.spawn(|| Client::bind(&host.0, &host.1, old, &to));
        let mut peer = Peer::accept(&listener, PROTOBUF.into());
        // An invalid description: the bind is refused, the link stays.
        let bind = peer.receive().unwrap();
        assert_eq!(bind.kind, kind::BIND);
        peer.send(&described(&bind, "shop.Shop/Order = nonsense\nand more"));
        let refused = client.join().unwrap().err().unwrap();
        assert_eq!(refused.code, Code::FAILED_PRECONDITION, "{refused}");

        // A valid one: calls use the indices that it states, even if they are wrong.
        let client = threads.spawn(|| Client::bind(&host.0, &host.1, old, &to));
        let bind = peer.receive().unwrap();
        peer.send(&described(&bind, &new.layout.description));
        let client = Arc::new(client.join().unwrap().unwrap());
        let order = || {
            let client = Arc::clone(&client);
            threads.spawn(move || client.order(&json!({"customer": "Ada"})))
        };
        let reply = |call: &Frame, flags, payload: &[u8]| Frame {
            kind: kind::REPLY,
            flags,
            call: call.call,
            payload: payload.to_vec(),
            ..Frame::default()
        };
        for (flags, payload, sentence) in [
            (
                END | PROTOBUF,
                &b"\x12\x02\xff\xfe"[..],
                "shop.OrderReply.said",
            ),
            (END | PROTOBUF, b"\x12\x09x", "isn't valid"),
            (END, b"\0\0\0\0\0\0\0\0", "isn't encoded as its call was"),
        ] {
            let called = order();
            let call = peer.receive().unwrap();
            assert_eq!(
                (call.kind, call.flags, call.method),
                (kind::CALL, END | PROTOBUF, 3)
            );
            assert_eq!(
                (call.aux, call.payload.as_slice()),
                (0, &b"\x0a\x03Ada"[..])
            );
            peer.send(&reply(&call, flags, payload));
            let failed = called.join().unwrap().unwrap_err();
            assert_eq!(failed.code, Code::INTERNAL, "{failed}");
            assert!(failed.message.contains(sentence), "{failed}");
        }
        let called = order();
        let call = peer.receive().unwrap();
        let long = [&b"\x12\xf0\xa2\x04"[..], &[b'x'; 70_000]].concat();
        peer.send(&reply(&call, END | PROTOBUF, &long));
        let said = called.join().unwrap().unwrap()["said"]
            .as_str()
            .unwrap()
            .len();
        assert_eq!(said, 70_000);

        // An unexpected BOUND is ignored; one that is too long ends the link.
        peer.send(&described(&bind, "shop.Shop/Order = 0 (A) returns (B)"));
        let called = order();
        let call = peer.receive().unwrap();
        peer.send(&reply(&call, END | PROTOBUF, b""));
        assert_eq!(called.join().unwrap().unwrap(), json!({}));
        let mut endless = described(&bind, "x");
        endless.aux = u32::MAX;
        peer.send(&endless);
        assert_eq!(peer.receive().unwrap().kind, kind::GOAWAY);
    });
    assert!(scene.client(old, &scene.c).order(&json!({})).is_ok());
}

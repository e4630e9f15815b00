//! The server with real sockets, a daemon that answers by rote, and clients of other kinds.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::client::Client;
use crate::limits::{CONNECTIONS_PER_USER, MAX_STATUS_BYTES, PROOF_TIME, STEPS_QUEUED};
use crate::rights::Principal;
use crate::status::Secret;

const PATIENCE: Duration = Duration::from_secs(20);

/// A server whose calls a function answers, on a thread of its own.
struct Served {
    path: PathBuf,
    _directory: tempfile::TempDir,
    _server: Server,
}

fn served(is_operator: fn(u32) -> bool, answer: impl Fn(Call) + Send + 'static) -> Served {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tollgate.sock.admin");
    let listener = UnixListener::bind(&path).unwrap();
    let (server, mut calls) =
        Server::start(vec![Listener::Processes(listener)], is_operator).unwrap();
    std::thread::spawn(move || {
        while let Some(incoming) = calls.blocking_recv() {
            answered(incoming, &answer);
        }
    });
    Served {
        path,
        _directory: directory,
        _server: server,
    }
}

/// Knows the bearers of `tg_viewer` as a tenant's viewers, those of `tg_wrong` not at all, and all
/// others as operators.
fn answered(incoming: Incoming, answer: &impl Fn(Call)) {
    let Header { caller, reply } = match incoming {
        Incoming::Call(call) => return answer(call),
        Incoming::Header(header) => header,
    };
    let token = caller.token.as_ref().map(Secret::reveal);
    if token == Some("tg_questions") {
        QUESTIONS.fetch_add(1, Ordering::Relaxed);
    }
    let who = "an operator of these tests".to_owned();
    let _gone = reply.send(match token {
        Some("tg_wrong") => Err(Status::new(Code::UNAUTHENTICATED, "the token is wrong")),
        Some("tg_viewer") => Ok(bearer(Role::Viewer)),
        _ => Ok(Principal::Operator { who }),
    });
}

fn bearer(role: Role) -> Principal {
    Principal::Tenant {
        tenant: "acme".to_owned(),
        credential: "default".to_owned(),
        role,
    }
}

/// How often it was asked who the bearer of `tg_questions` is.
static QUESTIONS: AtomicU64 = AtomicU64::new(0);

impl Served {
    fn client(&self, token: Option<&str>) -> Client {
        let token = token.map(Secret::new);
        Client::connect(&self.path, token.as_ref(), PATIENCE).unwrap()
    }
}

/// The process, or the names on the network.
fn described(peer: &Peer) -> String {
    match peer {
        Peer::Process { pid, .. } => pid.to_string(),
        Peer::Remote { address, names } => format!("{address} {names:?}"),
    }
}

/// The looks of the only test that watches.
static LOOKS: AtomicU64 = AtomicU64::new(0);

/// Answers as a daemon with one tenant, `TOKEN` (its token), does.
fn by_rote(call: Call) {
    let token = call
        .caller
        .token
        .as_ref()
        .map(Secret::reveal)
        .unwrap_or("none");
    let answer = match call.ask {
        Ask::ListTenants(_) => Ok(Answer::ListTenants(ListTenantsResponse {
            tenants: vec![token.to_owned(), described(&call.caller.peer)],
        })),
        Ask::PushPolicy(order) => Ok(Answer::PushPolicy(PushedPolicy {
            name: {
                let rounds = if order.header.name == "eager" { 100 } else { 1 };
                for _ in 0..rounds {
                    order.steps.tell(PushPolicyStep::Verifying);
                    order.steps.tell(PushPolicyStep::Compiling);
                }
                order.header.name
            },
            version: order.parts.values().map(Vec::len).sum::<usize>() as u32,
            warnings: order.parts.keys().map(i32::to_string).collect(),
        })),
        Ask::TapCalls(poll) => {
            let report = serde_json::json!({"tap": poll.tap + 1});
            let report = Some(crate::from_json(report));
            Ok(Answer::TapCalls(TapCallsResponse { report }))
        }
        Ask::WatchPolicies(request) => {
            // Every third look differs from the one before.
            let look = LOOKS.fetch_add(1, Ordering::Relaxed) / 3;
            let report = serde_json::json!({"tenant": request.tenant, "look": look});
            let report = Some(crate::from_json(report));
            Ok(Answer::WatchPolicies(WatchPoliciesResponse { report }))
        }
        // Another answer than was asked for.
        Ask::GetStatus(_) => Ok(Answer::ListTenants(ListTenantsResponse::default())),
        Ask::RemoveTenant(request) => Err(Status::new(Code::NOT_FOUND, request.tenant)),
        // Dropped.
        _ => return,
    };
    let _gone = call.reply.send(answer);
}

fn everybody(_: u32) -> bool {
    true
}

#[test]
fn a_request_reaches_the_daemon_with_its_caller_and_the_answer_comes_back() {
    let served = served(everybody, by_rote);
    let me = std::process::id().to_string();
    for token in [None, Some("tg_of_acme")] {
        let answer = served.client(token).ask(ListTenantsRequest {}).unwrap();
        assert_eq!(answer.tenants, [token.unwrap_or("none"), &me]);
    }
    let client = served.client(None);
    let mixed = client.ask(GetStatusRequest::default()).unwrap_err();
    assert_eq!(mixed.code, Code::INTERNAL, "{mixed}");
    let dropped = client.ask(VerifyAuditLogRequest {}).unwrap_err();
    assert_eq!(dropped, stopping());
}

#[test]
fn a_watch_has_the_answers_that_differ() {
    let served = served(everybody, by_rote);
    let client = served.client(None);
    let watched = |seconds, nanos| WatchPoliciesRequest {
        tenant: "acme".to_owned(),
        interval: Some(prost_types::Duration { seconds, nanos }),
    };
    let mut seen = Vec::new();
    let ended = client.watch(watched(0, 250_000_000), |answer| {
        let report = answer.report.unwrap();
        seen.push(number(&report, "look"));
        match seen.len() {
            3 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    ended.unwrap();
    assert_eq!(seen, [Some(0), Some(1), Some(2)]);
    assert!(LOOKS.load(Ordering::Relaxed) >= 7);
    for (seconds, nanos) in [
        (0, 1),
        (3_601, 0),
        (-1, 0),
        (60, -1),
        (60, 1_000_000_000),
        (i64::MAX, i32::MIN),
        (i64::MIN, i32::MIN),
    ] {
        let refused = client.watch(watched(seconds, nanos), |_| ControlFlow::Continue(()));
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused}");
        assert!(refused.message.contains("out of range"), "{refused}");
    }
}

#[test]
fn a_request_that_may_not_come_never_reaches_the_daemon() {
    let served = served(everybody, |call| match call.ask {
        Ask::ListTenants(_) | Ask::GetStatus(_) => by_rote(call),
        other => panic!("it came: {other:?}"),
    });
    let push = |token| {
        let order = PushOrder {
            parts: [(1, vec![0; PUSH_BYTES])].into(),
            ..PushOrder::default()
        };
        let client = served.client(Some(token));
        client.push(order, |_step| {}).unwrap_err()
    };
    let wrong = push("tg_wrong");
    assert_eq!(wrong.code, Code::UNAUTHENTICATED, "{wrong}");
    let viewer = push("tg_viewer");
    assert_eq!(viewer.code, Code::PERMISSION_DENIED, "{viewer}");
    let wrong = served.client(Some("tg_wrong")).ask(ListTenantsRequest {});
    assert_eq!(wrong.unwrap_err().message, "the token is wrong");
    // What a viewer may send reaches the daemon, which answers something else here.
    let viewer = served.client(Some("tg_viewer"));
    let answered = viewer.ask(GetStatusRequest::default()).unwrap_err();
    assert_eq!(answered.code, Code::INTERNAL, "{answered}");
}

#[test]
fn a_long_message_is_cut_and_stays_on_one_line() {
    let served = served(everybody, by_rote);
    let client = served.client(None);
    let ask = |tenant: &str| {
        let tenant = tenant.to_owned();
        client
            .ask(RemoveTenantRequest {
                tenant,
                dry_run: false,
            })
            .unwrap_err()
    };
    let cut = ask(&"\u{e9}".repeat(10_000));
    assert_eq!(cut.code, Code::NOT_FOUND);
    assert!(cut.message.len() <= MAX_STATUS_BYTES + 16 && cut.message.ends_with("(cut)"));
    assert_eq!(ask("a\nb\u{1b}[2J").message, "a\\nb\\u{1b}[2J");
}

#[test]
fn a_malformed_authorization_is_refused() {
    let served = served(everybody, by_rote);
    // The client only sends well-formed tokens: a token with a space is still one value.
    for (values, words) in [
        (vec!["tg_x"], "isn't a bearer's token"),
        (vec!["Basic tg_x"], "isn't a bearer's token"),
        (vec!["Bearer tg_x", "Bearer tg_y"], "is there twice"),
    ] {
        let mut headers = tonic::codegen::http::HeaderMap::new();
        for value in values {
            headers.append("authorization", value.parse().unwrap());
        }
        let refused = gate::token(&headers).unwrap_err();
        assert_eq!(refused.code, Code::UNAUTHENTICATED);
        assert!(refused.message.contains(words), "{refused}");
        assert!(!refused.message.contains("tg_x"), "{refused}");
    }
    assert!(Client::connect(&served.path, Some(&Secret::new("tg_\n")), PATIENCE).is_err());
}

#[test]
fn a_connection_proves_a_token_once_in_a_while() {
    let served = served(nobody, by_rote);
    let questions = || QUESTIONS.load(Ordering::Relaxed);
    let client = served.client(Some("tg_questions"));
    let began = Instant::now();
    let mut asked = 0;
    while began.elapsed() < PROOF_TIME {
        client.ask(ListTenantsRequest {}).unwrap();
        asked += 1;
    }
    assert!(asked > 2 && questions() <= 2, "{} of {asked}", questions());
    // Another connection proves it anew, and so does this one later.
    let (before, another) = (questions(), served.client(Some("tg_questions")));
    another.ask(ListTenantsRequest {}).unwrap();
    std::thread::sleep(PROOF_TIME);
    another.ask(ListTenantsRequest {}).unwrap();
    assert_eq!(questions(), before + 2);
}

#[test]
fn further_steps_than_fit_are_missed_and_the_answer_isnt() {
    let served = served(everybody, by_rote);
    let order = PushOrder {
        header: PushPolicyHeader {
            owner: None,
            name: "eager".to_owned(),
        },
        ..PushOrder::default()
    };
    let mut steps = 0;
    let pushed = served.client(None).push(order, |_step| steps += 1).unwrap();
    assert_eq!(pushed.name, "eager");
    // As many as fit at least; more if the server takes some meanwhile.
    assert!((STEPS_QUEUED..=200).contains(&steps), "{steps}");
}

#[test]
fn a_push_arrives_whole_and_tells_its_steps() {
    let served = served(everybody, by_rote);
    let client = served.client(None);
    let header = PushPolicyHeader {
        owner: None,
        name: "acl".to_owned(),
    };
    let module = vec![7; 3 * PUSH_CHUNK_BYTES + 1];
    let parts = [
        (PolicyPart::Module, module),
        (PolicyPart::Configuration, Vec::new()),
    ];
    let order = PushOrder {
        header,
        parts: parts.map(|(part, bytes)| (part.into(), bytes)).into(),
        ..PushOrder::default()
    };
    let mut steps = Vec::new();
    let pushed = client.push(order, |step| steps.push(step)).unwrap();
    use PushPolicyStep::{Compiling, Verifying};
    assert_eq!(steps, [Verifying, Compiling]);
    assert_eq!(
        (pushed.name.as_str(), pushed.version),
        ("acl", 3 * 65_536 + 1)
    );
    assert_eq!(pushed.warnings, ["1", "2"]);
    let large = PushOrder {
        parts: [(1, vec![0; PUSH_BYTES + 1])].into(),
        ..PushOrder::default()
    };
    let refused = client.push(large, |_| ()).unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
    let unknown = PushOrder {
        parts: [(9, vec![0])].into(),
        ..PushOrder::default()
    };
    let refused = client.push(unknown, |_| ()).unwrap_err();
    assert_eq!(
        refused,
        Status::new(Code::INVALID_ARGUMENT, "a push has no part 9")
    );
    // No header, and no content at all.
    let path = "/tollgate.admin.v1.PolicyService/PushPolicy";
    let refused = client.ask_bytes(path, Vec::new()).unwrap_err();
    assert_eq!(refused.message, "a piece of a push has no content");
    let refused = client.ask_bytes(path, vec![0xff; 100]).unwrap_err();
    assert!(refused.code != Code::OK, "{refused}");
}

#[test]
fn pushes_have_places_and_a_slow_one_holds_up_nobody() {
    let served = served(everybody, by_rote);
    let slow = served.client(None);
    let service = {
        let (calls, _queue) = mpsc::channel(1);
        Service {
            calls,
            is_operator: nobody,
            most_age: None,
            pushes: Places::new(Most {
                all: PUSHES,
                kept: PUSHES,
                of_each: PUSHES_PER_TENANT,
            }),
            applies: Places::new(Most {
                all: APPLIES,
                kept: APPLIES,
                of_each: APPLIES_PER_TENANT,
            }),
        }
    };
    // No place: refused at once.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let refused = runtime.block_on(async {
        let (steps, _kept) = mpsc::channel(2);
        let sender = Sender {
            caller: Caller {
                peer: Peer::Process { uid: 1, pid: 1 },
                token: None,
            },
            holder: Party::of(&bearer(Role::Owner)),
        };
        let decoder = tonic::codec::Codec::decoder(&mut tonic_prost::ProstCodec::<
            PushPolicyRequest,
            PushPolicyRequest,
        >::default());
        let body = tonic::body::Body::empty();
        let pieces = Streaming::new_request(decoder, body, None, None);
        let apply = apply_order_of(tonic::body::Body::empty());
        let (responses, _kept_too) = mpsc::channel(2);
        let applied = service.clone().apply(sender.clone(), apply, responses);
        let applied = applied.await.unwrap_err();
        assert_eq!(applied.code, Code::RESOURCE_EXHAUSTED);
        let most =
            format!("{APPLIES} applies, or {APPLIES_PER_TENANT} of tenant acme, are in progress");
        assert!(applied.message.starts_with(&most), "{applied}");
        service.push(sender, pieces, steps).await.unwrap_err()
    });
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
    assert_eq!(
        refused.message,
        format!(
            "{PUSHES} pushes, or {PUSHES_PER_TENANT} of tenant acme, are in progress, which is the limit: try again in a moment"
        )
    );
    // A client that sends half of a request and stops: others are served meanwhile.
    let mut half = UnixStream::connect(&served.path).unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x09")
        .unwrap();
    let began = Instant::now();
    for _ in 0..20 {
        slow.ask(ListTenantsRequest {}).unwrap();
    }
    assert!(began.elapsed() < PATIENCE);
    drop(half);
}

#[test]
fn an_answer_that_nobody_reads_keeps_no_place() {
    let (calls, mut queue) = mpsc::channel(1);
    let most = Most {
        all: 1,
        kept: 0,
        of_each: 1,
    };
    let service = Service {
        calls,
        is_operator: nobody,
        most_age: None,
        pushes: Places::new(most),
        applies: Places::new(most),
    };
    let caller = Caller {
        peer: Peer::Process { uid: 1, pid: 1 },
        token: None,
    };
    let sender = Sender {
        caller,
        holder: Party::of(&bearer(Role::Owner)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for _ in 0..3 {
            let (responses, _nobody_reads) = mpsc::channel(1);
            responses
                .try_send(Ok(ApplyStateResponse::default()))
                .unwrap();
            // A frame with an empty header.
            let body = tonic::body::Body::new("\0\0\0\0\x02\x0a\0".to_owned());
            let pieces = apply_order_of(body);
            let apply = service.clone().apply(sender.clone(), pieces, responses);
            let applying = tokio::spawn(apply);
            let Some(Incoming::Call(call)) = queue.recv().await else {
                panic!("the apply has no place: {:?}", applying.await);
            };
            let answer = Answer::ApplyState(AppliedState::default());
            call.reply.send(Ok(answer)).unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(!applying.is_finished(), "its client reads nothing");
        }
    });
}

/// The requests of an apply.
fn apply_order_of(body: tonic::body::Body) -> Streaming<ApplyStateRequest> {
    let mut codec = tonic_prost::ProstCodec::<ApplyStateRequest, ApplyStateRequest>::default();
    let decoder = tonic::codec::Codec::decoder(&mut codec);
    Streaming::new_request(decoder, body, None, None)
}

fn nobody(_: u32) -> bool {
    false
}

#[test]
fn a_user_has_so_many_connections() {
    let served = served(nobody, by_rote);
    let open = || UnixStream::connect(&served.path).unwrap();
    let places: Vec<_> = (0..CONNECTIONS_PER_USER).map(|_| open()).collect();
    // The server's settings frame tells that a connection has its place.
    let is_served = |mut stream: &UnixStream| {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .ok();
        matches!(stream.read(&mut [0; 9]), Ok(9))
    };
    assert!(places.iter().all(is_served));
    assert!(!is_served(&open()), "one more is closed");
    drop(places);
    // Places come back when connections close.
    let again = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        is_served(&open())
    });
    assert!(again);
}

#[test]
fn a_watch_goes_on_until_its_client_leaves() {
    let served = served(everybody, by_rote);
    let client = served.client(None);
    let first = client.ask_bytes("/tollgate.admin.v1.ObservationService/TapCalls", Vec::new());
    let first = <TapCallsResponse as prost::Message>::decode(&first.unwrap()[..]).unwrap();
    assert_eq!(number(&first.report.unwrap(), "tap"), Some(1));
}

#[test]
fn health_and_reflection_answer_without_a_token() {
    let served = served(nobody, by_rote);
    let client = served.client(None);
    let health = client
        .ask_bytes("/grpc.health.v1.Health/Check", Vec::new())
        .unwrap();
    assert_eq!(health, [8, 1], "SERVING");
    for version in ["v1", "v1alpha"] {
        // list_services: "".
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let listed = client.ask_bytes(&path, vec![0x3a, 0]).unwrap();
        let listed = String::from_utf8_lossy(&listed).into_owned();
        for row in crate::ALL {
            assert!(
                listed.contains(&format!("tollgate.admin.v1.{}", row.service)),
                "{listed}"
            );
        }
    }
}

#[test]
fn a_server_that_is_dropped_ends_its_connections() {
    let served = served(everybody, by_rote);
    let client = served.client(None);
    client.ask(ListTenantsRequest {}).unwrap();
    let Served {
        path,
        _directory,
        _server,
    } = served;
    drop(_server);
    let gone = client.ask(ListTenantsRequest {}).unwrap_err();
    assert_eq!(gone.code, Code::UNAVAILABLE, "{gone}");
    let gone = Client::connect(&path, None, PATIENCE).unwrap_err();
    assert_eq!(gone.code, Code::UNAVAILABLE, "{gone}");
}

// ---- the network ----

/// A server with TLS for `localhost`, and the certificate that it has.
fn secured(answer: impl Fn(Call) + Send + 'static) -> (std::net::SocketAddr, String, Server) {
    struct Fixed(TlsConfig);

    impl TlsSource for Fixed {
        fn current(&self) -> TlsConfig {
            self.0.clone()
        }

        fn failed(&self, _address: std::net::IpAddr, _why: &str) {}
    }

    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]);
    let certificate = certificate.unwrap().self_signed(&key).unwrap().pem();
    let config = TlsConfig::new(TlsMaterial {
        certificates: certificate.as_bytes(),
        key: key.serialize_pem().as_bytes(),
        client_authorities: None,
    });
    let tls = Tls::new(Fixed(config.unwrap()));
    let listener = StdTcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listeners = vec![Listener::Network(listener, Some(tls))];
    let (server, mut calls) = Server::start(listeners, nobody).unwrap();
    std::thread::spawn(move || {
        while let Some(incoming) = calls.blocking_recv() {
            answered(incoming, &answer);
        }
    });
    (address, certificate, server)
}

/// What a handshake of these versions with this protocol ends with.
fn shaken(
    address: std::net::SocketAddr,
    certificate: &str,
    versions: &[&'static rustls::SupportedProtocolVersion],
    alpn: &[u8],
) -> Result<Option<rustls::ProtocolVersion>, String> {
    use rustls::pki_types::pem::PemObject as _;

    let mut roots = rustls::RootCertStore::empty();
    let its = rustls::pki_types::CertificateDer::from_pem_slice(certificate.as_bytes());
    roots.add(its.unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider);
    let config = config.with_protocol_versions(versions).unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = "localhost".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(config.into(), name).unwrap();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    while client.is_handshaking() {
        let done = client.complete_io(&mut stream);
        done.map_err(|error| error.to_string())?;
    }
    Ok(client.protocol_version())
}

#[test]
fn the_network_gets_tls_1_3_with_http_2_and_nothing_else() {
    let (address, certificate, _server) = secured(by_rote);
    let with = |versions: &[&'static rustls::SupportedProtocolVersion], alpn: &[u8]| {
        shaken(address, &certificate, versions, alpn)
    };
    let both = [&rustls::version::TLS13, &rustls::version::TLS12];
    let agreed = with(&both, b"h2").unwrap();
    assert_eq!(agreed, Some(rustls::ProtocolVersion::TLSv1_3));
    let older = with(&both[1..], b"h2").unwrap_err();
    assert!(older.contains("ProtocolVersion"), "{older}");
    let other = with(&both, b"http/1.1").unwrap_err();
    assert!(other.contains("NoApplicationProtocol"), "{other}");
    // Plain HTTP/2 gets an alert, if anything.
    let mut plain = std::net::TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut answer = Vec::new();
    let _reset = plain.read_to_end(&mut answer);
    assert!(answer.len() < 16, "{answer:?}");
}

#[test]
fn a_remote_client_arrives_with_its_address_and_without_a_process() {
    let (address, certificate, _server) = secured(by_rote);
    let remote = crate::client::Remote {
        endpoint: format!("https://localhost:{}", address.port()),
        authorities: Some(certificate.into_bytes()),
        identity: None,
    };
    let client = Client::connect_remotely(&remote, None, PATIENCE).unwrap();
    let answer = client.ask(ListTenantsRequest {}).unwrap();
    assert_eq!(answer.tenants, ["none", "127.0.0.1 []"]);
    for (endpoint, words) in [
        ("localhost:1", "isn't"),
        ("https://localhost", "https://HOST:PORT"),
        ("https://:7443", "isn't"),
        ("https://localhost:7443/path", "https://HOST:PORT"),
        ("ftp://localhost:7443", "https://HOST:PORT"),
        ("http://192.0.2.1:7443", "in the clear"),
    ] {
        let endpoint = endpoint.to_owned();
        let remote = crate::client::Remote {
            endpoint,
            ..crate::client::Remote::default()
        };
        let refused = Client::connect_remotely(&remote, None, PATIENCE).unwrap_err();
        assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused}");
        assert!(refused.message.contains(words), "{refused}");
    }
}

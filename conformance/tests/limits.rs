//! The daemon's limits: the next object is refused with the limit in the message, and existing ones
//! continue.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Signal, Uid, getrlimit, setrlimit};
use serde_json::Value;
use tollgate::{Code, Session, SessionOptions, Status, block_on};
use tollgate_conformance::hostile::Wire;
use tollgate_conformance::peer::Peer;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{
    Daemon, Options, SOON, Testbed, eventually, policy_file, proto_file,
};
use tollgate_schema::Schema;
use tollgate_shm_abi::messages::{Empty, OpenSession, RequestBody, ResponseBody};
use tollgate_shm_abi::segment::ABI_VERSION;

const ECHO: &str = "hotel.Echo";

/// Echoes.
async fn serve(session: &Session, schema: &Schema) -> Result<(), Status> {
    session
        .serve_raw(schema.descriptor_set(), ECHO, |_, request| {
            Ok(request.to_vec())
        })
        .await
}

#[test]
fn methods_that_a_session_has_bound_are_limited() {
    /// `MAX_METHODS_PER_SESSION` of the daemon; `Echo` has one method.
    const LIMIT: usize = 4_096;
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let hotel = proto_file("hotel.proto");
    let schema = Schema::compile_proto(&[&hotel], &[hotel.parent().unwrap()]).unwrap();
    let open = || Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap();
    let (server, client) = (open(), open());
    block_on(&server, serve(&server, &schema)).unwrap();
    let bind = || {
        block_on(
            &client,
            client.bind_client(schema.descriptor_set(), ECHO, ""),
        )
    };
    let first = bind().unwrap();
    for _ in 1..LIMIT {
        bind().unwrap();
    }
    let refused = bind().unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
    assert!(refused.message.contains("the limit is 4096"), "{refused}");
    let layouts = schema.service(ECHO).unwrap().layouts;
    let empty = vec![0; layouts.messages[0].size as usize];
    let called = block_on(&client, async {
        let call = client.call_raw(
            first.handle("Echo").unwrap(),
            &empty,
            Some(Duration::from_secs(10)),
        );
        call.await.map(|reply| reply.to_vec())
    });
    assert_eq!(called.as_deref(), Ok(&empty[..]));
}

/// A link has 4,096 bind ids (`transport::limits::MAX_BINDS`): those of ended sessions are reused.
#[test]
fn bindings_at_a_peer_are_not_used_up_by_sessions_that_come_and_go() {
    const EACH: usize = 2_500;
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let (token, peer) = (a.tenant("acme"), b.listen().to_string());
    let hotel = proto_file("hotel.proto");
    let schema = Schema::compile_proto(&[&hotel], &[hotel.parent().unwrap()]).unwrap();
    let server = Session::open(SessionOptions::new(b.socket(), b.tenant("acme"))).unwrap();
    block_on(&server, serve(&server, &schema)).unwrap();
    for round in 0..3 {
        let session = Session::open(SessionOptions::new(a.socket(), &token)).unwrap();
        for k in 0..EACH {
            let bound = block_on(
                &session,
                session.bind_client(schema.descriptor_set(), ECHO, &peer),
            );
            assert!(bound.is_ok(), "round {round}, binding {k}: {bound:?}");
        }
    }
}

#[test]
fn services_and_schemas_that_a_tenant_serves_are_limited() {
    /// `MAX_SERVICES_PER_TENANT` of the daemon.
    const LIMIT: usize = 256;
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let (token, other) = (daemon.tenant("acme"), daemon.tenant("other"));
    let version = |k: usize| {
        let proto = format!(
            "syntax = \"proto3\"; package hotel; service Echo {{ rpc Echo(M) returns (M); }} message M {{ bytes f{k} = 1; }}"
        );
        let file = bed.file("echo.proto", proto);
        Schema::compile_proto(&[&file], &[file.parent().unwrap()]).unwrap()
    };
    let served = |token: &str, k: usize| {
        let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
        block_on(&session, serve(&session, &version(k)))
    };
    for k in 0..LIMIT {
        served(&token, k).unwrap();
    }
    let refused = served(&token, LIMIT).unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
    assert!(refused.message.contains("256 services"), "{refused}");
    assert_eq!(
        served(&token, 0),
        Ok(()),
        "what has been served may be served again"
    );
    assert_eq!(
        served(&other, LIMIT),
        Ok(()),
        "another tenant has its own count"
    );
}

/// The methods of all sessions of a tenant: a successor processes each while calls stand still.
#[test]
fn methods_that_a_tenant_has_bound_are_limited() {
    /// `MAX_METHODS_PER_SESSION` of the daemon, and its `MAX_METHODS_PER_TENANT`.
    const EACH: usize = 4_096;
    const LIMIT: usize = 65_536;
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let (token, other) = (daemon.tenant("acme"), daemon.tenant("other"));
    let methods: String = (0..EACH)
        .map(|k| format!("rpc M{k}(M) returns (M);"))
        .collect();
    let proto = format!(
        "syntax = \"proto3\"; package hotel; service Echo {{ {methods} }} message M {{ bytes f = 1; }}"
    );
    let file = bed.file("many.proto", proto);
    let schema = Schema::compile_proto(&[&file], &[file.parent().unwrap()]).unwrap();
    let open = |token: &str| Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
    let served = |session: &Session| block_on(session, serve(session, &schema));
    let mut sessions = Vec::new();
    for _ in 0..LIMIT / EACH {
        let session = open(&token);
        served(&session).unwrap();
        sessions.push(session);
    }
    let one_more = open(&token);
    let refused = served(&one_more).unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED);
    assert!(
        refused.message.contains("the limit of one tenant is 65536"),
        "{refused}"
    );
    assert_eq!(served(&open(&other)), Ok(()), "another tenant has its own");
    sessions.pop();
    eventually(SOON, || served(&one_more).is_ok()).expect("one went, one comes");
}

/// An answer that doesn't fit into a packet of 64 KiB.
#[test]
fn a_long_answer_is_cut_or_an_error_and_never_silence() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let version = |field: &str| {
        let methods: String = (0..400)
            .map(|k| format!("rpc D{k}{}(M) returns (M);", "x".repeat(80)))
            .collect();
        let proto = format!(
            "syntax = \"proto3\"; package hotel; service Echo {{ rpc A(K) returns (K); {methods} }} message M {{ {field} f = 1; }} message K {{}}"
        );
        let file = bed.file("long.proto", proto);
        Schema::compile_proto(&[&file], &[file.parent().unwrap()]).unwrap()
    };
    let open = || Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap();
    let (server, client) = (open(), open());
    block_on(&server, serve(&server, &version("string"))).unwrap();
    let other = version("int64");
    let binding = client.bind_client(other.descriptor_set(), ECHO, "");
    let bound = block_on(&client, binding).unwrap();
    assert!(bound.methods()[0].refused.is_none());
    let refused = bound.methods().iter().filter(|m| m.refused.is_some());
    assert_eq!(refused.count(), 400);

    for (service, target) in [
        ("\u{1}".repeat(20_000), String::new()),
        (ECHO.to_owned(), format!("{}:1", "\u{1}".repeat(20_000))),
    ] {
        let binding = client.bind_client(other.descriptor_set(), &service, &target);
        let refused = block_on(&client, binding).unwrap_err();
        assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused}");
        assert!(refused.message.len() < 4_096, "{}", refused.message.len());
    }
}

/// One peer is one link, however its name is spelled.
#[test]
fn spellings_of_a_target_share_a_link() {
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let hotel = proto_file("hotel.proto");
    let schema = Schema::compile_proto(&[&hotel], &[hotel.parent().unwrap()]).unwrap();
    let server = Session::open(SessionOptions::new(b.socket(), b.tenant("acme"))).unwrap();
    block_on(&server, serve(&server, &schema)).unwrap();
    let client = Session::open(SessionOptions::new(a.socket(), a.tenant("acme"))).unwrap();
    let port = b.listen().port();
    for host in ["localhost", "LocalHost", "localhost.", "LOCALHOST."] {
        for zeros in ["", "0", "00"] {
            let target = format!("{host}:{zeros}{port}");
            let binding = client.bind_client(schema.descriptor_set(), ECHO, &target);
            block_on(&client, binding).unwrap();
        }
    }
    let status = a.status();
    assert_eq!(status["links"].as_array().unwrap().len(), 1, "{status}");
}

#[test]
fn links_that_peers_open_are_limited_per_peer_and_leave_room_to_dial() {
    /// The daemon's `ACCEPTED_PER_PEER` and `SHARE_OF_OTHERS` of its `MAX_LINKS`, and
    /// `MAX_ACCEPTED_PER_PAIR`.
    const EACH: usize = 512;
    const LIMIT: usize = 768;
    const PAIR: u32 = 16;
    many_descriptors(4 * LIMIT as u64);
    let bed = Testbed::new();
    let (daemon, b) = (bed.daemon("a"), bed.daemon("b"));
    let token = daemon.tenant("acme");
    let goodbye = |peer: &mut Peer| {
        let said = std::iter::from_fn(|| peer.receive());
        said.map(|frame| frame.text()).collect::<String>()
    };
    let mut there = Vec::new();
    for k in 0..PAIR {
        let mut peer = Peer::connect(daemon.listen(), 0);
        peer.bind(0, "acme", ECHO, [7; 32]);
        let answer = peer.receive().unwrap().text();
        assert!(answer.contains("serves"), "{k}: {answer}");
        there.push(peer);
    }
    let mut peer = Peer::connect(daemon.listen(), 0);
    peer.bind(0, "acme", ECHO, [7; 32]);
    let answer = peer.receive().unwrap().text();
    assert!(
        answer.contains("one peer has 16 links for tenant acme"),
        "{answer}"
    );
    there.push(peer);
    while there.len() < EACH {
        there.push(Peer::connect(daemon.listen(), 0));
    }
    let said = goodbye(&mut Peer::connect(daemon.listen(), 0));
    assert!(said.contains("peer impostor has 512 links"), "{said}");
    while there.len() < LIMIT {
        there.push(Peer::try_connect_as(daemon.listen(), 0, "second").unwrap());
    }
    // The last accepted ones may not be ready yet.
    eventually(SOON, || {
        Peer::try_connect_as(daemon.listen(), 0, "third").is_none()
    })
    .expect("the table is full");
    check_against_the_sum(
        &daemon,
        &daemon.status()["capacity"],
        "links, and connections of peers",
    );
    let problems = daemon.status()["problems"].to_string();
    assert!(
        problems.contains("peers have opened 768 links"),
        "{problems}"
    );
    let hotel = proto_file("hotel.proto");
    let schema = Schema::compile_proto(&[&hotel], &[hotel.parent().unwrap()]).unwrap();
    let server = Session::open(SessionOptions::new(b.socket(), b.tenant("acme"))).unwrap();
    block_on(&server, serve(&server, &schema)).unwrap();
    let client = Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap();
    let peer = b.listen().to_string();
    let binding = client.bind_client(schema.descriptor_set(), ECHO, &peer);
    block_on(&client, binding).expect("it still dials");
}

/// Raises this process's limit of descriptors to the maximum.
fn many_descriptors(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let enough = limit.maximum.is_none_or(|most| most >= wanted);
    assert!(
        enough,
        "this test and its daemon need `ulimit -Hn {wanted}`"
    );
}

/// The descriptors of a full daemon, and its memory, beside the sum of its limits that `status`
/// reports. `line` is the line of the full table; the daemon must use a quarter of it, or the line
/// is wrong.
fn check_against_the_sum(daemon: &Daemon, capacity: &Value, line: &str) {
    let lines = capacity["descriptors_by"].as_array().unwrap();
    let line = lines.iter().find(|found| found["what"] == line).unwrap();
    let (line, sum) = (
        line["total"].as_u64().unwrap(),
        capacity["descriptors"].as_u64().unwrap(),
    );
    let taken = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let taken = taken.count() as u64;
    assert!(
        taken <= sum && taken >= line / 4,
        "{taken} descriptors; the line says {line}, the sum {sum}"
    );
    let resident = std::fs::read_to_string(format!("/proc/{}/statm", daemon.pid())).unwrap();
    let resident = resident.split(' ').nth(1).unwrap();
    let resident = resident.parse::<u64>().unwrap() * 4_096;
    let memory = capacity["memory_bytes"].as_u64().unwrap();
    assert!(resident <= memory, "{resident} of {memory} bytes");
}

/// The daemon counts a session's segments; on this side a session is one connection.
#[test]
fn sessions_are_limited_over_all_runtimes_and_need_no_more_descriptors_than_the_daemon_gets_itself()
{
    /// `MAX_SESSIONS` of the daemon.
    const LIMIT: usize = 4_096;
    many_descriptors(4 * LIMIT as u64);
    let bed = Testbed::new();
    let (program, socket) = (program("tollgated"), bed.path("a.sock"));
    let (program, socket) = (program.to_str().unwrap(), socket.to_str().unwrap());
    let shell = ["-c", "ulimit -Sn 256; exec \"$@\"", "sh", program];
    let options = [
        "--name",
        "a",
        "--listen",
        "127.0.0.1:0",
        "--socket",
        socket,
        "--cores",
        "0,0",
    ];
    let started = Process::start(Path::new("/bin/sh"), shell.iter().chain(&options));
    let daemon = Daemon::ready(started.unwrap());
    let tokens = ["acme", "other", "third", "fourth"].map(|tenant| daemon.tenant(tenant));
    let open = |k: usize| {
        let open = OpenSession {
            abi_version: ABI_VERSION,
            token: tokens[k % 4].clone(),
            send_heap_bytes: 1 << 20,
            receive_heap_bytes: 1 << 20,
            ..OpenSession::default()
        };
        let mut wire = Wire::connect(daemon.socket());
        match wire.ask(RequestBody::OpenSession(open), &[]).unwrap().0 {
            ResponseBody::SessionOpened(_) => Ok(wire),
            other => Err(format!("{other:?}")),
        }
    };
    let mut opened = Vec::new();
    for k in 0..LIMIT / 4 {
        opened.push(open(4 * k).unwrap());
    }
    let refused = open(0).unwrap_err();
    assert!(
        refused.contains("tenant acme has 1024 sessions"),
        "{refused}"
    );
    assert_eq!(
        daemon.tollgate(["tenant", "list"]).code,
        0,
        "the operator gets through"
    );
    let mut others = (0..).filter(|k| k % 4 != 0);
    let refused = loop {
        match open(others.next().unwrap()) {
            Ok(wire) => opened.push(wire),
            Err(refused) => break refused,
        }
    };
    assert_eq!(opened.len(), LIMIT, "{refused}");
    assert_eq!(daemon.tollgate(["tenant", "list"]).code, 0);
    assert!(
        refused.contains("the daemon has 4096 sessions"),
        "{refused}"
    );
    check_against_the_sum(
        &daemon,
        &daemon.status()["capacity"],
        "sessions, with their connections",
    );
    opened.remove(0);
    eventually(SOON, || open(0).map(|wire| opened.push(wire)).is_ok())
        .expect("one went, one comes");
    assert!(open(1).is_err());
}

#[test]
fn control_connections_are_limited() {
    /// `MAX_CONNECTIONS` of the daemon.
    const LIMIT: usize = 8_192;
    many_descriptors(2 * LIMIT as u64);
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let capacity = daemon.status()["capacity"].clone();
    let connect = || Wire::connect(daemon.socket());
    // A request that needs a session is refused, and so answered.
    let is_served = |wire: &mut Wire| {
        let answer = wire.ask(RequestBody::Drain(Empty {}), &[]);
        let Some((ResponseBody::Failure(failure), _)) = answer else {
            return false;
        };
        failure.message.contains("no session to drain")
    };
    // They are accepted in order, so the first one that isn't served exceeds the limit. Each is
    // closed after 10 s without a session.
    let mut connected: Vec<Wire> = (1..LIMIT).map(|_| connect()).collect();
    let mut last = connect();
    assert!(is_served(&mut last));
    let mut one_more = connect();
    assert!(!is_served(&mut one_more));
    assert!(is_served(&mut last), "those that are there go on");
    check_against_the_sum(&daemon, &capacity, "connections without a session");
    connected.pop();
    eventually(SOON, || is_served(&mut connect())).expect("one went, one comes");
}

/// A process that checks a pushed policy counts until it ends, half a second later.
#[test]
fn a_tenant_has_a_share_of_the_instances_of_policies() {
    let bed = Testbed::new();
    let options = Options {
        config: "[policies]\ninstances = 20\n".to_owned(),
        ..Options::default()
    };
    let daemon = bed.daemon_with("a", &options);
    let attach = |owner: &str, number: usize| {
        daemon.run(&format!(
            "policy attach p@1 {owner} --service a.B{number} --side client"
        ))
    };
    for tenant in ["acme", "other"] {
        daemon.tenant(tenant);
        daemon.push(&format!("--tenant {tenant}"), "null", "p", None);
    }
    daemon.push("--provider", "null", "p", None);
    let words = "the policies of tenant acme would have 17 instances in the daemon, and its share of `policies.instances` = 20 is 16";
    // Documents have room for all, or for none.
    let mut documents = "attachments:\n".to_owned();
    for number in 0..17 {
        documents += &format!(
            "- {{tenant: acme, policy: p, version: 1, service: a.B{number}, side: client}}\n"
        );
    }
    let file = bed.file("many.yaml", documents);
    let refused = daemon.run(&format!("apply -f {}", file.display()));
    assert_eq!(refused.code, 8, "{refused}");
    assert!(refused.err.contains(words), "{refused}");
    for number in 0..16 {
        assert_eq!(attach("--tenant acme", number).code, 0);
    }
    let refused = attach("--tenant acme", 16);
    assert_eq!(refused.code, 8, "{refused}");
    assert!(refused.err.contains(words), "{refused}");
    // What takes the place of an instance needs no other one.
    assert_eq!(attach("--tenant acme --cpu-us 50", 3).code, 0);
    // All tenants together leave one to the provider.
    for number in 0..3 {
        assert_eq!(attach("--tenant other", number).code, 0);
    }
    let refused = attach("--tenant other", 3);
    assert_eq!(refused.code, 8, "{refused}");
    assert!(
        refused
            .err
            .contains("tenants' policies would have 20 instances"),
        "{refused}"
    );
    assert_eq!(attach("--provider", 0).code, 0);
}

#[test]
fn policy_processes_are_limited_and_have_descriptors_of_their_own() {
    /// The daemon's `SHARE_OF_POLICY_PROCESSES` of 1,024 descriptors, with
    /// `DESCRIPTORS_PER_POLICY_PROCESS` for each.
    const LIMIT: usize = 9;
    let bed = Testbed::new();
    let with = |descriptors: &str| {
        let limited = format!("ulimit -n {descriptors}; exec \"$@\"");
        let options = Options {
            under: ["/bin/sh", "-c", &limited, "sh"].map(str::to_owned).into(),
            durable: true,
            ..Options::default()
        };
        bed.daemon_with("a", &options)
    };
    let daemon = with("1024");
    let file = policy_file("null").display().to_string();
    for k in 0..=LIMIT {
        daemon.tenant(&format!("t{k}"));
        let push = format!("policy push {file} --tenant t{k} --name null");
        daemon.ok(&push);
    }
    let attach = |daemon: &Daemon, k: usize| {
        daemon.run(&format!(
            "policy attach null@1 --tenant t{k} --service {ECHO} --side client --isolation process"
        ))
    };
    for k in 0..LIMIT {
        assert_eq!(attach(&daemon, k).code, 0, "there is room");
    }
    let refused = attach(&daemon, LIMIT);
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED.0 as i32, "{refused}");
    for words in [
        "tenant t9 can't have a policy process: the daemon has 9, which is the limit",
        "LimitNOFILE",
        "--isolation none",
    ] {
        assert!(refused.err.contains(words), "{refused}");
    }
    let capacity = daemon.status()["capacity"].clone();
    check_against_the_sum(&daemon, &capacity, "policy processes");

    // A tenant whose process has died keeps its place.
    let (_, first) = processes(&daemon).remove(0);
    rustix::process::kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    assert_eq!(attach(&daemon, LIMIT).code, refused.code);
    let is_replaced = || {
        let now = processes(&daemon);
        now.len() == LIMIT && now.iter().all(|(_, pid)| *pid != first)
    };
    eventually(SOON, is_replaced).expect("the process is replaced");

    // So do the tenants of a daemon that comes back with fewer places.
    let before: Vec<_> = processes(&daemon)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    drop(daemon);
    let daemon = with("600");
    let after: Vec<_> = processes(&daemon)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(after, before);
    assert_eq!(attach(&daemon, LIMIT).code, refused.code);
    for k in 0..LIMIT {
        daemon.ok(&format!("policy detach null --tenant t{k}"));
    }
    // Unused processes give way, once the runtimes have dropped their instances.
    eventually(SOON, || attach(&daemon, LIMIT).code == 0).expect("many went, one comes");
}

/// The tenants with policy processes, in order, and the processes' ids.
fn processes(daemon: &Daemon) -> Vec<(String, i32)> {
    let status = daemon.status();
    let running = status["processes"]["running"].as_array().unwrap();
    let mut all: Vec<_> = running
        .iter()
        .map(|process| {
            let tenant = process["tenant"].as_str().unwrap().to_owned();
            (tenant, process["pid"].as_i64().unwrap() as i32)
        })
        .collect();
    all.sort();
    all
}

/// Connects as another user, which needs root, and sends nothing.
fn silent(daemon: &Daemon, user: u32, count: usize) -> Vec<Wire> {
    let socket = daemon.socket().to_owned();
    let connecting = std::thread::spawn(move || {
        // For this thread only: other threads keep their user.
        rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
        let connect = |_| Wire::connect(&socket);
        (0..count).map(connect).collect::<Vec<_>>()
    });
    connecting.join().unwrap()
}

/// The daemon's message to a connection that sent nothing.
fn told(wire: &Wire) -> Option<String> {
    match wire.receive(Duration::ZERO)?.0.body {
        Some(ResponseBody::Failure(failure)) => Some(failure.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn silent_connections_of_one_user_end_and_leave_room_for_others_and_for_the_operator() {
    /// `STRANGERS_PER_USER` of the daemon.
    const SHARE: usize = 512;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    many_descriptors(4 * SHARE as u64);
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let everybody = |path: &Path| {
        std::fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    };
    everybody(daemon.socket());
    everybody(daemon.socket().parent().unwrap());
    let mut kept = silent(&daemon, 65_534, SHARE + 100);
    // Connections are accepted in order: all others came before the operator's.
    let token = daemon.tenant("acme");
    kept.retain(|wire| {
        let told = told(wire);
        let share = "user 65534 has 512 connections without a session";
        assert!(
            told.as_ref().is_none_or(|why| why.contains(share)),
            "{told:?}"
        );
        told.is_none()
    });
    assert_eq!(kept.len(), SHARE);
    let others = silent(&daemon, 65_533, 10);
    daemon.tenant("other");
    assert!(
        others.iter().all(|wire| told(wire).is_none()),
        "another user has a share of its own"
    );
    Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap();
    kept.extend(others);
    let all_are_closed = || {
        kept.retain(|wire| {
            let told = told(wire);
            let silence = "sent no request within 10 s";
            assert!(
                told.as_ref().is_none_or(|why| why.contains(silence)),
                "{told:?}"
            );
            told.is_none()
        });
        kept.is_empty()
    };
    eventually(SOON, all_are_closed).expect("who says nothing is closed");
}

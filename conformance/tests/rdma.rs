//! Daemons with links over RDMA: applications call as over TCP, without noticing. Runs in the VM
//! with two soft-RoCE devices (`.ci/rdma daemons`), so nothing else builds it.
//!
//! There, everything is next to the test's program: daemon, command line, policy.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tollgate::{
    Bytes, Channel, Code, Received, Reply, Request, Response, Server, Service, Session,
    SessionOptions, Status, Workers, block_on,
};
use tollgate_conformance::counting::{Counting, ask, payload};
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::ReserveRequest;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::hotel::echo_server::{Echo, EchoServer};
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::ReservationServer;
use tollgate_conformance::interop::{Ask, SemanticsClient, SemanticsServer, Server as Interop};
use tollgate_conformance::process::{program, programs, runtimes_ns};
use tollgate_conformance::testbed::{Daemon, Options, Testbed, eventually};

/// The VM's addresses: caller and server.
const CALLER: &str = "10.99.0.1";
const CALLED: &str = "10.99.0.2";

/// The time limit of any step in an emulator.
const LONG: Duration = Duration::from_secs(90);

/// A payload that is large enough to avoid copies.
const PAYLOAD: usize = 2 << 20;

/// Two hosts, each with a device of its own.
struct Hosts {
    bed: Testbed,
    a: Daemon,
    b: Daemon,
    tokens: [String; 2],
}

fn options(ip: &str, port: u16, rdma: &str) -> Options {
    let ip: IpAddr = ip.parse().unwrap();
    Options {
        psk: Some("q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI=".to_owned()),
        listen: Some(SocketAddr::new(ip, port)),
        config: format!("[rdma]\nfrom = \"{ip}\"\nunprotected = true\n{rdma}\n"),
        ..Options::default()
    }
}

impl Hosts {
    fn new() -> Hosts {
        Hosts::with("", "")
    }

    /// With further RDMA settings.
    fn with(a: &str, b: &str) -> Hosts {
        Hosts::of(&options(CALLER, 0, a), &options(CALLED, 0, b))
    }

    fn of(a: &Options, b: &Options) -> Hosts {
        let bed = Testbed::new();
        let (a, b) = (bed.daemon_with("a", a), bed.daemon_with("b", b));
        let tokens = [a.tenant("acme"), b.tenant("acme")];
        Hosts { bed, a, b, tokens }
    }

    fn peer(&self) -> String {
        self.b.listen().to_string()
    }

    fn open(&self) -> Session {
        Session::open(SessionOptions::new(self.a.socket(), &*self.tokens[0])).unwrap()
    }

    fn serve(&self, service: impl Service) -> Session {
        let session = Session::open(SessionOptions::new(self.b.socket(), &*self.tokens[1]));
        let session = session.unwrap();
        block_on(&session, Server::new(&session).add_service(service).bind()).unwrap();
        session
    }

    /// Counts its calls, on workers: a slow call delays no other.
    fn serve_counting(&self) -> (Session, Counting, Workers) {
        let (workers, counting) = (Workers::start(2).unwrap(), Counting::default());
        let service = SemanticsServer::new(counting.clone());
        let service = workers.serve_methods(service, &["Unary"]).unwrap();
        (self.serve(service), counting, workers)
    }

    /// A call between two of this tenant's applications, and these applications.
    fn call_as(&self, tenant: &str) -> (Session, Session) {
        let [a, b] = match tenant {
            "acme" => self.tokens.clone(),
            other => [self.a.tenant(other), self.b.tenant(other)],
        };
        let server = Session::open(SessionOptions::new(self.b.socket(), &*b)).unwrap();
        let service = SemanticsServer::new(Interop);
        block_on(&server, Server::new(&server).add_service(service).bind()).unwrap();
        let session = Session::open(SessionOptions::new(self.a.socket(), &*a)).unwrap();
        let client = SemanticsClient::new(Channel::new(&session, &self.peer()));
        block_on(&session, client.unary(ask(1))).unwrap();
        (server, session)
    }

    /// Without calls, runtimes use no CPU.
    fn expect_idle(&self) {
        let used = || runtimes_ns(self.a.pid()) + runtimes_ns(self.b.pid());
        std::thread::sleep(Duration::from_millis(500));
        let before = used();
        std::thread::sleep(Duration::from_secs(3));
        let used = used() - before;
        assert!(used < 150_000_000, "{used} ns in 3 s");
    }

    /// For the caller's daemon.
    fn link(&self) -> Value {
        let links = self.a.status()["links"].clone();
        assert_eq!(links.as_array().map(Vec::len), Some(1), "{links}");
        links[0].clone()
    }

    /// Waits until the caller's daemon has only one link, over RDMA, after replacing others.
    /// Meanwhile `calls` are made. Each question to the daemon is a process, which is work for the
    /// emulator, so it happens twice a second.
    fn expect_rdma_alone(&self, mut calls: impl FnMut()) {
        let mut links = Value::Null;
        let alone = eventually(LONG, || {
            std::thread::sleep(Duration::from_millis(500));
            calls();
            links = self.a.status()["links"].clone();
            let links = links.as_array().unwrap();
            links.len() == 1 && links[0]["transport"] == "rdma"
        });
        alone.unwrap_or_else(|_| panic!("RDMA is tried again, and a link over TCP ends: {links}"));
    }

    /// Makes calls that cross a link over RDMA, and returns that link. Only an emulator without a
    /// processor, which dials for longer than the daemon waits, may cross TCP first.
    fn expect_rdma(&self, mut calls: impl FnMut()) -> Value {
        calls();
        if let Some(why) = self.link()["not_rdma"].as_str() {
            assert!(why.contains("isn't ready by RDMA after"), "{why}");
            self.expect_rdma_alone(calls);
        }
        self.rdma_link()
    }

    /// The caller's link, which is one over RDMA.
    fn rdma_link(&self) -> Value {
        let link = self.link();
        assert_eq!(link["transport"], "rdma", "{link}");
        assert_eq!(link["device"], "rxe_va", "{link}");
        assert_eq!(link["state"], "ready", "{link}");
        link
    }
}

fn shell(command: &str) {
    let done = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(done.success(), "{command}");
}

/// A call ends with its link, and its error names the link's peer.
fn expect_lost(outcome: Result<(), Status>, peer: &str) {
    let lost = outcome.expect_err("nobody answers");
    assert_eq!(lost.code, Code::UNAVAILABLE, "{lost}");
    assert!(lost.message.contains(peer), "{lost}");
}

/// Has a call in flight during this action, which ends it.
fn lose_a_call(session: &Session, peer: &str, happens: impl FnOnce()) {
    let client = SemanticsClient::new(Channel::new(session, peer));
    let slow = Ask {
        delay_ms: 60_000,
        ..ask(2)
    };
    let outcome = std::thread::scope(|scope| {
        let call = scope.spawn(|| block_on(session, client.unary(slow)).map(drop));
        std::thread::sleep(Duration::from_millis(500));
        happens();
        call.join().unwrap()
    });
    expect_lost(outcome, peer);
}

/// The resources shared by a runtime's links over RDMA.
fn polled(daemon: &Daemon, runtime: usize) -> Value {
    daemon.status()["datapath"][runtime]["rdma"].clone()
}

/// A call and its answer, for each size that is sent in another way.
fn call_every_size(session: &Session, peer: &str) {
    let client = SemanticsClient::new(Channel::new(session, peer));
    for number in 0..10 {
        let request = Ask {
            payload: payload(number),
            ..ask(number)
        };
        let reply = block_on(session, client.unary(request)).unwrap();
        let mut want = payload(number);
        want.reverse();
        assert_eq!(reply.get_ref().view().payload(), want, "call {number}");
    }
}

/// Until a call comes through.
fn call_again(session: &Session, peer: &str) {
    let client = SemanticsClient::new(Channel::new(session, peer));
    let answered = eventually(LONG, || match block_on(session, client.unary(ask(7))) {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
            std::thread::sleep(Duration::from_millis(100));
            false
        }
    });
    answered.expect("the link is dialled again");
}

/// Answers with an empty message if it has received exactly this payload.
struct Checks;

fn pattern() -> impl Iterator<Item = u8> {
    (0..PAYLOAD).map(|at| (at % 251) as u8)
}

impl Echo for Checks {
    async fn echo(&self, request: Request<Received<EchoMessage>>) -> Reply<EchoMessage> {
        match request
            .get_ref()
            .view()
            .payload()
            .iter()
            .copied()
            .eq(pattern())
        {
            true => Ok(Response::new(EchoMessage::default())),
            false => Err(Status::new(Code::DATA_LOSS, "another payload")),
        }
    }
}

#[test]
fn calls_of_all_sizes_cross_and_both_ends_say_by_what() {
    let hosts = Hosts::new();
    let _serving = hosts.serve_counting();
    let session = hosts.open();
    let link = hosts.expect_rdma(|| call_every_size(&session, &hosts.peer()));
    assert_eq!(link["one_sided"], false);
    assert_eq!(link["copies_because"], Value::Null);
    let there = hosts.b.status();
    assert_eq!(there["links"][0]["transport"], "rdma", "{there}");
    assert_eq!(there["rdma"]["unavailable"], Value::Null);
    assert_eq!(there["rdma"]["not_listening"], Value::Null);
    assert_eq!(there["rdma"]["devices"].as_array().map(Vec::len), Some(2));
}

#[test]
fn one_sided_links_cross_into_rings() {
    let ring = "one_sided = true\nring_kib = 256";
    let hosts = Hosts::with(ring, ring);
    let _serving = hosts.serve_counting();
    let session = hosts.open();
    let link = hosts.expect_rdma(|| call_every_size(&session, &hosts.peer()));
    assert_eq!(link["one_sided"], true);
}

/// From the buffer of one application into the heap of the other, by the devices alone.
#[test]
fn a_large_payload_is_copied_by_nobody_and_registered_once() {
    let hosts = Hosts::new();
    let _serving = hosts.serve(EchoServer::new(Checks));
    let session = hosts.open();
    let client = EchoClient::new(Channel::new(&session, &hosts.peer()));
    let mut buffer = session.buffer(PAYLOAD).unwrap();
    buffer
        .iter_mut()
        .zip(pattern())
        .for_each(|(at, byte)| *at = byte);
    let payload = Bytes::from(buffer.freeze());
    let call = || {
        let payload = payload.clone();
        block_on(&session, client.echo(EchoMessage { payload })).unwrap();
    };
    // The growth of the link's count at this host, if the link stays the same.
    let grown = |[first, then]: &[[Value; 2]; 2], host: usize, what: &str| {
        let of = |status: &Value| {
            let links = status["links"]
                .as_array()
                .filter(|links| links.len() == 1)?;
            links[0][what].as_u64()
        };
        of(&then[host])?.checked_sub(of(&first[host])?)
    };
    let mut measured = None;
    eventually(LONG, || {
        // An emulator without a processor loses its link. The next one is measured then.
        hosts.expect_rdma_alone(call);
        let statuses = || [hosts.a.status(), hosts.b.status()];
        let first = statuses();
        call();
        call();
        let both = [first, statuses()];
        let is_same = |host| grown(&both, host, "work_requests").is_some();
        measured = [0, 1].into_iter().all(is_same).then_some(both);
        measured.is_some()
    })
    .expect("a link over RDMA stays for two calls");
    let both = measured.unwrap();
    let [first, then] = &both;
    for host in [0, 1] {
        let grown = |what| grown(&both, host, what).unwrap();
        assert_eq!(grown("registrations"), 0, "host {host}");
        assert!(grown("bytes_copied") < 4_096, "host {host}: {then:?}");
        assert!(grown("bytes_in_place") >= 2 * PAYLOAD as u64, "{then:?}");
    }
    let received = |status: &Value| status["bytes"]["received_in_place"].as_u64().unwrap();
    assert_eq!(received(&then[1]) - received(&first[1]), 2 * PAYLOAD as u64);
    // Resources of an application at its device are freed with it.
    let heaps = |daemon: &Daemon| {
        let devices = daemon.status()["rdma"]["devices"].clone();
        let devices = devices.as_array().unwrap().iter();
        devices
            .map(|device| device["heaps"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(heaps(&hosts.a), 1);
    drop((payload, client));
    session.close();
    eventually(LONG, || heaps(&hosts.a) == 0).expect("the heap is forgotten");
}

#[test]
fn a_policy_of_the_servers_side_reads_its_copy_before_the_application_has_any() {
    // A compiler in an emulator is slow, too.
    let slow = "[policies]\ncpu_us = 10000\n[compile]\ntimeout_ms = 60000";
    let hosts = Hosts::with("", slow);
    let _serving = hosts.serve(ReservationServer::new(
        tollgate_conformance::backstage::Hotel::default(),
    ));
    let listed = "x".repeat(5_000);
    let config = format!(r#"{{"blocked": ["{listed}", "short"]}}"#);
    let config = hosts.bed.file("acl.json", config);
    let acl = programs().join("hotel_acl.wasm");
    let push = format!(
        "policy push {} --tenant acme --name acl --config {}",
        acl.display(),
        config.display()
    );
    hosts.b.ok(&push);
    hosts
        .b
        .ok("policy attach acl@1 --tenant acme --service hotel.Reservation --side server");
    let session = hosts.open();
    let client = ReservationClient::new(Channel::new(&session, &hosts.peer()));
    let reserve = |name: &str| {
        let request = ReserveRequest {
            customer_name: name.to_owned(),
            room_count: 1,
            ..ReserveRequest::default()
        };
        let reply = block_on(&session, client.reserve(request));
        reply.map(|_| ()).map_err(|status| status.code)
    };
    hosts.expect_rdma(|| {
        assert_eq!(reserve("Ada"), Ok(()));
        assert_eq!(reserve("short"), Err(Code::PERMISSION_DENIED));
        assert_eq!(reserve(&listed), Err(Code::PERMISSION_DENIED));
        assert_eq!(reserve(&"y".repeat(5_000)), Ok(()));
    });
}

#[test]
fn streams_cross_and_deadlines_pass() {
    let hosts = Hosts::new();
    let _serving = hosts.serve(SemanticsServer::new(Interop));
    let session = hosts.open();
    let client = SemanticsClient::new(Channel::new(&session, &hosts.peer()));
    hosts.expect_rdma(|| drop(block_on(&session, client.unary(ask(0))).unwrap()));
    block_on(&session, async {
        let many = Ask {
            responses: 100,
            response_bytes: 5_000,
            ..ask(0)
        };
        let mut spread = client.spread(many).await.unwrap().into_inner();
        for number in 0..100 {
            let answer = spread.message().await.unwrap().unwrap();
            assert_eq!(answer.view().number(), number);
            assert_eq!(answer.view().payload().len(), 5_000);
        }
        assert!(spread.message().await.unwrap().is_none());
    });
    drop(_serving);
    let _slow = hosts.serve_counting();
    let mut request = Request::new(Ask {
        delay_ms: 3_000,
        ..ask(1)
    });
    request.set_timeout(Duration::from_millis(300));
    let late = block_on(&session, client.unary(request)).map(drop);
    assert_eq!(late.unwrap_err().code, Code::DEADLINE_EXCEEDED);
    hosts.rdma_link();
}

/// Either of two runtimes accepts links, which move to their tenant's runtime.
#[test]
fn links_move_to_the_runtime_of_their_tenant() {
    let [a, b] = [(CALLER, 0), (CALLED, 0)].map(|(ip, port)| Options {
        config: format!("runtimes = 2\n{}", options(ip, port, "").config),
        ..options(ip, port, "")
    });
    let hosts = Hosts::of(&a, &b);
    let tenants = ["acme", "globex", "initech", "umbrella"];
    let serving: Vec<_> = tenants.iter().map(|tenant| hosts.call_as(tenant)).collect();
    for daemon in [&hosts.a, &hosts.b] {
        let status = daemon.status();
        let links = status["links"].as_array().unwrap();
        assert_eq!(links.len(), 4, "{status}");
        let by_rdma = links.iter().all(|link| link["transport"] == "rdma");
        assert!(by_rdma, "{status}");
    }
    // An established link moves with its tenant, too.
    let home = |daemon: &Daemon, tenant: &str| {
        let homes = daemon.status()["homes"].clone();
        let its = homes.as_array().unwrap().iter();
        let its = its.filter(|home| home["tenant"] == tenant);
        its.map(|home| home["runtime"].as_u64().unwrap()).sum()
    };
    let before: u64 = home(&hosts.b, "acme");
    let to = 1 - before;
    hosts.b.ok(&format!("tenant move acme --runtime {to}"));
    assert_eq!(home(&hosts.b, "acme"), to);
    let call_all = || {
        for (_, session) in &serving {
            let client = SemanticsClient::new(Channel::new(session, &hosts.peer()));
            block_on(session, client.unary(ask(2))).unwrap();
        }
    };
    call_all();
    // Each link is on its tenant's runtime, whichever polls the shared resources; and a sleeping
    // runtime is woken only for its own links.
    for daemon in [&hosts.a, &hosts.b] {
        let of_runtime = |runtime| polled(daemon, runtime)["links"].as_u64().unwrap();
        assert_eq!(of_runtime(0) + of_runtime(1), 4);
        let at_0 = tenants.iter().filter(|tenant| home(daemon, tenant) == 0);
        assert_eq!(of_runtime(0), at_0.count() as u64);
    }
    hosts.expect_idle();
    call_all();
}

/// The links of 40 tenants, on one runtime at each end: the pinned memory is two pools, not the
/// queues of 40 links.
#[test]
fn many_links_share_what_is_pinned() {
    let hosts = Hosts::new();
    // One more than the size of a pool.
    let tenants: Vec<String> = (0..33).map(|n| format!("tenant-{n}")).collect();
    let serving: Vec<_> = tenants.iter().map(|tenant| hosts.call_as(tenant)).collect();
    for daemon in [&hosts.a, &hosts.b] {
        let polled = polled(daemon, 0);
        assert_eq!(
            (&polled["links"], &polled["pools"]),
            (&33.into(), &2.into())
        );
        let devices = daemon.status()["rdma"]["devices"].clone();
        let pinned = devices.as_array().unwrap().iter();
        let pinned = pinned.map(|device| device["pinned_bytes"].as_u64().unwrap());
        assert_eq!(pinned.sum::<u64>(), 2 * 32 * (256 << 10), "{devices}");
    }
    hosts.expect_idle();
    for (_, session) in &serving {
        let client = SemanticsClient::new(Channel::new(session, &hosts.peer()));
        block_on(session, client.unary(ask(2))).unwrap();
    }
}

#[test]
fn a_peer_without_rdma_is_reached_by_tcp_and_status_says_why() {
    let hosts = Hosts::with("", "enabled = false");
    let _serving = hosts.serve_counting();
    let session = hosts.open();
    call_every_size(&session, &hosts.peer());
    let link = hosts.link();
    assert_eq!(link["transport"], "tcp", "{link}");
    let why = link["not_rdma"].as_str().unwrap();
    assert!(
        why.contains("nothing accepts RDMA connections there"),
        "{why}"
    );
    let there = hosts.b.status();
    let off = "the configuration says rdma.enabled = false";
    assert_eq!(there["rdma"]["unavailable"], off);
}

/// A peer that gets RDMA later is reached by it, and no call is lost during the change.
#[test]
fn calls_go_on_while_their_link_is_replaced_by_one_over_rdma() {
    let mut hosts = Hosts::with("", "enabled = false");
    let (_serving, counting, _workers) = hosts.serve_counting();
    let session = hosts.open();
    let peer = hosts.peer();
    call_every_size(&session, &peer);
    assert_eq!(hosts.link()["transport"], "tcp");
    // The next process reads it.
    hosts.bed.file("b.toml", options(CALLED, 0, "").config);
    let own = program("tollgated").display().to_string();
    let next = hosts.bed.successor("next-b", &own);
    hosts.b.upgrade(&next);
    let client = SemanticsClient::new(Channel::new(&session, &peer));
    let mut made = 100;
    hosts.expect_rdma_alone(|| {
        let calls = (made..made + 20).map(|number| client.unary(ask(number)));
        let answers = block_on(&session, futures_util::future::join_all(calls));
        for answer in answers {
            answer.expect("no call is lost");
        }
        made += 20;
    });
    let handled = counting.handled.lock().unwrap();
    let twice = handled
        .iter()
        .find(|(number, times)| **number >= 100 && **times != 1);
    assert_eq!(twice, None, "each once");
}

#[test]
fn a_daemon_that_was_killed_is_dialled_again_by_rdma() {
    let mut hosts = Hosts::new();
    let (_serving, _, _workers) = hosts.serve_counting();
    let session = hosts.open();
    let peer = hosts.peer();
    let client = SemanticsClient::new(Channel::new(&session, &peer));
    hosts.expect_rdma(|| drop(block_on(&session, client.unary(ask(1))).unwrap()));
    lose_a_call(&session, &peer, || {
        hosts.b.process().signal(Signal::KILL);
    });
    drop((_serving, _workers));
    let port = hosts.b.listen().port();
    hosts.b = hosts.bed.daemon_with("b", &options(CALLED, port, ""));
    hosts.tokens[1] = hosts.b.tenant("acme");
    let _again = hosts.serve_counting();
    call_again(&session, &peer);
    hosts.expect_rdma_alone(|| {});
}

/// A network that loses everything, while this exists. The device doesn't go down: soft-RoCE then
/// connects to nobody any more, if it was about to send.
struct Outage;

impl Outage {
    fn begin() -> Outage {
        shell("for d in va vb; do tc qdisc add dev $d root netem loss 100%; done");
        Outage
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        shell("for d in va vb; do tc qdisc del dev $d root; done");
    }
}

#[test]
fn a_network_that_was_lost_is_used_again() {
    let hosts = Hosts::new();
    let _serving = hosts.serve_counting();
    let session = hosts.open();
    let peer = hosts.peer();
    hosts.expect_rdma(|| call_every_size(&session, &peer));
    let outage = Outage::begin();
    let client = SemanticsClient::new(Channel::new(&session, &peer));
    let lost = block_on(&session, client.unary(ask(1))).map(drop);
    expect_lost(lost, &peer);
    drop(outage);
    call_again(&session, &peer);
    hosts.expect_rdma_alone(|| {});
    call_every_size(&session, &peer);
    drop(session);
    hosts.expect_idle();
}

/// Without its device the called host is reached over TCP, and no runtime continues to look for it.
#[test]
#[ignore = "takes a device away: .ci/rdma runs it in a VM of its own"]
fn a_device_that_is_removed_is_replaced_by_tcp() {
    let hosts = Hosts::new();
    let _serving = hosts.serve_counting();
    let session = hosts.open();
    let peer = hosts.peer();
    hosts.expect_rdma(|| call_every_size(&session, &peer));
    // The command ends when nobody uses the device any more.
    lose_a_call(&session, &peer, || shell("rdma link del rxe_vb &"));
    call_again(&session, &peer);
    let link = hosts.link();
    assert_eq!(link["transport"], "tcp", "{link}");
    call_every_size(&session, &peer);
    hosts.expect_idle();
}

/// Queue pairs aren't handed over: the link ends with the old process, and is dialled again to the
/// new one.
#[test]
fn an_upgrade_ends_the_link_and_it_is_dialled_again() {
    let mut hosts = Hosts::new();
    let _serving = hosts.serve_counting();
    let session = hosts.open();
    let peer = hosts.peer();
    call_every_size(&session, &peer);
    let own = program("tollgated").display().to_string();
    for name in ["next-b", "next-a"] {
        let next = hosts.bed.successor(name, &own);
        match name {
            "next-b" => hosts.b.upgrade(&next),
            _ => hosts.a.upgrade(&next),
        };
        call_again(&session, &peer);
        call_every_size(&session, &peer);
    }
}

#[test]
fn an_idle_link_costs_no_processor() {
    let hosts = Hosts::new();
    let _serving = hosts.serve_counting();
    let session = hosts.open();
    hosts.expect_rdma(|| call_every_size(&session, &hosts.peer()));
    hosts.expect_idle();
    call_every_size(&session, &hosts.peer());
}

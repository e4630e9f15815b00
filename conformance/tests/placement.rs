//! Tenants move between runtimes, and runtimes come and go, while calls are in flight: each is
//! handled and answered once, streams continue in order, policies keep their state, and no
//! application reopens its session.
//!
//! 24 moves under load; more: `TOLLGATE_MOVES=2000 cargo test --test placement -- --nocapture`. The
//! time in which a tenant stood still is printed.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde_json::Value;
use tollgate::{Channel, Code, Request, Server, Session, SessionOptions, Workers, block_on};
use tollgate_conformance::backstage::Hotel;
use tollgate_conformance::counting::{Counting, ask, payload};
use tollgate_conformance::hotel::ReserveRequest;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::ReservationServer;
use tollgate_conformance::interop::{Ask, SemanticsClient, SemanticsServer, Server as Interop};
use tollgate_conformance::process::{program, threads};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, times};
use tollgate_conformance::traffic::Traffic;

const SERVICE: &str = "interop.Semantics";

/// A daemon with this many runtimes, on cores chosen by the kernel.
fn with_runtimes(bed: &Testbed, name: &str, runtimes: usize) -> Daemon {
    let options = Options {
        durable: true,
        // On a busy machine, other processes inflate a policy's cost.
        config: format!("runtimes = {runtimes}\n[policies]\ncpu_share_percent = 100"),
        ..Options::default()
    };
    bed.daemon_with(name, &options)
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

/// Serves in the background, on the same session until the end of the test.
fn serve(daemon: &Daemon, token: &str, service: impl tollgate::Service) -> Session {
    let session = open(daemon, token);
    block_on(&session, Server::new(&session).add_service(service).bind()).unwrap();
    session
}

/// A tenant's runtime.
fn home(daemon: &Daemon, tenant: &str) -> Value {
    let homes = daemon.status()["homes"].clone();
    let its = |home: &&Value| home["tenant"] == tenant;
    homes.as_array().unwrap().iter().find(its).unwrap().clone()
}

fn move_to(daemon: &Daemon, tenant: &str, runtime: u64) {
    daemon.ok(&format!("tenant move {tenant} --runtime {runtime}"));
    assert_eq!(home(daemon, tenant)["runtime"], runtime);
}

/// A client with a constant number of calls in flight to one of these targets, until `over`;
/// returns the number of answers.
fn load(session: &Session, targets: &[&str], in_flight: u64, over: &AtomicBool) -> u64 {
    let clients: Vec<_> = targets
        .iter()
        .map(|target| SemanticsClient::new(Channel::new(session, target)))
        .collect();
    let call = |number: u64| {
        let client = &clients[number as usize % clients.len()];
        let mut request = Request::new(Ask {
            payload: payload(number),
            delay_ms: (number % 3) as u32,
            ..ask(number)
        });
        request.set_timeout(4 * SOON);
        async move { (number, client.unary(request).await) }
    };
    block_on(session, async {
        let mut under_way: FuturesUnordered<_> = (0..in_flight).map(call).collect();
        let mut made = in_flight;
        while let Some((number, reply)) = under_way.next().await {
            let reply = reply.unwrap_or_else(|status| panic!("call {number}: {status}"));
            let mut want = payload(number);
            want.reverse();
            assert_eq!(reply.get_ref().view().payload(), want, "call {number}");
            if !over.load(Ordering::Relaxed) {
                under_way.push(call(made));
                made += 1;
            }
        }
        made
    })
}

/// Two hosts with tenants of the same name: the service is on both, and clients on the first call
/// both.
struct Scene {
    a: Daemon,
    b: Daemon,
    counting: [Counting; 2],
    _serving: [Session; 2],
    session: Session,
    _workers: Workers,
}

impl Scene {
    fn new(bed: &Testbed, runtimes: usize) -> Scene {
        let [a, b] = ["a", "b"].map(|name| with_runtimes(bed, name, runtimes));
        let tokens = [a.tenant("acme"), b.tenant("acme")];
        let workers = Workers::start(4).unwrap();
        let counting = [(); 2].map(|()| Counting::default());
        let serving = [(&a, 0), (&b, 1)].map(|(daemon, at)| {
            let service = SemanticsServer::new(counting[at].clone());
            let service = workers.serve_methods(service, &["Unary"]).unwrap();
            serve(daemon, &tokens[at], service)
        });
        let session = open(&a, &tokens[0]);
        Scene {
            a,
            b,
            counting,
            _serving: serving,
            session,
            _workers: workers,
        }
    }

    /// Calls flow to both hosts during an action; each is handled and answered once.
    fn under_load(&self, meanwhile: impl FnOnce()) -> u64 {
        let over = AtomicBool::new(false);
        let target = self.b.listen().to_string();
        let answered = std::thread::scope(|scope| {
            let calls = scope.spawn(|| load(&self.session, &["", &target], 64, &over));
            // All of them end, whatever happens here.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
            over.store(true, Ordering::Relaxed);
            let answered = calls.join().unwrap();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            answered
        });
        let mut handled = 0;
        for counting in &self.counting {
            let times = counting.handled.lock().unwrap();
            let twice = times.iter().find(|(_, times)| **times != 1);
            assert_eq!(twice, None, "each once");
            handled += times.len() as u64;
        }
        assert_eq!(handled, answered);
        for daemon in [&self.a, &self.b] {
            let status = daemon.status();
            assert_eq!(status["live_calls"], 0, "{status}");
        }
        assert_eq!(self.session.held().messages, 0);
        answered
    }
}

#[test]
fn of_64_calls_in_flight_each_is_handled_and_answered_once_while_their_tenant_moves() {
    let bed = Testbed::new();
    let scene = Scene::new(&bed, 2);
    let moves = times("TOLLGATE_MOVES", 24);
    let mut pauses = Vec::new();
    let answered = scene.under_load(|| {
        for round in 0..moves {
            for daemon in [&scene.a, &scene.b] {
                move_to(daemon, "acme", round % 2);
                pauses.extend(home(daemon, "acme")["pause_us"].as_u64());
            }
        }
    });
    pauses.sort_unstable();
    println!(
        "{} moves, {answered} calls: stood still {} us in the median, {} us at worst",
        pauses.len(),
        pauses[pauses.len() / 2],
        pauses[pauses.len() - 1]
    );
    for daemon in [&scene.a, &scene.b] {
        let status = daemon.status();
        let links = status["links"].as_array().unwrap();
        assert_eq!(links.len(), 1, "the link of before: {links:?}");
    }
}

/// Evaluated by the tenant's and the provider's policies, before and after the link; some calls are
/// delayed there. (Policies in processes are late on a busy machine;
/// [`a_policy_goes_on_counting_where_it_was`] tests them, call by call.)
#[test]
fn calls_that_policies_have_go_on_behind_those_that_have_judged_them() {
    let bed = Testbed::new();
    let scene = Scene::new(&bed, 2);
    let delays = bed.file(
        "f.json",
        r#"{"percent": 0, "delay_percent": 50, "delay_ms": 20}"#,
    );
    for daemon in [&scene.a, &scene.b] {
        daemon.push("--tenant acme", "fault_injection", "near", Some(&delays));
        daemon.push("--tenant acme", "fault_injection", "first", Some(&delays));
        daemon.push("--provider", "fault_injection", "all", Some(&delays));
        for (policy, side, isolation) in [("near", "server", "none"), ("first", "client", "none")] {
            daemon.ok(&format!(
                "policy attach {policy}@1 --tenant acme --service {SERVICE} --side {side} --grant delay --isolation {isolation}"
            ));
        }
        daemon.ok(&format!(
            "policy attach all@1 --provider --service {SERVICE} --side server --grant delay"
        ));
    }
    let waiting = |daemon: &Daemon| daemon.status()["accounts"][0]["waiting"].as_u64();
    let answered = scene.under_load(|| {
        for round in 0..12 {
            for daemon in [&scene.a, &scene.b] {
                let some = || waiting(daemon).is_some_and(|waiting| waiting > 0);
                eventually(SOON, some).expect("some of them wait");
                move_to(daemon, "acme", round % 2);
            }
        }
    });
    let evaluated = |daemon: &Daemon, policy: &str| {
        let attachment = daemon.attachment(policy);
        let counts = &attachment["versions"][0];
        let of = |what: &str| counts[what].as_u64().unwrap();
        assert_eq!((of("faults"), of("refused")), (0, 0), "{attachment}");
        of("allowed") + of("changed")
    };
    assert_eq!(evaluated(&scene.a, "first"), answered, "each once");
    let served = evaluated(&scene.a, "near") + evaluated(&scene.b, "near");
    assert_eq!(served, answered);
    let by_provider = evaluated(&scene.a, "all") + evaluated(&scene.b, "all");
    assert_eq!(by_provider, answered, "whose instances stay where they are");
}

#[test]
fn streams_go_on_in_order_also_to_a_reader_that_waited() {
    let bed = Testbed::new();
    let [a, b] = ["a", "b"].map(|name| with_runtimes(&bed, name, 2));
    let tokens = [a.tenant("acme"), b.tenant("acme")];
    let _serving = [
        serve(&a, &tokens[0], SemanticsServer::new(Interop)),
        serve(&b, &tokens[1], SemanticsServer::new(Interop)),
    ];
    let session = open(&a, &tokens[0]);
    for target in [String::new(), b.listen().to_string()] {
        let client = SemanticsClient::new(Channel::new(&session, &target));
        block_on(&session, async {
            // Its window is full, and the rest waits on the other side.
            let many = Ask {
                responses: 500,
                response_bytes: 5_000,
                ..ask(0)
            };
            let mut slow = client.spread(many).await.unwrap().into_inner();
            let (sender, requests) = futures_channel::mpsc::unbounded();
            let mut chat = client.chat(requests).await.unwrap().into_inner();
            let mut sums = Vec::new();
            for round in 0..5u64 {
                for k in 0..50 {
                    sender.unbounded_send(ask(100 * round + k)).unwrap();
                    let answer = chat.message().await.unwrap().unwrap();
                    sums.push(answer.view().number());
                }
                for daemon in [&a, &b] {
                    move_to(daemon, "acme", round % 2);
                }
                for k in 0..100 {
                    let answer = slow.message().await.unwrap().unwrap();
                    assert_eq!(answer.view().number(), 100 * round + k);
                    assert_eq!(answer.view().payload().len(), 5_000);
                }
            }
            let want: Vec<u64> = (0..5)
                .flat_map(|r| (0..50).map(move |k| 100 * r + k))
                .collect();
            assert_eq!(sums, want);
            drop(sender);
            assert!(chat.message().await.unwrap().is_none());
            assert!(slow.message().await.unwrap().is_none());
        });
    }
    let idle = eventually(SOON, || session.held().messages == 0);
    idle.expect("everything goes back");
}

/// The state of one instance, and the shared state of instances.
#[test]
fn a_policy_goes_on_counting_where_it_was() {
    for isolation in ["none", "process"] {
        let bed = Testbed::new();
        let daemon = with_runtimes(&bed, "a", 2);
        let token = daemon.tenant("acme");
        let _serving = serve(&daemon, &token, ReservationServer::new(Hotel::default()));
        let limit = bed.file("l.json", r#"{"per_second": 0.001, "burst": 6}"#);
        daemon.push("--tenant acme", "rate_limit", "limit", Some(&limit));
        daemon.ok(&format!(
            "policy attach limit@1 --tenant acme --service hotel.Reservation --side client --grant state,clock --isolation {isolation}"
        ));
        let session = open(&daemon, &token);
        let client = ReservationClient::new(Channel::new(&session, ""));
        let book = || {
            let request = ReserveRequest {
                customer_name: "Ada".to_owned(),
                room_count: 1,
                ..ReserveRequest::default()
            };
            block_on(&session, client.reserve(request))
        };
        for round in 0..6 {
            book().unwrap();
            move_to(&daemon, "acme", round % 2);
        }
        let refused = book().unwrap_err();
        assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{isolation}");
        // Later changes find it at its current place.
        daemon.ok("policy detach limit --tenant acme");
        book().unwrap();
    }
}

/// New applications, bindings and links find a tenant at its current place; so do those that end.
#[test]
fn whoever_comes_after_a_move_finds_the_tenant() {
    let bed = Testbed::new();
    let [a, b] = ["a", "b"].map(|name| with_runtimes(&bed, name, 2));
    let tokens = [a.tenant("acme"), b.tenant("acme")];
    let counting = Counting::default();
    let serving = serve(&b, &tokens[1], SemanticsServer::new(counting.clone()));
    let target = b.listen().to_string();
    let mut kept = Vec::new();
    for round in 0..6 {
        move_to(&b, "acme", round % 2);
        move_to(&a, "acme", (round / 2) % 2);
        let session = open(&a, &tokens[0]);
        let client = SemanticsClient::new(Channel::new(&session, &target));
        block_on(&session, client.unary(ask(round))).unwrap();
        kept.push(session);
    }
    let sessions = |daemon: &Daemon| daemon.status()["sessions"].as_array().unwrap().len();
    assert_eq!((sessions(&a), sessions(&b)), (6, 1));
    kept.truncate(2);
    eventually(SOON, || sessions(&a) == 2).expect("those that end are gone where they were");
    drop(serving);
    eventually(SOON, || sessions(&b) == 0).expect("on the other host, too");
    let client = SemanticsClient::new(Channel::new(&kept[0], &target));
    let nobody = block_on(&kept[0], client.unary(ask(9))).unwrap_err();
    assert_eq!(nobody.code, Code::UNAVAILABLE, "{nobody}");
    let _serving = serve(&b, &tokens[1], SemanticsServer::new(counting));
    let again = || block_on(&kept[0], client.unary(ask(10))).is_ok();
    eventually(SOON, again).expect("it is served again");
}

#[test]
fn a_tenant_stays_where_it_was_moved_until_it_is_reset() {
    let bed = Testbed::new();
    let mut daemon = with_runtimes(&bed, "a", 2);
    daemon.tenant("acme");
    let by_name = home(&daemon, "acme");
    assert_eq!(
        (&by_name["moved"], &by_name["pause_us"]),
        (&Value::Bool(false), &Value::Null)
    );
    let other = 1 - by_name["runtime"].as_u64().unwrap();
    let said = daemon.ok(&format!("tenant move acme --runtime {other}"));
    assert!(
        said.starts_with(&format!("acme is on runtime {other}, with 0 sessions")),
        "{said}"
    );
    let again = daemon.ok(&format!("tenant move acme --runtime {other}"));
    assert_eq!(again, format!("acme is on runtime {other}, as before\n"));
    let is_there = |daemon: &Daemon| {
        let home = home(daemon, "acme");
        assert_eq!(
            (&home["runtime"], &home["moved"]),
            (&other.into(), &Value::Bool(true))
        );
    };
    is_there(&daemon);
    daemon.process().kill();
    let mut daemon = with_runtimes(&bed, "a", 2);
    is_there(&daemon);
    let next = bed.successor("next", &program("tollgated").display().to_string());
    daemon.upgrade(&next);
    is_there(&daemon);
    for (line, sentence) in [
        (
            "tenant move acme --runtime 2",
            "INVALID_ARGUMENT: runtime 2 does not exist: this daemon has 2 runtimes, numbered from 0",
        ),
        ("tenant move evil --runtime 0", "NOT_FOUND: "),
    ] {
        let refused = daemon.run(line);
        assert!(
            refused.code != 0 && refused.err.contains(sentence),
            "{line}: {}",
            refused.err
        );
    }
    is_there(&daemon);
    daemon.ok("tenant move acme --reset");
    let reset = home(&daemon, "acme");
    assert_eq!(
        (&reset["runtime"], &reset["moved"]),
        (&by_name["runtime"], &Value::Bool(false))
    );
    let log = daemon.ok("audit show");
    assert_eq!(log.matches("tenant-move").count(), 3, "{log}");
}

/// Five tenants call continuously while runtimes come and go, one of them across hosts and through
/// policies.
#[test]
fn runtimes_come_and_go_while_calls_flow() {
    let bed = Testbed::new();
    let scene = Scene::new(&bed, 1);
    let delays = bed.file(
        "f.json",
        r#"{"percent": 0, "delay_percent": 20, "delay_ms": 5}"#,
    );
    for daemon in [&scene.a, &scene.b] {
        daemon.push("--tenant acme", "fault_injection", "own", Some(&delays));
        daemon.push("--provider", "null", "all", None);
        daemon.ok(&format!(
            "policy attach own@1 --tenant acme --service {SERVICE} --side server --grant delay"
        ));
        daemon.ok(&format!(
            "policy attach all@1 --provider --service {SERVICE} --side client"
        ));
    }
    let threads = |daemon: &Daemon| {
        let names = threads(daemon.pid()).into_iter().map(|(name, _)| name);
        names.filter(|name| name.starts_with("runtime-")).count() as u64
    };
    scene.under_load(|| {
        let others = ["b", "c", "d", "e"].map(|tenant| Traffic::start(tenant, &scene.a, &scene.a));
        for count in [2u64, 4, 1, 3, 2, 1] {
            for daemon in [&scene.a, &scene.b] {
                daemon.ok(&format!("daemon set runtimes={count}"));
                let status = daemon.status();
                assert_eq!(status["runtimes"], count, "{status}");
                assert_eq!(threads(daemon), count);
                let homes = status["homes"].as_array().unwrap();
                let lives = |home: &Value| home["runtime"].as_u64().unwrap() < count;
                assert!(homes.iter().all(lives), "{status}");
            }
            others.iter().for_each(Traffic::assert_flows);
        }
    });
    let own = [&scene.a, &scene.b].map(|daemon| daemon.attachment("own"));
    let faults = |attachment: &Value| attachment["versions"][0]["faults"].as_u64().unwrap();
    assert_eq!(own.each_ref().map(faults), [0, 0], "{own:?}");
}

#[test]
fn a_runtime_that_somebody_was_moved_to_stays_and_another_configuration_has_as_many_as_it_says() {
    let bed = Testbed::new();
    let mut daemon = with_runtimes(&bed, "a", 1);
    let traffic = ["acme", "evil"].map(|tenant| Traffic::start(tenant, &daemon, &daemon));
    daemon.ok("daemon set runtimes=3");
    move_to(&daemon, "acme", 2);
    let refused = daemon.run("daemon set runtimes=2 spin_us=1");
    let why = "FAILED_PRECONDITION: tenant acme was moved to runtime 2, which would be removed: move it elsewhere first, or reset it";
    assert!(refused.err.contains(why), "{}", refused.err);
    assert_eq!(daemon.status()["runtimes"], 3);
    assert_eq!(daemon.status()["datapath"][0]["spin_us"], 50);
    traffic.iter().for_each(Traffic::assert_flows);
    // The next process has another file; run-time settings override it.
    let next = bed.successor("next", &program("tollgated").display().to_string());
    daemon.upgrade(&next);
    assert_eq!(daemon.status()["runtimes"], 3);
    traffic.iter().for_each(Traffic::assert_flows);
    daemon.ok("tenant move acme --reset");
    daemon.ok("daemon reset runtimes");
    assert_eq!(daemon.status()["runtimes"], 1);
    traffic.iter().for_each(Traffic::assert_flows);
    daemon.upgrade(&next);
    traffic.iter().for_each(Traffic::assert_flows);
}

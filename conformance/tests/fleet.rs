//! Several hosts are upgraded one after the other, and links use the features that both ends
//! support.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tollgate::{Channel, Server, Session, SessionOptions, block_on};
use tollgate_conformance::backstage::Hotel;
use tollgate_conformance::chain::Chain;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::ReservationServer;
use tollgate_conformance::hotel::{ReserveReply, ReserveRequest};
use tollgate_conformance::peer::{END, Frame, PROTOBUF, Peer, kind};
use tollgate_conformance::process::{Process, program, signal};
use tollgate_conformance::testbed::{Daemon, Options, Outcome, SOON, Testbed, eventually, run};

/// `tollgate fleet upgrade LINE --fleet FILE`
fn upgrade(fleet: &Path, line: &str) -> Outcome {
    run(&program("tollgate"), words(fleet, line), b"")
}

fn words(fleet: &Path, line: &str) -> Vec<String> {
    let line = format!("fleet upgrade {line} --fleet {}", fleet.display());
    line.split(' ').map(str::to_owned).collect()
}

#[track_caller]
fn ok(fleet: &Path, line: &str) -> String {
    let outcome = upgrade(fleet, line);
    assert_eq!(outcome.code, 0, "{line}: {outcome}");
    outcome.out
}

#[track_caller]
fn refused(fleet: &Path, line: &str, code: i32, sentences: &[&str]) {
    let outcome = upgrade(fleet, line);
    assert_eq!(outcome.code, code, "{line}: {outcome}");
    for sentence in sentences {
        assert!(
            outcome.err.contains(sentence),
            "{line}: {sentence}: {outcome}"
        );
    }
}

fn journal(fleet: &Path) -> PathBuf {
    PathBuf::from(format!("{}.upgrade.json", fleet.display()))
}

/// Each host with its state, in the order of upgrades.
fn states(fleet: &Path) -> Vec<(String, String)> {
    let journal: Value = serde_json::from_slice(&std::fs::read(journal(fleet)).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let entries = journal["hosts"].as_array().unwrap().iter();
    entries
        .map(|entry| (text(&entry["host"]), text(&entry["state"])))
        .collect()
}

fn in_state<'s>(hosts: &[&'s str], states: &[&'s str]) -> Vec<(String, String)> {
    let pairs = hosts.iter().zip(states);
    pairs
        .map(|(host, state)| ((*host).to_owned(), (*state).to_owned()))
        .collect()
}

#[test]
fn four_hosts_are_upgraded_receivers_first_while_calls_run_through_all_of_them() {
    let mut chain = Chain::on_networks();
    let next = chain.successor();
    let guests = chain.guests();
    let before = chain.pids();
    let fleet = chain.fleet(|_| String::new());

    let plan: Value = serde_json::from_str(&ok(&fleet, "plan --json")).unwrap();
    let order = plan["order"].as_array().unwrap();
    let of = |key: &str| -> Vec<Value> { order.iter().map(|step| step[key].clone()).collect() };
    assert_eq!(of("host"), ["c", "b", "a", "frontend"]);
    let calls = [vec![], vec!["c"], vec!["b"], vec!["a"]].map(Value::from);
    assert_eq!(of("calls"), calls, "{plan}");
    let pids: Vec<_> = before.iter().rev().map(|&pid| Value::from(pid)).collect();
    assert_eq!(of("pid"), pids);
    let text = ok(&fleet, "plan");
    let version = env!("CARGO_PKG_VERSION");
    let first = format!(
        "1. c: {version}, process {}, calls no other host of the fleet\n",
        before[3]
    );
    assert!(text.starts_with(&first), "{text}");

    let said = ok(&fleet, &format!("run --binary {}", next.display()));
    assert!(said.ends_with("upgraded: c, b, a, frontend\n"), "{said}");
    guests.assert_booking();
    let (calls, lost) = guests.leave();
    assert_eq!(lost, 0, "of {calls} calls");
    let after = chain.pids();
    assert!(
        before.iter().zip(&after).all(|(was, is)| was != is),
        "{before:?} {after:?}"
    );
    assert_eq!(
        states(&fleet),
        in_state(&["c", "b", "a", "frontend"], &["done"; 4])
    );
    for host in &chain.hosts {
        let shown = host.ok("audit show --last 1000");
        assert_eq!(shown.matches("daemon-upgrade").count(), 1, "{shown}");
    }
    // A finished upgrade can't be resumed, but can be repeated.
    refused(&fleet, "run --resume", 9, &["no upgrade of", "has stopped"]);
    ok(&fleet, &format!("run --binary {}", next.display()));
    let again = chain.pids();
    assert!(
        after.iter().zip(&again).all(|(was, is)| was != is),
        "{after:?} {again:?}"
    );
}

#[test]
fn an_upgrade_stops_at_the_first_host_that_fails_and_goes_on_from_there() {
    let mut chain = Chain::on_loopback();
    let next = chain.successor().display().to_string();
    let false_one = program("false-successor").display().to_string();
    let bad = chain.bed.successor("bad", &format!("{false_one} refuses"));
    let guests = chain.guests();
    let before = chain.pids();
    // The third host to be upgraded is `a`.
    let fleet = chain.fleet(|host| match host {
        "a" => format!("binary = {:?}", bad.display().to_string()),
        _ => format!("binary = {next:?}"),
    });
    let sentences = [
        "host a isn't upgraded: ",
        "it thinks better of it",
        "the daemon continues unchanged; upgraded before it: c, b; not upgraded: a, frontend",
        "Try: tollgate fleet upgrade run --fleet ",
    ];
    refused(&fleet, "run", 9, &sentences);
    let order = ["c", "b", "a", "frontend"];
    let stopped = in_state(&order, &["done", "done", "upgrading", "waiting"]);
    assert_eq!(states(&fleet), stopped);
    let written = std::fs::read_to_string(journal(&fleet)).unwrap();
    assert!(written.contains("it thinks better of it"), "{written}");
    let then = chain.pids();
    assert_eq!((then[0], then[1]), (before[0], before[1]));
    assert!(
        then[2] != before[2] && then[3] != before[3],
        "{before:?} {then:?}"
    );
    guests.assert_booking();

    // It isn't restarted by mistake, and the failed host isn't skipped by mistake.
    let sentences = ["an upgrade has stopped; upgraded: c, b; not upgraded: a, frontend"];
    refused(&fleet, "run", 9, &sentences);
    refused(&fleet, "run --resume", 9, &["it thinks better of it"]);
    let sentences = ["host frontend can't be accepted: the upgrade has stopped at a"];
    refused(&fleet, "run --resume --accept frontend", 3, &sentences);
    // The hosts are those of the start.
    let whole = std::fs::read_to_string(&fleet).unwrap();
    let (first, others) = whole.split_at(whole.find("[[host]]\nname = \"a\"").unwrap());
    std::fs::write(&fleet, others).unwrap();
    refused(
        &fleet,
        "run --resume",
        9,
        &["host frontend was removed from "],
    );
    let more = "[[host]]\nname = \"d\"\nsocket = \"d.sock\"\n";
    std::fs::write(&fleet, format!("{first}{others}{more}")).unwrap();
    refused(&fleet, "run --resume", 9, &["host d was added to "]);
    std::fs::write(&fleet, whole).unwrap();
    assert_eq!(states(&fleet), stopped);
    assert_eq!(chain.pids(), then);

    let said = ok(&fleet, &format!("run --resume --binary {next}"));
    assert!(!said.contains("c:") && !said.contains("b:"), "{said}");
    assert!(
        said.contains("a: ") && said.contains("frontend: "),
        "{said}"
    );
    guests.assert_booking();
    let (calls, lost) = guests.leave();
    assert_eq!(lost, 0, "of {calls} calls");
    let after = chain.pids();
    assert!(
        (0..2).all(|host| after[host] != before[host]),
        "{before:?} {after:?}"
    );
    assert_eq!(after[2..], then[2..], "those that were done are left alone");
    assert_eq!(states(&fleet), in_state(&order, &["done"; 4]));
}

/// One host, with applications in this test.
struct Alone {
    bed: Testbed,
    host: Daemon,
    token: String,
    fleet: PathBuf,
    next: PathBuf,
}

impl Alone {
    fn new() -> Alone {
        let bed = Testbed::new();
        let host = bed.daemon("a");
        let text = format!("[[host]]\nname = \"a\"\nsocket = {:?}\n", host.socket());
        Alone {
            token: host.tenant("acme"),
            fleet: bed.file("fleet.toml", text),
            next: bed.successor("next", &program("tollgated").display().to_string()),
            host,
            bed,
        }
    }

    fn pid(&mut self) -> u32 {
        self.host.follow();
        self.host.pid()
    }

    /// Waits until this many servers are ready.
    #[track_caller]
    fn has_servers(&self, count: u64) {
        let has = || self.host.status()["services"][0]["servers"] == count;
        eventually(SOON, has).expect("they come back");
    }

    fn serve(&self) -> Session {
        let options = SessionOptions::new(self.host.socket(), &self.token);
        let session = Session::open(options).unwrap();
        let server = Server::new(&session).add_service(ReservationServer::new(Hotel::default()));
        block_on(&session, server.bind()).unwrap();
        session
    }
}

impl Alone {
    /// A server that [`deadly`](Self::deadly) ends.
    fn leaves(&self) -> Process {
        let answer = ["--reply", "{}"];
        let leaves = self
            .host
            .serve_hotel(&self.token, "hotel.Reservation", &answer);
        self.bed.file("leaves.pid", leaves.pid().to_string());
        leaves
    }

    /// A daemon of the same version; that server ends before it serves.
    fn deadly(&self) -> PathBuf {
        let (pid, next) = (self.bed.path("leaves.pid"), self.next.display());
        let pid = pid.display();
        let script = format!(
            "#!/bin/sh\nif [ -e {pid} ]; then kill -9 $(cat {pid}); rm {pid}; fi\nexec {next} \"$@\"\n"
        );
        self.bed.executable("deadly", &script)
    }
}

#[test]
fn a_host_that_is_not_as_it_was_stops_the_upgrade_until_it_is_or_is_accepted() {
    let mut alone = Alone::new();
    let _stays = alone.serve();
    let _leaves = alone.leaves();
    let deadly = alone.deadly();
    let line = format!("run --settle 300ms --binary {}", deadly.display());
    let before = alone.pid();
    let sentences = [
        "host a was replaced and doesn't serve and call as before: hotel.Reservation of acme has ",
        " of 2 servers, 300ms after it was replaced; ",
        "--accept a",
    ];
    refused(&alone.fleet, &line, 4, &sentences);
    assert_eq!(states(&alone.fleet), in_state(&["a"], &["settling"]));
    let replaced = alone.pid();
    assert_ne!(replaced, before);
    // A retry doesn't accept the current state as the original one.
    refused(
        &alone.fleet,
        &format!("{line} --resume"),
        4,
        &[" of 2 servers"],
    );
    let again = alone.pid();
    assert_ne!(again, replaced);
    let other = alone.serve();
    alone.has_servers(2);
    let said = ok(&alone.fleet, &format!("{line} --resume"));
    assert!(said.contains("a: serves and calls as before"), "{said}");
    assert_eq!(alone.pid(), again, "there is nothing left to do");
    assert_eq!(states(&alone.fleet), in_state(&["a"], &["done"]));
    drop(other);

    let _leaves = alone.leaves();
    refused(
        &alone.fleet,
        &line,
        4,
        &["doesn't serve and call as before"],
    );
    let said = ok(&alone.fleet, "run --resume --accept a");
    assert_eq!(said, "upgraded: a\n");
    assert_eq!(states(&alone.fleet), in_state(&["a"], &["accepted"]));
}

#[test]
fn one_process_upgrades_a_fleet_at_a_time_and_another_goes_on_when_it_was_killed() {
    let mut alone = Alone::new();
    let slow = format!(
        "#!/bin/sh\necho $$ > {}\nexec sleep 100\n",
        alone.bed.path("slow.pid").display()
    );
    let slow = alone.bed.executable("slow", &slow);
    let line = format!("run --timeout 5m --binary {}", slow.display());
    let mut first = Process::start(&program("tollgate"), words(&alone.fleet, &line)).unwrap();
    first.line(SOON, |line| line.starts_with("a: ")).unwrap();
    refused(
        &alone.fleet,
        &line,
        14,
        &["is being upgraded by another process"],
    );
    // Not even with another file of that name, as editors write it.
    let text = std::fs::read(&alone.fleet).unwrap();
    std::fs::remove_file(&alone.fleet).unwrap();
    std::fs::write(&alone.fleet, text).unwrap();
    refused(
        &alone.fleet,
        "run --resume",
        14,
        &["is being upgraded by another process"],
    );
    first.kill();
    assert_eq!(states(&alone.fleet), in_state(&["a"], &["upgrading"]));
    refused(
        &alone.fleet,
        &line,
        9,
        &["an upgrade has stopped; upgraded: none; not upgraded: a"],
    );
    // The daemon continues by itself, until the slow one has ended.
    let before = alone.pid();
    let pid = || std::fs::read_to_string(alone.bed.path("slow.pid")).unwrap_or_default();
    let started = eventually(SOON, || pid().trim().parse::<u32>().is_ok());
    started.expect("the slow one is started");
    signal(pid().trim().parse().unwrap(), Signal::KILL);
    let line = format!("run --resume --binary {}", alone.next.display());
    let resumed = eventually(SOON, || {
        let outcome = upgrade(&alone.fleet, &line);
        assert!([0, 14].contains(&outcome.code), "{outcome}");
        outcome.code == 0
    });
    resumed.expect("it is upgraded");
    assert_ne!(alone.pid(), before);
}

#[test]
fn hosts_that_cannot_be_asked_stop_an_upgrade_before_it_begins() {
    let alone = Alone::new();
    let written = |more: &str| {
        let text = format!(
            "[[host]]\nname = \"a\"\nsocket = {:?}\n{more}",
            alone.host.socket()
        );
        alone.bed.file("other.toml", text)
    };
    let b = |socket: &Path| format!("[[host]]\nname = \"b\"\nsocket = {socket:?}");
    let cases = [
        (
            b("/nowhere.sock".as_ref()),
            14,
            "host b: no daemon answers at /nowhere.sock",
        ),
        (
            b(alone.host.socket()),
            9,
            "host b: the daemon's name is \"a\"",
        ),
        (
            "nmae = 1".to_owned(),
            3,
            "other.toml, line 4: unknown field `nmae`",
        ),
    ];
    for (more, code, sentence) in cases {
        for line in ["plan", "run"] {
            refused(&written(&more), line, code, &[sentence]);
        }
    }
    refused(&alone.bed.path("none"), "plan", 5, &["none can't be read"]);
    assert!(!journal(&alone.bed.path("other.toml")).exists());
    let outcome = upgrade(&written(""), "run --binary tollgated");
    assert_eq!(outcome.code, 3, "{outcome}");
    refused(
        &written(""),
        "run --binary /nowhere/tollgated",
        3,
        &["/nowhere/tollgated can't be run"],
    );
}

/// Hosts reached through `ssh`, here a script that behaves like a remote shell.
#[test]
fn a_host_that_ssh_leads_to_is_upgraded_by_the_command_line_over_there() {
    let mut alone = Alone::new();
    let tollgate = program("tollgate").display().to_string();
    let ssh = "while [ \"$1\" != -- ]; do shift; done\n\
               [ \"$2\" = admin@a ] || { echo \"ssh: $2: no route\" >&2; exit 255; }\n\
               [ $# = 3 ] || exit 1\nexec sh -c \"$3\"\n";
    alone.bed.executable("ssh", &format!("#!/bin/sh\n{ssh}"));
    // A name that a shell would split in two.
    let socket = alone.bed.path("its 'own' socket");
    std::os::unix::fs::symlink(alone.host.socket(), &socket).unwrap();
    let host = |ssh: &str, tollgate: &str| {
        let text = format!(
            "[[host]]\nname = \"a\"\nssh = {ssh:?}\ntollgate = {tollgate:?}\nsocket = {socket:?}\n"
        );
        alone.bed.file("ssh.toml", text)
    };
    let ssh = |fleet: &Path, line: &str| {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(&tollgate);
        command.env("PATH", format!("{}:{path}", alone.bed.path("").display()));
        let output = command.args(words(fleet, line)).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Outcome {
            code: output.status.code().unwrap(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    };
    let fails = |fleet: &Path, line: &str, code: i32, sentence: &str| {
        let outcome = ssh(fleet, line);
        assert_eq!(outcome.code, code, "{line}: {outcome}");
        assert!(outcome.err.contains(sentence), "{line}: {outcome}");
    };
    fails(
        &host("admin@b", &tollgate),
        "plan",
        14,
        "host a: ssh doesn't reach admin@b: ssh: admin@b: no route",
    );
    fails(
        &host("admin@a", "/no/tollgate"),
        "plan",
        5,
        "host a: admin@a has no such program: ",
    );
    fails(
        &host("admin@a", "echo"),
        "plan",
        13,
        "the output of admin@a isn't JSON",
    );
    let endless = alone
        .bed
        .executable("endless", "#!/bin/sh\nexec cat /dev/zero\n");
    let endless = endless.display().to_string();
    fails(
        &host("admin@a", &endless),
        "plan",
        8,
        "the output of admin@a is longer than 67108864 bytes",
    );
    // Far more than is read.
    let chatty = "#!/bin/sh\n(yes no | head -c 1000000) >&2\nexit 14\n";
    let chatty = alone.bed.executable("chatty", chatty);
    let chatty = chatty.display().to_string();
    fails(&host("admin@a", &chatty), "plan", 14, "host a: no");
    let fleet = host("admin@a", &tollgate);
    fails(
        &fleet,
        "run --binary /nowhere/new",
        5,
        "host a isn't upgraded: /nowhere/new can't be read",
    );
    let next = alone.next.display();
    let outcome = ssh(&fleet, &format!("run --resume --binary {next}"));
    assert_eq!(outcome.code, 0, "{outcome}");
    assert!(outcome.out.ends_with("upgraded: a\n"), "{outcome}");
    let plan = ssh(&fleet, "plan").out;
    let pid = alone.pid();
    assert!(plan.contains(&format!(", process {pid}, ")), "{plan}");
}

#[test]
fn hosts_that_call_each_other_have_an_order_and_the_plan_says_that_it_is_none() {
    let bed = Testbed::new();
    let hosts = ["a", "b"].map(|name| bed.daemon(name));
    let tokens = [hosts[0].tenant("acme"), hosts[1].tenant("acme")];
    let open =
        |k: usize| Session::open(SessionOptions::new(hosts[k].socket(), &tokens[k])).unwrap();
    let sessions = [open(0), open(1)];
    for session in &sessions {
        let server = Server::new(session).add_service(ReservationServer::new(Hotel::default()));
        block_on(session, server.bind()).unwrap();
    }
    let request = ReserveRequest {
        room_count: 1,
        ..ReserveRequest::default()
    };
    for (session, to) in sessions.iter().zip([&hosts[1], &hosts[0]]) {
        let client = ReservationClient::new(Channel::new(session, &to.listen().to_string()));
        block_on(session, client.reserve(request.clone())).unwrap();
    }
    let of = |host: &Daemon| {
        format!(
            "[[host]]\nname = {:?}\nsocket = {:?}\n",
            host.name(),
            host.socket()
        )
    };
    let fleet = bed.file("fleet.toml", of(&hosts[1]) + &of(&hosts[0]));
    let text = ok(&fleet, "plan");
    let lines: Vec<_> = text.lines().collect();
    let circle =
        ", calls a; goes before a although it calls them, because they call each other in a circle";
    assert!(
        lines[0].starts_with("1. b: ") && lines[0].ends_with(circle),
        "{text}"
    );
    assert!(
        lines[1].starts_with("2. a: ") && lines[1].ends_with(", calls b"),
        "{text}"
    );
    // A host that isn't in the file is named as well.
    let text = ok(&bed.file("one.toml", of(&hosts[0])), "plan");
    let outside = format!("outside of the fleet: b ({})", hosts[1].listen());
    assert!(text.trim_end().ends_with(&outside), "{text}");
}

/// A peer of a later version offers unknown features, whichever end dials: the link uses the common
/// ones.
#[test]
fn features_that_only_a_newer_peer_knows_change_nothing() {
    const NEWER: u32 = 0x8040_0000;
    let bed = Testbed::new();
    let host = bed.daemon_with("a", &Options::default());
    let token = host.tenant("acme");
    let link = |dialled: bool, features: &[&str]| {
        let mut status = host.status();
        let found = eventually(SOON, || {
            status = host.status();
            let links = status["links"].as_array().unwrap();
            let is_it = |link: &&Value| link["dialled"] == dialled && link["state"] == "ready";
            let found = links.iter().find(is_it).cloned();
            found.is_some_and(|link| {
                (link["peer"] == "impostor" && link["version"] == 1)
                    && link["features"] == Value::from(features.to_vec())
            })
        });
        found.unwrap_or_else(|_| panic!("no such link: {status}"));
    };
    let wire = &host.status()["wire"];
    assert_eq!(
        wire["features"],
        Value::from(vec!["metadata", "protobuf", "retry", "streams", "renewal"])
    );
    assert_eq!(wire["version"], 1);

    let session = Session::open(SessionOptions::new(host.socket(), &token)).unwrap();
    let server = Server::new(&session).add_service(ReservationServer::new(Hotel::default()));
    block_on(&session, server.bind()).unwrap();
    // It dials. Frames without the feature are calls in the earlier form.
    let mut peer = Peer::connect(host.listen(), NEWER | u32::from(PROTOBUF));
    // With another schema, so that calls are sent as protobuf.
    peer.bind(3, "acme", "hotel.Reservation", [0; 32]);
    assert_eq!(peer.receive().unwrap().kind, kind::BOUND);
    peer.send(&Frame {
        kind: kind::CALL,
        flags: END | PROTOBUF,
        call: 7,
        bind: 3,
        // One room.
        payload: vec![0x20, 1],
        ..Frame::default()
    });
    let reply = peer.receive().unwrap();
    assert_eq!(
        (reply.kind, reply.flags, reply.call),
        (kind::REPLY, END | PROTOBUF, 7),
        "{reply:?}"
    );
    link(false, &["protobuf"]);
    drop(peer);

    // It is dialled.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    std::thread::scope(|threads| {
        let calling = threads.spawn(|| {
            let client = ReservationClient::new(Channel::new(&session, &to));
            block_on(&session, client.reserve(ReserveRequest::default())).map(
                |reply: tollgate::Response<tollgate::Received<ReserveReply>>| {
                    reply.get_ref().view().reservation_id()
                },
            )
        });
        let mut peer = Peer::accept(&listener, NEWER);
        let bind = peer.receive().unwrap();
        assert_eq!(bind.kind, kind::BIND);
        peer.send(&Frame {
            kind: kind::BOUND,
            bind: bind.bind,
            ..Frame::default()
        });
        let call = peer.receive().unwrap();
        assert_eq!((call.kind, call.flags), (kind::CALL, END), "{call:?}");
        link(true, &[]);
        peer.send(&Frame {
            kind: kind::STATUS,
            flags: END,
            call: call.call,
            aux: 5,
            payload: b"no such room".to_vec(),
            ..Frame::default()
        });
        let refused = calling.join().unwrap().unwrap_err();
        assert_eq!(&*refused.message, "no such room", "{refused}");
    });
}

//! A daemon is replaced by another process while applications use it, or nothing changes.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tollgate::{Channel, Code, Server, Session, SessionOptions, Status, block_on};
use tollgate_conformance::backstage::Hotel;
use tollgate_conformance::hotel::ReserveRequest;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::ReservationServer;
use tollgate_conformance::process::{Process, program, signal};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, succeed};

/// A daemon with a server, and an access list that blocks Mallory.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    token: String,
}

impl Host {
    fn new(durable: bool) -> Host {
        let bed = Testbed::new();
        let options = Options {
            durable,
            ..Options::default()
        };
        let daemon = bed.daemon_with("a", &options);
        let token = daemon.tenant("acme");
        let serving = Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap();
        let server = Server::new(&serving).add_service(ReservationServer::new(Hotel::default()));
        block_on(&serving, server.bind()).unwrap();
        std::thread::spawn(move || block_on(&serving, std::future::pending::<()>()));
        let config = bed.file("acl.json", r#"{"blocked": ["Mallory"], "message": "no"}"#);
        let acl = daemon.push("--tenant acme", "acl", "acl", Some(&config));
        daemon.ok(&format!(
            "policy attach {acl} --tenant acme --service hotel.Reservation --side client"
        ));
        Host { bed, daemon, token }
    }

    fn session(&self) -> Session {
        Session::open(SessionOptions::new(self.daemon.socket(), &self.token)).unwrap()
    }

    /// The program for a daemon of the same version.
    fn successor(&self) -> PathBuf {
        let program = program("tollgated");
        self.bed.successor("next", &program.display().to_string())
    }

    fn sessions(&self) -> Vec<u64> {
        let status = self.daemon.status();
        let sessions = status["sessions"].as_array().unwrap().iter();
        sessions
            .map(|session| session["session"].as_u64().unwrap())
            .collect()
    }
}

async fn book(client: &ReservationClient, customer: &str) -> Result<u64, Status> {
    let request = ReserveRequest {
        customer_name: customer.to_owned(),
        room_count: 1,
        ..ReserveRequest::default()
    };
    let reply = client.reserve(request).await?;
    Ok(reply.get_ref().view().reservation_id())
}

/// Books for both until it succeeds for one, with failures allowed at first.
fn serves_and_denies(session: &Session, client: &ReservationClient) {
    let began = Instant::now();
    while let Err(status) = block_on(session, book(client, "Ada")) {
        assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
        assert!(began.elapsed() < SOON, "{status}");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mallory = block_on(session, book(client, "Mallory")).unwrap_err();
    assert_eq!(mallory.code, Code::PERMISSION_DENIED, "{mallory}");
}

#[test]
fn another_process_takes_over_with_everything_that_was_stored_and_keeps_mallory_out() {
    for durable in [true, false] {
        let mut host = Host::new(durable);
        let (first, listen) = (host.daemon.pid(), host.daemon.listen());
        let over = AtomicBool::new(false);
        let session = host.session();
        let other = host.session();
        std::thread::scope(|scope| {
            // Continuously, one call after the other.
            let mallory = scope.spawn(|| {
                let client = ReservationClient::new(Channel::new(&other, ""));
                let (mut denied, begun) = (0, Instant::now());
                while !over.load(Ordering::Relaxed) && begun.elapsed() < 4 * SOON {
                    let status = block_on(&other, book(&client, "Mallory")).unwrap_err();
                    assert_eq!(status.code, Code::PERMISSION_DENIED, "{status}");
                    denied += 1;
                }
                denied
            });
            let client = ReservationClient::new(Channel::new(&session, ""));
            serves_and_denies(&session, &client);
            let next = host.successor();
            host.daemon.ok("daemon set spin_us=77");
            for round in 1..=3 {
                let (before, sessions) = (host.daemon.pid(), host.sessions());
                let done = host.daemon.upgrade(&next);
                assert_eq!(done["from"]["pid"], before, "{done}");
                assert_eq!(done["to"]["pid"], host.daemon.pid(), "{done}");
                assert_ne!(host.daemon.pid(), before);
                assert_eq!(host.sessions(), sessions, "nobody has opened another one");
                block_on(&session, book(&client, "Ada")).unwrap();
                let status = host.daemon.status();
                assert_eq!(status["listen"], listen.to_string());
                assert_eq!(status["tenants"][0], "acme");
                let settings = host.daemon.ok("daemon settings --json");
                assert!(settings.contains(r#""value":77"#), "{settings}");
                host.daemon.tenant(&format!("new-{round}"));
            }
            over.store(true, Ordering::Relaxed);
            assert!(mallory.join().unwrap() > 0);
        });
        let ended = host.daemon.process().ended(SOON).unwrap();
        assert!(ended.success(), "process {first}: {ended}");
        let shown = host.daemon.ok("audit show --last 1000");
        assert!(shown.contains("daemon-upgrade"), "{shown}");
        if durable {
            assert_eq!(shown.matches("daemon-upgrade").count(), 3, "{shown}");
            host.daemon.ok("audit verify");
        }
    }
}

#[test]
fn what_cannot_take_over_changes_nothing() {
    let mut host = Host::new(true);
    let false_successor = program("false-successor").display().to_string();
    let script =
        |name: &str, text: &str| host.bed.executable(name, &format!("#!/bin/sh\n{text}\n"));
    let says = |name: &str| {
        host.bed
            .successor(name, &format!("{false_successor} {name}"))
    };
    let no_program = host.bed.file("data", "no program");
    // A program, its exit status, and the message.
    let cases = [
        (no_program, 3, "can't be run: Permission denied"),
        (
            script("fails", "exit 3"),
            9,
            "it ended before it was ready (exit status: 3;",
        ),
        (
            script("dies", "kill -9 $$"),
            9,
            "it ended before it was ready;",
        ),
        (
            script("slow", "exec sleep 100"),
            4,
            "it wasn't ready within 300ms",
        ),
        (
            script(
                "other",
                "echo \"error: unexpected argument '--take-over'\" >&2; exit 2",
            ),
            9,
            "(exit status: 2; its output is in the daemon's log)",
        ),
        (says("mumbles"), 9, "it sent an unexpected message"),
        (says("ends"), 9, "it ended before it had opened the store"),
        (says("refuses"), 9, "it thinks better of it"),
        (says("waits"), 4, "it hadn't opened the store within 5s"),
        (
            says("late-ends"),
            9,
            "it ended before it had taken everything over",
        ),
        (says("late-refuses"), 9, "it thinks better of it"),
        (
            says("late-waits"),
            4,
            "it hadn't taken everything over within 2s",
        ),
        (
            script(
                "elsewhere",
                &format!(
                    "exec {} --socket /nowhere \"$@\"",
                    program("tollgated").display()
                ),
            ),
            9,
            "'--socket <PATH>' cannot be used multiple times",
        ),
    ];
    let session = host.session();
    let client = ReservationClient::new(Channel::new(&session, ""));
    serves_and_denies(&session, &client);
    let before = (host.daemon.pid(), host.sessions());
    for (program, code, sentence) in cases {
        // Only one of them is to time out before it is ready.
        let times_out = sentence.ends_with("300ms");
        let timeout = if times_out { "300ms" } else { "20s" };
        let line = format!("upgrade --timeout {timeout} --binary {}", program.display());
        let outcome = host.daemon.run(&line);
        assert_eq!(outcome.code, code, "{line}: {outcome}");
        assert!(outcome.err.contains(sentence), "{line}: {outcome}");
        // No call fails, on the same connections.
        block_on(&session, book(&client, "Ada")).unwrap();
        serves_and_denies(&session, &client);
        assert_eq!((host.daemon.pid(), host.sessions()), before, "{line}");
        // And it can be changed again.
        let name = program.file_name().unwrap().to_str().unwrap();
        host.daemon.tenant(name);
    }
    let next = host.successor();
    host.daemon.upgrade(&next);
    serves_and_denies(&session, &client);
    let tenants = host.daemon.status()["tenants"].as_array().unwrap().len();
    assert_eq!(tenants, 14, "what was added between the attempts is there");
}

#[test]
fn a_configuration_that_the_next_process_refuses_leaves_the_daemon_as_it_is() {
    let bed = Testbed::new();
    let options = Options {
        durable: true,
        config: "spin_us = 20\n".to_owned(),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let next = bed.successor("next", &program("tollgated").display().to_string());
    let pid = daemon.pid();
    for (config, sentence) in [
        ("spin_us = \"much\"\n", "invalid type: string \"much\""),
        ("spin_us = 10001\n", "spin_us = 10001: 0 to 10000"),
        ("trusted_keys = 1\n", "unknown field `trusted_keys`"),
        (
            "socket_group = \"no such group\"\n",
            "/etc/group has no such group",
        ),
        (
            "prefetch = [\"/nowhere\"]\n",
            "the descriptor set in /nowhere can't be prefetched",
        ),
        ("[policies]\ntrusted_keys = [\"/nowhere\"]\n", "/nowhere"),
    ] {
        bed.file("a.toml", config);
        let outcome = daemon.run(&format!("upgrade --binary {}", next.display()));
        assert_eq!(outcome.code, 9, "{config}: {outcome}");
        assert!(outcome.err.contains(sentence), "{config}: {outcome}");
        assert_eq!(daemon.status()["pid"], pid);
    }
    // The other one has its current configuration.
    bed.file("a.toml", "spin_us = 33\n");
    let spins = |daemon: &Daemon| daemon.status()["datapath"][0]["spin_us"].clone();
    assert_eq!(spins(&daemon), 20);
    daemon.upgrade(&next);
    assert_eq!(spins(&daemon), 33);
}

#[test]
fn while_one_takes_over_nothing_is_changed_and_no_other_does() {
    let host = Host::new(true);
    // It fails on request.
    let told = host.bed.path("told");
    let waits = format!("while [ ! -e {} ]; do sleep 0.05; done", told.display());
    let slow = host
        .bed
        .executable("slow", &format!("#!/bin/sh\n{waits}\nexit 3\n"));
    let line = format!("upgrade --timeout 60s --binary {}", slow.display());
    std::thread::scope(|scope| {
        let trying = scope.spawn(|| host.daemon.run(&line));
        let refused = eventually(SOON, || host.daemon.run("tenant add evil").code == 14);
        refused.expect("a tenant is refused meanwhile");
        for line in [
            "tenant add evil",
            "daemon set spin_us=7",
            "policy detach acl --tenant acme",
            "policy attach acl@1 --tenant acme --service hotel.Reservation --side server",
        ] {
            let outcome = host.daemon.run(line);
            assert_eq!(outcome.code, 14, "{line}: {outcome}");
            let sentence =
                "the daemon is being upgraded; changes are rejected until the upgrade ends";
            assert!(outcome.err.contains(sentence), "{line}: {outcome}");
        }
        let outcome = host.daemon.run(&line);
        assert_eq!(outcome.code, 14, "{outcome}");
        let sentence = "another change is in progress: try again in a moment";
        assert!(outcome.err.contains(sentence), "{outcome}");
        assert!(!trying.is_finished());
        std::fs::write(told, "").unwrap();
        assert_eq!(trying.join().unwrap().code, 9);
    });
    let outcome = host.daemon.run("tenant add evil");
    assert!(outcome.code == 0 || outcome.code == 6, "{outcome}");
    for (line, sentence) in [
        ("upgrade --timeout 11m", "the limit is 600s"),
        ("upgrade --binary /nowhere/tollgated", "/nowhere/tollgated"),
    ] {
        let outcome = host.daemon.run(line);
        assert_ne!(outcome.code, 0, "{line}: {outcome}");
        assert!(outcome.err.contains(sentence), "{line}: {outcome}");
    }
}

/// Like `systemctl reload` with the included unit.
#[test]
fn a_signal_upgrades_and_the_supervisor_learns_which_process_to_watch() {
    let bed = Testbed::new();
    // Like in a container of systemd's: a name without a file.
    let supervisor = format!("tollgate-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&supervisor).unwrap();
    let told = UnixDatagram::bind_addr(&address).unwrap();
    told.set_read_timeout(Some(SOON)).unwrap();
    let hear = || {
        let mut said = [0; 1024];
        let len = told.recv(&mut said).unwrap();
        String::from_utf8(said[..len].to_vec()).unwrap()
    };
    let wrapper = bed.executable(
        "supervised",
        &format!(
            "#!/bin/sh\nNOTIFY_SOCKET=@{supervisor} exec {} \"$@\"\n",
            program("tollgated").display()
        ),
    );
    let socket = bed.path("a.sock").display().to_string();
    let process = Process::start(
        &wrapper,
        [
            "--name",
            "a",
            "--listen",
            "127.0.0.1:0",
            "--socket",
            &socket,
        ],
    );
    let mut daemon = Daemon::ready(process.unwrap());
    let first = daemon.pid();
    assert_eq!(hear(), format!("MAINPID={first}\nREADY=1\n"));
    let reloads =
        |said: String| assert!(said.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{said}");
    let refused = daemon.run("upgrade --binary /bin/false");
    assert_eq!(refused.code, 9, "{refused}");
    reloads(hear());
    let why = hear();
    assert!(why.starts_with("READY=1\nSTATUS=no upgrade: /"), "{why}");
    let sentence = "false doesn't take over: it ended before it was ready";
    assert!(why.contains(sentence), "{why}");
    let problems = daemon.status()["problems"].to_string();
    assert!(problems.contains(sentence), "{problems}");
    signal(first, Signal::USR2);
    reloads(hear());
    let said = hear();
    let replaced = eventually(SOON, || {
        daemon.follow();
        daemon.pid() != first
    });
    replaced.expect("another process serves");
    // Only the watched process's message counts.
    let serves = format!("MAINPID={}\nREADY=1\nSTATUS=\n", daemon.pid());
    assert_eq!(said, serves);
    assert!(daemon.process().ended(SOON).unwrap().success());
    signal(daemon.pid(), Signal::TERM);
    assert_eq!(hear(), "STOPPING=1\n");
}

/// A container ends with its first process.
#[test]
fn the_first_process_of_a_container_stays_for_its_successor() {
    if !rustix::process::geteuid().is_root() {
        panic!("this test makes a namespace of processes, which takes root");
    }
    let bed = Testbed::new();
    let socket = bed.path("a.sock").display().to_string();
    let tollgated = program("tollgated").display().to_string();
    let line = format!(
        "--pid --fork --kill-child {tollgated} --name a --listen 127.0.0.1:0 --socket {socket}"
    );
    let args = line.split(' ');
    let container = Process::start("unshare".as_ref(), args).unwrap();
    let ready = |line: &str| line.contains(" ready ");
    container.line(SOON, ready).unwrap();
    let outside = container.pid();
    let children = format!("/proc/{outside}/task/{outside}/children");
    let first = std::fs::read_to_string(children).unwrap();
    let first: u32 = first.trim().parse().unwrap();
    let mut daemon = Daemon::ready(container);
    // Its administrator is in the container, too.
    let administer = |line: &str| -> Value {
        let tollgate = program("tollgate").display().to_string();
        let line = format!("--target {first} --pid {tollgate} --socket {socket} {line} --json");
        let out = succeed(Command::new("nsenter").args(line.split(' ')));
        serde_json::from_str(&out).unwrap()
    };
    assert_eq!(administer("status")["pid"], 1);
    let done = administer(&format!("upgrade --binary {tollgated}"));
    assert_eq!(done["from"]["pid"], 1, "{done}");
    assert_ne!(done["to"]["pid"], 1, "{done}");
    assert_eq!(administer("status")["pid"], done["to"]["pid"]);
    // A signal to the container reaches the daemon.
    signal(first, Signal::TERM);
    assert!(daemon.process().ended(SOON).is_some());
    assert!(!bed.path("a.sock").exists(), "the successor has cleared up");
}

//! `kill -9` of a daemon with policies under load, with its store intact or damaged: denied calls
//! stay denied, nothing runs twice, and service resumes.
//!
//! 16 rounds; more: `TOLLGATE_CRASH_ROUNDS=500 cargo test --test crash -- --nocapture`. The time
//! until service resumes is printed.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Server, Session, SessionOptions, block_on,
};
use tollgate_conformance::hostile::Seeded;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_conformance::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{
    Daemon, Options, SOON, Testbed, eventually, policy_file, run, times,
};

/// The time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The extra time for a loaded machine.
const GRACE: Duration = Duration::from_secs(5);

/// The reservations of one customer that the rate limit permits in one life of the daemon.
const BURST: u64 = 5;

/// The customer on the block list.
const BLOCKED: &str = "Mallory";

const GREEDY: &str = "Greedy";

fn rounds() -> u64 {
    times("TOLLGATE_CRASH_ROUNDS", 16)
}

/// A server that records its requests, whose numbers are unique.
#[derive(Clone, Default)]
struct Hotel {
    seen: Arc<Mutex<HashSet<u32>>>,
    twice: Arc<AtomicU64>,
    denied: Arc<AtomicU64>,
}

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        let request = request.get_ref().view();
        let is_new = self.seen.lock().unwrap().insert(request.room_count());
        self.twice.fetch_add(u64::from(!is_new), Ordering::Relaxed);
        let is_denied = request.customer_name() == BLOCKED;
        self.denied
            .fetch_add(u64::from(is_denied), Ordering::Relaxed);
        Ok(Response::new(ReserveReply {
            reservation_id: request.room_count().into(),
            hotel_ids: Vec::new(),
        }))
    }

    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Ok(Response::new(AvailabilityReply::default()))
    }
}

/// A guest that reserves without pause.
struct Guest {
    stop: Arc<AtomicBool>,
    ends: Arc<Mutex<BTreeMap<u32, u64>>>,
    /// The time at which the first call after a failure was served.
    served_again: Arc<Mutex<Instant>>,
    thread: JoinHandle<()>,
}

impl Guest {
    /// `name` returns the customer of the call with this number.
    fn start(session: Session, first: u32, name: impl Fn(u32) -> String + Send + 'static) -> Guest {
        let stop = Arc::new(AtomicBool::new(false));
        let ends: Arc<Mutex<BTreeMap<u32, u64>>> = Arc::default();
        let served_again = Arc::new(Mutex::new(Instant::now()));
        let (stopped, counted, again) = (stop.clone(), ends.clone(), served_again.clone());
        let thread = std::thread::spawn(move || {
            let client = ReservationClient::new(Channel::new(&session, ""));
            let mut had_failed = false;
            for number in first.. {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let mut request = Request::new(ReserveRequest {
                    customer_name: name(number),
                    room_count: number,
                    ..ReserveRequest::default()
                });
                request.set_timeout(TIMEOUT);
                let began = Instant::now();
                let code = match block_on(&session, client.reserve(request)) {
                    Ok(reply) => {
                        let id = reply.get_ref().view().reservation_id();
                        assert_eq!(id, u64::from(number));
                        Code::OK
                    }
                    Err(status) => status.code,
                };
                let took = began.elapsed();
                assert!(took < TIMEOUT + GRACE, "a call took {took:?}: {code:?}");
                *counted.lock().unwrap().entry(code.0).or_insert(0) += 1;
                if code == Code::OK && had_failed {
                    *again.lock().unwrap() = Instant::now();
                }
                had_failed = code != Code::OK;
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Guest {
            stop,
            ends,
            served_again,
            thread,
        }
    }

    fn count(&self, code: Code) -> u64 {
        let ends = self.ends.lock().unwrap();
        ends.get(&code.0).copied().unwrap_or(0)
    }

    /// Waits until another of its calls ends with this.
    fn meets(&self, code: Code) {
        let before = self.count(code);
        let met = eventually(SOON, || {
            self.count(code) > before || self.thread.is_finished()
        });
        assert!(
            met.is_ok() && !self.thread.is_finished(),
            "no call ends with {code:?}: {:?}",
            self.ends.lock().unwrap()
        );
    }

    fn stop(self) -> BTreeMap<u32, u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        std::mem::take(&mut *self.ends.lock().unwrap())
    }
}

fn durable() -> Options {
    Options {
        durable: true,
        ..Options::default()
    }
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

/// A host whose reservations are guarded by a list and a limit.
fn guarded(bed: &Testbed) -> (Daemon, String) {
    let daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let limit = format!(
        r#"{{"fields": ["customer_name"], "methods": ["hotel.Reservation/Reserve"],
            "per_second": 0.001, "burst": {BURST}, "keys": 1000}}"#
    );
    let list = format!(r#"{{"blocked": ["{BLOCKED}"]}}"#);
    let grants = " --grant state,clock";
    for (policy, file, config, grants) in [
        ("acl", "acl", list, ""),
        ("rate-limit", "rate_limit", limit, grants),
    ] {
        let config = bed.file(&format!("{policy}.json"), config);
        let pushed = daemon.push("--tenant acme", file, policy, Some(&config));
        daemon.ok(&format!(
            "policy attach {pushed} --tenant acme --service hotel.Reservation --side server{grants}"
        ));
    }
    (daemon, token)
}

fn serve(daemon: &Daemon, token: &str, hotel: &Hotel) -> Session {
    let session = open(daemon, token);
    let server = Server::new(&session).add_service(ReservationServer::new(hotel.clone()));
    block_on(&session, server.bind()).unwrap();
    session
}

/// Damages the store while nobody has it open; returns whether the file must be created again.
fn damage(state: &Path, random: &mut Seeded, round: u64) -> bool {
    let file = state.join("tollgate.redb");
    let len = std::fs::metadata(&file).unwrap().len();
    let open = |path: &Path| std::fs::File::options().write(true).open(path).unwrap();
    match round % 8 {
        3 => open(&file).set_len(random.below(len)).unwrap(),
        4 => std::fs::remove_file(&file).unwrap(),
        5 => open(&file).set_len(0).unwrap(),
        6 => open(&file)
            .write_all_at(&random.bytes::<4_096>(), 0)
            .unwrap(),
        7 => {
            let copy = state.join("tollgate.redb.copy");
            open(&copy).set_len(random.below(len)).unwrap();
            return false;
        }
        _ => return false,
    }
    true
}

/// Adds a tenant while the daemon may be killed. Returns its name, if the addition was
/// acknowledged.
fn add_tenant(daemon: &Daemon, round: u64) -> JoinHandle<Option<String>> {
    let socket = daemon.socket().to_owned();
    std::thread::spawn(move || {
        let name = format!("t{round}");
        let line = ["--socket".as_ref(), socket.as_os_str()];
        let line = line
            .into_iter()
            .chain(["tenant", "add", &name].map(AsRef::as_ref));
        let added = run(&program("tollgate"), line, b"");
        (added.code == 0).then_some(name)
    })
}

#[test]
fn a_daemon_that_is_killed_comes_back_with_its_policies() {
    let bed = Testbed::new();
    let (mut daemon, token) = guarded(&bed);
    let state = bed.path("a.state");
    let hotel = Hotel::default();
    let serving = serve(&daemon, &token, &hotel);
    let honest = Guest::start(open(&daemon, &token), 0, |number| format!("c{number}"));
    let blocked = Guest::start(open(&daemon, &token), 1 << 30, |_| BLOCKED.to_owned());
    let greedy = Guest::start(open(&daemon, &token), 2 << 30, |_| GREEDY.to_owned());
    honest.meets(Code::OK);
    let attachments = |daemon: &Daemon| {
        ["acl", "rate-limit"].map(|policy| {
            let found = daemon.attachment(policy);
            [&found["policy"], &found["stable"], &found["service"]].map(ToString::to_string)
        })
    };
    let attached = attachments(&daemon);
    let mut random = Seeded(11);
    let (mut added, mut restored) = (Vec::new(), 0);
    let (mut ready, mut from_start, mut from_kill) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds() {
        blocked.meets(Code::PERMISSION_DENIED);
        greedy.meets(Code::RESOURCE_EXHAUSTED);
        honest.meets(Code::OK);
        let adding = add_tenant(&daemon, round);
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        let killed = Instant::now();
        daemon.process().kill();
        added.extend(adding.join().unwrap());
        restored += usize::from(damage(&state, &mut random, round));
        let started = Instant::now();
        daemon = bed.daemon_with("a", &durable());
        ready.push(started.elapsed());
        let again = eventually(SOON, || *honest.served_again.lock().unwrap() > started);
        again.unwrap_or_else(|waited| panic!("nobody is served {waited:?} later"));
        let again = *honest.served_again.lock().unwrap();
        from_start.push(again - started);
        from_kill.push(again - killed);
        assert_eq!(attachments(&daemon), attached, "round {round}");
    }
    blocked.meets(Code::PERMISSION_DENIED);
    drop(serving);
    let [honest, blocked, greedy] = [honest, blocked, greedy].map(Guest::stop);
    println!(
        "calls by code: {honest:?}, of whom is blocked: {blocked:?}, of whom is greedy: {greedy:?}"
    );
    let measured = [
        ("ready, after its start", &mut ready),
        ("served again, after its start", &mut from_start),
        ("served again, after the kill", &mut from_kill),
    ];
    for (what, times) in measured {
        times.sort();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{what}: median {median:?}, worst {worst:?}");
    }
    assert_eq!(
        hotel.twice.load(Ordering::Relaxed),
        0,
        "a request reached the handler twice"
    );
    assert_eq!(
        hotel.denied.load(Ordering::Relaxed),
        0,
        "a denied call reached the handler"
    );
    let gone = [Code::UNAVAILABLE, Code::DEADLINE_EXCEEDED];
    let only = |ends: &BTreeMap<u32, u64>, expected: &[Code]| {
        let codes = expected.iter().chain(&gone).map(|code| code.0);
        assert!(
            ends.keys().all(|code| codes.clone().any(|c| c == *code)),
            "{ends:?}"
        );
    };
    only(&honest, &[Code::OK]);
    only(&blocked, &[Code::PERMISSION_DENIED]);
    only(&greedy, &[Code::OK, Code::RESOURCE_EXHAUSTED]);
    // A bucket is full when a daemon starts.
    let lives = rounds() + 1;
    assert!(greedy[&Code::OK.0] <= lives * BURST, "{greedy:?}");
    let status = daemon.status();
    let known: Vec<_> = status["tenants"].as_array().unwrap().iter().collect();
    assert!(
        added
            .iter()
            .all(|name| known.contains(&&name.as_str().into())),
        "{added:?}, {known:?}"
    );
    let log = daemon.ok("audit show --last 1000");
    let recorded = log.matches("restored").count();
    assert!(
        recorded >= restored,
        "{recorded} of {restored} restorations in:\n{log}"
    );
    assert!(daemon.ok("audit verify").contains("not edited"));
}

/// Less policy than before would be a security hole: the daemon refuses to start, names the remedy,
/// and serves again after it.
#[test]
fn a_daemon_whose_state_is_lost_does_not_serve_without_it() {
    let bed = Testbed::new();
    let (mut daemon, token) = guarded(&bed);
    let hotel = Hotel::default();
    let _serving = serve(&daemon, &token, &hotel);
    let blocked = Guest::start(open(&daemon, &token), 0, |_| BLOCKED.to_owned());
    blocked.meets(Code::PERMISSION_DENIED);
    daemon.process().kill();
    let state = bed.path("a.state");
    let names = ["tollgate.redb", "tollgate.redb.copy"].map(|name| state.join(name));
    let backup = names.each_ref().map(|path| std::fs::read(path).unwrap());
    let refuses = |sentence: &str| {
        let socket = daemon.socket().as_os_str();
        let line = ["--name".as_ref(), "a".as_ref(), "--socket".as_ref(), socket];
        let line = line
            .into_iter()
            .chain(["--state".as_ref(), state.as_os_str()]);
        let mut process = Process::start(&program("tollgated"), line).unwrap();
        process.line(SOON, |line| line.contains(sentence)).unwrap();
        let ended = process.ended(SOON).unwrap();
        assert_eq!(ended.code(), Some(9));
        let said = process.said();
        assert!(
            !said.iter().any(|line| line.contains("panicked")),
            "{said:#?}"
        );
    };
    for path in &names {
        std::fs::write(path, b"").unwrap();
    }
    refuses("and its copy are damaged");
    for path in &names {
        std::fs::remove_file(path).unwrap();
    }
    refuses("is older than its audit log: it ends with audit record 0");
    blocked.meets(Code::UNAVAILABLE);
    for (path, bytes) in names.iter().zip(&backup) {
        std::fs::write(path, bytes).unwrap();
    }
    let _daemon = bed.daemon_with("a", &durable());
    blocked.meets(Code::PERMISSION_DENIED);
    let ends = blocked.stop();
    assert!(!ends.contains_key(&Code::OK.0), "{ends:?}");
    assert_eq!(hotel.denied.load(Ordering::Relaxed), 0);
}

/// A separate disk for this test: a small file system in a mount namespace, which ends with the
/// test.
struct SmallDisk {
    holder: Process,
    state: PathBuf,
}

impl SmallDisk {
    fn new(state: PathBuf) -> SmallDisk {
        std::fs::create_dir(&state).unwrap();
        let script = "mount -t tmpfs -o size=24m,mode=0700 none \"$0\" && echo mounted && exec sleep infinity";
        let words = ["--mount", "sh", "-c", script].map(OsStr::new);
        let words = words.into_iter().chain([state.as_os_str()]);
        let holder = Process::start("unshare".as_ref(), words).unwrap();
        holder.line(SOON, |line| line == "mounted").unwrap();
        SmallDisk { holder, state }
    }

    /// The path of its contents for this process.
    fn path(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.pid()));
        root.join(self.state.strip_prefix("/").unwrap()).join(name)
    }

    fn fill(&self) {
        let mut filler = std::fs::File::create(self.path("filler")).unwrap();
        for bytes in [1 << 20, 4_096] {
            while filler.write_all(&vec![1; bytes]).is_ok() {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.path("filler")).unwrap();
    }

    /// A durable daemon with its state on the disk.
    fn daemon(&self, bed: &Testbed) -> Daemon {
        let pid = self.holder.pid().to_string();
        let enter = ["nsenter", "--mount", "--target", &pid];
        bed.daemon_with(
            "a",
            &Options {
                under: enter.map(str::to_owned).to_vec(),
                ..durable()
            },
        )
    }
}

fn problems(daemon: &Daemon) -> String {
    let status = daemon.status();
    let problems = status["problems"].as_array().expect("status has problems");
    let problems = problems.iter().map(|problem| problem.as_str().unwrap());
    problems.collect::<Vec<_>>().join("; ")
}

/// No change is stored, and everything else continues, also through a restart; after space is freed
/// the failure leaves no trace.
#[test]
fn a_full_disk_refuses_changes_and_nothing_else() {
    let bed = Testbed::new();
    let disk = SmallDisk::new(bed.path("a.state"));
    let mut daemon = disk.daemon(&bed);
    let token = daemon.tenant("acme");
    let list = bed.file("list.json", format!("{{\"blocked\": [\"{BLOCKED}\"]}}"));
    daemon.push("--tenant acme", "acl", "acl", Some(&list));
    daemon.ok("policy attach acl@1 --tenant acme --service hotel.Reservation --side client");
    let serves = |daemon: &Daemon| {
        let _server = daemon.serve_hotel(&token, "hotel.Reservation", &["--reply", "{}"]);
        let call = |name: &str| {
            let request = format!("{{\"customer_name\": \"{name}\"}}");
            let method = "hotel.Reservation/Reserve";
            daemon.call_hotel(&token, "", method, &request).code
        };
        assert_eq!(call("Ada"), 0);
        assert_eq!(call(BLOCKED), Code::PERMISSION_DENIED.0 as i32);
    };
    // So much that no file can grow.
    let names: String = (0..20_000).map(|n| format!(",\"guest {n}\"")).collect();
    let long = format!("{{\"blocked\": [\"{BLOCKED}\"{names}]}}");
    let long = bed.file("long.json", long);
    let push = |daemon: &Daemon| {
        let module = policy_file("acl");
        let (module, long) = (module.display(), long.display());
        daemon.run(&format!(
            "policy push {module} --tenant acme --name acl --config {long}"
        ))
    };

    disk.fill();
    for _ in 0..2 {
        let refused = push(&daemon);
        assert_ne!(refused.code, 0, "{refused}");
        let said = refused.err.to_lowercase();
        assert!(
            said.contains("no space") || said.contains("no storage space"),
            "{refused}"
        );
        serves(&daemon);
        assert!(
            problems(&daemon).contains("a.state"),
            "{}",
            problems(&daemon)
        );
    }
    let logged = daemon.process().said().concat().to_lowercase();
    assert!(
        logged.contains("no space") || logged.contains("no storage space"),
        "{logged}"
    );
    disk.free();
    let pushed = push(&daemon);
    assert_eq!(pushed.code, 0, "{pushed}");
    assert_eq!(problems(&daemon), "");

    // A start writes nothing that must be stored; required writes are retried until there is space.
    for damage in [None, Some("tollgate.redb.copy"), Some("tollgate.redb")] {
        daemon.process().kill();
        if let Some(name) = damage {
            std::fs::remove_file(disk.path(name)).unwrap();
        }
        disk.fill();
        daemon = disk.daemon(&bed);
        serves(&daemon);
        let refused = push(&daemon);
        assert_ne!(refused.code, 0, "{damage:?}: {refused}");
        assert!(problems(&daemon).contains("a.state"), "{damage:?}");
        disk.free();
        let recovered = eventually(SOON, || {
            problems(&daemon).is_empty() || push(&daemon).code == 0
        });
        recovered.unwrap_or_else(|_| panic!("{damage:?}: {}", problems(&daemon)));
        let pushed = push(&daemon);
        assert_eq!(pushed.code, 0, "{damage:?}: {pushed}");
        assert_eq!(problems(&daemon), "", "{damage:?}");
        assert!(daemon.ok("audit verify").contains("not edited"));
    }
}

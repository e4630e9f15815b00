//! The hotel reservation, all of it: two daemons, memcached, the services in three languages, the
//! frontend; and the same over tonic.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod suite;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;
use serde_json::{Value, json};
use suite::{Carrier, Memcached, Suite, all_in_rust, other_languages};
use tokio::runtime::{Builder, Runtime};
use tollgate::{Received, Reply, Request, Server, Session, SessionOptions};
use tollgate_conformance::hosts::Hosts;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{SOON, eventually, succeed};
use tollgate_hotel::cache::PAUSE;
use tollgate_hotel::calls::{Booking, Calls, Cause};
use tollgate_hotel::dataset::{Point, password, username};
use tollgate_hotel::frontend::{FULL, RESERVED, STRANGER, WELCOME};
use tollgate_hotel::http::Connection;
use tollgate_hotel::load::{Outcome, Requests};
use tollgate_hotel::rpc::Targets;
use tollgate_hotel::rpc::over_tollgate::Clients;
use tollgate_hotel::rpc::over_tollgate::stubs::geo::{self, geo_server};
use tollgate_hotel::rpc::over_tollgate::stubs::rate::rate_server::RateServer;
use tollgate_hotel::services::geo::Geo;
use tollgate_hotel::services::rate::Rates;
use tollgate_hotel::services::recommendation::Recommendations;
use tollgate_hotel::services::reservation::Reservations;
use tollgate_hotel::stay::Stay;

/// A place of a test's own.
fn place(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&place).unwrap();
    place
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// What a frontend answers.
#[track_caller]
fn get(frontend: &str, path: &str) -> (u16, Value) {
    let answer = runtime().block_on(async {
        let mut connection = Connection::open(frontend).await?;
        connection.get(path).await
    });
    let (status, content) = answer.unwrap();
    let shown = String::from_utf8_lossy(&content);
    let value = serde_json::from_slice(&content);
    (status, value.unwrap_or_else(|_| panic!("{path}: {shown}")))
}

/// The hotels of a collection, in its order.
#[track_caller]
fn hotels(frontend: &str, path: &str) -> Vec<String> {
    let (status, answer) = get(frontend, path);
    assert_eq!(status, 200, "{path}: {answer}");
    let features = answer["features"].as_array().unwrap().iter();
    let ids = features.map(|feature| feature["id"].as_str().unwrap().to_owned());
    ids.collect()
}

fn reservation(hotel: &str, dates: [&str; 2], number: u32) -> String {
    let ([first, last], user, password) = (dates, username(7), password(7));
    format!(
        "/reservation?inDate={first}&outDate={last}&hotelId={hotel}&customerName=Ada&username={user}&password={password}&number={number}"
    )
}

const DOWNTOWN: &str = "/hotels?inDate=2015-04-09&outDate=2015-04-10&lat=37.7867&lon=-122.4112";

#[test]
fn guests_are_served_over_two_hosts_in_three_languages() {
    let place = place("hotel");
    let start = |hosts: &Hosts| other_languages(&place, hosts);
    let carrier = Carrier::Tollgate(Box::new(Hosts::new()));
    let mut suite = Suite::start(&place.join("tollgate"), carrier, &[], start);
    let mut tonic = Suite::start(&place.join("tonic"), Carrier::Tonic, &[], all_in_rust);
    for frontend in [&suite.frontend, &tonic.frontend] {
        searches_and_recommendations(frontend);
        users(frontend);
        bad_parameters(frontend);
    }
    same_answers(&suite.frontend, &tonic.frontend);
    for frontend in [&suite.frontend, &tonic.frontend] {
        a_hotel_gets_full(frontend);
        mixed_workload(frontend);
    }
    for (service, path) in [
        ("geo", DOWNTOWN),
        ("profile", DOWNTOWN),
        (
            "recommendation",
            "/recommendations?require=rate&lat=38&lon=-122",
        ),
    ] {
        a_killed_service_comes_back(&mut suite, service, path);
    }
    a_tenants_policy_decides(&suite);
    for suite in [&mut suite, &mut tonic] {
        deadlines(suite);
        a_lost_memcached_is_said_once(suite);
    }
    all_end_well(suite.processes);
    all_end_well(tonic.processes);
}

fn searches_and_recommendations(frontend: &str) {
    assert_eq!(hotels(frontend, DOWNTOWN), ["2", "1", "3"]);
    let dates = "inDate=2015-04-09&outDate=2015-04-24";
    let forty = format!("/hotels?{dates}&lat=38.0235&lon=-122.09");
    assert_eq!(hotels(frontend, &forty), ["39", "42"]);
    let nowhere = format!("/hotels?{dates}&lat=0&lon=0");
    assert!(hotels(frontend, &nowhere).is_empty());
    let recommended = |require: &str| {
        let path = format!("/recommendations?require={require}&lat=37.7831&lon=-122.4181");
        hotels(frontend, &path)
    };
    assert_eq!(recommended("dis"), ["5"]);
    assert_eq!(recommended("rate"), ["9", "24", "39", "54", "69"]);
    assert_eq!(recommended("price"), ["2"]);
    let (_, geojson) = get(
        frontend,
        "/recommendations?require=dis&lat=37.7831&lon=-122.4181",
    );
    let expected = json!({
        "type": "FeatureCollection",
        "features": [{
            "type": "Feature",
            "id": "5",
            "properties": {"name": "Phoenix Hotel", "phone_number": "(415) 776-1380"},
            "geometry": {"type": "Point", "coordinates": [-122.4181, 37.7831]},
        }],
    });
    assert_eq!(geojson, expected);
}

fn users(frontend: &str) {
    let check = |username: &str, password: &str, expected: &str| {
        let path = format!("/user?username={username}&password={password}");
        assert_eq!(get(frontend, &path), (200, json!({"message": expected})));
    };
    check(&username(0), &password(0), WELCOME);
    check(&username(500), &password(500), WELCOME);
    check(&username(500), &password(499), STRANGER);
    check("Cornell_501", &password(501), STRANGER);
    let theirs =
        reservation("1", ["2015-04-09", "2015-04-10"], 1).replace("password=7", "password=8");
    assert_eq!(get(frontend, &theirs), (200, json!({"message": STRANGER})));
}

fn bad_parameters(frontend: &str) {
    let stay = ["2015-04-09", "2015-04-10"];
    for (path, status, named) in [
        (
            "/hotels?outDate=2015-04-10&lat=1&lon=1".to_owned(),
            400,
            "inDate",
        ),
        (DOWNTOWN.replace("04-10", "04-31"), 400, "outDate"),
        (DOWNTOWN.replace("lat=37", "lat=137"), 400, "lat"),
        (DOWNTOWN.replace("lon=", "lon=x"), 400, "lon"),
        (DOWNTOWN.replace("lon=-122.4112", "lon=NaN"), 400, "lon"),
        ("/recommendations?lat=1&lon=1".to_owned(), 400, "require"),
        (
            "/recommendations?require=view&lat=1&lon=1".to_owned(),
            400,
            "view",
        ),
        ("/user?username=x".to_owned(), 400, "password"),
        (reservation("1", stay, 0), 400, "number"),
        (reservation("81", stay, 1), 404, "hotelId"),
    ] {
        let (came, answer) = get(frontend, &path);
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(
            came == status && message.contains(named),
            "{path}: {came}, {answer}"
        );
    }
}

/// The same JSON over both transports, as long as the same rooms are taken.
fn same_answers(tollgate: &str, tonic: &str) {
    let mut requests = Requests::new(7);
    let mut asked = BTreeMap::new();
    for _ in 0..300 {
        let path = requests.next_path();
        let [ours, theirs] = [tollgate, tonic].map(|frontend| get(frontend, &path));
        assert_eq!(ours, theirs, "{path}");
        assert_eq!(ours.0, 200, "{path}: {}", ours.1);
        let kind = path.split('?').next().unwrap_or_default().to_owned();
        *asked.entry(kind).or_insert(0) += 1;
    }
    assert!(asked.len() >= 3, "too few kinds of requests: {asked:?}");
}

fn a_hotel_gets_full(frontend: &str) {
    let dates = ["2015-05-09", "2015-05-12"];
    let reserve = |dates, number, expected: &str| {
        let (status, answer) = get(frontend, &reservation("9", dates, number));
        assert_eq!((status, answer), (200, json!({"message": expected})));
    };
    let near = "/hotels?inDate=2015-05-11&outDate=2015-05-12&lat=37.8375&lon=-122.338";
    assert_eq!(hotels(frontend, near), ["9"]);
    reserve(dates, 150, RESERVED);
    reserve(dates, 51, FULL);
    assert_eq!(hotels(frontend, near), ["9"]);
    reserve(dates, 50, RESERVED);
    reserve(["2015-05-08", "2015-05-10"], 1, FULL);
    assert!(hotels(frontend, near).is_empty());
    // The night before, and the one after, are free still.
    reserve(["2015-05-08", "2015-05-09"], 200, RESERVED);
    reserve(["2015-05-12", "2015-05-13"], 200, RESERVED);
}

fn mixed_workload(frontend: &str) {
    let mut load = Command::new(program("hotel"));
    load.args(["load", "--seconds", "3", "--connections", "8", "--json"]);
    let outcome = succeed(load.args(["--frontend", frontend]));
    let outcome: Outcome = serde_json::from_str(&outcome).unwrap();
    assert_eq!(outcome.errors, 0, "{outcome:?}");
    assert!(outcome.answered > 8, "{outcome:?}");
}

fn a_killed_service_comes_back(suite: &mut Suite, service: &'static str, path: &str) {
    let before = get(&suite.frontend, path);
    assert_eq!(before.0, 200, "{service}: {}", before.1);
    suite.process(service).kill();
    let mut last = before.clone();
    let unavailable = eventually(SOON, || {
        last = get(&suite.frontend, path);
        last.0 == 503
    });
    assert!(unavailable.is_ok(), "{service} is gone: {last:?}");
    assert!(
        last.1["message"]
            .as_str()
            .is_some_and(|why| !why.is_empty())
    );
    suite.restart(service);
    let back = eventually(SOON, || {
        last = get(&suite.frontend, path);
        last == before
    });
    assert!(back.is_ok(), "{service} is back: {last:?}");
}

/// A policy before the frontend's calls of user, which knows nothing of the service.
fn a_tenants_policy_decides(suite: &Suite) {
    let Carrier::Tollgate(hosts) = &suite.carrier else {
        panic!("this suite has hosts");
    };
    let path = format!("/user?username={}&password={}", username(3), password(3));
    let config = json!({"percent": 100, "status": 8, "message": "come back tomorrow"});
    let config = hosts.bed.file("fault.json", config.to_string());
    let (owner, policy) = ("--tenant acme", "fault-injection");
    let pushed = hosts
        .a
        .push(owner, "fault_injection", policy, Some(&config));
    let scope = "--service user.User --side client --grant delay";
    hosts
        .a
        .ok(&format!("policy attach {pushed} {owner} {scope}"));
    let refused = (429, json!({"message": "come back tomorrow"}));
    assert_eq!(get(&suite.frontend, &path), refused);
    hosts.a.ok(&format!("policy detach {policy} {owner}"));
    assert_eq!(
        get(&suite.frontend, &path),
        (200, json!({"message": WELCOME}))
    );
}

/// Of a request that is due at once, and of one whose service hangs behind another.
fn deadlines(suite: &mut Suite) {
    for (timeout_ms, hangs) in [("0", false), ("300", true)] {
        let (_frontend, address) = suite.another_frontend(&["--timeout-ms", timeout_ms]);
        if hangs {
            suite.process("geo").signal(Signal::STOP);
        }
        let (status, answer) = get(&address, DOWNTOWN);
        suite.process("geo").signal(Signal::CONT);
        assert_eq!(status, 504, "{timeout_ms} ms: {answer}");
    }
    let back = eventually(SOON, || get(&suite.frontend, DOWNTOWN).0 == 200);
    assert!(back.is_ok(), "geo goes on");
}

fn a_lost_memcached_is_said_once(suite: &mut Suite) {
    let before = get(&suite.frontend, DOWNTOWN);
    suite.memcached.process.kill();
    for _ in 0..20 {
        assert_eq!(get(&suite.frontend, DOWNTOWN), before);
    }
    for service in ["rate", "profile", "reservation"] {
        let process = suite.process(service);
        let says = |what| {
            let said = process.said();
            said.iter().filter(|line| line.contains(what)).count()
        };
        // One that stalled before was lost as well, and came back.
        let lost = || says("is gone") - says("is back");
        let _told = eventually(SOON, || lost() > 0);
        assert_eq!(lost(), 1, "{service}: {:?}", process.said());
    }
}

fn all_end_well(processes: BTreeMap<&str, Process>) {
    for (name, mut process) in processes {
        process.signal(Signal::TERM);
        let status = process.ended(SOON);
        let well = status.is_some_and(|status| status.success());
        assert!(well, "{name}: {status:?}: {:?}", process.said());
    }
}

#[test]
fn c_and_python_answer_exactly_as_rust() {
    let place = place("hotel-languages");
    let hosts = Hosts::new();
    let lines = other_languages(&place, &hosts);
    let serve =
        |(name, (program, args)): (_, (PathBuf, Vec<String>))| suite::serve(name, &program, &args);
    let _processes: Vec<_> = lines.into_iter().map(serve).collect();
    let session = SessionOptions::new(hosts.b.socket(), &hosts.tokens[1]);
    let session = Session::open(session).unwrap();
    let clients = Clients::new(&session, &Targets::default());
    let stores = tempfile::tempdir().unwrap();
    let geo = Geo::open(stores.path()).unwrap();
    let recommendations = Recommendations::open(stores.path()).unwrap();
    let (mut most, mut draw) = (0, Rng::with_seed(1));
    let mut between = |from: f64, to: f64| from + (to - from) * draw.f64();
    for round in 0..2000 {
        let (lat, lon) = (between(37.7, 38.3), between(-122.5, -121.7));
        let near = geo.nearest(lat as f32, lon as f32);
        most = most.max(near.len());
        let answer = tollgate::block_on(
            &session,
            clients.nearest(Cause::NONE, lat as f32, lon as f32),
        );
        assert_eq!(answer.unwrap(), near, "{lat} {lon}");
        let require = ["dis", "rate", "price", "view"][round % 4];
        let here = Point { lat, lon };
        let best = recommendations.best(require, here);
        let answer = clients.recommended(Cause::NONE, require, here);
        let answer = tollgate::block_on(&session, answer);
        assert_eq!(answer, best, "{require} {lat} {lon}");
    }
    assert_eq!(most, 5, "some have as many neighbours as are answered");
}

/// A geo that remembers how much time it was given.
#[derive(Default)]
struct Timed(Arc<Mutex<Vec<Option<Duration>>>>);

impl geo_server::Geo for Timed {
    async fn nearby(&self, request: Request<Received<geo::Request>>) -> Reply<geo::Result> {
        self.0.lock().unwrap().push(request.timeout());
        let hotel_ids = vec!["1".to_owned(), "2".to_owned()];
        Ok(geo::Result { hotel_ids }.into())
    }
}

#[test]
fn what_search_calls_is_due_when_search_is() {
    let (hosts, stores) = (Hosts::new(), tempfile::tempdir().unwrap());
    let open = |options| Session::open(options).unwrap();
    let serving = open(SessionOptions::new(hosts.b.socket(), &hosts.tokens[1]));
    let geo = Timed::default();
    let given = Arc::clone(&geo.0);
    let server = Server::new(&serving)
        .add_service(geo_server::GeoServer::new(geo))
        .add_service(RateServer::new(Rates::open(stores.path(), None).unwrap()));
    tollgate::block_on(&serving, server.bind()).unwrap();
    let (socket, b) = (
        hosts.a.socket().display().to_string(),
        hosts.b.listen().to_string(),
    );
    let token = hosts.a.token_file(&hosts.tokens[0]).display().to_string();
    let args = [
        "search",
        "--socket",
        &socket,
        "--token-file",
        &token,
        "--geo",
        &b,
        "--rate",
        &b,
    ];
    let _search = suite::serve("search", &program("hotel"), &args.map(str::to_owned));
    let calling = open(SessionOptions::new(hosts.a.socket(), &hosts.tokens[0]));
    let clients = Clients::new(&calling, &Targets::default());
    let stay = Stay::parse("2015-04-09", "2015-04-10").unwrap();
    let minute = Duration::from_secs(60);
    for cause in [Cause::NONE, Cause::due_after(minute)] {
        let found = tollgate::block_on(&calling, clients.search(cause, 37.8, -122.4, stay));
        assert_eq!(found.unwrap(), ["2", "1"]);
    }
    let given = given.lock().unwrap();
    assert_eq!(given.len(), 2);
    let within = |given: Option<Duration>| given.is_some_and(|left| left < minute);
    assert!(!within(given[0]) && within(given[1]), "{given:?}");
}

#[test]
fn no_more_rooms_are_taken_than_there_are_and_the_cache_knows() {
    const THREADS: u64 = 6;
    let (stores, memcached) = (tempfile::tempdir().unwrap(), Memcached::new());
    let rooms = Reservations::open(stores.path(), Some(memcached.address)).unwrap();
    // Three nights of hotel 1, which has 200 rooms; stays begin and end on any of them.
    let days = ["2015-04-09", "2015-04-10", "2015-04-11", "2015-04-12"];
    let taken: [AtomicU32; 3] = Default::default();
    let booking = |first: usize, last: usize, rooms| {
        Booking::parse(
            "Ada",
            vec!["1".to_owned()],
            [days[first], days[last]],
            rooms,
        )
        .unwrap()
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (rooms, taken) = (&rooms, &taken);
            scope.spawn(move || {
                let mut draw = Rng::with_seed(thread);
                for _ in 0..40 {
                    let first = draw.usize(..3);
                    let last = first + 1 + draw.usize(..3 - first);
                    let number = draw.u32(1..=5);
                    let wish = booking(first, last, number as i32);
                    // Asking fills the cache while others change it.
                    rooms.available(&wish).unwrap();
                    if rooms.reserve(&wish).unwrap() {
                        for night in &taken[first..last] {
                            night.fetch_add(number, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let taken = taken.map(AtomicU32::into_inner);
    assert!(taken.iter().all(|&taken| taken <= 200), "{taken:?}");
    assert!(taken.iter().any(|&taken| taken > 190), "{taken:?}");
    let exactly = |rooms: &Reservations, whose: &str| {
        for (night, &taken) in taken.iter().enumerate() {
            let left = 200 - taken as i32;
            let has = |number| {
                let free = rooms.available(&booking(night, night + 1, number)).unwrap();
                free == ["1"]
            };
            assert!(left == 0 || has(left), "{whose}: {left} left of {taken:?}");
            assert!(!has(left + 1), "{whose}: more than {left} of {taken:?}");
        }
    };
    exactly(&rooms, "cache");
    drop(rooms);
    let rooms = Reservations::open(stores.path(), None).unwrap();
    exactly(&rooms, "store");
}

#[test]
fn what_a_lost_memcached_has_is_never_believed() {
    let (place, mut memcached) = (tempfile::tempdir().unwrap(), Memcached::new());
    let rooms = Reservations::open(place.path(), Some(memcached.address)).unwrap();
    let dates = ["2015-04-09", "2015-04-10"];
    let booking = |number| Booking::parse("Ada", vec!["1".to_owned()], dates, number).unwrap();
    assert_eq!(rooms.available(&booking(200)).unwrap(), ["1"]);
    // It doesn't end, it hangs, and is left alone then: what it has when it goes on is old.
    memcached.process.signal(Signal::STOP);
    assert!(rooms.reserve(&booking(100)).unwrap());
    assert!(rooms.reserve(&booking(50)).unwrap());
    assert!(rooms.available(&booking(51)).unwrap().is_empty());
    memcached.process.signal(Signal::CONT);
    thread::sleep(PAUSE);
    assert!(rooms.available(&booking(51)).unwrap().is_empty());
    assert_eq!(rooms.available(&booking(50)).unwrap(), ["1"]);
    memcached.process.kill();
    assert!(rooms.reserve(&booking(50)).unwrap());
    assert!(rooms.available(&booking(1)).unwrap().is_empty());
    let _another = Memcached::at(memcached.address);
    thread::sleep(PAUSE + Duration::from_millis(10));
    assert!(rooms.available(&booking(1)).unwrap().is_empty());
}

//! A chain of hosts: an application on the first calls one on the second, whose handler calls one
//! on the third, and so on.
//!
//! Guests book at the front without pause. The last host records every call, so that a test knows
//! how each call ended, and that no handler ran twice. No library retries the method: a guest sees
//! the actual outcome.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status,
    block_on,
};

use crate::hotel::reservation_client::ReservationClient;
use crate::hotel::reservation_server::{Reservation, ReservationServer};
use crate::hotel::{AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest};
use crate::process::{Process, program};
use crate::testbed::{Daemon, Options, SOON, Testbed, eventually, succeed};

/// The hosts' names, in the direction of the calls.
pub const NAMES: [&str; 4] = ["frontend", "a", "b", "c"];

/// The key of links between hosts beyond loopback.
const KEY: &str = "q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI=";

/// Guests, each with one call at a time.
const GUESTS: u32 = 4;

/// The number of times that each call reached the last host.
type Seen = Arc<Mutex<BTreeMap<u32, u32>>>;

/// Four hosts with their applications.
#[derive(Debug)]
pub struct Chain {
    /// In the direction of the calls.
    pub hosts: Vec<Daemon>,
    /// The applications' sessions.
    sessions: Vec<Session>,
    seen: Seen,
    /// The bed that they are in.
    pub bed: Testbed,
    /// Their networks, if each has its own.
    _networks: Option<Networks>,
}

/// A network namespace per host, and a bridge in another that joins them. They last as long as
/// their processes.
#[derive(Debug)]
struct Networks {
    hosts: Vec<Process>,
    _bridge: Process,
}

impl Chain {
    /// A chain on loopback.
    ///
    /// # Panics
    /// If a daemon or an application can't be started.
    pub fn on_loopback() -> Chain {
        Chain::with(None)
    }

    /// A chain with a network namespace per host, which needs root and iproute2; without them it is
    /// on loopback, with a message.
    ///
    /// # Panics
    /// If a network, a daemon or an application can't be made.
    pub fn on_networks() -> Chain {
        let is_root = rustix::process::geteuid().is_root();
        let has_ip = Command::new("ip").arg("-V").output().is_ok();
        if !is_root || !has_ip {
            eprintln!("network namespaces take root and iproute2: these hosts are on loopback");
        }
        Chain::with((is_root && has_ip).then(Networks::new))
    }

    fn with(networks: Option<Networks>) -> Chain {
        let bed = Testbed::new();
        let host = |(number, name): (usize, &&str)| {
            let listen = |_: &Networks| SocketAddr::from((address(number), 7472));
            let options = Options {
                durable: true,
                psk: Some(KEY.to_owned()),
                listen: networks.as_ref().map(listen),
                network: networks.as_ref().map(|all| all.hosts[number].pid()),
                ..Options::default()
            };
            bed.daemon_with(name, &options)
        };
        let hosts: Vec<Daemon> = NAMES.iter().enumerate().map(host).collect();
        let seen = Seen::default();
        // From the last host on, so that each finds the next.
        let mut sessions: Vec<Session> = Vec::new();
        for number in (1..hosts.len()).rev() {
            let session = open(&hosts[number]);
            let next = hosts.get(number + 1);
            let relay = Relay {
                next: next.map(|next| client(&session, next)),
                seen: Arc::clone(&seen),
            };
            let server = Server::new(&session).add_service(ReservationServer::new(relay));
            block_on(&session, server.bind()).unwrap_or_else(|status| panic!("{status}"));
            sessions.push(session);
        }
        sessions.push(open(&hosts[0]));
        Chain {
            hosts,
            sessions,
            seen,
            bed,
            _networks: networks,
        }
    }

    /// A fleet file of all hosts, with further lines of TOML for each.
    pub fn fleet(&self, besides: impl Fn(&str) -> String) -> PathBuf {
        let host = |host: &Daemon| {
            let (name, socket) = (host.name(), host.socket().display());
            let besides = besides(name);
            format!("[[host]]\nname = \"{name}\"\nsocket = \"{socket}\"\n{besides}\n")
        };
        let text: String = self.hosts.iter().map(host).collect();
        self.bed.file("fleet.toml", text)
    }

    /// A program that every host can be upgraded to.
    pub fn successor(&self) -> PathBuf {
        self.bed
            .successor("next", &program("tollgated").display().to_string())
    }

    /// The process of each host's daemon.
    pub fn pids(&mut self) -> Vec<u32> {
        let pid = |host: &mut Daemon| {
            host.follow();
            host.pid()
        };
        self.hosts.iter_mut().map(pid).collect()
    }

    /// A caller at the frontend: a session, and a client through all hosts.
    ///
    /// # Panics
    /// Never: the frontend has a session.
    pub fn caller(&self) -> (Session, ReservationClient) {
        let session = self.sessions.last().expect("the frontend has a session");
        (session.clone(), client(session, &self.hosts[1]))
    }

    /// The number of times that a call reached the last host.
    pub fn reached(&self, number: u32) -> u32 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&number).copied().unwrap_or_default()
    }

    /// Guests that book at the frontend until they are stopped.
    ///
    /// # Panics
    /// If they can't book at all.
    pub fn guests(&self) -> Guests {
        let guests = Guests {
            leave: Arc::default(),
            next: Arc::default(),
            booked: Arc::default(),
            threads: Vec::new(),
            seen: Arc::clone(&self.seen),
        };
        let one = |_| {
            let (session, client) = self.caller();
            guests.one(session, client)
        };
        let threads = (0..GUESTS).map(one);
        let threads = threads.collect();
        let guests = Guests { threads, ..guests };
        guests.assert_booking();
        guests
    }
}

fn address(number: usize) -> [u8; 4] {
    [10, 77, 0, number as u8 + 1]
}

fn open(host: &Daemon) -> Session {
    let mut options = SessionOptions::new(host.socket(), host.tenant("acme"));
    options.app = "chain".to_owned();
    Session::open(options).unwrap_or_else(|status| panic!("no session: {status}"))
}

fn client(session: &Session, host: &Daemon) -> ReservationClient {
    ReservationClient::new(Channel::new(session, &host.listen().to_string()))
}

/// The guests, and the outcomes of their bookings.
#[derive(Debug)]
pub struct Guests {
    leave: Arc<AtomicBool>,
    next: Arc<AtomicU32>,
    booked: Arc<AtomicU32>,
    threads: Vec<JoinHandle<Vec<End>>>,
    seen: Seen,
}

/// A call and its one outcome.
#[derive(Debug)]
struct End {
    number: u32,
    end: Result<u64, Status>,
}

impl Guests {
    fn one(&self, session: Session, client: ReservationClient) -> JoinHandle<Vec<End>> {
        let (leave, next) = (Arc::clone(&self.leave), Arc::clone(&self.next));
        let booked = Arc::clone(&self.booked);
        std::thread::spawn(move || {
            let mut ends = Vec::new();
            while !leave.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let mut request = Request::new(reservation(number));
                request.set_timeout(SOON);
                let reply = block_on(&session, client.reserve(request));
                let end = reply.map(|reply| reply.get_ref().view().reservation_id());
                match &end {
                    Ok(_) => _ = booked.fetch_add(1, Ordering::Relaxed),
                    // The server is missing at the moment.
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
                }
                ends.push(End { number, end });
            }
            ends
        })
    }

    /// Waits until calls go through, all the way.
    ///
    /// # Panics
    /// If none does.
    pub fn assert_booking(&self) {
        let before = self.booked.load(Ordering::Relaxed);
        let more = eventually(SOON, || self.booked.load(Ordering::Relaxed) > before + 50);
        more.unwrap_or_else(|waited| panic!("nobody has booked for {waited:?}"));
    }

    /// Stops the guests. Returns the number of calls, and how many of them were UNAVAILABLE.
    ///
    /// # Panics
    /// If a call didn't end exactly once, had a wrong outcome, or ran twice.
    pub fn leave(self) -> (usize, usize) {
        self.leave.store(true, Ordering::Relaxed);
        let mut ends = BTreeMap::new();
        for guest in self.threads {
            for End { number, end } in guest.join().expect("a guest panics only on a bug") {
                let twice = ends.insert(number, end);
                assert!(twice.is_none(), "call {number} has ended twice");
            }
        }
        let calls = self.next.load(Ordering::Relaxed) as usize;
        assert_eq!(ends.len(), calls, "each call has an end");
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, end) in &ends {
            let seen = seen.get(number).copied().unwrap_or_default();
            match end {
                Ok(id) => assert_eq!((*id, seen), (u64::from(*number), 1), "call {number}"),
                Err(status) => {
                    assert_eq!(status.code, Code::UNAVAILABLE, "call {number}: {status}");
                    assert!(seen <= 1, "the handler of call {number} ran {seen} times");
                }
            }
        }
        let failed = ends.values().filter(|end| end.is_err()).count();
        (calls, failed)
    }
}

fn reservation(number: u32) -> ReserveRequest {
    ReserveRequest {
        customer_name: "Ada".to_owned(),
        room_count: number,
        ..ReserveRequest::default()
    }
}

/// Calls the next host, or is the last.
struct Relay {
    next: Option<ReservationClient>,
    seen: Seen,
}

impl Reservation for Relay {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        let number = request.get_ref().view().room_count();
        let reservation_id = match &self.next {
            Some(next) => {
                let reply = next.reserve(reservation(number)).await?;
                reply.get_ref().view().reservation_id()
            }
            None => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                *seen.entry(number).or_default() += 1;
                number.into()
            }
        };
        Ok(Response::new(ReserveReply {
            reservation_id,
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

impl Networks {
    fn new() -> Networks {
        let ours = std::fs::read_link("/proc/self/ns/net").expect("a process has a network");
        let namespace = || {
            let words = ["--net", "sleep", "infinity"];
            let holder = Process::start("unshare".as_ref(), words).expect("unshare is there");
            let theirs = format!("/proc/{}/ns/net", holder.pid());
            let separate = eventually(SOON, || {
                std::fs::read_link(&theirs).is_ok_and(|theirs| theirs != ours)
            });
            separate.expect("a network of its own");
            holder
        };
        let bridge = namespace();
        ip(&bridge, "link add bridge type bridge");
        ip(&bridge, "link set bridge up");
        let host = |number: usize| {
            let host = namespace();
            let [a, b, c, d] = address(number);
            let pid = host.pid();
            ip(
                &bridge,
                &format!("link add host{number} type veth peer name eth0 netns {pid}"),
            );
            ip(&bridge, &format!("link set host{number} master bridge up"));
            ip(&host, &format!("address add {a}.{b}.{c}.{d}/24 dev eth0"));
            ip(&host, "link set eth0 up");
            ip(&host, "link set lo up");
            host
        };
        Networks {
            hosts: (0..NAMES.len()).map(host).collect(),
            _bridge: bridge,
        }
    }
}

/// Changes the network of a process.
fn ip(of: &Process, line: &str) {
    let mut command = Command::new("nsenter");
    command.args(["--net", "--target", &of.pid().to_string(), "ip"]);
    succeed(command.args(line.split(' ')));
}

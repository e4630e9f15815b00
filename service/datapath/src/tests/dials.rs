//! How peers are dialled that have several addresses, move, or refuse, at times that the test sets.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tollgate_engine::{LinkId, SessionId};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::wait::now_ns;
use tollgate_transport::{Event, TcpLink};

use super::links::trusting;
use super::turns::open_with;
use crate::binds::{BindOutcome, BindReply, ServiceSchema};
use crate::limits::{ATTEMPT_DELAY, LOOKUP_PATIENCE, MAX_COMPARISONS_PER_TENANT, REDIAL_PAUSE};
use crate::links::target::{Found, Stage, Target};
use crate::peer_room::PeerRoom;
use crate::runtime::Runtime;

type Answer = mpsc::Receiver<Result<BindOutcome, tollgate_engine::Status>>;

/// A runtime with a session of each of these tenants. Its time stands still unless a test advances
/// it.
fn with_sessions(tenants: &[&str]) -> (Runtime, Vec<SessionId>) {
    let (mut runtime, handle) = Runtime::idle();
    for tenant in tenants {
        // The application's end isn't needed: no calls are made.
        let _ends = open_with(&mut runtime, &handle, tenant, 0);
    }
    let sessions = runtime.sessions.iter().map(|port| port.id).collect();
    (runtime, sessions)
}

fn bind(runtime: &mut Runtime, session: SessionId, tenant: &str, to: Found) -> Answer {
    let schema = Arc::new(ServiceSchema {
        name: "S".to_owned(),
        hash: [0; 32],
        description: String::new(),
        methods: Vec::new(),
    });
    let (asked, answer): (BindReply, Answer) = super::reply();
    runtime.bind_remote(session, tenant.into(), schema, Vec::new(), to, asked);
    answer
}

fn until(runtime: &mut Runtime, mut is_so: impl FnMut(&mut Runtime) -> bool) {
    let began = Instant::now();
    while !is_so(runtime) {
        assert!(began.elapsed() < Duration::from_secs(30));
        runtime.poll_wakes(Some(Duration::from_millis(1)));
        runtime.turn();
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn closed() -> SocketAddr {
    listener().1
}

/// A peer's end of a link. It counts BINDs, and accepts or refuses them.
struct Peer {
    link: TcpLink,
    binds: usize,
    refuses: bool,
}

impl Peer {
    fn of(listener: &TcpListener) -> Peer {
        let began = Instant::now();
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(_) if began.elapsed() < Duration::from_secs(30) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("nobody has dialled: {error}"),
            }
        };
        let link = TcpLink::accept(stream, &trusting("peer"), now_ns());
        Peer {
            link: link.unwrap(),
            binds: 0,
            refuses: false,
        }
    }

    fn turn(&mut self) {
        self.link.read().unwrap();
        while let Some(event) = self.link.link.poll_event().unwrap() {
            let Event::Bind { bind, .. } = event else {
                continue;
            };
            self.binds += 1;
            let link = &mut self.link.link;
            let answered = match self.refuses {
                false => link.send_bound(bind, ""),
                true => link.send_refused(bind, Code::UNIMPLEMENTED, "nobody serves it", ""),
            };
            answered.unwrap();
        }
        self.link.flush().unwrap();
    }
}

#[test]
fn the_next_address_is_dialled_upon_a_failure_at_once_and_beside_a_slow_one_after_a_while() {
    let (mut runtime, sessions) = with_sessions(&["t"]);
    let (closed, (slow_listener, slow), (good_listener, good)) = (closed(), listener(), listener());
    let found = Found {
        peer: Target::new("several.test:1", closed),
        addresses: vec![closed, slow, good],
    };
    let answer = bind(&mut runtime, sessions[0], "t", found);
    let at = |runtime: &Runtime| -> Vec<_> {
        let links = runtime.links.iter();
        links.filter_map(|(_, port)| port.state.at).collect()
    };
    assert_eq!(at(&runtime), [closed]);
    until(&mut runtime, |runtime| at(runtime) == [slow]);
    let _says_nothing = slow_listener.accept().unwrap();
    runtime.turn();
    assert_eq!(at(&runtime), [slow], "it has some time");
    runtime.now_ns += ATTEMPT_DELAY.as_nanos() as u64;
    runtime.turn();
    assert_eq!(at(&runtime), [slow, good]);
    let mut peer = None;
    until(&mut runtime, |_| {
        let peer = peer.get_or_insert_with(|| Peer::of(&good_listener));
        peer.turn();
        answer.try_recv().is_ok()
    });
    assert!(runtime.dials.is_empty());
    until(&mut runtime, |runtime| at(runtime) == [good]);
}

#[test]
fn who_waits_is_told_why_each_address_failed() {
    let (mut runtime, sessions) = with_sessions(&["t"]);
    let addresses = vec![closed(), closed()];
    let peer = Target::new("several.test:1", addresses[0]);
    let found = Found {
        peer,
        addresses: addresses.clone(),
    };
    let answer = bind(&mut runtime, sessions[0], "t", found);
    let mut told = None;
    until(&mut runtime, |_| {
        told = answer.try_recv().ok();
        told.is_some()
    });
    let why = told.unwrap().err().unwrap().message;
    assert!(why.starts_with("peer several.test:1 can't be reached: "));
    for address in addresses {
        let failed = format!("connecting to {address} failed: Connection refused");
        assert!(why.contains(&failed), "{why}");
    }
    assert!(runtime.dials.is_empty(), "nobody is bound to it");
}

/// Simulates a peer that accepted everything once.
fn all_are_bound(runtime: &mut Runtime) {
    runtime.bindings.all_stand();
}

#[test]
fn a_name_is_looked_up_again_before_it_is_dialled_again() {
    let (mut runtime, sessions) = with_sessions(&["t"]);
    let before = closed();
    let peer = Target::new("moves.test:1", before);
    let found = Found {
        peer: peer.clone(),
        addresses: vec![before],
    };
    drop(bind(&mut runtime, sessions[0], "t", found));
    all_are_bound(&mut runtime);
    until(&mut runtime, |runtime| runtime.links.is_empty());
    let due = |runtime: &mut Runtime| {
        runtime.now_ns = runtime.dials.first().at_ns;
        runtime.turn();
    };
    assert_eq!(runtime.dials.first().stage, Stage::Pausing);
    due(&mut runtime);
    assert_eq!(runtime.dials.first().stage, Stage::LookingUp);
    assert!(runtime.links.is_empty(), "nobody knows where it is now");
    runtime.found("t".into(), peer.clone(), Err("it is nowhere".to_owned()));
    assert_eq!(runtime.dials.first().stage, Stage::Pausing);
    due(&mut runtime);
    // A look-up without an answer is repeated.
    let asked_at_ns = runtime.now_ns;
    assert_eq!(
        runtime.dials.first().at_ns,
        asked_at_ns + LOOKUP_PATIENCE.as_nanos() as u64
    );
    due(&mut runtime);
    assert_eq!(runtime.dials.first().stage, Stage::LookingUp);
    let (listener, after) = listener();
    runtime.found("t".into(), peer.clone(), Ok(vec![after]));
    let mut taken = None;
    until(&mut runtime, |runtime| {
        let peer = taken.get_or_insert_with(|| Peer::of(&listener));
        peer.turn();
        peer.binds == 1 && runtime.dials.is_empty()
    });
    runtime.found("t".into(), peer, Ok(vec![before]));
    assert!(runtime.dials.is_empty(), "nobody has asked");
}

/// The server's application returns later than its daemon: its peers repeat the BIND soon, then
/// less and less often.
#[test]
fn a_bind_that_a_peer_refuses_for_now_is_asked_for_again_after_pauses_that_double() {
    let (mut runtime, sessions) = with_sessions(&["t"]);
    let (listener, address) = listener();
    let answer = bind(&mut runtime, sessions[0], "t", address.into());
    let mut peer = Peer::of(&listener);
    until(&mut runtime, |_| {
        peer.turn();
        answer.try_recv().is_ok()
    });
    // The BIND is repeated, as after a loss of the link.
    let key = runtime.bindings.iter().next().unwrap().0;
    let link = runtime.links.to("t", &address.into()).unwrap();
    peer.refuses = true;
    runtime.send_bind(link, key);
    let retry = |runtime: &Runtime| runtime.bindings.get(key).and_then(|b| b.retry_at_ns);
    let mut pauses = Vec::new();
    for asked in 2..10 {
        until(&mut runtime, |runtime| {
            peer.turn();
            retry(runtime).is_some()
        });
        assert_eq!(peer.binds, asked);
        let at_ns = retry(&runtime).unwrap();
        pauses.push(Duration::from_nanos(at_ns - runtime.now_ns));
        runtime.now_ns = at_ns;
        runtime.turn();
    }
    let (first, longest) = REDIAL_PAUSE;
    let doubled = (0..8).map(|k| (first * (1 << k)).min(longest));
    assert_eq!(pauses, doubled.collect::<Vec<_>>());
    peer.refuses = false;
    until(&mut runtime, |runtime| {
        peer.turn();
        runtime.bindings.get(key).is_some_and(|b| b.stands())
    });
    peer.refuses = true;
    runtime.send_bind(link, key);
    until(&mut runtime, |runtime| {
        peer.turn();
        retry(runtime).is_some()
    });
    let at_ns = retry(&runtime).unwrap();
    assert_eq!(
        at_ns - runtime.now_ns,
        first.as_nanos() as u64,
        "they begin anew"
    );
}

#[test]
fn a_tenants_dialled_links_are_limited_and_those_that_nobody_needs_make_room() {
    let most = PeerRoom::of_each(1, None).dialled_per_tenant();
    let (mut runtime, sessions) = with_sessions(&["mallory", "acme"]);
    let (_listener, address) = listener();
    let found = |k: usize| Found {
        peer: Target::new(&format!("n{k}.test:1"), address),
        addresses: vec![address],
    };
    let mut answers = Vec::new();
    for k in 0..most {
        answers.push(bind(&mut runtime, sessions[0], "mallory", found(k)));
    }
    assert_eq!(runtime.links.len(), most);
    let refused = bind(&mut runtime, sessions[0], "mallory", found(most));
    let why = refused.try_recv().unwrap().err().unwrap().message;
    assert!(
        why.contains("tenant mallory has 256 links to peers"),
        "{why}"
    );
    answers.push(bind(&mut runtime, sessions[1], "acme", found(0)));
    assert_eq!(runtime.links.len(), most + 1);
    runtime.bindings.drop_of(sessions[0]);
    answers.push(bind(&mut runtime, sessions[0], "mallory", found(most)));
    assert_eq!(runtime.links.len(), 2, "the one, and acme's");
}

#[test]
fn comparisons_are_limited_in_total_and_per_tenant_until_they_are_answered() {
    let tenants = ["a", "b", "c", "d", "e"];
    let (mut runtime, sessions) = with_sessions(&tenants);
    let (_listener, address) = listener();
    let mut answers = Vec::new();
    for (&session, tenant) in sessions.iter().zip(tenants) {
        answers.push(bind(&mut runtime, session, tenant, address.into()));
    }
    let bindings = runtime.bindings.iter();
    let keys: HashMap<String, u32> = bindings
        .map(|(key, binding)| (binding.tenant.to_string(), key))
        .collect();
    let refusal = |answer: &Answer| match answer.try_recv() {
        Ok(Err(status)) => Some((status.code, status.message.into_owned())),
        Ok(Ok(_)) => panic!("nobody has accepted it"),
        Err(_) => None,
    };
    let compare = |runtime: &mut Runtime, tenant| {
        runtime.compare(LinkId(0), 0, keys[tenant], "theirs");
    };
    for tenant in &tenants[..4] {
        for _ in 0..MAX_COMPARISONS_PER_TENANT {
            compare(&mut runtime, *tenant);
        }
    }
    assert!(answers.iter().all(|answer| refusal(answer).is_none()));
    compare(&mut runtime, "e");
    let (code, text) = refusal(&answers[4]).unwrap();
    assert_eq!(code, Code::RESOURCE_EXHAUSTED);
    let total = "4096 schemas of peers are being compared, which is the limit";
    assert_eq!(text, total);
    // The control plane answers one, although it is outdated.
    runtime.compared(1, keys["a"], Vec::new());
    assert_eq!(runtime.bindings.why_not_compare(keys["a"]), None);
    let its = runtime.bindings.why_not_compare(keys["b"]);
    assert_eq!(its.unwrap(), "1024 schemas of peers of tenant b");
}

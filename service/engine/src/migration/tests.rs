//! Moved calls continue in the other engine. Random schedules, in which everything moves now and
//! then, are in the crate's `tests.rs`.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tollgate_shm_abi::status::Code;

use super::*;
use crate::frozen::tests::{Follower, NOW_NS, everything, freeze, thaw};
use crate::ids::EngineId;
use crate::limits::MAX_CALLS;
use crate::output::Output;
use crate::routes::{Encoding, Route};
use crate::status::Status;
use crate::tests::{APP, Message, PEER, SERVER, delivered, drain, engine, from_peer, submission};

/// All parts of an engine.
pub(crate) fn all(engine: &Engine<Message>) -> Wanted {
    Wanted {
        sessions: engine
            .sessions
            .iter()
            .map(|(id, _)| SessionId(id))
            .collect(),
        links: engine.links.iter().map(|(id, _)| LinkId(id)).collect(),
        services: (0..engine.services.len() as u32).map(ServiceId).collect(),
    }
}

/// Another tenant's session, which calls itself.
pub(crate) const OTHERS: SessionId = SessionId(0x77);

/// Puts another tenant's calls into an engine.
pub(crate) fn inhabit(engine: &mut Engine<Message>, calls: u64) {
    let session = OTHERS;
    engine.session_opened(session);
    let service = engine.add_service("others.Service", 1);
    engine.serve(service, session, 0, None);
    let target = RouteTarget::Local {
        service,
        method: 0,
        encoding: Encoding::Native,
    };
    let chains = MethodChains::default();
    engine.add_routes(session, vec![Route { target, chains }]);
    for call in 0..calls {
        let mut posted = submission(call, 0);
        posted.origin = Origin::Session { session, call };
        engine.submit(1, session, 0, posted);
    }
    drain(engine);
}

pub(crate) fn inhabited(engine_id: u32, calls: u64) -> Engine<Message> {
    let mut engine = Engine::with_id(EngineId::new(engine_id).unwrap());
    inhabit(&mut engine, calls);
    engine
}

/// Unused ids: each id plus a constant.
fn other_names(migration: &Migration<Message>, there: &mut Engine<Message>) -> Renamed {
    let mut names = Renamed::default();
    for (id, _) in &migration.sessions {
        names.sessions.insert(*id, SessionId(id.0 + 0x10));
    }
    for (id, _) in &migration.links {
        names.links.insert(*id, LinkId(id.0 + 0x10));
    }
    for (id, service) in &migration.services {
        let name = there.add_service(&service.name, service.chains.len());
        names.services.insert(*id, name);
    }
    for chain in migration.chains() {
        names.chains.insert(chain, ChainId(chain.0 + 100));
    }
    names
}

fn reversed(names: &Renamed) -> Renamed {
    fn turn<T: Copy + Eq + std::hash::Hash>(names: &HashMap<T, T>) -> HashMap<T, T> {
        names.iter().map(|(from, to)| (*to, *from)).collect()
    }
    Renamed {
        sessions: turn(&names.sessions),
        links: turn(&names.links),
        services: turn(&names.services),
        chains: turn(&names.chains),
    }
}

/// A state, without the engine numbers of its calls.
fn but_places(state: &str) -> Value {
    let mut state: Value = serde_json::from_str(state).unwrap();
    let calls = state["calls"].as_array_mut().unwrap();
    for call in &mut *calls {
        call.as_object_mut().unwrap().remove("place");
    }
    // Calls without a deadline are in no order.
    let number = |call: &Value| call["key"].as_u64().filter(|_| call["deadline_ns"] == 0);
    calls.sort_by_key(number);
    let fields = state.as_object_mut().unwrap();
    for field in ["version", "birth", "free", "expired_ns"] {
        fields.remove(field);
    }
    state
}

#[test]
fn everything_goes_under_other_names_and_comes_back_as_it_was() {
    let mut here = everything();
    let before = freeze(&here);
    let mut there = inhabited(1, 5);
    let others = freeze(&there);
    let migration = here.part(&all(&here)).unwrap();
    assert_eq!((here.live_calls(), here.poll_timeout()), (0, None));
    let names = other_names(&migration, &mut there);
    there.fits(&migration).unwrap();
    let count = migration.calls();
    there.absorb(migration, &names, |_| {});
    assert_eq!(there.live_calls(), 5 + count);
    // The receiving engine can be frozen, and is the same when it is thawed.
    let both = freeze(&there);
    assert_eq!(freeze(&thaw(&both, NOW_NS).unwrap()), both);
    let wanted = Wanted {
        sessions: names.sessions.values().copied().collect(),
        links: names.links.values().copied().collect(),
        services: names.services.values().copied().collect(),
    };
    let migration = there.part(&wanted).unwrap();
    here.absorb(migration, &reversed(&names), |_| {});
    assert_eq!(but_places(&freeze(&here)), but_places(&before));
    let mut left = but_places(&freeze(&there));
    left["services"].as_array_mut().unwrap().truncate(1);
    assert_eq!(left, but_places(&others), "who was there noticed nothing");
    Follower::new(here).wind_up();
}

/// An engine to which everything has moved; another tenant's calls are there, too.
pub(crate) fn moved() -> Engine<Message> {
    let (mut here, mut there) = (everything(), inhabited(1, 3));
    let migration = here.part(&all(&here)).unwrap();
    let names = other_names(&migration, &mut there);
    there.absorb(migration, &names, |_| {});
    there
}

#[test]
fn everything_goes_on_among_others() {
    Follower::new(moved()).wind_up();
    let mut here = everything();
    let mut there = inhabited(1, 3);
    let migration = here.part(&all(&here)).unwrap();
    let names = other_names(&migration, &mut there);
    let mut messages = 0;
    there.absorb(migration, &names, |_| messages += 1);
    assert!(messages > 0);
    Follower::new(here).wind_up();
}

#[test]
fn a_call_keeps_its_number_and_no_other_gets_it() {
    let (mut here, service) = engine();
    here.submit(0, APP, 0, submission(1, 100));
    let call = delivered(&drain(&mut here));
    let mut there = inhabited(1, 1);
    let migration = here.part(&all(&here)).unwrap();
    let names = other_names(&migration, &mut there);
    there.absorb(migration, &names, |_| {});
    let (app, server) = (names.sessions[&APP], names.sessions[&SERVER]);
    assert!(here.expected_from_session(SERVER, call).is_none());
    assert!(there.expected_from_session(server, call).is_some());
    // New calls here and there have other keys.
    let mut numbers = HashSet::from([call]);
    let served = there.expected_from_session(server, call).unwrap().service;
    assert_ne!(served, service);
    for number in 2..50 {
        let mut posted = submission(number, 0);
        posted.origin = Origin::Session {
            session: app,
            call: number,
        };
        there.submit(0, app, 0, posted);
        assert!(
            numbers.insert(delivered(&drain(&mut there))),
            "call {number}"
        );
    }
    assert!(there.reply_from_session(server, call, 7));
    let [
        Output::Complete {
            message: 7,
            session,
            call: 1,
            ..
        },
    ] = drain(&mut there)[..]
    else {
        panic!("no answer");
    };
    assert_eq!(session, app);
    assert!(there.expected_from_session(server, call).is_none());
    let others = inhabited(0, 1);
    let migration = there.part(&all(&there)).unwrap();
    assert_eq!(migration.calls(), 49);
    others.fits(&migration).unwrap();
}

#[test]
fn what_has_to_do_with_what_stays_does_not_go() {
    let (mut engine, service) = engine();
    engine.submit(0, APP, 1, submission(1, 100));
    engine.arrive(0, service, 0, Encoding::Native, from_peer(1, 101));
    let refused = |engine: &mut Engine<Message>, sessions: &[_], links: &[_], services: &[_]| {
        let wanted = Wanted {
            sessions: sessions.to_vec(),
            links: links.to_vec(),
            services: services.to_vec(),
        };
        let refused = engine.part(&wanted).err().map(|unportable| unportable.0);
        refused.unwrap_or_default()
    };
    let all = [APP, SERVER];
    let both = "session 2 serves hotel.Reservation, and only one of them is to go";
    assert_eq!(
        refused(&mut engine, &all, &[PEER], &[service]),
        "the engine has 2 pending outputs"
    );
    drain(&mut engine);
    let state = freeze(&engine);
    for (sessions, links, services, why) in [
        (
            &all[..1],
            &[PEER][..],
            &[][..],
            "session 1 calls service 0, which stays",
        ),
        (&all[..1], &[PEER], &[service], both),
        (&all[1..], &[PEER], &[], both),
        (
            &all,
            &[],
            &[service],
            "call 0 connects a moving part with a remaining part",
        ),
        (
            &[],
            &[PEER],
            &[],
            "call 0 connects a moving part with a remaining part",
        ),
        (
            &[SessionId(9)],
            &[],
            &[],
            "there is no session 9 to part with",
        ),
        (
            &[],
            &[],
            &[ServiceId(1)],
            "there is no service 1 to part with",
        ),
    ] {
        assert_eq!(refused(&mut engine, sessions, links, services), why);
        assert_eq!(freeze(&engine), state, "{why}");
    }
    // A link that hasn't opened isn't here.
    assert_eq!(
        refused(&mut engine, &all, &[PEER, LinkId(1)], &[service]),
        ""
    );
}

#[test]
fn there_is_room_for_as_many_calls_as_an_engine_tracks() {
    let mut here = inhabited(0, 2);
    let migration = here.part(&all(&here)).unwrap();
    let mut full = Engine::with_id(EngineId::new(1).unwrap());
    full.session_opened(APP);
    full.link_opened(PEER, u32::MAX, u64::MAX);
    let service = full.add_service("hotel.Reservation", 1);
    // Each application has a maximum; a peer has none.
    full.session_opened(SERVER);
    full.serve(service, SERVER, 0, None);
    *full.service_chains_mut(service, 0).unwrap() = MethodChains {
        request: Some(ChainId(1)),
        reply: None,
    };
    for call in 0..MAX_CALLS as u64 - 1 {
        full.arrive(0, service, 0, Encoding::Native, from_peer(call, 0));
        while full.poll_output().is_some() {}
    }
    let refused = full.fits(&migration).unwrap_err().0;
    assert_eq!(
        refused,
        "65535 calls are tracked there, and 2 more would exceed 65536"
    );
    // The engine that gave them can take them back, whatever has begun meanwhile.
    let names = other_names(&migration, &mut full);
    full.absorb(migration, &names, |_| {});
    assert_eq!(full.live_calls(), MAX_CALLS + 1);
    full.arrive(0, service, 0, Encoding::Native, from_peer(u64::MAX, 0));
    let outputs = drain(&mut full);
    let refused = |output: &Output<Message>| matches!(output, Output::SendStatus { status, .. } if status.code == Code::RESOURCE_EXHAUSTED);
    assert!(outputs.iter().any(refused), "{outputs:?}");
    full.link_closed(PEER, "gone");
    drain(&mut full);
    assert_eq!(full.live_calls(), 2);
}

/// A daemon that predates engine ids gave the calls of all its runtimes the same numbers.
#[test]
fn two_calls_of_one_number_do_not_meet() {
    let mut here = inhabited(0, 1);
    let mut old = thaw(&freeze(&inhabited(0, 1)), NOW_NS).unwrap();
    old.set_engine_id(EngineId::new(1).unwrap());
    let state = freeze(&old);
    assert_eq!(freeze(&thaw(&state, NOW_NS).unwrap()), state);
    let migration = old.part(&all(&old)).unwrap();
    let refused = here.fits(&migration).unwrap_err().0;
    assert_eq!(refused, "another call has the number 0 there");
    let status = Status::new(Code::ABORTED, "");
    here.fail_from_session(OTHERS, CallKey::from_wire(0), status);
    drain(&mut here);
    here.fits(&migration).unwrap();
}

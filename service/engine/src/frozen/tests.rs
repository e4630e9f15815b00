//! A thawed engine continues unchanged, old states are readable, and invalid ones are refused.
//! Random schedules with engines that are frozen now and then are in `tests.rs`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;
use tollgate_shm_abi::stream::Credit;

use super::*;
use crate::limits::{MAX_CALLS, MAX_DEADLINE_NS, WAITS_INTERVAL_NS};
use crate::migration::tests::moved;
use crate::output::{Output, Submission};
use crate::routes::Steering;
use crate::status::Verdict;
use crate::tests::{APP, Message, PEER, SERVER, drain, engine, from_peer, submission};
use tollgate_shm_abi::metadata::MetadataBuf;

/// The frozen form of [`everything`].
const STATE: &str = include_str!("../../vectors/frozen-3.json");

/// Its frozen form once it has moved to another engine with another tenant's calls.
const MOVED: &str = include_str!("../../vectors/frozen-4.json");

/// The same two, from before calls had arrival times.
const TIMELESS: [&str; 2] = [
    include_str!("../../vectors/frozen-1.json"),
    include_str!("../../vectors/frozen-2.json"),
];

/// States that older versions have written. When the format changes, one is added and [`STATE`]
/// becomes another file.
const STATES: &[&str] = &[STATE, MOVED, TIMELESS[0], TIMELESS[1]];

/// Their time.
pub(crate) const NOW_NS: u64 = 5_000_000_000;

const LABELLED: SessionId = SessionId(0x0001_0003);

/// An engine as text.
pub(crate) fn freeze(engine: &Engine<Message>) -> String {
    let frozen = engine.freeze(|message| *message).unwrap();
    let mut text = serde_json::to_string_pretty(&frozen).unwrap();
    text.push('\n');
    text
}

/// An engine from text.
pub(crate) fn thaw(text: &str, now_ns: u64) -> Result<Engine<Message>, Unportable> {
    let unreadable = |error: serde_json::Error| Unportable(error.to_string());
    let frozen: Frozen<Message> = serde_json::from_str(text).map_err(unreadable)?;
    Engine::thaw(frozen, now_ns, Ok)
}

fn thaw_value(value: &Value) -> Result<Engine<Message>, Unportable> {
    let unreadable = |error: serde_json::Error| Unportable(error.to_string());
    let frozen = Frozen::<Message>::deserialize(value).map_err(unreadable)?;
    Engine::thaw(frozen, NOW_NS, Ok)
}

/// Drives an engine into a state with everything that there can be.
struct Scene {
    engine: Engine<Message>,
    /// The second service; its second method has chains.
    search: ServiceId,
    number: u64,
    message: Message,
}

impl Scene {
    fn next(&mut self) -> (u64, Message) {
        self.number += 1;
        self.message += 1;
        (self.number, self.message)
    }

    fn one(&mut self) -> Message {
        self.message += 1;
        self.message
    }

    fn submit(&mut self, handle: u32, more: bool) -> Origin {
        let (number, message) = self.next();
        let submission = Submission {
            streams: more,
            more,
            ..submission(number, message)
        };
        let origin = submission.origin;
        self.engine.submit(NOW_NS, APP, handle, submission);
        origin
    }

    fn arrive(&mut self, service: ServiceId, method: u16, more: bool) -> Origin {
        let (number, message) = self.next();
        let submission = Submission {
            streams: more,
            more,
            ..from_peer(number, message)
        };
        let origin = submission.origin;
        self.engine
            .arrive(NOW_NS, service, method, Encoding::Native, submission);
        origin
    }

    fn key(&self, origin: Origin) -> CallKey {
        self.engine.key_of(origin).unwrap()
    }

    /// Completes a chain's evaluation or a conversion of a call's message.
    fn allow(&mut self, origin: Origin) {
        let (call, message) = (self.key(origin), self.one());
        self.engine.verdict(call, Verdict::Allow, message);
        drain(&mut self.engine);
    }

    fn convert(&mut self, origin: Origin) {
        let (call, message) = (self.key(origin), self.one());
        self.engine.converted(call, 17, message);
        drain(&mut self.engine);
    }

    fn reply(&mut self, origin: Origin) {
        let (call, message) = (self.key(origin), self.one());
        let served = self.engine.calls.get(call).unwrap().target;
        let Target::Session { session } = served else {
            panic!("{served:?} is no application");
        };
        assert!(self.engine.reply_from_session(session, call, message));
        drain(&mut self.engine);
    }

    fn request(&mut self, origin: Origin, more: bool) {
        let message = self.one();
        let requested = self.engine.request(origin, more, 1_000, Some(message));
        requested.unwrap();
    }

    fn respond(&mut self, origin: Origin) {
        let (call, message) = (self.key(origin), self.one());
        let responded = self
            .engine
            .response_from_session(SERVER, call, 2_000, message);
        responded.unwrap();
    }
}

/// Sessions, links and services with everything that they can have.
fn tables() -> Scene {
    let (mut engine, service) = engine();
    engine.session_opened(LABELLED);
    engine.serve(service, LABELLED, 7, Some("blue".into()));
    let search = engine.add_service("hotel.Search", 2);
    engine.serve(search, SERVER, 41, None);
    *engine.service_chains_mut(search, 1).unwrap() = MethodChains {
        request: Some(ChainId(2)),
        reply: Some(ChainId(3)),
    };
    let local = |encoding| RouteTarget::Local {
        service: search,
        method: 1,
        encoding,
    };
    let remote = RouteTarget::Link {
        link: PEER,
        bind: 6,
        method: 1,
        encoding: Encoding::Native,
    };
    let chains = MethodChains {
        request: Some(ChainId(1)),
        reply: Some(ChainId(4)),
    };
    // Handles 5 to 8.
    let routes = [local(Encoding::Native), local(Encoding::Protobuf), remote]
        .map(|target| Route { target, chains });
    engine.add_routes(APP, routes.to_vec());
    let mut trailers = MetadataBuf::default();
    trailers.push("zone", b"b").unwrap();
    let broken = Status::new(Code::UNAVAILABLE, "no such peer").with_retry_after_ms(50);
    let target = RouteTarget::Broken(broken.with_trailers(trailers.into_bytes()));
    let chains = MethodChains::default();
    engine.add_routes(APP, vec![Route { target, chains }]);
    Scene {
        engine,
        search,
        number: 0,
        message: 0,
    }
}

/// Calls of one request and one answer, in every state that can be frozen.
fn calls(scene: &mut Scene) {
    let reservation = ServiceId(0);
    let (search, handles) = (scene.search, [5, 6]);
    // Slots that have been used, and are freed in another order.
    let used = [0; 4].map(|handle| scene.submit(handle, false));
    drain(&mut scene.engine);
    for at in [1, 3, 0] {
        scene.reply(used[at]);
    }
    for stage in 0..7 {
        let call = scene.submit(handles[1], false);
        drain(&mut scene.engine);
        for step in 0..stage {
            match step {
                0 | 2 | 4 | 6 => scene.allow(call),
                1 | 5 => scene.convert(call),
                _ => scene.reply(call),
            }
        }
    }
    let steered = scene.submit(handles[0], false);
    let call = scene.key(steered);
    scene.engine.steer(call, Some(6), Some("blue".into()));
    for stage in 0..3 {
        let call = scene.arrive(search, 1, false);
        drain(&mut scene.engine);
        if stage > 0 {
            scene.allow(call);
        }
        if stage > 1 {
            scene.reply(call);
        }
    }
    // A peer's number that is used twice, and an answer that is put off.
    let twice = scene.arrive(reservation, 0, false);
    scene.number -= 1;
    assert_eq!(scene.arrive(reservation, 0, false), twice);
    let put_off = scene.arrive(reservation, 0, false);
    drain(&mut scene.engine);
    let call = scene.key(put_off);
    scene.engine.put_off(SERVER, call);
}

/// Streams in every state that can be frozen, except waiting for a link.
fn streams(scene: &mut Scene) {
    let (search, status) = (scene.search, Status::new(Code::NOT_FOUND, "none left"));
    // Before it is delivered, with requests that wait; the last is bare.
    let early = scene.submit(5, true);
    scene.request(early, true);
    scene.engine.request(early, false, 0, None).unwrap();
    // An idle stream, and the consumption of its ends.
    let idle = scene.submit(0, true);
    drain(&mut scene.engine);
    scene.request(idle, true);
    scene.request(idle, true);
    scene.respond(idle);
    let call = scene.key(idle);
    let credit = Credit {
        messages: 1,
        bytes: 1_000,
    };
    scene
        .engine
        .requests_consumed_by_session(SERVER, call, credit);
    // A request on its way, at either chain, and others that wait.
    for allowed in 0..2 {
        let stream = open(scene, search);
        scene.request(stream, true);
        scene.request(stream, false);
        scene.respond(stream);
        (0..allowed).for_each(|_| scene.allow(stream));
    }
    // Responses on their way, at either chain, and the end after them: a status, or the answer,
    // which then is on its way itself.
    for allowed in 0..2 {
        let stream = open(scene, search);
        scene.respond(stream);
        scene.respond(stream);
        (0..allowed).for_each(|_| scene.allow(stream));
        let call = scene.key(stream);
        let ended = scene.engine.fail_from_session(SERVER, call, status.clone());
        assert!(ended);
    }
    for allowed in [0, 1, 2, 3] {
        let stream = open(scene, search);
        scene.respond(stream);
        scene.reply(stream);
        (0..allowed).for_each(|_| scene.allow(stream));
    }
    drain(&mut scene.engine);
}

/// A stream with chains on both sides that has been delivered.
fn open(scene: &mut Scene, search: ServiceId) -> Origin {
    let stream = scene.submit(5, true);
    drain(&mut scene.engine);
    scene.allow(stream);
    scene.allow(stream);
    let (call, its) = (scene.key(stream), Some((search, 1)));
    assert_eq!(scene.engine.calls.get(call).unwrap().service, its);
    scene.engine.delivered(NOW_NS + 1, call);
    stream
}

/// Calls that wait for a link: for credit, and until it isn't behind.
fn waiting(scene: &mut Scene) {
    let sent = scene.submit(1, true);
    let served = scene.arrive(ServiceId(0), 0, true);
    drain(&mut scene.engine);
    scene.engine.set_credit(PEER, 3, 25);
    for (handle, priority) in [(1, 0), (1, 5), (4, 0), (1, 5), (1, 0), (1, 7)] {
        let (number, message) = scene.next();
        let submission = Submission {
            steering: Steering {
                priority,
                route: None,
            },
            deadline_ns: NOW_NS + 1_000_000 * number,
            ..submission(number, message)
        };
        scene.engine.submit(NOW_NS, APP, handle, submission);
    }
    scene.engine.set_credit(PEER, 1, 10);
    scene.engine.send_waiting(PEER);
    scene.engine.set_behind(PEER, true);
    scene.request(sent, true);
    scene.respond(served);
    scene.respond(served);
    drain(&mut scene.engine);
}

/// An engine with everything that there can be.
pub(crate) fn everything() -> Engine<Message> {
    let mut scene = tables();
    scene.engine.expire(NOW_NS);
    calls(&mut scene);
    streams(&mut scene);
    waiting(&mut scene);
    scene.engine.set_wait_target(Some(1_000_000));
    for wait in 1..=40 {
        let now_ns = NOW_NS + wait * WAITS_INTERVAL_NS / 16;
        scene.engine.waited(now_ns, SERVER, 4_000_000);
    }
    // The server is overloaded by now. Slots that are freed in another order.
    scene.submit(0, false);
    let ended = [1; 3].map(|handle| scene.submit(handle, false));
    for at in [2, 0, 1] {
        scene.engine.cancel(ended[at]);
    }
    drain(&mut scene.engine);
    scene.engine
}

/// Follows the messages of an engine that was thawed from an arbitrary state.
pub(crate) struct Follower {
    engine: Engine<Message>,
    /// The messages that the engine should hold.
    inside: usize,
    /// Calls with a message that the rim has.
    with_rim: Vec<(CallKey, State)>,
}

impl Follower {
    pub(crate) fn new(engine: Engine<Message>) -> Self {
        let state = |key| (key, engine.calls.get(key).unwrap().state);
        let with_rim = engine.with_rim().map(state).collect();
        let mut follower = Self {
            inside: 0,
            with_rim,
            engine,
        };
        follower.inside = follower.held();
        follower
    }

    /// The number of messages that the engine holds.
    fn held(&self) -> usize {
        let mut held = 0;
        self.engine.freeze(|_| held += 1).unwrap();
        held
    }

    /// Handles the outputs.
    fn act(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Evaluate { call, .. } => {
                    self.inside -= 1;
                    let state = self.engine.calls.get(call).map(|call| call.state);
                    self.with_rim.extend(state.map(|state| (call, state)));
                }
                Output::Convert { call, .. } => self.engine.converted(call, 9, 0),
                Output::SendRequest { message: None, .. }
                | Output::DeliverRequest { message: None, .. }
                | Output::Credit { .. }
                | Output::SendStatus { .. }
                | Output::SendCancel { .. }
                | Output::Held { .. }
                | Output::CancelDelivered { .. }
                | Output::Fail { .. }
                | Output::Recall { .. } => {}
                Output::SendCall { .. }
                | Output::SendRequest { .. }
                | Output::SendResponse { .. }
                | Output::SendReply { .. }
                | Output::Deliver { .. }
                | Output::DeliverRequest { .. }
                | Output::Respond { .. }
                | Output::Complete { .. }
                | Output::Discard(_) => self.inside -= 1,
            }
        }
    }

    /// Both ends send everything that they may send, and then all close.
    pub(crate) fn wind_up(mut self) {
        self.act();
        for (call, state) in std::mem::take(&mut self.with_rim) {
            self.inside += 1;
            match state {
                State::Routed | State::Replied => self.engine.converted(call, 9, 0),
                _ => self.engine.verdict(call, Verdict::Allow, 0),
            }
            self.act();
        }
        let ids = |ids: Vec<u32>| ids.into_iter();
        let sessions = ids(self.engine.sessions.iter().map(|(id, _)| id).collect());
        let sessions: Vec<SessionId> = sessions.map(SessionId).collect();
        let links = ids(self.engine.links.iter().map(|(id, _)| id).collect());
        let links: Vec<LinkId> = links.map(LinkId).collect();
        let calls: Vec<CallKey> = self.engine.calls.iter().map(|(key, _)| key).collect();
        for &link in &links {
            self.engine.set_behind(link, false);
            self.engine.set_credit(link, 2, 1 << 20);
            while self.engine.send_waiting(link) {}
            self.act();
        }
        for (at, &call) in calls.iter().enumerate() {
            self.speak(at, call, &sessions, &links);
        }
        assert_eq!(self.held(), self.inside, "a message is lost or doubled");
        self.engine.expire(NOW_NS + MAX_DEADLINE_NS / 2);
        self.act();
        for (number, &session) in sessions.iter().enumerate() {
            let origin = Origin::Session {
                session,
                call: u64::MAX,
            };
            let submission = Submission {
                origin,
                ..submission(0, 0)
            };
            self.inside += 1;
            self.engine
                .submit(NOW_NS, session, number as u32, submission);
            self.act();
        }
        sessions
            .iter()
            .for_each(|id| self.engine.session_closed(*id));
        links
            .iter()
            .for_each(|id| self.engine.link_closed(*id, "gone"));
        self.act();
        assert_eq!((self.inside, self.engine.live_calls()), (0, 0));
        assert_eq!(self.engine.poll_timeout(), None);
    }

    /// Everything that both ends of a call can send, right or wrong.
    fn speak(&mut self, at: usize, call: CallKey, sessions: &[SessionId], links: &[LinkId]) {
        let all = Credit {
            messages: u32::MAX,
            bytes: u32::MAX,
        };
        for &session in sessions {
            self.engine.requests_consumed_by_session(session, call, all);
            self.inside += 2;
            let _unfit = self.engine.response_from_session(session, call, 7, 0);
            match at % 3 {
                0 => self.engine.put_off(session, call),
                1 => drop(
                    self.engine
                        .fail_from_session(session, call, Status::new(Code::OK, "")),
                ),
                _ => {}
            }
            self.engine.reply_from_session(session, call, 0);
            self.act();
        }
        for &link in links {
            self.engine.requests_consumed_by_link(link, call, all);
            self.inside += 2;
            self.engine.response_from_link(link, call, 7, 0);
            self.engine.reply_from_link(link, call, 0);
            self.act();
        }
        if let Some(origin) = self.engine.calls.get(call).map(|call| call.origin) {
            self.inside += 1;
            let _unfit = self
                .engine
                .request(origin, at.is_multiple_of(2), 7, Some(0));
            self.engine.responses_consumed(origin, all);
            self.act();
        }
    }
}

/// The frozen state is reviewed. If this fails, the format has changed: keep the file, because
/// other versions have written it, and add another.
#[test]
fn an_engine_is_frozen_to_the_reviewed_state() {
    let state = freeze(&everything());
    assert!(state == STATE, "{state}");
    let state = freeze(&moved());
    assert!(state == MOVED, "{state}");
}

#[test]
fn states_of_all_versions_thaw_and_go_on() {
    for state in STATES {
        let engine = thaw(state, NOW_NS).unwrap();
        assert!(engine.live_calls() > 30);
        Follower::new(engine).wind_up();
    }
    let engine = thaw(STATE, NOW_NS).unwrap();
    assert_eq!(freeze(&engine), STATE);
}

#[test]
fn outputs_are_done_before() {
    let (mut engine, _) = engine();
    engine.submit(0, APP, 0, submission(1, 1));
    let refused = engine.freeze(|message| *message).unwrap_err();
    assert_eq!(refused.to_string(), "the engine has 1 pending outputs");
    drain(&mut engine);
    assert!(engine.freeze(|message| *message).is_ok());
}

#[test]
fn a_message_that_cannot_be_made_again_is_an_end_to_it() {
    let frozen: Frozen<Message> = serde_json::from_str(STATE).unwrap();
    let lost = Unportable("its block is lost".to_owned());
    let thawed = Engine::<Message>::thaw(frozen, NOW_NS, |_| Err(lost.clone()));
    assert_eq!(thawed.err(), Some(lost));
}

#[test]
fn a_limit_stays_and_its_samples_begin_anew() {
    let engine = thaw(STATE, NOW_NS).unwrap();
    let serving = engine.serving(SERVER);
    assert_eq!((serving.limit, serving.refused), (4, 1));
    let mut frozen: Value = serde_json::from_str(STATE).unwrap();
    frozen["sessions"][1]["limit"]["calls"] = 0.into();
    let engine = thaw_value(&frozen).unwrap();
    assert_eq!(engine.serving(SERVER).limit, 4, "there is a least");
}

/// Every place in a value, as a JSON pointer.
fn places(value: &Value) -> Vec<String> {
    fn walk(value: &Value, here: &str, all: &mut Vec<String>) {
        all.push(here.to_owned());
        match value {
            Value::Array(items) => {
                let items = items.iter().enumerate();
                items.for_each(|(at, item)| walk(item, &format!("{here}/{at}"), all));
            }
            Value::Object(fields) => {
                let fields = fields.iter();
                fields.for_each(|(name, field)| walk(field, &format!("{here}/{name}"), all));
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    walk(value, "", &mut all);
    all
}

/// Takes out the value at a place.
fn remove(value: &mut Value, place: &str) -> Option<Value> {
    let (parent, name) = place.rsplit_once('/')?;
    match value.pointer_mut(parent)? {
        Value::Array(items) => {
            let at: usize = name.parse().ok()?;
            (at < items.len()).then(|| items.remove(at))
        }
        Value::Object(fields) => fields.remove(name),
        _ => None,
    }
}

/// Whether an object is a variant's name and content, rather than fields.
fn is_variant(place: &str) -> bool {
    let name = place.rsplit('/').next();
    name.is_some_and(|name| ["state", "origin", "target", "passing"].contains(&name))
}

#[test]
fn fields_of_a_later_version_are_skipped() {
    let mut state: Value = serde_json::from_str(STATE).unwrap();
    for place in places(&state) {
        if let Some(Value::Object(fields)) = state.pointer_mut(&place)
            && !is_variant(&place)
        {
            fields.insert("since_version_9".to_owned(), vec![9].into());
        }
    }
    assert_eq!(freeze(&thaw_value(&state).unwrap()), STATE);
}

#[test]
fn fields_that_an_earlier_version_lacks_have_their_default_and_others_must_be_there() {
    let state: Value = serde_json::from_str(STATE).unwrap();
    let mut with_default = BTreeSet::new();
    for place in places(&state) {
        let mut without = state.clone();
        let is_item = |name: &str| name.parse::<usize>().is_ok();
        if remove(&mut without, &place).is_none() || place.rsplit('/').next().is_some_and(is_item) {
            continue;
        }
        if serde_json::from_value::<Frozen<Message>>(without).is_ok() {
            let names: Vec<_> = place.split('/').filter(|name| !is_item(name)).collect();
            with_default.insert(names[names.len() - 2..].join("."));
        }
    }
    let expected = "
        broken.retry_after_ms broken.trailers calls.began_ns calls.delivered_ns calls.held calls.priority calls.route calls.served
        calls.shadowed calls.stream
        chains.reply chains.request ending.retry_after_ms links.behind links.since_oldest links.streams links.waiting
        methods.reply methods.request requests.message servers.label services.next sessions.limit stream.ending stream.passing
        stream.reply stream.requests stream.response_next stream.responses stream.served_as";
    let expected: BTreeSet<String> = expected.split_whitespace().map(str::to_owned).collect();
    assert_eq!(with_default, expected);
}

#[test]
fn what_cannot_have_been_is_refused_with_a_sentence() {
    let call = |slot: u64| format!("/calls/{}", place_of(slot));
    let at = |slot, field| format!("{}/{field}", call(slot));
    let cases: &[(String, Value, &str)] = &[
        (
            "/version".into(),
            3.into(),
            "the state is of version 3, and this daemon reads 1 to 2",
        ),
        (
            "/expired_ns".into(),
            5_000_000_001u64.into(),
            "the state expired deadlines up to 5000000001 ns; the clock is behind, at 5000000000 ns",
        ),
        (
            "/sessions/1/id".into(),
            0x0009_0001.into(),
            "the place of session 589825 is taken",
        ),
        (
            "/sessions/0/routes/0/target/local/method".into(),
            1.into(),
            "there is no method 1 of service 0",
        ),
        (
            "/sessions/0/routes/8/target/broken/trailers".into(),
            vec![1].into(),
            "the trailers of status \"no such peer\" are invalid",
        ),
        (
            "/services/0/servers/0/session".into(),
            9.into(),
            "session 9 serves hotel.Reservation and doesn't exist",
        ),
        (
            "/services/0/servers/0/first_handle".into(),
            u32::MAX.into(),
            "session 2 serves hotel.Reservation beyond the last handle",
        ),
        (
            "/links/0/waiting/0".into(),
            2.into(),
            "link 7 holds call 2, which belongs to another target",
        ),
        (
            "/links/0/waiting".into(),
            Value::Array(Vec::new()),
            "2 calls wait for links, which hold back 0",
        ),
        (
            "/links/0/waiting/0".into(),
            31.into(),
            "2 calls wait for links, which hold back 2",
        ),
        (
            "/links/0/streams/0".into(),
            2.into(),
            "call 2 waits for link 7 with no stream",
        ),
        (
            "/links/0/streams/0".into(),
            26.into(),
            "call 26 waits for a link twice",
        ),
        (
            "/links/0/streams".into(),
            Value::Array(Vec::new()),
            "messages of call 25 wait, but no link's queue contains the call",
        ),
        (
            at(2, "key"),
            3.into(),
            "calls and free keys don't fill each slot of the table exactly once",
        ),
        (
            "/free/0".into(),
            99.into(),
            "calls and free keys don't fill each slot of the table exactly once",
        ),
        (
            "/free/0".into(),
            3.into(),
            "calls and free keys don't fill each slot of the table exactly once",
        ),
        (at(2, "handle"), 99.into(), "call 2 has lost its route"),
        (
            at(2, "origin/session/session"),
            9.into(),
            "call 2 has lost its caller's session",
        ),
        (
            at(9, "origin/link/link"),
            9.into(),
            "call 9 has lost its caller's link",
        ),
        (at(12, "shadowed"), false.into(), "has the number"),
        (
            at(2, "target/session/session"),
            9.into(),
            "call 2 has lost its server",
        ),
        (
            at(14, "target/put_off/session"),
            9.into(),
            "call 14 has lost its server",
        ),
        (
            at(27, "target/link/link"),
            9.into(),
            "call 27 has lost its link",
        ),
        (
            at(8, "target/service/method"),
            2.into(),
            "there is no method 2 of service 1",
        ),
        (
            at(2, "served/service"),
            2.into(),
            "there is no method 0 of service 2",
        ),
        (
            at(2, "bytes"),
            (1u64 << 32).into(),
            "call 2 is of 4294967296 bytes",
        ),
        (
            at(2, "state"),
            "waiting".into(),
            "the fields of call 2 contradict its state Waiting",
        ),
        (
            at(30, "held"),
            Value::Null,
            "the fields of call 30 contradict its state Waiting",
        ),
        (
            at(30, "state"),
            "in_flight".into(),
            "the fields of call 30 contradict its state InFlight",
        ),
        (
            at(2, "target"),
            "answered".into(),
            "the fields of call 2 contradict its state InFlight",
        ),
        (
            at(18, "stream"),
            Value::Null,
            "the fields of call 18 contradict its state Passing(ServerRequest)",
        ),
        (
            at(18, "stream/passing"),
            "reply".into(),
            "the fields of call 18 contradict its state Passing(ServerRequest)",
        ),
        (
            at(19, "stream/ending"),
            Value::Null,
            "the fields of call 19 contradict its state Passing(ServerReply)",
        ),
        (
            at(19, "stream/reply"),
            1.into(),
            "the fields of call 19 contradict its state Passing(ServerReply)",
        ),
        (
            at(23, "stream/reply"),
            1.into(),
            "the fields of call 23 contradict its state Passing(ServerReply)",
        ),
        (
            at(15, "stream/more"),
            true.into(),
            "the fields of call 15 contradict its state Evaluating(ClientRequest)",
        ),
        (
            at(15, "stream/requests/0/more"),
            false.into(),
            "the fields of call 15 contradict its state Evaluating(ClientRequest)",
        ),
        (
            at(15, "stream/requests/0/message"),
            Value::Null,
            "the fields of call 15 contradict its state Evaluating(ClientRequest)",
        ),
        (
            at(18, "stream/passing/request/more"),
            false.into(),
            "the fields of call 18 contradict its state Passing(ServerRequest)",
        ),
        (
            at(16, "stream/requests_sent/messages"),
            65.into(),
            "65 messages of 1000 bytes can't be on their way in a stream",
        ),
        (
            at(2, "state"),
            "admitted".into(),
            "unknown variant `admitted`",
        ),
        (at(2, "state"), "done".into(), "unknown variant `done`"),
    ];
    for (place, value, sentence) in cases {
        let mut state: Value = serde_json::from_str(STATE).unwrap();
        let (parent, name) = place.rsplit_once('/').unwrap();
        match state.pointer_mut(parent).unwrap() {
            Value::Array(items) => items[name.parse::<usize>().unwrap()] = value.clone(),
            fields => fields[name] = value.clone(),
        }
        let refused = thaw_value(&state).err().map(|refused| refused.0);
        let said = refused.as_ref().is_some_and(|text| text.contains(sentence));
        assert!(said, "{place} {value}: {refused:?} instead of {sentence}");
    }
}

/// The place of a slot's call in [`STATE`].
fn place_of(slot: u64) -> usize {
    let state: Value = serde_json::from_str(STATE).unwrap();
    let is_its = |call: &Value| call["key"].as_u64().unwrap() as u32 == slot as u32;
    let calls = state["calls"].as_array().unwrap();
    calls.iter().position(is_its).unwrap()
}

#[test]
fn places_of_calls_are_limited() {
    let mut state: Value = serde_json::from_str(STATE).unwrap();
    state["free"] = (0..MAX_CALLS).collect();
    let refused = thaw_value(&state).err().unwrap();
    assert!(refused.0.contains("and at most 65536"), "{refused}");
}

/// Replaces the value in some place by an invalid one. `other` is from another place of the state.
fn spoil(state: &mut Value, place: &str, how: u8, other: &Value) {
    if how == 0 {
        remove(state, place);
        return;
    }
    if how == 1 {
        let twice = state.pointer(place).cloned();
        let parent = place.rsplit_once('/').map(|(parent, _)| parent);
        if let (Some(twice), Some(Value::Array(items))) =
            (twice, parent.and_then(|parent| state.pointer_mut(parent)))
        {
            items.push(twice);
        }
        return;
    }
    let Some(place) = state.pointer_mut(place) else {
        return;
    };
    *place = match (how, place.as_u64(), &*place) {
        (2, Some(number), _) => number.wrapping_add(1).into(),
        (3, Some(number), _) => number.wrapping_sub(1).into(),
        (4, Some(number), _) => (number ^ 1 << 32).into(),
        (5, Some(_), _) => u64::from(u32::MAX).into(),
        (6, Some(_), _) => u64::MAX.into(),
        (2.., _, Value::Bool(flag)) => (!flag).into(),
        (2, _, Value::Array(items)) => items.iter().rev().cloned().collect(),
        (3, _, Value::Array(_)) => Value::Array(Vec::new()),
        _ => other.clone(),
    };
}

const WAYS: u8 = 9;

/// A spoilt state is refused, or it is an engine with other calls: it must keep every promise that
/// doesn't depend on them. Returns whether it was an engine.
fn survives(state: &Value) -> bool {
    let Ok(engine) = thaw_value(state) else {
        return false;
    };
    let frozen = engine.freeze(|message| *message).unwrap();
    let again = Engine::thaw(frozen.clone(), NOW_NS, Ok).unwrap();
    let again = again.freeze(|message| *message).unwrap();
    assert_eq!(format!("{again:?}"), format!("{frozen:?}"));
    Follower::new(engine).wind_up();
    true
}

#[test]
fn a_state_that_is_spoilt_anywhere_is_refused_or_an_engine() {
    let state: Value = serde_json::from_str(STATE).unwrap();
    let places = places(&state);
    let (mut refused, mut thawed) = (0, 0);
    for (at, place) in places.iter().enumerate() {
        for how in 0..WAYS {
            let other = &places[(at * 7 + usize::from(how) * 31) % places.len()];
            let mut spoilt = state.clone();
            spoil(&mut spoilt, place, how, state.pointer(other).unwrap());
            match survives(&spoilt) {
                true => thawed += 1,
                false => refused += 1,
            }
        }
    }
    assert!(refused > 5_000 && thawed > 1_000, "{refused} {thawed}");
}

proptest! {
    #[test]
    fn a_state_that_is_spoilt_in_some_places_is_refused_or_an_engine(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..WAYS), 1..6),
    ) {
        let mut state: Value = serde_json::from_str(STATE).unwrap();
        for (place, other, how) in changes {
            let places = places(&state);
            let other = state.pointer(&places[other.index(places.len())]).unwrap().clone();
            spoil(&mut state, &places[place.index(places.len())], how, &other);
        }
        survives(&state);
    }

    #[test]
    fn bytes_that_are_spoilt_are_refused_or_an_engine(
        changes in prop::collection::vec((any::<prop::sample::Index>(), b' '..b'~'), 1..4),
    ) {
        let mut bytes = STATE.as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(state) = serde_json::from_slice(&bytes) {
            survives(&state);
        }
    }
}

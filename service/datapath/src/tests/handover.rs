//! A runtime hands its state over and another one continues; invalid states are rejected.

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use serde_json::{Value, json};
use tollgate_engine::{MethodChains, Route, RouteTarget, Status};
use tollgate_shm_abi::descriptor::{Alleged, BlockRef, Completion, Part, Submission};
use tollgate_shm_abi::limits::MIN_HEAP_BYTES;
use tollgate_shm_abi::messages::FEATURE_HEAPS;
use tollgate_shm_abi::session::AppEnd;
use tollgate_shm_abi::status::Code;

use super::turns::{large_method, open_with};
use crate::binds::ServiceSchema;
use crate::command::{Command, Handle};
use crate::handover::transfer::{HandoverState, Inventory};
use crate::limits::HAND_OVER_TIMEOUT;
use crate::ports::Held;
use crate::runtime::Runtime;
use tollgate_jit::on_demand::Method;

/// A runtime with a session, and its application. The session's only method has no server.
pub(super) struct Old {
    pub(super) runtime: Runtime,
    pub(super) handle: Handle,
    pub(super) app: AppEnd,
    schema: Arc<ServiceSchema>,
    image: Vec<u8>,
}

/// The deadline of a hand-over.
pub(super) fn in_time() -> Instant {
    Instant::now() + HAND_OVER_TIMEOUT
}

fn schema_of(method: Arc<Method>) -> Arc<ServiceSchema> {
    Arc::new(ServiceSchema {
        name: "p.S".to_owned(),
        hash: [7; 32],
        description: String::new(),
        methods: vec![method],
    })
}

impl Old {
    pub(super) fn new(features: u32) -> Old {
        let (mut runtime, handle) = Runtime::idle();
        let (shape, fds) = open_with(&mut runtime, &handle, "t", features);
        let app = AppEnd::attach(&shape, fds).unwrap();
        let (method, image) = large_method();
        let schema = schema_of(method);
        let nowhere = Route {
            target: RouteTarget::Broken(Status::new(Code::UNAVAILABLE, "nobody serves it")),
            chains: MethodChains::default(),
        };
        let port = runtime.sessions.iter().next().unwrap();
        let session = port.id;
        let bound = runtime.add_handles(session, &schema, true, vec![nowhere]);
        assert_eq!(bound.unwrap(), 0);
        Old {
            runtime,
            handle,
            app,
            schema,
            image,
        }
    }

    fn inventory(&self) -> Inventory {
        let schema = (self.schema.hash, Arc::clone(&self.schema));
        Inventory {
            schemas: Arc::new(HashMap::from([schema])),
            chains: Vec::new(),
            policies: Arc::default(),
        }
    }

    pub(super) fn call(&mut self, call: u64) {
        let mut block = self.app.send_heap.alloc(self.image.len()).unwrap();
        block.copy_from_slice(&self.image);
        let block = BlockRef {
            offset: self.app.send_heap.commit(block),
            len: self.image.len() as u32,
            extents: 0,
            metadata: 0,
        };
        let call = Submission::Call {
            method: 0,
            call,
            part: Part::ONLY,
            block,
            deadline_ns: 0,
        };
        self.app.submissions.push(&call.encode()).unwrap();
    }
}

/// The calls that were answered with a status, and the number of returned blocks.
pub(super) fn heard(app: &mut AppEnd, receive: u64) -> (Vec<u64>, usize) {
    let heaps = tollgate_shm_abi::descriptor::HeapSizes {
        send: MIN_HEAP_BYTES,
        receive,
    };
    let (mut calls, mut blocks) = (Vec::new(), 0);
    while let Some(entry) = app.completions.pop().unwrap() {
        match Alleged::from(entry).completion(&heaps).unwrap() {
            Completion::Status { call, .. } => calls.push(call),
            Completion::Reclaim(offsets) => blocks += offsets.as_slice().len(),
            other => panic!("{other:?}"),
        }
    }
    (calls, blocks)
}

#[test]
fn a_hand_over_that_takes_too_long_ends_and_calls_go_on() {
    let mut old = Old::new(FEATURE_HEAPS);
    let why = old.runtime.hand_over(true, Instant::now()).err().unwrap();
    assert!(why.to_string().contains("longer than 2s"), "{why}");
    old.call(1);
    old.runtime.turn();
    assert_eq!(heard(&mut old.app, MIN_HEAP_BYTES), (vec![1], 1));
}

#[test]
fn what_waits_in_the_ring_and_behind_it_is_answered_by_the_next_runtime() {
    let mut old = Old::new(FEATURE_HEAPS);
    old.call(1);
    old.runtime.turn();
    let waits = Held::Status {
        call: 77,
        status: Status::new(Code::NOT_FOUND, "waits for room").with_retry_after_ms(5),
    };
    let key = old.runtime.sessions.iter().next().unwrap().id;
    let port = old.runtime.sessions.get_mut(key).unwrap();
    port.held.push_back(waits);
    // One call is in the ring when the runtime stops, and one arrives while it stands still.
    old.call(2);
    let handover_state = old.runtime.hand_over(true, in_time()).unwrap();
    old.call(3);
    let (mut new, _new_handle) = Runtime::idle();
    let (resumed, beginning) = new.take_over(handover_state, old.inventory()).unwrap();
    assert_eq!(
        heard(&mut old.app, MIN_HEAP_BYTES),
        (vec![1], 1),
        "nothing is seen of it yet"
    );
    old.runtime.leave();
    old.runtime.turn();
    let [resumed] = <[_; 1]>::try_from(resumed).unwrap_or_else(|_| panic!("one session"));
    assert_eq!(resumed.session, key);
    let heap = &mut old.app.receive_heap;
    heap.follow(resumed.heap, resumed.heap_bytes).unwrap();
    let port = new.sessions.get_mut(key).unwrap();
    assert_eq!((port.held.len(), &*port.who.tenant), (1, "t"));
    // Later completions would wait behind it for room.
    port.held.clear();
    new.begin(beginning);
    new.turn();
    let (calls, blocks) = heard(&mut old.app, 2 * MIN_HEAP_BYTES);
    assert_eq!((calls, blocks), (vec![2, 3], 2));
    // A new session gets another key.
    assert_ne!(new.sessions.next_id(), Some(key));
}

#[test]
fn a_runtime_that_is_not_told_to_begin_touches_nothing() {
    let mut old = Old::new(FEATURE_HEAPS);
    let handover_state = old.runtime.hand_over(true, in_time()).unwrap();
    old.call(4);
    let (mut new, handle) = Runtime::idle();
    let (reply, answer) = super::reply();
    let (begin, begins) = mpsc::channel();
    drop(begin);
    handle.send(Command::TakeOver {
        handover_state: Box::new(handover_state),
        inventory: old.inventory(),
        reply,
        begins,
    });
    new.turn();
    assert_eq!(answer.try_recv().unwrap().unwrap().len(), 1);
    assert_eq!(new.sessions.len(), 0);
    assert_eq!(heard(&mut old.app, MIN_HEAP_BYTES).0, [0_u64; 0]);
    old.runtime.turn();
    assert_eq!(heard(&mut old.app, MIN_HEAP_BYTES).0, [4]);
}

#[test]
fn an_application_that_cannot_follow_to_another_heap_is_not_handed_over() {
    let mut old = Old::new(0);
    let key = old.runtime.sessions.iter().next().unwrap().id;
    let handover_state = old.runtime.hand_over(true, in_time()).unwrap();
    assert!(handover_state.sessions.is_empty());
    let (mut new, _handle) = Runtime::idle();
    let (resumed, beginning) = new.take_over(handover_state, old.inventory()).unwrap();
    assert!(resumed.is_empty());
    new.begin(beginning);
    assert_eq!(new.sessions.len(), 0);
    let next = new.sessions.next_id().unwrap();
    assert_eq!(
        (next.0 as u16, next.0 >> 16),
        (key.0 as u16, (key.0 >> 16) + 1),
        "as if it had been closed"
    );
    old.call(5);
    old.runtime.turn();
    assert_eq!(
        heard(&mut old.app, MIN_HEAP_BYTES).0,
        [5],
        "the old one could go on"
    );
}

#[test]
fn what_no_runtime_can_have_left_is_refused() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 9] = [
        ("the state can't be read", |state| {
            *state = json!({"engine": 1})
        }),
        ("no schema was handed over", |state| {
            state["sessions"][0]["bound"][0][0][0] = json!(8);
        }),
        ("a session needs 4 file descriptors, but 0 came", |state| {
            state["sessions"][0]["id"] = json!(1);
        }),
        ("holds more than its capacity", |state| {
            state["sessions"][0]["standing"]["told"] = json!(99_999);
        }),
        (
            "the keys of the sessions are missing or duplicate",
            |state| state["free"] = json!([0]),
        ),
        ("a completion doesn't have 64 bytes", |state| {
            state["sessions"][0]["backlog"] = json!([[1, 2, 3]]);
        }),
        ("the bytes of a message at 90 are missing", |state| {
            let message = json!({"at": 90, "image": 1, "metadata": 0, "inline_len": 1, "total_len": 1, "bare": false,
                "body": {"private": {"accepted": true, "extents": []}}});
            state["sessions"][0]["held"] = json!([{"message": {"handle": 0, "message": message, "what": {"reply": {"call": 1}}}}]);
        }),
        ("belongs to no method that it has bound", |state| {
            let message = json!({"at": 0, "image": 0, "metadata": 0, "inline_len": 0, "total_len": 0, "bare": true,
                "body": {"encoded": {"start": 0}}});
            state["sessions"][0]["held"] = json!([{"message": {"handle": 5, "message": message, "what": {"reply": {"call": 1}}}}]);
        }),
        (
            "call 5 is parked in a chain, but the engine doesn't know it",
            |state| {
                let message = json!({"at": 0, "image": 0, "metadata": 0, "inline_len": 0, "total_len": 0, "bare": false,
                "body": {"private": {"accepted": true, "extents": []}}});
                state["parked"] = json!([{"call": 5, "tenant": "t", "stage": "client_request", "chain": null, "step": 0,
                "until_ns": null, "waits_since_ns": 0, "priority": null, "route": null, "message": message}]);
            },
        ),
    ];
    for (sentence, change) in changes {
        let mut old = Old::new(FEATURE_HEAPS);
        let handover_state = old.runtime.hand_over(true, in_time()).unwrap();
        let mut state: Value = serde_json::from_slice(&handover_state.state).unwrap();
        change(&mut state);
        let handover_state = HandoverState {
            state: serde_json::to_vec(&state).unwrap(),
            ..handover_state
        };
        let (mut new, _handle) = Runtime::idle();
        let refused = new.take_over(handover_state, old.inventory());
        let Err(why) = refused else {
            panic!("{sentence}: taken over");
        };
        assert!(why.to_string().contains(sentence), "{sentence}: {why}");
        // The old runtime continues.
        old.call(9);
        old.runtime.turn();
        assert_eq!(
            heard(&mut old.app, MIN_HEAP_BYTES),
            (vec![9], 1),
            "{sentence}"
        );
    }
}

//! Arbitrary changes (`changes.rs`) of the state of an engine that one daemon hands to the next,
//! any number of them.
//!
//! The state is refused, or thaws to an engine. Frozen and thawed again, the engine is the same.
//! When chains and conversions have answered and all sessions and links have ended, the engine has
//! put out each of its messages, and no call and no deadline is left.

use serde::Deserialize;
use serde_json::Value;
use tollgate_engine::{CallKey, Engine, Frozen, LinkId, Output, SessionId, Unportable, Verdict};

use crate::changes::change;

/// One that has all there can be.
const STATE: &str = include_str!("../../../service/engine/vectors/frozen-3.json");

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
    let mut state = serde_json::from_str(STATE).expect("what is committed is JSON");
    let (changes, _) = input.as_chunks();
    changes.iter().for_each(|one| change(&mut state, *one));
    let Ok(state) = Frozen::<u32>::deserialize(&state) else {
        return;
    };
    let Ok(engine) = thaw(state) else {
        return;
    };
    let frozen = freeze(&engine);
    let again = thaw(serde_json::from_str(&frozen).expect("what was written can be read"));
    assert_eq!(freeze(&again.expect("it was an engine")), frozen);
    let names = serde_json::from_str(&frozen).expect("it is JSON");
    wind_up(engine, &names);
}

fn thaw(state: Frozen<u32>) -> Result<Engine<u32>, Unportable> {
    Engine::thaw(state, 1 << 50, Ok)
}

fn freeze(engine: &Engine<u32>) -> String {
    let frozen = engine.freeze(|message| *message).expect("nothing was done");
    serde_json::to_string(&frozen).expect("a state can be written")
}

/// `names` is the engine's state, in which everybody is named.
fn wind_up(mut engine: Engine<u32>, names: &Value) {
    let mut inside = 0;
    engine
        .freeze(|_| inside += 1)
        .expect("nothing is to be done before");
    let list = |of: &str| names[of].as_array().cloned().unwrap_or_default();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    for call in list("calls") {
        let key = CallKey::from_wire(number(&call["key"]));
        if call["state"] == "routed" || call["state"] == "replied" {
            engine.converted(key, 1, 0);
            inside += 1;
        } else if call["state"].is_object() {
            engine.verdict(key, Verdict::Allow, 0);
            inside += 1;
        }
        inside -= came_out(&mut engine);
    }
    for link in list("links") {
        let link = LinkId(number(&link["id"]) as u32);
        engine.set_behind(link, false);
        engine.set_credit(link, 100, 1 << 30);
        while engine.send_waiting(link) {}
        inside -= came_out(&mut engine);
        engine.link_closed(link, "gone");
    }
    for session in list("sessions") {
        engine.session_closed(SessionId(number(&session["id"]) as u32));
    }
    inside -= came_out(&mut engine);
    assert_eq!((inside, engine.live_calls()), (0, 0));
    assert_eq!(engine.poll_timeout(), None);
}

/// Allows and converts what is to be. How many messages have come out for good.
fn came_out(engine: &mut Engine<u32>) -> i64 {
    let mut out = 0;
    while let Some(output) = engine.poll_output() {
        match output {
            Output::Evaluate { call, message, .. } => engine.verdict(call, Verdict::Allow, message),
            Output::Convert { call, message, .. } => engine.converted(call, 1, message),
            Output::SendRequest { message, .. } | Output::DeliverRequest { message, .. } => {
                out += i64::from(message.is_some());
            }
            Output::Recall { .. }
            | Output::Credit { .. }
            | Output::SendStatus { .. }
            | Output::SendCancel { .. }
            | Output::Held { .. }
            | Output::CancelDelivered { .. }
            | Output::Fail { .. } => {}
            Output::SendCall { .. }
            | Output::SendResponse { .. }
            | Output::SendReply { .. }
            | Output::Deliver { .. }
            | Output::Respond { .. }
            | Output::Complete { .. }
            | Output::Discard(_) => out += 1,
        }
    }
    out
}

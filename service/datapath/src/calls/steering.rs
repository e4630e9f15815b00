//! Decisions of policies about a request's way, passed between daemons in two reserved metadata
//! keys.
//!
//! ```text
//!   caller's daemon   chain decides ─▶ engine, and `tollgate-priority: 7`, `tollgate-route: blue`
//!                                      in the request's metadata
//!   server's daemon   removes them on arrival ─▶ engine; no policy and no application sees them
//! ```
//!
//! Invariant: reserved keys never reach an application. Only daemons write them: a request of an
//! application that has them is rejected when it is posted. A peer without metadata support isn't
//! told and treats the call like any other. Invalid values are ignored.

use std::sync::Arc;

use tollgate_engine::{CallKey, Engine, Status, Steering};
use tollgate_shm_abi::limits::MAX_LABEL_BYTES;
use tollgate_shm_abi::metadata::{Metadata, MetadataBuf, MetadataError, is_reserved};
use tollgate_shm_abi::status::Code;

use crate::links::table::Links;
use crate::links::wire::credit_bytes;
use tollgate_policy_chain::evaluation::Steered;
use tollgate_policy_chain::message::{Message, Pool};

/// The priority, one digit.
const PRIORITY: &str = "tollgate-priority";

/// The label of the servers that the request goes to.
const ROUTE: &str = "tollgate-route";

/// Whether text can be a label: of servers, or of a route to them.
pub fn is_label(text: &str) -> bool {
    let allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    (1..=MAX_LABEL_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

/// Removes a daemon's keys from a message's metadata and returns their values.
pub(crate) fn take(metadata: &mut Vec<u8>) -> Steering {
    let came = Metadata::of_checked(metadata);
    if !came.iter().any(|(key, _)| is_reserved(key)) {
        return Steering::default();
    }
    let digit = came.get(PRIORITY).and_then(|value| match value {
        [digit @ b'0'..=b'7'] => Some(digit - b'0'),
        _ => None,
    });
    let route = came.get(ROUTE).and_then(|value| str::from_utf8(value).ok());
    let steering = Steering {
        priority: digit.unwrap_or_default(),
        route: route.filter(|route| is_label(route)).map(Arc::from),
    };
    let mut kept = MetadataBuf::new();
    for (key, value) in came.iter().filter(|(key, _)| !is_reserved(key)) {
        kept.push_any(key, value)
            .expect("a part of a checked block breaks no rule");
    }
    metadata.clear();
    metadata.extend_from_slice(kept.as_bytes());
    steering
}

/// Metadata with the keys for a peer's daemon.
fn told(metadata: &[u8], steering: &Steering) -> Result<Vec<u8>, MetadataError> {
    let mut told = Metadata::of_checked(metadata).to_buf();
    if steering.priority > 0 {
        told.push_any(PRIORITY, &[b'0' + steering.priority.min(7)])?;
    }
    if let Some(route) = &steering.route {
        told.push_any(ROUTE, route.as_bytes())?;
    }
    Ok(told.into_bytes())
}

/// Carries out a chain's decision about a request's way. An error is a status for the caller:
/// its metadata leaves no room for the keys.
pub(crate) fn steer(
    engine: &mut Engine<Box<Message>>,
    links: &Links,
    pool: &mut Pool,
    call: CallKey,
    Steered { priority, route }: Steered,
    message: &mut Message,
) -> Result<(), Status> {
    engine.steer(call, priority, route);
    let Some((link, steering)) = engine.steering_to_peer(call) else {
        return Ok(());
    };
    if !links.carries_metadata(link) {
        return Ok(());
    }
    let metadata = told(&message.metadata, steering).map_err(|error| {
        let text = format!(
            "a policy chose the call's priority or route, and its metadata leaves no room for that: {error}"
        );
        Status::new(Code::RESOURCE_EXHAUSTED, text)
    })?;
    pool.give(std::mem::replace(&mut message.metadata, metadata));
    engine.resized(call, credit_bytes(message));
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn block(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut buf = MetadataBuf::new();
        for (key, value) in pairs {
            buf.push_any(key, value.as_bytes()).unwrap();
        }
        buf.into_bytes()
    }

    #[test]
    fn what_a_daemon_is_told_arrives_and_nothing_of_it_stays() {
        let steering = Steering {
            priority: 7,
            route: Some("blue".into()),
        };
        for pairs in [&[][..], &[("user", "Ada"), ("user", "Bob")]] {
            let mut metadata = told(&block(pairs), &steering).unwrap();
            assert_eq!(take(&mut metadata), steering);
            assert_eq!(metadata, block(pairs));
            assert_eq!(take(&mut metadata), Steering::default());
        }
        assert_eq!(told(&[], &Steering::default()), Ok(Vec::new()));
    }

    #[test]
    fn nonsense_steers_nothing_and_goes_nowhere() {
        for (key, value) in [
            (PRIORITY, "8"),
            (PRIORITY, "77"),
            (PRIORITY, ""),
            (ROUTE, ""),
            (ROUTE, "Blue"),
            ("tollgate-else", "1"),
            ("grpc-timeout", "1S"),
        ] {
            let mut metadata = block(&[("a", "1"), (key, value)]);
            assert_eq!(take(&mut metadata), Steering::default(), "{key}: {value}");
            assert_eq!(metadata, block(&[("a", "1")]));
        }
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        assert!(is_label(&long[1..]) && !is_label(&long));
    }

    #[test]
    fn a_full_block_leaves_no_room() {
        let many = block(&[("a", ""); 64]);
        let steering = Steering {
            priority: 1,
            route: None,
        };
        assert_eq!(
            told(&many, &steering),
            Err(MetadataError::PairCount { pairs: 65 })
        );
    }
}

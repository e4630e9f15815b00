//! A tenant moves to another runtime of its process; late input is forwarded; without room it
//! stays.

use std::collections::HashMap;
use std::sync::mpsc;

use tollgate_engine::SessionId;
use tollgate_policy_chain::limits::MAX_CHAINS_PER_TENANT;
use tollgate_policy_chain::plan::{MethodSteps, Step};
use tollgate_shm_abi::limits::MIN_HEAP_BYTES;

use super::handover::{Old, heard};
use crate::command::{Command, Handle, Map};
use crate::migration::{Move, MoveError, Moved};
use crate::placement::{Placement, RuntimeIndex};
use crate::runtime::Runtime;
use tollgate_policy_chain::ids::AttachmentId;

/// Two runtimes. The first one has tenant `t` and its application, with calls that no application
/// serves.
struct Two {
    old: Old,
    new: Runtime,
    new_handle: Handle,
}

impl Two {
    fn new() -> Two {
        let mut old = Old::new(0);
        let (mut new, new_handle) = Runtime::idle_at(1);
        let mut placement = Placement::spread(2);
        placement.assign(&"t".into(), RuntimeIndex::FIRST);
        let map = Map {
            placement,
            runtimes: vec![old.handle.clone(), new_handle.clone()],
        };
        old.runtime.placed(map.clone());
        new.placed(map);
        Two {
            old,
            new,
            new_handle,
        }
    }

    /// Orders the tenant's move. The result is known once both runtimes have had their turns.
    fn go(&mut self, to: usize) -> mpsc::Receiver<Result<Moved, MoveError>> {
        let (reply, moved) = super::reply();
        let order = Box::new(Move {
            tenant: "t".into(),
            to: RuntimeIndex(to),
            attachments: Vec::new(),
            same: HashMap::new(),
            reply: Some(reply),
        });
        let from = match to {
            0 => &self.new_handle,
            _ => &self.old.handle,
        };
        assert!(from.send(Command::Part { order }));
        moved
    }

    fn turn(&mut self) {
        for _ in 0..3 {
            self.old.runtime.turn();
            self.new.turn();
        }
    }

    /// The number of sessions of each runtime.
    fn sessions(&self) -> [usize; 2] {
        [self.old.runtime.sessions.len(), self.new.sessions.len()]
    }

    fn heard(&mut self) -> Vec<u64> {
        heard(&mut self.old.app, MIN_HEAP_BYTES).0
    }
}

#[test]
fn a_tenant_goes_to_and_fro_and_is_served_where_it_is() {
    let mut two = Two::new();
    let mut call = 0;
    for round in 0..6 {
        let to = 1 - round % 2;
        // One call is in the ring when the tenant moves, and one arrives while it is on neither
        // runtime.
        two.old.call(call);
        let moved = two.go(to);
        let from = match to {
            0 => &mut two.new,
            _ => &mut two.old.runtime,
        };
        from.turn();
        two.old.call(call + 1);
        two.turn();
        assert_eq!(two.heard(), [call, call + 1]);
        call += 2;
        let moved = moved.try_recv().unwrap().unwrap();
        assert_eq!((moved.runtime.0, moved.refused), (to, None));
        assert_eq!(two.sessions()[to], 1, "round {round}");
        assert_eq!(two.sessions()[1 - to], 0);
        let [(_, name)] = moved.sessions.into_iter().collect::<Vec<_>>()[..] else {
            panic!("one session");
        };
        let there = match to {
            0 => &two.old.runtime,
            _ => &two.new,
        };
        assert_eq!(there.sessions.get(name).unwrap().id, name);
    }
    let services = two.old.runtime.services.len() + two.new.services.len();
    assert_eq!(services, 0);
}

/// The doorbell rings at the new runtime, and only there.
#[test]
fn whoever_sleeps_is_woken_where_its_application_lives() {
    let mut two = Two::new();
    let _moved = two.go(1);
    two.turn();
    two.new.poll_wakes(Some(std::time::Duration::ZERO));
    let port = two.new.sessions.iter_mut().next().unwrap();
    assert!(port.end.submissions.announce_sleep());
    two.old.call(1);
    two.old.app.doorbell.ring();
    // This returns at once; the other runtime would sleep for long.
    two.new.poll_wakes(None);
    assert!(!two.new.turn() || two.heard() == [1]);
}

#[test]
fn a_tenant_that_there_is_no_room_for_stays() {
    let mut two = Two::new();
    // The new runtime already has as many chains of this tenant as it may have.
    let steps = || MethodSteps {
        request: vec![Step::new(AttachmentId(1), None, None)],
        reply: Vec::new(),
    };
    let chains = |count| (0..count).map(|_| steps()).collect();
    let tenant = "t".into();
    let full = chains(MAX_CHAINS_PER_TENANT);
    two.new.policies.make_chains(&tenant, full).unwrap();
    // The tenant brings one more.
    let Runtime {
        policies,
        engine,
        sessions,
        ..
    } = &mut two.old.runtime;
    let own = policies.make_chains(&tenant, chains(1)).unwrap()[0].request;
    let session = sessions.iter().next().unwrap().id;
    engine.route_mut(session, 0).unwrap().chains.reply = own;
    let moved = two.go(1);
    two.old.call(1);
    two.turn();
    let moved = moved.try_recv().unwrap().unwrap();
    assert_eq!(moved.runtime, RuntimeIndex::FIRST);
    let why = moved.refused.unwrap().to_string();
    assert!(
        why.starts_with("runtime 1 has no room: tenant t's bindings have"),
        "{why}"
    );
    assert_eq!(two.sessions(), [1, 0]);
    assert_eq!(two.heard(), [1]);
    let nowhere = two.go(2);
    two.turn();
    let refused = nowhere.try_recv().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "there is no runtime 2");
    two.old.call(2);
    two.turn();
    assert_eq!(two.heard(), [2]);
}

#[test]
fn a_runtime_that_has_ended_takes_nobody() {
    let mut two = Two::new();
    let (new, handle) = Runtime::idle_at(1);
    drop((
        std::mem::replace(&mut two.new, new),
        std::mem::replace(&mut two.new_handle, handle),
    ));
    let moved = two.go(1);
    two.turn();
    let moved = moved.try_recv().unwrap().unwrap();
    assert_eq!(
        (moved.runtime.0, moved.refused.unwrap().to_string()),
        (0, "runtime 1 has ended".to_owned())
    );
    two.old.call(7);
    two.turn();
    assert_eq!(two.heard(), [7]);
    let ids: Vec<SessionId> = two
        .old
        .runtime
        .sessions
        .iter()
        .map(|port| port.id)
        .collect();
    assert_eq!(ids, moved.sessions.into_values().collect::<Vec<_>>());
}

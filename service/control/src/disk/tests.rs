//! A full disk: the state can be read, a change is made or rejected, and nothing needs a restart
//! once there is room.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::json;

use super::ROOM;
use crate::audit::{self, Actor, Event};
use crate::pair::{COPY, FILE};
use crate::tests::{Contents, contents_of, tenant_of};
use crate::{Owner, Store, StoreError};

const FULL: u32 = 0;
const EMPTY: u32 = u32::MAX;

/// A directory with some state, its contents, and a token.
fn state() -> (tempfile::TempDir, Contents, String) {
    let state = crate::pair::scratch();
    let store = Store::open(state.path()).unwrap();
    let token = store.add_tenant(Actor::Daemon, "acme").unwrap();
    let acme = Owner::Tenant("acme".to_owned());
    let module = vec![7; 60_000];
    let pushed = store.push_policy(Actor::Daemon, &acme, "acl", &module, None);
    pushed.unwrap();
    (state, contents_of(&store), token.reveal().to_owned())
}

/// There is room again: everything works as before.
#[track_caller]
fn check_recovers(store: Store, state: &Path) {
    ROOM.set(EMPTY);
    store.add_tenant(Actor::Daemon, "later").unwrap();
    assert_eq!(store.problems(), Vec::<String>::new());
    store.check_invariants();
    store.audit_verification().unwrap().run().unwrap();
    let contents = contents_of(&store);
    drop(store);
    let store = Store::open(state).unwrap();
    assert_eq!(contents_of(&store), contents);
    store.audit_verification().unwrap().run().unwrap();
}

#[test]
fn changes_go_on_after_a_full_disk_without_a_restart() {
    let (state, contents, token) = state();
    let store = Store::open(state.path()).unwrap();
    ROOM.set(FULL);
    for _ in 0..3 {
        let error = store.add_tenant(Actor::Daemon, "more").unwrap_err();
        assert!(error.to_string().contains("no storage space"), "{error}");
        // Meanwhile applications may connect, and policies are found.
        assert_eq!(tenant_of(&store, &token).as_deref(), Some("acme"));
        assert_eq!(contents_of(&store), contents);
        let problems = store.problems().concat();
        assert!(problems.contains("no storage space"), "{problems}");
        assert!(
            problems.contains(&*state.path().to_string_lossy()),
            "{problems}"
        );
        let recorded = store.record(Actor::Daemon, Event::Fault, json!({}));
        assert!(recorded.is_err());
    }
    check_recovers(store, state.path());
}

/// Wherever the disk becomes full, the answer matches the state.
#[test]
fn a_change_is_made_or_refused_wherever_the_disk_becomes_full() {
    let (mut made, mut refused) = (0, 0);
    for room in 0.. {
        let (state, contents, token) = state();
        let store = Store::open(state.path()).unwrap();
        ROOM.set(room);
        let added = store.add_tenant(Actor::Daemon, "more");
        let left = ROOM.get();
        assert_eq!(tenant_of(&store, &token).as_deref(), Some("acme"));
        match &added {
            Ok(token) => {
                made += 1;
                let tenant = tenant_of(&store, token.reveal());
                assert_eq!(tenant.as_deref(), Some("more"), "room for {room}");
            }
            Err(_) => {
                refused += 1;
                assert_eq!(contents_of(&store), contents, "room for {room}");
            }
        }
        check_recovers(store, state.path());
        if left > 0 {
            break;
        }
    }
    println!("{made} made, {refused} refused");
    assert!(made > 1 && refused > 1);
}

#[test]
fn a_state_is_read_if_the_start_can_not_write() {
    let (before, ..) = state();
    let old_copy = std::fs::read(before.path().join(COPY)).unwrap();
    type Spoiler<'a> = (&'a str, &'a dyn Fn(&Path));
    let spoilers: [Spoiler<'_>; 5] = [
        ("nothing", &|_| {}),
        ("the copy is gone", &|state| {
            std::fs::remove_file(state.join(COPY)).unwrap();
        }),
        ("the file is damaged", &|state| {
            std::fs::write(state.join(FILE), b"").unwrap();
        }),
        ("the copy is damaged", &|state| {
            std::fs::write(state.join(COPY), &old_copy[..5_000]).unwrap();
        }),
        ("the log is torn", &|state| {
            let path = state.join(audit::FILE);
            let log = std::fs::read(&path).unwrap();
            std::fs::write(path, &log[..log.len() - 10]).unwrap();
        }),
    ];
    for (what, spoil) in spoilers {
        let (state, contents, token) = state();
        spoil(state.path());
        ROOM.set(FULL);
        let store = Store::open(state.path()).unwrap();
        assert_eq!(contents_of(&store), contents, "{what}");
        assert_eq!(tenant_of(&store, &token).as_deref(), Some("acme"));
        for _ in 0..2 {
            assert!(store.add_tenant(Actor::Daemon, "more").is_err(), "{what}");
            assert_eq!(contents_of(&store), contents, "{what}");
            assert!(!store.problems().is_empty(), "{what}");
        }
        check_recovers(store, state.path());
    }
}

/// Writing works again without a change by an operator.
#[test]
fn a_state_that_is_read_only_is_tried_again() {
    let (state, contents, _) = state();
    std::fs::remove_file(state.path().join(COPY)).unwrap();
    ROOM.set(FULL);
    let store = Store::open(state.path()).unwrap();
    let error = store.add_tenant(Actor::Daemon, "more").unwrap_err();
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{error}");
    store.retry();
    assert_eq!(store.problems().len(), 1);
    ROOM.set(EMPTY);
    store.retry();
    assert_eq!(store.problems(), Vec::<String>::new());
    assert_eq!(contents_of(&store), contents);
    assert!(state.path().join(COPY).exists());
}

#[test]
fn a_state_that_is_not_there_is_not_begun_on_a_full_disk() {
    let state = crate::pair::scratch();
    ROOM.set(FULL);
    let error = Store::open(state.path()).unwrap_err();
    assert!(error.to_string().contains("no storage space"), "{error}");
    ROOM.set(EMPTY);
    assert!(Store::open(state.path()).is_ok());
}

/// The record is still owed, and no change is made before it is written.
#[test]
fn an_audit_log_that_takes_nothing_is_said_and_stops_changes() {
    let (state, ..) = state();
    let store = Store::open(state.path()).unwrap();
    let log = state.path().join(audit::FILE);
    let aside = state.path().join("aside");
    std::fs::rename(&log, &aside).unwrap();
    std::fs::create_dir(&log).unwrap();
    store.add_tenant(Actor::Daemon, "more").unwrap();
    let problems = store.problems().concat();
    assert!(problems.contains("lacks its newest record"), "{problems}");
    let error = store.add_tenant(Actor::Daemon, "again").unwrap_err();
    assert!(matches!(error, StoreError::Audit { .. }), "{error}");
    std::fs::remove_dir(&log).unwrap();
    std::fs::rename(&aside, &log).unwrap();
    check_recovers(store, state.path());
}

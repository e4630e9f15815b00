//! Damage: files that are cut off, overwritten or missing.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::power_cuts::{Random, change, scratch};
use super::*;
use crate::audit::{Actor, Event};
use crate::tests::{Contents, contents_of};
use crate::{Cause, Store};

/// A directory with some state, and its contents.
fn state(random: &mut Random) -> (tempfile::TempDir, Contents) {
    let state = scratch();
    let store = Store::open(state.path()).unwrap();
    store.add_tenant(Actor::Daemon, "acme").unwrap();
    (0..10).for_each(|_| change(&store, random));
    let contents = contents_of(&store);
    (state, contents)
}

/// Damages a file.
fn damage(path: &Path, random: &mut Random) -> String {
    let file = File::options().write(true).read(true).open(path).unwrap();
    let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let at = [random.below(len), random.below(len.min(4_096))][random.below(2)];
    let what = match random.below(6) {
        0 | 1 => {
            file.set_len(at as u64).unwrap();
            "cut off"
        }
        2 => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at as u64).unwrap();
            byte[0] ^= 1 << random.below(8);
            file.write_all_at(&byte, at as u64).unwrap();
            "a bit flipped"
        }
        3 => {
            let page = (at / 4_096 * 4_096) as u64;
            file.write_all_at(&[0; 4_096], page).unwrap();
            "a page of zeros"
        }
        4 => {
            let rest = len - at;
            let noise: Vec<u8> = (0..rest.min(9_000))
                .map(|_| random.below(256) as u8)
                .collect();
            file.write_all_at(&noise, at as u64).unwrap();
            "noise"
        }
        _ => {
            let mut page = [0; 4_096];
            file.read_exact_at(&mut page, (random.below(len / 4_096) * 4_096) as u64)
                .unwrap();
            file.write_all_at(&page, (at / 4_096 * 4_096) as u64)
                .unwrap();
            "a page of another place"
        }
    };
    format!("{what} at {at} of {len}")
}

fn damaged_files(state: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(state).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.to_string_lossy().contains(DAMAGED))
        .collect()
}

fn has_event(store: &Store, event: &str) -> bool {
    let newest = store.audit_last(3).unwrap().concat();
    newest.contains(&format!("\"event\":\"{event}\""))
}

/// More seeds: `TOLLGATE_POWER_CUTS=20000`, as for power cuts.
#[test]
fn one_damaged_file_costs_nothing_and_two_are_never_taken_for_less() {
    let seeds = std::env::var("TOLLGATE_POWER_CUTS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(150);
    let (mut whole, mut restored, mut refused) = (0, 0, 0);
    for seed in 0..seeds {
        let random = &mut Random(seed);
        let (state, contents) = state(random);
        let (file, copy) = (state.path().join(FILE), state.path().join(COPY));
        let which = random.below(3);
        let mut done = String::new();
        if which != 1 {
            done += &damage(&file, random);
        }
        if which != 0 {
            done += &format!("; copy: {}", damage(&copy, random));
        }
        let opened = Store::open(state.path());
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                assert_eq!(which, 2, "seed {seed}, {done}: {error}");
                assert!(
                    matches!(
                        error,
                        StoreError::Damaged { .. } | StoreError::WentBack { .. }
                    ),
                    "seed {seed}, {done}: {error}"
                );
                refused += 1;
                continue;
            }
        };
        assert_eq!(contents_of(&store), contents, "seed {seed}, {done}");
        store.audit_verification().unwrap().run().unwrap();
        if has_event(&store, "restored") {
            restored += 1;
        } else {
            whole += 1;
        }
        drop(store);
        assert!(is_same(&file, &copy).unwrap(), "seed {seed}, {done}");
    }
    println!("{whole} whole, {restored} restored, {refused} refused");
    assert!(whole > 0 && restored > 0 && refused > 0);
}

/// Equal damage of both files by one disk, controller or backup. More seeds as above.
#[test]
fn the_same_damage_in_both_files_is_noticed() {
    let seeds = std::env::var("TOLLGATE_POWER_CUTS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    let (mut harmless, mut refused) = (0, 0);
    for seed in 0..seeds {
        let random = &mut Random(seed);
        let (state, contents) = state(random);
        let done = damage(&state.path().join(FILE), random);
        std::fs::copy(state.path().join(FILE), state.path().join(COPY)).unwrap();
        match Store::open(state.path()) {
            Ok(store) => {
                assert_eq!(contents_of(&store), contents, "seed {seed}, {done}");
                harmless += 1;
            }
            Err(error) => {
                let is_expected = matches!(
                    error,
                    StoreError::Damaged { .. } | StoreError::WentBack { .. }
                );
                assert!(is_expected, "seed {seed}, {done}: {error}");
                refused += 1;
            }
        }
    }
    println!("{harmless} harmless, {refused} refused");
    assert!(harmless > 0 && refused > 0);
}

/// Every byte of every kind of record, with one bit flipped.
#[test]
fn a_flipped_bit_in_a_record_of_both_files_is_noticed() {
    let state = scratch();
    let store = Store::open(state.path()).unwrap();
    for tenant in ["t2", "acme"] {
        store.add_tenant(Actor::Daemon, tenant).unwrap();
    }
    let owner = crate::Owner::Tenant("acme".to_owned());
    let module = b"the bytes of a module";
    let pushed = store.push_policy(
        Actor::Daemon,
        &owner,
        "acl",
        module,
        Some(b"its configuration"),
    );
    pushed.unwrap();
    drop(store);
    let whole = std::fs::read(state.path().join(FILE)).unwrap();
    for record in [&b"t2"[..], b"acme", b"acl", module, b"its configuration"] {
        let places = whole.windows(record.len()).enumerate();
        let places: Vec<usize> = places
            .filter(|(_, there)| *there == record)
            .map(|(at, _)| at)
            .collect();
        let mut noticed = 0;
        for at in &places {
            let mut flipped = whole.clone();
            flipped[*at] ^= 1;
            for name in [FILE, COPY] {
                std::fs::write(state.path().join(name), &flipped).unwrap();
            }
            let before = std::fs::read(state.path().join(audit::FILE)).unwrap();
            match Store::open(state.path()) {
                // Unused pages have records, too.
                Ok(store) => {
                    let tenants = store.tenants().unwrap();
                    assert_eq!(tenants, ["acme", "t2"], "{record:?} at {at}");
                    let policy = crate::PolicyVersion {
                        name: "acl".to_owned(),
                        version: 1,
                    };
                    let policy = store.policy(&owner, &policy).unwrap();
                    assert_eq!(policy.wasm, module, "{record:?} at {at}");
                }
                Err(error) => {
                    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                    noticed += 1;
                }
            }
            std::fs::write(state.path().join(audit::FILE), before).unwrap();
        }
        assert!(noticed > 0, "{record:?} is at {places:?}");
    }
}

#[test]
fn a_damaged_file_is_kept_aside_and_the_log_says_so() {
    let (state, contents) = state(&mut Random(1));
    let file = state.path().join(FILE);
    for round in 1..=limits::DAMAGED_FILES + 2 {
        std::fs::write(&file, b"").unwrap();
        let store = Store::open(state.path()).unwrap();
        assert_eq!(contents_of(&store), contents);
        let newest = store.audit_last(1).unwrap();
        assert!(newest[0].contains("\"why\":\"it is empty\""), "{newest:?}");
        let kept = damaged_files(state.path());
        assert_eq!(kept.len(), round.min(limits::DAMAGED_FILES), "{kept:?}");
        let name = kept.iter().max().unwrap().file_name().unwrap();
        let name = name.to_string_lossy().into_owned();
        assert!(newest[0].contains(&name), "{newest:?}, {name}");
        // Names are times in milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn a_missing_file_is_made_again() {
    let (state, contents) = state(&mut Random(2));
    for (name, records) in [(FILE, 1), (COPY, 0)] {
        let before = head(state.path()).unwrap().seq;
        std::fs::remove_file(state.path().join(name)).unwrap();
        let store = Store::open(state.path()).unwrap();
        assert_eq!(contents_of(&store), contents);
        assert_eq!(store.audit_head().seq, before + records, "{name}");
    }
    assert!(damaged_files(state.path()).is_empty());
}

/// An outdated copy is updated: a daemon that predates copies may have run meanwhile.
#[test]
fn the_newer_one_wins() {
    for (older, is_restored) in [(FILE, true), (COPY, false)] {
        let (state, _) = state(&mut Random(3));
        let path = state.path().join(older);
        let before = std::fs::read(&path).unwrap();
        let store = Store::open(state.path()).unwrap();
        store.add_tenant(Actor::Daemon, "newer").unwrap();
        drop(store);
        std::fs::write(&path, before).unwrap();
        let store = Store::open(state.path()).unwrap();
        assert!(store.tenants().unwrap().contains(&"newer".to_owned()));
        assert_eq!(has_event(&store, "restored"), is_restored, "{older}");
    }
}

/// If the file and its copy are too old or missing, no new state is begun: the audit log remembers.
#[test]
fn a_state_that_went_back_is_refused() {
    let (state, _) = state(&mut Random(4));
    let store = Store::open(state.path()).unwrap();
    let names = [FILE, COPY].map(|name| state.path().join(name));
    drop(store);
    let before = std::fs::read(&names[0]).unwrap();
    let store = Store::open(state.path()).unwrap();
    store
        .record(Actor::Daemon, Event::Fault, json!({}))
        .unwrap();
    let seq = store.audit_head().seq;
    drop(store);
    for path in &names {
        std::fs::write(path, &before).unwrap();
    }
    let words = |stored: u64| {
        format!(
            "the state in {} is older than its audit log: it ends with audit record {stored}, audit.jsonl with record {seq};",
            state.path().display()
        )
    };
    let error = Store::open(state.path()).unwrap_err();
    assert!(error.to_string().starts_with(&words(seq - 1)), "{error}");
    assert_eq!(error.cause(), Cause::Broken);
    for path in &names {
        std::fs::remove_file(path).unwrap();
    }
    let error = Store::open(state.path()).unwrap_err();
    assert!(error.to_string().starts_with(&words(0)), "{error}");
    // The sentence's advice works.
    std::fs::remove_file(state.path().join(audit::FILE)).unwrap();
    assert!(Store::open(state.path()).is_ok());
}

#[test]
fn two_damaged_files_are_refused_in_one_sentence() {
    let (state, _) = state(&mut Random(5));
    for name in [FILE, COPY] {
        std::fs::write(state.path().join(name), b"not a database").unwrap();
    }
    let error = Store::open(state.path()).unwrap_err();
    let words = format!(
        "the state in {} and its copy are damaged",
        state.path().display()
    );
    assert!(error.to_string().starts_with(&words), "{error}");
    let untouched = std::fs::read(state.path().join(FILE)).unwrap();
    assert_eq!(untouched, b"not a database");
}

/// The overlay answers like a file, and the file stays unchanged.
#[test]
fn an_overlay_is_a_file_that_forgets() {
    for seed in 0..20 {
        let random = &mut Random(seed);
        let file = tempfile::NamedTempFile::new().unwrap();
        let content: Vec<u8> = (0..random.below(300_000)).map(|at| at as u8).collect();
        std::fs::write(file.path(), &content).unwrap();
        let overlay = Overlay::new(file.reopen().unwrap()).unwrap();
        let mut expected = content.clone();
        for _ in 0..30 {
            let len = 1 + random.below(100_000);
            match random.below(3) {
                0 => {
                    expected.resize(len * 3, 0);
                    overlay.set_len(len as u64 * 3).unwrap();
                }
                1 if expected.len() >= len => {
                    let at = random.below(expected.len() - len + 1);
                    expected[at..at + len].fill(seed as u8 + 1);
                    let written = &expected[at..at + len];
                    overlay.write(at as u64, written).unwrap();
                }
                _ => {}
            }
            let mut read = vec![1; expected.len()];
            overlay.read(0, &mut read).unwrap();
            assert!(read == expected, "seed {seed}");
        }
        assert!(overlay.read(expected.len() as u64, &mut [0]).is_err());
        assert!(std::fs::read(file.path()).unwrap() == content);
    }
}

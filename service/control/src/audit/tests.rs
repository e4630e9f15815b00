//! Every edit of a log is found, and every crash is healed.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::record::{SEAL, line};
use super::*;
use crate::limits::{MAX_DETAILS_BYTES, MAX_LINE_BYTES};
use crate::model::hex;
use crate::{Change, Store};

fn note(event: Event, details: Value) -> Note {
    let actor = Actor::Admin { uid: 0, pid: 4711 };
    Note {
        actor,
        event,
        details,
    }
}

/// A log of `count` records, one per second, and its lines.
fn lines(count: u64) -> (Vec<String>, Head) {
    let mut head = Head::default();
    let mut lines = Vec::new();
    for n in 0..count {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_000_000 + n);
        let note = note(Event::Push, json!({"policy": format!("acl@{n}"), "n": n}));
        let (line, next) = line(&head, now, &note);
        lines.push(line);
        head = next;
    }
    (lines, head)
}

fn text(lines: &[String]) -> Vec<u8> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    text.into_bytes()
}

fn line_of(result: Result<Verified, Edited>) -> Option<u64> {
    result.err().map(|edited| edited.line)
}

#[test]
fn a_record_is_a_line_that_others_can_check() {
    let (lines, head) = lines(1);
    let expected = concat!(
        r#"{"seq":1,"time":"2026-11-18T11:06:40.000Z","prev":""#,
        "0000000000000000000000000000000000000000000000000000000000000000",
        r#"","actor":"uid 0 pid 4711","event":"push","details":{"n":0,"policy":"acl@0"},"hash":""#,
    );
    let hash = hex(&head.hash);
    assert_eq!(lines[0], format!("{expected}{hash}\"}}"));
    let sealed = &lines[0][..lines[0].len() - SEAL.len() - 64 - 2];
    assert_eq!(hash, hex(&Sha256::digest(sealed)), "sha256sum agrees");
    assert_eq!(head.to_string().parse(), Ok(head));
}

#[test]
fn times_are_calendar_times() {
    let check = |secs: u64, expected: &str| {
        let time = UNIX_EPOCH + Duration::from_millis(secs * 1_000 + 7);
        assert_eq!(rfc3339(time), expected);
    };
    check(0, "1970-01-01T00:00:00.007Z");
    check(951_782_400, "2000-02-29T00:00:00.007Z");
    check(1_709_251_199, "2024-02-29T23:59:59.007Z");
    check(4_107_542_400, "2100-03-01T00:00:00.007Z");
}

#[test]
fn an_untouched_log_verifies() {
    let (lines, head) = lines(9);
    let log = text(&lines);
    let verified = |anchored| {
        Ok(Verified {
            records: 9,
            head,
            anchored,
        })
    };
    assert_eq!(verify(log.as_slice(), Anchor::None), verified(false));
    assert_eq!(verify(log.as_slice(), Anchor::End(head)), verified(true));
    let (_, earlier) = self::lines(4);
    assert_eq!(
        verify(log.as_slice(), Anchor::Kept(earlier)),
        verified(true)
    );
    assert_eq!(
        verify(&b""[..], Anchor::None).unwrap().head,
        Head::default()
    );
}

/// The main test: each byte of each line, with every single bit flipped.
#[test]
fn every_flipped_byte_is_found_in_its_line() {
    let (lines, head) = lines(5);
    let log = text(&lines);
    for at in 0..log.len() {
        let line = 1 + log[..at].iter().filter(|&&b| b == b'\n').count() as u64;
        for bit in 0..8 {
            let mut edited = log.clone();
            edited[at] ^= 1 << bit;
            for anchor in [Anchor::None, Anchor::End(head)] {
                let found = line_of(verify(edited.as_slice(), anchor));
                assert_eq!(found, Some(line), "byte {at}, bit {bit}");
            }
        }
    }
}

#[test]
fn every_deleted_swapped_doubled_or_cut_line_is_found() {
    let (lines, head) = lines(6);
    let check = |edited: &[String], line: usize, what: &str| {
        let found = line_of(verify(text(edited).as_slice(), Anchor::End(head)));
        assert_eq!(found, Some(line as u64 + 1), "{what} {line}");
    };
    for at in 0..lines.len() {
        let mut edited = lines.clone();
        edited.remove(at);
        check(&edited, at, "deleted");

        let mut edited = lines.clone();
        edited.insert(at, lines[at].clone());
        check(&edited, at + 1, "doubled before");

        let mut edited = lines.clone();
        edited.insert(at, "{}".to_owned());
        check(&edited, at, "inserted");

        check(&lines[..at], at, "cut");
        for other in at + 1..lines.len() {
            let mut edited = lines.clone();
            edited.swap(at, other);
            check(&edited, at, "swapped");
        }
        let log = text(&lines);
        let begin: usize = lines[..at].iter().map(|line| line.len() + 1).sum();
        for cut in begin + 1..begin + lines[at].len() + 1 {
            let found = line_of(verify(&log[..cut], Anchor::None));
            assert_eq!(found, Some(at as u64 + 1), "cut after byte {cut}");
        }
    }
}

/// A forger can write a line with a correct hash; the next line or the anchor reveals it.
#[test]
fn a_well_made_forgery_is_found_by_what_follows() {
    let (lines, head) = lines(4);
    for at in 0..lines.len() {
        let (before, _) = parse(lines[at].as_bytes()).unwrap();
        let forged = note(Event::Detach, json!({}));
        let (forged, _) = line(&before, UNIX_EPOCH, &forged);
        let mut edited = lines.clone();
        edited[at] = forged.clone();
        let found = line_of(verify(text(&edited).as_slice(), Anchor::End(head)));
        let expected = if at + 1 == lines.len() { at } else { at + 1 };
        assert_eq!(found, Some(expected as u64 + 1), "replaced {at}");
    }
    let (more, _) = line(&head, UNIX_EPOCH, &note(Event::Detach, json!({})));
    let edited = [lines.clone(), vec![more]].concat();
    let error = verify(text(&edited).as_slice(), Anchor::End(head)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 5: it was added: the last record that the daemon wrote is 4"
    );
}

#[test]
fn a_line_without_an_end_takes_no_memory() {
    let endless = std::io::BufReader::new(std::io::repeat(b'x'));
    let error = verify(endless, Anchor::None).unwrap_err();
    assert!(error.what.contains(&MAX_LINE_BYTES.to_string()), "{error}");
}

#[test]
fn details_are_bounded() {
    let long = note(
        Event::Fault,
        json!({"reason": "x".repeat(MAX_DETAILS_BYTES)}),
    );
    let (line, _) = line(&Head::default(), UNIX_EPOCH, &long);
    assert!(
        line.contains(r#""details":{"cut":true,"bytes":16397}"#),
        "{line}"
    );
    assert!(parse(line.as_bytes()).is_ok());
}

#[test]
fn heads_that_are_none() {
    for wrong in [
        "",
        "7",
        "7:ab",
        ":",
        &format!("x:{}", "0".repeat(64)),
        &format!("1:{}", "G".repeat(64)),
    ] {
        let error = wrong.parse::<Head>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("{wrong:?} isn't the head")),
            "{error}"
        );
    }
}

// ---- the log of a store ----

/// A state directory with three records, the last of which adds tenant `t2`.
fn state() -> tempfile::TempDir {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    for n in 0..3 {
        store.add_tenant(Actor::Daemon, &format!("t{n}")).unwrap();
    }
    state
}

fn events(store: &Store) -> Vec<String> {
    let event = |line: &String| {
        let record: Value = serde_json::from_str(line).unwrap();
        format!(
            "{} {}",
            record["event"].as_str().unwrap(),
            record["details"]
        )
    };
    store.audit_last(100).unwrap().iter().map(event).collect()
}

#[test]
fn what_a_store_does_is_recorded_and_verifies() {
    let state = state();
    let store = Store::open(state.path()).unwrap();
    let added = |n| format!("tenant-add {{\"tenant\":\"t{n}\"}}");
    assert_eq!(events(&store), [added(0), added(1), added(2)]);
    let verified = store.audit_verification().unwrap().run().unwrap();
    assert_eq!((verified.records, verified.anchored), (3, true));
    assert_eq!(verified.head, store.audit_head());
    store.add_tenant(Actor::Daemon, "Not a name").unwrap_err();
    assert_eq!(
        store.audit_head(),
        verified.head,
        "what is refused isn't recorded"
    );
    let head = store.audit_head();
    assert!(
        Store::audit_anchor(state.path()).is_err(),
        "a daemon uses it"
    );
    drop(store);
    assert_eq!(Store::audit_anchor(state.path()).unwrap(), head);
    assert!(Store::audit_anchor(&state.path().join("nowhere")).is_err());
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(state.path().join(FILE))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A crash between the commit and the file: from nothing to all but the line's end reached the
/// disk.
#[test]
fn a_crash_before_the_file_is_healed_and_says_so() {
    let whole = std::fs::read(state().path().join(FILE)).unwrap();
    let last = whole[..whole.len() - 1]
        .iter()
        .rposition(|&b| b == b'\n')
        .unwrap()
        + 1;
    let line = whole.len() - last;
    for reached in [0, 1, 10, line - 2, line - 1] {
        let state = state();
        let path = state.path().join(FILE);
        let file = std::fs::read(&path).unwrap();
        std::fs::write(&path, &file[..last + reached]).unwrap();
        let store = Store::open(state.path()).unwrap();
        let events = events(&store);
        assert_eq!(
            events[2], "tenant-add {\"tenant\":\"t2\"}",
            "{reached} bytes"
        );
        assert!(events[3].starts_with("healed {\"record\":3"), "{events:?}");
        assert_eq!(
            store.audit_verification().unwrap().run().unwrap().records,
            4
        );
        drop(store);
        let store = Store::open(state.path()).unwrap();
        assert_eq!(store.audit_head().seq, 4, "and only once");
    }
}

/// A state directory with a record and then three of one transaction; and where the three begin.
fn state_of_several() -> (tempfile::TempDir, usize) {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    store.add_tenant(Actor::Daemon, "t0").unwrap();
    let first = std::fs::read(state.path().join(FILE)).unwrap().len();
    let add = |name: &str| Change::AddTenant {
        tenant: name.to_owned(),
    };
    let three = [add("t1"), add("t2"), add("t3")];
    store.change_all(&Actor::Daemon, &three).unwrap();
    (state, first)
}

/// A crash after the commit of several changes: any part of their lines reached the disk, and a
/// power cut may have kept zeros in the place of any page.
#[test]
fn several_records_of_one_transaction_are_healed_together() {
    let (state, first) = state_of_several();
    let path = state.path().join(FILE);
    let whole = std::fs::read(&path).unwrap();
    drop(Store::open(state.path()).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), whole, "nothing is missing");
    let ends: Vec<usize> = (first..whole.len())
        .filter(|&at| whole[at] == b'\n')
        .collect();
    assert_eq!(ends.len(), 3);
    let mut torn = Vec::new();
    for at in (first..whole.len()).step_by(7).chain(ends.clone()) {
        torn.push(whole[..at].to_vec());
    }
    for hole in [
        first..whole.len(),
        first..first + 5,
        ends[0]..ends[0] + 1,
        ends[0] + 3..ends[1] + 9,
        ends[1] + 1..whole.len() - 1,
    ] {
        let mut file = whole.clone();
        file[hole].fill(0);
        torn.push(file);
    }
    for file in torn {
        let (state, _) = state_of_several();
        let path = state.path().join(FILE);
        let own = std::fs::read(&path).unwrap();
        // Its own bytes, as far as the torn file has some.
        let bytes = file.iter().zip(&own);
        let bytes: Vec<u8> = bytes
            .map(|(kept, own)| if *kept == 0 { 0 } else { *own })
            .collect();
        std::fs::write(&path, bytes).unwrap();
        let store = Store::open(state.path()).unwrap();
        let events = events(&store);
        for (n, event) in events[..4].iter().enumerate() {
            assert_eq!(*event, format!("tenant-add {{\"tenant\":\"t{n}\"}}"));
        }
        assert!(events[4].starts_with("healed {\"record\":4"), "{events:?}");
        let verified = store.audit_verification().unwrap().run().unwrap();
        assert_eq!(verified.records, 5);
    }
    // An edit is none of these.
    let mut edited = whole.clone();
    edited[first + 20] ^= 1;
    std::fs::write(&path, edited).unwrap();
    let store = Store::open(state.path()).unwrap();
    let last = events(&store).pop().unwrap();
    assert!(last.starts_with("broken "), "{last}");
}

/// A power cut may keep the length of the newest line and any of its pages.
#[test]
fn a_newest_line_with_holes_is_healed() {
    let whole = std::fs::read(state().path().join(FILE)).unwrap();
    let ends: Vec<usize> = (0..whole.len()).filter(|&at| whole[at] == b'\n').collect();
    let last = ends[1] + 1;
    for holes in [
        last..whole.len(),
        last..last + 9,
        last + 5..whole.len(),
        last + 5..last + 6,
    ] {
        let state = state();
        let path = state.path().join(FILE);
        let mut torn = std::fs::read(&path).unwrap();
        torn[holes.clone()].fill(0);
        std::fs::write(&path, torn).unwrap();
        let store = Store::open(state.path()).unwrap();
        let events = events(&store);
        assert_eq!(events[2], "tenant-add {\"tenant\":\"t2\"}", "{holes:?}");
        assert!(events[3].starts_with("healed {\"record\":3"), "{events:?}");
        let verified = store.audit_verification().unwrap().run().unwrap();
        assert_eq!(verified.records, 4, "{holes:?}");
    }
}

/// An end that no crash explains is kept, recorded, and found by `verify`.
#[test]
fn a_log_that_somebody_changed_is_not_healed() {
    let lines_of = |bytes: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(bytes)
            .lines()
            .map(str::to_owned)
            .collect()
    };
    type Edit = fn(&mut Vec<String>);
    let edits: [(&str, Edit, u64); 4] = [
        ("two records cut", |lines| lines.truncate(1), 2),
        ("all cut", Vec::clear, 1),
        ("one added", |lines| lines.push("{}".to_owned()), 4),
        (
            "the last one changed",
            |lines| lines[2] = lines[2].replace("t2", "t9"),
            3,
        ),
    ];
    for (what, edit, line) in edits {
        let state = state();
        let path = state.path().join(FILE);
        let mut lines = lines_of(&std::fs::read(&path).unwrap());
        edit(&mut lines);
        std::fs::write(&path, text(&lines)).unwrap();
        let store = Store::open(state.path()).unwrap();
        let newest = store.audit_last(1).unwrap();
        assert!(
            newest[0].contains("\"event\":\"broken\""),
            "{what}: {newest:?}"
        );
        let found = line_of(store.audit_verification().unwrap().run());
        assert_eq!(found, Some(line), "{what}");
    }
}

#[test]
fn a_log_that_cannot_be_written_stops_changes_after_the_first() {
    let state = state();
    let path = state.path().join(FILE);
    let store = Store::open(state.path()).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    store.add_tenant(Actor::Daemon, "t3").unwrap();
    let error = store
        .add_tenant(Actor::Daemon, "t4")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("audit.jsonl can't be written, so nothing is changed"),
        "{error}"
    );
    assert_eq!(store.tenants().unwrap().len(), 4);
    std::fs::remove_dir(&path).unwrap();
    store.add_tenant(Actor::Daemon, "t4").unwrap();
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(
        found.contains("t3") && found.contains("t4"),
        "the owed one comes first: {found}"
    );
}

#[test]
fn without_a_directory_the_newest_are_kept() {
    let store = Store::in_memory().unwrap();
    assert_eq!(store.audit_file(), None);
    for n in 0..AUDIT_RING + 5 {
        store
            .record(Actor::Daemon, Event::Fault, json!({"n": n}))
            .unwrap();
    }
    let verified = store.audit_verification().unwrap().run().unwrap();
    assert_eq!(verified.records, AUDIT_RING as u64);
    assert_eq!(verified.head.seq, AUDIT_RING as u64 + 5);
    assert_eq!(
        store.audit_last(usize::MAX).unwrap().len(),
        limits::MAX_SHOWN
    );
    assert_eq!(store.audit_last(2).unwrap().len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_files_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..400) {
        prop_assert!(verify(bytes.as_slice(), Anchor::None).is_err() || bytes.is_empty());
        let mut log = text(&lines(2).0);
        log.truncate(log.len() - cut.min(log.len()));
        log.extend(bytes);
        let _verdict = verify(log.as_slice(), Anchor::None);
    }
}

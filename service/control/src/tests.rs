//! Tests of the store, in memory unless it is about the file.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition};

use crate::{
    Attachment, Cause, Detach, PolicyVersion, Side, Store, StoreError, Target, hex, limits,
};

/// A store with tenant `acme` and its policy `acl@1`.
fn acme() -> Store {
    let store = Store::in_memory().unwrap();
    store.add_tenant("acme").unwrap();
    store
        .push_policy("acme", "acl", b"module one", None)
        .unwrap();
    store
}

fn version(text: &str) -> PolicyVersion {
    text.parse().unwrap()
}

fn at(service: &str, method: &str, side: Side, policy: &str) -> Attachment {
    let (service, method) = (service.to_owned(), method.to_owned());
    let target = Target {
        tenant: "acme".to_owned(),
        service,
        method,
        side,
    };
    Attachment {
        target,
        policy: version(policy),
    }
}

/// The store said no, in these words, and for this cause.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>, cause: Cause, words: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.to_string().as_str(), error.cause()), (words, cause));
}

#[test]
fn a_token_opens_its_tenant_and_nothing_else() {
    let store = Store::in_memory().unwrap();
    let acme = store.add_tenant("acme").unwrap();
    let evil = store.add_tenant("evil").unwrap();
    assert_eq!(acme.reveal().len(), 3 + 64);
    assert!(acme.reveal().starts_with("tg_") && acme != evil);
    assert_eq!(format!("{acme:?}"), "Token(..)");
    let who = |token: &str| store.authenticate(token).unwrap();
    assert_eq!(who(acme.reveal()).as_deref(), Some("acme"));
    assert_eq!(who(evil.reveal()).as_deref(), Some("evil"));
    for wrong in [
        "",
        "tg_",
        "acme",
        &acme.reveal()[..66],
        &acme.reveal().to_uppercase(),
    ] {
        assert_eq!(who(wrong), None, "{wrong:?}");
    }
    assert_eq!(store.tenants().unwrap(), ["acme", "evil"]);
}

#[test]
fn what_is_refused_and_how() {
    let store = acme();
    let name = |what: &str, value: &str| {
        format!("the {what} {value:?} isn't a name: use 1 to 64 of a-z, 0-9, '-', '_' and '.'")
    };
    let long = "n".repeat(limits::MAX_NAME + 1);
    for wrong in ["", "Acme", "a b", "a/b", "é", &long] {
        refused(
            store.add_tenant(wrong),
            Cause::Invalid,
            &name("tenant", wrong),
        );
        let pushed = store.push_policy("acme", wrong, b"", None);
        refused(pushed, Cause::Invalid, &name("policy", wrong));
    }
    refused(
        store.add_tenant("acme"),
        Cause::Exists,
        "tenant \"acme\" exists already",
    );
    let nobody = "there is no tenant \"nobody\"";
    refused(
        store.push_policy("nobody", "acl", b"", None),
        Cause::Missing,
        nobody,
    );
    refused(
        store.detach("nobody", "acl", &Detach::default()),
        Cause::Missing,
        nobody,
    );

    let acl2 = "tenant \"acme\" has no policy acl@2";
    refused(
        store.policy("acme", &version("acl@2")),
        Cause::Missing,
        acl2,
    );
    refused(
        store.attach(&at("s", "", Side::Client, "acl@2")),
        Cause::Missing,
        acl2,
    );
    let identifier = |what: &str, value: &str| {
        format!("the {what} {value:?} isn't the full name of one: use letters, digits, '_' and '.'")
    };
    refused(
        store.attach(&at("", "", Side::Client, "acl@1")),
        Cause::Invalid,
        &identifier("service", ""),
    );
    refused(
        store.attach(&at("a-b", "", Side::Client, "acl@1")),
        Cause::Invalid,
        &identifier("service", "a-b"),
    );
    refused(
        store.attach(&at("a", "b.c", Side::Client, "acl@1")),
        Cause::Invalid,
        &identifier("method", "b.c"),
    );
    let detached = store.detach("acme", "acl", &Detach::default());
    refused(
        detached,
        Cause::Missing,
        "policy \"acl\" of tenant \"acme\" isn't attached there",
    );

    let module = vec![0; limits::MAX_MODULE_BYTES + 1];
    let words = "the module has 1048577 bytes; the limit is 1048576";
    refused(
        store.push_policy("acme", "acl", &module, None),
        Cause::Invalid,
        words,
    );
    let words = "the configuration has 1048577 bytes; the limit is 1048576";
    refused(
        store.push_policy("acme", "acl", b"", Some(&module)),
        Cause::Invalid,
        words,
    );
    assert_eq!(store.policies().unwrap().len(), 1, "nothing half-done");
}

#[test]
fn references_to_policies() {
    for good in ["acl@1", "a.b-c_9@4294967295"] {
        assert_eq!(version(good).to_string(), good);
    }
    for wrong in [
        "",
        "acl",
        "acl@",
        "@1",
        "acl@0",
        "acl@x",
        "acl@+1",
        "acl@1@2",
        "ACL@1",
        "acl@4294967296",
    ] {
        let words =
            format!("{wrong:?} names no version of a policy: write it as name@version, like acl@1");
        refused(wrong.parse::<PolicyVersion>(), Cause::Invalid, &words);
    }
}

#[test]
fn versions_count_up_and_equal_modules_are_kept_once() {
    let store = acme();
    assert_eq!(
        store
            .push_policy("acme", "acl", b"module one", Some(b"{}"))
            .unwrap(),
        version("acl@2")
    );
    assert_eq!(
        store
            .push_policy("acme", "log", b"module two", None)
            .unwrap(),
        version("log@1")
    );
    let policies = store.policies().unwrap();
    let names: Vec<String> = policies
        .iter()
        .map(|info| info.policy.to_string())
        .collect();
    assert_eq!(names, ["acl@1", "acl@2", "log@1"]);
    assert_eq!(policies[0].digest, policies[1].digest);
    assert_eq!(policies[2].module_bytes, 10);
    let bytes = store.policy("acme", &version("acl@2")).unwrap();
    assert_eq!(
        (bytes.wasm.as_slice(), bytes.config.as_deref()),
        (&b"module one"[..], Some(&b"{}"[..]))
    );
    assert_eq!(
        store.policy("acme", &version("acl@1")).unwrap().config,
        None
    );
    let digest = "6150e4ce733e2d6dcb08d247325a76fdb494b49c7256563cac3e9677a4dabb14";
    assert_eq!(hex(&bytes.digest), digest, "sha256sum agrees");
}

#[test]
fn a_chain_keeps_the_order_of_attachment() {
    let store = acme();
    for name in ["zeta", "beta"] {
        store.push_policy("acme", name, b"m", None).unwrap();
    }
    store.push_policy("acme", "zeta", b"m", None).unwrap();
    let attach = |policy| {
        store
            .attach(&at("hotel.Reservation", "", Side::Client, policy))
            .unwrap()
    };
    let chain = || -> Vec<String> {
        store
            .attachments()
            .unwrap()
            .iter()
            .map(|a| a.policy.to_string())
            .collect()
    };
    for policy in ["zeta@1", "acl@1", "beta@1"] {
        attach(policy);
    }
    assert_eq!(chain(), ["zeta@1", "acl@1", "beta@1"]);
    attach("zeta@2");
    assert_eq!(
        chain(),
        ["zeta@2", "acl@1", "beta@1"],
        "an upgrade keeps its place"
    );
    store.detach("acme", "zeta", &Detach::default()).unwrap();
    attach("zeta@1");
    assert_eq!(chain(), ["acl@1", "beta@1", "zeta@1"]);
}

#[test]
fn detaching_selects() {
    let every = [
        at("a", "", Side::Client, "acl@1"),
        at("a", "M", Side::Client, "acl@1"),
        at("a", "M", Side::Server, "acl@1"),
        at("b", "M", Side::Client, "acl@1"),
        at("a", "M", Side::Client, "other@1"),
    ];
    let check = |which: Detach, ended: &[usize]| {
        let store = acme();
        store.push_policy("acme", "other", b"m", None).unwrap();
        every
            .iter()
            .for_each(|attachment| store.attach(attachment).unwrap());
        let ended: Vec<Attachment> = ended.iter().map(|i| every[*i].clone()).collect();
        assert_eq!(
            store.detach("acme", "acl", &which).unwrap(),
            ended,
            "{which:?}"
        );
        let left: Vec<Attachment> = every
            .iter()
            .filter(|a| !ended.contains(a))
            .cloned()
            .collect();
        assert_eq!(store.attachments().unwrap(), left, "{which:?}");
    };
    let some = |text: &str| Some(text.to_owned());
    check(Detach::default(), &[0, 1, 2, 3]);
    check(
        Detach {
            service: some("a"),
            ..Detach::default()
        },
        &[0, 1, 2],
    );
    check(
        Detach {
            method: some("M"),
            ..Detach::default()
        },
        &[1, 2, 3],
    );
    check(
        Detach {
            method: some(""),
            ..Detach::default()
        },
        &[0],
    );
    check(
        Detach {
            side: Some(Side::Server),
            ..Detach::default()
        },
        &[2],
    );
    check(
        Detach {
            service: some("a"),
            method: some("M"),
            side: Some(Side::Client),
        },
        &[1],
    );
}

#[test]
fn tenants_with_a_common_prefix_stay_apart() {
    let store = acme();
    for tenant in ["acm", "acme-2", "acme.x"] {
        store.add_tenant(tenant).unwrap();
        store.push_policy(tenant, "acl", b"m", None).unwrap();
        let mut attachment = at("s", "", Side::Client, "acl@1");
        attachment.target.tenant = tenant.to_owned();
        store.attach(&attachment).unwrap();
    }
    store.attach(&at("s", "", Side::Client, "acl@1")).unwrap();
    let ended = store.detach("acme", "acl", &Detach::default()).unwrap();
    assert_eq!(ended, [at("s", "", Side::Client, "acl@1")]);
    assert_eq!(store.attachments().unwrap().len(), 3);
}

#[test]
fn old_versions_make_room_unless_attached() {
    let store = acme();
    store.attach(&at("s", "", Side::Client, "acl@1")).unwrap();
    for n in 2..=40_u32 {
        store
            .push_policy("acme", "acl", &n.to_le_bytes(), None)
            .unwrap();
    }
    let kept: Vec<u32> = store
        .policies()
        .unwrap()
        .iter()
        .map(|info| info.policy.version)
        .collect();
    let expected: Vec<u32> = std::iter::once(1).chain(10..=40).collect();
    assert_eq!(
        kept,
        expected,
        "{} of them, the attached one among them",
        limits::MAX_VERSIONS
    );

    for version in kept.iter().skip(1) {
        store
            .attach(&at(
                &format!("s{version}"),
                "",
                Side::Client,
                &format!("acl@{version}"),
            ))
            .unwrap();
    }
    let pushed = store.push_policy("acme", "acl", b"one more", None);
    refused(
        pushed,
        Cause::Limit,
        "there are 32 attached versions of this policy already, which is the limit",
    );
}

#[test]
fn limits_are_reached() {
    let store = acme();
    for n in 1..limits::MAX_POLICIES {
        store
            .push_policy("acme", &format!("p{n}"), b"m", None)
            .unwrap();
    }
    let pushed = store.push_policy("acme", "last", b"m", None);
    refused(
        pushed,
        Cause::Limit,
        "there are 64 policies of this tenant already, which is the limit",
    );
    store.push_policy("acme", "acl", b"m", None).unwrap();

    for n in 0..limits::MAX_ATTACHMENTS {
        store
            .attach(&at(&format!("s{n}"), "", Side::Client, "acl@1"))
            .unwrap();
    }
    let attached = store.attach(&at("more", "", Side::Client, "acl@1"));
    refused(
        attached,
        Cause::Limit,
        "there are 256 attachments of this tenant already, which is the limit",
    );
    store.attach(&at("s7", "", Side::Client, "acl@2")).unwrap();
}

#[test]
fn ten_thousand_tenants_fit_and_no_more() {
    let store = Store::in_memory().unwrap();
    for n in 0..limits::MAX_TENANTS {
        store.add_tenant(&format!("t{n}")).unwrap();
    }
    refused(
        store.add_tenant("more"),
        Cause::Limit,
        "there are 10000 tenants already, which is the limit",
    );
}

#[test]
fn everything_survives_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let directory = state.path().join("not").join("there yet");
    let store = Store::open(&directory).unwrap();
    let token = store.add_tenant("acme").unwrap();
    store
        .push_policy("acme", "acl", b"module", Some(b"config"))
        .unwrap();
    store
        .attach(&at("hotel.Reservation", "Reserve", Side::Server, "acl@1"))
        .unwrap();

    let path = directory.display();
    refused(
        Store::open(&directory),
        Cause::Broken,
        &format!("another daemon uses the state in {path}"),
    );
    drop(store);

    let store = Store::open(&directory).unwrap();
    assert_eq!(
        store.authenticate(token.reveal()).unwrap().as_deref(),
        Some("acme")
    );
    let bytes = store.policy("acme", &version("acl@1")).unwrap();
    assert_eq!(
        (bytes.wasm.as_slice(), bytes.config.as_deref()),
        (&b"module"[..], Some(&b"config"[..]))
    );
    assert_eq!(
        store.attachments().unwrap(),
        [at("hotel.Reservation", "Reserve", Side::Server, "acl@1")]
    );
    assert_eq!(
        store.push_policy("acme", "acl", b"module", None).unwrap(),
        version("acl@2")
    );

    let file = std::fs::read(directory.join("tollgate.redb")).unwrap();
    let secret = token.reveal().as_bytes();
    assert!(
        !file.windows(secret.len()).any(|window| window == secret),
        "the token isn't in the file"
    );
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_directory_that_cannot_be_used() {
    let error = Store::open(Path::new("/dev/null/state")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the state directory /dev/null/state can't be used: "),
        "{error}"
    );
    assert_eq!(error.cause(), Cause::Broken);

    let state = tempfile::tempdir().unwrap();
    std::fs::write(
        state.path().join("tollgate.redb"),
        b"no database at all, but long enough to be read",
    )
    .unwrap();
    let error = Store::open(state.path()).unwrap_err();
    assert!(matches!(error, StoreError::Database(_)), "{error}");
}

const MODULES: TableDefinition<[u8; 32], (u32, &[u8])> = TableDefinition::new("modules");

/// Bends the file behind the store's back.
fn bend(state: &Path, bend: impl FnOnce(&redb::WriteTransaction)) {
    let database = redb::Database::open(state.join("tollgate.redb")).unwrap();
    let change = database.begin_write().unwrap();
    bend(&change);
    change.commit().unwrap();
}

#[test]
fn a_module_is_forgotten_after_its_last_version() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    store.add_tenant("acme").unwrap();
    let push = |module: &[u8]| store.push_policy("acme", "acl", module, None).unwrap();
    push(b"shared");
    push(b"shared");
    for n in 2..=limits::MAX_VERSIONS {
        push(&n.to_le_bytes());
    }
    assert_eq!(
        store.policy("acme", &version("acl@2")).unwrap().wasm,
        b"shared",
        "one version still uses it"
    );
    push(b"the last");
    drop(store);
    bend(state.path(), |change| {
        let modules = change.open_table(MODULES).unwrap();
        assert_eq!(modules.len().unwrap(), limits::MAX_VERSIONS as u64);
        assert!(
            modules
                .iter()
                .unwrap()
                .all(|row| row.unwrap().1.value().1 != b"shared")
        );
    });
}

#[test]
fn a_file_of_another_format_is_left_alone() {
    let state = tempfile::tempdir().unwrap();
    drop(Store::open(state.path()).unwrap());
    bend(state.path(), |change| {
        const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
        change
            .open_table(META)
            .unwrap()
            .insert("format", 2)
            .unwrap();
    });
    let words = format!(
        "the state in {} has format 2; this daemon reads format 1",
        state.path().display()
    );
    refused(Store::open(state.path()), Cause::Broken, &words);
}

#[test]
fn a_lost_module_is_named() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    store.add_tenant("acme").unwrap();
    store.push_policy("acme", "acl", b"module", None).unwrap();
    let digest = store.policies().unwrap()[0].digest;
    drop(store);
    bend(state.path(), |change| {
        change
            .open_table(MODULES)
            .unwrap()
            .remove(digest)
            .unwrap()
            .unwrap();
    });
    let store = Store::open(state.path()).unwrap();
    let words = format!(
        "the state lost module {}, which a policy needs",
        hex(&digest)
    );
    refused(store.policies(), Cause::Broken, &words);
    refused(
        store.policy("acme", &version("acl@1")),
        Cause::Broken,
        &words,
    );
}

/// What a tenant may do to its policies, for the comparison with a plain map.
#[derive(Clone, Debug)]
enum Step {
    Push(u8),
    Attach(u8, u32, u8),
    Detach(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..3_u8).prop_map(Step::Push),
        (0..3_u8, 1..5_u32, 0..3_u8)
            .prop_map(|(policy, version, service)| Step::Attach(policy, version, service)),
        (0..3_u8).prop_map(Step::Detach),
    ];
    proptest::collection::vec(step, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_agrees_with_a_map(steps in steps()) {
        let store = Store::in_memory().unwrap();
        store.add_tenant("acme").unwrap();
        let mut last: BTreeMap<u8, u32> = BTreeMap::new();
        let mut attached: BTreeMap<(u8, u8), u32> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Push(policy) => {
                    let pushed = store.push_policy("acme", &format!("p{policy}"), &[policy], None).unwrap();
                    *last.entry(policy).or_insert(0) += 1;
                    prop_assert_eq!(pushed.version, last[&policy]);
                }
                Step::Attach(policy, version, service) => {
                    let attachment = at(&format!("s{service}"), "", Side::Client, &format!("p{policy}@{version}"));
                    let exists = last.get(&policy).is_some_and(|last| version <= *last);
                    prop_assert_eq!(store.attach(&attachment).is_ok(), exists);
                    if exists {
                        attached.insert((policy, service), version);
                    }
                }
                Step::Detach(policy) => {
                    let ended = store.detach("acme", &format!("p{policy}"), &Detach::default()).unwrap_or_default();
                    let before = attached.len();
                    attached.retain(|(p, _), _| *p != policy);
                    prop_assert_eq!(ended.len(), before - attached.len());
                }
            }
        }
        let mut found: Vec<(String, String)> = store
            .attachments()
            .unwrap()
            .into_iter()
            .map(|a| (a.policy.to_string(), a.target.service))
            .collect();
        found.sort();
        let mut expected: Vec<(String, String)> =
            attached.iter().map(|((p, s), v)| (format!("p{p}@{v}"), format!("s{s}"))).collect();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}

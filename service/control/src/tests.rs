//! Tests of the store, in memory except for tests of the file.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use redb::{ReadableTable, ReadableTableMetadata, TableDefinition};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::audit::{self, Actor, Event};
use crate::{
    ALL, Approval, ApprovalState, Attachment, Candidate, Cause, Change, Credential, DocumentSet,
    FIRST_CREDENTIAL, Hashed, Identity, NewApproval, NewDecision, Options, Owner, Party,
    PolicyInfo, PolicyVersion, Role, Selection, Side, Slot, SlotError, Snapshot, Store, StoreError,
    Target, Token, TokenDigest, Trial, WantedCredential, hex, limits,
};

const ADMIN: Actor = Actor::Admin { uid: 0, pid: 1 };

/// Attaches a policy, or changes its attachment.
fn put(store: &Store, attachment: &Attachment) -> Result<(), StoreError> {
    store.put(
        ADMIN,
        Event::Attach,
        json!({}),
        std::slice::from_ref(attachment),
    )
}

fn detach(store: &Store, policy: &str, which: &Selection) -> Result<Vec<Attachment>, StoreError> {
    store.detach(ADMIN, &owner("acme"), policy, which)
}

fn shown(attachment: &Attachment) -> String {
    format!("{}@{}", attachment.policy, attachment.slot.stable.unwrap())
}

/// A store with tenant `acme` and its policy `acl@1`.
fn acme() -> Store {
    let store = Store::in_memory().unwrap();
    store.add_tenant(ADMIN, "acme").unwrap();
    store
        .push_policy(ADMIN, &owner("acme"), "acl", b"module one", None)
        .unwrap();
    store
}

fn version(text: &str) -> PolicyVersion {
    text.parse().unwrap()
}

fn at(service: &str, method: &str, side: Side, policy: &str) -> Attachment {
    let (service, method) = (service.to_owned(), method.to_owned());
    let target = Target {
        party: Party::Tenant,
        tenant: "acme".to_owned(),
        service,
        method,
        side,
    };
    let PolicyVersion { name, version } = version(policy);
    Attachment {
        target,
        policy: name,
        slot: Slot::enforcing(version),
        options: Options::default(),
    }
}

/// The complete contents of a store, except for its audit log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contents {
    tenants: Vec<String>,
    credentials: Vec<Vec<(Credential, Vec<TokenDigest>)>>,
    policies: Vec<(PolicyInfo, [u8; 32], Option<Vec<u8>>)>,
    attachments: Vec<Attachment>,
}

/// Reads everything, and checks the store's invariants.
#[track_caller]
pub(crate) fn contents_of(store: &Store) -> Contents {
    store.check_invariants();
    let policies = store.policies().unwrap().into_iter().map(|info| {
        let bytes = store.policy(&info.owner, &info.policy).unwrap();
        let digest: [u8; 32] = Sha256::digest(&bytes.wasm).into();
        assert_eq!(digest, info.digest, "{}", info.policy);
        (info, digest, bytes.config)
    });
    let tenants = store.tenants().unwrap();
    let credentials = tenants.iter().map(|tenant| {
        let owner = owner(tenant);
        let its = store.credentials(&owner).unwrap().into_iter();
        let its = its.map(|its| (its.clone(), store.tokens_of(&owner, &its.name).unwrap()));
        its.collect()
    });
    Contents {
        credentials: credentials.collect(),
        tenants,
        policies: policies.collect(),
        attachments: store.attachments().unwrap(),
    }
}

/// The tenant of a token.
pub(crate) fn tenant_of(store: &Store, token: &str) -> Option<String> {
    let identity = store.authenticate(token).unwrap();
    identity.and_then(|identity| identity.owner.tenant().map(str::to_owned))
}

fn owner(tenant: &str) -> Owner {
    Owner::Tenant(tenant.to_owned())
}

fn identity(tenant: &str, credential: &str, role: Role) -> Identity {
    Identity {
        owner: owner(tenant),
        credential: credential.to_owned(),
        role,
    }
}

/// The store rejected a request, with these words and this cause.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>, cause: Cause, words: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.to_string().as_str(), error.cause()), (words, cause));
}

#[test]
fn a_token_opens_its_tenant_and_nothing_else() {
    let store = Store::in_memory().unwrap();
    let acme = store.add_tenant(ADMIN, "acme").unwrap();
    let evil = store.add_tenant(ADMIN, "evil").unwrap();
    assert_eq!(acme.reveal().len(), 3 + 64);
    assert!(acme.reveal().starts_with("tg_") && acme != evil);
    assert_eq!(format!("{acme:?}"), "Token(..)");
    let who = |token: &str| tenant_of(&store, token);
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
fn a_rotated_token_ends_at_once_or_after_its_grace() {
    let store = Store::in_memory().unwrap();
    let first = store.add_tenant(ADMIN, "acme").unwrap();
    let other = store.add_tenant(ADMIN, "evil").unwrap();
    let who = |store: &Store, token: &Token| tenant_of(store, token.reveal());
    let rotate =
        |tenant, grace| store.rotate_credential(ADMIN, &owner(tenant), FIRST_CREDENTIAL, grace);
    let second = rotate("acme", Duration::ZERO).unwrap();
    assert_eq!(who(&store, &first), None);
    assert_eq!(who(&store, &second).as_deref(), Some("acme"));
    assert_eq!(store.next_token_ends().unwrap(), None);
    let hour = Duration::from_secs(3_600);
    let third = rotate("acme", hour).unwrap();
    let both = [&second, &third].map(|token| who(&store, token));
    assert_eq!(both, [Some("acme".to_owned()), Some("acme".to_owned())]);
    let left = store.next_token_ends().unwrap().unwrap();
    assert!(
        left <= hour && left > hour - Duration::from_secs(60),
        "{left:?}"
    );
    // The successor continues with it.
    assert!(who(&copy_of(&store), &second).is_some());
    let fourth = rotate("acme", Duration::from_millis(1)).unwrap();
    assert_eq!(who(&store, &second), None, "an earlier one ends");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(who(&store, &third), None, "its grace is over");
    assert_eq!(who(&store, &fourth).as_deref(), Some("acme"));
    assert_eq!(who(&store, &other).as_deref(), Some("evil"));
    store.check_invariants();
    refused(
        rotate("nobody", Duration::ZERO),
        Cause::Missing,
        "there is no tenant \"nobody\"",
    );
    refused(
        rotate("acme", limits::MAX_GRACE + hour),
        Cause::Invalid,
        "grace in hours 721 is out of range: 0 to 720 are allowed",
    );
    assert_eq!(
        who(&store, &fourth).as_deref(),
        Some("acme"),
        "nothing has changed"
    );
    let log = store.audit_last(1).unwrap();
    assert!(
        log[0].contains(
            r#""event":"credential-rotate","details":{"credential":"default","grace_ms":1,"tenant":"acme"}"#
        ),
        "{log:?}"
    );
}

#[test]
fn operators_have_credentials_which_no_tenant_has() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    store.add_tenant(ADMIN, "acme").unwrap();
    let add = |owner: &Owner, name, role| store.add_credential(ADMIN, owner, name, role, None);
    let token = add(&Owner::Provider, "deploy", Role::Operator).unwrap();
    let expected = Identity {
        owner: Owner::Provider,
        credential: "deploy".to_owned(),
        role: Role::Operator,
    };
    for store in [&store, &copy_of(&store)] {
        store.check_invariants();
        let found = store.authenticate(token.reveal()).unwrap();
        assert_eq!(found.as_ref(), Some(&expected));
    }
    for role in [Role::Owner, Role::Viewer, Role::Application] {
        let refused = add(&Owner::Provider, "other", role).unwrap_err();
        assert_eq!(refused.cause(), Cause::Invalid, "{refused}");
    }
    refused(
        add(&owner("acme"), "other", Role::Operator),
        Cause::Invalid,
        "a credential of tenant \"acme\" can't have the role operator: operators' credentials have the role operator, tenants' ones another",
    );
    refused(
        add(&Owner::Provider, "deploy", Role::Operator),
        Cause::Exists,
        "the provider has a credential \"deploy\" already",
    );
    let (bearer, digest) = store
        .bearer_of(&Owner::Provider, "deploy")
        .unwrap()
        .unwrap();
    assert_eq!((bearer, digest), (expected, token.digest()));
    // A tenant's end, or its credential of the same name, is none of theirs.
    add(&owner("acme"), "deploy", Role::Viewer).unwrap();
    store.remove_tenant(ADMIN, "acme").unwrap();
    assert_eq!(store.credentials(&Owner::Provider).unwrap().len(), 1);
    store.end_token(&token.digest());
    assert_eq!(
        store.bearer_of(&Owner::Provider, "deploy").unwrap(),
        None,
        "it has expired"
    );
    store
        .revoke_credential(ADMIN, &Owner::Provider, "deploy")
        .unwrap();
    refused(
        store.bearer_of(&Owner::Provider, "deploy"),
        Cause::Missing,
        "the provider has no credential \"deploy\"",
    );
    store.check_invariants();
}

#[test]
fn credentials_are_independent_of_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let first = store.add_tenant(ADMIN, "acme").unwrap();
    store.add_tenant(ADMIN, "acme-2").unwrap();
    let add = |tenant: &str, name: &str, role, lifetime: Option<u64>| {
        let lifetime = lifetime.map(Duration::from_secs);
        store.add_credential(ADMIN, &owner(tenant), name, role, lifetime)
    };
    let looks = add("acme", "looks", Role::Viewer, Some(3_600)).unwrap();
    let app = add("acme", "booking", Role::Application, None).unwrap();
    let who = |store: &Store, token: &Token| store.authenticate(token.reveal()).unwrap();
    let check = |store: &Store| {
        store.check_invariants();
        let of = |name, role| Some(identity("acme", name, role));
        assert_eq!(who(store, &first), of(FIRST_CREDENTIAL, Role::Owner));
        assert_eq!(who(store, &looks), of("looks", Role::Viewer));
        assert_eq!(who(store, &app), of("booking", Role::Application));
        let listed = store.credentials(&owner("acme")).unwrap();
        let names: Vec<_> = listed.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["booking", "default", "looks"]);
        assert_eq!(listed[0].expires, None);
        let left = listed[2]
            .expires
            .unwrap()
            .duration_since(std::time::SystemTime::now());
        assert!(left.unwrap() > Duration::from_secs(3_500));
    };
    check(&store);
    check(&copy_of(&store));
    for role in Role::ALL {
        assert_eq!(Role::from_code(role.code()), role);
    }
    // The name is the tenant's own: another tenant may use it, too.
    add("acme-2", "booking", Role::Application, None).unwrap();
    refused(
        add("acme", "booking", Role::Owner, None),
        Cause::Exists,
        "tenant \"acme\" has a credential \"booking\" already",
    );
    refused(
        add("nobody", "booking", Role::Owner, None),
        Cause::Missing,
        "there is no tenant \"nobody\"",
    );
    refused(
        add("acme", "a/b", Role::Owner, None),
        Cause::Invalid,
        "the credential \"a/b\" isn't a name: use 1 to 64 of a-z, 0-9, '-', '_' and '.'",
    );
    refused(
        add("acme", "brief", Role::Owner, Some(59)),
        Cause::Invalid,
        "the lifetime of 59 s is out of range: 60 s to 3650 days are allowed",
    );
    refused(
        store.revoke_credential(ADMIN, &owner("acme"), "brief"),
        Cause::Missing,
        "tenant \"acme\" has no credential \"brief\"",
    );
    check(&store);
    let rotated =
        store.rotate_credential(ADMIN, &owner("acme"), "looks", Duration::from_secs(7_200));
    let rotated = rotated.unwrap();
    // A grace doesn't outlive the credential.
    let listed = store.credentials(&owner("acme")).unwrap();
    assert_eq!(listed[2].former_until, listed[2].expires);
    assert!(who(&store, &looks).is_some() && who(&store, &rotated).is_some());
    store
        .revoke_credential(ADMIN, &owner("acme"), "looks")
        .unwrap();
    assert_eq!([who(&store, &looks), who(&store, &rotated)], [None, None]);
    assert!(who(&store, &first).is_some() && who(&store, &app).is_some());
    drop(store);
    let store = Store::open(directory.path()).unwrap();
    store.check_invariants();
    assert_eq!(store.credentials(&owner("acme")).unwrap().len(), 2);
    let log = store.audit_last(1).unwrap();
    let record = r#""event":"credential-revoke","details":{"credential":"looks","tenant":"acme"}"#;
    assert!(log[0].contains(record), "{log:?}");
    // Neither adding nor removing the neighbour touches a tenant's credentials.
    store.remove_tenant(ADMIN, "acme").unwrap();
    assert_eq!(store.credentials(&owner("acme-2")).unwrap().len(), 2);
    assert!(who(&store, &app).is_none());
}

#[test]
fn a_credential_ends_by_itself() {
    let store = Store::in_memory().unwrap();
    store.add_tenant(ADMIN, "acme").unwrap();
    let minute = Some(limits::MIN_LIFETIME);
    let token = store.add_credential(ADMIN, &owner("acme"), "brief", Role::Owner, minute);
    let digest = TokenDigest::of(token.unwrap().reveal());
    assert!(store.identity_of(&digest).unwrap().is_some());
    let left = store.next_token_ends().unwrap().unwrap();
    assert!(left <= limits::MIN_LIFETIME && left > Duration::from_secs(50));
    // As if the minute were over.
    store.end_token(&digest);
    assert!(store.identity_of(&digest).unwrap().is_none());
    assert_eq!(store.next_token_ends().unwrap(), None);
    assert_eq!(
        store.credentials(&owner("acme")).unwrap().len(),
        2,
        "it is still shown"
    );
}

#[test]
fn a_tenant_has_so_many_credentials() {
    let store = Store::in_memory().unwrap();
    store.add_tenant(ADMIN, "acme").unwrap();
    let add = |k: usize| {
        let name = format!("c{k}");
        store.add_credential(ADMIN, &owner("acme"), &name, Role::Viewer, None)
    };
    for k in 1..limits::MAX_CREDENTIALS {
        add(k).unwrap();
    }
    refused(
        add(limits::MAX_CREDENTIALS),
        Cause::Limit,
        "there are 64 credentials of this owner already, which is the limit",
    );
}

#[test]
fn a_removed_tenant_leaves_nothing_and_takes_nothing_of_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let token = store.add_tenant(ADMIN, "acme").unwrap();
    let near = store.add_tenant(ADMIN, "acme-2").unwrap();
    for whose in [owner("acme"), owner("acme-2"), Owner::Provider] {
        let pushed = store.push_policy(ADMIN, &whose, "acl", b"module one", None);
        pushed.unwrap();
    }
    let push = store.push_policy(ADMIN, &owner("acme"), "own", b"its alone", None);
    push.unwrap();
    let before = store
        .rotate_credential(
            ADMIN,
            &owner("acme"),
            FIRST_CREDENTIAL,
            Duration::from_secs(3_600),
        )
        .unwrap();
    let mut theirs = at("s", "", Side::Client, "acl@1");
    theirs.target.tenant = "acme-2".to_owned();
    let its = at("s", "", Side::Client, "acl@1");
    let of_all = of_provider(Party::ProviderPre, ALL, ALL, "acl@1");
    let for_it = of_provider(Party::ProviderPost, "acme", "s", "acl@1");
    for attachment in [&its, &theirs, &of_all, &for_it] {
        put(&store, attachment).unwrap();
    }
    store.place(ADMIN, json!({}), "acme", Some(1)).unwrap();
    let had = store.holdings("acme").unwrap();
    assert_eq!(had.policies, [version("acl@1"), version("own@1")]);
    assert_eq!(had.attachments, [its, for_it]);
    assert_eq!(store.remove_tenant(ADMIN, "acme").unwrap(), had);
    let check = |store: &Store| {
        store.check_invariants();
        assert_eq!(store.tenants().unwrap(), ["acme-2"]);
        assert_eq!(
            store.attachments().unwrap(),
            [theirs.clone(), of_all.clone()]
        );
        assert_eq!(store.policies().unwrap().len(), 2);
        assert!(store.placements().unwrap().is_empty());
        for gone in [&token, &before] {
            assert_eq!(tenant_of(store, gone.reveal()), None);
        }
        assert_eq!(tenant_of(store, near.reveal()).as_deref(), Some("acme-2"));
    };
    check(&store);
    for again in [store.remove_tenant(ADMIN, "acme"), store.holdings("acme")] {
        refused(again, Cause::Missing, "there is no tenant \"acme\"");
    }
    drop(store);
    let store = Store::open(directory.path()).unwrap();
    check(&store);
    let log = store.audit_last(1).unwrap();
    assert!(
        log[0].contains(r#""event":"tenant-remove","details":{"attachments":2,"policies":["acl","own"],"tenant":"acme","versions":2}"#),
        "{log:?}"
    );
    // A new tenant with the same name is another one.
    store.add_tenant(ADMIN, "acme").unwrap();
    let pushed = store.push_policy(ADMIN, &owner("acme"), "acl", b"module one", None);
    assert_eq!(pushed.unwrap(), version("acl@1"));
    assert!(store.attachments_of(&owner("acme")).unwrap().is_empty());
}

#[test]
fn a_version_is_deleted_unless_an_attachment_needs_it() {
    let store = acme();
    for _ in 2..=4 {
        let pushed = store.push_policy(ADMIN, &owner("acme"), "acl", b"module", None);
        pushed.unwrap();
    }
    let mut attached = at("a.B", "", Side::Client, "acl@2");
    attached.slot.previous = Some(1);
    attached.slot.candidate = Some(Candidate {
        version: 3,
        trial: Trial::Shadow,
        probation_ms: None,
    });
    put(&store, &attached).unwrap();
    let delete = |version| store.delete_policy(ADMIN, &owner("acme"), "acl", version);
    for (version, why) in [
        (
            Some(1),
            "acl@1 is the target of a rollback at client a.B/*: the next upgrade there frees it, or detaching it",
        ),
        (
            Some(2),
            "acl@2 decides at client a.B/*: upgrade to another version there, or detach it, first",
        ),
        (
            Some(3),
            "acl@3 is on trial at client a.B/*: promote it, or roll it back, first",
        ),
        (
            None,
            "acl@1 is the target of a rollback at client a.B/*: the next upgrade there frees it, or detaching it",
        ),
    ] {
        refused(delete(version), Cause::State, why);
    }
    assert_eq!(delete(Some(4)).unwrap(), [version("acl@4")]);
    refused(
        delete(Some(4)),
        Cause::Missing,
        "tenant \"acme\" has no policy acl@4",
    );
    detach(&store, "acl", &Selection::default()).unwrap();
    assert_eq!(
        delete(None).unwrap(),
        ["acl@1", "acl@2", "acl@3"].map(version)
    );
    refused(
        delete(None),
        Cause::Missing,
        "tenant \"acme\" has no policy \"acl\"",
    );
    refused(
        store.delete_policy(ADMIN, &owner("nobody"), "acl", None),
        Cause::Missing,
        "there is no tenant \"nobody\"",
    );
    store.check_invariants();
    let pushed = store.push_policy(ADMIN, &owner("acme"), "acl", b"module", None);
    assert_eq!(
        pushed.unwrap(),
        version("acl@5"),
        "a number is given out once"
    );
    let log = store.audit_last(2).unwrap();
    assert!(log[0].contains(r#""event":"policy-delete""#), "{log:?}");
}

#[test]
fn names_of_deleted_policies_make_room_up_to_a_limit() {
    let store = acme();
    let push = |k: usize| store.push_policy(ADMIN, &owner("acme"), &format!("p{k}"), b"m", None);
    for k in 1..limits::MAX_POLICIES {
        push(k).unwrap();
    }
    refused(
        push(0),
        Cause::Limit,
        "there are 64 policies of this owner already, which is the limit",
    );
    for k in 1..limits::MAX_POLICY_NAMES {
        if k >= limits::MAX_POLICIES {
            push(k).unwrap();
        }
        let deleted = store.delete_policy(ADMIN, &owner("acme"), &format!("p{k}"), None);
        deleted.unwrap();
    }
    let names = "there are 1024 names of policies that this owner has ever used already, which is the limit";
    refused(push(0), Cause::Limit, names);
    assert_eq!(push(7).unwrap(), version("p7@2"), "one of them");
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
            store.add_tenant(ADMIN, wrong),
            Cause::Invalid,
            &name("tenant", wrong),
        );
        let pushed = store.push_policy(ADMIN, &owner("acme"), wrong, b"", None);
        refused(pushed, Cause::Invalid, &name("policy", wrong));
    }
    refused(
        store.add_tenant(ADMIN, "acme"),
        Cause::Exists,
        "tenant \"acme\" exists already",
    );
    let nobody = "there is no tenant \"nobody\"";
    refused(
        store.push_policy(ADMIN, &owner("nobody"), "acl", b"", None),
        Cause::Missing,
        nobody,
    );
    refused(
        store.detach(ADMIN, &owner("nobody"), "acl", &Selection::default()),
        Cause::Missing,
        nobody,
    );

    let acl2 = "tenant \"acme\" has no policy acl@2";
    refused(
        store.policy(&owner("acme"), &version("acl@2")),
        Cause::Missing,
        acl2,
    );
    refused(
        put(&store, &at("s", "", Side::Client, "acl@2")),
        Cause::Missing,
        acl2,
    );
    let identifier = |what: &str, value: &str| {
        format!("{value:?} isn't a full name of a {what}: use letters, digits, '_' and '.'")
    };
    refused(
        put(&store, &at("", "", Side::Client, "acl@1")),
        Cause::Invalid,
        &identifier("service", ""),
    );
    refused(
        put(&store, &at("a-b", "", Side::Client, "acl@1")),
        Cause::Invalid,
        &identifier("service", "a-b"),
    );
    refused(
        put(&store, &at("a", "b.c", Side::Client, "acl@1")),
        Cause::Invalid,
        &identifier("method", "b.c"),
    );
    let detached = detach(&store, "acl", &Selection::default());
    refused(
        detached,
        Cause::Missing,
        "policy \"acl\" of tenant \"acme\" isn't attached at such a place",
    );

    let module = vec![0; limits::MAX_MODULE_BYTES + 1];
    let words = "the module has 4194305 bytes; the limit is 4194304";
    refused(
        store.push_policy(ADMIN, &owner("acme"), "acl", &module, None),
        Cause::Invalid,
        words,
    );
    let words = "the configuration has 1048577 bytes; the limit is 1048576";
    refused(
        store.push_policy(
            ADMIN,
            &owner("acme"),
            "acl",
            b"",
            Some(&module[..=limits::MAX_CONFIG_BYTES]),
        ),
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
            format!("{wrong:?} isn't a version of a policy: write it as name@version, like acl@1");
        refused(wrong.parse::<PolicyVersion>(), Cause::Invalid, &words);
    }
}

#[test]
fn versions_count_up_and_equal_modules_are_kept_once() {
    let store = acme();
    assert_eq!(
        store
            .push_policy(ADMIN, &owner("acme"), "acl", b"module one", Some(b"{}"))
            .unwrap(),
        version("acl@2")
    );
    assert_eq!(
        store
            .push_policy(ADMIN, &owner("acme"), "log", b"module two", None)
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
    let bytes = store.policy(&owner("acme"), &version("acl@2")).unwrap();
    assert_eq!(
        (bytes.wasm.as_slice(), bytes.config.as_deref()),
        (&b"module one"[..], Some(&b"{}"[..]))
    );
    assert_eq!(
        store
            .policy(&owner("acme"), &version("acl@1"))
            .unwrap()
            .config,
        None
    );
    let digest = "6150e4ce733e2d6dcb08d247325a76fdb494b49c7256563cac3e9677a4dabb14";
    assert_eq!(hex(&bytes.digest), digest, "sha256sum agrees");
}

#[test]
fn a_chain_keeps_the_order_of_attachment() {
    let store = acme();
    for name in ["zeta", "beta"] {
        store
            .push_policy(ADMIN, &owner("acme"), name, b"m", None)
            .unwrap();
    }
    store
        .push_policy(ADMIN, &owner("acme"), "zeta", b"m", None)
        .unwrap();
    let attach = |policy| put(&store, &at("hotel.Reservation", "", Side::Client, policy)).unwrap();
    let chain = || -> Vec<String> { store.attachments().unwrap().iter().map(shown).collect() };
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
    detach(&store, "zeta", &Selection::default()).unwrap();
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
    let check = |which: Selection, ended: &[usize]| {
        let store = acme();
        store
            .push_policy(ADMIN, &owner("acme"), "other", b"m", None)
            .unwrap();
        every
            .iter()
            .for_each(|attachment| put(&store, attachment).unwrap());
        let ended: Vec<Attachment> = ended.iter().map(|i| every[*i].clone()).collect();
        assert_eq!(detach(&store, "acl", &which).unwrap(), ended, "{which:?}");
        let left: Vec<Attachment> = every
            .iter()
            .filter(|a| !ended.contains(a))
            .cloned()
            .collect();
        assert_eq!(store.attachments().unwrap(), left, "{which:?}");
    };
    let some = |text: &str| Some(text.to_owned());
    check(Selection::default(), &[0, 1, 2, 3]);
    check(
        Selection {
            service: some("a"),
            ..Selection::default()
        },
        &[0, 1, 2],
    );
    check(
        Selection {
            method: some("M"),
            ..Selection::default()
        },
        &[1, 2, 3],
    );
    check(
        Selection {
            method: some(""),
            ..Selection::default()
        },
        &[0],
    );
    check(
        Selection {
            side: Some(Side::Server),
            ..Selection::default()
        },
        &[2],
    );
    check(
        Selection {
            service: some("a"),
            method: some("M"),
            side: Some(Side::Client),
            ..Selection::default()
        },
        &[1],
    );
}

#[test]
fn tenants_with_a_common_prefix_stay_apart() {
    let store = acme();
    for tenant in ["acm", "acme-2", "acme.x"] {
        store.add_tenant(ADMIN, tenant).unwrap();
        store
            .push_policy(ADMIN, &owner(tenant), "acl", b"m", None)
            .unwrap();
        let mut attachment = at("s", "", Side::Client, "acl@1");
        attachment.target.tenant = tenant.to_owned();
        put(&store, &attachment).unwrap();
    }
    put(&store, &at("s", "", Side::Client, "acl@1")).unwrap();
    let ended = detach(&store, "acl", &Selection::default()).unwrap();
    assert_eq!(ended, [at("s", "", Side::Client, "acl@1")]);
    assert_eq!(store.attachments().unwrap().len(), 3);
}

#[test]
fn old_versions_make_room_unless_attached() {
    let store = acme();
    put(&store, &at("s", "", Side::Client, "acl@1")).unwrap();
    for n in 2..=40_u32 {
        store
            .push_policy(ADMIN, &owner("acme"), "acl", &n.to_le_bytes(), None)
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
        put(
            &store,
            &at(
                &format!("s{version}"),
                "",
                Side::Client,
                &format!("acl@{version}"),
            ),
        )
        .unwrap();
    }
    let pushed = store.push_policy(ADMIN, &owner("acme"), "acl", b"one more", None);
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
            .push_policy(ADMIN, &owner("acme"), &format!("p{n}"), b"m", None)
            .unwrap();
    }
    let pushed = store.push_policy(ADMIN, &owner("acme"), "last", b"m", None);
    refused(
        pushed,
        Cause::Limit,
        "there are 64 policies of this owner already, which is the limit",
    );
    store
        .push_policy(ADMIN, &owner("acme"), "acl", b"m", None)
        .unwrap();

    for n in 0..limits::MAX_ATTACHMENTS {
        put(&store, &at(&format!("s{n}"), "", Side::Client, "acl@1")).unwrap();
    }
    let attached = put(&store, &at("more", "", Side::Client, "acl@1"));
    refused(
        attached,
        Cause::Limit,
        "there are 256 attachments of this owner already, which is the limit",
    );
    put(&store, &at("s7", "", Side::Client, "acl@2")).unwrap();
}

#[test]
fn ten_thousand_tenants_fit_and_no_more() {
    let store = Store::in_memory().unwrap();
    for n in 0..limits::MAX_TENANTS {
        store.add_tenant(ADMIN, &format!("t{n}")).unwrap();
    }
    refused(
        store.add_tenant(ADMIN, "more"),
        Cause::Limit,
        "there are 10000 tenants already, which is the limit",
    );
}

#[test]
fn everything_survives_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let directory = state.path().join("not").join("there yet");
    let store = Store::open(&directory).unwrap();
    let token = store.add_tenant(ADMIN, "acme").unwrap();
    store
        .push_policy(ADMIN, &owner("acme"), "acl", b"module", Some(b"config"))
        .unwrap();
    put(
        &store,
        &at("hotel.Reservation", "Reserve", Side::Server, "acl@1"),
    )
    .unwrap();

    let path = directory.display();
    refused(
        Store::open(&directory),
        Cause::Broken,
        &format!("another daemon uses the state in {path}"),
    );
    drop(store);

    let store = Store::open(&directory).unwrap();
    assert_eq!(tenant_of(&store, token.reveal()).as_deref(), Some("acme"));
    let bytes = store.policy(&owner("acme"), &version("acl@1")).unwrap();
    assert_eq!(
        (bytes.wasm.as_slice(), bytes.config.as_deref()),
        (&b"module"[..], Some(&b"config"[..]))
    );
    assert_eq!(
        store.attachments().unwrap(),
        [at("hotel.Reservation", "Reserve", Side::Server, "acl@1")]
    );
    assert_eq!(
        store
            .push_policy(ADMIN, &owner("acme"), "acl", b"module", None)
            .unwrap(),
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
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

const MODULES: TableDefinition<[u8; 32], (u32, &[u8])> = TableDefinition::new("modules");

/// Changes the file behind the store's back.
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
    store.add_tenant(ADMIN, "acme").unwrap();
    let push = |module: &[u8]| {
        store
            .push_policy(ADMIN, &owner("acme"), "acl", module, None)
            .unwrap()
    };
    push(b"shared");
    push(b"shared");
    for n in 2..=limits::MAX_VERSIONS {
        push(&n.to_le_bytes());
    }
    assert_eq!(
        store
            .policy(&owner("acme"), &version("acl@2"))
            .unwrap()
            .wasm,
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
            .insert("format", 4)
            .unwrap();
    });
    let words = format!(
        "the state in {} has format 4; this daemon reads format 3",
        state.path().display()
    );
    refused(Store::open(state.path()), Cause::Broken, &words);
}

#[test]
fn a_lost_module_is_named() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    store.add_tenant(ADMIN, "acme").unwrap();
    store
        .push_policy(ADMIN, &owner("acme"), "acl", b"module", None)
        .unwrap();
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
    let files = ["tollgate.redb", "tollgate.redb.copy"].map(|name| state.path().join(name));
    let whole = std::fs::read(&files[1]).unwrap();
    std::fs::copy(&files[0], &files[1]).unwrap();
    let words = format!(
        "the state lost module {}, which a policy needs",
        hex(&digest)
    );
    let error = Store::open(state.path()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(&words), "{error}");
    // One whole file is enough.
    std::fs::write(&files[1], whole).unwrap();
    let store = Store::open(state.path()).unwrap();
    assert!(store.policy(&owner("acme"), &version("acl@1")).is_ok());
    assert!(store.restored().unwrap().contains(&words));
}

// ---- versions, options, the provider ----

#[test]
fn a_slot_with_its_options_is_kept_as_it_is() {
    let store = acme();
    for _ in 0..3 {
        store
            .push_policy(ADMIN, &owner("acme"), "acl", b"m", None)
            .unwrap();
    }
    let mut attachment = at("s", "M", Side::Client, "acl@1");
    attachment.slot = Slot {
        stable: Some(2),
        candidate: Some(Candidate {
            version: 3,
            trial: Trial::Canary(10),
            probation_ms: Some(60_000),
        }),
        previous: Some(1),
        quarantine: Some("five faults".to_owned()),
    };
    attachment.options = Options {
        on_fault: crate::OnFault::Open,
        hooks: Some(vec!["request".to_owned()]),
        fields: Some(vec![]),
        metadata: Some(vec!["x-user".to_owned()]),
        callers: Some(vec!["uid=7".to_owned()]),
        capabilities: Some(vec!["clock".to_owned()]),
        cpu_us: Some(5),
        fresh: true,
        isolation: Some(crate::Isolation::Process),
        record: 1_000,
        max_worse: 0,
    };
    put(&store, &attachment).unwrap();
    assert_eq!(store.attachments().unwrap(), [attachment.clone()]);
    // A daemon that predates metadata reads options without metadata keys.
    let plain = serde_json::to_value(Options::default()).unwrap();
    assert!(plain.get("metadata").is_none(), "{plain}");
    assert!(plain.get("callers").is_none(), "{plain}");
    for n in 4..40_u32 {
        store
            .push_policy(ADMIN, &owner("acme"), "acl", &n.to_le_bytes(), None)
            .unwrap();
    }
    for n in 1..=3 {
        let version = format!("acl@{n}").parse().unwrap();
        assert!(
            store.policy(&owner("acme"), &version).is_ok(),
            "{version} is needed"
        );
    }
    assert!(store.policy(&owner("acme"), &version("acl@4")).is_err());
    attachment.slot.candidate = Some(Candidate {
        version: 99,
        trial: Trial::Shadow,
        probation_ms: None,
    });
    refused(
        put(&store, &attachment),
        Cause::Missing,
        "tenant \"acme\" has no policy acl@99",
    );
}

#[test]
fn options_out_of_range_are_named() {
    let store = acme();
    let check = |words: &str, bend: &dyn Fn(&mut Options)| {
        let mut attachment = at("s", "", Side::Client, "acl@1");
        bend(&mut attachment.options);
        refused(put(&store, &attachment), Cause::Invalid, words);
    };
    check("cpu-us 4 is out of range: 5 to 10000 are allowed", &|o| {
        o.cpu_us = Some(4)
    });
    check(
        "cpu-us 10001 is out of range: 5 to 10000 are allowed",
        &|o| o.cpu_us = Some(10_001),
    );
    check(
        "record 10001 is out of range: 0 to 10000 are allowed",
        &|o| o.record = 10_001,
    );
    check(
        "max-worse 101 is out of range: 0 to 100 are allowed",
        &|o| o.max_worse = 101,
    );
    check("there are 257 granted fields; the limit is 256", &|o| {
        o.fields = Some(vec!["f".to_owned(); 257])
    });
    check(
        "there are 257 granted metadata keys; the limit is 256",
        &|o| o.metadata = Some(vec!["k".to_owned(); 257]),
    );
    check("the granted hooks has 513 bytes; the limit is 512", &|o| {
        o.hooks = Some(vec!["h".repeat(513)])
    });
    assert!(store.attachments().unwrap().is_empty());
}

/// An attachment of the provider's.
fn of_provider(party: Party, tenant: &str, service: &str, policy: &str) -> Attachment {
    let mut attachment = at("s", "", Side::Client, policy);
    attachment.target.party = party;
    attachment.target.tenant = tenant.to_owned();
    attachment.target.service = service.to_owned();
    attachment
}

#[test]
fn the_provider_has_policies_of_its_own_for_every_tenant() {
    let store = acme();
    let pushed = store
        .push_policy(ADMIN, &Owner::Provider, "acl", b"other", None)
        .unwrap();
    assert_eq!(
        pushed,
        version("acl@1"),
        "the tenant's acl@1 is another one"
    );
    put(&store, &of_provider(Party::ProviderPre, ALL, ALL, "acl@1")).unwrap();
    put(
        &store,
        &of_provider(Party::ProviderPost, "acme", "s", "acl@1"),
    )
    .unwrap();
    put(&store, &at("s", "", Side::Client, "acl@1")).unwrap();
    assert_eq!(store.attachments().unwrap().len(), 3);
    let refused_as = |attachment: Attachment, cause, words: &str| {
        refused(put(&store, &attachment), cause, words);
    };
    let nobody = of_provider(Party::ProviderPre, "nobody", ALL, "acl@1");
    refused_as(nobody, Cause::Missing, "there is no tenant \"nobody\"");
    let two = of_provider(Party::ProviderPre, ALL, ALL, "acl@2");
    refused_as(two, Cause::Missing, "the provider has no policy acl@2");
    let mut method = of_provider(Party::ProviderPre, ALL, ALL, "acl@1");
    method.target.method = "M".to_owned();
    let words = "\"M\" isn't a full name of a method: use letters, digits, '_' and '.'";
    refused_as(method, Cause::Invalid, words);
    let mut all = at("s", "", Side::Client, "acl@1");
    all.target.tenant = ALL.to_owned();
    let words = "the tenant \"*\" isn't a name: use 1 to 64 of a-z, 0-9, '-', '_' and '.'";
    refused_as(all, Cause::Invalid, words);
    let pre = Selection {
        party: Some(Party::ProviderPre),
        ..Selection::default()
    };
    let ended = store.detach(ADMIN, &Owner::Provider, "acl", &pre).unwrap();
    assert_eq!(ended, [of_provider(Party::ProviderPre, ALL, ALL, "acl@1")]);
    refused(
        store.detach(ADMIN, &Owner::Provider, "acl", &pre),
        Cause::Missing,
        "policy \"acl\" of the provider isn't attached at such a place",
    );
    assert_eq!(store.attachments().unwrap().len(), 2);
}

#[test]
fn a_target_covers_what_it_says() {
    let of_acme = at("hotel.Reservation", "Reserve", Side::Client, "acl@1").target;
    let covers = |target: &Target, tenant, service, method, side| {
        target.covers(tenant, service, method, side)
    };
    let (client, server) = (Side::Client, Side::Server);
    assert!(covers(
        &of_acme,
        "acme",
        "hotel.Reservation",
        "Reserve",
        client
    ));
    assert!(!covers(
        &of_acme,
        "acme",
        "hotel.Reservation",
        "Cancel",
        client
    ));
    assert!(!covers(
        &of_acme,
        "acme",
        "hotel.Reservation",
        "Reserve",
        server
    ));
    assert!(!covers(
        &of_acme,
        "evil",
        "hotel.Reservation",
        "Reserve",
        client
    ));
    let every = of_provider(Party::ProviderPost, ALL, ALL, "acl@1").target;
    assert!(covers(&every, "evil", "a.B", "C", client));
    assert!(!covers(&every, "evil", "a.B", "C", server));
    assert_eq!(of_acme.to_string(), "client hotel.Reservation/Reserve");
    assert_eq!(every.to_string(), "client */* of tenant * (provider-post)");
}

#[test]
fn several_attachments_change_together_or_not_at_all() {
    let store = acme();
    let good = at("a", "", Side::Client, "acl@1");
    let bad = at("b", "", Side::Client, "acl@7");
    let both = store.put(ADMIN, Event::Upgrade, json!({}), &[good, bad]);
    refused(both, Cause::Missing, "tenant \"acme\" has no policy acl@7");
    assert!(store.attachments().unwrap().is_empty());
    let step = StoreError::Step {
        place: "client a/*".to_owned(),
        why: SlotError::NoTrial {
            policy: "acl".to_owned(),
        },
    };
    let words = "at client a/*, no version of acl is on trial, so none can be promoted";
    refused(Err::<(), _>(step), Cause::State, words);
}

// ---- settings ----

fn change(key: &str, value: Option<&str>) -> (String, Option<String>) {
    (key.to_owned(), value.map(str::to_owned))
}

#[test]
fn settings_are_kept_and_a_change_of_them_is_one_record() {
    let state = tempfile::tempdir().unwrap();
    {
        let store = Store::open(state.path()).unwrap();
        let both = [change("spin_us", Some("0")), change("cores", Some("0,1"))];
        let details = json!({"spin_us": {"from": "50", "to": "0"}});
        let set = store.change_settings(ADMIN, Event::Set, details, &both);
        set.unwrap();
        let reset = [change("cores", None), change("never set", None)];
        let reset = store.change_settings(ADMIN, Event::Reset, json!({}), &reset);
        reset.unwrap();
        let long = "x".repeat(limits::MAX_SETTING_BYTES + 1);
        let half = [change("spin_us", Some("1")), change("cores", Some(&long))];
        let refused = store.change_settings(ADMIN, Event::Set, json!({}), &half);
        let words = "the setting has 4097 bytes; the limit is 4096";
        assert_eq!(refused.unwrap_err().to_string(), words);
        let many: Vec<_> = (0..limits::MAX_SETTINGS)
            .map(|n| change(&format!("s{n}"), Some("1")))
            .collect();
        let refused = store.change_settings(ADMIN, Event::Set, json!({}), &many);
        let words = "there are 64 settings already, which is the limit";
        assert_eq!(refused.unwrap_err().to_string(), words);
    }
    let store = Store::open(state.path()).unwrap();
    let kept: Vec<_> = store.settings().unwrap().into_iter().collect();
    assert_eq!(kept, [("spin_us".to_owned(), "0".to_owned())]);
    let records = store.audit_last(10).unwrap();
    assert_eq!(records.len(), 2, "{records:?}");
    let set = r#""event":"set","details":{"spin_us":{"from":"50","to":"0"}}"#;
    assert!(records[0].contains(set), "{records:?}");
    assert!(records[1].contains(r#""event":"reset""#), "{records:?}");
}

#[test]
fn where_a_tenant_lives_is_kept_until_it_is_reset() {
    let directory = tempfile::tempdir().unwrap();
    {
        let store = Store::open(directory.path()).unwrap();
        let none = store.place(ADMIN, json!({}), "acme", Some(1));
        assert_eq!(none.unwrap_err().cause(), Cause::Missing);
        for tenant in ["acme", "evil"] {
            store.add_tenant(ADMIN, tenant).unwrap();
            let details = json!({"tenant": tenant, "to": 1});
            store.place(ADMIN, details, tenant, Some(1)).unwrap();
        }
        store.place(ADMIN, json!({}), "evil", None).unwrap();
        let last = &store.audit_last(2).unwrap()[0];
        assert!(
            last.contains("tenant-move") && last.contains("evil"),
            "{last}"
        );
    }
    let store = Store::open(directory.path()).unwrap();
    let placements: Vec<_> = store.placements().unwrap().into_iter().collect();
    assert_eq!(placements, [("acme".to_owned(), 1)]);
}

#[test]
fn a_file_from_before_there_were_settings_opens() {
    let state = tempfile::tempdir().unwrap();
    drop(Store::open(state.path()).unwrap());
    {
        let file = redb::Database::open(state.path().join("tollgate.redb")).unwrap();
        let change = file.begin_write().unwrap();
        let settings = TableDefinition::<&str, &str>::new("settings");
        assert!(change.delete_table(settings).unwrap());
        change.commit().unwrap();
    }
    let store = Store::open(state.path()).unwrap();
    assert!(store.settings().unwrap().is_empty());
    let set = [change("spin_us", Some("0"))];
    let set = store.change_settings(ADMIN, Event::Set, json!({}), &set);
    set.unwrap();
    assert_eq!(store.settings().unwrap().len(), 1);
}

// ---- format 1 ----

/// A file as daemons with format 1 made it, with its tables and rows written out here.
fn format_1(state: &Path, token: &str) {
    use sha2::Digest;
    type Place = (&'static str, &'static str, &'static str, u8, &'static str);
    type Row = ([u8; 32], Option<&'static [u8]>);
    const TENANTS: TableDefinition<&str, [u8; 32]> = TableDefinition::new("tenants");
    const TOKENS: TableDefinition<[u8; 32], &str> = TableDefinition::new("tokens");
    const POLICIES: TableDefinition<(&str, &str, u32), Row> = TableDefinition::new("policies");
    const COUNTERS: TableDefinition<(&str, &str), u32> = TableDefinition::new("counters");
    const ATTACHMENTS: TableDefinition<Place, (u64, u32)> = TableDefinition::new("attachments");
    const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
    let digest = |bytes: &[u8]| -> [u8; 32] { sha2::Sha256::digest(bytes).into() };
    let database = redb::Database::create(state.join("tollgate.redb")).unwrap();
    let change = database.begin_write().unwrap();
    {
        let mut meta = change.open_table(META).unwrap();
        meta.insert("format", 1).unwrap();
        meta.insert("sequence", 2).unwrap();
        let token = digest(token.as_bytes());
        change
            .open_table(TENANTS)
            .unwrap()
            .insert("acme", token)
            .unwrap();
        change
            .open_table(TOKENS)
            .unwrap()
            .insert(token, "acme")
            .unwrap();
        let module = digest(b"module");
        change
            .open_table(MODULES)
            .unwrap()
            .insert(module, (2, &b"module"[..]))
            .unwrap();
        let mut policies = change.open_table(POLICIES).unwrap();
        policies.insert(("acme", "acl", 1), (module, None)).unwrap();
        policies
            .insert(("acme", "acl", 2), (module, Some(&b"{}"[..])))
            .unwrap();
        change
            .open_table(COUNTERS)
            .unwrap()
            .insert(("acme", "acl"), 2)
            .unwrap();
        let mut attachments = change.open_table(ATTACHMENTS).unwrap();
        attachments
            .insert(("acme", "b", "M", 1, "acl"), (0, 2))
            .unwrap();
        attachments
            .insert(("acme", "a", "", 0, "acl"), (1, 1))
            .unwrap();
    }
    change.commit().unwrap();
}

#[test]
fn a_file_of_format_1_is_carried_over_as_a_whole() {
    let state = tempfile::tempdir().unwrap();
    format_1(state.path(), "tg_old");
    for opened in 0..2 {
        let store = Store::open(state.path()).unwrap();
        let attachments = store.attachments().unwrap();
        let expected = [
            at("b", "M", Side::Server, "acl@2"),
            at("a", "", Side::Client, "acl@1"),
        ];
        assert_eq!(attachments, expected);
        assert_eq!(
            store.authenticate("tg_old").unwrap(),
            // It gains no right.
            Some(identity("acme", FIRST_CREDENTIAL, Role::Application))
        );
        let second = store.policy(&owner("acme"), &version("acl@2")).unwrap();
        assert_eq!(
            (second.wasm, second.config),
            (b"module".to_vec(), Some(b"{}".to_vec()))
        );
        let log = store.audit_last(10).unwrap();
        assert_eq!(log.len(), 1 + opened, "the carrying over is recorded once");
        assert!(
            log[0].contains(r#""event":"migrated","details":{"from":1,"to":3}"#),
            "{log:?}"
        );
        let pushed = store
            .push_policy(ADMIN, &owner("acme"), "acl", b"module", None)
            .unwrap();
        assert_eq!(pushed.version, 3 + opened as u32);
    }
}

/// Turns a file of this format into one of format 2, with the tables written out here.
fn as_format_2(state: &Path, current: &str, former: &str) {
    use sha2::Digest;
    let digest = |text: &str| -> [u8; 32] { sha2::Sha256::digest(text.as_bytes()).into() };
    let database = redb::Database::open(state.join("tollgate.redb")).unwrap();
    let change = database.begin_write().unwrap();
    {
        for name in ["owners", "credentials", "digests"] {
            let tables = change.list_tables().unwrap();
            let mut found = tables.filter(|table| redb::TableHandle::name(table) == name);
            let found = found.next().unwrap();
            assert!(change.delete_table(found).unwrap());
        }
        const TENANTS: TableDefinition<&str, [u8; 32]> = TableDefinition::new("tenants");
        const TOKENS: TableDefinition<[u8; 32], &str> = TableDefinition::new("tokens");
        const RETIRING: TableDefinition<[u8; 32], (&str, u64)> = TableDefinition::new("retiring");
        const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
        change
            .open_table(META)
            .unwrap()
            .insert("format", 2)
            .unwrap();
        let (current, former) = (digest(current), digest(former));
        let mut tenants = change.open_table(TENANTS).unwrap();
        tenants.insert("acme", current).unwrap();
        let mut tokens = change.open_table(TOKENS).unwrap();
        tokens.insert(current, "acme").unwrap();
        let mut retiring = change.open_table(RETIRING).unwrap();
        retiring.insert(former, ("acme", u64::MAX - 1)).unwrap();
    }
    change.commit().unwrap();
}

#[test]
fn tokens_of_format_2_open_sessions_and_administer_nothing() {
    let state = tempfile::tempdir().unwrap();
    drop(Store::open(state.path()).unwrap());
    as_format_2(state.path(), "tg_current", "tg_former");
    std::fs::remove_file(state.path().join("tollgate.redb.copy")).unwrap();
    let store = Store::open(state.path()).unwrap();
    store.check_invariants();
    for token in ["tg_current", "tg_former"] {
        assert_eq!(
            store.authenticate(token).unwrap(),
            Some(identity("acme", FIRST_CREDENTIAL, Role::Application)),
            "{token}"
        );
    }
    let credentials = store.credentials(&owner("acme")).unwrap();
    assert_eq!(credentials.len(), 1);
    assert!(credentials[0].former_until.is_some() && credentials[0].expires.is_none());
    let rotated = store.rotate_credential(ADMIN, &owner("acme"), FIRST_CREDENTIAL, Duration::ZERO);
    assert!(tenant_of(&store, rotated.unwrap().reveal()).is_some());
    assert_eq!(tenant_of(&store, "tg_current"), None);
    assert_eq!(tenant_of(&store, "tg_former"), None);
    store.check_invariants();
}

/// A tenant's actions on its policies, for the comparison with a plain map.
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
        store.add_tenant(ADMIN, "acme").unwrap();
        let mut last: BTreeMap<u8, u32> = BTreeMap::new();
        let mut attached: BTreeMap<(u8, u8), u32> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Push(policy) => {
                    let pushed = store.push_policy(ADMIN, &owner("acme"), &format!("p{policy}"), &[policy], None).unwrap();
                    *last.entry(policy).or_insert(0) += 1;
                    prop_assert_eq!(pushed.version, last[&policy]);
                }
                Step::Attach(policy, version, service) => {
                    let attachment = at(&format!("s{service}"), "", Side::Client, &format!("p{policy}@{version}"));
                    let exists = last.get(&policy).is_some_and(|last| version <= *last);
                    prop_assert_eq!(put(&store, &attachment).is_ok(), exists);
                    if exists {
                        attached.insert((policy, service), version);
                    }
                }
                Step::Detach(policy) => {
                    let ended = detach(&store, &format!("p{policy}"), &Selection::default()).unwrap_or_default();
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
            .map(|a| (shown(&a), a.target.service))
            .collect();
        found.sort();
        let mut expected: Vec<(String, String)> =
            attached.iter().map(|((p, s), v)| (format!("p{p}@{v}"), format!("s{s}"))).collect();
        expected.sort();
        prop_assert_eq!(found, expected);
    }
}

/// A copy in a file without a name, as a predecessor gives it to its successor.
fn copy_of(store: &Store) -> Store {
    let file = tempfile::tempfile().unwrap();
    store.copy_into(file.try_clone().unwrap()).unwrap();
    Store::of_copy(file).unwrap()
}

fn everything(store: &Store) -> impl PartialEq + std::fmt::Debug {
    (
        store.tenants().unwrap(),
        store.policies().unwrap(),
        store.attachments().unwrap(),
        store
            .policy(&owner("acme"), &version("acl@1"))
            .unwrap()
            .wasm,
    )
}

#[test]
fn a_copy_has_everything_and_changes_once_it_is_the_one() {
    let store = acme();
    put(&store, &at("hotel.Geo", "", Side::Client, "acl@1")).unwrap();
    let spin = [("spin_us".to_owned(), Some("7".to_owned()))];
    let set = store.change_settings(ADMIN, Event::Set, json!({}), &spin);
    set.unwrap();
    let copy = copy_of(&store);
    assert_eq!(everything(&copy), everything(&store));
    assert!(!copy.was_touched());
    let record = copy.record(Actor::Daemon, Event::Fault, json!({}));
    let refused = record.unwrap_err();
    assert_eq!(refused.cause(), Cause::Away, "{refused}");
    assert!(copy.was_touched(), "a record that would be lost is noticed");
    assert!(copy.add_tenant(ADMIN, "other").is_err());
    copy.resume(None).unwrap();
    copy.add_tenant(ADMIN, "other").unwrap();
    let pushed = copy.push_policy(ADMIN, &owner("acme"), "acl", b"module two", None);
    assert_eq!(pushed.unwrap(), version("acl@2"), "versions count on");
}

#[test]
fn a_store_that_is_handed_over_has_one_owner_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let (first, state) = (Store::open(directory.path()).unwrap(), directory.path());
    first.add_tenant(ADMIN, "acme").unwrap();
    first.hold();
    assert_eq!(
        first.add_tenant(ADMIN, "evil").unwrap_err().cause(),
        Cause::Away
    );
    // Events are still recorded.
    first
        .record(Actor::Daemon, Event::Fault, json!({}))
        .unwrap();
    let next = copy_of(&first);
    assert!(next.resume(Some(state)).is_err(), "it has an owner");
    first.let_go();
    assert_eq!(first.tenants().unwrap_err().cause(), Cause::Away);
    next.resume(Some(state)).unwrap();
    next.add_tenant(ADMIN, "b").unwrap();
    assert!(first.resume(Some(state)).is_err(), "it has another owner");
    next.let_go();
    first.resume(Some(state)).unwrap();
    first.add_tenant(ADMIN, "c").unwrap();
    assert_eq!(first.tenants().unwrap(), ["acme", "b", "c"]);
    let verified = first.audit_verification().unwrap().run().unwrap();
    assert_eq!(verified.records, 4, "three tenants and a fault");
}

// ---- approvals ----

fn asked(what: &str) -> NewApproval {
    NewApproval {
        tenant: "acme".to_owned(),
        credential: FIRST_CREDENTIAL.to_owned(),
        token: TokenDigest::of("tg_x"),
        what: json!({"act": what}),
        order: b"order".to_vec(),
    }
}

fn ending(number: u64, state: ApprovalState) -> NewDecision<'static> {
    NewDecision {
        tenant: "acme",
        number,
        state,
        by: "operator",
        reason: None,
    }
}

fn last_event(store: &Store) -> String {
    let line = store.audit_last(1).unwrap().remove(0);
    let record: serde_json::Value = serde_json::from_str(&line).unwrap();
    record["event"].as_str().unwrap().to_owned()
}

#[test]
fn a_request_waits_until_it_is_decided_once() {
    let store = acme();
    assert_eq!(store.ask_approval(ADMIN, &asked("one")).unwrap(), 1);
    assert_eq!(last_event(&store), "approval-request");
    assert_eq!(store.ask_approval(ADMIN, &asked("two")).unwrap(), 2);
    let one = store.approval("acme", 1).unwrap();
    assert_eq!(
        (one.state, one.order.as_slice()),
        (ApprovalState::Waiting, &b"order"[..])
    );
    assert_eq!(one.token, TokenDigest::of("tg_x"));
    assert_eq!(
        one.expires.duration_since(one.asked).unwrap(),
        limits::APPROVAL_LIFE
    );

    let denial = NewDecision {
        reason: Some("not on Fridays"),
        ..ending(1, ApprovalState::Denied)
    };
    store.end_approval(ADMIN, &denial).unwrap();
    assert_eq!(last_event(&store), "approval-deny");
    let again = store.end_approval(ADMIN, &ending(1, ApprovalState::Withdrawn));
    let again = again.unwrap_err();
    assert_eq!(again.cause(), Cause::State);
    assert!(again.to_string().contains("is denied already"), "{again}");
    let one = store.approval("acme", 1).unwrap();
    assert_eq!(one.state, ApprovalState::Denied);
    assert!(one.order.is_empty());
    let decision = one.decision.unwrap();
    assert_eq!(
        (&*decision.by, decision.reason.as_deref()),
        ("operator", Some("not on Fridays"))
    );

    // Attachments and decision are one change.
    let attachment = at("a.B", "", Side::Client, "acl@1");
    let only = std::slice::from_ref(&attachment);
    let refused = store.put_approved(ADMIN, json!({}), &ending(1, ApprovalState::Approved), only);
    assert_eq!(refused.unwrap_err().cause(), Cause::State);
    assert!(store.attachments().unwrap().is_empty());
    store
        .put_approved(ADMIN, json!({}), &ending(2, ApprovalState::Approved), only)
        .unwrap();
    assert_eq!(last_event(&store), "approval-grant");
    assert_eq!(store.attachments().unwrap(), [attachment]);
    assert_eq!(
        store.approval("acme", 2).unwrap().state,
        ApprovalState::Approved
    );

    let (listed, is_cut) = store.approvals(Some("acme")).unwrap();
    assert_eq!((listed.len(), is_cut), (2, false));
    assert!(store.approvals(None).unwrap().0.is_empty(), "none waits");
    assert_eq!(
        store.approvals(Some("evil")).unwrap_err().cause(),
        Cause::Missing
    );
    assert_eq!(
        store.approval("acme", 3).unwrap_err().cause(),
        Cause::Missing
    );
    let long = NewDecision {
        reason: Some(&"x".repeat(limits::MAX_REASON + 1)),
        ..ending(1, ApprovalState::Denied)
    };
    assert_eq!(
        store.end_approval(ADMIN, &long).unwrap_err().cause(),
        Cause::Invalid
    );
    store.check_invariants();
}

#[test]
fn requests_are_bounded_and_their_numbers_are_not_reused() {
    let store = acme();
    for _ in 0..limits::MAX_WAITING {
        store.ask_approval(ADMIN, &asked("x")).unwrap();
    }
    let full = store.ask_approval(ADMIN, &asked("x")).unwrap_err();
    assert_eq!(full.cause(), Cause::Limit);
    assert!(
        full.to_string().contains("16 requests of this tenant"),
        "{full}"
    );
    let first = limits::MAX_WAITING as u64;
    for number in first..first + 2 * limits::MAX_DECIDED as u64 {
        store
            .end_approval(ADMIN, &ending(number, ApprovalState::Withdrawn))
            .unwrap();
        assert_eq!(store.ask_approval(ADMIN, &asked("x")).unwrap(), number + 1);
    }
    let (listed, is_cut) = store.approvals(Some("acme")).unwrap();
    let waiting = |one: &&Approval| one.state == ApprovalState::Waiting;
    assert_eq!(listed.iter().filter(waiting).count(), limits::MAX_WAITING);
    assert_eq!(listed.len(), limits::MAX_WAITING + limits::MAX_DECIDED);
    assert!(!is_cut);
    let large = NewApproval {
        order: vec![0; limits::MAX_APPROVAL_BYTES],
        ..asked("x")
    };
    assert_eq!(
        store.ask_approval(ADMIN, &large).unwrap_err().cause(),
        Cause::Invalid
    );

    // They end with their tenant, and those of others stay.
    store.add_tenant(ADMIN, "acme2").unwrap();
    let other = NewApproval {
        tenant: "acme2".to_owned(),
        ..asked("y")
    };
    store.ask_approval(ADMIN, &other).unwrap();
    assert_eq!(
        store.approvals(None).unwrap().0.len(),
        limits::MAX_WAITING + 1
    );
    store.remove_tenant(ADMIN, "acme").unwrap();
    store.add_tenant(ADMIN, "acme").unwrap();
    assert!(store.approvals(Some("acme")).unwrap().0.is_empty());
    assert_eq!(store.approvals(None).unwrap().0.len(), 1);
    store.check_invariants();
}

#[test]
fn more_requests_than_an_answer_has_are_cut() {
    let store = Store::in_memory().unwrap();
    store.add_tenant(ADMIN, "z").unwrap();
    let first = NewApproval {
        tenant: "z".to_owned(),
        ..asked("first")
    };
    let earlier = SystemTime::now() - Duration::from_secs(1);
    store.ask_approval_at(ADMIN, &first, earlier).unwrap();
    for tenant in 0..=limits::MAX_APPROVALS_SHOWN / limits::MAX_WAITING {
        let tenant = format!("t{tenant}");
        store.add_tenant(ADMIN, &tenant).unwrap();
        for _ in 0..limits::MAX_WAITING {
            let one = NewApproval {
                tenant: tenant.clone(),
                ..asked("x")
            };
            store.ask_approval(ADMIN, &one).unwrap();
        }
    }
    let (listed, is_cut) = store.approvals(None).unwrap();
    assert_eq!((listed.len(), is_cut), (limits::MAX_APPROVALS_SHOWN, true));
    assert_eq!(listed[0].tenant, "z", "the oldest, whoever asked");
}

#[test]
fn a_request_expires_and_survives_a_copy() {
    let store = acme();
    let now = std::time::SystemTime::now();
    let old = now - limits::APPROVAL_LIFE;
    store.ask_approval_at(ADMIN, &asked("old"), old).unwrap();
    store.ask_approval(ADMIN, &asked("new")).unwrap();
    assert_eq!(store.overdue_approvals().unwrap(), [("acme".to_owned(), 1)]);
    let later = now + limits::APPROVAL_LIFE + Duration::from_secs(1);
    assert_eq!(store.overdue_approvals_at(later).unwrap().len(), 2);
    // Also before the daemon has noticed.
    assert_eq!(
        store.approval("acme", 1).unwrap().state,
        ApprovalState::Expired
    );
    for state in [ApprovalState::Approved, ApprovalState::Denied] {
        let refused = store.put_approved(ADMIN, json!({}), &ending(1, state), &[]);
        let refused = refused.unwrap_err();
        assert!(
            refused.to_string().contains("is expired already"),
            "{refused}"
        );
    }
    store
        .end_approval(ADMIN, &ending(1, ApprovalState::Expired))
        .unwrap();
    assert_eq!(last_event(&store), "approval-expire");
    assert!(store.overdue_approvals().unwrap().is_empty());

    let copy = copy_of(&store);
    assert_eq!(
        copy.approvals(Some("acme")).unwrap(),
        store.approvals(Some("acme")).unwrap()
    );
}

// ---- several changes at once ----

/// Everything that is stored, and what this set has applied.
fn all_of(store: &Store, set: &DocumentSet) -> (Snapshot, audit::Head) {
    let all = store.snapshot(None, Some(set)).unwrap();
    (all, store.audit_head())
}

#[test]
fn several_changes_are_made_together_or_not_at_all() {
    let store = acme();
    let tenant = |name: &str| Change::AddTenant {
        tenant: name.to_owned(),
    };
    let credential = |token: u8| Change::SetCredential {
        tenant: "new".to_owned(),
        name: "ci".to_owned(),
        wanted: WantedCredential {
            role: Role::Viewer,
            token: Some(TokenDigest::from_bytes([token; 32])),
            expires: None,
        },
    };
    let push = |number: u32| Change::Push {
        owner: owner("new"),
        policy: PolicyVersion {
            name: "acl".to_owned(),
            version: number,
        },
        module: Hashed::of(b"module".as_slice()),
        config: None,
    };
    let set = DocumentSet {
        by: None,
        name: "web".to_owned(),
    };
    let applied = Change::Applied {
        set: set.clone(),
        added: vec![("new".to_owned(), "tenant".to_owned())],
        removed: Vec::new(),
    };
    let good = [tenant("new"), credential(1), push(3), push(5), applied];
    let before = all_of(&store, &set);
    let removed = Change::RemoveTenant {
        tenant: "nobody".to_owned(),
    };
    for wrong in [removed, push(5), push(4), tenant("new"), tenant("A")] {
        let changes = [&good[..], &[wrong]].concat();
        store.change_all(&ADMIN, &changes).unwrap_err();
        assert_eq!(all_of(&store, &set), before);
        store.check_invariants();
    }
    store.try_all(&good).unwrap();
    assert_eq!(all_of(&store, &set), before, "a try changes nothing");
    store.change_all(&ADMIN, &good).unwrap();
    store.check_invariants();
    let found = store.snapshot(None, Some(&set)).unwrap();
    assert_eq!(found.applied.len(), 1);
    let versions = store.policies_of(&owner("new")).unwrap();
    let versions: Vec<_> = versions.iter().map(|info| info.policy.version).collect();
    assert_eq!(versions, [3, 5]);
    // Four of the five have a record.
    assert_eq!(store.audit_head().seq, before.1.seq + 4);
    // A part is what the whole has of it.
    let part = store.snapshot(Some(&[owner("new")].into()), None).unwrap();
    assert!(part.tenants.contains("new") && !part.tenants.contains("acme"));
    assert_eq!(part.policies, store.policies_of(&owner("new")).unwrap());
    // A credential changes and keeps its token.
    let later = std::time::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    let changed = Change::SetCredential {
        tenant: "new".to_owned(),
        name: "ci".to_owned(),
        wanted: WantedCredential {
            role: Role::Owner,
            token: None,
            expires: Some(later),
        },
    };
    store.change_all(&ADMIN, &[changed]).unwrap();
    store.check_invariants();
    let token = TokenDigest::from_bytes([1; 32]);
    let found = store.identity_of(&token).unwrap().unwrap();
    assert_eq!((found.credential.as_str(), found.role), ("ci", Role::Owner));
    // A tenant ends, and the set forgets it.
    store.remove_tenant(ADMIN, "new").unwrap();
    let found = store.snapshot(None, Some(&set)).unwrap();
    assert!(found.applied.is_empty());
    store.check_invariants();
}

#[test]
fn a_credential_that_documents_change_keeps_the_grace_of_its_former_token() {
    let store = acme();
    let of = owner("acme");
    let day = Duration::from_secs(86_400);
    let first = store
        .add_credential(ADMIN, &of, "ci", Role::Viewer, None)
        .unwrap();
    let second = store.rotate_credential(ADMIN, &of, "ci", day).unwrap();
    let set = |role, token, expires| Change::SetCredential {
        tenant: "acme".to_owned(),
        name: "ci".to_owned(),
        wanted: WantedCredential {
            role,
            token,
            expires,
        },
    };
    let role_of = |token: &Token| {
        let found = store.identity_of(&token.digest()).unwrap();
        found.map(|found| found.role)
    };
    let until = || {
        let found = store.credentials(&of).unwrap();
        let ci = found.iter().find(|its| its.name == "ci").unwrap();
        ci.former_until
    };
    let grace = until().unwrap();
    let change = |one| {
        store.change_all(&ADMIN, &[one]).unwrap();
        store.check_invariants();
    };
    // Without a token in the documents, and with the one that it has.
    for (role, token) in [(Role::Owner, None), (Role::Viewer, Some(second.digest()))] {
        change(set(role, token, None));
        assert_eq!(role_of(&first), Some(role), "the former token");
        assert_eq!(role_of(&second), Some(role));
        assert_eq!(until(), Some(grace));
    }
    // A later end lengthens no grace, and an earlier one shortens it.
    let now = std::time::SystemTime::now();
    change(set(Role::Viewer, None, Some(now + day * 9)));
    assert_eq!(until(), Some(grace));
    change(set(Role::Viewer, None, Some(now + day / 2)));
    assert!(until().unwrap() < grace);
    assert_eq!(role_of(&first), Some(Role::Viewer));
    // Another token ends both.
    let third = TokenDigest::from_bytes([3; 32]);
    change(set(Role::Viewer, Some(third), None));
    assert_eq!((role_of(&first), role_of(&second)), (None, None));
    assert_eq!(until(), None);
}

#[test]
fn sets_of_documents_and_their_objects_have_limits() {
    let store = acme();
    let applied = |set: &str, count: usize| Change::Applied {
        set: DocumentSet {
            by: Some("acme".to_owned()),
            name: set.to_owned(),
        },
        added: (0..count)
            .map(|k| ("acme".to_owned(), format!("policy p@{k}")))
            .collect(),
        removed: Vec::new(),
    };
    let record = || Change::Record {
        event: Event::Apply,
        details: json!({}),
    };
    let make = |change: Change| store.change_all(&ADMIN, &[record(), change]);
    make(applied("one", limits::MAX_APPLIED)).unwrap();
    let refused = make(applied("two", 1)).unwrap_err();
    assert_eq!(refused.cause(), Cause::Limit, "{refused}");
    make(applied("Two", 0)).unwrap_err();
    let many = vec![record(); limits::MAX_CHANGES + 1];
    let refused = store.change_all(&ADMIN, &many).unwrap_err();
    assert!(refused.to_string().contains("40001 changes"), "{refused}");
}

#[test]
fn an_attachment_is_for_the_callers_that_it_lists() {
    let known = |name: &str| match name {
        "application" => Some("web"),
        "uid" => Some("7"),
        _ => None,
    };
    let listed = |callers: &[&str]| Options {
        callers: Some(callers.iter().map(|caller| (*caller).to_owned()).collect()),
        ..Options::default()
    };
    assert!(Options::default().are_for(known));
    for (callers, is) in [
        (&["application=web"][..], true),
        (&["application=batch"], false),
        (&["application=batch", "application=web"], true),
        (&["application=web", "uid=7"], true),
        (&["application=web", "uid=8", "uid=7"], true),
        (&["application=web", "uid=8"], false),
        // Who is unknown avoids nothing.
        (&["gid=7"], true),
        (&["gid=7", "uid=8"], false),
    ] {
        assert_eq!(listed(callers).are_for(known), is, "{callers:?}");
        assert!(listed(callers).are_for(|_| None), "{callers:?}");
    }
    let check = |side, callers: &[&str]| {
        let mut attachment = at("a.B", "", side, "acl@1");
        attachment.options = listed(callers);
        attachment.check()
    };
    assert!(
        check(
            Side::Client,
            &["application=web", "uid=0", "gid=4294967295"]
        )
        .is_ok()
    );
    assert!(check(Side::Server, &["application=web"]).is_err());
    for wrong in [
        "",
        "=",
        "web",
        "pid=1",
        "uid=",
        "uid=07",
        "uid=4294967296",
        "application=A",
        "tenant=acme",
    ] {
        assert!(check(Side::Client, &[wrong]).is_err(), "{wrong}");
    }
    let many: Vec<String> = (0..=limits::MAX_GRANTS)
        .map(|n| format!("uid={n}"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(
        check(Side::Client, &many).unwrap_err().cause(),
        Cause::Invalid
    );
}

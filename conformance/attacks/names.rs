//! Names that are none, in every request of the API that has a name: separators, wildcards,
//! names that look like another tenant's, control characters, and a lot of text.
//!
//! The requests are made from the API's own definition, so a new one is attacked, too.

use std::collections::BTreeSet;

use prost_reflect::{FieldDescriptor, Kind, Value};
use tollgate_admin::MAX_STATUS_BYTES;
use tollgate_admin::proto::ListPoliciesRequest;
use tollgate_conformance::testbed::Testbed;
use tollgate_shm_abi::status::Code;

use crate::measure::{Limit, measured, say, together};
use crate::requests::{Request, all_of, client, kinds, put, send};

/// Tenants that attack at once: each has a pace.
const TENANTS: usize = 6;

/// The names. `evil` is the tenant that they are after.
fn names() -> Vec<String> {
    let names = [
        "../evil",
        "evil/p",
        "p@1",
        "*",
        "ev\u{456}l",
        "evil\u{200b}",
        "evil\0",
        "p\nevil",
        "\u{202e}live",
        "EVIL",
        "evil ",
        "{evil}",
    ];
    let mut names: Vec<_> = names.map(str::to_owned).into();
    names.push("a".repeat(10 << 10));
    names
}

/// Fields that are names, of whatever.
fn is_name(field: &FieldDescriptor) -> bool {
    let is_one = matches!(
        field.name(),
        "tenant" | "name" | "names" | "service" | "method" | "key" | "set" | "id"
    );
    is_one && field.kind() == Kind::String
}

/// Whether a name is a good one there: that of a service or a method.
fn is_identifier(path: &[String], name: &str) -> bool {
    let is_method = path
        .last()
        .is_some_and(|field| field == "service" || field == "method");
    is_method && name.len() < 128 && name.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// A name somewhere in a request.
struct Attempt {
    method: &'static str,
    path: Vec<String>,
    name: String,
    request: Request,
}

/// All names, everywhere.
fn attempts() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for kind in kinds() {
        for path in kind.paths(is_name) {
            for name in names() {
                if is_identifier(&path, &name) {
                    continue;
                }
                let mut message = kind.plausible();
                put(&mut message, &path, &Value::String(name.clone()));
                attempts.push(Attempt {
                    method: kind.method,
                    path: path.clone(),
                    name,
                    request: kind.request(&message),
                });
            }
        }
    }
    attempts
}

#[test]
fn names_that_are_none_are_refused_in_every_request_and_reach_no_other_tenant() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let own = |tenant: &str| {
        let token = daemon.tenant(tenant);
        daemon.push(&format!("--tenant {tenant}"), "null", "p", None);
        daemon.ok(&format!(
            "policy attach p@1 --tenant {tenant} --service hotel.Echo --side client"
        ));
        token
    };
    own("evil");
    daemon.ok("ceiling set changes_per_hour=72000");
    let tokens: Vec<_> = (0..TENANTS).map(|n| own(&format!("acme{n}"))).collect();
    let before = all_of(&daemon, "evil");
    let mut shares: Vec<Vec<Attempt>> = (0..TENANTS).map(|_| Vec::new()).collect();
    let attempts = attempts();
    let (count, kinds) = (attempts.len(), attempts.iter());
    let kinds: BTreeSet<_> = kinds.map(|one| (one.method, one.path.clone())).collect();
    for (n, attempt) in attempts.into_iter().enumerate() {
        shares[n % TENANTS].push(attempt);
    }
    let mut found = BTreeSet::new();
    std::thread::scope(|scope| {
        let attacking: Vec<_> = (shares.into_iter().zip(&tokens))
            .map(|(share, token)| {
                let client = client(&daemon, token);
                scope.spawn(move || {
                    let mut accepted = BTreeSet::new();
                    for Attempt {
                        method,
                        path,
                        name,
                        request,
                    } in share
                    {
                        let place = format!("{method} {}", path.join("."));
                        let Err(refused) = send(&client, request) else {
                            accepted.insert((place, name.chars().take(16).collect::<String>()));
                            continue;
                        };
                        let text = &refused.message;
                        let is_plain =
                            |c: char| !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c);
                        assert!(text.len() <= MAX_STATUS_BYTES + 16, "{place}: {text}");
                        assert!(text.chars().all(is_plain), "{place}: {text}");
                        assert!(!text.is_empty(), "{place}: {refused:?}");
                        let code = refused.code;
                        let expected = [
                            Code::INVALID_ARGUMENT,
                            Code::NOT_FOUND,
                            Code::PERMISSION_DENIED,
                            Code::FAILED_PRECONDITION,
                        ];
                        assert!(expected.contains(&code), "{place} {name:?}: {refused}");
                    }
                    accepted
                })
            })
            .collect();
        for thread in attacking {
            found.extend(thread.join().unwrap());
        }
    });
    say(&format!(
        "{count} requests with names that are none, in {} fields",
        kinds.len()
    ));
    assert_eq!(found, BTreeSet::new(), "these weren't refused");
    measured(
        "requests with a name that is none which weren't refused",
        found.len() as f64,
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
    assert_eq!(all_of(&daemon, "evil"), before, "nothing reached it");
    for token in &tokens {
        let listed = client(&daemon, token).ask(ListPoliciesRequest::default());
        listed.unwrap();
    }
}

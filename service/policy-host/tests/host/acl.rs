//! The block list against a `HashSet`.

use std::collections::HashSet;
use std::convert::Infallible;

use proptest::prelude::*;
use tollgate_policy_host::{Hook, Instance, Verdict};

use crate::guests::{guest, limits, view, write};

fn acl(blocked: &[String]) -> Instance {
    let config = serde_json::json!({ "blocked": blocked }).to_string();
    guest("acl")
        .instantiate(&limits(), Some(config.as_bytes()))
        .unwrap()
}

fn is_denied(acl: &mut Instance, name: &str) -> bool {
    let view = view(&[name]);
    let verdict = acl
        .judge::<Infallible>(Hook::Request, 0, view.len(), write(&view))
        .unwrap();
    let denial = Verdict::Deny {
        code: 7,
        message: "customer is on the block list".to_owned(),
    };
    assert!(
        verdict == Verdict::Allow || verdict == denial,
        "{verdict:?}"
    );
    verdict != Verdict::Allow
}

#[test]
fn an_absent_name_is_an_empty_one() {
    let mut absent = view(&[""]);
    absent[8..].fill(0);
    for (blocked, expected) in [
        (vec!["x".to_owned()], Verdict::Allow),
        (vec![String::new()], denial()),
    ] {
        let verdict = acl(&blocked).judge(Hook::Request, 0, absent.len(), write(&absent));
        assert_eq!(verdict, Ok(expected));
    }
}

fn denial() -> Verdict {
    Verdict::Deny {
        code: 7,
        message: "customer is on the block list".to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_thousand_names_agree_with_a_set(
        blocked in proptest::collection::vec("[a-c]{0,6}|\\PC{0,40}", 1000),
        others in proptest::collection::vec("[a-c]{0,6}|\\PC{0,40}", 200),
    ) {
        let oracle: HashSet<&String> = blocked.iter().collect();
        let mut acl = acl(&blocked);
        for name in blocked.iter().chain(&others) {
            prop_assert_eq!(is_denied(&mut acl, name), oracle.contains(name), "{:?}", name);
        }
    }
}

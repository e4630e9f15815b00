//! The block list against a `HashSet`.

use std::collections::HashSet;
use std::convert::Infallible;

use proptest::prelude::*;
use tollgate_policy_host::{EvaluateError, Hook, Instance, Verdict};

use crate::guests::{guest, limits, setup, view, write};

fn acl(blocked: &[String]) -> Instance {
    let config = serde_json::json!({ "blocked": blocked }).to_string();
    guest("hotel_acl")
        .instantiate(&setup(&limits(), Some(config.as_bytes())))
        .unwrap()
}

fn is_denied(acl: &mut Instance, name: &str) -> bool {
    let view = view(&[name]);
    let verdict = acl
        .evaluate::<Infallible>(Hook::Request, 0, view.len(), write(&view))
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

/// The list can't evaluate a name that it isn't shown, so no call passes.
#[test]
fn a_withheld_name_ends_the_instance() {
    let mut withheld = view(&[""]);
    withheld[8..].fill(0);
    let mut acl = acl(&["x".to_owned()]);
    let verdict = acl.evaluate(Hook::Request, 0, withheld.len(), write(&withheld));
    assert!(
        matches!(verdict, Err(EvaluateError::Fault(_))),
        "{verdict:?}"
    );
    let (log, _) = acl.take_log();
    let reason = "this policy needs the field `customer_name`, which it isn't allowed to see";
    assert!(log[0].text.contains(reason), "{log:?}");
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

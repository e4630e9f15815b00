//! Lets every call pass, and sees nothing of it: what a policy costs before it does anything.

#![forbid(unsafe_code)]

use tollgate_policy::{Call, Policy, Verdict};

/// No state.
pub struct Null;

impl Policy for Null {
    fn configure(_config: &[u8]) -> Result<Null, String> {
        Ok(Null)
    }

    fn request(&mut self, _call: &Call<'_>) -> Verdict<'_> {
        Verdict::Allow
    }
}

tollgate_policy::policy!(
    Null,
    r#"{ "abi": 1, "name": "null", "hooks": ["request"], "methods": [{ "method": "*" }] }"#
);

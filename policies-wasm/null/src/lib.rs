//! Lets every call pass and reads nothing: it measures the minimum cost of a policy.

#![forbid(unsafe_code)]

use tollgate_policy::{Call, Verdict, policy};

/// No state.
#[derive(Default)]
pub struct Null;

#[policy(name = "null")]
impl Null {
    #[request("*")]
    fn any(&mut self, _call: &Call<'_>) -> Verdict<'_> {
        Verdict::Allow
    }
}

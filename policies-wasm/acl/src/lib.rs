//! Denies reservations for customers on a block list.
//!
//! Configuration: `{ "blocked": ["name", ...], "message": "what the caller is told" }`, the message optional.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::{Call, Counter, NameSet, Policy, Status, Verdict};

const DENIED: Counter = Counter(0);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    blocked: Vec<String>,
    #[serde(default = "default_message")]
    message: String,
}

fn default_message() -> String {
    "customer is on the block list".to_owned()
}

/// The block list.
pub struct Acl {
    blocked: NameSet,
    message: String,
}

impl Policy for Acl {
    fn configure(config: &[u8]) -> Result<Acl, String> {
        let config: Config = serde_json::from_slice(config).map_err(|e| e.to_string())?;
        Ok(Acl {
            blocked: config.blocked.iter().collect(),
            message: config.message,
        })
    }

    fn request(&mut self, call: &Call<'_>) -> Verdict<'_> {
        let customer_name = call.bytes(0).unwrap_or_default();
        if self.blocked.contains(customer_name) {
            DENIED.add(1);
            return Verdict::deny(Status::PERMISSION_DENIED, &self.message);
        }
        Verdict::Allow
    }
}

tollgate_policy::policy!(
    Acl,
    r#"{
        "abi": 1, "name": "acl", "version": "1.0", "hooks": ["request"], "counters": ["denied"],
        "methods": [{ "method": "hotel.Reservation/Reserve", "fields": ["customer_name"] }]
    }"#
);

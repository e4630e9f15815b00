//! Denies reservations for customers on a block list. For tests and measurements.
//!
//! Its manifest names the schema's field, as that of a policy that tenants write for their own
//! service does. The catalogue's `acl` takes any field from its configuration.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::{NameSet, Status, Verdict, json_object, policy};

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

#[policy(
    name = "acl",
    version = "1.0",
    proto = "../../conformance/proto/hotel.proto",
    counters(denied)
)]
impl Acl {
    fn configure(config: &[u8]) -> Result<Acl, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        Ok(Acl {
            blocked: config.blocked.iter().collect(),
            message: config.message,
        })
    }

    #[request("hotel.Reservation/Reserve", reads(customer_name))]
    fn reserve(&mut self, request: &Reserve<'_>) -> Verdict<'_> {
        if self.blocked.contains(request.customer_name_bytes()) {
            DENIED.add(1);
            return Verdict::deny(Status::PERMISSION_DENIED, &self.message);
        }
        Verdict::Allow
    }
}

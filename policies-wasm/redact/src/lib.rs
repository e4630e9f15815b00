//! Hides data that the server doesn't need: masks customers' names and removes coupons.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::{Verdict, json_object, policy};

/// The changes to requests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redact {
    /// The number of characters of the name that stay; the others become `*`. Without it names are
    /// unchanged.
    keep_of_name: Option<usize>,
    #[serde(default)]
    remove_coupon: bool,
}

#[policy(
    name = "redact",
    version = "1.0",
    proto = "../../conformance/proto/hotel.proto",
    counters(names, coupons)
)]
impl Redact {
    fn configure(config: &[u8]) -> Result<Redact, String> {
        let redact: Redact =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if redact.keep_of_name.is_none() && !redact.remove_coupon {
            return Err(
                "there is nothing to redact: set keep_of_name, remove_coupon or both".to_owned(),
            );
        }
        Ok(redact)
    }

    #[request(
        "hotel.Reservation/Reserve",
        reads(customer_name, coupon),
        changes(customer_name, coupon)
    )]
    fn reserve(&mut self, request: &mut Reserve<'_>) -> Verdict<'_> {
        if let Some(keep) = self.keep_of_name {
            let name = request.customer_name();
            let masked = mask(name, keep);
            if masked != name {
                request.set_customer_name(&masked);
                NAMES.add(1);
            }
        }
        if self.remove_coupon && request.coupon_bytes().is_some() {
            request.clear_coupon();
            COUPONS.add(1);
        }
        Verdict::Allow
    }
}

fn mask(name: &str, keep: usize) -> String {
    let masked = name.chars().enumerate();
    masked
        .map(|(at, c)| if at < keep { c } else { '*' })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Answer, Changed, Desk, Field, counter};

    fn ask(config: &str, name: &str, coupon: Field<'_>) -> Answer {
        let mut desk = Desk::<Redact>::new(config).unwrap();
        let fields = [("customer_name", Field::Text(name)), ("coupon", coupon)];
        desk.request("hotel.Reservation/Reserve", &fields)
    }

    #[test]
    fn names_are_masked_by_the_character() {
        let masked = |name: &str| match ask(r#"{"keep_of_name": 2}"#, name, Field::Text("SPRING")) {
            Answer::Change(changes) => changes,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            masked("Zoë"),
            [("customer_name", Changed::Text("Zo*".to_owned()))]
        );
        assert_eq!(
            masked("Ada Lovelace"),
            [("customer_name", Changed::Text("Ad**********".to_owned()))]
        );
        assert_eq!(
            ask(r#"{"keep_of_name": 2}"#, "Bo", Field::Absent),
            Answer::Allow
        );
    }

    #[test]
    fn coupons_are_removed_where_they_are() {
        let config = r#"{"remove_coupon": true}"#;
        assert_eq!(ask(config, "Ada", Field::Absent), Answer::Allow);
        let removed = Answer::Change(vec![("coupon", Changed::Clear)]);
        assert_eq!(ask(config, "Ada", Field::Text("")), removed);
        assert_eq!((counter(0), counter(1)), (0, 1));
    }
}

//! The macro's errors, with their messages, and the manifests that it writes.
//! `guest-sdk/tests/typed.rs` tests that its code compiles and works.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use proc_macro2::TokenStream;
use quote::quote;

use crate::expand;

const RESERVE: &str = r#"#[request("hotel.Reservation/Reserve", reads(customer_name))]"#;

fn expand(arguments: TokenStream, block: &str) -> Result<String, String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    let block: TokenStream = block.parse().unwrap();
    expand::policy(arguments, block, &directory)
        .map(|code| code.to_string())
        .map_err(|error| error.to_string())
}

/// The error for a policy with this attribute on its one hook.
fn refusal(attribute: &str) -> String {
    let block =
        format!("impl P {{ {attribute} fn f(&mut self, v: &mut V<'_>) -> Verdict<'_> {{}} }}");
    expand(quote!(name = "p", proto = "hotel.proto"), &block).unwrap_err()
}

#[test]
fn a_wrong_name_is_an_error_that_names_it_and_what_there_is() {
    for (attribute, expected) in [
        (
            r#"#[request("*", metadata("X-User"))]"#,
            "\"X-User\" is not a metadata key; a key is 1 to 128 of a-z 0-9 - _ .",
        ),
        (
            r#"#[request("*", metadata_changes("grpc-timeout"))]"#,
            "\"grpc-timeout\" is reserved for the daemon, like all keys that begin with grpc- or tollgate-",
        ),
        (
            r#"#[request("*", metadata(":user"))]"#,
            "\":user\" is no attribute of a caller; there are :application :gid :pid :side :tenant :uid",
        ),
        (
            r#"#[request("*", metadata_changes("a", ":uid"))]"#,
            "\":uid\" can't be changed: it is what the daemon knows of the caller",
        ),
        (
            r#"#[request("*", metadata("a", "b", "a"))]"#,
            "\"a\" is listed twice",
        ),
        (
            r#"#[request("*", metadata(*, "a"))]"#,
            "`*` must be the only entry",
        ),
        (
            r#"#[request("*", metadata("a-b", "a.b"))]"#,
            "two fields or metadata keys of `V` would have the same getter `metadata_a_b()`",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", reads(custmer_name))]"#,
            "message hotel.ReserveRequest has no field `custmer_name`; did you mean `customer_name`? It has customer_name, \
             hotel_ids, stay, room_count, coupon",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", reads(stay.arrival))]"#,
            "message hotel.Stay has no field `arrival`; it has in_date, out_date",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", changes(cupon))]"#,
            "message hotel.ReserveRequest has no field `cupon`; did you mean `coupon`? It has customer_name, hotel_ids, stay, \
             room_count, coupon",
        ),
        (
            r#"#[reply("hotel.Reservation/Reserve", reads(customer_name))]"#,
            "message hotel.ReserveReply has no field `customer_name`; it has reservation_id, hotel_ids",
        ),
        (
            r#"#[request("hotel.Reservation/Reserv", reads(customer_name))]"#,
            "service hotel.Reservation has no method `Reserv`; did you mean `Reserve`? It has Reserve, CheckAvailability",
        ),
        (
            r#"#[request("hotel.Booking/Reserve", reads(customer_name))]"#,
            "the schema has no service \"hotel.Booking\"; it has hotel.Reservation, hotel.Echo",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", reads(hotel_ids))]"#,
            "hotel.ReserveRequest.hotel_ids is repeated or a map; a policy can only read singular fields",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", reads(stay))]"#,
            "hotel.ReserveRequest.stay is a message; name one of its fields, such as stay.in_date",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", reads(coupon.code))]"#,
            "hotel.ReserveRequest.coupon is not a message, so it has no fields",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", reads(coupon, coupon))]"#,
            "`coupon` is listed twice",
        ),
        (
            r#"#[request("hotel.Reservation/*", reads(coupon))]"#,
            "hotel.Reservation/* has no fields: only an exact method has a known message",
        ),
        (
            r#"#[request("Reserve")]"#,
            "\"Reserve\" is not a method; write package.Service/Method, package.Service/* or *",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", "hotel.Echo/Echo", reads(customer_name))]"#,
            "message hotel.EchoMessage has no field `customer_name`; it has payload",
        ),
        (
            r#"#[request("*", reads(*, coupon))]"#,
            "`*` must be the only entry",
        ),
        (
            r#"#[request("*", reads(config(keys), coupon))]"#,
            "fields come before the lists of the configuration",
        ),
        (
            r#"#[request("*", reads(list(keys)))]"#,
            "`list(..)` is unknown; a list of the configuration is config(name)",
        ),
        (
            r#"#[request("*", reads(config(keys), config(keys)))]"#,
            "`keys` is listed twice",
        ),
        (
            r#"#[request("*", reads(config(absent)))]"#,
            "`absent` is a key of the configuration that the daemon itself reads",
        ),
        (
            r#"#[request("*", reads(config(keys: text)))]"#,
            "there is no type `text`; there are bool, int, uint, float, double, string, bytes, enum",
        ),
        (
            r#"#[request("*", reads(config(keys)))]"#,
            "the configuration has lists of fields: write `fn lists(&self) -> Lists`, which returns their lengths",
        ),
        (
            r#"#[request("hotel.Reservation/Reserve", raeds(coupon))]"#,
            "`raeds` is unknown; a hook has methods as strings, reads(..), changes(..), metadata(..) and metadata_changes(..)",
        ),
    ] {
        assert_eq!(refusal(attribute), expected, "{attribute}");
    }
}

#[test]
fn functions_that_do_not_fit_are_refused() {
    let all = quote!(name = "p", proto = "hotel.proto");
    let change = r#"#[request("hotel.Reservation/Reserve", changes(coupon))]"#;
    for (arguments, block, expected) in [
        (
            quote!(proto = "hotel.proto"),
            "impl P {}",
            "set name = \"...\" in #[policy(..)]",
        ),
        (
            all.clone(),
            "impl P {}",
            "there is no hook: put #[request(\"package.Service/Method\")] or #[reply(..)] on a function",
        ),
        (
            quote!(name = "p", counter(denied)),
            "impl P {}",
            "`counter` is unknown; the arguments are name, version, proto, includes, counters, gauges, histograms, capabilities, \
             tick_ms, state_version and stateless_replies",
        ),
        (
            quote!(name = "p", name = "q"),
            "impl P {}",
            "`name` is set twice",
        ),
        (
            quote!(name = "p"),
            &format!("impl P {{ {RESERVE} fn f(&self, v: &V) {{}} }}"),
            "fields need a schema: set proto = \"file.proto\" in #[policy(..)]",
        ),
        (
            all.clone(),
            &format!("impl P {{ {RESERVE} fn f(&self) {{}} }}"),
            "a hook is fn(&mut self, &View<'_>) -> Verdict<'_>, with a name of your choice for View, or with Call",
        ),
        (
            all.clone(),
            &format!("impl P {{ {change} fn f(&mut self, v: &V<'_>) {{}} }}"),
            "fn f changes fields: take &mut of its own view type",
        ),
        (
            all.clone(),
            &format!(
                "impl P {{ {RESERVE} fn f(&mut self, v: &V<'_>) {{}} {RESERVE} fn g(&mut self, v: &V<'_>) {{}} }}"
            ),
            "two functions have a hook for hotel.Reservation/Reserve",
        ),
        (
            all.clone(),
            &format!(
                "impl P {{ {RESERVE} fn f(&mut self, v: &V<'_>) {{}} #[reply(\"hotel.Echo/Echo\", reads(payload))] fn g(&mut self, v: &V<'_>) {{}} }}"
            ),
            "`V` has different fields in another function; choose another name",
        ),
        (
            all.clone(),
            &format!(
                "impl P {{ {RESERVE} fn f(&mut self, v: &V<'_>) {{}} fn tick(&mut self) {{}} }}"
            ),
            "`fn tick` exists: set tick_ms = ... in #[policy(..)]",
        ),
        (
            quote!(name = "p", state_version = 2),
            "impl P { #[request(\"*\")] fn f(&mut self, c: &Call<'_>) {} fn save(&mut self) {} }",
            "state_version is set, but `fn restore` doesn't exist",
        ),
        (
            quote!(name = "p"),
            "impl P { #[request(\"*\", reads(config(keys)))] fn f(&mut self, c: &Call<'_>) {} fn lists(&self) -> Lists {} }",
            "fn f has fields of the configuration: take its own view type",
        ),
        (
            quote!(name = "p"),
            "impl P { #[request(\"*\", changes(*))] fn f(&mut self, v: &V<'_>) {} fn lists(&self) -> Lists {} }",
            "fn f changes fields: take &mut of its own view type",
        ),
        (
            quote!(name = "p"),
            "impl P { #[request(\"*\")] fn f(&mut self, c: &Call<'_>) {} fn lists(&self) -> Lists {} }",
            "`fn lists` exists, but no hook has a list of the configuration: use reads(config(name)) or changes(config(name))",
        ),
        (
            all.clone(),
            "impl P { #[request(\"hotel.Reservation/Reserve\", reads(coupon, config(coupon)))] fn f(&mut self, v: &V<'_>) {} \
             fn lists(&self) -> Lists {} }",
            "a field or metadata key, and a list, of `V` would have the same getter `coupon()`",
        ),
        (
            quote!(name = "p", stateless_replies = true),
            "impl P { #[reply(\"*\")] fn f(&mut self, c: &Call<'_>) {} }",
            "stateless_replies needs a state: set state_version = ... in #[policy(..)], too",
        ),
    ] {
        assert_eq!(expand(arguments, block).unwrap_err(), expected);
    }
    let missing = expand(
        quote!(name = "p", proto = "motel.proto"),
        &format!("impl P {{ {RESERVE} fn f(&self, v: &V) {{}} }}"),
    );
    let missing = missing.unwrap_err();
    assert!(missing.contains("motel.proto"), "{missing}");
}

#[test]
fn the_manifest_is_what_the_functions_say() {
    let block = r#"impl P {
        #[request("hotel.Reservation/Reserve", reads(customer_name, stay.in_date), changes(coupon))]
        fn f(&mut self, v: &mut V<'_>) -> Verdict<'_> {}
        #[reply("hotel.Reservation/Reserve", reads(reservation_id))]
        fn g(&mut self, v: &W<'_>) -> Verdict<'_> {}
        #[request("hotel.Reservation/*", "*")]
        fn h(&mut self, c: &Call<'_>) -> Verdict<'_> {}
        fn tick(&mut self) {}
        fn save(&mut self) -> Vec<u8> {}
        fn restore(&mut self, version: u32, state: &[u8]) -> Result<(), String> {}
    }"#;
    let arguments = quote!(
        name = "p",
        version = "2.0",
        proto = "hotel.proto",
        counters(a, b),
        histograms(c),
        capabilities(state, clock),
        tick_ms = 500,
        state_version = 3,
        stateless_replies = true
    );
    let manifest = manifest(&expand(arguments, block).unwrap());
    assert_eq!(
        manifest,
        serde_json::json!({
            "abi": 1, "name": "p", "version": "2.0", "hooks": ["request", "reply", "tick"], "tick_ms": 500,
            "methods": [
                {
                    "method": "hotel.Reservation/Reserve",
                    "fields": ["customer_name", "stay.in_date"], "changes": ["coupon"],
                    "reply_fields": ["reservation_id"]
                },
                { "method": "hotel.Reservation/*" },
                { "method": "*" }
            ],
            "counters": ["a", "b"], "histograms": ["c"], "capabilities": ["state", "clock", "change"],
            "state": { "version": 3, "stateless_replies": true }
        })
    );
}

/// The manifest in the code.
fn manifest(code: &str) -> serde_json::Value {
    let literal = code.split("export ! (P , ").nth(1).unwrap();
    let literal = literal.split(") ;").next().unwrap();
    let manifest: syn::LitStr = syn::parse_str(literal).unwrap();
    serde_json::from_str(&manifest.value()).unwrap()
}

#[test]
fn lists_of_the_configuration_follow_the_fields() {
    let block = r#"impl P {
        #[request("hotel.Reservation/Reserve", reads(coupon, config(keys: string, int), config(rest)), changes(config(rest)))]
        fn f(&mut self, v: &mut V<'_>) -> Verdict<'_> {}
        #[request("*", reads(*))]
        fn g(&mut self, v: &W<'_>) -> Verdict<'_> {}
        #[reply("*", reads(*), changes(*))]
        fn h(&mut self, v: &mut X<'_>) -> Verdict<'_> {}
        fn lists(&self) -> Lists {}
    }"#;
    let code = expand(quote!(name = "p", proto = "hotel.proto"), block).unwrap();
    assert_eq!(
        manifest(&code)["methods"],
        serde_json::json!([
            {
                "method": "hotel.Reservation/Reserve",
                "fields": ["coupon", {"config": "keys", "types": ["string", "int"]}, {"config": "rest"}],
                "changes": [{"config": "rest"}]
            },
            {
                "method": "*",
                "fields": [{"config": "fields"}],
                "reply_fields": [{"config": "reply_fields"}], "reply_changes": [{"config": "reply_changes"}]
            }
        ])
    );
    assert_eq!(
        manifest(&code)["capabilities"],
        serde_json::json!(["change"])
    );
}

//! Policies that take their fields from their configuration, in a daemon: refusals when they are
//! pushed, attached, or when an application binds; the answers of `explain`, `show` and `diff`;
//! grants and ceilings; trials of versions with other fields.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use serde_json::{Value, json};
use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{Daemon, Outcome, Testbed, catalogue_file};

const PLACE: &str = "shop.Orders/Place";
const LIST: &str = "shop.Orders/List";

/// A daemon; the tenant acme can serve the shop's orders.
struct Shop {
    bed: Testbed,
    daemon: Daemon,
    token: String,
}

impl Shop {
    fn new() -> Shop {
        let bed = Testbed::new();
        let daemon = bed.daemon("a");
        let token = daemon.tenant("acme");
        Shop { bed, daemon, token }
    }

    fn proto() -> String {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let proto = root.join("policies-wasm").join("orders.proto");
        proto.display().to_string()
    }

    fn serving(&self) -> Process {
        let proto = Shop::proto();
        let args = ["--token", &self.token, "--proto", &proto];
        let what = ["--service", "shop.Orders", "--reply", "{}"];
        self.daemon.serve(args.iter().chain(&what))
    }

    fn push(&self, owner: &str, policy: &str, name: &str, config: &Value) -> Outcome {
        let config = self.bed.file("config.json", config.to_string());
        let (file, config) = (catalogue_file(policy), config.display());
        self.daemon.run(&format!(
            "policy push {} {owner} --name {name} --config {config}",
            file.display()
        ))
    }

    /// Pushes an access list of acme; returns `NAME@VERSION`.
    #[track_caller]
    fn acl(&self, config: &Value) -> String {
        let pushed = self.push("--tenant acme", "acl", "acl", config);
        assert_eq!(pushed.code, 0, "{pushed}");
        pushed.out.trim().to_owned()
    }

    fn attach(&self, what: &str, rest: &str) -> Outcome {
        let line = format!(
            "policy attach {what} --tenant acme --service shop.Orders --side server {rest}"
        );
        self.daemon.run(line.trim_end())
    }

    fn call(&self, method: &str, request: &Value) -> Outcome {
        let (proto, request) = (Shop::proto(), request.to_string());
        self.daemon.tollgate([
            "call",
            "--token",
            &self.token,
            "--proto",
            &proto,
            method,
            &request,
        ])
    }

    #[track_caller]
    fn explain(&self, method: &str, request: &Value) -> Value {
        let request = request.to_string();
        let explained = self.daemon.tollgate([
            "explain", "--tenant", "acme", "--method", method, "--json", &request,
        ]);
        assert_eq!(explained.code, 0, "{explained}");
        serde_json::from_str(&explained.out).unwrap()
    }
}

#[track_caller]
fn refused(outcome: &Outcome, words: &str) {
    assert_ne!(outcome.code, 0, "{outcome}");
    assert!(outcome.err.contains(words), "{words}: {outcome}");
}

#[test]
fn a_path_is_checked_when_it_is_pushed_attached_and_bound() {
    let shop = Shop::new();
    let twice = json!({"fields": ["customer.id", "customer.id"], "blocked": ["7"]});
    let pushed = shop.push("--tenant acme", "acl", "acl", &twice);
    refused(&pushed, "lists \"customer.id\" twice in \"fields\"");
    // Without a schema it is attached with a warning; then the application is refused.
    let acl = shop.acl(&json!({"fields": ["customer.nmae"], "blocked": ["7"]}));
    let attached = shop.attach(&acl, "--method Place");
    assert_eq!(attached.code, 0, "{attached}");
    assert!(attached.err.contains("nothing was checked"), "{attached}");
    let sentence = "policy acl@1 doesn't fit the schema of shop.Orders/Place: field \"customer.nmae\": \
        message shop.Customer has no field \"nmae\"; did you mean \"name\"? (its configuration can list the `methods`";
    let proto = Shop::proto();
    let bound = shop.daemon.tollgate([
        "serve",
        "--token",
        &shop.token,
        "--proto",
        &proto,
        "--service",
        "shop.Orders",
        "--reply",
        "{}",
    ]);
    refused(&bound, sentence);
    let line = "policy detach acl --tenant acme";
    shop.daemon.ok(line);
    // With one it isn't.
    let _serving = shop.serving();
    refused(&shop.attach(&acl, "--method Place"), sentence);
    for (fields, words) in [
        (
            json!(["weight_kg"]),
            "weight_kg is of type double; the policy takes bool, int, uint, string, bytes, enum",
        ),
        (
            json!(["items.sku"]),
            "shop.PlaceRequest.items is repeated or a map",
        ),
        (
            json!(["labels"]),
            "shop.PlaceRequest.labels is repeated or a map",
        ),
        (
            json!(["customer"]),
            "shop.PlaceRequest.customer is a message; name one of its fields",
        ),
        (
            json!(["payment"]),
            "shop.PlaceRequest.payment is a oneof; name one of its members without it: card_number, iban",
        ),
    ] {
        let acl = shop.acl(&json!({"fields": fields, "blocked": ["7"], "absent": "skip"}));
        refused(&shop.attach(&acl, "--method Place"), words);
    }
    // So is a method that lacks a field, by default.
    let acl = shop.acl(&json!({"fields": ["customer.id"], "blocked": ["7"]}));
    refused(
        &shop.attach(&acl, ""),
        "doesn't fit the schema of shop.Orders/List: field \"customer.id\": message shop.ListRequest has no field \"customer\"",
    );
}

#[test]
fn a_version_says_which_fields_of_which_types_it_reads() {
    let shop = Shop::new();
    let _serving = shop.serving();
    let config = json!({
        "fields": ["customer.id", "channel"], "blocked": ["7"], "missing": "allow", "absent": "skip"
    });
    let acl = shop.acl(&config);
    assert_eq!(shop.attach(&acl, "").code, 0);
    let shown = shop.daemon.ok("policy show acl --tenant acme --json");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let manifest = &shown["manifest"];
    assert_eq!(
        manifest["methods"][0]["fields"],
        json!(["customer.id", "channel"]),
        "{shown}"
    );
    assert_eq!(manifest["absent"], "skip", "{shown}");
    let explained = shop.explain(PLACE, &json!({"customer": {"id": "7"}, "channel": "PHONE"}));
    let policy = &explained["policies"][0];
    assert_eq!(policy["fields"], json!(["customer.id", "channel"]));
    assert_eq!(
        policy["types"],
        json!({"customer.id": "uint", "channel": "enum"}),
        "{explained}"
    );
    assert_eq!(policy["view"], json!({"customer.id": 7, "channel": 1}));
    assert_eq!(policy["answer"], "deny");
    assert_eq!(explained["outcome"]["status"], "PERMISSION_DENIED");
    // A method without the field is skipped, which is said.
    let explained = shop.explain(LIST, &json!({"customer_id": "7"}));
    let policy = &explained["policies"][0];
    assert_eq!(policy["answer"], "unasked", "{explained}");
    assert_eq!(
        policy["why"],
        "field \"customer.id\": message shop.ListRequest has no field \"customer\"; did you mean \"customer_id\"? \
         (its configuration says `absent`: skip)"
    );
    assert_eq!(explained["outcome"]["status"], "OK");
    // As it is explained, so it is.
    assert_eq!(shop.call(PLACE, &json!({"customer": {"id": "7"}})).code, 7);
    assert_eq!(shop.call(PLACE, &json!({"customer": {"id": "8"}})).code, 0);
    assert_eq!(shop.call(LIST, &json!({"customer_id": "7"})).code, 0);
}

#[test]
fn a_message_without_a_field_can_be_shown_as_empty_and_methods_can_be_named() {
    let shop = Shop::new();
    let _serving = shop.serving();
    let empty = json!({"fields": ["customer.id"], "blocked": ["7"], "absent": "empty"});
    let acl = shop.acl(&empty);
    assert_eq!(shop.attach(&acl, "").code, 0);
    assert_eq!(shop.call(LIST, &json!({"customer_id": "7"})).code, 7);
    shop.daemon.ok("policy detach acl --tenant acme");
    let named = json!({"fields": ["customer.id"], "blocked": ["7"], "methods": [PLACE]});
    let acl = shop.acl(&named);
    refused(
        &shop.attach(&acl, "--method List"),
        "policy acl@2 is for shop.Orders/Place, not for shop.Orders/List",
    );
    assert_eq!(shop.attach(&acl, "").code, 0);
    assert_eq!(shop.call(LIST, &json!({"customer_id": "7"})).code, 0);
    assert_eq!(shop.call(PLACE, &json!({"customer": {"id": "7"}})).code, 7);
}

/// A provider's policy is for every service of every tenant.
#[test]
fn the_provider_attaches_to_everything_by_saying_what_happens_without_the_field() {
    let shop = Shop::new();
    let _serving = shop.serving();
    let config = json!({"fields": ["customer.id"], "blocked": ["7"]});
    let pushed = shop.push("--provider", "acl", "guard", &config);
    assert_eq!(pushed.code, 0, "{pushed}");
    let attach = |version: &str| {
        let line = format!("policy attach {version} --provider --service * --side server");
        shop.daemon.run(&line)
    };
    refused(
        &attach("guard@1"),
        "has no field \"customer\"; did you mean \"customer_id\"?",
    );
    let config = json!({"fields": ["customer.id"], "blocked": ["7"], "absent": "skip"});
    let pushed = shop.push("--provider", "acl", "guard", &config);
    assert_eq!(pushed.code, 0, "{pushed}");
    assert_eq!(attach("guard@2").code, 0);
    assert_eq!(shop.call(PLACE, &json!({"customer": {"id": "7"}})).code, 7);
    assert_eq!(shop.call(LIST, &json!({"customer_id": "7"})).code, 0);
    // A service that has no such field anywhere is served as before.
    let hotel = shop
        .daemon
        .serve_hotel(&shop.token, "hotel.Reservation", &["--reply", "{}"]);
    let booked = shop
        .daemon
        .call_hotel(&shop.token, "", "hotel.Reservation/Reserve", "{}");
    assert_eq!(booked.code, 0, "{booked}");
    drop(hotel);
}

#[test]
fn grants_and_ceilings_hold_for_configured_fields() {
    let shop = Shop::new();
    let _serving = shop.serving();
    let config = json!({
        "fields": ["customer.id", "channel"], "blocked": ["7"], "methods": [PLACE], "missing": "allow"
    });
    let acl = shop.acl(&config);
    refused(
        &shop.attach(&acl, "--fields customer.name"),
        "--fields customer.name: policy acl@1 doesn't declare that field",
    );
    assert_eq!(shop.attach(&acl, "--fields channel").code, 0);
    let explained = shop.explain(PLACE, &json!({"customer": {"id": "7"}}));
    let policy = &explained["policies"][0];
    assert_eq!(policy["withheld"], json!(["customer.id"]), "{explained}");
    assert_eq!(policy["view"], json!({"channel": 0}), "{explained}");
    assert_eq!(shop.call(PLACE, &json!({"customer": {"id": "7"}})).code, 0);
    shop.daemon.ok("policy detach acl --tenant acme");
    let ceiling = |values: &str| {
        let line = format!("ceiling set {values} --tenant acme --yes");
        shop.daemon.ok(&line)
    };
    for values in [
        "fields_deny=shop.Orders/*:customer.*",
        "fields_deny=none fields_allow=shop.Orders/Place:channel",
    ] {
        ceiling(values);
        refused(
            &shop.attach(&acl, ""),
            "policy acl@1 reads customer.id of shop.Orders/Place (`--fields` can leave it out), which ",
        );
        assert_eq!(shop.attach(&acl, "--fields channel").code, 0);
        shop.daemon.ok("policy detach acl --tenant acme");
    }
    ceiling("fields_allow=shop.Orders/Place:*");
    assert_eq!(shop.attach(&acl, "").code, 0);
    shop.daemon.ok("policy detach acl --tenant acme");
    let config = json!({"mask": ["card_number"], "remove": ["voucher"], "methods": [PLACE]});
    let pushed = shop.push("--tenant acme", "redact", "redact", &config);
    assert_eq!(pushed.code, 0, "{pushed}");
    ceiling("fields_deny=*/*:voucher");
    refused(
        &shop.attach("redact@1", ""),
        "voucher of shop.Orders/Place (`--fields` can leave it out), which the pattern */*:voucher denies",
    );
}

#[test]
fn a_trial_may_read_other_fields_and_versions_that_do_are_not_compared() {
    let shop = Shop::new();
    let _serving = shop.serving();
    let by_id = json!({"fields": ["customer.id"], "blocked": ["7"], "methods": [PLACE]});
    let by_name = json!({"fields": ["customer.name"], "blocked": ["Eve"], "methods": [PLACE]});
    let (first, second) = (shop.acl(&by_id), shop.acl(&by_name));
    assert_eq!(shop.attach(&first, "--record 10").code, 0);
    let request = json!({"customer": {"id": "7", "name": "Eve"}});
    assert_eq!(shop.call(PLACE, &request).code, 7);
    let upgrade = format!("policy upgrade {second} --tenant acme --mode canary=50%");
    shop.daemon.ok(&upgrade);
    let passing = json!({"customer": {"id": "8", "name": "Ada"}});
    let explained = shop.explain(PLACE, &passing);
    let views = [0, 1].map(|at| explained["policies"][at]["view"].clone());
    assert_eq!(
        views,
        [json!({"customer.id": 8}), json!({"customer.name": "Ada"})],
        "{explained}"
    );
    refused(
        &shop.daemon.run("policy diff acl@1 acl@2 --tenant acme"),
        "the recorded calls can't be replayed: they show [customer.id of the configuration] of * at the request hook, \
         but acl@2 declares [customer.name of the configuration]",
    );
    shop.daemon.ok("policy promote acl --tenant acme");
    assert_eq!(shop.call(PLACE, &json!({"customer": {"id": "7"}})).code, 0);
    assert_eq!(shop.call(PLACE, &request).code, 7);
    // Another value is compared.
    let later = json!({"fields": ["customer.name"], "blocked": ["Bob"], "methods": [PLACE]});
    shop.acl(&later);
    let compared = shop
        .daemon
        .run("policy diff acl@2 acl@3 --tenant acme --last 1 --json");
    let compared: Value = serde_json::from_str(&compared.out).unwrap();
    assert_eq!(compared["changed"], 1, "{compared}");
    assert_eq!(
        compared["changes"][0]["view"],
        json!({"customer.name": "Eve"}),
        "{compared}"
    );
    // A version for other methods isn't: a recorded call doesn't say of which method it was.
    let other = json!({"fields": ["customer.name"], "blocked": ["Bob"], "methods": ["*"]});
    shop.acl(&other);
    refused(
        &shop
            .daemon
            .run("policy diff acl@2 acl@4 --tenant acme --last 1"),
        "they are of [shop.Orders/Place], but acl@4 is for [*]",
    );
    // A trial of fields that don't fit is refused, and changes nothing.
    let misfit = json!({"fields": ["customer.nothing"], "blocked": ["x"], "methods": [PLACE]});
    let misfit = shop.acl(&misfit);
    let upgrade = format!("policy upgrade {misfit} --tenant acme --mode shadow");
    refused(&shop.daemon.run(&upgrade), "has no field \"nothing\"");
    assert_eq!(shop.call(PLACE, &request).code, 7);
}

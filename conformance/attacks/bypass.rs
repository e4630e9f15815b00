//! A tenant's policy rewrites a field between the provider's checks: the last check sees the sent
//! value.
//!
//! The provider forbids some names, before and after the tenant's policy, which rewrites every name
//! into one of sixteen, half of them forbidden. The server counts: each forbidden name that reaches
//! it is a bypass.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tollgate::{
    Channel, Code, Received, Reply, Request, Response, Server, Session, SessionOptions, Status,
    block_on,
};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::hotel::reservation_server::{Reservation, ReservationServer};
use tollgate_conformance::hotel::{
    AvailabilityReply, AvailabilityRequest, ReserveReply, ReserveRequest,
};
use tollgate_conformance::module::Module;
use tollgate_conformance::testbed::{Testbed, policy_file};

use crate::measure::{Limit, is_long, measured, say, together};

const SERVICE: &str = "hotel.Reservation";

/// How often the server has seen each name.
type Seen = Arc<Mutex<BTreeMap<String, u64>>>;

struct Hotel {
    seen: Seen,
}

impl Reservation for Hotel {
    async fn reserve(&self, request: Request<Received<ReserveRequest>>) -> Reply<ReserveReply> {
        let name = request.get_ref().view().customer_name().to_owned();
        *self.seen.lock().unwrap().entry(name).or_default() += 1;
        Ok(Response::new(ReserveReply::default()))
    }

    async fn check_availability(
        &self,
        _: Request<Received<AvailabilityRequest>>,
    ) -> Reply<AvailabilityReply> {
        Err(Status::new(Code::UNIMPLEMENTED, "not of interest here"))
    }
}

/// Sixteen names of eight letters: `Mallory0` to `Mallory7` are forbidden, `Aladdin0` to `Aladdin7`
/// aren't.
fn names() -> Vec<String> {
    let of = |who: &'static str| (0..8).map(move |n| format!("{who}{n}"));
    of("Mallory").chain(of("Aladdin")).collect()
}

/// Writes the next of the names into every call.
fn rewriter() -> Vec<u8> {
    let names = names().concat();
    let module = Module {
        methods: r#"{"method":"hotel.Reservation/Reserve","fields":["customer_name"],"changes":["customer_name"]}"#
            .to_owned(),
        manifest: r#""capabilities":["change"],"#.to_owned(),
        rest: format!(r#"(global $next (mut i32) (i32.const 0)) (data (i32.const 131072) "{names}")"#),
        // One record per entry, below the buffer: set field 0 to the eight bytes of name `$next`.
        verdict: "(local.set $at (i32.add (i32.const 1024) (i32.mul (local.get $i) (i32.const 16))))
            (i32.store (local.get $at) (i32.const 3))
            (i32.store offset=4 (local.get $at) (i32.const 0))
            (i32.store offset=8 (local.get $at)
              (i32.add (i32.const 131072) (i32.mul (i32.const 8) (i32.and (global.get $next) (i32.const 15)))))
            (i32.store offset=12 (local.get $at) (i32.const 8))
            (global.set $next (i32.add (global.get $next) (i32.const 1)))
            (i32.store offset=12 (local.get $entry) (i32.const 3))
            (i32.store offset=20 (local.get $entry) (local.get $at))
            (i32.store offset=24 (local.get $entry) (i32.const 16))"
            .to_owned(),
        ..Module::default()
    };
    module.wasm()
}

/// Makes calls with every name in turn. Returns how many passed, and how many the provider denied.
fn book(client: &ReservationClient, session: &Session, calls: u64) -> (u64, u64) {
    let names = names();
    let (mut passed, mut denied) = (0, 0);
    for call in 0..calls {
        let request = ReserveRequest {
            customer_name: names[call as usize % names.len()].clone(),
            ..ReserveRequest::default()
        };
        match block_on(session, client.reserve(Request::new(request))) {
            Ok(_) => passed += 1,
            Err(status) if status.code() == Code::PERMISSION_DENIED => denied += 1,
            Err(status) => panic!("{status}"),
        }
    }
    (passed, denied)
}

/// Number of names that the server has seen since the last time: forbidden ones, and others.
fn seen(seen: &Seen) -> (u64, u64) {
    let all = std::mem::take(&mut *seen.lock().unwrap());
    let sum = |forbidden: bool| {
        let of = all
            .iter()
            .filter(|(name, _)| name.starts_with("Mallory") == forbidden);
        of.map(|(_, times)| times).sum()
    };
    (sum(true), sum(false))
}

#[test]
fn what_a_tenants_policy_rewrites_is_what_the_providers_last_check_sees() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = bed.daemon_with(
        "a",
        &crate::caller::with_config("[policies]\ncpu_share_percent = 100\n"),
    );
    let mut admin = Admin::connect(&daemon);
    let token = admin.tenant("mallory");
    let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
    let reached = Seen::default();
    let hotel = ReservationServer::new(Hotel {
        seen: Arc::clone(&reached),
    });
    block_on(&session, Server::new(&session).add_service(hotel).bind()).unwrap();
    let client = ReservationClient::new(Channel::new(&session, ""));
    let calls = if is_long() { 160_000 } else { 3_200 };

    let blocked: Vec<String> = names()
        .into_iter()
        .filter(|name| name.starts_with('M'))
        .collect();
    let list = json!({ "blocked": blocked }).to_string();
    let acl = std::fs::read(policy_file("acl")).unwrap();
    let place = Place::client("mallory", SERVICE);
    admin.install(&place, "rewriter", &rewriter(), b"");
    // Without the provider, half of the names that arrive are forbidden: the attack works.
    assert_eq!(book(&client, &session, calls), (calls, 0));
    assert_eq!(seen(&reached), (calls / 2, calls / 2));
    // A check only before the tenant's policy sees the names in the calls, and misses the names
    // that are sent.
    admin.install(&place.clone().pre(), "list", &acl, list.as_bytes());
    assert_eq!(book(&client, &session, calls), (calls / 2, calls / 2));
    let (forbidden, _) = seen(&reached);
    assert!(forbidden > 0, "the check before is not enough");
    say(&format!(
        "with the check before alone, {forbidden} of {} forbidden names arrived",
        calls / 2
    ));
    for (where_, post) in [
        ("client", place.clone().post()),
        ("server", place.clone().at_server().post()),
    ] {
        admin.install(&post, "list", &acl, list.as_bytes());
        let (passed, denied) = book(&client, &session, calls);
        assert_eq!(passed + denied, calls);
        let (bypassed, arrived) = seen(&reached);
        assert_eq!(arrived, passed, "what the provider allowed arrived once");
        assert!(passed >= calls / 8, "{passed} of {calls} passed");
        measured(
            &format!(
                "a rewritten field past the provider's last check on the {where_}'s side, {calls} calls, bypasses"
            ),
            bypassed as f64,
            Limit::AtMost(0.0),
            Limit::AtMost(0.0),
        );
        admin.detach(&post, "list").unwrap();
    }
}

//! The administrative API of a real daemon: every request of every principal, what a tenant does
//! with its token, and how credentials end.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use p256::pkcs8::{EncodePublicKey as _, LineEnding};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use rustix::process::Signal;
use tollgate::{Code, Session, SessionOptions, Status, block_on};
use tollgate_admin::client::Client;
use tollgate_admin::proto::{
    AddCredentialRequest, AttachPolicyRequest, AttachmentOptions, Isolation,
    ListCredentialsRequest, ListPoliciesRequest, Mode, Role, ShowPolicyRequest, Side,
    WatchPoliciesRequest,
};
use tollgate_admin::{ALL, Operation, Principal, Reach, Secret, socket_beside, to_json};
use tollgate_conformance::process::{program, signal};
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, policy_file, run,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// A user without rights.
const STRANGER: u32 = 4_711;

fn client(daemon: &Daemon, token: Option<&str>) -> Client {
    let token = token.map(Secret::new);
    Client::connect(&socket_beside(daemon.socket()), token.as_ref(), PATIENCE).unwrap()
}

/// A credential's token, from an operator.
fn credential(daemon: &Daemon, tenant: &str, name: &str, role: &str) -> String {
    let line = format!("credential add {name} --tenant {tenant} --role {role}");
    daemon.ok(&line).trim().to_owned()
}

/// Runs `tollgate` with a tenant's token.
fn as_bearer(daemon: &Daemon, token: &str, line: &str) -> Outcome {
    let words: Vec<_> = line.split(' ').collect();
    let file = daemon.token_file(token).display().to_string();
    let args = [&words[..], &["--token-file", &file]].concat();
    daemon.tollgate(args)
}

#[track_caller]
fn bearer_ok(daemon: &Daemon, token: &str, line: &str) -> String {
    let outcome = as_bearer(daemon, token, line);
    assert_eq!(outcome.code, 0, "{line}: {outcome}");
    outcome.out
}

fn open(daemon: &Daemon, token: &str) -> Result<Session, Status> {
    let mut options = SessionOptions::new(daemon.socket(), token);
    options.reconnect = false;
    Session::open(options)
}

fn principal(tenant: &str, role: Role) -> Principal {
    Principal::Tenant {
        tenant: tenant.to_owned(),
        credential: String::new(),
        role,
    }
}

// ---- the table ----

/// The request of a row about a tenant; `None` if it is about no tenant.
fn about(row: &Operation, tenant: &str, is_provider: bool) -> Option<Vec<u8>> {
    let pool = DescriptorPool::decode(tollgate_admin::DESCRIPTOR_SET).unwrap();
    let service = pool.get_service_by_name(&format!("tollgate.admin.v1.{}", row.service));
    let service = service.unwrap();
    let method = service
        .methods()
        .find(|method| method.name() == row.method)
        .unwrap();
    let (message, is_about) = named(&method.input(), tenant, is_provider);
    is_about.then(|| message.encode_to_vec())
}

/// A message whose field `tenant`, `owner`, `at` or `header` names a tenant, and whether it has
/// one.
fn named(of: &MessageDescriptor, tenant: &str, is_provider: bool) -> (DynamicMessage, bool) {
    let mut message = DynamicMessage::new(of.clone());
    let mut is_about = false;
    for field in of.fields() {
        match (field.name(), field.kind()) {
            ("tenant", _) => {
                message.set_field(&field, Value::String(tenant.to_owned()));
                is_about = !is_provider || of.name() == "Owner";
            }
            ("provider", _) => message.set_field(&field, Value::Bool(is_provider)),
            ("owner" | "at" | "header", prost_reflect::Kind::Message(inner)) => {
                let (inner, is_its) = named(&inner, tenant, is_provider);
                message.set_field(&field, Value::Message(inner));
                is_about |= is_its;
            }
            _ => {}
        }
    }
    (message, is_about)
}

#[test]
fn every_request_of_every_principal_is_allowed_or_refused_as_the_table_says() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let owner = daemon.tenant("acme");
    daemon.tenant("evil");
    let viewer = credential(&daemon, "acme", "viewer", "viewer");
    let application = credential(&daemon, "acme", "application", "application");
    let deploy = daemon.ok("credential add deploy --operator");
    let operator = Principal::Operator { who: String::new() };
    let principals = [
        (principal("acme", Role::Owner), Some(&*owner)),
        (principal("acme", Role::Viewer), Some(&*viewer)),
        (principal("acme", Role::Application), Some(&*application)),
        (operator.clone(), None),
        (operator, Some(deploy.trim())),
    ];
    let mut refused = 0;
    for (principal, token) in &principals {
        let client = client(&daemon, *token);
        for row in ALL {
            // An operator's requests would change something: nobody has this name.
            let tenant = match principal {
                Principal::Tenant { .. } => "acme",
                Principal::Operator { .. } => "no name",
            };
            let own = about(row, tenant, false).unwrap_or_default();
            let answer = client.ask_bytes(&row.path(), own);
            let code = answer
                .as_ref()
                .map_or_else(|status| status.code, |_| Code::OK);
            assert_ne!(code, Code::UNAUTHENTICATED, "{principal:?} {row:?}");
            let is_allowed = row.rights.of(principal) != Reach::No;
            assert_eq!(
                code != Code::PERMISSION_DENIED,
                is_allowed,
                "{principal:?} {row:?} {answer:?}"
            );
            refused += usize::from(!is_allowed);
            if row.rights.of(principal) != Reach::Own {
                continue;
            }
            // Another tenant is nobody.
            let say = |tenant: &str| {
                let status = client.ask_bytes(&row.path(), about(row, tenant, false).unwrap());
                let status = status.unwrap_err();
                (status.code, status.message.replace(tenant, "NAME"))
            };
            assert_eq!(say("evil"), say("nobody"), "{row:?}");
            assert_eq!(say("evil").0, Code::NOT_FOUND, "{row:?}");
            if let Some(providers) = about(row, "", true) {
                let status = client.ask_bytes(&row.path(), providers).unwrap_err();
                assert_eq!(status.code, Code::PERMISSION_DENIED, "{row:?} {status}");
            }
        }
    }
    assert!(refused > 40, "{refused}");
    // The operators' requests for an upgrade needed no more than they said.
    daemon.follow();
    // The tenants are as they were: no request had what it needs.
    assert_eq!(daemon.ok("tenant list"), "acme\nevil\n");
}

#[test]
fn a_token_that_is_not_valid_gets_nothing() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let owner = daemon.tenant("acme");
    let revoked = credential(&daemon, "acme", "gone", "owner");
    daemon.ok("credential revoke gone --tenant acme");
    let rotated = credential(&daemon, "acme", "turned", "owner");
    let current = daemon.ok("credential rotate turned --tenant acme");
    let removed = daemon.tenant("removed");
    daemon.ok("tenant remove removed --yes");
    let forged = format!("tg_{}", "0".repeat(64));
    for token in [
        &revoked,
        &rotated,
        &removed,
        &forged,
        &owner[..40],
        "tg_",
        "x",
    ] {
        let refused = client(&daemon, Some(token)).ask(ListPoliciesRequest::default());
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, Code::UNAUTHENTICATED, "{refused}");
        assert!(!refused.message.contains("acme"), "{refused}");
    }
    for token in [&*owner, current.trim()] {
        client(&daemon, Some(token))
            .ask(ListPoliciesRequest::default())
            .unwrap();
    }
}

// ---- a tenant with its token ----

#[test]
fn an_owner_runs_the_life_of_a_policy_as_a_user_without_rights() {
    let bed = Testbed::new();
    std::fs::set_permissions(bed.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    daemon.tenant("evil");
    // The provider's policy, and another tenant's of the same name.
    daemon.push("--provider", "null", "guard", None);
    daemon.ok("policy attach guard@1 --provider --side client");
    daemon.push("--tenant evil", "null", "mine", None);
    let file = bed.file("token", &token);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let module = bed.path("null.wasm");
    std::fs::copy(policy_file("null"), &module).unwrap();
    std::fs::set_permissions(&module, PermissionsExt::from_mode(0o644)).unwrap();
    let tenant = |line: &str| {
        let mut command = Command::new("setpriv");
        let user = format!("--reuid {STRANGER} --regid {STRANGER} --clear-groups");
        command.args(user.split(' ')).arg(program("tollgate"));
        command.args(["--socket", &daemon.socket().display().to_string()]);
        command
            .env("TOLLGATE_TOKEN_FILE", &file)
            .args(line.split(' '));
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let ok = |line: &str| {
        let (code, out, err) = tenant(line);
        assert_eq!(code, Some(0), "{line}: {err}");
        out
    };
    let push = format!("policy push {} --name mine", module.display());
    assert_eq!(ok(&push), "mine@1\n");
    assert_eq!(
        ok("policy attach mine@1 --service hotel.Reservation --side client"),
        "attached mine@1 (enforce): client hotel.Reservation/* of the token's tenant\n"
    );
    assert_eq!(ok(&push), "mine@2\n");
    ok("policy upgrade mine@2 --mode shadow");
    ok("policy promote mine");
    ok("policy rollback mine");
    let shown = ok("policy show mine --json");
    assert!(
        shown.contains("\"acme\"") && !shown.contains("guard"),
        "{shown}"
    );
    let listed = ok("policy list");
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(
        !listed.contains("evil") && !listed.contains("guard"),
        "{listed}"
    );
    assert_eq!(ok("policy detach mine").lines().count(), 1);
    assert_eq!(ok("policy delete mine"), "deleted mine@1\ndeleted mine@2\n");
    // Neither other tenants, nor the provider, nor the daemon.
    for (line, code, words) in [
        (
            "policy list --tenant evil",
            5,
            "there is no tenant \"evil\"",
        ),
        (
            "policy show mine --tenant evil",
            5,
            "there is no tenant \"evil\"",
        ),
        (
            "policy show mine --tenant nobody",
            5,
            "there is no tenant \"nobody\"",
        ),
        (
            "policy show guard --provider",
            7,
            "is an operator's request",
        ),
        (
            "policy detach guard --provider",
            7,
            "is an operator's request",
        ),
        ("tenant list", 7, "may not send ListTenants"),
        ("audit verify", 7, "may not send VerifyAuditLog"),
    ] {
        let (status, _, err) = tenant(line);
        assert_eq!(status, Some(code), "{line}: {err}");
        assert!(err.contains(words), "{line}: {err}");
    }
    // What it uses, and what was recorded about it.
    let used = ok("usage");
    assert!(used.starts_with("tenant acme\n"), "{used}");
    assert!(used.contains("policies              0 of 64\n"), "{used}");
    assert!(used.contains("credentials           1 of 64\n"), "{used}");
    let own = ok("audit show --last 1000");
    assert!(
        own.contains("operator: tenant-add {\"tenant\":\"acme\"}"),
        "{own}"
    );
    assert!(
        own.contains("tenant acme credential default: push "),
        "{own}"
    );
    assert!(
        !own.contains("evil") && !own.contains("guard") && !own.contains("uid "),
        "{own}"
    );
    // Without a token, that user is nobody.
    std::fs::write(&file, "tg_wrong").unwrap();
    assert_eq!(tenant("policy list").0, Some(16));
    let log = daemon.ok("audit show --last 100");
    for event in [
        "push",
        "attach",
        "upgrade",
        "promote",
        "rollback",
        "detach",
        "policy-delete",
    ] {
        let record = format!("tenant acme credential default: {event} ");
        assert!(log.contains(&record), "{event}: {log}");
    }
    assert!(!log.contains(&token));
}

#[test]
fn a_viewer_looks_an_application_calls_and_an_owner_makes_both() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let owner = daemon.tenant("acme");
    let add = |name: &str, role: &str| {
        let line = format!("credential add {name} --role {role}");
        bearer_ok(&daemon, &owner, &line).trim().to_owned()
    };
    let (viewer, application) = (add("audit", "viewer"), add("booking", "application"));
    let listed = bearer_ok(&daemon, &viewer, "credential list");
    assert_eq!(
        listed,
        "audit  viewer\nbooking  application\ndefault  owner\n"
    );
    drop(open(&daemon, &application).unwrap());
    drop(open(&daemon, &owner).unwrap());
    let refused = open(&daemon, &viewer).unwrap_err();
    assert_eq!(refused.code, Code::PERMISSION_DENIED, "{refused}");
    assert_eq!(
        refused.message,
        "credential audit of tenant \"acme\" has the role viewer, which opens no session: use an application's or an owner's token"
    );
    let null = policy_file("null").display().to_string();
    for (token, line) in [
        (&viewer, &*format!("policy push {null} --name p")),
        (&viewer, "credential add more"),
        (&viewer, "credential revoke default"),
        (&application, "policy list"),
        (&application, "credential list"),
    ] {
        let outcome = as_bearer(&daemon, token, line);
        assert_eq!(outcome.code, 7, "{line}: {outcome}");
        assert!(
            outcome.err.contains("of tenant acme has the role"),
            "{outcome}"
        );
    }
    // What an operator leaves out.
    let unnamed = daemon.run("credential list");
    assert_eq!(unnamed.code, 3, "{unnamed}");
    assert!(unnamed.err.contains("--tenant NAME"), "{unnamed}");
    // An end, in the list and at last.
    bearer_ok(
        &daemon,
        &owner,
        "credential add brief --role viewer --expires 2d",
    );
    let listed = bearer_ok(&daemon, &owner, "credential list");
    assert!(
        listed.contains("brief  viewer  expires in 47 hours\n"),
        "{listed}"
    );
    let soon = client(&daemon, Some(&owner)).ask(AddCredentialRequest {
        name: "sooner".to_owned(),
        role: Role::Owner.into(),
        lifetime: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        ..AddCredentialRequest::default()
    });
    let soon = soon.unwrap_err();
    assert_eq!(soon.code, Code::INVALID_ARGUMENT, "{soon}");
    // Times that no text can be made of.
    for (seconds, nanos) in [
        (i64::MIN, 0),
        (i64::MIN, i32::MIN),
        (0, -1),
        (i64::MAX, i32::MAX),
    ] {
        let lifetime = Some(prost_types::Duration { seconds, nanos });
        let refused = client(&daemon, Some(&owner)).ask(AddCredentialRequest {
            name: "odd".to_owned(),
            role: Role::Owner.into(),
            lifetime,
            ..AddCredentialRequest::default()
        });
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused}");
    }
}

#[test]
fn lists_without_end_are_refused_at_once() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let request = |names: usize| AttachPolicyRequest {
        name: "p".to_owned(),
        version: 1,
        service: "hotel.Echo".to_owned(),
        mode: Mode::Enforce.into(),
        side: Side::Client.into(),
        options: Some(AttachmentOptions {
            fields: Some(tollgate_admin::proto::Names {
                names: vec![String::new(); names],
            }),
            ..AttachmentOptions::default()
        }),
        ..AttachPolicyRequest::default()
    };
    let client = client(&daemon, Some(&token));
    let many = client.ask(request(1_000_000)).unwrap_err();
    assert_eq!(many.code, Code::INVALID_ARGUMENT, "{many}");
    assert!(
        many.message
            .contains("has 1000000 entries; the limit is 256"),
        "{many}"
    );
    let few = client.ask(request(256)).unwrap_err();
    assert!(!few.message.contains("entries"), "{few}");
    // A request without a schema is short.
    let long = client.ask(AddCredentialRequest {
        name: "x".repeat(100_000),
        ..AddCredentialRequest::default()
    });
    let long = long.unwrap_err();
    assert_eq!(long.code, Code::OUT_OF_RANGE, "{long}");
}

#[test]
fn sessions_end_with_their_credential_or_are_kept_and_others_go_on() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    daemon.tenant("acme");
    let [one, two, three] =
        ["one", "two", "three"].map(|name| credential(&daemon, "acme", name, "application"));
    let sessions = [&one, &two, &three].map(|token| open(&daemon, token).unwrap());
    let ended = |session: &Session| block_on(session, session.closed());
    assert_eq!(
        daemon.ok("credential revoke one --tenant acme"),
        "revoked one: 1 session ended\n"
    );
    let why = ended(&sessions[0]);
    assert_eq!(why.code, Code::UNAUTHENTICATED, "{why}");
    let kept = daemon.ok("credential revoke two --tenant acme --keep-sessions");
    assert_eq!(kept, "revoked two: 0 sessions ended\n");
    let fresh = daemon.ok("credential rotate three --tenant acme --keep-sessions");
    for token in [&one, &two, &three] {
        assert_eq!(
            open(&daemon, token).unwrap_err().code,
            Code::UNAUTHENTICATED
        );
    }
    drop(open(&daemon, fresh.trim()).unwrap());
    let count = |daemon: &Daemon| {
        let sessions = daemon.status()["sessions"].clone();
        sessions.as_array().map_or(0, Vec::len)
    };
    assert_eq!(count(&daemon), 2);
    // They stay with the daemon's successor, where the new token's end is theirs.
    daemon.upgrade(&program("tollgated"));
    assert_eq!(count(&daemon), 2);
    assert_eq!(
        daemon.ok("credential revoke three --tenant acme"),
        "revoked three: 1 session ended\n"
    );
    assert_eq!(ended(&sessions[2]).code, Code::UNAUTHENTICATED);
    assert_eq!(count(&daemon), 1);
    daemon.ok("tenant remove acme --yes");
    assert_eq!(ended(&sessions[1]).code, Code::UNAUTHENTICATED);
}

#[test]
fn a_tenant_can_not_undo_the_isolation_that_the_operator_has_configured() {
    let bed = Testbed::new();
    let options = Options {
        config: "[policies]\nisolation = \"process\"\n".to_owned(),
        ..Options::default()
    };
    let daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    daemon.push("--tenant acme", "null", "p", None);
    let attach = |token: Option<&str>, isolation: Isolation| {
        client(&daemon, token).ask(AttachPolicyRequest {
            owner: token.is_none().then(|| tollgate_admin::proto::Owner {
                tenant: "acme".to_owned(),
                provider: false,
            }),
            name: "p".to_owned(),
            version: 1,
            service: "hotel.Echo".to_owned(),
            side: Side::Client.into(),
            mode: Mode::Enforce.into(),
            options: Some(AttachmentOptions {
                isolation: isolation.into(),
                ..AttachmentOptions::default()
            }),
            ..AttachPolicyRequest::default()
        })
    };
    let refused = attach(Some(&token), Isolation::None).unwrap_err();
    assert_eq!(refused.code, Code::PERMISSION_DENIED, "{refused}");
    attach(Some(&token), Isolation::Unspecified).unwrap();
    attach(Some(&token), Isolation::Process).unwrap();
    // What an operator lets into the daemon, no tenant's version follows.
    attach(None, Isolation::None).unwrap();
    daemon.push("--tenant acme", "null", "p", None);
    let again = attach(Some(&token), Isolation::Unspecified).unwrap_err();
    assert_eq!(again.code, Code::PERMISSION_DENIED, "{again}");
    for (line, words) in [
        (
            "policy upgrade p@2 --mode shadow",
            "would run in the daemon",
        ),
        (
            "policy upgrade p@2 --mode enforce",
            "would run in the daemon",
        ),
        ("policy release p", "would run in the daemon"),
        ("policy diff p@1 p@2", "are compared in the daemon"),
    ] {
        let refused = as_bearer(&daemon, &token, line);
        assert_eq!(refused.code, 7, "{line}: {refused}");
        assert!(refused.err.contains(words), "{line}: {refused}");
    }
    daemon.ok("policy upgrade p@2 --tenant acme --mode shadow");
    assert_eq!(as_bearer(&daemon, &token, "policy promote p").code, 7);
    bearer_ok(&daemon, &token, "policy detach p");
    attach(Some(&token), Isolation::Unspecified).unwrap();
}

#[test]
fn a_tenants_choice_of_no_isolation_does_not_outlive_the_operators_setting() {
    let bed = Testbed::new();
    let with = |isolation: &str| Options {
        durable: true,
        config: format!("[policies]\nisolation = \"{isolation}\"\n"),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &with("none"));
    let token = daemon.tenant("acme");
    daemon.push("--tenant acme", "null", "p", None);
    let attach = "policy attach p@1 --service hotel.Echo --side client --isolation none";
    bearer_ok(&daemon, &token, attach);
    daemon.process().kill();
    drop(daemon);
    let daemon = bed.daemon_with("a", &with("process"));
    let shown = daemon.ok("policy show p --tenant acme --json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["attachments"][0]["isolation"], "process", "{shown}");
}

// ---- ceilings ----

/// A configuration of the policy `rate_limit`, which needs the capabilities `state` and `clock`. It
/// names the fields and the methods.
const BUCKET: &str = r#"{"fields": ["customer_name"], "methods": ["hotel.Reservation/Reserve"],
    "per_second": 1, "burst": 1}"#;

/// A refusal at the ceiling: its status, the key with its value, and who can raise it.
#[track_caller]
fn at_ceiling(outcome: &Outcome, code: i32, value: &str) {
    assert_eq!(outcome.code, code, "{outcome}");
    let key = value.split(' ').next().unwrap().trim_matches('`');
    let way_out =
        format!("an operator can change it: tollgate ceiling set {key}=VALUE --tenant acme");
    for words in ["the ceiling of tenant acme is ", value, &way_out] {
        assert!(outcome.err.contains(words), "{words}: {outcome}");
    }
}

#[test]
fn what_is_above_the_ceiling_is_refused_with_the_limit_and_who_can_raise_it() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let other = daemon.tenant("other");
    let set = |values: &str| daemon.ok(&format!("ceiling set {values} --tenant acme --yes"));
    let tenant = |line: &str| as_bearer(&daemon, &token, line);
    let push = |name: &str, policy: &str| {
        let file = policy_file(policy).display().to_string();
        tenant(&format!("policy push {file} --name {name}"))
    };
    let bucket = bed.file("bucket.json", BUCKET).display().to_string();
    let attach = |what: &str, rest: &str| {
        tenant(&format!("policy attach {what} --service hotel.Echo {rest}"))
    };
    assert_eq!(push("p", "null").code, 0);
    // Numbers and sizes. A further version isn't another policy.
    set("policies=1");
    at_ceiling(&push("q", "null"), 8, "`policies` = 1");
    assert_eq!(push("p", "null").code, 0);
    assert_eq!(tenant("policy delete p@2").code, 0);
    set("policies=9 module_kib=1");
    at_ceiling(&push("p", "null"), 8, "`module_kib` = 1");
    set("module_kib=4096 versions=1");
    at_ceiling(&push("p", "null"), 8, "`versions` = 1");
    set("versions=9 module_mib=0");
    at_ceiling(&push("p", "null"), 8, "`module_mib` = 0");
    set("module_mib=1 attachments=1 cpu_us=50");
    at_ceiling(
        &attach("p@1", "--side client --cpu-us 51"),
        8,
        "`cpu_us` = 50",
    );
    assert_eq!(attach("p@1", "--side client --cpu-us 50").code, 0);
    at_ceiling(&attach("p@1", "--side server"), 8, "`attachments` = 1");
    // The same attachment again is no other one. An operator's request for the tenant counts, too.
    assert_eq!(attach("p@1", "--side client").code, 0);
    let operators =
        daemon.run("policy attach p@1 --tenant acme --service hotel.Echo --side server");
    at_ceiling(&operators, 8, "`attachments` = 1");
    assert_eq!(tenant("policy detach p").code, 0);
    // Kinds of modules, and capabilities.
    set("languages=opa,proxy-wasm");
    at_ceiling(&push("p", "acl"), 7, "`languages` = opa,proxy-wasm");
    set("languages=tollgate capabilities=state");
    let limit = policy_file("rate_limit").display().to_string();
    let limit = format!("policy push {limit} --name limit --config {bucket}");
    assert_eq!(tenant(&limit).code, 0);
    let grant = "--side client --grant state,clock";
    at_ceiling(&attach("limit@1", grant), 7, "`capabilities` = state");
    set("capabilities=clock,state");
    // Fields: denied ones, and those of a method that isn't named.
    let reserve = |rest: &str| {
        let line = format!(
            "policy attach limit@1 --service hotel.Reservation --side client --grant state,clock {rest}"
        );
        tenant(line.trim_end())
    };
    let one = "hotel.Reservation/*:customer_name";
    let long = ["hotel.Reservation/Cancel:*"; 11].join(",");
    for (deny, allow, rest, why) in [
        (
            one,
            "all",
            "",
            "the pattern hotel.Reservation/*:customer_name denies",
        ),
        (
            "a.B/C:d,hotel.*/Reserve:*",
            "hotel.*/*:*",
            "--method Reserve",
            "the pattern hotel.*/Reserve:* denies",
        ),
        (
            "none",
            "hotel.Reservation/Cancel:*",
            "--method Reserve",
            "no pattern allows",
        ),
        ("none", &*long, "", "no pattern allows"),
        ("none", "none", "", "no pattern allows"),
    ] {
        set(&format!("fields_deny={deny} fields_allow={allow}"));
        let refused = reserve(rest);
        let value = match (deny, allow.len()) {
            ("none", ..256) => format!("`fields_allow` = {allow};"),
            ("none", _) => "`fields_allow` = 11 patterns;".to_owned(),
            _ => format!("`fields_deny` = {deny};"),
        };
        at_ceiling(&refused, 7, &value);
        let words = format!(
            "reads customer_name of hotel.Reservation/Reserve (`--fields` can leave it out), which {why}, and"
        );
        assert!(refused.err.contains(&words), "{words}: {refused}");
    }
    set("fields_allow=hotel.Reservation/Reserve:customer_*");
    assert_eq!(reserve("").code, 0);
    let lowered = daemon.ok("ceiling set fields_deny=*/*:customer_name --tenant acme --dry-run");
    assert!(
        lowered.contains("it reads customer_name of hotel.Reservation/Reserve"),
        "{lowered}"
    );
    assert_eq!(tenant("policy detach limit").code, 0);
    set("fields_allow=all");
    // Where it runs.
    set("isolation=process");
    at_ceiling(
        &attach("p@1", "--side client --isolation none"),
        7,
        "`isolation` = process",
    );
    assert_eq!(attach("p@1", "--side client").code, 0);
    let shown = tenant("policy show p --json").out;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["attachments"][0]["isolation"], "process", "{shown}");
    assert_eq!(tenant("policy detach p").code, 0);
    // Nothing of it runs in the daemon either: neither its set-up at a push, nor a comparison.
    let compared = tenant("policy diff p@1 p@1");
    assert_eq!(compared.code, 7, "{compared}");
    // A version decides after a trial only.
    set("isolation=any trial=required");
    at_ceiling(
        &attach("p@1", "--side client --mode canary=100%"),
        9,
        "`trial` = required",
    );
    at_ceiling(&attach("p@1", "--side client"), 9, "`trial` = required");
    assert_eq!(attach("p@1", "--side client --mode shadow").code, 0);
    assert_eq!(tenant("policy promote p").code, 0);
    // What decides there already gets other options.
    assert_eq!(attach("p@1", "--side client --record 5").code, 0);
    assert_eq!(push("p", "null").code, 0);
    at_ceiling(
        &tenant("policy upgrade p@3 --mode enforce"),
        9,
        "`trial` = required",
    );
    assert_eq!(tenant("policy upgrade p@3 --mode canary=1%").code, 0);
    assert_eq!(tenant("policy upgrade p@3 --mode enforce").code, 0);
    // An hour's changes: what was done counts, looking doesn't.
    set("changes_per_hour=1");
    at_ceiling(
        &tenant("policy upgrade p@1 --mode shadow"),
        8,
        "`changes_per_hour` = 1",
    );
    assert_eq!(tenant("policy list").code, 0);
    set("changes_per_hour=60");
    let used = tenant("usage").out;
    for row in [
        "versions              3 of 9\n",
        "module                0 MiB of 1 MiB\n",
    ] {
        assert!(used.contains(row), "{used}");
    }
    // None of this is another tenant's, nor the provider's.
    let file = policy_file("null").display().to_string();
    bearer_ok(&daemon, &other, &format!("policy push {file} --name p"));
    daemon.push("--provider", "null", "guard", None);
    // The tenant sees it and can't change it.
    let shown = tenant("ceiling show").out;
    assert!(shown.contains("\nchanges_per_hour    60 "), "{shown}");
    assert_eq!(tenant("ceiling set versions=10").code, 7);
    assert_eq!(tenant("ceiling show --tenant other").code, 5);
    let log = daemon.ok("audit show --last 100");
    assert!(
        log.contains("ceiling-change {\"tenant\":\"acme\",\"values\":{\"policies\":{\"from\":null,\"to\":\"1\"}}}"),
        "{log}"
    );
}

#[test]
fn an_hours_compilation_is_limited_and_known_modules_cost_nothing() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    daemon.ok("ceiling set compile_s_per_hour=1 --tenant acme");
    let wasm = std::fs::read(policy_file("null")).unwrap();
    // Each with another custom section, so that each is another module.
    let push = |n: u8| {
        let section = [&[0, 3, 1, b'n', n], &wasm[..0]].concat();
        let file = bed.file("module.wasm", [&wasm[..], &section].concat());
        let line = format!("policy push {} --name p", file.display());
        as_bearer(&daemon, &token, &line)
    };
    let mut pushed = 0;
    let refused = loop {
        let outcome = push(pushed);
        if outcome.code != 0 {
            break outcome;
        }
        pushed += 1;
        assert!(pushed < u8::MAX, "a second of compilation has an end");
    };
    at_ceiling(&refused, 8, "`compile_s_per_hour` = 1");
    assert!(pushed > 0);
    assert_eq!(push(0).code, 0, "it is known");
    daemon.ok("ceiling set compile_s_per_hour=3600 --tenant acme");
    assert_eq!(push(pushed).code, 0);
}

#[test]
fn a_lowered_ceiling_says_what_it_means_and_takes_nothing_away() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    daemon.tenant("small");
    daemon.push("--tenant acme", "null", "p", None);
    let bucket = bed.file("bucket.json", BUCKET);
    daemon.push("--tenant acme", "rate_limit", "limit", Some(&bucket));
    let attach = "policy attach limit@1 --service hotel.Reservation --side client --grant state,clock --cpu-us 99";
    bearer_ok(&daemon, &token, attach);
    let values = "policies=1 versions=1 module_kib=32 attachments=0 cpu_us=98 capabilities=clock isolation=process";
    let expected = [
        "tenant acme has 2 policies, above `policies` = 1: they stay,",
        "tenant acme has 2 versions of policies, above `versions` = 1: they stay,",
        "bytes, above `module_kib` = 32: they stay and can be attached,",
        "tenant acme has 1 attachments, above `attachments` = 0: they stay,",
        "of tenant acme is above the ceiling: it may use 99 us per call; it runs in the daemon; it uses state; it stays so",
    ];
    // The default ceiling is everybody's that has no own value.
    let asked = daemon.run(&format!("ceiling set {values}"));
    assert_eq!(asked.code, 3, "{asked}");
    assert!(asked.err.contains("the ceiling isn't changed"), "{asked}");
    assert!(
        asked
            .err
            .contains(&format!("tollgate ceiling set {values} --yes")),
        "{asked}"
    );
    let dry = daemon.ok(&format!("ceiling set {values} --dry-run"));
    for words in expected {
        assert!(
            dry.contains(words) && asked.err.contains(words),
            "{words}: {dry}"
        );
    }
    assert_eq!(dry.lines().count(), expected.len(), "{dry}");
    assert!(
        daemon
            .ok("ceiling show")
            .contains("\nversions            2048")
    );
    assert_eq!(daemon.ok(&format!("ceiling set {values} --yes")), dry);
    assert_eq!(
        daemon.ok("ceiling set versions=1 --yes"),
        "",
        "nothing changes"
    );
    let listed = bearer_ok(&daemon, &token, "policy list");
    assert_eq!(listed.lines().count(), 2, "{listed}");
    // An own value comes first; what goes is the default's again.
    daemon.ok("ceiling set versions=7 --tenant acme");
    let shown = bearer_ok(&daemon, &token, "ceiling show");
    assert!(
        shown.starts_with("ceiling of tenant acme\n") && shown.contains("\nversions            7 "),
        "{shown}"
    );
    assert!(
        shown.contains("  tenant\n") && shown.contains("  default\n"),
        "{shown}"
    );
    let wrong = daemon.run("ceiling set capabilities=clocks");
    assert_eq!(wrong.code, 3, "{wrong}");
    assert!(
        wrong.err.contains("there are log, metrics, state, clock"),
        "{wrong}"
    );
    let unknown = daemon.run("ceiling set version=7");
    assert_eq!(unknown.code, 3, "{unknown}");
    assert!(
        unknown
            .err
            .contains("it has policies, versions, module_mib"),
        "{unknown}"
    );
    // The successor has it. A removed tenant takes its ceiling along.
    daemon.upgrade(&program("tollgated"));
    assert_eq!(bearer_ok(&daemon, &token, "ceiling show"), shown);
    daemon.ok("tenant remove acme --yes");
    let token = daemon.tenant("acme");
    assert!(bearer_ok(&daemon, &token, "ceiling show").contains("versions            1 "));
    assert_eq!(daemon.run("ceiling show --tenant nobody").code, 5);
}

#[test]
fn a_name_that_is_given_again_brings_no_records_of_the_tenant_before() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    daemon.tenant("acme");
    daemon.push("--tenant acme", "null", "secret-plan", None);
    daemon.ok("tenant remove acme --yes");
    let token = daemon.tenant("acme");
    let own = bearer_ok(&daemon, &token, "audit show --last 1000");
    assert_eq!(own.lines().count(), 1, "{own}");
    assert!(
        own.contains("tenant-add") && !own.contains("secret-plan"),
        "{own}"
    );
}

#[test]
fn modules_of_a_tenant_are_signed_by_whom_its_ceiling_says() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let other = daemon.tenant("other");
    let wasm = std::fs::read(policy_file("null")).unwrap();
    let push = |token: &str, file: &Path, rest: &str| {
        let line = format!("policy push {} --name p{rest}", file.display());
        as_bearer(&daemon, token, &line)
    };
    // Keys as people have them: Ed25519 inside the module, ECDSA beside it.
    let inside = wasmsign2::KeyPair::generate();
    let module = wasmsign2::Module::deserialize(&mut &wasm[..]).unwrap();
    let module = inside.sk.sign(module, None).unwrap();
    let mut bytes = Vec::new();
    module.serialize(&mut bytes).unwrap();
    let with_inside = bed.file("inside.wasm", &bytes);
    let beside = p256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
    let signature: p256::ecdsa::DerSignature = p256::ecdsa::signature::Signer::sign(&beside, &wasm);
    let signature = BASE64_STANDARD.encode(signature.as_bytes());
    let signature = bed.file("null.sig", signature);
    let unsigned = bed.file("null.wasm", &wasm);
    let with_beside = format!(" --signature {}", signature.display());
    let in_one_line = |pem: String| {
        let lines = pem.lines().filter(|line| !line.starts_with('-'));
        lines.collect::<String>()
    };
    let ed25519 = in_one_line(inside.pk.to_pem());
    let p256 = beside.verifying_key().to_public_key_pem(LineEnding::LF);
    let p256 = in_one_line(p256.unwrap());

    assert_eq!(push(&token, &unsigned, "").code, 0, "any");
    let told = daemon.ok(&format!(
        "ceiling set signers={ed25519} --tenant acme --dry-run"
    ));
    assert!(
        told.contains("tenant acme has 1 versions of policies that were pushed before"),
        "{told}"
    );
    daemon.ok(&format!(
        "ceiling set signers={ed25519} --tenant acme --yes"
    ));
    let refused_push = push(&token, &unsigned, "");
    at_ceiling(&refused_push, 7, "`signers` = 1 key");
    refused(
        &refused_push,
        7,
        "policy p lacks a signature that is needed: the module isn't signed",
    );
    at_ceiling(
        &push(&token, &unsigned, &with_beside),
        7,
        "`signers` = 1 key",
    );
    assert_eq!(push(&token, &with_inside, "").code, 0);
    // Also what an operator pushes for the tenant. Others push as before.
    at_ceiling(
        &daemon.run(&format!(
            "policy push {} --name p --tenant acme",
            unsigned.display()
        )),
        7,
        "`signers` = 1 key",
    );
    assert_eq!(push(&other, &unsigned, "").code, 0);
    daemon.ok(&format!(
        "ceiling set signers={ed25519},{p256} --tenant acme --yes"
    ));
    assert_eq!(push(&token, &unsigned, &with_beside).code, 0);
    at_ceiling(&push(&token, &unsigned, ""), 7, "`signers` = 2 keys");
    // A former version stays, and can be attached.
    bearer_ok(
        &daemon,
        &token,
        "policy attach p@1 --service hotel.Echo --side client",
    );
    let no_key = "M".repeat(60);
    refused(
        &daemon.run(&format!("ceiling set signers={no_key}")),
        3,
        "key 1 of the tenant's ceiling isn't a public key",
    );
}

#[test]
fn an_instances_memory_and_the_share_of_a_core_are_the_ceilings() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let other = daemon.tenant("other");
    let push = |daemon: &Daemon, token: &str| {
        let file = policy_file("null").display().to_string();
        as_bearer(daemon, token, &format!("policy push {file} --name p"))
    };
    // A Rust guest's stack alone takes 1 MiB.
    assert_eq!(push(&daemon, &token).code, 0);
    daemon.ok("ceiling set memory_mib=1 --tenant acme");
    at_ceiling(&push(&daemon, &token), 8, "`memory_mib` = 1");
    let attach = "policy attach p@1 --service hotel.Echo --side client";
    at_ceiling(&as_bearer(&daemon, &token, attach), 8, "`memory_mib` = 1");
    daemon.ok("ceiling set memory_mib=2 --tenant acme");
    bearer_ok(&daemon, &token, attach);
    assert_eq!(push(&daemon, &other).code, 0);
    bearer_ok(&daemon, &other, attach);
    // The share of a core: at once, over a restart, and with the tenant's end.
    let share = |daemon: &Daemon, tenant: &str| {
        let status = daemon.status();
        let tenants = status["accounts"].as_array().unwrap();
        let its = tenants.iter().find(|its| its["tenant"] == tenant);
        its.unwrap()["share_percent"].clone()
    };
    assert_eq!(share(&daemon, "acme"), 25);
    daemon.ok("ceiling set cpu_share_percent=3 --tenant acme");
    daemon.ok("ceiling set cpu_share_percent=60");
    let shares = |daemon: &Daemon| ["acme", "other"].map(|tenant| share(daemon, tenant));
    assert_eq!(shares(&daemon), [3, 60]);
    daemon.process().kill();
    drop(daemon);
    let daemon = bed.daemon_with("a", &durable());
    assert_eq!(shares(&daemon), [3, 60]);
    daemon.ok("ceiling reset cpu_share_percent");
    assert_eq!(shares(&daemon), [3, 25]);
    daemon.ok("tenant remove acme --yes");
    let token = daemon.tenant("acme");
    assert_eq!(push(&daemon, &token).code, 0);
    bearer_ok(&daemon, &token, attach);
    assert_eq!(shares(&daemon), [25, 25]);
}

// ---- approvals ----

/// A change that waits: exit status 75, and its request.
#[track_caller]
fn waits(outcome: &Outcome, request: &str) {
    assert_eq!(outcome.code, 75, "{outcome}");
    let words = format!("waits for an operator's approval: request {request}. ");
    assert!(outcome.err.contains(&words), "{words}: {outcome}");
    assert_eq!(outcome.out, "");
}

#[track_caller]
fn refused(outcome: &Outcome, code: i32, words: &str) {
    assert_eq!(outcome.code, code, "{outcome}");
    assert!(outcome.err.contains(words), "{words}: {outcome}");
}

fn durable() -> Options {
    Options {
        durable: true,
        ..Options::default()
    }
}

#[test]
fn what_a_tenant_puts_in_force_waits_for_an_operator_and_survives_a_restart() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let other = daemon.tenant("other");
    let viewer = credential(&daemon, "acme", "viewer", "viewer");
    daemon.push("--tenant acme", "null", "p", None);
    daemon.push("--tenant acme", "null", "p", None);
    daemon.ok("ceiling set approval=operator --tenant acme");
    let attach = "policy attach p@1 --service hotel.Echo --side client";
    // What could never be attached doesn't wait.
    for place in ["a/b", "hotel.\u{202e}ohcE", "*", "hotel.Echo --method E/F"] {
        let line = format!("policy attach p@1 --side client --service {place}");
        let outcome = as_bearer(&daemon, &token, &line);
        assert_eq!(outcome.code, 3, "{place}: {outcome}");
    }
    waits(&as_bearer(&daemon, &token, attach), "acme/1");
    // The same request again is the same request. Nothing is in force.
    waits(&as_bearer(&daemon, &token, attach), "acme/1");
    assert!(!bearer_ok(&daemon, &token, "policy list").contains("hotel.Echo"));
    // Who sees it, and who may decide.
    let what = "attach: p@1 decides at client hotel.Echo/*";
    for listed in [
        bearer_ok(&daemon, &token, "approval list"),
        bearer_ok(&daemon, &viewer, "approval list"),
        daemon.ok("approval list"),
    ] {
        assert_eq!(listed.lines().count(), 1, "{listed}");
        assert!(
            listed.starts_with("acme/1  waiting  default  2") && listed.contains(what),
            "{listed}"
        );
    }
    let shown = daemon.ok("approval show acme/1 --json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let module = shown["what"]["versions"][0]["module"].as_str().unwrap();
    assert_eq!((module.len(), &shown["number"]), (64, &1.into()), "{shown}");
    assert_eq!(bearer_ok(&daemon, &other, "approval list"), "");
    refused(
        &as_bearer(&daemon, &other, "approval show 1"),
        5,
        "no request 1",
    );
    refused(
        &as_bearer(&daemon, &other, "approval show acme/1"),
        5,
        "there is no tenant \"acme\"",
    );
    refused(
        &as_bearer(&daemon, &viewer, "approval withdraw 1"),
        7,
        "viewer",
    );
    refused(&as_bearer(&daemon, &token, "approve 1"), 7, "operators may");

    // A daemon that begins anew has it, and so does a successor.
    daemon.process().kill();
    drop(daemon);
    let mut daemon = bed.daemon_with("a", &durable());
    daemon.upgrade(&program("tollgated"));
    assert!(daemon.ok("approval list").contains(what));
    assert_eq!(
        daemon.ok("approve acme/1"),
        format!("approved acme/1: {what}\n")
    );
    assert!(bearer_ok(&daemon, &token, "policy list").contains("client hotel.Echo/*"));
    assert!(daemon.ok("approval list").is_empty(), "none waits");
    let ended = bearer_ok(&daemon, &token, "approval show 1");
    assert!(
        ended.contains("\napproved at 2") && ended.contains(" by operator\n"),
        "{ended}"
    );
    refused(&daemon.run("approve acme/1"), 9, "is approved already");

    // A trial needs no approval, and neither does what takes something back. To decide does.
    bearer_ok(&daemon, &token, "policy upgrade p@2 --mode shadow");
    waits(&as_bearer(&daemon, &token, "policy promote p"), "acme/2");
    bearer_ok(&daemon, &token, "policy rollback p");
    for mode in ["shadow --probation 60m", "canary=1%", "enforce"] {
        let upgrade = format!("policy upgrade p@2 --mode {mode}");
        let waiting = as_bearer(&daemon, &token, &upgrade);
        assert_eq!(waiting.code, 75, "{mode}: {waiting}");
    }
    waits(
        &as_bearer(&daemon, &token, &format!("{attach} --fresh")),
        "acme/6",
    );
    // There is no version on trial any more that the second request could promote.
    refused(
        &daemon.run("approve acme/2"),
        9,
        "no version of p is on trial",
    );
    bearer_ok(&daemon, &token, "approval withdraw 2");
    refused(&daemon.run("approve acme/2"), 9, "is withdrawn already");

    // The command that waits learns of the denial.
    let file = daemon.token_file(&token).display().to_string();
    let upgrade = "policy upgrade p@2 --mode enforce --wait --token-file";
    let words = upgrade.split(' ').chain([&*file]);
    let mut waiting = daemon.start(words);
    let line = waiting.line(PATIENCE, |line| line.contains("request acme/5 waits"));
    line.unwrap();
    let deny = ["approve", "acme/5", "--deny", "--reason", "not on a Friday"];
    assert_eq!(daemon.tollgate(deny).code, 0);
    let status = waiting.ended(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(7));
    let said = waiting.said().join("\n");
    assert!(said.contains(" by operator: not on a Friday"), "{said}");
    let listed = bearer_ok(&daemon, &token, "policy list");
    let is_second = |line: &&str| line.contains("p@2") && line.contains("hotel.Echo");
    assert_eq!(listed.lines().find(is_second), None, "{listed}");

    // Detaching needs none. An operator's own act needs none.
    daemon.ok("policy attach p@1 --tenant acme --service hotel.Echo --side server");
    bearer_ok(&daemon, &token, "policy detach p --side client");
    let log = bearer_ok(&daemon, &token, "audit show --last 100");
    for record in [
        "tenant acme credential default: approval-request {",
        "operator: approval-grant {",
        "operator: approval-deny {",
        "tenant acme credential default: approval-withdraw {",
    ] {
        assert!(log.contains(record), "{record}: {log}");
    }
    // Requests end with their tenant.
    daemon.ok("tenant remove acme --yes");
    assert_eq!(daemon.ok("approval list"), "");
    let token = daemon.tenant("acme");
    assert_eq!(bearer_ok(&daemon, &token, "approval list"), "");
}

#[test]
fn an_approved_change_is_the_one_that_was_requested_under_what_counts_then() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let build = credential(&daemon, "acme", "build", "owner");
    for _ in 0..3 {
        daemon.push("--tenant acme", "null", "p", None);
    }
    daemon.ok("ceiling set approval=operator --tenant acme");
    let attach = |token: &str, what: &str| {
        as_bearer(
            &daemon,
            token,
            &format!("policy attach {what} --service hotel.Echo"),
        )
    };
    // The ceiling counts as it is then; the request waits on.
    waits(&attach(&token, "p@1 --side client --cpu-us 99"), "acme/1");
    daemon.ok("ceiling set cpu_us=50 --tenant acme");
    at_ceiling(&daemon.run("approve acme/1"), 8, "`cpu_us` = 50");
    daemon.ok("ceiling set cpu_us=100 --tenant acme");
    daemon.ok("approve acme/1");
    // A version that is gone.
    waits(&attach(&token, "p@3 --side server"), "acme/2");
    bearer_ok(&daemon, &token, "policy delete p@3");
    refused(&daemon.run("approve acme/2"), 5, "has no policy p@3");
    // A place that has changed meanwhile.
    let upgrade = "policy upgrade p@2 --mode canary=10%";
    waits(&as_bearer(&daemon, &token, upgrade), "acme/3");
    daemon.ok("policy attach p@1 --tenant acme --service hotel.Echo --side client --record 9");
    refused(
        &daemon.run("approve acme/3"),
        9,
        "would change something else now",
    );
    // An attachment that came meanwhile isn't upgraded along.
    waits(&as_bearer(&daemon, &token, upgrade), "acme/4");
    daemon.ok("policy attach p@1 --tenant acme --service hotel.Echo --side server");
    refused(
        &daemon.run("approve acme/4"),
        9,
        "would change something else now",
    );
    daemon.ok("policy detach p --tenant acme --side server");
    daemon.ok("approve acme/4");
    // A token that has ended.
    waits(&attach(&build, "p@1 --side server"), "acme/5");
    daemon.ok("credential revoke build --tenant acme");
    refused(
        &daemon.run("approve acme/5"),
        9,
        "the token of credential build",
    );
    assert!(
        daemon
            .ok("approval list --tenant acme")
            .contains("acme/5  waiting  build")
    );
    assert!(daemon.ok("approval list").contains("its token has ended"));
    assert_eq!(daemon.run("approve acme/5 --deny").code, 0);
    // What is on trial with a probation when the ceiling is set goes on, and the operator is told.
    daemon.ok("ceiling set approval=none --tenant acme");
    bearer_ok(&daemon, &token, "policy rollback p");
    bearer_ok(
        &daemon,
        &token,
        "policy upgrade p@2 --mode shadow --probation 60m",
    );
    let told = daemon.ok("ceiling set approval=operator --tenant acme --dry-run");
    assert!(
        told.contains(
            "p@2 at client hotel.Echo/* of tenant acme is on trial, and decides by itself"
        ),
        "{told}"
    );
    // Too many.
    daemon.ok("ceiling set approval=operator --tenant acme --yes");
    let waiting = daemon.ok("approval list").lines().count();
    for n in waiting..16 {
        let asked = attach(&token, &format!("p@1 --side server --record {}", n + 1));
        assert_eq!(asked.code, 75, "{asked}");
    }
    let full = attach(&token, "p@1 --side server --record 99");
    refused(
        &full,
        8,
        "16 requests of this tenant that wait for approval",
    );
}

// ---- own views ----

#[test]
fn a_tenant_sees_its_own_calls_and_neither_others_nor_the_providers_policies() {
    const RESERVE: &str = "hotel.Reservation/Reserve";
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let (token, evil) = (daemon.tenant("acme"), daemon.tenant("evil"));
    let viewer = credential(&daemon, "acme", "viewer", "viewer");
    let reply = ["--reply", "{}"];
    let _servers =
        [&token, &evil].map(|token| daemon.serve_hotel(token, "hotel.Reservation", &reply));
    let list = |name: &str| bed.file("list.json", format!(r#"{{"blocked": ["{name}"]}}"#));
    // The provider rejects Ada before the tenant's own policy sees the call, which rejects Eve.
    daemon.push("--provider", "acl", "guard", Some(&list("Ada")));
    daemon.ok("policy attach guard@1 --provider --side client");
    for tenant in ["acme", "evil"] {
        daemon.push(
            &format!("--tenant {tenant}"),
            "acl",
            "own",
            Some(&list("Eve")),
        );
        daemon.ok(&format!(
            "policy attach own@1 --tenant {tenant} --service hotel.Reservation --side client"
        ));
    }
    let call = |token: &str, name: &str| {
        let request = format!(r#"{{"customer_name": "{name}"}}"#);
        daemon.call_hotel(token, "", RESERVE, &request).code
    };
    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&bearer_ok(&daemon, &viewer, line)).unwrap()
    };
    #[track_caller]
    fn is_own(what: &str, shown: &str) {
        assert!(
            shown.contains("acme") || shown.contains("Reserve"),
            "{what}: {shown}"
        );
        for hidden in ["evil", "guard", "\"providers\":true"] {
            assert!(!shown.contains(hidden), "{what} shows {hidden}: {shown}");
        }
    }
    // Calls as they end, while both tenants call.
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let tapped = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                for (token, name, code) in [
                    (&evil, "Bob", 0),
                    (&token, "Bob", 0),
                    (&token, "Ada", 7),
                    (&token, "Eve", 7),
                ] {
                    assert_eq!(call(token, name), code);
                }
            }
        });
        let tapped = as_bearer(&daemon, &viewer, "tap --denied --json --count 4 --for 60s");
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        tapped
    });
    assert_eq!(tapped.code, 0, "{tapped}");
    is_own("tap", &tapped.out);
    assert_eq!(tapped.out.lines().count(), 4, "{tapped}");
    let denied_by: Vec<_> = tapped
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["denied_by"].clone())
        .collect();
    assert!(denied_by.contains(&"own@1".into()), "{denied_by:?}");
    assert!(
        denied_by.contains(&serde_json::Value::Null),
        "{denied_by:?}"
    );
    // Calls that ended.
    let traces = json("trace --json");
    is_own("trace", &traces.to_string());
    let all: serde_json::Value =
        serde_json::from_str(&daemon.ok("trace --json --last 1000")).unwrap();
    let all = all["traces"].as_array().unwrap();
    assert!(
        all.iter().any(|trace| trace["denied_by"] == "guard@1"),
        "{all:?}"
    );
    for trace in traces["traces"].as_array().unwrap() {
        let id = trace["trace"].as_str().unwrap();
        is_own(
            "a trace",
            &bearer_ok(&daemon, &viewer, &format!("trace {id} --json")),
        );
        is_own(
            "a call explained",
            &bearer_ok(&daemon, &viewer, &format!("explain {id} --json")),
        );
    }
    assert_eq!(call(&evil, "Ada"), 7);
    let others: serde_json::Value =
        serde_json::from_str(&daemon.ok("trace --json --last 1000")).unwrap();
    let others = others["traces"].as_array().unwrap().iter();
    let others: Vec<_> = others.filter(|trace| trace["tenant"] == "evil").collect();
    let id = others[0]["trace"].as_str().unwrap();
    let hidden = as_bearer(&daemon, &viewer, &format!("trace {id}"));
    let unknown = as_bearer(&daemon, &viewer, &format!("trace {}", "0".repeat(32)));
    assert_eq!((hidden.code, unknown.code), (5, 5), "{hidden}");
    assert_eq!(
        hidden.err.replace(id, "ID"),
        unknown.err.replace(&"0".repeat(32), "ID")
    );
    // Calls that might be made: Ada's is the provider's business.
    for (name, words) in [("Ada", "=> OK"), ("Eve", "=> PERMISSION_DENIED by own@1")] {
        let request = format!(r#"{{"customer_name":"{name}"}}"#);
        let explained = bearer_ok(
            &daemon,
            &viewer,
            &format!("explain --method {RESERVE} {request}"),
        );
        assert!(explained.contains(words), "{explained}");
        is_own("explain", &explained.replace("=> OK", "acme"));
    }
    let proto = tollgate_conformance::testbed::proto_file("hotel.proto");
    let with_schema = format!(
        "explain --method hotel.Echo/Echo --proto {}",
        proto.display()
    );
    let explained = as_bearer(&daemon, &viewer, &with_schema);
    assert!(explained.code == 0 || explained.code == 5, "{explained}");
    assert!(!explained.err.contains("guard"), "{explained}");
    // What there is, and how much.
    let status = json("status --json");
    is_own("status", &status.to_string());
    assert_eq!(status["sessions"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(
        status["attachments"].as_array().unwrap().len(),
        1,
        "{status}"
    );
    for key in [
        "peers", "datapath", "tenants", "capacity", "audit", "socket",
    ] {
        assert!(status[key].is_null(), "{key}: {status}");
    }
    is_own("status", &bearer_ok(&daemon, &viewer, "status"));
    let top = json("top --json --interval 100ms");
    is_own("top", &top.to_string());
    assert_eq!(top["runtimes"], serde_json::json!([]), "{top}");
    assert_eq!(
        (&top["sessions"], &top["services"]),
        (&1.into(), &1.into()),
        "{top}"
    );
    // Another tenant is nobody.
    for line in [
        "status --tenant evil",
        "tap --tenant evil --for 1s",
        "top --tenant evil --once",
    ] {
        let refused = as_bearer(&daemon, &viewer, line);
        assert!(
            refused.code == 5 || !refused.out.contains("Reserve"),
            "{line}: {refused}"
        );
    }
}

/// A canary's course, for a program that would poll otherwise.
#[test]
fn a_watch_follows_a_canary_and_ends_with_its_token() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let viewer = credential(&daemon, "acme", "look", "viewer");
    let one = daemon.push("--tenant acme", "null", "p", None);
    let place = "--tenant acme --service hotel.Echo --side client";
    daemon.ok(&format!("policy attach {one} {place}"));
    let two = daemon.push("--tenant acme", "null", "p", None);
    let (tell, told) = std::sync::mpsc::channel();
    let watching = client(&daemon, Some(&viewer));
    let watcher = std::thread::spawn(move || {
        let request = WatchPoliciesRequest {
            tenant: String::new(),
            interval: Duration::from_millis(250).try_into().ok(),
        };
        watching.watch(request, |seen| {
            let report = to_json(seen.report.unwrap_or_default());
            match tell.send(report.to_string()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })
    });
    let until = |words: &str| {
        let mut last = String::new();
        while !last.contains(words) {
            last = told
                .recv_timeout(SOON)
                .unwrap_or_else(|_| panic!("no {words}: {last}"));
        }
    };
    until("\"role\":\"stable\"");
    daemon.ok(&format!("policy upgrade {two} {place} --mode canary=10%"));
    until("canary 10%");
    daemon.ok(&format!("policy promote p {place}"));
    until("\"version\":2");
    let refused = client(&daemon, Some(&token)).watch(
        WatchPoliciesRequest {
            tenant: "other".to_owned(),
            interval: None,
        },
        |_| ControlFlow::Continue(()),
    );
    assert_eq!(refused.unwrap_err().code, Code::NOT_FOUND);
    daemon.ok("credential revoke look --tenant acme");
    let ended = watcher.join().unwrap().unwrap_err();
    assert_eq!(ended.code, Code::UNAUTHENTICATED, "{ended}");
}

#[test]
fn a_tenant_has_few_taps_and_leaves_operators_theirs() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let (tenant, operator) = (client(&daemon, Some(&token)), client(&daemon, None));
    let path = "/tollgate.admin.v1.ObservationService/TapCalls";
    // Each ends with its stream, and its place is free a while later.
    for _ in 0..2 {
        tenant.ask_bytes(path, Vec::new()).unwrap();
    }
    let full = tenant.ask_bytes(path, Vec::new()).unwrap_err();
    assert_eq!(full.code, Code::RESOURCE_EXHAUSTED, "{full}");
    assert!(full.message.contains("2 taps of this tenant"), "{full}");
    for _ in 0..8 {
        operator.ask_bytes(path, Vec::new()).unwrap();
    }
}

// ---- contexts ----

#[test]
fn a_context_names_the_daemon_and_the_token() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = bed.secret("token", daemon.tenant("acme"));
    daemon.push("--tenant acme", "null", "p", None);
    let config = bed.path("config");
    // Like a user's shell: it names neither socket nor token.
    let tollgate = |words: &str, stdin: &[u8]| {
        let env = [
            format!("XDG_CONFIG_HOME={}", config.display()),
            format!("XDG_RUNTIME_DIR={}", bed.path("").display()),
            "TOLLGATE_SOCKET=".to_owned(),
            "TOLLGATE_TOKEN=".to_owned(),
            "TOLLGATE_TOKEN_FILE=".to_owned(),
            "TOLLGATE_CONTEXT=".to_owned(),
            program("tollgate").display().to_string(),
        ];
        let words = words.split(' ').map(str::to_owned);
        run(Path::new("env"), env.into_iter().chain(words), stdin)
    };
    let ok = |words: &str, stdin: &[u8]| {
        let outcome = tollgate(words, stdin);
        assert_eq!(outcome.code, 0, "{words}: {outcome}");
        outcome.out
    };
    assert_eq!(ok("context list", b""), "");
    let socket = daemon.socket().display().to_string();
    let path = token.display().to_string();
    ok(
        &format!("--socket {socket} context add acme --token-file {path}"),
        b"",
    );
    let text = std::fs::read_to_string(&token).unwrap();
    ok(
        &format!("--socket {socket} context add kept --token-file -"),
        text.as_bytes(),
    );
    ok(&format!("--socket {socket} context add operator"), b"");
    let listed = ok("context list", b"");
    assert!(
        listed.starts_with(&format!("* acme  {socket}  {path}\n")),
        "{listed}"
    );
    assert!(
        listed.contains("  operator  ") && listed.contains("  as this user\n"),
        "{listed}"
    );
    // The first one is in use. It is the tenant: no name is needed.
    assert!(ok("policy list", b"").starts_with("acme  p@1  "));
    assert!(ok("usage", b"").starts_with("tenant acme\n"));
    assert!(ok("--context kept credential list", b"").contains("default  owner"));
    let unnamed = tollgate("--context operator credential list", b"");
    assert_eq!(unnamed.code, 3, "{unnamed}");
    ok("context use operator", b"");
    assert!(ok("policy list", b"").starts_with("acme  p@1  "));
    assert_eq!(ok("tenant list", b""), "acme\n");
    // A socket on the command line is another daemon's: no context's token goes there.
    ok("context use acme", b"");
    let named = tollgate(&format!("--socket {socket} credential list"), b"");
    assert_eq!(named.code, 3, "{named}");
    let wrong = tollgate("--context acne policy list", b"");
    assert_eq!(wrong.code, 5, "{wrong}");
    assert!(wrong.err.contains("acme"), "{wrong}");
    ok("context remove kept", b"");
    assert!(!config.join("tollgate/kept.token").exists());
    ok("context unuse", b"");
    let nobody = tollgate("policy list", b"");
    assert_ne!(nobody.code, 0, "{nobody}");
}

// ---- the socket ----

#[test]
fn the_socket_has_the_daemons_permissions_and_moves_to_the_successor() {
    let bed = Testbed::new();
    let options = Options {
        config: "socket_mode = \"0660\"\n".to_owned(),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let socket = socket_beside(daemon.socket());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o660);
    let token = daemon.tenant("acme");
    let before = client(&daemon, Some(&token));
    before.ask(ListPoliciesRequest::default()).unwrap();
    daemon.upgrade(&program("tollgated"));
    assert_eq!(mode(&socket), 0o660);
    let after = client(&daemon, Some(&token));
    after.ask(ListCredentialsRequest::default()).unwrap();
    let missing = after.ask(ShowPolicyRequest {
        name: "none".to_owned(),
        ..ShowPolicyRequest::default()
    });
    let missing = missing.unwrap_err();
    assert_eq!(
        (missing.code, &*missing.message),
        (Code::NOT_FOUND, "tenant \"acme\" has no policy none")
    );
    // The predecessor's connections have ended.
    let gone = before.ask(ListPoliciesRequest::default()).unwrap_err();
    assert_eq!(gone.code, Code::UNAVAILABLE, "{gone}");
    // A daemon that stops takes its file with it; then the command line says that nobody listens.
    let path = daemon.socket().to_owned();
    signal(daemon.pid(), Signal::TERM);
    eventually(SOON, || !socket.exists()).unwrap();
    assert!(Client::connect(&socket, None, PATIENCE).is_err());
    let args = ["--socket", &path.display().to_string(), "policy", "list"].map(str::to_owned);
    let nobody = run(&program("tollgate"), args, b"");
    assert_eq!(nobody.code, 14, "{nobody}");
}

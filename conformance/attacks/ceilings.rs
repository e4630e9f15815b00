//! A tenant at its ceiling, in each resource that the ceiling's table has: the refusal names the
//! limit, its value, and who can raise it.
//!
//! The keys are the daemon's own: one without a case here fails.

use std::time::Duration;

use tollgate_admin::client::Client;
use tollgate_admin::proto::{
    ApplyStateHeader, AttachPolicyRequest, AttachmentOptions, AttachmentState, Isolation, Mode,
    Names, PolicyPart, PushPolicyHeader, ShowCeilingRequest, Side, State, VersionReference,
};
use tollgate_admin::{ApplyOrder, PushOrder, Secret, Status, socket_beside};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::Module;
use tollgate_conformance::testbed::{Daemon, Testbed, policy_file};
use tollgate_conformance::traffic::ECHO;
use tollgate_shm_abi::status::Code;

use crate::caller::{Caller, patient_daemon};
use crate::measure::{Limit, measured, say, together};

/// RFC 8410's example of a public key.
const KEY: &str = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";

/// A tenant with version 1 of policy `p`.
struct Tenant<'d> {
    daemon: &'d Daemon,
    name: String,
    token: String,
    client: Client,
}

impl<'d> Tenant<'d> {
    fn new(daemon: &'d Daemon, name: String) -> Tenant<'d> {
        let token = daemon.tenant(&name);
        let secret = Secret::new(&*token);
        let socket = socket_beside(daemon.socket());
        let client = Client::connect(&socket, Some(&secret), Duration::from_secs(60)).unwrap();
        Tenant {
            daemon,
            name,
            token,
            client,
        }
    }

    fn set(&self, key: &str, value: &str) {
        let name = &self.name;
        let line = format!("ceiling set {key}={value} --tenant {name} --yes");
        self.daemon.ok(&line);
    }

    fn push(&self, module: Vec<u8>) -> Result<(), Status> {
        let order = PushOrder {
            header: PushPolicyHeader {
                owner: None,
                name: "p".to_owned(),
            },
            parts: [(PolicyPart::Module.into(), module)].into(),
            ..PushOrder::default()
        };
        self.client.push(order, |_step| {}).map(drop)
    }

    fn attach(&self, options: AttachmentOptions) -> Result<(), Status> {
        let attached = self.client.ask(AttachPolicyRequest {
            name: "p".to_owned(),
            version: 1,
            service: ECHO.to_owned(),
            side: Side::Client.into(),
            mode: Mode::Enforce.into(),
            options: Some(options),
            ..AttachPolicyRequest::default()
        });
        attached.map(drop)
    }

    fn apply_attachment(&self) -> Result<(), Status> {
        let attachment = AttachmentState {
            name: "p".to_owned(),
            service: ECHO.to_owned(),
            side: Side::Client.into(),
            stable: Some(VersionReference {
                version: 1,
                policy: 0,
            }),
            ..AttachmentState::default()
        };
        let order = ApplyOrder {
            header: ApplyStateHeader::default(),
            state: State {
                attachments: vec![attachment],
                ..State::default()
            },
            ..ApplyOrder::default()
        };
        self.client.apply(order, |_step| {}).map(drop)
    }

    /// Calls, many at once, until one is refused for its tenant's share of a core.
    fn call(&self) -> Result<(), Status> {
        let caller = Caller::new(self.daemon, self.token.clone());
        let spin = std::fs::read(policy_file("spin")).unwrap();
        let mut admin = Admin::connect(self.daemon);
        let place = Place::client(&self.name, ECHO);
        admin.install(&place, "spin", &spin, b"work 1500");
        for _ in 0..100 {
            let outcomes = caller.at_once(1_000);
            let refused = outcomes.keys().find(|text| text.contains("CPU share"));
            if let Some(text) = refused {
                let code = match text.starts_with("RESOURCE_EXHAUSTED") {
                    true => Code::RESOURCE_EXHAUSTED,
                    false => Code::UNKNOWN,
                };
                return Err(Status::new(code, text.clone()));
            }
        }
        Ok(())
    }
}

/// A module of its own for each number.
fn numbered(number: u32) -> Vec<u8> {
    let mut wasm = std::fs::read(policy_file("null")).unwrap();
    wasm.extend([0, 6, 1, b'n']);
    wasm.extend(number.to_le_bytes());
    wasm
}

fn options() -> AttachmentOptions {
    AttachmentOptions::default()
}

/// Puts a tenant at its ceiling in one resource. Returns the value that it has there, its status,
/// and what it gets.
fn at(tenant: &Tenant<'_>, key: &str) -> (&'static str, Code, Result<(), Status>) {
    let null = || std::fs::read(policy_file("null")).unwrap();
    let first = |module: Vec<u8>| tenant.push(module).unwrap();
    let set = |value: &'static str| {
        tenant.set(key, value);
        value
    };
    let full = Code::RESOURCE_EXHAUSTED;
    match key {
        "policies" | "versions" => (set("0"), full, tenant.push(null())),
        "module_mib" => (set("0"), full, tenant.push(null())),
        "memory_mib" | "module_kib" => (set("1"), full, tenant.push(null())),
        "languages" => (set("opa"), Code::PERMISSION_DENIED, tenant.push(null())),
        "signers" => (set(KEY), Code::PERMISSION_DENIED, tenant.push(null())),
        "attachments" => {
            first(null());
            (set("0"), full, tenant.attach(options()))
        }
        "changes_per_hour" => {
            first(null());
            (set("1"), full, tenant.push(null()))
        }
        "compile_s_per_hour" => {
            let value = set("1");
            let mut pushes = (0..10_000).map(|number| tenant.push(numbered(number)));
            let refused = pushes.find(Result::is_err).unwrap_or(Ok(()));
            (value, full, refused)
        }
        "cpu_us" => {
            first(null());
            let value = set("50");
            let more = AttachmentOptions {
                cpu_us: Some(51),
                ..options()
            };
            (value, full, tenant.attach(more))
        }
        "cpu_share_percent" => (set("1"), full, tenant.call()),
        "capabilities" => {
            first(
                Module {
                    manifest: r#""capabilities":["clock"],"#.to_owned(),
                    ..Module::default()
                }
                .wasm(),
            );
            let value = set("none");
            let granted = Names {
                names: vec!["clock".to_owned()],
            };
            let granting = AttachmentOptions {
                capabilities: Some(granted),
                ..options()
            };
            (value, Code::PERMISSION_DENIED, tenant.attach(granting))
        }
        "fields_allow" | "fields_deny" => {
            first(
                Module {
                    methods: r#"{"method":"hotel.Echo/Echo","fields":["payload"]}"#.to_owned(),
                    ..Module::default()
                }
                .wasm(),
            );
            let value = set(if key == "fields_allow" {
                "none"
            } else {
                "*/*:*"
            });
            (value, Code::PERMISSION_DENIED, tenant.attach(options()))
        }
        "isolation" => {
            first(null());
            let value = set("process");
            let here = AttachmentOptions {
                isolation: Isolation::None.into(),
                ..options()
            };
            (value, Code::PERMISSION_DENIED, tenant.attach(here))
        }
        "trial" => {
            first(null());
            let value = set("required");
            (value, Code::FAILED_PRECONDITION, tenant.attach(options()))
        }
        // Its attachments wait; see `administration.rs`. Its documents can't.
        "approval" => {
            first(null());
            let value = set("operator");
            (value, Code::FAILED_PRECONDITION, tenant.apply_attachment())
        }
        unknown => panic!("the ceiling has a key without an attack: {unknown}"),
    }
}

#[test]
fn a_tenant_at_its_ceiling_is_told_the_limit_its_value_and_who_can_raise_it() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "");
    let probe = Tenant::new(&daemon, "probe".to_owned());
    let shown = probe.client.ask(ShowCeilingRequest::default()).unwrap();
    let (mut refused, keys) = (0, shown.values.len());
    for value in shown.values {
        let key = value.key;
        let tenant = Tenant::new(&daemon, key.replace('_', "-"));
        let (value, code, outcome) = at(&tenant, &key);
        let status = outcome.expect_err(&key);
        assert_eq!(status.code, code, "{key}: {status}");
        let text = &status.message;
        let value = match key.as_str() {
            "signers" => "1 key".to_owned(),
            "cpu_share_percent" => format!("{value}%"),
            _ => format!("= {value}"),
        };
        for words in [&*format!("`{key}`"), &value, "operator can change it"] {
            assert!(text.contains(words), "{key}: {words:?}: {text}");
        }
        refused += 1;
    }
    say(&format!(
        "a tenant at its ceiling in each of {keys} resources"
    ));
    measured(
        "resources in which a tenant at its ceiling isn't told the limit",
        (keys - refused) as f64,
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
}

//! Names that are none, in every request of the API that has a name: separators, wildcards,
//! names that look like another tenant's, control characters, and a lot of text.
//!
//! The requests are made from the API's own definition, so a new one is attacked, too.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, Kind, MessageDescriptor, ReflectMessage as _, Value,
};
use tollgate_admin::client::Client;
use tollgate_admin::proto::{
    ApplyStateHeader, ContentReference, ListPoliciesRequest, Owner, PolicyPart, PolicyState,
    PushPolicyHeader, State, content_reference,
};
use tollgate_admin::{ALL, ApplyOrder, MAX_STATUS_BYTES, PushOrder, Secret, Status, socket_beside};
use tollgate_conformance::testbed::{Daemon, Testbed, policy_file};
use tollgate_shm_abi::status::Code;

use crate::measure::{Limit, measured, say, together};

/// Tenants that attack at once: each has a pace.
const TENANTS: usize = 6;

/// The names. `evil` is the tenant that they are after.
fn names() -> Vec<String> {
    let names = [
        "../evil",
        "evil/p",
        "p@1",
        "*",
        "ev\u{456}l",
        "evil\u{200b}",
        "evil\0",
        "p\nevil",
        "\u{202e}live",
        "EVIL",
        "evil ",
        "{evil}",
    ];
    let mut names: Vec<_> = names.map(str::to_owned).into();
    names.push("a".repeat(10 << 10));
    names
}

/// Fields that are names, of whatever.
fn is_name(field: &str) -> bool {
    matches!(
        field,
        "tenant" | "name" | "names" | "service" | "method" | "key" | "set" | "id"
    )
}

/// Whether a name is a good one there: that of a service or a method.
fn is_identifier(path: &[String], name: &str) -> bool {
    let is_method = path
        .last()
        .is_some_and(|field| field == "service" || field == "method");
    is_method && name.len() < 128 && name.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// The first content of an apply.
fn first_content() -> ContentReference {
    ContentReference {
        content: Some(content_reference::Content::Number(0)),
    }
}

/// A message with plausible values: the bearer's own objects, which exist.
fn plausible(of: &MessageDescriptor) -> DynamicMessage {
    let mut message = DynamicMessage::new(of.clone());
    for field in of.fields() {
        let value = match (field.name(), field.kind()) {
            ("tenant" | "provider", _) => continue,
            ("name", Kind::String) => Value::String("p".to_owned()),
            ("service", Kind::String) => Value::String("hotel.Echo".to_owned()),
            ("method", Kind::String) => Value::String("Echo".to_owned()),
            ("owner" | "at" | "header", Kind::Message(inner)) => Value::Message(plausible(&inner)),
            (_, Kind::Enum(_)) if !field.is_list() => Value::EnumNumber(1),
            ("version" | "from" | "to", Kind::Uint32) => Value::U32(1),
            _ => continue,
        };
        message.set_field(&field, value);
    }
    message
}

/// The paths of all names in a message, through all messages in it.
fn paths(of: &MessageDescriptor, depth: usize) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for field in of.fields() {
        match field.kind() {
            Kind::String if is_name(field.name()) => found.push(vec![field.name().to_owned()]),
            Kind::Message(inner) if depth > 0 && !field.is_map() => {
                let inner = paths(&inner, depth - 1).into_iter();
                found.extend(inner.map(|path| [vec![field.name().to_owned()], path].concat()));
            }
            _ => {}
        }
    }
    found
}

/// Writes a name at a path. What is on the way is made plausible.
fn put(message: &mut DynamicMessage, path: &[String], name: &str) {
    let field = message.descriptor().get_field_by_name(&path[0]).unwrap();
    let value = match (field.kind(), path.len()) {
        (Kind::Message(inner), 2..) => {
            let mut inside = match message.get_field(&field).into_owned() {
                Value::Message(inside) if message.has_field(&field) => inside,
                _ => plausible(&inner),
            };
            put(&mut inside, &path[1..], name);
            Value::Message(inside)
        }
        _ => Value::String(name.to_owned()),
    };
    let value = match field.is_list() {
        true => Value::List(vec![value]),
        false => value,
    };
    message.set_field(&field, value);
}

/// A name somewhere in a request.
struct Attempt {
    method: &'static str,
    path: Vec<String>,
    name: String,
    request: Request,
}

enum Request {
    Bytes(String, Vec<u8>),
    Push(PushOrder),
    Apply(ApplyOrder),
}

/// All names, everywhere.
fn attempts() -> Vec<Attempt> {
    let pool = DescriptorPool::decode(tollgate_admin::DESCRIPTOR_SET).unwrap();
    let message = |name: &str| {
        let name = format!("tollgate.admin.v1.{name}");
        pool.get_message_by_name(&name).unwrap()
    };
    let mut attempts = Vec::new();
    let mut all =
        |method: &'static str, of: MessageDescriptor, make: &dyn Fn(Vec<u8>) -> Request| {
            for path in paths(&of, 3) {
                for name in names()
                    .into_iter()
                    .filter(|name| !is_identifier(&path, name))
                {
                    let mut message = plausible(&of);
                    put(&mut message, &path, &name);
                    attempts.push(Attempt {
                        method,
                        path: path.clone(),
                        name,
                        request: make(message.encode_to_vec()),
                    });
                }
            }
        };
    for row in ALL {
        match row.method {
            "PushPolicy" => all(row.method, message("PushPolicyHeader"), &|bytes| {
                let module = std::fs::read(policy_file("null")).unwrap();
                Request::Push(PushOrder {
                    header: PushPolicyHeader::decode(&bytes[..]).unwrap(),
                    parts: [(PolicyPart::Module.into(), module)].into(),
                    ..PushOrder::default()
                })
            }),
            "ApplyState" => {
                // With an object, which the set would remember.
                all(row.method, message("ApplyStateHeader"), &|bytes| {
                    let policy = PolicyState {
                        name: "p".to_owned(),
                        module: Some(first_content()),
                        ..PolicyState::default()
                    };
                    Request::Apply(ApplyOrder {
                        header: ApplyStateHeader::decode(&bytes[..]).unwrap(),
                        state: State {
                            policies: vec![policy],
                            ..State::default()
                        },
                        contents: [(0, std::fs::read(policy_file("null")).unwrap())].into(),
                        ..ApplyOrder::default()
                    })
                });
                all(row.method, message("State"), &|bytes| {
                    let module = std::fs::read(policy_file("null")).unwrap();
                    let mut state = State::decode(&bytes[..]).unwrap();
                    for policy in &mut state.policies {
                        policy.module = Some(first_content());
                        policy.owner.get_or_insert_with(Owner::default);
                    }
                    Request::Apply(ApplyOrder {
                        state,
                        contents: [(0, module)].into(),
                        ..ApplyOrder::default()
                    })
                });
            }
            _ => {
                let service = format!("tollgate.admin.v1.{}", row.service);
                let service = pool.get_service_by_name(&service).unwrap();
                let mut methods = service.methods();
                let method = methods.find(|method| method.name() == row.method).unwrap();
                all(row.method, method.input(), &|bytes| {
                    Request::Bytes(row.path(), bytes)
                });
            }
        }
    }
    attempts
}

/// Pushes and applies have few places, which are all attackers'.
static PLACE: Mutex<()> = Mutex::new(());

fn send(client: &Client, request: Request) -> Result<(), Status> {
    let _place = match request {
        Request::Bytes(..) => None,
        _ => Some(PLACE.lock().unwrap_or_else(PoisonError::into_inner)),
    };
    match request {
        Request::Bytes(path, bytes) => client.ask_bytes(&path, bytes).map(drop),
        Request::Push(order) => client.push(order, |_step| {}).map(drop),
        Request::Apply(order) => client.apply(order, |_step| {}).map(drop),
    }
}

fn client(daemon: &Daemon, token: &str) -> Client {
    let patience = Duration::from_secs(60);
    let token = Secret::new(token);
    Client::connect(&socket_beside(daemon.socket()), Some(&token), patience).unwrap()
}

/// Everything that a tenant has.
fn all_of(daemon: &Daemon, tenant: &str) -> String {
    let export = daemon.ok(&format!("export --tenant {tenant}"));
    let log = daemon.ok(&format!("audit show --last 1000 --tenant {tenant}"));
    export + &log
}

#[test]
fn names_that_are_none_are_refused_in_every_request_and_reach_no_other_tenant() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let own = |tenant: &str| {
        let token = daemon.tenant(tenant);
        daemon.push(&format!("--tenant {tenant}"), "null", "p", None);
        daemon.ok(&format!(
            "policy attach p@1 --tenant {tenant} --service hotel.Echo --side client"
        ));
        token
    };
    own("evil");
    daemon.ok("ceiling set changes_per_hour=72000");
    let tokens: Vec<_> = (0..TENANTS).map(|n| own(&format!("acme{n}"))).collect();
    let before = all_of(&daemon, "evil");
    let mut shares: Vec<Vec<Attempt>> = (0..TENANTS).map(|_| Vec::new()).collect();
    let attempts = attempts();
    let (count, kinds) = (attempts.len(), attempts.iter());
    let kinds: BTreeSet<_> = kinds.map(|one| (one.method, one.path.clone())).collect();
    for (n, attempt) in attempts.into_iter().enumerate() {
        shares[n % TENANTS].push(attempt);
    }
    let mut found = BTreeSet::new();
    std::thread::scope(|scope| {
        let attacking: Vec<_> = (shares.into_iter().zip(&tokens))
            .map(|(share, token)| {
                let client = client(&daemon, token);
                scope.spawn(move || {
                    let mut accepted = BTreeSet::new();
                    for Attempt {
                        method,
                        path,
                        name,
                        request,
                    } in share
                    {
                        let place = format!("{method} {}", path.join("."));
                        let Err(refused) = send(&client, request) else {
                            accepted.insert((place, name.chars().take(16).collect::<String>()));
                            continue;
                        };
                        let text = &refused.message;
                        let is_plain =
                            |c: char| !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c);
                        assert!(text.len() <= MAX_STATUS_BYTES + 16, "{place}: {text}");
                        assert!(text.chars().all(is_plain), "{place}: {text}");
                        assert!(!text.is_empty(), "{place}: {refused:?}");
                        let code = refused.code;
                        let expected = [
                            Code::INVALID_ARGUMENT,
                            Code::NOT_FOUND,
                            Code::PERMISSION_DENIED,
                            Code::FAILED_PRECONDITION,
                        ];
                        assert!(expected.contains(&code), "{place} {name:?}: {refused}");
                    }
                    accepted
                })
            })
            .collect();
        for thread in attacking {
            found.extend(thread.join().unwrap());
        }
    });
    say(&format!(
        "{count} requests with names that are none, in {} fields",
        kinds.len()
    ));
    assert_eq!(found, BTreeSet::new(), "these weren't refused");
    measured(
        "requests with a name that is none which weren't refused",
        found.len() as f64,
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
    assert_eq!(all_of(&daemon, "evil"), before, "nothing reached it");
    for token in &tokens {
        let listed = client(&daemon, token).ask(ListPoliciesRequest::default());
        listed.unwrap();
    }
}

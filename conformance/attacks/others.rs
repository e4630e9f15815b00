//! Every request against another tenant's and the provider's objects, which exist: each answer is
//! the one about an object that doesn't.
//!
//! Each request is sent twice, with the name of such an object and with one that nobody has; and as
//! an owner, as a viewer and as an application.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, Value};
use tollgate_admin::Status;
use tollgate_admin::client::Client;
use tollgate_admin::proto::Party;
use tollgate_conformance::testbed::{Daemon, Testbed};
use tollgate_shm_abi::status::Code;

use crate::measure::{Limit, measured, say, together};
use crate::requests::{Request, RequestKind, all_of, client, kinds, put, send};

/// Tenants that attack at once: each has a pace.
const TENANTS: usize = 6;

/// A name of somebody else's, and one of the same length that nobody has.
type Pair = [&'static str; 2];

/// The other tenant.
const TENANT: Pair = ["evil", "void"];
/// A policy and a credential of the other tenant.
const ITS: Pair = ["secret", "nobody"];
/// A policy of the provider's.
const PROVIDERS: Pair = ["warden", "absent"];

/// The request is sent twice, without another name.
const AS_IT_IS: Pair = [""; 2];

/// Names of the other tenant's and of the provider's that no request has: answers mustn't, either.
const HIDDEN: [&str; 4] = ["evil", "hidden-gem", "watchword", "Hideout"];

/// Writes a name into a message.
type Fill = fn(&mut DynamicMessage, &[String], &str);

/// A field of a kind of request, and two requests that differ in a name.
struct Probe<'k> {
    kind: &'k RequestKind,
    path: Vec<String>,
    names: Pair,
    /// Whether the field says that the object isn't the sender's: then it is refused in any case.
    is_open: bool,
    fill: Fill,
}

impl Probe<'_> {
    fn request(&self, name: &str) -> Request {
        let mut message = self.kind.plausible();
        (self.fill)(&mut message, &self.path, name);
        self.kind.request(&message)
    }
}

fn text(name: &str) -> Value {
    Value::String(name.to_owned())
}

/// The path of the name of the object that a field is part of.
fn name_of_object(path: &[String], above: usize) -> Vec<String> {
    let object = path[..path.len() - above].iter().cloned();
    object.chain(["name".to_owned()]).collect()
}

/// All probes of a kind of request, in every field.
fn probes(kind: &RequestKind) -> Vec<Probe<'_>> {
    let named = |name: &'static str| move |field: &FieldDescriptor| field.name() == name;
    let is_name = |field: &FieldDescriptor| {
        let is_one = matches!(field.name(), "name" | "names" | "key" | "set" | "id");
        is_one && field.kind() == Kind::String
    };
    let mut probes = Vec::new();
    let mut add = |path: Vec<String>, names: Pair, is_open: bool, fill: Fill| {
        probes.push(Probe {
            kind,
            path,
            names,
            is_open,
            fill,
        });
    };
    for path in kind.paths(named("tenant")) {
        add(path, TENANT, true, |message, path, name| {
            put(message, path, &text(name));
        });
    }
    for path in kind.paths(named("provider")) {
        add(path, PROVIDERS, true, |message, path, name| {
            put(message, &name_of_object(path, 2), &text(name));
            put(message, path, &Value::Bool(true));
        });
    }
    for path in kind.paths(named("party")) {
        add(path, PROVIDERS, true, |message, path, name| {
            put(message, &name_of_object(path, 1), &text(name));
            put(message, path, &Value::EnumNumber(Party::ProviderPre.into()));
        });
    }
    for path in kind.paths(is_name) {
        for names in [TENANT, ITS, PROVIDERS] {
            add(path.clone(), names, false, |message, path, name| {
                put(message, path, &text(name));
            });
        }
    }
    // As it is: what it answers has nothing of others.
    add(Vec::new(), AS_IT_IS, false, |_, _, _| {});
    probes
}

/// What an answer says, without the name that was asked for.
fn said(outcome: &Result<Vec<u8>, Status>, name: &str) -> String {
    match outcome {
        Ok(_) => "accepted".to_owned(),
        Err(status) => status.to_string().replace(name, "NAME"),
    }
}

/// Another's name in an answer to a request that hasn't it.
fn hidden_in(outcome: &Result<Vec<u8>, Status>, asked: &str) -> Option<&'static str> {
    let said = match outcome {
        Ok(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Err(status) => status.message.clone(),
    };
    let mut hidden = HIDDEN.into_iter();
    hidden.find(|name| *name != asked && said.contains(name))
}

/// The other tenant and the provider, each with objects of every kind. Returns what they have.
fn set_up(daemon: &Daemon) -> impl Fn() -> String {
    let token = daemon.tenant("evil");
    let file = daemon.token_file(&token).display().to_string();
    for name in ["p", "secret", "hidden-gem"] {
        daemon.push("--tenant evil", "null", name, None);
        daemon.push("--tenant evil", "null", name, None);
        for line in [
            format!("credential add {name} --tenant evil --role owner"),
            format!("policy attach {name}@1 --tenant evil --service hotel.Echo --side client"),
            format!("policy attach {name}@1 --tenant evil --service hotel.Hideout --side client"),
            format!("policy upgrade {name}@2 --tenant evil --service hotel.Echo --mode shadow"),
        ] {
            daemon.ok(&line);
        }
    }
    for name in ["warden", "watchword"] {
        daemon.push("--provider", "null", name, None);
        for calls in ["", " --tenant evil --service hotel.Echo"] {
            daemon.ok(&format!(
                "policy attach {name}@1 --provider --side client{calls}"
            ));
        }
    }
    daemon.ok("ceiling set approval=operator --tenant evil --yes");
    let attach = "policy attach secret@2 --service hotel.Hideout --side server --token-file";
    let waits = daemon.tollgate(attach.split(' ').chain([&*file]));
    assert_eq!(waits.code, 75, "{waits}");
    move || {
        let providers =
            ["warden", "watchword"].map(|name| format!("policy show {name} --provider"));
        let lines = ["approval list --tenant evil".to_owned()].into_iter();
        let shown = lines.chain(providers).map(|line| daemon.ok(&line));
        all_of(daemon, "evil") + &shown.collect::<String>()
    }
}

/// Sends a probe with both names. Returns what is wrong with the answers.
fn try_it(client: &Client, probe: &Probe) -> Option<String> {
    let answers = probe.names.map(|name| send(client, probe.request(name)));
    let asked = probe.names[0];
    let hidden = answers.iter().find_map(|answer| hidden_in(answer, asked));
    let code = answers[0]
        .as_ref()
        .map_or_else(|status| status.code, |_| Code::OK);
    // The last one: no policy of a tenant has a place there, whoever asks.
    let refusals = [
        Code::NOT_FOUND,
        Code::PERMISSION_DENIED,
        Code::INVALID_ARGUMENT,
    ];
    let is_refused = refusals.contains(&code);
    let [theirs, nobodys] = [0, 1].map(|n| said(&answers[n], probe.names[n]));
    let place = format!("{} {} {asked}", probe.kind.method, probe.path.join("."));
    match hidden {
        Some(name) => Some(format!("{place}: the answer has {name}: {answers:?}")),
        None if probe.names == AS_IT_IS => None,
        None if theirs != nobodys => Some(format!("{place}: {theirs} differs from {nobodys}")),
        None if probe.is_open && !is_refused => Some(format!("{place}: {theirs}")),
        None => None,
    }
}

#[test]
fn others_objects_are_nobodys_in_every_request_of_every_role() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let has = set_up(&daemon);
    daemon.ok("ceiling set changes_per_hour=72000");
    let attackers: Vec<_> = (0..TENANTS)
        .map(|n| {
            let name = format!("acme{n}");
            let owner = daemon.tenant(&name);
            daemon.push(&format!("--tenant {name}"), "null", "p", None);
            daemon.ok(&format!(
                "policy attach p@1 --tenant {name} --service hotel.Echo --side client"
            ));
            let others = ["viewer", "application"].map(|role| {
                let line = format!("credential add {role} --tenant {name} --role {role}");
                daemon.ok(&line).trim().to_owned()
            });
            let [viewer, application] = others;
            [owner, viewer, application]
        })
        .collect();
    let before = has();
    let mut shares: Vec<Vec<Probe<'_>>> = (0..TENANTS).map(|_| Vec::new()).collect();
    let kinds = kinds();
    let probes: Vec<_> = kinds.iter().flat_map(probes).collect();
    let fields: BTreeSet<_> = probes
        .iter()
        .map(|probe| (probe.kind.method, probe.path.clone()))
        .collect();
    for (n, probe) in probes.into_iter().enumerate() {
        shares[n % TENANTS].push(probe);
    }
    let sent = AtomicUsize::new(0);
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        let attacking: Vec<_> = (shares.into_iter().zip(&attackers))
            .map(|(share, tokens)| {
                let (daemon, sent) = (&daemon, &sent);
                scope.spawn(move || {
                    let mut wrong = Vec::new();
                    for token in tokens {
                        let client = client(daemon, token);
                        for probe in &share {
                            wrong.extend(try_it(&client, probe));
                            sent.fetch_add(probe.names.len(), Ordering::Relaxed);
                        }
                    }
                    wrong
                })
            })
            .collect();
        for thread in attacking {
            wrong.extend(thread.join().unwrap());
        }
    });
    say(&format!(
        "{sent:?} requests about another tenant's and the provider's objects, in {} fields",
        fields.len()
    ));
    assert_eq!(wrong, Vec::<String>::new(), "these tell");
    measured(
        "requests that told others' objects from none",
        wrong.len() as f64,
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
    assert_eq!(has(), before, "nothing reached them");
}

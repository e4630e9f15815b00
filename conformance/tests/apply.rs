//! Desired state in files: `tollgate apply` and `tollgate export` on real daemons.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_admin::client::Client;
use tollgate_admin::proto::{
    ApplyStateHeader, CeilingState, CredentialState, Role, State, TenantState,
};
use tollgate_admin::{APPLY_OBJECTS, ApplyOrder, Secret, socket_beside};
use tollgate_conformance::hostile::Seeded;
use tollgate_conformance::module::Module;
use tollgate_conformance::testbed::{Daemon, Options, Outcome, Testbed, policy_file, times};
use tollgate_shm_abi::status::Code;
use wasmsign2::{KeyPair, Module as Signed};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a dry run ends with if something would change.
const WOULD_CHANGE: i32 = 20;

const SERVICE: &str = "hotel.Reservation";

/// A bed with policies beside the documents.
fn bed() -> Testbed {
    let bed = Testbed::new();
    for name in ["null", "acl", "rate_limit"] {
        let to = bed.path(&format!("{name}.wasm"));
        std::fs::copy(policy_file(name), to).unwrap();
    }
    bed.file("acl.json", r#"{"blocked": ["Mallory"]}"#);
    bed
}

/// A document, as YAML: JSON is a part of it.
fn document(bed: &Testbed, name: &str, content: &Value) -> PathBuf {
    bed.file(name, content.to_string())
}

fn token(digit: char) -> String {
    format!("tg_{}", digit.to_string().repeat(64))
}

fn apply(daemon: &Daemon, file: &Path, flags: &[&str]) -> Outcome {
    let file = file.display().to_string();
    let args = [&["apply", "-f", &file], flags].concat();
    daemon.tollgate(args)
}

#[track_caller]
fn applied(daemon: &Daemon, file: &Path, flags: &[&str]) -> String {
    let outcome = apply(daemon, file, flags);
    assert_eq!(outcome.code, 0, "{outcome}");
    outcome.out
}

/// The last line: the numbers of objects.
fn summary(out: &str) -> &str {
    out.lines().next_back().unwrap_or_default()
}

/// A tenant with a credential, a policy with its configuration, and an attachment.
fn whole(bed: &Testbed) -> Value {
    bed.secret("ci.token", token('a'));
    json!({
        "default_ceiling": {"versions": 100},
        "tenants": [{
            "name": "acme",
            "ceiling": {"attachments": 5, "capabilities": "state,change,clock"},
            "credentials": [{"name": "ci", "role": "owner", "token_file": "ci.token"}],
        }],
        "policies": [
            {"tenant": "acme", "name": "acl", "module": "acl.wasm", "configuration": "acl.json"},
            {"provider": true, "name": "guard", "module": "null.wasm"},
        ],
        "attachments": [
            {"tenant": "acme", "policy": "acl", "service": SERVICE, "side": "client", "cpu_us": 200},
            {"provider": true, "policy": "guard", "side": "server", "part": "post"},
        ],
    })
}

#[test]
fn documents_make_everything_at_once_and_change_nothing_when_they_are_applied_again() {
    let bed = bed();
    let daemon = bed.daemon_with("a", &durable());
    let file = document(&bed, "state.yaml", &whole(&bed));
    // Nothing happens in a dry run.
    let dry = apply(&daemon, &file, &["--dry-run"]);
    assert_eq!(dry.code, WOULD_CHANGE, "{dry}");
    assert_eq!(
        summary(&dry.out),
        "9 to create, 0 to change, 0 to delete, 0 unchanged"
    );
    assert_eq!(daemon.ok("tenant list"), "");
    assert_eq!(daemon.ok("policy list"), "");
    let before = daemon.ok("audit head");
    assert_eq!(apply(&daemon, &file, &["--dry-run"]).code, WOULD_CHANGE);
    assert_eq!(daemon.ok("audit head"), before);

    let out = applied(&daemon, &file, &[]);
    assert_eq!(
        summary(&out),
        "9 created, 0 changed, 0 deleted, 0 unchanged"
    );
    for line in [
        "+ tenant acme",
        "+ default ceiling versions (100)",
        "+ ceiling attachments of tenant acme (5)",
        "+ credential ci of tenant acme (owner, ends never)",
        "+ attachment of acl of tenant acme: client hotel.Reservation/* (version 1 decides)",
    ] {
        assert!(out.lines().any(|one| one == line), "{line}: {out}");
    }
    // The token works, and the policy decides.
    let token = token('a');
    let _server = daemon.serve_hotel(&token, SERVICE, &["--reply", "{}"]);
    let reserve = |name: &str| {
        let request = json!({"customerName": name}).to_string();
        let method = format!("{SERVICE}/Reserve");
        daemon.call_hotel(&token, "", &method, &request).code
    };
    assert_eq!(reserve("Ada"), 0);
    assert_eq!(reserve("Mallory"), 7);

    // Each object has its record, and one record holds them together.
    let log = daemon.ok("audit show --last 100");
    for event in [
        "apply {\"changed\":0,\"created\":9,\"deleted\":0,\"set\":\"default\",\"tenant\":null}",
        "tenant-add {\"tenant\":\"acme\"}",
        "ceiling-change ",
        "credential-add ",
        "push ",
        "attach ",
    ] {
        assert!(log.contains(event), "{event}: {log}");
    }
    assert!(!log.contains(&token), "{log}");
    daemon.ok("audit verify");

    // Again, it changes nothing, and leaves no record.
    let head = daemon.ok("audit head");
    let out = applied(&daemon, &file, &[]);
    assert_eq!(out, "0 created, 0 changed, 0 deleted, 9 unchanged\n");
    assert_eq!(applied(&daemon, &file, &["--dry-run"]).lines().count(), 1);
    assert_eq!(daemon.ok("audit head"), head);
    assert!(applied(&daemon, &file, &["-v"]).contains("= tenant acme\n"));
}

#[test]
fn a_ceiling_binds_the_instances_that_the_same_documents_make() {
    let bed = bed();
    // On its first call it grows by 2 MiB, or traps.
    let grows = "(if (i32.lt_u (memory.size) (i32.const 32)) (then
        (if (i32.eq (memory.grow (i32.const 32)) (i32.const -1)) (then unreachable))))";
    bed.file("grows.wasm", Module::that(grows).wasm());
    for (default, own, works) in [(1, 16, true), (16, 1, false)] {
        let daemon = bed.daemon("a");
        daemon.ok(&format!("ceiling set memory_mib={default}"));
        let content = json!({
            "tenants": [{
                "name": "acme",
                "ceiling": {"memory_mib": own},
                "credentials": [{"name": "ci", "role": "owner", "token_file": "ci.token"}],
            }],
            "policies": [{"tenant": "acme", "name": "p", "module": "grows.wasm"}],
            "attachments": [
                {"tenant": "acme", "policy": "p", "service": "hotel.Echo", "side": "client"},
            ],
        });
        bed.secret("ci.token", token('a'));
        applied(&daemon, &document(&bed, "state.yaml", &content), &[]);
        let token = token('a');
        let _server = daemon.serve_hotel(&token, "hotel.Echo", &["--echo"]);
        let called = daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}");
        assert_eq!(called.code == 0, works, "{own} MiB: {called}");
        // A change of another object makes no other instance.
        let mut content = content;
        content["tenants"][0]["ceiling"]["versions"] = json!(7);
        applied(&daemon, &document(&bed, "state.yaml", &content), &[]);
    }
}

fn durable() -> Options {
    Options {
        durable: true,
        ..Options::default()
    }
}

#[test]
fn a_changed_policy_is_a_new_version_and_documents_go_back_to_a_former_one() {
    let bed = bed();
    let daemon = bed.daemon("a");
    let mut content = whole(&bed);
    let file = document(&bed, "state.yaml", &content);
    applied(&daemon, &file, &[]);
    content["policies"][0]["configuration_text"] = json!(r#"{"blocked": ["Eve"]}"#);
    content["policies"][0]["configuration"] = Value::Null;
    content["attachments"][0]["cpu_us"] = json!(300);
    content["tenants"][0]["ceiling"]["attachments"] = json!(6);
    document(&bed, "state.yaml", &content);
    let out = applied(&daemon, &file, &[]);
    for line in [
        "+ policy acl@2 of tenant acme (module sha256:",
        "~ attachment of acl of tenant acme: client hotel.Reservation/* (version 1 decides -> version 2 decides; cpu_us 200 -> 300)",
        "~ ceiling attachments of tenant acme (5 -> 6)",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert_eq!(daemon.attachment("acl")["stable"], 2);
    let file = document(&bed, "state.yaml", &whole(&bed));
    let out = applied(&daemon, &file, &[]);
    assert!(
        out.contains("version 2 decides -> version 1 decides"),
        "{out}"
    );
    assert!(!out.contains("+ policy"), "{out}");
    // A version that is named never changes.
    let mut content = whole(&bed);
    content["policies"][0]["version"] = json!(2);
    let refused = apply(&daemon, &document(&bed, "state.yaml", &content), &[]);
    assert_eq!(refused.code, 9, "{refused}");
    assert!(refused.err.contains("a version never changes"), "{refused}");
}

#[test]
fn documents_of_which_one_is_not_possible_change_nothing() {
    let bed = bed();
    let daemon = bed.daemon_with("a", &durable());
    daemon.tenant("old");
    let before = (daemon.ok("export"), daemon.ok("audit head"));
    bed.file("broken.wasm", "no module");
    bed.file("wrong.json", r#"{"blocked": 7}"#);
    let policy = |module: &str, more: Value| {
        let mut policy = json!({"tenant": "acme", "name": "last", "module": module});
        policy
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"policies": [policy]})
    };
    let attachment = |more: Value| {
        let mut its =
            json!({"tenant": "acme", "policy": "acl", "service": "a.B", "side": "client"});
        its.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"attachments": [its]})
    };
    for (wrong, code, words) in [
        (policy("broken.wasm", json!({})), 3, "last@1"),
        (
            policy("acl.wasm", json!({"configuration": "wrong.json"})),
            3,
            "last@1",
        ),
        (
            policy(&format!("sha256:{}", "0".repeat(64)), json!({})),
            5,
            "no stored version",
        ),
        (attachment(json!({"version": 7})), 5, "acl@7"),
        (attachment(json!({"service": "a b"})), 3, "a b"),
        (attachment(json!({"cpu_us": 1})), 3, "cpu-us 1"),
        (
            attachment(json!({"service": SERVICE, "method": "Reserve", "capabilities": ["fly"]})),
            3,
            "fly",
        ),
        (json!({"tenants": [{"name": "Bad Name"}]}), 3, "Bad Name"),
        (
            json!({"tenants": [{"name": "b", "ceiling": {"versions": "many"}}]}),
            3,
            "versions",
        ),
        (
            json!({"tenants": [{"name": "b", "ceiling": {"wings": 2}}]}),
            3,
            "wings",
        ),
        (
            json!({"tenants": [{"name": "b", "credentials": [{"name": "c", "role": "owner"}]}]}),
            3,
            "has no token",
        ),
        (
            json!({"policies": [{"tenant": "nobody", "name": "a", "module": "acl.wasm"}]}),
            5,
            "nobody",
        ),
        (json!({"settings": {"wings": 2}}), 3, "wings"),
        (json!({"settings": {"spin_us": "much"}}), 3, "spin_us"),
    ] {
        let mut second = wrong.clone();
        second["$schema"] = json!("x");
        let directory = bed.path("documents");
        std::fs::create_dir_all(&directory).unwrap();
        for name in [
            "acl.wasm",
            "null.wasm",
            "acl.json",
            "broken.wasm",
            "wrong.json",
        ] {
            std::fs::copy(bed.path(name), directory.join(name)).unwrap();
        }
        let first = whole(&bed);
        bed.secret("documents/ci.token", token('a'));
        std::fs::write(directory.join("1.yaml"), first.to_string()).unwrap();
        std::fs::write(directory.join("2.yml"), second.to_string()).unwrap();
        for flags in [&["--dry-run"][..], &[]] {
            let refused = apply(&daemon, &directory, flags);
            assert_eq!(refused.code, code, "{wrong} {refused}");
            assert!(refused.err.contains(words), "{wrong} {refused}");
            let after = (daemon.ok("export"), daemon.ok("audit head"));
            assert_eq!(after, before, "{wrong}");
        }
    }
    // Nothing of them is in force, either.
    assert_eq!(daemon.status()["attachments"], json!([]));
}

#[test]
fn errors_in_files_name_the_file_the_line_and_what_there_is() {
    let bed = bed();
    let daemon = bed.daemon("a");
    for (name, text, words) in [
        (
            "a.toml",
            "[[tenants]]\nname = \"a\"\n\n[[tenants]]\nnmae = \"b\"\n",
            "a.toml, line 5: unknown field `nmae`, expected one of `name`, `ceiling`, `credentials`",
        ),
        (
            "b.toml",
            "[[tenants]]\nname = 7\n",
            "b.toml, line 2: invalid type: integer `7`, expected a string",
        ),
        (
            "c.toml",
            "[settings]\na = 1\na = 2\n",
            "c.toml, line 3: duplicate key",
        ),
        (
            "d.yaml",
            "tenants:\n- name: a\n---\ntenants:\n- nmae: b\n",
            "d.yaml, line 5: ",
        ),
        (
            "e.yaml",
            "tenants:\n- name: a\n  name: b\n",
            "e.yaml, line 3: ",
        ),
        (
            "n.yaml",
            "tenants:\n- name: null\n",
            "n.yaml, line 2: the value is empty or null",
        ),
        ("f.yaml", "tenants: [\n", "f.yaml, line "),
        (
            "g.toml",
            "[[tenants]]\nname = \"a\"\n[[tenants]]\nname = \"a\"\n",
            "g.toml: it has tenant a twice",
        ),
        (
            "h.json",
            "{}",
            "h.json is neither TOML nor YAML by its name",
        ),
        (
            "i.toml",
            "[[policies]]\nname = \"p\"\ntenant = \"a\"\nmodule = \"oci://r/p:1\"\n",
            "i.toml: policy p of tenant a without a version: oci://r/p:1 may be another image tomorrow",
        ),
        (
            "j.toml",
            "[[policies]]\nname = \"p\"\ntenant = \"a\"\nmodule = \"none.wasm\"\n",
            "none.wasm can't be read",
        ),
        (
            "k.toml",
            "[[tenants]]\nname = \"a\"\n[[tenants.credentials]]\nname = \"c\"\nrole = \"owner\"\ntoken_digest = \"sha256:12\"\n",
            "k.toml: credential c of tenant a: \"sha256:12\" isn't a digest",
        ),
        (
            "l.toml",
            "[[attachments]]\ntenant = \"a\"\npolicy = \"p\"\nservice = \"a.B\"\nside = \"client\"\n",
            "it names no version, and the documents have no policy p of this owner",
        ),
    ] {
        let file = bed.file(name, text);
        let refused = apply(&daemon, &file, &[]);
        assert!(refused.code == 3 || refused.code == 5, "{name} {refused}");
        assert!(refused.err.contains(words), "{name} {refused}");
    }
    // The same object in two files.
    let one = bed.file("one.toml", "[[tenants]]\nname = \"a\"\n");
    let two = bed.file("two.toml", "[[tenants]]\nname = \"a\"\n");
    let args = [
        "apply".to_owned(),
        "-f".to_owned(),
        one.display().to_string(),
    ];
    let args = args
        .into_iter()
        .chain(["-f".to_owned(), two.display().to_string()]);
    let refused = daemon.tollgate(args);
    assert!(
        refused
            .err
            .contains("two.toml: it has tenant a, and so has ")
            && refused.code == 3,
        "{refused}"
    );
    // A token that others could guess.
    bed.secret("short.token", "tg_secret");
    let file = bed.file(
        "m.toml",
        "[[tenants]]\nname = \"a\"\n[[tenants.credentials]]\nname = \"c\"\nrole = \"owner\"\ntoken_file = \"short.token\"\n",
    );
    let refused = apply(&daemon, &file, &[]);
    assert!(
        refused.err.contains("has no token: one is tg_ and 64"),
        "{refused}"
    );
    assert!(!refused.err.contains("secret"), "{refused}");
    assert_eq!(daemon.ok("tenant list"), "");
}

#[test]
fn a_tenant_applies_its_own_part_and_reaches_nothing_else() {
    let bed = bed();
    let daemon = bed.daemon("a");
    let owner = daemon.tenant("acme");
    daemon.tenant("evil");
    let viewer = daemon.ok("credential add looks --tenant acme --role viewer");
    daemon.ok("ceiling set trial=required capabilities=state,change --tenant acme");
    let with = |token: &str, file: &Path, flags: &[&str]| {
        let token = daemon.token_file(token).display().to_string();
        apply(&daemon, file, &[&["--token-file", &token], flags].concat())
    };
    let own = json!({
        "policies": [{"name": "acl", "module": "acl.wasm", "configuration": "acl.json"}],
        "attachments": [{
            "policy": "acl", "service": SERVICE, "side": "client",
            "trial": {"mode": "canary", "percent": 10},
        }],
    });
    let file = document(&bed, "own.yaml", &own);
    let done = with(&owner, &file, &[]);
    assert_eq!(done.code, 0, "{done}");
    assert_eq!(
        summary(&done.out),
        "2 created, 0 changed, 0 deleted, 0 unchanged"
    );
    // A trial ends with a document that has the version; without one, the ceiling refuses it.
    let mut other = own.clone();
    other["policies"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "free", "module": "null.wasm"}));
    other["attachments"] = json!([{"policy": "free", "service": SERVICE, "side": "client"}]);
    let refused = with(&owner, &document(&bed, "other.yaml", &other), &[]);
    assert_eq!(refused.code, 9, "{refused}");
    assert!(refused.err.contains("`trial` = required"), "{refused}");
    let mut promoted = own.clone();
    promoted["attachments"][0]["trial"] = Value::Null;
    let done = with(&owner, &document(&bed, "own.yaml", &promoted), &[]);
    assert_eq!(done.code, 0, "{done}");
    assert!(
        done.out
            .contains("version 1 on trial (canary 10%) -> version 1 decides"),
        "{done}"
    );

    for (content, code, words) in [
        (
            json!({"tenants": [{"name": "evil"}]}),
            5,
            "there is no tenant \"evil\"",
        ),
        (
            json!({"tenants": [{"name": "nobody"}]}),
            5,
            "there is no tenant \"nobody\"",
        ),
        (
            json!({"tenants": [{"name": "acme", "ceiling": {"trial": "free"}}]}),
            7,
            "a ceiling is an operator's request",
        ),
        (
            json!({"default_ceiling": {"trial": "free"}}),
            7,
            "a ceiling is an operator's request",
        ),
        (
            json!({"settings": {"spin_us": 3}}),
            7,
            "a setting is an operator's request",
        ),
        (
            json!({"policies": [{"provider": true, "name": "p", "module": "null.wasm"}]}),
            7,
            "the provider's policies is an operator's",
        ),
        (
            json!({"policies": [{"tenant": "evil", "name": "p", "module": "null.wasm"}]}),
            5,
            "there is no tenant \"evil\"",
        ),
        (
            json!({"attachments": [{"tenant": "evil", "policy": "p", "version": 1, "service": "a.B", "side": "client"}]}),
            5,
            "there is no tenant \"evil\"",
        ),
        (
            json!({"attachments": [{"policy": "acl", "version": 1, "service": "a.B", "side": "client", "cpu_us": 20_000}]}),
            3,
            "cpu-us",
        ),
    ] {
        let file = document(&bed, "bad.yaml", &content);
        for flags in [&["--dry-run"][..], &["--prune"]] {
            let refused = with(&owner, &file, flags);
            assert_eq!(refused.code, code, "{content} {refused}");
            assert!(refused.err.contains(words), "{content} {refused}");
        }
    }
    // Another tenant's modules aren't there, either.
    let others = daemon.push(
        "--tenant evil",
        "rate_limit",
        "mine",
        Some(&bed.file("rate.json", r#"{"per_second": 1, "burst": 1}"#)),
    );
    assert_eq!(others, "mine@1");
    let exported = daemon.ok("export --tenant evil");
    let digest = exported
        .split("sha256:")
        .nth(2)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let stolen = json!({"policies": [{"name": "stolen", "module": format!("sha256:{digest}")}]});
    let refused = with(&owner, &document(&bed, "bad.yaml", &stolen), &[]);
    assert_eq!(refused.code, 5, "{refused}");

    // A viewer looks; an owner sees its own part.
    let export = |token: &str| {
        let token = daemon.token_file(token).display().to_string();
        daemon.tollgate(["export", "--token-file", &token])
    };
    assert_eq!(with(viewer.trim(), &file, &["--dry-run"]).code, 7);
    let seen = export(viewer.trim());
    assert_eq!(seen.code, 0, "{seen}");
    assert_eq!(seen.out, export(&owner).out);
    assert!(
        seen.out.contains("\"acme\"") && !seen.out.contains("evil"),
        "{seen}"
    );
    assert!(!seen.out.contains("ceiling"), "{seen}");
    // What it exports, it can apply.
    let file = bed.file("seen.toml", &seen.out);
    let again = with(&owner, &file, &[]);
    assert_eq!(again.code, 0, "{again}");
    assert!(again.out.starts_with("0 created, 0 changed"), "{again}");
    // An operator may apply one tenant's part, too.
    let refused = apply(
        &daemon,
        &document(&bed, "bad.yaml", &json!({"tenants": [{"name": "evil"}]})),
        &["--tenant", "acme"],
    );
    assert!(
        refused.code == 3 && refused.err.contains("for tenant \"acme\" alone"),
        "{refused}"
    );
}

#[test]
fn documents_go_around_no_ceiling() {
    let bed = bed();
    let daemon = bed.daemon("a");
    let owner = daemon.tenant("acme");
    let as_owner = |content: &Value, flags: &[&str]| {
        let token = daemon.token_file(&owner).display().to_string();
        let file = document(&bed, "own.yaml", content);
        apply(&daemon, &file, &[&["--token-file", &token], flags].concat())
    };
    let attached = |mode: Value| {
        json!({
            "policies": [{"name": "null", "module": "null.wasm"}],
            "attachments": [
                {"policy": "null", "service": SERVICE, "side": "client", "trial": mode},
            ],
        })
    };
    // What needs an operator's approval doesn't wait: it is refused, also in a dry run.
    daemon.ok("ceiling set approval=operator --tenant acme");
    for flags in [&[][..], &["--dry-run"]] {
        let refused = as_owner(&attached(Value::Null), flags);
        assert_eq!(refused.code, 9, "{refused}");
        assert!(refused.err.contains("`approval` = operator"), "{refused}");
    }
    assert_eq!(daemon.ok("policy list"), "", "nothing is left");
    let shadow = attached(json!({"mode": "shadow"}));
    assert_eq!(as_owner(&shadow, &[]).code, 0);
    let refused = as_owner(&attached(json!({"mode": "canary", "percent": 5})), &[]);
    assert_eq!(refused.code, 9, "{refused}");
    // An operator's documents need none.
    let mut operators = attached(Value::Null);
    for kind in ["policies", "attachments"] {
        operators[kind][0]["tenant"] = json!("acme");
    }
    applied(&daemon, &document(&bed, "operators.yaml", &operators), &[]);

    // Nor can a module come that nobody has signed, or that has too much memory.
    let public = wasmsign2::KeyPair::generate().pk.to_pem();
    let line = public.lines().nth(1).unwrap();
    daemon.ok(&format!("ceiling set signers={line} --tenant acme --yes"));
    let acl = json!({
        "policies": [{"name": "acl", "module": "acl.wasm", "configuration": "acl.json"}],
    });
    let refused = as_owner(&acl, &[]);
    assert_eq!(refused.code, 7, "{refused}");
    assert!(refused.err.contains("`signers` = 1 key"), "{refused}");
    daemon.ok("ceiling reset signers --tenant acme");
    daemon.ok("ceiling set memory_mib=1 --tenant acme --yes");
    let refused = as_owner(&acl, &[]);
    assert_eq!(refused.code, 8, "{refused}");
    assert!(refused.err.contains("`memory_mib` = 1"), "{refused}");
    daemon.ok("ceiling reset memory_mib --tenant acme");
    assert_eq!(as_owner(&acl, &[]).code, 0);

    // No tenant becomes an operator, and no operator's credential is exported.
    daemon.ok("credential add deploy --operator");
    bed.secret("new.token", token('b'));
    let boss = json!({
        "tenants": [{
            "name": "acme",
            "credentials": [{"name": "boss", "role": "operator", "token_file": "new.token"}],
        }],
    });
    let refused = as_owner(&boss, &[]);
    assert_eq!(refused.code, 3, "{refused}");
    assert!(!daemon.ok("export").contains("deploy"));
    // A share of a core that documents set is in force at once.
    let share = json!({"tenants": [{"name": "acme", "ceiling": {"cpu_share_percent": 3}}]});
    applied(&daemon, &document(&bed, "share.yaml", &share), &[]);
    let status = daemon.status();
    let mut accounts = status["accounts"].as_array().unwrap().iter();
    let its = accounts.find(|its| its["tenant"] == "acme").unwrap();
    assert_eq!(its["share_percent"], 3, "{status}");
}

#[test]
fn a_prune_deletes_what_the_set_had_and_nothing_else() {
    let bed = bed();
    let daemon = bed.daemon("a");
    daemon.tenant("by-hand");
    let mut content = whole(&bed);
    content["tenants"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "short"}));
    content["settings"] = json!({"spin_us": 7});
    let file = document(&bed, "state.yaml", &content);
    applied(&daemon, &file, &[]);
    // The tenant's own set of that name is another one.
    let own = document(&bed, "own.yaml", &json!({}));
    let its = daemon.token_file(&token('a')).display().to_string();
    let out = applied(&daemon, &own, &["--prune", "--token-file", &its]);
    assert_eq!(out, "0 created, 0 changed, 0 deleted, 0 unchanged\n");
    // Beside the documents.
    daemon.push("--tenant acme", "null", "own", None);
    daemon.ok("policy attach own@1 --tenant acme --service a.B --side client");
    daemon.ok("credential add extra --tenant acme --role viewer");
    let other = document(&bed, "other.yaml", &json!({"tenants": [{"name": "other"}]}));
    applied(&daemon, &other, &["--set", "other"]);
    // Without a prune, what is gone from the documents stays.
    let less = json!({
        "tenants": [{"name": "acme"}],
        "policies": [content["policies"][0]],
    });
    document(&bed, "state.yaml", &less);
    let out = applied(&daemon, &file, &[]);
    assert_eq!(
        summary(&out),
        "0 created, 0 changed, 0 deleted, 2 unchanged"
    );
    let dry = apply(&daemon, &file, &["--prune", "--dry-run"]);
    assert_eq!(dry.code, WOULD_CHANGE, "{dry}");
    // Tenants and ceilings aren't deleted unasked.
    let asked = apply(&daemon, &file, &["--prune"]);
    assert_eq!(asked.code, 3, "{asked}");
    for words in [
        "- tenant short (with its sessions, 0 versions of policies and 0 attachments)\n",
        "- default ceiling versions (100)\n",
        "nothing is applied: confirmation needs a terminal. Try: tollgate apply -f ",
        " --prune --yes",
    ] {
        assert!(asked.err.contains(words), "{words}: {asked}");
    }
    assert!(!asked.err.contains("- setting"), "{asked}");
    assert_eq!(
        apply(&daemon, &file, &["--prune", "--dry-run"]).out,
        dry.out
    );
    let out = applied(&daemon, &file, &["--prune", "--yes"]);
    for line in [
        "- tenant short (with its sessions, 0 versions of policies and 0 attachments)",
        "- attachment of acl of tenant acme: client hotel.Reservation/*",
        "- attachment of guard of the provider: server */* of tenant * (provider-post)",
        "- policy guard@1 of the provider",
        "- credential ci of tenant acme",
        "- ceiling attachments of tenant acme (5)",
        "- default ceiling versions (100)",
        "- setting spin_us (7)",
    ] {
        assert!(out.lines().any(|one| one == line), "{line}: {out}");
    }
    assert_eq!(
        summary(&out),
        "0 created, 0 changed, 9 deleted, 2 unchanged"
    );
    assert_eq!(daemon.ok("tenant list"), "acme\nby-hand\nother\n");
    assert_eq!(daemon.attachment("own")["stable"], 1);
    let left = daemon.ok("export");
    for kept in ["\"own\"", "\"extra\"", "\"acl\""] {
        assert!(left.contains(kept), "{kept}: {left}");
    }
    assert!(
        !left.contains("\"guard\"") && !left.contains("\"ci\""),
        "{left}"
    );
    assert!(applied(&daemon, &file, &["--prune"]).starts_with("0 created, 0 changed, 0 deleted"));
    // The former token opens nothing.
    let refused = daemon.tollgate([
        "export".into(),
        "--token-file".into(),
        daemon.token_file(&token('a')).into_os_string(),
    ]);
    assert_eq!(refused.code, 16, "{refused}");
}

#[test]
fn a_prune_keeps_what_a_rollback_needs_and_makes_room_under_a_ceiling() {
    let bed = bed();
    let daemon = bed.daemon("a");
    let mut content = whole(&bed);
    let file = document(&bed, "state.yaml", &content);
    applied(&daemon, &file, &["--prune"]);
    // What takes the place of something else fits under a ceiling that is reached.
    daemon.ok("ceiling set versions=2 policies=1 --tenant acme");
    content["policies"][0]["configuration"] = Value::Null;
    content["policies"][0]["configuration_text"] = json!(r#"{"blocked": ["Eve"]}"#);
    document(&bed, "state.yaml", &content);
    let out = applied(&daemon, &file, &["--prune", "-v"]);
    let kept = "= policy acl@1 of tenant acme (kept: it is the target of a rollback at client hotel.Reservation/*)";
    assert!(out.lines().any(|line| line == kept), "{out}");
    content["policies"][0]["configuration_text"] = json!(r#"{"blocked": ["Oscar"]}"#);
    document(&bed, "state.yaml", &content);
    let refused = apply(&daemon, &file, &[]);
    assert_eq!(refused.code, 8, "{refused}");
    let text =
        "there would be 3 versions of policies, and the ceiling of tenant acme is `versions` = 2";
    assert!(refused.err.contains(text), "{refused}");
    let out = applied(&daemon, &file, &["--prune"]);
    assert!(out.contains("- policy acl@1 of tenant acme\n"), "{out}");
    content["policies"][0]["name"] = json!("gate");
    content["attachments"][0]["policy"] = json!("gate");
    document(&bed, "state.yaml", &content);
    let out = applied(&daemon, &file, &["--prune"]);
    assert!(out.contains("+ policy gate@1 of tenant acme"), "{out}");
}

#[test]
fn credentials_change_with_their_documents_and_sessions_end_with_their_tokens() {
    let bed = bed();
    let daemon = bed.daemon("a");
    let mut content = whole(&bed);
    let file = document(&bed, "state.yaml", &content);
    applied(&daemon, &file, &[]);
    let server = daemon.serve_hotel(&token('a'), SERVICE, &["--reply", "{}"]);
    // Without a token, it keeps the one that it has.
    let credential = &mut content["tenants"][0]["credentials"][0];
    credential["token_file"] = Value::Null;
    credential["expires"] = json!("2035-01-01T00:00:00Z");
    document(&bed, "state.yaml", &content);
    let out = applied(&daemon, &file, &[]);
    assert!(
        out.contains("~ credential ci of tenant acme (ends never -> 2035-01-01T00:00:00.000Z)"),
        "{out}"
    );
    let exported = |token: &str| {
        let token = daemon.token_file(token).display().to_string();
        daemon.tollgate(["export", "--token-file", &token]).code
    };
    assert_eq!(exported(&token('a')), 0);
    bed.secret("ci.token", token('b'));
    content["tenants"][0]["credentials"][0]["token_file"] = json!("ci.token");
    document(&bed, "state.yaml", &content);
    let out = applied(&daemon, &file, &[]);
    assert!(out.contains("another token; the former one ends"), "{out}");
    assert_eq!(exported(&token('a')), 16);
    assert_eq!(exported(&token('b')), 0);
    // `serve` finds that its session has ended.
    server
        .line(PATIENCE, |line| line.contains("rotated or revoked"))
        .unwrap_or_else(|error| panic!("{error}"));
    // A token is one credential's.
    let mut second = content.clone();
    second["tenants"][0]["credentials"] = json!([
        {"name": "thief", "role": "viewer", "token_file": "ci.token"},
    ]);
    let refused = apply(&daemon, &document(&bed, "second.yaml", &second), &[]);
    assert_eq!(refused.code, 6, "{refused}");
}

#[test]
fn settings_are_set_together_with_everything_else() {
    let bed = bed();
    let daemon = bed.daemon("a");
    let mut content = whole(&bed);
    content["settings"] = json!({"spin_us": 9, "policies.cpu_us": 60, "waiting": "sleep"});
    let file = document(&bed, "state.yaml", &content);
    applied(&daemon, &file, &[]);
    let shown = daemon.ok("daemon settings --json");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let value = |key: &str| {
        let mut all = shown["settings"].as_array().unwrap().iter();
        all.find(|one| one["key"] == key).unwrap()["value"].clone()
    };
    assert_eq!(
        (value("spin_us"), value("policies.cpu_us")),
        (json!(9), json!(60))
    );
    assert_eq!(value("waiting"), "sleep");
    assert!(applied(&daemon, &file, &[]).starts_with("0 created, 0 changed"));
}

#[test]
fn a_trial_that_has_ended_well_is_not_begun_again() {
    let bed = bed();
    let daemon = bed.daemon("a");
    daemon.tenant("acme");
    let policies = json!([
        {"tenant": "acme", "name": "acl", "version": 1, "module": "acl.wasm", "configuration": "acl.json"},
        {"tenant": "acme", "name": "acl", "version": 2, "module": "acl.wasm", "configuration_text": "{\"blocked\": []}"},
    ]);
    let content = json!({
        "policies": policies,
        "attachments": [{
            "tenant": "acme", "policy": "acl", "version": 1, "service": SERVICE, "side": "client",
            "trial": {"version": 2, "mode": "canary", "percent": 20, "probation": "1h"},
        }],
    });
    let file = document(&bed, "state.yaml", &content);
    applied(&daemon, &file, &[]);
    let exported = daemon.ok("export");
    for words in [
        "version = 1",
        "percent = 20",
        "probation = \"3600s\"",
        "mode = \"canary\"",
    ] {
        assert!(exported.contains(words), "{words}: {exported}");
    }
    daemon.ok("policy promote acl --tenant acme");
    let out = applied(&daemon, &file, &[]);
    assert!(
        out.contains("(its trial is over: the version decides)"),
        "{out}"
    );
    assert_eq!(daemon.attachment("acl")["stable"], 2);
    // A trial that was rolled back begins again.
    daemon.ok("policy rollback acl --tenant acme");
    let out = applied(&daemon, &file, &[]);
    assert!(
        out.contains("version 1 decides -> version 1 decides, version 2 on trial"),
        "{out}"
    );
}

#[test]
fn a_daemon_that_is_killed_during_an_apply_has_all_of_it_or_nothing() {
    let bed = bed();
    let mut daemon = bed.daemon_with("a", &durable());
    let mut random = Seeded(7);
    let (mut whole, mut none) = (0, 0);
    for round in 0..times("TOLLGATE_APPLY_KILLS", 10) {
        let names: Vec<_> = (0..8).map(|k| format!("t{round}-{k}")).collect();
        let content = json!({
            "tenants": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
            "policies": names.iter().map(|name| {
                json!({"tenant": name, "name": "p", "module": "null.wasm"})
            }).collect::<Vec<_>>(),
            "attachments": names.iter().map(|name| {
                json!({"tenant": name, "policy": "p", "service": "a.B", "side": "client"})
            }).collect::<Vec<_>>(),
        });
        let file = document(&bed, "state.yaml", &content).display().to_string();
        let applying = daemon.start(["apply", "-f", &file]);
        std::thread::sleep(Duration::from_millis(random.below(1_200)));
        daemon.process().kill();
        let _either = applying.line(Duration::from_secs(10), |_| false);
        drop(applying);
        drop(daemon);
        daemon = bed.daemon_with("a", &durable());
        let exported = daemon.ok("export --format yaml");
        let has = |name: &String| exported.matches(name.as_str()).count();
        // Each tenant has itself, its version and its attachment.
        let counts: Vec<_> = names.iter().map(has).collect();
        match counts.iter().sum::<usize>() {
            0 => none += 1,
            24 => whole += 1,
            _ => panic!("round {round}: {counts:?} of {exported}"),
        }
        let attached = daemon.status()["attachments"]
            .as_array()
            .map_or(0, Vec::len);
        assert_eq!(attached, 8 * whole, "round {round}");
        daemon.ok("audit verify");
    }
    println!("{whole} whole, {none} without a trace");
    assert!(whole > 0, "no apply was complete");
}

// ---- export, apply, export ----

/// Reads fields and metadata, and needs a clock.
fn reader() -> Vec<u8> {
    let methods = r#"{"method":"hotel.Reservation/Reserve","fields":["customer_name","room_count"],"metadata":["x-user","x-role"]}"#;
    let module = Module {
        methods: methods.to_owned(),
        manifest: r#""capabilities":["clock"],"#.to_owned(),
        ..Module::default()
    };
    module.wasm()
}

/// A filter for Envoy that does nothing: its name, how it is described, and its text.
const FOREIGN: [(&str, &str, &str); 1] = [(
    "filter",
    "--hooks request",
    r#"(module
        (memory (export "memory") 1)
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 0)))"#,
)];

/// A bed whose modules are signed, and the key in the form that a ceiling takes.
fn signed_bed() -> (Testbed, String) {
    let bed = bed();
    let key = KeyPair::generate();
    let modules = ["null", "acl"].map(|name| (name, std::fs::read(policy_file(name)).unwrap()));
    for (name, module) in modules.into_iter().chain([("reader", reader())]) {
        let module = Signed::deserialize(&mut std::io::Cursor::new(module)).unwrap();
        let mut signed = Vec::new();
        let module = key.sk.sign(module, None).unwrap();
        module.serialize(&mut signed).unwrap();
        bed.file(&format!("{name}.wasm"), signed);
    }
    for (name, _, text) in FOREIGN {
        bed.file(&format!("{name}.wasm"), wat::parse_str(text).unwrap());
    }
    let pem = key.pk.to_pem();
    let lines = pem.lines().filter(|line| !line.starts_with('-'));
    (bed, lines.collect())
}

/// A random ceiling that what [`populate`] makes is below. Values of the documents bind what they
/// have.
fn ceiling(random: &mut Seeded, key: &str) -> Value {
    let mut ceiling = json!({});
    let values = [
        ("policies", json!(10 + random.below(20))),
        ("versions", json!(20 + random.below(20))),
        ("module_kib", json!(4_096 - random.below(1_000))),
        ("trial", json!("required")),
        ("approval", json!("operator")),
        ("isolation", json!("process")),
        ("capabilities", json!("state,change,clock")),
        ("fields_allow", json!("hotel.*/*:*,motel.*/*:room.*")),
        ("fields_deny", json!("*/*:password,hotel.*/*:room_count")),
        ("languages", json!("tollgate,proxy-wasm,opa")),
        ("signers", json!(key)),
    ];
    for (key, value) in values {
        if random.below(3) == 0 {
            ceiling[key] = value;
        }
    }
    ceiling
}

/// The options of an attachment of [`reader`], whose owner has this ceiling.
fn reading(random: &mut Seeded, ceiling: &Value) -> Value {
    let mut options = json!({"capabilities": ["clock"]});
    let mut either = |key: &str, lists: &[&[&str]]| {
        let chosen = random.below(lists.len() as u64 + 1) as usize;
        if let Some(list) = lists.get(chosen) {
            options[key] = json!(list);
        }
    };
    either("hooks", &[&["request"], &[]]);
    either("metadata", &[&["x-user"], &["x-role", "x-user"], &[]]);
    match ceiling.get("fields_deny") {
        Some(_) => options["fields"] = json!(["customer_name"]),
        None => either("fields", &[&["customer_name"], &["room_count"], &[]]),
    }
    match random.below(3) {
        0 => options["isolation"] = json!("process"),
        1 if ceiling.get("isolation").is_none() => options["isolation"] = json!("none"),
        _ => {}
    }
    if random.below(3) == 0 {
        options["fresh"] = json!(true);
    }
    options
}

/// A random state, made by documents and then by hand. `key` has signed its modules.
fn populate(bed: &Testbed, daemon: &Daemon, random: &mut Seeded, key: &str) {
    let tenants: Vec<_> = (0..1 + random.below(3)).map(|k| format!("t{k}")).collect();
    let mut documents = Vec::new();
    let ceilings: Vec<_> = tenants.iter().map(|_| ceiling(random, key)).collect();
    for (k, (tenant, ceiling)) in tenants.iter().zip(&ceilings).enumerate() {
        let roles = ["owner", "viewer", "application"];
        let credentials: Vec<_> = (0..random.below(3))
            .map(|c| {
                let digest = format!("sha256:{:064x}", (k as u64 + 1) * 1_000 + c + 1);
                let mut credential = json!({
                    "name": format!("c{c}"), "role": roles[random.below(3) as usize], "token_digest": digest,
                });
                match random.below(3) {
                    0 => credential["expires"] = json!("2031-05-06T07:08:09.123Z"),
                    1 => credential["expires"] = json!("2001-01-01T00:00:00Z"),
                    _ => {}
                }
                credential
            })
            .collect();
        documents.push(
            json!({"tenants": [{"name": tenant, "ceiling": ceiling, "credentials": credentials}]}),
        );
    }
    if random.below(2) == 0 {
        documents.push(json!({"default_ceiling": {"attachments": 30}, "settings": {"spin_us": random.below(40)}}));
    }
    let owners = tenants.iter().map(|name| json!({"tenant": name}));
    let owners = owners.chain([json!({"provider": true})]);
    let none = json!({});
    for (owner, ceiling) in owners.zip(ceilings.iter().chain([&none])) {
        let with = |more: Value| {
            let mut both = owner.clone();
            both.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            both
        };
        let is_provider = owner["provider"] == true;
        for name in ["one", "two", "three"] {
            let reads = name == "three";
            let versions: Vec<_> = (1..6).filter(|_| random.below(2) == 0).collect();
            let policies: Vec<_> = versions
                .iter()
                .map(|version| match random.below(2) {
                    _ if reads => with(json!({
                        "name": name, "version": version, "module": "reader.wasm",
                        "configuration_text": format!("{}", random.below(3)),
                    })),
                    0 => with(json!({"name": name, "version": version, "module": "null.wasm"})),
                    _ => with(json!({
                        "name": name, "version": version, "module": "acl.wasm",
                        "configuration_text": json!({"blocked": [format!("x{}", random.below(3))]}).to_string(),
                    })),
                })
                .collect();
            let places = [("client", ""), ("client", "Reserve"), ("server", "")];
            let mut attachments = Vec::new();
            for (side, method) in places {
                let (Some(first), Some(last)) = (versions.first(), versions.last()) else {
                    continue;
                };
                let mut attachment = with(json!({
                    "policy": name, "service": SERVICE, "side": side, "max_worse": random.below(101),
                }));
                if !method.is_empty() {
                    attachment["method"] = json!(method);
                    attachment["callers"] = json!(["application=web", "uid=1000", "uid=0"]);
                }
                if is_provider && random.below(2) == 0 {
                    attachment["part"] = json!("post");
                }
                if is_provider && random.below(2) == 0 {
                    attachment["tenant"] = json!("t0");
                }
                if reads {
                    let mut options = reading(random, ceiling);
                    if is_provider {
                        options["isolation"].take();
                    }
                    let options = options.as_object().unwrap().clone();
                    let set = options.into_iter().filter(|(_, value)| !value.is_null());
                    attachment.as_object_mut().unwrap().extend(set);
                }
                if random.below(2) == 0 {
                    attachment["cpu_us"] = json!(100 + random.below(100));
                    attachment["on_fault"] = json!("open");
                    attachment["record"] = json!(random.below(20));
                }
                match random.below(4) {
                    0 => continue,
                    1 if first != last => {
                        attachment["version"] = json!(first);
                        attachment["trial"] = json!({"version": last, "mode": "canary", "percent": 1 + random.below(99), "probation": "2h"});
                    }
                    2 => attachment["trial"] = json!({"version": last, "mode": "shadow"}),
                    _ => attachment["version"] = json!(first),
                }
                attachments.push(attachment);
            }
            documents.push(json!({"policies": policies, "attachments": attachments}));
        }
    }
    let text: Vec<_> = documents.iter().map(Value::to_string).collect();
    let file = bed.file("random.yaml", text.join("\n---\n"));
    applied(daemon, &file, &[]);
    // Foreign modules are described by hand. The description isn't signed.
    for (tenant, ceiling) in tenants.iter().zip(&ceilings) {
        if ceiling.get("signers").is_some() {
            continue;
        }
        for (name, described, _) in FOREIGN {
            let module = bed.path(&format!("{name}.wasm"));
            let module = module.display();
            daemon.ok(&format!(
                "policy push {module} --tenant {tenant} --name {name} {described}"
            ));
            if ceiling.get("isolation").is_none() {
                daemon.ok(&format!(
                    "policy attach {name}@1 --tenant {tenant} --service {SERVICE} --side client --mode shadow"
                ));
            }
        }
    }
    // What is possible is done, by hand.
    for tenant in &tenants {
        for line in [
            "policy promote one",
            "policy rollback two",
            "policy delete one@2",
            "policy delete two@4",
            "policy detach two --side server",
            "credential revoke c1",
        ] {
            if random.below(3) == 0 {
                let _possible = daemon.run(&format!("{line} --tenant {tenant}"));
            }
        }
    }
}

#[test]
fn what_is_exported_and_applied_elsewhere_is_exported_there() {
    for seed in 0..times("TOLLGATE_APPLY_SEEDS", 8) {
        let (bed, key) = signed_bed();
        let mut random = Seeded(seed);
        let (one, two) = (bed.daemon("one"), bed.daemon("two"));
        populate(&bed, &one, &mut random, &key);
        let exported = one.ok("export");
        assert!(exported.len() > 100, "seed {seed}: {exported}");
        let format = ["toml", "yaml"][random.below(2) as usize];
        let out = bed.path("out");
        one.ok(&format!("export --out {} --format {format}", out.display()));
        applied(&two, &out, &[]);
        assert_eq!(two.ok("export"), exported, "seed {seed}");
        // And it is what the first one has.
        for daemon in [&one, &two] {
            let again = applied(daemon, &out, &[]);
            assert!(
                again.starts_with("0 created, 0 changed, 0 deleted"),
                "seed {seed}: {again}"
            );
        }
    }
}

// ---- limits ----

fn client(daemon: &Daemon, token: Option<&str>) -> Client {
    let token = token.map(Secret::new);
    Client::connect(&socket_beside(daemon.socket()), token.as_ref(), PATIENCE).unwrap()
}

fn order(state: State) -> ApplyOrder {
    ApplyOrder {
        state,
        ..ApplyOrder::default()
    }
}

#[test]
fn an_apply_has_so_many_objects_and_bytes() {
    let bed = bed();
    let daemon = bed.daemon("a");
    let client = client(&daemon, None);
    let ceilings = |count: usize| State {
        ceilings: (0..count)
            .map(|k| CeilingState {
                tenant: format!("t{k}"),
                key: "versions".to_owned(),
                value: "1".to_owned(),
            })
            .collect(),
        ..State::default()
    };
    // So many are read; their tenants aren't there.
    let refused = client
        .apply(order(ceilings(APPLY_OBJECTS)), |_step| {})
        .unwrap_err();
    assert_eq!(refused.code, Code::NOT_FOUND, "{refused}");
    let refused = client
        .apply(order(ceilings(APPLY_OBJECTS + 1)), |_step| {})
        .unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
    assert!(refused.message.contains("16384 objects"), "{refused}");
    let mut long = ApplyOrder::default();
    long.contents
        .insert(0, vec![0; tollgate_admin::APPLY_BYTES]);
    let refused = client.apply(long, |_step| {}).unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
    assert!(refused.message.contains("67108864 bytes"), "{refused}");
    // One object of a request is longer than a request may be.
    let mut one = ceilings(1);
    one.ceilings[0].value = "9".repeat(tollgate_admin::APPLY_MESSAGE_BYTES);
    let refused = client.apply(order(one), |_step| {}).unwrap_err();
    assert_eq!(refused.code, Code::OUT_OF_RANGE, "{refused}");
    // Values that no program would send.
    let tenant = || {
        vec![TenantState {
            name: "acme".to_owned(),
        }]
    };
    let credential = |role: i32, digest: Vec<u8>| State {
        tenants: tenant(),
        credentials: vec![CredentialState {
            tenant: "acme".to_owned(),
            name: "c".to_owned(),
            role,
            expires: None,
            token_digest: digest,
        }],
        ..State::default()
    };
    for (state, words) in [
        (credential(9, vec![1; 32]), "role 9"),
        (
            credential(Role::Owner.into(), vec![1; 31]),
            "31 bytes instead of 32",
        ),
    ] {
        let refused = client.apply(order(state), |_step| {}).unwrap_err();
        assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused}");
        assert!(refused.message.contains(words), "{refused}");
    }
    let named = ApplyOrder {
        header: ApplyStateHeader {
            set: "no name".to_owned(),
            ..ApplyStateHeader::default()
        },
        ..order(State {
            tenants: tenant(),
            ..State::default()
        })
    };
    let refused = client.apply(named, |_step| {}).unwrap_err();
    assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused}");
    assert_eq!(daemon.ok("tenant list"), "");
}

#[test]
fn a_tenants_documents_count_as_its_changes() {
    let bed = bed();
    let daemon = bed.daemon("a");
    let owner = daemon.tenant("acme");
    daemon.ok("ceiling set changes_per_hour=5 --tenant acme");
    let credentials = |count: usize| State {
        credentials: (0..count)
            .map(|k| CredentialState {
                tenant: String::new(),
                name: format!("c{k}"),
                role: Role::Viewer.into(),
                expires: None,
                token_digest: vec![k as u8 + 1; 32],
            })
            .collect(),
        ..State::default()
    };
    let client = client(&daemon, Some(&owner));
    let refused = client.apply(order(credentials(6)), |_step| {}).unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
    assert!(
        refused.message.contains("`changes_per_hour` = 5"),
        "{refused}"
    );
    // The refused request was one itself.
    client.apply(order(credentials(4)), |_step| {}).unwrap();
    let refused = client.apply(order(credentials(5)), |_step| {}).unwrap_err();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
}

//! `hosting`: what tenants that administer themselves cost: the time from a push to a policy that
//! decides, and a daemon with many tenants.
//!
//! The daemon keeps its state on disk, so each change waits for the disk. With `--record` the
//! program writes `benches/hosting.json` and `benches/HOSTING.md`, which are committed. `--smoke`
//! does everything a few times.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use tollgate_admin::client::Client;
use tollgate_admin::proto::{
    AddCredentialRequest, AddTenantRequest, AttachPolicyRequest, AttachmentOptions, Mode, Names,
    Owner, PolicyPart, PolicySelection, PushPolicyHeader, Role, Side, UpgradePolicyRequest,
};
use tollgate_admin::{PushOrder, Secret, Status, socket_beside};
use tollgate_benches::figures::{line, machine_lines, put};
use tollgate_benches::machine;
use tollgate_benches::measure::exit;
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, Testbed, guest_file, proto_file, succeed};

/// Measure what tenants that administer themselves cost.
#[derive(Debug, Parser)]
struct Args {
    /// Do everything a few times; times are not believed.
    #[arg(long)]
    smoke: bool,
    /// Write benches/hosting.json and benches/HOSTING.md.
    #[arg(long, conflicts_with = "smoke")]
    record: bool,
}

/// How much is measured.
struct Size {
    pushes: u8,
    tenants: &'static [usize],
    changes: usize,
}

/// The policies of each tenant.
const POLICIES: [&str; 3] = ["one", "two", "three"];
/// Longer than the pace of a tenant's changes, which isn't measured.
const BETWEEN: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    exit("hosting", hosting(&Args::parse()))
}

fn hosting(args: &Args) -> Result<(), String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let size = match args.smoke {
        true => Size {
            pushes: 3,
            tenants: &[2],
            changes: 3,
        },
        false => Size {
            pushes: 250,
            tenants: &[10, 100, 1_000],
            changes: 100,
        },
    };
    let mut run = machine::describe(home);
    run["command"] = json!(match cfg!(debug_assertions) {
        true => "target/debug/hosting --record",
        false => "target/release/hosting --record",
    });
    let module = guest_file("assemblyscript/witness");
    let module = std::fs::read(&module)
        .map_err(|error| format!("{} can't be read: {error}", module.display()))?;
    eprintln!("from a push to a policy that decides");
    let witness = Subject {
        module: &module,
        // It allows every call.
        configuration: Some(b"w"),
        service: "a.B",
    };
    let pushes = pushed(&size, &witness).map_err(|status| status.to_string())?;
    let compiled = compiled_rules()?;
    let rules = Subject {
        module: &compiled,
        configuration: None,
        service: "hotel.Reservation",
    };
    let rules = pushed(&size, &rules).map_err(|status| status.to_string())?;
    let mut tenants = Vec::new();
    for &count in size.tenants {
        eprintln!("{count} tenants");
        tenants.push(hosted(&size, count, &witness).map_err(|status| status.to_string())?);
    }
    let results = json!({
        "run": run, "module_bytes": module.len(), "pushes": pushes,
        "rules_bytes": compiled.len(), "rules": rules, "tenants": tenants,
    });
    let text = shown(&results);
    if args.record {
        put(&home.join("hosting.json"), &format!("{results:#}\n"))?;
        put(&home.join("HOSTING.md"), &text)?;
    }
    println!("{text}");
    Ok(())
}

fn client(daemon: &Daemon, token: Option<&str>) -> Result<Client, Status> {
    let token = token.map(Secret::new);
    Client::connect(&socket_beside(daemon.socket()), token.as_ref(), PATIENCE)
}

fn durable() -> Options {
    Options {
        durable: true,
        // More than a daemon has by default: three of each of 1,000 tenants.
        config: "[policies]\ninstances = 3100\n".to_owned(),
        ..Options::default()
    }
}

/// The module with a custom section that makes it another one.
fn variant(module: &[u8], number: u8) -> Vec<u8> {
    [module, &[0, 3, 1, b'n', number]].concat()
}

/// A policy that is pushed, and the service whose calls it evaluates.
struct Subject<'a> {
    module: &'a [u8],
    configuration: Option<&'a [u8]>,
    service: &'a str,
}

/// The module of a rule about two fields, as `tollgate policy push --rules` sends it.
fn compiled_rules() -> Result<Vec<u8>, String> {
    let bed = Testbed::new();
    let rules = bed.file(
        "rules.toml",
        "[[rule]]\nname = \"two fields\"\nmethods = [\"hotel.Reservation/Reserve\"]\n\
         when = \"request.customer_name == 'Mallory' && request.room_count > 3\"\ndeny = true\n",
    );
    let module = bed.path("rules.wasm");
    let mut compile = std::process::Command::new(program("tollgate"));
    compile.args(["policy", "rules"]).arg(&rules).arg("--proto");
    compile
        .arg(proto_file("hotel.proto"))
        .arg("-o")
        .arg(&module);
    succeed(&mut compile);
    std::fs::read(&module).map_err(|error| error.to_string())
}

/// Pushes this module with the subject's configuration.
fn push(
    client: &Client,
    (tenant, name): (&str, &str),
    subject: &Subject<'_>,
    module: Vec<u8>,
) -> Result<u32, Status> {
    let configuration = subject.configuration;
    let configuration = configuration.map(|its| (PolicyPart::Configuration.into(), its.to_vec()));
    let module = (PolicyPart::Module.into(), module);
    let order = PushOrder {
        header: PushPolicyHeader {
            owner: Some(owner(tenant)),
            name: name.to_owned(),
        },
        parts: configuration.into_iter().chain([module]).collect(),
        ..PushOrder::default()
    };
    Ok(client.push(order, |_step| {})?.version)
}

fn owner(tenant: &str) -> Owner {
    Owner {
        tenant: tenant.to_owned(),
        provider: false,
    }
}

fn attach(
    client: &Client,
    (tenant, name): (&str, &str),
    subject: &Subject<'_>,
    record: u32,
) -> Result<(), Status> {
    let grants = ["change", "delay", "priority", "route"];
    client.ask(AttachPolicyRequest {
        owner: Some(owner(tenant)),
        name: name.to_owned(),
        version: 1,
        service: subject.service.to_owned(),
        side: Side::Client.into(),
        mode: Mode::Enforce.into(),
        options: Some(AttachmentOptions {
            capabilities: Some(Names {
                names: grants.map(str::to_owned).into(),
            }),
            record: Some(record),
            ..AttachmentOptions::default()
        }),
        ..AttachPolicyRequest::default()
    })?;
    Ok(())
}

/// From the push of another version to the answer that it decides on all runtimes: of modules that
/// have to be compiled, and of known ones.
fn pushed(size: &Size, subject: &Subject<'_>) -> Result<Value, Status> {
    let bed = Testbed::new();
    let daemon = bed.daemon_with("a", &durable());
    let token = daemon.tenant("acme");
    let tenant = client(&daemon, Some(&token))?;
    push(
        &tenant,
        ("", "w"),
        subject,
        variant(subject.module, u8::MAX),
    )?;
    attach(&tenant, ("", "w"), subject, 0)?;
    let enforce = |module: &[u8]| -> Result<f64, Status> {
        std::thread::sleep(BETWEEN);
        let begun = Instant::now();
        let version = push(&tenant, ("", "w"), subject, module.to_vec())?;
        tenant.ask(UpgradePolicyRequest {
            at: Some(PolicySelection {
                name: "w".to_owned(),
                ..PolicySelection::default()
            }),
            version,
            mode: Mode::Enforce.into(),
            ..UpgradePolicyRequest::default()
        })?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    let (mut cold, mut known) = (Vec::new(), Vec::new());
    for number in 0..size.pushes {
        let module = variant(subject.module, number);
        cold.push(enforce(&module)?);
        known.push(enforce(&module)?);
    }
    Ok(json!({"cold_ms": quantiles(cold), "known_ms": quantiles(known)}))
}

/// A daemon with this many tenants, each with three policies in force: its start, its memory, and
/// changes of one tenant.
fn hosted(size: &Size, count: usize, subject: &Subject<'_>) -> Result<Value, Status> {
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &durable());
    let operator = client(&daemon, None)?;
    let name = |number: usize| format!("tenant-{number}");
    let begun = Instant::now();
    for number in 0..count {
        let tenant = name(number);
        operator.ask(AddTenantRequest {
            tenant: tenant.clone(),
        })?;
        for (policy, variant_of) in POLICIES.iter().zip(0..) {
            let at = (tenant.as_str(), *policy);
            push(&operator, at, subject, variant(subject.module, variant_of))?;
            attach(&operator, at, subject, 0)?;
        }
    }
    let filled_s = begun.elapsed().as_secs_f64();
    daemon.process().kill();
    drop(daemon);
    let begun = Instant::now();
    let daemon = bed.daemon_with("a", &durable());
    let start_ms = begun.elapsed().as_secs_f64() * 1e3;
    let memory_mib = machine::memory_mib(&[daemon.pid()]);
    let operator = client(&daemon, None)?;
    let (tenant, before) = (name(count / 2), written(daemon.pid()));
    let (mut attaches, mut credentials) = (Vec::new(), Vec::new());
    for change in 0..size.changes {
        let begun = Instant::now();
        attach(
            &operator,
            (&tenant, POLICIES[0]),
            subject,
            1 + change as u32,
        )?;
        attaches.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let bytes = (written(daemon.pid()) - before) / size.changes as f64;
    for change in 0..size.changes.min(50) {
        let begun = Instant::now();
        operator.ask(AddCredentialRequest {
            tenant: tenant.clone(),
            name: format!("c{change}"),
            role: Role::Application.into(),
            lifetime: None,
        })?;
        credentials.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(json!({
        "tenants": count, "filled_s": filled_s, "start_ms": start_ms, "memory_mib": memory_mib,
        "attach_ms": quantiles(attaches), "credential_ms": quantiles(credentials),
        "written_bytes_per_attach": bytes,
    }))
}

/// Bytes that a process has had written to disks.
fn written(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let of = text
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes: "));
    of.and_then(|bytes| bytes.parse().ok()).unwrap_or(0.0)
}

fn quantiles(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let index = (share * values.len() as f64).ceil() as usize;
        values.get(index.saturating_sub(1)).copied()
    };
    json!({"p50": at(0.5), "p99": at(0.99), "count": values.len()})
}

fn shown(results: &Value) -> String {
    let command = results["run"]["command"].as_str().unwrap_or("hosting");
    let mut text = format!(
        "# What tenants cost\n\nWritten by `{command}`. The daemon keeps its state on disk; each change waits for the disk. Run nothing else on the machine meanwhile.\n\n"
    );
    text += &machine_lines(&results["run"]);
    line(
        &mut text,
        format_args!(
            "## From a push to a policy that decides\n\nA module of {} bytes, and one of {} bytes that was compiled from a rule about two fields, replace a version in force: from the first byte of the push to the answer that the new version decides on all runtimes. *Cold*: the module has to be compiled. *Known*: it was pushed before.\n",
            results["module_bytes"], results["rules_bytes"]
        ),
    );
    text += "| | p50, ms | p99, ms | pushes |\n|---|---|---|---|\n";
    let ms = |of: &Value| of.as_f64().map_or("-".to_owned(), |ms| format!("{ms:.1}"));
    for (what, pushes, key) in [
        ("module, cold", "pushes", "cold_ms"),
        ("module, known", "pushes", "known_ms"),
        ("rules, cold", "rules", "cold_ms"),
        ("rules, known", "rules", "known_ms"),
    ] {
        let of = &results[pushes][key];
        line(
            &mut text,
            format_args!(
                "| {what} | {} | {} | {} |",
                ms(&of["p50"]),
                ms(&of["p99"]),
                of["count"]
            ),
        );
    }
    text += "\n## A daemon with many tenants\n\nEach tenant has three policies in force, of the same three modules for all; the daemon has `policies.instances = 3100`. *Start*: from the start of the process to the first answer, after a kill. *Attach*: an operator gives an attachment of one tenant other options. *Credential*: an operator adds one to the same tenant. *Written*: what one such attachment writes to the disk: a path of the store's copy-on-write tree, which gets longer with the logarithm of what is stored, not with the number of tenants.\n\n";
    text += "| tenants | start, ms | memory, MiB | attach p50, ms | p99 | credential p50, ms | p99 | written, KiB |\n|---|---|---|---|---|---|---|---|\n";
    for of in results["tenants"].as_array().into_iter().flatten() {
        let (attach, credential) = (&of["attach_ms"], &of["credential_ms"]);
        let kib = of["written_bytes_per_attach"].as_f64().unwrap_or(0.0) / 1024.0;
        line(
            &mut text,
            format_args!(
                "| {} | {} | {} | {} | {} | {} | {} | {kib:.0} |",
                of["tenants"],
                ms(&of["start_ms"]),
                ms(&of["memory_mib"]),
                ms(&attach["p50"]),
                ms(&attach["p99"]),
                ms(&credential["p50"]),
                ms(&credential["p99"])
            ),
        );
    }
    text
}

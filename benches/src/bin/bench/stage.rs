//! Brings a subject onto the stage, runs its client through one window, and reads the clocks.
//!
//! A [`Stage`] lasts one repetition: its daemons are fresh, so that a repetition also samples what
//! differs from one start to the next, and the first bind is a cold one. tonic's and TCP's servers
//! live for one measurement. Nothing outlives its [`Stage`].

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tollgate_benches::settings::{Method, Wait};
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, policy_file};
use tollgate_conformance::workload::acl_config;

use crate::machine::cpu_seconds;
use crate::scenario::{Attached, Policy, Scenario, Subject, Waiting};

const TENANT: &str = "bench";
const SERVICE: &str = "hotel.Reservation";

/// Which thread runs where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Placement {
    /// Wherever the scheduler puts it.
    Free,
    /// The client and its daemon on CPU 0, the server and its daemon on CPU 1.
    Split,
    /// Everything on CPU 0.
    One,
}

impl Placement {
    fn cpus(self) -> Option<(usize, usize)> {
        match self {
            Placement::Free => None,
            Placement::Split => Some((0, 1)),
            Placement::One => Some((0, 0)),
        }
    }

    /// In words, for the results.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Placement::Free => "free: the scheduler places every thread of every subject",
            Placement::Split => "client and its daemon's runtime on CPU 0, server and its on CPU 1",
            Placement::One => "client, server and the daemons' runtimes on CPU 0",
        }
    }
}

/// How long one window is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Measured.
    pub(crate) secs: f64,
    /// Before.
    pub(crate) warmup: f64,
}

/// One repetition's processes.
#[derive(Debug)]
pub(crate) struct Stage {
    placement: Placement,
    tollgate: Option<Tollgate>,
}

/// Two daemons, a server on the second, policies on the first. Dropped in this order.
#[derive(Debug)]
struct Tollgate {
    _server: Process,
    a: Daemon,
    b: Daemon,
    pids: [u32; 3],
    token: String,
    _bed: Testbed,
}

impl Stage {
    /// Sets the stage; `with_tollgate` says whether daemons are needed at all.
    ///
    /// # Errors
    /// What Tollgate's command line or server said instead of coming up.
    pub(crate) fn set(placement: Placement, with_tollgate: bool) -> Result<Stage, String> {
        let tollgate = match with_tollgate {
            true => Some(Tollgate::start(placement, None)?),
            false => None,
        };
        Ok(Stage {
            placement,
            tollgate,
        })
    }

    /// Runs `subject` in `scenario` for one window: the client's JSON, with the CPU time of all
    /// processes involved as `cpu_s` and `cpu_s_per_million`.
    ///
    /// # Errors
    /// What the client or server said instead, or which answers were wrong.
    pub(crate) fn measure(
        &self,
        scenario: &Scenario,
        subject: Subject,
        window: Window,
    ) -> Result<Map<String, Value>, String> {
        let method = match scenario.method {
            Method::Echo => "echo",
            Method::Hotel => "hotel",
        };
        let (size, inflight) = (scenario.size, scenario.inflight);
        let mut args = vec![
            format!("size={size}"),
            format!("inflight={inflight}"),
            format!("gap_us={}", scenario.gap_us),
            format!("method={method}"),
            format!("secs={}", window.secs),
            format!("warmup={}", window.warmup),
        ];
        if let Some((client, _)) = self.placement.cpus() {
            args.push(format!("cpu={client}"));
        }
        let result = match subject {
            Subject::Tcp(wait) => {
                let wait = match wait {
                    Wait::Block => "wait=block",
                    Wait::Spin => "wait=spin",
                };
                args.push(wait.to_owned());
                self.direct("tcp-pingpong", &[], "tcp-pingpong", &args, window)
            }
            Subject::Tonic(threads) => {
                let server = [format!("threads={threads}")];
                self.direct("tonic-server", &server, "tonic-client", &args, window)
            }
            Subject::Tollgate(policy) => match &self.tollgate {
                Some(tollgate) => tollgate.measure(policy, &args, window),
                None => Err("no daemons were started".to_owned()),
            },
            Subject::Waiting(how) => {
                args.push(how.argument().to_owned());
                let tollgate = Tollgate::start(self.placement, Some(how))?;
                tollgate.measure(Policy::None, &args, window)
            }
        }?;
        check(subject, scenario, result)
    }

    /// A client and a server with TCP between them.
    fn direct(
        &self,
        server: &str,
        server_args: &[String],
        client: &str,
        args: &[String],
        window: Window,
    ) -> Result<Map<String, Value>, String> {
        let mut server_args = [args, server_args].concat();
        if let Some((_, cpu)) = self.placement.cpus() {
            server_args.push(format!("cpu={cpu}"));
        }
        let server = start(server, &server_args)?;
        let ready = server.line(SOON, |line| line.starts_with("ready listen="))?;
        let address: SocketAddr = ready
            .trim_start_matches("ready listen=")
            .parse()
            .map_err(|_| format!("no address in `{ready}`"))?;
        let args = [args, &[format!("to={address}")]].concat();
        drive(start(client, &args)?, &[server.pid()], window)
    }
}

impl Tollgate {
    fn start(placement: Placement, waiting: Option<Waiting>) -> Result<Tollgate, String> {
        let bed = Testbed::new();
        let at = |cpu: Option<usize>| Options {
            cores: cpu.map(|cpu| cpu.to_string()),
            config: waiting.map_or_else(String::new, |how| how.config().to_owned()),
            ..Options::default()
        };
        let (cpu_a, cpu_b) = placement.cpus().unzip();
        let (at_a, at_b) = (at(cpu_a), at(cpu_b));
        let (mut a, mut b) = (bed.daemon_with("a", &at_a), bed.daemon_with("b", &at_b));
        let token = a.tenant(TENANT);
        let mut server_args = vec![
            format!("socket={}", b.socket().display()),
            format!("token={}", b.tenant(TENANT)),
        ];
        server_args.extend(cpu_b.map(|cpu| format!("cpu={cpu}")));
        server_args.extend(waiting.map(|how| how.argument().to_owned()));
        let server = start("bench-server", &server_args)?;
        server.line(SOON, |line| line == "ready")?;
        let config = bed.file("acl.json", acl_config().to_string());
        let tenant = ["--tenant", TENANT];
        push(&a, "null", &tenant, &[])?;
        push(&a, "null", &["--provider"], &[])?;
        let config = config.display().to_string();
        push(&a, "acl", &tenant, &["--config", &config])?;
        Ok(Tollgate {
            pids: [server.pid(), a.process().pid(), b.process().pid()],
            _server: server,
            a,
            b,
            token,
            _bed: bed,
        })
    }

    fn measure(
        &self,
        policy: Policy,
        args: &[String],
        window: Window,
    ) -> Result<Map<String, Value>, String> {
        let own = [
            format!("socket={}", self.a.socket().display()),
            format!("token={}", self.token),
            format!("to={}", self.b.listen()),
        ];
        for attached in policy.attached() {
            let version = format!("{}@1", attached.name);
            let place = place(attached);
            run(
                &self.a,
                &[&["policy", "attach", &version], &place[..]].concat(),
            )?;
        }
        let client = start("bench-client", &[args, &own].concat())?;
        let result = drive(client, &self.pids, window);
        for attached in policy.attached() {
            let place = place(attached);
            run(
                &self.a,
                &[&["policy", "detach", attached.name], &place[..]].concat(),
            )?;
        }
        result
    }
}

/// Where a policy is attached, as the command line says it.
fn place(attached: &Attached) -> Vec<&'static str> {
    let here = ["--tenant", TENANT, "--service", SERVICE, "--side", "client"];
    let method = match attached.method {
        "" => vec![],
        method => vec!["--method", method],
    };
    [&here[..], attached.party, &method].concat()
}

/// Pushes a module under its own name.
fn push(daemon: &Daemon, name: &str, owner: &[&str], config: &[&str]) -> Result<(), String> {
    let file = policy_file(name).display().to_string();
    let push = ["policy", "push", &file, "--name", name];
    run(daemon, &[&push[..], owner, config].concat())
}

/// Runs `tollgate` to its end and expects success.
fn run(daemon: &Daemon, args: &[&str]) -> Result<(), String> {
    let outcome = daemon.tollgate(args);
    match outcome.code {
        0 => Ok(()),
        _ => Err(format!("`tollgate {}` failed: {outcome}", args.join(" "))),
    }
}

fn start(name: &str, args: &[String]) -> Result<Process, String> {
    Process::start(&program(name), args).map_err(|error| format!("cannot start {name}: {error}"))
}

/// Steps a client through its window, reading the CPU clocks at both ends.
fn drive(
    mut client: Process,
    others: &[u32],
    window: Window,
) -> Result<Map<String, Value>, String> {
    let pids = [others, &[client.pid()]].concat();
    let mut stdin = client.stdin().ok_or("the client has no standard input")?;
    let mut go = || {
        stdin
            .write_all(b"go\n")
            .map_err(|error| format!("the client is gone: {error}"))
    };
    let patience = SOON + Duration::from_secs_f64(window.secs + window.warmup);
    client.line(patience, |line| line == "BEGIN")?;
    let clocks = || (cpu_seconds(&pids), cpu_seconds(others));
    let (before, their_before) = clocks();
    go()?;
    client.line(patience, |line| line == "END")?;
    let (after, their_after) = clocks();
    let cpu = after - before;
    let share = (their_after - their_before) / window.secs * 100.0;
    go()?;
    let line = client.line(patience, |line| line.starts_with('{'))?;
    let mut result: Map<String, Value> =
        serde_json::from_str(&line).map_err(|error| format!("{error} in `{line}`"))?;
    let answered = count(&result, "ok") + count(&result, "denied");
    result.insert("cpu_s".to_owned(), json!(cpu));
    result.insert("share_percent".to_owned(), json!(share));
    if answered > 0 {
        let per_million = cpu * 1e6 / answered as f64;
        result.insert("cpu_s_per_million".to_owned(), json!(per_million));
    }
    Ok(result)
}

/// A number of calls that were answered wrongly is not a number of calls.
fn check(
    subject: Subject,
    scenario: &Scenario,
    result: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let count = |key| count(&result, key);
    if count("err") > 0 {
        let sentence = result.get("first_error").and_then(Value::as_str);
        let sentence = sentence.unwrap_or("no reason given");
        return Err(format!(
            "{} calls failed; the first: {sentence}",
            count("err")
        ));
    }
    if count("ok") == 0 {
        return Err("no call was answered".to_owned());
    }
    let has_acl = matches!(subject, Subject::Tollgate(Policy::Acl | Policy::Chain));
    let judged = has_acl && scenario.method == Method::Hotel;
    let expected = if judged { count("blocked") } else { 0 };
    if count("denied") != expected {
        let denied = count("denied");
        return Err(format!("{denied} calls were denied, {expected} had to be"));
    }
    Ok(result)
}

fn count(result: &Map<String, Value>, key: &str) -> u64 {
    result.get(key).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::SCENARIOS;

    #[test]
    fn wrong_answers_are_no_result() {
        let acl = Subject::Tollgate(Policy::Acl);
        let hotel = SCENARIOS.iter().find(|s| s.name == "rate-hotel");
        let hotel = hotel.expect("the scenario exists");
        let result = |ok: u64, denied: u64, err: u64, blocked: u64| {
            let value = json!({"ok": ok, "denied": denied, "err": err, "blocked": blocked});
            value.as_object().cloned().unwrap_or_default()
        };
        for (subject, given, error) in [
            (acl, result(99, 1, 0, 1), None),
            (Subject::Tonic(1), result(100, 0, 0, 1), None),
            (
                acl,
                result(100, 0, 0, 1),
                Some("0 calls were denied, 1 had to be"),
            ),
            (
                Subject::Tonic(1),
                result(99, 1, 0, 1),
                Some("1 calls were denied, 0 had to be"),
            ),
            (acl, result(0, 0, 0, 0), Some("no call was answered")),
            (
                acl,
                result(1, 0, 2, 0),
                Some("2 calls failed; the first: no reason given"),
            ),
        ] {
            assert_eq!(check(subject, hotel, given).err().as_deref(), error);
        }
    }
}

//! Starts a subject, runs its client through one window, and reads the clocks.
//!
//! A [`Stage`] lasts one repetition: its daemons are fresh, so a repetition also samples
//! differences from one start to the next, and the first bind is a cold one. tonic's and TCP's
//! servers live for one measurement. Nothing outlives its [`Stage`].

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ChildStdin;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tollgate_benches::machine::{is_idle_class, memory_mib};
use tollgate_benches::settings::{Method, Wait};
use tollgate_conformance::process::{Process, cpu_seconds};
use tollgate_conformance::testbed::{
    Daemon, Options, SOON, Testbed, eventually, policy_file, proto_file,
};
use tollgate_conformance::workload::acl_config;

use crate::collector::Collector;
use crate::envoy::{self, Filter};
use crate::placement::Placement;
use crate::program::{Ends, Program, TONIC, peer};
use crate::scenario::{Before, Rival, Scenario};
use crate::subject::{Attached, Otherwise, Policy, Sidecar, Subject};

const TENANT: &str = "bench";
const RIVAL: &str = "rival";
const SERVICE: &str = "hotel.Reservation";

/// The length of one window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Measured seconds.
    pub(crate) secs: f64,
    /// Seconds of warm-up before.
    pub(crate) warmup: f64,
}

impl Window {
    /// If no call is answered in a window, the next window is this many times as long.
    const LONGER: f64 = 8.0;

    /// The longest window, in seconds. If no call is answered in it, the measurement fails.
    const PATIENCE_SECS: f64 = 5.0;

    fn longer(self) -> Option<Window> {
        let longer = Window {
            secs: self.secs * Self::LONGER,
            warmup: self.warmup * Self::LONGER,
        };
        (self.secs < Self::PATIENCE_SECS).then_some(longer)
    }
}

/// The processes of one repetition.
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
    /// The rival's tokens for both daemons.
    rival: [String; 2],
    placement: Placement,
    /// The collector of the daemons' telemetry, if there is one.
    collector: Option<Collector>,
    _bed: Testbed,
}

impl Stage {
    /// Starts the processes; `with_tollgate` says whether daemons are needed at all.
    ///
    /// # Errors
    /// The output of Tollgate's command line or server, if it doesn't start.
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

    /// Runs `subject` in `scenario` for one window, or a longer one if no call is answered in it.
    /// Returns the client's JSON, with the CPU time of all processes involved as `cpu_s` and
    /// `cpu_s_per_million`.
    ///
    /// # Errors
    /// The output of the client or server if it fails, or the number of wrong answers.
    pub(crate) fn measure(
        &self,
        scenario: &Scenario,
        subject: Subject,
        window: Window,
    ) -> Result<Map<String, Value>, String> {
        if let Some(placement) = scenario.placement
            && placement != self.placement
        {
            let stage = Stage::set(placement, subject.needs_daemons())?;
            return stage.measure(scenario, subject, window);
        }
        if scenario.before == Before::Prefetch && subject.needs_daemons() {
            let stage = Stage::set(self.placement, true)?;
            stage.tollgate.iter().try_for_each(Tollgate::prefetch)?;
            return stage.measure_here(scenario, subject, window);
        }
        self.measure_here(scenario, subject, window)
    }

    fn measure_here(
        &self,
        scenario: &Scenario,
        subject: Subject,
        mut window: Window,
    ) -> Result<Map<String, Value>, String> {
        let _spinners = scenario.spinners.then(spinners).transpose()?;
        if scenario.before == Before::Run {
            self.run(scenario, subject, window)?;
        }
        loop {
            let result = self.run(scenario, subject, window)?;
            // A denial may be the first answer.
            let silent = ["ok", "err"].iter().all(|key| count(&result, key) == 0);
            match window.longer() {
                Some(longer) if silent => window = longer,
                _ => return check(subject, scenario, result),
            }
        }
    }

    fn run(
        &self,
        scenario: &Scenario,
        subject: Subject,
        window: Window,
    ) -> Result<Map<String, Value>, String> {
        let method = scenario.method.name();
        let (size, inflight) = (scenario.size, scenario.inflight);
        let mut args = vec![
            format!("size={size}"),
            format!("inflight={inflight}"),
            format!("sessions={}", scenario.sessions),
            format!("gap_us={}", scenario.gap_us),
            format!("method={method}"),
            format!("secs={}", window.secs),
            format!("warmup={}", window.warmup),
        ];
        // Peers in other languages don't know these arguments.
        if scenario.threads > 1 {
            args.push(format!("threads={}", scenario.threads));
        }
        if scenario.work_us > 0 {
            args.push(format!("work_us={}", scenario.work_us));
        }
        if scenario.split {
            args.push("split=on".to_owned());
        }
        if scenario.rate > 0 {
            args.push(format!("rate={}", scenario.rate));
        }
        if let Some((client, _)) = self.placement.cpus() {
            args.push(format!("cpu={client}"));
        }
        match subject {
            Subject::Tcp(wait) => {
                let wait = match wait {
                    Wait::Block => "wait=block",
                    Wait::Spin => "wait=spin",
                };
                args.push(wait.to_owned());
                let program = Program::Ours("tcp-pingpong");
                let ends = Ends {
                    server: program,
                    client: program,
                };
                self.direct(ends, &[], &args, None, window)
            }
            Subject::Tonic(threads) => {
                let server = [format!("threads={threads}")];
                self.direct(TONIC, &server, &args, None, window)
            }
            Subject::TonicAcl => {
                let server = ["threads=1", "acl=on"].map(str::to_owned);
                self.direct(TONIC, &server, &args, None, window)
            }
            Subject::Envoy(sidecar) => {
                let server = ["threads=1".to_owned()];
                self.direct(TONIC, &server, &args, Some(sidecar), window)
            }
            Subject::Shm { relayed } => self.on_host(
                |role| (Program::Ours("shm-pingpong"), Some(format!("role={role}"))),
                relayed,
                &args,
                window,
            ),
            Subject::Iceoryx2 => {
                let program = |role| (Program::Peer("iceoryx2", role), None);
                self.on_host(program, false, &args, window)
            }
            Subject::OneDaemon => match &self.tollgate {
                Some(tollgate) => tollgate.measure_alone(&args, window),
                None => Err("no daemons were started".to_owned()),
            },
            Subject::Grpc(language) => {
                let peer = |role| Program::Peer(language.peer(), role);
                let ends = Ends {
                    server: peer("server"),
                    client: peer("client"),
                };
                self.direct(ends, &[], &args, None, window)
            }
            Subject::Tollgate(policy) => match &self.tollgate {
                Some(tollgate) => tollgate.measure(policy, &args, scenario.rival, window),
                None => Err("no daemons were started".to_owned()),
            },
            Subject::Otherwise(how) => {
                args.extend(how.arguments().iter().map(|&arg| arg.to_owned()));
                let tollgate = Tollgate::start(self.placement, Some(how))?;
                let result = tollgate.measure(Policy::None, &args, scenario.rival, window)?;
                match &tollgate.collector {
                    Some(collector) => collector.has_spans().map(|()| result),
                    None => Ok(result),
                }
            }
        }
    }

    /// A server and a client on one host with shared memory between them, and possibly a relay.
    fn on_host(
        &self,
        program: impl Fn(&'static str) -> (Program, Option<String>),
        relayed: bool,
        args: &[String],
        window: Window,
    ) -> Result<Map<String, Value>, String> {
        let bed = Testbed::new();
        let (client_cpu, server_cpu) = self.placement.cpus().unzip();
        let at = |name: &str| bed.path(name).display().to_string();
        let start = |role, socket: &str, cpu: Option<usize>, more: &[String]| {
            let (program, role) = program(role);
            let own = [format!("socket={}", at(socket))];
            let cpu = cpu.map(|cpu| format!("cpu={cpu}"));
            program.start(&[role.as_slice(), args, &own, cpu.as_slice(), more].concat())
        };
        let is_ready = |line: &str| line == "ready";
        let mut behind = vec![start("server", "server", server_cpu, &[])?];
        behind[0].line(SOON, is_ready)?;
        let mut socket = "server";
        if relayed {
            let more = [format!("behind={}", at(socket))];
            socket = "relay";
            let relay = start("relay", socket, client_cpu, &more)?;
            relay.line(SOON, is_ready)?;
            behind.push(relay);
        }
        let pids: Vec<_> = behind.iter().map(Process::pid).collect();
        let result = drive(start("client", socket, None, &[])?, None, &pids, window);
        // Programs with state to clean up end with their standard input.
        for mut process in behind {
            drop(process.stdin());
            let _ended = process.ended(Duration::from_millis(100));
        }
        result
    }

    /// A server and a client with TCP between them, and possibly an Envoy for each.
    fn direct(
        &self,
        ends: Ends,
        server_args: &[String],
        args: &[String],
        sidecars: Option<Sidecar>,
        window: Window,
    ) -> Result<Map<String, Value>, String> {
        let (_, server_cpu) = self.placement.cpus().unzip();
        let mut server_args = [args, server_args].concat();
        server_args.extend(server_cpu.map(|cpu| format!("cpu={cpu}")));
        let server = ends.server.start(&server_args)?;
        let ready = server.line(SOON, |line| line.starts_with("ready listen="))?;
        let mut address: SocketAddr = ready
            .trim_start_matches("ready listen=")
            .parse()
            .map_err(|_| format!("no address in `{ready}`"))?;
        let mut pids = vec![server.pid()];
        let mut envoys = Vec::new();
        if let Some(sidecar) = sidecars {
            let (envoy_client_cpu, _) = self.placement.cpus().unzip();
            let module = peer("envoy-acl.wasm");
            let blocked = acl_config().to_string();
            let wasm = |configuration| Filter::Wasm {
                module: &module,
                configuration,
            };
            let filter = match sidecar {
                Sidecar::Plain => None,
                Sidecar::Null => Some(wasm("{}")),
                Sidecar::RateLimit => Some(Filter::RateLimit),
                Sidecar::Acl => Some(wasm(&blocked)),
            };
            for (cpu, filter) in [(server_cpu, None), (envoy_client_cpu, filter)] {
                let (envoy, listen) = envoy::start(&peer("envoy"), cpu, address, filter)?;
                pids.push(envoy.pid());
                envoys.push(envoy);
                address = listen;
            }
        }
        let args = [args, &[format!("to={address}")]].concat();
        drive(ends.client.start(&args)?, None, &pids, window)
    }
}

/// A process on each CPU that never sleeps and yields to every other process.
///
/// # Errors
/// A process doesn't reach the idle class. Without the spinners the measurement would be of
/// something else.
fn spinners() -> Result<Vec<Process>, String> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let start = |cpu: usize| {
        let cpu = cpu.to_string();
        let idle = [
            "-i",
            "0",
            "taskset",
            "-c",
            &cpu,
            "sh",
            "-c",
            "while :; do :; done",
        ];
        let failed = |why: String| format!("no spinner (chrt, taskset and sh are needed): {why}");
        let spinner = Process::start(Path::new("chrt"), idle);
        let spinner = spinner.map_err(|error| failed(error.to_string()))?;
        match eventually(SOON, || is_idle_class(spinner.pid())) {
            Ok(_) => Ok(spinner),
            Err(_) => Err(failed(spinner.said().join("; "))),
        }
    };
    (0..cpus).map(start).collect()
}

impl Tollgate {
    /// Tells both daemons the schema.
    fn prefetch(&self) -> Result<(), String> {
        let hotel = proto_file("hotel.proto").display().to_string();
        let told = [&self.a, &self.b].map(|daemon| run(daemon, &["prefetch", "--proto", &hotel]));
        told.into_iter().collect()
    }

    fn start(placement: Placement, otherwise: Option<Otherwise>) -> Result<Tollgate, String> {
        let bed = Testbed::new();
        let mut config = otherwise.map_or("", Otherwise::config).to_owned();
        let collector = match config.contains("COLLECTOR") {
            true => Some(Collector::start()?),
            false => None,
        };
        if let Some(collector) = &collector {
            config = config.replace("COLLECTOR", &collector.address.to_string());
        }
        let at = |cpu: Option<usize>| Options {
            cores: cpu.map(|cpu| cpu.to_string()),
            config: config.clone(),
            ..Options::default()
        };
        let (cpu_a, cpu_b) = placement.cpus().unzip();
        let (at_a, at_b) = (at(cpu_a), at(cpu_b));
        let (mut a, mut b) = (bed.daemon_with("a", &at_a), bed.daemon_with("b", &at_b));
        let token = a.tenant(TENANT);
        let rival = [a.tenant(RIVAL), b.tenant(RIVAL)];
        let mut more: Vec<_> = cpu_b.map(|cpu| format!("cpu={cpu}")).into_iter().collect();
        let arguments = otherwise.map_or(&[][..], Otherwise::arguments);
        more.extend(arguments.iter().map(|&arg| arg.to_owned()));
        let server = serve(&b, &b.tenant(TENANT), &more)?;
        let config = bed.file("acl.json", acl_config().to_string());
        let tenant = ["--tenant", TENANT];
        push(&a, "null", &tenant, &[])?;
        push(&a, "null", &["--provider"], &[])?;
        let config = config.display().to_string();
        push(&a, "acl", &tenant, &["--config", &config])?;
        let limit = r#"{"fields": ["customer_name"], "methods": ["hotel.Reservation/Reserve"],
            "per_second": 1000000, "burst": 1000000}"#;
        let config = bed.file("limit.json", limit);
        let config = config.display().to_string();
        push(&a, "rate-limit", &tenant, &["--config", &config])?;
        Ok(Tollgate {
            pids: [server.pid(), a.process().pid(), b.process().pid()],
            _server: server,
            a,
            b,
            token,
            rival,
            placement,
            collector,
            _bed: bed,
        })
    }

    fn measure(
        &self,
        policy: Policy,
        args: &[String],
        rival: Option<Rival>,
        window: Window,
    ) -> Result<Map<String, Value>, String> {
        let to = [format!("to={}", self.b.listen())];
        let client = |args: &[String], token: &str| self.client(token, &[args, &to[..]].concat());
        for attached in policy.attached() {
            let version = format!("{}@1", attached.name);
            let place = place(attached);
            run(
                &self.a,
                &[
                    &["policy", "attach", &version],
                    &place[..],
                    &granted(attached),
                ]
                .concat(),
            )?;
        }
        let result = match rival {
            None => drive(client(args, &self.token)?, None, &self.pids, window),
            Some(rival) => {
                let [token, server_token] = &self.rival;
                let cpu = self.placement.cpus().map(|(_, cpu)| format!("cpu={cpu}"));
                let server = serve(&self.b, server_token, cpu.as_slice())?;
                let load = [
                    format!("size={}", rival.size),
                    format!("inflight={}", rival.inflight),
                    format!("sessions={}", rival.sessions),
                ];
                let theirs = client(&[args, &load].concat(), token)?;
                let ours = client(args, &self.token)?;
                let pids = [&self.pids[..], &[server.pid()]].concat();
                drive(ours, Some((theirs, self)), &pids, window)
            }
        };
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

impl Tollgate {
    /// Measures with a server on the client's host.
    fn measure_alone(&self, args: &[String], window: Window) -> Result<Map<String, Value>, String> {
        let cpu = self.placement.cpus().map(|(_, cpu)| format!("cpu={cpu}"));
        let server = serve(&self.a, &self.token, cpu.as_slice())?;
        let client = self.client(&self.token, args)?;
        drive(client, None, &[server.pid(), self.pids[1]], window)
    }

    /// A client of the first daemon. Its calls stay on that host, unless the arguments name a peer.
    fn client(&self, token: &str, args: &[String]) -> Result<Process, String> {
        let own = [
            format!("socket={}", self.a.socket().display()),
            format!("token={token}"),
        ];
        Program::Ours("bench-client").start(&[args, &own].concat())
    }

    /// The client's daemon's time for the tenant's calls and for the rival's calls, in nanoseconds.
    fn shares(&self) -> Result<[f64; 2], String> {
        let status = self.a.status();
        let shares = status["shares"].as_array();
        let of = |tenant: &str| {
            let found = shares.and_then(|all| all.iter().find(|one| one["tenant"] == tenant));
            found.map_or(Some(0.0), |share| share["busy_ns"].as_f64())
        };
        let both = of(TENANT).zip(of(RIVAL)).map(|(a, b)| [a, b]);
        both.ok_or_else(|| format!("the status has no shares: {}", status["shares"]))
    }
}

/// Starts a server for the owner of a token.
fn serve(daemon: &Daemon, token: &str, more: &[String]) -> Result<Process, String> {
    let own = [
        format!("socket={}", daemon.socket().display()),
        format!("token={token}"),
    ];
    let server = Program::Ours("bench-server").start(&[&own, more].concat())?;
    server.line(SOON, |line| line == "ready")?;
    Ok(server)
}

/// The place of an attached policy, as arguments of the command line.
fn place(attached: &Attached) -> Vec<&'static str> {
    let here = ["--tenant", TENANT, "--service", SERVICE, "--side", "client"];
    let method = match attached.method {
        "" => vec![],
        method => vec!["--method", method],
    };
    [&here[..], attached.party, &method].concat()
}

/// The grants of an attached policy, as arguments of the command line.
fn granted(attached: &Attached) -> Vec<&'static str> {
    match attached.grant {
        "" => vec![],
        grant => vec!["--grant", grant],
    }
}

/// Pushes a module under its own name.
fn push(daemon: &Daemon, name: &str, owner: &[&str], config: &[&str]) -> Result<(), String> {
    let file = policy_file(&name.replace('-', "_")).display().to_string();
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

/// A client that this program steps through its window.
struct Stepped {
    client: Process,
    stdin: ChildStdin,
    patience: Duration,
}

impl Stepped {
    fn new(mut client: Process, window: Window) -> Result<Stepped, String> {
        let stdin = client.stdin().ok_or("the client has no standard input")?;
        let patience = SOON + Duration::from_secs_f64(window.secs + window.warmup);
        Ok(Stepped {
            client,
            stdin,
            patience,
        })
    }

    fn wait_for(&self, line: &str) -> Result<(), String> {
        self.client.line(self.patience, |said| said == line)?;
        Ok(())
    }

    fn go(&mut self) -> Result<(), String> {
        let sent = self.stdin.write_all(b"go\n");
        sent.map_err(|error| format!("the client is gone: {error}"))
    }

    fn result(&mut self) -> Result<Map<String, Value>, String> {
        let line = self
            .client
            .line(self.patience, |line| line.starts_with('{'))?;
        // It may have state to clean up. If it doesn't end, it is killed.
        let _ended = self.client.ended(SOON);
        serde_json::from_str(&line).map_err(|error| format!("{error} in `{line}`"))
    }
}

/// Steps a client and its rival together through a window, and reads the clocks at both ends.
fn drive(
    client: Process,
    rival: Option<(Process, &Tollgate)>,
    others: &[u32],
    window: Window,
) -> Result<Map<String, Value>, String> {
    let (rival, daemons) = rival.unzip();
    let rivals_pid = rival.as_ref().map(Process::pid);
    let shares = || daemons.map_or(Ok([0.0; 2]), Tollgate::shares);
    let others = [others, rivals_pid.as_slice()].concat();
    let pids = [&others[..], &[client.pid()]].concat();
    let clocks = || (cpu_seconds(&pids), cpu_seconds(&others));
    let mut clients = vec![Stepped::new(client, window)?];
    clients.extend(rival.map(|rival| Stepped::new(rival, window)).transpose()?);
    clients.iter().try_for_each(|one| one.wait_for("BEGIN"))?;
    let shares_before = shares()?;
    let (before, their_before) = clocks();
    clients.iter_mut().try_for_each(Stepped::go)?;
    clients.iter().try_for_each(|one| one.wait_for("END"))?;
    let (after, their_after) = clocks();
    let memory = memory_mib(&pids);
    let shares_after = shares()?;
    let cpu = after - before;
    let share = (their_after - their_before) / window.secs * 100.0;
    clients.iter_mut().try_for_each(Stepped::go)?;
    let mut result = clients[0].result()?;
    let mut answered = count(&result, "ok") + count(&result, "denied");
    if let Some(rival) = clients.get_mut(1) {
        let its = rival.result()?;
        answered += count(&its, "ok");
        result.extend(
            its.into_iter()
                .map(|(key, value)| (format!("rival_{key}"), value)),
        );
        let [one, other] = [0, 1].map(|n| shares_after[n] - shares_before[n]);
        let difference = 1.0 - one.min(other) / one.max(other);
        for (key, value) in [
            ("share_difference_percent", difference * 100.0),
            ("busy_ms", one / 1e6),
            ("rival_busy_ms", other / 1e6),
        ] {
            result.insert(key.to_owned(), json!(value));
        }
    }
    result.insert("cpu_s".to_owned(), json!(cpu));
    result.insert("share_percent".to_owned(), json!(share));
    result.insert("pss_mib".to_owned(), json!(memory));
    if answered > 0 {
        let per_million = cpu * 1e6 / answered as f64;
        result.insert("cpu_s_per_million".to_owned(), json!(per_million));
    }
    Ok(result)
}

/// Fails if calls were answered wrongly: their number isn't a result.
fn check(
    subject: Subject,
    scenario: &Scenario,
    result: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let count = |key: &str| count(&result, key);
    for whose in ["", "rival_"] {
        let failed = count(&format!("{whose}err"));
        if failed > 0 {
            let sentence = result.get(&format!("{whose}first_error"));
            let sentence = sentence
                .and_then(Value::as_str)
                .unwrap_or("no reason given");
            return Err(format!("{failed} calls failed; the first: {sentence}"));
        }
    }
    let refused = count("refused");
    if refused > 0 && (scenario.rate == 0 || scenario.work_us == 0) {
        return Err(format!("{refused} calls were refused: RESOURCE_EXHAUSTED"));
    }
    if count("ok") == 0 {
        return Err("no call was answered".to_owned());
    }
    let has_acl = matches!(
        subject,
        Subject::Tollgate(Policy::Acl | Policy::Chain)
            | Subject::TonicAcl
            | Subject::Envoy(Sidecar::Acl)
    );
    let evaluated = has_acl && scenario.method == Method::Hotel;
    let expected = if evaluated { count("blocked") } else { 0 };
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

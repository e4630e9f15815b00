//! The story itself: all steps, in the order in which they are shown.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Output};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde_json::{Value, json};
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{Daemon, SOON, Testbed, policy_file, proto_file};
use tollgate_conformance::workload::{acl_config, blocked_names, other_names};

use crate::hotel::{DENIAL, TENANTS_USER};
use crate::terminal::{Expectation, Terminal, grouped};

/// Bookings in flight at once.
const IN_FLIGHT: &str = "32";

/// Calls in flight at once of the tenant whose policy loops.
const EVIL_IN_FLIGHT: &str = "4";

/// The place of every attachment here.
const SERVICE: &str = "hotel.Reservation";

/// Tells the whole story; returns whether everything was as expected.
pub(crate) fn tell() -> Result<bool, String> {
    let terminal = Terminal::new();
    let mut story = Story::begin(&terminal)?;
    let mut rows = Vec::new();
    story.plain_calls(&mut rows)?;
    story.access_list(&mut rows)?;
    story.changes(&mut rows)?;
    story.evil(&mut rows)?;
    story.end(&mut rows)?;
    Ok(terminal.table(&rows))
}

struct Story<'a> {
    terminal: &'a Terminal,
    bed: Testbed,
    a: Daemon,
    b: Daemon,
    token_a: String,
    server: App,
    client: App,
}

/// One of the demo's applications: orders in, answers out.
struct App {
    process: Process,
    orders: ChildStdin,
    /// The lines that answered earlier orders.
    read: usize,
}

impl App {
    /// Starts `demo ARGS`, gives it its token, and waits until it is ready.
    fn start(args: &[&str], token: &str) -> Result<App, String> {
        let mut process = Process::start(&program("demo"), args)
            .map_err(|error| format!("demo {args:?}: {error}"))?;
        let orders = process
            .stdin()
            .ok_or("a started process has a standard input")?;
        let mut app = App {
            process,
            orders,
            read: 0,
        };
        app.order(token)?;
        Ok(app)
    }

    /// Gives an order and waits for its answer.
    fn order(&mut self, order: &str) -> Result<String, String> {
        writeln!(self.orders, "{order}").map_err(|error| {
            format!(
                "an application is gone ({error}); it said:\n  {}",
                self.process.said().join("\n  ")
            )
        })?;
        let answer = self.process.line_after(self.read, SOON)?;
        self.read += 1;
        Ok(answer)
    }

    fn report(&mut self) -> Result<Report, String> {
        let answer = self.order("report")?;
        serde_json::from_str(&answer)
            .map(Report)
            .map_err(|error| format!("{error} in {answer:?}"))
    }
}

fn parse(report: &str) -> Result<Report, String> {
    serde_json::from_str(report)
        .map(Report)
        .map_err(|error| format!("{error} in {report:?}"))
}

/// An application's counts since its start.
struct Report(Value);

impl Report {
    fn count(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    /// The increase since `earlier`.
    fn since(&self, earlier: &Report, name: &str) -> u64 {
        self.count(name) - earlier.count(name)
    }

    /// Rate and latencies since the report before this one.
    fn line(&self) -> String {
        let rate = self.0["rate"].as_f64().unwrap_or_default() as u64;
        let us = |name| grouped(self.count(name));
        format!(
            "{:>7} calls/s   p50 {:>6} us   p90 {:>6} us   p99 {:>6} us   {:>9} answered, {:>6} denied",
            grouped(rate),
            us("p50_us"),
            us("p90_us"),
            us("p99_us"),
            us("answered"),
            us("denied")
        )
    }
}

impl<'a> Story<'a> {
    /// Starts two hosts, the hotel on one and its customers on the other.
    fn begin(terminal: &'a Terminal) -> Result<Story<'a>, String> {
        terminal.tell("Tollgate: two hosts, one hotel, and policies that tenants bring along.");
        let bed = Testbed::new();
        let (a, b) = (bed.daemon("host-a"), bed.daemon("host-b"));
        terminal.tell(&format!(
            "host A listens on {}, host B on {}",
            a.listen(),
            b.listen()
        ));
        std::fs::set_permissions(bed.path(""), Permissions::from_mode(0o755))
            .and_then(|()| std::fs::copy(program("tollgate"), bed.path("tollgate")))
            .map_err(|error| format!("the tenants' directory can't be made: {error}"))?;
        let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
        terminal.command("tollgate tenant add acme", "(its token, on each host)");
        terminal.tell(match geteuid().is_root() {
            true => "From here on, tenants act with their tokens, as a user without any rights",
            false => "From here on, tenants act with their tokens",
        });
        let server = App::start(&["server", &socket(&b)], &token_b)?;
        let target = b.listen().to_string();
        let client = App::start(&["client", &socket(&a), &target, IN_FLIGHT], &token_a)?;
        terminal.tell("acme's hotel reservation server runs on B, its client on A");
        Ok(Story {
            terminal,
            bed,
            a,
            b,
            token_a,
            server,
            client,
        })
    }

    fn plain_calls(&mut self, rows: &mut Vec<Expectation>) -> Result<(), String> {
        self.terminal.chapter(1, "Plain calls");
        let before = self.client.report()?;
        let after = self.flow(5)?;
        let answered = after.since(&before, "answered");
        rows.push(equal(
            "plain calls confirmed",
            answered,
            after.since(&before, "ok"),
        ));
        rows.push(Expectation {
            what: "  number of plain calls",
            expected: "more than 0".to_owned(),
            observed: grouped(answered),
            met: answered > 0,
        });
        Ok(())
    }

    fn access_list(&mut self, rows: &mut Vec<Expectation>) -> Result<(), String> {
        self.terminal
            .chapter(2, "acme uploads an access list of 1,000 names");
        self.push("acl", "list.json", &acl_config())?;
        self.changing("none one", "one", |story| {
            story.attach("acl@1", &story.token_a)
        })?;
        self.show_a_denied_call()?;
        let before = self.client.report()?;
        let after = self.flow(6)?;
        let (answered, denied) = (
            after.since(&before, "answered"),
            after.since(&before, "denied"),
        );
        rows.push(equal(
            "bookings of listed customers denied",
            after.since(&before, "expected_denied"),
            denied,
        ));
        rows.push(equal(
            "bookings of all others confirmed",
            answered - denied,
            after.since(&before, "ok"),
        ));
        rows.push(Expectation {
            what: "share denied",
            expected: "1.00 %".to_owned(),
            observed: format!("{:.2} %", 100.0 * denied as f64 / answered.max(1) as f64),
            met: (denied * 100).abs_diff(answered) <= answered / 20 && denied > 0,
        });
        Ok(())
    }

    /// A booking of one listed customer by hand, to show its error.
    fn show_a_denied_call(&self) -> Result<(), String> {
        let customer = blocked_names().swap_remove(0);
        let request = json!({ "customer_name": customer }).to_string();
        let proto = self.readable("hotel.proto", &proto_file("hotel.proto"))?;
        let (to, method) = (self.b.listen().to_string(), "hotel.Reservation/Reserve");
        let args = ["call", "--proto", &proto, "--to", &to, method, &request];
        let ended = self.as_tenant(&self.token_a, &args)?;
        let (code, said) = (ended.status.code(), String::from_utf8_lossy(&ended.stderr));
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        self.terminal.command(
            &format!("tollgate call ... --to {to} {method} '{request}'"),
            &format!("exit status {code}: {}", said.trim()),
        );
        match code == "7" && said.contains(DENIAL) {
            true => Ok(()),
            false => Err(format!(
                "a listed customer's booking was not denied: exit status {code}: {said}"
            )),
        }
    }

    fn changes(&mut self, rows: &mut Vec<Expectation>) -> Result<(), String> {
        self.terminal
            .chapter(3, "The list changes, and goes, while calls flow");
        let before = self.client.report()?;
        self.push(
            "acl",
            "other-list.json",
            &json!({ "blocked": other_names() }),
        )?;
        self.changing("one two", "two", |story| {
            story.attach("acl@2", &story.token_a)
        })?;
        self.flow(4)?;
        self.changing("two none", "none", |story| {
            story
                .tollgate(
                    &story.token_a,
                    &format!("policy detach acl --service {SERVICE}"),
                )
                .map(|_| ())
        })?;
        let after = self.flow(3)?;
        rows.push(equal(
            "calls lost during the changes",
            0,
            after.since(&before, "lost"),
        ));
        rows.push(equal("calls misjudged", 0, after.count("misjudged")));
        if let Some(wrong) = after.0["first_wrong"].as_str() {
            self.terminal.tell(&format!("first misjudged: {wrong}"));
        }
        Ok(())
    }

    fn evil(&mut self, rows: &mut Vec<Expectation>) -> Result<(), String> {
        self.terminal
            .chapter(4, "evil uploads a policy that loops forever");
        let (token_a, token_b) = (self.a.tenant("evil"), self.b.tenant("evil"));
        let _server = App::start(&["server", &socket(&self.b)], &token_b)?;
        let target = self.b.listen().to_string();
        let mut evil = App::start(
            &["client", &socket(&self.a), &target, EVIL_IN_FLIGHT],
            &token_a,
        )?;
        let spin = self.readable("spin.wasm", &policy_file("spin"))?;
        self.tollgate_shown(
            &token_a,
            &["policy", "push", &spin, "--name", "spin"],
            "policy push spin.wasm --name spin",
        )?;
        evil.order("rules none broken")?;
        self.attach("spin@1", &token_a)?;
        evil.order("rules broken")?;
        let (evil_before, before) = (evil.report()?, self.client.report()?);
        let after = self.flow(5)?;
        let evil_after = evil.report()?;
        let failed = evil_after.since(&evil_before, "failed");
        self.terminal
            .tell(&format!("evil's own calls: {} failed", grouped(failed)));
        rows.push(equal(
            "evil's calls failed closed",
            evil_after.since(&evil_before, "answered"),
            failed,
        ));
        rows.push(equal(
            "evil's calls that passed its policy",
            0,
            evil_after.count("misjudged"),
        ));
        let answered = after.since(&before, "answered");
        rows.push(Expectation {
            what: "acme's calls meanwhile confirmed",
            expected: "all".to_owned(),
            observed: format!(
                "{} of {}",
                grouped(after.since(&before, "ok")),
                grouped(answered)
            ),
            met: answered > 0 && after.since(&before, "ok") == answered,
        });
        Ok(())
    }

    /// Checks for the whole story, and for the end.
    fn end(mut self, rows: &mut Vec<Expectation>) -> Result<(), String> {
        self.terminal.chapter(5, "The end");
        let last: Report = parse(&self.client.order("stop")?)?;
        self.terminal
            .tell("the client has stopped, and each of its calls has been answered");
        let seen = self.server.report()?.count("seen");
        rows.push(equal(
            "calls that the server saw: the confirmed ones",
            last.count("ok"),
            seen,
        ));
        rows.push(equal(
            "calls lost in the whole story",
            0,
            last.count("lost"),
        ));
        for (what, daemon) in [
            ("host A's daemon", &mut self.a),
            ("host B's daemon", &mut self.b),
        ] {
            let ended = daemon.process().ended(Duration::ZERO);
            rows.push(Expectation {
                what,
                expected: "serves".to_owned(),
                observed: ended.map_or("serves".to_owned(), |status| status.to_string()),
                met: ended.is_none(),
            });
        }
        let programs = [
            &self.server.process,
            &self.client.process,
            self.a.process(),
            self.b.process(),
        ];
        let pids = programs.map(|process| process.pid());
        drop(self);
        let running = pids
            .iter()
            .filter(|pid| Path::new("/proc").join(pid.to_string()).exists())
            .count();
        rows.push(equal("programs left running", 0, running as u64));
        Ok(())
    }

    /// Announces every rule that may decide during a change, makes the change, and announces the
    /// remaining rule.
    fn changing(
        &mut self,
        during: &str,
        after: &str,
        change: impl FnOnce(&Story<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.client.order(&format!("rules {during}"))?;
        change(self)?;
        self.client.order(&format!("rules {after}")).map(|_| ())
    }

    /// Lets calls flow for some seconds, and shows their counts.
    fn flow(&mut self, seconds: u32) -> Result<Report, String> {
        let begin = Instant::now();
        let mut last = None;
        for second in 1..=seconds {
            let until = Duration::from_secs(second.into());
            std::thread::sleep(until.saturating_sub(begin.elapsed()));
            let report = self.client.report()?;
            self.terminal
                .progress(f64::from(second) / f64::from(seconds), &report.line());
            last = Some(report);
        }
        last.ok_or_else(|| "calls flow for at least a second".to_owned())
    }

    fn push(&self, policy: &str, file: &str, config: &Value) -> Result<(), String> {
        let module = self.readable(&format!("{policy}.wasm"), &policy_file(policy))?;
        let config = self.bed.file(file, config.to_string());
        let config = self.readable(file, &config)?;
        self.tollgate_shown(
            &self.token_a,
            &[
                "policy", "push", &module, "--name", policy, "--config", &config,
            ],
            &format!("policy push {policy}.wasm --name {policy} --config {file}"),
        )
    }

    /// A file that the tenants' user can read, by its name in the demo's directory.
    fn readable(&self, name: &str, file: &Path) -> Result<String, String> {
        let path = self.bed.path(name);
        let bytes = std::fs::read(file);
        let written = bytes.and_then(|bytes| {
            std::fs::write(&path, bytes)?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o644))
        });
        written.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(path.display().to_string())
    }

    fn attach(&self, policy: &str, token: &str) -> Result<(), String> {
        let command = format!("policy attach {policy} --service {SERVICE} --side client");
        self.tollgate(token, &command)
    }

    fn tollgate(&self, token: &str, command: &str) -> Result<(), String> {
        let args: Vec<&str> = command.split(' ').collect();
        self.tollgate_shown(token, &args, command)
    }

    /// Runs the command line on host A as the bearer of a token and shows it, with paths shortened.
    fn tollgate_shown(&self, token: &str, args: &[&str], shown: &str) -> Result<(), String> {
        let ended = self.as_tenant(token, args)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.terminal
            .command(&format!("tollgate {shown}"), &text(&ended.stdout));
        match ended.status.success() {
            true => Ok(()),
            false => Err(format!("tollgate {shown}: {}", text(&ended.stderr).trim())),
        }
    }

    /// Runs the command line on host A as the bearer of a token.
    fn as_tenant(&self, token: &str, args: &[&str]) -> Result<Output, String> {
        let mut command = Command::new(self.bed.path("tollgate"));
        command.args(["--socket", &socket(&self.a)]).args(args);
        command.env("TOLLGATE_TOKEN", token);
        if geteuid().is_root() {
            command.uid(TENANTS_USER).gid(TENANTS_USER);
        }
        let ended = command.output();
        ended.map_err(|error| format!("tollgate {}: {error}", args.join(" ")))
    }
}

fn socket(daemon: &Daemon) -> String {
    daemon.socket().display().to_string()
}

fn equal(what: &'static str, expected: u64, observed: u64) -> Expectation {
    Expectation {
        what,
        expected: grouped(expected),
        observed: grouped(observed),
        met: expected == observed,
    }
}

//! `tollgate top`: its contents during real calls, its appearance, and its restoration of the
//! terminal.
//!
//! `TOLLGATE_SCREENSHOTS=DIRECTORY` saves a picture of it, through a browser. The book has one:
//! `docs/src/operate/top.png`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tollgate_conformance::browser::Browser;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::screen::{Screen, Style};
use tollgate_conformance::terminal::Terminal;
use tollgate_conformance::testbed::{Daemon, SOON, Testbed, eventually};
use tollgate_conformance::traffic::Traffic;

const RESERVE: &str = "hotel.Reservation/Reserve";

/// A daemon that serves reservations to everyone except Ada, and the token of its tenant acme.
fn guarded(bed: &Testbed) -> (Daemon, String, Process) {
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let server = daemon.serve_hotel(&token, "hotel.Reservation", &["--reply", "{}"]);
    let list = bed.file("list.json", json!({"blocked": ["Ada"]}).to_string());
    let acl = daemon.push("--tenant acme", "acl", "acl", Some(&list));
    daemon.ok(&format!(
        "policy attach {acl} --tenant acme --service hotel.Reservation --side client"
    ));
    (daemon, token, server)
}

/// Makes a reservation; returns its status.
fn reserve(daemon: &Daemon, token: &str, name: &str) -> i32 {
    let request = json!({"customer_name": name}).to_string();
    daemon.call_hotel(token, "", RESERVE, &request).code
}

fn shown(daemon: &Daemon, args: &str) -> Value {
    serde_json::from_str(&daemon.ok(&format!("top --json {args}"))).unwrap()
}

/// The only row of a table with these values.
#[track_caller]
fn row<'v>(shown: &'v Value, table: &str, key: &str, value: &str) -> &'v Value {
    let rows = shown[table].as_array().unwrap();
    let rows: Vec<_> = rows.iter().filter(|row| row[key] == value).collect();
    assert_eq!(rows.len(), 1, "{key} {value} in {shown}");
    rows[0]
}

#[test]
fn methods_and_policies_are_counted_as_they_were_called() {
    let bed = Testbed::new();
    let (daemon, token, _server) = guarded(&bed);
    for _ in 0..5 {
        assert_eq!(reserve(&daemon, &token, "Bob"), 0);
    }
    for _ in 0..3 {
        assert_eq!(reserve(&daemon, &token, "Ada"), 7);
    }
    // No calls in between.
    let idle = shown(&daemon, "--interval 100ms");
    let client = row(&idle, "methods", "side", "client");
    assert_eq!(client["method"], RESERVE);
    assert_eq!(
        (&client["total"], &client["total_denied"]),
        (&json!(8), &json!(3))
    );
    assert_eq!(
        (&client["calls"], &client["p99_us"]),
        (&json!(0), &json!(null))
    );
    assert_eq!(row(&idle, "methods", "side", "server")["total"], 5);
    let acl = row(&idle, "policies", "policy", "acl@1");
    assert_eq!(
        (&acl["total"], &acl["total_denied"]),
        (&json!(8), &json!(3))
    );
    assert_eq!((&acl["calls"], &acl["tenant"]), (&json!(0), &json!("acme")));
    assert_eq!(
        (&idle["sessions"], &idle["services"]),
        (&json!(1), &json!(1))
    );

    // Some calls.
    let (is_over, made) = (AtomicBool::new(false), AtomicU64::new(0));
    let busy = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for (name, code) in [("Bob", 0), ("Ada", 7), ("Bob", 0)] {
                    assert_eq!(reserve(&daemon, &token, name), code);
                    made.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let begun = eventually(SOON, || made.load(Ordering::Relaxed) > 0);
        // Nothing panics before the calls have been stopped.
        let busy = daemon.run("top --json --interval 3s --sort denials");
        is_over.store(true, Ordering::Relaxed);
        begun.map(|_| busy)
    });
    let busy = busy.unwrap();
    assert_eq!(busy.code, 0, "{busy}");
    let busy: Value = serde_json::from_str(&busy.out).unwrap();
    let made = made.into_inner();
    let number = |row: &Value, key: &str| {
        row[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key} in {row}"))
    };
    let client = row(&busy, "methods", "side", "client");
    let (calls, denied) = (number(client, "calls"), number(client, "denied"));
    assert!(calls > 2.0 && calls <= made as f64, "{made}: {client}");
    assert!(denied > 0.0 && denied < calls, "{client}");
    assert_eq!(client["errors"], client["denied"], "{client}");
    let total = number(client, "total");
    assert!(
        total > 8.0 && total <= 8.0 + made as f64,
        "{made}: {client}"
    );
    let (interval, rate) = (number(&busy, "interval_s"), number(client, "calls_per_s"));
    assert!(
        interval >= 3.0 && (rate * interval - calls).abs() < 1e-6,
        "{busy}"
    );
    let (p50, p99) = (number(client, "p50_us"), number(client, "p99_us"));
    assert!(
        p50 <= p99 && p99 > 0.0 && p99 < SOON.as_micros() as f64,
        "{client}"
    );
    let acl = row(&busy, "policies", "policy", "acl@1");
    assert!(
        number(acl, "cpu") > 0.0 && number(acl, "denied") > 0.0,
        "{acl}"
    );
    let runtime = &busy["runtimes"][0];
    let shares = ["busy", "spinning", "sleeping"].map(|state| number(runtime, state));
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{runtime}");

    // The same for people; and nothing of acme's for another tenant.
    let text = daemon.ok("top --once --interval 100ms");
    for words in ["tollgate top: a ", RESERVE, "acl@1", "RUNTIME"] {
        assert!(text.contains(words), "{text}");
    }
    daemon.tenant("bank");
    let text = daemon.ok("top --interval 100ms --tenant bank");
    assert!(!text.contains(RESERVE) && !text.contains("acl@1"), "{text}");
}

#[test]
fn without_a_daemon_it_says_so() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    daemon.process().kill();
    for args in ["top", "top --json"] {
        let outcome = daemon.run(args);
        assert_eq!(outcome.code, 14, "{outcome}");
        assert!(outcome.err.contains("no daemon answers"), "{outcome}");
    }
}

/// Leaves the alternate screen, which it has entered for its own.
const LEAVE: &str = "\u{1b}[?1049l";

fn look(terminal: &Terminal, daemon: &Daemon, every: &str) -> Process {
    let socket = daemon.socket().display().to_string();
    let args = ["--socket", &socket, "top", "--interval", every];
    terminal.start(&program("tollgate"), args)
}

#[track_caller]
fn shows(terminal: &Terminal, words: &str) {
    let is_there = eventually(SOON, || terminal.repainted().contains(words));
    is_there.unwrap_or_else(|_| panic!("{words} in {:?}", terminal.repainted()));
}

#[test]
fn the_live_view_gives_the_terminal_back() {
    let bed = Testbed::new();
    let (mut daemon, token, _server) = guarded(&bed);
    assert_eq!(reserve(&daemon, &token, "Bob"), 0);
    let terminal = Terminal::new(100, 30);
    let cooked = terminal.modes();
    let mut top = look(&terminal, &daemon, "200ms");
    shows(&terminal, RESERVE);
    assert_ne!(terminal.modes(), cooked, "it hears single keys");
    terminal.press("p");
    shows(&terminal, "PAUSED");
    terminal.press("pss");
    shows(&terminal, "p99▼");

    // It outlives its daemon, and continues with the next.
    daemon.process().kill();
    shows(&terminal, "trying again");
    drop(daemon);
    let daemon = bed.daemon("a");
    daemon.tenant("acme");
    let is_back = eventually(SOON, || {
        let screen = terminal.repainted();
        screen.contains("METHOD") && !screen.contains("trying again") && !screen.contains(RESERVE)
    });
    is_back.unwrap_or_else(|_| panic!("{:?}", terminal.repainted()));
    assert!(!terminal.said().contains(LEAVE));
    terminal.press("q");
    let status = top.ended(SOON).expect("q ends it");
    assert_eq!(status.code(), Some(0));
    assert_eq!(terminal.modes(), cooked);
    let left = eventually(SOON, || terminal.said().contains(LEAVE));
    left.unwrap_or_else(|_| panic!("{:?}", terminal.said()));

    // A signal ends it like a key.
    let terminal = Terminal::new(20, 3);
    let mut top = look(&terminal, &daemon, "200ms");
    shows(&terminal, "METHOD");
    top.signal(Signal::TERM);
    let status = top.ended(SOON).expect("SIGTERM ends it");
    assert_eq!(status.code(), Some(0));
    assert_eq!(terminal.modes(), cooked);
    let left = eventually(Duration::from_secs(5), || terminal.said().contains(LEAVE));
    left.unwrap_or_else(|_| panic!("{:?}", terminal.said()));
}

/// A screen's columns: the terminal is one column narrower before it is repainted.
const COLUMNS: u16 = 101;
const ROWS: u16 = 16;

#[test]
fn the_live_view_is_painted_in_colours() {
    let bed = Testbed::new();
    let (daemon, token, _server) = guarded(&bed);
    let null = daemon.push("--provider", "null", "null", None);
    daemon.ok(&format!(
        "policy attach {null} --provider --post --side client"
    ));
    let bank = Traffic::start("bank", &daemon, &daemon);
    let terminal = Terminal::new(COLUMNS - 1, ROWS);
    let mut top = look(&terminal, &daemon, "1s");
    // Sorted by CPU, rate, p99, denials.
    terminal.press("sss");
    let is_over = AtomicBool::new(false);
    let mut screen = Screen::painted(COLUMNS, ROWS, "");
    let painted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for name in ["Bob", "Ada", "Carl"] {
                    reserve(&daemon, &token, name);
                }
            }
        });
        // Nothing panics before the calls have been stopped.
        let painted = eventually(2 * SOON, || {
            screen = Screen::painted(COLUMNS, ROWS, &terminal.repainted());
            let lines = screen.lines();
            let line = |words: &str| lines.iter().find(|line| line.contains(words));
            // An interval with calls of both tenants, and with denials, which sort before calls
            // without.
            let rows = [
                "Echo/Echo",
                "acl@1",
                "null@1",
                "RUNTIME",
                "denied/s▼",
                "q quit",
            ];
            let first = line("Reservation/Reserve").and_then(|line| line.split(' ').next_back());
            let denied = first.and_then(|denied| denied.parse::<f64>().ok());
            rows.iter().all(|words| line(words).is_some()) && denied > Some(0.0)
        });
        is_over.store(true, Ordering::Relaxed);
        painted
    });
    painted.unwrap_or_else(|error| panic!("{error:?}: {:#?}", screen.lines()));
    bank.assert_flows();
    let style = |color| Style {
        color: Some(color),
        behind: None,
        is_bold: true,
    };
    let (cyan, yellow) = (style(6), style(3));
    assert_eq!(screen.style_of("tollgate top"), Some(cyan));
    assert_eq!(screen.style_of("METHOD"), Some(yellow));
    assert_eq!(screen.style_of("hotel.Echo"), Some(Style::default()));
    terminal.press("q");
    assert_eq!(top.ended(SOON).unwrap().code(), Some(0));

    let Some(directory) = std::env::var_os("TOLLGATE_SCREENSHOTS") else {
        return;
    };
    let Some(browser) = Browser::start(&bed.path("profile")) else {
        return;
    };
    let page = bed.file("top.html", screen.html());
    browser.go(&format!("file://{}", page.display()));
    let size = browser.run("return [document.body.offsetWidth, document.body.offsetHeight]");
    let size =
        json!({"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": false});
    browser.devtools("Emulation.setDeviceMetricsOverride", &size);
    let file = std::path::PathBuf::from(directory).join("top.png");
    std::fs::write(file, browser.screenshot()).unwrap();
}

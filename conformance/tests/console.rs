//! The web console in a real browser: its contents during real calls, access to it, and an
//! operator's actions.
//!
//! `TOLLGATE_SCREENSHOTS=DIRECTORY` saves pictures of it for review.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use serde_json::{Value, json};
use tollgate_conformance::browser::{Browser, ENTER, TAB};
use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, proto_file};

const RESERVE: &str = "hotel.Reservation/Reserve";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A daemon that serves reservations, with a policy that denies Ada's, and its canary, which also
/// denies Eve's.
fn on_trial(bed: &Testbed) -> (Daemon, String, Process) {
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let server = daemon.serve_hotel(&token, "hotel.Reservation", &["--reply", "{}"]);
    let list = |names: Value| {
        let name = format!("{}.json", names.as_array().unwrap().len());
        bed.file(&name, json!({"blocked": names}).to_string())
    };
    let first = daemon.push("--tenant acme", "acl", "acl", Some(&list(json!(["Ada"]))));
    let second = list(json!(["Ada", "Eve"]));
    daemon.ok(&format!(
        "policy attach {first} --tenant acme --service hotel.Reservation --side client --max-worse 100"
    ));
    let second = daemon.push("--tenant acme", "acl", "acl", Some(&second));
    // A trial ends by itself if the candidate denies many more calls than the stable version: here
    // it may.
    daemon.ok(&format!(
        "policy upgrade {second} --tenant acme --mode canary=50%"
    ));
    (daemon, token, server)
}

fn reserve(daemon: &Daemon, token: &str) {
    for name in ["Bob", "Ada", "Eve", "Carl"] {
        let request = json!({"customer_name": name}).to_string();
        let code = daemon.call_hotel(token, "", RESERVE, &request).code;
        assert!(code == 0 || code == 7, "{name}: {code}");
    }
}

fn link(daemon: &Daemon, command: &str) -> String {
    daemon.ok(command).trim().to_owned()
}

/// Saves a picture of the page, if requested.
fn keep(browser: &Browser, name: &str) {
    if let Some(directory) = std::env::var_os("TOLLGATE_SCREENSHOTS") {
        let file = PathBuf::from(directory).join(format!("{name}.png"));
        std::fs::write(file, browser.screenshot()).unwrap();
    }
}

/// The preferences of a user's system.
fn prefer(browser: &Browser, what: &str, value: &str) {
    let features = json!([{"name": format!("prefers-{what}"), "value": value}]);
    browser.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
}

/// The lowest contrast between text and background, over everything visible, by WCAG's formula.
const CONTRAST: &str = r"
    const light = (color) => {
        const [r, g, b] = color.match(/[\d.]+/g).map(Number).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        const color = getComputedStyle(node).backgroundColor;
        return /, 0\)$/.test(color) ? (node.parentElement ? behind(node.parentElement) : 'rgb(255, 255, 255)') : color;
    };
    const seen = [...document.querySelectorAll('body *')].filter((node) => node.checkVisibility() && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
    const style = (node) => getComputedStyle(node);
    // In a picture, the background is the last thing drawn there before the text.
    const drawn = (node) => {
        const box = node.getBoundingClientRect();
        const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
        const has = (at) => at.left <= x && x <= at.right && at.top <= y && y <= at.bottom;
        const before = [...node.closest('svg').querySelectorAll('*')].filter((it) => it.compareDocumentPosition(node) === Node.DOCUMENT_POSITION_FOLLOWING);
        const there = before.filter((it) => ['rect', 'circle'].includes(it.localName) && style(it).fill !== 'none' && has(it.getBoundingClientRect())).pop();
        if (there && style(there).fillOpacity !== '1') throw new Error(`${node.textContent} is on something translucent`);
        return there ? style(there).fill : behind(node.closest('svg'));
    };
    const contrast = (text, ground) => {
        const [a, b] = [light(text), light(ground)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    const isText = (node) => node.localName === 'text';
    const inPictures = seen.filter(isText).map((node) => contrast(style(node).fill, drawn(node)));
    const others = seen.filter((node) => !node.closest('svg')).map((node) => contrast(style(node).color, behind(node)));
    return [others.length, Math.min(...others), inPictures.length, Math.min(...inPictures)]";

#[test]
fn a_viewer_sees_what_happens_and_changes_nothing() {
    let bed = Testbed::new();
    let Some(browser) = Browser::start(&bed.path("profile")) else {
        return;
    };
    let (daemon, token, _server) = on_trial(&bed);
    let link = link(&daemon, "console");
    let origin = link.split_once("/#").unwrap().0.to_owned();
    // Nobody has signed in.
    browser.go(&origin);
    browser.until("document.body.innerText.includes('Run tollgate console')");
    assert_eq!(
        browser.run("return document.getElementById('rooms').hidden"),
        true
    );

    browser.go(&link);
    browser.until("document.getElementById('role').textContent === 'Read-only'");
    assert_eq!(browser.run("return location.hash"), "");
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| (0..5).for_each(|_| reserve(&daemon, &token)));
        browser.until(&format!(
            "/{}.*[1-9]\\/s/s.test(document.getElementById('methods').innerText)",
            RESERVE.replace('/', "\\/")
        ));
        calls.join().unwrap();
    });
    browser.until("document.querySelectorAll('#heat rect.cell').length > 0");
    let text = |id: &str| {
        let script = format!("return document.getElementById('{id}').innerText");
        browser.run(&script).as_str().unwrap().to_owned()
    };
    // The calls of one trace are two denials.
    let traceparent = format!("traceparent=00-{TRACE}-00f067aa0ba902b7-01");
    let proto = proto_file("hotel.proto").display().to_string();
    for _ in 0..2 {
        let call = ["call", "--token", &token, "--proto", &proto, RESERVE];
        let denied = [r#"{"customer_name": "Ada"}"#, "--metadata", &traceparent];
        let outcome = daemon.tollgate(call.iter().chain(&denied));
        assert_eq!(outcome.code, 7, "{outcome}");
    }
    browser.until(&format!(
        "document.getElementById('denied').innerText.split('{TRACE}').length === 3"
    ));
    let shown = [
        ("attachments", "@1 enforces; @2 on trial: canary 50%"),
        ("canaries", "Candidate @2"),
        ("denied", "PERMISSION_DENIED"),
        ("denied", "customer is on the block list"),
        ("records", "attach"),
    ];
    for (id, words) in shown {
        let is_there = eventually(SOON, || text(id).contains(words));
        is_there.unwrap_or_else(|_| panic!("{words} in {}", text(id)));
    }

    // By keyboard: past the header, and to a section.
    browser.run("document.activeElement.blur(); scrollTo(0, 0)");
    browser.press(TAB);
    assert_eq!(
        browser.run("return document.activeElement.className"),
        "skip"
    );
    browser.press(ENTER);
    browser.until("document.activeElement.id === 'main'");
    browser.press(&TAB.repeat(3));
    let outline = "return [document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle]";
    assert_eq!(browser.run(outline), json!(["Policies", "solid"]));
    browser.press(ENTER);
    browser.until("location.hash === '#policies'");
    browser.until("document.getElementById('role').textContent === 'Read-only'");

    // There are no buttons, and direct requests are refused.
    assert_eq!(
        browser.run("return document.querySelectorAll('#rooms button').length"),
        0
    );
    let act = r"
        const { session } = JSON.parse(sessionStorage.getItem('tollgate-session'));
        const at = { step: 'rollback', policy: 'acl', party: 'tenant', tenant: 'acme', side: 'client' };
        return (await fetch('/api/act', { method: 'POST', headers: { Authorization: 'Session ' + session }, body: JSON.stringify(at) })).status";
    assert_eq!(
        browser.run(&format!("return (async () => {{ {act} }})()")),
        403
    );
    assert_eq!(daemon.attachment("acl")["candidate"]["version"], 2);
    // This is the error for the refused request above.
    let complaints = browser.complaints();
    assert!(
        complaints.iter().all(|line| line.contains("/api/act")),
        "{complaints:?}"
    );

    // Names from others are shown as text; the page can't insert them as markup.
    let markup = "return import('/build.js').then(({ table }) => table('<b>c</b>', [['t']], [['<img src=x onerror=alert(1)>']], '').querySelectorAll('b, img').length)";
    assert_eq!(browser.run(markup), 0);
    let injected = "try { document.body.innerHTML += '<b>x</b>'; return 'done'; } catch (error) { return error.name; }";
    assert_eq!(browser.run(injected), "TypeError");
    let asked =
        browser.run("return performance.getEntriesByType('resource').map((entry) => entry.name)");
    let asked = asked.as_array().unwrap();
    let elsewhere = asked
        .iter()
        .filter(|url| !url.as_str().unwrap().starts_with(&origin));
    assert_eq!(elsewhere.collect::<Vec<_>>(), Vec::<&Value>::new());
    assert!(asked.len() > 5, "{asked:?}");

    for scheme in ["light", "dark"] {
        prefer(&browser, "color-scheme", scheme);
        let measured = browser.run(CONTRAST);
        for (at, what, expected) in [(0, "texts", 50), (2, "texts in pictures", 10)] {
            let (count, least) = (&measured[at], &measured[at + 1]);
            assert!(
                count.as_u64().unwrap() > expected && least.as_f64().unwrap() >= 4.5,
                "{scheme}: {count} {what}, {least}"
            );
        }
        browser.run("scrollTo({ top: 0, behavior: 'instant' })");
        keep(&browser, scheme);
        browser.run("document.getElementById('latency').scrollIntoView({ behavior: 'instant' })");
        keep(&browser, &format!("{scheme}-latency"));
    }
    // Unreadable data is detected.
    let vanished = "document.querySelector('#heat text').style.fill = 'var(--card)';";
    let measured = browser.run(&format!("{vanished}{CONTRAST}"));
    assert_eq!(measured[3], 1);
    let narrow = json!({"width": 400, "height": 1200, "deviceScaleFactor": 1, "mobile": true});
    browser.devtools("Emulation.setDeviceMetricsOverride", &narrow);
    let wide = "return document.documentElement.scrollWidth";
    assert!(
        browser.run(wide).as_u64().unwrap() <= 400,
        "{}",
        browser.run(wide)
    );
    keep(&browser, "narrow");
}

#[test]
fn an_operator_rolls_a_canary_back() {
    let bed = Testbed::new();
    let Some(browser) = Browser::start(&bed.path("profile")) else {
        return;
    };
    let (daemon, token, _server) = on_trial(&bed);
    reserve(&daemon, &token);
    // Nothing covers the click target.
    prefer(&browser, "reduced-motion", "reduce");
    let answer: Value = serde_json::from_str(&daemon.ok("console --operator --json")).unwrap();
    let address = answer["address"].as_str().unwrap();
    browser.go(answer["link"].as_str().unwrap());
    browser.until("document.getElementById('role').textContent === 'Operator'");
    browser.until("document.querySelectorAll('#attachments button').length === 3");
    // The page stays the same while its numbers change: a button isn't replaced during a click.
    browser.run("globalThis.seen = document.querySelector('#attachments button')");
    reserve(&daemon, &token);
    browser.until(
        "[...document.querySelectorAll('#methods td:last-child')].some((cell) => cell.textContent === '8')",
    );
    browser.until("globalThis.seen.isConnected");
    // A confirmation comes first: Cancel changes nothing.
    let button = "#attachments button[aria-label^='Roll back acl']";
    browser.click(button);
    browser.until("document.getElementById('ask').open");
    keep(&browser, "asked");
    browser.click("#ask-no");
    browser.until("!document.getElementById('ask').open");
    assert_eq!(daemon.attachment("acl")["candidate"]["version"], 2);

    // By keyboard, with the dialog's first button.
    browser.run(&format!("document.querySelector(\"{button}\").focus()"));
    browser.press(ENTER);
    browser.until("document.activeElement.id === 'ask-yes'");
    browser.press(ENTER);
    browser.until("document.getElementById('news').textContent === 'Done: Roll back acl.'");
    assert_eq!(daemon.attachment("acl")["candidate"], Value::Null);
    browser.until("document.getElementById('records').innerText.includes('rollback')");
    let audit = daemon.ok("audit show --last 1 --json");
    let record: Value = serde_json::from_str(audit.trim()).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let actor = record["actor"].as_str().unwrap();
    assert!(actor.starts_with(&format!("uid {uid} pid ")), "{record}");
    assert_eq!(record["event"], "rollback");

    // Nothing listens any more once the last user has left.
    assert!(TcpStream::connect(address).is_ok());
    browser.click("#leave");
    browser.until("document.getElementById('news').textContent === 'You have signed out.'");
    let is_closed = eventually(SOON, || TcpStream::connect(address).is_err());
    is_closed.unwrap();
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
}

/// The limits for shown records and denials, newest first.
const SHOWN: usize = 50;

/// The page's data from its daemon: the answer's body.
fn told(address: &str, request: &str, proof: &str) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("{request} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {proof}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    serde_json::from_str(body).unwrap()
}

#[test]
fn the_newest_records_and_denials_are_shown() {
    let bed = Testbed::new();
    let (daemon, token, _server) = on_trial(&bed);
    let proto = proto_file("hotel.proto").display().to_string();
    let ada = r#"{"customer_name": "Ada"}"#;
    for number in 0..=SHOWN {
        let traceparent = format!("traceparent=00-{:032x}-00f067aa0ba902b7-01", number + 1);
        let call = ["call", "--token", &token, "--proto", &proto, RESERVE];
        let outcome = daemon.tollgate(call.iter().chain(&[ada, "--metadata", &traceparent]));
        assert_eq!(outcome.code, 7, "{outcome}");
        daemon.tenant(&format!("t{number}"));
    }
    let link = link(&daemon, "console");
    let (address, secret) = link
        .strip_prefix("http://")
        .unwrap()
        .split_once("/#")
        .unwrap();
    let entered = told(
        address,
        "POST /api/session",
        &format!("Invitation {secret}"),
    );
    let session = entered["session"].as_str().unwrap();
    let state = told(address, "GET /api/state", &format!("Session {session}"));
    let denied = state["denied"].as_array().unwrap();
    let traces: Vec<_> = denied
        .iter()
        .map(|it| it["trace"].as_str().unwrap())
        .collect();
    let newest = (0..SHOWN).map(|back| format!("{:032x}", SHOWN + 1 - back));
    assert_eq!(traces, newest.collect::<Vec<_>>());
    let records = state["audit"]["records"].as_array().unwrap();
    let tenants: Vec<_> = records
        .iter()
        .map(|record| serde_json::from_str(record.as_str().unwrap()).unwrap())
        .map(|record: Value| record["details"]["tenant"].clone())
        .collect();
    let newest: Vec<_> = (1..=SHOWN).map(|number| format!("t{number}")).collect();
    assert_eq!(tenants, newest);
}

#[test]
fn a_daemon_listens_where_it_is_told_and_while_somebody_may_look() {
    let bed = Testbed::new();
    // A port that is in use can't be listened on.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let options = Options {
        config: format!("[console]\nlisten = \"{address}\"\n"),
        ..Options::default()
    };
    let daemon = bed.daemon_with("a", &options);
    let refused = daemon.run("console");
    assert_eq!(refused.code, 14, "{refused}");
    assert!(
        refused.err.contains(&format!("can't listen on {address}")),
        "{refused}"
    );
    drop(taken);
    assert!(TcpStream::connect(address).is_err(), "nobody has asked yet");
    let first = link(&daemon, "console");
    let second = link(&daemon, "console --operator");
    for link in [&first, &second] {
        assert!(link.starts_with(&format!("http://{address}/#")), "{link}");
    }
    assert_ne!(first, second);
    assert!(TcpStream::connect(address).is_ok());
}

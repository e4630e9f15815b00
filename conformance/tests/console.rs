//! The web console in a real browser: its contents during real calls, access to it, and the actions
//! of operators and of tenants' owners. And what it answers to whom.
//!
//! `TOLLGATE_SCREENSHOTS=DIRECTORY` saves pictures of it for review.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_conformance::browser::{Browser, ENTER, TAB};
use tollgate_conformance::ports::free;
use tollgate_conformance::process::{Process, program};
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
    browser.until("document.getElementById('token').checkVisibility()");
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
    let proof = format!("Authorization: {proof}");
    let (status, body) = asked(address, request, &proof, "");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// The status and the body of any answer.
fn asked(address: &str, request: &str, header: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n{header}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// Where a link leads, and its secret.
fn parts(link: &str) -> (String, String) {
    let link = link.strip_prefix("http://").unwrap();
    let (address, secret) = link.split_once("/#").unwrap();
    (address.to_owned(), secret.to_owned())
}

/// A session of the console, outside a browser.
struct Visit {
    address: String,
    proof: String,
    /// What the daemon told of the session.
    entered: Value,
}

impl Visit {
    fn by_link(link: &str) -> Visit {
        let (address, secret) = parts(link);
        let entered = told(
            &address,
            "POST /api/session",
            &format!("Invitation {secret}"),
        );
        Visit::of(&address, entered)
    }

    fn by_token(address: &str, token: &str) -> Visit {
        let (status, body) = sign_in(address, token);
        assert_eq!(status, 200, "{body}");
        Visit::of(address, serde_json::from_str(&body).unwrap())
    }

    fn of(address: &str, entered: Value) -> Visit {
        let session = entered["session"].as_str().unwrap();
        Visit {
            address: address.to_owned(),
            proof: format!("Authorization: Session {session}"),
            entered,
        }
    }

    fn state(&self) -> (u16, String) {
        asked(&self.address, "GET /api/state", &self.proof, "")
    }

    fn act(&self, action: &Value) -> (u16, String) {
        let body = action.to_string();
        asked(&self.address, "POST /api/act", &self.proof, &body)
    }
}

fn sign_in(address: &str, token: &str) -> (u16, String) {
    let body = json!({"token": token}).to_string();
    let json = "Content-Type: application/json";
    asked(address, "POST /api/session", json, &body)
}

/// A link with a tenant's token.
fn tenants_link(daemon: &Daemon, token: &str) -> String {
    let file = daemon.token_file(token).display().to_string();
    let outcome = daemon.tollgate(["console", "--token-file", &file]);
    assert_eq!(outcome.code, 0, "{outcome}");
    outcome.out.trim().to_owned()
}

fn credential(daemon: &Daemon, name: &str, role: &str) -> String {
    let line = format!("credential add {name} --tenant acme --role {role}");
    daemon.ok(&line).trim().to_owned()
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
    let visit = Visit::by_link(&link(&daemon, "console"));
    let (status, state) = visit.state();
    assert_eq!(status, 200, "{state}");
    let state: Value = serde_json::from_str(&state).unwrap();
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

// ---- tenants ----

/// A daemon with the tenants acme and evil, which do the same, and a policy of the provider's that
/// rejects Ada. Returns their owners' tokens.
fn two_tenants(bed: &Testbed) -> (Daemon, [String; 2], Vec<Process>) {
    let daemon = bed.daemon("a");
    let tokens = ["acme", "evil"].map(|tenant| daemon.tenant(tenant));
    let list = |name: &str| bed.file("list.json", json!({"blocked": [name]}).to_string());
    daemon.push("--provider", "acl", "guard", Some(&list("Ada")));
    daemon.ok("policy attach guard@1 --provider --side client");
    let mut servers = Vec::new();
    for (tenant, token) in ["acme", "evil"].iter().zip(&tokens) {
        servers.push(daemon.serve_hotel(token, "hotel.Reservation", &["--reply", "{}"]));
        for name in ["Eve", "Bob"] {
            let owner = format!("--tenant {tenant}");
            daemon.push(&owner, "acl", "own", Some(&list(name)));
        }
        let at = format!("--tenant {tenant} --service hotel.Reservation --side client");
        daemon.ok(&format!("policy attach own@1 {at}"));
        daemon.ok(&format!(
            "policy upgrade own@2 --tenant {tenant} --mode shadow"
        ));
        for name in ["Carl", "Ada", "Eve"] {
            let request = json!({"customer_name": name}).to_string();
            let code = daemon.call_hotel(token, "", RESERVE, &request).code;
            assert_eq!(code, if name == "Carl" { 0 } else { 7 }, "{name}");
        }
    }
    (daemon, tokens, servers)
}

fn action(step: &str, tenant: &str) -> Value {
    json!({"step": step, "policy": "own", "party": "tenant", "tenant": tenant, "service": "hotel.Reservation", "method": null, "side": "client"})
}

#[track_caller]
fn is_own(what: &str, text: &str) {
    for hidden in ["evil", "guard", "\"providers\":true", "uid "] {
        assert!(!text.contains(hidden), "{what} shows {hidden}: {text}");
    }
}

#[test]
fn a_tenant_sees_and_does_what_its_token_may_and_nothing_of_others() {
    let bed = Testbed::new();
    let (daemon, [owner, _evil], _servers) = two_tenants(&bed);
    let viewer = credential(&daemon, "looks", "viewer");
    let by_link = Visit::by_link(&tenants_link(&daemon, &owner));
    let entered = json!({"session": by_link.entered["session"], "role": "owner", "acts": true, "tenant": "acme"});
    assert_eq!(by_link.entered, entered);
    let address = by_link.address.clone();
    let by_token = Visit::by_token(&address, &owner);
    let looks = Visit::by_token(&address, &viewer);
    assert_eq!(looks.entered["acts"], false, "{}", looks.entered);
    // What an operator sees, if it asks for the tenant's part: the provider's side, too.
    let operators = Visit::by_link(&link(&daemon, "console --tenant acme"));
    assert_eq!(operators.entered["tenant"], "acme");
    let (status, shown) = operators.state();
    assert!(status == 200 && !shown.contains("evil"), "{shown}");

    for visit in [&by_link, &by_token, &looks] {
        let (status, shown) = visit.state();
        assert_eq!(status, 200, "{shown}");
        is_own("the state", &shown);
        let state: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(state["status"]["tenant"], "acme", "{state}");
        let attached = state["status"]["attachments"].as_array().unwrap();
        assert_eq!(attached.len(), 1, "{state}");
        assert_eq!(
            (&attached[0]["stable"], &attached[0]["candidate"]["version"]),
            (&json!(1), &json!(2))
        );
        assert_eq!(state["status"]["policies"].as_array().unwrap().len(), 2);
        assert_eq!(state["status"]["sessions"].as_array().unwrap().len(), 1);
        // The provider's denial is there, without its author.
        let denied = state["denied"].as_array().unwrap();
        let by: Vec<_> = denied.iter().map(|one| &one["denied_by"]).collect();
        assert_eq!(by, [&json!("own@1"), &Value::Null], "{denied:?}");
        assert_eq!(denied[0]["message"], "customer is on the block list");
        let usage = state["usage"]["usage"].as_array().unwrap();
        let versions = usage.iter().find(|one| one["what"] == "versions").unwrap();
        assert_eq!(versions["used"], 2, "{usage:?}");
        let ceiling = state["ceiling"].as_array().unwrap();
        assert!(ceiling.iter().any(|one| one["key"] == "trial"), "{state}");
        let records = state["audit"]["records"].as_array().unwrap();
        assert!(
            records.len() > 4 && state["audit"]["head"].is_null(),
            "{state}"
        );
        for key in ["peers", "tenants", "datapath", "capacity", "socket"] {
            assert!(state["status"][key].is_null(), "{key}: {state}");
        }
    }

    // Another tenant is nobody, and the provider's policies are an operator's business.
    let refused = |visit: &Visit, action: Value| {
        let (status, said) = visit.act(&action);
        is_own("a refusal", &said.replace("\"evil\"", "NAME"));
        (
            status,
            said.replace("evil", "NAME").replace("nobody", "NAME"),
        )
    };
    for step in ["promote", "rollback", "release", "detach"] {
        let others = refused(&by_token, action(step, "evil"));
        assert_eq!(others, refused(&by_token, action(step, "nobody")), "{step}");
        assert_eq!(others.0, 409, "{others:?}");
        let mut providers = action(step, "acme");
        providers["party"] = "provider-pre".into();
        for policy in ["guard", "none"] {
            providers["policy"] = policy.into();
            let (status, said) = by_token.act(&providers);
            assert_eq!(status, 403, "{said}");
            is_own("a refusal", &said);
        }
        let (status, said) = looks.act(&action(step, "acme"));
        assert_eq!(status, 403, "{said}");
    }
    let attached = || daemon.ok("status --json --tenant acme");
    let before: Value = serde_json::from_str(&attached()).unwrap();
    assert_eq!(before["attachments"][0]["candidate"]["version"], 2);
    let (status, said) = by_token.act(&action("promote", "acme"));
    assert_eq!(status, 200, "{said}");
    let after: Value = serde_json::from_str(&attached()).unwrap();
    assert_eq!(after["attachments"][0]["stable"], 2, "{after}");
    let audit = daemon.ok("audit show --last 1 --json");
    let record: Value = serde_json::from_str(audit.trim()).unwrap();
    assert_eq!(
        (&record["actor"], &record["event"]),
        (&json!("tenant acme credential default"), &json!("promote"))
    );
    // The tenant may be left out: it is the token's.
    let mut own = action("detach", "acme");
    own["tenant"] = Value::Null;
    let (status, said) = by_link.act(&own);
    assert_eq!(status, 200, "{said}");
    let (_, shown) = looks.state();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["status"]["attachments"], json!([]), "{shown}");
}

#[test]
fn a_session_ends_with_its_token() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let owner = daemon.tenant("acme");
    let looks = credential(&daemon, "looks", "viewer");
    let rotates = credential(&daemon, "rotates", "owner");
    let short = credential(&daemon, "short", "viewer");
    let application = credential(&daemon, "application", "application");
    let link = tenants_link(&daemon, &short);
    let (address, _) = parts(&link);
    let visits = [&owner, &looks, &rotates].map(|token| Visit::by_token(&address, token));
    let brief = Visit::by_link(&link);
    let pending = tenants_link(&daemon, &looks);
    let (status, said) = sign_in(&address, &application);
    assert_eq!(status, 403, "{said}");
    assert!(said.contains("owners and viewers may"), "{said}");
    for visit in visits.iter().chain([&brief]) {
        assert_eq!(visit.state().0, 200);
    }
    let is_over = |visit: &Visit, what: &str| {
        for (status, said) in [visit.state(), visit.act(&action("promote", "acme"))] {
            assert_eq!(status, 401, "{what}: {said}");
        }
    };
    daemon.ok("credential revoke looks --tenant acme");
    is_over(&visits[1], "revoked");
    let (_, secret) = parts(&pending);
    let invitation = format!("Authorization: Invitation {secret}");
    assert_eq!(asked(&address, "POST /api/session", &invitation, "").0, 401);
    // With a grace, the former token stays valid for that time.
    daemon.ok("credential rotate rotates --tenant acme --grace 60m");
    assert_eq!(visits[2].state().0, 200);
    daemon.ok("credential rotate rotates --tenant acme");
    is_over(&visits[2], "rotated");
    // A token that expires: its time is over.
    daemon.ok("credential rotate short --tenant acme --grace 2s");
    assert_eq!(brief.state().0, 200);
    let ended = eventually(SOON, || brief.state().0 == 401);
    ended.unwrap();
    assert_eq!(sign_in(&address, &short).0, 401);
    assert_eq!(visits[0].state().0, 200);
    daemon.ok("tenant remove acme --yes");
    // It was the last session: nobody listens any more.
    let is_closed = eventually(SOON, || TcpStream::connect(&address).is_err());
    is_closed.unwrap();
}

#[test]
fn an_operators_rights_are_not_a_tenants() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let owner = daemon.tenant("acme");
    let file = daemon.token_file(&owner).display().to_string();
    daemon.tenant("evil");
    for (line, code) in [
        ("console --operator", 7),
        ("console --tenant evil", 5),
        ("console --tenant nobody", 5),
    ] {
        let words = line.split(' ').chain(["--token-file", &file]);
        let refused = daemon.tollgate(words);
        assert_eq!(refused.code, code, "{line}: {refused}");
    }
    assert_eq!(daemon.run("console --tenant nobody").code, 5);
    // As many links as one tenant may have; operators have theirs.
    for _ in 0..4 {
        tenants_link(&daemon, &owner);
    }
    let full = daemon.tollgate(["console", "--token-file", &file]);
    assert_eq!(full.code, 8, "{full}");
    assert!(full.err.contains("of this tenant"), "{full}");
    daemon.ok("console");
}

#[test]
fn a_console_that_stays_takes_tokens_and_paces_wrong_ones() {
    let bed = Testbed::new();
    let address = free().to_string();
    let options = Options {
        config: format!("[console]\nlisten = \"{address}\"\nalways = true\n"),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let owner = daemon.tenant("acme");
    let listens = || eventually(SOON, || TcpStream::connect(&address).is_ok()).unwrap();
    listens();
    let visit = Visit::by_token(&address, &owner);
    assert_eq!(visit.state().0, 200);
    // 32 at once, and one per second; then each answer takes a second.
    let began = Instant::now();
    let mut slow = None;
    for number in 0..40 {
        let asked = Instant::now();
        let (status, said) = sign_in(&address, &format!("wrong {number}"));
        assert_eq!(status, 401, "{said}");
        assert!(!said.contains("acme"), "{said}");
        if asked.elapsed() > Duration::from_millis(900) {
            assert!(said.contains("each answer takes 1 s"), "{said}");
            slow = Some(number);
            break;
        }
    }
    let slow = slow.unwrap();
    assert!(slow >= 32, "{slow} after {:?}", began.elapsed());
    // A right one isn't delayed.
    let asked = Instant::now();
    let again = Visit::by_token(&address, &owner);
    assert!(asked.elapsed() < Duration::from_millis(900));
    assert_eq!(again.state().0, 200);
    let audit = daemon.ok("audit show --last 20 --json");
    let bursts = audit
        .lines()
        .filter(|line| line.contains("the web console"));
    assert_eq!(bursts.count(), 1, "{audit}");

    // The successor has the port once its predecessor has left.
    daemon.upgrade(&program("tollgated"));
    let signed_in = eventually(SOON, || {
        TcpStream::connect(&address).is_ok() && sign_in(&address, &owner).0 == 200
    });
    signed_in.unwrap();
}

#[test]
fn an_owner_signs_in_with_its_token_and_rolls_back() {
    let bed = Testbed::new();
    let Some(browser) = Browser::start(&bed.path("profile")) else {
        return;
    };
    let (daemon, [owner, evil], _servers) = two_tenants(&bed);
    prefer(&browser, "reduced-motion", "reduce");
    let (address, _) = parts(&link(&daemon, "console"));
    browser.go(&format!("http://{address}"));
    browser.until("document.getElementById('token').checkVisibility()");
    let enter = |token: &str| {
        browser.run(&format!(
            "document.getElementById('token').value = {}; document.getElementById('token').focus()",
            json!(token)
        ));
        browser.press(ENTER);
    };
    enter("a wrong one");
    browser.until(
        "document.getElementById('news').textContent.startsWith('the token belongs to no tenant')",
    );
    enter(&owner);
    browser.until("document.getElementById('role').textContent === 'Owner, tenant acme'");
    browser.until("document.querySelectorAll('#attachments button').length === 3");
    for (id, words) in [
        ("attachments", "@1 enforces; @2 on trial: shadow"),
        ("stored", "own@2"),
        ("denied", "customer is on the block list"),
        ("used", "compile_s_per_hour"),
        ("methods", RESERVE),
    ] {
        browser.until(&format!(
            "document.getElementById('{id}').innerText.includes('{words}')"
        ));
    }
    // Nothing keeps the token.
    let kept = browser.run("return JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie, document.getElementById('token').value])");
    let kept = kept.as_str().unwrap();
    assert!(!kept.contains(&owner), "{kept}");
    browser.click("#attachments button[aria-label^='Roll back own']");
    browser.until("document.getElementById('ask').open");
    browser.click("#ask-yes");
    browser.until("document.getElementById('news').textContent === 'Done: Roll back own.'");
    browser.until(
        "document.getElementById('records').innerText.includes('tenant acme credential default')",
    );
    let page = browser.run("return document.body.innerText");
    is_own("the page", page.as_str().unwrap());
    assert!(!page.as_str().unwrap().contains(&evil));
    for scheme in ["light", "dark"] {
        prefer(&browser, "color-scheme", scheme);
        let measured = browser.run(CONTRAST);
        assert!(measured[1].as_f64().unwrap() >= 4.5, "{scheme}: {measured}");
        browser.run("document.getElementById('usage').scrollIntoView({ behavior: 'instant' })");
        keep(&browser, &format!("{scheme}-tenant"));
    }
    // The page says that the session is over, and how to come in again.
    daemon.ok("credential rotate default --tenant acme");
    browser.until("document.getElementById('token').checkVisibility()");
    browser.until("document.getElementById('rooms').hidden");
}

//! A headless Chromium, driven over WebDriver: what a user sees, clicks and types.
//!
//! WebDriver is JSON over HTTP, one request per connection, so this file implements it.
//!
//! Absent on purpose: other browsers. Non-standard features use Chromium's own protocol
//! ([`Browser::devtools`]).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::process::Process;
use crate::testbed::{SOON, eventually};

/// WebDriver's keys.
pub const TAB: &str = "\u{e004}";
/// WebDriver's keys.
pub const ENTER: &str = "\u{e007}";

/// A browser with one window.
#[derive(Debug)]
pub struct Browser {
    port: u16,
    session: String,
    _driver: Process,
}

impl Browser {
    /// Starts a browser with its profile in a directory; `None` if there is none and none is
    /// required (`TOLLGATE_BROWSER=required`).
    ///
    /// # Panics
    /// If one is required but missing, or doesn't start.
    pub fn start(profile: &Path) -> Option<Browser> {
        let directories = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&directories).map(|path| path.join("chromedriver"));
        let Some(program) = found.into_iter().find(|path| path.exists()) else {
            let sentence =
                "chromedriver is missing: install it as root, apt-get install chromium-driver";
            let is_required = std::env::var("TOLLGATE_BROWSER").is_ok_and(|it| it == "required");
            assert!(!is_required, "{sentence}");
            eprintln!("skipped: {sentence}");
            return None;
        };
        let driver = Process::start(&program, ["--port=0"]).expect("chromedriver can be started");
        let line = driver.line(SOON, |line| line.contains("started successfully on port "));
        let line = line.expect("chromedriver says where it listens");
        let port = line
            .rsplit(' ')
            .next()
            .map(|port| port.trim_end_matches('.'));
        let port = port.and_then(|port| port.parse().ok()).expect(&line);
        let mut browser = Browser {
            port,
            session: String::new(),
            _driver: driver,
        };
        let profile = format!("--user-data-dir={}", profile.display());
        // Its sandbox needs features that containers lack; the pages are trusted.
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--window-size=1280,800",
            &profile,
        ];
        let chromium =
            json!({"goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"}});
        let begun = browser.ask(
            "POST",
            "",
            &json!({"capabilities": {"alwaysMatch": chromium}}),
        );
        let id = begun["sessionId"].as_str().expect("a session has an id");
        browser.session = format!("/{id}");
        Some(browser)
    }

    /// Opens an address.
    pub fn go(&self, url: &str) {
        self.ask("POST", "/url", &json!({"url": url}));
    }

    /// Runs a script's body in the page; returns its result, also from a promise.
    pub fn run(&self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.ask("POST", "/execute/sync", &body)
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// If it doesn't become true; the message has the page's text.
    #[track_caller]
    pub fn until(&self, expression: &str) {
        let script = format!("return Boolean({expression})");
        let is_so = eventually(SOON, || self.run(&script) == true);
        is_so.unwrap_or_else(|_| {
            let text = self.run("return document.body.innerText");
            panic!("{expression} isn't so; the page says: {text}")
        });
    }

    /// Presses keys, for the focused element.
    pub fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()}))
        });
        let actions: Vec<_> = strokes.collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.ask("POST", "/actions", &json!({"actions": [keyboard]}));
    }

    /// Clicks the element of a CSS selector like a user: it must be visible.
    pub fn click(&self, selector: &str) {
        let found = json!({"using": "css selector", "value": selector});
        let found = self.ask("POST", "/element", &found);
        let id = found.as_object().and_then(|found| found.values().next());
        let id = id.and_then(Value::as_str).expect(selector);
        self.ask("POST", &format!("/element/{id}/click"), &json!({}));
    }

    /// Chromium's own protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) {
        let body = json!({"cmd": command, "params": parameters});
        self.ask("POST", "/goog/cdp/execute", &body);
    }

    /// The page's errors: blocked by its policy, not found, exceptions.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", &json!({"type": "browser"}));
        let lines = log.as_array().into_iter().flatten();
        let bad = lines.filter(|line| line["level"] == "SEVERE");
        bad.map(|line| line["message"].to_string()).collect()
    }

    /// A PNG of the window.
    pub fn screenshot(&self) -> Vec<u8> {
        let png = self.ask("GET", "/screenshot", &Value::Null);
        let png = png.as_str().expect("a screenshot is text");
        STANDARD.decode(png).expect("a screenshot is base64")
    }

    /// # Panics
    /// If the browser can't do that.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_ask(method, path, body);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"));
        let value = &answer["value"];
        assert!(value["error"].is_null(), "{method} {path} {body}: {value}");
        value.clone()
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> std::io::Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(2 * SOON + Duration::from_secs(1)))?;
        let body = match method {
            "POST" => body.to_string(),
            _ => String::new(),
        };
        let (session, length) = (&self.session, body.len());
        write!(
            stream,
            "{method} /session{session}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        // Not until the end: a browser that was just started holds the connection open, too.
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line)?;
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body)?;
        serde_json::from_slice(&body).map_err(std::io::Error::other)
    }
}

impl Drop for Browser {
    /// Ends the driver, which ends its browser. A killed driver would leave the browser running.
    fn drop(&mut self) {
        let _already_gone = self.try_ask("DELETE", "", &Value::Null);
    }
}

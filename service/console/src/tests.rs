//! The console over real sockets: the answer to each request, by user.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use tollgate_telemetry::places::Places;

use crate::http::talk;
use crate::limits::{
    CONNECTION_TIMEOUT, MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_INVITATIONS,
    MAX_SESSIONS, READ_TIMEOUT,
};
use crate::{Action, Console, Guest, Refusal, Role, Source, serve};

/// A control character for terminals, a line break, and a character that reverses text.
const HOSTILE: &str = "a\u{9b}b\nc\u{2028}d\u{202e}e";

/// Shows one value, and records actions with their authors.
#[derive(Default)]
struct Shown {
    acts: RefCell<Vec<(u32, Action)>>,
    /// A guest that may no longer be there.
    over: Cell<Option<u32>>,
}

const OPERATOR: u32 = 7;
const OWNER: u32 = 8;

fn operator(role: Role) -> Guest<u32> {
    Guest {
        who: OPERATOR,
        role,
        tenant: None,
        bearer_of: None,
    }
}

fn failed(sentence: &str) -> Refusal {
    Refusal::Failed(sentence.to_owned())
}

impl Source for Shown {
    type Who = u32;

    async fn sign_in(&self, token: &str) -> Result<Guest<u32>, Refusal> {
        let acme = Some("acme".to_owned());
        let bearer = |role| Guest {
            who: OWNER,
            role,
            tenant: acme.clone(),
            bearer_of: acme.clone(),
        };
        match token {
            "owner's" => Ok(bearer(Role::Owner)),
            "viewer's" => Ok(bearer(Role::Viewer)),
            "application's" => Err(Refusal::Forbidden("an application".to_owned())),
            _ => Err(Refusal::Over("a wrong token".to_owned())),
        }
    }

    fn check(&self, who: &u32) -> Result<(), Refusal> {
        match self.over.get() == Some(*who) {
            true => Err(Refusal::Over("its token ended".to_owned())),
            false => Ok(()),
        }
    }

    async fn state(&self, _who: u32, tenant: Option<String>) -> Result<Value, Refusal> {
        Ok(json!({"shown": true, "hostile": HOSTILE, "tenant": tenant}))
    }

    async fn act(&self, who: u32, action: Action) -> Result<(), Refusal> {
        if action.policy == "none" {
            return Err(failed("there is no such policy"));
        }
        if action.policy == "others" {
            return Err(Refusal::Forbidden("an operator's request".to_owned()));
        }
        if action.policy == HOSTILE {
            return Err(Refusal::Failed(action.policy));
        }
        self.acts.borrow_mut().push((who, action));
        Ok(())
    }
}

struct Bed {
    console: Rc<Console<u32>>,
    shown: Rc<Shown>,
    at: std::net::SocketAddr,
    link: String,
}

impl Bed {
    async fn new(role: Role) -> Bed {
        let bed = Bed::silent();
        let link = bed.console.invite(operator(role)).unwrap();
        bed.serving(link, false)
    }

    /// A console that isn't served yet.
    fn silent() -> Bed {
        let console = Rc::new(Console::default());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = console.open(listener).unwrap();
        assert_eq!(console.listening(), Some(at));
        Bed {
            console,
            shown: Rc::default(),
            at,
            link: String::new(),
        }
    }

    fn serving(self, link: String, stays: bool) -> Bed {
        let (console, shown) = (Rc::clone(&self.console), Rc::clone(&self.shown));
        tokio::task::spawn_local(serve(console, shown, stays));
        Bed { link, ..self }
    }

    /// The answer to a request of these bytes: its status, and the whole answer.
    async fn raw(&self, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.at).await.unwrap();
        // The server may refuse early, without reading the rest.
        let _refused = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let status = answer
            .split(' ')
            .nth(1)
            .map_or(0, |word| word.parse().unwrap());
        (status, answer)
    }

    async fn ask(&self, request: &str, authorization: &str, body: &str) -> (u16, String) {
        let (at, length) = (self.at, body.len());
        let head = format!("{request} HTTP/1.1\r\nHost: {at}\r\nContent-Length: {length}\r\n");
        let proof = match authorization {
            "" => String::new(),
            proof => format!("Authorization: {proof}\r\n"),
        };
        self.raw(&format!("{head}{proof}\r\n{body}")).await
    }

    /// Signs in with a link; returns the header that authenticates.
    async fn enter(&self, link: &str) -> String {
        let invitation = format!("Invitation {link}");
        let (status, answer) = self.ask("POST /api/session", &invitation, "").await;
        assert_eq!(status, 200, "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        format!("Session {}", body["session"].as_str().unwrap())
    }

    /// Signs in with a token: the status, and the answer.
    async fn sign_in(&self, token: &str) -> (u16, String) {
        let json = "POST /api/session HTTP/1.1\r\nContent-Type: application/json";
        self.post(json, &json!({"token": token}).to_string()).await
    }

    async fn post(&self, head: &str, body: &str) -> (u16, String) {
        let (at, length) = (self.at, body.len());
        let request = format!("{head}\r\nHost: {at}\r\nContent-Length: {length}\r\n\r\n{body}");
        self.raw(&request).await
    }
}

/// The body of an answer.
fn body_of(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn run(test: impl Future<Output = ()>) {
    let reactor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    LocalSet::new().block_on(&reactor.unwrap(), test);
}

/// The answers may be shown in a terminal.
#[test]
fn what_others_chose_is_escaped_in_every_answer() {
    run(async {
        let bed = Bed::new(Role::Operator).await;
        let proof = bed.enter(&bed.link).await;
        let (status, answer) = bed.ask("GET /api/state", &proof, "").await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(status, 200, "{answer}");
        assert!(body.is_ascii() && !body.contains('\n'), "{body:?}");
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["hostile"], HOSTILE, "its value stays");
        let mut action: Value = serde_json::from_str(ACTION).unwrap();
        action["policy"] = HOSTILE.into();
        let (status, answer) = bed.ask("POST /api/act", &proof, &action.to_string()).await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_ne!(status, 200, "{answer}");
        assert_eq!(body, "a\\u{9b}b\\nc\\u{2028}d\\u{202e}e");
    });
}

const ACTION: &str = r#"{"step": "rollback", "policy": "acl", "party": "tenant", "tenant": "acme", "side": "client"}"#;

#[test]
fn whoever_only_connects_gets_the_page_and_nothing_of_the_daemons() {
    run(async {
        let bed = Bed::new(Role::Operator).await;
        let (status, page) = bed.ask("GET /", "", "").await;
        assert_eq!(status, 200);
        let wanted = [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "<!doctype html>",
        ];
        for words in wanted {
            assert!(page.contains(words), "{words} in {page}");
        }
        assert!(!page.to_lowercase().contains("access-control"), "{page}");
        let wrong = format!("Session {}", "0".repeat(64));
        let link = format!("Session {}", bed.link);
        for proof in ["", "Session", "Basic Og==", &wrong, &link] {
            for request in ["GET /api/state", "POST /api/act"] {
                let (status, answer) = bed.ask(request, proof, ACTION).await;
                assert_eq!(status, 401, "{request} {proof}: {answer}");
                assert!(answer.contains("www-authenticate: Session"), "{answer}");
            }
        }
        let wrong = wrong.replace("Session", "Invitation");
        assert_eq!(bed.ask("POST /api/session", &wrong, "").await.0, 401);
        for (request, expected) in [("GET /../Cargo.toml", 404), ("POST /nowhere", 404)] {
            assert_eq!(bed.ask(request, "", "").await.0, expected, "{request}");
        }
        assert!(bed.shown.acts.borrow().is_empty());
    });
}

/// RFC 9110, 9.3.2 and 15.5.6.
#[test]
fn head_is_get_without_the_body_and_a_405_says_what_is_allowed() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        let session = bed.enter(&bed.link).await;
        for path in ["/", "/main.js", "/api/state"] {
            let (_, got) = bed.ask(&format!("GET {path}"), &session, "").await;
            let (status, head) = bed.ask(&format!("HEAD {path}"), &session, "").await;
            assert_eq!(status, 200, "{path}: {head}");
            let length = |answer: &str| {
                let mut lines = answer.lines().map(str::to_lowercase);
                lines.find(|line| line.starts_with("content-length:"))
            };
            assert_eq!(length(&head), length(&got), "{path}");
            assert!(head.ends_with("\r\n\r\n"), "{path}: {head}");
        }
        for (request, allowed) in [
            ("PUT /api/state", "allow: GET, HEAD\r\n"),
            ("POST /", "allow: GET, HEAD\r\n"),
            ("GET /api/session", "allow: POST, DELETE\r\n"),
            ("DELETE /api/act", "allow: POST\r\n"),
        ] {
            let (status, answer) = bed.ask(request, &session, "").await;
            assert_eq!(status, 405, "{request}: {answer}");
            assert!(answer.contains(allowed), "{request}: {answer}");
        }
    });
}

#[test]
fn each_file_that_the_page_names_is_there() {
    let page = |path| {
        crate::assets::ASSETS
            .iter()
            .find(|asset| asset.path == path)
    };
    let html = page("/").unwrap().text;
    let named = html.split('"').filter(|word| word.starts_with('/'));
    let scripts = crate::assets::ASSETS.iter().map(|asset| asset.text);
    let imported = scripts
        .flat_map(|text| text.split('\''))
        .filter_map(|word| word.strip_prefix('.'))
        .filter(|word| word.ends_with(".js"));
    let named: std::collections::BTreeSet<_> = named.chain(imported).collect();
    assert_eq!(named.len(), crate::assets::ASSETS.len() - 1, "{named:?}");
    for path in named {
        assert!(page(path).is_some(), "{path}");
    }
}

#[test]
fn a_link_lets_in_once_and_a_viewer_only_looks() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        let session = bed.enter(&bed.link).await;
        let again = format!("Invitation {}", bed.link);
        let (status, answer) = bed.ask("POST /api/session", &again, "").await;
        assert_eq!(status, 401);
        assert!(
            answer.ends_with("`tollgate console` prints another"),
            "{answer}"
        );
        let (status, answer) = bed.ask("GET /api/state", &session, "").await;
        assert_eq!(status, 200);
        assert_eq!(body_of(&answer)["shown"], true, "{answer}");
        let (status, answer) = bed.ask("POST /api/act", &session, ACTION).await;
        assert_eq!(status, 403, "{answer}");
        assert!(bed.shown.acts.borrow().is_empty());
    });
}

#[test]
fn an_operator_acts_as_whoever_asked_for_the_link() {
    run(async {
        let bed = Bed::new(Role::Operator).await;
        let session = bed.enter(&bed.link).await;
        let (status, answer) = bed.ask("POST /api/act", &session, ACTION).await;
        assert_eq!(status, 200, "{answer}");
        let action: Action = serde_json::from_str(ACTION).unwrap();
        assert_eq!(*bed.shown.acts.borrow(), [(OPERATOR, action)]);
        let of_none = ACTION.replace("acl", "none");
        let (status, answer) = bed.ask("POST /api/act", &session, &of_none).await;
        assert_eq!(status, 409);
        assert!(answer.ends_with("there is no such policy"), "{answer}");
        for wrong in [
            "",
            "{}",
            &ACTION.replace("rollback", "push"),
            &ACTION.replace("}", r#", "more": 1}"#),
        ] {
            let (status, answer) = bed.ask("POST /api/act", &session, wrong).await;
            assert_eq!(status, 400, "{wrong}: {answer}");
        }
        let long = " ".repeat(MAX_BODY_BYTES + 1);
        let (status, answer) = bed.ask("POST /api/act", &session, &long).await;
        assert_eq!(status, 413, "{answer}");
        assert_eq!(bed.shown.acts.borrow().len(), 1);
    });
}

#[test]
fn other_sites_are_refused() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        let session = bed.enter(&bed.link).await;
        let port = bed.at.port();
        for (headers, expected) in [
            (&*format!("Host: 127.0.0.1:{port}\r\n"), 200),
            ("Host: localhost:8080\r\n", 200),
            ("Host: [::1]:8080\r\n", 200),
            ("Host: 127.0.0.1:80\r\nOrigin: http://127.0.0.1:80\r\n", 200),
            ("", 403),
            ("Host: evil.example\r\n", 403),
            ("Host: localhost.evil.example:80\r\n", 403),
            ("Host: 127.0.0.1:80\r\nOrigin: http://127.0.0.1:90\r\n", 403),
            ("Host: 127.0.0.1:80\r\nOrigin: null\r\n", 403),
        ] {
            let head = format!("GET /api/state HTTP/1.1\r\n{headers}");
            let request = format!("{head}Authorization: {session}\r\n\r\n");
            let (status, answer) = bed.raw(&request).await;
            assert_eq!(status, expected, "{headers}: {answer}");
        }
    });
}

#[test]
fn heads_are_only_so_long_and_only_so_slow() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        let long = "x".repeat(MAX_HEAD_BYTES);
        let head = format!("GET / HTTP/1.1\r\nHost: {}\r\nX: {long}\r\n\r\n", bed.at);
        assert_eq!(bed.raw(&head).await.0, 431);
        let began = Instant::now();
        let (_, answer) = bed.raw("GET / HTTP/1.1\r\nHost").await;
        let took = began.elapsed();
        assert!(
            took >= READ_TIMEOUT && took < 4 * READ_TIMEOUT,
            "{took:?}: {answer}"
        );
        assert!(!answer.contains("200"), "{answer}");
        let session = bed.console.invite(operator(Role::Operator)).unwrap();
        let session = bed.enter(&session).await;
        let (at, length) = (bed.at, 9);
        let slow = format!(
            "POST /api/act HTTP/1.1\r\nHost: {at}\r\nContent-Length: {length}\r\nAuthorization: {session}\r\n\r\n{{"
        );
        assert_eq!(bed.raw(&slow).await.0, 408);
    });
}

/// A source whose action starts and never finishes.
#[derive(Default)]
struct Endless {
    begun: std::cell::Cell<bool>,
}

impl Source for Endless {
    type Who = u32;

    async fn sign_in(&self, _token: &str) -> Result<Guest<u32>, Refusal> {
        std::future::pending().await
    }

    fn check(&self, _who: &u32) -> Result<(), Refusal> {
        Ok(())
    }

    async fn state(&self, _who: u32, _tenant: Option<String>) -> Result<Value, Refusal> {
        self.begun.set(true);
        std::future::pending().await
    }

    async fn act(&self, _who: u32, _action: Action) -> Result<(), Refusal> {
        std::future::pending().await
    }
}

/// The time is an argument, so no test waits for [`CONNECTION_TIMEOUT`].
#[test]
fn a_connection_ends_whatever_its_answer_waits_for() {
    run(async {
        // A request within the limit has the full READ_TIMEOUT twice.
        const { assert!(CONNECTION_TIMEOUT.as_secs() > 2 * READ_TIMEOUT.as_secs()) };
        let most = Duration::from_millis(300);
        let (console, source) = (Rc::new(Console::default()), Rc::new(Endless::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let link = console.invite(operator(Role::Viewer)).unwrap();
        let enter = format!(
            "POST /api/session HTTP/1.1\r\nHost: {at}\r\nAuthorization: Invitation {link}\r\n\r\n"
        );
        let ask = |request: String| {
            let (listener, console, source) = (&listener, Rc::clone(&console), Rc::clone(&source));
            async move {
                let mut stream = TcpStream::connect(at).await.unwrap();
                stream.write_all(request.as_bytes()).await.unwrap();
                let (served, _) = listener.accept().await.unwrap();
                let began = Instant::now();
                let place = Places::new(1, most).take().await;
                talk((served, place), console, source, most).await;
                let mut answer = String::new();
                let _reset = stream.read_to_string(&mut answer).await;
                (began.elapsed(), answer)
            }
        };
        let (_, entered) = ask(enter).await;
        let secret = body_of(&entered)["session"].as_str().unwrap().to_owned();
        assert!(secret.len() >= 32, "{entered}");
        let state = format!(
            "GET /api/state HTTP/1.1\r\nHost: {at}\r\nAuthorization: Session {secret}\r\n\r\n"
        );
        let (took, answer) = ask(state).await;
        assert!(source.begun.get(), "{answer}");
        assert!(took >= most && took < READ_TIMEOUT, "{took:?}");
        assert_eq!(answer, "", "nothing was known yet");
    });
}

#[test]
fn silent_connections_keep_nobody_out() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        let mut silent = Vec::new();
        for _ in 0..2 * MAX_CONNECTIONS {
            silent.push(TcpStream::connect(bed.at).await.unwrap());
        }
        let soon = Duration::from_secs(1);
        let answered = tokio::time::timeout(soon, bed.ask("GET /", "", "")).await;
        assert_eq!(answered.unwrap().0, 200);
        // The oldest connection had to give way.
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(soon, silent[0].read_to_end(&mut rest)).await;
        assert!(ended.is_ok() && rest.is_empty());
    });
}

#[test]
fn there_are_so_many_links_and_people() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        bed.enter(&bed.link).await;
        for _ in 1..MAX_SESSIONS {
            let link = bed.console.invite(operator(Role::Viewer)).unwrap();
            bed.enter(&link).await;
        }
        let mut link = String::new();
        for _ in 0..MAX_INVITATIONS {
            link = bed.console.invite(operator(Role::Viewer)).unwrap();
        }
        assert!(bed.console.invite(operator(Role::Viewer)).is_err());
        let proof = format!("Invitation {link}");
        let (status, answer) = bed.ask("POST /api/session", &proof, "").await;
        assert_eq!(status, 429, "{answer}");
    });
}

#[test]
fn it_listens_until_the_last_one_has_left() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        let session = bed.enter(&bed.link).await;
        let (status, _) = bed.ask("DELETE /api/session", &session, "").await;
        assert_eq!(status, 200);
        while bed.console.listening().is_some() {
            tokio::task::yield_now().await;
        }
        assert!(TcpStream::connect(bed.at).await.is_err());
        // The next one listens again.
        let link = bed.console.invite(operator(Role::Viewer)).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = bed.console.open(listener).unwrap();
        let bed = Bed { at, link, ..bed };
        bed.enter(&bed.link).await;
    });
}

#[test]
fn a_tenants_token_lets_in_and_shows_the_tenants() {
    run(async {
        let bed = Bed::new(Role::Operator).await;
        let (status, answer) = bed.sign_in(" owner's\n").await;
        assert_eq!(status, 200, "{answer}");
        let entered = body_of(&answer);
        let expected =
            json!({"session": entered["session"], "role": "owner", "acts": true, "tenant": "acme"});
        assert_eq!(entered, expected);
        let owner = format!("Session {}", entered["session"].as_str().unwrap());
        let (_, state) = bed.ask("GET /api/state", &owner, "").await;
        assert_eq!(body_of(&state)["tenant"], "acme");
        let (status, answer) = bed.ask("POST /api/act", &owner, ACTION).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(bed.shown.acts.borrow()[0].0, OWNER);
        let others = ACTION.replace("acl", "others");
        let (status, answer) = bed.ask("POST /api/act", &owner, &others).await;
        assert_eq!(status, 403, "{answer}");

        let (_, answer) = bed.sign_in("viewer's").await;
        let viewer = format!("Session {}", body_of(&answer)["session"].as_str().unwrap());
        let (status, answer) = bed.ask("POST /api/act", &viewer, ACTION).await;
        assert_eq!(status, 403, "{answer}");
        assert!(answer.contains("has the role viewer"), "{answer}");
        assert_eq!(bed.shown.acts.borrow().len(), 1);
    });
}

#[test]
fn other_tokens_and_other_forms_let_nobody_in() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        for (token, expected) in [("application's", 403), ("", 401), ("owner", 401)] {
            let (status, answer) = bed.sign_in(token).await;
            assert_eq!(status, expected, "{token}: {answer}");
            assert!(!answer.contains("session\":"), "{answer}");
        }
        let right = r#"{"token": "owner's"}"#;
        let plain = "POST /api/session HTTP/1.1";
        let json = "POST /api/session HTTP/1.1\r\nContent-Type: application/json";
        let long = format!(r#"{{"token": "{}"}}"#, "x".repeat(MAX_BODY_BYTES));
        for (head, body, expected) in [
            // What a form of another site's page could send.
            (plain, right, 401),
            (&*format!("{plain}\r\nContent-Type: text/plain"), right, 401),
            (
                &*format!("{json}\r\nOrigin: http://evil.example"),
                right,
                403,
            ),
            (&*format!("{json}\r\nAuthorization: Basic Og=="), right, 401),
            (json, "", 400),
            (json, "{}", 400),
            (json, r#"{"token": "owner's", "role": "operator"}"#, 400),
            (json, &*long, 413),
        ] {
            let (status, answer) = bed.post(head, body).await;
            assert_eq!(status, expected, "{head}: {answer}");
        }
    });
}

#[test]
fn a_session_ends_with_what_its_guest_came_by() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        let (_, answer) = bed.sign_in("owner's").await;
        let owner = format!("Session {}", body_of(&answer)["session"].as_str().unwrap());
        let operator = bed.enter(&bed.link).await;
        bed.shown.over.set(Some(OWNER));
        let (status, answer) = bed.ask("GET /api/state", &owner, "").await;
        assert_eq!(status, 401, "{answer}");
        assert!(answer.ends_with("its token ended"), "{answer}");
        bed.shown.over.set(None);
        let (status, answer) = bed.ask("POST /api/act", &owner, ACTION).await;
        assert_eq!(status, 401, "it stays over: {answer}");
        assert_eq!(bed.ask("GET /api/state", &operator, "").await.0, 200);
        // A link that came from something that has ended since.
        let link = bed.console.invite(operator_of(OWNER)).unwrap();
        bed.shown.over.set(Some(OWNER));
        let invitation = format!("Invitation {link}");
        let (status, answer) = bed.ask("POST /api/session", &invitation, "").await;
        assert_eq!(status, 401, "{answer}");
        assert!(!answer.contains("session\":"), "{answer}");
    });
}

fn operator_of(who: u32) -> Guest<u32> {
    Guest {
        who,
        ..operator(Role::Operator)
    }
}

/// A console that stays, for those who come with a token.
#[test]
fn it_listens_for_good_if_it_is_told_to() {
    run(async {
        let bed = Bed::silent().serving(String::new(), true);
        let (_, answer) = bed.sign_in("owner's").await;
        let owner = format!("Session {}", body_of(&answer)["session"].as_str().unwrap());
        assert_eq!(bed.ask("DELETE /api/session", &owner, "").await.0, 200);
        assert_eq!(bed.sign_in("viewer's").await.0, 200);
        bed.console.keep(|_| false);
        assert_eq!(bed.sign_in("owner's").await.0, 200, "nobody was there");
    });
}

/// Without encryption, a token doesn't travel further than the host.
#[test]
fn tokens_are_taken_on_loopback_only() {
    run(async {
        let bed = Bed::new(Role::Viewer).await;
        bed.console
            .listening
            .set(Some("192.0.2.1:7473".parse().unwrap()));
        let (status, answer) = bed.sign_in("owner's").await;
        assert_eq!(status, 403, "{answer}");
        assert!(answer.contains("takes no tokens"), "{answer}");
        bed.enter(&bed.link).await;
    });
}

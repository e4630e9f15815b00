//! Tests of registries' answers with a test server: real registries can't be told to exchange
//! tokens or to hide signatures.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest as _, Sha256};

use super::*;

const MODULE: &[u8] = b"\0asm\x01\0\0\0";

/// An answer: its status, its additional headers, its body.
type Answer = (&'static str, String, Vec<u8>);

struct Server {
    at: SocketAddr,
    /// All complete requests.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answer: impl Fn(SocketAddr, &str) -> Answer + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = request_of(&mut stream);
                let (status, headers, body) = answer(at, &request);
                said.lock().unwrap().push(request);
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
                );
                // A client that has read enough closes the connection.
                let _left = stream.write_all(&[head.as_bytes(), &body].concat());
            }
        });
        Server { at, asked }
    }

    fn fetch(&self, login: Option<DockerCredential>) -> Result<Fetched, FetchError> {
        let image = parse(&format!("oci://{}/acme/acl:1", self.at))?;
        fetch_as(image, login)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn request_of(stream: &mut TcpStream) -> String {
    let (mut text, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        let len = stream.read(&mut chunk).unwrap();
        text.extend_from_slice(&chunk[..len]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = whole.split_once("\r\n\r\n") else {
            assert!(len > 0, "{whole}");
            continue;
        };
        let head = head.to_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return whole;
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    let hex: String = Sha256::digest(bytes).iter().map(hex).collect();
    format!("sha256:{hex}")
}

/// An image with the module, and its signature.
fn content(request: &str, signature: Answer) -> Answer {
    let manifest = serde_json::json!({"schemaVersion": 2, "layers": [
        {"mediaType": "application/wasm", "digest": digest(MODULE), "size": MODULE.len()}]});
    let path = request.split(' ').nth(1).unwrap();
    let found = |body: Vec<u8>| ("200 OK", String::new(), body);
    match path {
        "/v2/" => found(Vec::new()),
        "/v2/acme/acl/manifests/1" => found(manifest.to_string().into_bytes()),
        path if path.ends_with(".sig") => signature,
        path if path.ends_with(&digest(MODULE)) => found(MODULE.to_vec()),
        path => panic!("{path} is asked for"),
    }
}

fn missing() -> Answer {
    ("404 Not Found", String::new(), Vec::new())
}

fn identity() -> Option<DockerCredential> {
    Some(DockerCredential::IdentityToken("s3cret&long".to_owned()))
}

fn challenge(realm: &str) -> Answer {
    let headers = format!(
        "www-authenticate: Bearer realm=\"{realm}\",service=\"reg.example\",scope=\"x\"\r\n"
    );
    ("401 Unauthorized", headers, Vec::new())
}

fn tokens_at(at: SocketAddr) -> Answer {
    challenge(&format!("http://{at}/token"))
}

#[test]
fn an_identity_token_is_exchanged_and_goes_nowhere_else() {
    let registry = Server::start(|at, request| {
        let path = request.split(' ').nth(1).unwrap();
        match path {
            "/token" => (
                "200 OK",
                String::new(),
                b"{\"access_token\": \"short\"}".to_vec(),
            ),
            "/v2/" => tokens_at(at),
            _ if request
                .to_lowercase()
                .contains("authorization: bearer short\r\n") =>
            {
                content(request, missing())
            }
            _ => tokens_at(at),
        }
    });
    let fetched = registry.fetch(identity()).unwrap();
    assert_eq!(fetched.module, MODULE);
    let asked = registry.asked();
    let (token, others): (Vec<_>, Vec<_>) = asked
        .iter()
        .partition(|request| request.contains(" /token "));
    let [exchange] = token[..] else {
        panic!("{asked:?}");
    };
    let (head, form) = exchange.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST "), "{head}");
    assert_eq!(
        form,
        "grant_type=refresh_token&service=reg.example&scope=repository%3Aacme%2Facl%3Apull&client_id=tollgate&refresh_token=s3cret%26long"
    );
    assert!(
        !others.iter().any(|request| request.contains("s3cret")),
        "{others:?}"
    );
}

#[test]
fn an_identity_token_that_is_of_no_use_is_said_without_it() {
    let check = |answers: fn(SocketAddr) -> [Answer; 2], part: &str| {
        let registry = Server::start(move |at, request| {
            let [first, token] = answers(at);
            match request.contains(" /token ") {
                true => token,
                false => first,
            }
        });
        let error = registry.fetch(identity()).unwrap_err();
        assert!(matches!(error, FetchError::Credentials { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(part), "{error:?} lacks {part:?}");
        assert!(!error.contains("s3cret"), "{error}");
        registry.asked()
    };
    check(
        |at| {
            [
                tokens_at(at),
                ("400 Bad Request", String::new(), b"s3cret&long".to_vec()),
            ]
        },
        "answers 400 Bad Request to the identity token; run `docker login` again",
    );
    check(
        |at| {
            [
                tokens_at(at),
                ("200 OK", String::new(), b"{\"token\": 1}".to_vec()),
            ]
        },
        "answers no access token",
    );
    check(
        |at| {
            let long = vec![b' '; token::ANSWER_BYTES + 1];
            [tokens_at(at), ("200 OK", String::new(), long)]
        },
        "answers more than 65536 bytes",
    );
    // A redirect would send the token again.
    let asked = check(
        |at| {
            let elsewhere = format!("location: http://{at}/elsewhere\r\n");
            let redirected = ("307 Elsewhere", elsewhere, Vec::new());
            [tokens_at(at), redirected]
        },
        "answers 307",
    );
    assert_eq!(asked.len(), 2, "{asked:?}");
    check(
        |_| [challenge("http://auth.example/token"), missing()],
        "would be sent to \"http://auth.example/token\" in clear text",
    );
    check(
        |_| {
            let basic = "www-authenticate: Basic realm=\"x\"\r\n".to_owned();
            [("401 Unauthorized", basic, Vec::new()), missing()]
        },
        "needs a name and a password",
    );
}

/// Some registries hide missing tags from clients without permission. Nobody has requested a
/// signature here.
#[test]
fn a_module_comes_without_signatures_that_can_not_be_had() {
    let denied = br#"{"errors": [{"code": "DENIED", "message": "no"}]}"#;
    let refusals: [(Answer, Option<&str>); 5] = [
        (missing(), None),
        (
            ("401 Unauthorized", String::new(), Vec::new()),
            Some("needs a login"),
        ),
        (
            ("403 Forbidden", String::new(), Vec::new()),
            Some("needs a login"),
        ),
        (
            ("403 Forbidden", String::new(), denied.to_vec()),
            Some("needs a login"),
        ),
        (
            ("200 OK", String::new(), b"<html>".to_vec()),
            Some("can't be fetched"),
        ),
    ];
    for (refusal, why) in refusals {
        let answer = refusal.clone();
        let registry = Server::start(move |_, request| content(request, answer.clone()));
        let fetched = registry.fetch(None).unwrap();
        assert_eq!(fetched.module, MODULE);
        assert!(fetched.signatures.is_empty());
        let unsigned = fetched.unsigned.unwrap_or_default();
        assert!(unsigned.contains(why.unwrap_or_default()), "{unsigned}");
        assert_eq!(unsigned.is_empty(), why.is_none(), "{unsigned}");
    }
}

/// For the image itself it is an error, which says what to do.
#[test]
fn an_image_that_is_not_shown_needs_a_login() {
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let registry = Server::start(move |_, _| (status, String::new(), Vec::new()));
        let error = registry.fetch(None).unwrap_err();
        assert!(
            matches!(error, FetchError::Unauthorized { .. }),
            "{error:?}"
        );
    }
}

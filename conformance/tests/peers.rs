//! The identity of peers, the targets that applications may name, and the powerlessness of everyone
//! else who reaches a daemon's port.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;

use tollgate_conformance::peer::{Frame, Peer, kind};
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, Outcome, SOON, Testbed, eventually, run};

const RESERVE: &str = "hotel.Reservation/Reserve";
const ADA: &str = r#"{"customer_name": "Ada"}"#;

/// A daemon of a fleet whose applications may name these targets.
fn member(peers: Option<Vec<String>>) -> Options {
    Options {
        psk: Some("q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI=".to_owned()),
        peers,
        ..Options::default()
    }
}

fn reserve(daemon: &Daemon, token: &str, to: &str) -> Outcome {
    daemon.call_hotel(token, to, RESERVE, ADA)
}

/// A frame's bytes; `None` once no more come.
fn frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 32];
    stream.read_exact(&mut bytes).ok()?;
    let len = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    bytes.resize(32 + len as usize, 0);
    stream.read_exact(&mut bytes[32..]).ok()?;
    Some(bytes)
}

/// The attack of a dialled application: it forwards the dialling daemon's handshake to a victim,
/// frame by frame. Then it drops that daemon, and requests another tenant's service from the victim
/// in its name. Returns every kind of frame that the victim sent.
fn relay(dialled: &TcpListener, victim: SocketAddr) -> Vec<u8> {
    let (mut dialler, _) = dialled.accept().unwrap();
    let mut victim = TcpStream::connect(victim).unwrap();
    for stream in [&dialler, &victim] {
        stream.set_read_timeout(Some(SOON)).unwrap();
    }
    let mut said = Vec::new();
    let (mut from_dialler, mut to_victim) =
        (dialler.try_clone().unwrap(), victim.try_clone().unwrap());
    let forth = thread::spawn(move || {
        // HELLO and AUTH.
        for _ in 0..2 {
            let Some(bytes) = frame(&mut from_dialler) else {
                return;
            };
            let _hung_up = to_victim.write_all(&bytes);
        }
    });
    for _ in 0..2 {
        let Some(bytes) = frame(&mut victim) else {
            break;
        };
        said.push(bytes[4]);
        let _hung_up = dialler.write_all(&bytes);
        if bytes[4] == kind::GOAWAY {
            break;
        }
    }
    forth.join().unwrap();
    drop(dialler);
    let mut payload = vec![0; 32];
    let (tenant, service) = ("acme", "hotel.Reservation");
    payload.extend((tenant.len() as u16).to_le_bytes());
    payload.extend((service.len() as u16).to_le_bytes());
    payload.extend([tenant, service].concat().as_bytes());
    let bind = Frame {
        kind: kind::BIND,
        payload,
        ..Frame::default()
    };
    let _hung_up = victim.write_all(&bind.encode());
    while let Some(bytes) = frame(&mut victim) {
        said.push(bytes[4]);
        if matches!(bytes[4], kind::BOUND | kind::REFUSED) {
            break;
        }
    }
    said
}

/// Confirmed with real daemons: an application of tenant evil named a port of its own, and was then
/// a peer of any daemon with the key, for any tenant.
#[test]
fn who_is_dialled_does_not_become_a_peer_of_other_daemons() {
    let bed = Testbed::new();
    let (a, b) = (
        bed.daemon_with("a", &member(None)),
        bed.daemon_with("b", &member(None)),
    );
    let evil = a.tenant("evil");
    let served = b.tenant("acme");
    let _server = b.serve_hotel(&served, "hotel.Reservation", &["--reply", "{}"]);
    // Another daemon, and the dialling one itself.
    for (victim, sentence) in [(&b, "means to reach"), (&a, "is this daemon itself")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let victim = victim.listen();
        let relay = thread::spawn(move || relay(&listener, victim));
        let outcome = reserve(&a, &evil, &own);
        assert_eq!(outcome.code, 14, "{outcome}");
        let said = relay.join().unwrap();
        // Neither a proof nor an answer.
        let greets = said
            .iter()
            .all(|said| [kind::HELLO, kind::GOAWAY].contains(said));
        assert!(greets, "the victim said frames of kinds {said:?}");
        assert!(outcome.err.contains(sentence), "{outcome}");
    }
    assert_eq!(b.status()["links"], serde_json::json!([]));
    // Its own address reaches it.
    let token = a.tenant("acme");
    let outcome = reserve(&a, &token, &b.listen().to_string());
    assert_eq!(outcome.code, 0, "{outcome}");
    assert_eq!(a.status()["links"][0]["version"], 2);
}

#[test]
fn applications_name_only_peers_that_the_operator_has_listed() {
    let bed = Testbed::new();
    let b = bed.daemon_with("b", &member(None));
    let listed = b.listen().to_string();
    let a = bed.daemon_with("a", &member(Some(vec![listed.clone()])));
    let tokens = [a.tenant("acme"), b.tenant("acme")];
    let _server = b.serve_hotel(&tokens[1], "hotel.Reservation", &["--reply", "{}"]);
    let outcome = reserve(&a, &tokens[0], &listed);
    assert_eq!(outcome.code, 0, "{outcome}");

    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    nobody.set_nonblocking(true).unwrap();
    let unlisted = nobody.local_addr().unwrap().to_string();
    for target in [
        &*unlisted,
        "nowhere.invalid:7471",
        &listed.replace("127.0.0.1", "localhost"),
    ] {
        let outcome = reserve(&a, &tokens[0], target);
        assert_eq!(outcome.code, 7, "{outcome}");
        for said in [target, "--peer", "--open-targets"] {
            assert!(outcome.err.contains(said), "{outcome}");
        }
    }
    assert!(nobody.accept().is_err(), "it wasn't dialled");
}

/// Applications of one host reach each other, with or without a key or peers.
#[test]
fn where_a_daemon_listens_itself_are_its_own_applications() {
    let bed = Testbed::new();
    let alone = Options {
        alone: true,
        peers: Some(Vec::new()),
        ..Options::default()
    };
    for (name, options) in [("alone", alone), ("member", member(Some(Vec::new())))] {
        let daemon = bed.daemon_with(name, &options);
        let token = daemon.tenant("acme");
        let _server = daemon.serve_hotel(&token, "hotel.Reservation", &["--reply", "{}"]);
        for to in [String::new(), daemon.listen().to_string()] {
            let outcome = reserve(&daemon, &token, &to);
            assert_eq!(outcome.code, 0, "{name} {to}: {outcome}");
        }
        assert_eq!(daemon.status()["links"], serde_json::json!([]));
    }
}

#[test]
fn without_a_key_nobody_is_a_peer() {
    let bed = Testbed::new();
    let options = Options {
        alone: true,
        ..Options::default()
    };
    let mut alone = bed.daemon_with("alone", &options);
    let warned = |line: &str| line.contains("without a key this daemon has no peers");
    alone.process().line(SOON, warned).unwrap();
    // Any process of this host.
    let mut stream = TcpStream::connect(alone.listen()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let said = frame(&mut stream).unwrap();
    assert_eq!(said[4], kind::GOAWAY);
    assert!(String::from_utf8_lossy(&said[32..]).contains("--unauthenticated-loopback"));
    assert!(frame(&mut stream).is_none());
    let token = alone.tenant("acme");
    let outcome = reserve(&alone, &token, "127.0.0.1:1");
    assert_eq!(outcome.code, 9, "{outcome}");
    assert!(
        outcome.err.contains("has no key, so it can't reach peer"),
        "{outcome}"
    );
    // Unless the operator trusts this host.
    let trusting = bed.daemon("trusting");
    let mut peer = Peer::connect(trusting.listen(), 0);
    peer.bind(0, "acme", "hotel.Reservation", [0; 32]);
    assert_eq!(peer.receive().map(|frame| frame.kind), Some(kind::REFUSED));
}

/// The output of a daemon that doesn't start.
fn refused(args: &[&str]) -> String {
    let outcome = run(&program("tollgated"), args, b"");
    assert_eq!(outcome.code, 9, "{outcome}");
    outcome.err
}

#[test]
fn what_protects_nothing_is_refused_at_the_start() {
    let bed = Testbed::new();
    let socket = bed.path("a.sock").display().to_string();
    let without = refused(&[
        "--socket",
        &socket,
        "--listen",
        "0.0.0.0:0",
        "--unauthenticated-loopback",
    ]);
    assert!(
        without.contains("0.0.0.0:0 needs a key") && without.contains("--psk-file"),
        "{without}"
    );

    let with_key = |content: &str, mode: u32| {
        let file = bed.file("key", content);
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        refused(&[
            "--socket",
            &socket,
            "--psk-file",
            &file.display().to_string(),
        ])
    };
    let good = "q4Zr1yJ0mC8vWnT5bX2kHsLdE7uPfA9gRiVoYt3xMzI=";
    for mode in [0o644, 0o640, 0o604, 0o620] {
        let readable = with_key(good, mode);
        let expected = format!("(mode {mode:04o}): chmod 600 ");
        assert!(readable.contains(&expected), "{readable}");
    }
    for (weak, why) in [
        ("short", "has 5 bytes"),
        ("0000000000000000", "hardly any different bytes"),
        ("passwordpassword", "repeats a few bytes"),
        (
            "correct horse battery",
            "neither hexadecimal digits nor base64",
        ),
        ("password1234567890", "too few bytes"),
        ("abcdefghijklmnopq", "only counts"),
    ] {
        let said = with_key(weak, 0o600);
        assert!(said.contains(why), "{said}");
        assert!(!said.contains(weak), "a key is never shown: {said}");
    }
}

/// Silent connections have their own limit; the oldest gives way.
#[test]
fn eleven_hundred_silent_connections_are_in_nobodys_way() {
    const SILENT: usize = 1_100;
    let bed = Testbed::new();
    let (a, b) = (
        bed.daemon_with("a", &member(None)),
        bed.daemon_with("b", &member(None)),
    );
    let token = a.tenant("acme");
    let served = b.tenant("acme");
    let _server = b.serve_hotel(&served, "hotel.Reservation", &["--reply", "{}"]);
    let peer = b.listen().to_string();
    let outcome = reserve(&a, &token, &peer);
    assert_eq!(outcome.code, 0, "{outcome}");
    let links = |daemon: &Daemon| daemon.status()["links"].as_array().unwrap().clone();
    let good = links(&a)[0]["address"].clone();
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(b.listen()).unwrap());
    }
    // A daemon that connects only now is accepted at once, before any of the others has timed out.
    let late = bed.daemon_with("late", &member(None));
    let its = late.tenant("acme");
    let outcome = reserve(&late, &its, &peer);
    assert_eq!(outcome.code, 0, "{outcome}");
    let outcome = reserve(&a, &token, &peer);
    assert_eq!(outcome.code, 0, "{outcome}");
    assert_eq!(links(&a)[0]["address"], good, "the same link as before");
    // Few remain, however many there were.
    let open = links(&b)
        .iter()
        .filter(|link| link["state"] == "opening")
        .count();
    assert!(
        open <= 512,
        "{open} connections that haven't proven themselves"
    );
    let gone = eventually(SOON, || {
        links(&b).iter().all(|link| link["state"] == "ready")
    });
    gone.expect("they have a deadline");
    drop(silent);
}

/// If descriptors are few, silent connections use only their share.
#[test]
fn silent_connections_leave_descriptors_to_applications_and_the_operator() {
    /// More than twice as many want to connect.
    const DESCRIPTORS: usize = 400;
    let bed = Testbed::new();
    let limit = format!("prlimit --nofile={DESCRIPTORS}:{DESCRIPTORS}");
    let options = Options {
        under: limit.split(' ').map(str::to_owned).collect(),
        ..member(None)
    };
    let daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..1_000 {
        silent.push(TcpStream::connect(daemon.listen()).unwrap());
    }
    let taken = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()));
    let taken = taken.unwrap().count();
    assert!(taken < DESCRIPTORS / 2, "{taken} descriptors are taken");
    assert!(daemon.status()["links"].is_array());
    let _server = daemon.serve_hotel(&token, "hotel.Reservation", &["--reply", "{}"]);
    let outcome = reserve(&daemon, &token, "");
    assert_eq!(outcome.code, 0, "{outcome}");
    drop(silent);
}

/// The end of each doesn't fill the log.
#[test]
fn strangers_that_come_and_go_leave_a_line_a_second() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &member(None));
    for _ in 0..300 {
        let mut stream = TcpStream::connect(daemon.listen()).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\n\r\n                     ")
            .unwrap();
        // Until it hangs up.
        stream.set_read_timeout(Some(SOON)).unwrap();
        let _told = stream.read_to_end(&mut Vec::new());
    }
    let ended = |line: &String| line.contains("unknown kind");
    let said = eventually(SOON, || daemon.process().said().iter().any(ended));
    said.expect("one was said");
    let lines = daemon.process().said().into_iter().filter(ended).count();
    assert!(lines < 150, "{lines} lines");
}

/// The key alone makes a peer.
#[test]
fn who_has_no_key_is_told_so_and_gets_nothing() {
    let bed = Testbed::new();
    let daemon = bed.daemon_with("a", &member(None));
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, "hotel.Reservation", &["--reply", "{}"]);
    let said = Peer::try_connect(daemon.listen(), 0);
    let mut peer = said.expect("it greets, and is told what is missing");
    peer.bind(0, "acme", "hotel.Reservation", [0; 32]);
    let told = peer.receive().expect("a farewell");
    assert_eq!(told.kind, kind::GOAWAY);
    assert!(told.text().contains("proves no key"), "{}", told.text());
    assert!(peer.receive().is_none());
}

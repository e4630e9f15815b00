//! Daemons with several runtimes, and links that come and go while applications stay.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate::{Channel, Code, Request, Session, SessionOptions, block_on};
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;
use tollgate_conformance::testbed::{Options, SOON, Testbed, eventually};

const ECHO: &str = "hotel.Echo";

fn echo(client: &EchoClient, session: &Session, payload: &[u8]) -> Result<Vec<u8>, Code> {
    let mut request = Request::new(EchoMessage {
        payload: payload.into(),
    });
    request.set_timeout(Duration::from_secs(10));
    match block_on(session, client.echo(request)) {
        Ok(reply) => Ok(reply.get_ref().view().payload().to_vec()),
        Err(status) => Err(status.code),
    }
}

/// Tenants are distributed over the runtimes by name; any runtime accepts a link, which moves to
/// its tenant's. Eight tenants use both runtimes.
#[test]
fn every_tenant_is_served_whichever_runtime_is_its_home() {
    let bed = Testbed::new();
    let options = Options::on_cores("0,1");
    let (a, b) = (
        bed.daemon_with("a", &options),
        bed.daemon_with("b", &options),
    );
    assert_eq!(a.status()["runtimes"], 2);
    let target = b.listen().to_string();
    let mut alive = Vec::new();
    for k in 0..8 {
        let tenant = format!("tenant-{k}");
        let (token_a, token_b) = (a.tenant(&tenant), b.tenant(&tenant));
        let server = b.serve_hotel(&token_b, ECHO, &["--echo"]);
        let local = a.serve_hotel(&token_a, ECHO, &["--echo"]);
        let session = Session::open(SessionOptions::new(a.socket(), token_a)).unwrap();
        for (target, payload) in [
            (target.as_str(), &[k as u8; 100][..]),
            ("", &[k as u8; 200_000]),
        ] {
            let client = EchoClient::new(Channel::new(&session, target));
            assert_eq!(
                echo(&client, &session, payload).as_deref(),
                Ok(payload),
                "{tenant} at {target:?}"
            );
        }
        alive.push((server, local, session));
    }
    let links = b.status()["links"].as_array().unwrap().len();
    assert_eq!(links, 8, "each tenant has a link of its own");
}

/// The session and its stub stay; the daemon dials and binds again by itself.
#[test]
fn a_lost_peer_is_dialled_again_under_an_open_session() {
    let bed = Testbed::new();
    let a = bed.daemon("a");
    let mut b = bed.daemon_with(
        "b",
        &Options {
            durable: true,
            ..Options::default()
        },
    );
    let (token_a, token_b) = (a.tenant("acme"), b.tenant("acme"));
    let again = Options {
        durable: true,
        listen: Some(b.listen()),
        ..Options::default()
    };
    let session = Session::open(SessionOptions::new(a.socket(), token_a)).unwrap();
    let client = EchoClient::new(Channel::new(&session, &b.listen().to_string()));
    for round in 0..3u8 {
        let mut server = b.serve_hotel(&token_b, ECHO, &["--echo"]);
        let answered = || echo(&client, &session, &[round; 64]) == Ok(vec![round; 64]);
        eventually(SOON, answered).unwrap_or_else(|_| panic!("round {round}: no answer"));
        b.process().kill();
        server.kill();
        assert_eq!(
            echo(&client, &session, b"anybody?"),
            Err(Code::UNAVAILABLE),
            "round {round}"
        );
        b = bed.daemon_with("b", &again);
    }
}

/// The number of sleeps shows how a runtime waits. A spinning runtime may still sleep on a core
/// that other processes want as well: it yields to them.
#[test]
fn a_runtime_serves_however_it_waits() {
    const PAUSES: u64 = 20;
    for (config, sleeps) in [
        ("waiting = 'adaptive'", true),
        ("waiting = 'sleep'", true),
        ("waiting = 'spin'", false),
    ] {
        let bed = Testbed::new();
        let options = Options {
            config: config.to_owned(),
            ..Options::default()
        };
        let daemon = bed.daemon_with("a", &options);
        let token = daemon.tenant("acme");
        let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
        let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
        let client = EchoClient::new(Channel::new(&session, ""));
        let slept = || daemon.status()["calls"]["sleeps"].as_u64().unwrap();
        let before = slept();
        let pauses = || {
            for _ in 0..PAUSES {
                assert_eq!(echo(&client, &session, b"there"), Ok(b"there".to_vec()));
                std::thread::sleep(Duration::from_millis(5));
            }
            slept() - before >= PAUSES || !sleeps
        };
        // A runtime without a turn in a pause hasn't slept in it.
        eventually(SOON, pauses).unwrap_or_else(|_| panic!("{config}: it hardly ever sleeps"));
    }
}

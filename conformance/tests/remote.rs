//! The administrative API on the network: TLS, certificates, operators' credentials, and what
//! strangers get there.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tollgate::{Code, Session, SessionOptions};
use tollgate_admin::client::{Client, Remote};
use tollgate_admin::proto::{ListCredentialsRequest, ListPoliciesRequest, ListTenantsRequest};
use tollgate_admin::{
    HANDSHAKE_TIME, REMOTE_CONNECTIONS, REMOTE_CONNECTIONS_PER_NETWORK,
    REMOTE_CONNECTIONS_PER_TENANT, REMOTE_KNOWN_CONNECTIONS, STRANGER_LAST, STRANGER_REQUESTS,
    STRANGER_TIME, Secret, socket_beside,
};
use tollgate_conformance::certificates::{Authority, Certificates};
use tollgate_conformance::http2::{self, Ended, RawClient};
use tollgate_conformance::ports::free;
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, Outcome, SOON, Testbed, policy_file, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon whose API is on the network, and its address there.
struct Hosted {
    daemon: Daemon,
    at: SocketAddr,
}

impl Hosted {
    fn start(bed: &Testbed, admin: &str) -> Hosted {
        let options = Options {
            config: format!("[admin]\n{admin}"),
            durable: true,
            ..Options::default()
        };
        let mut daemon = bed.daemon_with("a", &options);
        let at = daemon.admin_address();
        Hosted { daemon, at }
    }

    /// With TLS, and clients' certificates of this authority.
    fn with_tls(bed: &Testbed, server: &Certificates, more: &str) -> Hosted {
        let (certificate, key, ca) = (&server.certificate, &server.key, &server.ca);
        let admin = format!(
            "listen = '127.0.0.1:0'\ncertificate = {certificate:?}\nkey = {key:?}\nclient_ca = {ca:?}\n{more}"
        );
        Hosted::start(bed, &admin)
    }

    fn remote(&self, ca: &Path, identity: Option<&Certificates>) -> Remote {
        let read = |path: &PathBuf| std::fs::read(path).unwrap();
        Remote {
            endpoint: format!("https://{}", self.at),
            authorities: Some(std::fs::read(ca).unwrap()),
            identity: identity.map(|its| (read(&its.certificate), read(&its.key))),
        }
    }

    /// A client that has this token and this certificate.
    fn client(
        &self,
        ca: &Path,
        token: Option<&str>,
        identity: Option<&Certificates>,
    ) -> Result<Client, tollgate_admin::Status> {
        let token = token.map(Secret::new);
        Client::connect_remotely(&self.remote(ca, identity), token.as_ref(), PATIENCE)
    }

    /// A client without TLS.
    fn plain_client(&self, token: Option<&str>) -> Client {
        let remote = Remote {
            endpoint: format!("http://{}", self.at),
            ..Remote::default()
        };
        let token = token.map(Secret::new);
        Client::connect_remotely(&remote, token.as_ref(), PATIENCE).unwrap()
    }

    /// Runs `tollgate` for a user who can reach nothing of this host but the address.
    fn tollgate(&self, ca: &Path, line: &str, token: Option<&str>) -> Outcome {
        let mut words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        words.push(format!("--endpoint=https://{}", self.at));
        words.push(format!("--ca={}", ca.display()));
        if let Some(token) = token {
            let file = self.daemon.token_file(token).display().to_string();
            words.push(format!("--token-file={file}"));
        }
        run(&program("tollgate"), words, b"")
    }
}

/// A daemon with this section `[admin]` ends with an error that has these words.
fn does_not_start(bed: &Testbed, admin: &str, words: &str) {
    let config = bed.file("bad.toml", format!("[admin]\n{admin}\n"));
    let socket = bed.path("bad.sock");
    let args = [
        "--config",
        config.to_str().unwrap(),
        "--socket",
        socket.to_str().unwrap(),
    ];
    let said = run(&program("tollgated"), args.map(str::to_owned), b"");
    assert_ne!(said.code, 0, "{said}");
    assert!(said.err.contains(words), "{words}: {said}");
}

const SPIFFE: &str = "
[[admin.certificates]]
name = 'spiffe://acme.example/ci/*'
tenant = 'acme'
credential = 'ci'
[[admin.certificates]]
name = 'spiffe://provider.example/deploy'
credential = 'deploy'
";

#[test]
fn operators_and_tenants_administer_from_elsewhere_with_tokens() {
    let bed = Testbed::new();
    let server = Certificates::signed_by(&bed, "own");
    let hosted = Hosted::with_tls(&bed, &server, "");
    let daemon = &hosted.daemon;
    let acme = daemon.tenant("acme");
    let evil = daemon.tenant("evil");
    let deploy = daemon.ok("credential add deploy --operator --expires 30d");
    let deploy = deploy.trim();
    let listed = daemon.ok("credential list --operator");
    assert!(
        listed.starts_with("deploy  operator  expires in 29 days"),
        "{listed}"
    );
    let remotely = |token: Option<&str>, line: &str| hosted.tollgate(&server.ca, line, token);
    let ok = |token: &str, line: &str| {
        let outcome = remotely(Some(token), line);
        assert_eq!(outcome.code, 0, "{line}: {outcome}");
        outcome.out
    };
    // An operator changes a ceiling, and sees the whole daemon.
    ok(deploy, "ceiling set versions=7 --tenant acme");
    assert!(ok(deploy, "status").starts_with("tollgated "));
    assert!(ok(&acme, "status").starts_with("tenant acme on daemon a"));
    assert!(ok(&acme, "ceiling show").contains("versions            7"));
    let record = ok(deploy, "audit show --last 1");
    assert!(
        record.contains("operator credential deploy: ceiling-change"),
        "{record}"
    );
    // Its tenant isn't told which operator it was.
    let record = ok(&acme, "audit show --last 1");
    assert!(record.contains("operator: ceiling-change"), "{record}");
    // A tenant does its own, and nothing else.
    let token = ok(&acme, "credential add booking");
    assert!(token.starts_with("tg_"), "{token}");
    let refused = remotely(Some(&evil), "credential list --tenant acme");
    assert_eq!(refused.code, 5, "{refused}");
    let refused = remotely(Some(&acme), "credential add boss --operator");
    assert_eq!(refused.code, 3, "{refused}");
    assert!(
        refused.err.contains("can't have the role operator"),
        "{refused}"
    );
    // A process of root is nobody special here.
    let nobody = remotely(None, "policy list");
    assert_eq!(nobody.code, 16, "{nobody}");
    assert!(
        nobody.err.contains("authorization: Bearer TOKEN"),
        "{nobody}"
    );
    // The operator's credential opens no session, and ends at once.
    let session = Session::open(SessionOptions::new(daemon.socket(), deploy));
    let refused = session.err().unwrap();
    assert_eq!(refused.code(), Code::PERMISSION_DENIED, "{refused}");
    assert!(
        refused.message().contains("has the role operator"),
        "{refused}"
    );
    let kept = hosted.client(&server.ca, Some(deploy), None).unwrap();
    assert_eq!(
        kept.ask(ListTenantsRequest {}).unwrap().tenants,
        ["acme", "evil"]
    );
    daemon.ok("credential revoke deploy --operator");
    let gone = kept.ask(ListTenantsRequest {}).unwrap_err();
    assert_eq!(gone.code, Code::UNAUTHENTICATED, "{gone}");
    let gone = remotely(Some(deploy), "status");
    assert_eq!(gone.code, 16, "{gone}");
}

#[test]
fn a_certificate_stands_for_its_credential_and_ends_with_it() {
    let bed = Testbed::new();
    let authority = Authority::new(&bed, "own");
    let server = authority.server(&bed, "server");
    let hosted = Hosted::with_tls(&bed, &server, SPIFFE);
    let daemon = &hosted.daemon;
    daemon.tenant("acme");
    daemon.ok("credential add ci --tenant acme --role owner");
    daemon.ok("credential add deploy --operator");
    let ci = authority.client(&bed, "ci", "spiffe://acme.example/ci/7");
    let deploy = authority.client(&bed, "deploy", "spiffe://provider.example/deploy");
    let connected = |its: &Certificates| hosted.client(&server.ca, None, Some(its)).unwrap();
    let own = connected(&ci)
        .ask(ListCredentialsRequest::default())
        .unwrap();
    let names: Vec<_> = own.credentials.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["ci", "default"]);
    let refused = connected(&ci).ask(ListTenantsRequest {}).unwrap_err();
    assert_eq!(refused.code, Code::PERMISSION_DENIED, "{refused}");
    assert_eq!(
        connected(&deploy)
            .ask(ListTenantsRequest {})
            .unwrap()
            .tenants,
        ["acme"]
    );
    // A token counts more than the certificate.
    let viewer = daemon.ok("credential add looks --tenant acme --role viewer");
    let both = hosted
        .client(&server.ca, Some(viewer.trim()), Some(&deploy))
        .unwrap();
    let refused = both.ask(ListTenantsRequest {}).unwrap_err();
    assert!(
        refused.message.contains("looks of tenant acme"),
        "{refused}"
    );
    // One that nobody has listed.
    let other = authority.client(&bed, "other", "spiffe://acme.example/other");
    let refused = connected(&other)
        .ask(ListPoliciesRequest::default())
        .unwrap_err();
    assert_eq!(refused.code, Code::PERMISSION_DENIED, "{refused}");
    assert!(
        refused.message.contains("spiffe://acme.example/other")
            && refused.message.contains("admin.certificates"),
        "{refused}"
    );
    // Its credential's end is its own.
    let kept = connected(&ci);
    daemon.ok("credential revoke ci --tenant acme");
    for client in [kept, connected(&ci)] {
        let ended = client.ask(ListPoliciesRequest::default()).unwrap_err();
        assert_eq!(ended.code, Code::PERMISSION_DENIED, "{ended}");
        assert!(ended.message.contains("has ended"), "{ended}");
    }
    // Others' authorities and ended certificates don't get as far.
    let stranger = Authority::new(&bed, "strange");
    let forged = stranger.client(&bed, "forged", "spiffe://provider.example/deploy");
    let expired = authority.expired_client(&bed, "expired", "spiffe://provider.example/deploy");
    for its in [forged, expired] {
        let asked = hosted
            .client(&server.ca, None, Some(&its))
            .and_then(|client| client.ask(ListTenantsRequest {}));
        let refused = asked.unwrap_err();
        assert_eq!(refused.code, Code::UNAVAILABLE, "{refused}");
    }
    // A daemon of another authority isn't the one that the client wants.
    let refused = hosted.client(&stranger.ca, None, None).unwrap_err();
    assert_eq!(refused.code, Code::UNAVAILABLE, "{refused}");
    assert!(refused.message.contains("certificate"), "{refused}");
    assert_eq!(
        connected(&deploy)
            .ask(ListTenantsRequest {})
            .unwrap()
            .tenants,
        ["acme"]
    );
}

#[test]
fn a_renewed_certificate_is_used_by_the_next_connection() {
    let bed = Testbed::new();
    let first = Certificates::signed_by(&bed, "server");
    let old_ca = bed.file("old-ca.pem", std::fs::read(&first.ca).unwrap());
    let hosted = Hosted::with_tls(&bed, &first, "");
    let acme = hosted.daemon.tenant("acme");
    let ask = |client: &Client| client.ask(ListPoliciesRequest::default()).map(drop);
    let before = hosted.client(&old_ca, Some(&acme), None).unwrap();
    ask(&before).unwrap();
    // A certificate without its key is no pair yet: the former one stays.
    let elsewhere = Testbed::new();
    let second = Certificates::signed_by(&elsewhere, "server");
    std::fs::copy(&second.certificate, &first.certificate).unwrap();
    ask(&hosted.client(&old_ca, Some(&acme), None).unwrap()).unwrap();
    let problems = || hosted.daemon.status()["problems"].to_string();
    assert!(
        problems().contains("goes on with its former certificate"),
        "{}",
        problems()
    );
    std::fs::copy(&second.key, &first.key).unwrap();
    ask(&hosted.client(&second.ca, Some(&acme), None).unwrap()).unwrap();
    assert!(hosted.client(&old_ca, Some(&acme), None).is_err());
    assert_eq!(problems(), "[]");
    ask(&before).unwrap();
}

#[test]
fn on_loopback_the_api_may_be_plain_and_tokens_are_needed_all_the_same() {
    let bed = Testbed::new();
    let hosted = Hosted::start(&bed, "listen = '127.0.0.1:0'");
    let acme = hosted.daemon.tenant("acme");
    hosted
        .plain_client(Some(&acme))
        .ask(ListPoliciesRequest::default())
        .unwrap();
    let nobody = hosted.plain_client(None).ask(ListTenantsRequest {});
    let nobody = nobody.unwrap_err();
    assert_eq!(nobody.code, Code::UNAUTHENTICATED, "{nobody}");
    // A client refuses to send a token in the clear to another host.
    let far = Remote {
        endpoint: "http://192.0.2.1:7443".to_owned(),
        ..Remote::default()
    };
    let refused = Client::connect_remotely(&far, None, PATIENCE).unwrap_err();
    assert!(refused.message.contains("in the clear"), "{refused}");
}

#[test]
fn wrong_tokens_from_a_network_are_slow_and_right_ones_are_not() {
    let bed = Testbed::new();
    let hosted = Hosted::start(&bed, "listen = '127.0.0.1:0'");
    let acme = hosted.daemon.tenant("acme");
    let client = |token| hosted.plain_client(Some(token));
    let right = client(&acme);
    let slow = (0..64).find_map(|_| {
        let wrong = client("tg_wrong");
        let refused = wrong.ask(ListPoliciesRequest::default()).unwrap_err();
        assert_eq!(refused.code, Code::UNAUTHENTICATED);
        refused
            .message
            .contains("address 127.0.0.1 sends wrong tokens")
            .then_some(())
    });
    assert!(slow.is_some(), "answers get slow");
    right.ask(ListPoliciesRequest::default()).unwrap();
    // Users of the host have an allowance of their own.
    let file = hosted.daemon.token_file("tg_wrong").display().to_string();
    let local = hosted
        .daemon
        .tollgate(["policy", "list", "--token-file", &file]);
    assert_eq!(local.code, 16, "{local}");
    assert!(!local.err.contains("sends wrong tokens"), "{local}");
    let records = hosted.daemon.ok("audit show --last 3");
    assert_eq!(records.matches(": guesses ").count(), 1, "{records}");
    assert!(
        records.contains("\"origin\":\"address 127.0.0.1\""),
        "{records}"
    );
}

#[test]
fn one_network_has_so_many_connections_and_silent_ones_end() {
    let bed = Testbed::new();
    let server = Certificates::signed_by(&bed, "own");
    let hosted = Hosted::with_tls(&bed, &server, "");
    let acme = hosted.daemon.tenant("acme");
    let silent = || {
        let stream = TcpStream::connect(hosted.at).unwrap();
        stream.set_read_timeout(Some(HANDSHAKE_TIME * 3)).unwrap();
        stream
    };
    let began = Instant::now();
    // One place is left for a client, whom the silent ones don't hold up.
    let mut waiting: Vec<_> = (1..REMOTE_CONNECTIONS_PER_NETWORK)
        .map(|_| silent())
        .collect();
    let client = hosted.client(&server.ca, Some(&acme), None).unwrap();
    client.ask(ListPoliciesRequest::default()).unwrap();
    let is_closed = |stream: &mut TcpStream| !matches!(stream.read(&mut [0; 1]), Ok(1..));
    assert!(is_closed(&mut silent()), "one more is closed");
    assert!(began.elapsed() < HANDSHAKE_TIME, "at once");
    // The host's own users aren't touched.
    assert_eq!(hosted.daemon.ok("tenant list"), "acme\n");
    assert!(
        waiting.iter_mut().all(is_closed),
        "each handshake has its time"
    );
    assert!(began.elapsed() < HANDSHAKE_TIME * 3);
    let again = hosted.client(&server.ca, Some(&acme), None).unwrap();
    again.ask(ListPoliciesRequest::default()).unwrap();
}

const PUSH: &str = "/tollgate.admin.v1.PolicyService/PushPolicy";
const APPLY: &str = "/tollgate.admin.v1.StateService/ApplyState";
const LIST: &str = "/tollgate.admin.v1.PolicyService/ListPolicies";

#[test]
fn a_request_is_authenticated_by_its_header_before_it_takes_a_place() {
    let bed = Testbed::new();
    let hosted = Hosted::start(&bed, "listen = '127.0.0.1:0'");
    let acme = hosted.daemon.tenant("acme");
    let viewer = "credential add looks --tenant acme --role viewer";
    let viewer = hosted.daemon.ok(viewer).trim().to_owned();
    // None of them sends anything of its body.
    let mut waiting = Vec::new();
    for path in [PUSH, APPLY] {
        for token in [None, Some("tg_wrong"), Some(viewer.as_str())] {
            let mut raw = RawClient::to_address(hosted.at);
            let stream = raw.header(path, token).unwrap();
            assert_eq!(raw.ended(stream, SOON), Ended::Refused, "{path} {token:?}");
            waiting.push(raw);
        }
    }
    let mut raw = RawClient::to_socket(&socket_beside(hosted.daemon.socket()));
    let stream = raw.header(PUSH, Some("tg_wrong")).unwrap();
    assert_eq!(
        raw.ended(stream, SOON),
        Ended::Refused,
        "on the socket, too"
    );
    // One with a right token has a place, and waits for what comes.
    let mut raw = RawClient::to_address(hosted.at);
    let stream = raw.header(PUSH, Some(&acme)).unwrap();
    let begun = raw.ended(stream, Duration::from_millis(500));
    assert_eq!(begun, Ended::NotYet);
    drop(waiting);
    let file = policy_file("null").display().to_string();
    let token = hosted.daemon.token_file(&acme).display().to_string();
    let line = format!(
        "policy push {file} --name p --endpoint http://{} --token-file {token}",
        hosted.at
    );
    let pushed = run(
        &program("tollgate"),
        line.split(' ').map(str::to_owned),
        b"",
    );
    assert_eq!(pushed.code, 0, "{pushed}");
}

#[test]
fn a_stranger_on_the_network_has_a_few_seconds_and_a_few_requests() {
    let bed = Testbed::new();
    let hosted = Hosted::start(&bed, "listen = '127.0.0.1:0'");
    let acme = hosted.daemon.tenant("acme");
    let little = Duration::from_secs(1);
    // One that has said who it is stays.
    let mut known = RawClient::to_address(hosted.at);
    let kept = known.header(LIST, Some(&acme)).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        // Silent ones, those that send, and those that ask without a token have the same time.
        let silent = || RawClient::to_address(hosted.at).closes(SOON);
        let busy = || {
            let mut raw = RawClient::to_address(hosted.at);
            let began = Instant::now();
            while raw.ping().is_some() && began.elapsed() < SOON {
                std::thread::sleep(Duration::from_millis(50));
            }
            Some(began.elapsed())
        };
        let asking = || {
            let mut raw = RawClient::to_address(hosted.at);
            let stream = raw.header(LIST, None).unwrap();
            assert_eq!(raw.ended(stream, SOON), Ended::Refused);
            raw.closes(SOON)
        };
        let threads = [scope.spawn(silent), scope.spawn(busy), scope.spawn(asking)];
        for thread in threads {
            let took = thread.join().unwrap().unwrap();
            assert!(took > STRANGER_TIME - little, "{took:?}");
            assert!(took < STRANGER_TIME + SOON / 2, "{took:?}");
        }
    });
    std::thread::sleep((STRANGER_TIME + little).saturating_sub(begun.elapsed()));
    assert_eq!(known.ended(kept, little), Ended::NotYet);
    known.body(kept, &http2::message(&[]), true).unwrap();
    assert_eq!(known.ended(kept, SOON), Ended::Answered);
    // Until its token ends.
    hosted.daemon.ok("tenant rotate acme");
    let ended = known.header(LIST, Some(&acme)).unwrap();
    assert_eq!(known.ended(ended, SOON), Ended::Refused);
    let took = known.closes(SOON).unwrap();
    assert!(took > STRANGER_TIME - little, "{took:?}");
    // The last request that is refused ends the connection, and another one begins anew.
    let wrong = hosted.plain_client(Some("tg_wrong"));
    let ask = || wrong.ask(ListPoliciesRequest::default()).unwrap_err();
    for _ in 0..STRANGER_REQUESTS {
        assert_eq!(ask().code, Code::UNAUTHENTICATED);
    }
    let refused = ask();
    assert_eq!(refused.code, Code::RESOURCE_EXHAUSTED, "{refused}");
    assert!(refused.message.contains("connect again"), "{refused}");
    std::thread::sleep(STRANGER_LAST + little);
    assert_eq!(ask().code, Code::UNAVAILABLE, "it has ended");
    assert_eq!(ask().code, Code::UNAUTHENTICATED, "another one");
    // Health and reflection need no token, and count all the same.
    let mut raw = RawClient::to_address(hosted.at);
    for _ in 0..STRANGER_REQUESTS {
        let health = raw.header("/grpc.health.v1.Health/Check", None).unwrap();
        raw.body(health, &http2::message(&[]), true).unwrap();
        assert_eq!(raw.ended(health, SOON), Ended::Answered);
    }
    let took = raw.closes(SOON).unwrap();
    assert!(took < STRANGER_LAST + SOON / 2, "{took:?}");
}

#[test]
fn strangers_leave_connections_to_addresses_that_were_authenticated_lately() {
    let bed = Testbed::new();
    let hosted = Hosted::start(&bed, "listen = '127.0.0.1:0'");
    let acme = hosted.daemon.tenant("acme");
    let ask = || {
        hosted
            .plain_client(Some(&acme))
            .ask(ListPoliciesRequest::default())
    };
    ask().unwrap();
    let others = REMOTE_CONNECTIONS - REMOTE_KNOWN_CONNECTIONS;
    let mut strangers: Vec<_> = (0..others)
        .map(|n| {
            let network = 2 + n / REMOTE_CONNECTIONS_PER_NETWORK;
            let from = Ipv4Addr::new(127, 0, 0, u8::try_from(network).unwrap());
            RawClient::from_address(from, hosted.at)
        })
        .collect();
    // There is no room for another stranger, and there is for a client that is known.
    let mut another = RawClient::from_address(Ipv4Addr::new(127, 0, 0, 99), hosted.at);
    let took = another.closes(SOON).unwrap();
    assert!(took < STRANGER_TIME, "{took:?}");
    ask().unwrap();
    assert!(strangers.iter_mut().all(|raw| raw.closes(SOON).is_some()));
    let mut another = RawClient::from_address(Ipv4Addr::new(127, 0, 0, 99), hosted.at);
    let stream = another.header(LIST, Some(&acme)).unwrap();
    another.body(stream, &http2::message(&[]), true).unwrap();
    assert_eq!(another.ended(stream, SOON), Ended::Answered);
}

#[test]
fn a_tenant_on_the_network_leaves_connections_to_others() {
    let bed = Testbed::new();
    let hosted = Hosted::start(&bed, "listen = '127.0.0.1:0'");
    let (mallory, acme) = (
        hosted.daemon.tenant("mallory"),
        hosted.daemon.tenant("acme"),
    );
    let from = |host: usize, token: &str| {
        let address = Ipv4Addr::new(127, 0, 0, u8::try_from(2 + host).unwrap());
        let mut raw = RawClient::from_address(address, hosted.at);
        let stream = raw.header(LIST, Some(token)).unwrap();
        (raw, stream)
    };
    // Known connections, from more than one address.
    let mut held: Vec<_> = (0..REMOTE_CONNECTIONS_PER_TENANT)
        .map(|n| from(n % 3, &mallory))
        .collect();
    for (raw, stream) in &mut held {
        assert_eq!(
            raw.ended(*stream, Duration::from_millis(200)),
            Ended::NotYet
        );
    }
    let (mut more, stream) = from(4, &mallory);
    assert_eq!(more.ended(stream, SOON), Ended::Refused);
    let took = more.closes(SOON).unwrap();
    assert!(took < STRANGER_TIME, "{took:?}");
    // Others have theirs; also at an address of the tenant's.
    let (mut other, stream) = from(0, &acme);
    other.body(stream, &http2::message(&[]), true).unwrap();
    assert_eq!(other.ended(stream, SOON), Ended::Answered);
    // A connection that proves another tenant's token gives its place back.
    let (raw, _) = &mut held[0];
    let stream = raw.header(LIST, Some(&acme)).unwrap();
    raw.body(stream, &http2::message(&[]), true).unwrap();
    assert_eq!(raw.ended(stream, SOON), Ended::Answered);
    let (mut again, stream) = from(4, &mallory);
    again.body(stream, &http2::message(&[]), true).unwrap();
    assert_eq!(again.ended(stream, SOON), Ended::Answered);
}

#[test]
fn an_operators_credential_administers_tenants_settings_and_the_audit_log_from_elsewhere() {
    let bed = Testbed::new();
    let server = Certificates::signed_by(&bed, "own");
    let hosted = Hosted::with_tls(&bed, &server, "");
    let daemon = &hosted.daemon;
    let deploy = daemon.ok("credential add deploy --operator");
    let ok = |line: &str| {
        let outcome = hosted.tollgate(&server.ca, line, Some(deploy.trim()));
        assert_eq!(outcome.code, 0, "{line}: {outcome}");
        outcome.out
    };
    let acme = ok("tenant add acme").trim().to_owned();
    assert_eq!(ok("tenant list"), "acme\n");
    let rotated = ok("tenant rotate acme");
    assert_ne!(rotated.trim(), acme);
    assert!(ok("tenant move acme --runtime 0").contains("is on runtime 0"));
    let set = ok("daemon set waiting=sleep");
    assert!(set.starts_with("waiting=sleep  run time"), "{set}");
    assert!(ok("daemon settings").contains("waiting=sleep  run time"));
    ok("daemon reset waiting");
    assert_eq!(ok("audit head"), daemon.ok("audit head"));
    ok("audit verify");
    let record = daemon.ok("audit show --last 1");
    assert!(
        record.contains("operator credential deploy: reset"),
        "{record}"
    );
    // A tenant's owner may none of it, and a stranger isn't known.
    for line in [
        "tenant list",
        "daemon settings",
        "audit verify",
        "audit head",
    ] {
        let refused = hosted.tollgate(&server.ca, line, None);
        assert_eq!(refused.code, 16, "{line}: {refused}");
    }
    for line in [
        "tenant list",
        "daemon settings",
        "audit verify",
        "audit head",
    ] {
        let refused = hosted.tollgate(&server.ca, line, Some(rotated.trim()));
        assert_eq!(refused.code, 7, "{line}: {refused}");
    }
    ok("tenant remove acme --yes");
    assert_eq!(daemon.ok("tenant list"), "");
}

#[test]
fn a_successor_serves_at_the_same_address() {
    let bed = Testbed::new();
    let server = Certificates::signed_by(&bed, "own");
    let (certificate, key) = (&server.certificate, &server.key);
    let at = free();
    let admin = format!("listen = '{at}'\ncertificate = {certificate:?}\nkey = {key:?}\n");
    let mut hosted = Hosted::start(&bed, &admin);
    assert_eq!(hosted.at, at);
    assert_eq!(hosted.daemon.status()["admin"], at.to_string());
    // Nobody else gets it, of whichever user.
    let words = format!("can't listen for administration on {at}: ");
    does_not_start(&bed, &admin, &words);
    let acme = hosted.daemon.tenant("acme");
    let before = hosted.client(&server.ca, Some(&acme), None).unwrap();
    before.ask(ListPoliciesRequest::default()).unwrap();
    hosted.daemon.upgrade(&program("tollgated"));
    let after = hosted.client(&server.ca, Some(&acme), None).unwrap();
    after.ask(ListPoliciesRequest::default()).unwrap();
    let gone = before.ask(ListPoliciesRequest::default()).unwrap_err();
    assert_eq!(gone.code, Code::UNAVAILABLE, "{gone}");
}

#[test]
fn a_daemon_that_cant_serve_there_says_why_and_does_not_start() {
    let bed = Testbed::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Certificates::signed_by(&bed, "own");
    let other = Certificates::signed_by(&bed, "other");
    let (certificate, key, others) = (&server.certificate, &server.key, &other.key);
    let open = bed.file("open.key", std::fs::read(key).unwrap());
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    for (admin, words) in [
        (
            format!("listen = '{}'", taken.local_addr().unwrap()),
            "can't listen for administration on 127.0.0.1:",
        ),
        ("listen = '0.0.0.0:0'".to_owned(), "in the clear"),
        (
            format!("listen = '127.0.0.1:0'\ncertificate = {certificate:?}\nkey = {others:?}"),
            "can't be used together",
        ),
        (
            format!("listen = '127.0.0.1:0'\ncertificate = {certificate:?}\nkey = {open:?}"),
            "chmod 600",
        ),
        (
            "listen = '127.0.0.1:0'\ncertificate = '/none.pem'\nkey = '/none.key'".to_owned(),
            "/none.pem: No such file",
        ),
    ] {
        does_not_start(&bed, &admin, words);
    }
}

/// Runs `tollgate` with the contexts of this directory; its exit status, and what it prints.
fn in_context(config: &Path, line: &str) -> (i32, String) {
    let mut command = Command::new(program("tollgate"));
    command.args(line.split(' ')).env("XDG_CONFIG_HOME", config);
    command.env_remove("TOLLGATE_SOCKET");
    let said = command.output().unwrap();
    let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    (said.status.code().unwrap(), text)
}

#[test]
fn an_operator_upgrades_from_elsewhere_and_names_no_program() {
    let bed = Testbed::new();
    let server = Certificates::signed_by(&bed, "own");
    // The successor is at the same address.
    let at = free();
    let (certificate, key) = (&server.certificate, &server.key);
    let admin = format!("listen = '{at}'\ncertificate = {certificate:?}\nkey = {key:?}");
    let mut hosted = Hosted::start(&bed, &admin);
    let acme = hosted.daemon.tenant("acme");
    let deploy = hosted.daemon.ok("credential add deploy --operator");
    let deploy = deploy.trim();
    let first = hosted.daemon.pid();
    // Not even a file of the daemon's host, which needn't exist on the operator's.
    for line in [
        "upgrade --binary /opt/tollgated".to_owned(),
        format!("upgrade --binary {}", program("tollgated").display()),
    ] {
        let refused = hosted.tollgate(&server.ca, &line, Some(deploy));
        assert_eq!(refused.code, 7, "{line}: {refused}");
        let named = line.rsplit(' ').next().unwrap();
        let words = format!("can't name \"{named}\": leave the program out, or upgrade as root");
        assert!(refused.err.contains(&words), "{line}: {refused}");
        let file = hosted.daemon.token_file(deploy);
        let here = format!("{line} --token-file {}", file.display());
        let refused = hosted.daemon.run(&here);
        assert_eq!(refused.code, 7, "on the host, with the token: {refused}");
    }
    hosted.daemon.follow();
    assert_eq!(hosted.daemon.pid(), first, "nothing took over");
    // By an address that is typed, and by a context.
    let done = hosted.tollgate(&server.ca, "upgrade --json", Some(deploy));
    assert_eq!(done.code, 0, "{done}");
    let done: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    hosted.daemon.follow();
    let second = hosted.daemon.pid();
    assert_ne!(second, first);
    assert_eq!(done["to"]["pid"], second, "{done}");
    let config = bed.path("config");
    let token = hosted.daemon.token_file(deploy);
    let there = |token: &Path| {
        let (ca, token) = (server.ca.display(), token.display());
        format!("--endpoint https://{at} --ca {ca} --token-file {token}")
    };
    for (name, token) in [
        ("acme", &hosted.daemon.token_file(&acme)),
        ("operator", &token),
    ] {
        let add = format!("context add {name} {}", there(token));
        assert_eq!(in_context(&config, &add), (0, String::new()));
    }
    let (code, said) = in_context(&config, "--context operator upgrade");
    assert_eq!(code, 0, "{said}");
    hosted.daemon.follow();
    let third = hosted.daemon.pid();
    assert!(![first, second].contains(&third), "{said}");
    // A context in use gives way to an address that is typed.
    let (code, said) = in_context(&config, &format!("upgrade {}", there(&token)));
    assert_eq!(code, 0, "{said}");
    hosted.daemon.follow();
    assert_ne!(hosted.daemon.pid(), third, "{said}");
    let audit = hosted.daemon.ok("audit show --last 3");
    let by_it = r#"daemon: daemon-upgrade {"by":"operator credential deploy""#;
    assert_eq!(audit.matches(by_it).count(), 3, "{audit}");
}

#[test]
fn a_context_has_the_address_and_commands_of_the_host_refuse_it() {
    let bed = Testbed::new();
    let server = Certificates::signed_by(&bed, "own");
    let hosted = Hosted::with_tls(&bed, &server, "");
    let acme = hosted.daemon.tenant("acme");
    let config = bed.path("config");
    let tollgate = |line: &str| in_context(&config, line);
    let token = hosted.daemon.token_file(&acme);
    let (ca, at) = (server.ca.display(), hosted.at);
    let add = format!(
        "context add far --endpoint https://{at} --ca {ca} --token-file {}",
        token.display()
    );
    assert_eq!(tollgate(&add), (0, String::new()));
    let (_, listed) = tollgate("context list");
    assert!(
        listed.starts_with(&format!("* far  https://{at}  ")),
        "{listed}"
    );
    let (code, listed) = tollgate("credential list");
    assert_eq!((code, &*listed), (0, "default  owner\n"));
    let (code, refused) = tollgate("upgrade");
    assert_eq!(code, 7, "{refused}");
    assert!(
        refused.contains("which may not send UpgradeDaemon"),
        "{refused}"
    );
    let (code, refused) = tollgate("check");
    assert_eq!(code, 3, "{refused}");
    assert!(
        refused.contains("works on a daemon's host only"),
        "{refused}"
    );
    let socket = hosted.daemon.socket().display();
    let (code, listed) = tollgate(&format!("--socket {socket} tenant list"));
    assert_eq!(
        (code, &*listed),
        (0, "acme\n"),
        "a socket that is named counts"
    );
}

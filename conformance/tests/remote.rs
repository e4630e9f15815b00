//! The administrative API on the network: TLS, certificates, operators' credentials, and what
//! strangers get there.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tollgate::{Code, Session, SessionOptions};
use tollgate_admin::client::{Client, Remote};
use tollgate_admin::proto::{ListCredentialsRequest, ListPoliciesRequest, ListTenantsRequest};
use tollgate_admin::{HANDSHAKE_TIME, REMOTE_CONNECTIONS_PER_NETWORK, Secret};
use tollgate_conformance::certificates::{Authority, Certificates};
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, Outcome, Testbed, run};

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
        let seen = daemon.process().said();
        let ready = seen.iter().find(|line| line.contains(" ready ")).unwrap();
        let (_, at) = ready.split_once(" admin=").unwrap();
        let at = at.trim().parse().unwrap();
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
    std::fs::copy(&second.key, &first.key).unwrap();
    ask(&hosted.client(&second.ca, Some(&acme), None).unwrap()).unwrap();
    assert!(hosted.client(&old_ca, Some(&acme), None).is_err());
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
    let (wrong, right) = (client("tg_wrong"), client(&acme));
    let slow = (0..64).find_map(|_| {
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

#[test]
fn a_successor_serves_at_the_same_address() {
    let bed = Testbed::new();
    let server = Certificates::signed_by(&bed, "own");
    let (certificate, key) = (&server.certificate, &server.key);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    let admin = format!("listen = '{at}'\ncertificate = {certificate:?}\nkey = {key:?}\n");
    let mut hosted = Hosted::start(&bed, &admin);
    assert_eq!(hosted.at, at);
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
}

#[test]
fn a_context_has_the_address_and_commands_of_the_host_refuse_it() {
    let bed = Testbed::new();
    let server = Certificates::signed_by(&bed, "own");
    let hosted = Hosted::with_tls(&bed, &server, "");
    let acme = hosted.daemon.tenant("acme");
    let config = bed.path("config");
    let tollgate = |line: &str| {
        let mut command = Command::new(program("tollgate"));
        command
            .args(line.split(' '))
            .env("XDG_CONFIG_HOME", &config);
        command.env_remove("TOLLGATE_SOCKET");
        let said = command.output().unwrap();
        let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        (said.status.code().unwrap(), text)
    };
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

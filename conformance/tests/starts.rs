//! Configurations that a daemon refuses, files that it leaves unchanged, and its warning about a
//! state that is only in memory.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tollgate::{Channel, Code, Session, SessionOptions, Status, block_on};
use tollgate_conformance::hotel::ReserveRequest;
use tollgate_conformance::hotel::reservation_client::ReservationClient;
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Options, SOON, Testbed, eventually, proto_file};

/// The output of a daemon that can't start.
fn refused(args: &[&str]) -> String {
    ended(9, args)
}

/// The output of a daemon that ends with this exit status.
fn ended(code: i32, args: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.arg("30").arg(program("tollgated")).args(args);
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(code), "{said}");
    said
}

#[test]
fn what_is_at_the_sockets_path_and_no_socket_of_a_dead_daemon_stays() {
    let bed = Testbed::new();
    let precious = bed.file("precious", "precious");
    let said = refused(&["--socket", &precious.display().to_string()]);
    assert!(
        said.contains("isn't a socket: name another path, or remove it"),
        "{said}"
    );
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    let daemon = bed.daemon("a");
    let said = refused(&["--socket", &daemon.socket().display().to_string()]);
    assert!(said.contains("another process listens there"), "{said}");
    daemon.status();
    let mistyped = bed.path("mistyped");
    let socket = mistyped.join("a.sock").display().to_string();
    let said = refused(&["--socket", &socket]);
    assert!(said.contains("there is no directory"), "{said}");
    let outcome = Command::new(program("tollgate"))
        .args(["--socket", &socket, "status"])
        .output();
    assert!(!outcome.unwrap().status.success());
    assert!(!mistyped.exists(), "neither makes it");
}

/// The sockets of command line and environment override the configuration's.
#[test]
fn up_starts_a_daemon_at_the_socket_that_was_named() {
    let bed = Testbed::new();
    let listed = bed.path("listed.sock");
    let config = bed.file("up.toml", format!("name = \"a\"\nsocket = {listed:?}\n"));
    for by_environment in [false, true] {
        let named = bed.path(&format!("named-{by_environment}.sock"));
        let mut command = Command::new(program("tollgate"));
        command.env_remove("TOLLGATE_SOCKET");
        match by_environment {
            true => command.env("TOLLGATE_SOCKET", &named),
            false => command.arg("--socket").arg(&named),
        };
        let mut daemon = command
            .arg("up")
            .arg("--config")
            .arg(&config)
            .spawn()
            .unwrap();
        let listens = eventually(SOON, || named.exists());
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        listens.unwrap();
        assert!(!listed.exists());
    }
}

/// A newcomer's first call: neither socket nor token is named. A second start finds its tenant.
#[test]
fn up_dev_starts_a_daemon_that_commands_find() {
    let bed = Testbed::new();
    let proto = proto_file("hotel.proto").display().to_string();
    let tollgate = |args: &[&str]| {
        let mut command = Command::new(program("tollgate"));
        command.args(args).env("XDG_RUNTIME_DIR", bed.path(""));
        // Empty variables count as unset.
        for name in ["TOLLGATE_SOCKET", "TOLLGATE_TOKEN", "TOLLGATE_TOKEN_FILE"] {
            command.env(name, "");
        }
        command
    };
    let directory = bed.path("tollgate");
    let mut tokens = Vec::new();
    for _start in 0..2 {
        let mut daemon = tollgate(&["up", "--dev"]).spawn().unwrap();
        let serve = ["serve", "--proto", &proto, "--service", "hotel.Reservation"];
        let mut server: Option<Child> = None;
        let call = ["call", "--proto", &proto, "hotel.Reservation/Reserve", "{}"];
        let answered = eventually(SOON, || {
            // It ends at once if no daemon answers yet.
            let serves = server.as_mut().map(|server| server.try_wait().unwrap());
            if serves != Some(None) {
                server = Some(tollgate(&serve).args(["--reply", "{}"]).spawn().unwrap());
            }
            tollgate(&call).output().unwrap().status.success()
        });
        for process in server.iter_mut().chain([&mut daemon]) {
            let _ended = process.kill();
            process.wait().unwrap();
        }
        answered.unwrap();
        tokens.push(std::fs::read_to_string(directory.join("token")).unwrap());
    }
    assert_eq!(tokens[0], tokens[1]);
    let entries = [directory.clone(), directory.join("token")];
    let modes = entries.map(|path| path.metadata().unwrap().permissions().mode() & 0o777);
    assert_eq!(modes, [0o700, 0o600]);
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = tollgate(&["up", "--dev"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(7), "{said}");
    assert!(
        said.contains("a directory of this user with mode 0700"),
        "{said}"
    );
}

/// The line that it prints is for a shell.
#[test]
fn up_dev_at_another_socket_says_how_programs_find_it() {
    let bed = Testbed::new();
    let mut daemon = Command::new(program("tollgate"));
    let daemon = daemon.args(["up", "--dev", "--socket"]).arg(bed.path("s"));
    let daemon = daemon.env("XDG_RUNTIME_DIR", bed.path(""));
    let mut daemon = daemon.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(daemon.stderr.take().unwrap()).lines();
    let mut lines = lines.map(|line| line.unwrap());
    let line = lines.find(|line| line.contains("export TOLLGATE_SOCKET="));
    let (_, exports) = line.as_ref().unwrap().split_once(": ").unwrap();
    let listens = eventually(SOON, || bed.path("s").exists());
    let (tollgate, proto) = (program("tollgate"), proto_file("hotel.proto"));
    let (tollgate, proto) = (tollgate.display(), proto.display());
    let script =
        format!("{exports}; {tollgate} call --proto {proto} hotel.Reservation/Reserve {{}}");
    let asked = Command::new("sh").args(["-c", &script]).output().unwrap();
    let _ended = daemon.kill();
    daemon.wait().unwrap();
    listens.unwrap();
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(
        said.contains("no application of tenant dev serves"),
        "{said}"
    );
}

/// A worker's priority is below the daemon's, which may be low itself.
#[test]
fn a_daemon_of_low_priority_compiles_policies() {
    let bed = Testbed::new();
    let options = Options {
        under: ["nice", "-n", "15"].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let daemon = bed.daemon_with("a", &options);
    daemon.tenant("acme");
    assert_eq!(daemon.push("--tenant acme", "null", "null", None), "null@1");
}

/// Its end doesn't remove a file that another process has put there.
#[test]
fn a_daemon_removes_its_own_socket_and_nothing_else() {
    let bed = Testbed::new();
    for replaced in [false, true] {
        let mut daemon = bed.daemon("a");
        let path = daemon.socket().to_owned();
        if replaced {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, "precious").unwrap();
        }
        let pid = daemon.pid();
        tollgate_conformance::process::signal(pid, rustix::process::Signal::TERM);
        assert!(daemon.process().ended(SOON).is_some());
        assert_eq!(path.exists(), replaced);
    }
}

#[test]
fn whoever_may_not_connect_is_told_so_once() {
    if !rustix::process::geteuid().is_root() {
        panic!("this test calls as another user, which takes root");
    }
    let bed = Testbed::new();
    std::fs::set_permissions(bed.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let proto = bed.file(
        "hotel.proto",
        std::fs::read(proto_file("hotel.proto")).unwrap(),
    );
    std::fs::set_permissions(&proto, PermissionsExt::from_mode(0o644)).unwrap();
    for (mode, words, code) in [
        ("0660", "this user may not connect to", 7),
        ("0666", "belongs to no tenant", 16),
    ] {
        let options = tollgate_conformance::testbed::Options {
            config: format!("socket_mode = {mode:?}\n"),
            ..Default::default()
        };
        let daemon = bed.daemon_with("a", &options);
        let mut command = Command::new("setpriv");
        command.args("--reuid 65533 --regid 65533 --clear-groups".split(' '));
        command
            .arg(program("tollgate"))
            .arg("--socket")
            .arg(daemon.socket());
        command
            .args(["call", "--token", "x", "--proto"])
            .arg(&proto);
        let ended = command.args(["hotel.Reservation/Reserve", "{}"]).output();
        let ended = ended.unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains(words), "{mode}: {said}");
        assert_eq!(ended.status.code(), Some(code), "{mode}: {said}");
        assert!(!said.contains("tollgate up"), "{mode}: {said}");
        assert!(!said.contains("no daemon answers"), "{mode}: {said}");
    }
    let gone = bed.path("gone.sock");
    let ended = Command::new(program("tollgate"))
        .arg("--socket")
        .arg(&gone)
        .args(["call", "--token", "x", "--proto"])
        .arg(&proto)
        .args(["hotel.Reservation/Reserve", "{}"])
        .output();
    let said = String::from_utf8(ended.unwrap().stderr).unwrap();
    assert_eq!(said.matches("no daemon answers").count(), 1, "{said}");
}

#[test]
fn a_state_directory_that_others_can_write_is_refused() {
    let bed = Testbed::new();
    let state = bed.path("state");
    std::fs::create_dir(&state).unwrap();
    let socket = bed.path("a.sock").display().to_string();
    for mode in [0o770, 0o757] {
        std::fs::set_permissions(&state, PermissionsExt::from_mode(mode)).unwrap();
        let said = refused(&["--socket", &socket, "--state", &state.display().to_string()]);
        let sentence = format!("other users may write there (mode {mode:04o})");
        assert!(
            said.contains(&sentence) && said.contains("chmod 0700"),
            "{said}"
        );
    }
    assert_eq!(
        std::fs::read_dir(&state).unwrap().count(),
        0,
        "nothing is made in it"
    );
}

/// Another user that may write to a directory above can put another directory in its place.
#[test]
fn a_state_directory_that_others_can_replace_is_refused() {
    let bed = Testbed::new();
    let above = bed.path("above");
    let state = above.join("state");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::set_permissions(&above, PermissionsExt::from_mode(0o777)).unwrap();
    let socket = bed.path("a.sock").display().to_string();
    for state in [state.clone(), above.join("not/yet")] {
        let said = refused(&["--socket", &socket, "--state", &state.display().to_string()]);
        let sentence = format!("chmod go-w {}", above.display());
        assert!(
            said.contains("may replace it") && said.contains(&sentence),
            "{said}"
        );
    }
    assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0);
}

/// A key, a token or a header that stands where a path is expected, or under a misspelt name. The
/// exit statuses are those of docs/src/reference/exit-codes.md: 3 for a wrong configuration, 5 for
/// a missing file.
#[test]
fn secrets_in_the_wrong_place_are_not_said() {
    const SECRET: &str = "MvssP8EZ0123456789abcdef";
    let bed = Testbed::new();
    let socket = bed.path("a.sock").display().to_string();
    let token = format!("tg_{}", "0123456789abcdef".repeat(4));
    let file = |text: String| bed.file("tollgated.toml", text).display().to_string();
    let said = ended(5, &["--psk-file", SECRET, "--socket", &socket]);
    assert!(
        !said.contains(SECRET) && said.contains("psk_file"),
        "{said}"
    );
    let headers = "[telemetry]\nendpoint = \"http://a:1\"\nheaders_file";
    for (code, key) in [(5, "psk_file"), (3, "psk"), (3, "psk_fil"), (9, headers)] {
        let config = file(format!("{key} = \"{SECRET}\""));
        let said = ended(code, &["--config", &config, "--socket", &socket]);
        assert!(!said.contains(SECRET), "{said}");
    }
    for (code, option) in [
        (3, "--name"),
        (3, "--listen"),
        (3, "--peer"),
        (5, "--config"),
    ] {
        let said = ended(code, &[option, &token, "--socket", &socket]);
        assert!(
            !said.contains(&token) && said.contains("tg_(hidden)"),
            "{said}"
        );
    }
}

#[test]
fn a_file_that_is_missing_has_its_exit_status() {
    for words in [
        &["--config", "/nonexistent.toml"][..],
        &["verify-audit", "--file", "/nonexistent"],
        &["verify-audit", "--state", "/nonexistent"],
    ] {
        let said = ended(5, words);
        assert!(said.contains("NOT_FOUND"), "{said}");
    }
}

async fn book(client: &ReservationClient) -> Result<(), Status> {
    client.reserve(ReserveRequest::default()).await.map(drop)
}

/// An application that outlives a daemon without a state directory has an unknown token.
#[test]
fn after_a_restart_that_forgot_its_tenants_the_log_and_the_applications_say_so() {
    let bed = Testbed::new();
    let mut daemon = bed.daemon("a");
    let memory_only = "there is no state directory (--state)";
    daemon
        .process()
        .line(SOON, |line| line.contains(memory_only))
        .unwrap();
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, "hotel.Reservation", &["--reply", "{}"]);
    let session = Session::open(SessionOptions::new(daemon.socket(), &token)).unwrap();
    let client = ReservationClient::new(Channel::new(&session, ""));
    block_on(&session, book(&client)).unwrap();
    daemon.process().kill();
    let mut daemon = bed.daemon("a");
    let forgotten = "which keeps no state (it runs without --state) and was started at 2";
    let began = Instant::now();
    let status = loop {
        let status = block_on(&session, book(&client)).unwrap_err();
        if status.code == Code::UNAUTHENTICATED {
            break status;
        }
        assert_eq!(status.code, Code::UNAVAILABLE, "{status}");
        assert!(began.elapsed() < SOON, "{status}");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(
        status.message.contains("can't reconnect the session"),
        "{status}"
    );
    assert!(status.message.contains(forgotten), "{status}");
    let line = daemon.process().line(SOON, |line| line.contains(forgotten));
    let line = line.unwrap();
    assert!(line.contains("was rejected"), "{line}");
    // A daemon with stored state doesn't report that.
    let options = tollgate_conformance::testbed::Options {
        durable: true,
        ..Default::default()
    };
    let durable = bed.daemon_with("b", &options);
    let refused = Session::open(SessionOptions::new(durable.socket(), &token)).unwrap_err();
    assert!(
        refused.message.contains(
            "belongs to no tenant of this daemon, or was rotated or revoked, or has expired:"
        ),
        "{refused}"
    );
}

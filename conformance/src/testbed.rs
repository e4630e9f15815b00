//! Real daemons in a temporary directory, and the real command line against them.
//!
//! ```no_run
//! # use tollgate_conformance::testbed::Testbed;
//! let bed = Testbed::new();
//! let (a, b) = (bed.daemon("a"), bed.daemon("b"));
//! let token = a.tenant("acme");
//! let outcome = a.tollgate(["status", "--json"]);
//! assert_eq!(outcome.code, 0, "{outcome}");
//! ```
//!
//! All of this panics with a message if the bed itself can't be made (a program isn't built, a
//! daemon doesn't start): then a test has nothing to check.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::ports::free;
use crate::process::{Process, program, programs, signal};

/// The time limit for imminent events on a loaded machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A temporary directory with daemons in it.
#[derive(Debug)]
pub struct Testbed {
    directory: TempDir,
}

/// A daemon's differences from the default one.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// The key of links. Default: none, and every loopback peer is accepted.
    pub psk: Option<String>,
    /// The targets that its applications may name. Default: any.
    pub peers: Option<Vec<String>>,
    /// Without a key, whether it accepts no peers at all, like a daemon without configuration.
    /// Default: no.
    pub alone: bool,
    /// The cores of its runtimes, such as `0,1`. Default: the daemon's own.
    pub cores: Option<String>,
    /// The address that it listens at. Default: a free port of 127.0.0.1.
    pub listen: Option<SocketAddr>,
    /// Whether it keeps its state on disk. Default: no.
    pub durable: bool,
    /// The process whose network namespace it uses, which needs root. Default: this one's.
    pub network: Option<u32>,
    /// Further contents of its configuration file, such as a table `[policies]`. Default: none, and
    /// no file.
    pub config: String,
    /// The command that runs it, such as valgrind with its options. Default: none.
    pub under: Vec<String>,
}

impl Options {
    /// A runtime on each of these cores, such as `0,1`.
    pub fn on_cores(cores: &str) -> Options {
        Options {
            cores: Some(cores.to_owned()),
            ..Options::default()
        }
    }
}

/// A running `tollgated`.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    socket: PathBuf,
    listen: SocketAddr,
    process: Process,
    /// The process that has taken over, directly or indirectly, from `process`.
    successor: Option<u32>,
}

/// The result of a finished command.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit status; 128 plus the signal's number if a signal ended it.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Testbed {
    /// An empty bed. Deleted when dropped.
    pub fn new() -> Testbed {
        let directory =
            TempDir::with_prefix("tollgate-").expect("a temporary directory can be made");
        Testbed { directory }
    }

    /// A path inside of the bed.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file into the bed.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("the bed can be written");
        path
    }

    /// Writes a file that no other user may read.
    pub fn secret(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name, content);
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))
            .expect("its owner may change it");
        path
    }

    /// A program that may replace a daemon, such as `tollgated` with or without arguments. It ends
    /// with this process, like all others.
    pub fn successor(&self, name: &str, program: &str) -> PathBuf {
        let pid = std::process::id();
        let script = format!(
            "#!/bin/sh\n(while kill -0 {pid} && kill -0 $$; do sleep 0.2; done; kill -9 $$) </dev/null >/dev/null 2>&1 &\nexec {program} \"$@\"\n"
        );
        self.executable(name, &script)
    }

    /// A script. A shell writes it: a process that another thread starts meanwhile would inherit
    /// this process's open file, and the kernel starts no program that somebody may still write.
    pub fn executable(&self, name: &str, script: &str) -> PathBuf {
        let path = self.path(name);
        let written = Command::new("sh")
            .args(["-c", r#"printf %s "$1" >"$0" && chmod 755 "$0""#])
            .arg(&path)
            .arg(script)
            .status();
        assert!(written.expect("there is a shell").success());
        path
    }

    /// Starts a daemon with the default options and waits until it serves.
    pub fn daemon(&self, name: &str) -> Daemon {
        self.daemon_with(name, &Options::default())
    }

    /// Starts a daemon and waits until it serves.
    pub fn daemon_with(&self, name: &str, options: &Options) -> Daemon {
        let socket = self.path(&format!("{name}.sock"));
        let listen = options.listen.unwrap_or_else(free).to_string();
        let mut args = vec![
            "--name".to_owned(),
            name.to_owned(),
            "--listen".to_owned(),
            listen,
        ];
        args.extend(["--socket".to_owned(), socket.display().to_string()]);
        if options.durable {
            args.extend([
                "--state".to_owned(),
                self.path(&format!("{name}.state")).display().to_string(),
            ]);
        }
        match &options.psk {
            Some(psk) => {
                let file = self.secret(&format!("{name}.psk"), psk);
                args.extend(["--psk-file".to_owned(), file.display().to_string()]);
            }
            None if options.alone => {}
            None => args.push("--unauthenticated-loopback".to_owned()),
        }
        match &options.peers {
            Some(peers) => {
                let peers = peers.iter().map(|peer| format!("--peer={peer}"));
                args.extend(peers);
            }
            None => args.push("--open-targets".to_owned()),
        }
        if let Some(cores) = &options.cores {
            args.extend(["--cores".to_owned(), cores.clone()]);
        }
        let config = everywhere_apart(&options.config);
        if !config.is_empty() {
            let file = self.file(&format!("{name}.toml"), config);
            args.extend(["--config".to_owned(), file.display().to_string()]);
        }
        let mut command = options.under.clone();
        if let Some(pid) = options.network {
            let enter = ["nsenter", "--net", "--target", &pid.to_string()];
            command.extend(enter.map(str::to_owned));
        }
        command.push(program("tollgated").display().to_string());
        command.extend(args);
        let process = Process::start(Path::new(&command[0]), &command[1..]);
        Daemon::ready(process.expect("tollgated can be started"))
    }
}

/// Makes every daemon run tenants' policies in their own processes if the environment has
/// `TOLLGATE_ISOLATION=process`: tests must hold there as well.
fn everywhere_apart(config: &str) -> String {
    match std::env::var("TOLLGATE_ISOLATION") {
        Ok(isolation) if config.contains("[policies]") => {
            let table = format!("[policies]\nisolation = {isolation:?}");
            config.replace("[policies]", &table)
        }
        Ok(isolation) => format!("{config}\n[policies]\nisolation = {isolation:?}\n"),
        Err(_) => config.to_owned(),
    }
}

impl Default for Testbed {
    fn default() -> Self {
        Testbed::new()
    }
}

impl Daemon {
    /// Waits for the line with which a started daemon reports that it serves: `tollgated a ready
    /// socket=PATH listen=IP:PORT`.
    pub fn ready(process: Process) -> Daemon {
        let is_ready = |line: &str| line.starts_with("tollgated ") && line.contains(" ready ");
        let line = process
            .line(SOON, is_ready)
            .unwrap_or_else(|error| panic!("no daemon: {error}"));
        let value = |key: &str| {
            let word = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix(key));
            word.unwrap_or_else(|| panic!("the ready line lacks {key}: {line}"))
                .to_owned()
        };
        let listen = value("listen=")
            .parse()
            .unwrap_or_else(|_| panic!("no address in: {line}"));
        let name = line
            .split_whitespace()
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        Daemon {
            name,
            socket: value("socket=").into(),
            listen,
            process,
            successor: None,
        }
    }

    /// Replaces it by this program.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn upgrade(&mut self, program: &Path) -> Value {
        let done = self.ok(&format!("upgrade --binary {} --json", program.display()));
        let done: Value = serde_json::from_str(&done).expect("it prints JSON");
        self.follow();
        done
    }

    /// Finds the daemon's current process.
    ///
    /// # Panics
    /// If there is none.
    pub fn follow(&mut self) {
        let pid = self.status()["pid"].as_u64();
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        let pid = pid.expect("a process has a number");
        self.successor = (pid != self.process.pid()).then_some(pid);
    }

    /// The address of its administrative API on the network.
    ///
    /// # Panics
    /// If its configuration has none.
    pub fn admin_address(&mut self) -> SocketAddr {
        let said = self.process.said();
        let at = said.iter().find_map(|line| {
            let (_, at) = line.split_once(" admin=")?;
            at.trim().parse().ok()
        });
        at.expect("its API is on the network")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.successor.unwrap_or_else(|| self.process.pid())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of its socket for apps and administration.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The address for its peers.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// The process itself.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Runs `tollgate --socket … ARGS` to its end.
    pub fn tollgate<I, S>(&self, args: I) -> Outcome
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        run(&program("tollgate"), self.arguments(args), b"")
    }

    /// Starts `tollgate --socket … ARGS` and lets it run.
    pub fn start<I, S>(&self, args: I) -> Process
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        Process::start(&program("tollgate"), self.arguments(args)).expect("tollgate can be started")
    }

    /// Starts `tollgate serve ARGS` and waits until it serves.
    pub fn serve<I, S>(&self, args: I) -> Process
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        let process = self.start(std::iter::once("serve".into()).chain(args));
        process
            .line(SOON, |line| line.starts_with("serving "))
            .unwrap_or_else(|error| panic!("{error}"));
        process
    }

    /// Runs a line of the command line, split at spaces.
    pub fn run(&self, line: &str) -> Outcome {
        self.tollgate(line.split(' '))
    }

    /// Runs a command that must succeed; returns its output.
    ///
    /// # Panics
    /// If it fails; the message has its output.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        let outcome = self.run(line);
        assert_eq!(outcome.code, 0, "{line}: {outcome}");
        outcome.out
    }

    /// Pushes a policy of `policies-wasm` for an owner (`--tenant NAME`, `--provider`) under a
    /// name; returns `NAME@VERSION`.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn push(&self, owner: &str, policy: &str, name: &str, config: Option<&Path>) -> String {
        let file = policy_file(policy);
        let mut line = format!("policy push {} {owner} --name {name}", file.display());
        if let Some(config) = config {
            line.push_str(&format!(" --config {}", config.display()));
        }
        self.ok(&line).trim().to_owned()
    }

    /// Serves a service of `hotel.proto` for a tenant; further arguments select the answers, such
    /// as `--echo`.
    ///
    /// # Panics
    /// If it doesn't start serving.
    pub fn serve_hotel(&self, token: &str, service: &str, answer: &[&str]) -> Process {
        let proto = proto_file("hotel.proto").display().to_string();
        let args = ["--token", token, "--proto", &proto, "--service", service];
        self.serve(args.iter().chain(answer))
    }

    /// Calls a method of `hotel.proto`; `to` is the peer's address, empty for this host.
    pub fn call_hotel(&self, token: &str, to: &str, method: &str, request: &str) -> Outcome {
        let proto = proto_file("hotel.proto").display().to_string();
        let mut args = vec!["call", "--token", token, "--proto", &proto];
        if !to.is_empty() {
            args.extend(["--to", to]);
        }
        args.extend([method, request]);
        self.tollgate(args)
    }

    /// The only attachment of a policy, from `status --json`.
    ///
    /// # Panics
    /// If there isn't exactly one.
    #[track_caller]
    pub fn attachment(&self, policy: &str) -> Value {
        let status = self.status();
        let all = status["attachments"].as_array();
        let of_it = all.into_iter().flatten().filter(|a| a["policy"] == policy);
        let of_it: Vec<_> = of_it.collect();
        assert_eq!(of_it.len(), 1, "attachments of {policy} in {status}");
        of_it[0].clone()
    }

    /// Creates a tenant; returns its token.
    pub fn tenant(&self, name: &str) -> String {
        let outcome = self.tollgate(["tenant", "add", name]);
        assert_eq!(outcome.code, 0, "tenant add {name}: {outcome}");
        outcome.out.trim().to_owned()
    }

    /// The output of `status --json`.
    pub fn status(&self) -> Value {
        let outcome = self.tollgate(["status", "--json"]);
        assert_eq!(outcome.code, 0, "status: {outcome}");
        serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error} in: {outcome}"))
    }

    /// The daemon's resources, as the kernel counts them.
    pub fn footprint(&self) -> Footprint {
        Footprint::of(self.pid())
    }

    fn arguments<I, S>(&self, args: I) -> Vec<std::ffi::OsString>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let socket = ["--socket".into(), self.socket.clone().into_os_string()];
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
        let mut all: Vec<_> = socket.into_iter().chain(args).collect();
        // Tests give the token as an argument; programs read it from a file, since every user of
        // the host can read a command line.
        if let Some(at) = all.iter().position(|arg| arg == "--token")
            && let Some(token) = all.get(at + 1).and_then(|token| token.to_str())
            && !token.is_empty()
        {
            let file = self.token_file(token);
            all[at] = "--token-file".into();
            all[at + 1] = file.into_os_string();
        }
        all
    }

    /// A file with a token, next to the daemon's socket.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn token_file(&self, token: &str) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        token.hash(&mut hasher);
        let name = format!("{:016x}.token", hasher.finish());
        let path = self.socket.with_file_name(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(token.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The original process is a child of this process, and is ended separately.
        if let Some(successor) = self.successor {
            signal(successor, Signal::KILL);
        }
    }
}

/// A process's resources, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Open file descriptors that are memfds.
    pub memfds: usize,
    /// Memory mappings.
    pub mappings: usize,
    /// Memory mappings of sessions' segments.
    pub segments: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Address space.
    pub address_space_bytes: u64,
}

impl Footprint {
    /// Counts the process's resources; all zero once it is gone.
    pub fn of(pid: u32) -> Footprint {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let text = |name: &str| std::fs::read_to_string(proc.join(name)).unwrap_or_default();
        let entries = |name: &str| {
            std::fs::read_dir(proc.join(name))
                .into_iter()
                .flatten()
                .flatten()
        };
        let links: Vec<_> = entries("fd")
            .flat_map(|entry| std::fs::read_link(entry.path()))
            .collect();
        let is_memfd = |link: &PathBuf| link.to_string_lossy().starts_with("/memfd:");
        let maps = text("maps");
        // The names of `shm-abi`'s memfds; a policy's memory image is a memfd, too.
        let names = ["/memfd:rings", "/memfd:send heap", "/memfd:receive heap"];
        let is_segment = |line: &str| names.iter().any(|name| line.contains(name));
        let pages: Vec<u64> = text("statm")
            .split_whitespace()
            .flat_map(str::parse)
            .collect();
        let page = rustix::param::page_size() as u64;
        Footprint {
            descriptors: links.len(),
            memfds: links.iter().filter(|link| is_memfd(link)).count(),
            mappings: maps.lines().count(),
            segments: maps.lines().filter(|line| is_segment(line)).count(),
            threads: entries("task").count(),
            resident_bytes: pages.get(1).map_or(0, |pages| pages * page),
            address_space_bytes: pages.first().map_or(0, |pages| pages * page),
        }
    }
}

impl Outcome {
    /// Whether a policy's process was killed because it answered too late. A machine that stalls
    /// causes this, too.
    pub fn is_late(&self) -> bool {
        self.err.contains("it was killed: it has not answered for")
    }

    /// Whether the tenant's account was overdrawn: the tenant pays for the time in which a policy's
    /// process stands still.
    pub fn is_throttled(&self) -> bool {
        self.err.contains("has used up its CPU share for policies")
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "exit status {}\n-- out\n{}\n-- err\n{}",
            self.code, self.out, self.err
        )
    }
}

/// Runs a command; returns its output.
///
/// # Panics
/// If it can't be run, or fails.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        panic!("{program} can't be run: {error}")
    });
    let [out, err] =
        [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}\n{err}",
        output.status
    );
    out
}

/// Generates stubs in a language.
///
/// If that fails.
/// If that fails.
pub fn stubs(language: &str, protos: &[PathBuf], out: &Path) {
    let mut tollgate = Command::new(program("tollgate"));
    tollgate.args(["gen", "--lang", language, "--out"]).arg(out);
    succeed(tollgate.args(protos));
}

/// Runs a program to its end with `input` on its standard input.
pub fn run<I, S>(program: &Path, args: I, input: &[u8]) -> Outcome
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    use std::os::unix::process::ExitStatusExt;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    // A program that doesn't read its input may close the pipe.
    let _unread = stdin.write_all(input);
    drop(stdin);
    let output = child
        .wait_with_output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let code = output
        .status
        .code()
        .or_else(|| output.status.signal().map(|signal| 128 + signal));
    Outcome {
        code: code.unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Waits until `condition` holds.
///
/// # Errors
/// The time that passed without success.
pub fn eventually(
    timeout: Duration,
    mut condition: impl FnMut() -> bool,
) -> Result<Duration, Duration> {
    let begin = Instant::now();
    while !condition() {
        if begin.elapsed() >= timeout {
            return Err(begin.elapsed());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(begin.elapsed())
}

/// The number of repetitions: from an environment variable, otherwise short.
///
/// # Panics
/// If the variable isn't a number.
pub fn times(variable: &str, short: u64) -> u64 {
    let asked = std::env::var(variable).ok();
    asked.map_or(short, |times| match times.parse() {
        Ok(times) => times,
        Err(error) => panic!("{variable} is {times:?}: {error}"),
    })
}

/// A policy of `policies-wasm`, compiled to Wasm. The suites' `acl` is `hotel-acl`, which names its
/// method and its field in its manifest, as the policies of most tenants do.
///
/// # Panics
/// If it isn't built, with the command that builds it.
pub fn policy_file(name: &str) -> PathBuf {
    match name {
        "acl" => catalogue_file("hotel_acl"),
        name => catalogue_file(name),
    }
}

/// A policy of `policies-wasm` by its own name.
///
/// # Panics
/// If it isn't built, with the command that builds it.
pub fn catalogue_file(name: &str) -> PathBuf {
    let build = "cargo build --profile policy --target wasm32-unknown-unknown -p policy-";
    built(
        "wasm32-unknown-unknown/policy",
        name,
        &format!("{build}{name}"),
    )
}

/// A policy in another language than Rust, compiled to Wasm: `c/witness`,
/// `assemblyscript/room_limit`.
///
/// # Panics
/// If it isn't built, with the command that builds it.
pub fn guest_file(name: &str) -> PathBuf {
    let build = ". .ci/lib.sh; build_guests";
    built(
        "guests",
        name,
        &format!("{build} (it needs clang, lld, Node.js and Go)"),
    )
}

/// A third party's module: a filter for Envoy, a policy of OPA.
///
/// # Panics
/// If it isn't built, with the command that builds it.
pub fn foreign_file(name: &str) -> PathBuf {
    built("foreign", name, ".ci/foreign")
}

/// A module in a directory below the target directory, if its build script has run.
fn built(directory: &str, name: &str, build: &str) -> PathBuf {
    let programs = programs();
    let target = programs.parent().unwrap_or(&programs);
    let path = target.join(directory).join(format!("{name}.wasm"));
    let shown = path.display();
    assert!(path.exists(), "{shown} isn't built; run first: {build}");
    path
}

/// gRPC's health service.
pub fn health_proto() -> PathBuf {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client-libs/rust/health/proto");
    protos.join("grpc/health/v1/health.proto")
}

/// A file of `conformance/proto`.
pub fn proto_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("proto")
        .join(name)
}

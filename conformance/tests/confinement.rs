//! The privileges that the daemon and its child processes have dropped, however the daemon was
//! started; and the systemd unit, whose command line serves applications of other users.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tollgate_conformance::bombs::largest;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, proto_file, succeed};

/// The user of a root daemon's processes, unless one is configured.
const RESERVED: u32 = tollgate_policy_host::RESERVED_ID;
/// The user of services without their own. A daemon may run as this user.
const NOBODY: u32 = 65_534;
/// Another user, unrelated to the daemon.
const STRANGER: u32 = 65_533;
/// A user that a configuration names.
const POLICIES: u32 = 65_532;

/// A file that only root can read.
const SYS_ADMIN: u64 = 1 << 21;
const SYS_PTRACE: u64 = 1 << 19;
const SETUID: u64 = 1 << 7;

/// A process's state, from the kernel.
#[derive(Debug)]
struct Kept {
    fields: BTreeMap<String, String>,
    descriptors: Vec<String>,
}

impl Kept {
    /// `None` if the process is gone.
    fn of(pid: u32) -> Option<Kept> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let fields = status.lines().filter_map(|line| line.split_once(':'));
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let link = |entry: std::io::Result<std::fs::DirEntry>| {
            let link = std::fs::read_link(entry.ok()?.path()).ok()?;
            Some(link.display().to_string())
        };
        Some(Kept {
            fields: fields
                .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
                .collect(),
            descriptors: descriptors.filter_map(link).collect(),
        })
    }

    fn number(&self, field: &str) -> u64 {
        self.fields[field].parse().unwrap()
    }

    fn capabilities(&self, field: &str) -> u64 {
        u64::from_str_radix(&self.fields[field], 16).unwrap()
    }

    /// The real, effective, saved and file system ids: all equal.
    fn user(&self) -> u32 {
        let mut all = self.fields["Uid"].split_whitespace();
        let first = all.next().unwrap();
        assert!(all.all(|other| other == first), "{self:?}");
        first.parse().unwrap()
    }

    /// Conditions for all processes.
    fn assert_confined(&self) {
        assert_eq!(self.number("NoNewPrivs"), 1, "{self:?}");
        assert_eq!(self.number("Seccomp"), 2, "filtered: {self:?}");
        for descriptor in &self.descriptors {
            assert!(!descriptor.contains(LEFT_OPEN), "{self:?}");
        }
    }

    /// Conditions for processes that execute tenants' code.
    fn assert_powerless(&self, user: u32, filters: u64) {
        self.assert_confined();
        assert_eq!(self.number("Seccomp_filters"), filters, "{self:?}");
        assert_eq!(self.user(), user, "{self:?}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(self.capabilities(set), 0, "{set}: {self:?}");
        }
        let is_meant = |descriptor: &String| {
            let kinds = ["/memfd:", "socket:", "anon_inode:"];
            kinds.iter().any(|kind| descriptor.starts_with(kind))
        };
        assert!(self.descriptors.iter().all(is_meant), "{self:?}");
    }
}

/// A file that the daemon's parent leaves open.
const LEFT_OPEN: &str = "left-open";

/// A daemon of an ordinary user, with a policy in its own process, from a shell that leaves a
/// descriptor open.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    user: u32,
}

impl Host {
    fn of(user: u32, policies: Option<u32>) -> Host {
        let bed = Testbed::new();
        let left_open = bed.file(LEFT_OPEN, "secret");
        chown(left_open.parent().unwrap(), Some(user), None).unwrap();
        let script = format!("exec 9<{}; exec \"$@\"", left_open.display());
        let mut under: Vec<String> = ["sh", "-c", &script, "sh"].map(str::to_owned).into();
        if user != 0 {
            let line = format!("setpriv --reuid {user} --regid {user} --clear-groups");
            under.extend(line.split(' ').map(str::to_owned));
        }
        let options = Options {
            durable: true,
            under,
            config: policies.map_or_else(String::new, |user| {
                format!("[policies]\nuser = \"{user}\"\n")
            }),
            ..Options::default()
        };
        let daemon = bed.daemon_with("a", &options);
        Host { bed, daemon, user }
    }

    /// Children of the daemon whose command line has this word.
    fn children(&self, word: &str) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.daemon.pid())).unwrap();
        let lists = tasks.flatten().filter_map(|task| {
            let children = std::fs::read_to_string(task.path().join("children"));
            children.ok()
        });
        let all: Vec<u32> = lists
            .flat_map(|list| {
                let pids = list.split_whitespace().map(|pid| pid.parse().unwrap());
                pids.collect::<Vec<_>>()
            })
            .collect();
        let has_word = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(word)
        };
        all.into_iter().filter(has_word).collect()
    }

    /// A compile worker that has received the module, which takes some time.
    fn worker(&self) -> Kept {
        let module = self.bed.file("module.wasm", largest(1).wasm);
        let file = module.display().to_string();
        let push = ["policy", "push", &file, "--tenant", "acme", "--name", "big"];
        let _pushing = self.daemon.start(push);
        let began = Instant::now();
        while began.elapsed() < SOON {
            for pid in self.children("compile-worker") {
                // It confines itself at its start: it has one filter more than the daemon.
                if let Some(kept) = Kept::of(pid)
                    && kept.number("Seccomp_filters") >= 2
                    && kept.fields.contains_key("VmRSS")
                {
                    return kept;
                }
            }
        }
        panic!("no worker was seen");
    }
}

fn assert_root() {
    let is_root = rustix::process::geteuid().is_root();
    assert!(
        is_root,
        "this test starts daemons as other users, which takes root"
    );
}

/// Whether a user's process may send signals to a process.
fn may_signal(user: u32, pid: u32) -> bool {
    let line = format!("setpriv --reuid {user} --regid {user} --clear-groups kill -0 {pid}");
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).stderr(Stdio::null());
    command.status().unwrap().success()
}

/// As root, as root with a user for its processes, and as a user without capabilities.
#[test]
fn the_daemon_its_workers_and_policy_processes_have_what_they_need_and_no_more() {
    assert_root();
    for (user, configured, expected) in [
        (0, None, RESERVED),
        (0, Some(POLICIES), POLICIES),
        (NOBODY, None, NOBODY),
    ] {
        let mut host = Host::of(user, configured);
        let kept = Kept::of(host.daemon.pid()).unwrap();
        kept_by_the_daemon(&host, &kept);
        let token = host.daemon.tenant("acme");
        host.worker().assert_powerless(expected, 2);
        let config = host.bed.file("acl.json", r#"{"blocked": ["Mallory"]}"#);
        host.daemon
            .push("--tenant acme", "acl", "acl", Some(&config));
        host.daemon.ok(
            "policy attach acl@1 --tenant acme --service hotel.Reservation --side client --isolation process",
        );
        let service = "hotel.Reservation";
        let _server = host.daemon.serve_hotel(&token, service, &["--reply", "{}"]);
        let called = host
            .daemon
            .call_hotel(&token, "", "hotel.Reservation/Reserve", "{}");
        assert_eq!(called.code, 0, "{called}");
        let running = host.daemon.status()["processes"]["running"].clone();
        let pid = running[0]["pid"].as_u64().expect("a process");
        let pid = u32::try_from(pid).unwrap();
        let policy = Kept::of(pid).unwrap();
        policy.assert_powerless(expected, 3);
        assert!(may_signal(expected, pid));
        assert_eq!(may_signal(NOBODY, pid), user == NOBODY);
        assert!(!may_signal(STRANGER, pid));
        // Three of its own, five of shared memory, of which it keeps two, and one to wait with.
        assert!(policy.descriptors.len() <= 8, "{policy:?}");
        // A successor has the same privileges, and the filters don't accumulate.
        // Itself: a program of the bed checks whether this test is alive, which only its own user
        // may do.
        host.daemon.upgrade(&program("tollgated"));
        let kept = Kept::of(host.daemon.pid()).unwrap();
        kept_by_the_daemon(&host, &kept);
        kept.assert_confined();
    }
}

fn kept_by_the_daemon(host: &Host, kept: &Kept) {
    let (pid, user) = (host.daemon.pid(), host.user);
    assert_eq!(kept.number("NoNewPrivs"), 1, "{kept:?}");
    assert_eq!(kept.number("Seccomp"), 2, "{kept:?}");
    assert_eq!(kept.number("Seccomp_filters"), 1, "{kept:?}");
    assert_eq!(kept.user(), user, "{kept:?}");
    let effective = kept.capabilities("CapEff");
    assert_eq!(effective & (SYS_ADMIN | SYS_PTRACE), 0, "{kept:?}");
    // It needs that to change the user of its processes.
    assert_eq!(effective & SETUID != 0, user == 0, "{kept:?}");
    if user == 0 {
        let bounding = kept.capabilities("CapBnd");
        assert_eq!(bounding & (SYS_ADMIN | SYS_PTRACE), 0, "{kept:?}");
    } else {
        assert_eq!(effective, 0, "{kept:?}");
        // The files in /proc of a process that may be inspected belong to its user.
        let environ = std::fs::metadata(format!("/proc/{pid}/environ")).unwrap();
        assert_eq!(environ.uid(), 0, "it can be looked into");
        let look =
            format!("setpriv --reuid {user} --regid {user} --clear-groups cat /proc/{pid}/environ");
        let mut words = look.split(' ');
        let looked = Command::new(words.next().unwrap()).args(words).output();
        assert!(
            !looked.unwrap().status.success(),
            "its own user looks into it"
        );
    }
}

/// A user namespace shows the overflow user for every unmapped user.
#[test]
fn in_a_user_namespace_users_that_it_does_not_map_administer_nothing() {
    assert_root();
    let mapped = |user: u32| {
        let line = format!(
            "setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups unshare --user --map-user {user} --"
        );
        line.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let probe = mapped(NOBODY);
    let probe = Command::new(&probe[0])
        .args(&probe[1..])
        .arg("true")
        .output();
    if !probe.unwrap().status.success() {
        eprintln!("SKIPPED: this system doesn't let a user make a user namespace");
        return;
    }
    for (user, is_own) in [(NOBODY, false), (1_000, true)] {
        let bed = Testbed::new();
        std::fs::set_permissions(bed.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        chown(bed.path(""), Some(STRANGER), None).unwrap();
        let options = Options {
            under: mapped(user),
            ..Options::default()
        };
        let daemon = bed.daemon_with("a", &options);
        let add = |by: u32| {
            let mut command = Command::new("setpriv");
            let line = format!("--reuid {by} --regid {by} --clear-groups");
            command.args(line.split(' ')).arg(program("tollgate"));
            command.args(["--socket", &daemon.socket().display().to_string()]);
            command.args(["tenant", "add", &format!("t{by}")]);
            command.output().unwrap()
        };
        let refused = add(NOBODY);
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(words.contains("may not administer"), "{words}");
        assert_eq!(add(STRANGER).status.success(), is_own, "{user}");
    }
}

// ---- the unit ----

fn unit(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../service/daemon/systemd");
    directory.join(name)
}

/// The values of a key of the unit, in order.
fn said(unit: &str, key: &str) -> Vec<String> {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    let of_key = lines.filter(|(its, _)| *its == key);
    of_key.map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn the_unit_leaves_the_daemon_little_also_with_each_of_its_drop_ins() {
    let text = std::fs::read_to_string(unit("tollgated.service")).unwrap();
    // An existing path; nothing is executed.
    let text = text.replace(
        "/usr/local/bin/tollgated",
        &program("tollgated").display().to_string(),
    );
    for drop_in in [
        None,
        Some("rdma.conf"),
        Some("group.conf"),
        Some("low-port.conf"),
    ] {
        let bed = Testbed::new();
        let service = bed.file("tollgated.service", &text);
        if let Some(drop_in) = drop_in {
            std::fs::create_dir(bed.path("tollgated.service.d")).unwrap();
            let content = std::fs::read(unit(drop_in)).unwrap();
            bed.file(&format!("tollgated.service.d/{drop_in}"), content);
        }
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--offline=true", "--no-pager"]);
        let found = succeed(analyze.arg(&service));
        let overall = found
            .lines()
            .find(|line| line.contains("Overall exposure level"));
        let overall = overall.unwrap_or_else(|| panic!("no level in {found}"));
        let level = overall.split(": ").nth(1).unwrap();
        let level: f32 = level.split(' ').next().unwrap().parse().unwrap();
        assert!(level <= 2.0, "{drop_in:?}: {found}");
    }
}

/// The directories, the user and the umask are like systemd's, in a mount namespace.
#[test]
fn what_the_unit_starts_serves_applications_of_other_users() {
    assert_root();
    let bed = Testbed::new();
    std::fs::set_permissions(bed.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let text = std::fs::read_to_string(unit("tollgated.service")).unwrap();
    let config = bed.file(
        "tollgated.toml",
        std::fs::read(unit("tollgated.toml")).unwrap(),
    );
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o644)).unwrap();
    let tollgated = program("tollgated").display().to_string();
    let start = said(&text, "ExecStart").concat();
    let start = start.replace("/usr/local/bin/tollgated", &tollgated);
    let start = start.replace(
        "/etc/tollgate/tollgated.toml",
        &config.display().to_string(),
    );
    let mut script = "set -e; mount -t tmpfs none /run; mount -t tmpfs none /var/lib\n".to_owned();
    for (key, parent) in [("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib")] {
        let (name, mode) = (
            said(&text, key).concat(),
            said(&text, &format!("{key}Mode")).concat(),
        );
        script.push_str(&format!(
            "install -d -m {mode} -o {NOBODY} -g {NOBODY} {parent}/{name}\n"
        ));
    }
    script.push_str(&format!("umask {}\n", said(&text, "UMask").concat()));
    assert_eq!(said(&text, "User"), ["tollgate"]);
    script.push_str(&format!(
        "exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs {start} --listen 127.0.0.1:0\n"
    ));
    let args = ["--mount", "sh", "-c", &script];
    let daemon = Daemon::ready(Process::start("unshare".as_ref(), args).unwrap());
    assert_eq!(daemon.socket(), Path::new("/run/tollgate/tollgate.sock"));
    // As an ordinary user, in the same mounts.
    let enter = |user: u32, words: &[&str]| {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &daemon.pid().to_string(), "setpriv"]);
        let who = format!("--reuid {user} --regid {user} --clear-groups");
        command.args(who.split(' ')).arg(program("tollgate"));
        command.args(["--socket", "/run/tollgate/tollgate.sock"]);
        command.args(words);
        command
    };
    let token = succeed(&mut enter(0, &["tenant", "add", "acme"]));
    let proto = proto_file("hotel.proto");
    std::fs::copy(&proto, bed.path("hotel.proto")).unwrap();
    std::fs::set_permissions(bed.path("hotel.proto"), PermissionsExt::from_mode(0o644)).unwrap();
    let proto = bed.path("hotel.proto").display().to_string();
    let token = bed.file("token", token.trim());
    let token = token.display().to_string();
    let its = ["--token-file", &token, "--proto", &proto];
    let serve = [
        &["serve"],
        &its[..],
        &["--service", "hotel.Reservation", "--reply", "{}"],
    ]
    .concat();
    let mut serving = enter(STRANGER, &serve)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(serving.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    // Every user may read that file, which causes a warning.
    if line.contains("warning") {
        line.clear();
        said.read_line(&mut line).unwrap();
    }
    assert!(line.starts_with("serving "), "{line}");
    let call = [&["call"], &its[..], &["hotel.Reservation/Reserve", "{}"]].concat();
    let answered = succeed(&mut enter(STRANGER, &call));
    serving.kill().unwrap();
    serving.wait().unwrap();
    assert_eq!(answered.trim(), "{}");
    // Even so, only root and the daemon's own user may administer it.
    let refused = enter(STRANGER, &["status"]).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("may not administer"), "{words}");
    // No other user can read its state.
    let its_root = format!("/proc/{}/root", daemon.pid());
    let state = format!("{its_root}/var/lib/tollgate");
    for entry in std::fs::read_dir(state).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }
}

//! The daemon's compiler: worker processes, limits that kill them, and the cache.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tollgate_policy_host::{Compiler, CompilerConfig, CompilerCounters, LoadError, Setup};

use crate::guests::{HOST, executable, guest_bytes, limits, view, write};
use crate::wat::Parts;
use crate::worker::PROGRAM;

pub(crate) fn config() -> CompilerConfig {
    CompilerConfig {
        program: PathBuf::from(PROGRAM),
        ..CompilerConfig::default()
    }
}

pub(crate) fn compiler(config: CompilerConfig) -> Compiler {
    Compiler::new(HOST.clone(), config).unwrap()
}

fn kept_in(directory: &Path) -> Compiler {
    compiler(CompilerConfig {
        artifacts: Some(directory.to_owned()),
        ..config()
    })
}

/// A program that never answers, instead of the worker. Each test recognises its own by the
/// sleeping time, because tests run in parallel.
fn stalling(directory: &TempDir, seconds: u32) -> CompilerConfig {
    running(directory, &format!("exec sleep {seconds}"))
}

/// A shell command instead of the worker, which gets 200 ms.
fn running(directory: &TempDir, command: &str) -> CompilerConfig {
    let program = directory.path().join("stall");
    executable(&program, &format!("#!/bin/sh\n{command}\n"));
    CompilerConfig {
        program,
        timeout: Duration::from_millis(200),
        ..config()
    }
}

/// Process ids of this process's children, including unreaped ones, with `word` in the command
/// line.
fn children(word: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let list = std::fs::read_to_string(task.unwrap().path().join("children"));
        for pid in list.unwrap_or_default().split_whitespace() {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(word) {
                found.push(pid.parse().unwrap());
            }
        }
    }
    found
}

#[test]
fn a_worker_compiles_what_the_host_would() {
    let wasm = guest_bytes("hotel_acl");
    let compiler = compiler(config());
    let policy = compiler.compile(&wasm).unwrap();
    assert_eq!(policy.manifest().name(), "acl");
    assert_eq!(policy.digest(), HOST.load(&wasm).unwrap().digest());
    assert_eq!(policy.wasm_bytes(), wasm.len());
    let config = br#"{"blocked":["Mallory"]}"#;
    let mut instance = policy
        .instantiate(&Setup {
            config: Some(config),
            ..Setup::new(&limits())
        })
        .unwrap();
    let method = policy
        .manifest()
        .method_index("hotel.Reservation", "Reserve")
        .unwrap();
    let shown = view(&["Mallory"]);
    let verdict = instance
        .evaluate(
            tollgate_policy_host::Hook::Request,
            method,
            shown.len(),
            write(&shown),
        )
        .unwrap();
    assert!(
        matches!(verdict, tollgate_policy_host::Verdict::Deny { .. }),
        "{verdict:?}"
    );
}

#[test]
fn a_second_push_starts_no_worker() {
    let compiler = compiler(config());
    let wasm = Parts::default().wasm();
    assert!(compiler.recall(&wasm).is_none());
    compiler.compile(&wasm).unwrap();
    compiler.compile(&wasm).unwrap();
    compiler.recall(&wasm).unwrap().unwrap();
    let expected = CompilerCounters {
        workers_started: 1,
        found_compiled: 2,
        ..CompilerCounters::default()
    };
    assert_eq!(compiler.counters(), expected);
}

#[test]
fn another_process_finds_the_code_in_the_directory() {
    let directory = TempDir::new().unwrap();
    let wasm = Parts::default().wasm();
    kept_in(directory.path()).compile(&wasm).unwrap();
    let file = only_file(directory.path());
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let again = kept_in(directory.path());
    again
        .recall(&wasm)
        .unwrap()
        .unwrap()
        .instantiate(&Setup::new(&limits()))
        .unwrap();
    assert_eq!(again.counters().workers_started, 0);
}

fn only_file(directory: &Path) -> PathBuf {
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

#[test]
fn damaged_code_is_deleted_and_compiled_again() {
    let directory = TempDir::new().unwrap();
    let wasm = Parts::default().wasm();
    kept_in(directory.path()).compile(&wasm).unwrap();
    let file = only_file(directory.path());
    let whole = std::fs::read(&file).unwrap();
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 7] = [
        ("magic", |b| b[0] ^= 1),
        ("engine", |b| b[8] ^= 1),
        ("module", |b| b[16] ^= 1),
        ("length", |b| b[48] ^= 1),
        ("a bit of the code", |b| *b.last_mut().unwrap() ^= 0x80),
        ("cut short", |b| b.truncate(b.len() / 2)),
        ("empty", |b| b.clear()),
    ];
    for (what, damage) in damages {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        std::fs::write(&file, &bytes).unwrap();
        let compiler = kept_in(directory.path());
        assert!(compiler.recall(&wasm).is_none(), "{what}");
        assert!(!file.exists(), "{what}");
        compiler.compile(&wasm).unwrap();
        let counters = compiler.counters();
        assert_eq!(
            (counters.damaged, counters.workers_started),
            (1, 1),
            "{what}"
        );
        assert_eq!(std::fs::read(&file).unwrap().len(), whole.len(), "{what}");
    }
}

#[test]
fn another_modules_code_under_this_name_is_not_run() {
    let directory = TempDir::new().unwrap();
    let (mine, other) = (
        Parts::default().wasm(),
        Parts::with_request("i32.const 0").wasm(),
    );
    let compiler = kept_in(directory.path());
    compiler.compile(&mine).unwrap();
    let mine_file = only_file(directory.path());
    std::fs::rename(&mine_file, directory.path().join("aside")).unwrap();
    compiler.compile(&other).unwrap();
    let others = std::fs::read_dir(directory.path()).unwrap();
    let others = others
        .map(|entry| entry.unwrap().path())
        .find(|path| !path.ends_with("aside"))
        .unwrap();
    std::fs::copy(others, &mine_file).unwrap();
    let again = kept_in(directory.path());
    assert!(again.recall(&mine).is_none());
    assert_eq!(again.counters().damaged, 1);
}

#[test]
fn code_that_others_could_have_written_is_not_run() {
    let directory = TempDir::new().unwrap();
    let wasm = Parts::default().wasm();
    kept_in(directory.path()).compile(&wasm).unwrap();
    let file = only_file(directory.path());
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(kept_in(directory.path()).recall(&wasm).is_none());
    assert!(!file.exists());
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let open = CompilerConfig {
        artifacts: Some(directory.path().to_owned()),
        ..config()
    };
    let refusal = Compiler::new(HOST.clone(), open).unwrap_err().to_string();
    assert!(
        refusal.contains("others than the daemon's user can write there"),
        "{refusal}"
    );
}

#[test]
fn leftovers_of_another_engine_and_of_a_crash_are_deleted() {
    let directory = TempDir::new().unwrap();
    let old = format!("{}-{:016x}.code", "ab".repeat(32), 7);
    for name in [old.as_str(), "x.code.new", "somebody-elses.txt"] {
        std::fs::write(directory.path().join(name), "x").unwrap();
    }
    kept_in(directory.path());
    assert!(only_file(directory.path()).ends_with("somebody-elses.txt"));
}

#[test]
fn a_refused_module_starts_no_second_worker() {
    let compiler = compiler(config());
    let wasm = Parts {
        marker: "",
        ..Parts::default()
    }
    .wasm();
    let first = compiler.compile(&wasm).unwrap_err();
    assert!(matches!(first, LoadError::Export { .. }), "{first}");
    assert_eq!(compiler.compile(&wasm).unwrap_err(), first);
    assert_eq!(compiler.recall(&wasm).unwrap().unwrap_err(), first);
    let counters = compiler.counters();
    assert_eq!((counters.workers_started, counters.found_refused), (1, 2));
    assert_eq!(counters.workers_killed, 0);
}

#[test]
fn a_worker_out_of_time_is_killed_and_reaped() {
    let directory = TempDir::new().unwrap();
    // It gets its second of CPU time on a busy machine, too.
    let compiler = compiler(CompilerConfig {
        timeout: Duration::from_secs(1),
        ..running(&directory, "while :; do :; done")
    });
    let wasm = Parts::default().wasm();
    let error = compiler.compile(&wasm).unwrap_err();
    assert_eq!(error, LoadError::CompileTimeout { ms: 1_000 });
    let text =
        "compiling the module took more than 1000 ms of CPU; it isn't tried again for some minutes";
    assert_eq!(error.to_string(), text);
    let program = directory.path().join("stall");
    let left = children(program.to_str().unwrap());
    assert_eq!(left, [0; 0], "neither running nor a zombie");
    assert_eq!(compiler.compile(&wasm).unwrap_err(), error);
    let counters = compiler.counters();
    assert_eq!((counters.workers_started, counters.workers_killed), (1, 1));
}

#[test]
fn a_worker_without_cpu_is_killed_and_its_module_not_blamed() {
    let directory = TempDir::new().unwrap();
    let compiler = compiler(stalling(&directory, 1002));
    let wasm = Parts::default().wasm();
    for _ in 0..2 {
        let error = compiler.compile(&wasm).unwrap_err().to_string();
        let (start, end) = (
            "no compile worker: the host is overloaded: the compiler got ",
            " ms of CPU in 1200 ms",
        );
        assert!(error.starts_with(start) && error.ends_with(end), "{error}");
    }
    let left = children("sleep\u{0}1002");
    assert_eq!(left, [0; 0], "neither running nor a zombie");
    let counters = compiler.counters();
    assert_eq!((counters.workers_started, counters.workers_killed), (2, 2));
}

#[test]
fn a_worker_out_of_memory_is_named_so() {
    let compiler = compiler(CompilerConfig {
        memory_bytes: 28 << 20,
        ..config()
    });
    let step =
        "(i64.store (i32.const 8) (i64.mul (i64.load (i32.const 16)) (i64.load (i32.const 24))))";
    let large = Parts {
        rest: format!("(func {})", step.repeat(4_000)).repeat(15),
        ..Parts::default()
    };
    let error = compiler.compile(&large.wasm()).unwrap_err();
    assert_eq!(error, LoadError::CompileMemory { bytes: 28 << 20 });
}

#[test]
fn a_worker_that_another_process_kills_costs_its_push_only() {
    let directory = TempDir::new().unwrap();
    let compiler = Arc::new(compiler(CompilerConfig {
        timeout: Duration::from_secs(60),
        ..stalling(&directory, 1001)
    }));
    let pushing = {
        let compiler = Arc::clone(&compiler);
        std::thread::spawn(move || compiler.compile(&Parts::default().wasm()))
    };
    let pid = loop {
        match children("sleep\u{0}1001")[..] {
            [pid, ..] => break pid,
            [] => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let error = pushing.join().unwrap().unwrap_err();
    let text = "no compile worker: it was killed by another process, or because the machine is out of memory";
    assert_eq!(error.to_string(), text);
    assert!(compiler.recall(&Parts::default().wasm()).is_none());
}

#[test]
fn stopping_kills_workers_and_remembers_nothing() {
    let directory = TempDir::new().unwrap();
    let compiler = compiler(CompilerConfig {
        timeout: Duration::from_secs(60),
        ..stalling(&directory, 1000)
    });
    compiler.stop();
    let before = Instant::now();
    let wasm = Parts::default().wasm();
    for _ in 0..2 {
        let error = compiler.compile(&wasm).unwrap_err();
        assert_eq!(error.to_string(), "no compile worker: the daemon is ending");
    }
    assert!(before.elapsed() < Duration::from_secs(30));
    assert_eq!(compiler.counters().found_refused, 0);
}

#[test]
fn a_missing_program_is_the_machines_fault() {
    let compiler = compiler(CompilerConfig {
        program: PathBuf::from("/nonexistent"),
        ..config()
    });
    for _ in 0..2 {
        let error = compiler.compile(&Parts::default().wasm()).unwrap_err();
        assert!(matches!(error, LoadError::NoCompiler(_)), "{error}");
    }
    assert_eq!(compiler.counters(), CompilerCounters::default());
}

//! The testbed itself: it captures the output of children, and leaves none behind.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tollgate_conformance::process::{Process, cpu_seconds, program};
use tollgate_conformance::testbed::{SOON, eventually};

fn shell(script: &str) -> Process {
    Process::start(Path::new("/bin/sh"), ["-c", script]).unwrap()
}

#[test]
fn lines_of_both_pipes_are_seen() {
    let process = shell("echo one; echo two >&2");
    assert_eq!(process.line(SOON, |line| line == "one").unwrap(), "one");
    assert_eq!(process.line(SOON, |line| line == "two").unwrap(), "two");
    let error = process.line(SOON, |line| line == "three").unwrap_err();
    assert!(
        error.contains("ended without it") && error.contains("two"),
        "{error}"
    );
}

#[test]
fn burnt_cpu_time_is_seen() {
    let me = [std::process::id()];
    let before = cpu_seconds(&me);
    let mut sum = 0u64;
    while cpu_seconds(&me) - before < 0.05 {
        sum = (0..100_000).fold(sum, |sum, n| std::hint::black_box(sum ^ n));
    }
    assert_eq!(cpu_seconds(&[u32::MAX]), 0.0);
}

#[test]
fn a_dropped_process_is_gone() {
    let process = shell("exec sleep 1000");
    let proc = PathBuf::from(format!("/proc/{}", process.pid()));
    assert!(proc.exists());
    drop(process);
    assert!(!proc.exists());
}

#[test]
fn a_process_outlives_the_thread_that_started_it() {
    let mut process = thread::spawn(|| shell("exec sleep 1000")).join().unwrap();
    assert_eq!(process.ended(Duration::from_millis(100)), None);
}

#[test]
fn a_leashed_process_dies_with_its_parent() {
    let leash = program("leash").display().to_string();
    let mut parent = shell(&format!("{leash} $$ sleep 1000 & echo pid $!; wait"));
    let line = parent.line(SOON, |line| line.starts_with("pid ")).unwrap();
    let proc = PathBuf::from(format!("/proc/{}", line.trim_start_matches("pid ")));
    let is_sleep =
        || std::fs::read_to_string(proc.join("comm")).is_ok_and(|name| name == "sleep\n");
    eventually(SOON, is_sleep).unwrap();
    parent.kill();
    eventually(SOON, || !is_sleep()).unwrap();
}

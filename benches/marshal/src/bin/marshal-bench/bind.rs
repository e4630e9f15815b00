//! From a descriptor set to a service that answers: the steps that the daemon takes, without its
//! sockets and threads.
//!
//! ```text
//! descriptor set ─ resolve ─ lay out ─ programs ─▶ serving, interpreted        a known set: digest and look up
//!                                                  first call ─ compile ─▶ machine code of the method
//! ```
//!
//! *Warm* is one process that has bound and compiled others before; *cold* is a process that has
//! done nothing yet.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tollgate_jit::Codec;
use tollgate_schema::Schema;

use crate::effort::Effort;
use crate::schemas::{Candidate, Size, candidate};

/// The argument of a process that binds one schema from its standard input.
pub(crate) const CHILD: &str = "--bind-one";

/// Binds in a warm process before the first one that counts.
const WARM_UP: usize = 10;

/// The measured steps of each schema, in microseconds.
pub(crate) const STEPS: [&str; 6] = [
    "resolve",
    "lay out",
    "programs",
    "serving",
    "gather and accept of a method",
    "encode and decode of a method",
];

/// The indices in [`STEPS`] of the sum of the first three, and of the first step that compiles.
pub(crate) const SERVING: usize = 3;
pub(crate) const COMPILED: usize = 4;

/// One schema's microseconds, by [`STEPS`].
pub(crate) type Times = [f64; STEPS.len()];

/// All schemas of one size, cold or warm.
pub(crate) struct Binds {
    pub(crate) size: Size,
    pub(crate) cold: bool,
    pub(crate) each: Vec<Times>,
    /// Microseconds to find a known set; empty if cold.
    pub(crate) known: Vec<f64>,
    /// Bytes of a descriptor set.
    pub(crate) set_bytes: usize,
}

pub(crate) fn measure(effort: Effort) -> Result<Vec<Binds>, String> {
    let mut all = Vec::new();
    for size in [Size::Hotel, Size::Large] {
        let candidates = (0..effort.schemas + WARM_UP).map(|seed| candidate(size, seed));
        let candidates: Vec<_> = candidates.collect();
        let (warm_up, counted) = candidates.split_at(WARM_UP);
        let binds = |cold, each, known| Binds {
            size,
            cold,
            each,
            known,
            set_bytes: counted[0].descriptor_set.len(),
        };
        let cold: Result<_, _> = counted.iter().map(bind_cold).collect();
        all.push(binds(true, cold?, Vec::new()));
        warm_up.iter().for_each(|candidate| {
            black_box(bind(candidate));
        });
        let warm = counted.iter().map(bind).collect();
        all.push(binds(false, warm, look_up(counted)));
    }
    Ok(all)
}

fn bind(candidate: &Candidate) -> Times {
    let start = Instant::now();
    let schema = Schema::from_descriptor_set(&candidate.descriptor_set);
    let schema = schema.expect("the generated set is valid");
    let resolved = start.elapsed();
    let service = schema.service(&candidate.service);
    let service = service.expect("the generated set has it");
    let laid_out = start.elapsed();
    let codecs: Vec<_> = service
        .methods
        .iter()
        .flat_map(|method| [method.input, method.output])
        .map(|id| Codec::new(&service.layouts, id))
        .collect();
    let serving = start.elapsed();
    // The first method's request and reply.
    let compile = |work: fn(&Codec) -> Result<(), tollgate_jit::CompileError>| {
        let start = Instant::now();
        for codec in &codecs[..2] {
            work(codec).expect("the host has machine code");
        }
        micros(start.elapsed())
    };
    [
        micros(resolved),
        micros(laid_out - resolved),
        micros(serving - laid_out),
        micros(serving),
        compile(Codec::compile),
        compile(Codec::compile_wire),
    ]
}

/// Finds a known set like the daemon: by its digest and the service's name.
fn look_up(candidates: &[Candidate]) -> Vec<f64> {
    let key = |candidate: &Candidate| -> ([u8; 32], String) {
        let digest = Sha256::digest(&candidate.descriptor_set).into();
        (digest, candidate.service.clone())
    };
    let known: HashMap<_, _> = candidates.iter().map(key).zip(0..).collect();
    let time = |candidate| {
        let start = Instant::now();
        black_box(known.get(&key(candidate)));
        micros(start.elapsed())
    };
    candidates.iter().map(time).collect()
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Binds in a process of its own.
fn bind_cold(candidate: &Candidate) -> Result<Times, String> {
    let failed = |e: std::io::Error| format!("can't run a process that binds: {e}");
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .arg(CHILD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut stdin = child.stdin.take().ok_or("the child has no input")?;
    stdin
        .write_all(candidate.service.as_bytes())
        .map_err(failed)?;
    stdin.write_all(b"\n").map_err(failed)?;
    stdin.write_all(&candidate.descriptor_set).map_err(failed)?;
    drop(stdin);
    let output = child.wait_with_output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let times: Vec<f64> = text
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    times
        .try_into()
        .map_err(|_| format!("a process that binds said {text:?}"))
}

/// The work of such a process.
pub(crate) fn child() -> Result<(), String> {
    let mut input = Vec::new();
    std::io::stdin()
        .read_to_end(&mut input)
        .map_err(|e| format!("can't read the set: {e}"))?;
    let line = input
        .iter()
        .position(|byte| *byte == b'\n')
        .ok_or("no service is named")?;
    let candidate = Candidate {
        service: String::from_utf8_lossy(&input[..line]).into_owned(),
        descriptor_set: input[line + 1..].to_vec(),
    };
    let times = bind(&candidate).map(|time| time.to_string());
    println!("{}", times.join(" "));
    Ok(())
}

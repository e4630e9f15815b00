//! Counts the instructions of a call. `.ci/instructions` runs `PROGRAM [--bless] FILE`, where
//! `FILE` holds the expected numbers. `PROGRAM --print` prints the numbers as JSON and writes no
//! file.
//!
//! The program runs itself under valgrind's callgrind, which counts only the instructions inside
//! [`counted_region`] and writes the count each time it returns. So the numbers are exact and
//! contain no set-up and no noise. CI can hold them to a few per cent. The benches measure times.
//!
//! Machine code and library functions depend on the processor's features. Valgrind offers its own
//! model of a processor, which is the same on all machines with AVX2. The features are kept with
//! the numbers. Numbers with other features aren't compared.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

/// A job with counted instructions.
pub struct Counted {
    /// Its name in the file of kept numbers.
    pub name: String,
    /// Whether it is ours. Others are for comparison: they change with the C library's allocator,
    /// and never fail the check.
    pub ours: bool,
    /// Does the job this many times, a multiple of 64.
    pub work: Box<dyn FnMut(u32)>,
}

/// Number of calls in one count.
const CALLS: u32 = 64;

/// Number of calls before that.
const WARM_UP: u32 = 64;
/// More instructions than this, relative to the kept number, fail.
const TOLERANCE: f64 = 0.05;

/// A change below this many instructions per call is ignored: a few instructions depend on the
/// layout of a loop.
const NOISE: f64 = 3.0;

/// The argument for a run under valgrind.
const COUNTED: &str = "--counted";

/// The whole program; `all` makes the counted jobs.
pub fn main(all: impl FnOnce() -> Result<Vec<Counted>, String>) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    crate::exit(match args[..] {
        [COUNTED] => all().map(counted),
        ["--print"] => count().map(|counts| println!("{}", to_json(counts))),
        ["--bless", file] => bless(Path::new(file)),
        [file] if !file.starts_with('-') => compare(Path::new(file)),
        _ => Err("usage: [--bless] FILE | --print".to_owned()),
    })
}

/// Callgrind counts from here to the return, by this function's name.
#[inline(never)]
fn counted_region(work: &mut dyn FnMut(u32), calls: u32) {
    written_down(work, calls);
    std::hint::black_box(calls);
}

/// When this function returns, callgrind writes its count, by this function's name. It wouldn't if
/// it stopped counting at the same time, hence two functions.
#[inline(never)]
fn written_down(work: &mut dyn FnMut(u32), calls: u32) {
    work(calls);
    std::hint::black_box(calls);
}

/// Runs under valgrind: first an empty job, which gives the cost of counting, then each job in
/// turn. Prints the names of the jobs.
fn counted(all: Vec<Counted>) {
    println!("{}", features());
    counted_region(&mut |_| {}, CALLS);
    for mut one in all {
        (one.work)(WARM_UP);
        counted_region(&mut one.work, CALLS);
        println!("{}{}", if one.ours { "" } else { THEIRS }, one.name);
    }
}

/// Prefix of the line of a job that isn't ours.
const THEIRS: &str = "theirs: ";

/// The features of the processor that valgrind emulates.
fn features() -> String {
    #[cfg(target_arch = "x86_64")]
    let found = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("popcnt", is_x86_feature_detected!("popcnt")),
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi1", is_x86_feature_detected!("bmi1")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("lzcnt", is_x86_feature_detected!("lzcnt")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let found = [("another architecture", true)];
    let names: Vec<_> = found.iter().filter(|f| f.1).map(|f| f.0).collect();
    names.join(" ")
}

/// The counts of a run.
struct Counts {
    features: String,
    /// In the order of the jobs.
    each: Vec<Count>,
}

struct Count {
    name: String,
    ours: bool,
    /// Instructions per call.
    per_call: f64,
}

fn count() -> Result<Counts, String> {
    let directory = std::env::temp_dir().join(format!("instructions-{}", std::process::id()));
    fs::create_dir_all(&directory)
        .map_err(|e| format!("can't make {}: {e}", directory.display()))?;
    let counts = count_in(&directory);
    // The left files only take room.
    let _ = fs::remove_dir_all(&directory);
    counts
}

fn count_in(directory: &Path) -> Result<Counts, String> {
    let program = std::env::current_exe().map_err(|e| format!("can't find this program: {e}"))?;
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg("--toggle-collect=*counted_region*")
        .arg("--dump-after=*written_down*")
        .arg(format!(
            "--callgrind-out-file={}",
            directory.join("out").display()
        ))
        .arg(program)
        .arg(COUNTED)
        .output()
        .map_err(|e| {
            format!("can't run valgrind: {e}; install it (Debian: apt-get install valgrind)")
        })?;
    if !run.status.success() {
        let words = String::from_utf8_lossy(&run.stderr);
        return Err(format!("the run under valgrind failed: {}", words.trim()));
    }
    let said = String::from_utf8_lossy(&run.stdout);
    let mut lines = said.lines();
    let features = lines.next().unwrap_or_default().to_owned();
    let file = |part: usize| directory.join(format!("out.{part}"));
    let nothing = total(&file(1))?;
    let mut each = Vec::new();
    for (line, part) in lines.zip(2..) {
        let theirs = line.strip_prefix(THEIRS);
        each.push(Count {
            name: theirs.unwrap_or(line).to_owned(),
            ours: theirs.is_none(),
            per_call: (total(&file(part))? - nothing).max(0.0) / f64::from(CALLS),
        });
    }
    Ok(Counts { features, each })
}

/// The count in one of callgrind's files.
fn total(file: &Path) -> Result<f64, String> {
    let text = fs::read_to_string(file)
        .map_err(|e| format!("callgrind didn't write {}: {e}", file.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let number = line.and_then(|line| line.trim().parse().ok());
    number.ok_or_else(|| format!("{} has no total", file.display()))
}

fn bless(file: &Path) -> Result<(), String> {
    let text = to_json(count()?);
    let text = serde_json::to_string_pretty(&text).map_err(|e| e.to_string())? + "\n";
    fs::write(file, text).map_err(|e| format!("can't write {}: {e}", file.display()))
}

fn to_json(counts: Counts) -> Value {
    let tenths = |count: f64| json!((count * 10.0).round() / 10.0);
    let each = counts.each.into_iter();
    let each: Map<_, _> = each
        .map(|count| (count.name, tenths(count.per_call)))
        .collect();
    json!({"features": counts.features, "instructions_per_call": each})
}

fn compare(file: &Path) -> Result<(), String> {
    let kept = read(file)?;
    let counts = count()?;
    if kept["features"] != counts.features.as_str() {
        return Err(format!(
            "{} was counted on a processor with {}, and valgrind offers {} here: the numbers can't be compared",
            file.display(),
            kept["features"],
            counts.features
        ));
    }
    let kept = &kept["instructions_per_call"];
    let (mut worse, mut unknown) = (0, 0);
    println!("{:46} {:>9} {:>9}", "instructions per call", "kept", "now");
    for Count {
        name,
        ours,
        per_call: now,
    } in &counts.each
    {
        let Some(old) = kept[name].as_f64() else {
            unknown += 1;
            println!("{name:46} {:>9} {now:9.1}  new", "-");
            continue;
        };
        let change = now / old - 1.0;
        let verdict = match () {
            () if (now - old).abs() <= NOISE || change.abs() <= TOLERANCE => String::new(),
            () if !ours => format!("  {:+.0} %", change * 100.0),
            () if change > 0.0 => {
                worse += 1;
                format!("  {:+.0} %, too many", change * 100.0)
            }
            () => format!("  {:+.0} %, better", change * 100.0),
        };
        println!("{name:46} {old:9.1} {now:9.1}{verdict}");
    }
    if worse + unknown > 0 {
        return Err(format!(
            "{worse} of {} counts are more than {} % above the kept ones, {unknown} are new; if that is meant, keep them: .ci/instructions --bless",
            counts.each.len(),
            TOLERANCE * 100.0
        ));
    }
    Ok(())
}

fn read(file: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(file)
        .map_err(|e| format!("can't read {}: {e}; write it with --bless", file.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{} is not JSON: {e}", file.display()))
}

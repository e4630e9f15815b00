//! Child processes that end with their test.
//!
//! A [`Process`] is killed when it is dropped, and also when the whole test process dies (see
//! `bin/leash.rs`). Its own threads read its output, so that a verbose child never blocks on a full
//! pipe. The output is kept, so that a failed expectation can show it.
//!
//! The kernel ties the death signal to the *thread* that forked. Tests run in threads that end
//! early, so one thread that lives as long as the process forks every child.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// The time limit for the last output of a process that has ended. Its own children may hold its
/// output open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The directory of the built programs: that of the running program, or one above for tests.
/// Examples in documentation run elsewhere, and use the directory where this crate was built.
///
/// # Panics
/// If the running program has no path, which the kernel always knows.
pub fn programs() -> PathBuf {
    let here = std::env::current_exe().expect("the kernel knows this program's path");
    let directory = here.parent().expect("a program is in a directory");
    let directory = match directory.file_name() {
        Some(name) if name == "deps" => directory.parent().unwrap_or(directory),
        _ => directory,
    };
    let built = Path::new(env!("OUT_DIR")).ancestors().nth(3);
    match built {
        Some(built) if !directory.join("tollgated").exists() => built.to_owned(),
        _ => directory.to_owned(),
    }
}

/// Python in the virtual environment from `.ci/python`.
///
/// # Panics
/// If that doesn't exist.
pub fn python() -> PathBuf {
    let python = programs().join("../python/venv/bin/python");
    let shown = python.display();
    assert!(
        python.exists(),
        "{shown} is not there: run `.ci/python` first"
    );
    python
}

/// A process's line in `/proc/PID/stat` from field 3 on, the first after its name; empty once it is
/// gone.
pub fn stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The command's name is in parentheses and may contain anything: count from the last one.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().map(str::to_owned).collect()
}

/// The CPU seconds (user and system) that these processes have used so far, in steps of the
/// kernel's clock tick (10 ms); 0 for processes that are gone.
pub fn cpu_seconds(pids: &[u32]) -> f64 {
    // `utime` and `stime` are fields 14 and 15.
    let fields = pids
        .iter()
        .flat_map(|&pid| stat(pid).into_iter().skip(11).take(2));
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Sends a signal to a process. Ignored if it is gone.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let _gone = pid.map(|pid| rustix::process::kill_process(pid, signal));
}

/// The threads of a process, by name, with their paths in `/proc`; none once it is gone.
pub fn threads(pid: u32) -> Vec<(String, PathBuf)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let named = |task: io::Result<std::fs::DirEntry>| {
        let task = task.ok()?.path();
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        Some((name.trim().to_owned(), task))
    };
    tasks.into_iter().flatten().filter_map(named).collect()
}

/// The CPU time of a daemon's runtimes, in nanoseconds.
///
/// # Panics
/// If the process has none.
pub fn runtimes_ns(pid: u32) -> u64 {
    let of_runtime = |(name, task): (String, PathBuf)| {
        let spent = std::fs::read_to_string(task.join("schedstat")).ok()?;
        name.starts_with("runtime")
            .then(|| spent.split(' ').next()?.parse::<u64>().ok())?
    };
    let spent: Vec<u64> = threads(pid).into_iter().filter_map(of_runtime).collect();
    assert!(!spent.is_empty(), "a thread called runtime");
    spent.iter().sum()
}

/// The path of a built program.
///
/// # Panics
/// If it isn't built: a test can't continue without it, and the message names the remedy.
pub fn program(name: &str) -> PathBuf {
    let path = programs().join(name);
    assert!(
        path.exists(),
        "{} is not built; run `cargo build --workspace` first",
        path.display()
    );
    path
}

/// A running child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: Arc<Output>,
}

/// The output of a child so far, line by line, in order of arrival.
#[derive(Debug, Default)]
struct Output {
    lines: Mutex<Lines>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    said: Vec<String>,
    open_pipes: usize,
}

impl Process {
    /// Starts `program` with `args`; its standard input is a pipe (see [`Process::stdin`]).
    ///
    /// # Errors
    /// If the kernel can't start it.
    pub fn start<I, S>(program: &Path, args: I) -> io::Result<Process>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        Process::start_on(program, args, [(); 3].map(|()| Stdio::piped()))
    }

    /// The same with other standard streams; output that goes elsewhere isn't in
    /// [`said`](Process::said).
    ///
    /// # Errors
    /// If the kernel can't start it.
    pub fn start_on<I, S>(program: &Path, args: I, stdio: [Stdio; 3]) -> io::Result<Process>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let [stdin, stdout, stderr] = stdio;
        let mut command = Command::new(self::program("leash"));
        command
            .arg(std::process::id().to_string())
            .arg(program)
            .args(args);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        let mut child = fork(command)?;
        let output = Arc::new(Output::default());
        let (said, complained) = (child.stdout.take(), child.stderr.take());
        output.lock().open_pipes = usize::from(said.is_some()) + usize::from(complained.is_some());
        if let Some(pipe) = said {
            output.clone().collect(pipe);
        }
        if let Some(pipe) = complained {
            output.clone().collect(pipe);
        }
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(Process {
            name,
            child,
            output,
        })
    }

    /// Its process id, as in `/proc`.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input; dropping this closes it. `None` the second time.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Every line on its standard output and standard error so far.
    pub fn said(&self) -> Vec<String> {
        self.output.lock().said.clone()
    }

    /// Waits for a line that `wanted` accepts.
    ///
    /// # Errors
    /// If the child ends or `timeout` passes without it; the message quotes its output.
    pub fn line(&self, timeout: Duration, wanted: impl Fn(&str) -> bool) -> Result<String, String> {
        self.wait(timeout, |said| {
            said.iter().find(|line| wanted(line)).cloned()
        })
    }

    /// Waits for the line after the first `count` lines.
    ///
    /// # Errors
    /// Like [`Process::line`].
    pub fn line_after(&self, count: usize, timeout: Duration) -> Result<String, String> {
        self.wait(timeout, |said| said.get(count).cloned())
    }

    fn wait(
        &self,
        timeout: Duration,
        look: impl Fn(&[String]) -> Option<String>,
    ) -> Result<String, String> {
        let end = Instant::now() + timeout;
        let mut lines = self.output.lock();
        loop {
            if let Some(line) = look(&lines.said) {
                return Ok(line);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || lines.open_pipes == 0 {
                let why = if left.is_zero() {
                    "did not say it in time"
                } else {
                    "ended without it"
                };
                return Err(format!(
                    "{} {why}; it said:\n  {}",
                    self.name,
                    lines.said.join("\n  ")
                ));
            }
            let waited = self.output.news.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self::signal(self.pid(), signal);
    }

    /// Its exit status, if it ended within `timeout`. Its output is complete then, unless its own
    /// children may still write.
    pub fn ended(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    let all_read = |lines: &mut Lines| lines.open_pipes > 0;
                    let output = self.output.lock();
                    let _last_words = self
                        .output
                        .news
                        .wait_timeout_while(output, LAST_WORDS, all_read);
                    return Some(status);
                }
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }

    /// Kills it like `kill -9`, and waits until the kernel has removed it.
    pub fn kill(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect(self: Arc<Self>, pipe: impl Read + Send + 'static) {
        thread::spawn(move || {
            let mut reader = BufReader::new(pipe);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                self.lock().said.push(text);
                self.news.notify_all();
            }
            self.lock().open_pipes -= 1;
            self.news.notify_all();
        });
    }
}

type Forked = Sender<io::Result<Child>>;

/// Forks in the one thread that outlives every test.
fn fork(command: Command) -> io::Result<Child> {
    static FORKER: OnceLock<Sender<(Command, Forked)>> = OnceLock::new();
    let forker = FORKER.get_or_init(|| {
        let (sender, receiver) = channel::<(Command, Forked)>();
        thread::spawn(move || {
            for (mut command, forked) in receiver {
                // If nobody waits for the answer, the requesting thread is gone.
                let _unwanted = forked.send(command.spawn());
            }
        });
        sender
    });
    let (sender, receiver) = channel();
    forker
        .send((command, sender))
        .expect("the forking thread lives as long as the process");
    receiver
        .recv()
        .expect("the forking thread answers every request")
}

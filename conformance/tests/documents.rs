//! The documents: their commands do what they show, and their links lead somewhere.
//!
//! The pages are `README.md` and `docs/src/guide/*.md`. Each page is one session of a shell (`sh`)
//! that runs its blocks in order. The session has a directory of its own, which looks like a
//! checkout after `make demo`, and the built programs on its `PATH`. Its processes end with it.
//!
//! | on a page | here |
//! |---|---|
//! | a block of `console` | A line that begins with `$ ` is a command, and the line after one that ends in `\` continues it. Other lines are the command's output, of both streams. A command without output prints nothing |
//! | a block of `sh` | Each line is a command, and so are lines that end in `\` with the next one. Output isn't compared |
//! | a block of `text` | is only shown |
//! | a block of another language | is a file of the session's current directory. The line before the block ends with its path and a colon: "The service, `greeter.proto`:" |
//! | `<!-- run`, lines, `-->` | The lines are commands like those of `sh`, and readers don't see them |
//! | `<!-- not run: REASON -->` | The next block isn't run. [`NOT_RUN`] lists these blocks |
//!
//! - `...` in shown output stands for any text; as a line of its own, for any number of lines.
//! - A command that ends in `&` belongs to a block of `console`, and shows the output that says that
//!   it is ready. The session waits for this output, and ignores output after it.
//! - A command succeeds, unless the next command is `echo $?`, which shows its exit status.
//! - The ports 7471 and 7472 stand for free ones, and `../tollgate` in a file for the repository.
//!
//! `TOLLGATE_PAGE=first-call` runs only the pages whose path contains that. The file uses nothing
//! but the standard library, so `rustc --edition 2024 --test` builds it in seconds; it then needs
//! `CARGO_MANIFEST_DIR` and `CARGO_TARGET_TMPDIR` when it is built, and `TOLLGATE_PROGRAMS`, the
//! directory of the built programs, when it runs.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The blocks that can't run in a test: page, first line, reason. An entry needs a reason that a
/// reviewer accepts.
const NOT_RUN: &[(&str, &str, &str)] = &[
    (
        "README.md",
        "make demo    # builds, starts two daemons, shows calls and tenants' policies at work; ends by itself",
        "builds the workspace",
    ),
    (
        "docs/src/guide/first-call-c.md",
        "cargo build --locked -p tollgate-c",
        "builds into the repository's target directory",
    ),
    (
        "docs/src/guide/first-call-python.md",
        "python3 -m venv $DIR/venv && . $DIR/venv/bin/activate && pip install ./client-libs/python",
        "compiles the package",
    ),
    (
        "docs/src/guide/first-policy-assemblyscript.md",
        "npm ci",
        "fetches the compiler",
    ),
    (
        "docs/src/guide/first-policy-c.md",
        "sudo apt-get install clang lld",
        "installs packages as root",
    ),
    (
        "docs/src/guide/first-policy-envoy.md",
        "cargo build --release --target wasm32-wasip1 --example http_headers",
        "fetches the SDK for Rust",
    ),
    (
        "docs/src/guide/install.md",
        "sudo apt-get install git make gcc libc6-dev",
        "installs packages as root",
    ),
    (
        "docs/src/guide/install.md",
        "make demo",
        "builds the workspace",
    ),
    (
        "docs/src/guide/install.md",
        "cargo install --locked --path service/daemon    # ~/.cargo/bin/tollgated",
        "release builds take minutes",
    ),
    (
        "docs/src/guide/install.md",
        "cargo build --locked --profile policy --target wasm32-unknown-unknown -p policy-acl",
        "builds into the repository's target directory",
    ),
    (
        "docs/src/guide/install.md",
        "cargo uninstall tollgate-daemon tollgate-cli",
        "there is nothing to remove",
    ),
    (
        "docs/src/guide/stubs.md",
        "cargo install --locked --path marshal-codegen/gen    # ~/.cargo/bin/protoc-gen-tollgate",
        "needs protoc and a build",
    ),
];

/// The time limit for a command. Some compile a small crate with its dependencies.
const COMMAND: Duration = Duration::from_secs(400);

/// The time limit for the output of a command in the background.
const READY: Duration = Duration::from_secs(60);

/// Pages at once: most of their time is waiting.
const AT_ONCE: usize = 3;

/// What a page has for the session, in order.
#[derive(Debug, PartialEq)]
enum Step {
    /// A command with its line, and the output that the page shows; `None` if it isn't compared.
    Command {
        line: usize,
        text: String,
        shown: Option<Vec<String>>,
    },
    /// A file with its path and content.
    File {
        line: usize,
        path: String,
        content: String,
    },
    /// The next block isn't run: its first line, and why.
    NotRun {
        line: usize,
        first: String,
        reason: String,
    },
}

/// A block between fences: the line of its first line, the language, its lines without the fence's
/// indentation.
struct Block<'p> {
    line: usize,
    language: &'p str,
    lines: Vec<&'p str>,
}

#[test]
fn pages_do_what_they_show() {
    let filter = std::env::var("TOLLGATE_PAGE").unwrap_or_default();
    let pages: Vec<_> = pages()
        .into_iter()
        .filter(|page| page.contains(&*filter))
        .collect();
    let (next, findings) = (Mutex::new(pages.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let page = next.lock().unwrap().next();
                    let Some(page) = page else { return };
                    let began = Instant::now();
                    let found = run(page);
                    println!("{page}: {} s", began.elapsed().as_secs());
                    findings.lock().unwrap().extend(found);
                }
            });
        }
    });
    report(&findings.into_inner().unwrap());
}

#[test]
fn blocks_that_do_not_run_are_listed() {
    let mut found = Vec::new();
    let (mut commands, mut files) = (0, 0);
    for page in pages() {
        for step in steps(&read(&page)).unwrap_or_else(|error| panic!("{page}:{error}")) {
            match step {
                Step::Command { .. } => commands += 1,
                Step::File { .. } => files += 1,
                Step::NotRun { first, reason, .. } => {
                    println!("{page}: not run: {first} ({reason})");
                    found.push((page.clone(), first, reason));
                }
            }
        }
    }
    let listed: Vec<_> = NOT_RUN
        .iter()
        .map(|(page, first, reason)| {
            (
                (*page).to_owned(),
                (*first).to_owned(),
                (*reason).to_owned(),
            )
        })
        .collect();
    assert_eq!(found, listed, "NOT_RUN lists the blocks that aren't run");
    assert!(
        commands > 60 && files > 10,
        "only {commands} commands and {files} files were found"
    );
}

#[test]
fn links_lead_somewhere() {
    let (mut findings, mut links) = (Vec::new(), 0);
    let pages: BTreeMap<PathBuf, Vec<(usize, String)>> = markdown(&root())
        .into_iter()
        .map(|page| {
            let text = std::fs::read_to_string(&page).unwrap();
            (page, prose(&text))
        })
        .collect();
    let anchors: BTreeMap<&PathBuf, BTreeSet<String>> = pages
        .iter()
        .map(|(page, lines)| (page, anchors(lines)))
        .collect();
    for (page, lines) in &pages {
        let shown = page.strip_prefix(root()).unwrap().display();
        for (number, target) in targets(lines) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = match path {
                "" => page.clone(),
                _ => flat(&page.parent().unwrap().join(path)),
            };
            if !file.exists() {
                findings.push(format!("{shown}:{number}: {target}: no such file"));
            } else if !anchor.is_empty()
                && !anchors.get(&file).is_some_and(|all| all.contains(anchor))
            {
                findings.push(format!("{shown}:{number}: {target}: no such heading"));
            }
        }
    }
    // A page that the summary doesn't list isn't in the book.
    let summary = root().join("docs/src/SUMMARY.md");
    let listed: BTreeSet<_> = targets(&pages[&summary])
        .into_iter()
        .map(|(_, target)| flat(&summary.parent().unwrap().join(target)))
        .collect();
    for page in pages.keys() {
        if page.starts_with(summary.parent().unwrap()) && *page != summary && !listed.contains(page)
        {
            let shown = page.strip_prefix(root()).unwrap().display();
            findings.push(format!("{shown}: not listed in docs/src/SUMMARY.md"));
        }
    }
    assert!(links > 200, "only {links} links were found");
    report(&findings);
}

/// Someone who knows gRPC reads the README in two minutes.
#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 120, "the README has {lines} lines, of 120");
}

/// The README's table of results has the medians of the record.
#[test]
fn results_are_the_recorded_ones() {
    let (readme, record) = (read("README.md"), read("benches/RESULTS.md"));
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split('|').skip(1);
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    let tables = readme.split("\n## Results\n").nth(1).unwrap();
    let tables = tables.split("\n## ").next().unwrap();
    let rows = tables.lines().filter(|line| line.starts_with('|')).skip(2);
    let sources = [
        ("latency-hotel", "p50, us"),
        ("rate-hotel", "calls/s"),
        ("rate-hotel", "CPU s per million calls"),
    ];
    let mut compared = 0;
    for (row, (scenario, column)) in rows.zip(sources) {
        let section = record.split(&format!("\n## {scenario}: ")).nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let mut lines = section.lines().filter(|line| line.starts_with('|'));
        let head = cells(lines.next().unwrap());
        let column = head.iter().position(|cell| cell == column).unwrap();
        let measured: BTreeMap<String, String> = lines
            .map(|line| (cells(line)[0].clone(), cells(line)[column].clone()))
            .collect();
        let subjects = ["tollgate+acl", "tonic+acl", "tonic+envoy+acl"];
        for (shown, subject) in cells(row)[1..].iter().zip(subjects) {
            let number = |text: &str| text.split(' ').next().unwrap().replace(',', "");
            assert_eq!(
                number(shown),
                number(&measured[subject]),
                "{row}: {subject}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 9, "the README has a table of three rows");
}

#[test]
fn the_rules_are_these() {
    let page = "\
A file, `a/b.txt`:

```proto
x
```

```console
$ one \\
    more
out

$ two &
```
<!-- run
three
-->
<!-- not run: too long -->
```sh
four
```
```text
five
```
1. ```sh
   six \\
     six
   seven
   ```
";
    let command = |line, text: &str, shown: Option<&[&str]>| Step::Command {
        line,
        text: text.to_owned(),
        shown: shown.map(|lines| lines.iter().map(|&line| line.to_owned()).collect()),
    };
    let expected = [
        Step::File {
            line: 4,
            path: "a/b.txt".to_owned(),
            content: "x\n".to_owned(),
        },
        command(8, "one \\\n    more", Some(&["out"])),
        command(12, "two &", Some(&[])),
        command(15, "three", None),
        Step::NotRun {
            line: 19,
            first: "four".to_owned(),
            reason: "too long".to_owned(),
        },
        command(25, "six \\\n  six", None),
        command(27, "seven", None),
    ];
    assert_eq!(steps(page).unwrap(), expected);
    for (wrong, why) in [
        ("```proto\nx\n```", "no path"),
        ("```sh\nx &\n```", "in the background"),
        ("```console\nx\n```", "before the first command"),
        ("```sh\nx\n", "no end"),
        ("<!-- run\nx\n", "no end"),
        ("<!-- not run: so -->\ntext", "no block"),
        ("```\nx\n```", "no language"),
    ] {
        let refused = steps(wrong).unwrap_err();
        assert!(refused.contains(why), "{wrong:?}: {refused}");
    }
    let is_shown = |shown: &str, printed: &str, is_part: bool| {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        matches(&lines(shown), &lines(printed), is_part)
    };
    assert!(is_shown("a\n...\nd", "a\nb\nc\nd", false));
    assert!(is_shown("...\nd", "d", false));
    assert!(is_shown("at ... us, ...", "at 7 us, 8", false));
    assert!(is_shown("a", "a\nb", true));
    assert!(!is_shown("a", "a\nb", false));
    assert!(!is_shown("a\n...", "b", false));
    assert!(!is_shown("a...a", "a", false));
    assert!(!is_shown("", "a", false));
    let texts = ["# The `x` of *it*", "## The x of it", "### A, b & _c_"];
    let lines: Vec<_> = (1..).zip(texts.map(str::to_owned)).collect();
    let expected = ["the-x-of-it", "the-x-of-it-1", "a-b--c"];
    assert_eq!(anchors(&lines), expected.map(str::to_owned).into());
    let lines = [(3, "[a](b.md#c), `[d](e)`, [f\\]](<g h>) ![i](j)".to_owned())];
    let found: Vec<_> = targets(&lines).into_iter().map(|(_, to)| to).collect();
    assert_eq!(found, ["b.md#c", "g h", "j"]);
}

/// Runs a page; what it finds wrong.
fn run(page: &str) -> Vec<String> {
    let steps = match steps(&read(page)) {
        Ok(steps) => steps,
        Err(error) => return vec![format!("{page}:{error}")],
    };
    if !steps
        .iter()
        .any(|step| matches!(step, Step::Command { .. }))
    {
        return Vec::new();
    }
    let mut session = Session::new(page);
    let mut findings = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::NotRun { .. } => {}
            Step::File {
                line,
                path,
                content,
            } => {
                if let Err(error) = session.save(path, content) {
                    findings.push(format!("{page}:{line}: {path}: {error}"));
                }
            }
            Step::Command { line, text, shown } => {
                let next = steps.get(at + 1);
                let may_fail =
                    matches!(next, Some(Step::Command { text, .. }) if text == "echo $?");
                if let Err(error) = session.command(text, shown.as_deref(), may_fail) {
                    findings.push(format!("{page}:{line}: $ {text}\n{error}"));
                }
            }
        }
        if session.is_over {
            break;
        }
    }
    findings
}

/// A shell, and the processes that it has started.
struct Session {
    shell: Child,
    /// Closed at the end, which ends the shell.
    stdin: Option<ChildStdin>,
    /// The lines that say that a command has ended, with its exit status.
    ended: Receiver<String>,
    place: PathBuf,
    /// What is written for a port on a page, and the port.
    ports: [(&'static str, String); 2],
    commands: usize,
    status: i32,
    is_over: bool,
}

impl Session {
    fn new(page: &str) -> Session {
        let programs = programs();
        let name = Path::new(page).file_stem().unwrap().to_str().unwrap();
        let place = format!("tollgate-{name}-{}", std::process::id());
        let place = std::env::temp_dir().join(place);
        let checkout = place.join("tollgate");
        std::fs::create_dir_all(&checkout).unwrap();
        std::fs::create_dir_all(place.join("tmp")).unwrap();
        std::fs::create_dir_all(place.join("log")).unwrap();
        for entry in std::fs::read_dir(root()).unwrap().map(Result::unwrap) {
            if entry.file_name() != "target" && entry.file_name() != ".git" {
                symlink(entry.path(), checkout.join(entry.file_name())).unwrap();
            }
        }
        symlink(programs.parent().unwrap(), checkout.join("target")).unwrap();

        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .current_dir(&checkout)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("TMPDIR", place.join("tmp"))
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TERM_COLOR", "never")
            // Shared with the tests of the libraries' own pages, so dependencies are built once.
            .env("CARGO_TARGET_DIR", tmpdir().join("readme-rust/target"))
            .env("REPOSITORY", root())
            .env_remove("TOLLGATE_SOCKET")
            .env_remove("TOLLGATE_TOKEN")
            .env_remove("TOLLGATE_TOKEN_FILE")
            .env_remove("LD_LIBRARY_PATH")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut shell = shell.spawn().unwrap();
        let mut stdin = shell.stdin.take().unwrap();
        // Also if this process dies: its end of the pipe closes.
        writeln!(stdin, "trap 'trap - EXIT TERM; kill -TERM 0' EXIT").unwrap();
        let stdout = BufReader::new(shell.stdout.take().unwrap());
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _over = sender.send(line);
            }
        });
        Session {
            shell,
            stdin: Some(stdin),
            ended,
            place,
            ports: [("7471", free_port()), ("7472", free_port())],
            commands: 0,
            status: 0,
            is_over: false,
        }
    }

    fn with_ports(&self, text: &str) -> String {
        let replace = |text: String, (shown, port): &(&str, String)| text.replace(shown, port);
        self.ports.iter().fold(text.to_owned(), replace)
    }

    /// Runs one command. An error says what differs.
    fn command(
        &mut self,
        text: &str,
        shown: Option<&[String]>,
        may_fail: bool,
    ) -> Result<(), String> {
        let text = self.with_ports(text);
        let shown: Option<Vec<_>> =
            shown.map(|lines| lines.iter().map(|line| self.with_ports(line)).collect());
        let (printed, status) = self.execute(&text)?;
        self.status = status;
        let mut lines = lines_of(&printed);
        let in_background = text.ends_with('&');
        let Some(shown) = shown else {
            return match status {
                0 => Ok(()),
                _ => Err(difference(None, &lines, status)),
            };
        };
        let end = Instant::now() + READY;
        while in_background && !matches(&shown, &lines, true) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            lines = lines_of(&printed);
        }
        if !matches(&shown, &lines, in_background) || (status != 0 && !may_fail) {
            return Err(difference(Some(&shown), &lines, status));
        }
        Ok(())
    }

    /// Writes a file below the session's current directory.
    fn save(&mut self, path: &str, content: &str) -> Result<(), String> {
        let content = content.replace("../tollgate", root().to_str().unwrap());
        let saved = self.place.join(format!("log/{}.file", self.commands));
        std::fs::write(&saved, content).unwrap();
        let copy = format!(
            "mkdir -p \"$(dirname {path})\" && cp {} {path}",
            saved.display()
        );
        let (printed, status) = self.execute(&copy)?;
        match status {
            0 => Ok(()),
            _ => Err(std::fs::read_to_string(printed).unwrap()),
        }
    }

    /// Runs a command to its end; the file with what it prints, and its exit status.
    fn execute(&mut self, text: &str) -> Result<(PathBuf, i32), String> {
        self.commands += 1;
        let number = self.commands;
        let file = |ending: &str| self.place.join(format!("log/{number}.{ending}"));
        let (script, printed) = (file("sh"), file("out"));
        std::fs::write(&script, format!("{text}\n")).unwrap();
        let line = format!(
            "(exit {}); . {} </dev/null >{} 2>&1; echo $?",
            self.status,
            script.display(),
            printed.display()
        );
        let stdin = self.stdin.as_mut().unwrap();
        let _ended = writeln!(stdin, "{line}");
        match self.ended.recv_timeout(COMMAND) {
            Ok(status) => Ok((printed, status.parse().unwrap())),
            Err(error) => {
                self.is_over = true;
                let lines = lines_of(&printed);
                let why = format!("  the session ended, or hangs ({error}); the page ends here\n");
                Err(why + &difference(None, &lines, -1))
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let group = self.shell.id();
        let is_left = || {
            let mut look = Command::new("sh");
            let look = look.args(["-c", &format!("kill -s 0 -- -{group} 2>/dev/null")]);
            look.status().is_ok_and(|status| status.success())
        };
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let _reaped = self.shell.try_wait();
            if !is_left() || Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let kill = format!("kill -s KILL -- -{group} 2>/dev/null");
        let _gone = Command::new("sh").args(["-c", &kill]).status();
        let _reaped = self.shell.wait();
        let _kept = std::fs::remove_dir_all(&self.place);
    }
}

fn difference(shown: Option<&[String]>, printed: &[String], status: i32) -> String {
    let mut text = String::new();
    let mut section = |title: &str, lines: &[String]| {
        let _infallible = writeln!(text, "  {title}:");
        for line in lines {
            let _infallible = writeln!(text, "    {line}");
        }
    };
    if let Some(shown) = shown {
        section("the page shows", shown);
    }
    section(&format!("printed, with exit status {status}"), printed);
    text
}

/// Whether output is what a page shows. `is_part`: the output may have more lines behind.
fn matches(shown: &[String], printed: &[String], is_part: bool) -> bool {
    match shown.split_first() {
        None => is_part || printed.is_empty(),
        Some((any, shown)) if any.trim() == "..." => {
            (0..=printed.len()).any(|skipped| matches(shown, &printed[skipped..], is_part))
        }
        Some((line, shown)) => match printed.split_first() {
            Some((said, printed)) => is_like(line, said) && matches(shown, printed, is_part),
            None => false,
        },
    }
}

/// Whether a line is like a shown one, in which `...` is any text.
fn is_like(shown: &str, said: &str) -> bool {
    let Some((start, rest)) = shown.split_once("...") else {
        return shown.trim_end() == said.trim_end();
    };
    let Some(said) = said.strip_prefix(start) else {
        return false;
    };
    let places = said.char_indices().map(|(at, _)| at).chain([said.len()]);
    places
        .into_iter()
        .any(|at| is_like(rest, said.get(at..).unwrap_or_default()))
}

/// The lines of a file, without empty ones at its start and end.
fn lines_of(file: &Path) -> Vec<String> {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    trimmed(text.lines().map(str::to_owned).collect())
}

fn trimmed(mut lines: Vec<String>) -> Vec<String> {
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    let empty = lines.iter().take_while(|line| line.trim().is_empty());
    let empty = empty.count();
    lines.split_off(empty)
}

/// A page's steps. An error begins with its line.
fn steps(page: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut lines = (1..).zip(page.lines());
    // The last line with text, and the reason not to run the next block.
    let (mut before, mut reason) = ("", None);
    while let Some((number, line)) = lines.next() {
        let text = line.trim_start().trim_start_matches("1. ");
        let error = |what: &str| Err(format!("{number}: {what}"));
        if let Some(why) = text.strip_prefix("<!-- not run: ") {
            let Some(why) = why.strip_suffix(" -->") else {
                return error("the reason has no end in its line");
            };
            reason = Some(why.to_owned());
            continue;
        }
        if text.trim() == "<!-- run" {
            let mut hidden = Vec::new();
            loop {
                match lines.next() {
                    Some((_, line)) if line.trim() == "-->" => break,
                    Some((_, line)) => hidden.push(line),
                    None => return error("the comment has no end"),
                }
            }
            script(number + 1, &hidden, &mut steps)?;
            continue;
        }
        let Some(language) = text.strip_prefix("```") else {
            if !line.trim().is_empty() {
                if reason.is_some() {
                    return error("no block follows the reason");
                }
                before = line.trim();
            }
            continue;
        };
        let indent = line.len() - text.len();
        let mut block = Block {
            line: number + 1,
            language: language.split(',').next().unwrap_or_default().trim(),
            lines: Vec::new(),
        };
        loop {
            match lines.next() {
                Some((_, line)) if line.trim() == "```" => break,
                Some((_, line)) => block.lines.push(line.get(indent..).unwrap_or_default()),
                None => return error("the block has no end"),
            }
        }
        match reason.take() {
            Some(reason) => steps.push(Step::NotRun {
                line: block.line,
                first: block.lines.first().copied().unwrap_or_default().to_owned(),
                reason,
            }),
            None => steps.extend(steps_of(&block, before)?),
        }
        before = "";
    }
    Ok(steps)
}

/// A block's steps; `before` is the line with text before it.
fn steps_of(block: &Block<'_>, before: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    match block.language {
        "" => return Err(format!("{}: a block has no language", block.line)),
        "text" => {}
        "sh" => script(block.line, &block.lines, &mut steps)?,
        "console" => transcript(block, &mut steps)?,
        _ => {
            let path = before.strip_suffix("`:").and_then(|b| b.rsplit('`').next());
            let Some(path) = path else {
                let why = "a file has no path in the line before it";
                return Err(format!("{}: {why}", block.line));
            };
            steps.push(Step::File {
                line: block.line,
                path: path.to_owned(),
                content: block.lines.join("\n") + "\n",
            });
        }
    }
    Ok(steps)
}

/// The commands of a block of `sh`.
fn script(first: usize, lines: &[&str], steps: &mut Vec<Step>) -> Result<(), String> {
    let mut lines = (first..).zip(lines);
    while let Some((line, text)) = lines.next() {
        let mut text = (*text).to_owned();
        while text.ends_with('\\') {
            let Some((_, more)) = lines.next() else { break };
            text += "\n";
            text += more;
        }
        if text.trim().is_empty() {
            continue;
        }
        if text.ends_with('&') {
            let why = "a command in the background belongs to a block of console";
            return Err(format!("{line}: {why}"));
        }
        steps.push(Step::Command {
            line,
            text,
            shown: None,
        });
    }
    Ok(())
}

/// The commands of a block of `console`, with their output.
fn transcript(block: &Block<'_>, steps: &mut Vec<Step>) -> Result<(), String> {
    let first = steps.len();
    let mut is_command = false;
    for (line, text) in (block.line..).zip(&block.lines) {
        if let Some(text) = text.strip_prefix("$ ") {
            steps.push(Step::Command {
                line,
                text: without_comment(text).to_owned(),
                shown: Some(Vec::new()),
            });
            is_command = true;
            continue;
        }
        let Some(Step::Command {
            text: command,
            shown: Some(shown),
            ..
        }) = steps.get_mut(first..).and_then(|steps| steps.last_mut())
        else {
            return Err(format!("{line}: output before the first command"));
        };
        if is_command && command.ends_with('\\') {
            command.push('\n');
            command.push_str(without_comment(text));
        } else {
            is_command = false;
            shown.push((*text).to_owned());
        }
    }
    for step in steps.iter_mut().skip(first) {
        if let Step::Command {
            shown: Some(shown), ..
        } = step
        {
            *shown = trimmed(std::mem::take(shown));
        }
    }
    Ok(())
}

/// A command without the comment behind it, which two spaces set apart.
fn without_comment(text: &str) -> &str {
    text.split("  # ").next().unwrap_or_default().trim_end()
}

/// The lines of a page with their numbers, except blocks and comments.
fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut is_block, mut is_comment) = (false, false);
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let fence = line.trim_start().trim_start_matches("1. ");
        if fence.starts_with("```") || fence.starts_with("~~~") {
            is_block = !is_block;
        } else if !is_block {
            is_comment |= line.trim_start().starts_with("<!--");
            if !is_comment {
                lines.push((number, line.to_owned()));
            }
            is_comment &= !line.contains("-->");
        }
    }
    lines
}

/// The anchors of a page's headings, as GitHub and mdbook make them.
fn anchors(lines: &[(usize, String)]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for (_, line) in lines {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let mut slug = String::new();
        for letter in heading.trim().to_lowercase().chars() {
            match letter {
                ' ' => slug.push('-'),
                '-' => slug.push('-'),
                letter if letter.is_alphanumeric() => slug.push(letter),
                _ => {}
            }
        }
        let before = times.entry(slug.clone()).or_default();
        let anchor = match *before {
            0 => slug,
            before => format!("{slug}-{before}"),
        };
        *before += 1;
        all.insert(anchor);
    }
    all
}

/// The targets of the links and pictures of a page, with their lines. A link may break between its
/// text and its end.
fn targets(lines: &[(usize, String)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in lines {
        let line = without_code(line);
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let target = match rest.strip_prefix('<') {
                Some(rest) => rest.split('>').next(),
                None => rest.split([')', ' ']).next(),
            };
            found.push((*number, target.unwrap_or_default().to_owned()));
        }
    }
    found
}

/// A line without the text between backticks.
fn without_code(line: &str) -> String {
    match line.matches('`').count() % 2 {
        // Code that begins in another line: leave it.
        1 => line.to_owned(),
        _ => line.split('`').step_by(2).collect(),
    }
}

/// A path without `.` and `..`, links followed by nobody.
fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                flat.pop();
            }
            Component::CurDir => {}
            part => flat.push(part),
        }
    }
    flat
}

/// The pages whose commands are run, by their paths in the repository.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned()];
    let guide = markdown(&root().join("docs/src/guide"));
    let relative = |page: &PathBuf| page.strip_prefix(root()).unwrap().display().to_string();
    pages.extend(guide.iter().map(relative));
    pages
}

/// All Markdown files below a directory, except build output and version control.
fn markdown(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            let skipped = ["target", ".git", "out", "book", "node_modules"];
            if !skipped.iter().any(|skipped| name == *skipped) {
                found.extend(markdown(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

fn root() -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_directory.parent().unwrap().to_owned()
}

fn tmpdir() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// The directory of the built programs: the one above this test's.
fn programs() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let programs = match std::env::var_os("TOLLGATE_PROGRAMS") {
        Some(programs) => PathBuf::from(programs),
        None => here.ancestors().nth(2).unwrap().to_owned(),
    };
    let shown = programs.display();
    assert!(
        programs.join("tollgated").exists() && programs.join("tollgate").exists(),
        "{shown} has no daemon; run `cargo build --workspace` first"
    );
    programs
}

/// A port that nobody listens on.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

fn report(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

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
//! - A command that ends in `&` belongs to a block of `console`, and shows the output that says
//!   that it is ready. The session waits for this output, and ignores output after it.
//! - A command succeeds, unless the next command is `echo $?`, which shows its exit status.
//! - The ports 7471 and 7472 stand for free ones, and `../tollgate` in a file for the repository.
//! - Hidden lines find the repository in `$REPOSITORY`. Cargo is offline, and has a target
//!   directory of its own.
//!
//! `TOLLGATE_PAGE=first-call` runs only the pages whose path contains that. The test uses nothing
//! but the standard library, so `rustc --edition 2024 --test` builds it in seconds; it then needs
//! `CARGO_MANIFEST_DIR` and `CARGO_TARGET_TMPDIR` when it is built, and `TOLLGATE_PROGRAMS`, the
//! directory of the built programs, when it runs.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod files;
mod links;
mod page;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use crate::files::{markdown, read, report, root};
use crate::links::{anchors, flat, prose, targets};
use crate::page::{Step, steps};
use crate::session::{Session, matches};

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

/// Pages at once: most of their time is waiting.
const AT_ONCE: usize = 3;

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
    let book = root().join("docs/src");
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
            } else if page.starts_with(&book) && !file.starts_with(&book) {
                findings.push(format!("{shown}:{number}: {target}: not in the book"));
            } else if !anchor.is_empty()
                && !anchors.get(&file).is_some_and(|all| all.contains(anchor))
            {
                findings.push(format!("{shown}:{number}: {target}: no such heading"));
            }
        }
    }
    // A page that the summary doesn't list isn't in the book.
    let summary = book.join("SUMMARY.md");
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

/// The pages whose commands are run, by their paths in the repository.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned()];
    let guide = markdown(&root().join("docs/src/guide"));
    let relative = |page: &PathBuf| page.strip_prefix(root()).unwrap().display().to_string();
    pages.extend(guide.iter().map(relative));
    pages
}

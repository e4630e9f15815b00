//! The reference pages of the book, and its troubleshooting, compared with the code.
//!
//! The tests read sources as text. `limits.md` is generated from the files `limits.rs`; all other
//! pages are written by hand, and each test says which of their columns it compares. Where a page
//! lists items that code defines, it has to list all of them and no others.
//!
//! The files use the standard library only.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

mod constants;
mod text;

use constants::{Evaluation, LIMITS, limits, limits_of, shown, unit};
use text::{literals, numbered, read, root, rows, sources, table};

/// `TOLLGATE_BLESS=1` rewrites the tables.
#[test]
fn limits_are_those_of_the_sources() {
    const BEGIN: &str =
        "<!-- limits: by TOLLGATE_BLESS=1 cargo test --workspace --test reference -->\n";
    const END: &str = "<!-- end of limits -->";
    let files: BTreeSet<_> = LIMITS.iter().map(|(krate, _)| limits_of(krate)).collect();
    let found = sources(&["service", "client-libs", "marshal-codegen"]);
    let found = found.into_iter().filter(|file| file.ends_with("limits.rs"));
    assert_eq!(found.collect::<BTreeSet<_>>(), files, "LIMITS lists all");

    let path = root().join("docs/src/reference/limits.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (written, after) = rest.split_once(END).unwrap();
    let tables = limit_tables();
    assert!(tables.lines().count() > 400, "limits were found");
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        return std::fs::write(path, format!("{before}{BEGIN}{tables}{END}{after}")).unwrap();
    }
    for (written, expected) in written.lines().zip(tables.lines()) {
        assert_eq!(written, expected, "see the comment above the tables");
    }
    assert_eq!(written, tables, "see the comment above the tables");
}

/// Number and name of each code.
#[test]
fn status_codes_are_those_of_the_sources() {
    let text = read("client-libs/shm-abi/src/status.rs");
    let (_, list) = text.split_once("codes! {\n").unwrap();
    let (list, _) = list.split_once("\n}").unwrap();
    let mut defined = BTreeMap::new();
    for line in list.lines().filter(|line| !line.contains("///")) {
        let (name, number) = line.trim().trim_end_matches(',').split_once(" = ").unwrap();
        defined.insert(number.parse::<u32>().unwrap(), name.to_owned());
    }
    assert!(defined.len() >= 17);
    assert_eq!(numbered("docs/src/reference/status-codes.md", 1), defined);
}

/// Each exit status; of status codes also the name with which the meaning begins.
#[test]
fn exit_codes_are_those_of_the_sources() {
    let mut expected = numbered("docs/src/reference/status-codes.md", 1);
    // Success has no name here, and a test's failure has the number of CANCELLED.
    expected.insert(0, "The".to_owned());
    for file in [
        "service/cli/src/failure.rs",
        "service/cli/src/policy_tools.rs",
        "service/daemon/src/main.rs",
        "marshal-codegen/gen/src/bin/protoc-gen-tollgate.rs",
    ] {
        let text = read(file);
        let constants = text.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("const ")?.split_once(": u8 = ")?;
            Some((name.to_owned(), value.trim_end_matches(';').parse().ok()?))
        });
        for (name, value) in constants {
            assert!(value < 256, "{file}: {name}");
            let word = match &*name {
                "UNWRITTEN" => "Standard".to_owned(),
                "CLOSED" => "The".to_owned(),
                "WAITS" => "A".to_owned(),
                "CASES_FAILED" => "CANCELLED".to_owned(),
                "WOULD_CHANGE" => "apply".to_owned(),
                _ => name,
            };
            expected.insert(value, word);
        }
    }
    assert!(expected.contains_key(&74) && expected.contains_key(&141));
    let mut words = numbered("docs/src/reference/exit-codes.md", 1);
    for meaning in words.values_mut() {
        let word = meaning.split([' ', ':']).next().unwrap();
        *meaning = word.to_owned();
    }
    assert_eq!(words, expected);
}

/// Each metric's name, type and unit, and the help text with which its meaning begins.
#[test]
fn metrics_are_those_of_the_sources() {
    let source = read("service/daemon/src/control/observe/telemetry.rs");
    let defined = families(&source);
    assert!(defined.len() > 20, "metrics were found");
    let mut findings = Vec::new();
    let page = rows("docs/src/reference/metrics.md");
    let described: Vec<_> = page.iter().filter(|row| row.len() == 5).collect();
    for family in &defined {
        let name = format!("`{}`", family.name);
        match described.iter().find(|row| row[0] == name) {
            None => findings.push(format!("{name} isn't described")),
            Some(row) => {
                let help = family.help.trim_end_matches('.');
                let is_same = row[1] == family.kind
                    && row[2] == format!("`{}`", family.unit)
                    && row[4].starts_with(help);
                if !is_same {
                    findings.push(format!("{name} is {family:?}"));
                }
            }
        }
    }
    for row in described.iter().filter(|row| row[0].starts_with('`')) {
        let name = row[0].trim_matches('`');
        if defined.iter().all(|family| family.name != name) {
            findings.push(format!("{name} doesn't exist"));
        }
    }
    report(&findings);
}

/// The names of metrics, labels, attributes and events.
#[test]
fn names_of_telemetry_are_those_of_the_sources() {
    let is_name = |text: &str| {
        let roots = ["tollgate.", "rpc.", "otel.", "error.", "network."];
        let is_plain = |c: char| c.is_ascii_lowercase() || c == '.' || c == '_';
        roots.iter().any(|root| text.starts_with(root)) && text.chars().all(is_plain)
    };
    let mut defined = BTreeSet::new();
    for file in [
        "service/daemon/src/control/observe/telemetry.rs",
        "service/datapath/src/observe/traces.rs",
        "service/telemetry/src/metrics.rs",
        "service/telemetry/src/otlp.rs",
        "service/telemetry/src/otlp/spans.rs",
        "service/telemetry/src/record.rs",
    ] {
        let literals = literals(&read(file)).into_iter().map(|(_, text)| text);
        defined.extend(literals.filter(|text| is_name(text)));
    }
    let page = read("docs/src/reference/metrics.md");
    let quoted = page.split('`').skip(1).step_by(2).map(str::to_owned);
    // The page's example of a name as Prometheus has it uses underscores only.
    let described: BTreeSet<_> = quoted.filter(|text| is_name(text)).collect();
    assert!(defined.len() > 40, "names were found");
    assert_eq!(described, defined);
}

/// Number and name of each kind of frame.
#[test]
fn frames_are_those_of_the_sources() {
    let mut defined = BTreeMap::new();
    for row in table(&read("service/transport/src/frame.rs")) {
        if let Ok(number) = row[0].parse::<u32>() {
            defined.insert(number, row[1].clone());
        }
    }
    assert!(defined.len() >= 18);
    assert_eq!(numbered("docs/src/reference/frames.md", 1), defined);
}

/// Number and names of each kind of descriptor.
#[test]
fn descriptors_are_those_of_the_sources() {
    let names = |rows: Vec<Vec<String>>| -> Vec<Vec<String>> {
        let is_kind = |row: &Vec<String>| row[0].parse::<u32>().is_ok();
        let first = |cell: &String| cell.split(':').next().unwrap().to_owned();
        let kinds = rows.into_iter().filter(is_kind);
        kinds.map(|row| row.iter().map(first).collect()).collect()
    };
    let defined = names(table(&read("client-libs/shm-abi/src/descriptor.rs")));
    assert!(defined.len() >= 9);
    assert_eq!(names(rows("docs/src/reference/descriptors.md")), defined);
}

/// Each text of the troubleshooting page, in the first column: code has the parts between `...`.
#[test]
fn troubleshooting_quotes_texts_that_exist() {
    // Parts of texts that the kernel makes, or that are inserted.
    const INSERTED: &[&str] = &[
        ": No such file or directory",
        ": Connection refused",
        "/etc/group",
        "/etc/passwd",
        "failed, so",
        "is out of order, so",
    ];
    let mut texts = String::new();
    for file in sources(&["service", "client-libs", "marshal-codegen"]) {
        for (_, text) in literals(&std::fs::read_to_string(file).unwrap()) {
            texts += &text;
            texts.push('\n');
        }
    }
    let mut findings = Vec::new();
    let mut quoted = 0;
    for row in rows("docs/src/operate/troubleshooting.md") {
        let Some(text) = row[0]
            .strip_prefix('`')
            .and_then(|text| text.strip_suffix('`'))
        else {
            continue;
        };
        quoted += 1;
        let mut text = text.to_owned();
        for inserted in INSERTED {
            text = text.replace(inserted, "...");
        }
        let parts = text.split("...").map(|part| part.trim_matches([' ', ':']));
        let missing = parts.filter(|part| part.len() >= 4 && !texts.contains(part));
        findings.extend(missing.map(|part| format!("no text has {part:?}, of {:?}", row[0])));
    }
    assert!(quoted > 150, "only {quoted} texts were found");
    report(&findings);
}

/// A metric as the daemon defines it.
#[derive(Debug)]
struct Family {
    name: String,
    kind: String,
    unit: String,
    help: String,
}

/// The metrics of the control plane's file: `Family::new(name, unit, help, kind)`, or a closure
/// that has kind or unit in its name.
fn families(source: &str) -> Vec<Family> {
    let all = literals(source);
    let is_unit = |text: &str| text == "s" || text == "By" || text.starts_with('{');
    let mut families = Vec::new();
    for (index, (at, name)) in all.iter().enumerate() {
        let made = source[..*at].trim_end();
        let Some(made) = made.strip_suffix('(') else {
            continue;
        };
        let kind_after = || {
            let (_, kind) = source[*at..].split_once("Kind::").unwrap();
            kind.split([',', ')', '\n'])
                .next()
                .unwrap()
                .to_ascii_lowercase()
        };
        let kind = match made.rsplit([' ', '\n']).next().unwrap() {
            "Family::new" => kind_after(),
            "counter" | "count" => "counter".to_owned(),
            "gauge" => "gauge".to_owned(),
            "family" => "histogram".to_owned(),
            _ => continue,
        };
        let next = |places: usize| all[index + places].1.clone();
        let (unit, help) = match is_unit(&next(1)) {
            true => (next(1), next(2)),
            false => ("s".to_owned(), next(1)),
        };
        families.push(Family {
            name: name.clone(),
            kind,
            unit,
            help,
        });
    }
    families
}

/// All tables of limits, in Markdown.
fn limit_tables() -> String {
    let mut text = String::new();
    for (krate, heading) in LIMITS {
        let file = limits_of(krate);
        text +=
            &format!("\n## {heading}\n\n`{krate}`\n\n| limit | value | meaning |\n|---|---|---|\n");
        for limit in limits(&file) {
            let value = Evaluation {
                file: &file,
                depth: 0,
            }
            .of(&limit.expression);
            let value = value.unwrap_or_else(|| panic!("{krate}: {} is new here", limit.name));
            let value = shown(&value, unit(&limit));
            text += &format!("| `{}` | {value} | {} |\n", limit.name, limit.meaning);
        }
    }
    text.push('\n');
    text
}

fn report(findings: &[String]) {
    assert!(findings.is_empty(), "\n  {}\n", findings.join("\n  "));
}

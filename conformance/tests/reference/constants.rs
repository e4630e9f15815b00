//! The constants of the files `limits.rs`: names, comments, and values.
//!
//! [`Evaluation`] computes the expressions that these files have: numbers, arithmetic, durations,
//! tuples, ranges, and references to constants of other files. Every other expression has no value
//! here, and fails the test.

use std::path::{Path, PathBuf};

use crate::text::root;

/// The crates with limits, in the page's order, and their headings there.
pub(crate) const LIMITS: &[(&str, &str)] = &[
    ("service/daemon", "Daemon"),
    ("service/control", "State and audit log"),
    ("service/datapath", "Runtimes"),
    ("service/engine", "Calls"),
    ("service/policy-chain", "Chains of policies"),
    ("service/policy-host", "Policy host"),
    ("service/transport", "Transport"),
    ("service/transport-rdma", "RDMA"),
    ("service/telemetry", "Telemetry"),
    ("service/console", "Console"),
    ("service/admin", "Administrative API"),
    ("service/provenance", "Origins of modules"),
    ("service/cli", "Command line"),
    ("service/policy-tools", "Policy tools"),
    ("service/policy-rules", "Rules"),
    ("client-libs/shm-abi", "Shared memory"),
    ("client-libs/core", "Sessions of applications"),
    ("client-libs/core/src/codec", "Encoders of applications"),
    ("marshal-codegen/schema", "Schemas"),
    ("marshal-codegen/marshal", "Views"),
    ("marshal-codegen/jit", "Machine code"),
];

/// A constant of a file `limits.rs`.
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) expression: String,
    pub(crate) meaning: String,
}

pub(crate) fn limits_of(krate: &str) -> PathBuf {
    let directory = root().join(krate);
    match directory.join("src").is_dir() {
        true => directory.join("src/limits.rs"),
        false => directory.join("limits.rs"),
    }
}

/// The public constants of a file, with their comments.
pub(crate) fn limits(file: &Path) -> Vec<Limit> {
    let text = std::fs::read_to_string(file).unwrap();
    let (mut all, mut comment) = (Vec::new(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(more) = line.strip_prefix("///") {
            comment += more;
            continue;
        }
        if line.starts_with("#[") {
            continue;
        }
        let meaning = prose(std::mem::take(&mut comment).trim());
        let public = line
            .strip_prefix("pub const ")
            .or_else(|| line.strip_prefix("pub(crate) const "));
        let Some((name, rest)) = public.and_then(|line| line.split_once(": ")) else {
            continue;
        };
        let mut whole = rest.to_owned();
        while !whole.ends_with(';') {
            whole.push(' ');
            whole += lines.next().unwrap().trim();
        }
        let (_, expression) = whole.split_once("= ").unwrap();
        all.push(Limit {
            name: name.to_owned(),
            expression: expression.trim_end_matches(';').to_owned(),
            meaning,
        });
    }
    all
}

/// A comment as a cell of a table: links to code become their text.
fn prose(comment: &str) -> String {
    let mut text = String::new();
    let mut rest = comment;
    while let Some((before, link)) = rest.split_once('[') {
        text += before;
        let (name, after) = link.split_once(']').unwrap();
        text += name;
        rest = match after.strip_prefix('(') {
            Some(target) => target.split_once(')').unwrap().1,
            None => after,
        };
    }
    (text + rest).replace('|', "\\|").replace('*', "\\*")
}

/// The unit of a limit, by its name or the first words of its comment.
pub(crate) fn unit(limit: &Limit) -> &'static str {
    let words: Vec<_> = limit.name.split('_').collect();
    for (word, unit) in [("MS", "ms"), ("US", "us"), ("NS", "ns"), ("KIB", "KiB")] {
        if words.contains(&word) {
            return unit;
        }
    }
    let sentence = limit.meaning.split(['.', ':', ';']).next().unwrap();
    let sentence = sentence.to_lowercase();
    let signs = [
        "in bytes",
        "many bytes",
        "queued bytes",
        ", bytes",
        "bytes of ",
    ];
    let says_bytes = signs.iter().any(|sign| sentence.contains(sign));
    match () {
        () if words.last() == Some(&"S") => "s",
        () if words.contains(&"FUEL") => "units of fuel",
        () if words.contains(&"BYTES") || says_bytes => "bytes",
        () => "",
    }
}

/// The value of a constant.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Number(i128),
    Fraction(f64),
    /// In nanoseconds.
    Time(i128),
    Several(Vec<Value>),
    Range(Box<Value>, Box<Value>),
}

pub(crate) fn shown(value: &Value, unit: &str) -> String {
    match value {
        Value::Fraction(fraction) if *fraction < 0.01 => fraction.to_string(),
        Value::Fraction(fraction) => format!("{fraction:.2}").trim_end_matches(".00").to_owned(),
        Value::Several(values) => {
            let all: Vec<_> = values.iter().map(|value| shown(value, unit)).collect();
            all.join(", ")
        }
        Value::Range(least, most) => format!("{} to {}", shown(least, unit), shown(most, unit)),
        Value::Number(number) => match unit {
            "bytes" => bytes(*number),
            "" => grouped(*number),
            "ms" => time(number * 1_000_000),
            "us" => time(number * 1_000),
            "ns" => time(*number),
            _ => format!("{} {unit}", grouped(*number)),
        },
        Value::Time(ns) => time(*ns),
    }
}

fn time(ns: i128) -> String {
    let units = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ];
    // Up to a minute, in seconds.
    let skipped = if ns > 60_000_000_000 { 0 } else { 3 };
    let fits = |(_, size): &&(&str, i128)| ns % size == 0;
    let (unit, size) = units[skipped..].iter().find(fits).unwrap();
    format!("{} {unit}", grouped(ns / size))
}

fn bytes(number: i128) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if number > 0 && number % (1 << shift) == 0 {
            return format!("{} {unit}", grouped(number >> shift));
        }
    }
    format!("{} bytes", grouped(number))
}

/// A number with a comma before each three digits.
fn grouped(number: i128) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Computes a constant expression as the files `limits.rs` have them.
pub(crate) struct Evaluation<'a> {
    pub(crate) file: &'a Path,
    /// References to other constants on the way here.
    pub(crate) depth: usize,
}

impl Evaluation<'_> {
    pub(crate) fn of(&self, expression: &str) -> Option<Value> {
        let tokens = tokens(expression);
        let mut rest = &tokens[..];
        let value = self.range(&mut rest)?;
        rest.is_empty().then_some(value)
    }

    fn range(&self, rest: &mut &[String]) -> Option<Value> {
        let least = self.shift(rest)?;
        match taken(rest, "..=") {
            true => Some(Value::Range(Box::new(least), Box::new(self.shift(rest)?))),
            false => Some(least),
        }
    }

    fn shift(&self, rest: &mut &[String]) -> Option<Value> {
        let mut value = self.sum(rest)?;
        while taken(rest, "<<") {
            let places = self.sum(rest)?;
            value = combined(value, places, |a, b| a.checked_shl(b.try_into().ok()?))?;
        }
        Some(value)
    }

    fn sum(&self, rest: &mut &[String]) -> Option<Value> {
        let mut value = self.product(rest)?;
        loop {
            if taken(rest, "+") {
                value = combined(value, self.product(rest)?, i128::checked_add)?;
            } else if taken(rest, "-") {
                value = combined(value, self.product(rest)?, i128::checked_sub)?;
            } else {
                return Some(value);
            }
        }
    }

    fn product(&self, rest: &mut &[String]) -> Option<Value> {
        let mut value = self.cast(rest)?;
        loop {
            if taken(rest, "*") {
                value = combined(value, self.cast(rest)?, i128::checked_mul)?;
            } else if taken(rest, "/") {
                value = match (value, self.cast(rest)?) {
                    (Value::Fraction(a), Value::Fraction(b)) => Value::Fraction(a / b),
                    (a, b) => combined(a, b, i128::checked_div)?,
                };
            } else {
                return Some(value);
            }
        }
    }

    fn cast(&self, rest: &mut &[String]) -> Option<Value> {
        let value = self.operand(rest)?;
        while taken(rest, "as") {
            let (_type, after) = rest.split_first()?;
            *rest = after;
        }
        Some(value)
    }

    fn operand(&self, rest: &mut &[String]) -> Option<Value> {
        if taken(rest, "(") {
            let mut values = vec![self.range(rest)?];
            while taken(rest, ",") && rest.first().is_some_and(|next| next != ")") {
                values.push(self.range(rest)?);
            }
            if !taken(rest, ")") {
                return None;
            }
            return match values.len() {
                1 => values.pop(),
                _ => Some(Value::Several(values)),
            };
        }
        let (token, after) = rest.split_first()?;
        *rest = after;
        let plain = token.replace('_', "");
        if let Some(digits) = plain.strip_prefix("0x") {
            let number = i128::from_str_radix(digits, 16).ok()?;
            return Some(Value::Number(number));
        }
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            return match plain.parse() {
                Ok(number) => Some(Value::Number(number)),
                Err(_) => plain.parse().ok().map(Value::Fraction),
            };
        }
        match taken(rest, "(") {
            false => self.constant(token),
            true => {
                let Value::Number(number) = self.range(rest)? else {
                    return None;
                };
                let ns = match token.rsplit("::").next()? {
                    "from_secs" => 1_000_000_000,
                    "from_millis" => 1_000_000,
                    "from_micros" => 1_000,
                    "from_nanos" => 1,
                    _ => return None,
                };
                taken(rest, ")").then_some(Value::Time(number * ns))
            }
        }
    }

    /// A constant of this file, or of another one.
    fn constant(&self, path: &str) -> Option<Value> {
        if path == "u32::MAX" {
            return Some(Value::Number(u32::MAX.into()));
        }
        if self.depth > 8 {
            return None;
        }
        let file = self.file_of(path)?;
        let (_, name) = path.rsplit_once("::").unwrap_or(("", path));
        let limit = limits(&file).into_iter().find(|limit| limit.name == name)?;
        let depth = self.depth + 1;
        Evaluation { file: &file, depth }.of(&limit.expression)
    }

    /// The file that defines a constant: this one, one that it imports, or one that the path names.
    fn file_of(&self, path: &str) -> Option<PathBuf> {
        let Some((module, _)) = path.rsplit_once("::") else {
            let text = std::fs::read_to_string(self.file).ok()?;
            let imported = text.lines().find_map(|line| {
                let import = line.strip_prefix("use ")?.strip_suffix(';')?;
                import.ends_with(&format!("::{path}")).then_some(import)
            });
            return match imported {
                Some(import) => self.file_of(import),
                None => Some(self.file.to_owned()),
            };
        };
        let first = module.split("::").next()?;
        if first == "crate" {
            let module = module.rsplit("::").next()?;
            return Some(self.file.parent()?.join(format!("{module}.rs")));
        }
        let text = std::fs::read_to_string(self.file).ok()?;
        let alias = format!("::limits as {first};");
        let renamed = text.lines().find(|line| line.ends_with(&alias));
        let krate = match renamed {
            Some(line) => line.strip_prefix("use ")?.split("::").next()?,
            None => first,
        };
        let directory = krate.strip_prefix("tollgate_")?.replace('_', "-");
        let is_it = |(krate, _): &&(&str, &str)| krate.ends_with(&format!("/{directory}"));
        LIMITS.iter().find(is_it).map(|(krate, _)| limits_of(krate))
    }
}

fn combined(a: Value, b: Value, operation: impl Fn(i128, i128) -> Option<i128>) -> Option<Value> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => operation(a, b).map(Value::Number),
        _ => None,
    }
}

fn taken(rest: &mut &[String], token: &str) -> bool {
    match rest.split_first() {
        Some((first, after)) if first == token => {
            *rest = after;
            true
        }
        _ => false,
    }
}

/// Numbers, paths and signs.
fn tokens(expression: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = expression.trim();
    while let Some(next) = rest.chars().next() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let len = match next {
            _ if rest.starts_with("..=") => 3,
            _ if rest.starts_with("<<") => 2,
            '0'..='9' => {
                let is_digit = |c: char| c.is_alphanumeric() || c == '_';
                let whole = rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
                let fraction = rest[whole..].strip_prefix('.');
                match fraction.filter(|text| text.starts_with(|c: char| c.is_ascii_digit())) {
                    None => whole,
                    Some(text) => whole + 1 + text.find(|c| !is_digit(c)).unwrap_or(text.len()),
                }
            }
            _ if is_part(next) => rest.find(|c| !is_part(c)).unwrap_or(rest.len()),
            _ => next.len_utf8(),
        };
        let (token, after) = rest.split_at(len);
        tokens.push(token.to_owned());
        rest = after.trim_start();
    }
    tokens
}

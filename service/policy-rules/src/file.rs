//! The file of rules: from TOML to rules whose every part has its place in the file.
//!
//! The keys, and what each may hold, are in the guide "Rules". Expressions stay text here.

use std::collections::BTreeMap;

use tollgate_schema::spelling::did_you_mean;
use tollgate_shm_abi::metadata::{check_key, check_value, is_binary, is_reserved};
use tollgate_shm_abi::status::Code;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ErrorAt, fail, shown, some_of};
use crate::limits;
use crate::source::{Text, line_and_column};
use crate::types::{FieldType, List, NAMES};

/// The rules of a file, in its order.
#[derive(Debug)]
pub(crate) struct RulesFile {
    pub(crate) name: Option<String>,
    pub(crate) version: Option<String>,
    /// Whether a denial's text ends with the rule's name and line.
    pub(crate) names_rules: bool,
    pub(crate) lists: BTreeMap<String, List>,
    pub(crate) declared: Vec<DeclaredMethod>,
    pub(crate) rules: Vec<Rule>,
}

/// A method whose fields the file declares, for files without a schema.
#[derive(Debug)]
pub(crate) struct DeclaredMethod {
    pub(crate) at: usize,
    pub(crate) name: String,
    pub(crate) request: BTreeMap<String, FieldType>,
    pub(crate) reply: BTreeMap<String, FieldType>,
}

/// The point in a call's life at which a rule is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hook {
    Request,
    Reply,
}

impl Hook {
    pub(crate) const ALL: [Hook; 2] = [Hook::Request, Hook::Reply];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Hook::Request => "request",
            Hook::Reply => "reply",
        }
    }
}

/// A word of the file with its place.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    pub(crate) at: usize,
    pub(crate) value: String,
}

/// One `[[rule]]`.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) at: usize,
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) hook: Hook,
    pub(crate) methods: Vec<Word>,
    /// None: always.
    pub(crate) when: Option<Text>,
    /// The rule is for calls beyond this rate.
    pub(crate) beyond: Option<RateLimit>,
    /// A rule that can't be decided doesn't apply, instead of denying the call.
    pub(crate) skips_errors: bool,
    pub(crate) actions: Vec<Action>,
    pub(crate) end: End,
}

/// A rate that calls may have, each key for itself.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// The time between two tokens, rounded up.
    pub(crate) interval_ns: u64,
    /// Capacity of a bucket, in tokens.
    pub(crate) burst: u32,
    /// None: all calls have one bucket.
    pub(crate) key: Option<Text>,
}

/// What happens after a rule's actions.
#[derive(Debug)]
pub(crate) enum End {
    /// The next rule is evaluated.
    Next,
    /// The call passes.
    Allow,
    /// The call ends.
    Deny { status: Code, text: Option<Value> },
}

/// What a rule does to a call that goes on, or to nothing.
#[derive(Debug)]
pub(crate) enum Action {
    SetField(Word, Value),
    ClearField(Word),
    SetMetadata(Word, Value),
    RemoveMetadata(Word),
    Delay { us: u32 },
    Priority(u8),
    Route(Value),
    Log(Value),
}

/// A value in the file: a constant, or `{ cel = "..." }`.
#[derive(Debug)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(usize, String),
    Expression(Text),
}

/// The counter of errors; each rule has one by its name.
pub(crate) const ERRORS: &str = "errors";

const FILE_KEYS: &[&str] = &[
    "name",
    "version",
    "methods",
    "name_rules",
    "lists",
    "method",
    "rule",
];
const METHOD_KEYS: &[&str] = &["name", "request", "reply"];
const RULE_KEYS: &[&str] = &[
    "name",
    "hook",
    "methods",
    "when",
    "rate_limit",
    "on_error",
    "deny",
    "allow",
    "set_fields",
    "clear_fields",
    "set_metadata",
    "remove_metadata",
    "priority",
    "route",
    "delay_ms",
    "log",
];
/// Keys that a reader of other tools' rules looks for, and why there is none.
const ABSENT_KEYS: &[(&str, &str)] = &[(
    "mirror",
    "a rule can't send a call to a second place; no effect of the policy ABI does",
)];

/// Reads a file.
pub(crate) fn read(text: &str) -> Result<RulesFile, ErrorAt> {
    if text.len() > limits::FILE_BYTES {
        let (bytes, most) = (text.len(), limits::FILE_BYTES);
        return fail(
            0,
            format!("the file has {bytes} bytes; the limit is {most}"),
        );
    }
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        ErrorAt::new(at, format!("no TOML: {}", error.message()))
    })?;
    Reader { text }.file(table.get_ref())
}

struct Reader<'a> {
    text: &'a str,
}

type Node<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn file(&self, table: &DeTable<'_>) -> Result<RulesFile, ErrorAt> {
        check_keys(table, FILE_KEYS, "a file of rules")?;
        let name = table.get("name").map(|node| self.name(node)).transpose()?;
        let version = table.get("version").map(|node| self.word(node));
        let shared = table.get("methods").map(|node| self.methods(node));
        let shared = shared.transpose()?;
        let names_rules = table.get("name_rules").map(boolean).transpose()?;
        let mut file = RulesFile {
            name: name.map(|name| name.value),
            version: version.transpose()?.map(|version| version.value),
            names_rules: names_rules.unwrap_or(true),
            lists: self.lists(table.get("lists"))?,
            declared: self.declared(table.get("method"))?,
            rules: Vec::new(),
        };
        let Some(rules) = table.get("rule") else {
            return fail(0, "the file has no [[rule]]");
        };
        let rules = array(rules, "[[rule]]")?;
        if rules.len() > limits::RULES {
            let (count, most) = (rules.len(), limits::RULES);
            let at = rules[most].span().start;
            return fail(
                at,
                format!("the file has {count} rules; the limit is {most}"),
            );
        }
        for node in rules {
            let rule = self.rule(node, shared.as_deref())?;
            if let Some(twin) = file.rules.iter().find(|one| one.name == rule.name) {
                let (name, line) = (shown(&rule.name), twin.line);
                return fail(rule.at, format!("line {line} has a rule {name}, too"));
            }
            file.rules.push(rule);
        }
        Ok(file)
    }

    fn rule(&self, node: &Node<'_>, shared: Option<&[Word]>) -> Result<Rule, ErrorAt> {
        let table = as_table(node, "a rule")?;
        let at = table.keys().map(|key| key.span().start).min();
        let at = at.unwrap_or(node.span().start);
        check_keys(table, RULE_KEYS, "a rule")?;
        let Some(name) = table.get("name") else {
            return fail(at, "the rule has no name");
        };
        let name = self.name(name)?;
        if name.value == ERRORS {
            return fail(
                name.at,
                format!("the name {ERRORS:?} is that of the counter of errors"),
            );
        }
        let hook = match table.get("hook").map(|hook| self.word(hook)).transpose()? {
            None => Hook::Request,
            Some(word) => match word.value.as_str() {
                "request" => Hook::Request,
                "reply" => Hook::Reply,
                other => {
                    let other = shown(other);
                    return fail(
                        word.at,
                        format!("hook {other} is neither request nor reply"),
                    );
                }
            },
        };
        let methods = match (table.get("methods"), shared) {
            (Some(node), _) => self.methods(node)?,
            (None, Some(shared)) => shared.to_vec(),
            (None, None) => {
                return fail(
                    at,
                    "the rule names no methods; write methods = [\"package.Service/Method\"], or [\"*\"] for all",
                );
            }
        };
        let skips = match table
            .get("on_error")
            .map(|node| self.word(node))
            .transpose()?
        {
            None => false,
            Some(word) => match word.value.as_str() {
                "deny" => false,
                "skip" => true,
                other => {
                    let other = shown(other);
                    return fail(
                        word.at,
                        format!("on_error {other} is neither deny nor skip"),
                    );
                }
            },
        };
        let when = table.get("when").map(|node| self.expression(node));
        let beyond = table.get("rate_limit").map(|node| self.rate_limit(node));
        let beyond = beyond.transpose()?;
        let (actions, end) = self.actions(table, hook, beyond.is_some())?;
        if actions.is_empty() && matches!(end, End::Next) {
            let actions = some_of(RULE_KEYS[6..].iter().copied());
            return fail(
                at,
                format!("the rule does nothing; it needs one of {actions}"),
            );
        }
        Ok(Rule {
            at,
            line: line_and_column(self.text, at).0,
            name: name.value,
            hook,
            methods,
            when: when.transpose()?,
            beyond,
            skips_errors: skips,
            actions,
            end,
        })
    }

    /// `{ per_second = 5, burst = 10, key = "EXPRESSION" }`
    fn rate_limit(&self, node: &Node<'_>) -> Result<RateLimit, ErrorAt> {
        let at = node.span().start;
        let table = as_table(node, "rate_limit")?;
        check_keys(table, &["per_second", "burst", "key"], "rate_limit")?;
        let Some(rate) = table.get("per_second") else {
            return fail(
                at,
                "rate_limit has no per_second: the calls of a key that pass each second",
            );
        };
        let per_second = match self.value(rate)? {
            Value::Int(number) => number as f64,
            Value::Double(number) => number,
            _ => return fail(rate.span().start, "per_second is a number"),
        };
        let (least, most) = (limits::LEAST_PER_SECOND, limits::MOST_PER_SECOND);
        if !(least..=most).contains(&per_second) {
            return fail(
                rate.span().start,
                format!("per_second is {per_second}; {least} to {most} are allowed"),
            );
        }
        let burst = table.get("burst");
        let burst = burst.map(|node| bounded(node, "burst", 1..=limits::BURST.into()));
        let key = table.get("key").map(|node| self.expression(node));
        Ok(RateLimit {
            interval_ns: (1e9 / per_second).ceil() as u64,
            burst: burst.transpose()?.unwrap_or(1) as u32,
            key: key.transpose()?,
        })
    }

    fn actions(
        &self,
        table: &DeTable<'_>,
        hook: Hook,
        limits_rate: bool,
    ) -> Result<(Vec<Action>, End), ErrorAt> {
        let mut actions = Vec::new();
        if let Some(node) = table.get("set_fields") {
            for (key, value) in as_table(node, "set_fields")? {
                self.fields(key.get_ref(), key.span().start, value, &mut actions)?;
            }
        }
        for word in self.words(table, "clear_fields")? {
            actions.push(Action::ClearField(word));
        }
        if let Some(node) = table.get("set_metadata") {
            for (key, value) in as_table(node, "set_metadata")? {
                let key = metadata_key(Word {
                    at: key.span().start,
                    value: key.get_ref().to_string(),
                })?;
                let value = self.value(value)?;
                if let Value::Text(at, text) = &value {
                    let bad =
                        |error| ErrorAt::new(*at, format!("the value of {}: {error}", key.value));
                    match is_binary(&key.value) {
                        true => {}
                        false => check_value(&key.value, text.as_bytes()).map_err(bad)?,
                    }
                }
                actions.push(Action::SetMetadata(key, value));
            }
        }
        for word in self.words(table, "remove_metadata")? {
            actions.push(Action::RemoveMetadata(metadata_key(word)?));
        }
        if let Some(node) = table.get("delay_ms") {
            let most = i64::from(limits::DELAY_MS);
            let ms = bounded(node, "delay_ms", 0..=most)?;
            actions.push(Action::Delay {
                us: ms as u32 * 1000,
            });
        }
        if let Some(node) = table.get("priority") {
            let priority = bounded(node, "priority", 0..=limits::PRIORITY.into())?;
            actions.push(Action::Priority(priority as u8));
        }
        if let Some(node) = table.get("route") {
            let at = node.span().start;
            if hook == Hook::Reply {
                return fail(
                    at,
                    "a reply has no route; the rule needs hook = \"request\"",
                );
            }
            let value = self.value(node)?;
            if let Value::Text(_, label) = &value {
                check_route(at, label)?;
            }
            actions.push(Action::Route(value));
        }
        if let Some(node) = table.get("log") {
            actions.push(Action::Log(self.value(node)?));
        }
        let end = self.end(table, limits_rate)?;
        let only_logs = actions.iter().all(|one| matches!(one, Action::Log(_)));
        if matches!(end, End::Deny { .. }) && !only_logs {
            let at = table.get("deny").map_or(0, |node| node.span().start);
            return fail(
                at,
                "a denied call can't be changed: of the actions, only log goes with deny",
            );
        }
        Ok((actions, end))
    }

    fn end(&self, table: &DeTable<'_>, limits_rate: bool) -> Result<End, ErrorAt> {
        let usual = match limits_rate {
            true => Code::RESOURCE_EXHAUSTED,
            false => Code::PERMISSION_DENIED,
        };
        let allows = table.get("allow").map(boolean).transpose()?;
        let Some(deny) = table.get("deny") else {
            return Ok(match allows {
                Some(true) => End::Allow,
                Some(false) | None => End::Next,
            });
        };
        let at = deny.span().start;
        if allows == Some(true) {
            return fail(at, "a rule can't both allow and deny");
        }
        match deny.get_ref() {
            DeValue::Boolean(true) => Ok(End::Deny {
                status: usual,
                text: None,
            }),
            DeValue::String(_) => Ok(End::Deny {
                status: self.status(deny)?,
                text: None,
            }),
            DeValue::Table(table) => {
                check_keys(table, &["status", "text"], "deny")?;
                let status = table.get("status").map(|node| self.status(node));
                let text = table.get("text").map(|node| self.value(node));
                Ok(End::Deny {
                    status: status.transpose()?.unwrap_or(usual),
                    text: text.transpose()?,
                })
            }
            _ => fail(
                at,
                "deny is true, a status such as \"PERMISSION_DENIED\", or { status = \"..\", text = \"..\" }",
            ),
        }
    }

    fn status(&self, node: &Node<'_>) -> Result<Code, ErrorAt> {
        let word = self.word(node)?;
        let names = || {
            Code::ALL
                .iter()
                .filter(|code| **code != Code::OK)
                .filter_map(|code| code.name())
        };
        let found = Code::from_name(&word.value).filter(|code| *code != Code::OK);
        found.ok_or_else(|| {
            let (name, meant) = (shown(&word.value), did_you_mean(&word.value, names()));
            let names = names().collect::<Vec<_>>().join(", ");
            ErrorAt::new(
                word.at,
                format!("{name} is no status of a denial; there are {names}{meant}"),
            )
        })
    }

    /// Fields to set: `a.b = 1` of TOML is a table in a table.
    fn fields(
        &self,
        path: &str,
        at: usize,
        node: &Node<'_>,
        actions: &mut Vec<Action>,
    ) -> Result<(), ErrorAt> {
        match node.get_ref() {
            DeValue::Table(table) if !table.contains_key("cel") => {
                for (key, value) in table {
                    if path.len() > limits::NAME_BYTES {
                        return fail(at, "the path of a field to set is too long");
                    }
                    let path = format!("{path}.{}", key.get_ref());
                    self.fields(&path, key.span().start, value, actions)?;
                }
                Ok(())
            }
            _ => {
                let value = path.to_owned();
                actions.push(Action::SetField(Word { at, value }, self.value(node)?));
                Ok(())
            }
        }
    }

    fn value(&self, node: &Node<'_>) -> Result<Value, ErrorAt> {
        let at = node.span().start;
        match node.get_ref() {
            DeValue::String(text) if text.len() > limits::TEXT_BYTES => {
                let (bytes, most) = (text.len(), limits::TEXT_BYTES);
                fail(
                    at,
                    format!("the text has {bytes} bytes; the limit is {most}"),
                )
            }
            DeValue::String(text) => Ok(Value::Text(at, text.to_string())),
            DeValue::Boolean(value) => Ok(Value::Bool(*value)),
            DeValue::Integer(_) => Ok(Value::Int(integer(node)?)),
            DeValue::Float(value) => match value.as_str().parse() {
                Ok(value) => Ok(Value::Double(value)),
                Err(_) => fail(at, format!("{} is no number", shown(value.as_str()))),
            },
            DeValue::Table(table) => {
                check_keys(table, &["cel"], "a computed value")?;
                match table.get("cel") {
                    Some(node) => Ok(Value::Expression(self.expression(node)?)),
                    None => fail(at, "a computed value is written { cel = \"EXPRESSION\" }"),
                }
            }
            _ => fail(
                at,
                "a value is a text, a number, a boolean, or { cel = \"EXPRESSION\" }",
            ),
        }
    }

    fn lists(&self, node: Option<&Node<'_>>) -> Result<BTreeMap<String, List>, ErrorAt> {
        let mut lists = BTreeMap::new();
        let Some(node) = node else {
            return Ok(lists);
        };
        let table = as_table(node, "lists")?;
        if table.len() > limits::LISTS {
            let (count, most) = (table.len(), limits::LISTS);
            return fail(
                node.span().start,
                format!("there are {count} lists; the limit is {most}"),
            );
        }
        for (key, node) in table {
            let at = key.span().start;
            let name = key.get_ref();
            let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
            let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let is_name = name.starts_with(begins) && name.chars().all(goes_on);
            if !is_name || name.len() > limits::NAME_BYTES {
                let name = shown(name);
                return fail(
                    at,
                    format!(
                        "list {name}: a list's name has letters, digits and _, and begins with no digit"
                    ),
                );
            }
            if NAMES.contains(&name.as_ref()) {
                return fail(
                    at,
                    format!("list {name:?}: expressions have this name already"),
                );
            }
            lists.insert(name.to_string(), self.list(node, name)?);
        }
        Ok(lists)
    }

    fn list(&self, node: &Node<'_>, name: &str) -> Result<List, ErrorAt> {
        let items = array(node, "a list")?;
        let at = node.span().start;
        if items.len() > limits::LIST_ITEMS {
            let (count, most) = (items.len(), limits::LIST_ITEMS);
            return fail(
                at,
                format!("list {name:?} has {count} values; the limit is {most}"),
            );
        }
        if items.iter().all(|item| item.get_ref().is_str()) {
            let texts = items.iter().filter_map(|item| item.get_ref().as_str());
            return Ok(List::Strings(texts.map(str::to_owned).collect()));
        }
        if items.iter().all(|item| item.get_ref().is_integer()) {
            let numbers = items.iter().map(integer);
            return Ok(List::Ints(numbers.collect::<Result<_, _>>()?));
        }
        fail(
            at,
            format!("the values of list {name:?} are neither all texts nor all integers"),
        )
    }

    fn declared(&self, node: Option<&Node<'_>>) -> Result<Vec<DeclaredMethod>, ErrorAt> {
        let Some(node) = node else {
            return Ok(Vec::new());
        };
        let nodes = array(node, "[[method]]")?;
        let mut methods: Vec<DeclaredMethod> = Vec::new();
        for node in nodes {
            let table = as_table(node, "a method")?;
            check_keys(table, METHOD_KEYS, "a method")?;
            let at = node.span().start;
            let Some(name) = table.get("name") else {
                return fail(at, "the method has no name");
            };
            let name = method(self.word(name)?)?;
            if name.value.ends_with('*') {
                return fail(name.at, "fields are declared for one method each");
            }
            if methods.iter().any(|one| one.name == name.value) {
                return fail(
                    name.at,
                    format!("method {:?} is declared twice", name.value),
                );
            }
            methods.push(DeclaredMethod {
                at: name.at,
                name: name.value,
                request: self.field_types(table.get("request"))?,
                reply: self.field_types(table.get("reply"))?,
            });
        }
        Ok(methods)
    }

    fn field_types(&self, node: Option<&Node<'_>>) -> Result<BTreeMap<String, FieldType>, ErrorAt> {
        let mut types = BTreeMap::new();
        let Some(node) = node else {
            return Ok(types);
        };
        for (key, value) in as_table(node, "the fields of a method")? {
            let word = self.word(value)?;
            let found = FieldType::from_name(&word.value);
            let found = found.ok_or_else(|| {
                let name = shown(&word.value);
                let meant = did_you_mean(&word.value, FieldType::NAMES.iter().copied());
                let names = FieldType::NAMES.join(", ");
                ErrorAt::new(word.at, format!("{name} is no type of a field; there are {names}, each also after \"optional \"{meant}"))
            })?;
            types.insert(key.get_ref().to_string(), found);
        }
        Ok(types)
    }

    fn methods(&self, node: &Node<'_>) -> Result<Vec<Word>, ErrorAt> {
        let nodes = array(node, "methods")?;
        if nodes.is_empty() {
            return fail(node.span().start, "methods names none");
        }
        nodes.iter().map(|node| method(self.word(node)?)).collect()
    }

    /// The strings of a list, which may be absent.
    fn words(&self, table: &DeTable<'_>, key: &str) -> Result<Vec<Word>, ErrorAt> {
        let Some(node) = table.get(key) else {
            return Ok(Vec::new());
        };
        array(node, key)?
            .iter()
            .map(|node| self.word(node))
            .collect()
    }

    fn name(&self, node: &Node<'_>) -> Result<Word, ErrorAt> {
        let word = self.word(node)?;
        let is_plain = |c: char| c.is_alphanumeric() || " -_.:".contains(c);
        if word.value.is_empty() || !word.value.chars().all(is_plain) {
            let name = shown(&word.value);
            return fail(
                word.at,
                format!("name {name} has other characters than letters, digits, spaces and -_.:"),
            );
        }
        Ok(word)
    }

    fn word(&self, node: &Node<'_>) -> Result<Word, ErrorAt> {
        let at = node.span().start;
        match node.get_ref() {
            DeValue::String(text) if text.len() <= limits::NAME_BYTES => Ok(Word {
                at,
                value: text.to_string(),
            }),
            DeValue::String(text) => {
                let (bytes, most) = (text.len(), limits::NAME_BYTES);
                fail(
                    at,
                    format!("the name has {bytes} bytes; the limit is {most}"),
                )
            }
            other => fail(at, format!("a text is expected here, not {}", kind(other))),
        }
    }

    fn expression(&self, node: &Node<'_>) -> Result<Text, ErrorAt> {
        let span = node.span();
        match node.get_ref() {
            DeValue::String(text) if text.len() > limits::EXPRESSION_BYTES => {
                let (bytes, most) = (text.len(), limits::EXPRESSION_BYTES);
                fail(
                    span.start,
                    format!(
                        "the expression has {bytes} bytes; the limit is {most}. Long lists go to [lists]"
                    ),
                )
            }
            DeValue::String(text) => {
                let raw = self.text.get(span.clone()).unwrap_or("");
                Ok(Text::new(text, raw, span.start))
            }
            other => fail(
                span.start,
                format!("an expression is a text, not {}", kind(other)),
            ),
        }
    }
}

fn check_keys(table: &DeTable<'_>, known: &[&str], of: &str) -> Result<(), ErrorAt> {
    for key in table.keys() {
        let (at, name) = (key.span().start, key.get_ref().as_ref());
        if known.contains(&name) {
            continue;
        }
        if let Some((_, why)) = ABSENT_KEYS.iter().find(|(absent, _)| *absent == name) {
            return fail(at, *why);
        }
        let meant = did_you_mean(name, known.iter().copied());
        let (name, known) = (shown(name), known.join(", "));
        return fail(
            at,
            format!("{of} has no key {name}; there are {known}{meant}"),
        );
    }
    Ok(())
}

fn array<'a, 'b>(node: &'a Node<'b>, what: &str) -> Result<&'a [Node<'b>], ErrorAt> {
    match node.get_ref() {
        DeValue::Array(items) => Ok(items),
        other => fail(
            node.span().start,
            format!("{what} is an array, not {}", kind(other)),
        ),
    }
}

fn as_table<'a, 'b>(node: &'a Node<'b>, what: &str) -> Result<&'a DeTable<'b>, ErrorAt> {
    match node.get_ref() {
        DeValue::Table(table) => Ok(table),
        other => fail(
            node.span().start,
            format!("{what} is a table, not {}", kind(other)),
        ),
    }
}

fn boolean(node: &Node<'_>) -> Result<bool, ErrorAt> {
    let value = node.get_ref();
    let found = value.as_bool();
    found.ok_or_else(|| {
        let kind = kind(value);
        ErrorAt::new(
            node.span().start,
            format!("true or false is expected here, not {kind}"),
        )
    })
}

fn integer(node: &Node<'_>) -> Result<i64, ErrorAt> {
    let at = node.span().start;
    let DeValue::Integer(number) = node.get_ref() else {
        let kind = kind(node.get_ref());
        return fail(at, format!("an integer is expected here, not {kind}"));
    };
    let found = i64::from_str_radix(number.as_str(), number.radix());
    found.map_err(|_| {
        ErrorAt::new(
            at,
            format!("{} has more than 64 bits", shown(number.as_str())),
        )
    })
}

fn bounded(
    node: &Node<'_>,
    what: &str,
    allowed: std::ops::RangeInclusive<i64>,
) -> Result<i64, ErrorAt> {
    let number = integer(node)?;
    match allowed.contains(&number) {
        true => Ok(number),
        false => {
            let (least, most) = (allowed.start(), allowed.end());
            let at = node.span().start;
            fail(
                at,
                format!("{what} is {number}; {least} to {most} are allowed"),
            )
        }
    }
}

fn method(word: Word) -> Result<Word, ErrorAt> {
    let is_name = match word.value.split_once('/') {
        None => word.value == "*",
        Some((service, method)) => {
            let is_word = |text: &str| !text.is_empty() && !text.contains(['/', '*']);
            is_word(service) && (is_word(method) || method == "*")
        }
    };
    match is_name {
        true => Ok(word),
        false => {
            let name = shown(&word.value);
            fail(
                word.at,
                format!("method {name} isn't package.Service/Method, package.Service/* or *"),
            )
        }
    }
}

/// A metadata key that a policy may read and change.
pub(crate) fn metadata_key(word: Word) -> Result<Word, ErrorAt> {
    let name = shown(&word.value);
    if let Err(error) = check_key(word.value.as_bytes()) {
        return fail(word.at, format!("metadata key {name}: {error}"));
    }
    match is_reserved(&word.value) {
        true => fail(word.at, format!("metadata key {name} is the daemon's own")),
        false => Ok(word),
    }
}

fn check_route(at: usize, label: &str) -> Result<(), ErrorAt> {
    let is_allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    let is_long = !(1..=limits::ROUTE_BYTES).contains(&label.len());
    match is_long || !label.bytes().all(is_allowed) {
        true => {
            let (label, most) = (shown(label), limits::ROUTE_BYTES);
            fail(
                at,
                format!("route {label} isn't 1 to {most} of a-z 0-9 - _ ."),
            )
        }
        false => Ok(()),
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

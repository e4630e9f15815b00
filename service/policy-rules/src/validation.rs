//! The constraints that a schema declares, as rules: those of `buf.validate` (protovalidate.com).
//!
//! ```text
//!   options of messages, fields, oneofs ──▶ checks: an expression each ──▶ a file of rules
//! ```
//!
//! A constraint becomes a rule that denies with INVALID_ARGUMENT. Custom constraints are CEL
//! already: `this` becomes the path of what they are declared at. Each rule is compiled alone
//! first, so a constraint that rules can't check is named with the reason: views show no repeated
//! fields and no maps, and rules have no functions such as `isIp`.

mod checks;
mod options;
mod scalars;

use std::collections::{BTreeMap, BTreeSet};

use tollgate_schema::Schema;
use tollgate_schema::prost_reflect::prost::Message as _;
use tollgate_schema::prost_reflect::prost_types::FileDescriptorSet;
use tollgate_schema::prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, MessageDescriptor, Value,
};

use crate::file::ERRORS;
use crate::source::toml_text;
use crate::{Options, limits};
use checks::{Check, Text};
use options::{is_true, messages, rules_in, set, text_of};

/// What became of a schema's constraints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validation {
    /// A file of rules with the constraints that rules can check.
    pub rules: String,
    /// Their number.
    pub checked: usize,
    /// Those that rules can't check.
    pub unchecked: Vec<Unchecked>,
}

/// A constraint that rules can't check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unchecked {
    /// The message or field that has it.
    pub place: String,
    /// Its name, such as `repeated.min_items`.
    pub constraint: String,
    /// Why rules can't check it.
    pub reason: String,
}

/// Why there are no rules of constraints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValidationError {
    /// The schema can't be reflected on.
    #[error("{0}")]
    Schema(String),
    /// There is no such service.
    #[error("the schema has no service {0:?}")]
    NoService(String),
    /// The schema has no file of `buf.validate`.
    #[error(
        "no file of the schema imports \"buf/validate/validate.proto\", so it declares no constraints"
    )]
    NoConstraints,
    /// One module hasn't room for all of them.
    #[error("the rules of {checked} constraints are too much for one module: {reason}")]
    TooMuch {
        /// The number of constraints.
        checked: usize,
        /// The limit that they exceed.
        reason: String,
    },
}

/// Makes rules of the constraints that the requests of these services have; of all services, if
/// none is named.
///
/// # Errors
/// Why there are none.
pub fn validation(schema: &Schema, services: &[String]) -> Result<Validation, ValidationError> {
    let pool = schema.pool();
    let pool = pool.map_err(|error| ValidationError::Schema(error.to_string()))?;
    options_are_kept(schema)?;
    let constraints = Constraints::of(pool).ok_or(ValidationError::NoConstraints)?;
    let named = services.iter().map(String::as_str);
    let named: Vec<_> = match services {
        [] => schema.services().collect(),
        _ => named.collect(),
    };
    let (mut checks, mut unchecked) = (Vec::new(), Vec::new());
    // Methods by the message of their requests: its constraints are theirs.
    let mut methods: BTreeMap<String, (MessageDescriptor, Vec<String>)> = BTreeMap::new();
    for name in named {
        let service = pool.get_service_by_name(name);
        let service = service.ok_or_else(|| ValidationError::NoService(name.to_owned()))?;
        for method in service.methods() {
            let input = method.input();
            if method.is_client_streaming() {
                if constraints.are_in(&input) {
                    unchecked.push(Unchecked {
                        place: format!("{name}/{}", method.name()),
                        constraint: format!("the constraints of {}", input.full_name()),
                        reason: "a stream of requests opens with an empty message, which they may refuse"
                            .to_owned(),
                    });
                }
                continue;
            }
            let entry = methods.entry(input.full_name().to_owned());
            let (_, methods) = entry.or_insert_with(|| (input, Vec::new()));
            methods.push(format!("{name}/{}", method.name()));
        }
    }
    for (message, methods) in methods.into_values() {
        let mut walk = Walk {
            constraints: &constraints,
            checks: Vec::new(),
            unchecked: &mut unchecked,
            inside: Vec::new(),
        };
        walk.message(&message, &[]);
        let name = message.full_name();
        let its = walk.checks.into_iter();
        checks.extend(its.map(|check| (name.to_owned(), methods.clone(), check)));
    }
    let found = checks.len() + unchecked.len();
    if found > limits::CONSTRAINTS {
        let most = limits::CONSTRAINTS;
        return Err(ValidationError::TooMuch {
            checked: found,
            reason: format!("at most {most} are looked at; name fewer services"),
        });
    }
    let mut names = Names::default();
    let mut rules =
        "# Made of the constraints of buf.validate in the schema.\nname_rules = false\n".to_owned();
    let mut checked = 0;
    for (message, methods, check) in &checks {
        let name = names.unused(&check.name());
        match compiled(schema, &name, methods, check) {
            Ok(rule) => {
                rules.push_str(&rule);
                checked += 1;
            }
            Err(reason) => unchecked.push(Unchecked {
                place: match check.place.is_empty() {
                    true => message.clone(),
                    false => check.place.clone(),
                },
                constraint: check.constraint.clone(),
                reason,
            }),
        }
    }
    // Each rule compiles alone. Together they may read too many fields, say.
    if checked > 0
        && let Err(error) = crate::compile(&rules, &options(schema))
    {
        let reason = error.reason;
        return Err(ValidationError::TooMuch { checked, reason });
    }
    Ok(Validation {
        rules,
        checked,
        unchecked,
    })
}

/// The pool of a schema leaves options out, as its library knows no editions.
fn options_are_kept(schema: &Schema) -> Result<(), ValidationError> {
    let set = FileDescriptorSet::decode(schema.descriptor_set());
    let files = set.map(|set| set.file).unwrap_or_default();
    if let Some(file) = files.iter().find(|file| file.syntax() == "editions") {
        return Err(ValidationError::Schema(format!(
            "{} is of an edition of protobuf: its options can't be read yet; proto2 and proto3 can",
            file.name()
        )));
    }
    let kept = DescriptorPool::decode(schema.descriptor_set());
    kept.map(drop).map_err(|error| {
        ValidationError::Schema(format!("the options of the schema can't be read: {error}"))
    })
}

fn options(schema: &Schema) -> Options<'_> {
    Options {
        name: "validation",
        schema: Some(schema),
    }
}

/// The text of a rule, which compiles alone; or why it doesn't.
fn compiled(
    schema: &Schema,
    name: &str,
    methods: &[String],
    check: &Check,
) -> Result<String, String> {
    let mut reason = String::new();
    for (when, text) in check.conditions() {
        let rule = format!(
            "\n[[rule]]\nname = {}\nmethods = [{}]\nwhen = {}\ndeny = {{ status = \"INVALID_ARGUMENT\", text = {} }}\n",
            toml_text(name),
            methods
                .iter()
                .map(|one| toml_text(one))
                .collect::<Vec<_>>()
                .join(", "),
            toml_text(&when),
            match &text {
                Text::Constant(text) => toml_text(text),
                Text::Computed(cel) => format!("{{ cel = {} }}", toml_text(cel)),
            }
        );
        match crate::compile(&rule, &options(schema)) {
            Ok(_) => return Ok(rule),
            Err(error) if reason.is_empty() => reason = error.reason,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// The names of rules, which differ.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Names {
    fn unused(&mut self, name: &str) -> String {
        let allowed = |c: char| match c.is_alphanumeric() || " -_.:".contains(c) {
            true => c,
            false => '_',
        };
        // With room for a number.
        let end = name.floor_char_boundary(limits::NAME_BYTES - 8);
        let name: String = name[..end].chars().map(allowed).collect();
        let numbered = (2..).map(|number| format!("{name} {number}"));
        let mut names = [name.clone()].into_iter().chain(numbered);
        let is_free = |name: &String| name != ERRORS && !self.0.contains(name);
        let unused = names.find(is_free).unwrap_or(name);
        self.0.insert(unused.clone());
        unused
    }
}

/// The options of `buf.validate`.
struct Constraints {
    message: ExtensionDescriptor,
    field: ExtensionDescriptor,
    oneof: ExtensionDescriptor,
    /// Names of messages.
    constrained: BTreeSet<String>,
}

impl Constraints {
    fn of(pool: &DescriptorPool) -> Option<Constraints> {
        let find = |name: &str| pool.get_extension_by_name(&format!("buf.validate.{name}"));
        let mut constraints = Constraints {
            message: find("message")?,
            field: find("field")?,
            oneof: find("oneof")?,
            constrained: BTreeSet::new(),
        };
        constraints.constrained = constraints.constrained(pool);
        Some(constraints)
    }

    /// Whether a message, or one in it, has some.
    fn are_in(&self, message: &MessageDescriptor) -> bool {
        self.constrained.contains(message.full_name())
    }

    /// The messages that have some, or contain one that has.
    fn constrained(&self, pool: &DescriptorPool) -> BTreeSet<String> {
        let has = |options: DynamicMessage, extension| options.has_extension(extension);
        let mut around: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut found = Vec::new();
        for message in pool.all_messages() {
            let name = message.full_name().to_owned();
            let mut has_own = has(message.options(), &self.message)
                || message.oneofs().any(|one| has(one.options(), &self.oneof));
            for field in message.fields() {
                has_own |= has(field.options(), &self.field);
                if let Some(inner) = field.kind().as_message() {
                    let inner = inner.full_name().to_owned();
                    around.entry(inner).or_default().push(name.clone());
                }
            }
            if has_own {
                found.push(name);
            }
        }
        let mut all = BTreeSet::new();
        while let Some(name) = found.pop() {
            if all.insert(name.clone()) {
                found.extend(around.remove(&name).unwrap_or_default());
            }
        }
        all
    }
}

/// `Ignore` of `buf.validate`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ignore {
    Unset,
    IfZero,
    Always,
}

/// A walk through a request's messages.
struct Walk<'a> {
    constraints: &'a Constraints,
    checks: Vec<Check>,
    unchecked: &'a mut Vec<Unchecked>,
    /// The messages around this one.
    inside: Vec<String>,
}

impl Walk<'_> {
    fn message(&mut self, message: &MessageDescriptor, path: &[String]) {
        let name = message.full_name().to_owned();
        if self.checks.len() + self.unchecked.len() > limits::CONSTRAINTS {
            return;
        }
        let why = match self.inside.len() == limits::NESTING {
            true => Some("the message is too deep inside others"),
            false => self
                .inside
                .contains(&name)
                .then_some("the message contains itself; rules check it on the outside only"),
        };
        if let Some(why) = why {
            self.unable(path, &format!("the constraints of {name}"), why);
            return;
        }
        self.inside.push(name);
        let guard = (!path.is_empty()).then(|| format!("has({})", selected(path)));
        let rules = rules_in(&message.options(), &self.constraints.message);
        let mut alternatives = Vec::new();
        if let Some(rules) = &rules {
            self.unknown(rules, path, &["cel", "cel_expression", "oneof"]);
            self.cel(rules, path, guard.as_deref());
            alternatives = self.alternatives(rules, path, guard.as_deref());
        }
        for oneof in message.oneofs() {
            let Some(rules) = rules_in(&oneof.options(), &self.constraints.oneof) else {
                continue;
            };
            self.unknown(&rules, &below(path, oneof.name()), &["required"]);
            if is_true(&rules, "required") {
                let has: Vec<_> = oneof
                    .fields()
                    .map(|field| format!("has({})", selected(&below(path, field.name()))))
                    .collect();
                self.check(
                    &below(path, oneof.name()),
                    "required",
                    guard.clone(),
                    has.join(" || "),
                    "exactly one field is required in oneof".to_owned(),
                );
            }
        }
        for field in message.fields() {
            let is_alternative = alternatives.iter().any(|name| name == field.name());
            self.field(&field, path, is_alternative);
        }
        self.inside.pop();
    }

    fn unable(&mut self, path: &[String], constraint: &str, reason: &str) {
        self.unchecked.push(Unchecked {
            place: self.place(path),
            constraint: constraint.to_owned(),
            reason: reason.to_owned(),
        });
    }

    /// What an author calls this: the path, or the request's message.
    fn place(&self, path: &[String]) -> String {
        match path.is_empty() {
            true => self.inside.first().cloned().unwrap_or_default(),
            false => dotted(path),
        }
    }

    /// Names constraints that this version doesn't know.
    fn unknown(&mut self, rules: &DynamicMessage, path: &[String], known: &[&str]) {
        let is_known = |name: &str| known.contains(&name);
        for (field, value) in rules.fields() {
            if !is_known(field.name()) && !matches!(value, Value::Message(_)) {
                self.unable(path, field.name(), scalars::UNKNOWN);
            }
        }
    }

    /// Fields of which at most one may be set.
    fn alternatives(
        &mut self,
        rules: &DynamicMessage,
        path: &[String],
        guard: Option<&str>,
    ) -> Vec<String> {
        let mut all = Vec::new();
        for rule in messages(rules, "oneof") {
            let fields = set(&rule, "fields");
            let fields = fields.as_ref().and_then(|value| value.as_list());
            let fields: Vec<String> = fields
                .unwrap_or_default()
                .iter()
                .filter_map(|value| value.as_str().map(str::to_owned))
                .collect();
            let count: Vec<_> = fields
                .iter()
                .map(|name| format!("(has({}) ? 1 : 0)", selected(&below(path, name))))
                .collect();
            let is_required = is_true(&rule, "required");
            let (bound, text) = match is_required {
                true => ("== 1", "one of {} must be set"),
                false => ("<= 1", "only one of {} can be set"),
            };
            self.check(
                path,
                "message.oneof",
                guard.map(str::to_owned),
                format!("{} {bound}", count.join(" + ")),
                text.replace("{}", &fields.join(", ")),
            );
            all.extend(fields);
        }
        all
    }

    fn field(&mut self, field: &FieldDescriptor, outer: &[String], is_alternative: bool) {
        let path = below(outer, field.name());
        let rules = rules_in(&field.options(), &self.constraints.field);
        let stated = rules.as_ref().and_then(|rules| set(rules, "ignore"));
        let ignore = match stated.and_then(|value| value.as_enum_number()) {
            Some(3) => Ignore::Always,
            Some(1) => Ignore::IfZero,
            Some(0) => Ignore::Unset,
            Some(_) => {
                self.unable(&path, "ignore", scalars::UNKNOWN);
                Ignore::Unset
            }
            None if is_alternative => Ignore::IfZero,
            None => Ignore::Unset,
        };
        if ignore == Ignore::Always {
            return;
        }
        let kind = field.kind();
        let inner = kind.as_message();
        if field.is_list() || field.is_map() {
            let has_inner = inner.is_some_and(|inner| self.constraints.are_in(inner));
            let singular = "policies are shown singular fields only";
            if let Some(rules) = &rules {
                self.unable(&path, &named(rules), singular);
            }
            if has_inner {
                self.unable(&path, "the constraints of its items", singular);
            }
            return;
        }
        let selected_field = selected(&path);
        let is_explicit = field.supports_presence();
        let outer_guard = (!outer.is_empty()).then(|| format!("has({})", selected(outer)));
        if let Some(rules) = &rules
            && is_true(rules, "required")
        {
            self.check(
                &path,
                "required",
                outer_guard.clone(),
                format!("has({selected_field})"),
                "value is required".to_owned(),
            );
        }
        let guard = match is_explicit || ignore == Ignore::IfZero {
            true => Some(format!("has({selected_field})")),
            false => outer_guard,
        };
        if let Some(rules) = &rules {
            self.unknown(
                rules,
                &path,
                &["cel", "cel_expression", "required", "ignore"],
            );
            self.cel(rules, &path, guard.as_deref());
            let mut value = path.clone();
            if inner.is_some_and(is_wrapper) {
                value.push("value".to_owned());
            }
            for check in scalars::checks(rules, field, &selected(&value)) {
                match check {
                    Ok((constraint, condition, text)) => {
                        self.check(&path, &constraint, guard.clone(), condition, text);
                    }
                    Err((constraint, reason)) => self.unable(&path, &constraint, &reason),
                }
            }
        }
        if let Some(inner) = inner
            && !is_wrapper(inner)
            && self.constraints.are_in(inner)
        {
            self.message(inner, &path);
        }
    }

    /// Custom constraints.
    fn cel(&mut self, rules: &DynamicMessage, path: &[String], guard: Option<&str>) {
        for rule in messages(rules, "cel") {
            let (id, message) = (text_of(&rule, "id"), text_of(&rule, "message"));
            let expression = checks::with_this(&text_of(&rule, "expression"), &selected(path));
            self.checks.push(Check {
                place: dotted(path),
                constraint: match id.is_empty() {
                    true => "cel".to_owned(),
                    false => id,
                },
                guard: guard.map(str::to_owned),
                condition: expression,
                text: message,
                is_custom: true,
            });
        }
        let expressions = set(rules, "cel_expression");
        let expressions = expressions.as_ref().and_then(|value| value.as_list());
        for expression in expressions.unwrap_or_default() {
            let expression = expression.as_str().unwrap_or_default();
            self.checks.push(Check {
                place: dotted(path),
                constraint: "cel".to_owned(),
                guard: guard.map(str::to_owned),
                condition: checks::with_this(expression, &selected(path)),
                text: format!("\"{expression}\" isn't true"),
                is_custom: true,
            });
        }
    }

    fn check(
        &mut self,
        path: &[String],
        constraint: &str,
        guard: Option<String>,
        condition: String,
        text: String,
    ) {
        self.checks.push(Check {
            place: dotted(path),
            constraint: constraint.to_owned(),
            guard,
            condition,
            text,
            is_custom: false,
        });
    }
}

/// The names of the constraints of a field that rules aren't shown.
fn named(rules: &DynamicMessage) -> String {
    let names = rules.fields().flat_map(|(field, value)| match value {
        Value::Message(inner) => inner
            .fields()
            .map(|(one, _)| format!("{}.{}", field.name(), one.name()))
            .collect(),
        _ => vec![field.name().to_owned()],
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Messages that hold one scalar, whose constraints are the scalar's.
fn is_wrapper(message: &MessageDescriptor) -> bool {
    const WRAPPED: [&str; 9] = [
        "Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64",
    ];
    let name = message.full_name().strip_prefix("google.protobuf.");
    let wrapped = name.and_then(|name| name.strip_suffix("Value"));
    wrapped.is_some_and(|name| WRAPPED.contains(&name))
}

fn below(path: &[String], name: &str) -> Vec<String> {
    let mut path = path.to_vec();
    path.push(name.to_owned());
    path
}

fn dotted(path: &[String]) -> String {
    path.join(".")
}

/// The expression that is the value at a path.
fn selected(path: &[String]) -> String {
    ["request"]
        .into_iter()
        .chain(path.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join(".")
}

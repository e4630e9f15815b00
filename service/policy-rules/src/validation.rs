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

use std::collections::BTreeMap;

use tollgate_schema::Schema;
use tollgate_schema::prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, MessageDescriptor, Value,
};

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
    /// There are more constraints than a file has rules.
    #[error("the requests have {0} constraints; a file has at most {most} rules: name fewer services", most = limits::RULES)]
    TooMany(usize),
}

/// Makes rules of the constraints that the requests of these services have; of all services, if
/// none is named.
///
/// # Errors
/// Why there are none.
pub fn validation(schema: &Schema, services: &[String]) -> Result<Validation, ValidationError> {
    let pool = schema.pool();
    let pool = pool.map_err(|error| ValidationError::Schema(error.to_string()))?;
    let constraints = Constraints::of(pool).ok_or(ValidationError::NoConstraints)?;
    let named = services.iter().map(String::as_str);
    let named: Vec<_> = match services {
        [] => schema.services().collect(),
        _ => named.collect(),
    };
    // Methods by the message of their requests: its constraints are theirs.
    let mut methods: BTreeMap<String, (MessageDescriptor, Vec<String>)> = BTreeMap::new();
    for name in named {
        let service = pool.get_service_by_name(name);
        let service = service.ok_or_else(|| ValidationError::NoService(name.to_owned()))?;
        for method in service.methods() {
            let input = method.input();
            let entry = methods.entry(input.full_name().to_owned());
            let (_, methods) = entry.or_insert_with(|| (input, Vec::new()));
            methods.push(format!("{name}/{}", method.name()));
        }
    }
    let (mut checks, mut unchecked) = (Vec::new(), Vec::new());
    for (message, methods) in methods.into_values() {
        let mut walk = Walk {
            constraints: &constraints,
            checks: Vec::new(),
            unchecked: &mut unchecked,
            inside: Vec::new(),
        };
        walk.message(&message, &[]);
        checks.extend(
            walk.checks
                .into_iter()
                .map(|check| (methods.clone(), check)),
        );
    }
    if checks.len() > limits::RULES {
        return Err(ValidationError::TooMany(checks.len()));
    }
    let mut names = Names::default();
    let mut rules =
        "# Made of the constraints of buf.validate in the schema.\nname_rules = false\n".to_owned();
    let mut checked = 0;
    for (methods, check) in &checks {
        let name = names.unused(&check.name());
        match compiled(schema, &name, methods, check) {
            Ok(rule) => {
                rules.push_str(&rule);
                checked += 1;
            }
            Err(reason) => unchecked.push(Unchecked {
                place: check.place.clone(),
                constraint: check.constraint.clone(),
                reason,
            }),
        }
    }
    Ok(Validation {
        rules,
        checked,
        unchecked,
    })
}

/// The text of a rule, which compiles alone; or why it doesn't.
fn compiled(
    schema: &Schema,
    name: &str,
    methods: &[String],
    check: &Check,
) -> Result<String, String> {
    let options = Options {
        name: "validation",
        schema: Some(schema),
    };
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
        match crate::compile(&rule, &options) {
            Ok(_) => return Ok(rule),
            Err(error) if reason.is_empty() => reason = error.reason,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// The names of rules, which differ.
#[derive(Default)]
struct Names(BTreeMap<String, usize>);

impl Names {
    fn unused(&mut self, name: &str) -> String {
        let allowed = |c: char| match c.is_alphanumeric() || " -_.:".contains(c) {
            true => c,
            false => '_',
        };
        // With room for a number.
        let end = name.floor_char_boundary(limits::NAME_BYTES - 8);
        let name: String = name[..end].chars().map(allowed).collect();
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        match *count {
            1 => name,
            count => format!("{name} {count}"),
        }
    }
}

/// The options of `buf.validate`.
struct Constraints {
    message: ExtensionDescriptor,
    field: ExtensionDescriptor,
    oneof: ExtensionDescriptor,
}

impl Constraints {
    fn of(pool: &DescriptorPool) -> Option<Constraints> {
        let find = |name: &str| pool.get_extension_by_name(&format!("buf.validate.{name}"));
        Some(Constraints {
            message: find("message")?,
            field: find("field")?,
            oneof: find("oneof")?,
        })
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
        if self.inside.contains(&name) || self.inside.len() == limits::NESTING {
            self.unchecked.push(Unchecked {
                place: dotted(path),
                constraint: format!("the constraints of {name}"),
                reason: "the message contains itself; rules check it on the outside only"
                    .to_owned(),
            });
            return;
        }
        self.inside.push(name);
        let guard = (!path.is_empty()).then(|| format!("has({})", selected(path)));
        let rules = rules_in(&message.options(), &self.constraints.message);
        let mut alternatives = Vec::new();
        if let Some(rules) = &rules {
            self.cel(rules, path, guard.as_deref());
            alternatives = self.alternatives(rules, path, guard.as_deref());
        }
        for oneof in message.oneofs() {
            let rules = rules_in(&oneof.options(), &self.constraints.oneof);
            if rules.is_some_and(|rules| is_true(&rules, "required")) {
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
        let ignore = match rules.as_ref().and_then(|rules| set(rules, "ignore")) {
            Some(value) if value.as_enum_number() == Some(3) => Ignore::Always,
            Some(value) if value.as_enum_number() == Some(1) => Ignore::IfZero,
            _ if is_alternative => Ignore::IfZero,
            _ => Ignore::Unset,
        };
        if ignore == Ignore::Always {
            return;
        }
        let kind = field.kind();
        let inner = kind.as_message();
        if field.is_list() || field.is_map() {
            let has_inner = inner.is_some_and(|inner| self.has_constraints(inner, &mut Vec::new()));
            if rules.is_some() || has_inner {
                self.unchecked.push(Unchecked {
                    place: dotted(&path),
                    constraint: match rules {
                        Some(rules) => named(&rules),
                        None => "the constraints of its items".to_owned(),
                    },
                    reason: "policies are shown singular fields only".to_owned(),
                });
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
            self.cel(rules, &path, guard.as_deref());
            let mut value = path.clone();
            if inner.is_some_and(is_wrapper) {
                value.push("value".to_owned());
            }
            for check in scalars::checks(rules, field, &selected(&value)) {
                match check {
                    Ok((constraint, condition, text)) => {
                        let guard = match (is_explicit && ignore == Ignore::IfZero, &guard) {
                            (true, Some(guard)) if inner.is_none() => Some(format!(
                                "{guard} && {selected_field} != {}",
                                scalars::zero(field)
                            )),
                            _ => guard.clone(),
                        };
                        self.check(&path, &constraint, guard, condition, text);
                    }
                    Err((constraint, reason)) => self.unchecked.push(Unchecked {
                        place: dotted(&path),
                        constraint,
                        reason,
                    }),
                }
            }
        }
        if let Some(inner) = inner
            && !is_wrapper(inner)
            && self.has_constraints(inner, &mut Vec::new())
        {
            self.message(inner, &path);
        }
    }

    /// Whether a message, or one in it, has constraints.
    fn has_constraints(&self, message: &MessageDescriptor, seen: &mut Vec<String>) -> bool {
        if seen.iter().any(|name| name == message.full_name()) {
            return false;
        }
        seen.push(message.full_name().to_owned());
        let Constraints {
            message: of_message,
            field: of_field,
            oneof: of_oneof,
        } = self.constraints;
        message.options().has_extension(of_message)
            || message
                .oneofs()
                .any(|one| one.options().has_extension(of_oneof))
            || message.fields().any(|field| {
                let kind = field.kind();
                let inner = kind.as_message();
                field.options().has_extension(of_field)
                    || inner.is_some_and(|inner| self.has_constraints(inner, seen))
            })
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

//! The plan of a module: which rules are evaluated for which method, with everything in them
//! resolved.
//!
//! A rule for several methods is checked for each of them: their messages differ. A rule for
//! `package.Service/*` that reads a message gets an entry for every method that the schema has, and
//! the entry with the `*` stands for methods that are added later. There such a rule can't be
//! decided, which is an error like any other: unknown methods don't pass a rule unseen.

use std::collections::BTreeSet;

use crate::check::Checker;
use crate::error::{ErrorAt, fail};
use crate::file::{Action, End, Hook, RateLimit, Rule, RulesFile, Value, Word};
use crate::limits;
use crate::ops::{Entry, Typed, concatenated};
use crate::parse::{Node, parse};
use crate::scope::{Resolved, Types, split};
use crate::types::{Const, FieldType, Scalar, Type};
use crate::usage::Usage;

/// The names that need a method whose messages are known.
const OF_A_METHOD: &[&str] = &["request", "reply", "method"];

/// Entries of the manifest, in its order.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) entries: Vec<EntryPlan>,
}

/// A method, or a pattern of methods.
#[derive(Debug)]
pub(crate) struct EntryPlan {
    pub(crate) pattern: String,
    /// By [`Hook`].
    pub(crate) sides: [Side; 2],
}

/// The rules of one method at one hook.
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub(crate) usage: Usage,
    pub(crate) rules: Vec<RulePlan>,
}

/// A rule for one method.
#[derive(Debug)]
pub(crate) struct RulePlan {
    /// Its place in the file's list.
    pub(crate) rule: usize,
    pub(crate) when: Condition,
    /// It acts on calls beyond this rate only.
    pub(crate) beyond: Option<RatePlan>,
    pub(crate) actions: Vec<ActionPlan>,
    pub(crate) end: EndPlan,
}

#[derive(Debug)]
pub(crate) enum Condition {
    Always,
    If(Typed),
    /// An error, for this reason.
    Never(String),
}

/// The buckets of a rule, one for each key.
#[derive(Debug)]
pub(crate) struct RatePlan {
    pub(crate) interval_ns: u64,
    /// The time in which an empty bucket gets full.
    pub(crate) depth_ns: u64,
    pub(crate) key: Typed,
}

#[derive(Debug)]
pub(crate) enum ActionPlan {
    SetField {
        change: usize,
        scalar: Scalar,
        value: Typed,
        /// The error if the message around the field is absent, and the entry that tells.
        inside: Option<(Entry, String)>,
        /// The error if the value doesn't fit.
        misfit: String,
    },
    ClearField {
        change: usize,
        inside: Option<Entry>,
    },
    SetMetadata {
        key: usize,
        value: Typed,
        misfit: Option<String>,
    },
    RemoveMetadata {
        key: usize,
    },
    Delay {
        us: u32,
    },
    Priority(u8),
    Route {
        label: Typed,
        misfit: String,
    },
    Log(Typed),
}

#[derive(Debug)]
pub(crate) enum EndPlan {
    Next,
    Allow,
    Deny { status: u32, text: Typed },
}

/// A rule whose expressions are parsed.
struct Parsed<'a> {
    rule: &'a Rule,
    when: Option<Node>,
    key: Option<Node>,
    /// By the rule's actions; `None` for values that are constants.
    values: Vec<Option<Node>>,
    text: Option<Node>,
    /// It reads or changes a message, or asks for the method.
    needs_method: bool,
}

/// Plans a module.
pub(crate) fn plan(file: &RulesFile, types: &mut Types<'_>) -> Result<Plan, ErrorAt> {
    let rules = file.rules.iter().map(Parsed::new);
    let rules = rules.collect::<Result<Vec<_>, _>>()?;
    let patterns = patterns(&rules, types)?;
    let mut entries = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        let mut sides = [Side::default(), Side::default()];
        for hook in Hook::ALL {
            let side = &mut sides[hook as usize];
            for (at, rule) in rules.iter().enumerate() {
                let is_meant = rule.rule.methods.iter().any(|m| covers(&m.value, &pattern));
                if is_meant && rule.rule.hook == hook {
                    let mut planner = Planner {
                        file,
                        types,
                        pattern: &pattern,
                        side,
                    };
                    let planned = planner.rule(at, rule)?;
                    side.rules.push(planned);
                }
            }
        }
        entries.push(EntryPlan { pattern, sides });
    }
    Ok(Plan { entries })
}

/// The manifest's entries: exact methods first, in the order of their names.
fn patterns(rules: &[Parsed<'_>], types: &mut Types<'_>) -> Result<Vec<String>, ErrorAt> {
    let mut patterns = BTreeSet::new();
    for rule in rules {
        for word in &rule.rule.methods {
            types.load(word)?;
            patterns.insert(word.value.clone());
            if rule.needs_method && word.value.ends_with("/*") {
                let (service, _) = split(&word.value);
                let methods = types.methods_of(service);
                if methods.is_empty() {
                    return fail(
                        word.at,
                        format!(
                            "the methods of {service} aren't known; give its schema with --proto, or name the methods"
                        ),
                    );
                }
                patterns.extend(methods);
            }
            if rule.needs_method && word.value == "*" {
                return fail(
                    word.at,
                    "a rule for * knows neither fields nor the method; name the methods or the service",
                );
            }
            if patterns.len() > limits::METHODS {
                let most = limits::METHODS;
                return fail(
                    word.at,
                    format!("the rules are for more than {most} methods"),
                );
            }
        }
    }
    let (exact, wild): (Vec<_>, Vec<_>) = patterns.into_iter().partition(|p| !p.ends_with('*'));
    Ok(exact.into_iter().chain(wild).collect())
}

/// Whether a rule's method stands for an entry, too.
fn covers(method: &str, pattern: &str) -> bool {
    let (service, _) = split(method);
    method == "*" || method == pattern || method.ends_with("/*") && split(pattern).0 == service
}

impl<'a> Parsed<'a> {
    fn new(rule: &'a Rule) -> Result<Parsed<'a>, ErrorAt> {
        let computed = |value: &Value| match value {
            Value::Expression(text) => parse(text).map(Some),
            _ => Ok(None),
        };
        let value_of = |action: &Action| match action {
            Action::SetField(_, value)
            | Action::SetMetadata(_, value)
            | Action::Route(value)
            | Action::Log(value) => computed(value),
            _ => Ok(None),
        };
        let values = rule.actions.iter().map(value_of);
        let text = match &rule.end {
            End::Deny {
                text: Some(text), ..
            } => computed(text)?,
            _ => None,
        };
        let key = rule.beyond.as_ref().and_then(|rate| rate.key.as_ref());
        let mut parsed = Parsed {
            rule,
            when: rule.when.as_ref().map(parse).transpose()?,
            key: key.map(parse).transpose()?,
            values: values.collect::<Result<_, _>>()?,
            text,
            needs_method: false,
        };
        let nodes = parsed.when.iter().chain(&parsed.key).chain(&parsed.text);
        let mut nodes = nodes.chain(parsed.values.iter().flatten());
        let is_of_field =
            |action: &Action| matches!(action, Action::SetField(..) | Action::ClearField(_));
        parsed.needs_method =
            nodes.any(|node| node.mentions(OF_A_METHOD)) || rule.actions.iter().any(is_of_field);
        Ok(parsed)
    }
}

/// Plans the rules of one method at one hook.
struct Planner<'a> {
    file: &'a RulesFile,
    types: &'a Types<'a>,
    pattern: &'a str,
    side: &'a mut Side,
}

impl Planner<'_> {
    fn rule(&mut self, at: usize, parsed: &Parsed<'_>) -> Result<RulePlan, ErrorAt> {
        let rule = parsed.rule;
        if parsed.needs_method && self.pattern.ends_with('*') {
            let why = "the rules were compiled without this method".to_owned();
            return Ok(RulePlan {
                rule: at,
                when: Condition::Never(why),
                beyond: None,
                actions: Vec::new(),
                end: EndPlan::Next,
            });
        }
        let when = match &parsed.when {
            None => Condition::Always,
            Some(node) => Condition::If(self.checker(rule).expect(
                node,
                Type::Bool,
                "the condition of a rule",
            )?),
        };
        let beyond = match &rule.beyond {
            None => None,
            Some(rate) => Some(self.rate(rule, rate, parsed.key.as_ref())?),
        };
        let mut actions = Vec::new();
        for (action, node) in rule.actions.iter().zip(&parsed.values) {
            actions.push(self.action(rule, action, node.as_ref())?);
        }
        let end = match &rule.end {
            End::Next => EndPlan::Next,
            End::Allow => EndPlan::Allow,
            End::Deny { status, text } => EndPlan::Deny {
                status: status.0,
                text: self.text(rule, text.as_ref(), parsed.text.as_ref())?,
            },
        };
        Ok(RulePlan {
            rule: at,
            when,
            beyond,
            actions,
            end,
        })
    }

    fn rate(
        &mut self,
        rule: &Rule,
        rate: &RateLimit,
        key: Option<&Node>,
    ) -> Result<RatePlan, ErrorAt> {
        self.side.usage.limits_rates = true;
        let what = "the key of a rate limit";
        Ok(RatePlan {
            interval_ns: rate.interval_ns,
            depth_ns: rate.interval_ns * u64::from(rate.burst),
            key: match key {
                Some(node) => self.checker(rule).expect(node, Type::String, what)?,
                None => Typed::constant(Const::String(String::new())),
            },
        })
    }

    fn checker(&mut self, rule: &Rule) -> Checker<'_> {
        let Planner {
            file,
            types,
            pattern,
            side,
        } = self;
        Checker::new(types, &file.lists, pattern, rule.hook, &mut side.usage)
    }

    /// The text of a denial, which ends with the rule's name.
    fn text(
        &mut self,
        rule: &Rule,
        value: Option<&Value>,
        node: Option<&Node>,
    ) -> Result<Typed, ErrorAt> {
        let (name, line) = (&rule.name, rule.line);
        let constant = |text: String| Typed::constant(Const::String(text));
        let suffix = match self.file.names_rules {
            true => format!(" (rule {name}, line {line})"),
            false => String::new(),
        };
        match (value, node) {
            (_, Some(node)) => {
                let text = self.checker(rule).expect(node, Type::String, "a text")?;
                Ok(match suffix.is_empty() {
                    true => text,
                    false => concatenated(Type::String, text, constant(suffix)),
                })
            }
            (Some(Value::Text(_, text)), None) => Ok(constant(format!("{text}{suffix}"))),
            (Some(_), None) => fail(rule.at, "the text of a denial is no text"),
            (None, None) if rule.beyond.is_some() => {
                Ok(constant(format!("too many calls; try again later{suffix}")))
            }
            (None, None) => Ok(constant(format!("denied by a rule{suffix}"))),
        }
    }

    fn action(
        &mut self,
        rule: &Rule,
        action: &Action,
        node: Option<&Node>,
    ) -> Result<ActionPlan, ErrorAt> {
        Ok(match action {
            Action::SetField(path, value) => return self.set_field(rule, path, value, node),
            Action::ClearField(path) => {
                let (name, ty, inside) = self.target(rule, path)?;
                if ty.is_required {
                    return fail(
                        path.at,
                        format!("the field {name} is required; it can't be cleared"),
                    );
                }
                ActionPlan::ClearField {
                    change: self.side.usage.field_change(path.at, &name)?,
                    inside,
                }
            }
            Action::SetMetadata(key, value) => {
                let is_binary = tollgate_shm_abi::metadata::is_binary(&key.value);
                let value = match (value, node, is_binary) {
                    (Value::Text(_, text), None, false) => {
                        Typed::constant(Const::String(text.clone()))
                    }
                    (_, Some(node), false) => {
                        self.checker(rule)
                            .expect(node, Type::String, "a metadata value")?
                    }
                    (_, Some(node), true) => {
                        let what = "a value of a key that ends in -bin";
                        self.checker(rule).expect(node, Type::Bytes, what)?
                    }
                    (_, None, _) => {
                        let key = &key.value;
                        let form = match is_binary {
                            true => "{ cel = \"b'..'\" }",
                            false => "a text, or { cel = \"..\" }",
                        };
                        return fail(rule.at, format!("the value of metadata {key:?} is {form}"));
                    }
                };
                let is_checked = is_binary || value.as_const().is_some();
                let name = &key.value;
                ActionPlan::SetMetadata {
                    key: self.side.usage.key_change(key.at, name)?,
                    misfit: (!is_checked).then(|| {
                        format!("the new value of metadata {name:?} has other bytes than printable ASCII")
                    }),
                    value,
                }
            }
            Action::RemoveMetadata(key) => ActionPlan::RemoveMetadata {
                key: self.side.usage.key_change(key.at, &key.value)?,
            },
            Action::Delay { us } => {
                self.side.usage.uses_delay = true;
                ActionPlan::Delay { us: *us }
            }
            Action::Priority(priority) => {
                self.side.usage.uses_priority = true;
                ActionPlan::Priority(*priority)
            }
            Action::Route(value) => {
                self.side.usage.uses_route = true;
                ActionPlan::Route {
                    label: self.string(rule, value, node, "a route")?,
                    misfit: "the route isn't 1 to 64 of a-z 0-9 - _ .".to_owned(),
                }
            }
            Action::Log(value) => ActionPlan::Log(self.string(rule, value, node, "a log line")?),
        })
    }

    fn string(
        &mut self,
        rule: &Rule,
        value: &Value,
        node: Option<&Node>,
        what: &str,
    ) -> Result<Typed, ErrorAt> {
        match (value, node) {
            (_, Some(node)) => self.checker(rule).expect(node, Type::String, what),
            (Value::Text(_, text), None) => Ok(Typed::constant(Const::String(text.clone()))),
            _ => fail(rule.at, format!("{what} is a text, or {{ cel = \"..\" }}")),
        }
    }

    /// A field to change, and the entry that tells whether the message around it is there.
    fn target(
        &mut self,
        rule: &Rule,
        path: &Word,
    ) -> Result<(String, FieldType, Option<Entry>), ErrorAt> {
        let names = path.value.split('.').map(|name| (path.at, name));
        let hook = rule.hook.name();
        let whole: Vec<_> = [(path.at, hook)].into_iter().chain(names).collect();
        let mut checker = self.checker(rule);
        let Resolved::Field(name, ty) = checker.resolve(&whole)? else {
            return fail(
                path.at,
                format!("{} is a message; name one of its fields", path.value),
            );
        };
        let Some((outer, _)) = name.rsplit_once('.') else {
            return Ok((name, ty, None));
        };
        let depth = outer.split('.').count();
        match checker.resolve(&whole[..=depth])? {
            Resolved::Message {
                witness: Some(field),
                ..
            } => {
                let index = self.side.usage.field(path.at, &field)?;
                Ok((name, ty, Some(Entry::Field(index))))
            }
            _ => fail(
                path.at,
                format!(
                    "{outer} may be absent, and no field in it tells whether it is; {name} can't be changed by a rule"
                ),
            ),
        }
    }

    fn set_field(
        &mut self,
        rule: &Rule,
        path: &Word,
        value: &Value,
        node: Option<&Node>,
    ) -> Result<ActionPlan, ErrorAt> {
        let (name, ty, inside) = self.target(rule, path)?;
        let what = format!("a value of {name}");
        let wanted = ty.scalar.ty();
        let value = match (value, node) {
            (_, Some(node)) => self.checker(rule).expect(node, wanted, &what)?,
            (value, None) => literal(path.at, value, wanted, &what)?,
        };
        let misfit = format!("the new value doesn't fit the field {name}");
        match value.as_const() {
            Some(constant) if !fits(constant, &ty) => return fail(path.at, misfit),
            None if ty.closed.is_some() => {
                return fail(
                    path.at,
                    format!("{name} has a closed enum; a rule can set it to constants only"),
                );
            }
            _ => {}
        }
        let outer = name.rsplit_once('.').map_or("", |(outer, _)| outer);
        let inside =
            inside.map(|entry| (entry, format!("{outer} is absent, so {name} can't be set")));
        Ok(ActionPlan::SetField {
            change: self.side.usage.field_change(path.at, &name)?,
            scalar: ty.scalar,
            value,
            inside,
            misfit,
        })
    }
}

/// A constant of the file as a value of a type.
fn literal(at: usize, value: &Value, wanted: Type, what: &str) -> Result<Typed, ErrorAt> {
    let constant = match (value, wanted) {
        (Value::Bool(value), Type::Bool) => Const::Bool(*value),
        (Value::Int(value), Type::Int) => Const::Int(*value),
        (Value::Int(value), Type::Uint) if *value >= 0 => Const::Uint(value.unsigned_abs()),
        (Value::Int(value), Type::Double) => Const::Double(*value as f64),
        (Value::Double(value), Type::Double) => Const::Double(*value),
        (Value::Text(_, text), Type::String) => Const::String(text.clone()),
        (Value::Text(_, text), Type::Bytes) => Const::Bytes(text.clone().into_bytes()),
        _ => {
            return fail(
                at,
                format!("{what} is {wanted:#}, or {{ cel = \"..\" }} of this type"),
            );
        }
    };
    Ok(Typed::constant(constant))
}

fn fits(constant: &Const, ty: &FieldType) -> bool {
    match (constant, ty.scalar) {
        (Const::Int(value), Scalar::Int32) => {
            let value = i32::try_from(*value);
            value.is_ok_and(|value| ty.closed.as_ref().is_none_or(|all| all.contains(&value)))
        }
        (Const::Uint(value), Scalar::Uint32) => u32::try_from(*value).is_ok(),
        _ => true,
    }
}

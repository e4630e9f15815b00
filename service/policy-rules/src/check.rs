//! The check of an expression's types, for one method and one hook.
//!
//! The result is a tree whose operations are the module's: which field of a view, which metadata
//! key, which comparison. Macros over lists of constants are unrolled here; what remains of them
//! are loops over a metadata key's values. Each node knows whether it can fail when it is
//! evaluated, so that code for errors is written only where they can occur.

use std::collections::BTreeMap;

use tollgate_schema::spelling::did_you_mean;

use crate::error::{ErrorAt, fail, shown, some_of};
use crate::file::{Hook, Word, metadata_key};
use crate::limits;
use crate::ops::{
    Entry, Op, Typed, balanced, compared, concatenated, field, in_numbers, in_texts, in_values,
    present, zero,
};
use crate::parse::{Arithmetic, Comparison, Kind, Macro, Node, Quantifier};
use crate::scope::{Message, Resolved, Types};
use crate::types::{CALLER, Const, List, NAMES, Type};
use crate::usage::Usage;

/// What a macro's name stands for.
enum Bound {
    Value(Typed),
    /// The current value of the loop at this depth.
    Loop(usize, Type),
}

/// Checks expressions of one method at one hook.
pub(crate) struct Checker<'a> {
    pub(crate) types: &'a Types<'a>,
    pub(crate) lists: &'a BTreeMap<String, List>,
    /// The method's full name, or a pattern that stands for several.
    pub(crate) method: &'a str,
    pub(crate) hook: Hook,
    pub(crate) usage: &'a mut Usage,
    bound: Vec<(String, Bound)>,
    loops: usize,
    nodes: usize,
    depth: usize,
}

/// A list in an expression.
enum Items {
    Values(Vec<Typed>),
    Texts(Vec<Vec<u8>>),
    Ints(Vec<i64>),
    /// All values of a metadata key.
    Key(usize, Type),
}

impl<'a> Checker<'a> {
    pub(crate) fn new(
        types: &'a Types<'a>,
        lists: &'a BTreeMap<String, List>,
        method: &'a str,
        hook: Hook,
        usage: &'a mut Usage,
    ) -> Checker<'a> {
        Checker {
            types,
            lists,
            method,
            hook,
            usage,
            bound: Vec::new(),
            loops: 0,
            nodes: 0,
            depth: 0,
        }
    }

    /// Checks an expression that must have this type.
    pub(crate) fn expect(&mut self, node: &Node, ty: Type, what: &str) -> Result<Typed, ErrorAt> {
        let found = self.check(node)?;
        match found.ty == ty {
            true => Ok(found),
            false => fail(node.at, format!("{what} is {ty:#}; this is {:#}", found.ty)),
        }
    }

    pub(crate) fn check(&mut self, node: &Node) -> Result<Typed, ErrorAt> {
        self.nodes += 1;
        if self.nodes > limits::NODES {
            let most = limits::NODES;
            return fail(
                node.at,
                format!("with its macros unrolled, the expression has more than {most} parts"),
            );
        }
        if self.depth == 2 * limits::NESTING {
            return fail(
                node.at,
                "with its macros unrolled, the expression is nested too deeply",
            );
        }
        self.depth += 1;
        let checked = self.kind(node);
        self.depth -= 1;
        checked
    }

    fn kind(&mut self, node: &Node) -> Result<Typed, ErrorAt> {
        let at = node.at;
        match &node.kind {
            Kind::Const(value) => Ok(Typed::constant(value.clone())),
            Kind::Name(_) | Kind::Select(..) => self.path(node),
            Kind::Has(operand, name) => self.has(at, operand, name),
            Kind::Index(list, index) => self.index(at, list, index),
            Kind::List(_) => fail(
                at,
                "a list is no value in rules; it can follow \"in\", or have size(), all(), exists() or exists_one()",
            ),
            Kind::Not(inner) => {
                let inner = self.expect(inner, Type::Bool, "the operand of !")?;
                Ok(Typed::new(
                    Type::Bool,
                    inner.fails,
                    Op::Not(Box::new(inner)),
                ))
            }
            Kind::Negate(inner) => self.negate(at, inner),
            Kind::And(a, b) => self.logical(a, b, "&&", Op::And),
            Kind::Or(a, b) => self.logical(a, b, "||", Op::Or),
            Kind::Choose(condition, a, b) => self.choose(at, condition, a, b),
            Kind::Compare(comparison, a, b) => self.compare(at, *comparison, a, b),
            Kind::Arithmetic(operator, a, b) => self.arithmetic(at, *operator, a, b),
            Kind::In(value, list) => self.is_in(at, value, list),
            Kind::Call {
                function,
                target,
                arguments,
            } => self.call(at, function, target.as_deref(), arguments),
            Kind::Macro(made) => self.quantify(at, made),
        }
    }

    fn logical(
        &mut self,
        a: &Node,
        b: &Node,
        name: &str,
        op: impl FnOnce(Box<Typed>, Box<Typed>) -> Op,
    ) -> Result<Typed, ErrorAt> {
        let what = format!("an operand of {name}");
        let a = self.expect(a, Type::Bool, &what)?;
        let b = self.expect(b, Type::Bool, &what)?;
        let fails = a.fails || b.fails;
        Ok(Typed::new(Type::Bool, fails, op(Box::new(a), Box::new(b))))
    }

    /// A name, or a path of names.
    fn path(&mut self, node: &Node) -> Result<Typed, ErrorAt> {
        let Some(path) = node.path() else {
            let Kind::Select(inner, name) = &node.kind else {
                return fail(node.at, "a name is expected here");
            };
            let inner = self.check(inner)?;
            let name = shown(name);
            return fail(node.at, format!("{:#} has no field {name}", inner.ty));
        };
        let (at, first) = path[0];
        if let Some((_, bound)) = self.bound.iter().rev().find(|(name, _)| name == first) {
            let value = match bound {
                Bound::Value(value) => value.clone(),
                Bound::Loop(depth, ty) => Typed::new(*ty, false, Op::Current(*depth)),
            };
            return match path.get(1) {
                None => Ok(value),
                Some((at, name)) => {
                    let name = shown(name);
                    fail(
                        *at,
                        format!("{first} is {:#}; it has no field {name}", value.ty),
                    )
                }
            };
        }
        match first {
            "request" | "reply" => self.field(&path),
            "metadata" if path.len() > 1 => self.metadata(path[1].0, &key_of(&path)),
            "caller" if path.len() == 2 => self.caller(path[1].0, path[1].1),
            "caller" => fail(
                at,
                format!("caller has the fields {}; name one", CALLER.join(", ")),
            ),
            "method" if path.len() == 1 => self.method_name(at),
            "now" if path.len() == 1 => {
                self.usage.uses_clock = true;
                Ok(Typed::new(Type::Timestamp, false, Op::Now))
            }
            "metadata" | "metadata_values" => fail(
                at,
                format!("{first} is a map of lists; write {first}[\"key\"]"),
            ),
            _ if self.lists.contains_key(first) => fail(
                at,
                format!(
                    "{first} is a list; it can follow \"in\", or have size(), all(), exists() or exists_one()"
                ),
            ),
            _ => match self.types.enum_value(at, &path) {
                Some(value) => Ok(Typed::constant(Const::Int(value?))),
                None => Err(self.unknown_name(at, first)),
            },
        }
    }

    fn unknown_name(&self, at: usize, name: &str) -> ErrorAt {
        if ["source", "peer", "auth", "identity"].contains(&name) {
            let text = format!(
                "nothing is named {name:?}; who calls is caller, with {}",
                CALLER.join(", ")
            );
            return ErrorAt::new(at, text);
        }
        let bound = self.bound.iter().map(|(name, _)| name.as_str());
        let lists = self.lists.keys().map(String::as_str);
        let names: Vec<_> = NAMES.iter().copied().chain(lists).chain(bound).collect();
        let meant = did_you_mean(name, names.iter().copied());
        let (name, names) = (shown(name), some_of(names));
        ErrorAt::new(
            at,
            format!("nothing is named {name}; there are {names}{meant}"),
        )
    }

    fn method_name(&self, at: usize) -> Result<Typed, ErrorAt> {
        match self.method.ends_with('*') {
            false => Ok(Typed::constant(Const::String(self.method.to_owned()))),
            true => fail(
                at,
                "a rule for * isn't shown which method is called; name the methods or the service",
            ),
        }
    }

    /// Resolves a path of fields, and refuses the other hook's message.
    pub(crate) fn resolve(&mut self, path: &[(usize, &str)]) -> Result<Resolved, ErrorAt> {
        let (at, first) = path[0];
        if first != self.hook.name() {
            let hook = self.hook.name();
            return fail(
                at,
                format!("a rule of the hook {hook} isn't shown the {first}; it can read {hook}"),
            );
        }
        if self.method.ends_with('*') {
            let message = match self.method {
                "*" => "a rule for * knows no fields; name the methods or the service".to_owned(),
                method => format!(
                    "the methods of {method} aren't known; give the schema with --proto, or name the methods"
                ),
            };
            return fail(at, message);
        }
        let message: Message<'_> = self.types.message(self.method, self.hook);
        message.resolve(self.method, path)
    }

    fn field(&mut self, path: &[(usize, &str)]) -> Result<Typed, ErrorAt> {
        let at = path.last().map_or(0, |(at, _)| *at);
        match self.resolve(path)? {
            Resolved::Field(name, ty) => {
                let index = self.usage.field(at, &name)?;
                Ok(field(index, &name, ty))
            }
            Resolved::Message { name, .. } => fail(
                at,
                format!("this is a whole {name}; name one of its fields"),
            ),
        }
    }

    /// `metadata.key` or `metadata["key"]`.
    fn metadata(&mut self, at: usize, key: &str) -> Result<Typed, ErrorAt> {
        let (key, name, ty) = self.key(at, key)?;
        Ok(Typed::new(
            ty,
            true,
            Op::OnlyValue {
                key,
                none: format!("metadata {name:?} is missing"),
                many: format!("metadata {name:?} has several values"),
            },
        ))
    }

    /// `caller.uid`, a text: an attribute, which is among the metadata keys that a policy reads.
    fn caller(&mut self, at: usize, name: &str) -> Result<Typed, ErrorAt> {
        let key = self.attribute(at, name)?;
        Ok(Typed::new(
            Type::String,
            true,
            Op::OnlyValue {
                key,
                none: format!("caller.{name} isn't known"),
                many: format!("caller.{name} has several values"),
            },
        ))
    }

    fn attribute(&mut self, at: usize, name: &str) -> Result<usize, ErrorAt> {
        if !CALLER.contains(&name) {
            let meant = did_you_mean(name, CALLER.iter().copied());
            let (name, all) = (shown(name), CALLER.join(", "));
            return fail(
                at,
                format!("caller has no field {name}; it has {all}{meant}"),
            );
        }
        self.usage.key(at, &format!(":{name}"))
    }

    fn key(&mut self, at: usize, key: &str) -> Result<(usize, String, Type), ErrorAt> {
        let value = key.to_owned();
        let word = metadata_key(Word { at, value })?;
        let ty = match tollgate_shm_abi::metadata::is_binary(&word.value) {
            true => Type::Bytes,
            false => Type::String,
        };
        Ok((self.usage.key(at, &word.value)?, word.value, ty))
    }

    fn has(&mut self, at: usize, operand: &Node, name: &str) -> Result<Typed, ErrorAt> {
        let Some(mut path) = operand.path() else {
            return fail(
                at,
                "has() takes a field such as request.a.b, or metadata.key",
            );
        };
        path.push((at + 1, name));
        if path[0].1 == "metadata" {
            let (key, ..) = self.key(at, &key_of(&path))?;
            return Ok(present(Entry::Key(key)));
        }
        if let [(_, "caller"), (at, name)] = path[..] {
            let key = self.attribute(at, name)?;
            return Ok(present(Entry::Key(key)));
        }
        if !["request", "reply"].contains(&path[0].1) {
            return fail(
                at,
                "has() takes a field such as request.a.b, metadata.key, or caller.uid",
            );
        }
        match self.resolve(&path)? {
            Resolved::Field(name, ty) => {
                let index = self.usage.field(at, &name)?;
                if ty.is_explicit {
                    return Ok(present(Entry::Field(index)));
                }
                // A field that tells no presence is set if it isn't zero or empty.
                let found = field(index, &name, ty);
                let zero = Typed::constant(zero(found.ty));
                Ok(compared(Comparison::NotEqual, found, zero))
            }
            Resolved::Message {
                witness: Some(field),
                ..
            } => {
                let index = self.usage.field(at, &field)?;
                Ok(present(Entry::Field(index)))
            }
            Resolved::Message { name, .. } => fail(
                at,
                format!(
                    "has() of a {name}: each of its fields may be absent by itself, so a view doesn't show whether the message is there; ask for one of its fields"
                ),
            ),
        }
    }

    fn index(&mut self, at: usize, list: &Node, index: &Node) -> Result<Typed, ErrorAt> {
        match (&list.kind, &index.kind) {
            (Kind::Name(name), Kind::Const(Const::String(key))) if name == "metadata" => {
                self.metadata(index.at, key)
            }
            (Kind::Name(name), _) if name == "metadata" => fail(
                index.at,
                "a metadata key is a constant text: a policy declares what it reads",
            ),
            (Kind::Name(name), _) if name == "metadata_values" => fail(
                at,
                "metadata_values[..] is a list; it can follow \"in\", or have size(), all(), exists() or exists_one()",
            ),
            _ => fail(
                at,
                "an index isn't supported in rules, except in metadata[\"key\"]",
            ),
        }
    }

    /// A list where one may stand.
    fn items(&mut self, node: &Node) -> Result<Items, ErrorAt> {
        match &node.kind {
            Kind::List(nodes) => {
                let values = nodes.iter().map(|node| self.check(node));
                Ok(Items::Values(values.collect::<Result<_, _>>()?))
            }
            Kind::Name(name) if self.bound.iter().all(|(bound, _)| bound != name) => {
                match self.lists.get(name) {
                    Some(List::Strings(texts)) => {
                        let texts = texts.iter().map(|text| text.clone().into_bytes());
                        Ok(Items::Texts(texts.collect()))
                    }
                    Some(List::Ints(numbers)) => Ok(Items::Ints(numbers.clone())),
                    None => fail(node.at, self.unknown_name(node.at, name).reason),
                }
            }
            Kind::Index(map, key) => match (&map.kind, &key.kind) {
                (Kind::Name(name), Kind::Const(Const::String(text)))
                    if name == "metadata_values" =>
                {
                    let (key, _, ty) = self.key(key.at, text)?;
                    Ok(Items::Key(key, ty))
                }
                _ => fail(node.at, "only metadata_values[\"key\"] is a list"),
            },
            Kind::Select(..) => match self.path(node) {
                Err(error) => Err(error),
                Ok(found) => fail(
                    node.at,
                    format!("a list is expected here, not {:#}", found.ty),
                ),
            },
            _ => fail(
                node.at,
                "a list is expected here: [..], a name of [lists], or metadata_values[\"key\"]",
            ),
        }
    }

    pub(crate) fn size_of_list(&mut self, node: &Node) -> Option<Result<Typed, ErrorAt>> {
        let is_list = match &node.kind {
            Kind::List(_) => true,
            Kind::Name(name) => {
                self.lists.contains_key(name) && self.bound.iter().all(|(bound, _)| bound != name)
            }
            Kind::Index(map, _) => {
                matches!(&map.kind, Kind::Name(name) if name == "metadata_values")
            }
            _ => false,
        };
        is_list.then(|| {
            let count = |count: usize| Typed::constant(Const::Int(count as i64));
            Ok(match self.items(node)? {
                Items::Values(values) if values.iter().any(|value| value.fails) => {
                    return fail(node.at, "the size of a list whose values can fail");
                }
                Items::Values(values) => count(values.len()),
                Items::Texts(texts) => count(texts.len()),
                Items::Ints(numbers) => count(numbers.len()),
                Items::Key(key, _) => Typed::new(Type::Int, false, Op::CountValues { key }),
            })
        })
    }

    fn is_in(&mut self, at: usize, value: &Node, list: &Node) -> Result<Typed, ErrorAt> {
        if let (Kind::Const(Const::String(key)), Kind::Name(name)) = (&value.kind, &list.kind)
            && name == "metadata"
        {
            let (key, ..) = self.key(value.at, key)?;
            return Ok(present(Entry::Key(key)));
        }
        let value = self.check(value)?;
        let mismatch = |of: Type| {
            let ty = value.ty;
            fail(at, format!("{ty:#} is looked for in a list of {of}s"))
        };
        match self.items(list)? {
            Items::Values(items) => in_values(at, value, items),
            Items::Texts(texts) => match value.ty {
                Type::String => Ok(in_texts(value, texts)),
                _ => mismatch(Type::String),
            },
            Items::Ints(numbers) => match value.ty {
                Type::Int => Ok(in_numbers(value, numbers)),
                // A negative number equals no uint.
                Type::Uint => {
                    let numbers = numbers.into_iter().filter(|number| *number >= 0);
                    Ok(in_numbers(value, numbers.collect()))
                }
                _ => mismatch(Type::Int),
            },
            Items::Key(key, ty) if value.ty == ty => {
                let depth = self.loops;
                let current = Typed::new(ty, false, Op::Current(depth));
                let fails = value.fails;
                let condition = compared(Comparison::Equal, current, value);
                let op = Op::Loop {
                    quantifier: Quantifier::Exists,
                    key,
                    depth,
                    condition: Box::new(condition),
                };
                Ok(Typed::new(Type::Bool, fails, op))
            }
            Items::Key(_, ty) => mismatch(ty),
        }
    }

    fn negate(&mut self, at: usize, inner: &Node) -> Result<Typed, ErrorAt> {
        let inner = self.check(inner)?;
        if let Some(Const::Double(value)) = inner.as_const() {
            return Ok(Typed::constant(Const::Double(-value)));
        }
        match inner.ty {
            Type::Int => Ok(Typed::new(Type::Int, true, Op::Negate(Box::new(inner)))),
            Type::Double => {
                let fails = inner.fails;
                Ok(Typed::new(Type::Double, fails, Op::Negate(Box::new(inner))))
            }
            ty => fail(
                at,
                format!("{ty:#} can't be negated; an int or a double can"),
            ),
        }
    }

    fn choose(
        &mut self,
        at: usize,
        condition: &Node,
        a: &Node,
        b: &Node,
    ) -> Result<Typed, ErrorAt> {
        let condition = self.expect(condition, Type::Bool, "the condition of ? :")?;
        let (a, b) = (self.check(a)?, self.check(b)?);
        if a.ty != b.ty {
            let (a, b) = (a.ty, b.ty);
            return fail(
                at,
                format!("the values of ? : have one type; these are {a:#} and {b:#}"),
            );
        }
        let (ty, fails) = (a.ty, condition.fails || a.fails || b.fails);
        let op = Op::Choose(Box::new(condition), Box::new(a), Box::new(b));
        Ok(Typed::new(ty, fails, op))
    }

    fn compare(
        &mut self,
        at: usize,
        comparison: Comparison,
        a: &Node,
        b: &Node,
    ) -> Result<Typed, ErrorAt> {
        let (a, b) = (self.check(a)?, self.check(b)?);
        let (left, right) = (a.ty, b.ty);
        if left != right && !(left.is_number() && right.is_number()) {
            return fail(at, format!("{left:#} can't be compared with {right:#}"));
        }
        Ok(compared(comparison, a, b))
    }

    fn arithmetic(
        &mut self,
        at: usize,
        operator: Arithmetic,
        a: &Node,
        b: &Node,
    ) -> Result<Typed, ErrorAt> {
        let (a, b) = (self.check(a)?, self.check(b)?);
        let (left, right) = (a.ty, b.ty);
        let sign = match operator {
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
            Arithmetic::Modulo => "%",
        };
        if operator == Arithmetic::Add && left == right && left.is_span() {
            return Ok(concatenated(left, a, b));
        }
        let is_sum = matches!(operator, Arithmetic::Add | Arithmetic::Subtract);
        let (ty, fails) = match (left, right) {
            (Type::Int, Type::Int) | (Type::Uint, Type::Uint) => (left, true),
            (Type::Double, Type::Double) if operator != Arithmetic::Modulo => (Type::Double, false),
            (Type::Duration, Type::Duration) | (Type::Timestamp, Type::Duration) if is_sum => {
                (left, true)
            }
            (Type::Duration, Type::Timestamp) if operator == Arithmetic::Add => {
                (Type::Timestamp, true)
            }
            (Type::Timestamp, Type::Timestamp) if operator == Arithmetic::Subtract => {
                (Type::Duration, true)
            }
            _ => {
                let hint = match (left, right) {
                    (Type::Uint, Type::Int) | (Type::Int, Type::Uint) => {
                        "; a constant uint is written 1u, and int(..) and uint(..) convert"
                    }
                    (Type::Double, Type::Int) | (Type::Int, Type::Double) => {
                        "; a constant double is written 1.0, and double(..) converts"
                    }
                    (Type::String, _) | (_, Type::String) if sign == "+" => "; string(..) converts",
                    _ => "",
                };
                return fail(at, format!("{left} {sign} {right} has no meaning{hint}"));
            }
        };
        let fails = fails || a.fails || b.fails;
        let op = Op::Arithmetic(operator, Box::new(a), Box::new(b));
        Ok(Typed::new(ty, fails, op))
    }

    fn quantify(&mut self, at: usize, made: &Macro) -> Result<Typed, ErrorAt> {
        let Macro {
            quantifier,
            over,
            name,
            condition,
        } = made;
        let values = match self.items(over)? {
            Items::Key(key, ty) => {
                let depth = self.loops;
                self.loops += 1;
                self.bound.push((name.clone(), Bound::Loop(depth, ty)));
                let condition = self.expect(condition, Type::Bool, "the condition of a macro");
                self.bound.pop();
                self.loops -= 1;
                let condition = condition?;
                let fails = condition.fails;
                let op = Op::Loop {
                    quantifier: *quantifier,
                    key,
                    depth,
                    condition: Box::new(condition),
                };
                return Ok(Typed::new(Type::Bool, fails, op));
            }
            Items::Values(values) => values,
            Items::Texts(texts) => {
                let texts = texts
                    .into_iter()
                    .filter_map(|text| String::from_utf8(text).ok());
                texts
                    .map(|text| Typed::constant(Const::String(text)))
                    .collect()
            }
            Items::Ints(numbers) => {
                let numbers = numbers.into_iter().map(Const::Int);
                numbers.map(Typed::constant).collect()
            }
        };
        if values.len() > limits::NODES {
            let (count, most) = (values.len(), limits::NODES);
            return fail(
                at,
                format!("a macro over {count} values; the limit is {most}"),
            );
        }
        let mut conditions = Vec::with_capacity(values.len());
        for value in values {
            self.bound.push((name.clone(), Bound::Value(value)));
            let checked = self.expect(condition, Type::Bool, "the condition of a macro");
            self.bound.pop();
            conditions.push(checked?);
        }
        Ok(match quantifier {
            Quantifier::All => balanced(conditions, true, Op::And),
            Quantifier::Exists => balanced(conditions, false, Op::Or),
            Quantifier::ExistsOne => {
                let fails = conditions.iter().any(|condition| condition.fails);
                Typed::new(Type::Bool, fails, Op::One(conditions))
            }
        })
    }
}

/// The key of `metadata.key`: a key may have dots and dashes, but a name has only dots.
fn key_of(path: &[(usize, &str)]) -> String {
    let names: Vec<_> = path[1..].iter().map(|(_, name)| *name).collect();
    names.join(".")
}

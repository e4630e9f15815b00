//! Parses a description's lines into methods, messages and fields.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{MAX_DESCRIPTION, MAX_METHODS, MAX_TYPES, SEPARATOR, shown};
use crate::proto_type::ProtoType;

/// The reason why a text isn't a description, as the rest of a sentence. Names and lines are
/// [shown].
#[derive(Debug, thiserror::Error)]
pub(super) enum DescriptionError {
    #[error("it has {bytes} bytes, the limit is {MAX_DESCRIPTION}")]
    TooLong { bytes: usize },
    #[error("it has more than {MAX_TYPES} messages and enums")]
    TooManyTypes,
    #[error("it has {count} methods, the limit is {MAX_METHODS}")]
    TooManyMethods { count: usize },
    #[error("the line `{line}` is no part of a description")]
    Line { line: String },
    #[error("{name} is in it twice")]
    Twice { name: String },
    #[error("method {method} has the index {index} where {expected} is expected")]
    Index {
        method: String,
        index: u16,
        expected: u16,
    },
    #[error("message {message} has two fields with number {number}")]
    SameNumber { message: String, number: u32 },
}

/// One side's description, parsed.
pub(super) struct Description<'a> {
    /// By index.
    pub(super) methods: Vec<Method<'a>>,
    by_name: HashMap<&'a str, usize>,
    /// The messages reachable from the methods.
    pub(super) messages: Vec<Message<'a>>,
    enums: Vec<&'a str>,
    owners: HashMap<&'a str, Vec<Member<'a>>>,
}

/// A line without the name of its message or enum.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Member<'a> {
    name: &'a str,
    what: &'a str,
}

pub(super) struct Method<'a> {
    /// With the service's name: `hotel.Reservation/Reserve`.
    pub(super) name: &'a str,
    pub(super) index: u16,
    pub(super) input: u32,
    pub(super) output: u32,
    /// `(hotel.ReserveRequest) returns (stream hotel.ReserveReply)`.
    pub(super) signature: &'a str,
    client_streaming: bool,
    server_streaming: bool,
}

pub(super) struct Message<'a> {
    /// The full name; for the entry of a map, that of the map.
    pub(super) name: Cow<'a, str>,
    /// By number.
    pub(super) fields: Vec<Field<'a>>,
    /// Names with numbers, by name.
    pub(super) names: Vec<(&'a str, u32)>,
    is_map_entry: bool,
}

pub(super) struct Field<'a> {
    pub(super) name: &'a str,
    pub(super) number: u32,
    /// The line after the number, for use in sentences.
    pub(super) what: &'a str,
    pub(super) label: Label,
    pub(super) value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    Singular,
    Required,
    Repeated,
    /// The index of the oneof.
    Oneof(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Scalar(ProtoType),
    /// Index into the description's enums.
    Enum(u32),
    /// Index into the description's messages.
    Message(u32),
    Group(u32),
}

impl Method<'_> {
    pub(super) fn streams(&self) -> (bool, bool) {
        (self.client_streaming, self.server_streaming)
    }
}

impl<'a> Description<'a> {
    /// Reads a text.
    pub(super) fn parse(text: &'a str) -> Result<Description<'a>, DescriptionError> {
        if text.len() > MAX_DESCRIPTION {
            let bytes = text.len();
            return Err(DescriptionError::TooLong { bytes });
        }
        let mut parser = Parser::default();
        let mut methods = HashMap::new();
        for line in text.lines() {
            let split = line.split_once(SEPARATOR);
            let (key, what) = split.ok_or_else(|| unreadable(line))?;
            if key.contains('/') {
                if methods.insert(key, what).is_some() {
                    return Err(twice(key));
                }
            } else {
                let (owner, name) = key.rsplit_once('.').ok_or_else(|| unreadable(line))?;
                let members = parser.owners.entry(owner).or_default();
                members.push(Member { name, what });
                if parser.owners.len() > MAX_TYPES {
                    return Err(DescriptionError::TooManyTypes);
                }
            }
        }
        for (owner, members) in &mut parser.owners {
            members.sort_unstable();
            if let Some(same) = members.windows(2).find(|m| m[0].name == m[1].name) {
                return Err(twice(&format!("{owner}.{}", same[0].name)));
            }
        }
        let methods = parser.methods(methods)?;
        parser.messages()?;
        Ok(Description {
            by_name: methods.iter().map(|m| m.name).zip(0..).collect(),
            methods,
            messages: parser.messages,
            enums: parser.enums,
            owners: parser.owners,
        })
    }

    pub(super) fn method(&self, name: &str) -> Option<&Method<'a>> {
        self.methods.get(*self.by_name.get(name)?)
    }

    /// For each message, whether it or any message reachable from it has other lines in `other`.
    pub(super) fn changed_from(&self, other: &Description<'_>) -> Vec<bool> {
        let is_same = |owner: &str| self.owners.get(owner) == other.owners.get(owner);
        let enums: Vec<bool> = self.enums.iter().map(|name| !is_same(name)).collect();
        let mut users: Vec<Vec<u32>> = vec![Vec::new(); self.messages.len()];
        let mut changed = Vec::with_capacity(self.messages.len());
        for (at, message) in (0..).zip(&self.messages) {
            let mut is_changed = !message.is_map_entry && !is_same(&message.name);
            for field in &message.fields {
                match field.value {
                    Value::Scalar(_) => {}
                    Value::Enum(index) => is_changed |= enums[index as usize],
                    Value::Message(index) | Value::Group(index) => users[index as usize].push(at),
                }
            }
            changed.push(is_changed);
        }
        let mut queue: Vec<u32> = (0..changed.len() as u32)
            .filter(|at| changed[*at as usize])
            .collect();
        while let Some(at) = queue.pop() {
            for &user in &users[at as usize] {
                if !std::mem::replace(&mut changed[user as usize], true) {
                    queue.push(user);
                }
            }
        }
        changed
    }
}

#[derive(Default)]
struct Parser<'a> {
    owners: HashMap<&'a str, Vec<Member<'a>>>,
    messages: Vec<Message<'a>>,
    message_index: HashMap<&'a str, u32>,
    enums: Vec<&'a str>,
    enum_index: HashMap<&'a str, u32>,
}

impl<'a> Parser<'a> {
    /// Returns the methods by index; the indices must be 0, 1, 2 ...
    fn methods(
        &mut self,
        lines: HashMap<&'a str, &'a str>,
    ) -> Result<Vec<Method<'a>>, DescriptionError> {
        let count = lines.len();
        if count > MAX_METHODS {
            return Err(DescriptionError::TooManyMethods { count });
        }
        let mut methods = Vec::with_capacity(count);
        for (name, what) in lines {
            let method = self.method(name, what);
            methods.push(method.ok_or_else(|| unreadable(&format!("{name}{SEPARATOR}{what}")))?);
        }
        methods.sort_unstable_by_key(|m| m.index);
        match methods.iter().zip(0..).find(|(m, at)| m.index != *at) {
            None => Ok(methods),
            Some((method, expected)) => Err(DescriptionError::Index {
                method: shown(method.name),
                index: method.index,
                expected,
            }),
        }
    }

    fn method(&mut self, name: &'a str, what: &'a str) -> Option<Method<'a>> {
        let (index, signature) = what.split_once(' ')?;
        let sides = signature.strip_prefix('(')?.strip_suffix(')')?;
        let (input, output) = sides.split_once(") returns (")?;
        let streamed = |side: &'a str| match side.strip_prefix("stream ") {
            Some(name) => (true, name),
            None => (false, side),
        };
        let ((client_streaming, input), (server_streaming, output)) =
            (streamed(input), streamed(output));
        Some(Method {
            name,
            index: index.parse().ok()?,
            input: self.message(undotted(input)?),
            output: self.message(undotted(output)?),
            signature,
            client_streaming,
            server_streaming,
        })
    }

    /// The index of a referenced message; its fields are read later.
    fn message(&mut self, name: &'a str) -> u32 {
        match self.message_index.entry(name) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let index = *new.insert(self.messages.len() as u32);
                self.messages.push(Message {
                    name: name.into(),
                    fields: Vec::new(),
                    names: Vec::new(),
                    is_map_entry: false,
                });
                index
            }
        }
    }

    fn enumeration(&mut self, name: &'a str) -> u32 {
        match self.enum_index.entry(name) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.enums.push(name);
                *new.insert(self.enums.len() as u32 - 1)
            }
        }
    }

    /// Reads the fields of every referenced message until there are no new ones.
    fn messages(&mut self) -> Result<(), DescriptionError> {
        let mut next = 0;
        while let Some(message) = self.messages.get(next) {
            if !message.is_map_entry {
                let name = message.name.clone();
                let members = self.owners.get(&*name).cloned().unwrap_or_default();
                let mut fields = Vec::with_capacity(members.len());
                for member in members {
                    let field = self.field(&name, member);
                    fields.push(field.ok_or_else(|| {
                        let Member { name: field, what } = member;
                        unreadable(&format!("{name}.{field}{SEPARATOR}{what}"))
                    })?);
                }
                self.messages[next].fill(fields)?;
            }
            next += 1;
        }
        Ok(())
    }

    fn field(&mut self, message: &str, member: Member<'a>) -> Option<Field<'a>> {
        let (number, what) = member.what.split_once(' ')?;
        let number = number.parse().ok().filter(|n| (1..1 << 29).contains(n))?;
        let field = |label, value| Field {
            name: member.name,
            number,
            what,
            label,
            value,
        };
        if let Some(pair) = what.strip_prefix("map<") {
            let (key, value) = pair.strip_suffix('>')?.split_once(", ")?;
            let entry = self.entry(format!("{message}.{}", member.name), key, value)?;
            return Some(field(Label::Repeated, Value::Message(entry)));
        }
        let labels = [
            ("repeated ", Label::Repeated),
            ("required ", Label::Required),
            ("optional ", Label::Singular),
        ];
        for (prefix, label) in labels {
            if let Some(value) = what.strip_prefix(prefix) {
                return Some(field(label, self.value(value)?));
            }
        }
        if let Some(rest) = what.strip_prefix("oneof ") {
            let (index, rest) = rest.split_once(' ')?;
            let (_, value) = rest.split_once(' ')?;
            return Some(field(Label::Oneof(index.parse().ok()?), self.value(value)?));
        }
        Some(field(Label::Singular, self.value(what)?))
    }

    /// Adds the message of a map's entries.
    fn entry(&mut self, name: String, key: &'a str, value: &'a str) -> Option<u32> {
        let field = |name, number, what, value| Field {
            name,
            number,
            what,
            label: Label::Singular,
            value,
        };
        let (key, value) = (
            field("key", 1, key, self.value(key)?),
            field("value", 2, value, self.value(value)?),
        );
        let mut entry = Message {
            name: name.into(),
            fields: Vec::new(),
            names: Vec::new(),
            is_map_entry: true,
        };
        entry.fill(vec![key, value]).ok()?;
        self.messages.push(entry);
        Some(self.messages.len() as u32 - 1)
    }

    fn value(&mut self, text: &'a str) -> Option<Value> {
        let declared = text.strip_prefix("closed ").unwrap_or(text);
        if let Some(name) = declared.strip_prefix("enum ") {
            return Some(Value::Enum(self.enumeration(checked(name)?)));
        }
        if let Some(name) = text.strip_prefix("group ") {
            return Some(Value::Group(self.message(checked(name)?)));
        }
        match ProtoType::of_scalar(text) {
            Some(scalar) => Some(Value::Scalar(scalar)),
            None => Some(Value::Message(self.message(undotted(text)?))),
        }
    }
}

impl<'a> Message<'a> {
    fn fill(&mut self, mut fields: Vec<Field<'a>>) -> Result<(), DescriptionError> {
        fields.sort_unstable_by_key(|f| f.number);
        if let Some(same) = fields.windows(2).find(|f| f[0].number == f[1].number) {
            return Err(DescriptionError::SameNumber {
                message: shown(&self.name),
                number: same[0].number,
            });
        }
        self.names = fields.iter().map(|f| (f.name, f.number)).collect();
        self.names.sort_unstable();
        self.fields = fields;
        Ok(())
    }
}

/// A message's name; a name that is also a scalar's begins with a dot.
fn undotted(name: &str) -> Option<&str> {
    checked(name.strip_prefix('.').unwrap_or(name))
}

/// Returns the text if it can be a full name.
fn checked(name: &str) -> Option<&str> {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
    (!name.is_empty() && name.bytes().all(is_part)).then_some(name)
}

fn unreadable(line: &str) -> DescriptionError {
    DescriptionError::Line { line: shown(line) }
}

fn twice(name: &str) -> DescriptionError {
    DescriptionError::Twice { name: shown(name) }
}

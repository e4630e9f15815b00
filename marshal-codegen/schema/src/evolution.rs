//! Decides which methods two peers with unequal schemas can still call.
//!
//! The input is the canonical descriptions ([`crate::describe`]) that peers exchange. A method is
//! called natively, block to block, if all types reachable from its messages read the same on both
//! sides. Otherwise it is called through protobuf's encoding, if protobuf's own rules for updating
//! a message type allow it. Otherwise it is refused, and the sentence says why.
//!
//! # Protobuf's rules
//!
//! Fields are the same if they have the same number; names of fields, messages and enums may
//! change. A field that one side doesn't know is an unknown field there. The types of a field may
//! differ within a group:
//!
//! | interchangeable | |
//! |---|---|
//! | int32 uint32 int64 uint64 bool enum | cut to the reader's width |
//! | sint32 sint64 | |
//! | fixed32 sfixed32 | |
//! | fixed64 sfixed64 | |
//! | string bytes | as long as the bytes are UTF-8 |
//! | message bytes | as long as the bytes are such a message |
//!
//! Of these, string, bytes and messages may also be repeated on one side only (the last value
//! counts, or all are merged); a map counts as the repeated message of its entries. Presence,
//! packing and an enum's values never matter.
//!
//! Also refused: one name with two numbers (a renumbered field); a field that the reader requires
//! and the writer may omit; members of the reader's oneof that the writer may set together. The
//! last two depend on the writer: the caller writes requests, the server writes replies.
//!
//! # Hostile texts
//!
//! A peer's text may be anything. It is read once, line by line; an unreadable line refuses every
//! method. Messages are compared in pairs, each pair once, so comparing recursive types ends.
//! [`MAX_COMPARISONS`] bounds the total number of fields compared.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::describe::SEPARATOR;
use crate::error::shown;
use crate::limits::{MAX_COMPARISONS, MAX_DESCRIPTION, MAX_METHODS, MAX_TYPES};

mod compare;
mod parse;

use compare::{Direction, compare};
use parse::{Description, DescriptionError, Method};

/// How the server can be called with one of the caller's methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MethodMatch {
    /// Block to block: both sides have the same layouts.
    Native {
        /// The method's index at the server.
        index: u16,
    },
    /// Through protobuf's encoding.
    Protobuf {
        /// The method's index at the server.
        index: u16,
    },
    /// Not at all: the server has no such method.
    Absent {
        /// One sentence that names it.
        reason: String,
    },
    /// Not at all: its messages differ too much.
    Refused {
        /// One sentence that names the message, the field and the reason.
        reason: String,
    },
}

/// Tells how each of the caller's methods can be called at a server with another schema.
///
/// Returns one entry per method of `caller`, by its index. Both texts are canonical descriptions.
/// Either may be a peer's, so it may be anything: if the caller's text can't be read, there are as
/// many refusals as it seems to have methods.
pub fn match_methods(caller: &str, server: &str) -> Vec<MethodMatch> {
    let unreadable = |whose: &str, error: DescriptionError| MethodMatch::Refused {
        reason: format!("the {whose}'s schema can't be read: {error}"),
    };
    let ours = match Description::parse(caller) {
        Ok(description) => description,
        Err(error) => return vec![unreadable("caller", error); count_methods(caller)],
    };
    match Description::parse(server) {
        Ok(theirs) => Matcher::new(&ours, &theirs).all(),
        Err(error) => vec![unreadable("server", error); ours.methods.len()],
    }
}

/// The apparent number of methods in an unreadable text.
fn count_methods(text: &str) -> usize {
    let bytes = &text.as_bytes()[..text.len().min(MAX_DESCRIPTION)];
    let is_method = |line: &&[u8]| {
        let end = line.windows(SEPARATOR.len());
        let end = end.take_while(|w| *w != SEPARATOR.as_bytes()).count();
        line[..end].contains(&b'/')
    };
    bytes
        .split(|b| *b == b'\n')
        .filter(is_method)
        .take(MAX_METHODS)
        .count()
}

/// A message that one side writes and the other reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    caller: u32,
    server: u32,
    direction: Direction,
}

/// All comparisons of two descriptions.
struct Matcher<'d, 'a> {
    caller: &'d Description<'a>,
    server: &'d Description<'a>,
    pairs: Vec<Pair>,
    index: HashMap<Pair, usize>,
    /// Parallel to `pairs`: the pairs that contain this one.
    users: Vec<Vec<usize>>,
    /// Parallel to `pairs`: the reason why the pair can't be carried, if there is one.
    refusals: Vec<Option<String>>,
    /// Remaining number of fields to compare.
    left: usize,
}

impl<'d, 'a> Matcher<'d, 'a> {
    fn new(caller: &'d Description<'a>, server: &'d Description<'a>) -> Matcher<'d, 'a> {
        Matcher {
            caller,
            server,
            pairs: Vec::new(),
            index: HashMap::new(),
            users: Vec::new(),
            refusals: Vec::new(),
            left: MAX_COMPARISONS,
        }
    }

    fn all(mut self) -> Vec<MethodMatch> {
        let changed = self.caller.changed_from(self.server);
        let is_native = |method: &Method<'_>, theirs: &Method<'_>| {
            let same = [method.input, method.output]
                .iter()
                .all(|m| !changed[*m as usize]);
            same && method.signature == theirs.signature
        };
        // The pairs of all methods that need them, so that shared pairs are compared once.
        let mut roots = Vec::with_capacity(self.caller.methods.len());
        for method in &self.caller.methods {
            let theirs = self.server.method(method.name);
            roots.push(match theirs {
                Some(theirs)
                    if !is_native(method, theirs) && method.streams() == theirs.streams() =>
                {
                    let request = self.pair(method.input, theirs.input, Direction::Request);
                    let reply = self.pair(method.output, theirs.output, Direction::Reply);
                    Some([request, reply])
                }
                _ => None,
            });
        }
        self.explore();
        let culprits = self.culprits();
        let methods = self.caller.methods.iter().zip(roots);
        methods
            .map(|(method, roots)| {
                let refused = |reason| MethodMatch::Refused { reason };
                let Some(theirs) = self.server.method(method.name) else {
                    let reason = format!("the server has no method {}", shown(method.name));
                    return MethodMatch::Absent { reason };
                };
                let index = theirs.index;
                let Some(roots) = roots else {
                    if is_native(method, theirs) {
                        return MethodMatch::Native { index };
                    }
                    return refused(format!(
                        "method {} is `{}` at the caller and `{}` at the server, which stream differently",
                        shown(method.name),
                        shown(method.signature),
                        shown(theirs.signature)
                    ));
                };
                let culprit = roots.iter().find_map(|pair| culprits[*pair]);
                match culprit.and_then(|pair| self.refusals[pair].clone()) {
                    Some(reason) => refused(reason),
                    None => MethodMatch::Protobuf { index },
                }
            })
            .collect()
    }

    fn pair(&mut self, caller: u32, server: u32, direction: Direction) -> usize {
        let pair = Pair {
            caller,
            server,
            direction,
        };
        match self.index.entry(pair) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                new.insert(self.pairs.len());
                self.pairs.push(pair);
                self.users.push(Vec::new());
                self.refusals.push(None);
                self.pairs.len() - 1
            }
        }
    }

    /// Compares each pair, and those reachable from it.
    fn explore(&mut self) {
        let mut next = 0;
        while let Some(&pair) = self.pairs.get(next) {
            let ours = &self.caller.messages[pair.caller as usize];
            let theirs = &self.server.messages[pair.server as usize];
            let fields = 1 + ours.fields.len() + theirs.fields.len();
            let Some(left) = self.left.checked_sub(fields) else {
                self.left = 0;
                self.refusals[next] = Some(format!(
                    "message {} is not compared, because the schemas have more than {MAX_COMPARISONS} fields to compare",
                    shown(&ours.name)
                ));
                next += 1;
                continue;
            };
            self.left = left;
            match compare(ours, theirs, pair.direction) {
                Err(mismatch) => self.refusals[next] = Some(mismatch.to_string()),
                Ok(inside) => {
                    for (caller, server) in inside {
                        let inside = self.pair(caller, server, pair.direction);
                        self.users[inside].push(next);
                    }
                }
            }
            next += 1;
        }
    }

    /// For each pair, the nearest refused pair reachable from it.
    fn culprits(&self) -> Vec<Option<usize>> {
        let mut culprits = vec![None; self.pairs.len()];
        let mut queue: Vec<usize> = Vec::new();
        for (at, refusal) in self.refusals.iter().enumerate() {
            if refusal.is_some() {
                culprits[at] = Some(at);
                queue.push(at);
            }
        }
        let mut next = 0;
        while let Some(&at) = queue.get(next) {
            for &user in &self.users[at] {
                if culprits[user].is_none() {
                    culprits[user] = culprits[at];
                    queue.push(user);
                }
            }
            next += 1;
        }
        culprits
    }
}

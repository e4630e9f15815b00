//! Regular expressions: tables that a module walks through, one step per byte.
//!
//! CEL's regular expressions are RE2's: no look-around, no back references, a match anywhere. So
//! each becomes a deterministic automaton when the rules are compiled, and a text of n bytes takes
//! n steps, whatever the pattern is. A pattern whose automaton is large is refused.
//!
//! ```text
//!   table:  classes, 256 bytes | per state, a u16 for each class and one for the text's end: the next state's row
//!   row 0:  matched; no step leaves it        row 1:  can't match any more
//! ```

use std::collections::HashMap;

use regex_automata::Input;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::primitives::StateID;
use regex_syntax::ast::{self, Ast};
use regex_syntax::hir::translate::TranslatorBuilder;

use crate::error::shown;
use crate::limits;

/// The row of a match.
pub(crate) const MATCHED: u16 = 0;
/// The row that can't match any more.
pub(crate) const DEAD: u16 = 1;

/// The table of a regular expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Dfa {
    /// The class of each byte.
    pub(crate) classes: Vec<u8>,
    /// Entries of a row: one for each class, and one for the text's end.
    pub(crate) width: usize,
    /// The rows.
    pub(crate) steps: Vec<u16>,
    /// The row where a text begins.
    pub(crate) start: u16,
}

impl Dfa {
    /// The table of a pattern, or why there is none.
    pub(crate) fn compile(pattern: &str) -> Result<Dfa, String> {
        let name = shown(pattern);
        if pattern.len() > limits::REGEX_BYTES {
            let (bytes, most) = (pattern.len(), limits::REGEX_BYTES);
            return Err(format!(
                "the pattern has {bytes} bytes; the limit is {most}"
            ));
        }
        let wrong = |error: &dyn std::fmt::Display| {
            let text = error.to_string();
            let last = text.lines().rev().find(|line| line.starts_with("error: "));
            let reason = last.map_or(text.as_str(), |line| &line["error: ".len()..]);
            format!("pattern {name} is no regular expression of RE2: {reason}")
        };
        let mut parser = ast::parse::ParserBuilder::new();
        let mut tree = parser
            .nest_limit(limits::NESTING as u32)
            .build()
            .parse(pattern)
            .map_err(|error| wrong(&error))?;
        ascii(&mut tree)?;
        let hir = TranslatorBuilder::new().build().translate(pattern, &tree);
        let hir = hir.map_err(|error| wrong(&error))?;
        let large = || {
            let most = limits::REGEX_TABLE_BYTES;
            format!(
                "the table of pattern {name} has more than {most} bytes; shorten its repetitions"
            )
        };
        let config = thompson::Config::new()
            .nfa_size_limit(Some(limits::REGEX_WORK_BYTES))
            .which_captures(thompson::WhichCaptures::None);
        let mut compiler = thompson::Compiler::new();
        let nfa = compiler.configure(config).build_from_hir(&hir);
        let nfa = nfa.map_err(|_| large())?;
        let config = dense::Config::new()
            .start_kind(StartKind::Unanchored)
            .match_kind(regex_automata::MatchKind::All)
            .dfa_size_limit(Some(limits::REGEX_WORK_BYTES))
            .determinize_size_limit(Some(limits::REGEX_WORK_BYTES));
        let dense = dense::Builder::new().configure(config).build_from_nfa(&nfa);
        let dense = dense.map_err(|error| match error.is_size_limit_exceeded() {
            true => large(),
            false => wrong(&error),
        })?;
        walk(&dense).ok_or_else(large)
    }

    /// Whether a text matches: what the module's loop does.
    #[cfg(test)]
    pub(crate) fn is_match(&self, text: &[u8]) -> bool {
        let step = |row: u16, class: usize| self.steps[row as usize * self.width + class];
        let mut row = self.start;
        for byte in text {
            if row <= DEAD {
                break;
            }
            row = step(row, self.classes[usize::from(*byte)].into());
        }
        match row {
            MATCHED => true,
            DEAD => false,
            row => step(row, self.width - 1) == MATCHED,
        }
    }

    /// The table's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let steps = self.steps.iter().flat_map(|row| row.to_le_bytes());
        self.classes.iter().copied().chain(steps).collect()
    }
}

/// Copies an automaton to rows; `None` if there are too many.
fn walk(dense: &dense::DFA<Vec<u32>>) -> Option<Dfa> {
    let classes = dense.byte_classes();
    let width = classes.alphabet_len();
    let representatives: Vec<_> = classes
        .representatives(..)
        .filter_map(|unit| unit.as_u8())
        .collect();
    let mut rows = Rows {
        dense,
        ids: HashMap::new(),
        order: Vec::new(),
    };
    let start = dense.start_state_forward(&Input::new("")).ok()?;
    let start = rows.row(start);
    let mut steps = vec![MATCHED; width];
    steps.resize(2 * width, DEAD);
    let mut next = 0;
    while let Some(&state) = rows.order.get(next) {
        next += 1;
        for byte in &representatives {
            steps.push(rows.row(dense.next_state(state, *byte)));
        }
        let end = dense.next_eoi_state(state);
        steps.push(match dense.is_match_state(end) {
            true => MATCHED,
            false => DEAD,
        });
        if 256 + 2 * steps.len() > limits::REGEX_TABLE_BYTES {
            return None;
        }
    }
    Some(Dfa {
        classes: (0..=255).map(|byte| classes.get(byte)).collect(),
        width,
        steps,
        start,
    })
}

/// The states that were found so far, in their order.
struct Rows<'a> {
    dense: &'a dense::DFA<Vec<u32>>,
    ids: HashMap<StateID, u16>,
    order: Vec<StateID>,
}

impl Rows<'_> {
    fn row(&mut self, state: StateID) -> u16 {
        if self.dense.is_match_state(state) {
            return MATCHED;
        }
        if self.dense.is_dead_state(state) || self.dense.is_quit_state(state) {
            return DEAD;
        }
        let next = self.order.len() as u16 + 2;
        let row = *self.ids.entry(state).or_insert(next);
        if row == next {
            self.order.push(state);
        }
        row
    }
}

/// RE2's classes `\d`, `\s` and `\w` are ASCII's, and so are its word boundaries.
fn ascii(tree: &mut Ast) -> Result<(), String> {
    match tree {
        Ast::ClassPerl(class) => {
            let span = class.span;
            *tree = Ast::class_bracketed(ast::ClassBracketed {
                span,
                negated: class.negated,
                kind: ast::ClassSet::Item(ascii_class(class)),
            });
        }
        Ast::ClassBracketed(class) => ascii_set(&mut class.kind)?,
        Ast::Assertion(assertion) => match assertion.kind {
            ast::AssertionKind::WordBoundary | ast::AssertionKind::NotWordBoundary => {
                return Err("word boundaries aren't supported in the patterns of rules".to_owned());
            }
            ast::AssertionKind::StartLine
            | ast::AssertionKind::EndLine
            | ast::AssertionKind::StartText
            | ast::AssertionKind::EndText => {}
            _ => return Err("word boundaries aren't supported in the patterns of rules".to_owned()),
        },
        Ast::Repetition(repetition) => ascii(&mut repetition.ast)?,
        Ast::Group(group) => ascii(&mut group.ast)?,
        Ast::Alternation(parts) => parts.asts.iter_mut().try_for_each(ascii)?,
        Ast::Concat(parts) => parts.asts.iter_mut().try_for_each(ascii)?,
        Ast::Empty(_) | Ast::Flags(_) | Ast::Literal(_) | Ast::Dot(_) | Ast::ClassUnicode(_) => {}
    }
    Ok(())
}

fn ascii_set(set: &mut ast::ClassSet) -> Result<(), String> {
    match set {
        ast::ClassSet::Item(item) => ascii_item(item),
        // To RE2 these are characters of the class.
        ast::ClassSet::BinaryOp(_) => Err(
            "`&&`, `--` and `~~` in a class aren't supported: write the character once".to_owned(),
        ),
    }
}

fn ascii_item(item: &mut ast::ClassSetItem) -> Result<(), String> {
    match item {
        ast::ClassSetItem::Perl(class) => {
            *item = ast::ClassSetItem::Bracketed(Box::new(ast::ClassBracketed {
                span: class.span,
                negated: class.negated,
                kind: ast::ClassSet::Item(ascii_class(class)),
            }));
            Ok(())
        }
        ast::ClassSetItem::Bracketed(_) => {
            Err("a class in a class isn't supported: write \\[ for the character".to_owned())
        }
        ast::ClassSetItem::Union(union) => union.items.iter_mut().try_for_each(ascii_item),
        _ => Ok(()),
    }
}

fn ascii_class(class: &ast::ClassPerl) -> ast::ClassSetItem {
    let ascii = |kind| {
        ast::ClassSetItem::Ascii(ast::ClassAscii {
            span: class.span,
            kind,
            negated: false,
        })
    };
    match class.kind {
        ast::ClassPerlKind::Digit => ascii(ast::ClassAsciiKind::Digit),
        ast::ClassPerlKind::Word => ascii(ast::ClassAsciiKind::Word),
        ast::ClassPerlKind::Space => {
            let literal = |c| {
                ast::ClassSetItem::Literal(ast::Literal {
                    span: class.span,
                    kind: ast::LiteralKind::Verbatim,
                    c,
                })
            };
            let items = ['\t', '\n', '\x0c', '\r', ' '].map(literal).to_vec();
            ast::ClassSetItem::Union(ast::ClassSetUnion {
                span: class.span,
                items,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_table_matches_what_the_pattern_matches() {
        let check = |pattern: &str, text: &str, expected: bool| {
            let dfa = Dfa::compile(pattern).unwrap();
            assert_eq!(
                dfa.is_match(text.as_bytes()),
                expected,
                "{pattern} in {text:?}"
            );
        };
        check("", "", true);
        check("b", "abc", true);
        check("^b", "abc", false);
        check("c$", "abc", true);
        check("^$", "", true);
        check("^$", "a", false);
        check("a.c", "xaüc", true);
        check("^[a-c]+$", "abcabc", true);
        check("^[a-c]+$", "abcd", false);
        check("(foo|ba+r)baz", "xbaaarbazx", true);
        check(r"^\d{2,3}$", "123", true);
        check(r"^\d{2,3}$", "1234", false);
        check(r"^\d$", "\u{664}", false);
        check(r"^\D$", "\u{664}", true);
        check(r"^[^\s]+$", "a\u{b}b", true);
        check(r"^\w+$", "a_1", true);
        check(r"^\w+$", "ü", false);
        check("(?i)^ADA$", "ada", true);
        check("(?i)^ü$", "Ü", true);
        check(r"\.", "ab", false);
        check("(?m)^b$", "a\nb\nc", true);
        check("(?s)a.b", "a\nb", true);
        check("a.b", "a\nb", false);
    }

    #[test]
    fn patterns_that_cannot_be_tables_are_refused_with_the_reason() {
        let refused = |pattern: &str| Dfa::compile(pattern).unwrap_err();
        let check = |pattern: &str, reason: &str| {
            let said = refused(pattern);
            assert!(said.contains(reason), "{said}");
        };
        check("(", "unclosed group");
        check(r"(a)\1", "backreferences are not supported");
        check("(?=a)", "look-around");
        check(r"\bword\b", "word boundaries aren't supported");
        check("[a&&b]", "in a class aren't supported");
        check("[a[b]]", "a class in a class isn't supported");
        check("(a|b)*a(a|b){20}", "shorten its repetitions");
        check("((a{100}){100}){100}", "shorten its repetitions");
        check(&"a".repeat(1025), "1025 bytes; the limit is 1024");
        check(&format!("{}{}", "(".repeat(200), ")".repeat(200)), "nest");
    }
}

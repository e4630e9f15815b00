//! Expressions: from their text to a tree in which every node has its place in the file.
//!
//! The crate `cel` parses. What it returns is copied to a tree of our own, within the limits of
//! depth and size: its calls of operators become operators, and the loops that it makes of macros
//! become macros again. Parts of the language that no rule can use are refused here, by name.

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, SourceInfo};
use cel::parser::{ParseErrors, Parser};

use crate::error::{ErrorAt, fail};
use crate::limits;
use crate::source::Text;
use crate::types::Const;

/// A node of an expression.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its place in the file.
    pub(crate) at: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Const(Const),
    Name(String),
    Select(Box<Node>, String),
    Has(Box<Node>, String),
    Index(Box<Node>, Box<Node>),
    List(Vec<Node>),
    Not(Box<Node>),
    Negate(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Choose(Box<Node>, Box<Node>, Box<Node>),
    Compare(Comparison, Box<Node>, Box<Node>),
    Arithmetic(Arithmetic, Box<Node>, Box<Node>),
    In(Box<Node>, Box<Node>),
    Call {
        function: String,
        target: Option<Box<Node>>,
        arguments: Vec<Node>,
    },
    Macro(Box<Macro>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

/// `over.exists(name, condition)` and its likes.
#[derive(Clone, Debug)]
pub(crate) struct Macro {
    pub(crate) quantifier: Quantifier,
    pub(crate) over: Node,
    pub(crate) name: String,
    pub(crate) condition: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

/// The name that the parser gives to the result of a loop; no expression can write it.
const RESULT: &str = "@result";

/// Parses an expression.
pub(crate) fn parse(text: &Text) -> Result<Node, ErrorAt> {
    // The parser was generated, and its library is a translation: a defect of theirs must not look
    // like one of ours, or end a program that has other files to read.
    let parsed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let parser = Parser::new().max_recursion_depth(limits::NESTING as u16);
        parser.parse_with_source_info(&text.value)
    }));
    let (root, source) = match parsed {
        Ok(Ok(parsed)) => parsed,
        Ok(Err(errors)) => return Err(first(text, &errors)),
        Err(_) => return fail(text.place(0), "the parser fails on this expression"),
    };
    let mut copier = Copier {
        text,
        source,
        nodes: 0,
        depth: 0,
    };
    copier.copy(root)
}

/// The first of the parser's errors.
fn first(text: &Text, errors: &ParseErrors) -> ErrorAt {
    let Some(error) = errors.errors.first() else {
        return ErrorAt::new(text.place(0), "the expression can't be parsed");
    };
    let message = error.msg.strip_prefix("Syntax error: ");
    let message = message.unwrap_or(&error.msg);
    if message.contains("Recursion limit") || message.contains("recovery attempt limit") {
        return too_deep(text.place(0));
    }
    let (line, column) = (error.pos.0.max(1) as usize, error.pos.1.max(1) as usize);
    let line = text.value.split_inclusive('\n').nth(line - 1).unwrap_or("");
    let begin = line.as_ptr().addr() - text.value.as_ptr().addr();
    let within = line.char_indices().nth(column - 1);
    let offset = match line.is_empty() {
        true => text.value.len(),
        false => begin + within.map_or(line.len(), |(at, _)| at),
    };
    let message = match message.split_once(" expecting {") {
        Some((found, _)) => format!("{found}; an expression goes on here"),
        None => message.to_owned(),
    };
    ErrorAt::new(text.place(offset), format!("no CEL: {message}"))
}

fn too_deep(at: usize) -> ErrorAt {
    let most = limits::NESTING;
    ErrorAt::new(
        at,
        format!("the expression is nested too deeply; the limit is {most}"),
    )
}

struct Copier<'a> {
    text: &'a Text,
    source: SourceInfo,
    nodes: usize,
    depth: usize,
}

impl Copier<'_> {
    fn copy(&mut self, node: IdedExpr) -> Result<Node, ErrorAt> {
        let at = self.place(&node);
        self.nodes += 1;
        if self.nodes > limits::NODES {
            let most = limits::NODES;
            return fail(at, format!("the expression has more than {most} parts"));
        }
        if self.depth == limits::NESTING {
            return Err(too_deep(at));
        }
        self.depth += 1;
        let kind = self.kind(at, node.expr);
        self.depth -= 1;
        Ok(Node { at, kind: kind? })
    }

    /// Where a node is. A call is at its bracket for the parser; its name comes before that.
    fn place(&self, node: &IdedExpr) -> usize {
        let (begin, _) = self.source.offset_for(node.id).unwrap_or((0, 0));
        let mut begin = begin as usize;
        if let Expr::Call(call) = &node.expr {
            let name = &call.func_name;
            let before = begin.checked_sub(name.len());
            let is_there = |from: &usize| self.text.value.get(*from..begin) == Some(name);
            begin = before.filter(is_there).unwrap_or(begin);
        }
        self.text.place(begin)
    }

    fn boxed(&mut self, node: IdedExpr) -> Result<Box<Node>, ErrorAt> {
        self.copy(node).map(Box::new)
    }

    fn all(&mut self, nodes: Vec<IdedExpr>) -> Result<Vec<Node>, ErrorAt> {
        nodes.into_iter().map(|node| self.copy(node)).collect()
    }

    fn kind(&mut self, at: usize, expr: Expr) -> Result<Kind, ErrorAt> {
        Ok(match expr {
            Expr::Literal(value) => Kind::Const(constant(at, value)?),
            Expr::Ident(name) => Kind::Name(name),
            Expr::Select(select) => {
                let operand = self.boxed(*select.operand)?;
                match select.test {
                    true => Kind::Has(operand, select.field),
                    false => Kind::Select(operand, select.field),
                }
            }
            Expr::List(list) if list.optional_indices.is_empty() => {
                Kind::List(self.all(list.elements)?)
            }
            Expr::List(_) => return fail(at, "optional values aren't supported in rules"),
            Expr::Map(_) => return fail(at, "map values aren't supported in rules"),
            Expr::Struct(_) => return fail(at, "message values aren't supported in rules"),
            Expr::Comprehension(made) => self.quantified(at, *made)?,
            Expr::Call(call) => self.call(at, call)?,
            Expr::Unspecified => return fail(at, "the expression is empty"),
        })
    }

    fn call(&mut self, at: usize, call: CallExpr) -> Result<Kind, ErrorAt> {
        use cel::common::ast::operators as op;
        let CallExpr {
            func_name: function,
            target,
            args,
        } = call;
        if target.is_some() || !is_operator(&function) {
            let target = target.map(|node| self.boxed(*node)).transpose()?;
            return Ok(Kind::Call {
                function,
                target,
                arguments: self.all(args)?,
            });
        }
        let mut args = self.all(args)?.into_iter().map(Box::new);
        let mut next = || {
            args.next()
                .ok_or_else(|| ErrorAt::new(at, "an operand is missing"))
        };
        let comparison = |one| match one {
            op::EQUALS => Some(Comparison::Equal),
            op::NOT_EQUALS => Some(Comparison::NotEqual),
            op::LESS => Some(Comparison::Less),
            op::LESS_EQUALS => Some(Comparison::LessEqual),
            op::GREATER => Some(Comparison::Greater),
            op::GREATER_EQUALS => Some(Comparison::GreaterEqual),
            _ => None,
        };
        let arithmetic = |one| match one {
            op::ADD => Some(Arithmetic::Add),
            op::SUBSTRACT => Some(Arithmetic::Subtract),
            op::MULTIPLY => Some(Arithmetic::Multiply),
            op::DIVIDE => Some(Arithmetic::Divide),
            op::MODULO => Some(Arithmetic::Modulo),
            _ => None,
        };
        let name = function.as_str();
        if let Some(comparison) = comparison(name) {
            return Ok(Kind::Compare(comparison, next()?, next()?));
        }
        if let Some(arithmetic) = arithmetic(name) {
            return Ok(Kind::Arithmetic(arithmetic, next()?, next()?));
        }
        Ok(match name {
            op::LOGICAL_AND => Kind::And(next()?, next()?),
            op::LOGICAL_OR => Kind::Or(next()?, next()?),
            op::LOGICAL_NOT => Kind::Not(next()?),
            op::NEGATE => Kind::Negate(next()?),
            op::CONDITIONAL => Kind::Choose(next()?, next()?, next()?),
            op::INDEX => Kind::Index(next()?, next()?),
            op::IN => Kind::In(next()?, next()?),
            _ => return fail(at, "optional values aren't supported in rules"),
        })
    }

    /// A loop that the parser made of a macro.
    fn quantified(&mut self, at: usize, made: ComprehensionExpr) -> Result<Kind, ErrorAt> {
        let name = made.iter_var;
        let Expr::Call(mut step) = made.loop_step.expr else {
            return fail(at, "this macro isn't supported in rules");
        };
        let is_result = |node: &IdedExpr| matches!(&node.expr, Expr::Ident(one) if one == RESULT);
        let begins = |step: &CallExpr| step.args.first().is_some_and(is_result);
        use cel::common::ast::operators as op;
        let (quantifier, condition) = match step.func_name.as_str() {
            op::LOGICAL_AND if begins(&step) => (Quantifier::All, step.args.pop()),
            op::LOGICAL_OR if begins(&step) => (Quantifier::Exists, step.args.pop()),
            op::CONDITIONAL if matches!(made.accu_init.expr, Expr::Literal(_)) => {
                (Quantifier::ExistsOne, step.args.into_iter().next())
            }
            _ => {
                return fail(
                    at,
                    "the macros map and filter aren't supported in rules; all, exists, exists_one and has are",
                );
            }
        };
        let Some(condition) = condition else {
            return fail(at, "the macro has no condition");
        };
        Ok(Kind::Macro(Box::new(Macro {
            quantifier,
            over: self.copy(made.iter_range)?,
            name,
            condition: self.copy(condition)?,
        })))
    }
}

/// Whether the parser writes an operator with this name: no function has such a name.
fn is_operator(name: &str) -> bool {
    name.contains('_') && name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        || name.starts_with('@')
}

fn constant(at: usize, value: LiteralValue) -> Result<Const, ErrorAt> {
    Ok(match value {
        LiteralValue::Boolean(value) => Const::Bool(value.into_inner()),
        LiteralValue::Int(value) => Const::Int(value.into_inner()),
        LiteralValue::UInt(value) => Const::Uint(value.into_inner()),
        LiteralValue::Double(value) => Const::Double(value.into_inner()),
        LiteralValue::String(value) => Const::String(value.into_inner()),
        LiteralValue::Bytes(value) => Const::Bytes(value.into_inner()),
        LiteralValue::Null => {
            return fail(
                at,
                "null isn't supported in rules; has(request.field) tells whether a field is set",
            );
        }
    })
}

impl Node {
    /// Whether a part of the expression is one of these names, outside of macros that bind it.
    pub(crate) fn mentions(&self, names: &[&str]) -> bool {
        let any = |nodes: &[&Node]| nodes.iter().any(|node| node.mentions(names));
        match &self.kind {
            Kind::Const(_) => false,
            Kind::Name(name) => names.contains(&name.as_str()),
            Kind::Select(node, _) | Kind::Has(node, _) | Kind::Not(node) | Kind::Negate(node) => {
                any(&[node])
            }
            Kind::Index(a, b)
            | Kind::And(a, b)
            | Kind::Or(a, b)
            | Kind::Compare(_, a, b)
            | Kind::Arithmetic(_, a, b)
            | Kind::In(a, b) => any(&[a, b]),
            Kind::Choose(a, b, c) => any(&[a, b, c]),
            Kind::List(nodes) => any(&nodes.iter().collect::<Vec<_>>()),
            Kind::Call {
                target, arguments, ..
            } => {
                target.iter().any(|node| node.mentions(names))
                    || any(&arguments.iter().collect::<Vec<_>>())
            }
            Kind::Macro(made) => {
                let hidden: Vec<_> = names.iter().copied().filter(|n| *n != made.name).collect();
                made.over.mentions(names) || made.condition.mentions(&hidden)
            }
        }
    }

    /// The names of `a.b.c`, if it is nothing else.
    pub(crate) fn path(&self) -> Option<Vec<(usize, &str)>> {
        match &self.kind {
            Kind::Name(name) => Some(vec![(self.at, name)]),
            Kind::Select(node, name) => {
                let mut path = node.path()?;
                // The parser has a selection at its dot.
                path.push((self.at + 1, name));
                Some(path)
            }
            _ => None,
        }
    }
}

//! What the compiler made of a file, for its author.

use std::fmt;

use crate::file::{End, Hook, RulesFile};
use crate::plan::{Plan, Side};

/// A compiled file of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The policy's name.
    pub name: String,
    /// The module.
    pub module: Vec<u8>,
    /// The rules, in the order of their evaluation.
    pub rules: Vec<ReadRule>,
    /// What the rules read and change, one line per list.
    usage: Vec<String>,
}

/// A rule of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRule {
    /// Its line in the file.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// `request` or `reply`.
    pub hook: &'static str,
    /// `deny`, `allow`, or `change` for all others. A rule with a rate limit does so beyond it.
    pub ends: &'static str,
}

/// The summary of a plan.
pub(crate) fn summarize(file: &RulesFile, plan: &Plan, name: &str, module: Vec<u8>) -> Compiled {
    let rules = file.rules.iter().map(|rule| ReadRule {
        line: rule.line,
        name: rule.name.clone(),
        hook: rule.hook.name(),
        ends: match rule.end {
            End::Next => "change",
            End::Allow => "allow",
            End::Deny { .. } => "deny",
        },
    });
    let mut usage = Vec::new();
    for entry in &plan.entries {
        for hook in Hook::ALL {
            let side = &entry.sides[hook as usize];
            if !side.rules.is_empty() {
                usage.push(format!(
                    "{} ({}): {}",
                    entry.pattern,
                    hook.name(),
                    counted(side)
                ));
                usage.extend(lists(side));
            }
        }
    }
    Compiled {
        name: name.to_owned(),
        module,
        rules: rules.collect(),
        usage,
    }
}

fn counted(side: &Side) -> String {
    match side.rules.len() {
        1 => "1 rule".to_owned(),
        count => format!("{count} rules"),
    }
}

fn lists(side: &Side) -> impl Iterator<Item = String> {
    let usage = &side.usage;
    let lists = [
        ("reads", &usage.fields),
        ("reads metadata", &usage.keys),
        ("changes", &usage.field_changes),
        ("changes metadata", &usage.key_changes),
    ];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    lists.map(|(does, names)| format!("  {does}: {}", names.join(", ")))
}

impl fmt::Display for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy  {}, {} bytes", self.name, self.module.len())?;
        for rule in &self.rules {
            let ReadRule {
                line,
                name,
                hook,
                ends,
            } = rule;
            writeln!(f, "rule    {name} (line {line}): {ends}, {hook}")?;
        }
        self.usage.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

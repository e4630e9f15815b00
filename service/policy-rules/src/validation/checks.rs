//! One constraint as the condition of a rule.

/// A constraint of a message or a field.
pub(super) struct Check {
    /// The path of what has it; empty for the request itself.
    pub(super) place: String,
    pub(super) constraint: String,
    /// It is checked only where this holds.
    pub(super) guard: Option<String>,
    /// What must be true; of a custom one, also a text that must be empty.
    pub(super) condition: String,
    /// What is wrong; empty for a custom one that computes it.
    pub(super) text: String,
    pub(super) is_custom: bool,
}

/// The text of a denial.
pub(super) enum Text {
    Constant(String),
    /// An expression.
    Computed(String),
}

impl Check {
    /// The name of its rule.
    pub(super) fn name(&self) -> String {
        match self.place.is_empty() {
            true => self.constraint.clone(),
            false => format!("{}: {}", self.place, self.constraint),
        }
    }

    /// The conditions that a rule may have for it, with the texts of its denials. The first that
    /// compiles is right: the type of a custom constraint isn't known before.
    pub(super) fn conditions(&self) -> Vec<(String, Text)> {
        let Check {
            guard, condition, ..
        } = self;
        // A line of its own ends a comment.
        let end = if condition.contains("//") { "\n" } else { "" };
        let guarded = |condition: String| match guard {
            Some(guard) => format!("{guard} && {condition}"),
            None => condition,
        };
        let prefix = match self.place.is_empty() {
            true => String::new(),
            false => format!("{}: ", self.place),
        };
        let suffix = format!(" [{}]", self.constraint);
        let text = match self.text.is_empty() {
            true => "the constraint isn't met",
            false => &self.text,
        };
        let constant = || Text::Constant(format!("{prefix}{text}{suffix}"));
        let mut all = vec![(guarded(format!("!({condition}{end})")), constant())];
        if self.is_custom {
            let text = match self.text.is_empty() {
                true => Text::Computed(format!(
                    "{} + ({condition}{end}) + {}",
                    literal(&prefix),
                    literal(&suffix)
                )),
                false => constant(),
            };
            all.push((guarded(format!("({condition}{end}) != ''")), text));
        }
        all
    }
}

/// A text as CEL writes it.
pub(super) fn literal(text: &str) -> String {
    let mut all = "'".to_owned();
    for c in text.chars() {
        match c {
            '\'' | '\\' => all.extend(['\\', c]),
            c if c.is_control() => all.push_str(&format!("\\u{:04x}", c as u32)),
            c => all.push(c),
        }
    }
    all + "'"
}

/// A custom constraint, with the name `this` replaced by what it stands for. Texts stay as they
/// are, and so do fields with that name.
pub(super) fn with_this(expression: &str, this: &str) -> String {
    let mut all = String::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '\'' | '"' => text_len(rest, first, raw(&all)),
            c if c.is_alphabetic() || c == '_' => {
                let goes_on = |c: char| c.is_alphanumeric() || c == '_';
                rest.find(|c| !goes_on(c)).unwrap_or(rest.len())
            }
            c => c.len_utf8(),
        };
        let (token, later) = rest.split_at(len);
        let is_field = all.trim_end().ends_with('.');
        all.push_str(if token == "this" && !is_field {
            this
        } else {
            token
        });
        rest = later;
    }
    all
}

/// Whether a text that begins here has no escapes.
fn raw(before: &str) -> bool {
    let prefix = before.rfind(|c: char| !c.is_alphanumeric() && c != '_');
    let prefix = &before[prefix.map_or(0, |at| at + 1)..];
    matches!(
        prefix,
        "r" | "R" | "br" | "rb" | "bR" | "Rb" | "BR" | "RB" | "Br" | "rB"
    )
}

/// The length of a text, with its quotes.
fn text_len(text: &str, quote: char, is_raw: bool) -> usize {
    let triple = quote.to_string().repeat(3);
    let end = match text.starts_with(&triple) {
        true => &triple[..],
        false => &triple[..1],
    };
    let mut at = end.len();
    while at < text.len() && !text[at..].starts_with(end) {
        let mut chars = text[at..].chars();
        let first = chars.next().unwrap_or_default();
        at += first.len_utf8();
        if first == '\\' && !is_raw {
            at += chars.next().map_or(0, char::len_utf8);
        }
    }
    (at + end.len()).min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_is_replaced_where_it_is_a_name() {
        for (expression, expected) in [
            ("this.a > 1", "request.x.a > 1"),
            ("has(this.this) && this", "has(request.x.this) && request.x"),
            ("that.this == thisx", "that.this == thisx"),
            (
                "'this' == \"this\" || r'\\' == this",
                "'this' == \"this\" || r'\\' == request.x",
            ),
            ("'\\'this' + this", "'\\'this' + request.x"),
            (
                "'''this 'this' ''' != this",
                "'''this 'this' ''' != request.x",
            ),
            ("'this", "'this"),
        ] {
            assert_eq!(with_this(expression, "request.x"), expected);
        }
    }
}

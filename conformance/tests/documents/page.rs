//! What a page says, in order: the rules of the table at the head of `main.rs`, without running
//! anything.

/// What a page has for the session, in order.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// A command with its line, and the output that the page shows; `None` if it isn't compared.
    Command {
        line: usize,
        text: String,
        shown: Option<Vec<String>>,
    },
    /// A file with its path and content.
    File {
        line: usize,
        path: String,
        content: String,
    },
    /// The next block isn't run: its first line, and why.
    NotRun {
        line: usize,
        first: String,
        reason: String,
    },
}

/// A block between fences: the line of its first line, the language, its lines without the fence's
/// indentation.
struct Block<'p> {
    line: usize,
    language: &'p str,
    lines: Vec<&'p str>,
}

/// A page's steps. An error begins with its line.
pub(crate) fn steps(page: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut lines = (1..).zip(page.lines());
    // The last line with text, and the reason not to run the next block.
    let (mut before, mut reason) = ("", None);
    while let Some((number, line)) = lines.next() {
        let text = line.trim_start().trim_start_matches("1. ");
        let error = |what: &str| Err(format!("{number}: {what}"));
        if let Some(why) = text.strip_prefix("<!-- not run: ") {
            let Some(why) = why.strip_suffix(" -->") else {
                return error("the reason has no end in its line");
            };
            reason = Some(why.to_owned());
            continue;
        }
        if text.trim() == "<!-- run" {
            let mut hidden = Vec::new();
            loop {
                match lines.next() {
                    Some((_, line)) if line.trim() == "-->" => break,
                    Some((_, line)) => hidden.push(line),
                    None => return error("the comment has no end"),
                }
            }
            script(number + 1, &hidden, &mut steps)?;
            continue;
        }
        let Some(language) = text.strip_prefix("```") else {
            if !line.trim().is_empty() {
                if reason.is_some() {
                    return error("no block follows the reason");
                }
                before = line.trim();
            }
            continue;
        };
        let indent = line.len() - text.len();
        let mut block = Block {
            line: number + 1,
            language: language.split(',').next().unwrap_or_default().trim(),
            lines: Vec::new(),
        };
        loop {
            match lines.next() {
                Some((_, line)) if line.trim() == "```" => break,
                Some((_, line)) => block.lines.push(line.get(indent..).unwrap_or_default()),
                None => return error("the block has no end"),
            }
        }
        match reason.take() {
            Some(reason) => steps.push(Step::NotRun {
                line: block.line,
                first: block.lines.first().copied().unwrap_or_default().to_owned(),
                reason,
            }),
            None => steps.extend(steps_of(&block, before)?),
        }
        before = "";
    }
    Ok(steps)
}

/// A block's steps; `before` is the line with text before it.
fn steps_of(block: &Block<'_>, before: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    match block.language {
        "" => return Err(format!("{}: a block has no language", block.line)),
        "text" => {}
        "sh" => script(block.line, &block.lines, &mut steps)?,
        "console" => transcript(block, &mut steps)?,
        _ => {
            let path = before.strip_suffix("`:").and_then(|b| b.rsplit('`').next());
            let Some(path) = path else {
                let why = "a file has no path in the line before it";
                return Err(format!("{}: {why}", block.line));
            };
            steps.push(Step::File {
                line: block.line,
                path: path.to_owned(),
                content: block.lines.join("\n") + "\n",
            });
        }
    }
    Ok(steps)
}

/// The commands of a block of `sh`.
fn script(first: usize, lines: &[&str], steps: &mut Vec<Step>) -> Result<(), String> {
    let mut lines = (first..).zip(lines);
    while let Some((line, text)) = lines.next() {
        let mut text = (*text).to_owned();
        while text.ends_with('\\') {
            let Some((_, more)) = lines.next() else { break };
            text += "\n";
            text += more;
        }
        if text.trim().is_empty() {
            continue;
        }
        if text.ends_with('&') {
            let why = "a command in the background belongs to a block of console";
            return Err(format!("{line}: {why}"));
        }
        steps.push(Step::Command {
            line,
            text,
            shown: None,
        });
    }
    Ok(())
}

/// The commands of a block of `console`, with their output.
fn transcript(block: &Block<'_>, steps: &mut Vec<Step>) -> Result<(), String> {
    let first = steps.len();
    let mut is_command = false;
    for (line, text) in (block.line..).zip(&block.lines) {
        if let Some(text) = text.strip_prefix("$ ") {
            steps.push(Step::Command {
                line,
                text: without_comment(text).to_owned(),
                shown: Some(Vec::new()),
            });
            is_command = true;
            continue;
        }
        let Some(Step::Command {
            text: command,
            shown: Some(shown),
            ..
        }) = steps.get_mut(first..).and_then(|steps| steps.last_mut())
        else {
            return Err(format!("{line}: output before the first command"));
        };
        if is_command && command.ends_with('\\') {
            command.push('\n');
            command.push_str(without_comment(text));
        } else {
            is_command = false;
            shown.push((*text).to_owned());
        }
    }
    for step in steps.iter_mut().skip(first) {
        if let Step::Command {
            shown: Some(shown), ..
        } = step
        {
            *shown = trimmed(std::mem::take(shown));
        }
    }
    Ok(())
}

/// A command without the comment behind it, which two spaces set apart.
fn without_comment(text: &str) -> &str {
    text.split("  # ").next().unwrap_or_default().trim_end()
}

pub(crate) fn trimmed(mut lines: Vec<String>) -> Vec<String> {
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    let empty = lines.iter().take_while(|line| line.trim().is_empty());
    let empty = empty.count();
    lines.split_off(empty)
}

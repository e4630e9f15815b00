//! The modules of a crate and the circles among them: files that use each other.
//!
//! A file *uses* another if its code names an item that the other defines, by `use` or by a
//! path. Names are followed through re-exports and aliases to the file that defines them; a path
//! ends at the last segment that is a module. Five things don't count as use:
//!
//! - `mod child;`, which names a file and isn't a use,
//! - a re-export of a descendant by its ancestor (`pub use child::Thing`), its public face,
//! - code under `#[cfg(test)]`, and modules named `tests` or `testing`: a test may use any file,
//! - `pub(in path)`, which is only a visibility,
//! - a module with `#[path]`, by which tests share files.
//!
//! It is a scanner of tokens like [`crate::source`], not a compiler: it doesn't follow methods and
//! fields, and in a macro's body it follows only paths.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use crate::source::code_only;

/// A crate's files as a graph of uses.
pub struct Modules {
    modules: Vec<Module>,
}

/// Files that use each other, with one shortest way around: each file names the next one in the
/// line given, and the last names the first.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    /// All files of the circle.
    pub members: Vec<PathBuf>,
    /// File, one-based line of the use of the next file, and the path that it names there.
    pub way: Vec<(PathBuf, usize, String)>,
}

#[derive(Default)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    /// Modules in files of their own and, as the file itself, modules in braces.
    children: BTreeMap<String, usize>,
    /// What names stand for: a path from the crate's root.
    aliases: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    items: BTreeSet<String>,
    uses: Vec<Use>,
    /// This module's path from the crate's root.
    path: Vec<String>,
}

struct Use {
    path: Vec<String>,
    line: usize,
    reexport: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Colons,
    Sign(char),
}

type Tokens = [(Token, usize)];

impl Modules {
    /// Reads the crate whose root file is `root`, and every file that it declares.
    ///
    /// # Panics
    ///
    /// Panics if a file can't be read or a declared module has no file.
    pub fn read(root: &Path) -> Self {
        let mut all = Self {
            modules: Vec::new(),
        };
        let directory = root.parent().unwrap_or(Path::new(""));
        all.add_file(root, directory, None, Vec::new());
        all
    }

    /// Every group of files that use each other.
    pub fn circles(&self) -> Vec<Circle> {
        let edges = self.edges();
        let reach: BTreeMap<&Path, BTreeSet<&Path>> = edges
            .keys()
            .map(|file| (file.as_path(), reachable(&edges, file)))
            .collect();
        let mut found: Vec<Circle> = Vec::new();
        for file in edges.keys() {
            if found.iter().any(|circle| circle.members.contains(file)) {
                continue;
            }
            let members: Vec<PathBuf> = reach[file.as_path()]
                .iter()
                .filter(|other| {
                    reach
                        .get(*other)
                        .is_some_and(|back| back.contains(file.as_path()))
                })
                .map(|other| other.to_path_buf())
                .collect();
            if !members.is_empty() {
                let way = shortest_circle(&edges, &members);
                found.push(Circle { members, way });
            }
        }
        found
    }

    /// Which file uses which, where, by which name.
    pub fn edges(&self) -> BTreeMap<PathBuf, BTreeMap<PathBuf, (usize, String)>> {
        let mut edges: BTreeMap<PathBuf, BTreeMap<PathBuf, (usize, String)>> = BTreeMap::new();
        for (index, module) in self.modules.iter().enumerate() {
            let uses = edges.entry(module.file.clone()).or_default();
            for one in &module.uses {
                let Some(target) = self.resolve(&one.path, 0) else {
                    continue;
                };
                let own_face = one.reexport && self.descends(target, index);
                let other = &self.modules[target].file;
                if *other != module.file && !own_face {
                    uses.entry(other.clone())
                        .or_insert_with(|| (one.line, one.path.join("::")));
                }
            }
        }
        edges
    }

    fn descends(&self, module: usize, from: usize) -> bool {
        let mut at = Some(module);
        while let Some(index) = at {
            if index == from {
                return true;
            }
            at = self.modules[index].parent;
        }
        false
    }

    /// The module that defines what `path`, from the crate's root, names.
    fn resolve(&self, path: &[String], depth: usize) -> Option<usize> {
        // Aliases may name each other.
        if depth > 16 {
            return None;
        }
        let mut at = 0;
        for (position, segment) in path.iter().enumerate() {
            let module = &self.modules[at];
            let rest = &path[position + 1..];
            if let Some(&child) = module.children.get(segment) {
                at = child;
            } else if module.items.contains(segment) {
                return Some(at);
            } else if let Some(alias) = module.aliases.get(segment) {
                let full: Vec<String> = alias.iter().chain(rest).cloned().collect();
                if full != path {
                    return self.resolve(&full, depth + 1);
                }
                return Some(at);
            } else {
                // A name that a glob brings: of the module that has it.
                let globbed = module.globs.iter().find_map(|glob| {
                    let from = self.resolve(glob, depth + 1)?;
                    let has = &self.modules[from];
                    let known = has.items.contains(segment)
                        || has.children.contains_key(segment)
                        || has.aliases.contains_key(segment);
                    (from != at && known).then(|| {
                        let mut full = has.path.clone();
                        full.extend(path[position..].iter().cloned());
                        self.resolve(&full, depth + 1)
                    })?
                });
                return Some(globbed.unwrap_or(at));
            }
        }
        Some(at)
    }

    fn add_file(
        &mut self,
        file: &Path,
        directory: &Path,
        parent: Option<usize>,
        path: Vec<String>,
    ) {
        let source = std::fs::read_to_string(file)
            .unwrap_or_else(|e| panic!("{} can't be read: {e}", file.display()));
        let tokens = tokens(&code_only(&source));
        let index = self.add(file, parent, path);
        self.scan(&tokens, index, directory);
    }

    fn add(&mut self, file: &Path, parent: Option<usize>, path: Vec<String>) -> usize {
        let index = self.modules.len();
        if let (Some(parent), Some(name)) = (parent, path.last()) {
            self.modules[parent].children.insert(name.clone(), index);
        }
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            path,
            ..Module::default()
        });
        index
    }

    /// Reads the items of one module. Its children's files are in `directory`.
    fn scan(&mut self, tokens: &Tokens, index: usize, directory: &Path) {
        let mut at = 0;
        let mut declared: Vec<(String, Option<std::ops::Range<usize>>)> = Vec::new();
        let mut paths: Vec<(Vec<String>, usize)> = Vec::new();
        let mut imports: Vec<(Vec<Leaf>, usize, bool)> = Vec::new();
        let mut public = false;
        while at < tokens.len() {
            let (token, line) = &tokens[at];
            match token {
                Token::Sign('#') => {
                    let end = after_attribute(tokens, at);
                    let attribute = &tokens[at..end];
                    at = if is_for_tests(attribute) || names(attribute, "path") {
                        after_item(tokens, end)
                    } else {
                        end
                    };
                    continue;
                }
                Token::Word(word) if word == "pub" => {
                    public = true;
                    at += 1;
                    if sign(tokens, at) == Some('(') {
                        at = matching(tokens, at) + 1;
                    }
                    continue;
                }
                Token::Word(word) if word == "mod" && word_at(tokens, at + 1).is_some() => {
                    let name = word_at(tokens, at + 1).unwrap_or_default().to_owned();
                    if sign(tokens, at + 2) == Some('{') {
                        let end = matching(tokens, at + 2);
                        declared.push((name, Some(at + 3..end)));
                        at = end + 1;
                    } else {
                        declared.push((name, None));
                        at += 3;
                    }
                }
                Token::Word(word) if word == "use" && sign(tokens, at + 1) != Some('<') => {
                    let mut leaves = Vec::new();
                    let end = use_tree(tokens, at + 1, &[], &mut leaves);
                    imports.push((leaves, *line, public));
                    at = end + 1;
                }
                Token::Word(word) if defines(word) => {
                    if let Some(name) = word_at(tokens, at + 1) {
                        self.modules[index].items.insert(name.to_owned());
                    }
                    at += 1;
                }
                Token::Word(word) if word == "macro_rules" => {
                    if let Some(name) = word_at(tokens, at + 2) {
                        self.modules[index].items.insert(name.to_owned());
                    }
                    at += 3;
                }
                Token::Word(_) => {
                    let joined =
                        at > 0 && matches!(tokens[at - 1].0, Token::Colons | Token::Sign('.'));
                    let (path, end) = path_at(tokens, at);
                    if !joined && path.len() > 1 {
                        paths.push((path, *line));
                    }
                    at = end;
                }
                _ => at += 1,
            }
            public = false;
        }

        for (name, body) in declared {
            if matches!(name.as_str(), "tests" | "testing") {
                continue;
            }
            let mut path = self.modules[index].path.clone();
            path.push(name.clone());
            let below = directory.join(&name);
            match body {
                Some(range) => {
                    let file = self.modules[index].file.clone();
                    let inline = self.add(&file, Some(index), path);
                    self.scan(&tokens[range], inline, &below);
                }
                None => {
                    let flat = directory.join(format!("{name}.rs"));
                    let file = if flat.exists() {
                        flat
                    } else {
                        below.join("mod.rs")
                    };
                    self.add_file(&file, &below, Some(index), path);
                }
            }
        }
        for (leaves, line, public) in imports {
            for leaf in leaves {
                let Some(path) = self.absolute(&leaf.path, index) else {
                    continue;
                };
                if leaf.glob {
                    self.modules[index].globs.push(path.clone());
                } else {
                    self.modules[index].aliases.insert(leaf.name, path.clone());
                }
                self.modules[index].uses.push(Use {
                    path,
                    line,
                    reexport: public,
                });
            }
        }
        for (path, line) in paths {
            if let Some(path) = self.absolute(&path, index) {
                self.modules[index].uses.push(Use {
                    path,
                    line,
                    reexport: false,
                });
            }
        }
    }

    /// `path`, as module `index` writes it, from the crate's root; `None` if it begins outside of
    /// the crate.
    fn absolute(&self, path: &[String], index: usize) -> Option<Vec<String>> {
        let module = &self.modules[index];
        let mut base = module.path.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {}
            first if module.children.contains_key(first) => {}
            first => {
                base = module.aliases.get(first)?.clone();
                rest = &path[1..];
            }
        }
        while rest.first().is_some_and(|segment| segment == "super") {
            base.pop();
            rest = &rest[1..];
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }
}

/// One name that a `use` brings.
struct Leaf {
    path: Vec<String>,
    name: String,
    glob: bool,
}

/// Reads the tree of a `use` at `at`; returns where it ends.
fn use_tree(tokens: &Tokens, mut at: usize, prefix: &[String], leaves: &mut Vec<Leaf>) -> usize {
    let mut path = prefix.to_vec();
    // `::name`, from outside.
    if matches!(tokens.get(at), Some((Token::Colons, _))) {
        path.push(String::from("::"));
        at += 1;
    }
    loop {
        match tokens.get(at) {
            Some((Token::Sign('{'), _)) => {
                let end = matching(tokens, at);
                at += 1;
                while at < end {
                    at = use_tree(tokens, at, &path, leaves);
                    if sign(tokens, at) == Some(',') {
                        at += 1;
                    }
                }
                return end + 1;
            }
            Some((Token::Sign('*'), _)) => {
                leaves.push(Leaf {
                    path,
                    name: String::new(),
                    glob: true,
                });
                return at + 1;
            }
            Some((Token::Word(word), _)) => {
                // `{self}` is the module itself.
                if word != "self" || path.is_empty() {
                    path.push(word.clone());
                }
                at += 1;
            }
            _ => return at,
        }
        if matches!(tokens.get(at), Some((Token::Colons, _))) {
            at += 1;
            continue;
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if word_at(tokens, at) == Some("as") {
            name = word_at(tokens, at + 1).unwrap_or("_").to_owned();
            at += 2;
        }
        leaves.push(Leaf {
            path,
            name,
            glob: false,
        });
        return at;
    }
}

fn reachable<'a>(
    edges: &'a BTreeMap<PathBuf, BTreeMap<PathBuf, (usize, String)>>,
    from: &Path,
) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for next in edges.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next.as_path()) {
                open.push(next);
            }
        }
    }
    reached
}

/// The shortest way around among `members`.
fn shortest_circle(
    edges: &BTreeMap<PathBuf, BTreeMap<PathBuf, (usize, String)>>,
    members: &[PathBuf],
) -> Vec<(PathBuf, usize, String)> {
    let around = |start: &PathBuf| {
        let mut queue = VecDeque::from([vec![start.clone()]]);
        let mut seen = BTreeSet::new();
        while let Some(way) = queue.pop_front() {
            for next in edges.get(way.last()?)?.keys() {
                if next == start {
                    return Some(way);
                }
                if members.contains(next) && seen.insert(next.clone()) {
                    let mut longer = way.clone();
                    longer.push(next.clone());
                    queue.push_back(longer);
                }
            }
        }
        None
    };
    let shortest = members.iter().filter_map(around).min_by_key(Vec::len);
    let way = shortest.unwrap_or_default();
    let next_of = |position: usize| &way[(position + 1) % way.len()];
    way.iter()
        .enumerate()
        .map(|(position, file)| {
            let (line, name) = edges[file][next_of(position)].clone();
            (file.clone(), line, name)
        })
        .collect()
}

fn tokens(code: &str) -> Vec<(Token, usize)> {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let len = if part_of_word(c) {
                let len = rest.find(|c| !part_of_word(c)).unwrap_or(rest.len());
                found.push((Token::Word(rest[..len].to_owned()), line));
                len
            } else if rest.starts_with("::") {
                found.push((Token::Colons, line));
                2
            } else {
                if !c.is_whitespace() {
                    found.push((Token::Sign(c), line));
                }
                c.len_utf8()
            };
            rest = &rest[len..];
        }
    }
    found
}

fn word_at(tokens: &Tokens, at: usize) -> Option<&str> {
    match tokens.get(at) {
        Some((Token::Word(word), _)) => Some(word),
        _ => None,
    }
}

fn sign(tokens: &Tokens, at: usize) -> Option<char> {
    match tokens.get(at) {
        Some((Token::Sign(sign), _)) => Some(*sign),
        _ => None,
    }
}

/// Where the bracket that opens at `at` closes; the end if it doesn't.
fn matching(tokens: &Tokens, at: usize) -> usize {
    let mut depth = 0_usize;
    for position in at..tokens.len() {
        match sign(tokens, position) {
            Some('(' | '[' | '{') => depth += 1,
            Some(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return position;
        }
    }
    tokens.len()
}

/// The end of the attribute that begins at `at`.
fn after_attribute(tokens: &Tokens, at: usize) -> usize {
    let open = if sign(tokens, at + 1) == Some('!') {
        at + 2
    } else {
        at + 1
    };
    if sign(tokens, open) == Some('[') {
        matching(tokens, open) + 1
    } else {
        at + 1
    }
}

/// Whether `attribute` is `#[name …]`.
fn names(attribute: &Tokens, name: &str) -> bool {
    attribute.iter().find_map(|(token, _)| match token {
        Token::Word(word) => Some(word.as_str()),
        _ => None,
    }) == Some(name)
}

fn is_for_tests(attribute: &Tokens) -> bool {
    let has = |word: &str| {
        attribute
            .iter()
            .any(|(token, _)| *token == Token::Word(word.to_owned()))
    };
    names(attribute, "cfg") && has("test") && !has("not")
}

/// The end of the item that begins at `at`, with attributes of its own.
fn after_item(tokens: &Tokens, mut at: usize) -> usize {
    while at < tokens.len() {
        match sign(tokens, at) {
            Some('#') => at = after_attribute(tokens, at),
            Some(';' | ',') => return at + 1,
            Some('{') => return matching(tokens, at) + 1,
            Some('(' | '[') => at = matching(tokens, at) + 1,
            // The end of the item's surroundings, such as a list of fields.
            Some(')' | ']' | '}') => return at,
            _ => {
                // A list of imports has braces inside.
                if word_at(tokens, at) == Some("use") {
                    while at < tokens.len() && sign(tokens, at) != Some(';') {
                        at += 1;
                    }
                } else {
                    at += 1;
                }
            }
        }
    }
    at
}

/// Whether `word` is followed by the name of an item.
fn defines(word: &str) -> bool {
    matches!(
        word,
        "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static"
    )
}

/// The path that begins at `at`, and where it ends.
fn path_at(tokens: &Tokens, mut at: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while let Some(word) = word_at(tokens, at) {
        path.push(word.to_owned());
        at += 1;
        if matches!(tokens.get(at), Some((Token::Colons, _))) && word_at(tokens, at + 1).is_some() {
            at += 1;
        } else {
            break;
        }
    }
    (path, at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What the files of a crate, `(path, source)` with `lib.rs` first, have in circles: each
    /// circle's members.
    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        for (name, source) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, source).unwrap();
        }
        let name = |path: &PathBuf| {
            let relative = path.strip_prefix(directory.path()).unwrap();
            relative.display().to_string()
        };
        Modules::read(&directory.path().join(files[0].0))
            .circles()
            .iter()
            .map(|circle| circle.members.iter().map(name).collect())
            .collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let root = "mod a; mod b; mod c;";
        for (a, b) in [
            ("use crate::b::B; struct A;", "use crate::a::A; struct B;"),
            ("use super::b; struct A(b::B);", "struct B(crate::a::A);"),
            (
                "fn a() { crate::b::b() }",
                "use super::{a::{self, a}, c};\npub fn b() { a() }",
            ),
            ("use crate::b::*; struct A;", "pub struct B(super::a::A);"),
        ] {
            let found = circles(&[("lib.rs", root), ("a.rs", a), ("b.rs", b), ("c.rs", "")]);
            assert_eq!(found, [["a.rs", "b.rs"]], "{a} {b}");
        }
        let around = circles(&[
            ("lib.rs", root),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C; pub struct B;"),
            ("c.rs", "pub struct C(super::a::A);"),
        ]);
        assert_eq!(around, [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn a_parent_and_its_child_are_files_like_others() {
        let found = circles(&[
            ("lib.rs", "mod a;\nstruct Root;\nfn f() { a::a() }"),
            ("a.rs", "use super::Root; pub fn a() {}"),
        ]);
        assert_eq!(found, [["a.rs", "lib.rs"]]);
    }

    #[test]
    fn a_name_counts_for_the_file_that_defines_it() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; pub use a::A; use b::B as Other;"),
            ("a.rs", "use crate::Other; pub struct A;"),
            ("b/mod.rs", "mod leaf; pub use leaf::B;"),
            ("b/leaf.rs", "pub struct B;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
        let through = circles(&[
            ("lib.rs", "mod a; mod b; pub use a::A;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "use crate::A; pub struct B;"),
        ]);
        assert_eq!(through, [["a.rs", "b.rs"]]);
    }

    #[test]
    fn tests_faces_and_visibility_are_no_uses() {
        let found = circles(&[
            ("lib.rs", "mod a; pub mod b; pub use a::A;"),
            (
                "a.rs",
                "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            (
                "b.rs",
                "use crate::A; #[cfg(test)] use crate::c::C; pub(in crate::b) struct B;\n// crate::c\n",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_circle_names_the_lines_that_close_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, source: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, source).unwrap();
            path
        };
        let (a, b) = (
            file("a.rs", "\n\nuse crate::b::B;\n"),
            file("b.rs", "\nfn b(a: crate::a::A) {}"),
        );
        let modules = Modules::read(&file("lib.rs", "mod a; mod b;"));
        let way = vec![
            (a.clone(), 3, String::from("b::B")),
            (b.clone(), 2, String::from("a::A")),
        ];
        let members = vec![a, b];
        assert_eq!(modules.circles(), [Circle { members, way }]);
    }
}

//! Loads schemas from the file system: `.proto` files, directories of them, serialized descriptor
//! sets, or any mixture.
//!
//! For tools: the daemon reads no files, it receives one descriptor set. This module makes such a
//! set. The set is complete and small, whatever its sources: it holds all imports, including
//! protobuf's own, and no comments.
//!
//! A `.proto` file may import files of a set. A file that is both compiled and in a set must be the
//! same in both. Only protobuf's own files (`google/protobuf/...`) may come in several versions;
//! the first version is taken.
//!
//! The built-in compiler knows less than protoc, so [`source`] rewrites the sources first, and
//! files of editions pass through it as proto2. Afterwards, this module writes the true edition
//! into the descriptor.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use built_in::{BuiltIn, DESCRIPTOR};
use protox::file::{
    ChainFileResolver, DescriptorSetFileResolver, File, FileResolver, IncludeFileResolver,
};
use source::{Places, SourceError};

use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::FileDescriptorProto;

use crate::error::one_line;
use crate::limits::{MAX_DIRECTORY_DEPTH, MAX_FILES, MAX_SCHEMA_FILE};
use crate::reflect::{JsonName, lower_names};
use crate::spelling::did_you_mean;
use crate::{Schema, SchemaError, descriptor};

mod aggregates;
mod built_in;
mod names;
mod source;

/// The prefix of protobuf's own files.
const WELL_KNOWN: &str = "google/protobuf/";

/// File name extensions of serialized descriptor sets.
const SET_EXTENSIONS: [&str; 6] = ["binpb", "pb", "desc", "protoset", "fds", "bin"];

impl Schema {
    /// Loads `.proto` files, directories (all `.proto` files below, by name) and serialized
    /// descriptor sets (recognized by their extension or content).
    ///
    /// Imports are looked up in `includes`; if there are none, in the directories of the `.proto`
    /// files. A loaded directory is an include, too, unless it lies below another include.
    /// Protobuf's own files are built in.
    pub fn load(
        paths: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<Schema, SchemaError> {
        let mut sources = Sources::default();
        for path in paths {
            sources.add(path.as_ref())?;
        }
        let given = includes.iter().map(|i| i.as_ref().to_owned()).collect();
        let includes = sources.includes(given);
        let compiled = compile(&sources.protos, &includes, &sources.sets)?;
        Schema::from_descriptor_set(&merge(&sources.sets, &compiled)?)
    }

    /// Compiles `.proto` files; imports are looked up in `includes`, and protobuf's own files are
    /// built in.
    ///
    /// Each file must lie below one of the include directories. For tools: it reads files, and the
    /// daemon never does.
    pub fn compile_proto(
        files: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<Schema, SchemaError> {
        Schema::from_descriptor_set(&compile(files, includes, &[])?.set)
    }
}

/// The paths, sorted by kind.
#[derive(Default)]
struct Sources {
    protos: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    /// Serialized descriptor sets.
    sets: Vec<Vec<u8>>,
}

impl Sources {
    fn add(&mut self, path: &Path) -> Result<(), SchemaError> {
        let failed = |e: std::io::Error| invalid(path, format!("it can't be read: {e}"));
        let metadata = fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            let mut found = Vec::new();
            walk(path, 1, &mut found)?;
            if found.is_empty() {
                return Err(invalid(path, "there is no .proto file below it"));
            }
            found.sort_unstable();
            self.protos.extend(found);
            self.directories.push(path.to_owned());
            return Ok(());
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        if extension == "proto" {
            self.protos.push(path.to_owned());
            return Ok(());
        }
        if metadata.len() > MAX_SCHEMA_FILE {
            let bytes = metadata.len();
            let reason = format!("it has {bytes} bytes, the limit is {MAX_SCHEMA_FILE}");
            return Err(invalid(path, reason));
        }
        let bytes = fs::read(path).map_err(failed)?;
        match without_comments(&bytes) {
            Ok(set) if !set.is_empty() => self.sets.push(set),
            Ok(_) if SET_EXTENSIONS.contains(&extension) => {
                return Err(invalid(path, "it is a descriptor set without files"));
            }
            Err(error) if SET_EXTENSIONS.contains(&extension) => {
                return Err(invalid(path, error));
            }
            // Neither name nor content make it a set: leave it to the compiler.
            Ok(_) | Err(_) => self.protos.push(path.to_owned()),
        }
        Ok(())
    }

    /// The directories to search for imports.
    fn includes(&self, given: Vec<PathBuf>) -> Vec<PathBuf> {
        let known: Vec<PathBuf> = given.iter().map(|i| canonical(i)).collect();
        let is_below = |directory: &Path| known.iter().any(|i| canonical(directory).starts_with(i));
        let mut includes = given;
        let wants_parents = includes.is_empty();
        for directory in &self.directories {
            if !is_below(directory) && !includes.contains(directory) {
                includes.push(directory.clone());
            }
        }
        if wants_parents {
            for parent in self.protos.iter().map(|file| parent(file)) {
                let is_covered = includes.iter().any(|i| parent.starts_with(i));
                if !is_covered {
                    includes.push(parent);
                }
            }
        }
        includes
    }
}

/// Collects the `.proto` files below a directory. Links to directories aren't followed: they may
/// form circles.
fn walk(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), SchemaError> {
    let failed = |e: std::io::Error| invalid(directory, format!("it can't be read: {e}"));
    if depth > MAX_DIRECTORY_DEPTH {
        let reason = format!("it lies deeper than {MAX_DIRECTORY_DEPTH} levels");
        return Err(invalid(directory, reason));
    }
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_dir() {
            walk(&path, depth + 1, found)?;
        } else if path.extension().is_some_and(|e| e == "proto") && path.is_file() {
            found.push(path);
            if found.len() > MAX_FILES {
                let reason = format!("there are more than {MAX_FILES} .proto files");
                return Err(invalid(directory, reason));
            }
        }
    }
    Ok(())
}

/// The compiler's output for the `.proto` files.
struct Compiled {
    /// The serialized set with all imports.
    set: Vec<u8>,
    /// Names of files in the set that are only there as imports.
    imports: HashSet<String>,
}

/// Facts about files that the compiler doesn't see, by file name.
#[derive(Default)]
struct Truth {
    /// The true syntax of files that the compiler saw as proto2: the serialized fields `syntax` and
    /// `edition`.
    syntax: HashMap<String, Vec<u8>>,
    /// The JSON names of fields for which the compiler got others.
    json: HashMap<String, Vec<JsonName>>,
    has_editions: bool,
    /// The places in rewritten sources.
    places: HashMap<String, Places>,
}

type Truths = Rc<RefCell<Truth>>;

fn compile(
    files: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
    sets: &[Vec<u8>],
) -> Result<Compiled, SchemaError> {
    for knows_features in [false, true] {
        if let Some(compiled) = compile_with(files, includes, sets, knows_features)? {
            return Ok(compiled);
        }
    }
    unreachable!("it knows the features the second time")
}

/// Returns `None` if a source is of an edition and the compiler doesn't know the features yet. The
/// compiler only learns them then: other sources may have declarations that collide with that
/// file's package, such as a message `google`.
fn compile_with(
    files: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
    sets: &[Vec<u8>],
    knows_features: bool,
) -> Result<Option<Compiled>, SchemaError> {
    let failed = |reason: &str| SchemaError::ProtoInvalid {
        reason: one_line(reason),
    };
    let truths = Truths::default();
    let mut resolver = ChainFileResolver::new();
    for include in includes {
        resolver.add(Include {
            directory: include.as_ref().to_owned(),
            includes: includes.iter().map(|i| i.as_ref().to_owned()).collect(),
            truths: Rc::clone(&truths),
        });
    }
    for set in sets {
        let set = DescriptorSetFileResolver::decode(&*lowered(set, &truths)?);
        resolver.add(set.map_err(|e| failed(&e.to_string()))?);
    }
    resolver.add(BuiltIn::new());
    for file in files {
        check_shadow(file.as_ref(), includes)?;
    }
    let mut compiler = protox::Compiler::with_file_resolver(resolver);
    compiler.include_imports(true).include_source_info(false);
    // The compiler looks up options in it, even for files that don't import it. If an include has
    // one that doesn't compile, the files that import it report that.
    if knows_features {
        let _ = compiler.open_file(DESCRIPTOR);
    }
    let opened = compiler.open_files(files);
    if truths.borrow().has_editions && !knows_features {
        return Ok(None);
    }
    opened.map_err(|e| failed(&told(&e, &truths.borrow())))?;
    let imports = compiler.files().filter(|f| f.is_import());
    let is_wanted = files.iter().any(|file| file.as_ref().ends_with(DESCRIPTOR));
    let set = restored(&compiler.encode_file_descriptor_set(), &truths.borrow())?;
    Ok(Some(Compiled {
        imports: imports.map(|f| f.name().to_owned()).collect(),
        set: match is_wanted {
            true => set,
            false => without_unused_descriptor(&set)?,
        },
    }))
}

/// Sources of one directory.
struct Include {
    directory: PathBuf,
    /// All directories, to find extensions that other files declare.
    includes: Vec<PathBuf>,
    truths: Truths,
}

impl FileResolver for Include {
    fn resolve_path(&self, path: &Path) -> Option<String> {
        IncludeFileResolver::new(self.directory.clone()).resolve_path(path)
    }

    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let path = self.directory.join(name);
        let (file, edition) = open(name, &path, Some(&self.truths))?;
        let mut truths = self.truths.borrow_mut();
        if let Some(number) = edition {
            truths.has_editions = true;
            let truth = truth("editions", number);
            truths.syntax.insert(name.to_owned(), truth);
        }
        // The compiler only shows the places of imports for files that stay unchanged here.
        let mut descriptor = file.file_descriptor_proto().clone();
        if let Some(refusal) = names::check(&descriptor) {
            return Err(protox::Error::new(Refusal(refusal)));
        }
        let is_renamed = names::name_oneofs(&mut descriptor);
        let syntax = descriptor.syntax.clone();
        let (is_lowered, json) = lower_names(&mut descriptor);
        if is_lowered && let Some(syntax) = syntax {
            let truth = truth(&syntax, 0);
            truths.syntax.insert(name.to_owned(), truth);
        }
        truths.json.insert(name.to_owned(), json);
        drop(truths);
        let is_resolved = aggregates::resolve(&mut descriptor, |import| {
            let mut places = self.includes.iter().map(|i| i.join(import));
            let (file, _) = open(import, &places.find(|path| path.is_file())?, None).ok()?;
            Some(file.file_descriptor_proto().clone())
        });
        Ok(if is_lowered || is_renamed || is_resolved {
            File::from_file_descriptor_proto(descriptor)
        } else {
            file
        })
    }
}

/// The reason why a source is refused before the compiler sees it. The compiler's own errors only
/// show their places in `Debug`, so this one does, too.
struct Refusal(String);

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Parses a source; also returns the number of its edition.
fn open(
    name: &str,
    path: &Path,
    truths: Option<&Truths>,
) -> Result<(File, Option<i32>), protox::Error> {
    // The library reports why it can't be read.
    let Ok(bytes) = fs::read(path) else {
        return File::open(name, path).map(|file| (file, None));
    };
    let invalid = |error: SourceError| protox::Error::new(Refusal(format!("{name}:{error}")));
    match source::read(&bytes).map_err(invalid)? {
        None => File::open(name, path).map(|file| (file, None)),
        Some(source) => {
            if let Some(truths) = truths {
                let places = &mut truths.borrow_mut().places;
                places.insert(name.to_owned(), source.places);
            }
            Ok((File::from_source(name, &source.text)?, source.edition))
        }
    }
}

/// Refuses a file that an earlier include shadows: the compiler would take the other file of that
/// name.
fn check_shadow(file: &Path, includes: &[impl AsRef<Path>]) -> Result<(), SchemaError> {
    let name = includes.iter().find_map(|include| {
        IncludeFileResolver::new(include.as_ref().to_owned()).resolve_path(file)
    });
    let Some(name) = name else { return Ok(()) };
    let mut places = includes.iter().map(|i| i.as_ref().join(&name));
    match places.find(|path| path.is_file()) {
        Some(first) if file.is_file() && canonical(&first) != canonical(file) => {
            let reason = format!("{} has the same name and is found first", first.display());
            Err(invalid(file, reason))
        }
        _ => Ok(()),
    }
}

/// The serialized fields of a file that declare its syntax.
fn truth(syntax: &str, edition: i32) -> Vec<u8> {
    let known = FileDescriptorProto {
        syntax: Some(syntax.to_owned()),
        ..FileDescriptorProto::default()
    };
    let mut truth = known.encode_to_vec();
    if edition != 0 {
        const EDITION: u32 = 14;
        prost_reflect::prost::encoding::int32::encode(EDITION, &edition, &mut truth);
    }
    truth
}

/// A set in which files of editions look like proto2.
fn lowered(set: &[u8], truths: &Truths) -> Result<Vec<u8>, SchemaError> {
    let mut out = Vec::with_capacity(set.len());
    for file in descriptor::read(set)? {
        let mut bytes = file.bytes.to_vec();
        if file.syntax == "editions" {
            let own = truth(file.syntax, file.edition);
            let syntax = &mut truths.borrow_mut().syntax;
            syntax.insert(file.name.to_owned(), own);
            bytes.extend(truth("proto2", 0));
        }
        descriptor::append_file(&mut out, &bytes);
    }
    Ok(out)
}

/// The set with the files' true declarations appended: if a field occurs twice, the last one
/// counts.
fn restored(set: &[u8], truths: &Truth) -> Result<Vec<u8>, SchemaError> {
    let mut out = Vec::with_capacity(set.len());
    for file in descriptor::read(set)? {
        let syntax = truths.syntax.get(file.name).map_or(&[][..], Vec::as_slice);
        let json = truths.json.get(file.name).map_or(&[][..], Vec::as_slice);
        let bytes = names::restore(file.bytes, json);
        descriptor::append_file(&mut out, &[&bytes, syntax].concat());
    }
    Ok(out)
}

/// The set without `descriptor.proto`, if no file imports it.
fn without_unused_descriptor(set: &[u8]) -> Result<Vec<u8>, SchemaError> {
    let files = descriptor::read(set)?;
    if files.iter().any(|f| f.imports.contains(&DESCRIPTOR)) {
        return Ok(set.to_vec());
    }
    let mut out = Vec::with_capacity(set.len());
    for file in files.iter().filter(|file| file.name != DESCRIPTOR) {
        descriptor::append_file(&mut out, file.bytes);
    }
    Ok(out)
}

/// An error of the compiler, with its place in the source.
fn told(error: &protox::Error, truths: &Truth) -> String {
    let mut text = format!("{error:?}");
    text += &meant_feature(&text);
    for (name, places) in &truths.places {
        let Some(rest) = text.strip_prefix(&format!("{name}:")) else {
            continue;
        };
        let mut parts = rest.splitn(3, ':');
        if let (Some(Ok(line)), Some(Ok(column)), Some(rest)) = (
            parts.next().map(str::parse),
            parts.next().map(str::parse),
            parts.next(),
        ) {
            let (line, column) = places.in_source(line, column);
            return format!("{name}:{line}:{column}:{rest}");
        }
    }
    text
}

/// The likely intended feature or value for a mistyped one, as part of a sentence.
fn meant_feature(error: &str) -> String {
    let Some((_, quoted)) = error.split_once("'features.") else {
        return String::new();
    };
    let feature = quoted.split('\'').next().unwrap_or_default();
    let features = built_in::features();
    if error.contains("is not defined") {
        return did_you_mean(feature, features.iter().map(|(name, _)| &**name));
    }
    let found = error.rsplit("but found '").next().unwrap_or_default();
    let values = features.iter().filter(|(name, _)| name == feature);
    let values = values.flat_map(|(_, values)| values.iter().map(String::as_str));
    did_you_mean(found.trim_end_matches('\''), values)
}

/// Merges all files into one set, and adds imported files of protobuf's own that are missing.
fn merge(sets: &[Vec<u8>], compiled: &Compiled) -> Result<Vec<u8>, SchemaError> {
    let mut merged = Vec::new();
    let mut names: HashSet<String> = HashSet::new();
    let mut wanted: Vec<String> = Vec::new();
    let mut add = |bytes: &[u8], imports: &HashSet<String>| {
        for file in descriptor::read(bytes)? {
            let is_known = names.contains(file.name);
            if is_known && (file.name.starts_with(WELL_KNOWN) || imports.contains(file.name)) {
                continue;
            }
            names.insert(file.name.to_owned());
            let own = file.imports.iter().filter(|i| i.starts_with(WELL_KNOWN));
            wanted.extend(own.map(|i| (*i).to_owned()));
            descriptor::append_file(&mut merged, file.bytes);
        }
        Ok::<_, SchemaError>(())
    };
    for set in sets {
        add(set, &HashSet::new())?;
    }
    add(&compiled.set, &compiled.imports)?;
    let built_in = BuiltIn::new();
    while let Some(name) = wanted.pop() {
        if !names.contains(&name)
            && let Ok(file) = built_in.open_file(&name)
        {
            let file = file.file_descriptor_proto();
            wanted.extend(file.dependency.iter().cloned());
            descriptor::append_file(&mut merged, &file.encode_to_vec());
            names.insert(name);
        }
    }
    Ok(merged)
}

/// The same set without the source information of its files, which is most of a build tool's
/// output.
fn without_comments(set: &[u8]) -> Result<Vec<u8>, SchemaError> {
    let mut out = Vec::with_capacity(set.len());
    for file in descriptor::read(set)? {
        descriptor::append_file(&mut out, &descriptor::without_source_info(file.bytes)?);
    }
    Ok(out)
}

fn parent(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn invalid(path: &Path, reason: impl ToString) -> SchemaError {
    SchemaError::PathInvalid {
        path: path.display().to_string(),
        reason: reason.to_string(),
    }
}

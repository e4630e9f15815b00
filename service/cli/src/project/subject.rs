//! What a project's policy evaluates: a method, a text field of its request, and the files that
//! define them.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tollgate_schema::Schema;
use tollgate_schema::prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::failure::Failure;
use crate::project::written::File;
use crate::schema::{Files, Service};

/// The directory of the schema in a project.
const PROTO: &str = "proto";

/// How deep in a request the field may be: its own fields have depth 1.
const DEPTH: usize = 4;

/// The value that cases expect to pass, and one that the block list has.
const PASSING: &str = "Ada";
const BLOCKED: &str = "Mallory";

/// A method and a field of its request.
#[derive(Debug)]
pub(crate) struct Subject {
    /// The schema's files, in the project.
    pub(crate) files: Vec<File>,
    /// The path of the one that defines the method.
    pub(crate) proto: String,
    /// `package.Service/Method`.
    pub(crate) method: String,
    /// A dotted path.
    pub(crate) field: String,
    /// Whether the field may be absent.
    pub(crate) is_optional: bool,
    /// The user's schema.
    pub(crate) schema: Option<Schema>,
}

impl Subject {
    /// The one of a project without a schema of the user.
    pub(crate) fn example() -> Subject {
        let proto = format!("{PROTO}/shop.proto");
        Subject {
            files: vec![(
                PathBuf::from(&proto),
                include_str!("templates/shop.proto").to_owned(),
            )],
            proto,
            method: "shop.Orders/Place".to_owned(),
            field: "customer".to_owned(),
            is_optional: false,
            schema: None,
        }
    }

    /// The one of a method of the user's schema.
    pub(crate) fn of(proto: &Path, include: &[PathBuf], method: &str) -> Result<Subject, Failure> {
        let (service, name) = match method.split_once('/') {
            Some((service, name)) if !service.is_empty() && !name.is_empty() => (service, name),
            _ => {
                let sentence = format!("method {method:?} isn't package.Service/Method");
                return Err(Failure::input(sentence));
            }
        };
        if proto
            .extension()
            .is_none_or(|extension| extension != "proto")
        {
            let sentence = format!("{} is no .proto file", proto.display());
            return Err(Failure::input(sentence));
        }
        let files = Files {
            proto: vec![proto.to_owned()],
            include: include.to_vec(),
        };
        let service = Service::load(&files, service)?;
        let found = service.method(name)?;
        let input = found.input();
        let (field, is_optional) = text_field(input).ok_or_else(|| {
            let sentence = format!(
                "the request of {method}, {}, has no field of type string, and the policy of the project reads one",
                input.full_name()
            );
            Failure::input(sentence).hint("another --method; or without --proto, and change the project")
        })?;
        let copied = copied(proto, include, input)?;
        // Messages with required fields can't be made of one field.
        found.request(&request(&field, PASSING).to_string())?;
        Ok(Subject {
            proto: copied.0,
            files: copied.1,
            method: method.to_owned(),
            field,
            is_optional,
            schema: Some(service.into_schema()),
        })
    }

    /// A request that passes, in protobuf's JSON.
    pub(crate) fn passing(&self) -> Value {
        request(&self.field, PASSING)
    }

    /// A request that is denied.
    pub(crate) fn blocked(&self) -> Value {
        request(&self.field, BLOCKED)
    }
}

/// A message with this field alone.
fn request(field: &str, value: &str) -> Value {
    let names = field.rsplit('.');
    names.fold(json!(value), |inner, name| json!({ name: inner }))
}

/// A text field of a message, and whether it may be absent: the first of the message itself that is
/// always there, or else the first that there is, level by level.
fn text_field(message: &MessageDescriptor) -> Option<(String, bool)> {
    let is_text = |field: &FieldDescriptor| field.kind() == Kind::String && !field.is_list();
    let always = message
        .fields()
        .find(|field| is_text(field) && !field.supports_presence());
    if let Some(field) = always {
        return Some((field.name().to_owned(), false));
    }
    let mut messages = VecDeque::from([(message.clone(), String::new(), 1)]);
    while let Some((message, path, depth)) = messages.pop_front() {
        if let Some(field) = message.fields().find(is_text) {
            return Some((path + field.name(), true));
        }
        for field in message.fields() {
            if let Kind::Message(inner) = field.kind()
                && !field.is_list()
                && !field.is_map()
                && depth < DEPTH
            {
                messages.push_back((inner, format!("{path}{}.", field.name()), depth + 1));
            }
        }
    }
    None
}

/// The path of the method's file in the project; and the schema's files, from the directories of
/// imports. Files that the compiler brings itself aren't copied.
fn copied(
    proto: &Path,
    include: &[PathBuf],
    message: &MessageDescriptor,
) -> Result<(String, Vec<File>), Failure> {
    let own = [proto.parent().unwrap_or(Path::new("")).to_owned()];
    let roots = if include.is_empty() { &own } else { include };
    let mut its_path = None;
    let mut files = Vec::new();
    for file in message.parent_pool().files() {
        let name = file.name();
        let Some(source) = roots
            .iter()
            .map(|root| root.join(name))
            .find(|f| f.is_file())
        else {
            if name.starts_with("google/protobuf/") {
                continue;
            }
            let sentence = format!("the file {name} of the schema is in no directory of imports");
            return Err(Failure::input(sentence).hint("-I DIR"));
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        if !name.chars().all(is_plain) {
            let sentence = format!(
                "the file {name:?} of the schema has a name that a Makefile can't have: use a-z A-Z 0-9 _ - . /"
            );
            return Err(Failure::input(sentence));
        }
        let text = fs::read_to_string(&source).map_err(|error| Failure::file(&source, &error))?;
        let path = format!("{PROTO}/{name}");
        if is_same(&source, proto) {
            its_path = Some(path.clone());
        }
        files.push((PathBuf::from(path), text));
    }
    match its_path {
        Some(path) => Ok((path, files)),
        None => {
            let sentence = format!("{} is in no directory of imports", proto.display());
            Err(Failure::input(sentence).hint("-I DIR, where DIR has the file"))
        }
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TEXT: &str = r#"
        syntax = "proto3";
        package p;
        import "google/protobuf/empty.proto";
        import "common/guest.proto";
        message Deep { int32 a = 1; common.Guest guest = 2; }
        message Maybe { repeated string list = 1; optional string b = 2; }
        message Both { optional string a = 1; string b = 2; }
        message Numbers { int32 a = 1; bytes b = 2; map<string, string> c = 3; }
        message Loop { Loop inner = 1; }
        service S {
          rpc Deep(Deep) returns (Numbers);
          rpc Maybe(Maybe) returns (google.protobuf.Empty);
          rpc Both(Both) returns (Numbers);
          rpc Numbers(Numbers) returns (Numbers);
          rpc Loop(Loop) returns (Numbers);
        }"#;

    fn place() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("common")).unwrap();
        fs::write(place.path().join("p.proto"), TEXT).unwrap();
        let guest = "syntax = \"proto3\"; package common; message Guest { string name = 1; }";
        fs::write(place.path().join("common/guest.proto"), guest).unwrap();
        place
    }

    #[test]
    fn the_first_text_is_the_one() {
        let place = place();
        let of = |method: &str| {
            let subject = Subject::of(&place.path().join("p.proto"), &[], method);
            subject.map(|subject| (subject.field, subject.is_optional))
        };
        let found = |field: &str, is_optional| Ok((field.to_owned(), is_optional));
        assert_eq!(of("p.S/Deep"), found("guest.name", true));
        assert_eq!(of("p.S/Maybe"), found("b", true));
        assert_eq!(of("p.S/Both"), found("b", false));
        for (method, words) in [
            ("p.S/Numbers", "p.Numbers, has no field of type string"),
            ("p.S/Loop", "p.Loop, has no field of type string"),
            ("p.S/Bot", "has no method \"Bot\""),
            ("p.T/Both", "p.T"),
            ("Both", "isn't package.Service/Method"),
            ("/", "isn't package.Service/Method"),
        ] {
            let refused = of(method).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn imports_are_copied() {
        let place = place();
        let root = [place.path().to_owned()];
        for include in [&[][..], &root] {
            let subject = Subject::of(&place.path().join("p.proto"), include, "p.S/Deep").unwrap();
            assert_eq!(subject.proto, "proto/p.proto");
            let mut paths: Vec<_> = subject.files.iter().map(|(path, _)| path.clone()).collect();
            paths.sort();
            assert_eq!(
                paths,
                [
                    Path::new("proto/common/guest.proto"),
                    Path::new("proto/p.proto")
                ]
            );
            let request = subject.blocked().to_string();
            assert_eq!(request, r#"{"guest":{"name":"Mallory"}}"#);
        }
    }

    #[test]
    fn files_that_are_no_schema_are_refused() {
        let place = place();
        let of = |name: &str, include: &[PathBuf]| {
            let refused = Subject::of(&place.path().join(name), include, "p.S/Deep");
            refused.unwrap_err().to_string()
        };
        assert!(of("none.proto", &[]).contains("none.proto can't be read"));
        assert!(of("common", &[]).contains("is no .proto file"));
        let odd = place.path().join("a b.proto");
        fs::write(&odd, TEXT).unwrap();
        let refused = of("a b.proto", &[]);
        assert!(
            refused.contains("a name that a Makefile can't have"),
            "{refused}"
        );
        let required = "syntax = \"proto2\"; package p; \
            message Deep { optional string a = 1; required int32 b = 2; } \
            service S { rpc Deep(Deep) returns (Deep); }";
        fs::write(place.path().join("old.proto"), required).unwrap();
        let refused = of("old.proto", &[]);
        assert!(refused.contains("INVALID_ARGUMENT"), "{refused}");
    }
}

//! A schema on the command line (`.proto` files, directories, descriptor sets), and JSON as
//! messages of its types.
//!
//! The schema is compiled here, in the client. The daemon only sees the descriptor set.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use tollgate_schema::dynamic::{from_json, read_block, to_json, write_block};
use tollgate_schema::prost_reflect::MessageDescriptor;
use tollgate_schema::spelling::did_you_mean;
use tollgate_schema::{MethodLayout, Schema, SchemaError, ServiceLayout};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;

/// A schema's files.
#[derive(Debug, Args)]
pub(crate) struct Files {
    /// The schema: a .proto file, a directory of them, or a serialized descriptor set; repeat for
    /// more
    #[arg(long, value_name = "PATH", required = true)]
    pub(crate) proto: Vec<PathBuf>,
    /// The directories of imports; those of the .proto files if left out
    #[arg(long, short = 'I', value_name = "DIR")]
    pub(crate) include: Vec<PathBuf>,
}

/// A service of the compiled schema.
pub(crate) struct Service {
    schema: Schema,
    layout: ServiceLayout,
}

/// Loads the definitions in the files.
pub(crate) fn load(files: &Files) -> Result<Schema, Failure> {
    for file in &files.proto {
        std::fs::metadata(file).map_err(|error| Failure::file(file, &error))?;
    }
    compiled(&files.proto, &files.include)
}

/// Compiles the files. A missing import is usually in another directory, so the hint names `-I`.
/// With `-I`, as with protoc, the files' own directories aren't searched.
pub(crate) fn compiled(files: &[PathBuf], include: &[PathBuf]) -> Result<Schema, Failure> {
    Schema::load(files, include).map_err(|error| {
        let failure = Failure::input(&error);
        let SchemaError::ProtoInvalid { reason } = &error else {
            return failure;
        };
        let is_unlisted = reason.contains("is not in any include path");
        let is_missing = reason.contains("import ") && reason.contains("not found");
        let searched = include.is_empty() || is_unlisted;
        let its = if searched {
            directories(files)
        } else {
            String::new()
        };
        match is_unlisted {
            true => failure.hint(format!("{} in addition to the other -I", its.trim_start())),
            false if is_missing => {
                failure.hint(format!("-I DIR{its}, where DIR has the imported files"))
            }
            false => failure,
        }
    })
}

/// The files' directories, as options.
fn directories(files: &[PathBuf]) -> String {
    let parents = files.iter().map(|file| match file.is_dir() {
        true => file.as_path(),
        false => file.parent().unwrap_or(Path::new("")),
    });
    let shown: BTreeSet<_> = parents
        .map(|parent| match parent.as_os_str().is_empty() {
            true => " -I .".to_owned(),
            false => format!(" -I {}", parent.display()),
        })
        .collect();
    shown.into_iter().collect()
}

/// One method's two message types.
pub(crate) struct Method<'a> {
    service: &'a Service,
    layout: &'a MethodLayout,
    input: MessageDescriptor,
    output: MessageDescriptor,
}

impl Service {
    /// Loads the definitions, and picks the service.
    pub(crate) fn load(files: &Files, name: &str) -> Result<Service, Failure> {
        let schema = load(files)?;
        let layout = schema
            .service(name)
            .map_err(|error| Failure::new(Code::NOT_FOUND, error))?;
        Ok(Service { schema, layout })
    }

    /// The service's full name.
    pub(crate) fn name(&self) -> &str {
        &self.layout.name
    }

    /// All that the files define.
    pub(crate) fn into_schema(self) -> Schema {
        self.schema
    }

    /// The descriptor set for the daemon.
    pub(crate) fn descriptor_set(&self) -> &[u8] {
        self.schema.descriptor_set()
    }

    /// All its methods, in the order of their declaration.
    pub(crate) fn methods(&self) -> Result<Vec<Method<'_>>, Failure> {
        self.layout
            .methods
            .iter()
            .map(|layout| self.describe(layout))
            .collect()
    }

    /// One method by its name.
    pub(crate) fn method(&self, name: &str) -> Result<Method<'_>, Failure> {
        let layout = self
            .layout
            .methods
            .iter()
            .find(|method| method.name == name)
            .ok_or_else(|| {
                let names: Vec<_> = self
                    .layout
                    .methods
                    .iter()
                    .map(|method| method.name.as_str())
                    .collect();
                let meant = did_you_mean(name, names.iter().copied());
                let (service, names) = (self.name(), names.join(", "));
                Failure::new(
                    Code::NOT_FOUND,
                    format_args!("service {service} has no method {name:?}; it has {names}{meant}"),
                )
            })?;
        self.describe(layout)
    }

    fn describe<'a>(&'a self, layout: &'a MethodLayout) -> Result<Method<'a>, Failure> {
        let message = |id| {
            let name = &self.layout.layouts.get(id).name;
            self.schema.message(name).map_err(Failure::input)
        };
        let (input, output) = (message(layout.input)?, message(layout.output)?);
        Ok(Method {
            service: self,
            layout,
            input,
            output,
        })
    }
}

impl Method<'_> {
    /// The method's name within its service.
    pub(crate) fn name(&self) -> &str {
        &self.layout.name
    }

    /// The type of its requests.
    pub(crate) fn input(&self) -> &MessageDescriptor {
        &self.input
    }

    /// Whether it takes any number of requests.
    pub(crate) fn takes_many(&self) -> bool {
        self.layout.client_streaming
    }

    /// Whether it returns any number of replies.
    pub(crate) fn answers_many(&self) -> bool {
        self.layout.server_streaming
    }

    /// Whether it takes or returns any number of messages.
    pub(crate) fn is_stream(&self) -> bool {
        self.layout.client_streaming || self.layout.server_streaming
    }

    /// Whether requests and replies have the same type.
    pub(crate) fn is_symmetric(&self) -> bool {
        self.layout.input == self.layout.output
    }

    /// The request block for this JSON.
    pub(crate) fn request(&self, json: &str) -> Result<Vec<u8>, Failure> {
        let message = from_json(&self.input, json).map_err(Failure::input)?;
        write_block(&self.service.layout.layouts, self.layout.input, &message)
            .map_err(Failure::input)
    }

    /// The reply block for this JSON.
    pub(crate) fn reply(&self, json: &str) -> Result<Vec<u8>, Failure> {
        let message = from_json(&self.output, json).map_err(Failure::input)?;
        write_block(&self.service.layout.layouts, self.layout.output, &message)
            .map_err(Failure::input)
    }

    /// A request block as JSON.
    pub(crate) fn request_json(&self, block: &[u8]) -> Result<String, Failure> {
        let message = read_block(
            &self.service.layout.layouts,
            self.layout.input,
            &self.input,
            block,
        );
        message
            .and_then(|message| to_json(&message))
            .map_err(internal)
    }

    /// A reply block as JSON.
    pub(crate) fn reply_json(&self, block: &[u8]) -> Result<String, Failure> {
        let message = read_block(
            &self.service.layout.layouts,
            self.layout.output,
            &self.output,
            block,
        );
        message
            .and_then(|message| to_json(&message))
            .map_err(internal)
    }
}

/// The daemon has checked every block that it delivers, so an unreadable one is a bug in Tollgate.
fn internal(error: tollgate_schema::DynamicError) -> Failure {
    Failure::new(
        Code::INTERNAL,
        format_args!("a delivered block can't be read: {error}"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const RESERVATION: &str = "hotel.Reservation";

    fn protos() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto")
    }

    fn load_service(proto: &Path, service: &str) -> Result<Service, Failure> {
        let args = Files {
            proto: vec![proto.to_owned()],
            include: Vec::new(),
        };
        Service::load(&args, service)
    }

    #[test]
    fn a_service_is_found_in_a_file_a_directory_and_a_descriptor_set() {
        let file = load_service(&protos().join("hotel.proto"), RESERVATION).unwrap();
        let directory = load_service(&protos(), RESERVATION).unwrap();
        let path = std::env::temp_dir().join(format!("tollgate-cli-{}.binpb", std::process::id()));
        std::fs::write(&path, file.descriptor_set()).unwrap();
        let set = load_service(&path, RESERVATION);
        std::fs::remove_file(&path).unwrap();
        for service in [&directory, &set.unwrap()] {
            assert_eq!(service.layout.hash, file.layout.hash);
            let reserve = service.method("Reserve").unwrap();
            let request = reserve.request(r#"{"customerName":"Ada"}"#).unwrap();
            assert_eq!(
                reserve.request_json(&request).unwrap(),
                r#"{"customerName":"Ada"}"#
            );
        }
    }

    #[test]
    fn what_holds_no_schema_is_refused_by_its_name() {
        let refused =
            |path: &Path, service: &str| load_service(path, service).err().unwrap().sentence();
        let missing = refused(&protos().join("none.proto"), RESERVATION);
        assert!(missing.contains("none.proto can't be read"), "{missing}");
        let empty = std::env::temp_dir().join(format!("tollgate-cli-empty-{}", std::process::id()));
        std::fs::create_dir(&empty).unwrap();
        let without = refused(&empty, RESERVATION);
        std::fs::remove_dir(&empty).unwrap();
        assert!(without.contains("no .proto file below"), "{without}");
        let other = refused(&protos().join("hotel.proto"), "hotel.Nothing");
        assert!(other.contains("it has hotel.Reservation"), "{other}");
    }

    #[test]
    fn where_imports_are_searched_is_hinted_so_that_it_works() {
        let bed = tempfile::tempdir().unwrap();
        let [own, other] = ["own", "other"].map(|name| bed.path().join(name));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&other).unwrap();
        let file = own.join("a.proto");
        let text = "syntax = \"proto3\"; import \"b.proto\"; message A { B b = 1; }";
        std::fs::write(&file, text).unwrap();
        std::fs::write(other.join("b.proto"), "syntax = \"proto3\"; message B {}").unwrap();
        let its = format!("-I {}", own.display());
        let said = |include: &[&PathBuf]| {
            let include: Vec<_> = include.iter().map(|path| path.to_path_buf()).collect();
            compiled(std::slice::from_ref(&file), &include).map(drop)
        };
        let missing = said(&[]).unwrap_err().to_string();
        assert!(
            missing.contains(&format!("Try: -I DIR {its}, where")),
            "{missing}"
        );
        let unlisted = said(&[&other]).unwrap_err().to_string();
        assert!(
            unlisted.contains(&format!("Try: {its} in addition")),
            "{unlisted}"
        );
        said(&[&other, &own]).unwrap();
    }

    #[test]
    fn a_request_without_what_is_required_is_refused_by_the_fields_name() {
        let legacy = load_service(&protos().join("legacy.proto"), "legacy.Legacy").unwrap();
        let exchange = legacy.method("Exchange").unwrap();
        let refused = exchange.request(r#"{"id":1}"#).unwrap_err().sentence();
        assert_eq!(
            refused,
            "the required field grade of a legacy.Record is missing"
        );
    }
}

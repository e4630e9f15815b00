//! protoc's plugin protocol: a `CodeGeneratorRequest` in, a `CodeGeneratorResponse` out.
//!
//! `protoc-gen-tollgate` connects this module to standard input and output. Parameters, separated
//! by commas:
//!
//! | parameter | meaning |
//! |---|---|
//! | `lang=rust`, `lang=c`, `lang=python` | the language; there is no default |
//! | `imports=true` | also the packages of files that are only imported |
//!
//! Like protoc's own plugins, this one only generates packages that have a file to generate. It
//! generates such a package whole, from all of its files in the request. So pass all files of a
//! package in one invocation; that is buf's default.

use std::collections::BTreeSet;

use prost::Message as _;
use tollgate_schema::{Schema, SchemaError};

use crate::error::GenError;
use crate::language::Language;
use crate::output::Files;

/// The plugin's capabilities: `FEATURE_PROTO3_OPTIONAL` and `FEATURE_SUPPORTS_EDITIONS`.
const FEATURES: u64 = 1 | 2;
/// `EDITION_PROTO2` and `EDITION_2024`.
const EDITIONS: (i32, i32) = (998, 1001);

/// The used fields of `google.protobuf.compiler.CodeGeneratorRequest`. Files stay bytes: fields
/// that this library doesn't know must reach the daemon, too.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(string, repeated, tag = "1")]
    file_to_generate: Vec<String>,
    #[prost(string, tag = "2")]
    parameter: String,
    #[prost(bytes = "vec", repeated, tag = "15")]
    proto_file: Vec<Vec<u8>>,
}

/// `google.protobuf.compiler.CodeGeneratorResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(string, optional, tag = "1")]
    error: Option<String>,
    #[prost(uint64, optional, tag = "2")]
    supported_features: Option<u64>,
    #[prost(int32, optional, tag = "3")]
    minimum_edition: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    maximum_edition: Option<i32>,
    #[prost(message, repeated, tag = "15")]
    file: Vec<File>,
}

/// A generated file.
#[derive(Clone, PartialEq, prost::Message)]
struct File {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "15")]
    content: String,
}

/// A serialized `google.protobuf.FileDescriptorSet`, its files unparsed.
#[derive(Clone, PartialEq, prost::Message)]
struct DescriptorSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    file: Vec<Vec<u8>>,
}

/// The reason why there is no response.
#[derive(Debug, thiserror::Error)]
#[error("protoc's input isn't a CodeGeneratorRequest: {0}")]
pub struct BadRequest(#[from] prost::DecodeError);

/// An error in the schema or the parameters; protoc shows it to the user.
#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error(transparent)]
    Gen(#[from] GenError),
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error("no language is given: use lang=rust, lang=c or lang=python")]
    NoLanguage,
    #[error("there is no parameter {0:?}; there are lang=rust|c|python and imports=true|false")]
    UnknownParameter(String),
    #[error("the request's file {0} is cut off")]
    CutOff(usize),
    #[error("the request names {0}, but doesn't contain it")]
    Missing(String),
}

/// Answers one request. The response's `error` reports errors in its schema or parameters.
pub fn respond(request: &[u8]) -> Result<Vec<u8>, BadRequest> {
    let request = Request::decode(request)?;
    let mut response = Response {
        supported_features: Some(FEATURES),
        minimum_edition: Some(EDITIONS.0),
        maximum_edition: Some(EDITIONS.1),
        ..Response::default()
    };
    match generate(&request) {
        Ok(files) => {
            let file = |(name, content)| File { name, content };
            response.file = files.into_iter().map(file).collect();
        }
        Err(error) => response.error = Some(error.to_string()),
    }
    Ok(response.encode_to_vec())
}

fn generate(request: &Request) -> Result<Files, PluginError> {
    let parameters = Parameters::parse(&request.parameter)?;
    let files = request.proto_file.iter().enumerate();
    let files = files.map(|(i, file)| without_source_info(file).ok_or(PluginError::CutOff(i)));
    let set = DescriptorSet {
        file: files.collect::<Result<_, _>>()?,
    };
    let schema = Schema::from_descriptor_set(&set.encode_to_vec())?;
    if parameters.imports {
        return Ok(parameters.language.generate(&schema)?);
    }
    let mut packages = BTreeSet::new();
    for name in &request.file_to_generate {
        let file = schema.pool()?.get_file_by_name(name);
        let file = file.ok_or_else(|| PluginError::Missing(name.clone()))?;
        packages.insert(file.package_name().to_owned());
    }
    Ok(parameters.language.generate_packages(&schema, &packages)?)
}

struct Parameters {
    language: Language,
    imports: bool,
}

impl Parameters {
    fn parse(text: &str) -> Result<Parameters, PluginError> {
        let (mut language, mut imports) = (None, false);
        for parameter in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            match parameter.split_once('=') {
                Some(("lang", name)) => language = Some(name.parse()?),
                Some(("imports", "true")) => imports = true,
                Some(("imports", "false")) => imports = false,
                _ => return Err(PluginError::UnknownParameter(parameter.to_owned())),
            }
        }
        let language = language.ok_or(PluginError::NoLanguage)?;
        Ok(Parameters { language, imports })
    }
}

/// A `FileDescriptorProto` without its comments and positions, which are most of its bytes; all
/// else is unchanged.
fn without_source_info(file: &[u8]) -> Option<Vec<u8>> {
    const SOURCE_CODE_INFO: u64 = 9;
    let (mut kept, mut rest) = (Vec::with_capacity(file.len()), file);
    while !rest.is_empty() {
        let (tag, after_tag) = varint(rest)?;
        let end = match tag & 7 {
            0 => varint(after_tag)?.1,
            1 => after_tag.get(8..)?,
            2 => {
                let (len, body) = varint(after_tag)?;
                body.get(usize::try_from(len).ok()?..)?
            }
            5 => after_tag.get(4..)?,
            _ => return None,
        };
        if tag >> 3 != SOURCE_CODE_INFO {
            kept.extend_from_slice(&rest[..rest.len() - end.len()]);
        }
        rest = end;
    }
    Some(kept)
}

/// A varint and the bytes after it.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (i, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}

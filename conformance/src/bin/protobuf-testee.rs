//! The subject of protobuf's conformance test runner: `decode`, `encode` and the JSON mapping, as a
//! subprocess.
//!
//! ```text
//! protobuf-testee (interpreter | machine-code) INCLUDE EDITIONS
//! ```
//!
//! The runner sends a `u32` length and a `ConformanceRequest`, and gets its answer in the same
//! form, until standard input ends. Every message goes through a block, like in the service:
//!
//! ```text
//! protobuf ─ decode ─┐                                ┌─ encode ─ protobuf
//!                    ├─ block ─ gather ─ accept ──────┤
//! JSON ─ write_block ┘                                └─ read_block ─ JSON
//! ```
//!
//! In machine-code mode the interpreter does each step as well. A difference in verdict, block or
//! bytes is answered as a runtime error, which fails the test. Text format is skipped: Tollgate
//! doesn't support it.
//!
//! `INCLUDE` holds the suite's `.proto` files; those of the editions come compiled, in the
//! descriptor set `EDITIONS`.
#![forbid(unsafe_code)]

use prost::Message;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tollgate_jit::Codec;
use tollgate_schema::dynamic::{self, UnknownFields};
use tollgate_schema::limits::MAX_EXTENTS;
use tollgate_schema::prost_reflect::MessageDescriptor;
use tollgate_schema::{Layouts, MessageId, Schema};

/// The suite's messages; the runner names the one that a request is about.
const PROTO_FILES: [&str; 2] = [
    "google/protobuf/test_messages_proto2.proto",
    "google/protobuf/test_messages_proto3.proto",
];

/// The longest request; the runner sends no longer ones.
const MAX_REQUEST: usize = 64 << 20;

/// Values of `ConformanceRequest.requested_output_format`.
const PROTOBUF: i32 = 1;
const JSON: i32 = 2;

/// The value of `ConformanceRequest.test_category` with which unknown fields of JSON are ignored.
const IGNORE_UNKNOWN: i32 = 3;

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(oneof = "Payload", tags = "1, 2, 7, 8")]
    payload: Option<Payload>,
    #[prost(int32, tag = "3")]
    output: i32,
    #[prost(string, tag = "4")]
    message_type: String,
    #[prost(int32, tag = "5")]
    category: i32,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Payload {
    #[prost(bytes, tag = "1")]
    Protobuf(Vec<u8>),
    #[prost(string, tag = "2")]
    Json(String),
    #[prost(string, tag = "7")]
    Jspb(String),
    #[prost(string, tag = "8")]
    Text(String),
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(oneof = "Answer", tags = "1, 2, 3, 4, 5, 6")]
    answer: Option<Answer>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Answer {
    #[prost(string, tag = "1")]
    ParseError(String),
    #[prost(string, tag = "2")]
    RuntimeError(String),
    #[prost(bytes, tag = "3")]
    Protobuf(Vec<u8>),
    #[prost(string, tag = "4")]
    Json(String),
    #[prost(string, tag = "5")]
    Skipped(String),
    #[prost(string, tag = "6")]
    SerializeError(String),
}

/// The data for a message type.
struct Subject {
    layouts: Arc<Layouts>,
    id: MessageId,
    descriptor: MessageDescriptor,
    /// Never compiled.
    interpreter: Codec,
    /// In machine-code mode.
    compiled: Option<Codec>,
}

struct Testee {
    schemas: Vec<Schema>,
    machine_code: bool,
    subjects: HashMap<String, Subject>,
}

fn main() -> ExitCode {
    let answered = Testee::from_args(std::env::args().skip(1).collect()).and_then(|mut testee| {
        serve(&mut testee).map_err(|e| format!("the runner's pipes broke: {e}"))
    });
    match answered {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("error: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Answers requests until there are no more.
fn serve(testee: &mut Testee) -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut len = [0; 4];
    let mut request = Vec::new();
    // The end of input between two requests is the end of the run.
    while input.read(&mut len[..1])? == 1 {
        input.read_exact(&mut len[1..])?;
        let bytes = u32::from_le_bytes(len) as usize;
        if bytes > MAX_REQUEST {
            return Err(io::Error::other(format!("a request of {bytes} bytes")));
        }
        request.resize(bytes, 0);
        input.read_exact(&mut request)?;
        let answer = match Request::decode(&request[..]) {
            Ok(request) => testee.answer(request).unwrap_or_else(|answer| answer),
            Err(e) => Answer::RuntimeError(format!("the request is malformed: {e}")),
        };
        let response = Response {
            answer: Some(answer),
        };
        let response = response.encode_to_vec();
        output.write_all(&(response.len() as u32).to_le_bytes())?;
        output.write_all(&response)?;
        output.flush()?;
    }
    Ok(())
}

impl Testee {
    fn from_args(args: Vec<String>) -> Result<Testee, String> {
        let [mode, include, editions] = &args[..] else {
            return Err(
                "usage: protobuf-testee (interpreter | machine-code) INCLUDE EDITIONS".to_owned(),
            );
        };
        let machine_code = match mode.as_str() {
            "interpreter" => false,
            "machine-code" => true,
            other => return Err(format!("unknown mode {other:?}")),
        };
        let include = Path::new(include);
        let files: Vec<PathBuf> = PROTO_FILES.iter().map(|file| include.join(file)).collect();
        let compiled = Schema::compile_proto(&files, &[include]).map_err(|e| e.to_string())?;
        let editions =
            std::fs::read(editions).map_err(|e| format!("can't read {editions}: {e}"))?;
        let editions = Schema::from_descriptor_set(&editions).map_err(|e| e.to_string())?;
        Ok(Testee {
            schemas: vec![compiled, editions],
            machine_code,
            subjects: HashMap::new(),
        })
    }

    /// The answer; an `Err` ends the request early.
    fn answer(&mut self, request: Request) -> Result<Answer, Answer> {
        if !matches!(request.output, PROTOBUF | JSON) {
            return Err(Answer::Skipped("only protobuf and JSON".to_owned()));
        }
        let subject = self.subject(&request.message_type)?;
        let block = match request.payload {
            Some(Payload::Protobuf(bytes)) => subject.decode(&bytes)?,
            Some(Payload::Json(json)) => subject.parse(&json, request.category)?,
            Some(Payload::Jspb(_) | Payload::Text(_)) => {
                return Err(Answer::Skipped("only protobuf and JSON".to_owned()));
            }
            None => return Err(Answer::RuntimeError("a request without payload".to_owned())),
        };
        let block = subject.deliver(block)?;
        if request.output == PROTOBUF {
            subject.encode(&block)
        } else {
            subject.print(&block)
        }
    }

    fn subject(&mut self, name: &str) -> Result<&Subject, Answer> {
        if !self.subjects.contains_key(name) {
            let made = self.make_subject(name).map_err(Answer::RuntimeError)?;
            self.subjects.insert(name.to_owned(), made);
        }
        Ok(&self.subjects[name])
    }

    fn make_subject(&self, name: &str) -> Result<Subject, String> {
        let mut found = self.schemas.iter();
        let schema = found.find(|schema| schema.message(name).is_ok());
        let schema = schema.ok_or_else(|| format!("no schema has the message {name}"))?;
        let layouts = Arc::new(schema.layouts(&[name]).map_err(|e| e.to_string())?);
        let descriptor = schema.message(name).map_err(|e| e.to_string())?;
        let id = layouts.find(name).ok_or("the root is not laid out")?;
        let compiled = self.machine_code.then(|| Codec::new(&layouts, id));
        if let Some(codec) = &compiled {
            codec.compile().map_err(|e| e.to_string())?;
            codec.compile_wire().map_err(|e| e.to_string())?;
        }
        Ok(Subject {
            interpreter: Codec::new(&layouts, id),
            compiled,
            descriptor,
            layouts,
            id,
        })
    }
}

impl Subject {
    /// The result of both executors; a runtime error if they differ.
    fn both<T: PartialEq>(
        &self,
        step: &str,
        work: impl Fn(&Codec) -> Result<T, String>,
    ) -> Result<Result<T, String>, Answer> {
        let interpreted = work(&self.interpreter);
        match self.compiled.as_ref().map(work) {
            Some(compiled) if compiled != interpreted => Err(Answer::RuntimeError(format!(
                "{step}: interpreter and machine code differ: {} and {}",
                verdict(&interpreted),
                verdict(&compiled)
            ))),
            Some(compiled) => Ok(compiled),
            None => Ok(interpreted),
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>, Answer> {
        let decoded = self.both("decode", |codec| {
            let mut block = Vec::new();
            let done = codec.decode(bytes, &mut block);
            done.map_err(|fault| codec.explain(&fault))?;
            Ok(block)
        })?;
        decoded.map_err(Answer::ParseError)
    }

    fn parse(&self, json: &str, category: i32) -> Result<Vec<u8>, Answer> {
        let unknown = if category == IGNORE_UNKNOWN {
            UnknownFields::Ignored
        } else {
            UnknownFields::Refused
        };
        let message = dynamic::parse_json(&self.descriptor, json, unknown)
            .map_err(|e| Answer::ParseError(e.to_string()))?;
        dynamic::write_block(&self.layouts, self.id, &message)
            .map_err(|e| Answer::ParseError(e.to_string()))
    }

    /// Passes a block through the service: the sender's check and the receiver's. Neither may fail.
    fn deliver(&self, block: Vec<u8>) -> Result<Vec<u8>, Answer> {
        let delivered = self.both("gather and accept", |codec| {
            let explain = |fault| codec.explain(&fault);
            let mut lens = [0; MAX_EXTENTS];
            let extents = codec.gather(&block, &mut lens).map_err(explain)?;
            let mut image = block.clone();
            codec.accept(&mut image, block.len()).map_err(explain)?;
            Ok((extents, image))
        })?;
        match delivered {
            Ok((0, image)) if image == block => Ok(image),
            Ok((extents, _)) => Err(Answer::RuntimeError(format!(
                "a block without extents came out with {extents}, or changed"
            ))),
            Err(sentence) => Err(Answer::RuntimeError(format!(
                "our own block is refused: {sentence}"
            ))),
        }
    }

    fn encode(&self, block: &[u8]) -> Result<Answer, Answer> {
        let encoded = self.both("encode", |codec| {
            let mut out = Vec::new();
            let start = codec.encode(block, &mut out);
            let start = start.map_err(|fault| codec.explain(&fault))?;
            Ok(out.split_off(start))
        })?;
        encoded
            .map(Answer::Protobuf)
            .map_err(Answer::SerializeError)
    }

    fn print(&self, block: &[u8]) -> Result<Answer, Answer> {
        let message = dynamic::read_block(&self.layouts, self.id, &self.descriptor, block);
        let message = message.map_err(|e| Answer::RuntimeError(e.to_string()))?;
        dynamic::to_json(&message)
            .map(Answer::Json)
            .map_err(|e| Answer::SerializeError(e.to_string()))
    }
}

fn verdict<T>(result: &Result<T, String>) -> String {
    match result {
        Ok(_) => "accepted, but with different bytes, or refused by the other".to_owned(),
        Err(sentence) => format!("refused ({sentence})"),
    }
}

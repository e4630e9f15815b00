//! The file of cases. Parsing rejects unknown keys and impossible expectations.
//!
//! The crate's README describes the format. Errors found here name the case and the field;
//! [`crate::test`] reports errors that need the schema (methods, messages).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tollgate_policy_host::{Attributes, Hook, UnknownAttribute};
use tollgate_shm_abi::metadata::{MetadataBuf, MetadataError, is_binary};
use tollgate_shm_abi::status::Code;

use crate::{ToolError, limits};

/// A parsed file of cases.
#[derive(Debug)]
pub struct Cases {
    /// The files that define the services, relative to the file of cases.
    pub proto: Vec<PathBuf>,
    /// Directories of imports, relative to the file of cases.
    pub include: Vec<PathBuf>,
    /// The policy's set-up.
    pub setting: Setting,
    /// The cases, in the file's order, which is also the order of evaluation.
    pub cases: Vec<Case>,
}

/// A policy's set-up, as an operator would attach it.
#[derive(Debug, Default, Clone)]
pub struct Setting {
    /// The bytes of the configuration.
    pub config: Vec<u8>,
    /// The grants.
    pub grant: Grant,
    /// The clock at the first case, in milliseconds of Unix time.
    pub time_ms: u64,
    /// CPU time per call, in microseconds; none: the daemon's default.
    pub cpu_us: Option<u64>,
    /// Whether every call gets a new instance.
    pub fresh: bool,
}

/// An operator's grants; a missing list grants everything that the manifest declares.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Hooks at which the policy is evaluated.
    pub hooks: Option<Vec<String>>,
    /// Paths of the fields that it may read.
    pub fields: Option<Vec<String>>,
    /// Metadata keys that it may read.
    pub metadata: Option<Vec<String>>,
    /// Names of its capabilities.
    pub capabilities: Option<Vec<String>>,
}

/// A message, and the expected verdict.
#[derive(Debug)]
pub struct Case {
    /// Its place in the file, from 1.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// `package.Service`.
    pub service: String,
    /// The method's name inside the service.
    pub method: String,
    /// Whether the message is a request or a reply.
    pub hook: Hook,
    /// The message.
    pub message: Value,
    /// The call's metadata.
    pub metadata: MetadataBuf,
    /// What is known of the caller.
    pub caller: Attributes,
    /// How often the policy is evaluated; every verdict has to match.
    pub repeat: u32,
    /// How far the clock advances before the first time.
    pub advance_ms: u64,
    /// The expected verdict.
    pub expect: Expect,
}

/// An expected verdict.
#[derive(Debug)]
pub enum Expect {
    /// The policy isn't evaluated: it lacks the hook, or doesn't cover the method.
    Unasked,
    /// The call passes unchanged.
    Allow,
    /// The call ends.
    Deny {
        /// With this code.
        status: Option<Code>,
        /// With a text that contains this.
        message: Option<String>,
    },
    /// The call passes with changes. Absent fields match anything.
    Change {
        /// The changed message.
        message: Option<Value>,
        /// The changed metadata, in any order of keys.
        metadata: Option<MetadataBuf>,
        /// The delay in microseconds.
        delay_us: Option<u32>,
        /// The priority.
        priority: Option<u8>,
        /// The route.
        route: Option<String>,
    },
    /// The policy fails.
    Fault {
        /// For a reason with this text.
        message: Option<String>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    proto: Vec<PathBuf>,
    #[serde(default)]
    include: Vec<PathBuf>,
    #[serde(default)]
    config: Option<Value>,
    #[serde(default)]
    grant: Grant,
    #[serde(default)]
    time_ms: u64,
    #[serde(default)]
    cpu_us: Option<u64>,
    #[serde(default)]
    fresh: bool,
    cases: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCase {
    name: String,
    method: String,
    request: Option<Value>,
    reply: Option<Value>,
    #[serde(default)]
    metadata: RawMetadata,
    #[serde(default)]
    caller: BTreeMap<String, String>,
    #[serde(default = "once")]
    repeat: u32,
    #[serde(default)]
    advance_ms: u64,
    expect: RawExpect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpect {
    verdict: RawVerdict,
    status: Option<String>,
    message: Option<String>,
    request: Option<Value>,
    reply: Option<Value>,
    metadata: Option<RawMetadata>,
    delay_us: Option<u32>,
    priority: Option<u8>,
    route: Option<String>,
}

/// What is wrong with a case: the rest of a sentence about it.
#[derive(Debug, thiserror::Error)]
enum CaseError {
    #[error("`caller`: {0}")]
    Caller(#[from] UnknownAttribute),
    #[error(transparent)]
    Keys(serde_json::Error),
    #[error("has both `request` and `reply`")]
    TwoMessages,
    #[error("has neither `request` nor `reply`")]
    NoMessage,
    #[error("method {0:?} isn't package.Service/Method")]
    Method(String),
    #[error("repeat {0} isn't between 1 and {max}", max = limits::REPEAT)]
    Repeat(u32),
    #[error(transparent)]
    Metadata(#[from] BadMetadata),
    #[error("expect.{0}")]
    ExpectedMetadata(BadMetadata),
    #[error("expect.{key} doesn't go with this verdict")]
    OtherVerdict { key: &'static str },
    #[error("expects another message than its {0}")]
    OtherMessage(Hook),
    #[error("expect.status {0:?} isn't a status code such as PERMISSION_DENIED")]
    Status(String),
}

#[derive(Debug, thiserror::Error)]
enum BadMetadata {
    #[error("metadata {key:?}: {value:?} isn't bytes in hexadecimal")]
    Hex { key: String, value: String },
    #[error("metadata: {0}")]
    Rule(#[from] MetadataError),
}

/// One value or several per key. Values of keys that end in `-bin` are hexadecimal.
#[derive(Default, Deserialize)]
struct RawMetadata(BTreeMap<String, RawValues>);

#[derive(Deserialize)]
#[serde(untagged)]
enum RawValues {
    One(String),
    Many(Vec<String>),
}

impl RawMetadata {
    /// The metadata in a call's form, in the order of keys.
    fn block(&self) -> Result<MetadataBuf, BadMetadata> {
        let mut block = MetadataBuf::new();
        for (key, values) in &self.0 {
            let values = match values {
                RawValues::One(value) => std::slice::from_ref(value),
                RawValues::Many(values) => values,
            };
            for value in values {
                let bytes = match is_binary(key) {
                    true => unhex(value).ok_or_else(|| BadMetadata::Hex {
                        key: key.clone(),
                        value: value.clone(),
                    })?,
                    false => value.as_bytes().to_vec(),
                };
                block.push(key, &bytes)?;
            }
        }
        Ok(block)
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8));
    bytes.collect::<Option<_>>().filter(|_| rest.is_empty())
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum RawVerdict {
    Unasked,
    Allow,
    Deny,
    Change,
    Fault,
}

fn once() -> u32 {
    1
}

impl Cases {
    /// Reads a file; its paths are relative to its directory.
    pub fn read(path: &Path) -> Result<Cases, ToolError> {
        let failed = |kind, reason: String| ToolError::File {
            path: path.to_owned(),
            kind,
            reason,
        };
        let unreadable = |error: std::io::Error| failed(error.kind(), error.to_string());
        let len = std::fs::metadata(path).map_err(unreadable)?;
        if len.len() > limits::FILE_BYTES {
            let (len, max) = (len.len(), limits::FILE_BYTES);
            let reason = format!("it has {len} bytes, the limit is {max}");
            return Err(failed(std::io::ErrorKind::FileTooLarge, reason));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let mut cases = Cases::parse(&text)?;
        let home = path.parent().unwrap_or(Path::new("."));
        for path in cases.proto.iter_mut().chain(&mut cases.include) {
            *path = home.join(&path);
        }
        Ok(cases)
    }

    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Cases, ToolError> {
        let wrong = |reason: String| ToolError::Cases { reason };
        let file: RawFile = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        if !(1..=limits::CASES).contains(&file.cases.len()) {
            let (count, max) = (file.cases.len(), limits::CASES);
            return Err(wrong(format!("there are {count}; 1 to {max} are allowed")));
        }
        let cases = (1..).zip(file.cases);
        let cases = cases.map(|(number, case)| Case::parse(number, case));
        Ok(Cases {
            proto: file.proto,
            include: file.include,
            setting: Setting {
                config: config_bytes(file.config),
                grant: file.grant,
                time_ms: file.time_ms,
                cpu_us: file.cpu_us,
                fresh: file.fresh,
            },
            cases: cases.collect::<Result<_, _>>()?,
        })
    }
}

/// Text is passed to the policy unchanged; other values as JSON.
fn config_bytes(config: Option<Value>) -> Vec<u8> {
    match config {
        None => Vec::new(),
        Some(Value::String(text)) => text.into_bytes(),
        Some(value) => value.to_string().into_bytes(),
    }
}

impl Case {
    fn parse(number: usize, case: Value) -> Result<Case, ToolError> {
        let name = case.get("name").and_then(Value::as_str).unwrap_or("");
        let name = name.to_owned();
        let parsed = serde_json::from_value::<RawCase>(case).map_err(CaseError::Keys);
        parsed
            .and_then(|raw| raw.check(number))
            .map_err(|error| ToolError::Case {
                number,
                name,
                reason: error.to_string(),
            })
    }

    /// `package.Service/Method`.
    pub fn full_method(&self) -> String {
        format!("{}/{}", self.service, self.method)
    }

    /// An error of this case.
    pub(crate) fn error(&self, reason: impl std::fmt::Display) -> ToolError {
        ToolError::Case {
            number: self.number,
            name: self.name.clone(),
            reason: reason.to_string(),
        }
    }
}

impl RawCase {
    /// The case with this number in its file.
    fn check(self, number: usize) -> Result<Case, CaseError> {
        let (hook, message) = match (self.request, self.reply) {
            (Some(message), None) => (Hook::Request, message),
            (None, Some(message)) => (Hook::Reply, message),
            (Some(_), Some(_)) => return Err(CaseError::TwoMessages),
            (None, None) => return Err(CaseError::NoMessage),
        };
        let (service, method) = match self.method.split_once('/') {
            Some((s, m)) if !s.is_empty() && !m.is_empty() => (s.to_owned(), m.to_owned()),
            _ => return Err(CaseError::Method(self.method)),
        };
        if !(1..=limits::REPEAT).contains(&self.repeat) {
            return Err(CaseError::Repeat(self.repeat));
        }
        Ok(Case {
            number,
            expect: self.expect.check(hook)?,
            metadata: self.metadata.block()?,
            caller: Attributes::of(&self.caller)?,
            name: self.name,
            service,
            method,
            hook,
            message,
            repeat: self.repeat,
            advance_ms: self.advance_ms,
        })
    }
}

impl RawExpect {
    fn check(self, hook: Hook) -> Result<Expect, CaseError> {
        let verdict = self.verdict;
        let goes_with = |key: &'static str, given: bool, verdicts: &[RawVerdict]| {
            if given && !verdicts.contains(&verdict) {
                return Err(CaseError::OtherVerdict { key });
            }
            Ok(())
        };
        let (deny, fault, change) = (RawVerdict::Deny, RawVerdict::Fault, RawVerdict::Change);
        goes_with("status", self.status.is_some(), &[deny])?;
        goes_with("message", self.message.is_some(), &[deny, fault])?;
        goes_with("request", self.request.is_some(), &[change])?;
        goes_with("reply", self.reply.is_some(), &[change])?;
        goes_with("metadata", self.metadata.is_some(), &[change])?;
        goes_with("delay_us", self.delay_us.is_some(), &[change])?;
        goes_with("priority", self.priority.is_some(), &[change])?;
        goes_with("route", self.route.is_some(), &[change])?;
        let metadata = self.metadata.map(|metadata| metadata.block());
        let metadata = metadata.transpose().map_err(CaseError::ExpectedMetadata)?;
        let message = match (hook, self.request, self.reply) {
            (Hook::Request, message, None) | (Hook::Reply, None, message) => message,
            _ => return Err(CaseError::OtherMessage(hook)),
        };
        Ok(match verdict {
            RawVerdict::Unasked => Expect::Unasked,
            RawVerdict::Allow => Expect::Allow,
            RawVerdict::Deny => Expect::Deny {
                status: self.status.map(|name| code(&name)).transpose()?,
                message: self.message,
            },
            RawVerdict::Change => Expect::Change {
                message,
                metadata,
                delay_us: self.delay_us,
                priority: self.priority,
                route: self.route,
            },
            RawVerdict::Fault => Expect::Fault {
                message: self.message,
            },
        })
    }
}

fn code(name: &str) -> Result<Code, CaseError> {
    let code = Code::from_name(name).filter(|code| *code != Code::OK);
    code.ok_or_else(|| CaseError::Status(name.to_owned()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(text: &str) -> String {
        Cases::parse(text).unwrap_err().to_string()
    }

    /// A file of one case with these keys in addition to its name and method.
    fn case(rest: &str) -> String {
        format!(r#"{{"cases":[{{"name":"a","method":"p.S/M",{rest}}}]}}"#)
    }

    #[test]
    fn a_whole_file_is_parsed() {
        let text = r#"{
            "proto": ["a.proto"], "include": ["."], "config": {"blocked": []}, "time_ms": 5, "cpu_us": 50, "fresh": true,
            "grant": {"hooks": ["request"], "fields": ["a.b"], "capabilities": ["state"]},
            "cases": [
                {"name": "one", "method": "p.S/M", "request": {}, "expect": {"verdict": "allow"}},
                {"name": "two", "method": "p.S/M", "reply": {"x": 1}, "repeat": 3, "advance_ms": 7,
                 "expect": {"verdict": "deny", "status": "PERMISSION_DENIED", "message": "no"}},
                {"name": "three", "method": "p.S/M", "reply": {}, "expect": {"verdict": "change", "reply": {"x": 2}}}
            ]
        }"#;
        let file = Cases::parse(text).unwrap();
        assert_eq!(file.setting.config, br#"{"blocked":[]}"#);
        assert_eq!(file.cases[1].repeat, 3);
        assert_eq!(file.cases[1].full_method(), "p.S/M");
        assert!(matches!(
            file.cases[1].expect,
            Expect::Deny {
                status: Some(Code::PERMISSION_DENIED),
                message: Some(_)
            }
        ));
        let text = r#"{"config": "calls 2", "cases": [{"name": "n", "method": "p.S/M", "request": {}, "expect": {"verdict": "unasked"}}]}"#;
        assert_eq!(Cases::parse(text).unwrap().setting.config, b"calls 2");
    }

    #[test]
    fn what_is_wrong_is_named_by_case_and_field() {
        let allow = r#""expect":{"verdict":"allow"}"#;
        for (text, words) in [
            ("{".to_owned(), "the cases: EOF"),
            (
                r#"{"cases":[]}"#.to_owned(),
                "there are 0; 1 to 10000 are allowed",
            ),
            (
                format!(
                    r#"{{"cases":[{}]}}"#,
                    vec!["0"; limits::CASES + 1].join(",")
                ),
                "there are 10001; 1 to 10000 are allowed",
            ),
            (
                r#"{"cases":[],"protos":[]}"#.to_owned(),
                "unknown field `protos`",
            ),
            (
                case(&format!(r#""request":{{}},"requests":1,{allow}"#)),
                r#"case 1 ("a"): unknown field `requests`"#,
            ),
            (
                case(r#""request":{},"expect":{"verdict":"permit"}"#),
                r#"case 1 ("a"): unknown variant `permit`"#,
            ),
            (
                case(r#""request":{},"expect":{"verdict":"deny","code":7}"#),
                "unknown field `code`",
            ),
            (case(allow), r#"case 1 ("a"): has neither"#),
            (
                case(&format!(r#""request":{{}},"reply":{{}},{allow}"#)),
                "has both",
            ),
            (
                case(&format!(r#""request":{{}},"repeat":0,{allow}"#)),
                "repeat 0 isn't between 1 and 1000000",
            ),
            (
                case(&format!(r#""request":{{}},"repeat":1000001,{allow}"#)),
                "repeat 1000001",
            ),
            (
                case(r#""request":{},"expect":{"verdict":"allow","status":"INTERNAL"}"#),
                "expect.status doesn't go with",
            ),
            (
                case(r#""request":{},"expect":{"verdict":"deny","status":"FORBIDDEN"}"#),
                "expect.status \"FORBIDDEN\" isn't",
            ),
            (
                case(r#""request":{},"expect":{"verdict":"deny","status":"OK"}"#),
                "expect.status \"OK\" isn't",
            ),
            (
                case(r#""request":{},"expect":{"verdict":"change","reply":{}}"#),
                "expects another message than its request",
            ),
            (
                case(&format!(r#""request":{{}},{allow}"#)).replace("p.S/M", "Reserve"),
                "method \"Reserve\" isn't",
            ),
        ] {
            let sentence = refused(&text);
            assert!(sentence.contains(words), "{sentence} lacks {words}");
        }
    }
}

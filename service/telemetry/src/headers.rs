//! Extra headers that an endpoint demands. Most identify the exporter, so their values are secrets.
//!
//! ```text
//! # a line is a header, as HTTP writes them
//! api-key: 5Yq…
//! x-scope-orgid: acme
//! ```
//!
//! Invariant: no value is shown, neither by `Debug` nor in an error; an error names the line, and
//! the header's name once the line has parsed as a header.
//!
//! Absent on purpose: values in the configuration itself. More people read it than a secret's file,
//! and errors about it quote it.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::limits::{MAX_HEADERS, MAX_HEADERS_BYTES};

/// The headers of each request to an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(HeaderMap);

/// The reason why a list of headers is invalid: the operator's mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// The file is longer than the limit.
    #[error("the headers have {bytes} bytes; the limit is {MAX_HEADERS_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// There are more headers than the limit.
    #[error("line {line}: more than {MAX_HEADERS} headers")]
    TooMany {
        /// The line of the first header beyond the limit.
        line: usize,
    },
    /// A line doesn't begin with a name and a colon.
    #[error("line {line} is no header: NAME: VALUE is one, with letters, digits and - in its name")]
    NoHeader {
        /// The line.
        line: usize,
    },
    /// The protocols set this header themselves.
    #[error("line {line}: {name} is the protocol's own")]
    ProtocolsOwn {
        /// The line.
        line: usize,
        /// The header.
        name: HeaderName,
    },
    /// gRPC encodes such headers as bytes.
    #[error(
        "line {line}: {name} would be a binary header in gRPC: use a name that doesn't end in -bin"
    )]
    Binary {
        /// The line.
        line: usize,
        /// The header.
        name: HeaderName,
    },
    /// The header occurs twice.
    #[error("line {line}: {name} appears twice")]
    Twice {
        /// The line.
        line: usize,
        /// The header.
        name: HeaderName,
    },
    /// The value is empty.
    #[error("line {line}: {name} has no value")]
    NoValue {
        /// The line.
        line: usize,
        /// The header.
        name: HeaderName,
    },
    /// gRPC only allows printable ASCII characters.
    #[error("line {line}: the value of {name} has characters that aren't printable ASCII")]
    Unprintable {
        /// The line.
        line: usize,
        /// The header.
        name: HeaderName,
    },
}

/// Headers of a request's framing; setting one would contradict the request's content.
const PROTOCOLS_OWN: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

impl Headers {
    /// Parses a file's content: one header per line; empty lines and lines that begin with `#` are
    /// skipped.
    ///
    /// # Errors
    /// For the first invalid line, with its number.
    pub fn parse(text: &[u8]) -> Result<Headers, HeadersError> {
        if text.len() > MAX_HEADERS_BYTES {
            let bytes = text.len();
            return Err(HeadersError::TooLong { bytes });
        }
        let mut headers = HeaderMap::new();
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        for (line, text) in (1..).zip(lines) {
            if text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            let (name, value) = header(line, text)?;
            if headers.contains_key(&name) {
                return Err(HeadersError::Twice { line, name });
            }
            if headers.len() == MAX_HEADERS {
                return Err(HeadersError::TooMany { line });
            }
            headers.insert(name, value);
        }
        Ok(Headers(headers))
    }

    pub(crate) fn map(&self) -> &HeaderMap {
        &self.0
    }

    /// Whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn header(line: usize, text: &[u8]) -> Result<(HeaderName, HeaderValue), HeadersError> {
    // A line without a header name may be a secret on its own, so it isn't shown.
    let colon = text.iter().position(|byte| *byte == b':');
    let (name, value) = text.split_at(colon.ok_or(HeadersError::NoHeader { line })?);
    let name = HeaderName::from_bytes(name).map_err(|_| HeadersError::NoHeader { line })?;
    let value = value[1..].trim_ascii();
    if PROTOCOLS_OWN.contains(&name.as_str()) || name.as_str().starts_with("grpc-") {
        return Err(HeadersError::ProtocolsOwn { line, name });
    }
    if name.as_str().ends_with("-bin") {
        return Err(HeadersError::Binary { line, name });
    }
    if value.is_empty() {
        return Err(HeadersError::NoValue { line, name });
    }
    let is_printable = value.iter().all(|byte| (b' '..=b'~').contains(byte));
    match HeaderValue::from_bytes(value) {
        Ok(mut value) if is_printable => {
            // Sensitive values are never printed, and are kept out of HTTP/2's compression tables,
            // which others could probe.
            value.set_sensitive(true);
            Ok((name, value))
        }
        _ => Err(HeadersError::Unprintable { line, name }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_line_is_a_header_and_its_value_is_shown_nowhere() {
        let text = b"# ours\n\nAPI-Key:  s3cret: \"x\" \r\nx-scope-orgid: acme";
        let headers = Headers::parse(text).unwrap();
        let found = ["api-key", "x-scope-orgid"].map(|name| headers.map()[name].to_str().unwrap());
        assert_eq!(found, ["s3cret: \"x\"", "acme"]);
        assert_eq!(headers.map().len(), 2);
        let shown = format!("{headers:?}");
        assert!(
            shown.contains("api-key") && !shown.contains("s3cret") && !shown.contains("acme"),
            "{shown}"
        );
        assert!(Headers::parse(b"").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_header_is_refused_by_its_line_and_without_its_value() {
        let check = |text: &[u8], expected: &str| {
            let refused = Headers::parse(text).unwrap_err().to_string();
            assert_eq!(refused, expected);
            assert!(!refused.contains("s3cret"), "{refused}");
        };
        let none = "is no header: NAME: VALUE is one, with letters, digits and - in its name";
        check(b"a: b\ns3cret", &format!("line 2 {none}"));
        check(b"Bearer s3cret: s3cret", &format!("line 1 {none}"));
        check(b": s3cret", &format!("line 1 {none}"));
        check(b"\xff: s3cret", &format!("line 1 {none}"));
        check(
            b"\nContent-Type: s3cret",
            "line 2: content-type is the protocol's own",
        );
        check(
            b"grpc-timeout: s3cret",
            "line 1: grpc-timeout is the protocol's own",
        );
        check(
            b"key-bin: s3cret",
            "line 1: key-bin would be a binary header in gRPC: use a name that doesn't end in -bin",
        );
        check(b"key: s3cret\nKEY: s3cret", "line 2: key appears twice");
        check(b"key:  ", "line 1: key has no value");
        let unprintable = "line 1: the value of key has characters that aren't printable ASCII";
        for value in [
            "s3cret\u{e9}",
            "s3cret\0",
            "s3cret\ts3cret",
            "s3cret\rs3cret",
        ] {
            check(format!("key: {value}").as_bytes(), unprintable);
        }
    }

    #[test]
    fn there_are_so_many_of_so_many_bytes() {
        let lines = |count| (0..count).map(|k| format!("h{k}: v\n")).collect::<String>();
        let most = Headers::parse(lines(MAX_HEADERS).as_bytes()).unwrap();
        assert_eq!(most.map().len(), MAX_HEADERS);
        let line = MAX_HEADERS + 1;
        assert_eq!(
            Headers::parse(lines(line).as_bytes()),
            Err(HeadersError::TooMany { line })
        );
        let long = |bytes: usize| format!("h: {}", "v".repeat(bytes - 3));
        let most = Headers::parse(long(MAX_HEADERS_BYTES).as_bytes()).unwrap();
        assert_eq!(most.map()["h"].len(), MAX_HEADERS_BYTES - 3);
        let bytes = MAX_HEADERS_BYTES + 1;
        assert_eq!(
            Headers::parse(long(bytes).as_bytes()),
            Err(HeadersError::TooLong { bytes })
        );
    }
}

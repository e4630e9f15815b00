//! The subject of the ABI's vectors (`guest-sdk/vectors/README.md`): reports what it reads, or
//! answers as configured.
//!
//! `guest-sdk/c/witness.c`, `guest-sdk/assemblyscript/witness.ts` and `guest-sdk/go/witness` behave
//! the same.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use tollgate_policy::{Call, Effects, Policy, Route, Status, Verdict};

/// The remaining lines of the configuration, last first.
pub struct Witness {
    says: bool,
    lines: Vec<String>,
}

impl Policy for Witness {
    fn configure(config: &[u8]) -> Result<Witness, String> {
        let config = str::from_utf8(config).map_err(|e| e.to_string())?;
        let mut lines: Vec<String> = config.split('\n').rev().map(str::to_owned).collect();
        match lines.pop().as_deref() {
            Some("w") => Ok(Witness { says: true, lines }),
            Some("p") => Ok(Witness { says: false, lines }),
            _ => Err("the first letter is w or p".to_owned()),
        }
    }

    fn request(&mut self, call: &Call<'_>) -> Verdict<'_> {
        self.evaluate(call)
    }

    fn reply(&mut self, call: &Call<'_>) -> Verdict<'_> {
        self.evaluate(call)
    }
}

impl Witness {
    fn evaluate(&mut self, call: &Call<'_>) -> Verdict<'_> {
        if self.says {
            let kinds = self.lines.pop().unwrap_or_default();
            Verdict::deny(Status::INTERNAL, say(call, &kinds))
        } else {
            self.parrot()
        }
    }

    /// Parses `d STATUS HEX`, or a sequence of `c FIELD`, `u FIELD NUMBER`, `x FIELD HEX`, `m KEY
    /// HEX`, `r KEY`, `w MICROSECONDS`, `p PRIORITY`, `l LABEL`.
    fn parrot(&mut self) -> Verdict<'_> {
        let mut effects = Effects::new();
        while let Some(line) = self.lines.pop().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or_default();
            let (kind, first) = (word(), word());
            if kind == "l" {
                effects.route(&Route::new(first).expect("the vectors have labels"));
                continue;
            }
            let field = number(first) as u32;
            match kind {
                "c" => effects.clear(field),
                "u" => effects.bits(field, number(word())),
                "x" => effects.bytes(field, &unhex(word())),
                "m" => effects.set_metadata(field, &unhex(word())),
                "r" => effects.remove_metadata(field),
                "w" => effects.delay(Duration::from_micros(field.into())),
                "p" => effects.priority(field as u8),
                _ => {
                    let status = Status::new(field).expect("the vectors deny with an error");
                    let message =
                        String::from_utf8(unhex(word())).expect("the vectors deny with text");
                    return Verdict::Deny(status, Cow::Owned(message));
                }
            }
        }
        Verdict::Allow.with_effects(effects)
    }
}

fn say(call: &Call<'_>, kinds: &str) -> String {
    let mut text = call.method().to_string();
    for (kind, field) in kinds.chars().zip(0..) {
        text.push('|');
        text += &read(call, field, kind).unwrap_or_else(|| "-".to_owned());
    }
    if call.field_count() as usize != kinds.len() {
        text.push('!');
    }
    text
}

fn read(call: &Call<'_>, field: u32, kind: char) -> Option<String> {
    Some(match kind {
        't' => call.text(field)?.to_owned(),
        'x' => hex(call.bytes(field)?),
        'v' => {
            let texts: Vec<String> = call.values(field).map(hex).collect();
            if texts.is_empty() {
                return None;
            }
            format!("{}:{}", texts.len(), texts.join(","))
        }
        'u' => call.uint(field)?.to_string(),
        'i' => call.int(field)?.to_string(),
        'b' => if call.boolean(field)? { "T" } else { "F" }.to_owned(),
        'f' => call.float(field)?.to_bits().to_string(),
        _ => call.double(field)?.to_bits().to_string(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn number(word: &str) -> u64 {
    word.parse().expect("the vectors have numbers")
}

fn unhex(word: &str) -> Vec<u8> {
    let digit = |byte: u8| {
        (byte as char)
            .to_digit(16)
            .expect("the vectors have digits") as u8
    };
    let pairs = word.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

tollgate_policy::export!(
    Witness,
    r#"{
        "abi": 1, "name": "witness", "hooks": ["request", "reply"],
        "capabilities": ["change", "delay", "priority", "route"],
        "methods": [
            {
                "method": "a.B/C", "changes": ["a", "b", "c"], "reply_changes": ["a", "b", "c"],
                "metadata_changes": ["x-a", "x-b-bin"], "reply_metadata_changes": ["x-a", "x-b-bin"]
            },
            { "method": "a.B/D" }
        ]
    }"#
);

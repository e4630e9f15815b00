//! Compat modules, made for another host, on the datapath: what a module is shown of a message, and
//! how its changes are applied.
//!
//! ```text
//!   private image ── encode ──▶ protobuf ── filter ──▶ protobuf ── decode ──▶ a new private message
//!                 └─ project ─▶ view ─▶ JSON ── OPA ──▶ metadata
//! ```
//!
//! Invariants: only the fields that the description names and the attachment grants are encoded
//! (P4), from the private bytes that are sent (P2). The same holds for metadata: reserved keys are
//! neither shown nor changed. A filter's output is untrusted and is decoded as such: output that is
//! invalid for the type is the policy's fault.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};
use tollgate_jit::Codec;
use tollgate_policy_host::compat::{Body as Grant, CompatDescription, covers};
use tollgate_policy_host::limits::COMPAT_BODY_BYTES;
use tollgate_policy_host::{CompatCall, CompatChange, Hook, Shown, changed_keys};
use tollgate_schema::Kind;
use tollgate_shm_abi::metadata::Metadata;

use crate::evaluation::{Evaluation, Unchanged};
use crate::message::{Body, Message, Pool};
use crate::plan::{CompatInput, JsonField};
use tollgate_jit::on_demand::LazyProjector;

/// Why a message can't be shown.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// It exceeds the length limit for compat modules.
    TooLong,
    /// The sender's message is malformed.
    Malformed(String),
}

/// The form in which a message is shown.
pub(crate) enum Made {
    Nothing,
    Protobuf { bytes: Vec<u8>, start: usize },
    Json(String),
}

impl Made {
    pub(crate) fn shown(&self) -> Shown<'_> {
        match self {
            Made::Nothing => Shown::Nothing,
            Made::Protobuf { bytes, start } => Shown::Protobuf(&bytes[*start..]),
            Made::Json(text) => Shown::Json(text),
        }
    }

    pub(crate) fn give_back(self, pool: &mut Pool) {
        if let Made::Protobuf { bytes, .. } = self {
            pool.give(bytes);
        }
    }
}

impl CompatInput {
    fn codec(&self) -> &Codec {
        match self.hook {
            Hook::Request => &self.method.request,
            Hook::Reply => &self.method.reply,
        }
    }

    /// Whether the module is shown any part of the message itself.
    pub(crate) fn shows_message(&self) -> bool {
        self.body != Grant::None || !self.fields.is_empty()
    }

    /// The metadata pairs that the module is shown.
    pub(crate) fn metadata<'m>(&self, metadata: Metadata<'m>) -> Vec<(&'m str, &'m [u8])> {
        granted_pairs(&self.description, self.hook, self.keys.as_deref(), metadata)
    }

    fn grants(&self, key: &str) -> bool {
        self.keys.as_ref().is_none_or(|keys| covers(keys, key))
    }

    /// What the module is shown of a private message.
    pub(crate) fn make(
        &self,
        projector: &Arc<LazyProjector>,
        message: &Message,
        pool: &mut Pool,
    ) -> Result<Made, Unreadable> {
        if self.body != Grant::None {
            return self.protobuf(message, pool);
        }
        if self.fields.is_empty() {
            return Ok(Made::Nothing);
        }
        let (image, extents) = message.evaluated();
        let mut view = pool.take(projector.fixed_len() + image.len().min(COMPAT_BODY_BYTES));
        let made = projector.project(image, extents, &mut view);
        let made = match made {
            Ok(len) => Ok(Made::Json(json(&view[..len], &self.fields))),
            Err(fault) if fault.code == tollgate_marshal::FaultCode::TooLarge => {
                Err(Unreadable::TooLong)
            }
            Err(fault) => Err(Unreadable::Malformed(self.codec().explain(&fault))),
        };
        pool.give(view);
        made
    }

    fn protobuf(&self, message: &Message, pool: &mut Pool) -> Result<Made, Unreadable> {
        if message.total_len as usize > COMPAT_BODY_BYTES {
            return Err(Unreadable::TooLong);
        }
        self.method.crosses();
        let malformed =
            |fault: tollgate_marshal::Fault| Unreadable::Malformed(self.codec().explain(&fault));
        let image = self.accepted(message, pool).map_err(malformed)?;
        let mut bytes = pool.take(0);
        let encoded = self.codec().encode(&image, &mut bytes);
        if let Cow::Owned(copy) = image {
            pool.give(copy);
        }
        let start = match encoded {
            Ok(start) => start,
            Err(fault) => {
                pool.give(bytes);
                return Err(malformed(fault));
            }
        };
        if bytes.len() - start > COMPAT_BODY_BYTES {
            pool.give(bytes);
            return Err(Unreadable::TooLong);
        }
        Ok(Made::Protobuf { bytes, start })
    }

    /// A copy of the image with extent slots patched to offsets. The image that is sent keeps
    /// naming extents by index.
    fn accepted<'m>(
        &self,
        message: &'m Message,
        pool: &mut Pool,
    ) -> Result<Cow<'m, [u8]>, tollgate_marshal::Fault> {
        let Body::Private {
            bytes,
            accepted: false,
            ..
        } = &message.body
        else {
            return Ok(Cow::Borrowed(message.evaluated().0));
        };
        let mut copy = pool.take(bytes.len());
        copy.copy_from_slice(bytes);
        match self.codec().accept(&mut copy, message.inline_len as usize) {
            Ok(()) => Ok(Cow::Owned(copy)),
            Err(fault) => {
                pool.give(copy);
                Err(fault)
            }
        }
    }

    /// The call as the module sees it.
    pub(crate) fn call<'a>(
        &'a self,
        evaluation: &Evaluation,
        metadata: &'a [(&'a str, &'a [u8])],
        made: &'a Made,
    ) -> CompatCall<'a> {
        CompatCall {
            call: evaluation.call.to_wire(),
            hook: self.hook,
            path: &self.method.name,
            metadata,
            message: made.shown(),
        }
    }
}

fn granted_pairs<'m>(
    description: &CompatDescription,
    hook: Hook,
    granted: Option<&[String]>,
    metadata: Metadata<'m>,
) -> Vec<(&'m str, &'m [u8])> {
    let is_granted = |key: &str| granted.is_none_or(|keys| covers(keys, key));
    let is_shown = |key: &str| description.reads_key(hook, key) && is_granted(key);
    metadata.iter().filter(|(key, _)| is_shown(key)).collect()
}

impl Evaluation {
    /// Applies a compat module's changes to the message. Later policies are shown the result, and
    /// it is what is sent.
    pub(crate) fn replace(
        &mut self,
        input: Option<&CompatInput>,
        change: &CompatChange,
        pool: &mut Pool,
    ) -> Result<(), Unchanged> {
        let Some(input) = input else {
            let text = "it changes a message, but its description declares no change".to_owned();
            return Err(Unchanged::Policy(text));
        };
        let mut keys = change.metadata.iter().map(|change| &change.key);
        if let Some(key) = keys.find(|key| !input.grants(key)) {
            let text = format!("it changes the metadata {key:?}, which it isn't granted");
            return Err(Unchanged::Policy(text));
        }
        // A message in a receive heap has its metadata there already.
        if matches!(self.message.body, Body::Landed { .. }) {
            return Err(Unchanged::Late);
        }
        let metadata = match &change.metadata[..] {
            [] => None,
            changes => {
                Some(changed_keys(self.metadata(), changes).map_err(Unchanged::of_metadata)?)
            }
        };
        if let Some(body) = &change.body {
            self.replace_body(input, body, pool)?;
        }
        if let Some(metadata) = metadata {
            self.set_metadata(metadata, pool);
        }
        Ok(())
    }

    fn replace_body(
        &mut self,
        input: &CompatInput,
        body: &[u8],
        pool: &mut Pool,
    ) -> Result<(), Unchanged> {
        self.make_private(pool);
        let mut block = pool.take(0);
        if let Err(fault) = input.codec().decode(body, &mut block) {
            pool.give(block);
            let why = input.codec().explain(&fault);
            return Err(Unchanged::Policy(format!(
                "its changed message doesn't match the type: {why}"
            )));
        }
        let inline_len = block.len() as u32;
        let changed = Message::accepted(block, inline_len);
        let before = std::mem::replace(&mut *self.message, changed);
        self.message.metadata = before.metadata;
        if let Body::Private { bytes, .. } = before.body {
            pool.give(bytes);
        }
        self.changed = true;
        Ok(())
    }
}

/// A view as a JSON object. Absent fields are omitted. Numbers are JSON numbers (enums by number),
/// except those that JSON can't represent. Bytes are base64.
fn json(view: &[u8], fields: &[JsonField]) -> String {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(*view.get(at..)?.first_chunk::<4>()?))
    };
    let mut message = Map::new();
    for (field, k) in fields.iter().zip(0usize..) {
        let at = 8 + 16 * k;
        let entry = || Some((word(at)?, word(at + 4)?, word(at + 8)?, word(at + 12)?));
        let Some((1, len, low, high)) = entry() else {
            continue;
        };
        let bits = u64::from(high) << 32 | u64::from(low);
        let bytes = || {
            let rest = view.get(usize::try_from(bits).ok()?..)?;
            rest.get(..len as usize)
        };
        let value = match field.kind {
            Kind::Bool => Value::Bool(bits != 0),
            Kind::I32 | Kind::I64 | Kind::Enum => bits.cast_signed().into(),
            Kind::U32 | Kind::U64 => bits.into(),
            Kind::F32 => single(f32::from_bits(low)),
            Kind::F64 => double(f64::from_bits(bits)),
            Kind::String => String::from_utf8_lossy(bytes().unwrap_or_default()).into(),
            Kind::Bytes => base64(bytes().unwrap_or_default()).into(),
            Kind::Message(_) => continue,
        };
        insert(&mut message, &field.path, value);
    }
    Value::Object(message).to_string()
}

/// Protobuf's JSON mapping. Never null: Rego orders null before every number, so a limit would let
/// it pass.
fn double(value: f64) -> Value {
    match value {
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        value if value.is_nan() => "NaN".into(),
        value => value.into(),
    }
}

/// The shortest decimal that parses to the same number: 0.1, not 0.10000000149.
fn single(value: f32) -> Value {
    let shortest = value.to_string().parse();
    double(shortest.unwrap_or(f64::from(value)))
}

fn insert(message: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [leaf] => drop(message.insert(leaf.clone(), value)),
        [name, rest @ ..] => {
            let inner = message
                .entry(name.clone())
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// Standard base64, padded.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |k: usize| chunk.get(k).copied().map_or(0, u32::from);
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for k in 0..4 {
            let place = (bits >> (18 - 6 * k)) as usize & 63;
            let is_padding = k > chunk.len();
            text.push(if is_padding {
                '='
            } else {
                char::from(ALPHABET[place])
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(path: &str, kind: Kind) -> JsonField {
        let path = path.split('.').map(str::to_owned).collect();
        JsonField { path, kind }
    }

    fn entry(present: u32, len: u32, value: u64) -> Vec<u8> {
        [
            &present.to_le_bytes()[..],
            &len.to_le_bytes(),
            &value.to_le_bytes(),
        ]
        .concat()
    }

    #[test]
    fn a_view_becomes_an_object_with_types() {
        let fields = [
            field("name", Kind::String),
            field("stay.nights", Kind::I32),
            field("stay.paid", Kind::Bool),
            field("rate", Kind::F32),
            field("absent", Kind::U64),
            field("most", Kind::U64),
            field("raw", Kind::Bytes),
        ];
        let fixed = 8 + 16 * fields.len() as u64;
        let mut view = vec![0; 8];
        view.extend(entry(1, 3, fixed));
        view.extend(entry(1, 0, u64::MAX));
        view.extend(entry(1, 0, 1));
        view.extend(entry(1, 0, 1.5f32.to_bits().into()));
        view.extend(entry(0, 0, 0));
        view.extend(entry(1, 0, u64::MAX));
        view.extend(entry(1, 2, fixed + 3));
        view.extend(b"Ada\xff\x00");
        let text = r#"{"most":18446744073709551615,"name":"Ada","rate":1.5,"raw":"/wA=","stay":{"nights":-1,"paid":true}}"#;
        assert_eq!(json(&view, &fields), text);
        for cut in 0..view.len() {
            let _no_panic = json(&view[..cut], &fields);
        }
    }

    #[test]
    fn numbers_that_json_has_not_are_text() {
        let fields = [field("x", Kind::F64), field("y", Kind::F32)];
        for (x, text) in [
            (f64::INFINITY, r#""Infinity""#),
            (f64::NEG_INFINITY, r#""-Infinity""#),
            (f64::NAN, r#""NaN""#),
            (-f64::NAN, r#""NaN""#),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (2.5, "2.5"),
        ] {
            let mut view = vec![0; 8];
            view.extend(entry(1, 0, x.to_bits()));
            view.extend(entry(1, 0, (x as f32).to_bits().into()));
            let expected = format!("{{\"x\":{text},\"y\":{text}}}");
            assert_eq!(json(&view, &fields), expected);
        }
        let mut view = vec![0; 8];
        view.extend(entry(1, 0, f64::MAX.to_bits()));
        view.extend(entry(1, 0, f32::MAX.to_bits().into()));
        let expected = serde_json::json!({"x": f64::MAX, "y": 3.4028235e38}).to_string();
        assert_eq!(json(&view, &fields), expected);
    }

    #[test]
    fn reserved_keys_are_not_among_all_of_them() {
        use tollgate_shm_abi::metadata::MetadataBuf;
        let description = r#"{"abi": "opa", "metadata": ["*"], "reply_metadata": ["tag"]}"#;
        let description: CompatDescription =
            serde_json::from_str(description).expect("it is a description");
        let mut metadata = MetadataBuf::new();
        for (key, value) in [
            ("tag", "one"),
            ("tollgate-next", "2"),
            ("grpc-x", ""),
            ("tag", "3"),
        ] {
            let pushed = metadata.push_any(key, value.as_bytes());
            pushed.expect("there is room");
        }
        let tags = [("tag", &b"one"[..]), ("tag", b"3")];
        let all = granted_pairs(&description, Hook::Request, None, metadata.view());
        assert_eq!(all, tags);
        assert_eq!(
            granted_pairs(&description, Hook::Reply, None, metadata.view()),
            tags
        );
        let none = Some(&[][..]);
        assert_eq!(
            granted_pairs(&description, Hook::Request, none, metadata.view()),
            []
        );
        let other = ["other".to_owned()];
        let other = granted_pairs(&description, Hook::Request, Some(&other), metadata.view());
        assert_eq!(other, []);
    }

    #[test]
    fn base64_is_the_standard_one() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ];
        for (bytes, text) in cases {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}

//! The zoo: messages of every shape, and the golden bytes of each.
//!
//! `golden/zoo/NAME.txt` is a block in reviewable form. `golden/zoo.json` holds the same bytes with
//! the message in protobuf's JSON, for the tests of the C and Python stubs. After a deliberate
//! change run `TOLLGATE_BLESS=1 cargo test -p tollgate-gen --test stubs`, and review the
//! difference.
//!
//! The bytes come from the schema crate's reflection, and the daemon's interpreter must accept
//! them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use tollgate_marshal::{MAX_EXTENTS, Program, interpreter};
use tollgate_schema::dynamic::{Parts, from_json, write_parts};
use tollgate_schema::prost_reflect::DynamicMessage;
use tollgate_schema::{Layouts, MessageId, Schema};

use crate::annotate::annotate;

/// One message of the zoo.
#[derive(Default)]
pub(crate) struct Animal {
    pub(crate) name: &'static str,
    /// Full name of its type.
    pub(crate) message: &'static str,
    pub(crate) json: &'static str,
    /// Values of at least this many bytes are extents.
    pub(crate) extent_min: Option<usize>,
    /// Records of unknown fields of the root.
    pub(crate) unknown: &'static [u8],
}

/// An entry of the zoo and its bytes.
pub(crate) struct Specimen {
    pub(crate) animal: &'static Animal,
    pub(crate) value: DynamicMessage,
    pub(crate) layouts: Arc<Layouts>,
    /// The block that a sender writes.
    pub(crate) parts: Parts,
    /// The image that a receiver reads.
    pub(crate) image: Vec<u8>,
}

macro_rules! animal {
    ($name:literal, $message:literal, $json:literal $(, $field:ident: $value:expr)*) => {
        Animal { name: $name, message: $message, json: $json, $($field: $value,)* ..NONE }
    };
}

const NONE: Animal = Animal {
    name: "",
    message: "",
    json: "",
    extent_min: None,
    unknown: &[],
};

pub(crate) static ZOO: &[Animal] = &[
    animal!(
        "hotel_request",
        "hotel.ReserveRequest",
        r#"{"customerName": "Ada", "hotelIds": ["ritz", "", "savoy"],
            "stay": {"inDate": "2026-05-01", "outDate": "2026-05-03"}, "roomCount": 3, "coupon": ""}"#
    ),
    animal!(
        "hotel_reply",
        "hotel.ReserveReply",
        r#"{"reservationId": "7", "hotelIds": ["ritz"]}"#
    ),
    animal!(
        "hotel_rooms",
        "hotel.AvailabilityReply",
        r#"{"roomsLeft": {"savoy": 0, "ritz": 3}}"#
    ),
    animal!("empty", "everything.Empty", "{}"),
    animal!(
        "scalars",
        "everything.Scalars",
        r#"{"fDouble": 1.5, "fFloat": -2.5, "fInt32": -3, "fInt64": "-4", "fUint32": 5, "fUint64": "6", "fSint32": -7,
            "fSint64": "-8", "fFixed32": 9, "fFixed64": "10", "fSfixed32": -11, "fSfixed64": "-12", "fBool": true,
            "fString": "rooms für 2 ☂", "fBytes": "AP8Q", "fMood": "MOOD_STERN"}"#
    ),
    animal!(
        "scalars_extreme",
        "everything.Scalars",
        r#"{"fDouble": "-Infinity", "fFloat": 3.25e38, "fInt32": -2147483648,
            "fInt64": "-9223372036854775808", "fUint32": 4294967295, "fUint64": "18446744073709551615",
            "fSint32": 2147483647, "fSint64": "9223372036854775807", "fFixed32": 4294967295,
            "fFixed64": "18446744073709551615", "fSfixed32": -2147483648, "fSfixed64": "-9223372036854775808",
            "fMood": 77}"#
    ),
    animal!("optionals_unset", "everything.Optionals", "{}"),
    animal!(
        "optionals_default",
        "everything.Optionals",
        r#"{"fDouble": 0, "fFloat": 0, "fInt32": 0, "fInt64": "0", "fUint32": 0, "fUint64": "0", "fSint32": 0,
            "fSint64": "0", "fFixed32": 0, "fFixed64": "0", "fSfixed32": 0, "fSfixed64": "0", "fBool": false,
            "fString": "", "fBytes": "", "fMood": 0, "fLeaf": {}}"#
    ),
    animal!(
        "optionals_some",
        "everything.Optionals",
        r#"{"fFloat": 0.25, "fUint64": "42", "fBool": true, "fString": "x", "fMood": "MOOD_BLEAK", "fLeaf": {"on": true}}"#
    ),
    animal!(
        "repeateds",
        "everything.Repeateds",
        r#"{"fDouble": [1.5, 0], "fFloat": [2.5], "fInt32": [1, -2, 3], "fInt64": ["-1"], "fUint32": [7], "fUint64": ["8"],
            "fSint32": [-9], "fSint64": ["-10"], "fFixed32": [11], "fFixed64": ["12"], "fSfixed32": [-13],
            "fSfixed64": ["-14"], "fBool": [true, false, true], "fString": ["a", "", "bc"], "fBytes": ["AQI=", ""],
            "fMood": ["MOOD_CALM", 9], "fLeaf": [{"name": "n"}, {"blob": "AQ=="}], "fPoint": [{"x": 1}, {"y": -1}],
            "fEmpty": [{}, {}]}"#
    ),
    animal!(
        "oneof_text_empty",
        "everything.Choices",
        r#"{"text": "", "mood": "MOOD_CALM"}"#
    ),
    animal!(
        "oneof_blob",
        "everything.Choices",
        r#"{"blob": "AQID", "between": "b", "share": 0.5}"#
    ),
    animal!(
        "oneof_number",
        "everything.Choices",
        r#"{"number": "9", "node": {"name": "root", "next": {"name": "tail"}}}"#
    ),
    animal!("oneof_flag", "everything.Choices", r#"{"flag": false}"#),
    animal!(
        "oneof_leaf",
        "everything.Choices",
        r#"{"leaf": {"name": "leaf", "on": true, "blob": "AQ=="}}"#
    ),
    animal!(
        "oneof_nothing",
        "everything.Choices",
        r#"{"nothing": {}, "between": "x"}"#
    ),
    animal!(
        "maps",
        "everything.Maps",
        r#"{"texts": {"b": "2", "": "0", "a": "1"}, "blobs": {"-1": "AQ==", "2": ""},
            "leaves": {"18446744073709551615": {"name": "last"}, "1": {}}, "moods": {"true": "MOOD_STERN", "false": 5},
            "shares": {"-9": 0.5, "9": 1.5}, "points": {"4000000000": {"x": 1, "y": 2}}}"#
    ),
    animal!(
        "recursive",
        "everything.Node",
        r#"{"name": "a", "next": {"name": "b", "next": {"name": "c"}}, "children": [{"name": "d"}, {"children": [{}]}],
            "byName": {"e": {"name": "e"}}}"#
    ),
    animal!(
        "nested",
        "everything.All",
        r#"{"scalars": {"fBool": true}, "optionals": {"fInt32": 0}, "choices": {"text": "t"},
            "maps": {"texts": {"k": "v"}}, "node": {"next": {}}, "leaf": {"blob": "/w=="}, "point": {"x": -1},
            "empty": {}, "manyChoices": [{"number": "1"}, {}], "alls": [{"leaf": {"name": "deep"}}]}"#
    ),
    animal!(
        "extents",
        "everything.Repeateds",
        r#"{"fString": ["sixteen bytes..!", "short", "seventeen bytes.."], "fBytes": ["AAECAwQFBgcICQoLDA0ODxAREhM="],
            "fLeaf": [{"name": "the name of a leaf", "blob": "AQ=="}]}"#,
        extent_min: Some(16)
    ),
    animal!(
        "proto2_required",
        "legacy.Record",
        r#"{"id": 0, "grade": "GRADE_ONE", "owner": {"name": ""}}"#
    ),
    animal!(
        "proto2_full",
        "legacy.Record",
        r#"{"id": -1, "grade": "GRADE_LOW", "owner": {"name": "o", "parent": {"name": "p"}}, "name": "", "wish": "GRADE_ONE",
            "share": 0.5, "flag": false, "blob": "", "packed": [1, 2], "expanded": [3], "grades": ["GRADE_TWO"],
            "looseGrades": ["GRADE_LOW", "GRADE_ONE"], "part": {"label": "l", "weight": 0, "piece": [{"size": 1}, {}]},
            "note": [{"text": "n"}], "pick": {"grade": "GRADE_TWO"}, "byName": {"k": "GRADE_ONE"},
            "byNumber": {"-5": {"name": "five"}}, "at": "1970-01-01T00:00:07Z", "otherName": 9}"#
    ),
    animal!(
        "proto2_extensions",
        "legacy.Record",
        r#"{"id": 1, "grade": "GRADE_ONE", "owner": {"name": "o"}, "rank": "GRADE_TWO"}"#,
        // The extension `remark` is "hi": extensions aren't fields of a block.
        unknown: &[0xa2, 0x06, 0x02, b'h', b'i']
    ),
    animal!(
        "unknown_fields",
        "hotel.ReserveReply",
        r#"{"reservationId": "7", "hotelIds": ["ritz"]}"#,
        // Field 9 is the varint 150, field 10 is "hi".
        unknown: &[0x48, 0x96, 0x01, 0x52, 0x02, b'h', b'i']
    ),
];

pub(crate) static SPECIMENS: LazyLock<Vec<Specimen>> =
    LazyLock::new(|| ZOO.iter().map(Specimen::take).collect());

pub(crate) static SCHEMA: LazyLock<Schema> = LazyLock::new(|| compile(&PROTOS));

/// The files whose messages are in the zoo.
pub(crate) const PROTOS: [&str; 3] = ["hotel", "everything", "legacy"];

/// The schema of some of the repository's files.
pub(crate) fn compile(names: &[&str]) -> Schema {
    let protos = protos();
    let files: Vec<_> = names
        .iter()
        .map(|name| protos.join(format!("{name}.proto")))
        .collect();
    Schema::compile_proto(&files, &[protos]).unwrap()
}

pub(crate) fn protos() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto")
}

pub(crate) fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden")
}

impl Specimen {
    fn take(animal: &'static Animal) -> Specimen {
        let layouts = Arc::new(SCHEMA.layouts(&[animal.message]).unwrap());
        let value = from_json(&SCHEMA.message(animal.message).unwrap(), animal.json).unwrap();
        let apart = |value: &[u8]| animal.extent_min.is_some_and(|min| value.len() >= min);
        let mut parts = write_parts(&layouts, MessageId(0), &value, apart).unwrap();
        append_unknown(&layouts, &mut parts.inline, animal.unknown);
        let image = accepted(&layouts, &parts);
        Specimen {
            animal,
            value,
            layouts,
            parts,
            image,
        }
    }

    fn text(&self) -> String {
        let json: Vec<_> = self.animal.json.lines().map(str::trim).collect();
        format!(
            "{}\n{}\n\n{}",
            self.animal.message,
            json.join(" "),
            annotate(&self.layouts, &self.parts.inline, &self.parts.extents)
        )
    }

    fn record(&self) -> serde_json::Value {
        let extents: Vec<_> = self.parts.extents.iter().map(|e| hex(e)).collect();
        serde_json::json!({
            "name": self.animal.name,
            "message": self.animal.message,
            "json": serde_json::from_str::<serde_json::Value>(self.animal.json).unwrap(),
            "unknown": hex(self.animal.unknown),
            "extent_min": self.animal.extent_min,
            "inline": hex(&self.parts.inline),
            "extents": extents,
            "image": hex(&self.image),
        })
    }
}

/// The root's unknown fields are the last part of a block.
fn append_unknown(layouts: &Layouts, block: &mut Vec<u8>, records: &[u8]) {
    if records.is_empty() {
        return;
    }
    let slot = layouts.messages[0].unknown.unwrap() as usize;
    let at = block.len() as u32;
    block[slot..slot + 4].copy_from_slice(&at.to_le_bytes());
    block[slot + 4..slot + 8].copy_from_slice(&(records.len() as u32).to_le_bytes());
    block.extend_from_slice(records);
}

/// The image at the receiver; the daemon's own checks must pass.
fn accepted(layouts: &Arc<Layouts>, parts: &Parts) -> Vec<u8> {
    let program = Program::new(layouts, MessageId(0));
    let mut lens = [0; MAX_EXTENTS];
    let count = interpreter::gather(&program, &parts.inline, &mut lens).unwrap();
    assert_eq!(count, parts.extents.len());
    let mut image = parts.image();
    interpreter::accept(&program, &mut image, parts.inline.len()).unwrap();
    image
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Compares with the reviewed file, or replaces it.
pub(crate) fn check_golden(file: &Path, text: &str) {
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let expected = std::fs::read_to_string(file).unwrap_or_default();
    let differs = text
        .lines()
        .zip(expected.lines())
        .position(|(new, old)| new != old);
    assert!(
        text == expected,
        "{} differs from what is generated now, first after line {differs:?}",
        file.display()
    );
}

#[test]
fn blocks_are_as_reviewed() {
    for specimen in SPECIMENS.iter() {
        check_golden(
            &golden().join(format!("zoo/{}.txt", specimen.animal.name)),
            &specimen.text(),
        );
    }
    let records: Vec<_> = SPECIMENS.iter().map(Specimen::record).collect();
    let text = serde_json::to_string_pretty(&records).unwrap() + "\n";
    check_golden(&golden().join("zoo.json"), &text);
    // No blocks of removed messages remain.
    let files = std::fs::read_dir(golden().join("zoo")).unwrap();
    let on_disk: BTreeSet<_> = files
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    let in_zoo = ZOO
        .iter()
        .map(|animal| format!("{}.txt", animal.name))
        .collect();
    assert_eq!(on_disk, in_zoo);
}

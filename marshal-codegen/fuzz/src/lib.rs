//! The zoo: the message types whose blocks and protobuf bytes are fuzzed, each with both executors.

#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::{Arc, OnceLock};
use tollgate_jit::{Codec, Projector};
use tollgate_schema::prost_reflect::MessageDescriptor;
use tollgate_schema::{Cardinality, FieldLayout, Layouts, MessageId, Schema};

/// The types, by the file that declares them. An input's first byte chooses one: append only.
const ZOO: [(&str, &[&str]); 3] = [
    (
        "everything.proto",
        &[
            "everything.All",
            "everything.Scalars",
            "everything.Optionals",
            "everything.Repeateds",
            "everything.Choices",
            "everything.Maps",
            "everything.Node",
            "everything.Empty",
        ],
    ),
    (
        "hotel.proto",
        &[
            "hotel.ReserveRequest",
            "hotel.AvailabilityReply",
            "hotel.EchoMessage",
        ],
    ),
    ("legacy.proto", &["legacy.Legacy"]),
];

/// One message type.
pub struct Subject {
    /// Its layout and what it reaches.
    pub layouts: Arc<Layouts>,
    /// Its id in them.
    pub id: MessageId,
    /// For reflection.
    pub descriptor: MessageDescriptor,
    /// Never compiled.
    pub interpreter: Codec,
    /// Compiled.
    pub compiled: Codec,
    /// `prost-reflect` reads all fields as we do: no maps, which it takes for entries whatever their wire type says, and
    /// no closed enums, whose undeclared values it keeps; and it doesn't ask for required fields.
    pub is_plain: bool,
    /// All fields of the root that can be projected; never compiled, and compiled.
    pub projectors: Option<(Projector, Projector)>,
}

/// All of the zoo, made on first use.
pub fn zoo() -> &'static [Subject] {
    static ZOO_OF_SUBJECTS: OnceLock<Vec<Subject>> = OnceLock::new();
    ZOO_OF_SUBJECTS.get_or_init(|| {
        let mut subjects = Vec::new();
        for (file, names) in ZOO {
            let schema = compile(file);
            subjects.extend(names.iter().map(|name| Subject::new(&schema, name)));
        }
        subjects
    })
}

/// The files that declare the zoo.
pub fn schemas() -> impl Iterator<Item = (&'static str, Schema)> {
    ZOO.into_iter().map(|(file, _)| (file, compile(file)))
}

fn compile(file: &str) -> Schema {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories = [home.join("proto"), home.join("../../conformance/proto")].into_iter();
    let directory = directories.find(|directory| directory.join(file).exists());
    let directory = directory.expect("the repository has it");
    let schema = Schema::compile_proto(&[directory.join(file)], &[directory]);
    schema.expect("the repository's own files compile")
}

/// The type that an input is about, and the rest of the input.
pub fn choose(input: &[u8]) -> Option<(&'static Subject, &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((zoo().get(usize::from(*first))?, rest))
}

impl Subject {
    fn new(schema: &Schema, name: &str) -> Subject {
        let layouts = schema.layouts(&[name]).expect("it is declared");
        let layouts = Arc::new(layouts);
        let id = layouts.find(name).expect("it is the root");
        let compiled = Codec::new(&layouts, id);
        compiled.compile().expect("the host has machine code");
        compiled.compile_wire().expect("the host has machine code");
        Subject {
            descriptor: schema.message(name).expect("it is declared"),
            interpreter: Codec::new(&layouts, id),
            projectors: projectors(&layouts, id),
            is_plain: layouts
                .messages
                .iter()
                .flat_map(|m| &m.fields)
                .all(is_plain),
            compiled,
            layouts,
            id,
        }
    }
}

fn is_plain(field: &FieldLayout) -> bool {
    field.cardinality != Cardinality::Map && field.closed.is_none() && !field.required
}

fn projectors(layouts: &Layouts, id: MessageId) -> Option<(Projector, Projector)> {
    let fields = layouts
        .get(id)
        .fields
        .iter()
        .map(|field| field.name.as_str());
    let paths: Vec<_> = fields
        .filter(|path| Projector::new(layouts, id, &[path]).is_ok())
        .collect();
    let interpreted = Projector::new(layouts, id, &paths).ok()?;
    let compiled = Projector::new(layouts, id, &paths).ok()?;
    compiled.compile().expect("the host has machine code");
    Some((interpreted, compiled))
}

//! The zoo: the message types whose blocks and protobuf bytes are fuzzed, each with both executors.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use tollgate_jit::{Codec, Projector};
use tollgate_marshal::Patch;
use tollgate_marshal::limits::MAX_CHANGES;
use tollgate_schema::prost_reflect::MessageDescriptor;
use tollgate_schema::{Cardinality, FieldLayout, Kind, Layouts, MessageId, Schema};

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
    /// `prost-reflect` reads all fields as we do: no maps, which it takes for entries whatever
    /// their wire type says, and no closed enums, whose undeclared values it keeps; and it doesn't
    /// ask for required fields.
    pub is_plain: bool,
    /// Fields of the root and of what is in it that can be projected; never compiled, and compiled.
    pub projectors: Option<(Projector, Projector)>,
    /// Those of these fields that a policy can change at once, and how many there are.
    pub patch: Option<(Patch, usize)>,
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
            patch: patch(&layouts, id),
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
    let paths = leaves(layouts, id);
    let interpreted = Projector::new(layouts, id, &paths).ok()?;
    let compiled = Projector::new(layouts, id, &paths).ok()?;
    compiled.compile().expect("the host has machine code");
    Some((interpreted, compiled))
}

fn patch(layouts: &Layouts, id: MessageId) -> Option<(Patch, usize)> {
    let mut paths = leaves(layouts, id);
    paths.truncate(MAX_CHANGES);
    let patch = Patch::new(layouts, id, &paths).ok()?;
    Some((patch, paths.len()))
}

/// The root's fields that can be projected, and some of those of the messages in it.
fn leaves(layouts: &Layouts, id: MessageId) -> Vec<String> {
    let names = |id| {
        let fields = layouts.get(id).fields.iter();
        fields.map(|field: &FieldLayout| field.name.clone())
    };
    let mut paths: Vec<String> = Vec::new();
    for (name, field) in names(id).zip(&layouts.get(id).fields) {
        paths.push(name.clone());
        if let Kind::Message(inner) = field.kind {
            paths.extend(names(inner).take(3).map(|below| format!("{name}.{below}")));
        }
    }
    paths.retain(|path| Projector::new(layouts, id, &[path]).is_ok());
    paths
}

//! Each operation on each message, by each contender that supports it.

use prost::Message;
use std::hint::black_box;
use std::sync::Arc;
use tollgate_jit::{Codec, Projector};
use tollgate_marshal::{MAX_EXTENTS, Program, interpreter};

use crate::hand::{self, Hotel, Types};
use crate::messages::{
    AvailabilityReply, AvailabilityRequest, EchoMessage, Example, ReserveReply, ReserveRequest,
    examples,
};

/// One way to do one operation.
pub struct Contender {
    /// The message's name inside the package.
    pub message: &'static str,
    /// `gather`, `accept`, `project`, `encode` or `decode`.
    pub operation: &'static str,
    /// `machine code`, `interpreter`, `by hand`, `prost`, `prost, reused`.
    pub executor: &'static str,
    /// Does the operation this many times. The loop is inside, so that a call costs the same as for
    /// its real caller.
    pub work: Box<dyn FnMut(u32)>,
}

/// Room for a view.
const VIEW: usize = 256;

/// The projected fields: those that the ACL policy reads.
const PROJECTED: (&str, &[&str]) = ("ReserveRequest", &["customer_name"]);

/// All contenders. Those with the same operation are adjacent.
pub fn contenders() -> Vec<Contender> {
    let mut all = Vec::new();
    for example in examples() {
        blocks(&mut all, &example);
        if example.name == PROJECTED.0 {
            project(&mut all, &example);
        }
        match example.name {
            "ReserveRequest" => wire::<ReserveRequest>(&mut all, &example),
            "ReserveReply" => wire::<ReserveReply>(&mut all, &example),
            "AvailabilityRequest" => wire::<AvailabilityRequest>(&mut all, &example),
            "AvailabilityReply" => wire::<AvailabilityReply>(&mut all, &example),
            _ => wire::<EchoMessage>(&mut all, &example),
        }
    }
    all
}

fn repeat<T>(mut once: impl FnMut() -> T + 'static) -> Box<dyn FnMut(u32)> {
    Box::new(move |times| {
        for _ in 0..times {
            black_box(once());
        }
    })
}

fn compiled(example: &Example) -> Codec {
    let codec = Codec::new(&example.layouts, example.id);
    codec.compile().expect("the host has machine code");
    codec.compile_wire().expect("the host has machine code");
    codec
}

fn blocks(all: &mut Vec<Contender>, example: &Example) {
    let mut add = |operation, executor, work| {
        all.push(Contender {
            message: example.name,
            operation,
            executor,
            work,
        });
    };
    let program = Program::new(&example.layouts, example.id);
    let hotel = Hotel::named(example.name).expect("there is a hand-written one of each");
    let block = || example.block.clone();

    let (codec, bytes, mut lens) = (compiled(example), block(), [0; MAX_EXTENTS]);
    let work = repeat(move || codec.gather(black_box(&bytes), &mut lens));
    add("gather", "machine code", work);
    let (types, bytes, mut lens) = (OwnedTypes::new(example), block(), [0; MAX_EXTENTS]);
    let work = repeat(move || hand::gather(hotel, &types.get(), black_box(&bytes), &mut lens));
    add("gather", "by hand", work);
    let (of, bytes, mut lens) = (Arc::clone(&program), block(), [0; MAX_EXTENTS]);
    let work = repeat(move || interpreter::gather(&of, black_box(&bytes), &mut lens));
    add("gather", "interpreter", work);

    // Accepting writes extents' offsets only, so a block without extents can be accepted any number
    // of times.
    let (codec, mut image, len) = (compiled(example), block(), example.block.len());
    let work = repeat(move || codec.accept(black_box(&mut image), len));
    add("accept", "machine code", work);
    let (types, mut image) = (OwnedTypes::new(example), block());
    let work = repeat(move || hand::accept(hotel, &types.get(), black_box(&mut image), len));
    add("accept", "by hand", work);
    let mut image = block();
    let work = repeat(move || interpreter::accept(&program, black_box(&mut image), len));
    add("accept", "interpreter", work);
}

fn project(all: &mut Vec<Contender>, example: &Example) {
    for executor in ["machine code", "interpreter"] {
        let projector = Projector::new(&example.layouts, example.id, PROJECTED.1);
        let projector = projector.expect("the fields are declared");
        if executor == "machine code" {
            projector.compile().expect("the host has machine code");
        }
        let (image, mut view) = (example.block.clone(), [0; VIEW]);
        let work = repeat(move || projector.project(black_box(&image), &[], &mut view));
        all.push(Contender {
            message: example.name,
            operation: "project",
            executor,
            work,
        });
    }
}

fn wire<M: Message + Default + 'static>(all: &mut Vec<Contender>, example: &Example) {
    let mut add = |operation, executor, work| {
        all.push(Contender {
            message: example.name,
            operation,
            executor,
            work,
        });
    };
    let wire = wire_bytes(example);
    let message = M::decode(&wire[..]).expect("prost reads what we write");
    let program = Program::new(&example.layouts, example.id);

    // Each contender writes into a buffer that it reuses and that is large enough.
    let (codec, image, mut out) = (compiled(example), example.block.clone(), Vec::new());
    let work = repeat(move || codec.encode(black_box(&image), &mut out));
    add("encode", "machine code", work);
    let mut out = Vec::new();
    let work = repeat(move || {
        out.clear();
        black_box(&message).encode(&mut out)
    });
    add("encode", "prost", work);
    let (of, image, mut out) = (Arc::clone(&program), example.block.clone(), Vec::new());
    let work = repeat(move || interpreter::encode(&of, black_box(&image), &mut out));
    add("encode", "interpreter", work);

    let (codec, bytes, mut out) = (compiled(example), wire.clone(), Vec::new());
    let work = repeat(move || codec.decode(black_box(&bytes), &mut out));
    add("decode", "machine code", work);
    // A struct, allocated and freed again, like for its callers.
    let bytes = wire.clone();
    let work = repeat(move || M::decode(&black_box(&bytes)[..]));
    add("decode", "prost", work);
    let (bytes, mut message) = (wire.clone(), M::default());
    let work = repeat(move || {
        message.clear();
        message.merge(&black_box(&bytes)[..])
    });
    add("decode", "prost, reused", work);
    let (bytes, mut out) = (wire, Vec::new());
    let work = repeat(move || interpreter::decode(&program, black_box(&bytes), &mut out));
    add("decode", "interpreter", work);
}

/// The example as protobuf.
fn wire_bytes(example: &Example) -> Vec<u8> {
    let program = Program::new(&example.layouts, example.id);
    let mut out = Vec::new();
    let start = interpreter::encode(&program, &example.block, &mut out);
    out.split_off(start.expect("the example is small"))
}

/// [`Types`] for a closure that outlives its maker.
struct OwnedTypes {
    program: Arc<Program>,
    stay: tollgate_schema::MessageId,
}

impl OwnedTypes {
    fn new(example: &Example) -> OwnedTypes {
        let stay = example.layouts.find("hotel.Stay");
        OwnedTypes {
            program: Program::new(&example.layouts, example.id),
            stay: stay.expect("requests have one"),
        }
    }

    #[inline]
    fn get(&self) -> Types<'_> {
        Types {
            program: &self.program,
            root: self.program.root(),
            stay: self.stay,
        }
    }
}

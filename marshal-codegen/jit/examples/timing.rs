//! What the codecs cost: `cargo run --release -p tollgate-jit --example timing`.
//!
//! Prints the time to bind the hotel service (layouts, programs, machine code) and the nanoseconds
//! that a `ReserveRequest` takes in each executor. For orientation, not for claims: those are
//! measured by the benches.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use tollgate_jit::{Codec, Projector};
use tollgate_marshal::MAX_EXTENTS;
use tollgate_schema::{Schema, dynamic};

const REQUEST: &str = r#"{"customerName":"Ada Lovelace","hotelIds":["marriott-1","hilton-22"],
    "stay":{"inDate":"2026-03-01","outDate":"2026-03-04"},"roomCount":2,"coupon":"SPRING"}"#;

fn main() {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    let schema = Schema::compile_proto(&[protos.join("hotel.proto")], &[protos]).unwrap();
    for _ in 0..3 {
        bind(schema.descriptor_set());
    }
    run(&schema);
}

/// What a bind costs: the first one also finds out what the host can do.
fn bind(descriptor_set: &[u8]) {
    let start = Instant::now();
    let schema = Schema::from_descriptor_set(descriptor_set).unwrap();
    let parsed = start.elapsed();
    let service = schema.service("hotel.Reservation").unwrap();
    let laid_out = start.elapsed();
    let ids = service.methods.iter().flat_map(|m| [m.input, m.output]);
    let codecs: Vec<_> = ids.map(|id| Codec::new(&service.layouts, id)).collect();
    let programmed = start.elapsed();
    codecs.iter().for_each(|codec| codec.compile().unwrap());
    let compiled = start.elapsed();
    codecs
        .iter()
        .for_each(|codec| codec.compile_wire().unwrap());
    println!("protobuf code: {:?}", start.elapsed() - compiled);
    println!(
        "bind hotel.Reservation: parse {:?}, lay out {:?}, {} programs {:?}, compile {:?}, total {compiled:?}",
        parsed,
        laid_out - parsed,
        codecs.len(),
        programmed - laid_out,
        compiled - programmed,
    );
}

fn run(schema: &Schema) {
    let service = schema.service("hotel.Reservation").unwrap();
    let id = service.methods[0].input;
    let message =
        dynamic::from_json(&schema.message("hotel.ReserveRequest").unwrap(), REQUEST).unwrap();
    let block = dynamic::write_block(&service.layouts, id, &message).unwrap();
    let codec = Codec::new(&service.layouts, id);
    let projector = Projector::new(&service.layouts, id, &["customer_name"]).unwrap();
    println!("hotel.ReserveRequest, {} bytes inline:", block.len());
    for executor in ["interpreter", "machine code"] {
        let mut lens = [0; MAX_EXTENTS];
        let gather = time(|| codec.gather(black_box(&block), &mut lens).unwrap());
        let mut image = block.clone();
        let accept = time(|| codec.accept(black_box(&mut image), block.len()).unwrap());
        let mut view = [0; 256];
        let project = time(|| {
            projector
                .project(black_box(&block), &[], &mut view)
                .unwrap()
        });
        let mut out = Vec::new();
        let encode = time(|| codec.encode(black_box(&block), &mut out).unwrap());
        let start = codec.encode(&block, &mut out).unwrap();
        let bytes = out[start..].to_vec();
        let mut decoded = Vec::new();
        let decode = time(|| codec.decode(black_box(&bytes), &mut decoded).unwrap());
        println!(
            "  {executor}: encode {encode:.1} ns, decode {decode:.1} ns ({} bytes)",
            bytes.len()
        );
        println!(
            "  {executor}: gather {gather:.1} ns, accept {accept:.1} ns, project customer_name {project:.1} ns"
        );
        codec.compile().unwrap();
        codec.compile_wire().unwrap();
        projector.compile().unwrap();
    }
}

/// Nanoseconds per call: the best of many short runs, which the neighbours disturb least.
fn time<T>(mut work: impl FnMut() -> T) -> f64 {
    const CALLS: u32 = 2_000;
    let mut best = Duration::MAX;
    for _ in 0..200 {
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(work());
        }
        best = best.min(start.elapsed());
    }
    best.as_nanos() as f64 / f64::from(CALLS)
}

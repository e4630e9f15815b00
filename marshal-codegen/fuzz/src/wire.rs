//! Arbitrary bytes as protobuf of a type of the zoo: `[type][bytes]`.
//!
//! Machine code and interpreter agree on the verdict and on every byte of the block. A block that
//! was decoded passes `gather`, and encoding it loses nothing. `prost-reflect` reads what we encode
//! as what we decoded. What else it can read, we can, and read alike, if the type is plain (see the
//! zoo) and doesn't nest too deeply. The reverse isn't so: it refuses a known field in an
//! unexpected wire type, which is an unknown field to us.

use tollgate_jit::Codec;
use tollgate_marshal::{Fault, FaultCode, MAX_EXTENTS};
use tollgate_schema::dynamic::{read_block, write_block};
use tollgate_schema::prost_reflect::DynamicMessage;

use crate::zoo::{Subject, choose};

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
    let Some((subject, bytes)) = choose(input) else {
        return;
    };
    let interpreted = decode(&subject.interpreter, bytes);
    assert_eq!(interpreted, decode(&subject.compiled, bytes), "decode");
    if let Ok(block) = &interpreted {
        accepted(subject, block);
    }
    if !subject.is_plain {
        return;
    }
    let reference = DynamicMessage::decode(subject.descriptor.clone(), bytes);
    match (interpreted, reference) {
        (Ok(block), Ok(reference)) => {
            let ours = rewritten(subject, &read(subject, &block));
            let theirs = rewritten(subject, &reference);
            assert_eq!(ours, theirs, "prost-reflect reads something else");
        }
        (Err(fault), Ok(_)) => {
            let too_much = matches!(fault.code, FaultCode::TooDeep | FaultCode::TooLarge);
            assert!(too_much, "only we refuse: {fault:?}");
        }
        (_, Err(_)) => {}
    }
}

fn decode(codec: &Codec, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut block = Vec::new();
    codec.decode(bytes, &mut block).map(|()| block)
}

fn encode(codec: &Codec, block: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::new();
    let start = codec.encode(block, &mut out)?;
    Ok(out.split_off(start))
}

fn accepted(subject: &Subject, block: &[u8]) {
    let gathered = subject.compiled.gather(block, &mut [0; MAX_EXTENTS]);
    assert_eq!(gathered, Ok(0), "what was decoded is canonical");
    let written = encode(&subject.interpreter, block);
    assert_eq!(written, encode(&subject.compiled, block), "encode");
    let written = written.expect("a block this small can be encoded");
    let again = decode(&subject.compiled, &written).expect("what was encoded can be decoded");
    let encoded_again = encode(&subject.compiled, &again);
    assert_eq!(encoded_again, Ok(written), "nothing is lost");
    // Unknown fields aside, since a known one in an unexpected wire type is among them.
    let known = rewritten(subject, &read(subject, block));
    let written = encode(&subject.compiled, &known).expect("as above");
    let reference = DynamicMessage::decode(subject.descriptor.clone(), &written[..]);
    let reference = reference.expect("what was encoded can be decoded by others");
    assert_eq!(
        known,
        rewritten(subject, &reference),
        "and is the same to them"
    );
}

fn read(subject: &Subject, block: &[u8]) -> DynamicMessage {
    let message = read_block(&subject.layouts, subject.id, &subject.descriptor, block);
    message.expect("a canonical block can be read")
}

/// A block with maps in the order of their keys and without unknown fields, in which NaNs are
/// compared by their bits.
fn rewritten(subject: &Subject, message: &DynamicMessage) -> Vec<u8> {
    let block = write_block(&subject.layouts, subject.id, message);
    block.expect("it's no deeper than what was decoded")
}

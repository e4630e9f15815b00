//! Arbitrary bytes as a block, or as an image with extents, of a type of the zoo: `[type][extents][bytes]`.
//!
//! Machine code and interpreter agree on every verdict, length, view, patched and written byte; what was accepted and
//! encoded can be decoded again.

#![no_main]
#![forbid(unsafe_code)]

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::{Subject, choose};
use tollgate_jit::{Codec, Projector};
use tollgate_marshal::MAX_EXTENTS;

/// Room for a view; small, so that views don't fit as well.
const VIEW: usize = 512;

fuzz_target!(|input: &[u8]| {
    let Some((subject, rest)) = choose(input) else {
        return;
    };
    let Some((extents, bytes)) = rest.split_first() else {
        return;
    };
    gather(subject, bytes);
    // How many of the image's bytes, in words, are extents.
    let extents = usize::from(*extents) * 8;
    accept(subject, bytes, bytes.len().saturating_sub(extents));
});

fn gather(subject: &Subject, block: &[u8]) {
    let run = |codec: &Codec| {
        let mut lens = [0; MAX_EXTENTS];
        let count = codec.gather(block, &mut lens)?;
        Ok::<_, tollgate_marshal::Fault>(lens[..count].to_vec())
    };
    let interpreted = run(&subject.interpreter);
    assert_eq!(interpreted, run(&subject.compiled), "gather");
    if interpreted.is_ok_and(|lens| lens.is_empty()) {
        let mut image = block.to_vec();
        let accepted = subject.interpreter.accept(&mut image, block.len());
        assert_eq!(
            accepted,
            Ok(()),
            "what gather lets pass without extents, accept does"
        );
    }
}

fn accept(subject: &Subject, bytes: &[u8], inline_len: usize) {
    let run = |codec: &Codec| {
        let mut image = bytes.to_vec();
        codec.accept(&mut image, inline_len).map(|()| image)
    };
    let interpreted = run(&subject.interpreter);
    assert_eq!(interpreted, run(&subject.compiled), "accept");
    if let Ok(image) = interpreted {
        project(subject, &image);
        encode(subject, &image);
    }
}

fn project(subject: &Subject, image: &[u8]) {
    let run = |projector: &Projector| {
        let mut view = vec![0; VIEW];
        let len = projector.project(image, &[], &mut view)?;
        view.truncate(len);
        Ok::<_, tollgate_marshal::Fault>(view)
    };
    if let Some((interpreted, compiled)) = &subject.projectors {
        assert_eq!(run(interpreted), run(compiled), "project");
    }
}

fn encode(subject: &Subject, image: &[u8]) {
    let run = |codec: &Codec| {
        let mut out = Vec::new();
        let start = codec.encode(image, &mut out)?;
        Ok::<_, tollgate_marshal::Fault>(out.split_off(start))
    };
    let interpreted = run(&subject.interpreter);
    assert_eq!(interpreted, run(&subject.compiled), "encode");
    let written = interpreted.expect("an accepted image this small can be encoded");
    let mut block = Vec::new();
    let decoded = subject.interpreter.decode(&written, &mut block);
    assert_eq!(decoded, Ok(()), "what was encoded can be decoded");
}

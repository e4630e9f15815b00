//! Arbitrary bytes as a block, or as an image with extents, of a type of the zoo:
//! `[type][extents][bytes]`.
//!
//! Machine code and interpreter agree on every verdict, length, view, patched and written byte;
//! what was accepted and encoded can be decoded again, and what was accepted and then changed is
//! accepted again.

use tollgate_jit::{Codec, Projector};
use tollgate_marshal::{Change, MAX_EXTENTS, NewValue, PatchError};

use crate::zoo::{Subject, choose};

/// Room for a view; small, so that views don't fit as well.
const VIEW: usize = 512;

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
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
}

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
        patch(subject, &image, inline_len);
    }
}

/// Changes the fields to what the image's own last bytes say: first each by itself, then together
/// those that could be.
fn patch(subject: &Subject, image: &[u8], inline_len: usize) {
    let Some((patch, count)) = &subject.patch else {
        return;
    };
    let mut out = Vec::new();
    let mut apply = |changes: &[Change<'_>]| {
        let layouts = &subject.layouts;
        let patched = patch.apply(layouts, image, inline_len, &[], changes, &mut out)?;
        let accepted = subject.interpreter.accept(&mut out, patched.inline_len);
        assert_eq!(accepted, Ok(()), "what was changed is valid");
        Ok::<_, PatchError>(())
    };
    let mut together = Vec::new();
    for (field, tail) in (0..*count as u32).zip(image.rchunks(8).cycle()) {
        let mut bits = [0; 8];
        bits[..tail.len()].copy_from_slice(tail);
        let bits = u64::from_le_bytes(bits);
        let values = [
            NewValue::Clear,
            NewValue::Bits(bits),
            NewValue::Bits(bits & 1),
            NewValue::Bytes(&tail[..tail.len() / 2]),
        ];
        let chosen = bits as usize % values.len();
        for value in [values[chosen], values[1], values[3]] {
            let change = Change { field, value };
            if apply(&[change]).is_ok()
                && together
                    .last()
                    .is_none_or(|c: &Change<'_>| c.field != field)
            {
                together.push(change);
            }
        }
        let turn = usize::from(tail[0] & 1).min(together.len());
        together.rotate_left(turn);
    }
    let _one_may_take_away_the_message_of_another = apply(&together);
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

//! The scheduler, as a function: which bytes are copied, which are gathered, in how many work
//! requests.

use proptest::prelude::*;

use crate::limits;
use crate::plan::{Element, Lies, Position, Range, Shape, Step, elements_of, next_message};

const PAPER: Shape = Shape {
    max_elements: 16,
    message_bytes: 16 << 10,
    fused_bytes: 16 << 10,
    small_bytes: 4 << 10,
};

fn registered(len: usize) -> Element {
    let lies = Lies::Heap;
    Element { len, lies }
}

fn private(len: usize) -> Element {
    let lies = Lies::Unregistered;
    Element { len, lies }
}

fn marshalled(len: usize) -> Element {
    let lies = Lies::Marshalled;
    Element { len, lies }
}

fn plan(elements: &[Element], shape: &Shape) -> Vec<Vec<Step>> {
    let mut messages = Vec::new();
    let mut position = Position::default();
    loop {
        let mut steps = Vec::new();
        position = next_message(elements, position, shape, &mut steps);
        if steps.is_empty() {
            return messages;
        }
        messages.push(steps);
    }
}

/// One letter per step, with its bytes; spaces separate a list's elements.
fn drawn(messages: &[Vec<Step>]) -> String {
    let message = |steps: &Vec<Step>| {
        let mut text = String::new();
        let mut fusing = false;
        for step in steps {
            let (letter, range, fused) = match step {
                Step::Fuse(range) => ('f', range, true),
                Step::Gather(range) => ('g', range, false),
            };
            let joint = if text.is_empty() {
                ""
            } else if fused && fusing {
                "+"
            } else {
                " "
            };
            fusing = fused;
            text += &format!("{joint}{letter}{}", range.len);
        }
        text
    };
    messages.iter().map(message).collect::<Vec<_>>().join(" | ")
}

fn check(elements: &[Element], shape: &Shape, expected: &str) {
    assert_eq!(drawn(&plan(elements, shape)), expected);
}

#[test]
fn nothing_takes_no_message() {
    check(&[], &PAPER, "");
    check(&[registered(0), private(0)], &PAPER, "");
}

#[test]
fn neighbours_that_are_small_are_one_element() {
    let calls = [8, 6000, 4, 8, 9000, 4, 8].map(registered);
    check(&calls, &PAPER, "f8 g6000 f4+f8 g9000 f4+f8");
}

#[test]
fn what_is_large_is_gathered_and_what_is_not_registered_never() {
    check(&[registered(16 << 10)], &PAPER, "g16384");
    check(&[private(16 << 10)], &PAPER, "f16384");
    check(&[registered(4 << 10)], &PAPER, "f4096");
    check(&[registered((4 << 10) + 1)], &PAPER, "g4097");
}

#[test]
fn what_was_marshalled_is_copied_only_beside_what_is_fused() {
    let calls = [marshalled(48), registered(6000), marshalled(52)];
    check(&calls, &PAPER, "g48 g6000 g52");
    let calls = [marshalled(48), registered(100), marshalled(52), private(7)];
    check(&calls, &PAPER, "g48 f100+f52+f7");
    // More bytes than are worth copying to save an element.
    check(&[private(7), marshalled(5000)], &PAPER, "f7 g5000");
    let few = Shape {
        max_elements: 2,
        ..PAPER
    };
    let calls = [marshalled(48), registered(6000), marshalled(52)];
    check(&calls, &few, "g48 f6000+f52");
}

#[test]
fn a_message_ends_where_its_receive_does() {
    check(&[registered(40_000)], &PAPER, "g16384 | g16384 | g7232");
    check(
        &[private(10), private(20_000)],
        &PAPER,
        "f10+f16374 | f3626",
    );
    // The remainder of a large element is small.
    check(
        &[registered(20_000), private(5)],
        &PAPER,
        "g16384 | f3616+f5",
    );
}

#[test]
fn fused_bytes_have_a_limit_of_their_own() {
    let shape = Shape {
        message_bytes: 64 << 10,
        ..PAPER
    };
    check(
        &[private(20_000), registered(30_000)],
        &shape,
        "f16384 | f3616 g30000",
    );
    check(
        &[private(16 << 10), registered(30_000), private(1)],
        &shape,
        "f16384 g30000 | f1",
    );
}

#[test]
fn a_device_of_few_elements_gets_its_last_one_fused() {
    let shape = |max_elements| Shape {
        max_elements,
        ..PAPER
    };
    let elements = [5000, 5000, 5000].map(registered);
    check(&elements, &shape(3), "g5000 g5000 g5000");
    check(&elements, &shape(2), "g5000 f5000+f5000");
    check(&elements, &shape(1), "f5000+f5000+f5000");
    // Elements that don't fit go into the next message.
    let large = [9000, 9000, 9000].map(registered);
    check(&large, &shape(1), "g9000 | g9000 | g9000");
}

proptest! {
    /// Every byte leaves once and in order, and no message exceeds its shape.
    #[test]
    fn every_byte_leaves_once_and_in_order(
        elements in prop::collection::vec((0usize..30_000, 0..3usize), 0..40),
        max_elements in 1usize..5,
        fused_bytes in 1usize..20_000,
        message_bytes in 1usize..40_000,
        small_bytes in 0usize..6_000,
    ) {
        let kinds = [private, registered, marshalled];
        let elements: Vec<_> = elements.into_iter().map(|(len, kind)| kinds[kind](len)).collect();
        let shape = Shape { max_elements, message_bytes, fused_bytes, small_bytes };
        let mut expected = elements.iter().enumerate().filter(|(_, e)| e.len > 0);
        let mut at = 0;
        let mut now = expected.next();
        let messages = plan(&elements, &shape);
        for steps in &messages {
            let (mut bytes, mut fused) = (0, 0);
            for step in steps {
                let (Step::Fuse(range) | Step::Gather(range)) = step;
                let Range { element, at: from, len } = *range;
                let (index, whole) = now.expect("no more bytes than there are");
                prop_assert_eq!((element, from), (index, at));
                prop_assert!(len > 0);
                at += len;
                bytes += len;
                match step {
                    Step::Fuse(_) => fused += len,
                    Step::Gather(_) => prop_assert!(whole.lies != Lies::Unregistered && len <= whole.len),
                }
                if at == whole.len {
                    (now, at) = (expected.next(), 0);
                }
            }
            prop_assert!(bytes <= message_bytes && fused <= fused_bytes);
            prop_assert!(elements_of(steps) <= max_elements);
        }
        prop_assert!(now.is_none(), "all of it left");
    }
}

#[test]
fn the_link_fuses_as_the_paper_does() {
    assert_eq!(limits::MESSAGE_BYTES, PAPER.fused_bytes);
}

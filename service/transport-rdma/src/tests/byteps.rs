//! The scheduler on the pattern emulated in the mRPC paper's section 7.5: BytePS sends each tensor
//! of a model after an 8-byte key and before a 4-byte length. The test counts work requests,
//! elements of their lists, small elements, and bytes copied, for the trainable tensors of the
//! paper's three models, in their order.

use super::golden;
use crate::limits;
use crate::plan::{Element, Lies, Position, Shape, Step, elements_of, next_message};

mod models;

use models::{efficientnet_b0, inception_v3, mobilenet};

#[test]
fn the_models_have_their_published_parameters() {
    assert_eq!(mobilenet().parameters(), 4_231_976);
    assert_eq!(efficientnet_b0().parameters(), 5_288_548);
    assert_eq!(inception_v3().parameters(), 23_817_352);
}

/// The cost of a model.
#[derive(Default)]
struct Cost {
    work_requests: usize,
    elements: usize,
    small: usize,
    copied: usize,
}

/// Every call separately: key, tensor and length as three elements of one list.
fn unfused(tensors: &[usize]) -> Cost {
    let small = |tensor: &&usize| **tensor <= limits::SMALL_ELEMENT;
    Cost {
        work_requests: tensors.len(),
        elements: 3 * tensors.len(),
        small: 2 * tensors.len() + tensors.iter().filter(small).count(),
        copied: 0,
    }
}

/// All calls wait at once, for a device whose messages may be as long as a model.
fn fused(tensors: &[usize]) -> Cost {
    let elements: Vec<_> = tensors
        .iter()
        .flat_map(|tensor| [8, *tensor, 4])
        .map(|len| Element {
            len,
            lies: Lies::Heap,
        })
        .collect();
    let shape = Shape {
        max_elements: limits::MAX_ELEMENTS,
        message_bytes: usize::MAX,
        fused_bytes: limits::MESSAGE_BYTES,
        small_bytes: limits::SMALL_ELEMENT,
    };
    let mut cost = Cost::default();
    let mut position = Position::default();
    let mut bytes = 0;
    loop {
        let mut steps = Vec::new();
        position = next_message(&elements, position, &shape, &mut steps);
        if steps.is_empty() {
            assert_eq!(
                bytes,
                elements.iter().map(|element| element.len).sum::<usize>()
            );
            return cost;
        }
        cost.work_requests += 1;
        cost.elements += elements_of(&steps);
        let mut run = 0;
        for step in steps {
            match step {
                Step::Fuse(range) => {
                    run += range.len;
                    cost.copied += range.len;
                    bytes += range.len;
                }
                Step::Gather(range) => {
                    cost.small += usize::from((1..=limits::SMALL_ELEMENT).contains(&run));
                    (run, bytes) = (0, bytes + range.len);
                }
            }
        }
        cost.small += usize::from((1..=limits::SMALL_ELEMENT).contains(&run));
    }
}

#[test]
fn tensors_with_their_keys_and_lengths_take_fewer_requests_and_elements() {
    let mut table = String::new();
    for (name, model) in [
        ("MobileNet", mobilenet()),
        ("EfficientNet-B0", efficientnet_b0()),
        ("InceptionV3", inception_v3()),
    ] {
        let tensors = model.tensors();
        let bytes: usize = tensors.iter().sum();
        table += &format!("{name}: {} tensors, {bytes} bytes\n", tensors.len());
        let costs = [
            ("as they are", unfused(&tensors)),
            ("fused", fused(&tensors)),
        ];
        for (how, cost) in &costs {
            table += &format!(
                "  {how:12} {:4} work requests, {:4} elements, {:4} of them small, {:7} bytes copied\n",
                cost.work_requests, cost.elements, cost.small, cost.copied
            );
        }
        let [(_, before), (_, after)] = costs;
        assert!(
            after.elements * 2 <= before.elements && after.work_requests < before.work_requests
        );
        assert!(after.copied * 10 < bytes, "most of it is gathered");
    }
    golden("byteps.txt", &table);
}

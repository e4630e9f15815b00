//! The scheduler on the pattern that the mRPC paper's section 7.5 emulates: BytePS sends each tensor of a model behind an 8-byte key and before a
//! 4-byte length. Counted are work requests, elements of their lists, elements that are small, and bytes copied, for the trainable tensors of the
//! paper's three models, in their order.
//!
//! The tensors follow from the models' published architectures; their sum is checked against the published numbers of parameters.

use super::golden;
use crate::limits;
use crate::plan::{Element, Position, Shape, Step, elements_of, next_message};

/// Tensors of a model as numbers of parameters, 4 bytes each.
#[derive(Default)]
struct Model(Vec<usize>);

impl Model {
    fn add(&mut self, parameters: usize) {
        self.0.push(parameters);
    }

    /// A convolution, then a normalisation's scale and offset.
    fn convolution(&mut self, kernel: usize, from: usize, to: usize) {
        self.add(kernel * from * to);
        self.add(to);
        self.add(to);
    }

    /// Of every channel by itself.
    fn depthwise(&mut self, kernel: usize, channels: usize) {
        self.add(kernel * channels);
        self.add(channels);
        self.add(channels);
    }

    fn dense(&mut self, from: usize, to: usize) {
        self.add(from * to);
        self.add(to);
    }

    fn parameters(&self) -> usize {
        self.0.iter().sum()
    }
}

/// Howard et al. 2017, table 1.
fn mobilenet() -> Model {
    let mut model = Model::default();
    model.convolution(9, 3, 32);
    let mut from = 32;
    for to in [
        64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024,
    ] {
        model.depthwise(9, from);
        model.convolution(1, from, to);
        from = to;
    }
    model.dense(1024, 1000);
    model
}

/// Tan and Le 2019, table 1; squeeze and excitation by a quarter of a block's input.
fn efficientnet_b0() -> Model {
    let mut model = Model::default();
    model.convolution(9, 3, 32);
    let mut from = 32;
    for (expand, kernel, to, count) in [
        (1, 9, 16, 1),
        (6, 9, 24, 2),
        (6, 25, 40, 2),
        (6, 9, 80, 3),
        (6, 25, 112, 3),
        (6, 25, 192, 4),
        (6, 9, 320, 1),
    ] {
        for _ in 0..count {
            let inner = from * expand;
            if expand > 1 {
                model.convolution(1, from, inner);
            }
            model.depthwise(kernel, inner);
            model.dense(inner, from / 4);
            model.dense(from / 4, inner);
            model.convolution(1, inner, to);
            from = to;
        }
    }
    model.convolution(1, 320, 1280);
    model.dense(1280, 1000);
    model
}

/// Szegedy et al. 2015 (second edition), table 1, as Keras has it: normalisations without scale, no auxiliary head.
fn inception_v3() -> Model {
    let mut model = Model::default();
    let mut chain = |from: usize, layers: &[(usize, usize)]| {
        layers.iter().fold(from, |from, (kernel, to)| {
            model.add(kernel * from * to);
            model.add(*to);
            *to
        })
    };
    chain(3, &[(9, 32), (9, 32), (9, 64), (1, 80), (9, 192)]);
    for (from, pool) in [(192, 32), (256, 64), (288, 64)] {
        chain(from, &[(1, 64)]);
        chain(from, &[(1, 48), (25, 64)]);
        chain(from, &[(1, 64), (9, 96), (9, 96)]);
        chain(from, &[(1, pool)]);
    }
    chain(288, &[(9, 384)]);
    chain(288, &[(1, 64), (9, 96), (9, 96)]);
    for inner in [128, 160, 160, 192] {
        chain(768, &[(1, 192)]);
        chain(768, &[(1, inner), (7, inner), (7, 192)]);
        chain(
            768,
            &[(1, inner), (7, inner), (7, inner), (7, inner), (7, 192)],
        );
        chain(768, &[(1, 192)]);
    }
    chain(768, &[(1, 192), (9, 320)]);
    chain(768, &[(1, 192), (7, 192), (7, 192), (9, 192)]);
    for from in [1280, 2048] {
        chain(from, &[(1, 320)]);
        let middle = chain(from, &[(1, 384)]);
        chain(middle, &[(3, 384)]);
        chain(middle, &[(3, 384)]);
        let middle = chain(from, &[(1, 448), (9, 384)]);
        chain(middle, &[(3, 384)]);
        chain(middle, &[(3, 384)]);
        chain(from, &[(1, 192)]);
    }
    model.dense(2048, 1000);
    model
}

#[test]
fn the_models_have_their_published_parameters() {
    assert_eq!(mobilenet().parameters(), 4_231_976);
    assert_eq!(efficientnet_b0().parameters(), 5_288_548);
    assert_eq!(inception_v3().parameters(), 23_817_352);
}

/// What a model costs.
#[derive(Default)]
struct Cost {
    work_requests: usize,
    elements: usize,
    small: usize,
    copied: usize,
}

/// Every call by itself: key, tensor and length as three elements of one list.
fn unfused(tensors: &[usize]) -> Cost {
    let small = |tensor: &&usize| **tensor <= limits::SMALL_ELEMENT;
    Cost {
        work_requests: tensors.len(),
        elements: 3 * tensors.len(),
        small: 2 * tensors.len() + tensors.iter().filter(small).count(),
        copied: 0,
    }
}

/// All of them wait at once, for a device whose messages may be as long as a model.
fn fused(tensors: &[usize]) -> Cost {
    let elements: Vec<_> = tensors
        .iter()
        .flat_map(|tensor| [8, *tensor, 4])
        .map(|len| Element {
            len,
            registered: true,
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
        let tensors: Vec<_> = model.0.iter().map(|parameters| parameters * 4).collect();
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

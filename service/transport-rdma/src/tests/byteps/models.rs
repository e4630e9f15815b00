//! The trainable tensors of the mRPC paper's three models, in their order, for the counts in
//! `byteps.rs` and the example `ratios`. They follow from the models' published architectures;
//! their sum is checked against the published numbers of parameters.

/// Tensors of a model as numbers of parameters, 4 bytes each.
#[derive(Default)]
pub(crate) struct Model(Vec<usize>);

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

    /// A depthwise convolution: each channel separately.
    fn depthwise(&mut self, kernel: usize, channels: usize) {
        self.add(kernel * channels);
        self.add(channels);
        self.add(channels);
    }

    fn dense(&mut self, from: usize, to: usize) {
        self.add(from * to);
        self.add(to);
    }

    pub(crate) fn parameters(&self) -> usize {
        self.0.iter().sum()
    }

    /// Bytes of each tensor.
    pub(crate) fn tensors(&self) -> Vec<usize> {
        self.0.iter().map(|parameters| parameters * 4).collect()
    }
}

/// Howard et al. 2017, table 1.
pub(crate) fn mobilenet() -> Model {
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
pub(crate) fn efficientnet_b0() -> Model {
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

/// Szegedy et al. 2015 (second edition), table 1, as Keras has it: normalisations without scale, no
/// auxiliary head.
pub(crate) fn inception_v3() -> Model {
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

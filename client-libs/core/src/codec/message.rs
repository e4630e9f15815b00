//! Messages, and other values that can be written as a block.

use std::sync::Arc;

use super::place::Place;
use super::sink::{Measure, Measured, Sink, VecSink};

/// A message type that the stub writer generated.
pub trait Message: Clone + Default + Send + Sync + 'static {
    /// Full protobuf name, such as `hotel.ReserveRequest`.
    const NAME: &'static str;
    /// Bytes of the fixed part; a multiple of 8, at least 8.
    const SIZE: usize;
    /// Typed getters over a block, without a copy.
    type View<'a>: Copy;

    /// Writes the fixed part at `at` (already claimed from the sink), then claims and writes the
    /// parts in canonical order.
    fn encode<S: Sink>(&self, sink: &mut S, at: u32);

    /// The view of the struct at `place`.
    fn view(place: Place<'_>) -> Self::View<'_>;

    /// An owned copy of a view.
    fn from_view(view: Self::View<'_>) -> Self;
}

/// Something that can be written as the block of a call or reply: a [`Message`], or a block that
/// exists already.
pub trait Encode {
    /// The size of a block in no session's heap. Sets [`Measured::too_deep`] instead of failing.
    fn measure(&self) -> Measured {
        self.measure_within(0)
    }

    /// The size of a block in the heap of the session with this number. Values that lie there
    /// already aren't written again.
    fn measure_within(&self, session: u64) -> Measured;

    /// Writes the block that [`Encode::measure`] measured.
    fn write<S: Sink>(&self, sink: &mut S);
}

impl<M: Message> Encode for M {
    fn measure_within(&self, session: u64) -> Measured {
        let mut measure = Measure::within(M::SIZE, session);
        self.encode(&mut measure, 0);
        measure.finish()
    }

    fn write<S: Sink>(&self, sink: &mut S) {
        let root = sink.claim(M::SIZE, 8);
        self.encode(sink, root);
    }
}

/// A message that is sent more than once needn't be copied each time.
impl<M: Message> Encode for Arc<M> {
    fn measure_within(&self, session: u64) -> Measured {
        (**self).measure_within(session)
    }

    fn write<S: Sink>(&self, sink: &mut S) {
        (**self).write(sink);
    }
}

/// An existing block, in canonical form and without extents.
#[derive(Clone, Copy, Debug)]
pub struct RawBlock<B>(pub B);

impl<B: AsRef<[u8]>> Encode for RawBlock<B> {
    fn measure_within(&self, _session: u64) -> Measured {
        Measure::new(self.0.as_ref().len()).finish()
    }

    fn write<S: Sink>(&self, sink: &mut S) {
        let bytes = self.0.as_ref();
        let root = sink.claim(bytes.len(), 8);
        sink.put(root, bytes);
    }
}

/// The message's block with everything inline, for [`RawBlock`] and `call_raw`; `None` if it nests
/// too deeply.
pub fn encode_inline(message: &impl Encode) -> Option<Vec<u8>> {
    if message.measure().too_deep {
        return None;
    }
    let mut sink = VecSink::default();
    message.write(&mut sink);
    Some(sink.bytes)
}

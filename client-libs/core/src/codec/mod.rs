//! Ordinary Rust values to blocks, and blocks to views: what generated code is written against.
//!
//! A block's format is told in the schema crate (`layout`): fixed-size structs whose variable parts follow in one
//! canonical order. Generated code knows each field's offset; everything else, which is the same for all messages, is
//! here: [`Message`] ties a struct to its view, [`Value`] says how one field is stored and read, [`Sink`] is where an
//! encoder writes ([`Measure`] first, to learn the size; then the heap), [`Place`] is where a view reads.
//!
//! One `encode` serves both passes, so measuring and writing can't disagree. Reading never panics and never leaves the
//! block: what lies outside of it, or nests deeper than [`MAX_DEPTH`], reads as absent.
//!
//! Absent on purpose: validation. The daemon validates each block that it delivers.

mod encode;
mod shape;
mod value;
mod view;

use std::sync::Arc;

pub use encode::{Fixed, Measure, Measured, Sink, VecSink, encode_inline};
pub use shape::{Shape, Spot};
pub use value::{EntryLayout, Value, store_list, store_map};
pub use view::{Iter, List, Map, Place};

pub(crate) use encode::HeapSink;

/// Most structs on the path from the root to any struct, both included; as in the schema crate.
pub const MAX_DEPTH: u32 = 64;

/// Bit of a slot's offset that makes it name an extent; as in the schema crate.
pub const EXTENT_FLAG: u32 = 0x8000_0000;

/// Values of at least this many bytes leave the inline block; as in the schema crate.
pub const EXTENT_MIN: usize = 4_096;

/// A message type that the stub writer generated.
pub trait Message: Clone + Default + Send + Sync + 'static {
    /// Full protobuf name, such as `hotel.ReserveRequest`.
    const NAME: &'static str;
    /// Bytes of the fixed part; a multiple of 8, at least 8.
    const SIZE: usize;
    /// Typed getters over a block, without a copy.
    type View<'a>: Copy;

    /// Writes the fixed part at `at` (already claimed from the sink), then claims and writes the parts in canonical
    /// order.
    fn encode<S: Sink>(&self, sink: &mut S, at: u32);

    /// The view of the struct at `place`.
    fn view(place: Place<'_>) -> Self::View<'_>;

    /// An owned copy of what a view shows.
    fn from_view(view: Self::View<'_>) -> Self;
}

/// Something that can be written as the block of a call or reply: a [`Message`], or a block that exists already.
pub trait Encode {
    /// The size of a block in no session's heap. Answers [`Measured::too_deep`] instead of failing.
    fn measure(&self) -> Measured {
        self.measure_within(0)
    }

    /// The size of a block in the heap of the session of this number: what lies there already isn't written again.
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

/// A message that is sent more than once needn't be copied for each.
impl<M: Message> Encode for Arc<M> {
    fn measure_within(&self, session: u64) -> Measured {
        (**self).measure_within(session)
    }

    fn write<S: Sink>(&self, sink: &mut S) {
        (**self).write(sink);
    }
}

/// A block that exists already, in canonical form and without extents.
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

/// Declares a protobuf enum: a newtype over its number with named constants, so that unknown values survive. A constant that the schema
/// calls otherwise says so: `RED = 1 as "COLOR_RED"`. For generated code.
#[macro_export]
macro_rules! open_enum {
    ($(#[$doc:meta])* pub struct $name:ident { $($value:ident = $number:literal $(as $declared:literal)?,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(
            /// The number; possibly one that the schema doesn't name.
            pub i32,
        );

        impl $name {
            $(
                #[doc = ::core::concat!("Number ", ::core::stringify!($number), ".")]
                pub const $value: Self = Self($number);
            )*

            /// The name of the value in the schema, such as `COLOR_RED`, if it has one; of several, the first.
            #[allow(unreachable_patterns, reason = "two names may have one number")]
            pub fn name(self) -> ::core::option::Option<&'static str> {
                match self.0 {
                    $($number => ::core::option::Option::Some([$($declared,)? ::core::stringify!($value)][0]),)*
                    _ => ::core::option::Option::None,
                }
            }
        }

        impl ::core::fmt::Debug for $name {
            #[allow(unreachable_patterns, reason = "two names may have one number")]
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.0 {
                    $($number => f.write_str(::core::stringify!($value)),)*
                    number => ::core::write!(f, "{}({number})", ::core::stringify!($name)),
                }
            }
        }

        impl $crate::codec::Value for $name {
            type Item<'a> = Self;
            const STRIDE: usize = 4;
            const ALIGN: usize = 4;

            fn store<S: $crate::codec::Sink>(&self, sink: &mut S, fixed: &mut [u8], at: usize) {
                self.0.store(sink, fixed, at);
            }

            fn store_array<S: $crate::codec::Sink>(values: &[Self], sink: &mut S, at: u32) {
                let mut at = at;
                for value in values {
                    sink.put(at, &value.0.to_le_bytes());
                    at = at.wrapping_add(4);
                }
            }

            fn field(place: $crate::codec::Place<'_>, at: u32) -> Self {
                Self(<i32 as $crate::codec::Value>::field(place, at))
            }

            fn element(place: $crate::codec::Place<'_>) -> Self {
                <Self as $crate::codec::Value>::field(place, 0)
            }

            fn own(item: Self) -> Self {
                item
            }
        }
    };
}

pub use crate::open_enum;

#[cfg(test)]
mod tests;

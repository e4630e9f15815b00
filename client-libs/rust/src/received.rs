//! A received message, read in the place where the daemon put it.

use std::fmt;
use std::marker::PhantomData;

use tollgate_core::ReceivedBlock;
use tollgate_core::codec::{Message, Place};

/// A received message in shared memory. Reading it copies nothing; dropping it returns the memory.
///
/// Keep it no longer than needed: its memory isn't available for further messages until it is
/// dropped. To keep the content, take [`Received::to_owned`].
pub struct Received<M> {
    block: ReceivedBlock,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Received<M> {
    pub(crate) fn new(block: ReceivedBlock) -> Received<M> {
        Received {
            block,
            message: PhantomData,
        }
    }

    /// Getters for the fields.
    pub fn view(&self) -> M::View<'_> {
        M::view(Place::root(&self.block))
    }

    /// An owned copy.
    pub fn to_owned(&self) -> M {
        M::from_view(self.view())
    }

    /// The bytes of the block.
    pub fn block(&self) -> &[u8] {
        &self.block
    }
}

impl<M: Message + fmt::Debug> fmt::Debug for Received<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_owned(), f)
    }
}

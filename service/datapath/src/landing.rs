//! Destinations of message bodies from peers: private memory, or directly the heap of the receiving
//! application.

use tollgate_engine::SessionId;
use tollgate_shm_abi::heap::Block;

use tollgate_policy_chain::message::{Body, Message};

/// A body from a peer, and where its bytes go.
pub(crate) struct Landing {
    pub(crate) place: Place,
    pub(crate) inline_len: u32,
    /// Length of the whole image.
    pub(crate) len: usize,
    /// The message's metadata: a checked block, or empty.
    pub(crate) metadata: Vec<u8>,
}

/// Where the bytes of a body go.
pub(crate) enum Place {
    /// Straight into the receive heap of the session that will get it.
    Heap { session: SessionId, block: Block },
    /// Private memory: a chain reads it first.
    Private(Vec<u8>),
    /// As `Heap`, but the link has the block until the whole body is there.
    #[cfg(feature = "rdma")]
    Lent { session: SessionId },
}

impl Landing {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.place {
            Place::Heap { block, .. } => &mut block[..self.len],
            Place::Private(bytes) => &mut bytes[..self.len],
            #[cfg(feature = "rdma")]
            Place::Lent { .. } => &mut [],
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.place {
            Place::Heap { block, .. } => &block[..self.len],
            Place::Private(bytes) => &bytes[..self.len],
            #[cfg(feature = "rdma")]
            Place::Lent { .. } => &[],
        }
    }

    /// The session with the heap that it is in.
    pub(crate) fn session_mut(&mut self) -> Option<&mut SessionId> {
        match &mut self.place {
            Place::Heap { session, .. } => Some(session),
            Place::Private(_) => None,
            #[cfg(feature = "rdma")]
            Place::Lent { session } => Some(session),
        }
    }

    /// The message, once validated.
    pub(crate) fn into_message(self) -> Message {
        let body = match self.place {
            Place::Heap { session, block } => Body::Landed { session, block },
            Place::Private(bytes) => Body::Private {
                bytes,
                accepted: true,
                extents: Vec::new(),
            },
            #[cfg(feature = "rdma")]
            Place::Lent { .. } => Body::Private {
                bytes: Vec::new(),
                accepted: false,
                extents: Vec::new(),
            },
        };
        Message {
            body,
            inline_len: self.inline_len,
            total_len: self.len as u32,
            metadata: self.metadata,
            bare: false,
        }
    }
}

//! Delivered blocks, while this program reads them.

use std::ops::Deref;
use std::sync::Arc;

use tollgate_shm_abi::descriptor::Image;
use tollgate_shm_abi::heap::Delivered;
use tollgate_shm_abi::metadata::MetadataBuf;

use crate::Status;
use crate::connection::Inner;

/// A delivered block, read in place. Dropping it gives the memory back.
#[derive(Debug)]
pub struct ReceivedBlock {
    /// Taken in drop only.
    delivered: Option<Delivered>,
    /// The length of the block; the metadata lies behind it.
    total_len: usize,
    pub(crate) metadata: MetadataBuf,
    pub(crate) trailers: MetadataBuf,
    inner: Arc<Inner>,
}

impl ReceivedBlock {
    pub(crate) fn claim(inner: &Arc<Inner>, image: &Image) -> Result<ReceivedBlock, Status> {
        let broke = |error: &dyn std::fmt::Display| {
            Status::unavailable(format!("the daemon broke the protocol: {error}"))
        };
        let delivered = inner
            .claim(image.offset, image.held_bytes())
            .map_err(|error| broke(&error))?;
        let mut block = ReceivedBlock {
            delivered: Some(delivered),
            total_len: image.total_len as usize,
            metadata: MetadataBuf::new(),
            trailers: MetadataBuf::new(),
            inner: Arc::clone(inner),
        };
        if image.metadata > 0 {
            let held = block.delivered.as_deref().unwrap_or_default();
            let bytes = &held[image.held_bytes() - image.metadata as usize..];
            block.metadata =
                MetadataBuf::from_bytes(bytes.to_vec()).map_err(|error| broke(&error))?;
        }
        Ok(block)
    }

    /// Like [`claim`](Self::claim), but the part may be no block.
    pub(crate) fn claim_part(
        inner: &Arc<Inner>,
        image: &Image,
        bare: bool,
    ) -> Result<ReceivedBlock, Status> {
        if image.exists(bare) {
            return ReceivedBlock::claim(inner, image);
        }
        Ok(ReceivedBlock {
            delivered: None,
            total_len: 0,
            metadata: MetadataBuf::new(),
            trailers: MetadataBuf::new(),
            inner: Arc::clone(inner),
        })
    }

    /// The metadata of the message.
    pub fn metadata(&self) -> &MetadataBuf {
        &self.metadata
    }

    /// Takes the metadata of the message.
    pub fn take_metadata(&mut self) -> MetadataBuf {
        std::mem::take(&mut self.metadata)
    }

    /// The trailers, which came at the end of the call.
    pub fn trailers(&self) -> &MetadataBuf {
        &self.trailers
    }

    /// Takes the trailers, which came at the end of the call.
    pub fn take_trailers(&mut self) -> MetadataBuf {
        std::mem::take(&mut self.trailers)
    }
}

impl Deref for ReceivedBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let held = self.delivered.as_deref().unwrap_or_default();
        &held[..self.total_len]
    }
}

impl Drop for ReceivedBlock {
    fn drop(&mut self) {
        if let Some(delivered) = self.delivered.take() {
            let len = delivered.len();
            self.inner.lock().release(delivered.into_offset(), len);
        }
    }
}

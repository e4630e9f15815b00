//! Ranges of shared memory that a frame borrows until it has left.

use std::sync::Arc;

/// A checked range of a mapping, kept alive by it.
#[derive(Clone, Debug)]
pub struct Span {
    memory: Arc<Vec<u8>>,
    at: usize,
    len: usize,
}

impl Span {
    /// A span of private memory.
    pub fn private(bytes: &[u8]) -> Span {
        Span {
            memory: Arc::new(bytes.to_vec()),
            at: 0,
            len: bytes.len(),
        }
    }

    /// Its length, bytes.
    #[allow(clippy::len_without_is_empty, reason = "never asked")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies its first `bytes.len()` bytes out. `None`, and nothing copied, if it is shorter.
    pub fn copy_to(&self, bytes: &mut [u8]) -> Option<()> {
        bytes.copy_from_slice(self.memory.get(self.at..self.at + bytes.len())?);
        Some(())
    }
}

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Memory of this process alone.
    Private(&'a [u8]),
    /// Shared memory, from byte `at` of the span to its end.
    Shared {
        /// The range.
        span: &'a Span,
        /// Bytes of it to skip.
        at: usize,
    },
}

/// Sends the parts in order; returns how many bytes were taken.
pub(crate) fn send_parts(
    fd: impl rustix::fd::AsFd,
    parts: &[Part<'_>],
) -> rustix::io::Result<usize> {
    let mut bytes = Vec::new();
    for part in parts {
        match part {
            Part::Private(private) => bytes.extend_from_slice(private),
            Part::Shared { span, at } => {
                bytes.extend_from_slice(&span.memory[span.at + at..span.at + span.len])
            }
        }
    }
    rustix::net::send(
        fd,
        &bytes,
        rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT,
    )
}

//! Blocks of send heaps that links still send from.
//!
//! A link sends large extents in place and gives a token back once their bytes have left. Then the
//! block of that token returns to its session.
//!
//! Invariants: a token is unique in the whole process, because blocks move with their links; it
//! begins with the id of the engine that made it. A block returns once.

use std::collections::HashMap;

use tollgate_engine::{EngineId, SessionId};
use tollgate_policy_chain::message::Source;
use tollgate_transport::Token;

/// The blocks, by token.
pub(crate) struct OutgoingBlocks {
    by_token: HashMap<u64, Source>,
    next: u64,
}

impl OutgoingBlocks {
    pub(crate) fn new(engine: EngineId) -> Self {
        Self {
            by_token: HashMap::new(),
            next: u64::from(engine.number()) << 48,
        }
    }

    /// The token for the next block.
    #[inline]
    pub(crate) fn next_token(&self) -> Token {
        Token(self.next)
    }

    /// A link has the next token, and sends from this block.
    #[inline]
    pub(crate) fn add(&mut self, source: Source) {
        self.by_token.insert(self.next, source);
        self.next += 1;
    }

    /// A link has given a token back: the block to return, if its session is still here.
    #[inline]
    pub(crate) fn sent(&mut self, Token(token): Token) -> Option<Source> {
        self.by_token.remove(&token)
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = Source> {
        self.by_token.values().copied()
    }

    /// Drops the blocks of sessions that have ended: they are no longer needed.
    pub(crate) fn retain(&mut self, is_open: impl Fn(SessionId) -> bool) {
        self.by_token.retain(|_, source| is_open(source.session));
    }

    /// Takes out the blocks of some sessions.
    pub(crate) fn part(&mut self, sessions: &[SessionId]) -> Vec<(u64, Source)> {
        self.by_token
            .extract_if(|_, source| sessions.contains(&source.session))
            .collect()
    }

    /// Adds a block with the token that it had at another runtime.
    pub(crate) fn absorb(&mut self, token: u64, source: Source) {
        self.by_token.insert(token, source);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn source(session: u32, offset: u64) -> Source {
        Source {
            session: SessionId(session),
            offset,
        }
    }

    #[test]
    fn a_block_returns_once_under_the_token_that_its_link_has() {
        let mut blocks = OutgoingBlocks::new(EngineId::new(3).unwrap());
        let first = blocks.next_token();
        assert_eq!(first.0 >> 48, 3, "it begins with the engine's id");
        blocks.add(source(1, 64));
        let second = blocks.next_token();
        assert_ne!(first, second);
        blocks.add(source(2, 128));
        assert_eq!(blocks.sent(first).map(|block| block.offset), Some(64));
        assert!(blocks.sent(first).is_none());
        let parted = blocks.part(&[SessionId(2)]);
        assert_eq!(parted.len(), 1);
        assert_eq!(parted[0].0, second.0, "tokens stay");
        assert_eq!(blocks.sources().count(), 0);
        let mut there = OutgoingBlocks::new(EngineId::new(4).unwrap());
        there.absorb(parted[0].0, source(9, parted[0].1.offset));
        assert_eq!(
            there.sent(second).map(|block| block.session),
            Some(SessionId(9))
        );
    }
}

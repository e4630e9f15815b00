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

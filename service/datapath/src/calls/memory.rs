//! Memory of messages: where their bytes are, and how it is freed.
//!
//! | a message is | in | freed to |
//! |---|---|---|
//! | private or encoded | a buffer | the pool |
//! | gathered | a buffer, and a block of a send heap | the pool, and the session that posted it |
//! | landed | a block of a receive heap | that heap |
//!
//! Invariant: memory is freed once. So a function that frees a message takes it by value.

use tollgate_engine::SessionId;
use tollgate_policy_chain::message::{Body, Message, Pool};
use tollgate_shm_abi::descriptor::held_bytes;
use tollgate_shm_abi::metadata::Metadata;

use crate::calls::table::Sessions;
use crate::landing::{Landing, Place};

/// As [`discard`], for a message of the engine.
pub(crate) fn discard_boxed(message: Box<Message>, pool: &mut Pool, sessions: &mut Sessions) {
    let message = pool.unboxed(message);
    discard(message, pool, sessions);
}

/// Frees a message's buffer, its block, or both.
pub(crate) fn discard(message: Message, pool: &mut Pool, sessions: &mut Sessions) {
    pool.give(message.metadata);
    match message.body {
        Body::Private { bytes, .. } | Body::Encoded { bytes, .. } => pool.give(bytes),
        Body::Gathered { inline, source, .. } => {
            pool.give(inline);
            sessions.reclaim(source);
        }
        Body::Landed { session, block } => sessions.discard_block(session, block),
    }
}

pub(crate) fn discard_landing(landing: Landing, pool: &mut Pool, sessions: &mut Sessions) {
    discard(landing.into_message(), pool, sessions);
}

/// The destination of a body of `len` bytes: the heap of the receiving application, if no chain
/// reads the body first and there is room; otherwise private memory.
pub(crate) fn landing(
    session: Option<SessionId>,
    inline_len: u32,
    len: usize,
    metadata: Vec<u8>,
    pool: &mut Pool,
    sessions: &mut Sessions,
) -> Landing {
    let held = held_bytes(len, metadata.len());
    let block = session.and_then(|session| Some((session, sessions.alloc(session, held)?)));
    let place = match block {
        Some((session, block)) => Place::Heap { session, block },
        None => Place::Private(pool.take(len)),
    };
    Landing {
        place,
        inline_len,
        len,
        metadata,
    }
}

/// A private copy of a body's metadata.
pub(crate) fn keep_metadata(came: Metadata<'_>, pool: &mut Pool) -> Vec<u8> {
    if came.is_empty() {
        return Vec::new();
    }
    let mut kept = pool.take(came.as_bytes().len());
    kept.copy_from_slice(came.as_bytes());
    kept
}

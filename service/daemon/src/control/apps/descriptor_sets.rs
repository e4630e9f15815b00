//! Descriptor sets that come with a request.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tollgate_engine::Status;
use tollgate_shm_abi::blob::blob_read;
use tollgate_shm_abi::status::Code;

use crate::control::apps::schema_cache::SchemaCache;
use crate::control::apps::schemas::{BoundSchema, Bringer, SetKey, parse};
use crate::control::apps::turns::Turn;

/// The blob of a request that carries one; `what` names the request.
pub(crate) fn descriptor_set(what: &str, fds: &[OwnedFd]) -> Result<Vec<u8>, Status> {
    let blob = one_descriptor(what, fds)?;
    blob_read(blob, tollgate_schema::limits::MAX_DESCRIPTOR_SET).map_err(|error| {
        Status::new(
            Code::INVALID_ARGUMENT,
            format!("the schema can't be read: {error}"),
        )
    })
}

/// Refuses a descriptor set that is too long.
pub(crate) fn check_size(set: &[u8]) -> Result<(), Status> {
    let most = tollgate_schema::limits::MAX_DESCRIPTOR_SET;
    if set.len() <= most {
        return Ok(());
    }
    let text = format!("the schema has {} bytes; the limit is {most}", set.len());
    Err(Status::new(Code::INVALID_ARGUMENT, text))
}

pub(crate) fn one_descriptor<'f>(what: &str, fds: &'f [OwnedFd]) -> Result<&'f OwnedFd, Status> {
    match fds {
        [blob] => Ok(blob),
        _ => Err(Status::new(
            Code::INVALID_ARGUMENT,
            format!(
                "{what} carries one descriptor, its schema; this one carried {}",
                fds.len()
            ),
        )),
    }
}

/// The schema's entry: found by the descriptor set's hash, or resolved. Its methods are compiled
/// when they are first called.
pub(crate) async fn intern(
    schemas: &SchemaCache,
    turn: &Turn,
    by: &Bringer,
    bytes: Vec<u8>,
    service: &str,
) -> Result<Arc<BoundSchema>, Status> {
    /// Larger descriptor sets are resolved on a blocking thread. One of this size takes less than
    /// about 2 ms.
    const RESOLVED_HERE: usize = 4 << 10;
    /// Larger sets are hashed there, too. One of this size takes about 0.3 ms.
    const HASHED_HERE: usize = 256 << 10;
    let (bytes, name) = (Arc::new(bytes), Arc::<str>::from(service));
    let key = if bytes.len() <= HASHED_HERE {
        SetKey::new(&bytes, service)
    } else {
        let (bytes, name) = (Arc::clone(&bytes), Arc::clone(&name));
        turn.on_blocking_thread(move || SetKey::new(&bytes, &name))
            .await?
    };
    if let Some(known) = schemas.known(&key) {
        return Ok(known);
    }
    let resolved = if bytes.len() <= RESOLVED_HERE {
        parse(&bytes, service)?
    } else {
        let bytes = Arc::clone(&bytes);
        turn.on_blocking_thread(move || parse(&bytes, &name))
            .await??
    };
    schemas.intern(key, resolved, &bytes, by)
}

//! Bounds on what is compiled, and on what waits for it. Past them the interpreter serves on.

/// Most steps of one program, inlined ones counted where they are inlined. About 100 ms of compilation.
pub const MAX_STEPS: usize = 20_000;

/// A struct with at most this many steps, none of them leading to further structs, is inlined where it is used.
pub const MAX_INLINED_STEPS: usize = 6;

/// A struct with at most this many fields, none of them a message, is inlined where it is encoded and decoded.
pub const MAX_INLINED_FIELDS: usize = 6;

/// Address space reserved per step, in bytes; several times what a step's code takes.
pub(crate) const CODE_BYTES_PER_STEP: usize = 4096;

/// Methods and projections that wait for the compile thread. Further ones are refused, and asked for
/// again by their next call. At about 1 ms each, a full queue is 1 s of work.
pub const COMPILE_QUEUE: usize = 1_024;
/// Of those, methods of schemas that one tenant has brought. Tenants take turns, so no tenant waits
/// for another's queue.
pub const COMPILE_QUEUE_PER_TENANT: usize = COMPILE_QUEUE / 4;

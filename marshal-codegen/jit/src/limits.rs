//! Limits of compilation and of its queue. Beyond them the interpreter is used.

/// The most steps of one program; inlined steps count at each use. About 100 ms of compilation.
pub const MAX_STEPS: usize = 20_000;

/// A struct with at most this many steps, none of which leads to further structs, is inlined at
/// each use.
pub const MAX_INLINED_STEPS: usize = 6;

/// A struct with at most this many fields, none of which is a message, is inlined where it is
/// encoded and decoded.
pub const MAX_INLINED_FIELDS: usize = 6;

/// The address space reserved per step, in bytes; several times a step's usual code.
pub(crate) const CODE_BYTES_PER_STEP: usize = 4096;

/// Methods and projections that wait for the compile thread. Further ones are refused, and asked
/// for again by their next call. At about 1 ms each, a full queue is 1 s of work.
pub const COMPILE_QUEUE: usize = 1_024;
/// Of those, methods of schemas that one tenant has brought. Tenants take turns, so no tenant waits
/// for another's queue.
pub const COMPILE_QUEUE_PER_TENANT: usize = COMPILE_QUEUE / 4;

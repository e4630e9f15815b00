//! Every bound of the policy host, in one place.
//!
//! Resources that one tenant can hold. Per instance: its memory ([`MEMORY_BYTES`] by default,
//! [`COMPAT_MEMORY_BYTES`] of a compat module), its table ([`TABLE_ELEMENTS`] x 8 bytes), a 128
//! KiB share of the calling thread's stack while it runs ([`STACK_BYTES`]), [`LOG_LINES`] x
//! [`LOG_LINE_BYTES`] of log, [`COUNTERS`] x 8 bytes of counters, [`GAUGES`] x 16 bytes of gauges
//! and [`HISTOGRAMS`] x 520 bytes of histograms. Per policy of an owner: [`STATE_BYTES`] of shared
//! state. Per loaded policy: its machine code, about ten times [`MODULE_BYTES`] in the worst case.
//!
//! The daemon's memory for compiling, over all tenants. Per worker: a module and its code
//! ([`MODULE_BYTES`], and twice [`ARTIFACT_BYTES`] while it is loaded). In total: [`REFUSALS`] x
//! [`REASON_BYTES`]; and [`ARTIFACTS_IN_MEMORY_BYTES`] without a directory.

use std::time::Duration;

use tollgate_shm_abi::session::SessionShape;

/// Bytes of a module as uploaded. Checked first.
pub const MODULE_BYTES: usize = 1 << 20;

/// Bytes of a policy's configuration.
pub const CONFIG_BYTES: usize = 1 << 20;

/// Bytes of the manifest's JSON.
pub const MANIFEST_BYTES: usize = 16 << 10;
/// Bytes of any one name or path in the manifest, and of a path in a configuration.
pub const NAME_BYTES: usize = 256;
/// Bytes of a policy's own name, which must also be valid as a file name.
pub const POLICY_NAME_BYTES: usize = 64;
/// Entries of the manifest's `methods`, and of a configuration's.
pub const METHODS: usize = 64;
/// Fields per method and direction that the manifest and the configuration name together.
pub const FIELDS: usize = 32;
/// Fields that a policy may change, per method and direction.
pub const CHANGES: usize = 32;
/// Metadata keys that a policy reads, and as many again that it may change, per method and
/// direction.
pub const METADATA_KEYS: usize = 16;
/// Counters of a policy.
pub const COUNTERS: usize = 64;
/// Gauges of a policy.
pub const GAUGES: usize = 64;
/// Histograms of a policy.
pub const HISTOGRAMS: usize = 64;
/// Buckets of a histogram: one for values up to 0, and one for each power of two.
pub const BUCKETS: usize = 64;
/// Minimum milliseconds between two ticks: a tick costs as much as a call.
pub const TICK_MS_MIN: u32 = 100;
/// Maximum milliseconds between two ticks: an hour.
pub const TICK_MS_MAX: u32 = 3_600_000;

/// Functions that a module defines.
pub const FUNCTIONS: u32 = 10_000;
/// Bytes of one function's body. Register allocation takes more than linear time in it.
pub const FUNCTION_BYTES: usize = 64 << 10;
/// Locals of one function.
pub const LOCALS: u64 = 1024;
/// Nesting of blocks. Real Rust code reaches 146, so the limit must be at least 256.
pub const NESTING: u32 = 512;
/// Targets of one `br_table`.
pub const BRANCH_TARGETS: u32 = 1024;
/// Blocks times locals of one function: the amount that the conversion to SSA form may have to
/// process.
pub const BLOCKS_TIMES_LOCALS: u64 = 300_000;
/// Sum over all functions of instructions, branch targets and an eighth of blocks times locals.
pub const COMPILE_COST: u64 = 1_000_000;
/// Exports of a module.
pub const EXPORTS: u32 = 256;
/// Imports of a module; ten exist.
pub const IMPORTS: u32 = 16;
/// Globals of a module.
pub const GLOBALS: u32 = 1024;
/// Tables of a module: indirect calls need one.
pub const TABLES: u32 = 1;
/// Initial elements of a module's table, and the upper limit of [`TABLE_ELEMENTS`]. A larger table
/// is refused without a worker. An instance's slot in the pool reserves 8 bytes of address space
/// for each: 128 KiB, besides 4 GiB for its memory.
pub const TABLE_ELEMENTS_MAX: usize = 2 * TABLE_ELEMENTS;
/// Data segments of a module.
pub const DATA_SEGMENTS: u32 = 4096;
/// Types of a module.
pub const TYPES: u32 = 4096;

/// CPU time for compiling one module, by default.
pub const COMPILE_TIMEOUT: Duration = Duration::from_secs(10);
/// Factor for a worker's time by the clock. On a fully loaded machine compilation continues, and
/// the CPU time alone would say nothing about the module.
pub const COMPILE_PATIENCE: u32 = 6;
/// Bytes of a compile worker's address space, by default.
pub const COMPILE_MEMORY_BYTES: u64 = 512 << 20;
/// Bytes of a compile worker's stack.
pub const COMPILER_STACK_BYTES: u64 = 8 << 20;
/// Bytes of machine code that a worker may write.
pub const ARTIFACT_BYTES: usize = 32 << 20;
/// Compiled modules that are kept.
pub const ARTIFACTS: usize = 1024;
/// Bytes of compiled modules that are kept in a directory.
pub const ARTIFACTS_BYTES: u64 = 256 << 20;
/// Bytes of compiled modules that are kept in memory, if there is no directory.
pub const ARTIFACTS_IN_MEMORY_BYTES: u64 = 16 << 20;
/// Refused modules that are remembered, with up to [`REASON_BYTES`] of reason each.
pub const REFUSALS: usize = 4096;
/// Bytes of the reason why a manifest is refused. The rest is cut.
pub const REASON_BYTES: usize = 1024;
/// How long a module that killed the compiler isn't tried again: the machine may have caused it.
pub const REFUSAL_PAUSE: Duration = Duration::from_secs(300);

/// Orders in flight to a policy process at once.
pub const ISOLATED_ORDERS: usize = 256;
/// Calls in one order.
pub const ISOLATED_CALLS: usize = 8;
/// Bytes of the views of one order: the maximum of one view, plus heads and alignment.
pub const ISOLATED_VIEWS_BYTES: usize = VIEW_BYTES + ISOLATED_CALLS * 24;
/// Bytes of all views in flight to one process.
pub const ISOLATED_VIEWS_HEAP_BYTES: usize = 4 << 20;
/// Bytes of an answer: eight lists of effects, or eight messages, a full log, and the changes of
/// all metrics.
pub const ISOLATED_ANSWER_BYTES: usize = 1 << 20;
/// Bytes of all answers that haven't been taken. A process that needs more at once dies.
pub const ISOLATED_ANSWERS_HEAP_BYTES: usize = 16 << 20;
/// Instances in one policy process.
pub const ISOLATED_INSTANCES: usize = 256;
/// Bytes of a policy process's last words.
pub const ISOLATED_OUTPUT_BYTES: u64 = 16 << 10;
/// Bytes of writable memory of a policy process, by default; also the limit of its resident memory.
pub const ISOLATED_MEMORY_BYTES: u64 = 256 << 20;
/// Time added to an order's budget before its answer is late: a fully loaded machine schedules a
/// process late, and a virtual machine can pause for some 100 ms. A hanging process blocks its own
/// tenant's calls for this time.
pub const ISOLATED_MARGIN: Duration = Duration::from_millis(500);
/// Factor between the time that an order's fuel stands for and its deadline. A factor of 13 was
/// measured for guests with loads that miss all caches.
pub const ISOLATED_STALL: u32 = 16;
/// Time limit for the start of a policy process, and for creating an instance.
pub const ISOLATED_SETUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The shared memory of a policy process: 20 MiB with both heaps full.
pub(crate) fn isolated_shape() -> SessionShape {
    SessionShape {
        ring_capacity: 4 * ISOLATED_ORDERS as u32,
        send_heap_bytes: ISOLATED_ANSWERS_HEAP_BYTES as u64,
        receive_heap_bytes: ISOLATED_VIEWS_HEAP_BYTES as u64,
    }
}

const _: () = assert!(
    ISOLATED_CALLS * (CHANGED_BYTES + 4096)
        + LOG_LINES * (LOG_LINE_BYTES + 8)
        + 16 * (COUNTERS + GAUGES + HISTOGRAMS * (BUCKETS + 1))
        <= ISOLATED_ANSWER_BYTES,
    "what an answer can hold fits"
);
/// Bytes of linear memory of an instance, by default: the shadow stack of a Rust guest takes 1 MiB.
pub const MEMORY_BYTES: usize = 4 << 20;
/// Elements of an instance's table, by default: 64 KiB, a 64th of [`MEMORY_BYTES`], and only
/// touched pages exist. Go's compiler leaves the first 4,096 empty and adds one for each function,
/// so its filters have 5,800 to 6,400.
pub const TABLE_ELEMENTS: usize = 8192;
/// Bytes of native stack that a guest may use.
pub const STACK_BYTES: usize = 128 << 10;
/// Instances alive at once in one host, by default. Each reserves 4 GiB of address space, no
/// memory.
pub const INSTANCES: u32 = 1000;

/// Bytes of memory that a slot of the pool keeps, zeroed, between two instances: more than an
/// honest policy touches, and little enough that hostile ones can't leave much behind (64 MiB in
/// 1,000 slots).
pub const KEPT_MEMORY_BYTES: usize = 64 << 10;
/// Bytes of a table that a slot of the pool keeps, zeroed, between two instances.
pub const KEPT_TABLE_BYTES: usize = 4 << 10;

/// Bytes of one view; the marshaller promises the same.
pub const VIEW_BYTES: usize = 64 << 10;
/// Views in one batch.
pub const BATCH: usize = 64;
/// Bytes of a denial's message that reach the caller.
pub const MESSAGE_BYTES: usize = 1024;
/// Records of one effect list: every field and every metadata key once, and a delay, a priority and
/// a route.
pub const EFFECTS: usize = CHANGES + METADATA_KEYS + 3;
/// Bytes of all values of one verdict with effects: the size of one view.
pub const CHANGED_BYTES: usize = 64 << 10;
/// Maximum delay of a call by a policy, in microseconds: one second. A waiting call holds memory.
pub const DELAY_US: u32 = 1_000_000;
/// The most urgent priority.
pub const PRIORITY: u8 = 7;
/// Bytes of a route's label.
pub const ROUTE_BYTES: usize = 64;
/// Bytes that a policy hands over to its next version.
pub const SAVED_BYTES: usize = 1 << 20;
/// Bytes of one request for random bytes.
pub const RANDOM_BYTES: usize = 256;
/// Bytes of a configuration error's text that reach the operator.
pub const CONFIG_ERROR_BYTES: usize = 1024;

/// Bytes of one log line; the rest is cut.
pub const LOG_LINE_BYTES: usize = 512;
/// Log lines kept until they are collected; later ones are counted and dropped.
pub const LOG_LINES: usize = 64;

/// Keys of one shared state, by default.
pub const STATE_KEYS: usize = 4096;
/// Bytes of a key of shared state, by default.
pub const STATE_KEY_BYTES: usize = 256;
/// Bytes of a value of shared state, by default.
pub const STATE_VALUE_BYTES: usize = 64 << 10;
/// Bytes of one shared state, by default.
pub const STATE_BYTES: usize = 1 << 20;
/// Assumed overhead in bytes of an entry of shared state: its place in the map and two allocations.
pub const STATE_ENTRY_BYTES: usize = 96;

/// Minimum budget of one call, in microseconds: entering and leaving a guest takes a twentieth of
/// it.
pub const CPU_US_MIN: u64 = 5;
/// Maximum budget of one call, in microseconds: one call may block all others of its runtime for
/// this time.
pub const CPU_US_MAX: u64 = 10_000;
/// Fuel for evaluating one call: 100 us ([`crate::cost`] has the unit).
pub const FUEL_PER_CALL: u64 = 100 * crate::cost::FUEL_PER_MICROSECOND;
/// Fuel for each byte of a larger buffer, besides a call's budget: a large message isn't the
/// policy's fault, and the smallest budget must suffice for it, too. Zeroing takes a unit per byte
/// and growing the memory a 250th of a unit. Buffers double, so an instance that burns all of this
/// gets 3 ms in its life, and then dies.
pub const FUEL_PER_BUFFER_BYTE: u64 = 4;
/// Fuel for start function, first buffer and configuration together: 100 ms.
pub const FUEL_FOR_SETUP: u64 = 100_000 * crate::cost::FUEL_PER_MICROSECOND;
/// Fuel for saving the state, and again for restoring it: 2 ms. It is spent on the datapath,
/// between two calls.
pub const FUEL_FOR_HANDOVER: u64 = 2_000 * crate::cost::FUEL_PER_MICROSECOND;

/// Bytes of a compat module as uploaded, including its description: filters contain a language's
/// run-time library. So do policies whose manifest declares `wasi`: for them, all limits of compat
/// modules hold.
pub const COMPAT_MODULE_BYTES: usize = 4 << 20;
/// Bytes of linear memory of a compat module's instance, by default. Go's runtime has 2.3 to 3 MiB
/// of data and first collects garbage when its heap reaches 4 MiB: with less, a filter that
/// allocates runs out of memory.
pub const COMPAT_MEMORY_BYTES: usize = 8 << 20;
/// Functions that a compat module defines.
pub const COMPAT_FUNCTIONS: u32 = 20_000;
/// Data segments, and element segments, of a compat module. Go's compiler makes one of every few
/// non-zero bytes: 29,000 to 40,000.
pub const COMPAT_DATA_SEGMENTS: u32 = 65_536;
/// Like [`NESTING`], for compat modules: Go's compiler opens a block for each point where a
/// function can resume; its runtime reaches 549.
pub const COMPAT_NESTING: u32 = 1024;
/// Like [`BRANCH_TARGETS`], for compat modules: one for each of those points; filters in Go reach
/// 1,144.
pub const COMPAT_BRANCH_TARGETS: u32 = 2048;
/// Imports of a compat module; 63 exist.
pub const COMPAT_IMPORTS: u32 = 64;
/// Like [`COMPILE_COST`], for compat modules. A worker's time and memory are the same.
pub const COMPAT_COMPILE_COST: u64 = 4_000_000;
/// Keys in each of a description's lists.
pub const COMPAT_KEYS: usize = 64;
/// Bytes of a message, or of its fields, that a compat module is shown, and of a message that it
/// writes.
pub const COMPAT_BODY_BYTES: usize = 1 << 20;

/// Headers of one message that a filter has.
pub const HEADERS: usize = 128;
/// Bytes of those headers, including names, plus 32 for each.
pub const HEADER_BYTES: usize = 32 << 10;
/// Calls of one instance with an evaluated request and no evaluated reply yet. Each keeps up to
/// twice [`HEADER_BYTES`] for its headers, and [`PROPERTY_BYTES`].
pub const OPEN_CALLS: usize = 256;
/// Bytes of the properties that a filter sets on one call, plus [`STATE_ENTRY_BYTES`] for each.
pub const PROPERTY_BYTES: usize = 4 << 10;
/// Queues of one instance.
pub const QUEUES: usize = 16;
/// Bytes in all queues of one instance, plus [`STATE_ENTRY_BYTES`] for each item.
pub const QUEUED_BYTES: usize = 64 << 10;
/// Parts of one write, and subscriptions of one wait.
pub const WRITE_VECTORS: usize = 64;
/// Bytes of an OPA decision, as JSON.
pub const DECISION_BYTES: usize = 64 << 10;

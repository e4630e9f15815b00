//! Every bound of the rules' compiler, in one place.
//!
//! The compiler runs on the author's machine, so these bounds protect a build or an editor that is
//! given a hostile file. A module that is within them also fits into the daemon's limits, which the
//! daemon checks again: the limits of a manifest below are those of the policy host, and a test
//! compares them.

/// Bytes of a file of rules.
pub const FILE_BYTES: usize = 256 << 10;
/// Rules in a file.
pub const RULES: usize = 256;
/// Lists in a file.
pub const LISTS: usize = 64;
/// Values of one list, in the file or in an expression.
pub const LIST_ITEMS: usize = 8192;
/// Bytes of one expression. The parser keeps a tree whose depth can be half of it.
pub const EXPRESSION_BYTES: usize = 4096;
/// Parentheses, calls and operators inside each other in an expression.
pub const NESTING: usize = 64;
/// Nodes of an expression after its macros are unrolled.
pub const NODES: usize = 4096;
/// Bytes of one constant text.
pub const TEXT_BYTES: usize = 4096;
/// Bytes of a name in the file: of a rule, a list or a method.
pub const NAME_BYTES: usize = 128;
/// Bytes of a regular expression.
pub const REGEX_BYTES: usize = 1024;
/// Bytes that a regular expression may take while its table is made.
pub const REGEX_WORK_BYTES: usize = 4 << 20;
/// Bytes of the table of a regular expression.
pub const REGEX_TABLE_BYTES: usize = 64 << 10;
/// Bytes of all constants and tables of a module.
pub const DATA_BYTES: usize = 512 << 10;
/// Bytes of a module.
pub const MODULE_BYTES: usize = 1 << 20;
/// Bytes of code after which the rules of a method continue in another function.
pub const CHUNK_BYTES: usize = 8 << 10;
/// Bytes of one function's code.
pub const FUNCTION_BYTES: usize = 64 << 10;

/// Constraints of a schema that are made rules, or named.
pub const CONSTRAINTS: usize = 1024;
/// Sets of buckets of a module, each for 8 keys of its rules. A power of two: as many as the shared
/// state has keys.
pub const BUCKET_SETS: u32 = 4096;
/// The lowest rate, in calls per second.
pub const LEAST_PER_SECOND: f64 = 0.001;
/// The highest rate, in calls per second.
pub const MOST_PER_SECOND: f64 = 1_000_000.0;
/// Calls of a burst.
pub const BURST: u32 = 1_000_000;

/// Bytes of the manifest.
pub const MANIFEST_BYTES: usize = 16 << 10;
/// Methods of a module: those that the rules name, and those that `package.Service/*` stands for.
pub const METHODS: usize = 64;
/// Fields that the rules read of one message, and as many that they change.
pub const FIELDS: usize = 32;
/// Metadata keys that the rules read of one message, and as many that they change.
pub const METADATA_KEYS: usize = 16;
/// Counters of a module.
pub const COUNTERS: usize = 64;
/// Bytes of a module's name.
pub const POLICY_NAME_BYTES: usize = 64;

/// Bytes of a string that an expression computes: the policy host takes no longer value.
pub const COMPUTED_BYTES: usize = 64 << 10;
/// Calls in one evaluation.
pub const BATCH: usize = 64;
/// The longest delay, in milliseconds.
pub const DELAY_MS: u32 = 1000;
/// The highest priority.
pub const PRIORITY: u8 = 7;
/// Bytes of a route's label.
pub const ROUTE_BYTES: usize = 64;

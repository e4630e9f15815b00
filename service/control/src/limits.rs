//! Every bound of the store, and what they sum to.
//!
//! One tenant's share of the file is at most [`MAX_POLICIES`] x [`MAX_VERSIONS`] x ([`MAX_MODULE_BYTES`] +
//! [`MAX_CONFIG_BYTES`]) (4 GiB, if every version is a different module and each is full); equal modules are kept once,
//! for all tenants.

/// Tenants of one daemon.
pub const MAX_TENANTS: u64 = 10_000;

/// Policies of one tenant, by name.
pub const MAX_POLICIES: usize = 64;

/// Names of policies that one owner has ever used: those of deleted ones are kept, so that their versions aren't given out again.
pub const MAX_POLICY_NAMES: usize = 1_024;

/// How long a token that was rotated may still open sessions: 30 days.
pub const MAX_GRACE: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3_600);

/// Versions kept of one policy. A push beyond it drops the oldest version that isn't attached.
pub const MAX_VERSIONS: usize = 32;

/// Attachments of one tenant, and of the provider.
pub const MAX_ATTACHMENTS: usize = 256;

/// CPU microseconds per call that an attachment may ask for, least and most.
pub const CPU_US: (u32, u32) = (5, 10_000);

/// Views of calls that an attachment may keep for `policy diff`.
pub const MAX_RECORD: u32 = 10_000;

/// Views that it keeps unless it is told otherwise: none, so that no call's data stays around by default.
pub const DEFAULT_RECORD: u32 = 0;

/// Percentage points by which a candidate's error rate may be worse than the stable's, unless the attachment says otherwise.
pub const DEFAULT_MAX_WORSE: u8 = 5;

/// Names in one list of grants, and bytes of each: a manifest can't declare more.
pub const MAX_GRANTS: usize = 256;
/// See [`MAX_GRANTS`].
pub const MAX_GRANT: usize = 512;

/// Bytes of a module: of those that were made for other hosts. The policy host takes a quarter of it for others.
pub const MAX_MODULE_BYTES: usize = 4 << 20;

/// Bytes of a policy's configuration.
pub const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Bytes of a tenant's or policy's name.
pub const MAX_NAME: usize = 64;

/// Bytes of a service's full name, or of a method's.
pub const MAX_SERVICE: usize = 256;

/// Settings of the daemon that are kept as they were set at run time.
pub const MAX_SETTINGS: u64 = 64;

/// Bytes of the value of one.
pub const MAX_SETTING_BYTES: usize = 4_096;

/// Bytes of cached pages; the store is read at start and on change, never by a call.
pub const CACHE_BYTES: usize = 8 << 20;

/// Bytes of the details of one audit record. Longer ones are replaced by their length, which is visible.
pub const MAX_DETAILS_BYTES: usize = 16 << 10;

/// Bytes of one line of the audit log that a reader accepts: details, and what is around them.
pub const MAX_LINE_BYTES: usize = MAX_DETAILS_BYTES + 4096;

/// Audit records that a daemon without a state directory keeps.
pub const AUDIT_RING: usize = 1_024;

/// Audit records that are shown at once.
pub const MAX_SHOWN: usize = 1_000;

/// Repeated events of one kind and culprit (faults, mostly) are recorded once in this time, with how often they happened.
pub const REPEAT_WINDOW: std::time::Duration = std::time::Duration::from_secs(10);

/// Culprits whose repetitions are counted apart; beyond them, repetitions are counted together.
pub const REPEAT_KEYS: usize = 1_024;

/// Records that repeated events may add in one [`REPEAT_WINDOW`], over all culprits: at 300 bytes each, at most 16 MB a day.
pub const REPEATS_PER_WINDOW: u32 = 6;

/// Damaged files that are kept aside after they were made again from their copies. The oldest make room.
pub const DAMAGED_FILES: usize = 4;

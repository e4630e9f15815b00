//! The limits of the store, and their sum.
//!
//! One tenant's share of the file is at most [`MAX_POLICIES`] x [`MAX_VERSIONS`] x
//! ([`MAX_MODULE_BYTES`] + [`MAX_CONFIG_BYTES`]): 10 GiB if every version is a different module and
//! each has full size. Equal modules are stored once for all tenants. A tenant's ceiling is lower,
//! by default 512 MiB ([`CEILING_KEYS`](crate::CEILING_KEYS)).

/// Tenants of one daemon.
pub const MAX_TENANTS: u64 = 10_000;

/// Policies of one tenant, by name.
pub const MAX_POLICIES: usize = 64;

/// Names of policies that one owner has ever used. Names of deleted policies are kept, so that
/// their versions aren't given out again.
pub const MAX_POLICY_NAMES: usize = 1_024;

/// Credentials of one tenant. Each has one token, and at most one that was replaced and has a
/// grace.
pub const MAX_CREDENTIALS: usize = 64;

/// The shortest and the longest life of a credential that expires: a minute, and ten years.
pub const MIN_LIFETIME: std::time::Duration = std::time::Duration::from_secs(60);
/// See [`MIN_LIFETIME`].
pub const MAX_LIFETIME: std::time::Duration = std::time::Duration::from_secs(3_650 * 24 * 3_600);

/// How long a rotated token may still open sessions: 30 days.
pub const MAX_GRACE: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3_600);

/// Requests of one tenant that wait for an operator's approval.
pub const MAX_WAITING: usize = 16;

/// Decided requests of one tenant that are kept, so that it sees what became of them. The oldest
/// are dropped first.
pub const MAX_DECIDED: usize = 32;

/// Bytes of one request for approval, as it is stored.
pub const MAX_APPROVAL_BYTES: usize = 64 << 10;

/// Requests for approval in one answer.
pub const MAX_APPROVALS_SHOWN: usize = 256;

/// How long a request may wait for approval: 30 days.
pub const APPROVAL_LIFE: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3_600);

/// Bytes of the reason why a request was denied.
pub const MAX_REASON: usize = 1_024;

/// Keys of signers in a ceiling.
pub const MAX_SIGNERS: usize = 16;

/// Least and most characters of a signer's key in base64: Ed25519 has 60, ECDSA P-256 has 124.
pub const SIGNER_BYTES: (u32, u32) = (40, 256);

/// Versions kept of one policy. A further push drops the oldest version that isn't attached.
pub const MAX_VERSIONS: usize = 32;

/// Attachments of one tenant, and of the provider.
pub const MAX_ATTACHMENTS: usize = 256;

/// Least and most CPU time per call that an attachment may set, in microseconds.
pub const CPU_US: (u32, u32) = (5, 10_000);

/// Views of calls that an attachment may keep for `policy diff`.
pub const MAX_RECORD: u32 = 10_000;

/// Views that an attachment keeps by default: none, so that no call's data is stored by default.
pub const DEFAULT_RECORD: u32 = 0;

/// Percentage points by which a candidate's error rate may exceed the stable version's by default.
pub const DEFAULT_MAX_WORSE: u8 = 5;

/// Names in one list of grants: a manifest can't declare more.
pub const MAX_GRANTS: usize = 256;
/// Bytes of one name in a list of grants.
pub const MAX_GRANT: usize = 512;

/// Bytes of a module for a compat ABI. The policy host limits other modules to a quarter of it.
pub const MAX_MODULE_BYTES: usize = 4 << 20;

/// Bytes of a policy's configuration.
pub const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Bytes of a tenant's or policy's name.
pub const MAX_NAME: usize = 64;

/// Bytes of a service's full name, or of a method's.
pub const MAX_SERVICE: usize = 256;

/// Objects that one tenant's credentials have applied by documents, over all its sets, and that are
/// remembered.
pub const MAX_APPLIED: usize = 8_192;

/// Changes in one transaction.
pub const MAX_CHANGES: usize = 40_000;

/// Daemon settings that are stored at run time.
pub const MAX_SETTINGS: u64 = 64;

/// Bytes of a setting's value.
pub const MAX_SETTING_BYTES: usize = 4_096;

/// Bytes of cached pages. The store is read at the start and on changes, never during a call.
pub const CACHE_BYTES: usize = 8 << 20;

/// Bytes of the details of one audit record. Longer details are replaced by their length.
pub const MAX_DETAILS_BYTES: usize = 16 << 10;

/// Bytes of one line of the audit log that a reader accepts: the details and the other fields.
pub const MAX_LINE_BYTES: usize = MAX_DETAILS_BYTES + 4096;

/// Audit records that a daemon without a state directory keeps.
pub const AUDIT_RING: usize = 1_024;

/// Audit records in one answer.
pub const MAX_SHOWN: usize = 1_000;

/// Repeated events of one kind and culprit, mostly faults, are recorded once in this time, with
/// their number.
pub const REPEAT_WINDOW: std::time::Duration = std::time::Duration::from_secs(10);

/// Culprits whose repetitions are counted separately; those of further culprits are counted
/// together.
pub const REPEAT_KEYS: usize = 1_024;

/// Records of repeated events per [`REPEAT_WINDOW`], over all culprits: at 300 bytes each, at most
/// 16 MB per day.
pub const REPEATS_PER_WINDOW: u32 = 6;

/// Damaged files that are kept after they were restored from their copies. The oldest are deleted
/// first.
pub const DAMAGED_FILES: usize = 4;

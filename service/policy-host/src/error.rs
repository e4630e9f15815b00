//! Errors, and their causes.
//!
//! | type | cause |
//! |---|---|
//! | [`LoadError`] | the module or its configuration; for [`LoadError::PoolFull`] and [`LoadError::NoCompiler`] the operator's machine |
//! | `ManifestError` | the manifest, or the configuration of its keys |
//! | [`Fault`] | the policy, at run time |
//! | [`Misuse`] | the daemon: a bug |
//!
//! Text from a module is quoted, cut and never interpreted.

use tollgate_shm_abi::limits::MAX_METADATA_KEY_BYTES;
use tollgate_shm_abi::metadata::MetadataError;

use crate::{Capabilities, Hook, limits};

/// Reasons for refusing a module or an instance.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// More bytes than [`crate::limits::MODULE_BYTES`].
    #[error("the module has {bytes} bytes, above the limit of {max}")]
    TooLarge {
        /// Bytes uploaded.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The bytes don't begin like a core module.
    #[error("this is not a WebAssembly module: {0}")]
    NotWasm(String),
    /// A core module, but invalid or using a disabled feature.
    #[error("the module is not valid here: {0}")]
    Invalid(String),
    /// A compile bomb, or something that looks like one.
    #[error("the module has {count} {what}, above the limit of {max}")]
    TooComplex {
        /// The counted item.
        what: &'static str,
        /// The count (counting may have stopped early).
        count: u64,
        /// The limit.
        max: u64,
    },
    /// An import that isn't offered.
    #[error(
        "the module imports {module:?} {name:?}, which isn't offered; guest-sdk/ABI.md lists what tollgate offers"
    )]
    UnknownImport {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
    },
    /// An import of WASI by a module whose manifest doesn't declare it.
    #[error(
        "the module imports {name:?} of WASI, but its manifest doesn't declare it; build for a target without WASI, or declare \"wasi\": true"
    )]
    UndeclaredWasi {
        /// The import's name.
        name: String,
    },
    /// An import of a compat module that isn't offered.
    #[error("the module imports {module:?} {name:?}, which isn't offered; {page} lists what is")]
    UnknownCompatImport {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
        /// Where to read more.
        page: &'static str,
    },
    /// A compat module's export is missing or has another type.
    #[error("the module's export {name:?} has the wrong type: {found}")]
    CompatExport {
        /// The export's name.
        name: &'static str,
        /// The problem.
        found: String,
    },
    /// No manifest, and no exports that identify the module's interface.
    #[error(
        "the module's interface is unknown: no manifest, and no exports of proxy-wasm 0.2 or OPA"
    )]
    UnknownAbi,
    /// A description for a module that has a manifest.
    #[error("the module has a manifest of its own, so it can't be described")]
    Described,
    /// A module of another version of OPA's interface.
    #[error(
        "the module has version {major}.{minor} of OPA's interface; 1.2 and later 1.x are understood"
    )]
    OpaVersion {
        /// The first number; 0 if it has none.
        major: i32,
        /// The second.
        minor: i32,
    },
    /// Built-in functions that OPA's compiler leaves to the host.
    #[error("the policy needs built-in functions that aren't offered: {0}")]
    Builtins(String),
    /// A decision that the module doesn't have.
    #[error("the policy has no entrypoint {wanted:?}; there are {there}")]
    Entrypoint {
        /// The decision that the description names.
        wanted: String,
        /// The decisions that the module has.
        there: String,
    },
    /// A compat module instead of a native policy, or the reverse.
    #[error("the module can't be used here: its interface is {abi}")]
    WrongInterface {
        /// The module's interface.
        abi: &'static str,
    },
    /// An import that is offered, with another type.
    #[error("the module imports tollgate {name:?} as {found}; it is {expected}")]
    ImportType {
        /// The import's name.
        name: String,
        /// The module's type.
        found: String,
        /// The offered type.
        expected: &'static str,
    },
    /// An import without its capability in the manifest.
    #[error(
        "the module imports tollgate {name:?}, but its manifest doesn't declare the capability {capability}"
    )]
    UndeclaredImport {
        /// The import's name.
        name: &'static str,
        /// The missing capability.
        capability: Capabilities,
    },
    /// Capabilities that the manifest declares but the operator didn't grant.
    #[error("the policy needs capabilities that aren't granted: {0}")]
    NotGranted(Capabilities),
    /// A required export is missing or has another type.
    #[error("the module's export {name:?} is {found}; ABI 1 needs {expected}")]
    Export {
        /// The export's name.
        name: &'static str,
        /// The module's type, or "missing".
        found: String,
        /// The ABI's type.
        expected: &'static str,
    },
    /// No `tollgate.manifest` section, or several.
    #[error("the module has {0} tollgate.manifest sections; exactly one is needed")]
    ManifestCount(usize),
    /// A manifest that doesn't parse or breaks a rule.
    #[error("the manifest {0}")]
    Manifest(String),
    /// Initial memory above an instance's limit.
    #[error("the module wants {bytes} bytes of memory, above the limit of {max}")]
    Memory {
        /// Bytes of the initial memory.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The compiler refused.
    #[error("the module doesn't compile: {0}")]
    Compile(String),
    /// The compiler was killed because it took too long. Remembered for
    /// [`crate::limits::REFUSAL_PAUSE`].
    #[error(
        "compiling the module took more than {ms} ms of CPU; it isn't tried again for some minutes"
    )]
    CompileTimeout {
        /// The limit.
        ms: u128,
    },
    /// The compiler needed more memory than its limit. Remembered for
    /// [`crate::limits::REFUSAL_PAUSE`].
    #[error(
        "compiling the module takes more than {bytes} bytes of memory; it isn't tried again for some minutes"
    )]
    CompileMemory {
        /// The limit.
        bytes: u64,
    },
    /// The compiler crashed on the module. Remembered for [`crate::limits::REFUSAL_PAUSE`].
    #[error("the compiler crashed on the module ({how}); it isn't tried again for some minutes")]
    CompilerDied {
        /// The signal or exit status, and its last words.
        how: String,
    },
    /// No worker process could be started or confined, or it got no CPU: the machine's fault.
    #[error("no compile worker: {0}")]
    NoCompiler(String),
    /// More bytes than [`crate::limits::CONFIG_BYTES`].
    #[error("the configuration has {bytes} bytes, above the limit of {max}")]
    ConfigTooLarge {
        /// Bytes given.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The manifest leaves fields or metadata keys to the configuration, which names invalid ones.
    #[error("the configuration {0}")]
    ConfigKeys(String),
    /// The policy read its configuration and refused it.
    #[error("the policy refuses its configuration: {0:?}")]
    ConfigRefused(String),
    /// The module failed in `step` ("start", "buffer" or "configure").
    #[error("the policy failed in its set-up ({step}): {fault}")]
    Setup {
        /// The step.
        step: &'static str,
        /// The failure.
        fault: Fault,
    },
    /// The host's pool of instances is used up.
    #[error("no room for another policy instance: {0}")]
    PoolFull(String),
}

/// The broken rule of a manifest, or of the keys in a configuration: the rest of a sentence that
/// begins with "the manifest" or "the configuration".
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("has {bytes} bytes, above the limit of {}", limits::MANIFEST_BYTES)]
    TooLarge { bytes: usize },
    #[error("doesn't parse: {0}")]
    Syntax(serde_json::Error),
    #[error(
        "is missing, and this policy takes fields or metadata keys from it: push it with one (--config FILE.json; in documents, `configuration`)"
    )]
    NoConfiguration,
    #[error("isn't a JSON object: {0}")]
    NotAnObject(serde_json::Error),
    #[error("has a {list:?} that isn't a list of keys")]
    NotKeys { list: &'static str },
    #[error("has a {list:?} that isn't a list of fields' paths")]
    NotPaths { list: String },
    #[error(
        "has a path of {bytes} bytes in {list:?}; 1 to {} are allowed",
        limits::NAME_BYTES
    )]
    LongPath { list: String, bytes: usize },
    #[error(
        "lists {path:?} in {list:?}; a path is a field's name, or several with dots between them: customer_name, stay.in_date"
    )]
    Path { list: String, path: String },
    #[error("has \"absent\": {found}; there are \"refuse\", \"skip\" and \"empty\"")]
    Absent { found: String },
    #[error("has a \"methods\" that isn't a list of methods, such as [\"package.Service/*\"]")]
    NotMethods,
    #[error("takes fields from {list:?} of the configuration, a key that the daemon itself reads")]
    ReservedList { list: String },
    #[error(
        "leaves fields of {pattern} to the configuration, which a description of a module of {abi} can't"
    )]
    CompatConfigured { pattern: String, abi: &'static str },
    #[error("asks for ABI {0}; this host speaks 1")]
    Abi(u32),
    #[error(
        "names the policy {shown:?}; a name is 1 to {} of a-z 0-9 - _ .",
        limits::POLICY_NAME_BYTES
    )]
    PolicyName { shown: String },
    #[error("has the method {pattern:?}; write package.Service/Method, package.Service/* or *")]
    Pattern { pattern: String },
    #[error(
        "has a {what} of {bytes} bytes ({shown:?}); 1 to {} are allowed",
        limits::NAME_BYTES
    )]
    Length {
        what: &'static str,
        bytes: usize,
        shown: String,
    },
    #[error(
        "has a name of {bytes} bytes, above the limit of {}",
        limits::NAME_BYTES
    )]
    LongName { bytes: usize },
    #[error("lists {count} {what}; {min} to {max} are allowed")]
    Count {
        what: String,
        count: usize,
        min: usize,
        max: usize,
    },
    #[error("lists {count} {list}; {} are allowed", limits::COMPAT_KEYS)]
    CompatKeys { list: &'static str, count: usize },
    #[error("declares wasi, which is there for every module of another host")]
    CompatWasi,
    #[error("lists {item} twice in {what}")]
    Twice { item: String, what: String },
    #[error("lists the key \"*\" in {list:?}")]
    ConfiguredTwice { list: &'static str },
    #[error("lists a wrong key in {what}: {why}")]
    Key { what: String, why: MetadataError },
    #[error(
        "lists {key:?} in {list}; a key is 1 to {MAX_METADATA_KEY_BYTES} of a-z 0-9 - _ . or *"
    )]
    CompatKey { key: String, list: &'static str },
    #[error(
        "lists {key:?} in {what}; keys that begin with grpc- or tollgate- are the daemon's own"
    )]
    ReservedKey { key: String, what: String },
    #[error("lists {key:?} in {what}: {why}")]
    Attribute {
        key: String,
        what: String,
        why: String,
    },
    #[error(
        "lists {item:?} among the {list} of {pattern}, but doesn't declare the capability change"
    )]
    UndeclaredChange {
        item: String,
        list: &'static str,
        pattern: String,
    },
    #[error("describes changes, but doesn't declare the capability change")]
    UndeclaredChanges,
    #[error("declares the field {path:?} for {pattern}; only an exact method has a known schema")]
    WildcardField { path: String, pattern: String },
    #[error("lists metadata of {pattern}; a description lists it under foreign, for all methods")]
    MethodMetadata { pattern: String },
    #[error("lists fields of {pattern} that a module of {abi} can't be shown, or can't change")]
    CompatFields { pattern: String, abi: &'static str },
    #[error("has a {what}, which modules of {abi} don't have")]
    OtherAbi {
        what: &'static str,
        abi: &'static str,
    },
    #[error(
        "has the tick_ms {ms}; {} to {} are allowed",
        limits::TICK_MS_MIN,
        limits::TICK_MS_MAX
    )]
    TickRange { ms: u32 },
    #[error("has the hook tick, but no tick_ms")]
    TickWithoutPeriod,
    #[error("has a tick_ms, but not the hook tick")]
    PeriodWithoutTick,
}

/// How a policy failed during an evaluation. The instance is dead afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It exceeded its budget: an endless loop, or too much work.
    #[error(
        "the policy exceeded its budget of {fuel} units (policies.cpu_us or --cpu-us of the attachment sets the budget of an evaluation)"
    )]
    OutOfFuel {
        /// Units granted.
        fuel: u64,
    },
    /// It trapped; the text is the trap's.
    #[error("the policy trapped: {0}")]
    Trap(String),
    /// A function returned a value other than 0.
    #[error("the policy's {function} function returned {returned}; 0 means done")]
    BadReturn {
        /// "request", "reply" or "tick".
        function: &'static str,
        /// The value returned.
        returned: u32,
    },
    /// An unknown verdict, or none.
    #[error(
        "the policy left verdict {verdict} for call {index} of its batch; 1 allows, 2 denies, 3 allows with effects"
    )]
    BadVerdict {
        /// Index in the batch.
        index: usize,
        /// The word found.
        verdict: u32,
    },
    /// A denial with a status that isn't an error.
    #[error("the policy denied call {index} of its batch with status {status}; 1 to 16 are errors")]
    BadStatus {
        /// Index in the batch.
        index: usize,
        /// The word found.
        status: u32,
    },
    /// A message outside of memory.
    #[error("the policy's message at {address}+{len} is outside of its {memory} bytes of memory")]
    BadMessage {
        /// The stated address.
        address: u32,
        /// Its length.
        len: u32,
        /// Bytes of memory.
        memory: usize,
    },
    /// An effect without the capability for it.
    #[error(
        "the policy has an effect on call {index} of its batch, but its manifest doesn't declare the capability {capability}"
    )]
    MayNot {
        /// Index in the batch.
        index: usize,
        /// The missing capability.
        capability: Capabilities,
    },
    /// An effect list that breaks a rule.
    #[error(
        "the policy's effects for call {index} of its batch have an impossible {what}: {value}"
    )]
    BadEffect {
        /// Index in the batch.
        index: usize,
        /// The part of the list or of a record.
        what: &'static str,
        /// The number found.
        value: u64,
    },
    /// A value that is invalid for a metadata key.
    #[error("the policy's effects for call {index} of its batch can't set metadata: {why}")]
    BadMetadata {
        /// Index in the batch.
        index: usize,
        /// The rule that the value breaks.
        why: MetadataError,
    },
    /// An effect list, or a value in it, outside of memory.
    #[error(
        "the policy's effects for call {index} of its batch name {address}+{len}, outside of its {memory} bytes of memory"
    )]
    EffectOutside {
        /// Index in the batch.
        index: usize,
        /// The stated address.
        address: u32,
        /// Its length.
        len: u32,
        /// Bytes of memory.
        memory: usize,
    },
    /// A forbidden change by a compat module.
    #[error("the policy changes {what}, which it isn't granted")]
    NotItsToChange {
        /// The item that it tried to change.
        what: String,
    },
    /// An invalid answer of a compat module.
    #[error("the policy's answer can't be used: {0}")]
    BadAnswer(String),
    /// A saved state that is too long, or outside of memory.
    #[error(
        "the policy's saved state at {address}+{len} is longer than {max} or outside of its {memory} bytes of memory"
    )]
    BadSave {
        /// The stated address.
        address: u32,
        /// Its length.
        len: u32,
        /// The limit.
        max: usize,
        /// Bytes of memory.
        memory: usize,
    },
    /// A state of another version that the policy refused.
    #[error("the policy refuses the state of version {version}: restore returned {returned}")]
    RestoreRefused {
        /// The state's version.
        version: u32,
        /// The value that the function returned.
        returned: u32,
    },
    /// A hand-over to a policy that declares no state.
    #[error("the policy declares no state, so there is nothing to restore")]
    NoState,
    /// A buffer outside of memory or not aligned to 8.
    #[error(
        "the policy's buffer at {address}+{len} is not an 8-aligned part of its {memory} bytes of memory"
    )]
    BadBuffer {
        /// The stated address.
        address: u32,
        /// Bytes requested.
        len: usize,
        /// Bytes of memory.
        memory: usize,
    },
    /// An earlier fault ended this instance.
    #[error("the policy's instance is dead after an earlier fault")]
    Dead,
}

/// Reasons for an evaluation that didn't happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluateError<E> {
    /// The view's writer failed; the policy didn't run and stays alive.
    #[error("the view wasn't written: {0}")]
    View(E),
    /// The policy failed and is dead.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The caller broke this API's rules; the policy didn't run and stays alive.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

/// Reasons for a batch that couldn't begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The policy is dead, or failed to provide its buffer.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The caller broke this API's rules.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

impl<E> From<BatchError> for EvaluateError<E> {
    fn from(error: BatchError) -> EvaluateError<E> {
        match error {
            BatchError::Fault(fault) => EvaluateError::Fault(fault),
            BatchError::Misuse(misuse) => EvaluateError::Misuse(misuse),
        }
    }
}

/// A caller's mistake: a bug in the daemon, reported without a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The policy's manifest doesn't list this hook.
    #[error("the policy has no {0} hook")]
    NoHook(Hook),
    /// No such entry in the manifest's methods.
    #[error("method index {index} is not among the manifest's {count}")]
    Method {
        /// The index given.
        index: u32,
        /// The number of methods.
        count: usize,
    },
    /// A view longer than allowed or announced.
    #[error("a view of {len} bytes doesn't fit into {max}")]
    ViewTooLong {
        /// Its length.
        len: usize,
        /// The maximum.
        max: usize,
    },
    /// More calls in a batch than allowed or announced.
    #[error("a batch of {count} calls doesn't fit into {max}")]
    BatchTooLong {
        /// Calls requested.
        count: usize,
        /// The maximum.
        max: usize,
    },
}

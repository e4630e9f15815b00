//! Errors, and their causes.
//!
//! | type | cause |
//! |---|---|
//! | [`LoadError`] | the module or its configuration; for [`LoadError::PoolFull`] and [`LoadError::NoCompiler`] the operator's machine |
//! | [`Fault`] | the policy, at run time |
//! | [`Misuse`] | the daemon: a bug |
//!
//! Text from a module is quoted, cut and never interpreted.

use tollgate_shm_abi::metadata::MetadataError;

use crate::{Capabilities, Hook};

/// Why a module can't become a policy, or a policy an instance.
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
    /// A core module, but invalid or using a feature that is off.
    #[error("the module is not valid here: {0}")]
    Invalid(String),
    /// A compile bomb, or something that looks like one.
    #[error("the module has {count} {what}, above the limit of {max}")]
    TooComplex {
        /// What was counted.
        what: &'static str,
        /// How many there are (counting may have stopped early).
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
    /// An import of a foreign module that isn't offered.
    #[error("the module imports {module:?} {name:?}, which isn't offered; {page} lists what is")]
    UnknownForeignImport {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
        /// Where to read more.
        page: &'static str,
    },
    /// A foreign module's export isn't there, or is something else.
    #[error("the module's export {name:?} isn't what its interface says: {found}")]
    ForeignExport {
        /// The export's name.
        name: &'static str,
        /// What is wrong with it.
        found: String,
    },
    /// Neither a manifest nor exports that tell what the module was made for.
    #[error(
        "the module doesn't say what it was made for: it has no manifest, and no exports of proxy-wasm 0.2 or OPA"
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
    /// A decision that the module doesn't make.
    #[error("the policy has no entrypoint {wanted:?}; there are {there}")]
    Entrypoint {
        /// Which one the description names.
        wanted: String,
        /// Those that there are.
        there: String,
    },
    /// A foreign module where a policy of this project's own interface is needed, or the reverse.
    #[error("the module can't be used here: its interface is {abi}")]
    WrongInterface {
        /// Which it has.
        abi: &'static str,
    },
    /// An import that is offered, with another type.
    #[error("the module imports tollgate {name:?} as {found}; it is {expected}")]
    ImportType {
        /// The import's name.
        name: String,
        /// What the module wants.
        found: String,
        /// What there is.
        expected: &'static str,
    },
    /// An import whose capability the manifest doesn't declare.
    #[error(
        "the module imports tollgate {name:?}, but its manifest doesn't declare the capability {capability}"
    )]
    UndeclaredImport {
        /// The import's name.
        name: &'static str,
        /// What the manifest lacks.
        capability: Capabilities,
    },
    /// Capabilities that the manifest declares and nobody granted.
    #[error("the policy needs capabilities that aren't granted: {0}")]
    NotGranted(Capabilities),
    /// A required export isn't there, or is something else.
    #[error("the module's export {name:?} is {found}; ABI 1 needs {expected}")]
    Export {
        /// The export's name.
        name: &'static str,
        /// What the module has, or "missing".
        found: String,
        /// What the ABI asks for.
        expected: &'static str,
    },
    /// No `tollgate.manifest` section, or several.
    #[error("the module has {0} tollgate.manifest sections; exactly one is needed")]
    ManifestCount(usize),
    /// A manifest that doesn't parse or breaks a rule.
    #[error("the manifest {0}")]
    Manifest(String),
    /// More memory from the start than an instance may have.
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
    /// The compiler was killed because it took too long. Remembered for [`crate::limits::REFUSAL_PAUSE`].
    #[error(
        "compiling the module took more than {ms} ms of CPU; it isn't tried again for some minutes"
    )]
    CompileTimeout {
        /// The limit.
        ms: u128,
    },
    /// The compiler wanted more memory than it gets. Remembered for [`crate::limits::REFUSAL_PAUSE`].
    #[error(
        "compiling the module takes more than {bytes} bytes of memory; it isn't tried again for some minutes"
    )]
    CompileMemory {
        /// The limit.
        bytes: u64,
    },
    /// The compiler didn't survive the module. Remembered for [`crate::limits::REFUSAL_PAUSE`].
    #[error("the compiler died of the module ({how}); it isn't tried again for some minutes")]
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
    /// The manifest leaves metadata keys to the configuration, and that names none, or wrong ones.
    #[error("the configuration {0}")]
    ConfigKeys(String),
    /// The policy read its configuration and said no.
    #[error("the policy refuses its configuration: {0:?}")]
    ConfigRefused(String),
    /// The module failed in `step` ("start", "buffer" or "configure").
    #[error("the policy failed in its set-up ({step}): {fault}")]
    Setup {
        /// Which step.
        step: &'static str,
        /// What happened.
        fault: Fault,
    },
    /// The host's pool of instances is used up.
    #[error("no room for another policy instance: {0}")]
    PoolFull(String),
}

/// How a policy failed while it judged. The instance is dead afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It used up its budget: an endless loop, or too much work.
    #[error(
        "the policy exceeded its budget of {fuel} units (for a judgement, policies.cpu_us or the attachment's --cpu-us sets it)"
    )]
    OutOfFuel {
        /// Units it was given.
        fuel: u64,
    },
    /// It trapped; the text is the trap's.
    #[error("the policy trapped: {0}")]
    Trap(String),
    /// A function returned something else than 0.
    #[error("the policy's {function} function returned {returned}; 0 means done")]
    BadReturn {
        /// "request", "reply" or "tick".
        function: &'static str,
        /// What it returned.
        returned: u32,
    },
    /// A verdict that doesn't exist, or none.
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
        /// Where it should begin.
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
        /// What the manifest lacks.
        capability: Capabilities,
    },
    /// An effect list that breaks a rule.
    #[error(
        "the policy's effects for call {index} of its batch have an impossible {what}: {value}"
    )]
    BadEffect {
        /// Index in the batch.
        index: usize,
        /// Which part of the list or of a record.
        what: &'static str,
        /// The number found.
        value: u64,
    },
    /// A value that a metadata key can't have.
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
        /// Where it should begin.
        address: u32,
        /// Its length.
        len: u32,
        /// Bytes of memory.
        memory: usize,
    },
    /// A foreign module's change of what it may not change.
    #[error("the policy changes {what}, which it isn't granted")]
    NotItsToChange {
        /// What it wants to change.
        what: String,
    },
    /// An answer of a foreign module that means nothing.
    #[error("the policy's answer can't be used: {0}")]
    BadAnswer(String),
    /// A saved state that is too long, or outside of memory.
    #[error(
        "the policy's saved state at {address}+{len} is longer than {max} or outside of its {memory} bytes of memory"
    )]
    BadSave {
        /// Where it should begin.
        address: u32,
        /// Its length.
        len: u32,
        /// The limit.
        max: usize,
        /// Bytes of memory.
        memory: usize,
    },
    /// The state of another version that it couldn't use.
    #[error("the policy refuses the state of version {version}: restore returned {returned}")]
    RestoreRefused {
        /// The state's version.
        version: u32,
        /// What the function returned.
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
        /// Where it should begin.
        address: u32,
        /// Bytes asked for.
        len: usize,
        /// Bytes of memory.
        memory: usize,
    },
    /// An earlier fault ended this instance.
    #[error("the policy's instance is dead after an earlier fault")]
    Dead,
}

/// A judgement that didn't happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JudgeError<E> {
    /// The view's writer failed; the policy wasn't asked and lives on.
    #[error("the view wasn't written: {0}")]
    View(E),
    /// The policy failed and is dead.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The caller broke this API's rules; the policy wasn't asked and lives on.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

/// A batch that couldn't begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The policy is dead, or failed to provide its buffer.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The caller broke this API's rules.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

impl<E> From<BatchError> for JudgeError<E> {
    fn from(error: BatchError) -> JudgeError<E> {
        match error {
            BatchError::Fault(fault) => JudgeError::Fault(fault),
            BatchError::Misuse(misuse) => JudgeError::Misuse(misuse),
        }
    }
}

/// A caller's mistake: a bug in the daemon, reported rather than panicked about.
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
        /// Methods there are.
        count: usize,
    },
    /// A view longer than allowed or announced.
    #[error("a view of {len} bytes doesn't fit into {max}")]
    ViewTooLong {
        /// Its length.
        len: usize,
        /// The room there is.
        max: usize,
    },
    /// More calls in a batch than allowed or announced.
    #[error("a batch of {count} calls doesn't fit into {max}")]
    BatchTooLong {
        /// Calls wanted.
        count: usize,
        /// The room there is.
        max: usize,
    },
}

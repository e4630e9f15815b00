//! The reasons for missing machine code.

/// The reason for missing machine code: the schema's size or the host's type, not a bug. The
/// interpreter is used instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Cranelift has no backend for this host, or the host is big endian.
    #[error("no machine code on this host: {reason}")]
    UnsupportedHost {
        /// What is missing.
        reason: String,
    },
    /// The program is too large to be worth compiling.
    #[error("a program of {steps} steps isn't compiled; the limit is {limit}")]
    TooLarge {
        /// Its steps.
        steps: usize,
        /// The limit.
        limit: usize,
    },
    /// The compiler failed, or there is no memory for code.
    #[error("the compiler failed: {reason}")]
    Compiler {
        /// Its words.
        reason: String,
    },
}

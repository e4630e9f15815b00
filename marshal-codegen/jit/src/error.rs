//! Why there is no machine code.

/// Why there is no machine code. Nobody's fault but the schema's size or the host's kind; the interpreter serves on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Cranelift has no backend for this host, or the host is big endian.
    #[error("no machine code on this host: {reason}")]
    UnsupportedHost {
        /// What is missing.
        reason: String,
    },
    /// The program is larger than what is worth compiling.
    #[error("a program of {steps} steps is not compiled, the limit is {limit}")]
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

//! Status codes: gRPC's numbers, throughout Tollgate.
//!
//! [`Code`] is a newtype over the integer, not an enum, so that a code from a newer peer is passed
//! on unchanged.

use core::fmt;

/// The result of a call. Zero is success; the rest are gRPC's codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub u32);

/// Declares each code once: constant, number and name can't drift apart.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Code = Code($number);)*

            /// All codes with a name, by number.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The code's name in gRPC's spelling, or `None` for a number without a name.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Success.
    OK = 0,
    /// The caller cancelled the call.
    CANCELLED = 1,
    /// An error without a better code.
    UNKNOWN = 2,
    /// The caller's argument is wrong, independent of the system's state.
    INVALID_ARGUMENT = 3,
    /// The deadline passed before the call ended.
    DEADLINE_EXCEEDED = 4,
    /// The requested object doesn't exist.
    NOT_FOUND = 5,
    /// The object to create exists already.
    ALREADY_EXISTS = 6,
    /// The caller is authenticated but not authorised.
    PERMISSION_DENIED = 7,
    /// A quota or queue is full.
    RESOURCE_EXHAUSTED = 8,
    /// The system's state doesn't allow the call; a retry alone won't help.
    FAILED_PRECONDITION = 9,
    /// A conflict ended it; retry at a higher level.
    ABORTED = 10,
    /// The value is past the valid range.
    OUT_OF_RANGE = 11,
    /// No server implements this method.
    UNIMPLEMENTED = 12,
    /// An invariant of the serving side was violated.
    INTERNAL = 13,
    /// The peer is unreachable now; a retry may help.
    UNAVAILABLE = 14,
    /// Data was lost or corrupted beyond recovery.
    DATA_LOSS = 15,
    /// The caller isn't authenticated.
    UNAUTHENTICATED = 16,
}

impl Code {
    /// The code with this name in gRPC's spelling (`"PERMISSION_DENIED"`).
    pub fn from_name(name: &str) -> Option<Code> {
        Code::ALL
            .iter()
            .copied()
            .find(|code| code.name() == Some(name))
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "CODE_{}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn numbers_are_grpcs_and_names_lead_back() {
        assert_eq!(Code::ALL.len(), 17);
        for (number, code) in Code::ALL.iter().enumerate() {
            assert_eq!(code.0 as usize, number);
            let name = code.name().expect("listed codes have names");
            assert_eq!(Code::from_name(name), Some(*code));
        }
        assert_eq!(Code::PERMISSION_DENIED, Code(7));
        assert_eq!(Code::UNAUTHENTICATED, Code(16));
    }

    #[test]
    fn an_unknown_number_survives_and_prints() {
        assert_eq!(Code(99).name(), None);
        assert_eq!(Code(99).to_string(), "CODE_99");
        assert_eq!(Code::from_name("NO_SUCH"), None);
    }
}

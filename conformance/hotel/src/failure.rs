//! How anything ends otherwise than well: one of gRPC's codes, which says whose fault it is, and a
//! sentence.

use tollgate::Code;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub struct Failure {
    /// Of gRPC's.
    pub code: Code,
    /// For whoever asked.
    pub message: String,
}

impl Failure {
    /// The caller's fault.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Code::INVALID_ARGUMENT, message)
    }

    /// Ours, or the machine's.
    pub fn internal(error: impl std::fmt::Display) -> Failure {
        Failure::new(Code::INTERNAL, error.to_string())
    }

    /// Any.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        let message = message.into();
        Failure { code, message }
    }

    /// The status of HTTP that says the same.
    pub fn http_status(&self) -> u16 {
        match self.code {
            Code::INVALID_ARGUMENT | Code::FAILED_PRECONDITION | Code::OUT_OF_RANGE => 400,
            Code::UNAUTHENTICATED => 401,
            Code::PERMISSION_DENIED => 403,
            Code::NOT_FOUND => 404,
            Code::ABORTED | Code::ALREADY_EXISTS => 409,
            Code::RESOURCE_EXHAUSTED => 429,
            Code::CANCELLED => 499,
            Code::UNIMPLEMENTED => 501,
            Code::UNAVAILABLE => 503,
            Code::DEADLINE_EXCEEDED => 504,
            _ => 500,
        }
    }
}

impl From<redb::Error> for Failure {
    fn from(error: redb::Error) -> Failure {
        Failure::internal(format!("the store: {error}"))
    }
}

impl From<tollgate::Status> for Failure {
    fn from(status: tollgate::Status) -> Failure {
        Failure::new(status.code, status.message)
    }
}

impl From<Failure> for tollgate::Status {
    fn from(failure: Failure) -> tollgate::Status {
        tollgate::Status::new(failure.code, failure.message)
    }
}

/// tonic says CANCELLED when a deadline has passed; nobody here cancels a call otherwise and waits
/// for what comes of it.
impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Failure {
        let code = match status.code() {
            tonic::Code::Cancelled => Code::DEADLINE_EXCEEDED,
            code => Code(i32::from(code).unsigned_abs()),
        };
        Failure::new(code, status.message())
    }
}

impl From<Failure> for tonic::Status {
    fn from(failure: Failure) -> tonic::Status {
        let code = i32::try_from(failure.code.0).unwrap_or(-1);
        tonic::Status::new(tonic::Code::from_i32(code), failure.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_the_same_on_both_transports() {
        for &code in Code::ALL {
            let failure = Failure::new(code, "why");
            let tonic = tonic::Status::from(failure.clone());
            if code != Code::CANCELLED {
                assert_eq!(Failure::from(tonic), failure);
            }
            assert_eq!(
                Failure::from(tollgate::Status::from(failure.clone())),
                failure
            );
        }
    }

    #[test]
    fn whose_fault_it_is_shows_in_the_status_of_http() {
        let status = |code| Failure::new(code, "").http_status();
        assert_eq!(status(Code::INVALID_ARGUMENT), 400);
        assert_eq!(status(Code::RESOURCE_EXHAUSTED), 429);
        assert_eq!(status(Code::UNAVAILABLE), 503);
        assert_eq!(status(Code::DEADLINE_EXCEEDED), 504);
        assert_eq!(status(Code::UNKNOWN), 500);
    }
}

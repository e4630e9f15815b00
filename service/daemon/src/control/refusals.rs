//! Statuses of rejected requests.

use tollgate_control::{Cause, StoreError};
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

/// The status for an error of the store.
pub(crate) fn store_failed(error: &StoreError) -> Status {
    let code = match error.cause() {
        Cause::Invalid => Code::INVALID_ARGUMENT,
        Cause::Exists => Code::ALREADY_EXISTS,
        Cause::Missing => Code::NOT_FOUND,
        Cause::State => Code::FAILED_PRECONDITION,
        Cause::Limit => Code::RESOURCE_EXHAUSTED,
        Cause::Away => Code::UNAVAILABLE,
        Cause::Broken => Code::INTERNAL,
    };
    Status::new(code, error.to_string())
}

pub(super) fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Status {
    Status::new(Code::INVALID_ARGUMENT, text)
}

pub(super) fn exhausted(error: impl std::fmt::Display) -> Status {
    Status::new(Code::RESOURCE_EXHAUSTED, error.to_string())
}

pub(super) fn internal(error: impl std::fmt::Display) -> Status {
    Status::new(Code::INTERNAL, error.to_string())
}

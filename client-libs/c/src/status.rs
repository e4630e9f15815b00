//! The result of a library function: its code, and an object with the details.

use std::time::Duration;

use tollgate_core::metadata::MetadataBuf;
use tollgate_core::{Code, Status};

/// The operation would have to wait. Negative, like [`END`], because the codes of a peer's status
/// aren't.
pub(crate) const WOULD_BLOCK: i32 = -1;
/// There are no further messages.
pub(crate) const END: i32 = -2;

/// Why a function didn't succeed.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It would have to wait.
    WouldBlock,
    /// The messages have ended, and the call was successful.
    Well,
    /// The call or the function failed.
    With(Status),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Ended {
        Ended::With(status)
    }
}

impl Ended {
    pub(crate) fn code(&self) -> i32 {
        match self {
            Ended::WouldBlock => WOULD_BLOCK,
            Ended::Well => END,
            Ended::With(status) => i32::try_from(status.code.0).unwrap_or(i32::MAX),
        }
    }
}

/// An error of the caller.
pub(crate) fn invalid(text: impl Into<String>) -> Status {
    Status::new(Code::INVALID_ARGUMENT, text)
}

/// An operation that is not possible any more, or not yet.
pub(crate) fn precondition(text: impl Into<String>) -> Status {
    Status::new(Code::FAILED_PRECONDITION, text)
}

/// C's view of a status.
#[derive(Debug)]
pub(crate) struct StatusObject {
    pub(crate) code: i32,
    /// The text, with a zero byte behind it.
    text: Vec<u8>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) metadata: MetadataBuf,
}

impl Default for StatusObject {
    fn default() -> StatusObject {
        StatusObject {
            code: 0,
            text: vec![0],
            retry_after: None,
            metadata: MetadataBuf::new(),
        }
    }
}

impl StatusObject {
    /// The text; a zero byte lies behind it.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text[..self.text.len() - 1]
    }

    pub(crate) fn set_text(&mut self, text: &[u8]) {
        self.text.clear();
        self.text.extend_from_slice(text);
        self.text.push(0);
    }

    pub(crate) fn clear(&mut self) {
        if self.code != 0 {
            *self = StatusObject::default();
        }
    }

    pub(crate) fn set(&mut self, ended: &Ended) {
        *self = StatusObject::default();
        self.code = ended.code();
        match ended {
            Ended::With(status) => {
                self.set_text(status.message.as_bytes());
                self.retry_after = status.retry_after;
                self.metadata = status.metadata.clone();
            }
            Ended::WouldBlock => self.set_text(b"it would have to wait"),
            Ended::Well => self.set_text(b"there are no further messages"),
        }
    }

    /// The status for a server's answer.
    pub(crate) fn to_status(&self) -> Status {
        let code = Code(u32::try_from(self.code).unwrap_or(Code::UNKNOWN.0));
        let mut status = Status::new(code, String::from_utf8_lossy(self.text()).into_owned());
        status.retry_after = self.retry_after;
        status.metadata = self.metadata.clone();
        status
    }
}

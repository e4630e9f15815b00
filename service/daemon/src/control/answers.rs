//! Answers to requests on the control socket.

use std::os::fd::OwnedFd;

use tollgate_engine::Status;
use tollgate_shm_abi::messages::{Failure, ResponseBody};

/// An answer, with its descriptors.
pub(crate) struct Answer {
    pub(crate) body: ResponseBody,
    pub(crate) fds: Vec<OwnedFd>,
}

impl From<ResponseBody> for Answer {
    fn from(body: ResponseBody) -> Self {
        Answer {
            body,
            fds: Vec::new(),
        }
    }
}

pub(crate) fn failure(status: &Status) -> ResponseBody {
    ResponseBody::Failure(Failure {
        code: status.code.0,
        message: status.message.clone().into_owned(),
    })
}

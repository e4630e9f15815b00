//! A call's state while it streams: the messages that wait in either direction, and the windows
//! that bound them.

use std::collections::VecDeque;

use tollgate_shm_abi::stream::{Credit, Window};

use crate::output::Direction;
use crate::status::Status;

/// A message's role in its stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Request {
        more: bool,
        charge: u32,
    },
    Response {
        charge: u32,
    },
    /// The last response, which is the call's answer.
    Reply,
}

impl What {
    /// Its charge against a direction's window.
    pub(super) fn charge(self, of: Direction) -> Option<u32> {
        match (self, of) {
            (What::Request { charge, .. }, Direction::Requests) => Some(charge),
            (What::Response { charge }, Direction::Responses) => Some(charge),
            _ => None,
        }
    }
}

pub(crate) struct Waiting<M> {
    pub(crate) what: What,
    /// `None`: there are no further requests.
    pub(crate) message: Option<M>,
}

/// A call's state besides one request and one answer.
pub(crate) struct Stream<M> {
    pub(crate) requests: VecDeque<Waiting<M>>,
    pub(crate) responses: VecDeque<Waiting<M>>,
    pub(crate) requests_sent: Window,
    pub(crate) responses_sent: Window,
    /// The caller may send further requests.
    pub(crate) more: bool,
    /// The method's handle at its server, once delivered.
    pub(crate) served_as: u32,
    pub(crate) passing: Option<What>,
    /// How the call ends once its responses have been handed on.
    pub(crate) ending: Option<Status>,
    /// Its link knows that it waits.
    pub(crate) waits_for_link: bool,
    /// The direction whose turn it is when both have messages.
    pub(crate) response_next: bool,
}

impl<M> Stream<M> {
    pub(crate) fn new(more: bool) -> Box<Self> {
        Box::new(Self {
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            requests_sent: Window::default(),
            responses_sent: Window::default(),
            more,
            served_as: 0,
            passing: None,
            ending: None,
            waits_for_link: false,
            response_next: false,
        })
    }

    /// Its messages, when the call ends.
    pub(crate) fn into_messages(self) -> impl Iterator<Item = M> {
        let waiting = self.requests.into_iter().chain(self.responses);
        waiting.filter_map(|waiting| waiting.message)
    }

    /// A reader reports consumed messages. Returns the part that can be true: messages that wait
    /// here, or are with a chain, haven't reached the reader.
    pub(super) fn consumed(&mut self, of: Direction, reported: Credit) -> Credit {
        let (window, queue) = match of {
            Direction::Requests => (&mut self.requests_sent, &self.requests),
            Direction::Responses => (&mut self.responses_sent, &self.responses),
        };
        let (mut messages, mut bytes) = (window.messages(), window.bytes());
        let queued = queue.iter().filter(|waiting| waiting.message.is_some());
        let here = queued.map(|waiting| waiting.what).chain(self.passing);
        for charge in here.filter_map(|what| what.charge(of)) {
            messages = messages.saturating_sub(1);
            bytes = bytes.saturating_sub(charge.into());
        }
        window.give_back(Credit {
            messages: reported.messages.min(messages),
            bytes: u64::from(reported.bytes).min(bytes) as u32,
        })
    }

    pub(super) fn next(&mut self, may_request: bool, may_respond: bool) -> Option<Waiting<M>> {
        let response = may_respond && !self.responses.is_empty();
        let request = may_request && !self.requests.is_empty();
        let is_response = response && (self.response_next || !request);
        self.response_next = !is_response;
        match is_response {
            true => self.responses.pop_front(),
            false if request => self.requests.pop_front(),
            false => None,
        }
    }
}

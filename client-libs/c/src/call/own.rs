//! Calls of the program: their start, the end of their requests, and the report of their end.

use std::sync::Arc;

use tollgate_core::{Code, Opening, ReceivedBlock, Status, StreamReceiver, StreamSender};

use super::halves::{Receiving, Sending, Slot, Then};
use super::state::{Call, Origin};
use crate::callbacks::Completion;
use crate::outgoing::{Outgoing, OutgoingMessage};
use crate::session::{Event, Message, State, lock};
use crate::status::precondition;

impl Call {
    /// Starts a call with one request and one reply. Its completion runs when the session is
    /// driven.
    pub(crate) fn start(
        session: &Arc<State>,
        handle: u32,
        outgoing: Outgoing,
        opening: Opening,
        completion: Completion<Message>,
    ) -> Arc<Call> {
        let call = Call::new(session, Origin::Own, Slot::Gone, Slot::Gone);
        let outgoing = Arc::new(outgoing);
        let message = OutgoingMessage(Arc::clone(&outgoing));
        let reply = session
            .core
            .call(handle, message, opening.timeout)
            .with_metadata(opening.metadata);
        let told = Told {
            session: Arc::clone(session),
            completion: Some(completion),
        };
        let watched = Arc::clone(&call);
        let task = async move {
            // Moved in, so that it reports the end of the call in any case.
            let mut told = told;
            let outcome = watched.unless_cancelled(reply).await;
            told.ended(outcome);
        };
        session.run_on(task, &outgoing);
        call
    }

    /// Opens a call with any number of requests and responses, with its first request if there is
    /// one.
    pub(crate) fn open(
        session: &Arc<State>,
        handle: u32,
        first: Option<Outgoing>,
        opening: Opening,
        may_block: bool,
    ) -> Result<Arc<Call>, Status> {
        let call = Call::new(session, Origin::Own, Slot::BUSY, Slot::BUSY);
        if may_block {
            let first = first.as_ref().map(OutgoingMessage);
            let opened = session.core.open_stream(handle, first.as_ref(), opening);
            let (sender, receiver) = session.block(opened)?;
            call.opened(Ok((sender, receiver)));
            return Ok(call);
        }
        let first = first.map(Arc::new);
        let outgoing = first.clone();
        let (core, opening_call) = (session.core.clone(), Arc::clone(&call));
        let task = async move {
            let first = first.map(OutgoingMessage);
            let opened = core.open_stream(handle, first.as_ref(), opening).await;
            opening_call.opened(opened);
        };
        match outgoing {
            Some(outgoing) => session.run_on(task, &outgoing),
            None => session.run(task),
        }
        let failed = lock(&call.failed).take();
        match failed {
            Some(status) => Err(status),
            None => Ok(call),
        }
    }

    fn opened(self: &Arc<Self>, opened: Result<(StreamSender, StreamReceiver), Status>) {
        match opened {
            Ok((sender, receiver)) => {
                self.put_receiving(Receiving::Responses(receiver));
                self.put_sending(Sending::Requests(sender));
            }
            Err(status) => {
                *lock(&self.failed) = Some(status);
                *lock(&self.sending) = Slot::Gone;
                *lock(&self.receiving) = Slot::Gone;
                self.put_back(true);
            }
        }
    }

    /// Announces that no further requests follow.
    pub(crate) fn half_close(&self) -> Result<(), Status> {
        if self.method().is_some() {
            return Err(precondition(
                "an incoming call ends with its status: use tollgate_call_finish",
            ));
        }
        self.check()?;
        self.then(Then::HalfClose)
    }

    /// Cancels the program's own call.
    pub(crate) fn cancel(&self) -> Result<(), Status> {
        if self.method().is_some() {
            return Err(precondition(
                "an incoming call ends with its status: use tollgate_call_finish",
            ));
        }
        self.give_up();
        Ok(())
    }
}

/// Reports a call's end exactly once, also if its task is dropped.
struct Told {
    session: Arc<State>,
    completion: Option<Completion<Message>>,
}

impl Told {
    fn ended(&mut self, outcome: Result<ReceivedBlock, Status>) {
        if let Some(mut completion) = self.completion.take() {
            completion.ended(outcome.map(|block| Message::new(block, &self.session)));
            self.session.push(Event::Done(completion));
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let text = "the session ended before the call did";
        self.ended(Err(Status::new(Code::CANCELLED, text)));
    }
}

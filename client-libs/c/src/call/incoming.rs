//! Incoming calls: their handlers and answers.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tollgate_core::metadata::MetadataBuf;
use tollgate_core::{Code, Incoming, Status};

use super::halves::{Receiving, Sending, Slot, Then};
use super::state::{Call, Origin};
use crate::callbacks::Handler;
use crate::outgoing::{Outgoing, OutgoingMessage};
use crate::session::{Callee, State, lock};
use crate::status::precondition;

impl Call {
    /// An incoming call, and the object that core holds until it is answered.
    pub(crate) fn incoming(
        session: &Arc<State>,
        handler: Option<Handler<Call>>,
        method: usize,
        incoming: Incoming,
    ) -> (Arc<Call>, Handling) {
        let deadline = incoming.deadline();
        let (mut requests, responder) = incoming.into_stream();
        let metadata = requests.take_metadata();
        let origin = Origin::Incoming {
            method: method as u32,
            handler,
            deadline,
            answered: Mutex::default(),
        };
        let call = Call::new(
            session,
            origin,
            Slot::Idle(Sending::Responses(responder)),
            Slot::Idle(Receiving::Requests(requests)),
        );
        let _first = call.metadata.set(metadata);
        (Arc::clone(&call), Handling(call))
    }

    /// Lets the call outlive its handler, as a handle that the program frees. From now on the
    /// program owns one reference to it.
    pub(crate) fn keep(self: &Arc<Self>) -> Result<(), Status> {
        if matches!(self.origin, Origin::Own) {
            return Err(precondition(
                "only incoming calls can be kept: the program's own calls live until they are freed",
            ));
        }
        if self.is_kept.swap(true, Ordering::SeqCst) {
            return Err(precondition("the call is kept already"));
        }
        let _the_programs = Arc::into_raw(Arc::clone(self));
        Ok(())
    }

    /// Takes the program's reference. Returns whether there was one: the program may give it back
    /// once.
    pub(crate) fn unkeep(&self) -> bool {
        matches!(self.origin, Origin::Own) || self.is_kept.swap(false, Ordering::SeqCst)
    }

    /// How long the caller of an incoming call still waits.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        match &self.origin {
            Origin::Own => None,
            Origin::Incoming { deadline, .. } => deadline.time_left(),
        }
    }

    /// Ends an incoming call: successfully with OK, as failed with any other code. The status'
    /// metadata become the trailers.
    pub(crate) fn finish(&self, status: Status) -> Result<(), Status> {
        if self.method().is_none() {
            return Err(precondition(
                "only incoming calls can be finished: half-close or cancel the program's own calls",
            ));
        }
        self.then(Then::Finish(status))
    }

    /// Answers an incoming call with its one response. The response is written now, or kept until
    /// there is room.
    pub(crate) fn reply(
        self: &Arc<Self>,
        outgoing: Outgoing,
        metadata: MetadataBuf,
        trailers: MetadataBuf,
    ) -> Result<(), Status> {
        let mut sending = lock(&self.sending);
        let mut responder = match std::mem::replace(&mut *sending, Slot::Gone) {
            Slot::Idle(Sending::Responses(responder)) => responder,
            Slot::Gone => return Err(self.ended_sending()),
            other => {
                let text = match other {
                    Slot::Idle(_) => "only incoming calls can be answered",
                    _ => "responses are being sent: end them with tollgate_call_finish",
                };
                *sending = other;
                return Err(precondition(text));
            }
        };
        drop(sending);
        let outgoing = Arc::new(outgoing);
        let message = OutgoingMessage(Arc::clone(&outgoing));
        let call = Arc::clone(self);
        let task = async move {
            if trailers.is_empty() {
                responder.reply_with(&message, &metadata).await;
            } else {
                match responder.respond_with(&message, &metadata).await {
                    Ok(()) => responder.finish(trailers),
                    Err(status) => responder.fail(&status),
                }
            }
            call.answered();
        };
        self.session.run_on(task, &outgoing);
        Ok(())
    }

    /// Whether the call was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        let known =
            || self.is_cancelled.load(Ordering::SeqCst) || self.is_over.load(Ordering::SeqCst);
        if !known() && self.method().is_some() {
            // If a handler runs on the only thread, no other thread reads the daemon's messages.
            self.session.poll_once();
        }
        known()
    }
}

impl Callee for Call {
    /// The call is given back afterwards, unless the handler keeps it.
    fn handle(self: Arc<Self>) {
        let Origin::Incoming {
            handler, deadline, ..
        } = &self.origin
        else {
            return;
        };
        if self.is_over.load(Ordering::SeqCst) {
            return self.give_up();
        }
        match handler {
            Some(handler) => {
                if let Err(thrown) = deadline.within(|| handler.run(&self)) {
                    let text = format!("the handler threw an exception: {thrown}");
                    // The handler may have answered before.
                    let _answered = self.finish(Status::new(Code::UNKNOWN, text));
                }
            }
            None => {
                let text = "this server has no handler for the method";
                let _answered = self.finish(Status::new(Code::UNIMPLEMENTED, text));
            }
        }
        if !self.is_kept.load(Ordering::SeqCst) {
            self.give_up();
        }
    }

    fn run_ready(self: Arc<Self>) {
        self.note_ready();
    }
}

/// Core's object for a call until it is answered. Core drops it when the caller doesn't wait any
/// more.
pub(crate) struct Handling(Arc<Call>);

impl Future for Handling {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Origin::Incoming { answered, .. } = &self.0.origin else {
            return Poll::Ready(());
        };
        let mut answered = lock(answered);
        if answered.is_so {
            return Poll::Ready(());
        }
        answered.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let Origin::Incoming { answered, .. } = &self.0.origin else {
            return;
        };
        if !lock(answered).is_so {
            self.0.is_over.store(true, Ordering::SeqCst);
            self.0.wake_waiters();
            self.0.announce();
        }
    }
}

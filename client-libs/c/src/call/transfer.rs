//! The messages of a call, and their metadata, in both directions.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate_core::metadata::MetadataBuf;
use tollgate_core::{ReceivedBlock, Status};

use super::halves::{Receiving, Sending};
use super::state::{Call, HeldReceiving, HeldSending, noop};
use crate::outgoing::{Outgoing, OutgoingMessage};
use crate::session::{Message, lock};
use crate::status::{Ended, precondition};

impl Call {
    /// Sends a message: a request of the program's own call, or a response to an incoming call.
    pub(crate) fn send(
        self: &Arc<Self>,
        outgoing: Outgoing,
        metadata: MetadataBuf,
        may_block: bool,
    ) -> Result<(), Ended> {
        self.check()?;
        if may_block {
            let sent = self.unless_cancelled(async {
                let mut half = self.take_sending().await?;
                half.send(&outgoing, &metadata).await
            });
            self.settle(self.session.block(sent))?;
            return Ok(outgoing.check_unchanged()?);
        }
        let Some(mut half) = self.try_take_sending()? else {
            return Err(Ended::WouldBlock);
        };
        let outgoing = Arc::new(outgoing);
        let message = Arc::clone(&outgoing);
        let task = async move {
            if let Err(status) = half.send(&message, &metadata).await {
                *lock(&half.call.failed) = Some(status);
            }
        };
        self.session.run_on(task, &outgoing);
        match lock(&self.failed).take() {
            Some(status) => Err(status.into()),
            None => Ok(()),
        }
    }

    /// Sends metadata before the first response. It doesn't wait for a send in progress.
    pub(crate) fn send_metadata(self: &Arc<Self>, metadata: MetadataBuf) -> Result<(), Status> {
        self.check()?;
        let Some(mut half) = self.try_take_sending()? else {
            return Err(precondition("a message is being sent already"));
        };
        let send = async {
            match half.half.as_mut() {
                Some(Sending::Responses(responder)) => responder.send_metadata(&metadata).await,
                _ => Err(precondition(
                    "the metadata of the program's own call must be passed to tollgate_call_open",
                )),
            }
        };
        let sent = self.unless_cancelled(send);
        self.session.block(sent)
    }

    /// The next message from the other side.
    pub(crate) fn receive(self: &Arc<Self>, may_block: bool) -> Result<Message, Ended> {
        self.check()?;
        let next = self.polled(may_block, HeldReceiving::poll_next)?;
        next.map(|block| Message::new(block, &self.session))
            .ok_or(Ended::Well)
    }

    /// The metadata of the other side's messages.
    pub(crate) fn metadata(self: &Arc<Self>, may_block: bool) -> Result<&MetadataBuf, Ended> {
        if let Some(metadata) = self.metadata.get() {
            return Ok(metadata);
        }
        self.check()?;
        self.polled(may_block, HeldReceiving::poll_metadata)?;
        Ok(self.metadata.get_or_init(MetadataBuf::new))
    }

    /// What `poll` takes from the receiving half. Without blocking, the call is woken once there is
    /// something.
    fn polled<T>(
        self: &Arc<Self>,
        may_block: bool,
        poll: fn(&mut HeldReceiving, &Context<'_>) -> Poll<Result<T, Status>>,
    ) -> Result<T, Ended> {
        if may_block {
            let taken = self.unless_cancelled(async {
                let mut half = self.take_receiving().await?;
                poll_fn(|cx| poll(&mut half, cx)).await
            });
            return Ok(self.settle(self.session.block(taken))?);
        }
        let waker = Waker::from(Arc::clone(self));
        let cx = Context::from_waker(&waker);
        let Some(mut half) = self.try_take_receiving()? else {
            return Err(Ended::WouldBlock);
        };
        match poll(&mut half, &cx) {
            Poll::Ready(taken) => Ok(taken?),
            Poll::Pending => Err(Ended::WouldBlock),
        }
    }

    /// The trailers, once the call has ended successfully.
    pub(crate) fn trailers(&self) -> Option<&MetadataBuf> {
        self.trailers.get()
    }
}

impl HeldSending {
    async fn send(&mut self, outgoing: &Outgoing, metadata: &MetadataBuf) -> Result<(), Status> {
        let message = OutgoingMessage(outgoing);
        match self.half.as_mut() {
            Some(Sending::Requests(_)) if !metadata.is_empty() => Err(precondition(
                "the metadata of the program's own call must be passed to tollgate_call_open",
            )),
            Some(Sending::Requests(sender)) => sender.send(&message).await,
            Some(Sending::Responses(responder)) => responder.respond_with(&message, metadata).await,
            None => Err(precondition("the half is taken in drop only")),
        }
    }
}

impl HeldReceiving {
    fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Result<Option<ReceivedBlock>, Status>> {
        match self.half.as_mut() {
            Some(Receiving::Requests(requests)) => requests.poll_next(cx),
            Some(Receiving::Responses(responses)) => {
                let next = std::task::ready!(responses.poll_next(cx));
                self.note_metadata(cx);
                self.note_trailers();
                Poll::Ready(next)
            }
            None => Poll::Ready(Ok(None)),
        }
    }

    fn poll_metadata(&mut self, cx: &Context<'_>) -> Poll<Result<(), Status>> {
        match self.half.as_mut() {
            Some(Receiving::Responses(responses)) => {
                let come = std::task::ready!(responses.poll_metadata(cx));
                self.note_metadata(cx);
                Poll::Ready(come)
            }
            Some(Receiving::Requests(_)) | None => Poll::Ready(Ok(())),
        }
    }

    /// Keeps the metadata that came with the first message.
    fn note_metadata(&mut self, cx: &Context<'_>) {
        if self.call.metadata.get().is_some() {
            return;
        }
        if let Some(Receiving::Responses(responses)) = self.half.as_mut()
            && let Poll::Ready(Ok(())) = responses.poll_metadata(cx)
            && let Poll::Ready(Ok(metadata)) = pin!(responses.metadata()).poll(&mut noop())
        {
            let _first = self.call.metadata.set(metadata.clone());
        }
    }

    fn note_trailers(&mut self) {
        if let Some(Receiving::Responses(responses)) = &self.half
            && let Some(trailers) = responses.trailers()
        {
            let _first = self.call.trailers.set(trailers.clone());
        }
    }
}

//! Incoming messages: the device's completions, the peer's messages, and the destination of large
//! bodies.

use tollgate_shm_abi::heap::Block;
use tollgate_transport::LinkError;

use super::connect::carried;
use super::{Arrived, Granted, Landing, Offered, Phase, RdmaLink, Watch};
use crate::limits;
use crate::ring::{self, READ_AT, RING_AT, WRITTEN_AT, Writer};
use crate::verbs::{Completion, Queue, is_consequence, is_overlong, sentence_of};
use crate::wire::{Immediate, Kind, WireError, check_length};

/// Large bodies, without a copy.
impl RdmaLink {
    /// Gives the pending large body its place: a block that begins with room for it, which
    /// [`RdmaLink::read_landing`] returns.
    ///
    /// # Errors
    /// If no body is pending, the body is longer, was begun otherwise, or needs its bytes checked
    /// on arrival; the block comes back.
    pub fn land(&mut self, block: Block) -> Result<(), Block> {
        let fits = self
            .link
            .pending_body()
            .is_some_and(|(len, filled)| len <= block.len() && filled == 0);
        if !fits || self.link.is_sealed() || self.block.is_some() || self.granted.is_some() {
            return Err(block);
        }
        self.block = Some(block);
        Ok(())
    }

    /// Receives into the given block.
    ///
    /// # Errors
    /// If the connection failed, and so has the link: [`RdmaLink::reclaim_block`] has the block.
    pub fn read_landing(&mut self) -> Result<Landing, LinkError> {
        self.pump()?;
        self.fresh = false;
        if let Some(mut block) = self.block.take() {
            let len = self
                .link
                .pending_body()
                .map_or(0, |(len, _)| len)
                .min(block.len());
            // The link's bytes of it already count as copied, like bytes in the stream.
            match self.fill(&mut block[..len], usize::MAX, true) {
                Ok(None) => {
                    let more = self.has_more();
                    return Ok(Landing::Complete { block, more });
                }
                Ok(Some(missing)) => self.land_offer(block, missing)?,
                Err(error) => {
                    self.block = Some(block);
                    return Err(error);
                }
            }
        }
        self.act()?;
        Ok(Landing::Pending)
    }

    /// The block of a body that will never be complete, because the link has ended or the body was
    /// skipped. If the peer is sending the body, the block comes once that is done.
    pub fn reclaim_block(&mut self) -> Option<Block> {
        let over = self.phase == Phase::Ended || self.link.pending_body().is_none();
        self.block.take_if(|_| over)
    }

    /// Grants an offer of the missing bytes, if one is next in the stream.
    pub(super) fn land_offer(
        &mut self,
        block: Block,
        missing: std::ops::Range<usize>,
    ) -> Result<(), LinkError> {
        let Some(len) = self.next_offer() else {
            self.block = Some(block);
            return Ok(());
        };
        self.arrived.pop_front();
        let queues = self.connection.queues();
        let queues = queues.filter(|queues| {
            let messages = len.div_ceil(queues.body_message() as usize);
            len <= missing.len() && messages <= limits::BODY_MESSAGES
        });
        let Some(queues) = queues else {
            self.block = Some(block);
            self.answer = Some(Kind::Decline);
            return Ok(());
        };
        match queues.land(block, missing.start, len) {
            Ok(()) => {
                self.granted = Some(Granted { len, landed: 0 });
                self.answer = Some(Kind::Grant);
                Ok(())
            }
            Err((Some(block), error)) => {
                self.block = Some(block);
                self.copies_because = Some(error);
                self.answer = Some(Kind::Decline);
                Ok(())
            }
            Err((None, error)) => Err(self.broken(LinkError::Connection {
                sentence: error.to_string(),
            })),
        }
    }
}

impl RdmaLink {
    /// Takes the completions of the device and the events of the connection manager.
    pub(super) fn pump(&mut self) -> Result<(), LinkError> {
        if let (true, Watch::Shared(member)) = (self.waited, &self.watch) {
            member.wake();
        }
        match self.take_completions() {
            Ok(0) => self.idle_polls += 1,
            Ok(_) => (self.idle_polls, self.fresh) = (0, true),
            Err(error) => return Err(self.broken(error)),
        }
        match self.look() {
            Ok(false) => {}
            Ok(true) => (self.idle_polls, self.fresh) = (0, true),
            Err(error) => return Err(self.broken(carried(&error))),
        }
        let due = self.phase != Phase::Established
            || self.idle_polls >= limits::EVENTS_EVERY
            || std::mem::take(&mut self.waited)
            || self.was_called();
        if due && self.phase != Phase::Ended {
            self.idle_polls = 0;
            if let Err(error) = self.take_events() {
                return Err(self.broken(error));
            }
        }
        if self.phase == Phase::Ended {
            return Err(self.broken(LinkError::Closed));
        }
        // The final messages won't be acknowledged either, and calls' memory waits for that.
        if self.link.failure() == Some(&LinkError::Silent) {
            return Err(self.broken(LinkError::Silent));
        }
        // Messages from before the peer's end are still read; offered bodies won't come any more.
        if self.closing && !self.has_bytes() {
            return Err(self.broken(LinkError::Closed));
        }
        Ok(())
    }

    /// Whether its poller has seen an event of its connection.
    fn was_called(&self) -> bool {
        match &self.watch {
            Watch::Own(_) => false,
            Watch::Shared(member) => member.was_called(),
        }
    }

    /// Looks at the peer's words in this end's window; returns whether they are newer than before.
    pub(super) fn look(&mut self) -> Result<bool, WireError> {
        let Some(rings) = &mut self.rings else {
            return Ok(false);
        };
        let Some(queues) = self.connection.queues_ref() else {
            return Ok(false);
        };
        let before = rings.seen();
        if let Some(written) = ring::count(queues.words(WRITTEN_AT)) {
            rings.reader.was_written(written)?;
        }
        let read = ring::count(queues.words(READ_AT));
        if let (Some(read), Some(writer)) = (read, &mut rings.writer) {
            writer.was_read(read)?;
        }
        Ok(rings.seen() != before)
    }

    /// Whether bytes of the stream wait to be read.
    pub(super) fn has_bytes(&self) -> bool {
        match &self.rings {
            Some(rings) => rings.reader.ready().1 > 0,
            None => matches!(self.arrived.front(), Some(Arrived::Stream { .. })),
        }
    }

    /// Whether anything waits to be read.
    pub(super) fn has_more(&self) -> bool {
        self.has_bytes() || !self.arrived.is_empty()
    }

    /// Whether the peer has written anything since this end announced its sleep.
    pub(super) fn has_bytes_since_seen(&mut self) -> bool {
        // The next turn exposes a lying peer.
        self.look().unwrap_or(true)
    }

    /// The peer's offer, if it is next.
    pub(super) fn next_offer(&self) -> Option<usize> {
        match self.arrived.front() {
            Some(Arrived::Offer { len }) if !self.has_bytes() => Some(*len),
            _ => None,
        }
    }

    pub(super) fn take_completions(&mut self) -> Result<usize, LinkError> {
        let mut found = std::mem::take(&mut self.scratch.completions);
        let mut all = 0;
        let outcome = loop {
            let Some(queues) = self.connection.queues() else {
                break Ok(());
            };
            found.clear();
            match queues.poll(&mut found) {
                Ok(0) => break Ok(()),
                Ok(count) => all += count,
                Err(error) => break Err(error.into_link_error()),
            }
            let handled = found.iter().try_for_each(|each| self.completed(*each));
            if handled.is_err() {
                break handled;
            }
        };
        self.scratch.completions = found;
        outcome.map(|()| all)
    }

    pub(super) fn completed(&mut self, completion: Completion) -> Result<(), LinkError> {
        match completion {
            Completion::Sent {
                queue: Queue::Stream,
                message,
            } => {
                let is_read = |(messages, _): &mut (u64, u64)| *messages <= message + 1;
                while let Some((_, bytes)) = self.reading.pop_front_if(is_read) {
                    self.link.was_read(bytes);
                }
                Ok(())
            }
            Completion::Sent { .. } => Ok(()),
            Completion::Received {
                receive,
                len,
                immediate,
                written,
            } => self
                .received(receive, len, immediate, written)
                .map_err(|error| carried(&error)),
            Completion::Overrun => Err(carried(&WireError::Overrun)),
            Completion::Landed { len } => self.landed(len).map_err(|error| carried(&error)),
            // Requests flushed by the peer's end are no news.
            Completion::Failed { status, .. } if self.closing && is_consequence(status) => Ok(()),
            Completion::Failed {
                receiving: true,
                status,
                ..
            } if is_overlong(status) => Err(carried(&WireError::Overlong)),
            Completion::Failed { queue, status, .. } => Err(LinkError::Connection {
                sentence: match queue {
                    Queue::Stream => sentence_of(status).to_owned(),
                    Queue::Body => format!("{} (of a large body)", sentence_of(status)),
                },
            }),
        }
    }

    pub(super) fn received(
        &mut self,
        receive: u16,
        len: usize,
        immediate: Option<u32>,
        written: bool,
    ) -> Result<(), WireError> {
        let Immediate { kind, returned } =
            Immediate::decode(immediate.ok_or(WireError::NoImmediate)?)?;
        match written {
            false => check_length(kind, len)?,
            // Only a wake-up: its bytes are in the ring.
            true if kind == Kind::Credit && self.rings.is_some() => {}
            true => return Err(WireError::Unexpected { kind }),
        }
        self.flow.receive(returned)?;
        if kind == Kind::Stream && self.rings.is_none() {
            self.arrived.push_back(Arrived::Stream { receive, len });
            return Ok(());
        }
        let queues = self.connection.queues().expect("a message came by it");
        let mut payload = [0; 16];
        if !written {
            let bytes = queues.received(receive, len.min(16));
            payload[..bytes.len()].copy_from_slice(bytes);
        }
        self.free(receive);
        match (kind, self.offered) {
            (Kind::Offer, _) => self.offer_came(u32_at(&payload, 0)),
            (Kind::Grant, Offered::Unanswered { len }) => {
                self.offered = Offered::Granted { len };
                Ok(())
            }
            (Kind::Decline, Offered::Unanswered { len }) => {
                self.offered = Offered::Declined { left: len };
                Ok(())
            }
            (Kind::Ring, _) => self.ring_came(&payload),
            (Kind::Sleep, _) => self.sleep_came(&payload),
            (Kind::Credit, _) => Ok(()),
            (Kind::Grant | Kind::Decline | Kind::Stream, _) => Err(WireError::Unexpected { kind }),
        }
    }

    /// Handles a RING: the peer gives the place for writes.
    fn ring_came(&mut self, payload: &[u8; 16]) -> Result<(), WireError> {
        let kind = Kind::Ring;
        let rings = self
            .rings
            .as_mut()
            .filter(|rings| rings.writer.is_none())
            .ok_or(WireError::Unexpected { kind })?;
        let (address, key, bytes) = (u64_at(payload, 0), u32_at(payload, 8), u32_at(payload, 12));
        if bytes != rings.peer_bytes {
            return Err(WireError::RingBytes {
                bytes,
                greeted: rings.peer_bytes,
            });
        }
        rings.writer = Some(Writer::new(bytes));
        let queues = self.connection.queues().expect("a message came by it");
        queues.use_window(address, key, RING_AT + bytes as usize);
        Ok(())
    }

    /// Handles a SLEEP: the peer has stopped watching its memory.
    fn sleep_came(&mut self, payload: &[u8; 16]) -> Result<(), WireError> {
        let kind = Kind::Sleep;
        let rings = self.rings.as_mut().ok_or(WireError::Unexpected { kind })?;
        rings.peer_sleeps = Some([u64_at(payload, 0), u64_at(payload, 8)]);
        Ok(())
    }

    pub(super) fn offer_came(&mut self, len: u32) -> Result<(), WireError> {
        if !(1..=tollgate_transport::limits::MAX_MESSAGE).contains(&len) {
            return Err(WireError::OfferLength { len });
        }
        let another = self
            .arrived
            .iter()
            .any(|arrived| matches!(arrived, Arrived::Offer { .. }));
        // An earlier granted offer may still be landing: the queue pairs aren't ordered.
        if another || self.answer.is_some() {
            return Err(WireError::Unexpected { kind: Kind::Offer });
        }
        self.arrived.push_back(Arrived::Offer { len: len as usize });
        Ok(())
    }

    /// Handles one more message of the granted body.
    pub(super) fn landed(&mut self, len: usize) -> Result<(), WireError> {
        let queues = self.connection.queues().expect("a body came by it");
        let granted = self.granted.as_mut().expect("only a grant posts for it");
        let expected = (queues.body_message() as usize).min(granted.len - granted.landed);
        if len != expected {
            return Err(WireError::BodyLength { len, expected });
        }
        granted.landed += len;
        if granted.landed == granted.len {
            self.block = queues.landed();
            let (body, len) = (self.block.as_deref().unwrap_or_default(), granted.len);
            // A caller that continues to read the link learns why it has ended.
            let _ended = self.link.body_filled(&body[..len.min(body.len())], len);
            self.granted = None;
        }
        Ok(())
    }

    /// Frees a receive after reading, to be posted again.
    pub(super) fn free(&mut self, receive: u16) {
        let queues = self.connection.queues().expect("a message came by it");
        queues.repost(receive);
    }

    /// Posts the freed receives once they are a batch: credits are for posted receives.
    pub(super) fn post_receives(&mut self) -> Result<(), LinkError> {
        let queues = self.connection.queues().expect("established");
        let count = queues.free_receives();
        if count < limits::RECEIVE_BATCH {
            return Ok(());
        }
        if let Err(error) = queues.post_receives() {
            return Err(self.broken(error.into_link_error()));
        }
        (0..count).for_each(|_| self.flow.reposted());
        Ok(())
    }

    /// Copies received bytes to the link's buffer; returns whether there were any.
    pub(super) fn feed(&mut self, at_most: usize) -> bool {
        if self.rings.is_some() {
            return self.feed_from_ring(at_most);
        }
        let mut left = at_most;
        while let Some(Arrived::Stream { receive, len }) = self.arrived.front().copied() {
            let queues = self.connection.queues_ref().expect("a message came by it");
            let bytes = &queues.received(receive, len)[self.read..];
            let bytes = &bytes[..bytes.len().min(left)];
            let taken = self.link.receive(bytes);
            self.copied += taken as u64;
            left -= taken;
            self.consumed(taken, receive, len);
            if taken == 0 {
                break;
            }
        }
        left < at_most
    }

    fn feed_from_ring(&mut self, at_most: usize) -> bool {
        let mut left = at_most;
        loop {
            let rings = self.rings.as_mut().expect("a one-sided link");
            let (at, ready) = rings.reader.ready();
            let space = self.link.rx_space();
            let n = ready.min(space.len()).min(left);
            if n == 0 {
                return left < at_most;
            }
            let queues = self.connection.queues_ref().expect("bytes came by it");
            queues.copy_out(at, &mut space[..n]);
            self.link.rx_filled(n);
            rings.reader.read(n);
            self.copied += n as u64;
            left -= n;
        }
    }

    /// Marks this many bytes of the first message as read.
    pub(super) fn consumed(&mut self, n: usize, receive: u16, len: usize) {
        self.read += n;
        if self.read == len {
            self.read = 0;
            self.arrived.pop_front();
            self.free(receive);
        }
    }

    /// Copies received bytes of the pending body into its place, at most this many; returns the
    /// range of the missing ones. An offer ends the copying, and is declined unless it `lands`.
    pub(super) fn fill(
        &mut self,
        body: &mut [u8],
        at_most: usize,
        lands: bool,
    ) -> Result<Option<std::ops::Range<usize>>, LinkError> {
        let before = self.link.moved().body_copied;
        // A body that landed whole isn't pending any more.
        if self.link.pending_body().is_none() && lands {
            return Ok(None);
        }
        let mut missing = self.link.fill_body(body)?;
        self.copied += self.link.moved().body_copied - before;
        let mut left = at_most.max(1);
        while !missing.is_empty() && left > 0 {
            if let Some(rings) = self.rings.as_mut().filter(|r| r.reader.ready().1 > 0) {
                let (at, ready) = rings.reader.ready();
                let n = ready.min(missing.len()).min(left);
                let queues = self.connection.queues_ref().expect("bytes came by it");
                queues.copy_out(at, &mut body[missing.start..missing.start + n]);
                rings.reader.read(n);
                self.link.body_copied(body, n)?;
                self.copied += n as u64;
                (missing.start, left) = (missing.start + n, left - n);
                continue;
            }
            match self.arrived.front().copied() {
                Some(Arrived::Stream { receive, len }) => {
                    let queues = self.connection.queues_ref().expect("a message came by it");
                    let bytes = &queues.received(receive, len)[self.read..];
                    let n = bytes.len().min(missing.len()).min(left);
                    body[missing.start..missing.start + n].copy_from_slice(&bytes[..n]);
                    let copied = self.link.body_copied(body, n);
                    self.copied += n as u64;
                    (missing.start, left) = (missing.start + n, left - n);
                    self.consumed(n, receive, len);
                    copied?;
                }
                Some(Arrived::Offer { .. }) if !lands => {
                    self.arrived.pop_front();
                    self.answer = Some(Kind::Decline);
                }
                Some(Arrived::Offer { .. }) | None => break,
            }
        }
        Ok(Some(missing).filter(|missing| !missing.is_empty()))
    }
}

fn u32_at(bytes: &[u8; 16], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; 16], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

//! Outgoing messages: turns the link's pending bytes into work requests.

use std::sync::Arc;

use tollgate_transport::{LinkError, Part};

use super::connect::carried;
use super::{Leaving, Offered, Phase, RdmaLink, Rings, Scratch};
use crate::error::RdmaError;
use crate::limits;
use crate::plan::{Element, Lies, Position, Range, Shape, Step, next_message};
use crate::ring::{self, READ_AT, WRITTEN_AT, Writer};
use crate::verbs::{Gather, Queue, Queues, To};
use crate::wire::{Immediate, Kind};

enum Planned {
    Message {
        bytes: usize,
        gathered: bool,
    },
    /// The first waiting bytes should be offered as a body.
    Body {
        len: usize,
    },
}

impl RdmaLink {
    /// Hands the pending messages to the device: an answer, credits with their receives, earlier
    /// additions.
    pub(super) fn act(&mut self) -> Result<(), LinkError> {
        if self.phase != Phase::Established || self.closing {
            return Ok(());
        }
        self.post_receives()?;
        if let Some(kind) = self.answer.take_if(|_| self.flow.may_send()) {
            match self.has_room() {
                true => self.control(kind, &[]),
                false => self.answer = Some(kind),
            }
        }
        if self.flow.must_return() && self.has_room() {
            self.control(Kind::Credit, &[]);
        }
        self.publish();
        if self.rings.is_some() && self.has_room() {
            self.tell();
        }
        let queues = self.connection.queues().expect("established");
        let done = queues.ring();
        done.map_err(|error| self.broken(error.into_link_error()))
    }

    pub(super) fn has_room(&self) -> bool {
        let queues = self.connection.queues_ref().expect("established");
        queues.room(Queue::Stream) > 0
    }

    /// Adds a message without bytes of the stream.
    pub(super) fn control(&mut self, kind: Kind, payload: &[u8]) {
        self.scratch.gathers.clear();
        if !payload.is_empty() {
            self.put_in_place(payload);
        }
        self.push(kind, false);
    }

    fn put_in_place(&mut self, payload: &[u8]) {
        let queues = self.connection.queues().expect("established");
        queues.place()[..payload.len()].copy_from_slice(payload);
        let len = payload.len();
        self.scratch.gathers.push(Gather::Place { at: 0, len });
    }

    /// Adds the message of these gathers.
    pub(super) fn push(&mut self, kind: Kind, gathered: bool) {
        let returned = self.flow.send();
        let immediate = Immediate { kind, returned }.encode();
        self.push_to(To::Receive { immediate }, gathered);
    }

    fn push_to(&mut self, to: To, gathered: bool) {
        let queues = self.connection.queues().expect("established");
        let (next, _) = queues.progress(Queue::Stream);
        // Links with few sends ask more often: their places are waited for.
        let every = limits::SIGNAL_EVERY.min(queues.sends() as u64 / 2);
        let signalled = gathered || next % every == every - 1 || self.farewell;
        queues.push(&self.scratch.gathers, to, signalled);
        // The queues hold the memory of pending sends; other heaps can be unregistered.
        self.scratch.gathers.clear();
    }

    /// Publishes the bytes written into the peer's ring; with immediate data, to wake the peer, if
    /// it sleeps.
    pub(super) fn publish(&mut self) {
        let Some(rings) = &self.rings else { return };
        let written = rings.writer.as_ref().map_or(0, Writer::written);
        if written == rings.published || !self.has_room() {
            return;
        }
        let wakes = rings.peer_sleeps.is_some() && self.flow.may_send();
        let immediate = wakes.then(|| {
            let (kind, returned) = (Kind::Credit, self.flow.send());
            Immediate { kind, returned }.encode()
        });
        self.write_word(WRITTEN_AT, written, immediate);
        let rings = self.rings.as_mut().expect("looked at above");
        rings.published = written;
        if wakes {
            rings.peer_sleeps = None;
        }
    }

    fn write_word(&mut self, at: usize, count: u64, immediate: Option<u32>) {
        self.scratch.gathers.clear();
        self.put_in_place(&ring::word(count));
        self.push_to(To::Window { at, immediate }, false);
    }

    /// Reports the bytes read from this end's ring, and wakes the peer if it sleeps and has news.
    fn tell(&mut self) {
        let told = match &mut self.rings {
            Some(rings) if rings.writer.is_some() => rings.reader.tell(),
            _ => None,
        };
        if let Some(read) = told {
            self.write_word(READ_AT, read, None);
        }
        let wakes = self.rings.as_ref().is_some_and(Rings::must_wake);
        if wakes && self.flow.may_send() && self.has_room() {
            self.control(Kind::Credit, &[]);
            let rings = self.rings.as_mut().expect("looked at above");
            rings.peer_sleeps = None;
        }
    }

    /// Announces that this end stops watching its memory, unless that was announced. Returns
    /// whether it is announced.
    pub(super) fn say_sleep(&mut self) -> Result<bool, LinkError> {
        match self.look() {
            Ok(false) => {}
            Ok(true) => return Ok(false),
            Err(error) => return Err(self.broken(carried(&error))),
        }
        let Some(rings) = &self.rings else {
            return Ok(true);
        };
        let seen = rings.seen();
        if rings.said == Some(seen) || self.phase != Phase::Established || self.closing {
            return Ok(true);
        }
        if !self.flow.may_send() || !self.has_room() {
            return Ok(false);
        }
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&seen[0].to_le_bytes());
        payload[8..].copy_from_slice(&seen[1].to_le_bytes());
        self.control(Kind::Sleep, &payload);
        let rings = self.rings.as_mut().expect("looked at above");
        rings.said = Some(seen);
        self.act()?;
        Ok(true)
    }

    /// Adds one message of the waiting bytes. Returns whether one was added.
    pub(super) fn send_one(&mut self) -> bool {
        if let Offered::Granted { len } = self.offered {
            return self.send_body(len);
        }
        if matches!(self.offered, Offered::Unanswered { .. }) {
            return false;
        }
        let Some((room, to)) = self.room() else {
            return false;
        };
        let (sent, gathered) = match self.plan_message(room) {
            Planned::Message { bytes, gathered } => (bytes, gathered),
            Planned::Body { len } => {
                // Earlier bytes must precede the offer.
                self.publish();
                if !self.flow.may_send() || !self.has_room() {
                    return false;
                }
                self.control(Kind::Offer, &(len as u32).to_le_bytes());
                self.offered = Offered::Unanswered { len };
                return true;
            }
        };
        match to {
            None => self.push(Kind::Stream, gathered),
            Some(at) => {
                let immediate = None;
                self.push_to(To::Window { at, immediate }, gathered);
                let rings = self.rings.as_mut().expect("its room was asked for");
                rings.writer.as_mut().expect("as above").wrote(sent);
            }
        }
        if gathered {
            let queues = self.connection.queues_ref().expect("established");
            self.gathered = queues.progress(Queue::Stream).0;
        }
        if let Offered::Declined { left } = self.offered {
            self.offered = match left.saturating_sub(sent) {
                0 => Offered::Nothing,
                left => Offered::Declined { left },
            };
        }
        self.left(sent);
        true
    }

    /// Bytes available for the next message, and its place in the peer's ring, if there is one.
    /// `None` if it has to wait.
    fn room(&self) -> Option<(usize, Option<usize>)> {
        let queues = self.connection.queues_ref().expect("established");
        let Some(rings) = &self.rings else {
            let may = self.flow.may_send() && self.has_room();
            return may.then_some((limits::MESSAGE_BYTES, None));
        };
        // One more for publishing it.
        let (at, free) = rings.writer.as_ref()?.room();
        let may = free > 0 && queues.room(Queue::Stream) >= 2;
        may.then_some((free.min(limits::MESSAGE_BYTES), Some(at)))
    }

    /// Adds the body that the peer has granted. Returns whether there was room.
    pub(super) fn send_body(&mut self, len: usize) -> bool {
        let queues = self.connection.queues().expect("established");
        if len.div_ceil(queues.body_message() as usize) > queues.room(Queue::Body) {
            return false;
        }
        let mut parts = [Part::Private(&[])];
        self.link.parts(&mut parts);
        let Part::Shared { span, at } = parts[0] else {
            unreachable!("what was offered is the first that waits, until it has left")
        };
        let memory = queues.heap_of(span);
        let memory = memory.expect("it was registered when it was offered, and the span holds it");
        queues.push_body(&memory, span.offset() as usize + at, len);
        self.offered = Offered::Nothing;
        self.left(len);
        true
    }

    /// Marks this many bytes as handed to the device. Their tokens, and the room of marshalled
    /// ones, wait until it has read them.
    pub(super) fn left(&mut self, n: usize) {
        let before = self.link.left_of_memory();
        self.link.advance(n);
        let queues = self.connection.queues_ref().expect("established");
        let (stream, _) = queues.progress(Queue::Stream);
        let marshalled = self.link.left_of_memory();
        if marshalled > before {
            self.reading.push_back((stream, marshalled));
        }
        let (body, _) = queues.progress(Queue::Body);
        let stream = self.gathered;
        while let Some(token) = self.link.poll_sent() {
            self.leaving.push_back(Leaving {
                stream,
                body,
                token,
            });
        }
    }

    /// Plans the next message, and copies the bytes to be fused.
    fn plan_message(&mut self, room: usize) -> Planned {
        let declined = match self.offered {
            Offered::Declined { left } => left,
            _ => 0,
        };
        let mut parts = [Part::Private(&[]); tollgate_transport::limits::TX_BATCH];
        let count = self.link.parts(&mut parts);
        let queues = self.connection.queues().expect("established");
        let scratch = &mut self.scratch;
        let body = list_elements(
            &parts[..count],
            &Bounds {
                declined,
                small_bytes: self.small_bytes,
            },
            queues,
            scratch,
            &mut self.copies_because,
        );
        if let Some(len) = body {
            return Planned::Body { len };
        }
        let shape = Shape {
            max_elements: queues.device().max_elements(),
            message_bytes: room,
            fused_bytes: room,
            small_bytes: self.small_bytes,
        };
        scratch.steps.clear();
        let (elements, steps) = (&scratch.elements, &mut scratch.steps);
        next_message(elements, Position::default(), &shape, steps);
        let planned = carry_out(&parts[..count], queues, scratch);
        // A heap without pending sends can be unregistered.
        scratch.memories.clear();
        self.copied += planned.copied as u64;
        Planned::Message {
            bytes: planned.bytes,
            gathered: planned.gathered,
        }
    }
}

/// The result of a plan.
#[derive(Default)]
struct Carried {
    bytes: usize,
    copied: usize,
    gathered: bool,
}

/// Limits for the parts of a message.
struct Bounds {
    /// Number of the first bytes that were declined as a body.
    declined: usize,
    /// Parts of up to this many bytes are fused.
    small_bytes: usize,
}

/// Lists the parts as elements, as many as may go into one message. Parts that are long enough and
/// readable by a device come with their memory. If the first one should be offered as a body,
/// returns its length instead.
fn list_elements(
    parts: &[Part<'_>],
    bounds: &Bounds,
    queues: &mut Queues,
    scratch: &mut Scratch,
    copies_because: &mut Option<Arc<RdmaError>>,
) -> Option<usize> {
    scratch.elements.clear();
    scratch.memories.clear();
    let mut total = 0;
    for part in parts {
        let (len, lies, memory) = match part {
            Part::Private(bytes) if queues.marshalled_at(bytes).is_some() => {
                (bytes.len(), Lies::Marshalled, None)
            }
            Part::Private(bytes) => (bytes.len(), Lies::Unregistered, None),
            Part::Shared { span, at } => {
                let len = span.len() - at;
                match (len > bounds.small_bytes).then(|| queues.heap_of(span)) {
                    None => (len, Lies::Unregistered, None),
                    Some(Ok(memory)) => (len, Lies::Heap, Some(memory)),
                    Some(Err(error)) => {
                        *copies_because = Some(error);
                        (len, Lies::Unregistered, None)
                    }
                }
            }
        };
        if len >= limits::BODY_MIN && memory.is_some() && total >= bounds.declined {
            return scratch.elements.is_empty().then_some(len);
        }
        scratch.elements.push(Element { len, lies });
        scratch.memories.push(memory);
        total += len;
        // Further bytes won't fit.
        if total >= limits::MESSAGE_BYTES {
            break;
        }
    }
    None
}

/// Copies the bytes to be fused into the next message's place, and lists the message's elements.
fn carry_out(parts: &[Part<'_>], queues: &mut Queues, scratch: &mut Scratch) -> Carried {
    let mut carried = Carried::default();
    scratch.gathers.clear();
    for step in &scratch.steps {
        let (Step::Fuse(range) | Step::Gather(range)) = *step;
        carried.bytes += range.len;
        if let Step::Fuse(_) = step {
            let place = &mut queues.place()[carried.copied..carried.copied + range.len];
            copy_part(&parts[range.element], range, place);
            match scratch.gathers.last_mut() {
                Some(Gather::Place { len, .. }) => *len += range.len,
                _ => scratch.gathers.push(Gather::Place {
                    at: carried.copied,
                    len: range.len,
                }),
            }
            carried.copied += range.len;
            continue;
        }
        let len = range.len;
        scratch.gathers.push(match &parts[range.element] {
            Part::Private(bytes) => {
                let at = queues.marshalled_at(bytes);
                Gather::Marshalled {
                    at: at.expect("the plan gathers what is registered") + range.at,
                    len,
                }
            }
            Part::Shared { span, at } => {
                carried.gathered = true;
                let memory = scratch.memories[range.element].as_ref();
                Gather::Heap {
                    memory: Arc::clone(memory.expect("as above")),
                    at: span.offset() as usize + at + range.at,
                    len,
                }
            }
        });
    }
    carried
}

/// Copies a range of a part to its place.
fn copy_part(part: &Part<'_>, range: Range, place: &mut [u8]) {
    match part {
        Part::Private(bytes) => place.copy_from_slice(&bytes[range.at..range.at + range.len]),
        Part::Shared { span, at } => span
            .copy_from(at + range.at, place)
            .expect("a range inside of the span"),
    }
}

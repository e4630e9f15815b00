//! Sending: messages of the stream, writes into the peer's window, and bodies.

use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys as sys;

use super::{PeerWindow, Queues};
use crate::error::RdmaError;
use crate::limits::{BODY_MESSAGES, MESSAGE_BYTES};
use crate::verbs::domain::check;
use crate::verbs::memory::Memory;
use crate::verbs::window::Window;
use crate::verbs::work::{Gather, Queue, To, send_request};
use crate::verbs::work_ids::{ID_BODY, ID_STREAM};

impl Queues {
    /// Number of messages that the queue can take before a completion must come.
    pub(crate) fn room(&self, queue: Queue) -> usize {
        let (sends, all) = match queue {
            Queue::Stream => (&self.stream_sends, self.sends()),
            Queue::Body => (&self.body_sends, BODY_MESSAGES),
        };
        all - usize::try_from(sends.next - sends.complete).unwrap_or(all)
    }

    /// Number of messages sent by the queue, and the number before which all are complete.
    pub(crate) fn progress(&self, queue: Queue) -> (u64, u64) {
        let sends = match queue {
            Queue::Stream => &self.stream_sends,
            Queue::Body => &self.body_sends,
        };
        (sends.next, sends.complete)
    }

    /// The place for the copied bytes of the stream's next message.
    ///
    /// # Panics
    /// If there is no [room](Self::room).
    pub(crate) fn place(&mut self) -> &mut [u8] {
        assert!(self.room(Queue::Stream) > 0, "asked before");
        let start = self.lane.place(self.stream_sends.next);
        // SAFETY: the range is of this value's lane, whose places it borrows exclusively; it is
        // initialised, since the pages begin zeroed. The device doesn't read it: `sends` messages
        // ago it was last sent from, and that is complete. It never writes it.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), MESSAGE_BYTES) }
    }

    /// Adds a message to the stream's queue and returns its number; [`Queues::ring`] hands it to
    /// the device.
    ///
    /// # Panics
    /// If there is no [room](Self::room), an element lies outside of its memory, or a write lies
    /// outside of the peer's window.
    pub(crate) fn push(&mut self, elements: &[Gather], to: To, signalled: bool) -> u64 {
        assert!(self.room(Queue::Stream) > 0, "asked before");
        let sends = &mut self.stream_sends;
        let (message, first) = (sends.next, sends.elements.len());
        let (mut bytes, mut marshalled) = (0, 0);
        let mut inline = true;
        for element in elements {
            match element {
                Gather::Place { at, len } => {
                    let element = self.lane.place_element(message, *at, *len);
                    sends.elements.push(element);
                    bytes += len;
                }
                Gather::Marshalled { at, len } => {
                    sends.elements.push(self.lane.marshalled_element(*at, *len));
                    bytes += len;
                    marshalled += len;
                }
                Gather::Heap { memory, at, len } => {
                    sends.elements.push(memory.element(*at, *len));
                    sends.held.push_back((message, Arc::clone(memory)));
                    self.counts.bytes_in_place += *len as u64;
                    inline = false;
                }
            }
        }
        let mut flags = 0;
        if signalled || self.lane.is_much_of_ring(marshalled) {
            flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if inline && bytes > 0 && bytes <= self.inline_bytes {
            flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let count = sends.elements.len() - first;
        let immediate = match to {
            To::Receive { immediate } => Some(immediate),
            To::Window { immediate, .. } => immediate,
        };
        let mut request = send_request(ID_STREAM | message, count, flags, immediate);
        if let To::Window { at, .. } = to {
            let window = self.peer_window.expect("a window was given");
            assert!(at + bytes <= window.len, "a range inside of the window");
            request.opcode = match immediate {
                Some(_) => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
                None => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            };
            request.wr = sys::wr_t {
                rdma: sys::rdma_t {
                    // The peer has chosen this number, so it may be anything.
                    remote_addr: window.address.wrapping_add(at as u64),
                    rkey: window.key,
                },
            };
        }
        sends.requests.push((request, first));
        sends.next += 1;
        message
    }

    /// Opens a window of this many bytes for the peer. Returns its address and key. The peer may be
    /// told them in a message, since that is sent after the window is bound.
    pub(crate) fn open_window(&mut self, len: usize) -> Result<(u64, u32), RdmaError> {
        assert!(self.window.is_none(), "a link has one");
        let window = Window::new(&self.device.domain, len)?;
        self.counts.registrations += 1;
        self.counts.system_calls += 2;
        let (address, key, binding) = window.binding(len);
        let message = self.stream_sends.next;
        let mut request = send_request(ID_STREAM | message, 0, 0, None);
        request.opcode = sys::ibv_wr_opcode::IBV_WR_BIND_MW;
        request.bind_mw_tso_union = sys::bind_mw_tso_union_t { bind_mw: binding };
        let first = self.stream_sends.elements.len();
        self.stream_sends.requests.push((request, first));
        self.stream_sends.next += 1;
        self.window = Some(window);
        Ok((address, key))
    }

    /// Sets the window that the peer has given.
    pub(crate) fn use_window(&mut self, address: u64, key: u32, len: usize) {
        self.peer_window = Some(PeerWindow { address, key, len });
    }

    /// Two words of this end's window; zeros if there is no window.
    pub(crate) fn words(&self, at: usize) -> [u64; 2] {
        self.window
            .as_ref()
            .map_or([0, 0], |window| window.words(at))
    }

    /// Copies bytes that the peer has written out of this end's window.
    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        let window = self.window.as_ref();
        window.expect("a window was opened").copy_out(at, bytes);
    }

    /// Adds the messages of a body, each of at most [`body_message`](Self::body_message) bytes.
    /// Returns the number of the last.
    ///
    /// # Panics
    /// If there is no room for them, or the range lies outside of the memory.
    pub(crate) fn push_body(&mut self, memory: &Arc<Memory>, at: usize, len: usize) -> u64 {
        let most = self.body_message as usize;
        let messages = len.div_ceil(most);
        assert!(messages <= self.room(Queue::Body), "asked before");
        let sends = &mut self.body_sends;
        for n in 0..messages {
            let from = at + n * most;
            let element = memory.element(from, most.min(at + len - from));
            // Only the last one's completion matters.
            let flags = match n + 1 == messages {
                true => sys::ibv_send_flags::IBV_SEND_SIGNALED.0,
                false => 0,
            };
            let request = send_request(ID_BODY | sends.next, 1, flags, None);
            sends.requests.push((request, sends.elements.len()));
            sends.elements.push(element);
            sends.held.push_back((sends.next, Arc::clone(memory)));
            sends.next += 1;
        }
        self.counts.bytes_in_place += len as u64;
        sends.next - 1
    }

    /// Hands the added messages to the device, as one list per queue pair.
    pub(crate) fn ring(&mut self) -> Result<(), RdmaError> {
        // SAFETY: the id has its queue pair until `destroy_pairs`.
        let stream = unsafe { self.id.as_ref() }.qp;
        for queue in [Queue::Body, Queue::Stream] {
            let (pair, sends) = match queue {
                Queue::Body => (self.body.as_ptr(), &mut self.body_sends),
                Queue::Stream => (stream, &mut self.stream_sends),
            };
            if sends.requests.is_empty() {
                continue;
            }
            self.counts.doorbells += 1;
            self.counts.work_requests += sends.requests.len() as u64;
            self.counts.elements += sends.elements.len() as u64;
            let elements = sends.elements.as_mut_ptr();
            let mut next = ptr::null_mut();
            for (request, first) in sends.requests.iter_mut().rev() {
                // SAFETY: `first` is the index of an element of the vector, or its length for a
                // message without elements.
                request.sg_list = unsafe { elements.add(*first) };
                request.next = next;
                next = request;
            }
            let mut bad = ptr::null_mut();
            // SAFETY: the list's requests and elements are there during the call, after which the
            // device has copied them. Each element is a range of registered memory that `self`
            // holds, until the request's completion or the queue pair's end: its lane, or what is
            // in `held`.
            let status = unsafe { sys::ibv_post_send(pair, next, &mut bad) };
            sends.requests.clear();
            sends.elements.clear();
            check("handing messages to the device", status)?;
        }
        Ok(())
    }
}

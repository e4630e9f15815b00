//! An application that breaks all rules: a session driven by hand, which can write anything
//! anywhere that its descriptors allow.
//!
//! It uses the real protocol to get in (open, bind); then the test makes every decision: raw ring
//! entries, raw bytes in heaps and in the rings' index words. It writes through the memfds with
//! `pwrite`, like any program with these descriptors could; no `unsafe`.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tollgate_shm_abi::blob::blob_create;
use tollgate_shm_abi::control::ControlSocket;
use tollgate_shm_abi::descriptor::{
    Alleged, BlockRef, Completion, EXTENT_ENTRY_BYTES, Entry, Extent, Part, Submission,
};
use tollgate_shm_abi::limits::PAGE;
use tollgate_shm_abi::messages::{
    Bind, OpenSession, Request, RequestBody, Response, ResponseBody, SessionOpened,
};
use tollgate_shm_abi::ring::{PushError, ring_bytes};
use tollgate_shm_abi::segment::ABI_VERSION;
use tollgate_shm_abi::session::{AppEnd, SessionFds, SessionShape};

/// A connection to a daemon's control socket for arbitrary packets.
#[derive(Debug)]
pub struct Wire {
    socket: ControlSocket,
    next_id: u64,
}

impl Wire {
    /// Connects.
    ///
    /// # Panics
    /// If no daemon listens: then there is nothing to attack.
    pub fn connect(socket: &Path) -> Wire {
        let path = socket.to_str().expect("the testbed's paths are text");
        Wire {
            socket: ControlSocket::connect(path).expect("the daemon listens"),
            next_id: 1,
        }
    }

    /// Sends these bytes and descriptors as one packet; returns whether the socket accepted them.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.socket.send(bytes, fds).is_ok()
    }

    /// The next packet; `None` if the daemon has hung up, or sends nothing in time.
    pub fn receive(&self, timeout: Duration) -> Option<(Response, Vec<OwnedFd>)> {
        let timeout = Timespec::try_from(timeout).ok()?;
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)) == Ok(0) {
            return None;
        }
        let packet = self.socket.recv().ok()??;
        Some((Response::decode(&packet.bytes[..]).ok()?, packet.fds))
    }

    /// Sends a valid request and returns the answer; skips unrequested packets.
    pub fn ask(
        &mut self,
        body: RequestBody,
        fds: &[BorrowedFd<'_>],
    ) -> Option<(ResponseBody, Vec<OwnedFd>)> {
        let id = self.next_id;
        self.next_id += 1;
        if !self.send(
            &Request {
                id,
                body: Some(body),
            }
            .encode_to_vec(),
            fds,
        ) {
            return None;
        }
        loop {
            // The command line's timeout: a push may be compiling on a busy machine.
            let (response, fds) = self.receive(Duration::from_secs(60))?;
            if response.id == id {
                return Some((response.body?, fds));
            }
        }
    }

    /// Waits until the daemon hangs up; returns its reason, if any. `None`: it didn't hang up.
    pub fn hangs_up(&self, timeout: Duration) -> Option<String> {
        let end = Instant::now() + timeout;
        let mut reason = String::new();
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok()?;
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            if poll(&mut fds, Some(&left)) == Ok(0) {
                return None;
            }
            match self.socket.recv() {
                Ok(Some(packet)) => {
                    let response = Response::decode(&packet.bytes[..]).ok();
                    if let Some(ResponseBody::Failure(failure)) =
                        response.and_then(|response| response.body)
                    {
                        reason = failure.message;
                    }
                }
                Ok(None) => return Some(reason),
                Err(error) if error.is_would_block() => {}
                Err(_) => return Some(reason),
            }
        }
    }
}

/// A segment that the hostile app can write by offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Both rings, with their index words.
    Rings,
    /// The heap that the app writes.
    SendHeap,
    /// The heap that only the daemon may write.
    ReceiveHeap,
}

/// An open session of a hostile app.
#[derive(Debug)]
pub struct Hostile {
    /// Its control connection.
    pub wire: Wire,
    /// Its end of the rings, for valid use.
    pub app: AppEnd,
    /// The daemon's announcement.
    pub opened: SessionOpened,
    shape: SessionShape,
    segments: [File; 3],
}

impl Hostile {
    /// Opens a session with small heaps.
    ///
    /// # Panics
    /// If the daemon refuses it although the token is right and nothing wrong was done yet.
    pub fn open(socket: &Path, token: &str) -> Hostile {
        Hostile::open_with(socket, token, 1 << 20)
    }

    /// Opens a session with heaps of this size.
    ///
    /// # Panics
    /// Like [`Hostile::open`].
    pub fn open_with(socket: &Path, token: &str, heap_bytes: u64) -> Hostile {
        Hostile::open_as(socket, token, heap_bytes, 0)
    }

    /// Opens a session with heaps of this size, with a library that supports `features`:
    /// `FEATURE_*` of `messages`.
    ///
    /// # Panics
    /// Like [`Hostile::open`].
    pub fn open_as(socket: &Path, token: &str, heap_bytes: u64, features: u32) -> Hostile {
        let mut wire = Wire::connect(socket);
        let open = OpenSession {
            abi_version: ABI_VERSION,
            token: token.to_owned(),
            app: "hostile".to_owned(),
            send_heap_bytes: heap_bytes,
            receive_heap_bytes: heap_bytes,
            features,
            ..OpenSession::default()
        };
        let (body, fds) = wire
            .ask(RequestBody::OpenSession(open), &[])
            .expect("the daemon answers");
        let ResponseBody::SessionOpened(opened) = body else {
            panic!("not opened: {body:?}")
        };
        let keep =
            |at: usize| File::from(fds[at].try_clone().expect("descriptors can be duplicated"));
        let segments = [keep(0), keep(1), keep(2)];
        let shape = SessionShape {
            ring_capacity: opened.ring_capacity,
            send_heap_bytes: opened.send_heap_bytes,
            receive_heap_bytes: opened.receive_heap_bytes,
        };
        let fds = SessionFds::from_packet(fds).expect("a session has five descriptors");
        let app = AppEnd::attach(&shape, fds).expect("what the daemon sends can be attached");
        Hostile {
            wire,
            app,
            opened,
            shape,
            segments,
        }
    }

    /// Binds a service in `role` (see `messages`); returns the handle of its first method.
    ///
    /// # Panics
    /// If the daemon refuses.
    pub fn bind(&mut self, role: i32, descriptor_set: &[u8], service: &str, target: &str) -> u32 {
        let blob = blob_create(descriptor_set).expect("a blob can be made");
        let bind = Bind {
            role,
            service: service.to_owned(),
            target: target.to_owned(),
        };
        let answer = self.wire.ask(RequestBody::Bind(bind), &[blob.as_fd()]);
        match answer {
            Some((ResponseBody::Bound(bound), _)) => {
                bound.methods.first().expect("it has methods").handle
            }
            other => panic!("not bound: {other:?}"),
        }
    }

    /// Submits a call whose extents of these lengths are made in the send heap: `fill` writes each
    /// in place, without a copy. Valid if `inline` is.
    ///
    /// # Panics
    /// If the heap or the ring has no room.
    pub fn call_with_extents(
        &mut self,
        method: u32,
        call: u64,
        inline: &[u8],
        extents: &[usize],
        mut fill: impl FnMut(usize, &mut [u8]),
    ) {
        let table = inline.len().next_multiple_of(8);
        let mut end = table + extents.len() * EXTENT_ENTRY_BYTES;
        let places: Vec<_> = extents
            .iter()
            .map(|len| {
                let at = end.next_multiple_of(8);
                end = at + len;
                at..end
            })
            .collect();
        let mut block = self.app.send_heap.alloc(end).expect("the heap has room");
        let start = block.offset();
        block[..inline.len()].copy_from_slice(inline);
        for (k, place) in places.into_iter().enumerate() {
            let extent = Extent {
                offset: start + place.start as u64,
                len: place.len() as u32,
            };
            let entry = table + k * EXTENT_ENTRY_BYTES;
            block[entry..entry + EXTENT_ENTRY_BYTES].copy_from_slice(&extent.encode());
            fill(k, &mut block[place]);
        }
        let block = BlockRef {
            offset: self.app.send_heap.commit(block),
            len: inline.len() as u32,
            extents: extents.len() as u16,
            metadata: 0,
        };
        let call = Submission::Call {
            method,
            call,
            part: Part::ONLY,
            block,
            deadline_ns: 0,
        };
        self.submit(&call.encode()).expect("the ring has room");
    }

    /// The next completion that answers a call, if one comes in time.
    pub fn answer(&mut self, timeout: Duration) -> Option<Completion> {
        let end = Instant::now() + timeout;
        loop {
            match self.completion(end.saturating_duration_since(Instant::now()))? {
                Completion::Reclaim(_) => {}
                answer => return Some(answer),
            }
        }
    }

    /// Pushes a ring entry unchanged and rings the doorbell.
    ///
    /// # Errors
    /// If the ring is full.
    pub fn submit(&mut self, entry: &Entry) -> Result<(), PushError> {
        self.app.submissions.push(entry)?;
        self.app.doorbell.ring();
        Ok(())
    }

    /// The next completion, if one comes in time.
    ///
    /// # Panics
    /// If the *daemon* breaks the protocol.
    pub fn completion(&mut self, timeout: Duration) -> Option<Completion> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(entry) = self
                .app
                .completions
                .pop()
                .expect("the daemon's index is right")
            {
                let heaps = self.shape.heaps();
                return Some(
                    Alleged::from(entry)
                        .completion(&heaps)
                        .expect("the daemon's descriptors are right"),
                );
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Writes bytes into a segment, if the kernel permits it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn poke(&self, target: Target, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.segment(target).write_all_at(bytes, offset)
    }

    /// Sets the producer's index of the submission ring and rings the doorbell.
    pub fn jump_producer(&self, index: u32) {
        self.poke(Target::Rings, PAGE as u64, &index.to_le_bytes())
            .expect("the rings are writable");
        self.app.doorbell.ring();
    }

    /// Sets the consumer's index of the completion ring and rings the doorbell.
    pub fn jump_consumer(&self, index: u32) {
        let ring = ring_bytes(self.shape.ring_capacity).next_multiple_of(PAGE);
        let at = (PAGE + ring + 64) as u64;
        self.poke(Target::Rings, at, &index.to_le_bytes())
            .expect("the rings are writable");
        self.app.doorbell.ring();
    }

    /// A segment's memfd.
    pub fn segment(&self, target: Target) -> &File {
        &self.segments[target as usize]
    }

    /// Waits until the daemon ends the session; returns its reason. `None`: the session is still
    /// open.
    pub fn is_ended(&self, timeout: Duration) -> Option<String> {
        self.wire.hangs_up(timeout)
    }
}

/// A seeded sequence of numbers (SplitMix64), so that a failing attack can be repeated.
#[derive(Debug, Clone)]
pub struct Seeded(pub u64);

impl Seeded {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which isn't 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// `N` bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.word() as u8)
    }
}

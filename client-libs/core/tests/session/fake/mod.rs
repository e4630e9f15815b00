//! A daemon of one session in a thread of the test: real segments, rings and wake-ups, no policy
//! and no transport.
//!
//! The test's [`Behaviour`] decides how it handles a submission; [`echo`] is the usual one. A test
//! may also run anything on the daemon's thread ([`Handle::run`]), where it owns the daemon's end
//! of the session.

#![allow(clippy::unwrap_used, dead_code, missing_docs, unreachable_pub)]

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use prost::Message as _;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use tollgate_core::{Session, SessionOptions, Status};
use tollgate_shm_abi::Code;
use tollgate_shm_abi::control::{ControlListener, ControlSocket};
use tollgate_shm_abi::descriptor::{
    Alleged, BlockRef, Completion, Epilogue, HeapSizes, Image, Offsets, Part, Submission,
    held_bytes,
};
use tollgate_shm_abi::messages::{
    Bind, Bound, BoundMethod, Empty, FEATURE_METADATA, FEATURE_STREAMS, FEATURE_WAITS, Failure,
    ReceiveHeap, Request, RequestBody, Response, ResponseBody, SIDE_SERVER, SessionOpened,
};
use tollgate_shm_abi::metadata::MetadataBuf;
use tollgate_shm_abi::session::{DaemonEnd, SessionShape, create, resume};

pub type Behaviour = Box<dyn FnMut(&mut Fake, Submission) + Send>;
type Command = Box<dyn FnOnce(&mut Fake) + Send>;

/// Handles of the methods of every service that is bound: the method at place `i` gets
/// `FIRST_HANDLE + i`.
pub const FIRST_HANDLE: u32 = 100;

/// The limits that the daemon announces.
#[derive(Clone)]
pub struct Limits {
    pub shape: SessionShape,
    pub max_message_bytes: u32,
    pub max_outstanding: u32,
    pub features: u32,
    /// The methods of every service.
    pub methods: Vec<String>,
    /// Requests on the control socket wait.
    pub holds_requests: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        let shape = SessionShape {
            ring_capacity: 64,
            send_heap_bytes: 1 << 20,
            receive_heap_bytes: 1 << 20,
        };
        let methods = vec!["Echo".to_owned(), "Other".to_owned()];
        Limits {
            shape,
            max_message_bytes: 1 << 20,
            max_outstanding: 4096,
            features: FEATURE_METADATA | FEATURE_WAITS | FEATURE_STREAMS,
            methods,
            holds_requests: false,
        }
    }
}

/// The daemon, on its thread.
pub struct Fake {
    pub end: DaemonEnd,
    pub control: Option<ControlSocket>,
    pub limits: Limits,
    /// All submissions of the application except CALLs, in order.
    pub seen: Vec<Submission>,
    /// The blocks of REPLYs and texts of STATUSes that the application submitted, by call.
    pub answers: Vec<(u64, Result<Vec<u8>, Status>)>,
    /// How long calls had waited, according to their answers.
    pub waits: Vec<u64>,
    pub binds: Vec<Bind>,
    /// The error of the next bind.
    pub refuse: Option<Failure>,
    /// How often the doorbell was rung.
    pub rings: usize,
    /// Submissions are left in the ring.
    pub paused: bool,
    /// The time of delivery of calls to the application.
    pub delivered_ns: u64,
    /// The retry time of failed calls, for the application.
    pub retry_after_ms: u32,
    /// For a behaviour: blocks to give back later.
    pub held: Vec<u64>,
    epoll: Arc<OwnedFd>,
    pub quit: bool,
}

/// The test's handle of the daemon. Dropping it kills the daemon.
pub struct Handle {
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

/// A generous timeout for a loaded machine.
pub const SOON: std::time::Duration = std::time::Duration::from_secs(30);

/// Starts a daemon and opens a session with it.
pub fn start(limits: Limits, behaviour: Behaviour) -> (Session, Handle) {
    start_with(limits, behaviour, |_| {})
}

/// Like [`start`], with other options than the defaults.
pub fn start_with(
    limits: Limits,
    behaviour: Behaviour,
    change: impl FnOnce(&mut SessionOptions),
) -> (Session, Handle) {
    let (ours, theirs) = ControlSocket::pair().unwrap();
    let (commands, received) = mpsc::channel();
    let thread = std::thread::spawn(move || serve(theirs, limits, behaviour, received));
    let mut options = SessionOptions::new("/nowhere", "tg_test");
    change(&mut options);
    let session = Session::over(ours, &options).unwrap();
    (
        session,
        Handle {
            commands: Some(commands),
            thread: Some(thread),
        },
    )
}

/// A daemon for the next connection to the listener.
pub fn accept(listener: &ControlListener, limits: Limits, behaviour: Behaviour) -> Handle {
    let began = std::time::Instant::now();
    let control = loop {
        match listener.accept() {
            Ok(control) => break control,
            Err(errno) => assert!(began.elapsed() < SOON, "no session connects: {errno}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    let (commands, received) = mpsc::channel();
    let thread = std::thread::spawn(move || serve(control, limits, behaviour, received));
    Handle {
        commands: Some(commands),
        thread: Some(thread),
    }
}

impl Handle {
    /// Runs a function on the daemon's thread and returns its result.
    pub fn run<R: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Fake) -> R + Send + 'static,
    ) -> R {
        let (sender, result) = mpsc::channel();
        let command: Command = Box::new(move |fake| sender.send(command(fake)).unwrap());
        self.commands.as_ref().unwrap().send(command).unwrap();
        result.recv().unwrap()
    }

    /// Waits until a condition holds on the daemon's thread.
    pub fn wait_until(&self, condition: impl Fn(&Fake) -> bool + Send + Clone + 'static) {
        let began = std::time::Instant::now();
        while began.elapsed() < SOON {
            let condition = condition.clone();
            if self.run(move |fake| condition(fake)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("the daemon never saw what the test waits for");
    }

    /// Kills the daemon: its sockets and mappings go away without a message.
    pub fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            if !std::thread::panicking() {
                joined.unwrap();
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Answers every call with its own block.
pub fn echo() -> Behaviour {
    Box::new(|fake, submission| {
        if let Submission::Call { call, block, .. } = submission {
            let metadata = fake.metadata(&block);
            let image = fake.take(&block);
            let image = fake.deliver_with(&image, &metadata);
            fake.push(Completion::Reply { call, image });
        }
    })
}

/// Leaves every call unanswered, but gives its block back.
pub fn silence() -> Behaviour {
    Box::new(|fake, submission| {
        if let Submission::Call { block, .. } = submission {
            fake.take(&block);
        }
    })
}

impl Fake {
    /// Copies the metadata of a submitted block.
    pub fn metadata(&self, block: &BlockRef) -> Vec<u8> {
        let mut metadata = vec![0; block.metadata as usize];
        let heap = &self.end.send_heap;
        heap.copy_in(block.metadata_offset(), &mut metadata)
            .unwrap();
        metadata
    }

    /// Copies a submitted block into the receiver's image, and gives the block back.
    pub fn take(&mut self, block: &BlockRef) -> Vec<u8> {
        let heap = &self.end.send_heap;
        let mut image = vec![0; block.len as usize];
        heap.copy_in(block.offset, &mut image).unwrap();
        for index in 0..u32::from(block.extents) {
            let mut entry = [0; 16];
            heap.copy_in(block.table_offset() + u64::from(index) * 16, &mut entry)
                .unwrap();
            let offset = u64::from_le_bytes(entry[..8].try_into().unwrap());
            let len = u32::from_le_bytes(entry[8..12].try_into().unwrap());
            image.resize(image.len().next_multiple_of(8), 0);
            let at = image.len() as u32;
            // There is no schema here. Any bytes that look like the extent's slot are taken for it.
            let mut slot = [0; 8];
            slot[..4].copy_from_slice(&(0x8000_0000 | index).to_le_bytes());
            slot[4..].copy_from_slice(&len.to_le_bytes());
            let place = image.windows(8).position(|bytes| bytes == slot).unwrap();
            image[place..place + 4].copy_from_slice(&at.to_le_bytes());
            image.resize(image.len() + len as usize, 0);
            heap.copy_in(offset, &mut image[at as usize..]).unwrap();
        }
        self.reclaim(&[block.offset]);
        image
    }

    pub fn reclaim(&mut self, offsets: &[u64]) {
        self.push(Completion::Reclaim(Offsets::take_from(offsets).unwrap()));
    }

    pub fn reply(&mut self, call: u64, image: &[u8]) {
        let image = self.deliver(image);
        self.push(Completion::Reply { call, image });
    }

    pub fn status(&mut self, call: u64, code: Code, text: &str) {
        self.status_with(call, code, text, &[]);
    }

    pub fn status_with(&mut self, call: u64, code: Code, text: &str, trailers: &[u8]) {
        let is_there = !(text.is_empty() && trailers.is_empty());
        let image = is_there.then(|| self.deliver_with(text.as_bytes(), trailers));
        let epilogue = image.map(|image| Epilogue {
            offset: image.offset,
            text: image.total_len,
            metadata: image.metadata,
        });
        self.push(Completion::Status {
            call,
            code,
            epilogue,
            retry_after_ms: self.retry_after_ms,
        });
    }

    /// Sends a call to the application.
    pub fn call(&mut self, method: u32, call: u64, image: &[u8]) {
        let image = self.deliver(image);
        self.push(Completion::Call {
            method,
            call,
            part: Part::ONLY,
            image,
            deadline_ns: 0,
            delivered_ns: self.delivered_ns,
        });
    }

    pub fn deliver(&mut self, image: &[u8]) -> Image {
        self.deliver_with(image, &[])
    }

    pub fn deliver_with(&mut self, image: &[u8], metadata: &[u8]) -> Image {
        let mut bytes = image.to_vec();
        bytes.resize(held_bytes(image.len(), metadata.len()), 0);
        let at = bytes.len() - metadata.len();
        bytes[at..].copy_from_slice(metadata);
        let mut block = self.end.receive_heap.alloc(bytes.len()).unwrap();
        block.copy_from_slice(&bytes);
        let offset = self.end.receive_heap.commit(block);
        Image {
            offset,
            inline_len: image.len() as u32,
            total_len: image.len() as u32,
            metadata: metadata.len() as u32,
        }
    }

    pub fn push(&mut self, completion: Completion) {
        self.push_entry(&completion.encode());
    }

    pub fn push_entry(&mut self, entry: &[u8; 64]) {
        while self.end.completions.push(entry).is_err() {
            self.end.wake.wake();
            std::thread::yield_now();
        }
        if self.end.completions.needs_wake() {
            self.end.wake.wake();
        }
    }

    fn heaps(&self) -> HeapSizes {
        self.end.heaps()
    }

    /// Hands the session over to another process, which has only what it is lent. The process
    /// announces its receive heap, unless the test does.
    pub fn hand_over(&mut self) -> OwnedFd {
        let standing = self.end.standing();
        let lent = self
            .end
            .lend()
            .unwrap()
            .map(|fd| fd.try_clone_to_owned().unwrap());
        let (end, heap) = resume(&standing, lent.into()).unwrap();
        self.end = end;
        self.end.doorbell.watch(&self.epoll, 0).unwrap();
        heap
    }

    pub fn upgrade(&mut self) {
        let heap = self.hand_over();
        let bytes = self.limits.shape.receive_heap_bytes;
        self.announce(bytes, &[heap.as_fd()]);
    }

    pub fn announce(&mut self, bytes: u64, fds: &[BorrowedFd<'_>]) {
        let body = Some(ResponseBody::ReceiveHeap(ReceiveHeap { bytes }));
        let response = Response { id: 0, body };
        let control = self.control.as_ref().unwrap();
        control.send(&response.encode_to_vec(), fds).unwrap();
    }

    fn submitted(&mut self, submission: Submission, behaviour: &mut Behaviour) {
        match submission {
            Submission::Call { .. } => {}
            Submission::Release(offsets) => {
                for offset in offsets.as_slice() {
                    self.end.receive_heap.free(*offset).unwrap();
                }
            }
            Submission::Reply {
                call,
                block,
                waited_ns,
            } => {
                self.waits.push(waited_ns);
                let image = self.take(&block);
                self.answers.push((call, Ok(image)));
            }
            Submission::Status {
                call,
                code,
                epilogue,
                waited_ns,
                retry_after_ms,
            } => {
                self.waits.push(waited_ns);
                let mut message = vec![0; epilogue.map_or(0, |e| e.text as usize)];
                let mut trailers = vec![0; epilogue.map_or(0, |e| e.metadata as usize)];
                if let Some(epilogue) = epilogue {
                    let heap = &self.end.send_heap;
                    heap.copy_in(epilogue.offset, &mut message).unwrap();
                    heap.copy_in(epilogue.metadata_offset(), &mut trailers)
                        .unwrap();
                    self.reclaim(&[epilogue.offset]);
                }
                let mut status = Status::new(code, String::from_utf8(message).unwrap());
                if !trailers.is_empty() {
                    status.metadata = MetadataBuf::from_bytes(trailers).unwrap();
                }
                if retry_after_ms > 0 {
                    status = status
                        .with_retry_after(std::time::Duration::from_millis(retry_after_ms.into()));
                }
                self.answers.push((call, Err(status)));
            }
            Submission::Cancel { .. }
            | Submission::Request { .. }
            | Submission::Response { .. }
            | Submission::RequestCredit { .. }
            | Submission::ResponseCredit { .. } => self.seen.push(submission),
        }
        behaviour(self, submission);
    }

    /// Whether a request waits on the control socket.
    pub fn is_asked(&self) -> bool {
        let mut fds = [PollFd::new(self.control.as_ref().unwrap(), PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).unwrap() > 0
    }

    fn controlled(&mut self) {
        let Some(control) = &self.control else { return };
        if self.limits.holds_requests {
            return;
        }
        let Ok(Some(packet)) = control.recv() else {
            return;
        };
        let request = Request::decode(&packet.bytes[..]).unwrap();
        let bind = match request.body {
            Some(RequestBody::Bind(bind)) => bind,
            Some(RequestBody::Drain(Empty {})) => {
                let response = Response {
                    id: request.id,
                    body: Some(ResponseBody::Done(Empty {})),
                };
                control.send(&response.encode_to_vec(), &[]).unwrap();
                return;
            }
            _ => panic!("a session only binds and drains"),
        };
        let body = match self.refuse.take() {
            Some(failure) => ResponseBody::Failure(failure),
            None => {
                let named = self.limits.methods.iter().zip(FIRST_HANDLE..);
                let methods = named
                    .map(|(name, handle)| BoundMethod {
                        name: name.clone(),
                        handle,
                        refused: String::new(),
                    })
                    .collect();
                ResponseBody::Bound(Bound { methods })
            }
        };
        let response = Response {
            id: request.id,
            body: Some(body),
        };
        control.send(&response.encode_to_vec(), &[]).unwrap();
        assert_eq!(packet.fds.len(), 1, "a bind carries its schema");
        if bind.role == SIDE_SERVER {
            self.binds.push(bind);
        }
    }

    /// Waits for the application's doorbell, a control message, or a short time.
    fn wait(&mut self) {
        if !self.paused && !self.end.submissions.announce_sleep() {
            return;
        }
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let mut fds = vec![PollFd::from_borrowed_fd(self.epoll.as_fd(), PollFlags::IN)];
        if let Some(control) = &self.control {
            fds.push(PollFd::new(control, PollFlags::IN));
        }
        poll(&mut fds, Some(&pause)).unwrap();
        let rung = !fds[0].revents().is_empty();
        drop(fds);
        if rung {
            self.rings += 1;
            let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
            epoll::wait(
                &*self.epoll,
                &mut events,
                Some(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                }),
            )
            .unwrap();
        }
        if !self.paused {
            self.end.submissions.cancel_sleep();
        }
    }
}

fn serve(
    control: ControlSocket,
    limits: Limits,
    mut behaviour: Behaviour,
    commands: Receiver<Command>,
) {
    poll(&mut [PollFd::new(&control, PollFlags::IN)], None).unwrap();
    let packet = control.recv().unwrap().unwrap();
    let request = Request::decode(&packet.bytes[..]).unwrap();
    let Some(RequestBody::OpenSession(_)) = request.body else {
        panic!("a session begins with its opening")
    };
    let (mut end, fds) = create(&limits.shape).unwrap();
    let opened = SessionOpened {
        session: 7,
        tenant: "acme".to_owned(),
        ring_capacity: limits.shape.ring_capacity,
        send_heap_bytes: limits.shape.send_heap_bytes,
        receive_heap_bytes: limits.shape.receive_heap_bytes,
        max_message_bytes: limits.max_message_bytes,
        max_outstanding: limits.max_outstanding,
        features: limits.features,
    };
    let response = Response {
        id: request.id,
        body: Some(ResponseBody::SessionOpened(opened)),
    };
    control
        .send(&response.encode_to_vec(), &fds.as_array())
        .unwrap();
    drop(fds);
    let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    end.doorbell.watch(&epoll, 0).unwrap();
    let mut fake = Fake {
        end,
        control: Some(control),
        limits,
        seen: Vec::new(),
        answers: Vec::new(),
        waits: Vec::new(),
        binds: Vec::new(),
        refuse: None,
        rings: 0,
        paused: false,
        delivered_ns: 0,
        retry_after_ms: 0,
        held: Vec::new(),
        epoll,
        quit: false,
    };
    while !fake.quit {
        loop {
            match commands.try_recv() {
                Ok(command) => command(&mut fake),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
        fake.controlled();
        while !fake.paused
            && let Some(entry) = fake.end.submissions.pop().unwrap()
        {
            let submission = Alleged::from(entry).submission(&fake.heaps()).unwrap();
            fake.submitted(submission, &mut behaviour);
        }
        fake.wait();
    }
}

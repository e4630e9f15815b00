//! A session: one connection of an application to its daemon.

use std::sync::Arc;
use std::task::Poll;

use tollgate_shm_abi::control::ControlSocket;

use crate::Status;
use crate::buffer::SendBuffer;
use crate::connection::Inner;
use crate::dev;
use crate::drive::Driven;
use crate::open::{self, SessionOptions, no_token};
use crate::reconnect::Handle;
use crate::serve::Service;
use crate::submit::Held;
use crate::tables::binds::Binding;

/// A connection to the daemon: shared heaps, rings, and the calls on them. Clones are the same
/// session. It ends when the last clone, the last channel and the last unfinished call are dropped.
/// If its daemon goes away, calls in flight end with UNAVAILABLE, and the session reconnects
/// ([`SessionOptions::reconnect`]). Handles and services stay valid.
///
/// One thread at a time *drives* a session: it reads the daemon's messages, wakes futures and runs
/// handlers. [`block_on`](crate::block_on) drives on the calling thread; while no thread is in it,
/// a background thread drives.
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) handle: Arc<Handle>,
}

impl Session {
    /// Connects to the daemon. Blocks until it answered, at most
    /// [`OPEN_TIMEOUT`](crate::limits::OPEN_TIMEOUT).
    ///
    /// # Errors
    /// UNAVAILABLE if no daemon listens at the socket or it doesn't answer. Otherwise the daemon's
    /// error (UNAUTHENTICATED for an unknown token).
    pub fn open(mut options: SessionOptions) -> Result<Session, Status> {
        // Once: a session that reopens stays with its daemon.
        if options.socket.as_os_str().is_empty() {
            options.socket = dev::default_socket();
        }
        let driven = open::connect(&options)?;
        Ok(Session::of(driven, options.reconnect.then_some(options)))
    }

    /// Opens a session over a connected control socket. It doesn't reconnect.
    ///
    /// # Errors
    /// The same as [`Session::open`].
    pub fn over(control: ControlSocket, options: &SessionOptions) -> Result<Session, Status> {
        Ok(Session::of(open::over(control, options)?, None))
    }

    fn of(driven: Arc<Driven>, reopens: Option<SessionOptions>) -> Session {
        Session {
            handle: Handle::new(driven, reopens),
        }
    }
}

impl Session {
    /// The tenant that the token belongs to.
    pub fn tenant(&self) -> &str {
        self.handle.tenant()
    }

    /// The session's number in the daemon's status.
    pub fn id(&self) -> u64 {
        self.inner().opened.session
    }

    /// The longest message in bytes that may be sent.
    pub fn max_message_bytes(&self) -> usize {
        self.inner().opened.max_message_bytes as usize
    }

    /// Ends the session now and for good, also for all clones. Outstanding calls fail with
    /// CANCELLED. Received blocks can still be read. Returns the session's memory that this program
    /// still holds; without a leak that is nothing.
    pub fn close(&self) -> Held {
        self.handle.close();
        self.held()
    }

    /// The session's memory that this program holds now, and would have to give back. A test for
    /// leaks asks for it at its end. It also works for a session that has ended.
    pub fn held(&self) -> Held {
        self.inner().lock().held()
    }

    /// Stops serving. No further calls come, and the calls that came are answered before this is
    /// ready. Afterwards the session can be dropped without losing a call. Its own calls go on. It
    /// serves nothing after a reconnect.
    ///
    /// # Errors
    /// UNIMPLEMENTED if the daemon predates draining. The reason why the session ended, if it has.
    pub async fn drain(&self) -> Result<(), Status> {
        self.handle.serve_no_more();
        let driven = self.driven();
        driven.ask_to_drain().await?;
        let inner = &driven.inner;
        std::future::poll_fn(inner.poll_emptied()).await;
        std::future::poll_fn(|cx| inner.poll_idle(cx)).await;
        // There is no notification when the daemon has taken the last answer. It does so at once,
        // unless it is busy.
        std::future::poll_fn(|cx| {
            let mut shared = inner.lock();
            match shared.has_unsent() && shared.ended().is_none() {
                true => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                false => Poll::Ready(()),
            }
        })
        .await;
        Ok(())
    }

    /// Whether the daemon hasn't taken all submitted entries yet. Closing the session now would
    /// lose them. There is no notification when it has; poll this function.
    pub fn has_unsent(&self) -> bool {
        self.inner().lock().has_unsent()
    }

    /// Waits until the session has ended for good, and returns the reason. A session that
    /// reconnects ends when it is [closed](Self::close).
    pub async fn closed(&self) -> Status {
        std::future::poll_fn(|cx| {
            // Before the look at whether it is closed. The closing thread does these in the
            // opposite order.
            self.handle.wait_for_close(cx.waker());
            let inner = self.inner();
            let mut shared = inner.lock();
            if self.handle.reconnects() {
                return Poll::Pending;
            }
            if let Some(status) = shared.ended() {
                return Poll::Ready(status.clone());
            }
            if !shared
                .close_waiters
                .iter()
                .any(|waker| waker.will_wake(cx.waker()))
            {
                shared.close_waiters.push(cx.waker().clone());
            }
            drop(shared);
            inner.ensure_driven();
            Poll::Pending
        })
        .await
    }

    /// Binds a service for calling. `descriptor_set` is a serialized `FileDescriptorSet` with all
    /// imports; `target` is `host:port` of the daemon to call through, or empty for a server on
    /// this host.
    ///
    /// # Errors
    /// The daemon's error: INVALID_ARGUMENT for a schema it doesn't accept, UNAVAILABLE if the peer
    /// isn't there, FAILED_PRECONDITION if its schema differs, UNIMPLEMENTED if the server has none
    /// of its methods; DEADLINE_EXCEEDED without an answer within
    /// [`BIND_TIMEOUT`](crate::limits::BIND_TIMEOUT).
    pub async fn bind_client(
        &self,
        descriptor_set: &[u8],
        service: &str,
        target: &str,
    ) -> Result<Binding, Status> {
        no_token("the target", target)?;
        let driven = self.driven();
        let bound = driven.bind_client(descriptor_set, service, target).await?;
        self.handle
            .bound(&driven.inner, bound, descriptor_set, service, target)
    }

    /// Binds a service for serving. Its handlers run on the thread that drives the session, until
    /// the session ends.
    ///
    /// # Errors
    /// The same as [`Session::bind_client`].
    pub async fn bind_server(&self, service: impl Service) -> Result<Binding, Status> {
        let service: Arc<dyn Service> = Arc::new(service);
        let driven = self.driven();
        let binding = driven.bind_server(Arc::clone(&service)).await?;
        self.handle.serves(&driven.inner, service)?;
        Ok(binding)
    }

    /// Polls a future like a handler, on the thread that drives the session, until it is ready. It
    /// is dropped when the session ends. If no call of this program is outstanding and no service
    /// is bound, possibly no thread drives. The future mustn't block.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let inner = self.inner();
        inner.ready.spawn(Box::pin(future));
        if inner.is_over() {
            // No driver takes these tasks any more.
            drop(inner.ready.take_spawned());
        }
        inner.ensure_driven();
    }

    /// Room for `len` bytes in the session's send heap, to be filled and sent without a copy. The
    /// bytes may hold old contents.
    ///
    /// ```no_run
    /// # fn example(session: &tollgate_core::Session) -> Result<tollgate_core::Bytes, Box<dyn std::error::Error>> {
    /// let mut buffer = session.buffer(1 << 20)?;
    /// std::io::Read::read_exact(&mut std::fs::File::open("picture")?, &mut buffer)?;
    /// // A field of as many messages as one likes.
    /// let picture = tollgate_core::Bytes::from(buffer.freeze());
    /// # Ok(picture)
    /// # }
    /// ```
    ///
    /// Worth it from [`EXTENT_MIN`](crate::codec::EXTENT_MIN) bytes on: smaller values are copied
    /// into their message.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the heap has no room for it at the moment. It doesn't wait, because
    /// only this program gives buffers back. The reason why the session ended, if it has.
    pub fn buffer(&self, len: usize) -> Result<SendBuffer, Status> {
        let inner = self.inner();
        let mut shared = inner.lock();
        if let Some(status) = shared.ended() {
            return Err(status.clone());
        }
        let Some(block) = shared.alloc_buffer(len) else {
            let (heap, used) = (shared.heap.len_bytes(), shared.heap.in_use());
            let text = format!(
                "a buffer of {len} bytes doesn't fit into the send heap of {heap} bytes, of which {used} are in use"
            );
            return Err(Status::resource_exhausted(text));
        };
        Ok(SendBuffer::new(block, inner.id, Arc::clone(&inner) as _))
    }

    /// From now on no thread is started to drive this session. It is driven while a thread is in
    /// [`block_on`](crate::block_on), or by a [`Pump`](crate::Pump), and stands still otherwise.
    pub fn drive_by_hand(&self) {
        self.handle.drive_by_hand();
    }

    /// The current connection of the session.
    pub(crate) fn inner(&self) -> Arc<Inner> {
        self.handle.inner()
    }

    /// The same, with its driver.
    pub(crate) fn driven(&self) -> Arc<Driven> {
        self.handle.driven()
    }
}

//! Connections of rdma_cm: an id with its own event channel, and its queues once its device is
//! known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rdma_mummy_sys as sys;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tollgate_shm_abi::heap::Block;

use super::device::Rdma;
use super::domain::{check, failed, last_errno};
use super::pools::Pools;
use super::queues::Queues;
use crate::error::RdmaError;
use crate::limits::{
    ACK_TIMEOUT, BACKLOG, MAX_PRIVATE, MIN_BODY_MESSAGE, RECEIVER_RETRIES, RESOLVE_TIMEOUT_MS,
    RETRIES, SHARED_RECEIVER_RETRIES,
};
use crate::link_id::LinkId;

// From an unnamed enum in rdma_cma.h.
const RDMA_OPTION_ID: i32 = 0;
const RDMA_OPTION_ID_REUSEADDR: i32 = 1;
const RDMA_OPTION_ID_ACK_TIMEOUT: i32 = 3;

/// An event of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The kind of event.
    pub(crate) kind: EventKind,
    /// A negative errno, or the reason of a rejection.
    pub(crate) status: i32,
    /// The peer's private data, and the connection manager's padding.
    pub(crate) private: Vec<u8>,
}

/// The kind of a connection's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    AddressResolved,
    RouteResolved,
    Request,
    Established,
    Disconnected,
    Rejected,
    /// It can't be established, or has ended; the text is the connection manager's.
    Failed(&'static str),
    DeviceRemoved,
    /// An irrelevant event.
    Other,
}

/// An rdma_cm id and its event channel.
struct Id {
    id: NonNull<sys::rdma_cm_id>,
    channel: NonNull<sys::rdma_event_channel>,
}

// SAFETY: ids and channels aren't bound to a thread; this value owns both.
unsafe impl Send for Id {}

/// A connection, established or in progress.
pub(crate) struct Connection {
    /// Dropped before the id, which owns the first queue pair.
    queues: Option<Queues>,
    connected: bool,
    id: Id,
    system_calls: u64,
}

/// An address that accepts connections.
pub(crate) struct Listener {
    id: Id,
}

impl Connection {
    /// Begins to find the device that reaches an address.
    pub(crate) fn resolve(to: SocketAddr, from: Option<IpAddr>) -> Result<Connection, RdmaError> {
        let id = Id::new()?;
        let mut to = Address::of(to);
        let mut from = from.map(|ip| Address::of(SocketAddr::new(ip, 0)));
        let source = from.as_mut().map_or(ptr::null_mut(), Address::as_mut);
        // SAFETY: the id is there, and both addresses are during the call.
        let status = unsafe {
            sys::rdma_resolve_addr(id.id.as_ptr(), source, to.as_mut(), RESOLVE_TIMEOUT_MS)
        };
        check("resolving the peer's address", status)?;
        Ok(Connection::of(id))
    }

    fn of(id: Id) -> Connection {
        Connection {
            queues: None,
            connected: false,
            id,
            system_calls: 3,
        }
    }

    /// Begins to find the route, once the address is resolved.
    pub(crate) fn resolve_route(&mut self) -> Result<(), RdmaError> {
        // SAFETY: the id is there.
        let status = unsafe { sys::rdma_resolve_route(self.id.id.as_ptr(), RESOLVE_TIMEOUT_MS) };
        check("resolving the route to the peer", status)
    }

    /// Makes the queues, once the device is known; as a link of a poller, if one is given.
    pub(crate) fn make_queues(
        &mut self,
        rdma: &Rdma,
        pools: Option<(&Pools, LinkId)>,
    ) -> Result<&mut Queues, RdmaError> {
        assert!(self.queues.is_none(), "a connection has queues once");
        // SAFETY: the id is there.
        let (context, port) = unsafe { (self.id.id.as_ref().verbs, self.id.id.as_ref().port_num) };
        let device = rdma.of(context).ok_or(RdmaError::NoDevice)?;
        let largest = device.largest_message(port)?;
        if largest < MIN_BODY_MESSAGE {
            return Err(RdmaError::Device {
                device: device.info().name,
                what: "bytes in its largest message",
                found: largest,
                needed: MIN_BODY_MESSAGE,
            });
        }
        // After this time, a lost packet is resent, instead of after the seconds that RoCE's routes
        // report. Kernels without the option use their default.
        let mut timeout = ACK_TIMEOUT;
        // SAFETY: the id is there; the option is a number of 8 bits.
        let _without = unsafe {
            sys::rdma_set_option(
                self.id.id.as_ptr(),
                RDMA_OPTION_ID,
                RDMA_OPTION_ID_ACK_TIMEOUT,
                (&raw mut timeout).cast(),
                size_of_val(&timeout),
            )
        };
        let share = pools.map(|(pools, link)| pools.share(device, link));
        let share = share.transpose()?;
        // SAFETY: the id has no queue pair yet, and is dropped after `queues`, being declared after
        // it.
        let queues = unsafe { Queues::new(self.id.id, device, largest, share)? };
        Ok(self.queues.insert(queues))
    }

    pub(crate) fn queues(&mut self) -> Option<&mut Queues> {
        self.queues.as_mut()
    }

    /// The queues, by shared reference.
    pub(crate) fn queues_ref(&self) -> Option<&Queues> {
        self.queues.as_ref()
    }

    /// Sends the request to the peer, once the route is resolved and the queues exist.
    pub(crate) fn connect(&mut self, private: &[u8]) -> Result<(), RdmaError> {
        let mut parameters = parameters(private, self.retries());
        self.connected = true;
        // SAFETY: the id is there, and so are the parameters and their data during the call.
        let status = unsafe { sys::rdma_connect(self.id.id.as_ptr(), &mut parameters) };
        check("connecting to the peer", status)
    }

    /// Accepts the peer's request, once the queues exist.
    pub(crate) fn accept(&mut self, private: &[u8]) -> Result<(), RdmaError> {
        let mut parameters = parameters(private, self.retries());
        self.connected = true;
        // SAFETY: as of `connect`.
        let status = unsafe { sys::rdma_accept(self.id.id.as_ptr(), &mut parameters) };
        check("accepting the peer's connection", status)
    }

    /// Number of times that the peer's device resends a message that meets no receive: forever,
    /// where that isn't the peer's fault.
    fn retries(&self) -> u8 {
        match self.queues.as_ref().is_some_and(Queues::is_shared) {
            true => SHARED_RECEIVER_RETRIES,
            false => RECEIVER_RETRIES,
        }
    }

    /// Refuses the peer's request.
    pub(crate) fn reject(self, private: &[u8]) {
        let len = u8::try_from(private.len()).expect("private data is bounded");
        // SAFETY: the id is there, and so is the data during the call. That it fails makes no
        // difference: the id ends.
        unsafe { sys::rdma_reject(self.id.id.as_ptr(), private.as_ptr().cast(), len) };
    }

    /// The next event of the connection manager, if there is one.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, RdmaError> {
        self.system_calls += 1;
        let event = self.id.next_event()?;
        Ok(event.map(|(event, _)| event))
    }

    /// Number of system calls, except for those that the queues count.
    pub(crate) fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Readable when there is an event.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.id.descriptor()
    }

    /// Ends the connection: the peer is told, and no device touches the link's memory afterwards.
    /// Returns the block of an incomplete body.
    pub(crate) fn end(&mut self) -> Option<Block> {
        self.disconnect();
        self.queues.take().and_then(Queues::destroy)
    }

    fn disconnect(&mut self) {
        if std::mem::take(&mut self.connected) && self.queues.is_some() {
            // SAFETY: the id is there. That it fails (the peer was first) makes no difference.
            unsafe { sys::rdma_disconnect(self.id.id.as_ptr()) };
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl Listener {
    /// Accepts connections at this address of a device, or of all if it is unspecified.
    pub(crate) fn bind(address: SocketAddr) -> Result<Listener, RdmaError> {
        let id = Id::new()?;
        let mut reuse = 1_i32;
        // SAFETY: the id is there; the option is an int. Without it a restarted daemon would have
        // to wait, which the next call says.
        let _without = unsafe {
            sys::rdma_set_option(
                id.id.as_ptr(),
                RDMA_OPTION_ID,
                RDMA_OPTION_ID_REUSEADDR,
                (&raw mut reuse).cast(),
                size_of_val(&reuse),
            )
        };
        let mut address = Address::of(address);
        // SAFETY: the id is there, and the address during the call.
        let status = unsafe { sys::rdma_bind_addr(id.id.as_ptr(), address.as_mut()) };
        check("binding the address for RDMA", status)?;
        // SAFETY: the id is there.
        let status = unsafe { sys::rdma_listen(id.id.as_ptr(), BACKLOG) };
        check("listening for RDMA connections", status)?;
        Ok(Listener { id })
    }

    /// The port of the listener.
    pub(crate) fn port(&self) -> u16 {
        self.id.own_address().map_or(0, |address| address.port())
    }

    /// The next connection request, if there is one. Returns a connection with its own event
    /// channel, the request's event, the peer's address, and the local address at which the request
    /// arrived.
    pub(crate) fn next_request(
        &mut self,
    ) -> Result<Option<(Connection, Event, [SocketAddr; 2])>, RdmaError> {
        let Some((event, of)) = self.id.next_event()? else {
            return Ok(None);
        };
        let Some(id) = of.filter(|_| event.kind == EventKind::Request) else {
            return Ok(None);
        };
        let channel = match open_channel() {
            Ok(channel) => channel,
            Err(error) => {
                // SAFETY: the event gave the id to this process, its event is acknowledged, and
                // nothing else knows it.
                unsafe { sys::rdma_destroy_id(id.as_ptr()) };
                return Err(error);
            }
        };
        // From here on this value ends both.
        let id = Id { id, channel };
        // SAFETY: id and channel are there.
        let status = unsafe { sys::rdma_migrate_id(id.id.as_ptr(), channel.as_ptr()) };
        check("giving a connection its own events", status)?;
        // SAFETY: the id is there. What it has of its peer's address is bytes, whatever the family.
        let peer = unsafe { id.id.as_ref().route.addr.dst_addr_union.dst_storage };
        let addresses = [address_of(&peer), id.own_address()];
        let [Some(peer), Some(own)] = addresses else {
            return Err(RdmaError::Call {
                doing: "reading a peer's address",
                errno: Errno::AFNOSUPPORT,
            });
        };
        Ok(Some((Connection::of(id), event, [peer, own])))
    }

    /// Readable when there is a request.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.id.descriptor()
    }
}

impl Id {
    fn new() -> Result<Id, RdmaError> {
        let channel = open_channel()?;
        let mut id = ptr::null_mut();
        // SAFETY: the channel is there; the function writes the new id.
        let status = unsafe {
            sys::rdma_create_id(
                channel.as_ptr(),
                &mut id,
                ptr::null_mut(),
                sys::rdma_port_space::RDMA_PS_TCP,
            )
        };
        match (status, NonNull::new(id)) {
            (0, Some(id)) => Ok(Id { id, channel }),
            _ => {
                let error = failed("creating a connection's id");
                // SAFETY: nothing uses the channel.
                unsafe { sys::rdma_destroy_event_channel(channel.as_ptr()) };
                Err(error)
            }
        }
    }

    /// Its address on this host.
    fn own_address(&self) -> Option<SocketAddr> {
        // SAFETY: the id is there. What it has of its own address is bytes, whatever the family.
        let own = unsafe { self.id.as_ref().route.addr.src_addr_union.src_storage };
        address_of(&own)
    }

    /// The next event, acknowledged, and its id.
    #[allow(clippy::type_complexity, reason = "read in two places")]
    fn next_event(
        &mut self,
    ) -> Result<Option<(Event, Option<NonNull<sys::rdma_cm_id>>)>, RdmaError> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is there and nonblocking; the function writes the event.
        let status = unsafe { sys::rdma_get_cm_event(self.channel.as_ptr(), &mut event) };
        let Some(event) = NonNull::new(event).filter(|_| status == 0) else {
            return match last_errno() {
                Errno::AGAIN | Errno::INTR => Ok(None),
                errno => Err(RdmaError::Call {
                    doing: "reading a connection's event",
                    errno,
                }),
            };
        };
        // SAFETY: the event is there until it is acknowledged. Of a reliable connection, its
        // parameters are those of one, and its private data, if there is any, has the stated
        // length.
        let found = unsafe {
            let event = event.as_ref();
            let connection = &event.param.conn;
            let len = usize::from(connection.private_data_len).min(MAX_PRIVATE);
            let private = match has_private(event.event) && !connection.private_data.is_null() {
                true => std::slice::from_raw_parts(connection.private_data.cast(), len).to_vec(),
                false => Vec::new(),
            };
            let found = Event {
                kind: kind_of(event.event),
                status: event.status,
                private,
            };
            (found, NonNull::new(event.id))
        };
        // SAFETY: the event came from rdma_get_cm_event, and is given back once. Its contents were
        // copied.
        unsafe { sys::rdma_ack_cm_event(event.as_ptr()) };
        Ok(Some(found))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor are there while `self` is.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the id's queue pair is gone (see Connection), its events are acknowledged, and
        // nothing uses the channel afterwards. Each is destroyed once.
        unsafe {
            sys::rdma_destroy_id(self.id.as_ptr());
            sys::rdma_destroy_event_channel(self.channel.as_ptr());
        }
    }
}

fn open_channel() -> Result<NonNull<sys::rdma_event_channel>, RdmaError> {
    // SAFETY: no conditions.
    let channel = NonNull::new(unsafe { sys::rdma_create_event_channel() });
    let channel = channel.ok_or_else(|| failed("opening a channel for connections' events"))?;
    // SAFETY: the channel has an open descriptor.
    let descriptor = unsafe { BorrowedFd::borrow_raw(channel.as_ref().fd) };
    if let Err(errno) = rustix::fs::fcntl_setfl(descriptor, OFlags::NONBLOCK) {
        // SAFETY: nothing uses the channel.
        unsafe { sys::rdma_destroy_event_channel(channel.as_ptr()) };
        return Err(RdmaError::Call {
            doing: "making an event channel nonblocking",
            errno,
        });
    }
    Ok(channel)
}

/// Parameters without remote reads and writes: neither end allows any.
fn parameters(private: &[u8], retries: u8) -> sys::rdma_conn_param {
    sys::rdma_conn_param {
        private_data: private.as_ptr().cast(),
        private_data_len: u8::try_from(private.len()).expect("private data is bounded"),
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: RETRIES,
        rnr_retry_count: retries,
        srq: 0,
        qp_num: 0,
    }
}

/// Whether events of this kind have the parameters of a connection.
fn has_private(event: sys::rdma_cm_event_type::Type) -> bool {
    use sys::rdma_cm_event_type as is;
    matches!(
        event,
        is::RDMA_CM_EVENT_CONNECT_REQUEST
            | is::RDMA_CM_EVENT_ESTABLISHED
            | is::RDMA_CM_EVENT_REJECTED
    )
}

fn kind_of(event: sys::rdma_cm_event_type::Type) -> EventKind {
    use sys::rdma_cm_event_type as is;
    match event {
        is::RDMA_CM_EVENT_ADDR_RESOLVED => EventKind::AddressResolved,
        is::RDMA_CM_EVENT_ROUTE_RESOLVED => EventKind::RouteResolved,
        is::RDMA_CM_EVENT_CONNECT_REQUEST => EventKind::Request,
        is::RDMA_CM_EVENT_ESTABLISHED => EventKind::Established,
        is::RDMA_CM_EVENT_DISCONNECTED => EventKind::Disconnected,
        is::RDMA_CM_EVENT_REJECTED => EventKind::Rejected,
        is::RDMA_CM_EVENT_ADDR_ERROR => EventKind::Failed("no device has a way to the address"),
        is::RDMA_CM_EVENT_ROUTE_ERROR => EventKind::Failed("there is no route"),
        is::RDMA_CM_EVENT_CONNECT_ERROR => EventKind::Failed("connecting failed"),
        is::RDMA_CM_EVENT_UNREACHABLE => EventKind::Failed("the peer doesn't answer"),
        is::RDMA_CM_EVENT_ADDR_CHANGE => EventKind::Failed("the device's address has changed"),
        is::RDMA_CM_EVENT_DEVICE_REMOVAL => EventKind::DeviceRemoved,
        _ => EventKind::Other,
    }
}

/// A socket address in C's form.
enum Address {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Address {
    fn of(address: SocketAddr) -> Address {
        match address.ip() {
            IpAddr::V4(ip) => Address::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                sin_zero: [0; 8],
            }),
            IpAddr::V6(ip) => Address::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                sin6_scope_id: match address {
                    SocketAddr::V6(v6) => v6.scope_id(),
                    SocketAddr::V4(_) => 0,
                },
            }),
        }
    }

    fn as_mut(&mut self) -> *mut libc::sockaddr {
        match self {
            Address::V4(v4) => (&raw mut *v4).cast(),
            Address::V6(v6) => (&raw mut *v6).cast(),
        }
    }
}

fn address_of(address: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let family = i32::from(address.ss_family);
    let address = &raw const *address;
    if family == libc::AF_INET {
        // SAFETY: a sockaddr_storage has room, and the alignment, for an address of every family,
        // and any bytes are one.
        let v4 = unsafe { address.cast::<libc::sockaddr_in>().read() };
        let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
        return Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)));
    }
    if family == libc::AF_INET6 {
        // SAFETY: as above.
        let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read() };
        let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
        return Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)));
    }
    None
}

/// The meaning of a work request's status, as a sentence about this end or the other.
pub(crate) fn sentence_of(status: u32) -> &'static str {
    use sys::ibv_wc_status as is;
    match status {
        is::IBV_WC_LOC_LEN_ERR => "a message was longer than its receive buffer",
        is::IBV_WC_LOC_QP_OP_ERR => "the queue pair got an invalid operation",
        is::IBV_WC_LOC_PROT_ERR => "this end's device couldn't use memory that was registered",
        is::IBV_WC_WR_FLUSH_ERR => "the queue pair ended",
        is::IBV_WC_REM_INV_REQ_ERR => "the peer's device refused a message as invalid",
        is::IBV_WC_REM_ACCESS_ERR => "the peer's device refused access to its memory",
        is::IBV_WC_REM_OP_ERR => "the peer's device failed",
        is::IBV_WC_RETRY_EXC_ERR => "the peer's device stopped acknowledging",
        is::IBV_WC_RNR_RETRY_EXC_ERR => "the peer had no receive posted",
        is::IBV_WC_FATAL_ERR => "this end's device has failed",
        _ => "a work request failed",
    }
}

/// Whether a receive failed with this status because the message was too long. soft-RoCE has
/// another status for that than other devices.
pub(crate) fn is_overlong(status: u32) -> bool {
    matches!(
        status,
        sys::ibv_wc_status::IBV_WC_LOC_LEN_ERR | sys::ibv_wc_status::IBV_WC_LOC_QP_OP_ERR
    )
}

/// Whether this status only says that an earlier work request failed.
pub(crate) fn is_consequence(status: u32) -> bool {
    status == sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR
}

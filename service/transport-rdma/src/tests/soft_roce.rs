//! Links over real verbs, between the VM's two soft-RoCE devices.

mod bodies;
mod connections;
mod costs;
mod hostile;
mod one_sided;
mod shared;

use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;

use tollgate_shm_abi::descriptor::HeapSizes;
use tollgate_shm_abi::session::{self, AppEnd, DaemonEnd, SessionShape};
use tollgate_transport::testing::suite::until;
use tollgate_transport::testing::{Testbed, keyed};
use tollgate_transport::{LinkConfig, LinkIo, Span, transport_suite};

use crate::{Rdma, RdmaLink, RdmaListener, RdmaOptions};

/// The device with the first address calls the one with the second.
struct SoftRoce;

const CALLER: &str = "10.99.0.1";
const CALLED: &str = "10.99.0.2";

impl Testbed for SoftRoce {
    type Io = RdmaLink;

    const NEEDS_KEY: bool = true;

    const UNPROTECTED: bool = true;

    fn connect(a: &LinkConfig, b: &LinkConfig) -> (RdmaLink, RdmaLink) {
        connect_with([0; 2], a, b)
    }
}

transport_suite!(SoftRoce);

fn devices() -> Rdma {
    touch_stack();
    Rdma::open().expect("soft-RoCE devices: .ci/rdma runs these tests in a VM that has them")
}

/// Touches the pages of the stack that a test will use. The VM's emulator continues with wrong
/// flags if a `set` instruction is the first to write to a page (conformance/rdma-vm/README.md).
#[inline(never)]
fn touch_stack() {
    std::hint::black_box([0_u8; 64 << 10]);
}

/// Two links, with rings of these sizes in bytes.
fn connect_with(rings: [u32; 2], a: &LinkConfig, b: &LinkConfig) -> (RdmaLink, RdmaLink) {
    let rdma = devices();
    let (mut listener, address) = listen_with(&rdma, rings[1]);
    let a = RdmaLink::connect(&rdma, address, &from_caller(rings[0]), a, 0).unwrap();
    accept(&mut listener, a, b)
}

fn listen(rdma: &Rdma) -> (RdmaListener, SocketAddr) {
    listen_with(rdma, 0)
}

/// A listener for links with a ring of this many bytes.
fn listen_with(rdma: &Rdma, ring_bytes: u32) -> (RdmaListener, SocketAddr) {
    let ip: IpAddr = CALLED.parse().unwrap();
    let options = RdmaOptions {
        ring_bytes,
        ..RdmaOptions::default()
    };
    let listener = RdmaListener::bind(rdma, SocketAddr::new(ip, 0), &options).unwrap();
    let address = SocketAddr::new(ip, listener.port());
    (listener, address)
}

fn connect(
    rdma: &Rdma,
    listener: &mut RdmaListener,
    address: SocketAddr,
    a: &LinkConfig,
    b: &LinkConfig,
) -> (RdmaLink, RdmaLink) {
    let a = RdmaLink::connect(rdma, address, &from_caller(0), a, 0).unwrap();
    accept(listener, a, b)
}

/// Accepts a link; returns it with the one that dialled.
fn accept(listener: &mut RdmaListener, mut a: RdmaLink, b: &LinkConfig) -> (RdmaLink, RdmaLink) {
    let b = until("the request", || {
        a.flush().unwrap();
        match listener.accept(b, 0).unwrap() {
            Some(b) => ControlFlow::Break(b),
            None => ControlFlow::Continue(()),
        }
    });
    (a, b)
}

/// Options for the first device, with a ring of this many bytes.
fn from_caller(ring_bytes: u32) -> RdmaOptions {
    RdmaOptions {
        from: Some(CALLER.parse().unwrap()),
        ring_bytes,
        ..RdmaOptions::default()
    }
}

fn key(name: &str) -> LinkConfig {
    LinkConfig {
        unprotected: true,
        ..keyed(name, "a key of the tests")
    }
}

/// An application and its daemon, with heaps of these sizes.
fn heaps(send: u64, receive: u64) -> (DaemonEnd, AppEnd) {
    let shape = SessionShape::for_request(HeapSizes { send, receive }).unwrap();
    let (daemon, fds) = session::create(&shape).unwrap();
    let app = AppEnd::attach(&shape, fds).unwrap();
    (daemon, app)
}

/// A span of that application's send heap, as its daemon sees it.
fn span_of(daemon: &DaemonEnd, app: &mut AppEnd, bytes: &[u8]) -> Span {
    let mut block = app.send_heap.alloc(bytes.len()).unwrap();
    block.copy_from_slice(bytes);
    let offset = app.send_heap.commit(block);
    daemon.send_heap.span(offset, bytes.len()).unwrap()
}

//! How connections begin and end, and the messages about it.

use std::process::Command;

use tollgate_transport::testing::suite::{self, Node, joined, turn_until, turn_until_error};
use tollgate_transport::testing::{call, call_with, config, span};
use tollgate_transport::{Blame, LinkError, Token};

use super::one_sided::SmallRings;
use super::*;
use crate::RdmaError;
use crate::verbs::{Connection, EventKind};
use crate::wire::{Greeting, WireError};

/// The error of connecting to this address.
fn refusal(address: &str) -> LinkError {
    let rdma = devices();
    let mut a = RdmaLink::connect(
        &rdma,
        address.parse().unwrap(),
        &RdmaOptions::default(),
        &key("a"),
        0,
    )
    .unwrap();
    until("a refusal", || match a.flush() {
        Ok(_) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    })
}

#[test]
fn devices_are_found_and_described() {
    let names: Vec<_> = devices().devices().map(|device| device.name).collect();
    assert_eq!(names, ["rxe_va", "rxe_vb"]);
    assert_eq!(crate::probe().unwrap(), names);
    let (a, b) = joined::<SoftRoce>();
    assert_eq!(a.io.device().as_deref(), Some("rxe_va"));
    assert_eq!(b.io.device().as_deref(), Some("rxe_vb"));
    assert_eq!(a.io.peer_address().ip().to_string(), CALLED);
    assert_eq!(b.io.peer_address().ip().to_string(), CALLER);
    let most = devices().devices().map(|device| device.max_elements).max();
    assert_eq!(most, Some(crate::limits::MAX_ELEMENTS));
}

#[test]
fn where_nobody_listens_it_says_so() {
    let error = refusal("10.99.0.2:1");
    assert_eq!(error.blame(), Blame::Network);
    let sentence = error.to_string();
    assert!(
        sentence.starts_with("the connection failed: 10.99.0.2:1 isn't reachable by any RDMA device: nothing accepts RDMA connections there"),
        "{sentence}"
    );
}

#[test]
fn an_address_without_a_way_is_refused() {
    // Outside of every device's network.
    let rdma = devices();
    let outcome = RdmaLink::connect(
        &rdma,
        "192.0.2.1:7471".parse().unwrap(),
        &RdmaOptions::default(),
        &key("a"),
        0,
    );
    let sentence = match outcome {
        Err(error) => error.to_string(),
        Ok(_) => refusal("192.0.2.1:7471").to_string(),
    };
    assert!(
        sentence.contains("nreachable") || sentence.contains("isn't reachable"),
        "{sentence}"
    );
}

#[test]
fn beyond_loopback_connecting_needs_a_key() {
    let address = "10.99.0.2:7471".parse().unwrap();
    let refused = RdmaLink::connect(
        &devices(),
        address,
        &RdmaOptions::default(),
        &config("a"),
        0,
    );
    assert_eq!(
        refused.err().unwrap().to_string(),
        "10.99.0.2:7471 isn't a loopback address: a peer beyond this host needs a key, the same on both daemons"
    );
    // A peer that has connected anyway learns it.
    let (a, b) = SoftRoce::connect(&key("a"), &config("b"));
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    assert_eq!(turn_until_error(&mut b), LinkError::NotLoopback);
    let error = until("the sentence", || {
        let _ = b.io.flush();
        match a.turn() {
            Err(error) => ControlFlow::Break(error),
            Ok(()) => ControlFlow::Continue(()),
        }
    });
    assert!(
        error
            .to_string()
            .contains("only loopback peers are accepted"),
        "{error}"
    );
}

#[test]
fn who_does_not_greet_is_turned_away_and_told() {
    let rdma = devices();
    let (mut listener, address) = listen(&rdma);
    for (greeting, expected) in [
        (&b"GET / HTTP/1.1"[..], "doesn't begin with TGRD"),
        (
            &b"TGRD\x07\0                  "[..],
            "version 7 of the messages; this daemon speaks 1",
        ),
    ] {
        let mut stranger = Connection::resolve(address, Some(CALLER.parse().unwrap())).unwrap();
        let mut said = None;
        let error = until("the refusal", || {
            if let Some(event) = stranger.next_event().unwrap() {
                match event.kind {
                    EventKind::AddressResolved => stranger.resolve_route().unwrap(),
                    EventKind::RouteResolved => {
                        stranger.make_queues(&rdma, None).unwrap();
                        stranger.connect(greeting).unwrap();
                    }
                    other => panic!("{other:?}"),
                }
            }
            if said.is_none() {
                said = listener.accept(&key("b"), 0).err();
            }
            match &said {
                Some(error) => ControlFlow::Break(error.to_string()),
                None => ControlFlow::Continue(()),
            }
        });
        assert!(error.contains(expected), "{error}");
        assert!(matches!(said, Some(RdmaError::Greeting { .. })));
        // The stranger's rejection names the supported version.
        let told = until("the rejection", || match stranger.next_event().unwrap() {
            Some(event) if event.kind == EventKind::Rejected => ControlFlow::Break(event.private),
            Some(other) => panic!("{other:?}"),
            None => ControlFlow::Continue(()),
        });
        assert!(Greeting::decode(&told).is_ok());
        assert_eq!(
            Greeting::decode(b"x"),
            Err(WireError::NotTollgate { len: 1 })
        );
    }
    // The listener continues.
    let (a, b) = connect(&rdma, &mut listener, address, &key("a"), &key("b"));
    let (mut a, mut b) = (Node::new(a), Node::new(b));
    turn_until("a link", &mut a, &mut b, |a, b| {
        a.io.link().is_ready() && b.io.link().is_ready()
    });
}

#[test]
fn many_links_share_a_listener_and_devices() {
    let rdma = devices();
    let (mut listener, address) = listen(&rdma);
    let mut pairs: Vec<_> = (0..16)
        .map(|_| connect(&rdma, &mut listener, address, &key("a"), &key("b")))
        .map(|(a, b)| (Node::new(a), Node::new(b)))
        .collect();
    for (a, b) in &mut pairs {
        turn_until("the handshake", a, b, |a, b| {
            a.io.link().is_ready() && b.io.link().is_ready()
        });
        b.said.clear();
    }
    for (n, (a, b)) in pairs.iter_mut().enumerate() {
        call(a.io.link(), n as u64, b"from a");
        call(b.io.link(), n as u64, b"from b");
    }
    for (n, (a, b)) in pairs.iter_mut().enumerate() {
        turn_until("a call", a, b, |a, b| {
            !b.said.is_empty() && a.said.len() == 2
        });
        assert!(
            b.said[0].starts_with(&format!("Call {n} ")),
            "{}",
            b.said[0]
        );
    }
}

/// The device continues to acknowledge for a stopped process, but not for an ended one.
#[test]
fn a_killed_peer_ends_the_link() {
    let rdma = devices();
    let (mut listener, address) = listen(&rdma);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "tests::soft_roce::connections::a_peer_to_be_killed",
        ])
        .env("TOLLGATE_TEST_PEER", address.to_string())
        .spawn()
        .unwrap();
    let b = until("the child", || {
        match listener.accept(&key("b"), 0).unwrap() {
            Some(b) => ControlFlow::Break(b),
            None => ControlFlow::Continue(()),
        }
    });
    let mut b = Node::new(b);
    let shared = span(&[7; 3 << 20]);
    until("the child's link", || {
        b.turn().unwrap();
        match b.io.link().is_ready() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    for n in 0..4 {
        call_with(b.io.link(), n, b"", &shared);
    }
    b.turn().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let error = turn_until_error(&mut b);
    assert_eq!(error.blame(), Blame::Network, "{error}");
    b.collect();
    assert_eq!(b.sent, (0..4).map(Token).collect::<Vec<_>>());
}

/// Not a test: the process that another test kills.
#[test]
#[ignore = "started by a_killed_peer_ends_the_link"]
fn a_peer_to_be_killed() {
    let address = std::env::var("TOLLGATE_TEST_PEER").unwrap();
    let rdma = devices();
    let options = from_caller(0);
    let a = RdmaLink::connect(&rdma, address.parse().unwrap(), &options, &key("a"), 0).unwrap();
    let mut a = Node::new(a);
    loop {
        a.turn().unwrap();
        std::thread::yield_now();
    }
}

/// Runs a shell command of the VM.
fn shell(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

/// A network that loses packets while this value exists. No other test is affected, even if this
/// one panics.
struct Loss;

impl Loss {
    fn begin(part: &str) -> Loss {
        shell(&format!(
            "for d in va vb; do tc qdisc add dev $d root netem loss {part}; done"
        ));
        Loss
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        shell("for d in va vb; do tc qdisc del dev $d root; done");
    }
}

/// The device resends lost packets, and upper layers don't notice.
#[test]
fn one_packet_in_a_hundred_lost_changes_nothing() {
    let loss = Loss::begin("1%");
    suite::every_kind_of_frame_arrives_as_it_was_said::<SoftRoce>();
    suite::calls_of_all_sizes_arrive_in_order::<SoftRoce>();
    suite::large_extents_cross_a_full_connection_and_come_back::<SoftRoce>();
    suite::every_kind_of_frame_arrives_as_it_was_said::<SmallRings>();
    suite::calls_of_all_sizes_arrive_in_order::<SmallRings>();
    let statistics = Command::new("tc")
        .args(["-s", "qdisc", "show"])
        .output()
        .unwrap();
    drop(loss);
    let statistics = String::from_utf8(statistics.stdout).unwrap();
    let lost = |line: &str| {
        let (_, rest) = line.split_once("(dropped ")?;
        rest.split_once(',')?.0.parse::<u32>().ok()
    };
    let lost: u32 = statistics.lines().filter_map(lost).sum();
    assert!(lost > 10, "{lost} packets were lost: {statistics}");
}

#[test]
fn a_broken_path_ends_the_link_with_a_sentence_and_the_next_one_stands() {
    let (mut a, mut b) = joined::<SoftRoce>();
    let loss = Loss::begin("100%");
    call(a.io.link(), 1, b"nobody hears it");
    let error = turn_until_error(&mut a);
    drop(loss);
    assert_eq!(
        error,
        LinkError::Connection {
            sentence: "the peer's device stopped acknowledging".to_owned()
        }
    );
    // b learns of it from the connection manager or from silence.
    drop(a);
    let error = turn_until_error(&mut b);
    assert_eq!(error.blame(), Blame::Network, "{error}");
    let _next = joined::<SoftRoce>();
}

/// A flush also takes completions: a caller that waits after it would wait for events that it has
/// already taken.
fn a_message_that_a_flush_has_found_keeps_its_link_awake<B: Testbed<Io = RdmaLink>>() {
    let (mut a, mut b) = joined::<B>();
    turn_until("silence", &mut a, &mut b, |_, _| true);
    let found = |b: &Node<RdmaLink>| b.io.counts().completions + b.io.seen_of_ring();
    let before = found(&b);
    call(a.io.link(), 1, b"in between");
    a.io.flush().unwrap();
    until("its arrival", || {
        b.io.flush().unwrap();
        match found(&b) > before {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    assert_eq!(b.io.prepare_to_wait(), Ok(false));
    b.turn().unwrap();
    turn_until("the call", &mut a, &mut b, |_, b| b.said.len() == 1);
}

#[test]
fn what_a_flush_has_found_keeps_a_link_awake() {
    a_message_that_a_flush_has_found_keeps_its_link_awake::<SoftRoce>();
    a_message_that_a_flush_has_found_keeps_its_link_awake::<SmallRings>();
}

/// Sets the neighbour entries that the VM's first process has set for the pair; a device that goes
/// down forgets them.
fn know_neighbours(ips: [&str; 2]) {
    for (on, of, ip) in [("va", "vb", ips[1]), ("vb", "va", ips[0])] {
        let mac = format!("$(cat /sys/class/net/{of}/address)");
        shell(&format!(
            "ip neigh replace {ip} lladdr {mac} dev {on} nud permanent"
        ));
    }
}

/// The network device goes away, and the RDMA device stays. It reports missing acknowledgements, or
/// keeps trying; in the latter case only silence shows the loss.
#[test]
#[ignore = "takes a network device away: .ci/rdma runs it in a VM of its own"]
fn a_network_device_that_goes_down_ends_its_links_and_frees_their_calls() {
    let (mut a, _b) = joined::<SoftRoce>();
    let shared = span(&[7; 3 << 20]);
    for n in 0..4 {
        call_with(a.io.link(), n, b"", &shared);
    }
    a.turn().unwrap();
    assert!(a.sent.is_empty(), "their memory is being read");
    shell("ip link set vb down");
    // Time passes: first it probes, then it gives up.
    let ended = (1..4).find_map(|minute| {
        let _said = a.io.link().tick(minute * 60_000_000_000);
        a.io.flush().err()
    });
    let error = ended.expect("nobody answers");
    assert_eq!(error.blame(), Blame::Network);
    let said = [
        "the peer was silent for 30 s",
        "the connection failed: the peer's device stopped acknowledging",
    ];
    assert!(said.contains(&error.to_string().as_str()), "{error}");
    a.collect();
    assert_eq!(a.sent, (0..4).map(Token).collect::<Vec<_>>());
}

/// A device has a GID for each of its addresses, at no fixed index. The connection manager chooses
/// the one for the given addresses.
#[test]
fn links_stand_between_ipv6_addresses_too() {
    let ips = ["fd00:99::1", "fd00:99::2"];
    for (dev, ip) in [("va", ips[0]), ("vb", ips[1])] {
        shell(&format!("ip addr add {ip}/64 dev {dev} nodad"));
        let gids = format!("/sys/class/infiniband/rxe_{dev}/ports/1/gids/*");
        until("the address's GID", || {
            let found = Command::new("sh")
                .args(["-c", &format!("grep -qs fd00:0099 {gids}")])
                .status()
                .unwrap();
            match found.success() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    }
    know_neighbours(ips);
    // Both addresses are local, but packets from one should reach the other through the pair: local
    // addresses are looked up last.
    shell("ip -6 rule add pref 10 lookup local; ip -6 rule del pref 0");
    shell("for d in va vb; do ip -6 rule add pref 1 oif $d lookup main; done");
    let rdma = devices();
    let [caller, called] = ips.map(|ip| ip.parse::<IpAddr>().unwrap());
    for bound in [called, IpAddr::from([0_u8; 16])] {
        let at = SocketAddr::new(bound, 0);
        let mut listener = RdmaListener::bind(&rdma, at, &RdmaOptions::default()).unwrap();
        let options = RdmaOptions {
            from: Some(caller),
            ..RdmaOptions::default()
        };
        let address = SocketAddr::new(called, listener.port());
        let a = RdmaLink::connect(&rdma, address, &options, &key("a"), 0).unwrap();
        let (a, b) = accept(&mut listener, a, &key("b"));
        assert_eq!(b.peer_address().ip(), caller);
        let (mut a, mut b) = (Node::new(a), Node::new(b));
        call_after_handshake(&mut a, &mut b);
        let devices = [a.io.device(), b.io.device()].map(Option::unwrap);
        assert_eq!(devices, ["rxe_va", "rxe_vb"]);
    }
    shell("ip -6 rule add pref 0 lookup local; ip -6 rule del pref 10");
    shell("for d in va vb; do ip -6 rule del pref 1 oif $d; done");
    for (dev, ip) in [("va", ips[0]), ("vb", ips[1])] {
        shell(&format!("ip addr del {ip}/64 dev {dev}"));
    }
}

/// A small call, and one with a separate body, whose queue pair has to take the same path.
fn call_after_handshake(a: &mut Node<RdmaLink>, b: &mut Node<RdmaLink>) {
    turn_until("the handshake", a, b, |a, b| {
        a.io.link().is_ready() && b.io.link().is_ready()
    });
    b.said.clear();
    call(a.io.link(), 1, b"by another family");
    call_with(a.io.link(), 2, b"", &span(&[7; 100_000]));
    turn_until("both calls", a, b, |a, b| {
        b.said.len() == 2 && a.sent.contains(&Token(2))
    });
}

/// The kernel removes a device once every process has closed it, and librdmacm keeps devices open.
/// So this test is the last of its process, and of its VM.
#[test]
#[ignore = "takes a device away: .ci/rdma runs it in a VM of its own"]
fn a_device_that_is_removed_ends_its_links() {
    let (a, mut b) = joined::<SoftRoce>();
    // It ends when this process has ended.
    #[allow(clippy::zombie_processes, reason = "nobody can wait for it")]
    let _deleting = Command::new("rdma")
        .args(["link", "delete", "rxe_vb"])
        .spawn()
        .unwrap();
    let error = turn_until_error(&mut b);
    assert!(
        error.to_string().contains("the device was removed"),
        "{error}"
    );
    drop(b);
    let mut a = a;
    let error = turn_until_error(&mut a);
    assert_eq!(error.blame(), Blame::Network, "{error}");
}

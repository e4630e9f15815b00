//! Peers by name: every address is tried, names are resolved again, and a dead name server delays
//! only its own tenant.
//!
//! Each daemon here has its own `/etc/hosts`, which needs root and a mount namespace.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::{Code, Session, SessionOptions, Status, block_on};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, proto_file};
use tollgate_schema::Schema;

const ECHO: &str = "hotel.Echo";

fn schema() -> Schema {
    let hotel = proto_file("hotel.proto");
    Schema::compile_proto(&[&hotel], &[hotel.parent().unwrap()]).unwrap()
}

fn options(listen: Option<&str>) -> Options {
    Options {
        listen: listen.map(|at| at.parse().unwrap()),
        ..Options::default()
    }
}

/// A daemon with these files instead of the host's.
fn elsewhere(bed: &Testbed, name: &str, files: &[(&Path, &str)]) -> Daemon {
    let mounts = files.iter();
    let mounts = mounts.map(|(file, at)| format!("mount --bind {} {at} && ", file.display()));
    let script = format!("{}exec \"$@\"", mounts.collect::<String>());
    let under = ["unshare", "-m", "sh", "-c", &script, "sh"];
    let options = Options {
        under: under.map(str::to_owned).to_vec(),
        ..options(None)
    };
    bed.daemon_with(name, &options)
}

fn open(daemon: &Daemon, token: &str) -> Session {
    Session::open(SessionOptions::new(daemon.socket(), token)).unwrap()
}

/// Serves on a daemon until the session is dropped.
fn echo(daemon: &Daemon) -> Session {
    let session = open(daemon, &daemon.tenant("acme"));
    let schema = schema();
    let serving = session.serve_raw(schema.descriptor_set(), ECHO, |_, request| {
        Ok(request.to_vec())
    });
    block_on(&session, serving).unwrap();
    let driven = session.clone();
    std::thread::spawn(move || block_on(&driven, std::future::pending::<()>()));
    session
}

/// Calls a bound method.
fn call(session: &Session, schema: &Schema, handle: u32) -> Result<(), Status> {
    let layouts = schema.service(ECHO).unwrap().layouts;
    let empty = vec![0; layouts.messages[0].size as usize];
    block_on(session, async {
        let call = session.call_raw(handle, &empty, Some(Duration::from_secs(10)));
        call.await.map(drop)
    })
}

fn bind(session: &Session, schema: &Schema, peer: &str) -> Result<u32, Status> {
    let bound = session.bind_client(schema.descriptor_set(), ECHO, peer);
    let bound = block_on(session, bound)?;
    Ok(bound.handle("Echo").unwrap())
}

#[test]
fn a_name_is_reached_at_whichever_of_its_addresses_answers() {
    let bed = Testbed::new();
    let b = bed.daemon_with("b", &options(Some("127.0.0.3:0")));
    let _serving = echo(&b);
    let hosts = "::1 several.test\n127.0.0.2 several.test\n127.0.0.3 several.test\n::1 none.test\n127.0.0.2 none.test\n";
    let hosts = bed.file("hosts", hosts);
    let a = elsewhere(&bed, "a", &[(&hosts, "/etc/hosts")]);
    let (session, schema) = (open(&a, &a.tenant("acme")), schema());
    let port = b.listen().port();
    let handle = bind(&session, &schema, &format!("several.test:{port}")).unwrap();
    call(&session, &schema, handle).unwrap();
    let refused = bind(&session, &schema, &format!("none.test:{port}")).unwrap_err();
    assert_eq!(refused.code, Code::UNAVAILABLE);
    for address in [format!("[::1]:{port}"), format!("127.0.0.2:{port}")] {
        let why = format!("connecting to {address} failed: ");
        assert!(refused.message.contains(&why), "{refused}");
    }
}

#[test]
fn a_server_that_moves_is_found_by_who_was_bound_to_it() {
    let bed = Testbed::new();
    let mut b = bed.daemon_with("b", &options(Some("127.0.0.2:0")));
    let port = b.listen().port();
    let serving = echo(&b);
    let hosts = bed.file("hosts", "127.0.0.2 moves.test\n");
    let a = elsewhere(&bed, "a", &[(&hosts, "/etc/hosts")]);
    let (session, schema) = (open(&a, &a.tenant("acme")), schema());
    let handle = bind(&session, &schema, &format!("moves.test:{port}")).unwrap();
    call(&session, &schema, handle).unwrap();
    b.process().kill();
    drop(serving);
    let there = SocketAddr::from(([127, 0, 0, 3], port)).to_string();
    let b = bed.daemon_with("b2", &options(Some(&there)));
    let _serving = echo(&b);
    assert!(
        call(&session, &schema, handle).is_err(),
        "nobody knows where it is"
    );
    bed.file("hosts", "127.0.0.3 moves.test\n");
    let is_found = || call(&session, &schema, handle).is_ok();
    eventually(SOON, is_found).expect("its name is looked up again");
}

/// A name server that never answers, and a tenant that binds only to names of it. Other tenants'
/// work needs blocking threads, and is finished before any of those binds is answered.
#[test]
fn names_that_nobody_answers_for_hold_up_their_tenant_alone() {
    const BINDS: usize = 10;
    let bed = Testbed::new();
    let _dead = UdpSocket::bind("127.0.0.77:53").unwrap();
    let hosts = bed.file("hosts", "127.0.0.1 localhost\n");
    let servers = bed.file("resolv.conf", "nameserver 127.0.0.77\n");
    let switch = bed.file("nsswitch.conf", "hosts: files dns\n");
    if !Path::new("/etc/nsswitch.conf").exists() {
        return;
    }
    let files = [
        (hosts.as_path(), "/etc/hosts"),
        (servers.as_path(), "/etc/resolv.conf"),
        (switch.as_path(), "/etc/nsswitch.conf"),
    ];
    let a = elsewhere(&bed, "a", &files);
    let _serving = echo(&a);
    let mallory = a.tenant("mallory");
    let (answered, done) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let attackers = (0..BINDS).map(|k| {
        let session = open(&a, &mallory);
        let (answered, done) = (Arc::clone(&answered), Arc::clone(&done));
        std::thread::spawn(move || {
            let schema = schema();
            for round in 0.. {
                let refused = bind(&session, &schema, &format!("n{k}-{round}.test:7471"));
                assert_eq!(refused.unwrap_err().code, Code::UNAVAILABLE);
                answered.fetch_add(1, Ordering::SeqCst);
                if done.load(Ordering::SeqCst) {
                    return;
                }
            }
        })
    });
    let attackers: Vec<_> = attackers.collect();
    std::thread::sleep(Duration::from_millis(500));
    let mut tenants = 0;
    let unhindered = eventually(SOON, || {
        let before = answered.load(Ordering::SeqCst);
        tenants += 1;
        let token = a.tenant(&format!("t{tenants}"));
        // Large enough for a blocking thread, and different each time.
        let fields: String = (1..1_500)
            .map(|k| format!("string field_{tenants}_{k} = {k};"))
            .collect();
        let proto = format!(
            "syntax = \"proto3\"; package large; message M {{ {fields} }} service L {{ rpc Do(M) returns (M); }}"
        );
        let proto = bed.file("large.proto", proto);
        let schema = Schema::compile_proto(&[&proto], &[proto.parent().unwrap()]).unwrap();
        let session = open(&a, &token);
        let serving = session.serve_raw(schema.descriptor_set(), "large.L", |_, request| {
            Ok(request.to_vec())
        });
        block_on(&session, serving).unwrap();
        answered.load(Ordering::SeqCst) == before
    });
    done.store(true, Ordering::SeqCst);
    unhindered.expect("a tenant is added and serves while all those binds wait");
    for attacker in attackers {
        attacker.join().unwrap();
    }
}

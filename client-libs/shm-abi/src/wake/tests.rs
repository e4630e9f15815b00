//! The possibilities of an application with its descriptors, and their limits.
#![allow(clippy::unwrap_used)]

use super::*;
use rustix::fs::OFlags;
use std::time::Instant;
use std::vec::Vec;

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

/// The tokens of the pending events of an epoll.
fn events(epoll: &OwnedFd) -> Vec<u64> {
    let mut buffer = [MaybeUninit::<Event>::uninit(); 8];
    let none = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let (events, _) = epoll::wait(epoll, &mut buffer, Some(&none)).unwrap();
    events.iter().map(|event| event.data.u64()).collect()
}

fn runtime() -> Arc<OwnedFd> {
    Arc::new(epoll::create(CreateFlags::CLOEXEC).unwrap())
}

#[test]
fn wakes_arrive_and_several_count_as_one() {
    let (wake, fd) = Wake::create().unwrap();
    let listener = WakeListener::new(fd);
    assert_eq!(listener.wait(AT_ONCE), Ok(false));
    wake.wake();
    assert_eq!(listener.wait(None), Ok(true));
    assert_eq!(listener.wait(AT_ONCE), Ok(false));
    for _ in 0..3 {
        wake.wake();
    }
    assert_eq!(listener.wait(Some(Duration::MAX)), Ok(true));
    assert_eq!(listener.wait(AT_ONCE), Ok(false));
}

#[test]
fn a_wait_ends_with_its_time_or_with_a_wake_from_another_thread() {
    let (wake, fd) = Wake::create().unwrap();
    let listener = WakeListener::new(fd);
    let begin = Instant::now();
    assert_eq!(listener.wait(Some(Duration::from_millis(5))), Ok(false));
    assert!(begin.elapsed() >= Duration::from_millis(5));
    let waking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        wake.wake();
        wake
    });
    assert_eq!(listener.wait(None), Ok(true));
    waking.join().unwrap();
}

#[test]
fn a_listener_nests_in_the_apps_own_reactor() {
    let (wake, fd) = Wake::create().unwrap();
    let listener = WakeListener::new(fd);
    let reactor = epoll::create(CreateFlags::CLOEXEC).unwrap();
    epoll::add(&reactor, &listener, EventData::new_u64(7), EventFlags::IN).unwrap();
    assert!(events(&reactor).is_empty());
    wake.wake();
    assert_eq!(events(&reactor), [7]);
    assert_eq!(events(&reactor), [7], "until the listener has been asked");
    assert_eq!(listener.wait(AT_ONCE), Ok(true));
    assert!(events(&reactor).is_empty());
}

#[test]
fn the_app_can_neither_fill_nor_drain_nor_unwatch_the_wake() {
    let (wake, app) = Wake::create().unwrap();
    wake.wake();
    let mut counter = [0; 8];
    assert_eq!(
        rustix::io::write(&app, &u64::MAX.to_ne_bytes()),
        Err(Errno::INVAL)
    );
    assert_eq!(rustix::io::read(&app, &mut counter), Err(Errno::INVAL));
    // The watched description identifies a watch, and the app has no descriptor for it: neither a
    // number nor an eventfd of its own will do.
    let own = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(epoll::delete(&app, &own), Err(Errno::NOENT));
    assert_eq!(
        epoll::modify(&app, &own, EventData::new_u64(0), EventFlags::empty()),
        Err(Errno::NOENT)
    );
    let listener = WakeListener::new(app);
    assert_eq!(listener.wait(AT_ONCE), Ok(true));
    wake.wake();
    assert_eq!(listener.wait(AT_ONCE), Ok(true));
    let flags = rustix::fs::fcntl_getfl(&wake.fd).unwrap();
    assert!(flags.contains(OFlags::NONBLOCK));
}

#[test]
fn each_ring_is_an_event_although_nobody_resets_the_counter() {
    let epoll = runtime();
    let (mut doorbell, app) = Doorbell::create().unwrap();
    doorbell.watch(&epoll, 42).unwrap();
    let ringer = DoorbellRinger::new(app);
    assert!(events(&epoll).is_empty());
    for _ in 0..3 {
        ringer.ring();
        assert_eq!(events(&epoll), [42]);
        assert!(events(&epoll).is_empty(), "an edge is told once");
    }
    doorbell.watch(&epoll, 43).unwrap();
    events(&epoll);
    ringer.ring();
    assert_eq!(events(&epoll), [43], "watching again replaces the watch");
}

#[test]
fn a_doorbell_that_was_rung_before_it_was_watched_is_heard() {
    let epoll = runtime();
    let (mut doorbell, app) = Doorbell::create().unwrap();
    let ringer = DoorbellRinger::new(app);
    ringer.ring();
    doorbell.watch(&epoll, 1).unwrap();
    assert_eq!(events(&epoll), [1]);
}

#[test]
fn a_dropped_doorbell_is_silent_although_the_app_holds_its_description() {
    let epoll = runtime();
    let (mut doorbell, app) = Doorbell::create().unwrap();
    doorbell.watch(&epoll, 42).unwrap();
    drop(doorbell);
    let ringer = DoorbellRinger::new(app);
    ringer.ring();
    assert!(events(&epoll).is_empty());
    drop(ringer);
}

#[test]
fn a_doorbell_that_its_app_jams_harms_nobody_else() {
    let epoll = runtime();
    let (mut jammed, app) = Doorbell::create().unwrap();
    let (mut other, other_app) = Doorbell::create().unwrap();
    jammed.watch(&epoll, 1).unwrap();
    other.watch(&epoll, 2).unwrap();
    // Fill the counter, then make the shared description block: a write would hang now.
    rustix::io::write(&app, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let flags = rustix::fs::fcntl_getfl(&app).unwrap();
    rustix::fs::fcntl_setfl(&app, flags - OFlags::NONBLOCK).unwrap();
    assert_eq!(events(&epoll), [1]);
    DoorbellRinger::new(other_app).ring();
    assert_eq!(events(&epoll), [2]);
    drop(jammed);
    assert!(events(&epoll).is_empty());
}

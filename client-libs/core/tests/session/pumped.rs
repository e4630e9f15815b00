//! A session that an event loop drives. It works only during turns, and its descriptor signals when
//! a turn is needed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tollgate_core::limits::PUMP_TURNS;
use tollgate_core::{Code, Pump, Session, Status, block_on};

use crate::fake::{self, FIRST_HANDLE, Limits, SOON, echo, silence};

const ECHO: u32 = FIRST_HANDLE;

fn is_readable(pump: &Pump, within: Duration) -> bool {
    let timeout = Timespec::try_from(within).unwrap();
    let mut fds = [PollFd::new(pump, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

/// An event loop: runs a turn whenever the descriptor is readable, until the future is ready.
fn run<F: Future>(pump: &mut Pump, mut future: Pin<&mut F>) -> F::Output {
    let mut cx = Context::from_waker(Waker::noop());
    let end = Instant::now() + SOON;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        assert!(Instant::now() < end, "the descriptor never told");
        if is_readable(pump, SOON) {
            pump.turn();
        }
    }
}

/// Runs turns until the descriptor stays quiet for a while.
fn settle(pump: &mut Pump) {
    let end = Instant::now() + SOON;
    while is_readable(pump, Duration::from_millis(50)) {
        assert!(Instant::now() < end, "it is never idle");
        pump.turn();
    }
}

/// Runs turns when the descriptor is readable, until a count is reached.
fn turn_until(pump: &mut Pump, count: &AtomicUsize, wanted: usize) {
    while count.load(Ordering::SeqCst) < wanted {
        assert!(is_readable(pump, SOON), "the descriptor never told");
        pump.turn();
    }
}

#[test]
fn calls_end_in_turns_and_then_it_is_idle() {
    let (session, _daemon) = fake::start(Limits::default(), echo());
    let mut pump = Pump::new(&session).unwrap();
    for round in 0..2_000_u32 {
        let image = [round as u8; 16];
        let call = pin!(session.call_raw(ECHO, image, None));
        assert_eq!(*run(&mut pump, call).unwrap(), image);
    }
    settle(&mut pump);
}

#[test]
fn a_deadline_makes_the_descriptor_readable() {
    let (session, _daemon) = fake::start(Limits::default(), silence());
    let mut pump = Pump::new(&session).unwrap();
    settle(&mut pump);
    let begin = Instant::now();
    let call = pin!(session.call_raw(ECHO, [0; 16], Some(Duration::from_millis(100))));
    let ended = run(&mut pump, call).unwrap_err();
    assert_eq!(ended.code, Code::DEADLINE_EXCEEDED);
    assert!(begin.elapsed() >= Duration::from_millis(100));
}

#[test]
fn handlers_and_tasks_run_in_turns_only() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let mut pump = Pump::new(&session).unwrap();
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let serve = session.serve_raw(b"schema", "zoo.Keeper", move |_, request| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(request.to_vec())
    });
    run(&mut pump, pin!(serve)).unwrap();
    settle(&mut pump);
    daemon.run(|fake| fake.call(FIRST_HANDLE, 1, &[7; 16]));
    assert!(is_readable(&pump, SOON));
    assert_eq!(handled.load(Ordering::SeqCst), 0, "nobody drives");
    turn_until(&mut pump, &handled, 1);
    settle(&mut pump);
    daemon.wait_until(|fake| fake.answers.len() == 1);
    assert_eq!(handled.load(Ordering::SeqCst), 1);

    let ran = Arc::new(AtomicUsize::new(0));
    let task = Arc::clone(&ran);
    session.spawn(async move {
        task.fetch_add(1, Ordering::SeqCst);
    });
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    turn_until(&mut pump, &ran, 1);
}

#[test]
fn tasks_that_are_always_ready_leave_the_event_loop_a_word() {
    let (session, _daemon) = fake::start(Limits::default(), silence());
    let mut pump = Pump::new(&session).unwrap();
    settle(&mut pump);
    let polled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&polled);
    session.spawn(std::future::poll_fn(move |cx| {
        cx.waker().wake_by_ref();
        match count.fetch_add(1, Ordering::SeqCst) {
            999 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }));
    pump.turn();
    let once = polled.load(Ordering::SeqCst);
    assert!((PUMP_TURNS..2 * PUMP_TURNS).contains(&once), "{once}");
    assert!(is_readable(&pump, Duration::ZERO), "there is more to do");
    settle(&mut pump);
    assert_eq!(polled.load(Ordering::SeqCst), 1_000);
}

#[test]
fn who_is_in_block_on_drives_and_a_ring_takes_over_again() {
    let (session, _daemon) = fake::start(Limits::default(), echo());
    let mut pump = Pump::new(&session).unwrap();
    settle(&mut pump);
    for _ in 0..100 {
        let reply = block_on(&session, session.call_raw(ECHO, [1; 16], None));
        assert_eq!(*reply.unwrap(), [1; 16]);
        pump.ring();
        let call = pin!(session.call_raw(ECHO, [2; 16], None));
        assert_eq!(*run(&mut pump, call).unwrap(), [2; 16]);
    }
}

#[test]
fn the_end_is_told_whoever_brings_it() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    let mut pump = Pump::new(&session).unwrap();
    settle(&mut pump);
    let call = pin!(session.call_raw(ECHO, [0; 16], None));
    daemon.kill();
    let ended = run(&mut pump, call).unwrap_err();
    assert_eq!(ended.code, Code::UNAVAILABLE, "{ended}");

    let (session, _daemon) = fake::start(Limits::default(), silence());
    let mut pump = Pump::new(&session).unwrap();
    settle(&mut pump);
    let mut call = pin!(session.call_raw(ECHO, [0; 16], None));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut cx).is_pending());
    Session::close(&session);
    let ended = run(&mut pump, call).unwrap_err();
    let closed = Status::new(Code::CANCELLED, "this program closed the session");
    assert_eq!(ended, closed);
    assert_eq!(block_on(&session, session.closed()), closed);
}

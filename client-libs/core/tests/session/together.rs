//! Several sessions that one thread drives.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::time::Duration;

use tollgate_core::{Code, Session, SessionOptions, Sessions, block_on};

use crate::fake::{self, Behaviour, FIRST_HANDLE, Handle, Limits, echo, silence};

const ECHO: u32 = FIRST_HANDLE;

/// How the drivers wait: they never sleep, spin first, or always sleep.
const SPINS: [Duration; 3] = [Duration::MAX, Duration::from_micros(50), Duration::ZERO];

fn start(count: usize, spin: Duration, behaviour: fn() -> Behaviour) -> Vec<(Session, Handle)> {
    let options = |options: &mut SessionOptions| options.spin = spin;
    let start = |_| fake::start_with(Limits::default(), behaviour(), options);
    (0..count).map(start).collect()
}

fn together(started: &[(Session, Handle)]) -> Sessions {
    let sessions = started.iter().map(|(session, _)| session.clone());
    Sessions::new(sessions).unwrap()
}

async fn echoes(session: &Session, rounds: usize) {
    for round in 0..rounds {
        let reply = session.call_raw(ECHO, [round as u8; 16], None).await;
        assert_eq!(*reply.unwrap(), [round as u8; 16]);
    }
}

/// Waits for all of these futures together.
async fn all(futures: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|cx| {
        futures.retain_mut(|future| pin!(future).poll(cx).is_pending());
        match futures.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

/// A flag that a thread raises and a future waits for.
#[derive(Clone, Default)]
struct Flag(Arc<Mutex<(bool, Option<Waker>)>>);

impl Flag {
    fn raise(&self) {
        let mut flag = self.0.lock().unwrap();
        flag.0 = true;
        let waker = flag.1.take();
        drop(flag);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    async fn raised(&self) {
        poll_fn(|cx| {
            let mut flag = self.0.lock().unwrap();
            flag.1 = Some(cx.waker().clone());
            match flag.0 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

#[test]
fn one_thread_is_enough_for_many() {
    for spin in SPINS {
        let started = start(9, spin, echo);
        let mut sessions = together(&started);
        for _ in 0..3 {
            let calls = started.iter().map(|(session, _)| echoes(session, 100));
            sessions.block_on(all(calls));
        }
    }
}

#[test]
fn a_session_is_driven_once_however_often_it_is_named() {
    let (session, _daemon) = fake::start(Limits::default(), echo());
    let mut sessions = Sessions::new([session.clone(), session.clone()]).unwrap();
    sessions.block_on(echoes(&session, 100));
}

#[test]
fn none_are_driven_by_whoever_has_none() {
    let (session, _daemon) = fake::start(Limits::default(), echo());
    let mut none = Sessions::new([]).unwrap();
    // In the background, like a foreign executor.
    none.block_on(echoes(&session, 100));
}

#[test]
fn the_others_go_on_when_one_ends() {
    for spin in SPINS {
        let mut started = start(3, spin, echo);
        let mut sessions = together(&started);
        let (dead, daemon) = started.remove(1);
        daemon.kill();
        let living = started.iter().map(|(session, _)| echoes(session, 100));
        sessions.block_on(async {
            assert_eq!(dead.closed().await.code, Code::UNAVAILABLE);
            all(living).await;
            let late = dead.call_raw(ECHO, [0; 8], None).await;
            assert_eq!(late.unwrap_err().code, Code::UNAVAILABLE);
        });
    }
}

#[test]
fn when_all_have_ended_others_still_wake_the_thread() {
    let (session, daemon) = fake::start(Limits::default(), silence());
    daemon.kill();
    let mut sessions = Sessions::new([session.clone()]).unwrap();
    sessions.block_on(async {
        session.closed().await;
        let flag = Flag::default();
        let raised = flag.clone();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            flag.raise();
        });
        raised.raised().await;
        other.join().unwrap();
    });
}

#[test]
fn what_another_thread_does_wakes_a_thread_that_sleeps() {
    for spin in SPINS {
        let started = start(2, spin, echo);
        let mut sessions = together(&started);
        let last = started[1].0.clone();
        sessions.block_on(async {
            for _ in 0..20 {
                let flag = Flag::default();
                let (session, raised) = (last.clone(), flag.clone());
                let other = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(2));
                    // The driving thread gets its reply.
                    block_on(&session, echoes(&session, 3));
                    flag.raise();
                });
                raised.raised().await;
                other.join().unwrap();
            }
        });
    }
}

/// A thread waits for a session that another thread drives, and takes it over when that thread
/// leaves.
#[test]
fn a_session_is_taken_over_when_its_driver_leaves() {
    for spin in SPINS {
        let started = start(2, spin, echo);
        let mut sessions = together(&started);
        let [first, second] = [0, 1].map(|at| started[at].0.clone());
        let leave = Flag::default();
        let left = leave.clone();
        let (drives, driven) = mpsc::channel();
        let other = std::thread::spawn(move || {
            block_on(&second, async {
                drives.send(()).unwrap();
                left.raised().await;
            });
        });
        driven.recv().unwrap();
        let second = &started[1].0;
        sessions.block_on(async {
            all([echoes(&first, 50), echoes(second, 50)]).await;
            let leaves = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                leave.raise();
            });
            // Nothing is lost, regardless of which thread drives.
            all([echoes(&first, 500), echoes(second, 500)]).await;
            leaves.join().unwrap();
        });
        other.join().unwrap();
        sessions.block_on(echoes(second, 50));
    }
}

#[test]
fn deadlines_pass_in_each_of_them() {
    for spin in SPINS {
        let started = start(3, spin, silence);
        let mut sessions = together(&started);
        for (session, _) in &started {
            let late = session.call_raw(ECHO, [0; 8], Some(Duration::from_millis(20)));
            let status = sessions.block_on(late).unwrap_err();
            assert_eq!(status.code, Code::DEADLINE_EXCEEDED, "{status}");
        }
    }
}

#[test]
#[should_panic = "drives this session already"]
fn driving_one_of_them_again_from_within_is_refused() {
    let started = start(2, Duration::ZERO, echo);
    let mut sessions = together(&started);
    let second = &started[1].0;
    sessions.block_on(async { block_on(second, async {}) });
}

//! All interleavings of the threads that drive one connection: exactly one drives, no wake-up is
//! lost, and the end reaches every thread. Loom reports a deadlock for a thread that waits for
//! ever.
//!
//! The loops are those of [`crate::drive`], without the spinning, for one connection. Its work are
//! answers that have come: the driving thread takes them, and wakes the threads that wait for them.

use super::{Background, Drivers, Event, ThreadWaker};
use crate::nudge::Nudge;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, current, park};
use loom::thread;
use std::sync::Arc;
use std::task::Wake;

/// A wake-up is lost if a thread is preempted between its last look and its wait, and the thread
/// that should wake it between its change and its look: two preemptions. Two threads get one more;
/// three threads get one, to stay below 20 s.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A connection, and its driver's data.
struct Connection {
    drivers: Drivers,
    nudge: Arc<Nudge>,
    /// Only the driving thread locks it.
    driver: Mutex<Driver>,
    /// The answers that have come: the threads that wait for them.
    answers: Mutex<Vec<Arc<ThreadWaker>>>,
}

#[derive(Default)]
struct Driver {
    handled: usize,
    is_cleared: bool,
}

/// The right to drive.
struct Driving<'c> {
    connection: &'c Connection,
    driver: Option<MutexGuard<'c, Driver>>,
}

impl Connection {
    fn new() -> Arc<Connection> {
        Arc::new(Connection {
            drivers: Drivers::new(),
            nudge: Nudge::new().expect("a model needs no descriptors"),
            driver: Mutex::new(Driver::default()),
            answers: Mutex::new(Vec::new()),
        })
    }

    fn driving(&self) -> Driving<'_> {
        let driver = self.driver.try_lock();
        Driving {
            connection: self,
            driver: Some(driver.expect("one thread drives at a time")),
        }
    }

    fn try_begin(&self) -> Option<Driving<'_>> {
        self.drivers.try_take().then(|| self.driving())
    }

    fn is_over(&self) -> bool {
        self.drivers.state().is_over()
    }

    fn clear_if_over(&self) {
        if self.is_over() && self.drivers.try_take() {
            let driver = self.driver.try_lock();
            driver.expect("one thread drives at a time").is_cleared = true;
            self.drivers.leave();
        }
    }

    fn end(&self) {
        self.drivers.end();
        self.nudge.wake();
        self.clear_if_over();
    }

    /// What [`crate::drive`] does in the background thread.
    fn drive_in_background(&self) {
        let interrupted = || self.drivers.state().interrupts_background();
        while self.drivers.take_in_background() {
            let mut driving = self.driving();
            while !interrupted() {
                driving.turn(&interrupted);
            }
        }
    }

    fn answers(&self) -> MutexGuard<'_, Vec<Arc<ThreadWaker>>> {
        self.answers.lock().expect("no model panics")
    }

    /// The daemon's answer for a thread comes.
    fn answer(&self, woken: &Arc<ThreadWaker>) {
        self.answers().push(Arc::clone(woken));
        self.nudge.wake();
    }

    /// Waits for an answer outside of `block_on`.
    fn wait(&self) {
        let woken = Arc::new(ThreadWaker {
            woken: AtomicBool::new(false),
            thread: current(),
            nudge: None,
        });
        self.answer(&woken);
        while !woken.woken.load(Ordering::SeqCst) {
            park();
        }
    }

    /// What [`crate::drive`] does in `block_on`, until the answer has come.
    fn block_on(&self) {
        let woken = Arc::new(ThreadWaker {
            woken: AtomicBool::new(false),
            thread: current(),
            nudge: Some(Arc::clone(&self.nudge)),
        });
        self.drivers.enter(&woken);
        self.nudge.wake();
        self.answer(&woken);
        let mut driving = None;
        while !woken.woken.load(Ordering::SeqCst) {
            if driving.is_none() {
                driving = self.try_begin();
            }
            match &mut driving {
                Some(driving) => driving.turn(&|| woken.woken.load(Ordering::SeqCst)),
                None if self.drivers.state().driver.is_none() => {}
                None => park(),
            }
        }
        drop(driving);
        self.drivers.exit(&woken);
    }
}

impl Driving<'_> {
    /// Handles the answers, or sleeps until there are some.
    fn turn(&mut self, interrupted: &impl Fn() -> bool) {
        let connection = self.connection;
        let driver = self.driver.as_mut().expect("it is taken in drop only");
        let came = std::mem::take(&mut *connection.answers());
        driver.handled += came.len();
        if !came.is_empty() {
            return came.iter().for_each(Wake::wake_by_ref);
        }
        let has_work = || !connection.answers().is_empty() || interrupted();
        if has_work() {
            return;
        }
        connection.nudge.begin_sleep();
        if !has_work() && !connection.is_over() {
            connection.nudge.wait();
        }
        connection.nudge.end_sleep();
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.driver = None;
        self.connection.drivers.leave();
        self.connection.clear_if_over();
    }
}

fn spawn(
    connection: &Arc<Connection>,
    run: impl FnOnce(&Connection) + 'static,
) -> thread::JoinHandle<()> {
    let connection = Arc::clone(connection);
    thread::spawn(move || run(&connection))
}

/// Two threads are in `block_on`. Either drives for both; if it leaves first, the other one takes
/// over.
#[test]
fn loom_a_thread_takes_over_when_another_leaves() {
    check(3, || {
        let connection = Connection::new();
        let other = spawn(&connection, Connection::block_on);
        connection.block_on();
        other.join().expect("the thread ends");
        let state = connection.drivers.state();
        assert!(state.driver.is_none() && !state.is_wanted);
        let driver = connection.driver.try_lock();
        assert_eq!(driver.expect("no thread drives any more").handled, 2);
    });
}

/// The background thread leaves to a thread in `block_on`, drives again afterwards, and ends with
/// the connection.
#[test]
fn loom_the_background_thread_leaves_and_comes_back() {
    check(3, || {
        let connection = Connection::new();
        assert!(connection.drivers.must_start_background());
        assert!(!connection.drivers.must_start_background());
        let background = spawn(&connection, Connection::drive_in_background);
        connection.block_on();
        connection.wait();
        connection.end();
        background.join().expect("the thread ends");
        let driver = connection.driver.try_lock();
        let driver = driver.expect("no thread drives any more");
        assert!(driver.is_cleared && driver.handled == 2);
    });
}

/// The background thread and two threads in `block_on`.
#[test]
fn loom_three_threads_hand_over() {
    check(1, || {
        let connection = Connection::new();
        assert!(connection.drivers.must_start_background());
        let background = spawn(&connection, Connection::drive_in_background);
        let other = spawn(&connection, Connection::block_on);
        connection.block_on();
        connection.wait();
        other.join().expect("the thread ends");
        connection.end();
        background.join().expect("the thread ends");
    });
}

/// The background thread waits for a thread that drives without precedence, such as an event loop,
/// and drives after it.
#[test]
fn loom_the_background_thread_drives_after_an_event_loop() {
    check(3, || {
        let connection = Connection::new();
        let driving = connection.try_begin();
        // The thread that drives needs no other.
        assert!(driving.is_some() && !connection.drivers.must_start_background());
        let background = spawn(&connection, |connection| {
            assert!(connection.drivers.must_start_background());
            connection.drive_in_background();
        });
        drop(driving);
        connection.wait();
        connection.end();
        background.join().expect("the thread ends");
    });
}

/// The end reaches the background thread although another one stays in `block_on`.
#[test]
fn loom_the_end_reaches_a_background_thread_that_waits() {
    check(3, || {
        let connection = Connection::new();
        assert!(connection.drivers.must_start_background());
        let background = spawn(&connection, Connection::drive_in_background);
        let stays = Arc::new(ThreadWaker {
            woken: AtomicBool::new(false),
            thread: current(),
            nudge: Some(Arc::clone(&connection.nudge)),
        });
        connection.drivers.enter(&stays);
        connection.nudge.wake();
        connection.end();
        background.join().expect("the thread ends");
    });
}

/// A thread parks in `block_on` while the background thread still drives. The background thread's
/// leaving wakes it: nothing else does, for its work comes only afterwards.
#[test]
fn loom_a_thread_that_wants_to_drive_gets_to() {
    check(2, || {
        let connection = Connection::new();
        assert!(connection.drivers.must_start_background());
        let background = spawn(&connection, Connection::drive_in_background);
        let woken = Arc::new(ThreadWaker {
            woken: AtomicBool::new(false),
            thread: current(),
            nudge: Some(Arc::clone(&connection.nudge)),
        });
        connection.drivers.enter(&woken);
        connection.nudge.wake();
        let driving = loop {
            if let Some(driving) = connection.try_begin() {
                break driving;
            }
            if connection.drivers.state().driver.is_some() {
                park();
            }
        };
        drop(driving);
        connection.drivers.exit(&woken);
        connection.end();
        background.join().expect("the thread ends");
    });
}

/// The end comes while a thread begins to drive, drives, or stops. The driver is cleared by either.
#[test]
fn loom_the_end_clears_the_driver_once_nobody_drives() {
    check(3, || {
        let connection = Connection::new();
        let driving = spawn(&connection, |connection| {
            if let Some(mut driving) = connection.try_begin() {
                driving.turn(&|| connection.is_over());
            }
        });
        connection.end();
        driving.join().expect("the thread ends");
        let driver = connection.driver.try_lock();
        assert!(driver.expect("no thread drives any more").is_cleared);
        assert!(!connection.drivers.must_start_background());
    });
}

/// Of two threads that wait for the daemon, one starts the background thread. A session that is
/// driven by hand meanwhile stays without one, also if its connection is installed just then.
#[test]
fn loom_one_background_thread_is_started_at_most() {
    check(3, || {
        let connection = Connection::new();
        let started = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&started);
        let start = move |connection: &Connection| {
            if connection.drivers.must_start_background() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        };
        let other = spawn(&connection, start.clone());
        start(&connection);
        other.join().expect("the thread ends");
        assert_eq!(started.load(Ordering::SeqCst), 1);
    });
    check(3, || {
        let connection = Connection::new();
        let apply = |connection: &Connection, event| connection.drivers.apply(event);
        apply(&connection, Event::Reopen).expect("the connection is new");
        let by_hand = spawn(&connection, move |connection| {
            apply(connection, Event::DriveByHand).expect("it is never refused");
        });
        apply(&connection, Event::Install).expect("it was being prepared");
        by_hand.join().expect("the thread ends");
        assert_eq!(connection.drivers.state().background, Background::ByHand);
        assert!(!connection.drivers.must_start_background());
    });
}

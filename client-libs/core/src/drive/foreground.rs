//! Driving until a future is ready.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::bell::Bell;
use super::driven::Driven;
use super::driving::{Driving, turn};
use crate::connection::Inner;
use crate::drivers::ThreadWaker;
use crate::sync::{AtomicBool, Ordering, current};

/// Drives a connection that no other thread knows of.
pub(crate) fn drive_alone<F: Future>(driven: &Arc<Driven>, future: F) -> F::Output {
    let (these, mut future) = ([Arc::clone(driven)], pin!(future));
    loop {
        if let Some(output) = drive_these(&these, None, &|| false, future.as_mut()) {
            return output;
        }
    }
}

/// Drives these sessions until the future is ready. `None`: a session has another connection now.
pub(crate) fn drive_these<F: Future>(
    these: &[Arc<Driven>],
    bell: Option<&Bell>,
    is_reopened: &impl Fn() -> bool,
    mut future: Pin<&mut F>,
) -> Option<F::Output> {
    assert!(
        !these.iter().any(|one| one.inner.is_driven_here()),
        "block_on was called on a thread that drives this session already"
    );
    let nudge = bell.map(|bell| &bell.nudge);
    let nudge = nudge.or(these.first().map(|one| &one.inner.nudge));
    let woken = Arc::new(ThreadWaker {
        woken: AtomicBool::new(true),
        thread: current(),
        nudge: nudge.map(Arc::clone),
    });
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let stays = these.iter().map(|one| Stay::new(&one.inner, &woken));
    let _stays: Vec<_> = stays.collect();
    let mut missing: Vec<_> = these.iter().collect();
    let mut driven = Vec::with_capacity(these.len());
    loop {
        missing.retain(|one| match Driving::try_begin(one) {
            Some(mut driving) => {
                if bell.is_some() {
                    // Earlier events of its socket aren't reported again.
                    driving.parts().1.suspect_control();
                }
                driven.push(driving);
                false
            }
            None => true,
        });
        if woken.woken.swap(false, Ordering::SeqCst)
            && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
        {
            return Some(output);
        }
        if is_reopened() {
            return None;
        }
        turn(&mut driven, bell, || {
            woken.woken.load(Ordering::SeqCst)
                || is_reopened()
                || missing
                    .iter()
                    .any(|one| one.inner.drivers.state().driver.is_none())
        });
    }
}

/// A thread's stay in [`block_on`](crate::block_on).
struct Stay<'i> {
    inner: &'i Inner,
    thread: Arc<ThreadWaker>,
}

impl<'i> Stay<'i> {
    fn new(inner: &'i Inner, thread: &Arc<ThreadWaker>) -> Stay<'i> {
        inner.drivers.enter(thread);
        inner.nudge.wake();
        Stay {
            inner,
            thread: Arc::clone(thread),
        }
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.inner.drivers.exit(&self.thread);
    }
}

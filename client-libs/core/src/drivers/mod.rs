//! The hand-over of a connection between the threads that may drive it.
//!
//! One thread at a time has the right to drive: the word names it ([`State`]). A thread in
//! [`block_on`](crate::block_on) has precedence over the background thread. `model.rs` checks all
//! interleavings:
//!
//! - At most one thread drives.
//! - When the driving thread stops, a thread that wants to drive learns of it.
//! - The end reaches the thread that drives, or any thread that drives afterwards.
//!
//! Absent: the driver's data ([`crate::drive`] has it), and sleep ([`crate::nudge`]).

mod state;
mod thread;

#[cfg(all(test, loom))]
mod model;

use std::sync::{Arc, PoisonError};

pub(crate) use state::{Background, Event, Phase, Refused, State, ThreadId};
pub(crate) use thread::ThreadWaker;

use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// The threads of a connection that drive it or want to.
pub(crate) struct Drivers {
    /// The [`State`].
    word: AtomicUsize,
    /// The threads in [`block_on`](crate::block_on). The word says whether there are any; it
    /// changes under this lock then.
    waiting: Mutex<Vec<Arc<ThreadWaker>>>,
    /// The background thread may drive now, or the connection has ended.
    changed: Condvar,
}

impl Drivers {
    pub(crate) fn new() -> Drivers {
        Drivers {
            word: AtomicUsize::new(State::NEW.to_word()),
            waiting: Mutex::new(Vec::new()),
            changed: Condvar::new(),
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        State::from_word(self.word.load(Ordering::SeqCst))
    }

    /// Whether this thread drives.
    #[inline]
    pub(crate) fn is_driven_here(&self) -> bool {
        // This thread sees its own changes, and no other thread writes its name.
        let state = State::from_word(self.word.load(Ordering::Relaxed));
        state.driver == Some(ThreadId::here())
    }

    /// Changes the state in one step. Returns the new one.
    #[inline]
    pub(crate) fn apply(&self, event: Event) -> Result<State, Refused> {
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            let next = State::from_word(word).next(event)?;
            let (ok, err) = (Ordering::SeqCst, Ordering::SeqCst);
            match self.word.compare_exchange(word, next.to_word(), ok, err) {
                Ok(_) => return Ok(next),
                Err(changed) => word = changed,
            }
        }
    }

    /// Takes the right to drive, unless a thread has it.
    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        self.apply(Event::Take(ThreadId::here())).is_ok()
    }

    /// Takes the right to drive once no thread has it and none in [`block_on`](crate::block_on)
    /// wants it. Returns false if the connection has ended.
    pub(crate) fn take_in_background(&self) -> bool {
        let mut waiting = self.lock();
        loop {
            let state = self.state();
            if state.is_over() {
                return false;
            }
            if !state.is_wanted && self.try_take() {
                return true;
            }
            let changed = self.changed.wait(waiting);
            waiting = changed.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives the right to drive up, and wakes the threads that want it.
    pub(crate) fn leave(&self) {
        let left = self.apply(Event::Leave(ThreadId::here()));
        let state = left.expect("only the thread that drives stops driving");
        self.summon();
        if !state.is_wanted {
            self.notify_background(state);
        }
    }

    /// Adds a thread that wants to drive. The background thread leaves when it is woken.
    pub(crate) fn enter(&self, thread: &Arc<ThreadWaker>) {
        let mut waiting = self.lock();
        if waiting.is_empty() {
            // It is never refused.
            let _wanted = self.apply(Event::Want);
        }
        waiting.push(Arc::clone(thread));
    }

    /// Removes a thread that wanted to drive.
    pub(crate) fn exit(&self, thread: &Arc<ThreadWaker>) {
        let mut waiting = self.lock();
        let mut known = waiting.iter();
        if let Some(at) = known.position(|known| Arc::ptr_eq(known, thread)) {
            waiting.swap_remove(at);
        }
        if !waiting.is_empty() {
            return;
        }
        let state = self.apply(Event::Unwant);
        drop(waiting);
        if let Ok(state) = state {
            self.notify_background(state);
        }
    }

    /// Wakes the threads in [`block_on`](crate::block_on), so that they check their state.
    pub(crate) fn summon(&self) {
        for thread in &*self.lock() {
            thread.summon();
        }
    }

    /// Marks the connection as ended. The caller wakes the thread that drives.
    pub(crate) fn end(&self) {
        let ended = self.apply(Event::End);
        // Taking the lock orders the change after the background thread's look at the state.
        drop(self.lock());
        if let Ok(state) = ended {
            self.notify_background(state);
        }
    }

    /// Whether this thread has to start the background thread, because something waits for the
    /// daemon.
    pub(crate) fn must_start_background(&self) -> bool {
        let state = State::from_word(self.word.load(Ordering::Relaxed));
        state.background == Background::None
            && state.driver != Some(ThreadId::here())
            && self.apply(Event::Start).is_ok()
    }

    /// Wakes the background thread, if there is one. The state changed under the lock, or the lock
    /// was taken since.
    fn notify_background(&self, state: State) {
        if state.background == Background::Started {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<ThreadWaker>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

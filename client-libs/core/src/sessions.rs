//! Drives one session, or several, on the calling thread.

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use crate::Status;
use crate::drive::{Bell, Driven, drive_these};
use crate::session::Session;

/// Drives the session on the calling thread until `future` is ready, with the fewest wake-ups and
/// context switches.
///
/// The whole session runs here meanwhile, including handlers. They and `future` mustn't block.
/// Their submissions are announced to the daemon when they wait.
///
/// # Panics
/// When called from within itself for the same session, because it would wait for ever.
pub fn block_on<F: Future>(session: &Session, future: F) -> F::Output {
    drive(std::slice::from_ref(session), &mut None, future)
}

/// Several sessions, of one or more daemons, that one thread drives together. With a thread for
/// each session, each session's replies would wake another thread.
#[derive(Debug)]
pub struct Sessions {
    sessions: Vec<Session>,
    /// For all of them.
    bell: Option<Bell>,
}

impl Sessions {
    /// Drives these sessions. A second clone of a session changes nothing.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the process runs out of descriptors (this takes two), or the user runs
    /// out of watches (`fs.epoll.max_user_watches`; each session takes three).
    pub fn new(sessions: impl IntoIterator<Item = Session>) -> Result<Sessions, Status> {
        let mut known = HashSet::new();
        let mut sessions: Vec<_> = sessions.into_iter().collect();
        sessions.retain(|session| known.insert(session.inner().id));
        let watching = Bell::new().and_then(|bell| {
            let mut inners = sessions.iter().map(Session::inner);
            inners.try_for_each(|inner| bell.watch(&inner))?;
            Ok(bell)
        });
        match watching {
            Ok(bell) => Ok(Sessions {
                sessions,
                bell: Some(bell),
            }),
            Err(errno) => Err(Status::resource_exhausted(format!(
                "can't wait for {} sessions: {errno}",
                sessions.len()
            ))),
        }
    }

    /// Drives all of them on the calling thread until `future` is ready, as [`block_on`] does with
    /// one. Before it sleeps it spins for the time in the first session's options. If another
    /// thread is in [`block_on`] with a session, that thread drives the session until it leaves.
    ///
    /// # Panics
    /// When called from within itself, or from within [`block_on`], for one of the same sessions.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        drive(&self.sessions, &mut self.bell, future)
    }
}

/// Drives the sessions that no other thread drives. The bell is for several sessions.
fn drive<F: Future>(sessions: &[Session], bell: &mut Option<Bell>, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut before: Vec<u64> = Vec::new();
    loop {
        let these: Vec<_> = sessions.iter().map(Session::driven).collect();
        if let Some(bell) = bell {
            // Watches the new connections of sessions that have reconnected. If one can't be
            // watched, its events are noticed at the next event of any session.
            let is_new = |one: &&Arc<Driven>| !before.is_empty() && !before.contains(&one.inner.id);
            for one in these.iter().filter(is_new) {
                let _deaf = bell.watch(&one.inner);
            }
        }
        before = these.iter().map(|one| one.inner.id).collect();
        let is_reopened = || {
            let pairs = sessions.iter().zip(&these);
            pairs
                .into_iter()
                .any(|(session, one)| !session.handle.is_current(one.inner.id))
        };
        if let Some(output) = drive_these(&these, bell.as_ref(), &is_reopened, future.as_mut()) {
            return output;
        }
    }
}

//! Drives one session, or several, on the calling thread.

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use crate::Status;
use crate::drive::{Bell, Driven, drive_these};
use crate::session::Session;

/// Drives the session on the calling thread until `future` is ready: the fewest wake-ups and context switches.
///
/// Everything of the session runs here meanwhile, handlers included; they and `future` mustn't block. What they submit is
/// announced to the daemon when they wait.
///
/// # Panics
/// When called from within itself for the same session, which could only wait for ever.
pub fn block_on<F: Future>(session: &Session, future: F) -> F::Output {
    drive(std::slice::from_ref(session), &mut None, future)
}

/// Several sessions, of one daemon or of several, that one thread drives together. A thread for each of them would be woken for
/// each one's replies.
#[derive(Debug)]
pub struct Sessions {
    sessions: Vec<Session>,
    /// For all of them.
    bell: Option<Bell>,
}

impl Sessions {
    /// These sessions; a second clone of one changes nothing.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the process is short of descriptors, of which this takes two, or the user of watches
    /// (`fs.epoll.max_user_watches`), of which each session takes three.
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

    /// Drives all of them on the calling thread until `future` is ready, as [`block_on`] does it with one. It spins as long as the
    /// first one's options say before it sleeps. A session that another thread is in [`block_on`] with is driven there until that
    /// thread leaves.
    ///
    /// # Panics
    /// When called from within itself, or from within [`block_on`], for one of the same sessions.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        drive(&self.sessions, &mut self.bell, future)
    }
}

/// Drives those that nobody else drives. The bell is for several.
fn drive<F: Future>(sessions: &[Session], bell: &mut Option<Bell>, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut before: Vec<u64> = Vec::new();
    loop {
        let these: Vec<_> = sessions.iter().map(Session::driven).collect();
        if let Some(bell) = bell {
            // Of those that have opened themselves anew. What comes to one that can't be watched is noticed with whatever comes next.
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

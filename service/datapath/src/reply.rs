//! How the datapath answers the control plane and tells it of events, without knowing what carries
//! either: neither ever waits.

use std::fmt;

/// Takes the answer to a command. One that is dropped unsent says that the runtime has ended.
pub struct Reply<T>(Box<dyn FnOnce(T) -> Result<(), T> + Send>);

impl<T> Reply<T> {
    /// `send` must not wait, and gives the answer back if nobody waits for it any more.
    pub fn new(send: impl FnOnce(T) -> Result<(), T> + Send + 'static) -> Self {
        Self(Box::new(send))
    }

    /// Answers.
    ///
    /// # Errors
    /// Nobody waits for the answer any more: here it is.
    pub(crate) fn send(self, answer: T) -> Result<(), T> {
        (self.0)(answer)
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

/// Takes the events of one runtime.
pub struct Events<E>(Box<dyn Fn(E) + Send>);

impl<E> Events<E> {
    /// `tell` must not wait. What nobody hears any more is lost.
    pub fn new(tell: impl Fn(E) + Send + 'static) -> Self {
        Self(Box::new(tell))
    }

    /// Tells of an event.
    pub(crate) fn tell(&self, event: E) {
        (self.0)(event);
    }
}

//! The datapath's answers to the control plane and its events. The datapath doesn't know the
//! channel that carries them, and neither ever waits.

use std::fmt;

/// Takes the answer to a command. If it is dropped unsent, the runtime has ended.
pub struct Reply<T>(Box<dyn FnOnce(T) -> Result<(), T> + Send>);

impl<T> Reply<T> {
    /// `send` must not wait. It gives the answer back if the receiver has gone.
    pub fn new(send: impl FnOnce(T) -> Result<(), T> + Send + 'static) -> Self {
        Self(Box::new(send))
    }

    /// Sends the answer.
    ///
    /// # Errors
    /// The receiver has gone: the answer is given back.
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
    /// `tell` must not wait. If the receiver has gone, events are lost; if it is behind, those that
    /// [may be](crate::Event::may_be_lost).
    pub fn new(tell: impl Fn(E) + Send + 'static) -> Self {
        Self(Box::new(tell))
    }

    /// Sends an event.
    pub(crate) fn tell(&self, event: E) {
        (self.0)(event);
    }
}

//! The control plane, as a runtime knows it: commands come, and events go.
//!
//! Invariants: commands are taken in the order in which they were sent. Neither direction waits.

use std::sync::mpsc;

use crate::command::{Command, Event};
use crate::reply::Events;

/// The two directions.
pub(crate) struct ControlPlane {
    commands: mpsc::Receiver<Command>,
    events: Events<Event>,
}

impl ControlPlane {
    /// The control plane, and the sender of its commands.
    pub(super) fn new(events: Events<Event>) -> (ControlPlane, mpsc::Sender<Command>) {
        let (sender, commands) = mpsc::channel();
        (ControlPlane { commands, events }, sender)
    }

    /// The next command, if there is one.
    pub(super) fn next_command(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }

    pub(crate) fn tell(&self, event: Event) {
        self.events.tell(event);
    }
}

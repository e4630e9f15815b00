//! The control plane, as a runtime knows it: commands come, and events go.
//!
//! Invariants: commands are taken in the order in which they were sent. Neither direction waits,
//! and both are bounded: commands here, events where [`Events`] leads.

use crate::command::{Command, Event};
use crate::limits::COMMANDS_QUEUED;
use crate::queue::{Receiver, Sender, queue};
use crate::reply::Events;

/// The two directions.
pub(crate) struct ControlPlane {
    commands: Receiver<Command>,
    events: Events<Event>,
}

impl ControlPlane {
    /// The control plane, and the sender of its commands.
    pub(super) fn new(events: Events<Event>) -> (ControlPlane, Sender<Command>) {
        // Beyond the limit only commands that nobody repeats are taken; `Command::is_owed` says
        // what bounds each of them.
        let (sender, commands) = queue(COMMANDS_QUEUED);
        (ControlPlane { commands, events }, sender)
    }

    /// The next command, if there is one.
    pub(super) fn next_command(&self) -> Option<Command> {
        self.commands.try_recv()
    }

    pub(crate) fn tell(&self, event: Event) {
        self.events.tell(event);
    }
}

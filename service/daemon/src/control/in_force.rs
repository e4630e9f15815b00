//! The settings in force.
//!
//! Invariant: no borrow outlives a method, so none is held across a wait.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::Value;

use crate::config::Config;
use crate::settings::Settings;

/// The settings in force. They may change during any wait.
pub(super) struct InForce(RefCell<Settings>);

impl InForce {
    pub(super) fn new(settings: Settings) -> InForce {
        InForce(RefCell::new(settings))
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Rc<Config> {
        self.0.borrow().in_force()
    }

    /// A copy of the settings.
    pub(super) fn settings(&self) -> Settings {
        self.0.borrow().clone()
    }

    /// Puts other settings in force.
    pub(super) fn replace(&self, settings: Settings) {
        self.0.replace(settings);
    }

    /// All settings for operators.
    pub(super) fn report(&self) -> Value {
        self.0.borrow().report(|_| true)
    }
}

//! Which thread drives a session, and how that thread waits.
//!
//! ```text
//!         ┌──── turn: of each session ────┐
//!   ──▶  what there is to do (driver)
//!            ▲                        │ nothing came in any
//!            │ something came         ▼
//!            └── spin, yielding ──────┤ budget used up
//!            └── sleep on: wakes, control sockets, nudges, next deadline
//! ```
//!
//! One thread at a time has the right to drive ([`crate::drivers`]).
//! [`block_on`](crate::block_on) asks the background thread to leave and takes over. If several
//! threads are in `block_on`, one drives and the others wait for their futures' wake-ups. The
//! background thread is started when a future has to wait and no thread drives, unless the session
//! is [driven by hand](crate::Session::drive_by_hand). A thread may drive several sessions
//! ([`Sessions`](crate::Sessions)), or one session from an event loop of its own
//! ([`Pump`](crate::Pump)).
//!
//! Invariant: a wake-up for the driving thread (a woken future or task, a thread that wants to
//! drive, the end) is published before the sleeper's last look, or nudges the sleeper; see
//! [`crate::nudge`].

mod background;
mod bell;
mod driven;
mod driver;
mod driving;
mod foreground;
mod pending;

pub(crate) use background::starter;
pub(crate) use bell::{Bell, EVENTS, SOMETHING};
pub(crate) use driven::Driven;
pub(crate) use driver::Driver;
pub(crate) use driving::{Driving, time_to_sleep};
pub(crate) use foreground::{drive_alone, drive_these};

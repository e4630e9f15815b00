//! The state of a connection for the threads that may drive it, as one table in one word.
//!
//! ```text
//!   driver:      nobody ──take──▶ a thread ──leave──▶ nobody
//!
//!   background:  None ────────start──────▶ Started
//!                  ├──────drive by hand──▶ ByHand ◀──drive by hand──┐
//!                  └──reopen──▶ Reopening ──install──▶ None         │
//!                                   └───────────────────────────────┘
//!   phase:       Open ──drain──▶ Draining ──end──▶ Ended ◀──end── Open
//! ```
//!
//! The three parts are independent, but for two rules: nothing is started for a connection that has
//! ended, and a thread takes the right to drive only from nobody. A transition is one
//! compare-and-exchange of the word ([`super::Drivers`]), so all threads agree on the order.

use crate::sync::here;

/// The driver's name of a living thread: the address of a variable of that thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadId(usize);

impl ThreadId {
    /// This thread.
    #[inline]
    pub(crate) fn here() -> ThreadId {
        ThreadId(here())
    }
}

/// The thread that drives while no other does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Background {
    /// Not started yet.
    None,
    /// It runs until the connection ends.
    Started,
    /// None is started: the program drives.
    ByHand,
    /// None is started yet: the thread that opened the connection drives until it installs the
    /// connection.
    Reopening,
}

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It does.
    Open,
    /// A task waits until all incoming calls are answered.
    Draining,
    /// It has ended, and never goes on.
    Ended,
}

/// The state of a connection for the threads that may drive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The thread that drives.
    pub(crate) driver: Option<ThreadId>,
    /// A thread is in [`block_on`](crate::block_on). The background thread leaves and stays away.
    pub(crate) is_wanted: bool,
    pub(crate) background: Background,
    pub(crate) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A thread begins to drive.
    Take(ThreadId),
    /// The thread that drives stops.
    Leave(ThreadId),
    /// The first thread enters [`block_on`](crate::block_on).
    Want,
    /// The last thread leaves it.
    Unwant,
    /// Something waits for the daemon: the background thread has to be started.
    Start,
    /// The program drives from now on.
    DriveByHand,
    /// The connection replaces another one, and is prepared.
    Reopen,
    /// The connection is the session's current one.
    Install,
    /// A task waits until all incoming calls are answered.
    Drain,
    /// The connection ends.
    End,
}

/// The event is invalid in this state, or has no effect that its thread has to follow up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl State {
    /// A new connection.
    pub(crate) const NEW: State = State {
        driver: None,
        is_wanted: false,
        background: Background::None,
        phase: Phase::Open,
    };

    /// The state after `event`.
    #[inline]
    pub(crate) fn next(self, event: Event) -> Result<State, Refused> {
        use Background::{ByHand, None as NotStarted, Reopening, Started};
        use Phase::{Draining, Ended, Open};
        let mut next = self;
        match (event, self.driver, self.background, self.phase) {
            (Event::Take(thread), None, _, _) => next.driver = Some(thread),
            (Event::Leave(thread), Some(driver), _, _) if thread == driver => next.driver = None,
            (Event::Want, _, _, _) => next.is_wanted = true,
            (Event::Unwant, _, _, _) => next.is_wanted = false,
            (Event::Start, _, NotStarted, Open | Draining) => next.background = Started,
            (Event::DriveByHand, _, NotStarted | ByHand | Reopening, _) => {
                next.background = ByHand;
            }
            (Event::DriveByHand, _, Started, _) => {}
            (Event::Reopen, _, NotStarted, _) => next.background = Reopening,
            (Event::Install, _, Reopening, _) => next.background = NotStarted,
            // The program has asked for it meanwhile.
            (Event::Install, _, ByHand, _) => {}
            (Event::Drain, _, _, Open | Draining) => next.phase = Draining,
            (Event::Drain, _, _, Ended) => {}
            (Event::End, _, _, _) => next.phase = Ended,
            _ => return Err(Refused),
        }
        Ok(next)
    }

    #[inline]
    pub(crate) fn is_over(self) -> bool {
        self.phase == Phase::Ended
    }

    /// Whether the background thread has to stop driving.
    #[inline]
    pub(crate) fn interrupts_background(self) -> bool {
        self.is_wanted || self.is_over()
    }
}

/// The bits below a thread's address, which is a multiple of 32.
const BACKGROUND: usize = 0b00011;
const PHASE: usize = 0b01100;
const WANTED: usize = 0b10000;
const THREAD: usize = !0b11111;

impl State {
    #[inline]
    pub(super) const fn to_word(self) -> usize {
        let background = match self.background {
            Background::None => 0b00,
            Background::Started => 0b01,
            Background::ByHand => 0b10,
            Background::Reopening => 0b11,
        };
        let phase = match self.phase {
            Phase::Open => 0b0000,
            Phase::Draining => 0b0100,
            Phase::Ended => 0b1000,
        };
        let wanted = match self.is_wanted {
            true => WANTED,
            false => 0,
        };
        let driver = match self.driver {
            Some(ThreadId(address)) => address,
            None => 0,
        };
        background | phase | wanted | driver
    }

    #[inline]
    pub(super) const fn from_word(word: usize) -> State {
        State {
            driver: match word & THREAD {
                0 => None,
                address => Some(ThreadId(address)),
            },
            is_wanted: word & WANTED != 0,
            background: match word & BACKGROUND {
                0b00 => Background::None,
                0b01 => Background::Started,
                0b10 => Background::ByHand,
                _ => Background::Reopening,
            },
            phase: match word & PHASE {
                0b0000 => Phase::Open,
                0b0100 => Phase::Draining,
                _ => Phase::Ended,
            },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fmt::Write;

    const BACKGROUNDS: [Background; 4] = [
        Background::None,
        Background::Started,
        Background::ByHand,
        Background::Reopening,
    ];
    const PHASES: [Phase; 3] = [Phase::Open, Phase::Draining, Phase::Ended];
    const ONE: ThreadId = ThreadId(32);
    const OTHER: ThreadId = ThreadId(!31);

    fn states() -> impl Iterator<Item = State> {
        let drivers = [None, Some(ONE), Some(OTHER)];
        drivers.into_iter().flat_map(|driver| {
            [false, true].into_iter().flat_map(move |is_wanted| {
                BACKGROUNDS.into_iter().flat_map(move |background| {
                    PHASES.into_iter().map(move |phase| State {
                        driver,
                        is_wanted,
                        background,
                        phase,
                    })
                })
            })
        })
    }

    fn events() -> [Event; 11] {
        [
            Event::Take(ONE),
            Event::Leave(ONE),
            Event::Leave(OTHER),
            Event::Want,
            Event::Unwant,
            Event::Start,
            Event::DriveByHand,
            Event::Reopen,
            Event::Install,
            Event::Drain,
            Event::End,
        ]
    }

    /// The part of the state that decides about the event, and that the event changes.
    fn part(event: Event, state: State) -> String {
        match event {
            Event::Take(_) | Event::Leave(_) => match state.driver {
                None => "nobody".to_owned(),
                Some(ONE) => "one".to_owned(),
                Some(_) => "other".to_owned(),
            },
            Event::Want | Event::Unwant => match state.is_wanted {
                true => "wanted".to_owned(),
                false => "unwanted".to_owned(),
            },
            Event::Start | Event::DriveByHand | Event::Reopen | Event::Install => {
                format!("{:?} {:?}", state.background, state.phase)
            }
            Event::Drain | Event::End => format!("{:?}", state.phase),
        }
    }

    /// The state with this part of another one.
    fn with_part_of(event: Event, state: State, other: State) -> State {
        let mut merged = state;
        match event {
            Event::Take(_) | Event::Leave(_) => merged.driver = other.driver,
            Event::Want | Event::Unwant => merged.is_wanted = other.is_wanted,
            Event::Start | Event::DriveByHand | Event::Reopen | Event::Install => {
                merged.background = other.background;
            }
            Event::Drain | Event::End => merged.phase = other.phase,
        }
        merged
    }

    fn name(event: Event) -> &'static str {
        match event {
            Event::Take(_) => "Take(one)",
            Event::Leave(ONE) => "Leave(one)",
            Event::Leave(_) => "Leave(other)",
            Event::Want => "Want",
            Event::Unwant => "Unwant",
            Event::Start => "Start",
            Event::DriveByHand => "DriveByHand",
            Event::Reopen => "Reopen",
            Event::Install => "Install",
            Event::Drain => "Drain",
            Event::End => "End",
        }
    }

    /// Every (state, event) pair, compared with the reviewed table. The table has the part of the
    /// state that an event concerns; the others neither matter nor change.
    #[test]
    fn table() {
        let mut got = String::new();
        for event in events() {
            let mut rows: Vec<(String, String)> = Vec::new();
            for state in states() {
                let after = match state.next(event) {
                    Ok(next) => {
                        assert_eq!(with_part_of(event, state, next), next);
                        part(event, next)
                    }
                    Err(Refused) => "refused".to_owned(),
                };
                let before = part(event, state);
                match rows.iter().find(|(known, _)| *known == before) {
                    Some((_, known)) => assert_eq!(*known, after, "{state:?} {event:?}"),
                    None => rows.push((before, after)),
                }
            }
            for (before, after) in rows {
                writeln!(got, "{before} {} -> {after}", name(event))
                    .expect("a string takes every write");
            }
        }
        assert_eq!(got, include_str!("../../vectors/drivers.table"), "\n{got}");
    }

    /// The rules of the table's head, for every pair.
    #[test]
    fn rules() {
        for state in states() {
            for event in events() {
                let Ok(next) = state.next(event) else {
                    continue;
                };
                assert!(!state.is_over() || next.is_over(), "{state:?} {event:?}");
                if state.driver.is_some() && next.driver != state.driver {
                    assert_eq!(next.driver, None, "{state:?} {event:?}");
                }
                if state.background != Background::Started && next.background == Background::Started
                {
                    assert!(!state.is_over() && event == Event::Start);
                }
                if state.background == Background::Started {
                    assert_eq!(next.background, Background::Started);
                }
            }
        }
    }

    #[test]
    fn a_word_has_all_of_it() {
        for state in states() {
            assert_eq!(State::from_word(state.to_word()), state);
        }
        assert_eq!(State::NEW.to_word(), 0);
    }

    #[test]
    fn threads_that_are_alive_are_told_apart() {
        let (first, again) = (ThreadId::here(), ThreadId::here());
        let there = std::thread::spawn(ThreadId::here);
        let there = there.join().expect("the thread ends");
        assert_eq!(first, again);
        assert_ne!(first, there);
        for ThreadId(address) in [first, there] {
            assert!(address != 0 && address & !THREAD == 0);
        }
    }
}

//! The pace of wrong tokens, per user of this host or network.
//!
//! From one origin, [`GUESSES_AT_ONCE`] wrong tokens may come at once, and one more per
//! [`GUESS_PAUSE`]; then answers are slow. With the limit of connections, that bounds the rate of
//! guesses. A burst begins when answers get slow, and ends when the origin has its allowance back.
//! The time is an argument.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use tollgate_admin::server::Origin;

use crate::limits::{GUESS_PAUSE, GUESSES_AT_ONCE, MAX_GUESSERS};

/// How a wrong token is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// At once.
    Free,
    /// After a pause.
    Slow {
        /// A burst begins with it.
        is_first: bool,
    },
}

/// Origins of wrong tokens that came recently.
#[derive(Default)]
pub(super) struct Guesses {
    origins: RefCell<HashMap<Origin, Guesser>>,
}

struct Guesser {
    /// When the allowance is complete again (the theoretical arrival time of the generic cell rate
    /// algorithm).
    complete: Instant,
    is_in_burst: bool,
}

impl Guesses {
    /// Notes a wrong token.
    pub(super) fn wrong(&self, now: Instant, origin: Origin) -> Pace {
        let mut origins = self.origins.borrow_mut();
        if !origins.contains_key(&origin) && origins.len() >= MAX_GUESSERS {
            origins.retain(|_, its| now < its.complete);
            if origins.len() >= MAX_GUESSERS {
                return Pace::Slow { is_first: false };
            }
        }
        let its = origins.entry(origin).or_insert(Guesser {
            complete: now,
            is_in_burst: false,
        });
        if its.complete <= now {
            its.complete = now;
            its.is_in_burst = false;
        }
        let complete = its.complete + GUESS_PAUSE;
        if complete <= now + GUESS_PAUSE * GUESSES_AT_ONCE {
            its.complete = complete;
            return Pace::Free;
        }
        let is_first = !its.is_in_burst;
        its.is_in_burst = true;
        Pace::Slow { is_first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVEN: Origin = Origin::User(7);
    const SLOW: Pace = Pace::Slow { is_first: false };

    #[test]
    fn a_user_has_some_wrong_tokens_and_then_one_per_pause() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        for _ in 0..GUESSES_AT_ONCE {
            assert_eq!(guesses.wrong(start, SEVEN), Pace::Free);
        }
        assert_eq!(guesses.wrong(start, SEVEN), Pace::Slow { is_first: true });
        for _ in 0..100 {
            assert_eq!(guesses.wrong(start, SEVEN), SLOW);
        }
        assert_eq!(
            guesses.wrong(start, Origin::User(8)),
            Pace::Free,
            "another user"
        );
        let later = start + GUESS_PAUSE;
        assert_eq!(guesses.wrong(later, SEVEN), Pace::Free);
        assert_eq!(guesses.wrong(later, SEVEN), SLOW, "the same burst");
        let rested = later + GUESS_PAUSE * GUESSES_AT_ONCE;
        for _ in 0..GUESSES_AT_ONCE {
            assert_eq!(guesses.wrong(rested, SEVEN), Pace::Free);
        }
        assert_eq!(guesses.wrong(rested, SEVEN), Pace::Slow { is_first: true });
    }

    #[test]
    fn so_many_users_are_remembered_and_more_are_slow() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        for user in 0..MAX_GUESSERS as u32 {
            assert_eq!(guesses.wrong(start, Origin::User(user)), Pace::Free);
        }
        let another = Origin::User(MAX_GUESSERS as u32);
        assert_eq!(guesses.wrong(start, another), SLOW);
        let later = start + GUESS_PAUSE;
        assert_eq!(guesses.wrong(later, another), Pace::Free);
    }
}

//! The pace of wrong tokens, per user.
//!
//! A user may send [`GUESSES_AT_ONCE`] wrong tokens at once, and one more per [`GUESS_PAUSE`]; then
//! answers are slow. With the limit of connections, that bounds the rate of guesses. A burst begins
//! when answers get slow, and ends when the user has its allowance back. The time is an argument.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

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

/// Users that have sent wrong tokens recently.
#[derive(Default)]
pub(super) struct Guesses {
    users: RefCell<HashMap<u32, User>>,
}

struct User {
    /// When the allowance is complete again (the theoretical arrival time of the generic cell rate
    /// algorithm).
    complete: Instant,
    is_in_burst: bool,
}

impl Guesses {
    /// Notes a wrong token of a user.
    pub(super) fn wrong(&self, now: Instant, user: u32) -> Pace {
        let mut users = self.users.borrow_mut();
        if !users.contains_key(&user) && users.len() >= MAX_GUESSERS {
            users.retain(|_, user| now < user.complete);
            if users.len() >= MAX_GUESSERS {
                return Pace::Slow { is_first: false };
            }
        }
        let user = users.entry(user).or_insert(User {
            complete: now,
            is_in_burst: false,
        });
        if user.complete <= now {
            user.complete = now;
            user.is_in_burst = false;
        }
        let complete = user.complete + GUESS_PAUSE;
        if complete <= now + GUESS_PAUSE * GUESSES_AT_ONCE {
            user.complete = complete;
            return Pace::Free;
        }
        let is_first = !user.is_in_burst;
        user.is_in_burst = true;
        Pace::Slow { is_first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Pace = Pace::Slow { is_first: false };

    #[test]
    fn a_user_has_some_wrong_tokens_and_then_one_per_pause() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        for _ in 0..GUESSES_AT_ONCE {
            assert_eq!(guesses.wrong(start, 7), Pace::Free);
        }
        assert_eq!(guesses.wrong(start, 7), Pace::Slow { is_first: true });
        for _ in 0..100 {
            assert_eq!(guesses.wrong(start, 7), SLOW);
        }
        assert_eq!(guesses.wrong(start, 8), Pace::Free, "another user");
        let later = start + GUESS_PAUSE;
        assert_eq!(guesses.wrong(later, 7), Pace::Free);
        assert_eq!(guesses.wrong(later, 7), SLOW, "the same burst");
        let rested = later + GUESS_PAUSE * GUESSES_AT_ONCE;
        for _ in 0..GUESSES_AT_ONCE {
            assert_eq!(guesses.wrong(rested, 7), Pace::Free);
        }
        assert_eq!(guesses.wrong(rested, 7), Pace::Slow { is_first: true });
    }

    #[test]
    fn so_many_users_are_remembered_and_more_are_slow() {
        let (guesses, start) = (Guesses::default(), Instant::now());
        for user in 0..MAX_GUESSERS as u32 {
            assert_eq!(guesses.wrong(start, user), Pace::Free);
        }
        let another = MAX_GUESSERS as u32;
        assert_eq!(guesses.wrong(start, another), SLOW);
        let later = start + GUESS_PAUSE;
        assert_eq!(guesses.wrong(later, another), Pace::Free);
    }
}

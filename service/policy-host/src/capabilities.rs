//! The capabilities of a policy besides reading its views and answering: the host functions and the
//! effects, in nine groups.
//!
//! A manifest declares them and an operator grants them. An instance exists only if all declared
//! groups are granted. A function of an undeclared group can't be imported.

use std::fmt;
use std::ops::BitOr;
use std::str::FromStr;

/// A set of capabilities.
///
/// Log and metrics are in every set: they are bounded, and give the policy no new information.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capabilities(u16);

impl Capabilities {
    /// `log`: lines of text for the operator.
    pub const LOG: Capabilities = Capabilities(1);
    /// `counter`, `gauge`, `histogram`.
    pub const METRICS: Capabilities = Capabilities(2);
    /// `state_get`, `state_set`, `state_replace`, `state_delete`, `state_add`: the shared state.
    pub const STATE: Capabilities = Capabilities(4);
    /// `now_ms`, `monotonic_us`. Must be granted by name: with a clock a policy can measure the
    /// activity of others.
    pub const CLOCK: Capabilities = Capabilities(8);
    /// `random`. Must be granted by name: with it a policy's verdicts aren't reproducible.
    pub const RANDOM: Capabilities = Capabilities(16);
    /// Changing the fields and the metadata that the manifest lists.
    pub const CHANGE: Capabilities = Capabilities(32);
    /// Delaying calls. Must be granted by name: a waiting call holds memory of the daemon.
    pub const DELAY: Capabilities = Capabilities(64);
    /// Giving calls a priority. Must be granted by name: urgent calls delay other calls.
    pub const PRIORITY: Capabilities = Capabilities(128);
    /// Choosing a request's route. Must be granted by name: it decides which server answers.
    pub const ROUTE: Capabilities = Capabilities(256);
    /// Any of these makes an effect possible.
    pub const EFFECTS: Capabilities = Capabilities(32 | 64 | 128 | 256);
    /// The capabilities that every policy has.
    pub const ALWAYS: Capabilities = Capabilities(1 | 2);
    /// All of them.
    pub const ALL: Capabilities = Capabilities(511);

    const NAMES: [(&'static str, Capabilities); 9] = [
        ("log", Capabilities::LOG),
        ("metrics", Capabilities::METRICS),
        ("state", Capabilities::STATE),
        ("clock", Capabilities::CLOCK),
        ("random", Capabilities::RANDOM),
        ("change", Capabilities::CHANGE),
        ("delay", Capabilities::DELAY),
        ("priority", Capabilities::PRIORITY),
        ("route", Capabilities::ROUTE),
    ];

    /// True if all of `other` is in this set.
    pub const fn contains(self, other: Capabilities) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if anything is in both.
    pub const fn intersects(self, other: Capabilities) -> bool {
        self.0 & other.0 != 0
    }

    /// The members of this set that aren't in `other`.
    pub const fn without(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 & !other.0)
    }

    /// True if nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of the members, in a fixed order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let members = Capabilities::NAMES.into_iter();
        members
            .filter(move |(_, one)| self.contains(*one))
            .map(|(name, _)| name)
    }
}

impl Default for Capabilities {
    /// Log, metrics, state and change: their effects stay within the tenant's own calls.
    fn default() -> Capabilities {
        Capabilities::ALWAYS | Capabilities::STATE | Capabilities::CHANGE
    }
}

impl BitOr for Capabilities {
    type Output = Capabilities;

    fn bitor(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 | other.0)
    }
}

impl FromStr for Capabilities {
    type Err = UnknownCapability;

    /// The set of one, by its name.
    fn from_str(name: &str) -> Result<Capabilities, UnknownCapability> {
        let found = Capabilities::NAMES.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, one)| *one)
            .ok_or_else(|| UnknownCapability(crate::text::cut(name)))
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names().enumerate() {
            let space = if index > 0 { " " } else { "" };
            write!(f, "{space}{name}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capabilities({self})")
    }
}

/// A word that names no capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no capability {0:?}; there are log, metrics, state, clock, random, change, delay, priority and route"
)]
pub struct UnknownCapability(String);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_name_reads_as_itself() {
        for (name, one) in Capabilities::NAMES {
            assert_eq!(name.parse::<Capabilities>().unwrap(), one);
            assert_eq!(one.to_string(), name);
        }
        assert_eq!(
            Capabilities::ALL.to_string(),
            "log metrics state clock random change delay priority route"
        );
        assert_eq!(
            "Clock".parse::<Capabilities>().unwrap_err().to_string(),
            "there is no capability \"Clock\"; there are log, metrics, state, clock, random, change, delay, priority and route"
        );
    }

    #[test]
    fn what_reaches_beyond_the_call_is_granted_by_name_only() {
        let rest = Capabilities::ALL.without(Capabilities::default());
        let by_name = Capabilities::CLOCK
            | Capabilities::RANDOM
            | Capabilities::DELAY
            | Capabilities::PRIORITY
            | Capabilities::ROUTE;
        assert_eq!(rest, by_name);
        assert!(!rest.is_empty() && rest.without(Capabilities::ALL).is_empty());
    }
}

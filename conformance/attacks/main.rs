//! The attack suite: what the project defends, attacked end to end, each attack with an expectation and a number.
//!
//! One file per family; `README.md` beside this one is the table: attack, expectation, what was measured last. Real daemons, hostile
//! modules, and an honest tenant next door whose every answer is compared with its request.
//!
//! What is counted is asserted tightly: calls lost, doubled, judged twice, canaries found. What is timed is a ratio within one run
//! with a generous bound, since two noisy cores carry daemon, attackers and victim; its bar is printed, and asserted by the long form
//! (`TOLLGATE_ATTACKS=long`, see CONTRIBUTING.md). See [`measure`].
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod bombs;
mod bypass;
mod caller;
mod exhaustion;
mod floods;
mod forgeries;
mod kills;
mod loops;
mod measure;
mod prices;
mod processes;
mod secrets;
mod shares;
mod storms;
mod tenants;

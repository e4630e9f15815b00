//! The attack suite: end-to-end attacks on the project's guarantees, each with an expectation and a
//! number.
//!
//! There is one file per family of attacks. `README.md` in this directory is the table: attack,
//! expectation, last measurement. The suite has real daemons, hostile modules, and an honest
//! tenant; every answer to the honest tenant is compared with its request.
//!
//! Counts are asserted tightly: calls lost, doubled, evaluated twice, canaries found. Times are
//! ratios within one run with a generous bound, since daemon, attackers and victim share two noisy
//! cores. The bar of a ratio is printed; the long form asserts it (`TOLLGATE_ATTACKS=long`, see
//! CONTRIBUTING.md). See [`measure`].
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod bombs;
mod bypass;
mod caller;
mod ceilings;
mod exhaustion;
mod floods;
mod forgeries;
mod guesses;
mod kills;
mod loops;
mod measure;
mod names;
mod others;
mod prices;
mod processes;
mod requests;
mod secrets;
mod shares;
mod slow;
mod storms;
mod tenants;

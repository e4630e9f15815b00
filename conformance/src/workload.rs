//! The synthetic hotel workload, the same in the demo, the end-to-end tests and the benches.
//!
//! A population of [`CUSTOMERS`] customers; one of every hundred, [`BLOCKED`] in all, is on the
//! block list that [`blocked_names`] returns. [`Bookings`] is an endless, seeded sequence of
//! bookings in which **exactly one of every hundred consecutive calls** names a blocked customer,
//! at a position that depends on the seed. So the expected number of denials is exact: each
//! [`Booking`] says whether it should be denied.
//!
//! Blocked and other names have the same form and length ([`NAME_BYTES`]), so that a policy must
//! compare them. There is no clock and no randomness: the same seed gives the same sequence on
//! every machine.

/// Customers in the population.
pub const CUSTOMERS: u64 = 100_000;

/// The customers on the block list: one of each [`PERIOD`].
pub const BLOCKED: u64 = CUSTOMERS / PERIOD;

/// One of this many consecutive customers, and one of this many consecutive bookings, is blocked.
pub const PERIOD: u64 = 100;

/// The length of every customer's name.
pub const NAME_BYTES: usize = 16;

/// Salts that make the three choices below independent.
const CHOOSE_BLOCKED: u64 = 1;
const CHOOSE_POSITION: u64 = 2;
const CHOOSE_CUSTOMER: u64 = 3;

/// One call of the workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    /// The value of `customer_name`.
    pub customer: String,
    /// Whether the customer is on the block list.
    pub blocked: bool,
}

/// The endless sequence of bookings for one seed.
#[derive(Debug, Clone)]
pub struct Bookings {
    seed: u64,
    next: u64,
}

impl Bookings {
    /// Starts the sequence of `seed`. Concurrent clients take different seeds.
    pub fn new(seed: u64) -> Self {
        Bookings { seed, next: 0 }
    }
}

impl Iterator for Bookings {
    type Item = Booking;

    fn next(&mut self) -> Option<Booking> {
        let (hundred, position) = (self.next / PERIOD, self.next % PERIOD);
        let draw = mix(self.seed ^ mix(self.next ^ mix(CHOOSE_CUSTOMER)));
        self.next += 1;
        let chosen = mix(self.seed ^ mix(hundred ^ mix(CHOOSE_POSITION))) % PERIOD;
        let group = draw % BLOCKED;
        let blocked = position == chosen;
        let number = if blocked {
            blocked_in(group)
        } else {
            // One of the group's other 99 customers: skip the blocked one.
            let other = group * PERIOD + (draw >> 32) % (PERIOD - 1);
            other + u64::from(other >= blocked_in(group))
        };
        Some(Booking {
            customer: name(number),
            blocked,
        })
    }
}

/// The block list: [`BLOCKED`] names, in the order of the customers' numbers.
pub fn blocked_names() -> Vec<String> {
    (0..BLOCKED).map(|group| name(blocked_in(group))).collect()
}

/// Another list of [`BLOCKED`] names without common names with the first: one of the other
/// customers of every hundred. About 1 % of the bookings name one of them.
pub fn other_names() -> Vec<String> {
    let neighbour = |group| group * PERIOD + (blocked_in(group) + 1) % PERIOD;
    (0..BLOCKED).map(|group| name(neighbour(group))).collect()
}

/// The configuration of the ACL policy that blocks [`blocked_names`].
pub fn acl_config() -> serde_json::Value {
    serde_json::json!({ "blocked": blocked_names() })
}

fn name(number: u64) -> String {
    format!("customer-{number:07}")
}

/// The blocked customer among the hundred of `group`.
fn blocked_in(group: u64) -> u64 {
    group * PERIOD + mix(group ^ mix(CHOOSE_BLOCKED)) % PERIOD
}

/// SplitMix64's finalizer: every input bit reaches every output bit.
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_block_list_has_a_thousand_distinct_names() {
        let names: HashSet<_> = blocked_names().into_iter().collect();
        assert_eq!(names.len(), 1_000);
        assert!(names.iter().all(|name| name.len() == NAME_BYTES));
    }

    #[test]
    fn the_other_list_has_as_many_names_and_none_of_the_first() {
        let one: HashSet<_> = blocked_names().into_iter().collect();
        let two: HashSet<_> = other_names().into_iter().collect();
        assert_eq!(two.len(), one.len());
        assert!(one.is_disjoint(&two));
    }

    #[test]
    fn one_of_every_hundred_bookings_is_blocked_and_says_so() {
        let list: HashSet<_> = blocked_names().into_iter().collect();
        for seed in 0..20 {
            let bookings: Vec<_> = Bookings::new(seed).take(5_000).collect();
            for hundred in bookings.chunks(PERIOD as usize) {
                assert_eq!(hundred.iter().filter(|b| b.blocked).count(), 1);
            }
            for booking in &bookings {
                assert_eq!(booking.customer.len(), NAME_BYTES);
                assert_eq!(list.contains(&booking.customer), booking.blocked);
            }
        }
    }

    #[test]
    fn a_seed_fixes_the_sequence_and_another_changes_it() {
        let take = |seed| Bookings::new(seed).take(200).collect::<Vec<_>>();
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
    }
}

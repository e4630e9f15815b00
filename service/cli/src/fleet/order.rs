//! The order in which hosts are upgraded: a callee before its callers.
//!
//! A host is next when all the hosts that it calls are done. Of several such hosts, the first in
//! the fleet file is next. Hosts that call each other in a circle have no such order. Then the next
//! host is the first in the file among those that call no host outside of their circle, and the
//! step lists the callees that come after it. So the order depends only on the file and the call
//! graph.

use std::collections::BTreeSet;

/// One host's step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) host: usize,
    /// The hosts that it calls but that come after it, because they call it as well.
    pub(crate) before: Vec<usize>,
}

/// The order of hosts, from the set of hosts that each calls. Calls within a host are ignored.
pub(crate) fn receivers_first(calls: &[BTreeSet<usize>]) -> Vec<Step> {
    let mut left: BTreeSet<usize> = (0..calls.len()).collect();
    let mut steps = Vec::with_capacity(calls.len());
    while let Some(&first) = left.iter().next() {
        let waits_for = |host: usize| {
            let its = calls[host].iter().copied();
            let left = &left;
            its.filter(move |other| *other != host && left.contains(other))
        };
        let free = left.iter().find(|&&host| waits_for(host).next().is_none());
        // The host that reaches the fewest hosts is in a circle that calls no other host. Every
        // other host reaches such a circle, and itself.
        let host = free.copied().unwrap_or_else(|| {
            let reached = |host: &&usize| reachable(**host, waits_for).len();
            left.iter().min_by_key(reached).copied().unwrap_or(first)
        });
        let before = waits_for(host).collect();
        left.remove(&host);
        steps.push(Step { host, before });
    }
    steps
}

/// The hosts that a host calls, directly or through others, including itself.
fn reachable<I: Iterator<Item = usize>>(
    host: usize,
    calls: impl Fn(usize) -> I,
) -> BTreeSet<usize> {
    let mut found = BTreeSet::from([host]);
    let mut to_look_at = vec![host];
    while let Some(host) = to_look_at.pop() {
        to_look_at.extend(calls(host).filter(|&other| found.insert(other)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts are letters; `a>b` means that `a` calls `b`.
    fn order(count: usize, calls: &str) -> String {
        let mut sets = vec![BTreeSet::new(); count];
        let number = |letter: u8| usize::from(letter - b'a');
        for call in calls.split_whitespace() {
            let call = call.as_bytes();
            sets[number(call[0])].insert(number(call[2]));
        }
        let letter = |host: usize| char::from(b'a' + host as u8);
        let steps = receivers_first(&sets).into_iter().map(|step| {
            let before: String = step.before.into_iter().map(letter).collect();
            match &*before {
                "" => letter(step.host).to_string(),
                before => format!("{}({before})", letter(step.host)),
            }
        });
        steps.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn receivers_come_first_and_the_files_order_decides_the_rest() {
        let check = |count, calls, expected: &str| assert_eq!(order(count, calls), expected);
        check(0, "", "");
        check(3, "", "a b c");
        check(4, "a>b b>c c>d", "d c b a");
        check(4, "d>a a>b", "b a c d");
        // A diamond, and one host that all call.
        check(4, "a>b a>c b>d c>d", "d b c a");
        check(4, "b>a c>a d>a", "a b c d");
        check(2, "a>a b>b a>b", "b a");
    }

    #[test]
    fn circles_are_broken_and_said_so() {
        let check = |count, calls, expected: &str| assert_eq!(order(count, calls), expected);
        check(2, "a>b b>a", "a(b) b");
        check(3, "a>b b>c c>a", "a(b) c b");
        // A host behind a circle goes first. A host in front of it waits for the hosts of the
        // circle that it calls.
        check(4, "a>b b>c c>b c>d", "d b(c) a c");
        // Two circles; one calls the other.
        check(4, "a>b b>a b>c c>d d>c", "c(d) d a(b) b");
        // All hosts call all hosts.
        check(3, "a>b a>c b>a b>c c>a c>b", "a(bc) b(c) c");
    }

    #[test]
    fn every_host_has_its_turn_once_and_breaks_the_order_only_in_a_circle() {
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let count = 1 + random(8) as usize;
            let mut calls = vec![BTreeSet::new(); count];
            for _ in 0..random(16) {
                let from = random(count as u64) as usize;
                calls[from].insert(random(count as u64) as usize);
            }
            let steps = receivers_first(&calls);
            let turn = |host: usize| steps.iter().position(|step| step.host == host);
            assert_eq!(steps.len(), count, "{calls:?}");
            for (k, step) in steps.iter().enumerate() {
                assert_eq!(turn(step.host), Some(k), "{calls:?}");
                let later = |other: &&usize| turn(**other) > Some(k);
                let later: Vec<_> = calls[step.host].iter().filter(later).copied().collect();
                assert_eq!(step.before, later, "{calls:?}");
                let calls_back = |&other: &usize| {
                    let reached = reachable(other, |host| calls[host].iter().copied());
                    reached.contains(&step.host)
                };
                assert!(step.before.iter().all(calls_back), "{calls:?}");
            }
        }
    }
}

//! The limit on policy processes: a share of the descriptors.

use crate::limits::{
    DESCRIPTORS_PER_POLICY_PROCESS, LEAST_POLICY_PROCESSES, MAX_POLICY_PROCESSES,
    SHARE_OF_POLICY_PROCESSES,
};

/// Policy processes that a daemon with this many descriptors may have; `None`: no limit.
pub(crate) fn policy_processes(descriptors: Option<u64>) -> usize {
    let all = descriptors.and_then(|most| usize::try_from(most).ok());
    let share = all.map_or(usize::MAX, |all| all / SHARE_OF_POLICY_PROCESSES);
    (share / DESCRIPTORS_PER_POLICY_PROCESS).clamp(LEAST_POLICY_PROCESSES, MAX_POLICY_PROCESSES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_lower_the_limit() {
        let cases = [(64, 4), (1_024, 9), (20_000, 178), (1 << 20, 1_024)];
        for (descriptors, processes) in cases {
            assert_eq!(policy_processes(Some(descriptors)), processes);
        }
        assert_eq!(policy_processes(None), MAX_POLICY_PROCESSES);
    }
}

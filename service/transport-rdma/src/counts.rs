//! Costs of a link, counted at the verbs calls.

/// Counts since a link was opened. The difference of two readings covers the time between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Work requests posted to send.
    pub work_requests: u64,
    /// Calls that posted them: a list of requests counts as one.
    pub doorbells: u64,
    /// Their scatter-gather elements.
    pub elements: u64,
    /// Work requests posted to receive.
    pub receives: u64,
    /// Calls that posted these.
    pub receive_doorbells: u64,
    /// Completions taken.
    pub completions: u64,
    /// Memory registered for this link, or because of it.
    pub registrations: u64,
    /// Bytes copied between the link's memory, or applications', and registered places, in either
    /// direction.
    pub bytes_copied: u64,
    /// Bytes that the device has read in place, or written to their destination.
    pub bytes_in_place: u64,
    /// System calls of this crate with any device: registrations, connection events, waiting.
    /// soft-RoCE also enters the kernel for every doorbell, which isn't counted here.
    pub system_calls: u64,
}

impl std::ops::Sub for Counts {
    type Output = Counts;

    fn sub(self, before: Counts) -> Counts {
        Counts {
            work_requests: self.work_requests - before.work_requests,
            doorbells: self.doorbells - before.doorbells,
            elements: self.elements - before.elements,
            receives: self.receives - before.receives,
            receive_doorbells: self.receive_doorbells - before.receive_doorbells,
            completions: self.completions - before.completions,
            registrations: self.registrations - before.registrations,
            bytes_copied: self.bytes_copied - before.bytes_copied,
            bytes_in_place: self.bytes_in_place - before.bytes_in_place,
            system_calls: self.system_calls - before.system_calls,
        }
    }
}

impl std::ops::Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            work_requests: self.work_requests + other.work_requests,
            doorbells: self.doorbells + other.doorbells,
            elements: self.elements + other.elements,
            receives: self.receives + other.receives,
            receive_doorbells: self.receive_doorbells + other.receive_doorbells,
            completions: self.completions + other.completions,
            registrations: self.registrations + other.registrations,
            bytes_copied: self.bytes_copied + other.bytes_copied,
            bytes_in_place: self.bytes_in_place + other.bytes_in_place,
            system_calls: self.system_calls + other.system_calls,
        }
    }
}

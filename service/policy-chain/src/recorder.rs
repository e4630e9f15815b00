//! The last views that a policy was shown, kept for comparing versions.
//!
//! Invariant: bounded by calls and by bytes. A view that exceeds the whole byte limit isn't kept.

use std::collections::VecDeque;

use crate::counts::RecordedView;
use crate::limits::{RECORDED_BYTES, RECORDED_CALLS};

/// A ring of views, oldest first.
pub(crate) struct Recorder {
    views: VecDeque<RecordedView>,
    bytes: usize,
    calls_max: usize,
}

impl Recorder {
    /// `None` if nothing is to be kept.
    pub(crate) fn new(calls: u32) -> Option<Box<Self>> {
        let calls_max = (calls as usize).min(RECORDED_CALLS);
        (calls_max > 0).then(|| {
            Box::new(Self {
                views: VecDeque::new(),
                bytes: 0,
                calls_max,
            })
        })
    }

    pub(crate) fn keep(&mut self, view: RecordedView) {
        if view.view.len() > RECORDED_BYTES {
            return;
        }
        self.bytes += view.view.len();
        self.views.push_back(view);
        while self.views.len() > self.calls_max || self.bytes > RECORDED_BYTES {
            let oldest = self.views.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.view.len());
        }
    }

    /// Changes how many are kept.
    pub(crate) fn resize(&mut self, calls: u32) {
        self.calls_max = (calls as usize).min(RECORDED_CALLS);
        while self.views.len() > self.calls_max {
            let oldest = self.views.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.view.len());
        }
    }

    pub(crate) fn views(&self) -> Vec<RecordedView> {
        self.views.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy_host::Hook;

    use crate::ids::VersionNumber;

    fn view(method: u32, len: usize) -> RecordedView {
        RecordedView {
            version: VersionNumber(1),
            hook: Hook::Request,
            method,
            view: vec![7; len],
        }
    }

    #[test]
    fn the_last_calls_are_kept_within_calls_and_bytes() {
        assert!(Recorder::new(0).is_none());
        let mut recorder = Recorder::new(3).unwrap();
        (0..5).for_each(|k| recorder.keep(view(k, 10)));
        let kept = |recorder: &Recorder| {
            let views = recorder.views();
            views.iter().map(|view| view.method).collect::<Vec<_>>()
        };
        assert_eq!(kept(&recorder), [2, 3, 4]);
        recorder.keep(view(5, RECORDED_BYTES + 1));
        assert_eq!(kept(&recorder), [2, 3, 4], "too large for all the room");
        recorder.keep(view(6, RECORDED_BYTES - 10));
        assert_eq!(kept(&recorder), [4, 6], "{RECORDED_BYTES} bytes at most");
        recorder.keep(view(7, 11));
        assert_eq!(kept(&recorder), [7]);
        recorder.resize(0);
        assert_eq!(kept(&recorder), [0u32; 0]);
        assert_eq!(recorder.bytes, 0);
        let many = Recorder::new(u32::MAX).unwrap();
        assert_eq!(many.calls_max, RECORDED_CALLS);
    }
}

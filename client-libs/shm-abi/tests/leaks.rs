//! Sessions that come and go leave nothing behind: no descriptor, no mapping. Alone in its process,
//! so that what it counts is its own.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use tollgate_shm_abi::session::{AppEnd, SessionShape, create};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Mappings of session segments; others may come and go with the allocator.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

#[test]
fn a_thousand_sessions_leave_nothing_behind() {
    let shape = SessionShape::default();
    let before = descriptors();
    for turn in 0..1000 {
        let (mut daemon, fds) = create(&shape).unwrap();
        let mut app = AppEnd::attach(&shape, fds).unwrap();
        app.submissions.push(&[1; 64]).unwrap();
        assert!(daemon.submissions.pop().unwrap().is_some());
        if turn == 0 {
            assert_eq!(mappings(), 6, "three segments, mapped by both ends");
        }
        if turn % 2 == 0 {
            drop(app);
        } else {
            drop(daemon);
        }
    }
    assert_eq!(descriptors(), before);
    assert_eq!(mappings(), 0);
}

//! Seals withstand everything that an application can try with its descriptors.
#![allow(clippy::unwrap_used)]

use super::*;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::format;
use std::os::fd::AsRawFd;
use std::string::ToString;

const LEN: usize = 2 * PAGE;

fn segment() -> Segment {
    Segment::create("test", LEN).unwrap()
}

#[test]
fn a_segment_cannot_change_its_size_or_its_seals() {
    let fd = segment().finish().unwrap();
    for size in [0, 1, PAGE as u64, LEN as u64 + 1] {
        assert_eq!(rustix::fs::ftruncate(&fd, size), Err(Errno::PERM), "{size}");
    }
    let grow = FallocateFlags::empty();
    assert_eq!(
        rustix::fs::fallocate(&fd, grow, 0, 2 * LEN as u64),
        Err(Errno::PERM)
    );
    assert_eq!(
        rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE),
        Err(Errno::PERM)
    );
}

#[test]
fn a_segment_sealed_against_writes_is_read_only_for_everybody_but_the_first_mapping() {
    let segment = segment();
    let mut first = segment.map(Access::ReadWrite).unwrap();
    segment.forbid_future_writes().unwrap();
    let refused = SegmentError::System {
        step: "map",
        name: "test",
        errno: Errno::PERM,
    };
    assert_eq!(segment.map(Access::ReadWrite).unwrap_err(), refused);
    let reader = segment.map(Access::Read).unwrap();
    let fd = segment.finish().unwrap();

    assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(
        rustix::fs::fallocate(&fd, punch, 0, PAGE as u64),
        Err(Errno::PERM)
    );
    // Opening the file again gives a new description with the same seals.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let reopened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    assert_eq!(
        Mapping::of_memfd(&reopened, LEN, Access::ReadWrite).unwrap_err(),
        Errno::PERM
    );
    // SAFETY: the call would change only the protection of this test's own mapping, and the kernel
    // refuses it.
    let raised = unsafe {
        let flags = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        rustix::mm::mprotect(reader.base.as_ptr().cast(), LEN, flags)
    };
    assert_eq!(raised, Err(Errno::ACCESS));

    first.write(PAGE, b"news").unwrap();
    let mut seen = [0; 4];
    reader.read(PAGE, &mut seen).unwrap();
    assert_eq!(
        &seen, b"news",
        "the writer that came before the seal still writes"
    );
}

#[test]
fn a_mapping_checks_its_bounds_and_its_access() {
    let segment = segment();
    let mut writable = segment.map(Access::ReadWrite).unwrap();
    let mut readable = segment.map(Access::Read).unwrap();
    for (offset, len) in [(LEN, 1), (LEN - 1, 2), (usize::MAX, 1), (usize::MAX, 0)] {
        assert!(writable.at(offset, len).is_none());
        assert!(writable.write(offset, &std::vec![0; len]).is_none());
        assert!(writable.read(offset, &mut std::vec![0; len]).is_none());
    }
    assert!(writable.at(LEN, 0).is_some());
    assert!(readable.write(0, b"x").is_none());
}

#[test]
fn only_sealed_segments_of_the_announced_size_are_adopted() {
    let adopt = |fd, len| Segment::adopt("rings", fd, len).map(|_| ()).unwrap_err();
    let unsealed = create_memfd("unsealed").unwrap();
    rustix::fs::ftruncate(&unsealed, LEN as u64).unwrap();
    let error = adopt(unsealed, LEN);
    assert_eq!(error, SegmentError::NotSealed { name: "rings" });
    assert_eq!(
        error.to_string(),
        "the session's rings isn't sealed against shrinking"
    );

    let error = adopt(segment().finish().unwrap(), LEN + PAGE);
    assert_eq!(
        error.to_string(),
        "the session's rings has 8192 bytes, but 12288 were announced"
    );

    let (pipe, _) = std::io::pipe().unwrap();
    let error = adopt(pipe.into(), LEN);
    assert!(matches!(
        error,
        SegmentError::System {
            step: "read the seals of",
            errno: Errno::INVAL,
            ..
        }
    ));
}

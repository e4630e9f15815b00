//! Blobs arrive complete; strangers' descriptors that aren't memory are refused.
#![allow(clippy::unwrap_used)]

use super::*;
use rustix::fs::{Mode, OFlags};
use std::string::ToString;

#[test]
fn a_blob_comes_back_as_it_was() {
    for len in [0, 1, 4096, 100_000] {
        let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let blob = blob_create(&bytes).unwrap();
        assert_eq!(blob_read(&blob, len), Ok(bytes));
    }
}

#[test]
fn a_blob_can_no_longer_be_changed() {
    let blob = blob_create(b"policy").unwrap();
    assert_eq!(rustix::io::pwrite(&blob, b"x", 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&blob, 0), Err(Errno::PERM));
}

#[test]
fn a_blob_over_the_limit_is_refused_before_anything_is_read() {
    let huge = create_memfd("huge").unwrap();
    rustix::fs::ftruncate(&huge, 1 << 40).unwrap();
    let error = blob_read(&huge, 4).unwrap_err();
    assert_eq!(
        error,
        BlobError::TooLarge {
            size_bytes: 1 << 40,
            limit_bytes: 4
        }
    );
    assert_eq!(
        error.to_string(),
        "the blob has 1099511627776 bytes, and the limit is 4"
    );
}

#[test]
fn what_is_not_memory_is_refused_at_once() {
    let (pipe, _writer) = std::io::pipe().unwrap();
    let (socket, _other) = crate::control::ControlSocket::pair().unwrap();
    let open =
        |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    assert_eq!(blob_read(pipe, 100), Err(BlobError::NotMemory));
    assert_eq!(blob_read(socket, 100), Err(BlobError::NotMemory));
    assert_eq!(
        blob_read(open("/proc/self/status"), 1 << 20),
        Err(BlobError::NotMemory)
    );
    assert_eq!(
        blob_read(open("/dev/zero"), 1 << 20),
        Err(BlobError::NotMemory)
    );
}

#[test]
fn a_blob_that_shrinks_meanwhile_is_an_error() {
    let shrunk = create_memfd("shrunk").unwrap();
    rustix::io::pwrite(&shrunk, b"half", 0).unwrap();
    let error = read_exactly(shrunk.as_fd(), 8).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the blob shrank from 8 to 4 bytes while it was read"
    );
}

//! Nothing is read or written outside of what was passed: inputs lie directly before and directly
//! behind pages that nobody may touch, so that one byte too many ends the test.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../../marshal/tests/common/mod.rs"]
mod common;

use common::{Random, Subject, subjects};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ptr::null_mut;
use std::slice;
use tollgate_jit::{Codec, Projector};
use tollgate_marshal::MAX_EXTENTS;

const PAGE: usize = 4096;
/// Bytes between the guards.
const ROOM: usize = 16 * PAGE;

/// Memory between two pages without access.
struct Guarded {
    start: *mut u8,
}

impl Guarded {
    fn new() -> Guarded {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping overlaps nothing.
        let start =
            unsafe { mmap_anonymous(null_mut(), ROOM + 2 * PAGE, flags, MapFlags::PRIVATE) };
        let start = start.unwrap().cast::<u8>();
        for guard in [0, PAGE + ROOM] {
            // SAFETY: both pages belong to the mapping, and nothing refers to them.
            unsafe { mprotect(start.add(guard).cast(), PAGE, MprotectFlags::empty()) }.unwrap();
        }
        Guarded { start }
    }

    /// A copy of `bytes` that begins behind the first guard, or ends before the second one.
    fn put(&mut self, bytes: &[u8], at_end: bool) -> &mut [u8] {
        let at = if at_end { ROOM - bytes.len() } else { 0 };
        // SAFETY: `at..at + len` lies between the guards, in memory that is initialized (with
        // zeros) and that only the returned slice refers to as long as it lives.
        let place = unsafe { slice::from_raw_parts_mut(self.start.add(PAGE + at), bytes.len()) };
        place.copy_from_slice(bytes);
        place
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no slice of it outlives the value.
        unsafe { munmap(self.start.cast(), ROOM + 2 * PAGE) }.unwrap();
    }
}

/// A codec and a projector of strings of one subject, as machine code or not.
struct Tested {
    subject: Subject,
    codec: Codec,
    projector: Projector,
}

impl Tested {
    fn new(subject: Subject, compiled: bool) -> Tested {
        let layout = subject.layouts.get(subject.id);
        let singular = layout.fields.iter().filter(|f| {
            use tollgate_schema::{Cardinality, Kind};
            !matches!(f.kind, Kind::Message(_))
                && !matches!(f.cardinality, Cardinality::Repeated | Cardinality::Map)
        });
        let names: Vec<_> = singular.map(|f| f.name.clone()).collect();
        let codec = Codec::new(&subject.layouts, subject.id);
        let projector = Projector::new(&subject.layouts, subject.id, &names).unwrap();
        if compiled {
            codec.compile().unwrap();
            codec.compile_wire().unwrap();
            projector.compile().unwrap();
        }
        Tested {
            subject,
            codec,
            projector,
        }
    }

    /// Everything that takes a stranger's bytes, on these.
    fn run(&self, memory: &mut Guarded, bytes: &[u8], inline_len: usize, random: &mut Random) {
        if bytes.len() > ROOM {
            return;
        }
        for at_end in [false, true] {
            let offsets = [random.below(bytes.len() + 8) as u32, u32::MAX];
            let place = memory.put(bytes, at_end);
            let mut out = Vec::new();
            let _verdict = self.codec.gather(place, &mut [0; MAX_EXTENTS]);
            let _verdict = self.projector.project(place, &offsets, &mut [0; 5000]);
            let _verdict = self.codec.encode(place, &mut out);
            let _verdict = self.codec.decode(place, &mut out);
            let _verdict = self.codec.accept(place, inline_len);
        }
        // The view, too, is written up to its end and no further.
        let room = [8, 24, 40, 200][random.below(4)];
        let view = memory.put(&vec![0; room], true);
        let _verdict = self.projector.project(bytes, &[], view);
    }
}

#[test]
fn no_byte_outside_of_a_buffer_is_touched() {
    let mut memory = Guarded::new();
    let mut accepted = 0;
    for compiled in [false, true] {
        for subject in subjects() {
            let tested = Tested::new(subject, compiled);
            for seed in 0..300 {
                let mut random = Random(seed);
                let message = random.message(&tested.subject.descriptor, 0);
                let parts = tested.subject.parts(&message, |_| random.chance(20));
                let mut image = parts.image();
                let block = memory.put(&parts.inline, true);
                let fits = tested.codec.gather(block, &mut [0; MAX_EXTENTS]).is_ok();
                accepted += u32::from(fits);
                tested.run(&mut memory, &image, parts.inline.len(), &mut random);
                random.spoil(&mut image);
                tested.run(&mut memory, &image, parts.inline.len(), &mut random);

                let block = tested.subject.parts(&message, |_| false).inline;
                let mut out = Vec::new();
                let start = tested.codec.encode(&block, &mut out).unwrap();
                let mut bytes = out[start..].to_vec();
                tested.run(&mut memory, &bytes, bytes.len(), &mut random);
                random.spoil(&mut bytes);
                tested.run(&mut memory, &bytes, bytes.len() / 2, &mut random);
            }
        }
    }
    assert!(accepted > 1_000, "only {accepted} messages were valid");
}

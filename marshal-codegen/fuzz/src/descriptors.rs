//! Arbitrary bytes as descriptors, as an application writes them into a ring: 64 bytes each. Each
//! 16 bytes of them are an entry of an extent table, too.
//!
//! A descriptor is refused with one sentence, or all ranges that it names lie in their heap,
//! aligned and within the limits, and it is the only encoding of what it says. Submissions and
//! completions are checked alike.

use tollgate_shm_abi::descriptor::{
    Alleged, BlockRef, Completion, DescriptorError, Entry, Epilogue, Extent, HeapSizes, Image,
    Offsets, Part, Submission,
};
use tollgate_shm_abi::limits::{
    ENTRY_BYTES, MAX_EXTENTS, MAX_MESSAGE_BYTES, MAX_METADATA_BYTES, MAX_OFFSETS,
    MAX_STATUS_TEXT_BYTES,
};
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::stream::Credit;

use crate::errors::one_sentence;

/// Small ones of different sizes, so that a few bits decide whether a range is inside.
const HEAPS: HeapSizes = HeapSizes {
    send: 1 << 20,
    receive: 2 << 20,
};

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
    let (entries, _) = input.as_chunks::<ENTRY_BYTES>();
    for entry in entries {
        let alleged = Alleged::from(*entry);
        if let Some(submission) = taken(alleged.submission(&HEAPS)) {
            assert_eq!(submission.encode(), *entry, "{submission:?}");
            submitted(&submission);
        }
        if let Some(completion) = taken(alleged.completion(&HEAPS)) {
            assert_eq!(completion.encode(), *entry, "{completion:?}");
            completed(&completion);
        }
    }
    let (entries, _) = input.as_chunks();
    for entry in entries {
        if let Some(extent) = taken(Extent::check(entry, HEAPS.send)) {
            assert_eq!(extent.encode(), *entry, "{extent:?}");
            assert!(extent.len <= MAX_MESSAGE_BYTES, "{extent:?}");
            inside(extent.offset, u64::from(extent.len), HEAPS.send);
        }
    }
}

fn taken<T>(checked: Result<T, DescriptorError>) -> Option<T> {
    checked.inspect_err(one_sentence).ok()
}

fn submitted(submission: &Submission) {
    match submission {
        Submission::Call { part, block, .. } => given(block, part.bare),
        Submission::Request { part, block, .. } => {
            given(block, part.bare);
            assert_eq!(block.metadata, 0, "{block:?}");
        }
        Submission::Response { bare, block, .. } => given(block, *bare),
        Submission::Reply { block, .. } => given(block, false),
        Submission::Status { epilogue, .. } => ended(epilogue.as_ref(), HEAPS.send),
        Submission::Release(offsets) => returned(offsets, HEAPS.receive),
        Submission::RequestCredit { .. }
        | Submission::ResponseCredit { .. }
        | Submission::Cancel { .. } => {}
    }
}

fn completed(completion: &Completion) {
    match completion {
        Completion::Call { part, image, .. } => delivered(image, part.bare),
        Completion::Request { part, image, .. } => {
            delivered(image, part.bare);
            assert_eq!(image.metadata, 0, "{image:?}");
        }
        Completion::Response { bare, image, .. } => delivered(image, *bare),
        Completion::Reply { image, .. } => delivered(image, false),
        Completion::Status { epilogue, .. } => ended(epilogue.as_ref(), HEAPS.receive),
        Completion::Reclaim(offsets) => returned(offsets, HEAPS.send),
        Completion::RequestCredit { .. }
        | Completion::ResponseCredit { .. }
        | Completion::Cancel { .. } => {}
    }
}

/// Inline part, extent table and metadata lie one after another.
fn given(block: &BlockRef, bare: bool) {
    let &BlockRef {
        offset,
        len,
        extents,
        metadata,
    } = block;
    assert!(
        len <= MAX_MESSAGE_BYTES && extents <= MAX_EXTENTS,
        "{block:?}"
    );
    assert!(metadata as usize <= MAX_METADATA_BYTES, "{block:?}");
    assert!(offset.is_multiple_of(8), "{block:?}");
    if bare {
        assert_eq!((len, extents), (0, 0), "{block:?}");
        assert_eq!(block.exists(bare), metadata > 0, "{block:?}");
    }
    let table = (offset + u64::from(len)).next_multiple_of(8);
    let behind = table + 16 * u64::from(extents);
    assert_eq!(block.table_offset(), table, "{block:?}");
    assert_eq!(block.metadata_offset(), behind, "{block:?}");
    let end = match (metadata, extents) {
        (0, 0) => offset + u64::from(len),
        (0, _) => behind,
        _ => behind + u64::from(metadata),
    };
    inside(offset, end - offset, HEAPS.send);
}

fn delivered(image: &Image, bare: bool) {
    let &Image {
        offset,
        inline_len,
        total_len,
        metadata,
    } = image;
    assert!(inline_len <= total_len, "{image:?}");
    assert!(total_len <= MAX_MESSAGE_BYTES, "{image:?}");
    assert!(metadata as usize <= MAX_METADATA_BYTES, "{image:?}");
    assert!(offset.is_multiple_of(8), "{image:?}");
    if bare {
        assert_eq!(total_len, 0, "{image:?}");
        assert_eq!(image.exists(bare), metadata > 0, "{image:?}");
    }
    inside(offset, image.held_bytes() as u64, HEAPS.receive);
}

fn ended(epilogue: Option<&Epilogue>, heap: u64) {
    let Some(epilogue) = epilogue else {
        return;
    };
    let &Epilogue {
        offset,
        text,
        metadata,
    } = epilogue;
    assert!((text, metadata) != (0, 0), "{epilogue:?}");
    assert!(text <= MAX_STATUS_TEXT_BYTES, "{epilogue:?}");
    assert!(metadata as usize <= MAX_METADATA_BYTES, "{epilogue:?}");
    assert!(offset.is_multiple_of(8), "{epilogue:?}");
    inside(offset, epilogue.held_bytes() as u64, heap);
    if metadata > 0 {
        inside(epilogue.metadata_offset(), u64::from(metadata), heap);
    }
}

fn returned(offsets: &Offsets, heap: u64) {
    let all = offsets.as_slice();
    assert!((1..=MAX_OFFSETS).contains(&all.len()), "{offsets:?}");
    for offset in all {
        assert!(offset.is_multiple_of(8), "{offsets:?}");
        inside(*offset, 1, heap);
    }
    assert_eq!(Offsets::take_from(all), Some(*offsets));
}

fn inside(offset: u64, len: u64, heap: u64) {
    let end = offset.checked_add(len);
    assert!(
        end.is_some_and(|end| end <= heap),
        "{len} bytes at {offset} of {heap}"
    );
}

/// Valid descriptors of every kind, and names for them.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let submissions = submissions().into_iter();
    let completions = completions().into_iter();
    let all: Vec<Entry> = submissions
        .map(|one| one.encode())
        .chain(completions.map(|one| one.encode()))
        .collect();
    let extent = Extent {
        offset: 4097,
        len: 70_000,
    };
    let mut seeds: Vec<_> = (0..)
        .zip(&all)
        .map(|(number, entry)| (format!("entry-{number}"), entry.to_vec()))
        .collect();
    seeds.push(("all".to_owned(), all.concat()));
    seeds.push(("extent".to_owned(), extent.encode().to_vec()));
    seeds
}

const ENDS_BARE: Part = Part {
    more: false,
    bare: true,
};
const MORE: Part = Part {
    more: true,
    bare: false,
};
const CREDIT: Credit = Credit {
    messages: 3,
    bytes: 200,
};
const EPILOGUE: Epilogue = Epilogue {
    offset: 192,
    text: 9,
    metadata: 40,
};

fn offsets(count: usize) -> Offsets {
    let all: Vec<u64> = (1..=count as u64).map(|number| 64 * number).collect();
    Offsets::take_from(&all).expect("at least one")
}

fn submissions() -> Vec<Submission> {
    let block = BlockRef {
        offset: 64,
        len: 100,
        extents: 2,
        metadata: 40,
    };
    let plain = BlockRef {
        extents: 0,
        metadata: 0,
        ..block
    };
    let only_metadata = BlockRef {
        len: 0,
        extents: 0,
        ..block
    };
    let status = |epilogue| Submission::Status {
        call: 5,
        code: Code::NOT_FOUND,
        epilogue,
        waited_ns: 1,
        retry_after_ms: 250,
    };
    let whole = |part, block| Submission::Call {
        method: 7,
        call: 1,
        part,
        block,
        deadline_ns: 1 << 40,
    };
    vec![
        whole(Part::ONLY, block),
        whole(Part::ONLY, plain),
        whole(
            Part {
                more: true,
                bare: true,
            },
            only_metadata,
        ),
        Submission::Request {
            call: 1,
            part: MORE,
            block: plain,
        },
        Submission::Request {
            call: 1,
            part: ENDS_BARE,
            block: BlockRef::default(),
        },
        Submission::Response {
            call: 5,
            bare: false,
            block,
            waited_ns: 900,
        },
        Submission::Response {
            call: 5,
            bare: true,
            block: only_metadata,
            waited_ns: 0,
        },
        Submission::RequestCredit {
            call: 5,
            credit: CREDIT,
        },
        Submission::ResponseCredit {
            call: 1,
            credit: CREDIT,
        },
        Submission::Reply {
            call: 5,
            block,
            waited_ns: 900,
        },
        status(None),
        status(Some(EPILOGUE)),
        Submission::Cancel { call: 1 },
        Submission::Release(offsets(1)),
        Submission::Release(offsets(MAX_OFFSETS)),
    ]
}

fn completions() -> Vec<Completion> {
    let image = Image {
        offset: 128,
        inline_len: 100,
        total_len: 5000,
        metadata: 40,
    };
    let plain = Image {
        metadata: 0,
        ..image
    };
    let only_metadata = Image {
        inline_len: 0,
        total_len: 0,
        ..image
    };
    vec![
        Completion::Call {
            method: 7,
            call: 5,
            part: Part::ONLY,
            image,
            deadline_ns: 1 << 40,
            delivered_ns: 1 << 39,
        },
        Completion::Request {
            call: 5,
            part: MORE,
            image: plain,
            charge: 5000,
        },
        Completion::Request {
            call: 5,
            part: ENDS_BARE,
            image: Image::default(),
            charge: 0,
        },
        Completion::Response {
            call: 1,
            bare: true,
            image: only_metadata,
            charge: 1,
        },
        Completion::Response {
            call: 1,
            bare: false,
            image,
            charge: 5000,
        },
        Completion::Reply { call: 1, image },
        Completion::Status {
            call: 1,
            code: Code::OK,
            epilogue: Some(EPILOGUE),
            retry_after_ms: 0,
        },
        Completion::Cancel { call: 5 },
        Completion::Reclaim(offsets(2)),
    ]
}

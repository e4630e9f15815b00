//! Arbitrary bytes as a block of metadata, as an application, a peer or a policy writes one.
//!
//! It is refused with one sentence, or it is within the limits and the only encoding of its pairs.
//! What is changed in it is valid again. Applications' blocks and trailers have no reserved keys. A
//! `traceparent` in it is none, or can be written and read again.

use tollgate_shm_abi::limits::{MAX_METADATA_BYTES, MAX_METADATA_KEY_BYTES, MAX_METADATA_PAIRS};
use tollgate_shm_abi::metadata::{
    Metadata, MetadataBuf, MetadataError, STATUS_DETAILS, is_binary, is_reserved,
};
use tollgate_shm_abi::w3c::{Context, SpanId, TRACEPARENT, replace_parent};

use crate::errors::one_sentence;

/// Panics unless all of the above holds.
pub fn check(input: &[u8]) {
    // Whatever its key is, and whether the block is valid or not.
    trace(input);
    let owned = MetadataBuf::from_bytes(input.to_vec());
    let metadata = match Metadata::check(input) {
        Ok(metadata) => metadata,
        Err(error) => {
            one_sentence(&error);
            assert_eq!(owned, Err(error));
            return;
        }
    };
    assert_eq!(owned, Ok(metadata.to_buf()));
    assert_eq!(metadata.as_bytes(), input);
    assert!(input.len() <= MAX_METADATA_BYTES);
    let pairs: Vec<_> = metadata.iter().collect();
    assert_eq!(pairs.len(), metadata.len());
    assert!(pairs.len() <= usize::from(MAX_METADATA_PAIRS));
    assert_eq!(pairs.is_empty(), metadata.is_empty());
    pairs.iter().for_each(|pair| in_bounds(*pair));
    assert_eq!(built(&pairs), Ok(metadata.to_buf()), "the only encoding");
    reserved(&metadata);
    for (key, _) in &pairs {
        let mut others = pairs.clone();
        others.retain(|(other, _)| other != key);
        change(&metadata, key, &others);
    }
    metadata.get_all(TRACEPARENT).for_each(trace);
}

fn in_bounds((key, value): (&str, &[u8])) {
    let is_allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
    };
    assert!((1..=MAX_METADATA_KEY_BYTES).contains(&key.len()), "{key:?}");
    assert!(key.bytes().all(is_allowed), "{key:?}");
    let is_text = value.iter().all(|byte| matches!(byte, b' '..=b'~'));
    assert!(is_text || is_binary(key), "{key:?}: {value:?}");
}

fn built(pairs: &[(&str, &[u8])]) -> Result<MetadataBuf, MetadataError> {
    let mut built = MetadataBuf::new();
    for (key, value) in pairs {
        built.push_any(key, value)?;
    }
    Ok(built)
}

/// What anybody but a daemon may write.
fn reserved(metadata: &Metadata<'_>) {
    let is_free = |allowed: Option<&str>| {
        let mut keys = metadata.iter().map(|(key, _)| key);
        keys.all(|key| !is_reserved(key) || Some(key) == allowed)
    };
    let application = Metadata::check_application(metadata.as_bytes());
    assert_eq!(application.is_ok(), is_free(None), "{application:?}");
    let trailers = Metadata::check_trailers(metadata.as_bytes());
    assert_eq!(
        trailers.is_ok(),
        is_free(Some(STATUS_DETAILS)),
        "{trailers:?}"
    );
    for error in [application.err(), trailers.err()].into_iter().flatten() {
        one_sentence(&error);
    }
}

/// Removes a key, and sets it to other values than it has.
fn change(metadata: &Metadata<'_>, key: &str, others: &[(&str, &[u8])]) {
    let without = built(others).expect("fewer pairs are valid");
    let mut changed = metadata.to_buf();
    assert_eq!(changed.remove(key), metadata.len() - others.len());
    assert_eq!(changed, without, "{key:?}");
    assert_eq!(changed.remove(key), 0);

    let mut changed = metadata.to_buf();
    let values = [&b"first"[..], b""];
    match changed.set(key, values) {
        Ok(()) => {
            let set: Vec<_> = changed.view().get_all(key).collect();
            assert_eq!(set, values, "{key:?}");
            let kept: Vec<_> = changed.view().iter().take(others.len()).collect();
            assert_eq!(kept, others, "{key:?}");
            let checked = Metadata::check(changed.as_bytes());
            assert_eq!(checked, Ok(changed.view()));
        }
        Err(error) => {
            one_sentence(&error);
            assert_eq!(changed, metadata.to_buf(), "{error}");
        }
    }
}

fn trace(value: &[u8]) {
    let Some(context) = Context::parse(value) else {
        return;
    };
    let mut text = context.to_bytes();
    assert_eq!(Context::parse(&text), Some(context));
    assert_eq!(context.to_text().as_bytes(), text);
    let span = SpanId::new([7; 8]).expect("it isn't zero");
    replace_parent(&mut text, span);
    assert_eq!(Context::parse(&text), Some(Context { span, ..context }));
}

/// A name, and the pairs of a block.
type Block = (&'static str, &'static [(&'static str, &'static [u8])]);

/// Valid blocks, and names for them.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    const PARENT: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let blocks: [Block; 6] = [
        ("one", &[("user", b"Ada")]),
        (
            "repeated",
            &[("a", b"1"), ("b_c.d-2", b"~ "), ("a", b""), ("a", b"3")],
        ),
        ("binary", &[("t-bin", &[0, 10, 255]), ("-bin", b"")]),
        (
            "trace",
            &[(TRACEPARENT, PARENT), ("tracestate", b"a=1,b=2")],
        ),
        (
            "reserved",
            &[("grpc-timeout", b"1S"), ("tollgate-route", b"x")],
        ),
        ("trailers", &[(STATUS_DETAILS, &[8, 5]), ("x", b"y")]),
    ];
    let many = [("k", &b"v"[..]); MAX_METADATA_PAIRS as usize];
    let mut seeds: Vec<_> = blocks
        .iter()
        .map(|(name, pairs)| (*name, built(pairs)))
        .collect();
    seeds.push(("many", built(&many)));
    let bytes = |block: Result<MetadataBuf, _>| block.expect("they are valid").into_bytes();
    let mut seeds: Vec<_> = seeds
        .into_iter()
        .map(|(name, block)| (name.to_owned(), bytes(block)))
        .collect();
    seeds.push(("traceparent".to_owned(), PARENT.to_vec()));
    seeds.push(("none".to_owned(), Vec::new()));
    seeds
}

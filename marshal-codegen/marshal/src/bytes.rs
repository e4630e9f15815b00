//! Little-endian loads and stores that return `None` past the end, and the UTF-8 test.

/// Loads a `u32`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Loads a `u64`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Stores `value` if all of it fits.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes
        .get_mut(at..at.checked_add(value.len())?)?
        .copy_from_slice(value);
    Some(())
}

/// Whether `text` is valid UTF-8.
///
/// The standard library walks short strings byte by byte. Most strings in calls are short and
/// ASCII, so this function first checks for ASCII one word at a time.
#[inline]
pub fn is_utf8(text: &[u8]) -> bool {
    is_ascii(text) || std::str::from_utf8(text).is_ok()
}

#[inline]
fn is_ascii(text: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    if text.len() >= 8 {
        // Words from the front, then the last word, which may overlap the previous one.
        let words = text.as_chunks::<8>().0.iter().chain(text.last_chunk::<8>());
        let all = words.fold(0, |all, word| all | u64::from_le_bytes(*word));
        return all & HIGH == 0;
    }
    if let (Some(head), Some(tail)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        return (u32::from_le_bytes(*head) | u32::from_le_bytes(*tail)) & HIGH as u32 == 0;
    }
    text.iter().all(u8::is_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf8_agrees_with_the_standard_library_wherever_the_odd_byte_is() {
        for len in 0..40 {
            let plain = vec![b'a'; len];
            assert!(is_utf8(&plain));
            for at in 0..len {
                let mut odd = plain.clone();
                odd[at] = 0xff;
                assert!(!is_utf8(&odd), "len {len}, odd byte at {at}");
                if at + 1 < len {
                    odd[at] = 0xc3;
                    odd[at + 1] = 0xa9;
                    assert!(is_utf8(&odd), "len {len}, two-byte character at {at}");
                }
            }
        }
    }

    #[test]
    fn loads_and_stores_past_the_end_answer_none() {
        let mut bytes = [0; 8];
        assert_eq!(u64_at(&bytes, 1), None);
        assert_eq!(u32_at(&bytes, usize::MAX), None);
        assert_eq!(put(&mut bytes, usize::MAX, &[1]), None);
        assert_eq!(put(&mut bytes, 7, &[1, 2]), None);
        assert_eq!(put(&mut bytes, 7, &[1]), Some(()));
        assert_eq!(u32_at(&bytes, 4), Some(1 << 24));
    }
}

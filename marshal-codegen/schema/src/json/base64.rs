//! Base64 for `bytes` fields, as protobuf's JSON mapping defines it.

/// Decodes text in either alphabet, with padding or without; `None` for any other text.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    if padding > 2 || (padding > 0 && !text.len().is_multiple_of(4)) || digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

/// Appends the standard alphabet's text, with padding.
pub(super) fn encode(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in bytes.chunks(3) {
        let bits = chunk
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            let padding = digit > chunk.len();
            out.push(if padding {
                '='
            } else {
                char::from(DIGITS[value as usize])
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_in_all_its_forms() {
        for (text, expected) in [
            ("", Some(&b""[..])),
            ("AQI=", Some(&[1, 2])),
            ("AQI", Some(&[1, 2])),
            ("AQ==", Some(&[1])),
            ("-_8=", Some(&[0xfb, 0xff])),
            ("+/8", Some(&[0xfb, 0xff])),
            ("AQ=", None),
            ("A", None),
            ("AQI=====", None),
            ("A QI", None),
        ] {
            assert_eq!(decode(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn base64_is_written_with_padding() {
        for bytes in [&b""[..], &[1], &[1, 2], &[0xfb, 0xff, 0], &[0xff; 10]] {
            let mut text = String::new();
            encode(bytes, &mut text);
            assert!(text.len().is_multiple_of(4), "{text}");
            assert_eq!(decode(&text).as_deref(), Some(bytes), "{text}");
        }
    }
}

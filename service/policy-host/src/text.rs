//! Text from a module, cut to a length.

use crate::limits::NAME_BYTES;

/// The beginning of a text from a module, short enough for a message.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(NAME_BYTES).collect()
}

/// Text from a guest: cut at a character to at most `max` bytes, with invalid UTF-8 replaced.
pub(crate) fn text(bytes: &[u8], max: usize) -> String {
    let is_continuation = |byte: u8| byte & 0xc0 == 0x80;
    let mut cut = bytes.len().min(max);
    for _ in 0..3 {
        if cut > 0 && cut < bytes.len() && is_continuation(bytes[cut]) {
            cut -= 1;
        }
    }
    let mut text = String::from_utf8_lossy(&bytes[..cut]).into_owned();
    // A replacement character is longer than the byte that it replaces.
    text.truncate(text.floor_char_boundary(max));
    text
}

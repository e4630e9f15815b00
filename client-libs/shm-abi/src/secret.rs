//! Tenants' tokens in text. If a user swaps two arguments, a token appears where a path or a name
//! is expected, and errors would repeat it.

use alloc::borrow::Cow;
use alloc::string::String;

/// The prefix of every token; 64 hex digits follow.
pub const TOKEN_PREFIX: &str = "tg_";

/// The number of hex digits that make a token. Fewer reveal nothing; more may be a truncated token.
const MIN_DIGITS: usize = 8;

/// The replacement of a token.
const HIDDEN: &str = "tg_(hidden)";

/// Whether a text contains a token.
pub fn has_token(text: &str) -> bool {
    find(text).is_some()
}

/// The text without the digits of tokens, safe to show.
pub fn without_tokens(text: &str) -> Cow<'_, str> {
    let Some(mut found) = find(text) else {
        return Cow::Borrowed(text);
    };
    let (mut shown, mut rest) = (String::new(), text);
    loop {
        let (start, end) = found;
        shown.push_str(&rest[..start]);
        shown.push_str(HIDDEN);
        rest = &rest[end..];
        found = match find(rest) {
            Some(found) => found,
            None => break,
        };
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// The range of the first token.
fn find(text: &str) -> Option<(usize, usize)> {
    text.match_indices(TOKEN_PREFIX)
        .find_map(|(start, prefix)| {
            let digits = start + prefix.len();
            let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
            let len = text.as_bytes()[digits..]
                .iter()
                .take_while(|byte| is_digit(byte))
                .count();
            (len >= MIN_DIGITS).then_some((start, digits + len))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_hidden_wherever_they_stand() {
        let token = "tg_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let check = |text: &str, shown: &str| {
            assert_eq!(without_tokens(text), shown);
            assert_eq!(has_token(text), text != shown);
        };
        for (text, shown) in [
            (
                "no daemon answers at {}: gone",
                "no daemon answers at tg_(hidden): gone",
            ),
            ("{}", "tg_(hidden)"),
            ("{}{}é{}", "tg_(hidden)tg_(hidden)étg_(hidden)"),
            ("/tmp/{}.sock", "/tmp/tg_(hidden).sock"),
        ] {
            check(&text.replace("{}", token), shown);
        }
        check("tg_01234567 cut", "tg_(hidden) cut");
        for harmless in [
            "",
            "tg_",
            "tg_test",
            "tg_0123456",
            "tg_tg_",
            "tgé_0123456789",
        ] {
            check(harmless, harmless);
        }
    }
}

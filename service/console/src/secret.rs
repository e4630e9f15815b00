//! The secret that authenticates a user: 256 random bits, as 64 hexadecimal characters.
//!
//! The comparison doesn't reveal how much was right. Only [`Secret::reveal`] prints the secret.

use std::fmt::Write as _;

use crate::error::ConsoleError;

const BYTES: usize = 32;

/// The random bits.
pub(crate) struct Secret([u8; BYTES]);

impl Secret {
    pub(crate) fn new() -> Result<Secret, ConsoleError> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).map_err(|error| ConsoleError::Random(error.to_string()))?;
        Ok(Secret(bytes))
    }

    /// The secret's text, for its owner only.
    pub(crate) fn reveal(&self) -> String {
        let mut text = String::with_capacity(2 * BYTES);
        for byte in self.0 {
            write!(text, "{byte:02x}").expect("a string takes everything");
        }
        text
    }

    /// Whether a client's text is this secret. The time reveals only whether the length was right.
    pub(crate) fn is(&self, alleged: &str) -> bool {
        let own = self.reveal();
        if own.len() != alleged.len() {
            return false;
        }
        let bytes = own.bytes().zip(alleged.bytes());
        let differing = bytes.fold(0, |sum, (own, alleged)| sum | (own ^ alleged));
        std::hint::black_box(differing) == 0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_itself_and_nothing_else() {
        let (one, other) = (Secret::new().unwrap(), Secret::new().unwrap());
        let text = one.reveal();
        assert_eq!(text.len(), 64);
        assert!(one.is(&text) && !one.is(&other.reveal()));
        let mut last = text.clone();
        let end = if last.pop() == Some('0') { '1' } else { '0' };
        last.push(end);
        for wrong in [&last, "", &text[1..], &format!("{text}0")] {
            assert!(!one.is(wrong), "{wrong}");
        }
        assert_eq!(format!("{one:?}"), "Secret");
    }
}

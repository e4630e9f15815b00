//! A check before a policy's own parser of its configuration, with clear messages for common
//! mistakes.

/// Returns the configuration's bytes if they may be a JSON object. The parser reports other
/// mistakes.
///
/// Parsers report that a missing configuration ends too early, and accept an array as an object
/// without names.
///
/// # Errors
/// A message for the user that pushed the configuration.
pub fn json_object(config: &[u8]) -> Result<&[u8], String> {
    match config.trim_ascii_start() {
        [] => Err(
            "there is none, and this policy needs one: push it with --config FILE.json".to_owned(),
        ),
        [b'{', ..] => Ok(config),
        _ => Err("it isn't a JSON object; an object begins with {".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_passes_and_all_else_has_a_sentence() {
        for object in ["{}", " \n\t{\"a\": 1}", "{nonsense"] {
            assert_eq!(json_object(object.as_bytes()), Ok(object.as_bytes()));
        }
        for (text, expected) in [
            ("", "there is none"),
            (" \n", "there is none"),
            ("[]", "isn't a JSON object"),
            ("blocked: [Ada]", "isn't a JSON object"),
            ("null", "isn't a JSON object"),
        ] {
            let refused = json_object(text.as_bytes());
            assert!(refused.is_err_and(|e| e.contains(expected)), "{text:?}");
        }
    }
}

//! The configuration before a policy's own parser: what tenants stumble over first gets a sentence of its own.

/// The configuration's bytes, if they can be a JSON object. What else is wrong with it is for the parser to say.
///
/// Parsers say that a missing configuration ends too early, and read an array as if it were an object without names.
///
/// # Errors
/// A sentence for whoever pushed the configuration.
pub fn json_object(config: &[u8]) -> Result<&[u8], String> {
    match config.trim_ascii_start() {
        [] => Err(
            "there is none, and this policy needs one: push it with --config FILE.json".to_owned(),
        ),
        [b'{', ..] => Ok(config),
        _ => Err("it isn't a JSON object, which would begin with {".to_owned()),
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

//! Hides data that the other side doesn't need: masks texts and removes fields of requests and
//! replies.

#![forbid(unsafe_code)]

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollgate_policy::{Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    mask: Vec<String>,
    #[serde(default)]
    keep: usize,
    #[serde(default)]
    remove: Vec<String>,
    #[serde(default)]
    reply_mask: Vec<String>,
    #[serde(default)]
    reply_remove: Vec<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    methods: IgnoredAny,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    absent: IgnoredAny,
}

/// The changes to requests and replies: the lengths of the lists.
pub struct Redact {
    mask: u32,
    remove: u32,
    reply_mask: u32,
    reply_remove: u32,
    /// The number of characters of a masked text that stay; the others become `*`.
    keep: usize,
}

#[policy(name = "redact", version = "2.0", counters(masked, removed))]
impl Redact {
    fn configure(config: &[u8]) -> Result<Redact, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        let Config {
            mask,
            remove,
            reply_mask,
            reply_remove,
            ..
        } = &config;
        let lists = [mask, remove, reply_mask, reply_remove];
        let [mask, remove, reply_mask, reply_remove] = lists.map(|list| list.len() as u32);
        if lists.into_iter().all(Vec::is_empty) {
            return Err(
                "there is nothing to redact: list fields in mask, remove, reply_mask or reply_remove"
                    .to_owned(),
            );
        }
        Ok(Redact {
            mask,
            remove,
            reply_mask,
            reply_remove,
            keep: config.keep,
        })
    }

    fn lists(&self) -> Lists {
        Lists {
            mask: self.mask,
            remove: self.remove,
            reply_mask: self.reply_mask,
            reply_remove: self.reply_remove,
        }
    }

    #[request(
        "*",
        reads(config(mask: string), config(remove)),
        changes(config(mask: string), config(remove))
    )]
    fn any(&mut self, request: &mut Any<'_>) -> Verdict<'_> {
        for at in 0..self.mask {
            let Some(text) = request.mask(at).and_then(|value| value.text()) else {
                continue;
            };
            let masked = mask(text, self.keep);
            if masked != text {
                request.set_mask_bytes(at, masked.as_bytes());
                MASKED.add(1);
            }
        }
        for at in 0..self.remove {
            // A field that can't be absent is removed if it isn't zero or empty already.
            if request.remove(at).is_some() {
                request.clear_remove(at);
                REMOVED.add(1);
            }
        }
        Verdict::Allow
    }

    #[reply(
        "*",
        reads(config(reply_mask: string), config(reply_remove)),
        changes(config(reply_mask: string), config(reply_remove))
    )]
    fn reply(&mut self, reply: &mut Reply<'_>) -> Verdict<'_> {
        for at in 0..self.reply_mask {
            let Some(text) = reply.reply_mask(at).and_then(|value| value.text()) else {
                continue;
            };
            let masked = mask(text, self.keep);
            if masked != text {
                reply.set_reply_mask_bytes(at, masked.as_bytes());
                MASKED.add(1);
            }
        }
        for at in 0..self.reply_remove {
            if reply.reply_remove(at).is_some() {
                reply.clear_reply_remove(at);
                REMOVED.add(1);
            }
        }
        Verdict::Allow
    }
}

fn mask(text: &str, keep: usize) -> String {
    let masked = text.chars().enumerate();
    masked
        .map(|(at, c)| if at < keep { c } else { '*' })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Answer, Changed, Desk, Field, counter};

    const CONFIG: &str = r#"{"mask": ["name", "street"], "keep": 2, "remove": ["coupon"]}"#;

    fn ask(fields: &[(&str, Field<'_>)]) -> Answer {
        let desk = Desk::<Redact>::new(CONFIG).unwrap();
        let desk = desk.with_list("mask", &["name", "street"]);
        let mut desk = desk.with_list("remove", &["coupon"]);
        desk.request("a.B/C", fields)
    }

    #[test]
    fn texts_are_masked_by_the_character() {
        let changed = ask(&[
            ("name", Field::Text("Zoë")),
            ("street", Field::Text("Ulmer")),
        ]);
        let expected = [("name", "Zo*"), ("street", "Ul***")]
            .map(|(path, text)| (path, Changed::Text(text.to_owned())));
        assert_eq!(changed, Answer::Change(expected.to_vec()));
        assert_eq!(ask(&[("name", Field::Text("Bo"))]), Answer::Allow);
        assert_eq!(ask(&[]), Answer::Allow);
    }

    #[test]
    fn fields_are_removed_where_they_are() {
        let removed = Answer::Change(vec![("coupon", Changed::Clear)]);
        for coupon in [Field::Text("SPRING"), Field::Int(7), Field::Bytes(b"x")] {
            assert_eq!(ask(&[("coupon", coupon)]), removed);
        }
        assert_eq!((counter(0), counter(1)), (0, 1));
    }

    #[test]
    fn replies_have_lists_of_their_own() {
        let config = r#"{"reply_mask": ["email"], "reply_remove": ["note"]}"#;
        let desk = Desk::<Redact>::new(config).unwrap();
        let desk = desk.with_list("reply_mask", &["email"]);
        let mut desk = desk.with_list("reply_remove", &["note"]);
        let fields = [("email", Field::Text("a@b")), ("note", Field::Text("x"))];
        assert_eq!(desk.request("a.B/C", &[]), Answer::Allow);
        let expected = vec![
            ("email", Changed::Text("***".to_owned())),
            ("note", Changed::Clear),
        ];
        assert_eq!(desk.reply("a.B/C", &fields), Answer::Change(expected));
        assert_eq!((counter(0), counter(1)), (1, 1));
    }

    #[test]
    fn nothing_to_redact_is_refused() {
        let refused = Desk::<Redact>::new("{}").err().unwrap();
        assert!(refused.contains("there is nothing to redact"), "{refused}");
    }
}

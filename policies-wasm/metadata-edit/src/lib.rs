//! Sets, removes and copies metadata keys of requests.
//!
//! A policy declares its keys, and here the configuration selects them. So the configuration names
//! keys twice: in the lists of read and changed keys, and in the edits. An edit of an unlisted key
//! is refused.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::{Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    metadata: Vec<String>,
    metadata_changes: Vec<String>,
    edits: Vec<EditConfig>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EditConfig {
    Set { set: String, value: String },
    Copy { copy: String, to: String },
    Remove { remove: String },
}

/// The edits of each request, with keys as indexes into the configuration's lists.
pub struct MetadataEdit {
    edits: Vec<Edit>,
}

enum Edit {
    Set { key: u32, value: String },
    Copy { from: u32, key: u32 },
    Remove { key: u32 },
}

#[policy(name = "metadata-edit", version = "1.0", counters(edited))]
impl MetadataEdit {
    fn configure(config: &[u8]) -> Result<MetadataEdit, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if config.edits.is_empty() {
            return Err("there are no edits: set edits".to_owned());
        }
        let read = |key: &str| place(&config.metadata, "metadata", key);
        let changed = |key: &str| place(&config.metadata_changes, "metadata_changes", key);
        let edit = |edit: &EditConfig| {
            Ok(match edit {
                EditConfig::Set { set, value } => Edit::Set {
                    key: changed(set)?,
                    value: text(set, value)?,
                },
                EditConfig::Copy { copy, to } => Edit::Copy {
                    from: read(copy)?,
                    key: same_kind(copy, to, changed(to)?)?,
                },
                EditConfig::Remove { remove } => Edit::Remove {
                    key: changed(remove)?,
                },
            })
        };
        let edits: Result<Vec<Edit>, String> = config.edits.iter().map(edit).collect();
        Ok(MetadataEdit { edits: edits? })
    }

    #[request("*", metadata(*), metadata_changes(*))]
    fn any(&mut self, call: &mut Any<'_>) -> Verdict<'_> {
        for edit in &self.edits {
            match edit {
                Edit::Set { key, value } => call.set_metadata(*key, value.as_bytes()),
                Edit::Remove { key } => call.remove_metadata(*key),
                Edit::Copy { from, key } => {
                    let Some(value) = call.metadata(*from).first() else {
                        continue;
                    };
                    call.set_metadata(*key, value);
                }
            }
            EDITED.add(1);
        }
        Verdict::Allow
    }
}

fn place(keys: &[String], list: &str, key: &str) -> Result<u32, String> {
    let place = keys.iter().position(|listed| listed == key);
    let place = place.ok_or_else(|| format!("an edit names {key:?}, which {list} doesn't list"))?;
    Ok(place as u32)
}

/// A valid value of a key: values for which the host would end the policy are refused here.
fn text(key: &str, value: &str) -> Result<String, String> {
    let printable = value.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
    match printable && !key.ends_with("-bin") {
        true => Ok(value.to_owned()),
        false => Err(format!(
            "{key:?} can't be set to {value:?}: values are printable ASCII, and keys that end in -bin can only be copied and removed"
        )),
    }
}

/// Bytes can't become text.
fn same_kind(from: &str, to: &str, place: u32) -> Result<u32, String> {
    match from.ends_with("-bin") && !to.ends_with("-bin") {
        false => Ok(place),
        true => Err(format!("{from:?} has bytes, but {to:?} takes text")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Answer, Desk, Done, counter};

    const CONFIG: &str = r#"{
        "metadata": ["x-user"], "metadata_changes": ["x-tenant", "x-debug", "x-for"],
        "edits": [{"set": "x-tenant", "value": "acme"}, {"remove": "x-debug"}, {"copy": "x-user", "to": "x-for"}]
    }"#;

    fn refused(config: &str) -> String {
        Desk::<MetadataEdit>::new(config).err().unwrap()
    }

    #[test]
    fn edits_are_made_in_their_order() {
        let desk = Desk::<MetadataEdit>::new(CONFIG).unwrap();
        let mut desk = desk.with_keys(&["x-user"], &["x-tenant", "x-debug", "x-for"]);
        let pairs: [(&str, &[u8]); 2] = [("x-user", b"ada"), ("x-debug", b"1")];
        let change = |key: &str, value: Option<&str>| {
            (key.to_owned(), value.map(|value| value.as_bytes().to_vec()))
        };
        let mut metadata = vec![
            change("x-tenant", Some("acme")),
            change("x-debug", None),
            change("x-for", Some("ada")),
        ];
        let done = |metadata| {
            Answer::Effects(Done {
                metadata,
                ..Done::default()
            })
        };
        let answer = desk.request_with("a.B/C", &[], &pairs);
        assert_eq!(answer, done(metadata.clone()));
        assert_eq!(counter(0), 3);
        metadata.pop();
        assert_eq!(
            desk.request("a.B/C", &[]),
            done(metadata),
            "there is nothing to copy"
        );
    }

    #[test]
    fn an_edit_of_an_unlisted_key_is_refused() {
        for (edit, words) in [
            (
                r#"{"set": "b", "value": "1"}"#,
                r#""b", which metadata_changes doesn't list"#,
            ),
            (
                r#"{"copy": "b", "to": "a"}"#,
                r#""b", which metadata doesn't list"#,
            ),
            (
                r#"{"set": "a", "value": "é"}"#,
                r#""a" can't be set to "é""#,
            ),
            (
                r#"{"set": "a-bin", "value": "x"}"#,
                "can only be copied and removed",
            ),
            (
                r#"{"copy": "c-bin", "to": "a"}"#,
                r#""c-bin" has bytes, but "a" takes text"#,
            ),
        ] {
            let config = format!(
                r#"{{"metadata": ["c-bin"], "metadata_changes": ["a", "a-bin"], "edits": [{edit}]}}"#
            );
            let sentence = refused(&config);
            assert!(sentence.contains(words), "{sentence} lacks {words}");
        }
        assert!(refused(r#"{"metadata_changes": [], "edits": []}"#).contains("there are no edits"));
    }
}

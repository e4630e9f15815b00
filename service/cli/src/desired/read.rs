//! Reads documents from files and directories. Every error names the file, and the line if the
//! parser knows it.

use std::path::{Path, PathBuf};

use tollgate_schema::spelling::did_serde_mean;
use tollgate_shm_abi::status::Code;
use tollgate_shm_abi::text::point_at;

use crate::desired::model::Document;
use crate::failure::Failure;
use crate::input::read_at_most;
use crate::limits::{MAX_DOCUMENT_BYTES, MAX_DOCUMENT_FILES};

/// A document, and the file that it is from.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) path: PathBuf,
    pub(super) document: Document,
}

/// Reads all documents of files and directories, in the order of their names.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<Read>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(in_directory(path)?),
            false => files.push(path.clone()),
        }
    }
    if files.len() > MAX_DOCUMENT_FILES {
        let sentence = format!(
            "there are {} files of documents; the limit is {MAX_DOCUMENT_FILES}",
            files.len()
        );
        return Err(Failure::new(Code::RESOURCE_EXHAUSTED, sentence));
    }
    let mut documents = Vec::new();
    for path in files {
        for document in in_file(&path)? {
            let path = path.clone();
            documents.push(Read { path, document });
        }
    }
    Ok(documents)
}

/// A directory's files of documents.
fn in_directory(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| Failure::file(directory, &error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if format_of(&path).is_some() && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    match files.is_empty() {
        false => Ok(files),
        true => Err(Failure::input(format_args!(
            "the directory {} has no file *.toml, *.yaml or *.yml",
            directory.display()
        ))),
    }
}

enum Kind {
    Toml,
    Yaml,
}

fn format_of(path: &Path) -> Option<Kind> {
    match path.extension()?.to_str()? {
        "toml" => Some(Kind::Toml),
        "yaml" | "yml" => Some(Kind::Yaml),
        _ => None,
    }
}

/// A file's documents.
fn in_file(path: &Path) -> Result<Vec<Document>, Failure> {
    let shown = path.display();
    let Some(kind) = format_of(path) else {
        let sentence = format!("{shown} is neither TOML nor YAML by its name");
        return Err(Failure::input(sentence).hint("a name that ends with .toml, .yaml or .yml"));
    };
    let text = read_at_most(path, MAX_DOCUMENT_BYTES)?;
    let text = String::from_utf8(text);
    let text = text.map_err(|_| Failure::input(format_args!("{shown} isn't UTF-8")))?;
    match kind {
        Kind::Toml => {
            let document = toml::from_str(&text).map_err(|error| {
                let (line, _, excerpt) = point_at(&text, error.span().unwrap_or_default());
                let message = error.message().trim_end().replace('\n', ", ");
                let meant = did_serde_mean(&message);
                let sentence = format!("{shown}, line {line}: {message}{meant}");
                Failure::excerpt(sentence, &excerpt)
            })?;
            Ok(vec![document])
        }
        Kind::Yaml => serde_saphyr::from_multiple(&text).map_err(|error| {
            let (mut line, mut said_again) = (String::new(), String::new());
            if let Some(place) = error.location() {
                line = format!(", line {}", place.line());
                said_again = format!(" at line {}, column {}", place.line(), place.column());
            }
            let error = error.without_snippet();
            let mut message = error.to_string().replace('\n', ", ");
            if let Some(end) = message.strip_suffix(&said_again).map(str::len) {
                message.truncate(end);
            }
            if matches!(error, serde_saphyr::Error::NullIntoString { .. }) {
                message = "the value is empty or null: write a text, in quotes if it is \"null\""
                    .to_owned();
            }
            let meant = did_serde_mean(&message);
            Failure::input(format_args!("{shown}{line}: {message}{meant}"))
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_and_their_number_have_limits() {
        let directory = tempfile::tempdir().unwrap();
        let file = |k: usize| directory.path().join(format!("{k}.toml"));
        for k in 0..MAX_DOCUMENT_FILES {
            std::fs::write(file(k), "").unwrap();
        }
        let paths = [directory.path().to_owned()];
        assert_eq!(read(&paths).unwrap().len(), MAX_DOCUMENT_FILES);
        std::fs::write(file(MAX_DOCUMENT_FILES), "").unwrap();
        let refused = read(&paths).unwrap_err();
        assert_eq!(refused.code(), Code::RESOURCE_EXHAUSTED, "{refused}");
        let long = std::fs::File::create(file(0)).unwrap();
        long.set_len(MAX_DOCUMENT_BYTES + 1).unwrap();
        let refused = read(&[file(0)]).unwrap_err();
        assert_eq!(refused.code(), Code::RESOURCE_EXHAUSTED, "{refused}");
    }

    #[test]
    fn errors_in_yaml_name_the_line_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.yaml");
        for (text, said) in [
            (
                "tenants:\n- name: null\n",
                "line 2: the value is empty or null: write a text, in quotes if it is \"null\"",
            ),
            (
                "tenants:\n- name: a\n  nmae: b\n",
                "line 3: unknown field `nmae`, expected one of name, ceiling, credentials",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let refused = read(std::slice::from_ref(&file)).unwrap_err().sentence();
            assert!(refused.contains(said), "{refused}");
            assert_eq!(refused.matches("line ").count(), 1, "{refused}");
        }
    }

    #[test]
    fn aliases_do_not_multiply() {
        let directory = tempfile::tempdir().unwrap();
        let mut text = "settings:\n  a0: &a0 [x, x]\n".to_owned();
        for k in 1..40 {
            let last = k - 1;
            text += &format!("  a{k}: &a{k} [*a{last}, *a{last}]\n");
        }
        let file = directory.path().join("bomb.yaml");
        std::fs::write(&file, text).unwrap();
        let refused = read(&[file]).unwrap_err();
        assert_eq!(refused.code(), Code::INVALID_ARGUMENT, "{refused}");
    }
}

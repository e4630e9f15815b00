//! Writes a project's directory: complete, or not at all.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tollgate_shm_abi::status::Code;

use crate::failure::Failure;

/// A file: its path in the project, and its content.
pub(crate) type File = (PathBuf, String);

/// Refuses a directory that exists, whatever it is.
pub(crate) fn check_absent(directory: &Path) -> Result<(), Failure> {
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::file(directory, &error)),
        Ok(_) => {
            let sentence = format!("{} exists already", directory.display());
            Err(Failure::new(Code::ALREADY_EXISTS, sentence).hint("another name, or delete it"))
        }
    }
}

/// Writes all files beside the directory first, and renames them to it in one step.
pub(crate) fn write(directory: &Path, files: &[File]) -> Result<(), Failure> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = directory.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = fs::create_dir(&unfinished).and_then(|()| {
        let written =
            write_all(&unfinished, files).and_then(|()| fs::rename(&unfinished, directory));
        if written.is_err() {
            // The first error is the one to report.
            let _removed = fs::remove_dir_all(&unfinished);
        }
        written
    });
    written.map_err(|error| {
        let sentence = format!("{} can't be made: {error}", directory.display());
        Failure::new(Failure::code_of(&error), sentence)
    })
}

fn write_all(directory: &Path, files: &[File]) -> std::io::Result<()> {
    for (path, content) in files {
        let path = directory.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_directory_is_complete_or_absent() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("guard");
        let files = [("a".into(), "1".to_owned()), ("b/c".into(), "2".to_owned())];
        write(&directory, &files).unwrap();
        assert_eq!(fs::read_to_string(directory.join("b/c")).unwrap(), "2");
        assert_eq!(names(place.path()), ["guard"]);

        // The second file can't be written, because the first is no directory.
        let impossible = [("a".into(), String::new()), ("a/b".into(), String::new())];
        let other = place.path().join("other");
        let failure = write(&other, &impossible).unwrap_err();
        assert!(
            failure.to_string().contains("other can't be made"),
            "{failure}"
        );
        assert_eq!(names(place.path()), ["guard"]);
    }

    #[test]
    fn what_exists_stays() {
        let place = tempfile::tempdir().unwrap();
        let taken = place.path().join("guard");
        assert_eq!(check_absent(&taken), Ok(()));
        std::os::unix::fs::symlink("nowhere", &taken).unwrap();
        let refused = check_absent(&taken).unwrap_err();
        assert_eq!(refused.code(), Code::ALREADY_EXISTS);
        fs::remove_file(&taken).unwrap();
        fs::create_dir(&taken).unwrap();
        fs::write(taken.join("mine"), "mine").unwrap();
        assert_eq!(
            check_absent(&taken).unwrap_err().code(),
            Code::ALREADY_EXISTS
        );
        // Also if it comes between the check and the end.
        write(&taken, &[("a".into(), String::new())]).unwrap_err();
        assert_eq!(names(&taken), ["mine"]);
        assert_eq!(names(place.path()), ["guard"]);
    }
}

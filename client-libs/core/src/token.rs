//! Where a program gets its tenant's token from. It doesn't take the token from its command line,
//! which every user of the host can read.
//!
//! ```text
//!   TOLLGATE_TOKEN        the token itself
//!   TOLLGATE_TOKEN_FILE   the path of a file with it, if the former isn't set
//! ```
//!
//! If neither is set, and the daemon is one for development, the token is in that daemon's
//! directory.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tollgate_shm_abi::Code;

use crate::Status;
use crate::dev;
use crate::limits::MAX_TOKEN_BYTES;

/// The environment variable with the token.
pub const TOKEN: &str = "TOLLGATE_TOKEN";

/// The environment variable with the path of a token file.
pub const TOKEN_FILE: &str = "TOLLGATE_TOKEN_FILE";

/// The permission bit of users other than the owner and the group.
const OTHERS_READ: u32 = 0o004;

/// A token, and a warning for its user. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    value: String,
    /// A warning of one sentence: others can read the file.
    pub warning: Option<String>,
}

impl Token {
    /// The token itself, for [`SessionOptions::new`](crate::SessionOptions::new).
    pub fn reveal(self) -> String {
        self.value
    }
}

/// Never prints the token.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("warning", &self.warning)
            .finish_non_exhaustive()
    }
}

/// The token for a daemon: that of the environment, or, if it has none and the socket is that of
/// this user's daemon for development, that daemon's.
///
/// # Errors
/// The same as [`from_file`].
pub fn find(socket: &Path) -> Result<Option<Token>, Status> {
    match from_env()? {
        Some(token) => Ok(Some(token)),
        None => dev::token_file(socket)
            .map(|path| from_file(&path))
            .transpose(),
    }
}

/// The token of the environment; `None` if neither variable is set, or the set one is empty.
///
/// # Errors
/// The same as [`from_file`].
pub fn from_env() -> Result<Option<Token>, Status> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(value) = set(TOKEN) {
        let value = value.into_string();
        let value = value.map_err(|_| invalid(format!("{TOKEN} isn't text")))?;
        return Ok(Some(Token {
            value: of_text(&value, TOKEN)?,
            warning: None,
        }));
    }
    set(TOKEN_FILE)
        .map(|path| from_file(Path::new(&path)))
        .transpose()
}

/// The token in a file that contains nothing else; `-` is standard input.
///
/// # Errors
/// NOT_FOUND: there is no such file. PERMISSION_DENIED: this user may not read it.
/// INVALID_ARGUMENT: it has no token, or more than one, or can't be read.
pub fn from_file(path: &Path) -> Result<Token, Status> {
    if path == Path::new("-") {
        return from_reader(std::io::stdin().lock(), "standard input");
    }
    let shown = path.display();
    let unreadable = |error| unreadable(&format!("the token file {shown}"), &error);
    let file = File::open(path).map_err(unreadable)?;
    let kind = file.metadata().map_err(unreadable)?;
    let token = from_reader(file, &format!("the token file {shown}"))?;
    let mode = kind.permissions().mode() & 0o777;
    let is_open = kind.is_file() && mode & OTHERS_READ != 0;
    let warning = || {
        format!(
            "every user of this host can read the token in {shown} (mode {mode:04o}): chmod 600 {shown}"
        )
    };
    Ok(Token {
        warning: is_open.then(warning),
        ..token
    })
}

fn from_reader(reader: impl Read, what: &str) -> Result<Token, Status> {
    let mut text = String::new();
    let mut limited = reader.take(MAX_TOKEN_BYTES as u64 + 1);
    let read = limited.read_to_string(&mut text);
    read.map_err(|error| unreadable(what, &error))?;
    Ok(Token {
        value: of_text(&text, what)?,
        warning: None,
    })
}

fn unreadable(what: &str, error: &std::io::Error) -> Status {
    let code = match error.kind() {
        ErrorKind::NotFound => Code::NOT_FOUND,
        ErrorKind::PermissionDenied => Code::PERMISSION_DENIED,
        _ => Code::INVALID_ARGUMENT,
    };
    Status::new(code, format!("{what} can't be read: {error}"))
}

/// The error doesn't show the text: it may be another secret.
fn of_text(text: &str, what: &str) -> Result<String, Status> {
    let token = text.trim();
    if token.is_empty() {
        return Err(invalid(format!(
            "{what} is empty: it must contain the token"
        )));
    }
    if text.len() > MAX_TOKEN_BYTES || token.contains(char::is_whitespace) {
        return Err(invalid(format!("{what} contains more than one token")));
    }
    Ok(token.to_owned())
}

fn invalid(text: String) -> Status {
    Status::new(Code::INVALID_ARGUMENT, text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{Permissions, set_permissions, write};

    use super::*;

    #[test]
    fn a_token_is_read_from_a_file_and_others_that_can_too_are_a_warning() {
        let directory = std::env::temp_dir().join(format!("tollgate-token-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("token");
        let read = |text: &str, mode: u32| {
            write(&path, text).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            from_file(&path)
        };
        let token = read("  tg_abc\r\n", 0o600).unwrap();
        assert_eq!(
            (token.warning.as_ref(), token.clone().reveal().as_str()),
            (None, "tg_abc")
        );
        assert!(!format!("{token:?}").contains("abc"));
        assert_eq!(read("tg_abc", 0o640).unwrap().warning, None);
        let warning = read("tg_abc", 0o644).unwrap().warning.unwrap();
        assert!(warning.contains("(mode 0644): chmod 600 "), "{warning}");
        let long = "x".repeat(MAX_TOKEN_BYTES + 1);
        for (text, why) in [
            ("", "is empty: it must contain the token"),
            (" \n", "is empty: it must contain the token"),
            ("tg_secret and", "contains more than one token"),
            (long.as_str(), "contains more than one token"),
        ] {
            let refused = read(text, 0o600).unwrap_err();
            assert_eq!(refused.code, Code::INVALID_ARGUMENT);
            assert!(refused.message.ends_with(why), "{refused}");
            assert!(!refused.message.contains("secret"), "{refused}");
        }
        let missing = from_file(&directory.join("none")).unwrap_err();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(missing.code, Code::NOT_FOUND);
        let said = "none can't be read: No such file";
        assert!(missing.message.contains(said), "{missing}");
    }
}

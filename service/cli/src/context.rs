//! `tollgate context …`: daemons and tokens by name, so that commands needn't repeat them.
//!
//! The contexts are in `$XDG_CONFIG_HOME/tollgate/config.toml`, by default
//! `~/.config/tollgate/config.toml`. A context names a socket, or an address on the network, and a
//! token file. The token itself stays in its file, so that a rotated token is read again; a token
//! from standard input gets a file beside the contexts.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tollgate::token;
use tollgate_schema::spelling::did_you_mean;
use tollgate_shm_abi::secret::has_token;
use tollgate_shm_abi::status::Code;

use crate::api::Remote;
use crate::failure::Failure;
use crate::limits::MAX_CONTEXTS_BYTES;
use crate::render::lines;
use crate::{output, private_file};

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List the contexts; the one in use has an asterisk
    List,
    /// Use a context in commands that name no socket
    Use {
        /// The context
        name: String,
    },
    /// Use no context
    Unuse,
    /// Add a context, or replace it, and use it if it is the first
    Add(Add),
    /// Remove a context, and the token file that `add` made for it
    Remove {
        /// The context
        name: String,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tollgate context add acme --token-file ~/acme.token\n          \
         tollgate context add acme --token-file - < acme.token\n          \
         tollgate context add prod --endpoint https://tollgate.example:7443 --ca ca.pem --token-file ~/prod.token\n          \
         tollgate --context acme policy list"
)]
pub(crate) struct Add {
    /// The context's name: letters, digits, `-`, `_` and `.`; at most 64
    name: String,
    /// A file with a tenant's token; `-` is standard input, and its token is kept beside the
    /// contexts. Without a token, commands act as this user
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    remote: Remote,
}

/// The contexts of this user.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contexts {
    /// The one in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// A daemon, and whom commands act as.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// The daemon's socket; none: the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) socket: Option<PathBuf>,
    /// The daemon's address, if it is one on the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<String>,
    /// See `--ca`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// See `--certificate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    /// See `--key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// The file with a tenant's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
}

/// The context of this name, or the one in use, if there is one.
pub(crate) fn find(name: Option<&str>) -> Result<Option<Context>, Failure> {
    let Some(directory) = directory() else {
        return match name {
            None => Ok(None),
            Some(name) => Err(missing(name, &Contexts::default())),
        };
    };
    let contexts = read(&directory)?;
    let Some(name) = name.or(contexts.current.as_deref()) else {
        return Ok(None);
    };
    let found = contexts.contexts.get(name).cloned();
    found.map(Some).ok_or_else(|| missing(name, &contexts))
}

/// `tollgate context …`; `socket` is the one that the command line has.
pub(crate) fn context(socket: Option<&Path>, command: &ContextCommand) -> Result<String, Failure> {
    let directory = directory().ok_or_else(|| {
        Failure::new(
            Code::FAILED_PRECONDITION,
            "contexts have no place: neither XDG_CONFIG_HOME nor HOME is set",
        )
    })?;
    let mut contexts = read(&directory)?;
    match command {
        ContextCommand::List => return Ok(list(&contexts)),
        ContextCommand::Use { name } => {
            require(name, &contexts)?;
            contexts.current = Some(name.clone());
        }
        ContextCommand::Unuse => contexts.current = None,
        ContextCommand::Add(add) => {
            let added = added(&directory, socket, add)?;
            contexts.contexts.insert(add.name.clone(), added);
            contexts.current.get_or_insert_with(|| add.name.clone());
        }
        ContextCommand::Remove { name } => {
            require(name, &contexts)?;
            let removed = contexts.contexts.remove(name);
            contexts.current.take_if(|current| current == name);
            let its = removed.and_then(|removed| removed.token_file);
            if its.as_ref() == Some(&token_file(&directory, name)) {
                let _already_gone = std::fs::remove_file(token_file(&directory, name));
            }
        }
    }
    write(&directory, &contexts)?;
    Ok(String::new())
}

/// The context that a command line describes. A token from standard input gets its file.
fn added(directory: &Path, socket: Option<&Path>, add: &Add) -> Result<Context, Failure> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=64).contains(&add.name.len()) || !add.name.bytes().all(is_name) || has_token(&add.name)
    {
        let sentence = format!(
            "{:?} isn't a context's name: use 1 to 64 letters, digits, '-', '_' and '.'",
            add.name
        );
        return Err(Failure::input(sentence));
    }
    add.remote.check()?;
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|error| Failure::file(path, &error));
    let its = match &add.token_file {
        None => None,
        Some(path) => {
            let failed = |status: tollgate::Status| Failure::new(status.code(), status.message());
            let token = token::from_file(path).map_err(failed)?;
            if path == Path::new("-") {
                let kept = token_file(directory, &add.name);
                replace(directory, &kept, &token.reveal())?;
                Some(kept)
            } else {
                Some(absolute(path)?)
            }
        }
    };
    let remote = &add.remote;
    let kept = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
    Ok(Context {
        socket: match remote.endpoint() {
            None => socket.map(absolute).transpose()?,
            Some(_) => None,
        },
        endpoint: remote.endpoint().map(str::to_owned),
        ca: kept(&remote.ca)?,
        certificate: kept(&remote.certificate)?,
        key: kept(&remote.key)?,
        token_file: its,
    })
}

fn list(contexts: &Contexts) -> String {
    let row = |(name, context): (&String, &Context)| {
        let mark = match contexts.current.as_ref() == Some(name) {
            true => "*",
            false => " ",
        };
        let shown = |path: &Option<PathBuf>, none: &str| match path {
            Some(path) => output::plain(&path.display().to_string()).into_owned(),
            None => none.to_owned(),
        };
        let at = match &context.endpoint {
            Some(endpoint) => output::plain(endpoint).into_owned(),
            None => shown(&context.socket, "the default socket"),
        };
        let token = match &context.certificate {
            Some(certificate) if context.token_file.is_none() => {
                shown(&Some(certificate.clone()), "")
            }
            _ if context.endpoint.is_some() => shown(&context.token_file, "no token"),
            _ => shown(&context.token_file, "as this user"),
        };
        format!("{mark} {}  {at}  {token}", output::plain(name))
    };
    let rows: Vec<_> = contexts.contexts.iter().map(row).collect();
    lines(&rows)
}

fn require(name: &str, contexts: &Contexts) -> Result<(), Failure> {
    match contexts.contexts.contains_key(name) {
        true => Ok(()),
        false => Err(missing(name, contexts)),
    }
}

fn missing(name: &str, contexts: &Contexts) -> Failure {
    let meant = did_you_mean(name, contexts.contexts.keys().map(String::as_str));
    let sentence = format!("there is no context {name:?}{meant}");
    Failure::new(Code::NOT_FOUND, sentence).hint("tollgate context list")
}

// ---- the file ----

/// The directory of the contexts.
fn directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let config = match set("XDG_CONFIG_HOME") {
        Some(config) => PathBuf::from(config),
        None => PathBuf::from(set("HOME")?).join(".config"),
    };
    Some(config.join("tollgate"))
}

fn file(directory: &Path) -> PathBuf {
    directory.join("config.toml")
}

fn token_file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.token"))
}

/// The contexts; none if there is no file. A file of another user, or one that others may write,
/// could send this user's requests to another daemon.
fn read(directory: &Path) -> Result<Contexts, Failure> {
    let path = file(directory);
    let found = match std::fs::metadata(&path) {
        Ok(found) => found,
        // Of a home that isn't this user's, there are none either.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(Contexts::default());
        }
        Err(error) => return Err(Failure::file(&path, &error)),
    };
    let shown = path.display();
    if ![0, geteuid().as_raw()].contains(&found.uid()) || found.mode() & 0o022 != 0 {
        let sentence = format!("other users can change the contexts in {shown}");
        let hint = format!("chmod 600 {shown}, as its owner");
        return Err(Failure::new(Code::PERMISSION_DENIED, sentence).hint(hint));
    }
    if found.len() > MAX_CONTEXTS_BYTES {
        let sentence = format!("{shown} has more than {MAX_CONTEXTS_BYTES} bytes");
        return Err(Failure::new(Code::RESOURCE_EXHAUSTED, sentence));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::file(&path, &error))?;
    let parsed = toml::from_str(&text);
    parsed.map_err(|error| Failure::input(format_args!("{shown}: {}", error.message())))
}

fn write(directory: &Path, contexts: &Contexts) -> Result<(), Failure> {
    let text = toml::to_string(contexts);
    let text = text.map_err(|error| Failure::input(format_args!("the contexts: {error}")))?;
    replace(directory, &file(directory), &text)
}

/// Replaces a file by one that only this user can read.
fn replace(directory: &Path, path: &Path, text: &str) -> Result<(), Failure> {
    let created = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    created.map_err(|error| {
        let sentence = format!("{} can't be created: {error}", directory.display());
        Failure::new(Failure::code_of(&error), sentence)
    })?;
    private_file::replace(path, text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn contexts_are_kept_privately_and_read_again() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("tollgate");
        assert_eq!(read(&directory).unwrap(), Contexts::default());
        let mut contexts = Contexts::default();
        let acme = Context {
            socket: Some("/run/a.sock".into()),
            ..Context::default()
        };
        contexts.contexts.insert("acme".to_owned(), acme);
        contexts.current = Some("acme".to_owned());
        write(&directory, &contexts).unwrap();
        write(&directory, &contexts).unwrap();
        assert_eq!(read(&directory).unwrap(), contexts);
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&file(&directory))), (0o700, 0o600));
        assert_eq!(list(&contexts), "* acme  /run/a.sock  as this user\n");
        let far = Context {
            endpoint: Some("https://a:1".to_owned()),
            ..Context::default()
        };
        let far = Contexts {
            current: None,
            contexts: BTreeMap::from([("far".to_owned(), far)]),
        };
        assert_eq!(list(&far), "  far  https://a:1  no token\n");
        let open = std::fs::Permissions::from_mode(0o622);
        std::fs::set_permissions(file(&directory), open).unwrap();
        assert_eq!(
            read(&directory).unwrap_err().code(),
            Code::PERMISSION_DENIED
        );
    }

    #[test]
    fn a_file_that_is_not_understood_is_named() {
        let place = tempfile::tempdir().unwrap();
        for wrong in ["current = 1", "contexts = 7", "[contexts.a]\nport = 1", "]"] {
            replace(place.path(), &file(place.path()), wrong).unwrap();
            let refused = read(place.path()).unwrap_err();
            assert_eq!(refused.code(), Code::INVALID_ARGUMENT, "{wrong}");
            assert!(
                refused.sentence().contains("config.toml: "),
                "{}",
                refused.sentence()
            );
        }
        let long = " ".repeat(MAX_CONTEXTS_BYTES as usize + 1);
        replace(place.path(), &file(place.path()), &long).unwrap();
        assert_eq!(
            read(place.path()).unwrap_err().code(),
            Code::RESOURCE_EXHAUSTED
        );
    }

    #[test]
    fn a_missing_context_is_named_with_its_neighbour() {
        let mut contexts = Contexts::default();
        contexts
            .contexts
            .insert("acme".to_owned(), Context::default());
        let refused = missing("acne", &contexts);
        assert_eq!(refused.code(), Code::NOT_FOUND);
        assert!(
            refused.sentence().contains("acme"),
            "{}",
            refused.sentence()
        );
    }
}

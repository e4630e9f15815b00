//! Where `call` and `serve` get the tenant's token from: `--token-file`, `--token`, or the
//! environment.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use tollgate::token::{self, TOKEN, TOKEN_FILE};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::stderr::warn;

/// Where the tenant's token is. Left out, it is in the environment: TOLLGATE_TOKEN has it, or
/// TOLLGATE_TOKEN_FILE a file's path.
#[derive(Debug, Args)]
pub(crate) struct Token {
    /// A file with the tenant's token, as `tenant add` printed it; `-` is standard input. If left
    /// out, the environment has the token in TOLLGATE_TOKEN, or the path of a file with it in
    /// TOLLGATE_TOKEN_FILE
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// The token itself. Every user of this host can see it: prefer TOLLGATE_TOKEN or --token-file
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<Secret>,
}

/// A string that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Secret(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The token for the daemon at this socket. Warns if others can see it. If the token comes from
/// standard input, no other argument may.
pub(crate) fn token(socket: &Path, args: &Token, others: &[&str]) -> Result<String, Failure> {
    let failed = |status: tollgate::Status| Failure::new(status.code(), status.message());
    if let Some(token) = &args.token {
        warn(&format!(
            "every user of this host can see --token: use {TOKEN} in the environment or --token-file FILE instead"
        ));
        return Ok(token.0.clone());
    }
    let found = match &args.token_file {
        Some(path) if path == Path::new("-") && others.contains(&"-") => {
            let sentence = "standard input can't have both the token and messages";
            return Err(Failure::input(sentence).hint("--token-file FILE, with a file's name"));
        }
        Some(path) => Some(token::from_file(path).map_err(failed)?),
        None => token::find(socket).map_err(failed)?,
    };
    let found = found.ok_or_else(|| {
        let at = socket.display();
        let sentence = format!(
            "there is no token for the daemon at {at}: neither {TOKEN} nor {TOKEN_FILE} is set"
        );
        Failure::new(Code::UNAUTHENTICATED, sentence)
            .hint("--token-file FILE, with what `tollgate tenant add NAME` printed")
    })?;
    if let Some(warning) = &found.warning {
        warn(warning);
    }
    Ok(found.reveal())
}

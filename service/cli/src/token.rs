//! Where `call` and `serve` have the tenant's token from: `--token-file`, `--token`, or the environment.

use std::path::Path;

use tollgate::token::{self, TOKEN, TOKEN_FILE};
use tollgate_shm_abi::status::Code;

use crate::args::Token;
use crate::failure::Failure;
use crate::stderr::warn;

/// The token; warns where others can see it. Of the other arguments none may be standard input, too, if it is.
pub(crate) fn token(args: &Token, others: &[&str]) -> Result<String, Failure> {
    let failed = |status: tollgate::Status| Failure::new(status.code(), status.message());
    if let Some(token) = &args.token {
        warn(&format!(
            "every user of this host can see --token: {TOKEN} in the environment or --token-file FILE keeps it from them"
        ));
        return Ok(token.0.clone());
    }
    let found = match &args.token_file {
        Some(path) if path == Path::new("-") && others.contains(&"-") => {
            let sentence = "standard input can't have both the token and messages";
            return Err(Failure::input(sentence).hint("--token-file FILE, with a file's name"));
        }
        Some(path) => Some(token::from_file(path).map_err(failed)?),
        None => token::from_env().map_err(failed)?,
    };
    let found = found.ok_or_else(|| {
        let sentence =
            format!("there is no tenant's token: neither {TOKEN} nor {TOKEN_FILE} is set");
        Failure::new(Code::INVALID_ARGUMENT, sentence)
            .hint("--token-file FILE, with what `tollgate tenant add NAME` printed")
    })?;
    if let Some(warning) = &found.warning {
        warn(warning);
    }
    Ok(found.reveal())
}

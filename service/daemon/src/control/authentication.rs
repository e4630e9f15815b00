//! Who has a token.
//!
//! Wrong tokens of a user are paced ([`super::guesses`]). A right one is never delayed: a program
//! that still has an old token doesn't lock out the user's other programs.

use std::time::Instant;

use serde_json::json;
use tollgate_control::audit::{Actor, Event};
use tollgate_control::{Identity, TokenDigest};
use tollgate_datapath::log_limited;
use tollgate_engine::Status;
use tollgate_shm_abi::status::Code;

use crate::config::Config;
use crate::control::guesses::Pace;
use crate::control::refusals::store_failed;
use crate::control::state::Control;
use crate::control::this_process::ThisProcess;
use crate::limits::{GUESS_PAUSE, GUESSES_AT_ONCE};

/// The bearer of a token, which a process of a user has sent.
///
/// # Errors
/// UNAUTHENTICATED: the token is wrong. INTERNAL: the store failed.
pub(super) async fn authenticate(
    control: &Control,
    (user, process): (u32, i32),
    token: &TokenDigest,
) -> Result<Identity, Status> {
    let store = control.changes.store();
    let found = store.identity_of(token);
    if let Some(identity) = found.map_err(|error| store_failed(&error))? {
        return Ok(identity);
    }
    let forgotten = forgotten(&control.config(), &control.process);
    let mut text = format!(
        "the token belongs to no tenant of this daemon{forgotten}: `tollgate tenant add` and `tollgate tenant rotate` print one"
    );
    log_limited!(
        warn,
        "not let in",
        "",
        "process {process} was rejected: {text}"
    );
    if let Pace::Slow { is_first } = control.guesses.wrong(Instant::now(), user) {
        if is_first {
            let details = json!({"user": user, "process": process, "tokens": GUESSES_AT_ONCE});
            // Without a record, the guesses are slow all the same.
            let _readable_only = store.record(Actor::Daemon, Event::Guesses, details);
        }
        let pause = GUESS_PAUSE.as_secs();
        text += &format!("; user {user} sends wrong tokens, so each answer takes {pause} s");
        tokio::time::sleep(GUESS_PAUSE).await;
    }
    Err(Status::new(Code::UNAUTHENTICATED, text))
}

/// Why a token that was valid may no longer be.
pub(super) fn forgotten(config: &Config, process: &ThisProcess) -> String {
    if config.state.is_some() {
        return ", or was rotated or revoked, or has expired".to_owned();
    }
    format!(
        ", which keeps no state (it runs without --state) and was started at {}: earlier tenants and tokens are lost",
        process.state_since
    )
}

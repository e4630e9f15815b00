//! Who has a token.
//!
//! Wrong tokens of a user or network are paced ([`super::guesses`]). A right one is never delayed:
//! a program that still has an old token doesn't lock out the others.

use std::time::Instant;

use serde_json::json;
use tollgate_admin::server::Peer;
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

/// The bearer of a token that came from this peer.
///
/// # Errors
/// UNAUTHENTICATED: the token is wrong. INTERNAL: the store failed.
pub(super) async fn authenticate(
    control: &Control,
    peer: &Peer,
    token: &TokenDigest,
) -> Result<Identity, Status> {
    let store = control.changes.store();
    let found = store.identity_of(token);
    if let Some(identity) = found.map_err(|error| store_failed(&error))? {
        return Ok(identity);
    }
    let forgotten = forgotten(&control.config(), &control.process);
    let from = match peer {
        Peer::Process { pid, .. } => format!("process {pid}"),
        Peer::Remote { address, .. } => format!("the client at {address}"),
    };
    let origin = peer.origin();
    let mut text = format!(
        "the token belongs to no tenant of this daemon{forgotten}: an owner makes one (`tollgate credential add` or `rotate`), and so does an operator (`tollgate tenant rotate`)"
    );
    log_limited!(warn, "not let in", "", "{from} was rejected: {text}");
    if let Pace::Slow { is_first } = control.guesses.wrong(Instant::now(), origin) {
        if is_first {
            let details = match peer {
                Peer::Process { uid, pid } => {
                    json!({"user": uid, "process": pid, "tokens": GUESSES_AT_ONCE})
                }
                Peer::Remote { .. } => {
                    json!({"origin": origin.to_string(), "tokens": GUESSES_AT_ONCE})
                }
            };
            // Without a record, the guesses are slow all the same.
            let _readable_only = store.record(Actor::Daemon, Event::Guesses, details);
        }
        let pause = GUESS_PAUSE.as_secs();
        text += &format!("; {origin} sends wrong tokens, so each answer takes {pause} s");
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

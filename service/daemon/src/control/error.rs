//! Errors that keep a daemon from starting, or stop it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tollgate_control::StoreError;
use tollgate_engine::Status;
use tollgate_engine::limits::MAX_ENGINE_IDS;
use tollgate_policy_host::{CompilerError, ConfineError, HostError};

use crate::control::takeover::error::TakeOverError;

/// What is wrong with a part of the configuration: the system's error, or a sentence that says what
/// to do.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a daemon doesn't start, or stops: a sentence for the operator.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each sentence defines its fields")]
pub enum DaemonError {
    #[error("this process can't be confined: {0}")]
    Confine(#[from] ConfineError),
    #[error("{what}: {error}")]
    System {
        what: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("the policy host can't start: {0}")]
    Host(#[from] HostError),
    #[error("policies can't be compiled: {0}")]
    Compiler(#[from] CompilerError),
    #[error("a runtime doesn't work: {}", .0.message)]
    Runtime(Status),
    #[error("{what} panicked; this is a bug, please report it")]
    Panicked { what: &'static str },
    #[error(
        "this daemon and its predecessors have started {MAX_ENGINE_IDS} runtimes, which is the limit: restart it"
    )]
    EngineIds,
    #[error("the store can't be {done}: {error}")]
    Store {
        done: &'static str,
        #[source]
        error: StoreError,
    },
    #[error("the token of the tenant for development can't be kept in {}: {error}", .path.display())]
    DevToken {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("the state directory {} isn't safe: {why}", .directory.display())]
    StateDirectory { directory: PathBuf, why: String },
    #[error("a policy can't be installed: {}", .0.message)]
    Policy(Status),
    #[error("{key} = {value:?}: {why}")]
    Setting {
        key: &'static str,
        value: String,
        why: Cause,
    },
    #[error("the key in {} can't be used: {why}", .path.display())]
    Key { path: PathBuf, why: Cause },
    #[error(
        "the key file can't be read, and its path isn't shown because it may be the key; psk_file takes a path: {0}"
    )]
    KeyPath(#[source] io::Error),
    #[error(
        "listening for peers on {0} needs a key, because without one anybody could act for any tenant: \
         create one file for all daemons with `openssl rand -base64 32` and name it with --psk-file, or listen on 127.0.0.1"
    )]
    NoKey(SocketAddr),
    #[error("the descriptor set in {} can't be prefetched: {why}", .path.display())]
    Prefetch { path: PathBuf, why: Cause },
    #[error("telemetry can't be exported: {0}")]
    Telemetry(Cause),
    #[error("can't listen on {}: {why}", .path.display())]
    Socket { path: PathBuf, why: Cause },
    #[error("can't listen for peers on {address}: {error}")]
    Listen {
        address: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error("can't listen for administration on {address}: {error}")]
    AdminListen {
        address: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error("the administrative API can't be served over TLS: {0}")]
    AdminTls(String),
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
}

pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> DaemonError {
    move |error| DaemonError::System { what, error }
}

pub(super) fn store(done: &'static str) -> impl Fn(StoreError) -> DaemonError {
    move |error| DaemonError::Store { done, error }
}

//! The daemon's administrative API, as an operator or as the bearer of a tenant's token.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde_json::Value;
use tollgate::token::{self, TOKEN, TOKEN_FILE};
use tollgate_admin::client::{self, Client, Unary, Watched};
use tollgate_admin::proto::{
    self, AppliedState, ApplyStateStep, PushPolicyStep, PushedPolicy, UpgradeDaemonRequest,
    UpgradeDaemonStep,
};
use tollgate_admin::{ApplyOrder, PushOrder, Secret, Status, socket_beside};
use tollgate_shm_abi::control::{self, ControlSocket};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::stderr::warn;
use crate::values::Side;

/// How long the daemon may take for one answer. Compiling a large policy takes the longest.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Whom a command acts as.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Acting {
    /// Act as the bearer of the token in this file, for its tenant; `-` is standard input. If left
    /// out, the environment may have a token in TOLLGATE_TOKEN, or the path of a file with it in
    /// TOLLGATE_TOKEN_FILE. Without a token, the command acts as this user, who has to be an
    /// operator
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// A daemon on the network.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Remote {
    /// The daemon at this address, `https://HOST:PORT`, in place of one on this host. Its
    /// configuration has it as `admin.listen`. Needs a token or a certificate
    #[arg(long, value_name = "URL", global = true, env = ENDPOINT)]
    pub(crate) endpoint: Option<String>,
    /// File with the authorities that may have signed that daemon's certificate, in PEM. Left out:
    /// those that the system trusts
    #[arg(long, value_name = "FILE", global = true, requires = "endpoint")]
    pub(crate) ca: Option<PathBuf>,
    /// File with this client's certificate and those up to its authority, in PEM
    #[arg(long, value_name = "FILE", global = true, requires_all = ["endpoint", "key"])]
    pub(crate) certificate: Option<PathBuf>,
    /// File with its key, in PEM
    #[arg(long, value_name = "FILE", global = true, requires_all = ["endpoint", "certificate"])]
    pub(crate) key: Option<PathBuf>,
}

/// The environment variable with a daemon's address on the network.
pub(crate) const ENDPOINT: &str = "TOLLGATE_ENDPOINT";

/// A connection to the API.
pub(crate) struct Api {
    client: Client,
    /// Whether there is a credential, whose tenant needn't be named.
    has_own: bool,
    /// The daemon's address, if it is one on the network.
    endpoint: Option<String>,
}

impl Acting {
    /// The token, if the command acts as a bearer.
    pub(crate) fn token(&self) -> Result<Option<Secret>, Failure> {
        let failed = |status: tollgate::Status| Failure::new(status.code(), status.message());
        let found = match &self.token_file {
            Some(path) => Some(token::from_file(path).map_err(failed)?),
            None => token::from_env().map_err(failed)?,
        };
        if let Some(warning) = found.as_ref().and_then(|found| found.warning.as_ref()) {
            warn(warning);
        }
        Ok(found.map(|found| Secret::new(found.reveal())))
    }
}

impl Remote {
    /// The address; an empty one counts as none.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        self.endpoint
            .as_deref()
            .filter(|endpoint| !endpoint.is_empty())
    }

    /// Fails if no command could use it: the address, or a file.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let remote = self.read()?;
        remote.map_or(Ok(()), |remote| remote.check().map_err(failure))
    }

    /// The host of the daemon, unless it is this one.
    pub(crate) fn other_host(&self) -> Option<&str> {
        let (_scheme, at) = self.endpoint()?.split_once("://")?;
        let (host, _port) = at.rsplit_once(':')?;
        (!client::is_loopback(host)).then_some(host)
    }

    /// The daemon on the network with what its files have; `None`: there is none.
    fn read(&self) -> Result<Option<client::Remote>, Failure> {
        let Some(endpoint) = self.endpoint() else {
            return Ok(None);
        };
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|error| Failure::file(path, &error));
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        Ok(Some(client::Remote {
            endpoint: endpoint.to_owned(),
            authorities: self.ca.as_ref().map(read).transpose()?,
            identity,
        }))
    }
}

/// The API's socket of the daemon at this one, which may be a link to the daemon's.
pub(crate) fn api_socket(socket: &Path) -> PathBuf {
    match std::fs::read_link(socket).and_then(|_link| socket.canonicalize()) {
        Ok(daemons) => socket_beside(&daemons),
        Err(_) => socket_beside(socket),
    }
}

/// The JSON of a report.
pub(crate) fn json_of(report: Option<prost_types::Struct>) -> Value {
    tollgate_admin::to_json(report.unwrap_or_default())
}

impl Api {
    /// Connects to the API of the daemon at this socket.
    pub(crate) fn connect(socket: &Path, acting: &Acting) -> Result<Api, Failure> {
        Api::connect_as(socket, &acting.remote, acting.token()?.as_ref())
    }

    /// Connects to a daemon of this host as this user.
    pub(crate) fn connect_here(socket: &Path) -> Result<Api, Failure> {
        Api::connect_as(socket, &Remote::default(), None)
    }

    /// Connects as the bearer of a token, by a certificate, or as this user.
    pub(crate) fn connect_as(
        socket: &Path,
        remote: &Remote,
        token: Option<&Secret>,
    ) -> Result<Api, Failure> {
        Api::connect_for(socket, remote, token, ANSWER_TIMEOUT)
    }

    /// Connects for requests that may take this long.
    pub(crate) fn connect_for(
        socket: &Path,
        remote: &Remote,
        token: Option<&Secret>,
        patience: Duration,
    ) -> Result<Api, Failure> {
        let client = match remote.read()? {
            Some(at) => Client::connect_remotely(&at, token, patience)
                .map_err(|status| untrusted(remote, status))?,
            None => {
                let client = Client::connect(&api_socket(socket), token, patience);
                client.map_err(|status| unconnected(socket, status))?
            }
        };
        let has_own = token.is_some() || remote.certificate.is_some();
        let endpoint = remote.endpoint().map(str::to_owned);
        Ok(Api {
            client,
            has_own,
            endpoint,
        })
    }

    /// The daemon's refusal; or the loss of the connection, with the address.
    fn failure(&self, status: Status) -> Failure {
        let lost = ["transport error", "h2 protocol error"];
        let is_lost = lost.iter().any(|words| status.message.starts_with(words));
        match &self.endpoint {
            Some(endpoint) if is_lost => lost_at(endpoint, status),
            _ => failure(status),
        }
    }

    /// One request, one answer; the daemon's refusal is the failure.
    pub(crate) fn ask<R: Unary>(&self, request: R) -> Result<R::Response, Failure> {
        self.client
            .ask(request)
            .map_err(|status| self.failure(status))
    }

    /// Pushes a policy.
    pub(crate) fn push(
        &self,
        order: PushOrder,
        tell: impl FnMut(PushPolicyStep),
    ) -> Result<PushedPolicy, Failure> {
        self.client
            .push(order, tell)
            .map_err(|status| self.failure(status))
    }

    /// Applies documents.
    pub(crate) fn apply(
        &self,
        order: ApplyOrder,
        tell: impl FnMut(ApplyStateStep),
    ) -> Result<AppliedState, Failure> {
        self.client
            .apply(order, tell)
            .map_err(|status| self.failure(status))
    }

    /// Upgrades the daemon.
    pub(crate) fn upgrade(
        &self,
        request: UpgradeDaemonRequest,
        tell: impl FnMut(UpgradeDaemonStep),
    ) -> Result<prost_types::Struct, Failure> {
        self.client
            .upgrade(request, tell)
            .map_err(|status| self.failure(status))
    }

    /// Watches what changes.
    pub(crate) fn watch<R: Watched>(
        &self,
        request: R,
        each: impl FnMut(R::Response) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.client
            .watch(request, each)
            .map_err(|status| self.failure(status))
    }

    /// Watches calls.
    pub(crate) fn tap(
        &self,
        request: proto::TapCallsRequest,
        until: Option<Instant>,
        each: impl FnMut(proto::TapCallsResponse) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        self.client
            .tap(request, until, each)
            .map_err(|status| self.failure(status))
    }

    /// Whether the caller is an operator. A tenant's credentials list their tenant's credentials
    /// in place of the operators'.
    pub(crate) fn is_operator(&self) -> Result<bool, Failure> {
        if !self.has_own {
            return Ok(true);
        }
        match self.ask(proto::ListCredentialsRequest::default()) {
            Ok(listed) => {
                let mut listed = listed.credentials.iter();
                Ok(listed.all(|one| one.role() == proto::Role::Operator))
            }
            Err(refused) if refused.code() == Code::PERMISSION_DENIED => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// The tenant that a command names, or the token's.
    pub(crate) fn tenant(&self, named: Option<&str>) -> Result<String, Failure> {
        match named {
            Some(tenant) => Ok(tenant.to_owned()),
            None if self.has_own => Ok(String::new()),
            None => {
                let sentence = "the tenant is missing: an operator names it";
                let hint = format!(
                    "--tenant NAME; or a token in {TOKEN}, {TOKEN_FILE} or --token-file FILE"
                );
                Err(Failure::input(sentence).hint(hint))
            }
        }
    }

    /// The owner that a command names, or the token's tenant.
    pub(crate) fn owner(
        &self,
        named: Option<&str>,
        provider: bool,
    ) -> Result<proto::Owner, Failure> {
        let tenant = match provider {
            true => named.unwrap_or_default().to_owned(),
            false => self.tenant(named)?,
        };
        Ok(proto::Owner { tenant, provider })
    }
}

pub(crate) fn side(side: Option<Side>) -> proto::Side {
    match side {
        None => proto::Side::Unspecified,
        Some(Side::Client) => proto::Side::Client,
        Some(Side::Server) => proto::Side::Server,
    }
}

fn failure(status: Status) -> Failure {
    Failure::new(status.code, status.message)
}

/// A daemon on the network can't be reached. Perhaps its certificate is of an own authority.
fn untrusted(remote: &Remote, status: Status) -> Failure {
    let is_unknown = status.message.contains("UnknownIssuer") && remote.ca.is_none();
    let failure = failure(status);
    match is_unknown {
        true => failure.hint("--ca FILE, with the certificate of the daemon's authority"),
        false => failure,
    }
}

/// The connection to a daemon on the network is lost. Perhaps the daemon waits for TLS.
fn lost_at(endpoint: &str, status: Status) -> Failure {
    let sentence = format!("the daemon at {endpoint}: {}", status.message);
    let lost = Failure::new(status.code, sentence);
    match endpoint.strip_prefix("http://") {
        Some(at) => lost.hint(format!("https://{at}: a daemon with TLS needs https://")),
        None => lost,
    }
}

/// The failure that no daemon could be reached, with this sentence. If this user lacks the
/// permission, the hint isn't to start one.
pub(crate) fn unreachable(socket: &Path, sentence: &str) -> Failure {
    if access(socket, Access::WRITE_OK) == Err(Errno::ACCESS) {
        return Failure::new(Code::PERMISSION_DENIED, sentence);
    }
    Failure::new(Code::UNAVAILABLE, sentence)
        .hint("tollgate up --config FILE (or --dev), or another --socket PATH")
}

/// Nobody listens at the API's socket. Perhaps the daemon itself does.
fn unconnected(socket: &Path, status: Status) -> Failure {
    if status.code != Code::UNAVAILABLE {
        return failure(status);
    }
    let shown = socket.display().to_string();
    match ControlSocket::connect(&shown) {
        Err(errno) => unreachable(socket, &control::unreachable(&&*shown, errno)),
        Ok(_daemon) => {
            let sentence = format!(
                "the daemon at {shown} doesn't serve its administrative API at {shown}.admin: {}",
                status.message
            );
            Failure::new(Code::UNAVAILABLE, sentence)
                .hint("an upgrade of the daemon, if it is older than this program; or its log")
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(endpoint: &str) -> Remote {
        Remote {
            endpoint: Some(endpoint.to_owned()),
            ..Remote::default()
        }
    }

    #[test]
    fn an_address_or_a_file_that_no_command_could_use_is_refused() {
        for wrong in [
            "127.0.0.1:7471",
            "ftp://a:1",
            "https://a",
            "https://:1",
            "https://a:1/b",
            "https://a:x",
            "http://10.0.0.1:7471",
        ] {
            let refused = at(wrong).check().unwrap_err();
            assert_eq!(refused.code(), Code::INVALID_ARGUMENT, "{wrong}");
            let words = refused.sentence();
            assert!(words.contains("write https"), "{words}");
        }
        for right in ["https://a.b:7443/", "http://127.0.0.1:1", "http://[::1]:1"] {
            assert_eq!(at(right).check(), Ok(()), "{right}");
        }
        let no_ca = Remote {
            ca: Some("/none/ca.pem".into()),
            ..at("https://a:1")
        };
        assert_eq!(no_ca.check().unwrap_err().code(), Code::NOT_FOUND);
    }

    #[test]
    fn an_error_of_a_connection_has_its_way_out() {
        let status = |message: &str| Status::new(Code::UNAVAILABLE, message);
        let unknown = "the daemon at https://a:1: invalid peer certificate: UnknownIssuer";
        let failure = untrusted(&at("https://a:1"), status(unknown));
        assert!(failure.way_out().unwrap().starts_with("--ca FILE"));
        let with_ca = Remote {
            ca: Some("ca.pem".into()),
            ..at("https://a:1")
        };
        assert_eq!(untrusted(&with_ca, status(unknown)).way_out(), None);
        let lost = lost_at("http://127.0.0.1:1", status("transport error: broken pipe"));
        assert_eq!(
            lost.sentence(),
            "the daemon at http://127.0.0.1:1: transport error: broken pipe"
        );
        assert!(lost.way_out().unwrap().starts_with("https://127.0.0.1:1"));
    }
}

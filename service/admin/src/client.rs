//! A client that blocks, for the command line and tests.

pub mod raw;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio_stream::StreamExt as _;
use tollgate_shm_abi::status::Code;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::limits::{APPLY_MESSAGE_BYTES, MAX_MESSAGE_BYTES, MAX_REPORT_BYTES, PUSH_CHUNK_BYTES};
use crate::operations::{ApplyOrder, PushOrder, operations};
use crate::proto::*;
use crate::status::{Secret, Status, causes};

/// A request with one message and one answer.
pub trait Unary: prost::Message + 'static {
    /// Its answer.
    type Response: prost::Message + Default + 'static;
    /// Its path in gRPC.
    const PATH: &'static str;
}

/// A request whose answers differ from each other, one after the other.
pub trait Watched: prost::Message + 'static {
    /// An answer.
    type Response: prost::Message + Default + 'static;
    /// Its path in gRPC.
    const PATH: &'static str;
}

macro_rules! unary {
    ($service:ident push $method:ident ($request:ty) $response:ident) => {};
    ($service:ident apply $method:ident ($request:ty) $response:ident) => {};
    ($service:ident upgrade $method:ident ($request:ty) $response:ident) => {};
    ($service:ident tap $method:ident ($request:ty) $response:ident) => {};
    ($service:ident unary $method:ident ($request:ty) $response:ident) => {
        unary! { Unary $service $method ($request) $response }
    };
    ($service:ident watch $method:ident ($request:ty) $response:ident) => {
        unary! { Watched $service $method ($request) $response }
    };
    ($trait:ident $service:ident $method:ident ($request:ty) $response:ident) => {
        impl $trait for $request {
            type Response = $response;
            const PATH: &'static str = concat!(
                "/tollgate.admin.v1.",
                stringify!($service),
                "/",
                stringify!($method)
            );
        }
    };
}

macro_rules! unaries {
    ($($server:ident $service:ident $wrapper:ident {
        $($kind:ident $function:ident $method:ident ($request:ty) $response:ident
            [$operator:ident $owner:ident $viewer:ident $application:ident])*
    })*) => {
        $($(unary! { $service $kind $method ($request) $response })*)*
    };
}

operations!(unaries);

/// A connection to a daemon's API.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    timeout: Duration,
}

/// A daemon on the network.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    /// `https://HOST:PORT`; `http://HOST:PORT` for loopback alone.
    pub endpoint: String,
    /// The authorities that may have signed the daemon's certificate, in PEM; `None`: those that
    /// the system trusts.
    pub authorities: Option<Vec<u8>>,
    /// The client's certificate with those up to its authority, and its key, in PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Remote {
    /// Checks the address and the certificates, without a connection.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, as for [`Client::connect_remotely`].
    pub fn check(&self) -> Result<(), Status> {
        self.endpoint().map(drop)
    }

    /// What the connection is made of.
    fn endpoint(&self) -> Result<Endpoint, Status> {
        let invalid = |what: String| Status::new(Code::INVALID_ARGUMENT, what);
        let shown = &self.endpoint;
        let endpoint = Endpoint::from_shared(shown.clone()).map_err(|error| {
            invalid(format!(
                "{shown:?} isn't a daemon's address ({error}): write https://HOST:PORT"
            ))
        })?;
        let uri = endpoint.uri();
        let (scheme, host) = (uri.scheme_str(), uri.host().unwrap_or_default());
        if host.is_empty() || uri.port().is_none() || !matches!(uri.path(), "" | "/") {
            let text = format!("{shown:?} isn't a daemon's address: write https://HOST:PORT");
            return Err(invalid(text));
        }
        match scheme {
            Some("https") => {}
            Some("http") if is_loopback(host) => return Ok(endpoint),
            Some("http") => {
                let text = format!(
                    "{shown} would send everything in the clear, with the token: write https, or use a loopback address"
                );
                return Err(invalid(text));
            }
            _ => {
                return Err(invalid(format!(
                    "{shown:?} isn't a daemon's address: write https://HOST:PORT"
                )));
            }
        }
        let mut tls = match &self.authorities {
            Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        endpoint.tls_config(tls).map_err(|error| {
            invalid(format!(
                "the certificates can't be used: {}",
                causes(&error)
            ))
        })
    }
}

/// Whether a host's name or address in a URL is this host's own.
pub fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || (address.parse::<std::net::IpAddr>()).is_ok_and(|address| address.is_loopback())
}

impl Client {
    /// Connects to the API's socket, as the bearer of a token or as this process's user.
    ///
    /// # Errors
    /// UNAVAILABLE: nobody listens there. INVALID_ARGUMENT: the path isn't UTF-8, or the token
    /// can't be one.
    pub fn connect(
        socket: &Path,
        token: Option<&Secret>,
        timeout: Duration,
    ) -> Result<Client, Status> {
        let invalid = |what: String| Status::new(Code::INVALID_ARGUMENT, what);
        let path = socket.to_str();
        let path = path.ok_or_else(|| invalid(format!("the path {socket:?} isn't UTF-8")))?;
        let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(|error| {
            invalid(format!("the path {socket:?} can't be a socket's: {error}"))
        })?;
        Client::connect_to(endpoint, path, token, timeout)
    }

    /// Connects to a daemon on the network, as the bearer of a token or by the certificate.
    ///
    /// # Errors
    /// UNAVAILABLE: nobody listens there, or the daemon's certificate isn't one of the authorities'
    /// or of this host. INVALID_ARGUMENT: the address, a certificate, the key or the token can't
    /// be one.
    pub fn connect_remotely(
        remote: &Remote,
        token: Option<&Secret>,
        timeout: Duration,
    ) -> Result<Client, Status> {
        let endpoint = remote.endpoint()?.connect_timeout(timeout);
        Client::connect_to(endpoint, &remote.endpoint, token, timeout)
    }

    fn connect_to(
        endpoint: Endpoint,
        shown: &str,
        token: Option<&Secret>,
        timeout: Duration,
    ) -> Result<Client, Status> {
        let token = token.map(|token| -> Result<_, Status> {
            let value = MetadataValue::try_from(format!("Bearer {}", token.reveal()));
            let mut value = value.map_err(|_| {
                Status::new(Code::INVALID_ARGUMENT, "the token isn't printable ASCII")
            })?;
            value.set_sensitive(true);
            Ok(value)
        });
        let failed = |error: &dyn std::fmt::Display| {
            Status::new(Code::UNAVAILABLE, format!("the daemon at {shown}: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let connected = runtime.block_on(endpoint.connect());
        let channel = connected.map_err(|error| failed(&causes(&error)))?;
        Ok(Client {
            runtime,
            channel,
            token: token.transpose()?,
            timeout,
        })
    }

    /// Sends a request, and waits for its answer.
    ///
    /// # Errors
    /// The daemon's status. UNAVAILABLE: the connection is lost. DEADLINE_EXCEEDED: no answer came
    /// in time. INVALID_ARGUMENT: the request is longer than a message may be.
    pub fn ask<R: Unary>(&self, request: R) -> Result<R::Response, Status> {
        let bytes = request.encoded_len();
        if bytes > MAX_MESSAGE_BYTES {
            let text = format!("the request has {bytes} bytes; the limit is {MAX_MESSAGE_BYTES}");
            return Err(Status::new(Code::INVALID_ARGUMENT, text));
        }
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(R::PATH);
        let answer = async {
            let mut grpc = self.ready().await?;
            let codec = tonic_prost::ProstCodec::<R, R::Response>::default();
            grpc.unary(self.request(request), path, codec).await
        };
        Ok(self.block_on(answer)?.into_inner())
    }

    /// Pushes a policy. Each step is told as it begins.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn push(
        &self,
        order: PushOrder,
        mut tell: impl FnMut(PushPolicyStep),
    ) -> Result<PushedPolicy, Status> {
        use push_policy_response::Content;
        let answer = async {
            let mut grpc = self.ready().await?;
            let path = "/tollgate.admin.v1.PolicyService/PushPolicy";
            let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
            let codec = tonic_prost::ProstCodec::<PushPolicyRequest, PushPolicyResponse>::default();
            let request = self.request(tokio_stream::iter(pieces(order)));
            let mut answers = grpc.streaming(request, path, codec).await?.into_inner();
            while let Some(answer) = answers.next().await {
                match answer?.content {
                    Some(Content::Step(step)) => {
                        PushPolicyStep::try_from(step)
                            .ok()
                            .into_iter()
                            .for_each(&mut tell);
                    }
                    Some(Content::Pushed(pushed)) => return Ok(pushed),
                    None => {}
                }
            }
            Err(tonic::Status::internal("the push ended without a version"))
        };
        self.block_on(answer)
    }

    /// Applies documents. Each step is told as it begins.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn apply(
        &self,
        order: ApplyOrder,
        mut tell: impl FnMut(ApplyStateStep),
    ) -> Result<AppliedState, Status> {
        use apply_state_response::Content;
        let answer = async {
            let mut grpc = self.ready().await?;
            let path = "/tollgate.admin.v1.StateService/ApplyState";
            let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
            let codec = tonic_prost::ProstCodec::<ApplyStateRequest, ApplyStateResponse>::default();
            let request = self.request(tokio_stream::iter(apply_pieces(order)));
            let mut answers = grpc.streaming(request, path, codec).await?.into_inner();
            while let Some(answer) = answers.next().await {
                match answer?.content {
                    Some(Content::Step(step)) => tell(step),
                    Some(Content::Applied(applied)) => return Ok(applied),
                    None => {}
                }
            }
            Err(tonic::Status::internal("the apply ended without an answer"))
        };
        self.block_on(answer)
    }

    /// Upgrades the daemon. Each step is told as it begins. Returns what the upgrade was: both
    /// processes, and the times of the steps.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn upgrade(
        &self,
        request: UpgradeDaemonRequest,
        mut tell: impl FnMut(UpgradeDaemonStep),
    ) -> Result<prost_types::Struct, Status> {
        use upgrade_daemon_response::Content;
        let path = "/tollgate.admin.v1.DaemonService/UpgradeDaemon";
        let mut report = None;
        let answers = self.stream(path, request, |answer: UpgradeDaemonResponse| {
            match answer.content {
                Some(Content::Step(step)) => {
                    UpgradeDaemonStep::try_from(step)
                        .ok()
                        .into_iter()
                        .for_each(&mut tell);
                }
                Some(Content::Report(done)) => report = Some(done),
                None => {}
            }
            match report.is_some() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        self.block_on(answers)?;
        report.ok_or_else(|| Status::new(Code::INTERNAL, "the upgrade ended without an answer"))
    }

    /// Watches calls: `each` gets what the daemon tells of them, until it breaks, the time is over
    /// or the daemon ends the stream.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask), without a time limit between two answers.
    pub fn tap(
        &self,
        request: TapCallsRequest,
        until: Option<Instant>,
        each: impl FnMut(TapCallsResponse) -> ControlFlow<()>,
    ) -> Result<(), Status> {
        let path = "/tollgate.admin.v1.ObservationService/TapCalls";
        let watch = self.stream(path, request, each);
        let watched = self.runtime.block_on(async {
            match until {
                Some(until) => tokio::time::timeout_at(until.into(), watch)
                    .await
                    .unwrap_or(Ok(())),
                None => watch.await,
            }
        });
        watched.map_err(|status: tonic::Status| Status::from(status))
    }

    /// Watches what changes: `each` gets the answers, until it breaks or the daemon ends the
    /// stream.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask), without a time limit between two answers.
    pub fn watch<R: Watched>(
        &self,
        request: R,
        each: impl FnMut(R::Response) -> ControlFlow<()>,
    ) -> Result<(), Status> {
        let watched = self.stream(R::PATH, request, each);
        self.runtime.block_on(watched).map_err(Status::from)
    }

    async fn stream<Q: prost::Message + 'static, A: prost::Message + Default + 'static>(
        &self,
        path: &'static str,
        request: Q,
        mut each: impl FnMut(A) -> ControlFlow<()>,
    ) -> Result<(), tonic::Status> {
        let mut grpc = self.ready().await?;
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let answers = grpc.server_streaming(self.request(request), path, codec);
        let mut answers = answers.await?.into_inner();
        while let Some(answer) = answers.next().await {
            if each(answer?).is_break() {
                break;
            }
        }
        Ok(())
    }

    async fn ready(&self) -> Result<tonic::client::Grpc<Channel>, tonic::Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone())
            .max_decoding_message_size(MAX_REPORT_BYTES);
        let lost = |error: tonic::transport::Error| tonic::Status::unavailable(causes(&error));
        grpc.ready().await.map_err(lost)?;
        Ok(grpc)
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Some(token) = &self.token {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        request
    }

    fn block_on<T>(
        &self,
        answer: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, Status> {
        let timeout = self.timeout;
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout(timeout, answer).await });
        match answer {
            Ok(answer) => answer.map_err(Status::from),
            Err(_elapsed) => {
                let text = format!("the daemon gave no answer within {timeout:?}");
                Err(Status::new(Code::DEADLINE_EXCEEDED, text))
            }
        }
    }
}

/// An apply in pieces.
fn apply_pieces(order: ApplyOrder) -> Vec<ApplyStateRequest> {
    use apply_state_request::Content;
    let mut contents = vec![Content::Header(order.header)];
    let (mut piece, mut bytes) = (State::default(), 0);
    macro_rules! split {
        ($($field:ident)*) => {$(
            for object in order.state.$field {
                let its = prost::Message::encoded_len(&object);
                if bytes + its > APPLY_MESSAGE_BYTES / 2 && bytes > 0 {
                    contents.push(Content::State(std::mem::take(&mut piece)));
                    bytes = 0;
                }
                bytes += its;
                piece.$field.push(object);
            }
        )*};
    }
    split!(tenants ceilings credentials policies attachments settings);
    contents.push(Content::State(piece));
    for (content, bytes) in order.contents {
        // An empty content is a content, too.
        let count = bytes.len().div_ceil(PUSH_CHUNK_BYTES).max(1);
        for k in 0..count {
            let end = bytes.len().min((k + 1) * PUSH_CHUNK_BYTES);
            let data = bytes[k * PUSH_CHUNK_BYTES..end].to_vec();
            contents.push(Content::Chunk(ApplyStateChunk { content, data }));
        }
    }
    let requests = contents.into_iter().map(|content| ApplyStateRequest {
        content: Some(content),
    });
    requests.collect()
}

/// A push in pieces.
fn pieces(order: PushOrder) -> impl Iterator<Item = PushPolicyRequest> {
    use push_policy_request::Content;
    let chunks = order.parts.into_iter().flat_map(|(part, bytes)| {
        // An empty part is a part, too.
        let count = bytes.len().div_ceil(PUSH_CHUNK_BYTES).max(1);
        let chunk = move |k: usize| {
            let end = bytes.len().min((k + 1) * PUSH_CHUNK_BYTES);
            let data = bytes[k * PUSH_CHUNK_BYTES..end].to_vec();
            Content::Chunk(PushPolicyChunk { part, data })
        };
        (0..count).map(chunk)
    });
    let contents = std::iter::once(Content::Header(order.header)).chain(chunks);
    contents.map(|content| PushPolicyRequest {
        content: Some(content),
    })
}

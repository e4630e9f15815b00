//! gRPC on a thread per listener. Each request goes to the daemon as a [`Call`].
//!
//! The daemon's control thread takes calls from a bounded queue and answers each once. Who the
//! sender is, is known when a request's header has come, before anything else of it is read. A slow
//! client holds up its own connection only: its bytes are read and written here. A call whose
//! client has gone away is still carried out. Clients on the network have places and a thread of
//! their own, so that they hold up no process of this host.

mod connections;
mod gate;
mod incoming;
mod tls;

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_stream::{Stream, StreamExt as _};
use tollgate_shm_abi::status::Code;
use tonic::{Request, Response, Streaming};

use crate::DESCRIPTOR_SET;
use crate::limits::{
    APPLIES, APPLIES_PER_TENANT, APPLY_BYTES, APPLY_MESSAGE_BYTES, APPLY_OBJECTS, ASKS_QUEUED,
    HEADER_BYTES, KEEPALIVE, MAX_LIST, MAX_MESSAGE_BYTES, MAX_SMALL_MESSAGE_BYTES,
    OPERATORS_APPLIES, OPERATORS_PUSHES, PUSH_BYTES, PUSH_CHUNK_BYTES, PUSH_PATIENCE, PUSHES,
    PUSHES_PER_TENANT, REMOTE_APPLIES, REMOTE_CONNECTION_AGE, REMOTE_OPERATORS_APPLIES,
    REMOTE_OPERATORS_PUSHES, REMOTE_PUSHES, REQUESTS_PER_CONNECTION, STEPS_QUEUED, STOP_GRACE,
    TAP_INTERVAL, WATCH_INTERVAL, WATCH_INTERVALS,
};
use crate::operations::{
    Answer, ApplyOrder, Ask, PushOrder, Steps, TapPoll, UpgradeOrder, operations,
};
use crate::proto::*;
use crate::scopes::{longest, short};
use crate::status::Status;

use connections::{Accepted, Most, Party, Place, Places, of_processes, of_the_network};
pub use connections::{Origin, Peer};
use gate::{Gate, Sender};
use incoming::stopping;
pub use incoming::{Call, Caller, Header, Incoming};
pub use tls::{Tls, TlsConfig, TlsError, TlsMaterial, TlsSource};

/// Where clients come from.
#[derive(Debug)]
pub enum Listener {
    /// Processes of this host.
    Processes(StdUnixListener),
    /// Clients on the network, with TLS or, for loopback alone, without.
    Network(StdTcpListener, Option<Tls>),
}

/// The API's server. It stops when this is dropped.
#[derive(Debug)]
pub struct Server {
    _threads: Vec<Serving>,
}

/// The thread of a listener.
#[derive(Debug)]
struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves the connections of listeners. `is_operator` tells whether a user gets the connections
    /// that are kept for operators. Returns the questions for the daemon, in the order of arrival.
    ///
    /// # Errors
    /// A thread can't be started, or a listener can't be watched.
    pub fn start(
        listeners: Vec<Listener>,
        is_operator: fn(u32) -> bool,
    ) -> io::Result<(Server, mpsc::Receiver<Incoming>)> {
        let (calls, queue) = mpsc::channel(ASKS_QUEUED);
        let service = Service {
            calls,
            is_operator,
            most_age: None,
            pushes: Places::new(Most {
                all: PUSHES,
                kept: OPERATORS_PUSHES,
                of_each: PUSHES_PER_TENANT,
            }),
            applies: Places::new(Most {
                all: APPLIES,
                kept: OPERATORS_APPLIES,
                of_each: APPLIES_PER_TENANT,
            }),
        };
        let threads = listeners.into_iter();
        let threads = threads.map(|listener| Serving::start(service.clone(), listener));
        let server = Server {
            _threads: threads.collect::<io::Result<_>>()?,
        };
        Ok((server, queue))
    }
}

impl Serving {
    fn start(mut service: Service, listener: Listener) -> io::Result<Serving> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (incoming, name) = {
            let _entered = runtime.enter();
            match listener {
                Listener::Processes(listener) => {
                    listener.set_nonblocking(true)?;
                    let listener = tokio::net::UnixListener::from_std(listener)?;
                    (
                        of_processes(listener, service.is_operator),
                        "tollgate-admin",
                    )
                }
                Listener::Network(listener, tls) => {
                    listener.set_nonblocking(true)?;
                    let listener = tokio::net::TcpListener::from_std(listener)?;
                    service.keep_apart();
                    (of_the_network(listener, tls), "tollgate-remote")
                }
            }
        };
        let serve = move || runtime.block_on(serve(service, incoming, stopped));
        let thread = std::thread::Builder::new().name(name.to_owned());
        Ok(Serving {
            stop: Some(stop),
            thread: Some(thread.spawn(serve)?),
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

async fn serve(service: Service, incoming: Accepted, stopped: oneshot::Receiver<()>) {
    let (health, health_service) = tonic_health::server::health_reporter();
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The descriptor set is this crate's own.
    let (Ok(v1), Ok(v1alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) else {
        return;
    };
    let mut server = tonic::transport::Server::builder();
    if let Some((age, grace)) = service.most_age {
        server = server
            .max_connection_age(age)
            .max_connection_age_grace(grace);
    }
    let server = server
        .concurrency_limit_per_connection(REQUESTS_PER_CONNECTION)
        .max_concurrent_streams(Some(REQUESTS_PER_CONNECTION as u32))
        .http2_max_header_list_size(Some(HEADER_BYTES))
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .add_service(Gate::open(
            health_service.max_decoding_message_size(MAX_SMALL_MESSAGE_BYTES),
        ))
        .add_service(Gate::open(
            v1.max_decoding_message_size(MAX_SMALL_MESSAGE_BYTES),
        ))
        .add_service(Gate::open(
            v1alpha.max_decoding_message_size(MAX_SMALL_MESSAGE_BYTES),
        ));
    let server = add_services(server, &service, &health).await;
    drop(service);
    let (stopping, drain) = oneshot::channel::<()>();
    let drained = async { drop(drain.await) };
    let mut serving = std::pin::pin!(server.serve_with_incoming_shutdown(incoming, drained));
    tokio::select! {
        _ended = &mut serving => return,
        _ = stopped => drop(stopping),
    }
    // Open connections would keep the thread: they end with it.
    let _in_time = tokio::time::timeout(STOP_GRACE, serving).await;
}

/// All services of the table.
#[derive(Clone)]
struct Service {
    calls: mpsc::Sender<Incoming>,
    is_operator: fn(u32) -> bool,
    /// How old connections get, and how long their last requests may take then.
    most_age: Option<(Duration, Duration)>,
    /// Pushes that are being received.
    pushes: Arc<Places<Party>>,
    /// Applies that are being received.
    applies: Arc<Places<Party>>,
}

/// Who sends this request: the gate has found out.
fn sender<T>(request: &Request<T>) -> Result<Sender, Status> {
    let sender = request.extensions().get::<Sender>().cloned();
    sender.ok_or_else(|| Status::new(Code::INTERNAL, "the request has no sender"))
}

impl Service {
    /// Gives the network places of its own, and connections an age.
    fn keep_apart(&mut self) {
        self.most_age = Some(REMOTE_CONNECTION_AGE);
        self.pushes = Places::new(Most {
            all: REMOTE_PUSHES,
            kept: REMOTE_OPERATORS_PUSHES,
            of_each: PUSHES_PER_TENANT,
        });
        self.applies = Places::new(Most {
            all: REMOTE_APPLIES,
            kept: REMOTE_OPERATORS_APPLIES,
            of_each: APPLIES_PER_TENANT,
        });
    }

    /// Sends a request to the daemon, and waits for the answer.
    async fn ask(&self, caller: Caller, ask: Ask) -> Result<Answer, Status> {
        let (reply, answer) = oneshot::channel();
        let call = Call { caller, ask, reply };
        let sent = self.calls.send(Incoming::Call(call)).await;
        sent.map_err(|_closed| stopping())?;
        answer.await.unwrap_or_else(|_dropped| Err(stopping()))
    }

    /// Receives a push, and has it carried out.
    async fn push(
        self,
        sender: Sender,
        pieces: Streaming<PushPolicyRequest>,
        responses: mpsc::Sender<Result<PushPolicyResponse, tonic::Status>>,
    ) -> Result<(), Status> {
        use push_policy_response::Content;
        let response = |content| PushPolicyResponse {
            content: Some(content),
        };
        let Sender { caller, holder } = sender;
        // Until the answer: the daemon has the parts until then.
        let place = Place::take(&self.pushes, &holder.0, holder.1);
        let place = place.ok_or_else(|| self.pushes.full("pushes", &holder.0))?;
        let order = tokio::time::timeout(PUSH_PATIENCE, order(pieces)).await;
        let mut order = order.map_err(|_elapsed| {
            let text = format!("the push didn't arrive within {PUSH_PATIENCE:?}");
            Status::new(Code::DEADLINE_EXCEEDED, text)
        })??;
        let (steps, told) = Steps::channel();
        order.steps = steps;
        let answer = self.ask(caller, Ask::PushPolicy(order));
        let step = |step: PushPolicyStep| response(Content::Step(step.into()));
        let answer = with_steps(answer, told, &responses, step).await;
        // A client that reads nothing keeps no place.
        drop(place);
        match answer? {
            Answer::PushPolicy(pushed) => {
                let _client_gone = responses.send(Ok(response(Content::Pushed(pushed)))).await;
                Ok(())
            }
            _ => Err(mixed_up()),
        }
    }

    /// Receives an apply, and has it carried out.
    async fn apply(
        self,
        sender: Sender,
        pieces: Streaming<ApplyStateRequest>,
        responses: mpsc::Sender<Result<ApplyStateResponse, tonic::Status>>,
    ) -> Result<(), Status> {
        use apply_state_response::Content;
        let response = |content| ApplyStateResponse {
            content: Some(content),
        };
        let Sender { caller, holder } = sender;
        // Until the answer: the daemon has the contents until then.
        let place = Place::take(&self.applies, &holder.0, holder.1);
        let place = place.ok_or_else(|| self.applies.full("applies", &holder.0))?;
        let order = tokio::time::timeout(PUSH_PATIENCE, apply_order(pieces)).await;
        let mut order = order.map_err(|_elapsed| {
            let text = format!("the documents didn't arrive within {PUSH_PATIENCE:?}");
            Status::new(Code::DEADLINE_EXCEEDED, text)
        })??;
        let (steps, told) = Steps::channel();
        order.steps = steps;
        let answer = self.ask(caller, Ask::ApplyState(order));
        let step = |step: ApplyStateStep| response(Content::Step(step));
        let answer = with_steps(answer, told, &responses, step).await;
        // As above.
        drop(place);
        match answer? {
            Answer::ApplyState(applied) => {
                let _client_gone = responses
                    .send(Ok(response(Content::Applied(applied))))
                    .await;
                Ok(())
            }
            _ => Err(mixed_up()),
        }
    }

    /// Has an upgrade of the daemon carried out.
    async fn upgrade(
        self,
        caller: Caller,
        request: UpgradeDaemonRequest,
        responses: mpsc::Sender<Result<UpgradeDaemonResponse, tonic::Status>>,
    ) -> Result<(), Status> {
        let (steps, told) = Steps::channel();
        let answer = self.ask(caller, Ask::UpgradeDaemon(UpgradeOrder { request, steps }));
        let step = |step: UpgradeDaemonStep| UpgradeDaemonResponse {
            content: Some(upgrade_daemon_response::Content::Step(step.into())),
        };
        match with_steps(answer, told, &responses, step).await? {
            Answer::UpgradeDaemon(upgraded) => {
                let _client_gone = responses.send(Ok(upgraded)).await;
                Ok(())
            }
            _ => Err(mixed_up()),
        }
    }

    /// Looks again and again until the client goes away, and sends what differs.
    async fn watch<L: Look>(
        self,
        caller: Caller,
        request: L,
        changes: mpsc::Sender<Result<L::Answer, tonic::Status>>,
    ) -> Result<(), Status> {
        let interval = interval(request.interval())?;
        let mut last = None;
        loop {
            let answer = self.ask(caller.clone(), request.clone().ask()).await?;
            let answer = L::answer(answer).ok_or_else(mixed_up)?;
            if last.as_ref() != Some(&answer) {
                last = Some(answer.clone());
                if changes.send(Ok(answer)).await.is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = changes.closed() => return Ok(()),
            }
        }
    }

    /// Watches calls until the client goes away.
    async fn tap(
        self,
        caller: Caller,
        request: TapCallsRequest,
        calls: mpsc::Sender<Result<TapCallsResponse, tonic::Status>>,
    ) -> Result<(), Status> {
        let mut tap = 0;
        loop {
            let poll = TapPoll {
                tap,
                request: request.clone(),
            };
            let Answer::TapCalls(answer) = self.ask(caller.clone(), Ask::TapCalls(poll)).await?
            else {
                return Err(mixed_up());
            };
            tap = answer
                .report
                .as_ref()
                .and_then(|report| number(report, "tap"))
                .unwrap_or(0);
            if calls.send(Ok(answer)).await.is_err() {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(TAP_INTERVAL) => {}
                () = calls.closed() => return Ok(()),
            }
        }
    }
}

/// Waits for the daemon's answer, and sends the client its steps meanwhile. A client that reads
/// slowly misses some, and delays nothing.
async fn with_steps<S, R>(
    answer: impl Future<Output = Result<Answer, Status>>,
    mut told: mpsc::Receiver<S>,
    responses: &mpsc::Sender<Result<R, tonic::Status>>,
    response: impl Fn(S) -> R,
) -> Result<Answer, Status> {
    let mut answer = std::pin::pin!(answer);
    let say = |step| {
        let _missed = responses.try_send(Ok(response(step)));
    };
    loop {
        tokio::select! {
            Some(step) = told.recv() => say(step),
            answer = &mut answer => {
                while let Ok(step) = told.try_recv() {
                    say(step);
                }
                return answer;
            }
        }
    }
}

/// A look of a watch.
trait Look: Clone {
    type Answer: Clone + PartialEq;

    /// How often to look.
    fn interval(&self) -> Option<prost_types::Duration>;

    /// The request for the daemon.
    fn ask(self) -> Ask;

    /// The answer, if it is of this request.
    fn answer(answer: Answer) -> Option<Self::Answer>;
}

macro_rules! looks {
    ($($method:ident ($request:ty) $response:ident)*) => {$(
        impl Look for $request {
            type Answer = $response;

            fn interval(&self) -> Option<prost_types::Duration> {
                self.interval
            }

            fn ask(self) -> Ask {
                Ask::$method(self)
            }

            fn answer(answer: Answer) -> Option<$response> {
                match answer {
                    Answer::$method(answer) => Some(answer),
                    _ => None,
                }
            }
        }
    )*};
}

looks! {
    WatchPolicies (WatchPoliciesRequest) WatchPoliciesResponse
    WatchApproval (WatchApprovalRequest) WatchApprovalResponse
    WatchStatus (WatchStatusRequest) WatchStatusResponse
    WatchMetrics (WatchMetricsRequest) WatchMetricsResponse
}

/// The interval of a watch.
fn interval(wanted: Option<prost_types::Duration>) -> Result<Duration, Status> {
    let Some(wanted) = wanted else {
        return Ok(WATCH_INTERVAL);
    };
    let (least, most) = WATCH_INTERVALS;
    let fits = |interval: &Duration| (least..=most).contains(interval);
    let prost_types::Duration { seconds, nanos } = wanted;
    // The conversion of the library would normalize first, and overflow.
    let interval = match (u64::try_from(seconds), u32::try_from(nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Some(Duration::new(seconds, nanos)),
        _ => None,
    };
    interval.filter(fits).ok_or_else(|| {
        let text = format!(
            "the interval of {seconds} s and {nanos} ns is out of range: {least:?} to {most:?} are allowed"
        );
        Status::new(Code::INVALID_ARGUMENT, text)
    })
}

fn number(report: &prost_types::Struct, key: &str) -> Option<u64> {
    match report.fields.get(key)?.kind.as_ref()? {
        prost_types::value::Kind::NumberValue(number) => Some(*number as u64),
        _ => None,
    }
}

fn mixed_up() -> Status {
    Status::new(Code::INTERNAL, "the daemon's answer is of another request")
}

/// The content of a push.
async fn order(mut pieces: Streaming<PushPolicyRequest>) -> Result<PushOrder, Status> {
    use push_policy_request::Content;
    let invalid = |text: String| Err(Status::new(Code::INVALID_ARGUMENT, text));
    let (mut header, mut order, mut bytes) = (None, PushOrder::default(), 0);
    while let Some(piece) = pieces.next().await {
        match (piece?.content, &header) {
            (Some(Content::Header(first)), None) => header = Some(first),
            (Some(Content::Header(_)), Some(_)) => return invalid("a push has one header".into()),
            (Some(Content::Chunk(_)), None) => {
                return invalid("a push begins with its header".into());
            }
            (Some(Content::Chunk(PushPolicyChunk { part, data })), Some(_)) => {
                if data.len() > PUSH_CHUNK_BYTES {
                    let len = data.len();
                    return invalid(format!(
                        "a chunk has {len} bytes; the limit is {PUSH_CHUNK_BYTES}"
                    ));
                }
                if !matches!(PolicyPart::try_from(part), Ok(known) if known != PolicyPart::Unspecified)
                {
                    return invalid(format!("a push has no part {part}"));
                }
                bytes += data.len();
                if bytes > PUSH_BYTES {
                    let text = format!("a push has at most {PUSH_BYTES} bytes");
                    return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
                }
                order.parts.entry(part).or_default().extend(data);
            }
            (None, _) => return invalid("a piece of a push has no content".into()),
        }
    }
    let Some(header) = header else {
        return invalid("a push begins with its header".into());
    };
    order.header = header;
    Ok(order)
}

/// The objects and contents of an apply.
async fn apply_order(mut pieces: Streaming<ApplyStateRequest>) -> Result<ApplyOrder, Status> {
    use apply_state_request::Content;
    let invalid = |text: String| Err(Status::new(Code::INVALID_ARGUMENT, text));
    let (mut header, mut order, mut bytes, mut objects) = (None, ApplyOrder::default(), 0, 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        bytes += prost::Message::encoded_len(&piece);
        if bytes > APPLY_BYTES {
            let text = format!(
                "the documents and their modules have more than {APPLY_BYTES} bytes, which is the limit of one apply: apply them in parts"
            );
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        match (piece.content, &header) {
            (Some(Content::Header(first)), None) => header = Some(first),
            (Some(Content::Header(_)), Some(_)) => {
                return invalid("an apply has one header".into());
            }
            (Some(_), None) => return invalid("an apply begins with its header".into()),
            (Some(Content::State(more)), Some(_)) => {
                let State {
                    tenants,
                    ceilings,
                    credentials,
                    policies,
                    attachments,
                    settings,
                } = more;
                objects += tenants.len() + ceilings.len() + credentials.len() + policies.len();
                if let Some(many) = attachments
                    .iter()
                    .map(|its| longest(its.options.as_ref()))
                    .find(|many| *many > MAX_LIST)
                {
                    return invalid(format!(
                        "a list of an attachment has {many} entries; the limit is {MAX_LIST}"
                    ));
                }
                objects += attachments.len() + settings.len();
                if objects > APPLY_OBJECTS {
                    let text = format!(
                        "the documents have more than {APPLY_OBJECTS} objects, which is the limit of one apply: apply them in parts"
                    );
                    return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
                }
                let state = &mut order.state;
                state.tenants.extend(tenants);
                state.ceilings.extend(ceilings);
                state.credentials.extend(credentials);
                state.policies.extend(policies);
                state.attachments.extend(attachments);
                state.settings.extend(settings);
            }
            (Some(Content::Chunk(ApplyStateChunk { content, data })), Some(_)) => {
                if data.len() > PUSH_CHUNK_BYTES {
                    let len = data.len();
                    return invalid(format!(
                        "a chunk has {len} bytes; the limit is {PUSH_CHUNK_BYTES}"
                    ));
                }
                let count = order.contents.len();
                let known = order.contents.entry(content);
                if matches!(known, std::collections::btree_map::Entry::Vacant(_))
                    && count >= APPLY_OBJECTS
                {
                    return invalid(format!("an apply has at most {APPLY_OBJECTS} contents"));
                }
                known.or_default().extend(data);
            }
            (None, _) => return invalid("a piece of an apply has no content".into()),
        }
    }
    let Some(header) = header else {
        return invalid("an apply begins with its header".into());
    };
    order.header = header;
    Ok(order)
}

/// The most bytes of a request of the service: it may have a schema, a piece of a policy, or
/// objects.
fn most_bytes(service: &str) -> usize {
    match service {
        "TenantService" | "CredentialService" | "ApprovalService" => MAX_SMALL_MESSAGE_BYTES,
        "StateService" => APPLY_MESSAGE_BYTES,
        _ => MAX_MESSAGE_BYTES,
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;

/// A stream of answers that a task makes. Its failure is the stream's last item.
fn answers<T: Send + 'static, F>(
    make: impl FnOnce(mpsc::Sender<Result<T, tonic::Status>>) -> F,
) -> Answers<T>
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(STEPS_QUEUED);
    let made = make(sender.clone());
    tokio::spawn(async move {
        if let Err(status) = made.await {
            let _gone = sender.send(Err(status.into())).await;
        }
    });
    Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))
}

/// What `async_trait` makes of an asynchronous method.
type Method<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, tonic::Status>> + Send + 'a>>;

macro_rules! method {
    (unary $function:ident $method:ident ($request:ty) $response:ident) => {
        fn $function<'life0, 'async_trait>(
            &'life0 self,
            request: Request<$request>,
        ) -> Method<'async_trait, $response>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                let caller = sender(&request)?.caller;
                let request = short(request.into_inner())?;
                match self.ask(caller, Ask::$method(request)).await? {
                    Answer::$method(answer) => Ok(Response::new(answer)),
                    _ => Err(mixed_up().into()),
                }
            })
        }
    };
    (push $function:ident $method:ident ($request:ty) $response:ident) => {
        type PushPolicyStream = Answers<PushPolicyResponse>;

        method! { @received $function (PushPolicyRequest) PushPolicyResponse push }
    };
    (apply $function:ident $method:ident ($request:ty) $response:ident) => {
        type ApplyStateStream = Answers<ApplyStateResponse>;

        method! { @received $function (ApplyStateRequest) ApplyStateResponse apply }
    };
    (upgrade $function:ident $method:ident ($request:ty) $response:ident) => {
        type UpgradeDaemonStream = Answers<UpgradeDaemonResponse>;

        method! { @told $function (UpgradeDaemonRequest) UpgradeDaemonResponse upgrade }
    };
    (watch $function:ident $method:ident ($request:ty) $response:ident) => {
        stream! { $function }

        method! { @told $function ($request) $response watch }
    };
    (tap $function:ident $method:ident ($request:ty) $response:ident) => {
        type TapCallsStream = Answers<TapCallsResponse>;

        method! { @told $function (TapCallsRequest) TapCallsResponse tap }
    };
    // A request in pieces, and a stream of answers that a method of the service makes.
    (@received $function:ident ($request:ty) $response:ident $by:ident) => {
        fn $function<'life0, 'async_trait>(
            &'life0 self,
            request: Request<Streaming<$request>>,
        ) -> Method<'async_trait, Answers<$response>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                let (sender, service) = (sender(&request)?, self.clone());
                let pieces = request.into_inner();
                Ok(Response::new(answers(|responses| {
                    service.$by(sender, pieces, responses)
                })))
            })
        }
    };
    // The same for a request in one message.
    (@told $function:ident ($request:ty) $response:ident $by:ident) => {
        fn $function<'life0, 'async_trait>(
            &'life0 self,
            request: Request<$request>,
        ) -> Method<'async_trait, Answers<$response>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                let (caller, service) = (sender(&request)?.caller, self.clone());
                let request = request.into_inner();
                Ok(Response::new(answers(|responses| {
                    service.$by(caller, request, responses)
                })))
            })
        }
    };
}

/// The types of streams that watches have.
macro_rules! stream {
    (watch_policies) => {
        type WatchPoliciesStream = Answers<WatchPoliciesResponse>;
    };
    (watch_approval) => {
        type WatchApprovalStream = Answers<WatchApprovalResponse>;
    };
    (watch_status) => {
        type WatchStatusStream = Answers<WatchStatusResponse>;
    };
    (watch_metrics) => {
        type WatchMetricsStream = Answers<WatchMetricsResponse>;
    };
}

macro_rules! services {
    ($($server:ident $service:ident $wrapper:ident {
        $($kind:ident $function:ident $method:ident ($request:ty) $response:ident
            [$operator:ident $owner:ident $viewer:ident $application:ident])*
    })*) => {
        $(impl $server::$service for Service {
            $(method! { $kind $function $method ($request) $response })*
        })*

        async fn add_services(
            router: tonic::transport::server::Router,
            service: &Service,
            health: &tonic_health::server::HealthReporter,
        ) -> tonic::transport::server::Router {
            $(let router = {
                let name = concat!("tollgate.admin.v1.", stringify!($service));
                health.set_service_status(name, tonic_health::ServingStatus::Serving).await;
                let its = $server::$wrapper::new(service.clone());
                let most = most_bytes(stringify!($service));
                let its = its.max_decoding_message_size(most);
                router.add_service(Gate::guarded(its, &service.calls, service.is_operator))
            };)*
            router
        }
    };
}

operations!(services);

#[cfg(test)]
mod tests;

//! Serving: until SIGTERM or SIGINT, and then what came is still answered.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use axum::serve::ListenerExt;
use futures_channel::oneshot;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tollgate::{Server, Service, Session, SessionOptions, block_on, token};
use tollgate_hotel::calls::Calls;
use tollgate_hotel::failure::Failure;
use tollgate_hotel::frontend;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;

use crate::options::Rpc;

/// Any error, as its sentence.
pub(crate) type Done = Result<(), Box<dyn Error + Send + Sync>>;

/// Serves over Tollgate, on the thread that carries the calls.
pub(crate) fn tollgate<S: Service>(
    rpc: &Rpc,
    name: &str,
    service: impl FnOnce(&Session) -> Result<S, Failure>,
) -> Done {
    let session = session(rpc)?;
    let server = Server::new(&session).add_service(service(&session)?);
    let ended = ended()?;
    let shutdown = async {
        // Polled only once the service is bound.
        println!("{name} ready");
        ended.await;
    };
    Ok(block_on(&session, server.serve_with_shutdown(shutdown))?)
}

/// Opens a session with the daemon.
pub(crate) fn session(rpc: &Rpc) -> Result<Session, Failure> {
    let missing = || {
        Failure::invalid(
            "--socket, and TOLLGATE_TOKEN or --token-file, say which daemon carries the calls",
        )
    };
    let token = match &rpc.token_file {
        Some(path) => Some(token::from_file(path)?),
        None => token::from_env()?,
    };
    let (socket, token) = rpc.socket.as_ref().zip(token).ok_or_else(missing)?;
    if let Some(warning) = &token.warning {
        eprintln!("warning: {warning}");
    }
    Ok(Session::open(SessionOptions::new(socket, token.reveal()))?)
}

/// Serves over tonic; the service is made within tokio.
pub(crate) fn tonic(
    rpc: &Rpc,
    name: &str,
    service: impl FnOnce() -> Result<Routes, Failure>,
) -> Done {
    runtime(rpc.threads)?.block_on(async {
        let incoming = TcpIncoming::bind(rpc.listen)?.with_nodelay(Some(true));
        let ended = ended()?;
        let server = tonic::transport::Server::builder().add_routes(service()?);
        println!("{name} ready listen={}", incoming.local_addr()?);
        Ok(server.serve_with_incoming_shutdown(incoming, ended).await?)
    })
}

/// Serves a frontend, within tokio.
pub(crate) async fn http(rpc: &Rpc, calls: impl Calls, timeout: Duration) -> Done {
    let listener = TcpListener::bind(rpc.listen).await?;
    println!("frontend ready listen={}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| {
        // Without it answers are only slower.
        let _slower = stream.set_nodelay(true);
    });
    let server = axum::serve(listener, frontend::router(calls, timeout));
    Ok(server.with_graceful_shutdown(ended()?).await?)
}

/// tokio with so many threads.
pub(crate) fn runtime(threads: usize) -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads.max(1)).enable_all().build()
}

/// Ready when the process is told to end.
fn ended() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        signals.forever().next();
        sender.send(())
    });
    Ok(async {
        // A thread that is gone says the same.
        let _ended = receiver.await;
    })
}

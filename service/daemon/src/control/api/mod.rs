//! The administrative API: `tollgate.admin.v1`, for operators and tenants.
//!
//! ```text
//!   tollgate-admin's server, on its own thread
//!        │ Call: caller, request                       socket.rs: the file of its listener
//!        ▼
//!   serve ── principal.rs: who it is ── paces.rs: a tenant waits for its turn
//!        └── carry_out: may it? ── handler.rs: the request in the control plane's words (words.rs)
//! ```
//!
//! Each request is a task of its own, so a slow one holds up nobody but its tenant. A request whose
//! client has gone away is carried out all the same.

mod handler;
pub(in crate::control) mod paces;
mod principal;
pub(in crate::control) mod socket;
mod words;

use std::os::unix::net::UnixListener;
use std::rc::Rc;

use tokio::sync::mpsc::Receiver;
use tollgate_admin::carry_out;
use tollgate_admin::server::{Call, Server};

use crate::control::api::handler::Api;
use crate::control::api::principal::principal;
use crate::control::operators::admin::is_operator;
use crate::control::state::Control;

/// Serves the API on a listener until the server is dropped.
pub(in crate::control) fn start(
    control: &Rc<Control>,
    listener: UnixListener,
) -> std::io::Result<Server> {
    let (server, calls) = Server::start(listener, is_operator)?;
    tokio::task::spawn_local(serve(Rc::clone(control), calls));
    Ok(server)
}

async fn serve(control: Rc<Control>, mut calls: Receiver<Call>) {
    while let Some(call) = calls.recv().await {
        let control = Rc::clone(&control);
        tokio::task::spawn_local(async move {
            let Call { caller, ask, reply } = call;
            let answered = async {
                let principal = principal(&control, &caller).await?;
                let _turn = control
                    .paces
                    .turn(&principal, ask.row().is_change())
                    .await?;
                carry_out(&Api(Rc::clone(&control)), &principal, ask).await
            };
            let _client_gone = reply.send(answered.await);
        });
    }
}

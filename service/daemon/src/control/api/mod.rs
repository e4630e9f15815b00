//! The administrative API: `tollgate.admin.v1`, for operators and tenants.
//!
//! ```text
//!   tollgate-admin's server, on threads of its own      socket.rs: the file of its listener
//!        │ Header: caller; then                        remote.rs: the network, with TLS
//!        │ Call: caller, request
//!        ▼
//!   serve ── principal.rs: who it is ── paces.rs: a tenant waits for its turn
//!        └── carry_out: may it? ── handler.rs: the request in the control plane's words (words.rs,
//!                                              objects.rs)
//! ```
//!
//! browsers.rs does the same for sessions of the web console.
//!
//! Each request is a task of its own, so a slow one holds up nobody but its tenant. A request whose
//! client has gone away is carried out all the same.

pub(in crate::control) mod browsers;
mod handler;
mod objects;
pub(in crate::control) mod paces;
mod principal;
pub(in crate::control) mod remote;
pub(in crate::control) mod socket;
mod words;

use std::rc::Rc;

use tokio::sync::mpsc::Receiver;
use tollgate_admin::server::{Call, Header, Incoming, Listener, Server};
use tollgate_admin::{Operation, Principal, Reach, Status, carry_out};

use crate::control::api::handler::Api;
use crate::control::api::paces::Kind;
use crate::control::api::principal::principal;
use crate::control::api::words::refused;
use crate::control::operators::visitor::Visitor;
use crate::control::own_user::is_operator;
use crate::control::refusals::store_failed;
use crate::control::state::Control;

/// Serves the API on listeners until the server is dropped.
pub(in crate::control) fn start(
    control: &Rc<Control>,
    listeners: Vec<Listener>,
) -> std::io::Result<Server> {
    let (server, incoming) = Server::start(listeners, is_operator)?;
    tokio::task::spawn_local(serve(Rc::clone(control), incoming));
    Ok(server)
}

async fn serve(control: Rc<Control>, mut incoming: Receiver<Incoming>) {
    while let Some(asked) = incoming.recv().await {
        let control = Rc::clone(&control);
        match asked {
            Incoming::Header(header) => tokio::task::spawn_local(identified(control, header)),
            Incoming::Call(call) => tokio::task::spawn_local(carried_out(control, call)),
        };
    }
}

/// Tells who sends a request whose header has arrived.
async fn identified(control: Rc<Control>, header: Header) {
    let Header { caller, mut reply } = header;
    let found = tokio::select! {
        found = principal(&control, &caller) => found,
        () = reply.closed() => return,
    };
    let _client_gone = reply.send(found.map(|visitor| visitor.principal));
}

async fn carried_out(control: Rc<Control>, call: Call) {
    let Call {
        caller,
        ask,
        mut reply,
    } = call;
    let row = ask.row();
    let admitted = async {
        let bearer = principal(&control, &caller).await?;
        // What is refused takes no turn from those who may send it.
        if row.rights.of(&bearer.principal) == Reach::No {
            return Ok((None, bearer));
        }
        let kind = kind(&control, &bearer.principal, row)?;
        let turn = control.paces.turn(&bearer.principal, kind).await?;
        // The token may have ended meanwhile.
        Ok::<_, Status>((Some(turn), principal(&control, &caller).await?))
    };
    // A request that waits ends with its client.
    let admitted = tokio::select! {
        admitted = admitted => admitted,
        () = reply.closed() => return,
    };
    let answered = match admitted {
        Ok((_turn, Visitor { principal, actor })) => {
            let control = Rc::clone(&control);
            carry_out(&Api { control, actor }, &principal, ask).await
        }
        Err(status) => Err(status),
    };
    let _client_gone = reply.send(answered);
    if control.replacement.is_replaced() {
        // That was this process's last answer.
        control.replacement.retire();
    }
}

/// What a principal's request is, for its pace.
fn kind(control: &Control, principal: &Principal, row: &Operation) -> Result<Kind, Status> {
    let Principal::Tenant { tenant, .. } = principal else {
        return Ok(Kind::Look);
    };
    if !row.is_change() {
        return Ok(Kind::Look);
    }
    let ceiling = control.changes.store().ceiling(tenant);
    let ceiling = ceiling.map_err(|error| refused(store_failed(&error)))?;
    Ok(Kind::Change {
        per_hour: ceiling.changes_per_hour,
        is_way_out: row.is_way_out(),
    })
}

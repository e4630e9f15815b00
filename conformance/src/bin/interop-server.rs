//! The Rust library's server of the interoperability suite: `interop-server SOCKET TOKEN`.
#![forbid(unsafe_code)]

use tollgate::{Code, Session, SessionOptions, Status, block_on};
use tollgate_conformance::interop::everything::everything_server::EverythingServer;
use tollgate_conformance::interop::{SemanticsServer, Server};

fn main() -> Result<(), Status> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(token)) = (arguments.next(), arguments.next()) else {
        let text = "give the daemon's socket and a tenant's token";
        return Err(Status::new(Code::INVALID_ARGUMENT, text));
    };
    let session = Session::open(SessionOptions::new(socket, token))?;
    let server = tollgate::Server::new(&session)
        .add_service(SemanticsServer::new(Server))
        .add_service(EverythingServer::new(Server));
    block_on(&session, async {
        server.bind().await?;
        println!("serving");
        Err(session.closed().await)
    })
}

//! The smallest server: it echoes each call of hotel.Echo.

#![forbid(unsafe_code)]

use tollgate::{Received, Reply, Request, Response, Server, Status, block_on};
use tollgate_examples::hotel::EchoMessage;
use tollgate_examples::hotel::echo_server::{Echo, EchoServer};

struct Same;

impl Echo for Same {
    async fn echo(&self, request: Request<Received<EchoMessage>>) -> Reply<EchoMessage> {
        Ok(Response::new(request.get_ref().to_owned()))
    }
}

fn main() -> Result<(), Status> {
    let (session, _) = tollgate_examples::session_from_arguments()?;
    let server = Server::new(&session).add_service(EchoServer::new(Same));
    block_on(&session, async {
        server.bind().await?;
        println!("serving");
        Err(session.closed().await)
    })
}

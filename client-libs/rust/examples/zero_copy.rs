//! A large value that is made in the send heap and read in the receive heap, without a copy.

#![forbid(unsafe_code)]

use tollgate::{Channel, Received, Reply, Request, Response, Server, Status, block_on};
use tollgate_examples::hotel::EchoMessage;
use tollgate_examples::hotel::echo_client::EchoClient;
use tollgate_examples::hotel::echo_server::{Echo, EchoServer};

const SIZE: usize = 1 << 20;

struct Ends;

impl Echo for Ends {
    async fn echo(&self, request: Request<Received<EchoMessage>>) -> Reply<EchoMessage> {
        // The shared memory into which the daemon delivered the request; no copy was made.
        let payload = request.get_ref().view().payload();
        let ends: Vec<u8> = payload
            .first()
            .into_iter()
            .chain(payload.last())
            .copied()
            .collect();
        Ok(Response::new(EchoMessage {
            payload: ends.into(),
        }))
    }
}

fn main() -> Result<(), Status> {
    let (serving, _) = tollgate_examples::session_from_arguments()?;
    let (session, _) = tollgate_examples::session_from_arguments()?;
    let server = Server::new(&serving).add_service(EchoServer::new(Ends));
    block_on(&serving, server.bind())?;
    let client = EchoClient::new(Channel::new(&session, ""));
    let mut picture = session.buffer(SIZE)?;
    picture.fill(0);
    (picture[0], picture[SIZE - 1]) = (1, 2);
    // From here on it is read-only and can be sent any number of times.
    let picture = picture.freeze();
    for _ in 0..3 {
        let request = EchoMessage {
            payload: picture.clone().into(),
        };
        let reply = block_on(&session, client.echo(request))?;
        println!("{:?}", reply.get_ref().view().payload());
    }
    Ok(())
}

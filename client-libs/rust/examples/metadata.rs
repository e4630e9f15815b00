//! Metadata of requests and responses, and trailers.

#![forbid(unsafe_code)]

use tollgate::{Channel, Received, Reply, Request, Response, Server, Status, block_on};
use tollgate_examples::hotel::EchoMessage;
use tollgate_examples::hotel::echo_client::EchoClient;
use tollgate_examples::hotel::echo_server::{Echo, EchoServer};

struct Polite;

impl Echo for Polite {
    async fn echo(&self, request: Request<Received<EchoMessage>>) -> Reply<EchoMessage> {
        let asked = request.metadata();
        let greeting = format!("hello {}", asked.get("user").unwrap_or("stranger"));
        let trace = asked.get_bin("trace-bin").unwrap_or_default();
        let mut response = Response::new(request.get_ref().to_owned());
        response.metadata_mut().insert("greeting", &greeting)?;
        response.trailers_mut().insert_bin("trace-bin", trace)?;
        Ok(response)
    }
}

fn main() -> Result<(), Status> {
    let (serving, _) = tollgate_examples::session_from_arguments()?;
    let (session, _) = tollgate_examples::session_from_arguments()?;
    let server = Server::new(&serving).add_service(EchoServer::new(Polite));
    block_on(&serving, server.bind())?;
    let client = EchoClient::new(Channel::new(&session, ""));
    let mut request = Request::new(EchoMessage::default());
    // Keys that end in -bin have bytes, the others text.
    request.metadata_mut().insert("user", "Ada")?;
    request
        .metadata_mut()
        .insert_bin("trace-bin", &[0x00, 0xff])?;
    let response = block_on(&session, client.echo(request))?;
    println!(
        "beside the response: {:?}",
        response.metadata().get("greeting")
    );
    println!("behind it: {:?}", response.trailers().get_bin("trace-bin"));
    Ok(())
}

//! The smallest client: one call of hotel.Echo.

#![forbid(unsafe_code)]

use tollgate::{Channel, Status, block_on};
use tollgate_examples::hotel::EchoMessage;
use tollgate_examples::hotel::echo_client::EchoClient;

fn main() -> Result<(), Status> {
    let (session, arguments) = tollgate_examples::session_from_arguments()?;
    let target = arguments.first().map_or("", String::as_str);
    let client = EchoClient::new(Channel::new(&session, target));
    let request = EchoMessage {
        payload: b"hello"[..].into(),
    };
    let reply = block_on(&session, client.echo(request))?;
    println!("{}", reply.get_ref().view().payload().escape_ascii());
    Ok(())
}

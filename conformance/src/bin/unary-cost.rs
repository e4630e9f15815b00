//! So many calls with one request of 64 bytes and one reply, for whoever counts instructions: `unary-cost SOCKET TOKEN CALLS`, with a
//! server of hotel.Echo running. The same as `client-libs/c/tests/cost.c`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use tollgate::{Channel, Session, SessionOptions, block_on};
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, token, calls] = &arguments[..] else {
        return Err("give the daemon's socket, a tenant's token, and how many calls".into());
    };
    let mut options = SessionOptions::new(socket, token);
    // How often it looks before it sleeps is the machine's.
    options.spin = Duration::ZERO;
    let session = Session::open(options)?;
    let client = EchoClient::new(Channel::new(&session, ""));
    for _ in 0..calls.parse::<u32>()? {
        let payload = vec![1; 64].into();
        let reply = block_on(&session, client.echo(EchoMessage { payload }))?;
        if reply.get_ref().view().payload().len() != 64 {
            return Err("the reply is another one".into());
        }
    }
    Ok(())
}

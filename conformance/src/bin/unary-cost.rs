//! Makes calls with one request of 64 bytes and one reply, for counting instructions: `unary-cost
//! SOCKET TOKEN [TOGETHER] CALLS`, with a running server of hotel.Echo. TOGETHER calls are in
//! flight at a time, by default one. The same as `client-libs/c/tests/cost.c`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use futures_util::future::try_join_all;
use tollgate::{Channel, Session, SessionOptions, block_on};
use tollgate_conformance::hotel::EchoMessage;
use tollgate_conformance::hotel::echo_client::EchoClient;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (socket, token, together, calls) = match &arguments[..] {
        [socket, token, calls] => (socket, token, 1, calls),
        [socket, token, together, calls] => (socket, token, together.parse()?, calls),
        _ => {
            return Err("give the daemon's socket, a tenant's token, and how many calls".into());
        }
    };
    let mut options = SessionOptions::new(socket, token);
    // The number of polls before sleeping depends on the machine.
    options.spin = Duration::ZERO;
    let session = Session::open(options)?;
    let client = EchoClient::new(Channel::new(&session, ""));
    let call = async || {
        let payload = vec![1; 64].into();
        let reply = client.echo(EchoMessage { payload }).await?;
        match reply.get_ref().view().payload().len() {
            64 => Ok(()),
            _ => Err(Box::<dyn Error>::from("the reply is wrong")),
        }
    };
    for _ in 0..calls.parse::<usize>()? / together {
        let calls = (0..together).map(|_| call());
        block_on(&session, try_join_all(calls))?;
    }
    Ok(())
}

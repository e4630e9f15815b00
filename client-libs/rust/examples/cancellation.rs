//! Calls that end early, by deadline or by the caller, and the effect on their handlers.

#![forbid(unsafe_code)]

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use tollgate::{Channel, Received, Reply, Request, Response, Server, Status, Streaming};
use tollgate_examples::interop::semantics_client::SemanticsClient;
use tollgate_examples::interop::semantics_server::{Semantics, SemanticsServer};
use tollgate_examples::interop::{Answer, Ask};

/// Reports its own drop. A handler's values are dropped when its call is cancelled.
struct Told(Sender<&'static str>, &'static str);

impl Drop for Told {
    fn drop(&mut self) {
        let _nobody_listens = self.0.send(self.1);
    }
}

struct Slow(Sender<&'static str>);

type Answers = BoxStream<'static, Result<Answer, Status>>;

impl Semantics for Slow {
    async fn unary(&self, _: Request<Received<Ask>>) -> Reply<Answer> {
        let _told = Told(self.0.clone(), "the handler was dropped");
        std::future::pending().await
    }

    async fn collect(&self, _: Request<Streaming<Ask>>) -> Reply<Answer> {
        Ok(Response::new(Answer::default()))
    }

    type SpreadStream = Answers;

    async fn spread(&self, _: Request<Received<Ask>>) -> Reply<Answers> {
        let told = Told(self.0.clone(), "the answers were dropped");
        let endless = stream::iter(0..).map(move |number| {
            let _as_long_as_the_stream = &told;
            Ok(Answer {
                number,
                ..Default::default()
            })
        });
        Ok(Response::new(endless.boxed()))
    }

    type ChatStream = Answers;

    async fn chat(&self, _: Request<Streaming<Ask>>) -> Reply<Answers> {
        Ok(Response::new(stream::empty().boxed()))
    }
}

fn main() -> Result<(), Status> {
    let (serving, _) = tollgate_examples::session_from_arguments()?;
    let (session, _) = tollgate_examples::session_from_arguments()?;
    let (seen, sees) = channel();
    let server = Server::new(&serving).add_service(SemanticsServer::new(Slow(seen)));
    tollgate::block_on(&serving, server.bind())?;
    let client = SemanticsClient::new(Channel::new(&session, ""));

    let mut request = Request::new(Ask::default());
    request.set_timeout(Duration::from_secs(1));
    let late = tollgate::block_on(&session, client.unary(request));
    println!("{:?}", late.err().map(|status| status.code));
    println!("{}", sees.recv().unwrap_or("nothing"));

    tollgate::block_on(&session, async {
        let mut answers = client.spread(Ask::default()).await?.into_inner();
        while let Some(answer) = answers.message().await? {
            if answer.view().number() == 3 {
                break;
            }
        }
        // Dropping the answers cancels the call. The same holds for the future of any call.
        drop(answers);
        Ok::<_, Status>(())
    })?;
    println!("{}", sees.recv().unwrap_or("nothing"));
    Ok(())
}

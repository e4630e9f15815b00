//! Calls with any number of requests and responses, and backpressure from a slow reader.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use tollgate::{Channel, Received, Reply, Request, Response, Server, Status, Streaming, block_on};
use tollgate_examples::interop::semantics_client::SemanticsClient;
use tollgate_examples::interop::semantics_server::{Semantics, SemanticsServer};
use tollgate_examples::interop::{Answer, Ask};

type Answers = BoxStream<'static, Result<Answer, Status>>;

struct Numbers;

impl Semantics for Numbers {
    async fn unary(&self, request: Request<Received<Ask>>) -> Reply<Answer> {
        Ok(Response::new(answer(request.get_ref().view().number())))
    }

    async fn collect(&self, request: Request<Streaming<Ask>>) -> Reply<Answer> {
        let (mut asks, mut sum) = (request.into_inner(), 0);
        while let Some(ask) = asks.message().await? {
            sum += ask.view().number();
        }
        Ok(Response::new(answer(sum)))
    }

    type SpreadStream = Answers;

    async fn spread(&self, request: Request<Received<Ask>>) -> Reply<Answers> {
        let count = u64::from(request.get_ref().view().responses());
        Ok(Response::new(
            stream::iter(0..count).map(answer).map(Ok).boxed(),
        ))
    }

    type ChatStream = Answers;

    async fn chat(&self, request: Request<Streaming<Ask>>) -> Reply<Answers> {
        let asks = request.into_inner();
        let answers = asks.map(|ask| Ok(answer(ask?.view().number() * 2)));
        Ok(Response::new(answers.boxed()))
    }
}

fn answer(number: u64) -> Answer {
    Answer {
        number,
        ..Default::default()
    }
}

fn ask(number: u64) -> Ask {
    Ask {
        number,
        ..Default::default()
    }
}

async fn numbers(answers: Streaming<Answer>) -> Result<Vec<u64>, Status> {
    let numbers = answers.map(|answer| Ok(answer?.view().number()));
    numbers.collect::<Vec<_>>().await.into_iter().collect()
}

async fn call(client: &SemanticsClient) -> Result<(), Status> {
    let sum = client.collect(stream::iter((0..5).map(ask))).await?;
    println!("collected {}", sum.get_ref().view().number());

    let five = Ask {
        responses: 5,
        ..Default::default()
    };
    let answers = client.spread(five).await?.into_inner();
    println!("spread {:?}", numbers(answers).await?);

    let answers = client.chat(stream::iter((0..5).map(ask))).await?;
    println!("chatted {:?}", numbers(answers.into_inner()).await?);

    let made = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&made);
    let endless = stream::repeat_with(move || ask(count.fetch_add(1, Ordering::Relaxed) + 1));
    let mut answers = client.chat(endless).await?.into_inner();
    // On a thread that doesn't carry the messages.
    std::thread::sleep(Duration::from_millis(200));
    // The client reads no answers, so the server stops reading requests, so no more are made.
    println!("stopped {}", made.load(Ordering::Relaxed) < 1000);
    let first = answers.message().await?;
    println!("goes on {:?}", first.map(|answer| answer.view().number()));
    // Dropping the answers cancels the call.
    Ok(())
}

fn main() -> Result<(), Status> {
    let (serving, _) = tollgate_examples::session_from_arguments()?;
    let (session, _) = tollgate_examples::session_from_arguments()?;
    let server = Server::new(&serving).add_service(SemanticsServer::new(Numbers));
    block_on(&serving, server.bind())?;
    let client = SemanticsClient::new(Channel::new(&session, ""));
    // Any executor works: the sessions are driven by their own threads.
    let executor = tokio::runtime::Builder::new_current_thread().build();
    let executor = executor.map_err(|error| Status::unavailable(error.to_string()))?;
    executor.block_on(call(&client))
}

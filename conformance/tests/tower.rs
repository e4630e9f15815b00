//! Methods as tower services: layers in front of them work as usual.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tollgate::{Channel, Code, Request, Status};
use tollgate_conformance::backstage::Backstage;
use tollgate_conformance::interop::{Ask, SemanticsClient};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _};

/// The client and the server.
fn served() -> (SemanticsClient, Backstage) {
    let backstage = Backstage::with_semantics();
    let channel = Channel::new(&backstage.session(), "");
    (SemanticsClient::new(channel), backstage)
}

fn ask(number: u64, delay_ms: u32) -> Request<Ask> {
    Request::new(Ask {
        number,
        delay_ms,
        responses: 2,
        ..Ask::default()
    })
}

fn executor() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap()
}

#[test]
fn calls_go_through_as_they_are() {
    let (client, _backstage) = served();
    let mut unary = client.unary_service();
    let mut spread = client.spread_service();
    executor().block_on(async {
        let reply = unary.ready().await.unwrap().call(ask(7, 0)).await.unwrap();
        assert_eq!(reply.get_ref().view().number(), 7);
        let mut request = ask(8, 10_000);
        request.set_timeout(Duration::from_millis(20));
        let late: Result<_, Status> = unary.clone().oneshot(request).await;
        assert_eq!(late.unwrap_err().code, Code::DEADLINE_EXCEEDED);
        let answers = spread.call(ask(3, 0)).await.unwrap();
        let mut answers = answers.into_inner();
        for number in [3, 4] {
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!(answer.view().number(), number);
        }
        assert!(answers.message().await.unwrap().is_none());
    });
    assert_eq!(
        format!("{unary:?}"),
        "UnaryService(interop.Semantics/Unary)"
    );
}

#[test]
fn layers_do_what_they_do() {
    let (client, _backstage) = served();
    let (begun, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    executor().block_on(async {
        // A call that takes too long is cancelled.
        let impatient = ServiceBuilder::new()
            .timeout(Duration::from_millis(50))
            .service(client.unary_service());
        let late: Result<_, BoxError> = impatient.oneshot(ask(1, 20_000)).await;
        assert!(late.unwrap_err().is::<tower::timeout::error::Elapsed>());

        // At most two at once reach the library.
        let limited = ServiceBuilder::new()
            .concurrency_limit(2)
            .map_request(|request: Request<Ask>| {
                let now = begun.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(now, Ordering::Relaxed);
                request
            })
            .map_future(|call| async {
                let reply: Result<_, Status> = call.await;
                begun.fetch_sub(1, Ordering::Relaxed);
                reply
            })
            .service(client.unary_service());
        let calls = (0..10).map(|n| limited.clone().oneshot(ask(n, 5)));
        for (n, reply) in join_all(calls).await.into_iter().enumerate() {
            assert_eq!(reply.unwrap().get_ref().view().number(), n as u64);
        }
        assert_eq!(most.load(Ordering::Relaxed), 2);

        // Or the others are refused.
        let shedding = ServiceBuilder::new()
            .load_shed()
            .concurrency_limit(1)
            .service(client.unary_service());
        let calls = (0..4).map(|n| shedding.clone().oneshot(ask(n, 50)));
        let outcomes: Vec<Result<_, BoxError>> = join_all(calls).await;
        let shed = outcomes.iter().flat_map(|outcome| outcome.as_ref().err());
        assert_eq!(
            shed.filter(|error| error.is::<tower::load_shed::error::Overloaded>())
                .count(),
            3
        );
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    });
}

//! The health service: the status of services for requests and watches, also on the command line.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use tollgate::{Channel, Code, Server, Session, SessionOptions, Status, block_on};
use tollgate_conformance::testbed::{Testbed, health_proto};
use tollgate_health::v1::HealthCheckRequest;
use tollgate_health::{HealthClient, ServingStatus};

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

async fn check(client: &HealthClient, service: &str) -> Result<ServingStatus, Status> {
    let reply = client.check(of(service)).await?;
    Ok(reply.get_ref().view().status())
}

#[test]
fn who_asks_and_who_watches_hears_how_services_are() {
    const HOTEL: &str = "hotel.Reservation";
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let open = || Session::open(SessionOptions::new(daemon.socket(), &*token)).unwrap();
    let (serving, session) = (open(), open());
    let (health, reporter) = tollgate_health::server();
    let server = Server::new(&serving).add_service(health);
    block_on(&serving, server.bind()).unwrap();
    let client = HealthClient::new(Channel::new(&session, ""));

    block_on(&session, async {
        assert_eq!(check(&client, "").await, Ok(ServingStatus::SERVING));
        let unknown = check(&client, HOTEL).await.unwrap_err();
        assert_eq!(unknown.code, Code::NOT_FOUND);
        assert!(unknown.message.contains(HOTEL), "{unknown}");

        let mut watch = client.watch(of(HOTEL)).await.unwrap().into_inner();
        let mut other = client.watch(of(HOTEL)).await.unwrap().into_inner();
        let mut hears = async || {
            let message = watch.message().await.unwrap().unwrap();
            message.view().status()
        };
        assert_eq!(hears().await, ServingStatus::SERVICE_UNKNOWN);
        reporter.set(HOTEL, ServingStatus::SERVING);
        assert_eq!(hears().await, ServingStatus::SERVING);
        assert_eq!(check(&client, HOTEL).await, Ok(ServingStatus::SERVING));
        // An unchanged status isn't sent again, and neither is another service's.
        reporter.set(HOTEL, ServingStatus::SERVING);
        reporter.set("hotel.Echo", ServingStatus::NOT_SERVING);
        reporter.clone().set(HOTEL, ServingStatus::NOT_SERVING);
        assert_eq!(hears().await, ServingStatus::NOT_SERVING);
        reporter.forget(HOTEL);
        assert_eq!(hears().await, ServingStatus::SERVICE_UNKNOWN);
        reporter.set(HOTEL, ServingStatus::SERVING);
        assert_eq!(hears().await, ServingStatus::SERVING);
        reporter.shut_down();
        assert_eq!(hears().await, ServingStatus::NOT_SERVING);
        reporter.set(HOTEL, ServingStatus::SERVING);
        assert_eq!(check(&client, HOTEL).await, Ok(ServingStatus::NOT_SERVING));
        assert_eq!(check(&client, "").await, Ok(ServingStatus::NOT_SERVING));
        // A slow watcher gets the first status and then the newest, in order.
        let first = other.message().await.unwrap().unwrap();
        assert_eq!(first.view().status(), ServingStatus::SERVICE_UNKNOWN);
        // No further status will come, and a watch doesn't keep the server from ending.
        assert!(watch.message().await.unwrap().is_none());
    });

    let proto = health_proto();
    let args = [
        "call",
        "--token",
        &*token,
        "--proto",
        proto.to_str().unwrap(),
    ];
    let method = "grpc.health.v1.Health/Check";
    let outcome = daemon.tollgate(args.into_iter().chain([method, "{}"]));
    assert!(outcome.out.contains("NOT_SERVING"), "{outcome}");
}

//! The suite's HTTP side: parameters in, JSON out, as the original has them.
//!
//! | path | parameters |
//! |---|---|
//! | `/hotels` | `inDate`, `outDate`, `lat`, `lon` |
//! | `/recommendations` | `require` (dis, rate, price), `lat`, `lon` |
//! | `/user` | `username`, `password` |
//! | `/reservation` | `inDate`, `outDate`, `hotelId`, `customerName`, `username`, `password`, `number` |
//!
//! By GET or POST. All calls of one request are due at one time, and children of the span in its
//! headers, if there is one (`traceparent`). A call that fails is a status of HTTP with a sentence:
//! 400 names the parameter. Other than in the original nobody without a password makes
//! reservations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use axum::{Json, Router};
use serde::Serialize;

use crate::calls::{Booking, Calls, Cause, Feature, Trace};
use crate::dataset::Point;
use crate::failure::Failure;
use crate::stay::Stay;

/// What a frontend answers, by these calls, each request within this time.
pub fn router<C: Calls>(calls: C, timeout: Duration) -> Router {
    let frontend = Frontend { calls, timeout };
    let either = MethodFilter::GET.or(MethodFilter::POST);
    Router::new()
        .route("/hotels", on(either, hotels::<C>))
        .route("/recommendations", on(either, recommendations::<C>))
        .route("/user", on(either, user::<C>))
        .route("/reservation", on(either, reservation::<C>))
        .with_state(Arc::new(frontend))
}

struct Frontend<C> {
    calls: C,
    /// For each request.
    timeout: Duration,
}

type Front<C> = State<Arc<Frontend<C>>>;
type Answer<T> = Result<Json<T>, Failure>;

/// A collection of GeoJSON.
#[derive(Serialize)]
struct Features {
    #[serde(rename = "type")]
    kind: &'static str,
    features: Vec<Feature>,
}

#[derive(Serialize)]
struct Message {
    message: String,
}

async fn hotels<C: Calls>(
    State(front): Front<C>,
    headers: HeaderMap,
    query: Query<Parameters>,
) -> Answer<Features> {
    let (stay, cause) = (query.stay()?, front.cause(&headers));
    let [lat, lon] = query.position()?.map(|degrees| degrees as f32);
    let hotels = front.calls.search(cause.clone(), lat, lon, stay).await?;
    let anybody = Booking {
        customer: String::new(),
        hotels,
        stay,
        rooms: 1,
    };
    let free = front.calls.available(cause.clone(), anybody).await?;
    front.features(cause, free).await
}

async fn recommendations<C: Calls>(
    State(front): Front<C>,
    headers: HeaderMap,
    query: Query<Parameters>,
) -> Answer<Features> {
    let cause = front.cause(&headers);
    let ([lat, lon], require) = (query.position()?, query.text("require")?);
    let here = Point { lat, lon };
    let hotels = front
        .calls
        .recommended(cause.clone(), require, here)
        .await?;
    front.features(cause, hotels).await
}

async fn user<C: Calls>(
    State(front): Front<C>,
    headers: HeaderMap,
    query: Query<Parameters>,
) -> Answer<Message> {
    let is_user = front.is_user(front.cause(&headers), &query).await?;
    Ok(said(if is_user { WELCOME } else { STRANGER }))
}

async fn reservation<C: Calls>(
    State(front): Front<C>,
    headers: HeaderMap,
    query: Query<Parameters>,
) -> Answer<Message> {
    let cause = front.cause(&headers);
    let booking = Booking {
        customer: query.text("customerName")?.to_owned(),
        hotels: vec![query.text("hotelId")?.to_owned()],
        stay: query.stay()?,
        rooms: query.rooms()?,
    };
    if !front.is_user(cause.clone(), &query).await? {
        return Ok(said(STRANGER));
    }
    let made = front.calls.reserve(cause, booking).await?;
    Ok(said(if made { RESERVED } else { FULL }))
}

/// Who logs in and may.
pub const WELCOME: &str = "welcome";
/// Whose name or password is wrong.
pub const STRANGER: &str = "the username or the password is wrong";
/// Who has a room.
pub const RESERVED: &str = "reserved";
/// Who hasn't.
pub const FULL: &str = "the hotel has no such rooms left";

fn said(message: &str) -> Json<Message> {
    let message = message.to_owned();
    Json(Message { message })
}

impl<C: Calls> Frontend<C> {
    fn cause(&self, headers: &HeaderMap) -> Cause {
        let text = |name| headers.get(name)?.to_str().ok().map(str::to_owned);
        Cause::due_after(self.timeout).within(Trace::of(text))
    }

    async fn features(&self, cause: Cause, hotels: Vec<String>) -> Answer<Features> {
        let features = self.calls.features(cause, hotels).await?;
        Ok(Json(Features {
            kind: "FeatureCollection",
            features,
        }))
    }

    async fn is_user(&self, cause: Cause, query: &Parameters) -> Result<bool, Failure> {
        let [username, password] = [query.text("username")?, query.text("password")?];
        self.calls.is_user(cause, username, password).await
    }
}

/// What stands behind the question mark.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Parameters(HashMap<String, String>);

impl Parameters {
    fn text(&self, name: &str) -> Result<&str, Failure> {
        let text = self.0.get(name).filter(|text| !text.is_empty());
        let text = text.map(String::as_str);
        text.ok_or_else(|| Failure::invalid(format!("{name} is missing")))
    }

    fn stay(&self) -> Result<Stay, Failure> {
        Stay::parse(self.text("inDate")?, self.text("outDate")?)
    }

    /// Latitude and longitude.
    fn position(&self) -> Result<[f64; 2], Failure> {
        Ok([self.degrees("lat", 90.0)?, self.degrees("lon", 180.0)?])
    }

    fn degrees(&self, name: &str, most: f64) -> Result<f64, Failure> {
        let text = self.text(name)?;
        let degrees = text.parse::<f64>().ok();
        let degrees = degrees.filter(|degrees| (-most..=most).contains(degrees));
        let sentence = || format!("{name} is {text:?}; it has to be between -{most} and {most}");
        degrees.ok_or_else(|| Failure::invalid(sentence()))
    }

    fn rooms(&self) -> Result<u32, Failure> {
        let text = self.text("number")?;
        // The protocol's number has a sign.
        let rooms = text.parse::<i32>().ok().filter(|&rooms| rooms > 0);
        let sentence = || format!("number is {text:?}; it has to be a number of rooms, at least 1");
        rooms
            .map(i32::unsigned_abs)
            .ok_or_else(|| Failure::invalid(sentence()))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.http_status());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, said(&self.message)).into_response()
    }
}

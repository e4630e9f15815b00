//! What services ask of each other, whatever carries it.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tollgate::Code;

use crate::dataset::Point;
use crate::failure::Failure;
use crate::stay::Stay;

/// Hotels that one request may name: bounds the work for it, and the answer.
pub const MAX_HOTELS: usize = 128;

/// A span in a trace, as W3C has it in HTTP's headers and in metadata; what it says is for the
/// daemons to read.
#[derive(Debug, PartialEq, Eq)]
pub struct Trace {
    /// `traceparent`.
    pub parent: String,
    /// `tracestate`, if there is any.
    pub state: Option<String>,
}

impl Trace {
    /// What a request has under these names, if it has a parent.
    pub fn of(value: impl Fn(&'static str) -> Option<String>) -> Option<Trace> {
        let parent = value("traceparent")?;
        let state = value("tracestate");
        Some(Trace { parent, state })
    }

    /// As names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let state = self.state.iter().map(|state| ("tracestate", &**state));
        [("traceparent", &*self.parent)].into_iter().chain(state)
    }
}

/// What a call is made for: when its answer is no longer wanted, and in which trace.
#[derive(Clone, Debug)]
pub struct Cause {
    due: Option<Instant>,
    trace: Option<Arc<Trace>>,
}

impl Cause {
    /// Whenever its answer comes; or, over Tollgate, when the call is due that is being handled. In
    /// no trace.
    pub const NONE: Cause = Cause {
        due: None,
        trace: None,
    };

    /// Its answer is wanted so long from now.
    pub fn due_after(time: Duration) -> Cause {
        Cause {
            due: Instant::now().checked_add(time),
            ..Cause::NONE
        }
    }

    /// The same, in the trace of the request that has come.
    pub fn within(self, trace: Option<Trace>) -> Cause {
        Cause {
            trace: trace.map(Arc::new),
            ..self
        }
    }

    /// The request's that has come.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// How long from now its answer is wanted.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED if that has passed.
    pub fn left(&self) -> Result<Option<Duration>, Failure> {
        let Some(due) = self.due else {
            return Ok(None);
        };
        let left = due.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(Failure::new(Code::DEADLINE_EXCEEDED, "its time is over")),
            false => Ok(Some(left)),
        }
    }
}

/// Rooms that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// For whom.
    pub customer: String,
    /// At most [`MAX_HOTELS`].
    pub hotels: Vec<String>,
    /// When.
    pub stay: Stay,
    /// How many; at least one.
    pub rooms: u32,
}

impl Booking {
    /// From what a request says.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, naming what is wrong.
    pub fn parse(
        customer: &str,
        hotels: Vec<String>,
        [in_date, out_date]: [&str; 2],
        rooms: i32,
    ) -> Result<Booking, Failure> {
        let rooms = u32::try_from(rooms).ok().filter(|&rooms| rooms > 0);
        Ok(Booking {
            customer: customer.to_owned(),
            hotels: few(hotels)?,
            stay: Stay::parse(in_date, out_date)?,
            rooms: rooms.ok_or_else(|| Failure::invalid("number has to be at least 1"))?,
        })
    }
}

/// The same ids, if there are at most [`MAX_HOTELS`].
///
/// # Errors
/// INVALID_ARGUMENT if there are more.
pub fn few(hotels: Vec<String>) -> Result<Vec<String>, Failure> {
    if hotels.len() <= MAX_HOTELS {
        return Ok(hotels);
    }
    let count = hotels.len();
    let sentence = format!("{count} hotels in one request; at most {MAX_HOTELS} are answered");
    Err(Failure::invalid(sentence))
}

/// What is shown of a hotel: a feature of GeoJSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Feature {
    #[serde(rename = "type")]
    kind: &'static str,
    /// The hotel's.
    pub id: String,
    /// What it is called, and how to call it.
    pub properties: Properties,
    geometry: Geometry,
}

/// Of a [`Feature`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Properties {
    /// The hotel's.
    pub name: String,
    /// The hotel's.
    pub phone_number: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Geometry {
    #[serde(rename = "type")]
    kind: &'static str,
    coordinates: [f32; 2],
}

impl Feature {
    /// A hotel at this longitude and latitude.
    pub fn new(id: String, name: String, phone_number: String, coordinates: [f32; 2]) -> Feature {
        Feature {
            kind: "Feature",
            id,
            properties: Properties { name, phone_number },
            geometry: Geometry {
                kind: "Point",
                coordinates,
            },
        }
    }
}

/// An answer on its way.
pub trait Answer<T>: Future<Output = Result<T, Failure>> + Send {}

impl<T, F: Future<Output = Result<T, Failure>> + Send> Answer<T> for F {}

/// The seven services, as those see them who call them. Each call ends when it is due,
/// DEADLINE_EXCEEDED.
pub trait Calls: Send + Sync + 'static {
    /// geo: the nearest hotels.
    fn nearest(&self, cause: Cause, lat: f32, lon: f32) -> impl Answer<Vec<String>>;

    /// rate: those of the hotels that have rates, the most expensive first.
    fn with_rates(&self, cause: Cause, hotels: Vec<String>, stay: Stay)
    -> impl Answer<Vec<String>>;

    /// search: hotels to offer.
    fn search(&self, cause: Cause, lat: f32, lon: f32, stay: Stay) -> impl Answer<Vec<String>>;

    /// profile: what is shown of these hotels.
    fn features(&self, cause: Cause, hotels: Vec<String>) -> impl Answer<Vec<Feature>>;

    /// recommendation: the best hotels by a criterion.
    fn recommended(&self, cause: Cause, require: &str, here: Point) -> impl Answer<Vec<String>>;

    /// user: whether it is one, with this password.
    fn is_user(&self, cause: Cause, username: &str, password: &str) -> impl Answer<bool>;

    /// reservation: those of the hotels that have the rooms.
    fn available(&self, cause: Cause, booking: Booking) -> impl Answer<Vec<String>>;

    /// reservation: whether the first hotel's rooms are the customer's now.
    fn reserve(&self, cause: Cause, booking: Booking) -> impl Answer<bool>;
}

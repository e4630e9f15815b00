//! The hotel service's messages: prost's structs, as prost-build writes them, and an example of
//! each.

use prost::Message;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tollgate_schema::{Layouts, MessageId, Schema, dynamic};

/// `hotel.Stay`.
#[allow(missing_docs, reason = "the schema says it")]
#[derive(Clone, PartialEq, Message)]
pub struct Stay {
    #[prost(string, tag = "1")]
    pub in_date: String,
    #[prost(string, tag = "2")]
    pub out_date: String,
}

/// `hotel.ReserveRequest`.
#[allow(missing_docs, reason = "the schema says it")]
#[derive(Clone, PartialEq, Message)]
pub struct ReserveRequest {
    #[prost(string, tag = "1")]
    pub customer_name: String,
    #[prost(string, repeated, tag = "2")]
    pub hotel_ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub stay: Option<Stay>,
    #[prost(uint32, tag = "4")]
    pub room_count: u32,
    #[prost(string, optional, tag = "5")]
    pub coupon: Option<String>,
}

/// `hotel.ReserveReply`.
#[allow(missing_docs, reason = "the schema says it")]
#[derive(Clone, PartialEq, Message)]
pub struct ReserveReply {
    #[prost(uint64, tag = "1")]
    pub reservation_id: u64,
    #[prost(string, repeated, tag = "2")]
    pub hotel_ids: Vec<String>,
}

/// `hotel.AvailabilityRequest`.
#[allow(missing_docs, reason = "the schema says it")]
#[derive(Clone, PartialEq, Message)]
pub struct AvailabilityRequest {
    #[prost(string, repeated, tag = "1")]
    pub hotel_ids: Vec<String>,
    #[prost(message, optional, tag = "2")]
    pub stay: Option<Stay>,
    #[prost(uint32, tag = "3")]
    pub room_count: u32,
}

/// `hotel.AvailabilityReply`.
#[allow(missing_docs, reason = "the schema says it")]
#[derive(Clone, PartialEq, Message)]
pub struct AvailabilityReply {
    #[prost(map = "string, uint32", tag = "1")]
    pub rooms_left: HashMap<String, u32>,
}

/// `hotel.EchoMessage`.
#[allow(missing_docs, reason = "the schema says it")]
#[derive(Clone, PartialEq, Message)]
pub struct EchoMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub payload: Vec<u8>,
}

/// Names and examples, as JSON.
pub const EXAMPLES: [(&str, &str); 5] = [
    (
        "ReserveRequest",
        r#"{"customerName":"Ada Lovelace","hotelIds":["marriott-1","hilton-22"],
            "stay":{"inDate":"2026-03-01","outDate":"2026-03-04"},"roomCount":2,"coupon":"SPRING"}"#,
    ),
    (
        "ReserveReply",
        r#"{"reservationId":"123456789","hotelIds":["marriott-1","hilton-22"]}"#,
    ),
    (
        "AvailabilityRequest",
        r#"{"hotelIds":["marriott-1","hilton-22","ritz-3","hyatt-4444"],
            "stay":{"inDate":"2026-03-01","outDate":"2026-03-04"},"roomCount":2}"#,
    ),
    (
        "AvailabilityReply",
        r#"{"roomsLeft":{"marriott-1":5,"hilton-22":17,"ritz-3":0,"hyatt-4444":300}}"#,
    ),
    // 64 bytes.
    (
        "EchoMessage",
        r#"{"payload":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw=="}"#,
    ),
];

/// One message with everything that the contenders need.
pub struct Example {
    /// Its name inside the package.
    pub name: &'static str,
    /// The layouts of its service.
    pub layouts: Arc<Layouts>,
    /// Its type in them.
    pub id: MessageId,
    /// The message as a block without extents.
    pub block: Vec<u8>,
}

/// The schema of the hotel service.
pub fn schema() -> Schema {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    let schema = Schema::compile_proto(&[protos.join("hotel.proto")], &[protos]);
    schema.expect("the repository's own file compiles")
}

/// The examples as blocks.
pub fn examples() -> Vec<Example> {
    let schema = schema();
    let names = EXAMPLES.map(|(name, _)| format!("hotel.{name}"));
    let layouts = schema.layouts(&names.each_ref().map(String::as_str));
    let layouts = Arc::new(layouts.expect("the messages are declared"));
    let example = |(name, json): (&'static str, &str)| {
        let full_name = format!("hotel.{name}");
        let descriptor = schema.message(&full_name).expect("it is declared");
        let id = layouts.find(&full_name).expect("it is laid out");
        let message = dynamic::from_json(&descriptor, json).expect("the example fits");
        let block = dynamic::write_block(&layouts, id, &message).expect("it is small");
        Example {
            name,
            layouts: Arc::clone(&layouts),
            id,
            block,
        }
    };
    EXAMPLES.into_iter().map(example).collect()
}

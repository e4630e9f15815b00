//! Schemas: what messages look like in shared memory, and whether two peers mean the same.
//!
//! `descriptor set → model → layout`. A [`Schema`] is a resolved protobuf descriptor set; [`Schema::service`] lays out
//! the messages of one service. The memory format itself is told in [`layout`], the canonical text that peers compare in
//! [`describe`], what unequal texts still allow in [`evolution`], and [`dynamic`] writes and reads blocks by reflection,
//! for tools and as the tests' second opinion.
//!
//! A descriptor set comes from a client, and all that happens to it on the way to a layout is done here, without a
//! library: every item is counted, every name checked, every refusal says what and where. The reflection library comes in
//! for tools only, when they ask for a descriptor.
//!
//! Shared by both sides of the boundary: stub writers and tools on the client's side, the daemon on the other. It knows
//! no segment, no ring and no policy.

#![forbid(unsafe_code)]

pub mod describe;
mod descriptor;
pub mod dynamic;
mod error;
pub mod evolution;
mod json;
pub mod layout;
pub mod limits;
mod load;
mod proto_type;
mod reflect;
mod resolve;
mod schema;
pub mod spelling;

pub use describe::difference;
pub use error::{DynamicError, SchemaError};
pub use layout::{
    Cardinality, EXTENT_FLAG, FieldLayout, Kind, Layouts, MessageId, MessageLayout, OneofLayout,
    ProtoType,
};
pub use prost_reflect;
pub use schema::{MethodLayout, Schema, ServiceLayout};

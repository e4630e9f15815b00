//! Schemas: the layout of messages in shared memory, and whether the schemas of two peers agree.
//!
//! `descriptor set → model → layout`. A [`Schema`] is a resolved protobuf descriptor set;
//! [`Schema::service`] lays out the messages of one service. [`layout`] defines the memory format,
//! [`describe`] the canonical text that peers compare, and [`evolution`] the calls that unequal
//! texts still allow. [`dynamic`] writes and reads blocks by reflection, for tools and as an
//! independent check in tests.
//!
//! A descriptor set comes from a client. This crate does every step from there to a layout without
//! a library: it counts every item, checks every name, and each refusal names the place and the
//! reason. Only tools use the reflection library, when they ask for a descriptor.
//!
//! Both sides of the boundary share this crate: stub writers and tools on the client's side, the
//! daemon on the other. It knows no segment, no ring and no policy.

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

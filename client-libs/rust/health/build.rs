//! Generates the stubs of the health service.
#![forbid(unsafe_code)]

fn main() -> Result<(), tollgate_gen::GenError> {
    tollgate_gen::configure().compile_protos(&["proto/grpc/health/v1/health.proto"], &["proto"])
}

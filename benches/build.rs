//! Generates the stubs of `hotel.proto` for each system under measurement, without protoc.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

const PROTO: &str = "hotel.proto";
const INCLUDE: &str = "../conformance/proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={INCLUDE}/{PROTO}");
    tollgate_gen::configure().compile_protos(&[PROTO], &[INCLUDE])?;
    // Both name their file after the package. `Bytes` lets tonic share a payload between calls instead
    // of copying it per request.
    let tonic = Path::new(&std::env::var("OUT_DIR")?).join("tonic");
    std::fs::create_dir_all(&tonic)?;
    tonic_prost_build::configure()
        .bytes(".")
        .out_dir(tonic)
        .compile_fds(protox::compile([PROTO], [INCLUDE])?)?;
    Ok(())
}

//! Generates the stubs of `hotel.proto` for each system under measurement, without protoc.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

const PROTO: &str = "hotel.proto";
const INCLUDE: &str = "../conformance/proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={INCLUDE}/{PROTO}");
    // `Bytes` lets a client share a payload between calls instead of copying it per request: for both.
    tollgate_gen::configure()
        .bytes(".")
        .compile_protos(&[PROTO], &[INCLUDE])?;
    // Both name their file after the package.
    let tonic = Path::new(&std::env::var("OUT_DIR")?).join("tonic");
    std::fs::create_dir_all(&tonic)?;
    tonic_prost_build::configure()
        .bytes(".")
        // It would name a file of this directory, which isn't there, and so run in each build.
        .emit_rerun_if_changed(false)
        .out_dir(tonic)
        .compile_fds(protox::compile([PROTO], [INCLUDE])?)?;
    Ok(())
}

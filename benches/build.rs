//! Generates the stubs of `hotel.proto` and `kv.proto` for each system under measurement, without
//! protoc.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

const PROTOS: [&str; 2] = ["hotel.proto", "kv.proto"];
const INCLUDE: &str = "../conformance/proto";

fn main() -> Result<(), Box<dyn Error>> {
    for proto in PROTOS {
        println!("cargo::rerun-if-changed={INCLUDE}/{proto}");
    }
    // `Bytes` lets a client share a payload between calls instead of copying it per request. Both
    // systems use it.
    tollgate_gen::configure()
        .bytes(".")
        .compile_protos(&PROTOS, &[INCLUDE])?;
    // Both generators name their files after the packages.
    let tonic = Path::new(&std::env::var("OUT_DIR")?).join("tonic");
    std::fs::create_dir_all(&tonic)?;
    tonic_prost_build::configure()
        .bytes(".")
        // It would name a missing file of this directory, and so run in each build.
        .emit_rerun_if_changed(false)
        .out_dir(tonic)
        .compile_fds(protox::compile(PROTOS, [INCLUDE])?)?;
    Ok(())
}

//! Generates the stubs of the seven services for Tollgate and for tonic, without protoc.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

const SERVICES: [&str; 7] = [
    "geo",
    "profile",
    "rate",
    "recommendation",
    "reservation",
    "search",
    "user",
];

fn main() -> Result<(), Box<dyn Error>> {
    let protos = SERVICES.map(|service| format!("{service}.proto"));
    for proto in &protos {
        println!("cargo::rerun-if-changed=proto/{proto}");
    }
    tollgate_gen::configure().compile_protos(&protos, &["proto".to_owned()])?;
    // Both name their files after the packages.
    let tonic = Path::new(&std::env::var("OUT_DIR")?).join("tonic");
    std::fs::create_dir_all(&tonic)?;
    tonic_prost_build::configure()
        // It would name files of this directory, which aren't there, and so run in each build.
        .emit_rerun_if_changed(false)
        .out_dir(tonic)
        .compile_fds(protox::compile(&protos, ["proto"])?)?;
    Ok(())
}

//! Generates messages, services and the descriptor set of `tollgate.admin.v1`, without protoc.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;

use prost::Message as _;

const PROTO: &str = "tollgate/admin/v1/admin.proto";

/// Messages with a token.
const SECRET: [&str; 3] = [
    "tollgate.admin.v1.AddTenantResponse",
    "tollgate.admin.v1.AddCredentialResponse",
    "tollgate.admin.v1.RotateCredentialResponse",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/{PROTO}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let set = protox::compile([PROTO], ["proto"])?;
    // For reflection.
    std::fs::write(out.join("admin.binpb"), set.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(false)
        // It would name files of this directory, which aren't there, and so run in each build.
        .emit_rerun_if_changed(false)
        // Its `Debug` is written by hand.
        .skip_debug(SECRET)
        .compile_fds(set)?;
    Ok(())
}

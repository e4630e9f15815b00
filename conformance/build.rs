//! Generates the hotel's stubs, as any application does.
#![forbid(unsafe_code)]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/hotel.proto");
    tollgate_gen::configure()
        .bytes(".hotel.EchoMessage")
        .compile_protos(&["proto/hotel.proto"], &["proto"])?;
    Ok(())
}

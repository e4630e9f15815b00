//! Generates the stubs of the hotel and of the interoperability suite, as any application does.
#![forbid(unsafe_code)]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tollgate_gen::configure()
        .bytes(".hotel.EchoMessage")
        .compile_protos(
            &["everything", "hotel", "interop"].map(|name| format!("proto/{name}.proto")),
            &["proto".to_owned()],
        )?;
    Ok(())
}

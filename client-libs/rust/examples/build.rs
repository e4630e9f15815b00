//! Generates the stubs of the examples' services.

#![forbid(unsafe_code)]

fn main() -> Result<(), tollgate_gen::GenError> {
    let protos = "../../../conformance/proto";
    tollgate_gen::configure()
        .bytes(".hotel.EchoMessage.payload")
        .compile_protos(
            &["hotel", "interop"].map(|name| format!("{protos}/{name}.proto")),
            &[protos.to_owned()],
        )
}

//! Tests without a device and, with the feature `verbs`, tests of links between two devices. The
//! latter run in the VM of `conformance/rdma-vm`, by `.ci/rdma`. Elsewhere they fail, because they
//! mean nothing without devices.

#![allow(clippy::unwrap_used)]

mod byteps;
mod flow;
mod plan;
mod registrations;
mod ring;
#[cfg(feature = "verbs")]
mod soft_roce;
mod wire;

/// Compares with a golden file in `tests/golden`. `TOLLGATE_BLESS=1 cargo test` rewrites it; review
/// the difference like code.
fn golden(name: &str, actual: &str) {
    let path = format!("{}/src/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
    }
    // The VM has no sources.
    let expected = match name {
        "byteps.txt" => include_str!("tests/golden/byteps.txt"),
        other => panic!("no file {other}"),
    };
    assert!(
        expected == actual,
        "{name} differs from what was reviewed; now it is:\n{actual}"
    );
}

#[test]
#[cfg(not(feature = "verbs"))]
fn a_build_without_verbs_says_so() {
    let error = crate::probe().unwrap_err();
    assert_eq!(
        error.to_string(),
        "this daemon was built without RDMA: build it with the Cargo feature `verbs`"
    );
}

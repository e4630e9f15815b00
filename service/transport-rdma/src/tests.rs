//! What needs no device, and, with the feature `verbs`, links between two of them: those run in the VM of `conformance/rdma-vm`, by `.ci/rdma`,
//! and fail elsewhere, because they mean nothing without.

#![allow(clippy::unwrap_used)]

mod flow;
mod plan;
mod registrations;
#[cfg(feature = "verbs")]
mod soft_roce;
mod wire;

#[test]
#[cfg(not(feature = "verbs"))]
fn a_build_without_verbs_says_so() {
    let error = crate::probe().unwrap_err();
    assert_eq!(
        error.to_string(),
        "this daemon was built without RDMA: build it with the Cargo feature `verbs`"
    );
}

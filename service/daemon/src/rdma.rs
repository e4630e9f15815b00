//! Opens the host's RDMA devices as the configuration says.

use tollgate_datapath::rdma::Rdma;

use crate::config::RdmaConfig;

/// The devices that are present, or the reason why links can't use any.
pub(crate) fn open(config: &RdmaConfig) -> Rdma {
    if !config.enabled {
        return Rdma::Unavailable("the configuration says rdma.enabled = false".into());
    }
    #[cfg(feature = "rdma")]
    return Rdma::open(
        tollgate_transport_rdma::RdmaOptions {
            from: config.from,
            ring_bytes: config.ring_bytes(),
            ..tollgate_transport_rdma::RdmaOptions::default()
        },
        config.unprotected,
    );
    #[cfg(not(feature = "rdma"))]
    Rdma::Unavailable(
        "this daemon was built without RDMA; build tollgate-daemon with the Cargo feature `rdma`"
            .into(),
    )
}

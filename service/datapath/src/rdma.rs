//! The host's RDMA devices: links use RDMA where possible, and TCP otherwise. The status has the
//! reason for TCP.
//!
//! ```text
//!   to dial:    RDMA ── ready ──▶ calls
//!                 └── refused, unreachable, or not ready after RDMA_PATIENCE ──▶ TCP;
//!                     for RDMA_PAUSE the peer is dialled by TCP at once
//! ```
//!
//! A peer's RDMA port has the same number as its TCP port: the two have separate port numbers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;
#[cfg(feature = "rdma")]
use {
    crate::limits::{POOL_LINKS, POOLS},
    rustix::event::epoll,
    serde_json::json,
    tollgate_transport::LinkConfig,
    tollgate_transport_rdma::{
        DeviceInfo, Door, LinkId, Poller, PollerOptions, RdmaLink, RdmaOptions, Uses,
    },
};

use crate::limits::{RDMA_PAUSE, WITHOUT_RDMA};
use crate::report::PolledReport;

/// Whether links may go over RDMA.
#[derive(Clone)]
pub enum Rdma {
    /// Links can't use RDMA; the sentence says why.
    Unavailable(Arc<str>),
    /// Links can use these devices.
    #[cfg(feature = "rdma")]
    Ready {
        /// The devices.
        devices: tollgate_transport_rdma::Rdma,
        /// How links are made.
        options: RdmaOptions,
        /// RDMA links carry frames without tags if the peer agrees.
        unprotected: bool,
    },
}

impl Rdma {
    /// Opens the devices that are present. With `unprotected`, frames of RDMA links go without tags
    /// if the peer wants that, too.
    #[cfg(feature = "rdma")]
    pub fn open(options: RdmaOptions, unprotected: bool) -> Rdma {
        match tollgate_transport_rdma::Rdma::open() {
            Ok(devices) => Rdma::Ready {
                devices,
                options,
                unprotected,
            },
            Err(error) => Rdma::Unavailable(error.to_string().into()),
        }
    }

    /// The reason why links can't use RDMA, if they can't.
    pub fn unavailable(&self) -> Option<&Arc<str>> {
        match self {
            Rdma::Unavailable(why) => Some(why),
            #[cfg(feature = "rdma")]
            Rdma::Ready { .. } => None,
        }
    }

    /// The configuration of RDMA links.
    #[cfg(feature = "rdma")]
    pub fn link_config(&self, config: &LinkConfig) -> LinkConfig {
        let is_unprotected = |rdma: &Rdma| {
            matches!(
                rdma,
                Rdma::Ready {
                    unprotected: true,
                    ..
                }
            )
        };
        LinkConfig {
            unprotected: is_unprotected(self),
            ..config.clone()
        }
    }

    /// Name and registrations of each device.
    pub fn devices(&self) -> Vec<Value> {
        match self {
            Rdma::Unavailable(_) => Vec::new(),
            #[cfg(feature = "rdma")]
            Rdma::Ready { devices, .. } => {
                let one = |device: DeviceInfo| {
                    json!({
                        "name": device.name, "max_elements": device.max_elements,
                        "heaps": device.heaps, "registrations": device.registrations, "pinned_bytes": device.pinned_bytes,
                    })
                };
                devices.devices().map(one).collect()
            }
        }
    }
}

/// The RDMA links of one runtime, and the poller that receives for them. Without a device there is
/// neither.
#[derive(Default)]
pub(crate) struct Polled {
    #[cfg(feature = "rdma")]
    poller: Option<Poller>,
    /// Reused by [`Polled::mark`].
    #[cfg(feature = "rdma")]
    named: Vec<LinkId>,
}

impl Polled {
    /// The poller, watched by this epoll under this token.
    #[cfg_attr(
        not(feature = "rdma"),
        allow(unused_variables, reason = "nothing is watched")
    )]
    pub(crate) fn new(rdma: &Rdma, by: &OwnedFd, token: u64) -> std::io::Result<Polled> {
        #[cfg(feature = "rdma")]
        if let Rdma::Ready { devices, .. } = rdma {
            let options = PollerOptions {
                links: POOL_LINKS,
                pools: POOLS,
            };
            let poller = Poller::new(devices, &options).map_err(std::io::Error::other)?;
            let data = epoll::EventData::new_u64(token);
            epoll::add(by, &poller, data, epoll::EventFlags::IN)?;
            return Ok(Polled {
                poller: Some(poller),
                named: Vec::new(),
            });
        }
        Ok(Polled::default())
    }

    /// Gives links to the poller.
    #[cfg(feature = "rdma")]
    pub(crate) fn door(&self) -> Option<&Door> {
        self.poller.as_ref().map(Poller::door)
    }

    pub(crate) fn report(&self) -> Option<PolledReport> {
        #[cfg(feature = "rdma")]
        if let Some(door) = self.door() {
            let Uses {
                links,
                pools,
                counts,
            } = door.uses();
            return Some(PolledReport {
                links,
                pools,
                receives: counts.receives,
                bytes_spilled: counts.bytes_copied,
                system_calls: counts.system_calls,
            });
        }
        None
    }

    /// Polls the devices, once for all links, and marks the links that have something to read. A
    /// one-sided link, whose ring the peer writes, is marked in every turn: only the link itself
    /// can check its ring. If a device has failed, all links are marked, and each reports its own
    /// failure.
    #[cfg(feature = "rdma")]
    pub(crate) fn mark<'a>(&mut self, links: impl Iterator<Item = (&'a RdmaLink, &'a mut bool)>) {
        if let Some(poller) = &mut self.poller {
            self.named.clear();
            let has_failed = poller.poll(&mut self.named).is_err();
            self.named.sort_unstable();
            for (link, readable) in links {
                let is_named = |id| self.named.binary_search(&id).is_ok();
                *readable |= has_failed || link.is_one_sided() || link.id().is_some_and(is_named);
            }
        }
    }

    /// Arms the devices' events before a wait. `false`: something has arrived already.
    pub(crate) fn prepare_to_wait(&mut self) -> bool {
        #[cfg(feature = "rdma")]
        if let Some(poller) = &mut self.poller {
            // Links of a failed device report the failure at their next turn.
            return poller.prepare_to_wait().unwrap_or(false);
        }
        true
    }
}

/// Peers whose RDMA dial failed recently, each with the time of the next try and the reason.
#[derive(Default)]
pub(crate) struct WithoutRdma(HashMap<SocketAddr, (u64, Arc<str>)>);

impl WithoutRdma {
    /// Beyond [`WITHOUT_RDMA`] peers nothing is noted: such peers are tried again at once.
    pub(crate) fn note(&mut self, peer: SocketAddr, why: Arc<str>, now_ns: u64) {
        self.0.retain(|_, (until_ns, _)| *until_ns > now_ns);
        if self.0.len() < WITHOUT_RDMA {
            let until_ns = now_ns + RDMA_PAUSE.as_nanos() as u64;
            self.0.insert(peer, (until_ns, why));
        }
    }

    /// The reason why a peer isn't dialled by RDMA now, if it isn't.
    pub(crate) fn why(&self, peer: SocketAddr, now_ns: u64) -> Option<Arc<str>> {
        let (until_ns, why) = self.0.get(&peer)?;
        (*until_ns > now_ns).then(|| Arc::clone(why))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn a_peer_without_rdma_is_tried_again_after_a_while() {
        let mut without = WithoutRdma::default();
        without.note(peer(1), "refused".into(), 5);
        let pause_ns = RDMA_PAUSE.as_nanos() as u64;
        assert_eq!(
            without.why(peer(1), 4 + pause_ns).unwrap(),
            "refused".into()
        );
        assert_eq!(without.why(peer(1), 5 + pause_ns), None);
        assert_eq!(without.why(peer(2), 5), None);
    }

    #[test]
    fn so_many_peers_are_remembered_and_room_comes_with_time() {
        let mut without = WithoutRdma::default();
        for port in 0..=WITHOUT_RDMA as u16 {
            without.note(peer(port), "refused".into(), 0);
        }
        assert!(without.why(peer(WITHOUT_RDMA as u16 - 1), 0).is_some());
        assert!(without.why(peer(WITHOUT_RDMA as u16), 0).is_none());
        let later_ns = RDMA_PAUSE.as_nanos() as u64;
        without.note(peer(5_000), "refused".into(), later_ns);
        assert!(without.why(peer(5_000), later_ns).is_some());
    }
}
